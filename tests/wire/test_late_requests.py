"""Requests that arrive late at Redis, an HTTP server, S3 and ZooKeeper: the table in docs/faults.md."""

from __future__ import annotations

import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.coordinators.test_group_store import WRITES, coordinator_znode_version, prepared, reread
from tests.servers.redis_fixtures import RedisServer
from tests.servers.store_servers import HOLD_REQUEST, Proxy
from tests.servers.zk_fixtures import eventually
from tests.states.core.test_store_faults import proxy, root  # noqa: F401
from tests.states.outside.http_server import TAKES, Answer, serving
from tests.states.outside.test_http_state import part, rows, short_pauses  # noqa: F401
from tests.wire.redis import RedisLanguage
from tests.wire.relay import Act, Relay
from tests.wire.zookeeper import ZooKeeperLanguage
from trident import HttpState
from trident.coordinators.embedded_server import LoopbackPort
from trident.coordinators.errors import OutcomeUnknown, SourceError, StaleEpoch
from trident.spouts.queues.redis_queue import RedisListQueue, new_owner
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.maps.redis_store import RedisMap

SCRIPT = "EVALSHA"


@pytest.fixture
def port() -> Iterator[int]:
    reserved = LoopbackPort()
    yield reserved.number
    reserved.close()


@pytest.fixture
def redis_wire(redis_server: RedisServer, port: int) -> Iterator[tuple[Relay, str]]:
    relay = Relay(port, redis_server.port, RedisLanguage())
    yield relay, redis_server.url.replace(f":{redis_server.port}/", f":{port}/")
    relay.close()


def sent_again(call: Callable[[], Any]) -> Any:
    """As the framework does it where a connection is lost: the client sends nothing again by itself."""
    with pytest.raises((OutcomeUnknown, SourceError), match="Connection closed"):
        call()
    return call()


# --- Redis


def test_a_late_put_into_a_redis_map_changes_no_later_value(redis_wire: tuple[Relay, str]) -> None:
    wire, url = redis_wire
    counts = RedisMap(url, f"m{uuid.uuid4().hex[:8]}")
    counts.multi_put([("a",)], [0], epoch=1 << 32)
    late = wire.arm(SCRIPT, Act.LATE)
    sent_again(lambda: counts.multi_put([("a",), ("b",)], [1, 1], epoch=(1 << 32) + 1))
    counts.multi_put([("a",), ("b",)], [2, None], epoch=(1 << 32) + 2)
    refused = late.deliver()
    assert refused == b":%d\r\n" % ((1 << 32) + 2), "the script returns the newer epoch, and writes nothing"
    assert counts.multi_get([("a",), ("b",)]) == [2, None]
    with pytest.raises(StaleEpoch):
        counts.multi_put([("a",)], [1], epoch=(1 << 32) + 1)


def test_late_requests_to_a_redis_queue_lose_no_message(redis_wire: tuple[Relay, str]) -> None:
    wire, url = redis_wire
    queue, mine = RedisListQueue(url, f"q{uuid.uuid4().hex[:8]}"), new_owner("c")
    queue.put_many(["a", "b"])
    (first,) = queue.take(mine, 1)
    # An acknowledgement: the message is gone, its second arrival changes nothing of the others.
    late = wire.arm(SCRIPT, Act.LATE)
    sent_again(lambda: queue.acknowledge([first.id]))
    (second,) = queue.take(mine, 1)
    late.deliver()
    assert queue.takes(second.id) == 1 and len(queue) == queue.pending == 1
    # A message is given back and taken by another one: it stays that one's.
    late = wire.arm(SCRIPT, Act.LATE)
    sent_again(lambda: queue.give_back(mine, second.id))
    other = new_owner("c")
    assert [one.id for one in queue.take(other, 1)] == [second.id]
    late.deliver()
    assert queue.take(new_owner("c"), 5) == [] and queue.pending == 1
    # A take whose first sending arrives late hides what nobody has, until its time is up.
    queue.give_back(other, second.id)
    late = wire.arm(SCRIPT, Act.LATE)
    taken = sent_again(lambda: queue.take(mine, 1, redeliver_after_secs=60))
    assert [one.id for one in taken] == [second.id]
    third = queue.put("c")
    assert late.deliver() is not None
    assert queue.take(mine, 5) == [] and len(queue) == queue.pending == 2
    assert queue.release("c") == 2, "as a process does that starts again under the consumer's name"
    assert {one.id for one in queue.take(mine, 5)} == {second.id, third}


# --- HTTP


def test_a_request_that_a_server_gets_late_has_the_key_of_its_second_sending(tmp_path: Path) -> None:
    with serving() as server:
        lost = Answer(dropped=True, taken=False)
        server.answers = lambda asked: lost if asked.number == 0 else TAKES
        out = HttpState(server.url, "out", timeout_secs=10.0).kept_in(Place(str(tmp_path)) / "top__out__outbox")
        out.take_over("top", "inc", 1)
        out.publish(part(1), rows(1))
        out.publish(part(2), rows(1, 2))
        before = dict(server.rows)
        late = server.asked[0]
        request = urllib.request.Request(server.url, late.body, dict(late.headers), method=late.method)
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
        assert server.rows == before and sorted(body["id"] for body in server.bodies) == [1, 1, 2]


# --- S3


def test_a_late_request_that_takes_a_name_is_refused_by_the_store(proxy: Proxy, root: str) -> None:  # noqa: F811
    path = f"{root}/00000000000000000007.json"
    proxy.plan("PUT", HOLD_REQUEST)
    storage.create(path, b"mine")  # sent again by itself
    assert proxy.deliver() == 412
    assert storage.read(path) == b"mine"
    # And where another one has taken the name meanwhile, or the file was deleted and its successor written.
    proxy.plan("PUT", HOLD_REQUEST, (403, "AccessDenied"))
    with pytest.raises(Exception, match="AccessDenied"):
        storage.create(f"{root}/8.json", b"mine")
    storage.create(f"{root}/8.json", b"another's")
    assert proxy.deliver() == 412 and storage.read(f"{root}/8.json") == b"another's"


# --- ZooKeeper


@pytest.mark.parametrize("name", ["begin", "decide", "advance"])
def test_a_late_multi_reaches_no_session(zk_server: str, zk_connect, port: int, name: str) -> None:
    """The server ends a connection once its client has another one; the late bytes find it closed."""
    wire = Relay(port, int(zk_server.rpartition(":")[2]), ZooKeeperLanguage())
    try:
        store = prepared(zk_connect(f"127.0.0.1:{port}"))[1]
        before = coordinator_znode_version(store)
        late = wire.arm("multi", Act.LATE)
        WRITES[name](store)
        assert late.met.is_set() and coordinator_znode_version(store) == before + 1
        connection = late._held[0]
        assert eventually(lambda: connection.is_closed), "the server leaves the older connection open"
        with pytest.raises(OSError):
            late.deliver()
        assert coordinator_znode_version(store) == before + 1
        assert reread(store)[0] == (store.record, store.decision, store.pins)
    finally:
        wire.close()


@pytest.mark.parametrize("name", ["begin", "decide", "advance"])
def test_a_multi_that_is_done_again_is_refused_by_its_versions(zk, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As if the server had taken the late one: the same operations, with the same versions, a second time."""
    store = prepared(zk)[1]
    sent: list[Any] = []
    client, transaction = zk._client, zk._client.transaction

    def noted() -> Any:
        sent.append(transaction())
        return sent[-1]

    monkeypatch.setattr(client, "transaction", noted)
    WRITES[name](store)
    before = coordinator_znode_version(store)
    (first,) = [one for one in sent if one.operations]
    again = transaction()
    again.operations = first.operations
    found = again.commit()
    assert any(isinstance(one, Exception) for one in found) and coordinator_znode_version(store) == before
