"""The connection to a real ZooKeeper, and the small maps kept in it (docs/semantics.md 2)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.servers.zk_fixtures import connected, eventually
from tests.wire.relay import Act
from trident.coordinators import kazoo_adapter, zookeeper_connection
from trident.coordinators.errors import (
    ConfigError,
    CorruptZnode,
    Deposed,
    OutcomeUnknown,
    ValueTooLarge,
    ZooKeeperUnreachable,
)
from trident.coordinators.kazoo_adapter import Problems, TlsFiles
from trident.coordinators.transactional_state import Changes, RotatingTransactionalState
from trident.coordinators.znodes import VALUE_BYTES_MAX, Check, Create, Delete, MultiRefused, SetData
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ConnectionState, ZooKeeperConfig

# -- maps in ZooKeeper ------------------------------------------------------


def written(zk: ZooKeeper, states: RotatingTransactionalState, edit: Callable[[Changes], object]) -> None:
    """The edits, in a multi of their own."""
    changes = states.changes()
    edit(changes)
    zk.ensure_path(zk.path("pins"))
    zk.multi(changes.ops)
    changes.applied()


@pytest.fixture
def pins(zk) -> RotatingTransactionalState:
    states = RotatingTransactionalState(zk, zk.path("pins"), "spout lines")
    states.load()
    return states


def test_rotating_state_against_its_reading_by_another(zk, zk_connect, pins):
    def first(changes: Changes) -> None:
        assert pins.put_in(changes, 3, {"from": (0, 5)}) == {"from": [0, 5]}
        for txid in (2, 4, 5, 6):
            pins.put_in(changes, txid, txid)
        pins.put_in(changes, 4, "four")
        assert pins.outcome(changes) == {2: 2, 3: {"from": [0, 5]}, 4: "four", 5: 5, 6: 6}

    written(zk, pins, first)
    assert pins.txids == [2, 3, 4, 5, 6] and pins.value(3) == {"from": [0, 5]}
    written(zk, pins, lambda changes: pins.remove_after_in(changes, 5))
    assert pins.txids == [2, 3, 4, 5] and pins.value(6) is None
    written(zk, pins, lambda changes: (pins.remove_after_in(changes, 4), pins.cleanup_before_in(changes, 4)))
    again = RotatingTransactionalState(zk_connect(), zk.path("pins"), "spout lines")
    again.load()
    assert again.list_states() == pins.list_states() == {4: "four"}


def test_a_stored_none_is_a_value(zk, pins):
    written(zk, pins, lambda changes: pins.put_in(changes, 4, None))
    assert pins.has(4) and not pins.has(5) and pins.list_states() == {4: None}


def test_a_value_that_cannot_be_read_is_never_absent(zk, pins):
    written(zk, pins, lambda changes: pins.put_in(changes, 1, "one"))
    zk.multi([SetData(zk.path("pins") + "/1", b"garbage", -1)])
    with pytest.raises(CorruptZnode, match="/pins/1"):
        pins.load()
    zk.multi([Delete(zk.path("pins") + "/1"), Create(zk.path("pins") + "/first", b'{"schema":1,"value":1}')])
    with pytest.raises(CorruptZnode, match="/pins/first"):
        pins.load()


def test_two_writers_of_one_map_are_noticed(zk, pins):
    other = RotatingTransactionalState(zk, zk.path("pins"), "spout lines")
    other.load()
    written(zk, pins, lambda changes: pins.put_in(changes, 1, 1))
    with pytest.raises(MultiRefused):
        written(zk, other, lambda changes: other.put_in(changes, 1, 2))
    other.load()
    written(zk, pins, lambda changes: pins.put_in(changes, 1, 3))
    with pytest.raises(MultiRefused):
        written(zk, other, lambda changes: other.cleanup_before_in(changes, 2))
    assert zk.get(zk.path("pins") + "/1")[0] == b'{"schema":1,"value":3}'


# -- the connection ---------------------------------------------------------


def test_no_server_is_an_error_within_the_connect_timeout_and_a_line_says_early_that_it_is_waited_for(
    monkeypatch, caplog
):
    monkeypatch.setattr(zookeeper_connection, "_SILENT_SECS", 0.1)
    zk = ZooKeeper(ZooKeeperConfig("127.0.0.1:1,127.0.0.1:2", connect_timeout_secs=0.5))
    started = time.monotonic()
    with pytest.raises(ZooKeeperUnreachable, match="127.0.0.1:1,127.0.0.1:2.*") as raised:
        zk.connect()
    assert time.monotonic() - started < 15
    assert "0.5 s" in str(raised.value)
    name = "trident.coordinators.zookeeper"
    (said,) = [record.getMessage() for record in caplog.records if record.name == name]
    assert said.startswith("no ZooKeeper server answers at 127.0.0.1:1,127.0.0.1:2 yet (")
    assert "trying for up to 0.5 s" in said and "zookeeper_connect_timeout_secs" in said


@pytest.mark.parametrize("chroot", ["/one", "/two/levels", "/three/levels/more/"])
def test_a_chroot_that_is_not_there_is_made_with_all_its_levels(zk_server, zk_root, chroot):
    with connected(f"{zk_server}{zk_root}{chroot}", "/trident") as through:
        through.ensure_path(through.path("of-the-test"))
    with connected(zk_server, zk_root + chroot.rstrip("/")) as direct:
        assert direct.children(direct.path("trident")) == ["of-the-test"]


@pytest.mark.parametrize("hosts", ["h:1/a//b", "h:1/a/../b", "h1:1/a,h2:2/a/.."])
def test_a_chroot_that_cannot_be_one(hosts):
    with pytest.raises(ConfigError):
        ZooKeeperConfig(hosts)


def test_a_refused_multi_says_which_operation_and_does_nothing(zk):
    a, b = zk.path("a"), zk.path("b")
    zk.multi([Create(a, b"1")])
    for ops, path, reason in [
        ([Create(b), SetData(a, b"2", 7)], a, "BadVersionError"),
        ([Create(b), Create(a)], a, "NodeExistsError"),
        ([Create(b), Delete(zk.path("c"))], zk.path("c"), "NoNodeError"),
        ([SetData(a, b"2", 0), Check(a, 0), Create(b)], a, "BadVersionError"),
    ]:
        with pytest.raises(MultiRefused, match=reason) as raised:
            zk.multi(ops)
        assert (raised.value.op.path, raised.value.reason) == (path, reason)
        assert zk.get(b) is None and zk.get(a)[0] == b"1"


def test_the_check_of_a_fence_is_told_as_deposed_even_if_more_is_wrong(zk):
    zk.multi([Create(zk.path("a"))])
    with pytest.raises(Deposed, match="/a"):
        zk.multi([Check(zk.path("a"), 1, fence=True), Create(zk.path("a"))])
    with pytest.raises(Deposed):
        zk.multi([Check(zk.path("none"), 0, fence=True)])


def test_too_large_values_are_refused_before_they_are_sent(zk):
    sent = zk.counters.multis
    with pytest.raises(ValueTooLarge, match="spout lines.*524,289 bytes.*524,288 bytes"):
        zk.multi([Create(zk.path("a"), b"x" * (VALUE_BYTES_MAX + 1), owner="spout lines")])
    with pytest.raises(ValueTooLarge, match="belong together.*spout big"):
        zk.multi(
            [
                Create(zk.path("a"), b"x" * 300_000),
                Create(zk.path("b"), b"x" * 400_000, owner="spout big"),
                Create(zk.path("c"), b"x" * 300_000),
            ]
        )
    assert zk.counters.multis == sent
    zk.multi([Create(zk.path("a"), b"x" * VALUE_BYTES_MAX), Create(zk.path("b"), b"x" * 470_000)])
    assert len(zk.get(zk.path("a"))[0]) == VALUE_BYTES_MAX


def test_a_connection_away_for_the_session_timeout_is_lost_and_unknown(cutting_proxy, zk_connect):
    zk = zk_connect(cutting_proxy.hosts, session_secs=1.5)
    told: list[ConnectionState] = []
    zk.add_listener(told.append)
    session_number = zk.session_number
    cutting_proxy.go_down()
    assert eventually(lambda: not zk.connected)
    started = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        zk.multi([Create(zk.path("a"))])
    with pytest.raises(OutcomeUnknown):
        zk.recover(session_number, zk.path("a"))
    with pytest.raises(ZooKeeperUnreachable, match="/a"):
        zk.get(zk.path("a"))
    assert time.monotonic() - started < 20
    assert eventually(lambda: told == [ConnectionState.SUSPENDED, ConnectionState.LOST])
    assert zk.session_number == session_number + 1
    started = time.monotonic()
    zk.close()
    assert time.monotonic() - started < 15


def test_a_server_that_takes_a_connection_and_never_answers_costs_no_session(cutting_proxy, zk_connect):
    """ZooKeeper does so with connections that come while it starts."""
    zk = zk_connect(cutting_proxy.hosts, session_secs=6.0)
    session_number, session_id = zk.session_number, zk.session_id
    silent = cutting_proxy.arm("connect", Act.SILENT)
    cutting_proxy.cut_all()
    assert eventually(lambda: silent.met.is_set() and not zk.connected)
    assert zk.wait_connected(session_number, timeout_secs=5.5)
    assert zk.session_id == session_id


@pytest.mark.parametrize("tls", [None, TlsFiles(None, None, None, None, False, False)], ids=["plain", "TLS"])
def test_a_server_that_is_slow_to_answer_is_given_as_long_as_kazoo_gives_it_after_two_tries(monkeypatch, tls):
    monkeypatch.setattr(kazoo_adapter, "_ANSWER_SECS_LEAST", 0.1)
    handler, kazoos, waited = kazoo_adapter.Handler(tls, Problems(), 0.1), 0.6, []
    with socket.create_server(("127.0.0.1", 0)) as slow:  # it takes the connections, and never answers
        for _ in range(3):
            began = time.monotonic()
            try:
                client = handler.create_connection(address=slow.getsockname(), hostname="localhost", timeout=kazoos)
                assert handler.select([client], [], [], kazoos) == ([], [], [])
                client.close()
            except TimeoutError:
                assert tls
            waited.append(time.monotonic() - began)
    assert max(waited[:2]) < kazoos <= waited[2], waited


def test_reads_survive_a_lost_connection_of_the_same_session(cutting_proxy, zk_connect):
    zk = zk_connect(cutting_proxy.hosts)
    zk.multi([Create(zk.path("a"), b"1")])
    session_number = zk.session_number
    cutting_proxy.cut_next_multi("answer")
    with pytest.raises(OutcomeUnknown):
        zk.multi([Create(zk.path("b"), b"2")])
    zk.recover(session_number, zk.path("b"))
    assert zk.get(zk.path("b"))[0] == b"2" and zk.session_number == session_number


def test_a_read_is_not_repeated_in_the_next_session(cutting_proxy, zk_connect):
    """What is read there is of another time: whoever led with the old session is not the leader any more."""
    zk = zk_connect(cutting_proxy.hosts, session_secs=3.0)
    zk.multi([Create(zk.path("a"), b"1")])
    session_number = zk.session_number

    def come_back(state: ConnectionState) -> None:
        if state is ConnectionState.LOST:
            cutting_proxy.down = False

    zk.add_listener(come_back)
    cutting_proxy.go_down()
    assert eventually(lambda: not zk.connected)
    time.sleep(2.0)  # the session ends while the read waits, well before the read's own time is over
    with pytest.raises(ZooKeeperUnreachable, match="/a"):
        zk.get(zk.path("a"))
    assert eventually(lambda: zk.connected)
    assert zk.session_number == session_number + 1 and zk.get(zk.path("a"))[0] == b"1"


def test_close_does_not_wait_for_a_callback_that_hangs(zk_connect, monkeypatch):
    monkeypatch.setattr(zookeeper_connection, "_CLOSE_SECS_MAX", 0.5)
    zk = zk_connect()
    release = threading.Event()
    zk.multi([Create(zk.path("a"))])
    zk.get(zk.path("a"), lambda event: release.wait(30))
    zk.multi([SetData(zk.path("a"), b"", -1)])
    started = time.monotonic()
    zk.close()
    assert time.monotonic() - started < 15
    release.set()


@pytest.mark.parametrize("root", ["trident", "/", "", "/a//b", "/a/../b"])
def test_a_root_that_cannot_be_one(root):
    with pytest.raises(ConfigError):
        ZooKeeperConfig("h:1", root)


def test_an_unknown_option_and_an_impossible_name_are_refused(zk):
    with pytest.raises(ConfigError, match="use_tls"):
        ZooKeeperConfig("h:1", options={"use_tls": True})
    for name in ("", ".", "..", "a/b", "a\0b"):
        with pytest.raises(ConfigError):
            zk.path("topology", name)
