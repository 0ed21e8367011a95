"""HttpState over a real HTTP server, without Spark: each row once for a server that honours keys, whatever fails."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import random
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql.types import StructType

from tests.servers import store_servers
from tests.servers.zk_fixtures import eventually
from tests.servers.zk_security import Certificates
from tests.states.outside.http_server import TAKES, Answer, Asked, Server, serving
from trident import HttpState, OutsideMark, OutsidePart, OutsideRows
from trident.cli import main
from trident.commands.dead_letters import refused_by_servers
from trident.config import TridentConfig
from trident.coordinators.errors import (
    ConfigError,
    EnvironmentProblem,
    FieldError,
    ForeignMarks,
    Halted,
    OutboxDamaged,
    StaleEpoch,
    StateAway,
    StateLostTransactions,
    TableError,
    TopologyError,
    TridentError,
)
from trident.coordinators.records import GroupRecord, TableMark, outside_id
from trident.coordinators.stored_json import Unreadable
from trident.states.core import storage
from trident.states.core.binding import StateBinding
from trident.states.core.group_context import LeaderContext
from trident.states.core.local_storage import LocalFolder
from trident.states.core.place import Place
from trident.states.outside import http_sender, http_state, outbox
from trident.states.outside.health import OutsideProgress
from trident.states.outside.outbox import (
    Begun,
    Letters,
    Outbox,
    OutboxLog,
    PartProgress,
    RefusedRequestReader,
    refused_requests,
)
from trident.states.outside.port import OutsideKind
from trident.states.publishing.other_stores import OutsidePublisher

ALL = os.environ.get("TRIDENT_KILLS") == "all"  # make kills
ROWS = OutsideRows("top", StructType().add("id", "long").add("item", "string"))

if importlib.util.find_spec("httpx") is None:
    pytest.skip("NOT TESTED: HttpState. The client is missing: pip install httpx", allow_module_level=True)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_sender, "_FIRST_SECS", 0.02)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return Place(str(tmp_path)) / "top__out__outbox"


@pytest.fixture
def state(server: Server, folder: Place) -> HttpState:
    return HttpState(server.url, "out", timeout_secs=10.0)


def opened(state: HttpState, folder: Place, epoch: int = 1, incarnation: str = "inc") -> HttpState:
    kept = state.kept_in(folder)
    kept.take_over("top", incarnation, epoch)
    return kept


def part(txid: int, epoch: int = 1, number: int = 0, incarnation: str = "inc", **more: Any) -> OutsidePart:
    settings = {"rows_per_request": 1, "body": None, "decision": f"d{txid}", **more.pop("settings", {})}
    return OutsidePart("top", "out", number, OutsideMark(incarnation, epoch, txid, 0), settings=settings, **more)


def rows(*ids: int) -> Iterator[pa.RecordBatch]:
    """In batches of two."""
    pairs = [ids[at : at + 2] for at in range(0, len(ids), 2)]
    return iter([pa.record_batch({"id": list(pair), "item": [f"item {one}" for one in pair]}) for pair in pairs])


def ids(server: Server) -> list[int]:
    return sorted(body["id"] for body in server.bodies)


def letters(folder: Place) -> list[dict[str, Any]]:
    files = sorted(Path(str(folder / "refused")).glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


# --- what is sent


def test_each_row_is_a_request_with_a_key_of_its_own_that_stays(server, folder, state) -> None:
    out = opened(state, folder)
    out.publish(part(7), rows(1, 2, 3))
    out.publish(part(8), rows(1, 2, 3))
    keys = [asked.key for asked in server.asked]
    assert len(set(keys)) == 6 and sorted(keys)[0] == "inc-7-out-d7-0-0"
    first = {asked.row["id"]: asked.key for asked in server.asked if "-7-" in asked.key}
    assert {asked.method for asked in server.asked} == {"POST"} and server.asked[0].path == "/orders"
    assert sorted(body["item"] for body in server.bodies) == sorted(2 * ["item 1", "item 2", "item 3"])
    assert server.asked[0].headers["Content-Type"] == "application/json"
    # A process that knows nothing of it, as with a warehouse whose record is of before.
    other = opened(state, folder.parent / "another__out__outbox", epoch=2)
    other.publish(part(7, epoch=2), rows(1, 2, 3))
    again = {asked.row["id"]: asked.key for asked in server.asked[6:]}
    assert again == first and len(server.rows) == 6


def test_what_is_published_is_not_sent_again(server, folder, state) -> None:
    opened(state, folder).publish(part(1), rows(1, 2))
    opened(state, folder, epoch=2).publish(part(1, epoch=2), rows(1, 2))
    opened(state, folder, epoch=2).publish(part(1, epoch=2, number=1), rows(3))
    assert len(server.asked) == 3 and ids(server) == [1, 2, 3]


def test_two_decisions_of_one_number_have_other_keys(state) -> None:
    """A warehouse and a ZooKeeper that are put back together decide the same numbers anew, with other rows."""
    first, second = state.decided_with(), state.decided_with()
    assert first["decision"] != second["decision"]
    made = [next(state._requests(part(1, settings=settings), rows(1))).key for settings in (first, second, first)]
    assert made[0] == made[2] != made[1]


def test_several_rows_a_request_are_cut_as_when_they_were_decided(server, folder, state) -> None:
    several = opened(replace(state, rows_per_request=2), folder)
    of_two = {"rows_per_request": 2}
    several.publish(part(1, settings=of_two), rows(1, 2, 3))
    assert Counter(len(body) for body in server.bodies) == {2: 1, 1: 1}
    before = {asked.key for asked in server.asked}
    # Started anew with another number, in a warehouse that does not know how far it was.
    changed = opened(replace(state, rows_per_request=3), folder.parent / "another__out__outbox")
    changed.publish(part(1, settings=of_two), rows(1, 2, 3))
    assert {asked.key for asked in server.asked} == before and len(server.asked) == 4


def test_a_field_is_the_body_and_another_method_and_headers(server, folder, state) -> None:
    made = replace(state, body="item", method="PUT", headers={"Content-Type": "text/plain", "X-App": "shop"})
    opened(made, folder).publish(part(1, settings={"body": "item"}), rows(4))
    (asked,) = server.asked
    assert (asked.method, asked.body) == ("PUT", b"item 4")
    assert (asked.headers["Content-Type"], asked.headers["X-App"]) == ("text/plain", "shop")


def test_rows_of_one_value_go_in_their_order(server, folder, state) -> None:
    """While the server takes its time, by chance, for each."""
    chance = random.Random(7)
    server.answers = lambda asked: Answer(secs=chance.random() / 100)
    out = opened(replace(state, ordered_by="item", concurrency=6), folder)
    batch = pa.record_batch({"id": list(range(60)), "item": [str(number % 5) for number in range(60)]})
    out.publish(part(1), iter([batch]))
    for item in map(str, range(5)):
        taken = [body["id"] for body in server.bodies if body["item"] == item]
        assert taken == sorted(taken) and len(taken) == 12


def test_so_many_requests_at_once_and_a_second_and_no_more(server, folder, state) -> None:
    server.answers = lambda asked: TAKES if eventually(lambda: server.at_once_max >= 3, 5) else Answer(500)
    opened(replace(state, concurrency=3), folder).publish(part(1), rows(*range(12)))
    assert server.at_once_max == 3
    began = time.monotonic()
    opened(replace(state, rate=40.0, partitions=2), folder).publish(part(2), rows(*range(7)))
    assert max(asked.at for asked in server.asked) - began >= 6 / 20


def test_the_order_of_a_decision_stays_when_the_arguments_change(server, folder, state) -> None:
    """In arrays of two that were decided, rows of one value go one array behind the other."""
    server.answers = lambda asked: Answer(secs=0.05)
    batch = pa.record_batch({"id": [1, 2, 3, 4, 5, 6], "item": ["c"] * 6})
    of_two = {"rows_per_request": 2, "ordered_by": ["item"]}
    for txid, now in enumerate(({"ordered_by": "item"}, {"ordered_by": "id"}, {"ordered_by": None}), 1):
        changed = replace(state, rows_per_request=1, **now)
        opened(changed, folder).publish(part(txid, settings=of_two), iter([batch]))
    assert server.at_once_max == 1
    assert [[row["id"] for row in body] for body in server.bodies] == 3 * [[1, 2], [3, 4], [5, 6]]
    assert replace(state, ordered_by="item").decided_with()["ordered_by"] == ["item"]


def test_a_field_that_decided_rows_do_not_have_is_named(server, folder, state) -> None:
    out = opened(replace(state, ordered_by="customer"), folder)
    with pytest.raises(FieldError, match="decided without a field.*found: customer; expected: .*'id', 'item'"):
        out.publish(part(1), rows(1))
    assert server.asked == []


# --- the server is away, or has enough


@pytest.mark.parametrize(
    "piece", [b"HTTP/1.1 102 Processing\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-A: "], ids=["102", "header"]
)
def test_a_server_that_sends_a_little_for_ever_is_away(folder, monkeypatch, piece: bytes) -> None:
    monkeypatch.setattr(http_sender, "_TRIES", 1)
    ended = threading.Event()

    def drip() -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65_536)
            connection.sendall(piece)
            for _ in range(100):  # 5 s
                time.sleep(0.05)
                connection.sendall(piece if b"102" in piece else b"x")
            return
        ended.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        with pytest.raises(StateAway, match="ReadTimeout"):
            opened(HttpState(url, "out", timeout_secs=0.3), folder).publish(part(1), rows(1))
        assert ended.wait(4), "the request outlived timeout_secs"


def test_a_server_that_hangs_takes_no_connection_of_another(server, folder, state) -> None:
    server.answers = lambda asked: Answer(secs=60)
    hanging = opened(replace(state, concurrency=1, timeout_secs=60.0), folder)

    def publish(out: HttpState) -> threading.Thread:
        def run() -> None:
            with contextlib.suppress(StateAway):
                out.publish(part(1), rows(1))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    publish(hanging)
    assert eventually(lambda: server.at_once == 1, 10)
    with serving() as other:
        healthy = HttpState(other.url, "out", concurrency=1, timeout_secs=60.0)
        publish(opened(healthy, folder.parent / "another__out__outbox")).join(10)
        assert ids(other) == [1]


def test_a_proxy_that_refuses_the_credentials_is_not_waited_for(folder) -> None:
    def refuse() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=refuse, daemon=True).start()
        proxy = f"http://me:s3cret@127.0.0.1:{listening.getsockname()[1]}"
        made = HttpState("https://api.example/x", "out", proxy=proxy, timeout_secs=10.0)
        with pytest.raises(TridentError, match="the proxy takes no request.*found: 407") as caught:
            opened(made, folder).publish(part(1), rows(1))
    assert not isinstance(caught.value, StateAway)
    assert "s3cret" not in f"{caught.value}{made!r}{made._target({})!r}"


def test_a_pause_of_a_clock_that_was_ahead_is_at_most_an_hour(server, folder, state, monkeypatch) -> None:
    out = opened(state, folder)
    OutboxLog(folder).update(lambda record: replace(record, wait_until=time.time() + 90_000))
    for _ in range(2):
        with pytest.raises(StateAway, match="asks to wait for 3(600|5[0-9][0-9]) s more"):
            opened(state, folder).publish(part(1), rows(1))
    now = http_state.time.time
    monkeypatch.setattr(http_state.time, "time", lambda: now() + 3601)
    out.publish(part(1), rows(1))
    assert ids(server) == [1]


def test_statuses_that_pass_are_waited_for(server, folder, state) -> None:
    statuses = iter([500, 503, 408, 429, 409, 425, 502])
    server.answers = lambda asked: Answer(next(statuses, 200))
    out = opened(replace(state, concurrency=1), folder)
    with pytest.raises(StateAway, match="no answer of http://127.0.0.1:.*/orders.*found: status 429"):
        out.publish(part(1), rows(1, 2))
    out.publish(part(1), rows(1, 2))
    assert ids(server) == [1, 2] and len({asked.key for asked in server.asked}) == 2


def test_an_answer_that_is_lost_is_asked_for_again_with_the_same_key(server, folder, state) -> None:
    server.answers = lambda asked: Answer(taken=True, dropped=asked.number % 3 == 0)
    opened(state, folder).publish(part(1), rows(*range(20)))
    assert len(server.asked) > 20 and ids(server) == list(range(20))


def test_a_server_that_hangs_or_is_gone_is_away(server, folder, state, monkeypatch) -> None:
    monkeypatch.setattr(http_sender, "_TRIES", 2)
    out = opened(replace(state, timeout_secs=0.2), folder)
    server.answers = lambda asked: Answer(secs=60)
    with pytest.raises(StateAway, match="ReadTimeout"):
        out.publish(part(1), rows(1))
    server.close()
    with pytest.raises(StateAway, match="ConnectError"):
        out.publish(part(1), rows(1))
    with pytest.raises(StateAway, match="does not answer"):
        state.check_store(ROWS)


def test_a_pause_that_the_server_asks_for_is_kept(server, folder, state) -> None:
    server.answers = lambda asked: Answer(429, {"Retry-After": "1"}) if asked.number == 0 else TAKES
    out = opened(replace(state, concurrency=1), folder)
    out.publish(part(1), rows(1, 2))
    assert server.asked[1].at - server.asked[0].at >= 0.99 and ids(server) == [1, 2]


def test_a_long_pause_is_kept_by_the_next_tries_in_whichever_process(server, folder, state, monkeypatch) -> None:
    server.answers = lambda asked: Answer(503, {"Retry-After": "120"})
    out = opened(state, folder)
    with pytest.raises(StateAway, match="asks to wait 120 s"):
        out.publish(part(1), rows(1))
    asked, server.answers = len(server.asked), lambda asked: TAKES
    for _ in range(3):
        with pytest.raises(StateAway, match="asks to wait for 1[012][0-9] s more"):
            opened(state, folder).publish(part(1), rows(1))
    assert len(server.asked) == asked
    now = http_state.time.time
    monkeypatch.setattr(http_state.time, "time", lambda: now() + 121)
    out.publish(part(1), rows(1))
    assert ids(server) == [1]


@pytest.mark.parametrize(
    "header, secs", [("7", 7), ("1e9", 1e9), ("-3", 0), ("nan", 0), ("soon", None), (None, None), ("", None)]
)
def test_retry_after_is_read(header: str | None, secs: float | None) -> None:
    assert http_sender._retry_after_secs(header) == secs


def test_retry_after_may_be_a_date() -> None:
    assert http_sender._retry_after_secs("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert (http_sender._retry_after_secs("Fri, 31 Dec 2100 23:59:59 GMT") or 0) > 1e9


def test_where_it_was_broken_off_it_goes_on_and_not_from_the_beginning(server, folder, state) -> None:
    server.answers = lambda asked: TAKES if asked.row["id"] < 50 else Answer(500)
    out = opened(replace(state, concurrency=2), folder)
    with pytest.raises(StateAway):
        out.publish(part(1), rows(*range(60)))
    asked, server.answers = len(server.asked), lambda asked: TAKES
    opened(replace(state, concurrency=2), folder, epoch=2).publish(part(1, epoch=2), rows(*range(60)))
    assert min(one.row["id"] for one in server.asked[asked:]) == 50
    assert ids(server) == list(range(60))


# --- refusals


def refusing(*refused: int, status: int = 422) -> Any:
    return lambda asked: Answer(status, body=b"no such item") if asked.row["id"] in refused else TAKES


def test_a_row_that_is_refused_stops_it_and_those_behind_it_in_its_order_wait(server, folder, state) -> None:
    server.answers = refusing(2)
    out = opened(replace(state, ordered_by="item", concurrency=1), folder)
    batch = [pa.record_batch({"id": [1, 2, 3], "item": ["a", "a", "a"]})]
    for _ in range(2):
        said = "refuses a row for good.*found: status 422 for Idempotency-Key: inc-1-out"
        with pytest.raises(TridentError, match=said) as caught:
            out.publish(part(1), iter(batch))
        assert not isinstance(caught.value, StateAway) and ids(server) == [1]
    server.answers = lambda asked: TAKES
    out.publish(part(1), iter(batch))
    assert [body["id"] for body in server.bodies] == [1, 2, 3] and letters(folder) == []


def test_who_asks_for_the_newest_letters_again_reads_each_file_once_and_no_older_ones(
    server, folder, state, monkeypatch
) -> None:
    server.answers = refusing(*range(20))
    out = opened(replace(state, dead_letters=True), folder)
    for txid in range(1, 6):
        out.publish(part(txid), rows(txid, txid + 10))
    again = opened(replace(state, dead_letters=True, adopt=True), folder, 2, "new")
    again.publish(part(1, 2, incarnation="new"), rows(7))
    read: list[str] = []
    read_file = storage.read
    monkeypatch.setattr(storage, "read", lambda path, *more: read.append(Place(path).name) or read_file(path, *more))
    box, every = RefusedRequestReader(folder.parent, "top"), refused_requests(folder.parent, "top")
    assert len(every) == 11
    read.clear()
    newest = box.requests(3)
    assert [(one.txid, one.row) for one in newest] == [(4, 0), (4, 1), (5, 0), (5, 1), (1, 0)]
    assert newest == every[-5:], "of two incarnations, whose transactions have the same numbers"
    letters_read = [name for name in read if name.endswith(".jsonl")]
    assert len(letters_read) == len(set(letters_read)) and not any(f"-{3:020d}-" in name for name in letters_read)
    read.clear()
    assert box.requests(3) == newest and read == []


def test_a_row_that_is_refused_is_a_dead_letter_once(server, folder, state) -> None:
    server.answers = refusing(2, 5)
    out = opened(replace(state, dead_letters=True), folder)
    out.publish(part(1), rows(*range(8)))
    out.publish(part(1), rows(*range(8)))
    assert ids(server) == [0, 1, 3, 4, 6, 7]
    two, five = letters(folder)
    assert (two["row"], two["status"], two["answer"], two["txid"]) == (2, 422, "no such item", 1)
    assert json.loads(two["body"]) == {"id": 2, "item": "item 2"} and two["key"] == "inc-1-out-d1-0-2"
    assert five["row"] == 5 and OutboxLog(folder).read().refused == 2


def test_two_decisions_of_one_number_have_dead_letters_of_their_own(server, folder, state) -> None:
    """ZooKeeper is put back to just before a transaction, which is decided anew: the first one's letter stays."""
    server.answers = refusing(1, 2)
    opened(replace(state, dead_letters=True), folder).publish(part(1), rows(1))
    OutboxLog(folder).begin_anew()
    again = opened(replace(state, dead_letters=True), folder, epoch=2)
    again.publish(part(1, epoch=2, settings={"decision": "another"}), rows(2))
    assert sorted(one["key"] for one in letters(folder)) == ["inc-1-out-another-0-0", "inc-1-out-d1-0-0"]


def test_dead_letters_are_listed_from_their_files_and_from_the_record(server, folder, state, monkeypatch) -> None:
    """By `trident dead-letters list`, each once, also those that a crash has kept from their file."""
    config = TridentConfig(warehouse=str(folder.parent))
    storage.make_warehouse(folder.parent)
    storage.make_folder(folder.parent / "_trident" / "top", folder.parent)
    assert refused_by_servers("top", config) == []
    server.answers = refusing(1, 3)
    out = opened(replace(state, dead_letters=True), folder)
    out.publish(part(1), rows(1, 2))

    def crash(*args: Any) -> None:
        raise OSError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "write", crash)
        with pytest.raises(OSError, match="crash"):
            out.publish(part(2), iter([pa.record_batch({"id": [3, 4], "item": [0.0, float("nan")]})]))
    found = refused_by_servers("top", config)
    assert [(one.txid, one.row, one.status, one.key) for one in found] == [
        (1, 0, 422, "inc-1-out-d1-0-0"),
        (2, 0, 422, "inc-2-out-d2-0-0"),
        (2, 1, 0, "inc-2-out-d2-0-1"),
    ]
    assert found[0].line() == "out: a row of transaction 1 given up, inc-1-out-d1-0-0: status 422: no such item"
    assert (json.loads(found[0].body), found[0].body_form) == ({"id": 1, "item": "item 1"}, "text")
    assert "cannot be written as JSON" in found[2].line() and "status" not in found[2].line()
    listed = CliRunner().invoke(main, ["dead-letters", "list", "top", "--warehouse", config.warehouse])
    assert (listed.exit_code, listed.stdout.splitlines()) == (0, [one.line() for one in found]), listed.output
    asked = ["dead-letters", "list", "top", "--json", "--warehouse", config.warehouse]
    told = [json.loads(line) for line in CliRunner().invoke(main, asked).stdout.splitlines()]
    assert [{**one, "state": "out"} for one in letters(folder)] == told[:1]
    OutboxLog(folder).keep_letters()
    assert refused_by_servers("top", config) == found
    (file, *_) = sorted(Path(str(folder / "refused")).glob("*.jsonl"))
    file.write_bytes(file.read_bytes().replace(b'"txid":1', b'"txid":"1"'))
    with pytest.raises(TableError, match="a file of dead letters of state out is damaged"):
        refused_by_servers("top", config)


FAR = {
    "d": (pa.array([0, 3_000_000], pa.date32()), "10183-09-21"),
    "t": (pa.array([0, 300_000_000_000_000_000], pa.timestamp("us", tz="UTC")), "11476-08-15"),
    "n": (pa.array([0, 300_000_000_000_000_000], pa.timestamp("us")), "11476-08-15"),
    "s": (pa.array([{"a": 0}, {"a": 3_000_000}], pa.struct([("a", pa.date32())])), "10183-09-21"),
    "l": (pa.array([[], [3_000_000]], pa.list_(pa.date32())), "10183-09-21"),
    "u": (pa.array([b"a", b"b\xff"]).cast(pa.string(), safe=False), "b"),
}


@pytest.mark.parametrize("name", FAR)
def test_a_row_with_a_value_that_python_has_not_is_not_sent(server, folder, state, name: str) -> None:
    column, text = FAR[name]
    batch = pa.record_batch({"id": [1, 2], name: column})
    for body in (None, name):
        with pytest.raises(TridentError, match=f"cannot be written as JSON; found: a value that is .* in '{name}'"):
            opened(state, folder).publish(part(1, settings={"body": body}), iter([batch]))
    opened(replace(state, dead_letters=True, ordered_by=name), folder).publish(part(1), iter([batch]))
    (letter,) = letters(folder)
    assert ids(server) == [1] and letter["row"] == 1 and json.loads(letter["body"])["id"] == 2
    assert text in json.loads(letter["body"])[name]


@pytest.mark.parametrize("size", [1, 2])
def test_a_row_that_cannot_be_json_is_not_sent(server, folder, state, size: int) -> None:
    """It is decided: were there no way past it, no restart would help."""
    numbers = [1.0, float("nan"), 3.0, 4.0]
    batch = pa.record_batch({"id": [1, 2, 3, 4], "n": numbers, "item": list("abab")})
    made, settings = replace(state, rows_per_request=size, ordered_by="n"), {"rows_per_request": size}
    for _ in range(2):
        with pytest.raises(TridentError, match="cannot be written as JSON; found: NaN or an infinity in 'n'"):
            opened(made, folder).publish(part(1, settings=settings), iter([batch]))
    opened(replace(made, dead_letters=True), folder).publish(part(1, settings=settings), iter([batch]))
    (letter,) = letters(folder)
    assert (letter["row"], letter["rows"], letter["status"]) == (1 if size == 1 else 0, size, 0)
    assert '{"id": 2, "n": NaN, "item": "b"}' in letter["body"] and "in 'n'" in letter["answer"]
    sent = server.bodies if size == 1 else [row for rows in server.bodies for row in rows]
    assert sorted(row["id"] for row in sent) == ([1, 3, 4] if size == 1 else [3, 4])


class Crash(Exception):
    """The end of a process, as far as it goes within one."""


class Crashing:
    """Ends the process at call ``at`` of what writes to the warehouse, before it or behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, behind: bool) -> None:
        self.calls, self._at, self._behind = 0, at, behind
        writes = {storage: ("create", "write", "try_delete"), LocalFolder: ("claim", "flush")}
        for owner, name in ((owner, name) for owner, names in writes.items() for name in names):
            monkeypatch.setattr(owner, name, self._or_crash(getattr(owner, name)))

    def _or_crash(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.calls += 1
            if self.calls > self._at or (self.calls == self._at and not self._behind):
                raise Crash
            done = real(*args)
            if self.calls == self._at:
                raise Crash
            return done

        return call


def test_a_crash_at_any_write_leaves_each_row_once_and_each_dead_letter_once(server, folder, state, monkeypatch):
    """Of a run of two transactions; the server takes, in the next life, what it has refused before."""
    number, crashed = 0, True
    while crashed:
        number += 1
        for behind in (False, True) if ALL else (False,):  # behind one is before the next, but for requests
            place = folder.parent / f"{number}{behind}__out__outbox"
            server.rows.clear()
            server.answers = refusing(1, 4)
            made = replace(state, dead_letters=True, concurrency=2)
            with monkeypatch.context() as patch:
                crashing = Crashing(patch, number, behind)
                try:
                    out = opened(made, place)
                    out.publish(part(1), rows(0, 1, 2))
                    out.publish(part(2, known=(1, 0)), rows(3, 4))
                except Crash:
                    pass
                crashed = crashing.calls >= number
            server.answers = lambda asked: TAKES
            again = opened(made, place, epoch=2)
            last = max((one.mark.txid for one in OutboxLog(place).read().parts.values()), default=0)
            for txid, of_it in ((1, (0, 1, 2)), (2, (3, 4))):
                if txid >= last:
                    again.publish(part(txid, epoch=2), rows(*of_it))
            dead = [json.loads(one["body"])["id"] for one in letters(place)]
            assert sorted([*dead, *ids(server)]) == [0, 1, 2, 3, 4], (number, behind, dead, ids(server))
            assert set(dead) <= {1, 4} and OutboxLog(place).read().refused == len(dead)
    assert number > 10


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 405, 407])
def test_what_says_nothing_of_the_row_is_no_dead_letter(server, folder, state, status: int) -> None:
    with serving() as other:
        server.answers = lambda asked: Answer(status, {"Location": other.url})
        made = replace(state, dead_letters=True, headers={"Authorization": "Bearer s3cret"})
        with pytest.raises(TridentError, match=f"found: status {status}") as caught:
            opened(made, folder).publish(part(1), rows(1))
        assert other.asked == [], "a redirect was followed, with credentials"
    assert not isinstance(caught.value, StateAway) and letters(folder) == [] and "s3cret" not in str(caught.value)


def test_a_conflict_that_stays_is_a_refusal_unless_it_means_that_the_row_is_there(server, folder, state, monkeypatch):
    monkeypatch.setattr(http_sender, "_CONFLICT_TIMES", 0.02)  # of 10 s
    server.answers = refusing(1, status=409)
    began = time.monotonic()
    with pytest.raises(TridentError, match="status 409"):
        opened(state, folder).publish(part(1), rows(1))
    asked = len(server.asked)
    assert asked >= http_sender._TRIES and time.monotonic() - began >= 0.2
    opened(replace(state, accepts=[409]), folder).publish(part(1), rows(1))
    assert len(server.asked) == asked + 1


@pytest.mark.parametrize("before", ["a time-out", "503 three times", "another process"])
def test_a_conflict_with_a_request_under_way_is_no_refusal(server, folder, state, monkeypatch, before: str) -> None:
    """The server is slow with the first request, says 409 to its repeats, and has the row at last."""
    monkeypatch.setattr(http_sender, "_CONFLICT_TIMES", 1000)
    first = {"a time-out": 1, "503 three times": 3, "another process": 0}[before]

    def answers(asked: Asked) -> Answer:
        if asked.number < first:
            return Answer(taken=True, secs=60) if before == "a time-out" else Answer(503)
        return Answer(409) if asked.number < first + 5 else TAKES

    server.answers = answers
    out = opened(replace(state, dead_letters=True, timeout_secs=0.5), folder)
    out.publish(part(1), rows(1))
    assert ids(server) == [1] and letters(folder) == []


# --- who may send


def test_a_stale_coordinator_is_refused_each_time_and_sends_nothing(server, folder, state) -> None:
    old = opened(state, folder)
    old.publish(part(1), rows(1))
    opened(state, folder, epoch=2)
    for number in range(100):
        with pytest.raises(StaleEpoch):
            old.publish(part(2, number=number % 3), rows(9))
    assert ids(server) == [1] and len(server.asked) == 1
    assert old.take_over("top", "inc", 1)[0].epoch == 2


def test_a_stale_coordinator_that_wakes_up_amid_a_transaction_stops(server, folder, state, monkeypatch) -> None:
    monkeypatch.setattr(http_state, "_FENCE_SECS", 0.0)

    def answers(asked: Asked) -> Answer:
        if asked.number == 1:  # its successor finishes the transaction, and the next one
            new = opened(state, folder, epoch=2)
            new.publish(part(1, epoch=2), rows(*range(10)))
            new.publish(part(2, epoch=2), rows(100))
        return TAKES

    server.answers = answers
    old = opened(replace(state, concurrency=1), folder)
    with pytest.raises(StaleEpoch):
        old.publish(part(1), rows(*range(10)))
    assert ids(server) == [*range(10), 100]
    (of_the_last,) = [asked.number for asked in server.asked if asked.row["id"] == 100]
    assert of_the_last == len(server.asked) - 1, "it has sent rows of a transaction behind which the next one is"
    assert OutboxLog(folder).read().parts[0].mark.txid == 2


def test_another_life_is_refused_unless_it_is_adopted(server, folder, state) -> None:
    opened(state, folder).publish(part(3), rows(1))
    with pytest.raises(ForeignMarks, match="another life"):
        opened(state, folder, epoch=2, incarnation="next")
    assert OutboxLog(folder).read().parts[0].mark == OutsideMark("inc", 1, 3, 0)
    new = opened(replace(state, adopt=True), folder, epoch=2, incarnation="next")
    new.publish(part(1, epoch=2, incarnation="next"), rows(2))
    assert ids(server) == [1, 2]
    with pytest.raises(StaleEpoch):
        state.kept_in(folder).publish(part(4), rows(9))


def test_a_record_that_lacks_a_transaction_takes_no_row(server, folder, state) -> None:
    opened(state, folder).publish(part(1), rows(1))
    for path in Path(str(folder / "log")).iterdir():
        path.unlink()
    with pytest.raises(StateLostTransactions, match="lacks transaction 1"):
        opened(state, folder).publish(part(2, known=(1, 0)), rows(2))
    assert ids(server) == [1]


# --- the record


def record(epoch: int, txid: int = 0) -> Outbox:
    return Outbox(OutsideMark("inc", epoch, 0, 0), {0: PartProgress(OutsideMark("inc", epoch, txid, 0))})


def full_record() -> Outbox:
    letters = Letters("f.jsonl", ({"row": 1, "body": "ü\n"},))
    progress = PartProgress(OutsideMark("inc", 2, 3, 1), Begun(4, 0, 17, "d4"), letters)
    return Outbox(OutsideMark("inc", 2, 0, 0), {3: progress}, 5, 1.5)


def test_a_record_is_read_as_it_was_written_or_not_at_all() -> None:
    data = full_record().encode("w")
    assert Outbox.decode(data) == (full_record(), "w") and Outbox.decode(Outbox().encode("w")) == (Outbox(), "w")
    torn = [data[:at] for at in range(len(data))]
    changed = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    for damaged in (*torn, *changed, data + b" ", data.partition(b'"record":')[2][:-1]):
        with pytest.raises(Unreadable):
            Outbox.decode(damaged)


@pytest.mark.parametrize(
    "where, value",
    [
        ("schema", 2),
        ("writer", None),
        ("fence", {}),
        ("fence", ["inc", "2", 0, 0]),
        ("fence", ["inc", 2, 0]),
        ("parts", []),
        ("parts", {"x": None}),
        ("parts", {"0": {"mark": ["inc", 2, True, 1], "begun": None, "letters": None}}),
        ("parts", {"0": {"mark": None, "begun": None, "letters": None}}),
        ("parts", {"0": {"mark": ["inc", 2, 3, 1], "begun": [4, 0, 17], "letters": None}}),
        ("parts", {"0": {"mark": ["inc", 2, 3, 1], "begun": None, "letters": {"file": "../f", "lines": []}}}),
        ("refused", "5"),
        ("wait_until", None),
        ("more", 1),
    ],
)
def test_a_record_of_other_types_is_not_read(where: str, value: Any) -> None:
    fields = json.loads(full_record().encode("w"))["record"]
    assert Outbox.decode(outbox.sealed(fields)) == (full_record(), "w")
    with pytest.raises(Unreadable):
        Outbox.decode(outbox.sealed({**fields, where: value}))


def newest(folder: Place) -> Path:
    return max(Path(str(folder / "log")).glob("*.json"))


def test_a_damaged_record_stops_the_state_until_it_begins_anew(server, folder, state) -> None:
    old = opened(state, folder)
    old.publish(part(1), rows(1))
    newest(folder).write_bytes(newest(folder).read_bytes().replace(b'"inc",1,1,0', b'"inc",1,2,0'))
    with pytest.raises(OutboxDamaged, match="state out is damaged.*digest") as caught:
        opened(state, folder, epoch=2)
    assert "`trident repair top --accept-outside out --apply`" in str(caught.value)
    with pytest.raises(OutboxDamaged):
        old.publish(part(2, known=(1, 0)), rows(2))
    OutboxLog(folder).begin_anew()
    opened(state, folder, epoch=2).publish(part(2, epoch=2), rows(2))
    assert ids(server) == [1, 2]
    with pytest.raises(StaleEpoch):
        old.publish(part(3), rows(3))


def test_progress_is_of_a_decision_not_of_its_number(server, folder, state) -> None:
    """ZooKeeper is put back to just before a transaction: the same attempt is decided with other rows."""
    server.answers = lambda asked: TAKES if asked.number < 2 else Answer(401)
    one = opened(replace(state, concurrency=1), folder)
    with pytest.raises(TridentError, match="401"):
        one.publish(part(43), rows(1, 2, 3, 4))
    assert OutboxLog(folder).read().parts[0].begun == Begun(43, 0, 2, "d43")
    server.answers = lambda asked: TAKES
    again = opened(state, folder, epoch=2)
    again.publish(part(43, epoch=2, settings={"decision": "another"}), rows(11, 12, 13, 14))
    assert ids(server) == [1, 2, 11, 12, 13, 14]


def test_rows_of_a_transaction_that_zookeeper_does_not_know_stop_the_next_start(server, folder, state) -> None:
    server.answers = lambda asked: TAKES if asked.number < 2 else Answer(401)
    one = opened(replace(state, concurrency=1), folder)
    one.publish(part(42), rows(0))
    with pytest.raises(TridentError, match="401"):
        one.publish(part(43), rows(1, 2))
    binding = StateBinding(state, OutsideKind(), (), ROWS.schema, ())

    def started(current: int) -> OutsidePublisher:
        made = OutsidePublisher(
            None, LeaderContext(folder.parent, "top", "g", "inc", current, lambda: None), OutsideProgress()
        )
        made.open([binding], GroupRecord("inc", current, tables={outside_id("out"): TableMark(0, 42, 0, "")}))
        return made

    with pytest.raises(Halted, match="ZooKeeper is the older side.*found: transaction 43, attempt 0, of which rows"):
        started(43)
    started(44)


def test_of_two_writers_of_one_number_one_wins_and_the_other_reads_it(folder) -> None:
    first, second = OutboxLog(folder), OutboxLog(folder)
    first.make()
    first.update(lambda _: record(1))
    second.read()
    first.update(lambda _: record(2))
    seen: list[Outbox] = []

    def change(before: Outbox) -> Outbox:
        seen.append(before)
        return replace(before, refused=before.refused + 1)

    assert second.update(change) == replace(record(2), refused=1)
    assert seen == [record(1), record(2)] and first.read() == replace(record(2), refused=1)


def test_a_number_that_is_free_again_is_not_the_next(folder, monkeypatch) -> None:
    monkeypatch.setattr(outbox, "_KEPT", 3)
    late, others = OutboxLog(folder), OutboxLog(folder)
    late.make()
    others.update(lambda _: record(1))
    late.read()
    for epoch in range(2, 9):
        others.update(lambda _, epoch=epoch: record(epoch))
    assert len(list(Path(str(folder / "log")).iterdir())) <= 4
    seen: list[Outbox] = []

    def change(before: Outbox) -> Outbox:
        seen.append(before)
        return replace(before, refused=1)

    assert late.update(change) == replace(record(8), refused=1) and seen[-1] == record(8)
    assert OutboxLog(folder).read() == replace(record(8), refused=1)


def test_two_processes_at_one_part_go_on_from_one_record(server, folder, state) -> None:
    """As a task of Spark's that is tried again while the first still runs."""
    out, refused = opened(replace(state, dead_letters=True), folder), []

    def answers(asked: Asked) -> Answer:
        if asked.number == 0:
            out.publish(part(1), rows(1, 2))
        refused.append(asked.row["id"])
        return Answer(422)

    server.answers = answers
    with pytest.raises(StateAway, match="another process sends part 0 of transaction 1"):
        opened(replace(out, concurrency=1), folder).publish(part(1), rows(1, 2))
    out.publish(part(1), rows(1, 2))
    assert len(refused) > 2 and sorted(one["row"] for one in letters(folder)) == [0, 1]


@pytest.mark.parametrize("store", ["s3", *(["hdfs"] if os.environ.get("TRIDENT_STORES") else [])])
def test_in_a_store_it_is_the_same(server, state, store: str) -> None:
    base = store_servers.running(store)
    folder = Place(f"{base}/{uuid.uuid4().hex[:8]}") / "top__out__outbox"
    storage.make_folder(folder.parent, Place(base).parent)
    server.answers = refusing(2)
    made = replace(state, dead_letters=True)
    old = opened(made, folder)
    old.publish(part(1), rows(1, 2))
    new = opened(made, folder, epoch=2)
    with pytest.raises(StaleEpoch):
        old.publish(part(2), rows(9))
    new.publish(part(2, epoch=2, known=(1, 0)), rows(3))
    assert ids(server) == [1, 3] and OutboxLog(folder).read().refused == new.count_dead_letters() == 1
    (name,) = storage.list_names(folder / "refused")
    assert json.loads(storage.read(folder / "refused" / name))["row"] == 1
    storage.delete(folder.parent)


# --- kills


@pytest.mark.long
def test_a_coordinator_that_is_killed_at_any_request_leaves_each_row_once(server, folder) -> None:
    """SIGKILL while a request is under way: before the server has it, or behind that, when the answer is lost."""
    chance, txids, count = random.Random(int(os.environ.get("TRIDENT_SEED", "5"))), 6, 40
    kills = {chance.randrange(txids * count): chance.random() < 0.5 for _ in range(40 if ALL else 2)}
    process: subprocess.Popen[str] | None = None

    def answers(asked: Asked) -> Answer:
        if asked.number in kills:
            assert process is not None
            process.send_signal(signal.SIGKILL)
            return Answer(taken=kills[asked.number], secs=60)
        refused = asked.row["n"] % 10 == 3
        return Answer(422 if refused else 200)

    server.answers = answers
    epoch, ends = 0, []
    while not ends or ends[-1]:
        epoch += 1
        arguments = [str(epoch), str(txids), "http", server.url, str(folder), str(count)]
        command = [sys.executable, "-m", "tests.states.outside.coordinating", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        process.communicate()
        ends.append(process.returncode)
        assert process.returncode in (0, -signal.SIGKILL)
    assert len(ends) > len(kills) // 2
    wanted = [(txid, n) for txid in range(1, txids + 1) for n in range(count)]
    taken = [(body["txid"], body["n"]) for body in server.bodies]
    dead = [(one["txid"], one["row"]) for one in letters(folder)]
    # A row that was refused was taken once before, where the kill was behind it.
    assert sorted({*taken, *dead}) == wanted and len(taken) == len(set(taken)) and len(dead) == len(set(dead))
    assert len(server.asked) < len(wanted) + len(ends) * 8 * 8 + 1


# --- secrets and TLS


def test_secrets_are_read_where_they_are_kept_and_shown_nowhere(server, folder, state, tmp_path, monkeypatch, caplog):
    caplog.set_level(0)
    (tmp_path / "key").write_text("f1le-s3cret\n")
    made = replace(state, secrets={"Authorization": "Bearer env:API_TOKEN", "X-Key": f"file:{tmp_path}/key"})
    with pytest.raises(ConfigError, match="environment variable that is not set; expected: API_TOKEN"):
        made.check_store(ROWS)
    monkeypatch.setenv("API_TOKEN", "env-s3cret")
    sent = pickle.loads(pickle.dumps(made.kept_in(folder)))
    monkeypatch.delenv("API_TOKEN")
    sent.take_over("top", "inc", 1)
    sent.publish(part(1), rows(1))
    headers = server.asked[0].headers
    assert (headers["Authorization"], headers["X-Key"]) == ("Bearer env-s3cret", "f1le-s3cret")
    server.answers = lambda asked: Answer(422)
    replaced = replace(made, dead_letters=True).kept_in(folder)
    monkeypatch.setenv("API_TOKEN", "env-s3cret")
    replaced.publish(part(2), rows(1))
    with pytest.raises(TridentError) as caught:
        made.kept_in(folder).publish(part(3), rows(1))
    stored = [path.read_text() for path in Path(str(folder)).rglob("*") if path.is_file()]
    for text in (repr(sent), repr(made._target(made.decided_with())), str(caught.value), caplog.text, *stored):
        assert "s3cret" not in text
    assert len(letters(folder)) == 1


def test_a_secret_that_could_be_no_header_is_not_shown(state, monkeypatch) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret\nX-Other: 1")
    with pytest.raises(ConfigError, match="one line of ASCII") as caught:
        replace(state, secrets={"Authorization": "env:API_TOKEN"}).check_store(ROWS)
    assert "s3cret" not in str(caught.value)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_tls_is_checked_both_ways(certificates, folder) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    context.load_verify_locations(certificates.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with serving(context) as server:
        state = HttpState(server.url, "out", timeout_secs=5.0)
        with pytest.raises(EnvironmentProblem, match="does not trust the server"):
            state.check_store(ROWS)
        with pytest.raises(EnvironmentProblem, match="does not trust the server"):
            replace(state, ca=str(certificates.other_ca)).check_store(ROWS)
        known = replace(state, ca=str(certificates.ca))
        with pytest.raises(StateAway):  # it shows no certificate of its own
            opened(known, folder).publish(part(1), rows(1))
        assert server.asked == []
        named = replace(known, certificate=str(certificates.client), private_key=str(certificates.client_key))
        named.check_store(ROWS)
        opened(named, folder).publish(part(1), rows(1))
        assert ids(server) == [1]
    with pytest.raises(ConfigError, match="certificates of state out cannot be used"):
        replace(known, ca="/nowhere.pem").check_store(ROWS)


# --- arguments


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"url": "ftp://host/x"}, "the url of an HttpState cannot be used"),
        ({"url": "https:///x"}, "the url of an HttpState cannot be used"),
        ({"url": "https://me:s3cret@host/x"}, "credentials as secrets="),
        ({"url": None}, "the url of an HttpState cannot be used; expected: https://host/path"),
        ({"url": "https://host/a b"}, "cannot be used; found: a space in it; expected: https://host/path"),
        ({"url": "https://host/a#b"}, "cannot be used; found: a #fragment"),
        (
            {"proxy": "me:s3cret@host:3128"},
            "the url of the proxy of an HttpState cannot be used; expected: http://host",
        ),
        ({"proxy": "socks4://me:s3cret@host:3128"}, "the proxy of an HttpState cannot be used"),
        ({"proxy": "http://me:s3cret#@host:3128"}, "the proxy of an HttpState cannot be used"),
        ({"proxy": "http://me:1/s3cret@host:3128"}, "the proxy of an HttpState cannot be used"),
        ({"proxy": 5}, "the proxy of an HttpState cannot be used"),
        ({"accepts": 409}, "accepts of an HttpState cannot be used; found: 409; expected: several statuses"),
        ({"accepts": None}, "accepts of an HttpState cannot be used; found: None; expected: several statuses"),
        ({"accepts": "409"}, "accepts of an HttpState cannot be used; found: '409'; expected: several statuses"),
        ({"ordered_by": 5}, "ordered_by of an HttpState cannot be used; found: 5; expected: a field, or several"),
        ({"headers": [("X-A", "s3cret")]}, "headers of an HttpState cannot be used; found: a value of type list; exp"),
        ({"headers": None}, "headers of an HttpState cannot be used; found: a value of type NoneType; expected: a d"),
        ({"secrets": "s3cret"}, "secrets of an HttpState cannot be used; found: a value of type str; expected: a dict"),
        ({"ca": 5}, "ca of an HttpState cannot be used; found: 5; expected: the path of a file"),
        ({"method": "GET"}, "method of an HttpState"),
        ({"rows_per_request": 0}, "rows_per_request of an HttpState"),
        ({"concurrency": True}, "concurrency of an HttpState"),
        ({"rate": 0}, "rate of an HttpState"),
        ({"timeout_secs": None}, "timeout_secs of an HttpState"),
        ({"accepts": [200]}, "accepts of an HttpState"),
        ({"body": "item", "rows_per_request": 2}, "several rows into one body"),
        ({"secrets": {"Authorization": "Bearer s3cret"}}, "the secret Authorization of an HttpState cannot be used"),
        ({"headers": {"X-A": "a\r\nX-B: s3cret"}}, "the header X-A of an HttpState cannot be used"),
        ({"headers": {"Host": "other"}}, "cannot have this name"),
        ({"headers": {"idempotency-key": "mine"}}, "is given twice"),
        ({"private_key": "k.pem"}, "no certificate"),
        ({"dead_letters": "no"}, "dead_letters of state x"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_used(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises((TopologyError, ConfigError), match=said) as caught:
        HttpState(**{"url": "https://host/x", **arguments})
    assert "s3cret" not in str(caught.value)


def test_the_usual_name_is_of_the_url() -> None:
    assert HttpState("https://api.example:8443/v1/new-orders/").name == "new_orders"
    assert HttpState("https://api.example/1").name == "api_example"


def test_rows_that_no_request_can_be_made_of_are_refused_when_it_is_built(state) -> None:
    for made, said in ((replace(state, body="gone"), "gone"), (replace(state, ordered_by=["id", "no"]), "no")):
        with pytest.raises(FieldError, match=f"fields that its rows do not have; found: {said}"):
            made.check_rows(ROWS)
    with pytest.raises(FieldError, match="cannot be written as JSON"):
        state.check_rows(OutsideRows("top", StructType().add("wait", "interval day to second")))


def test_without_the_client_it_is_said_how_to_install_it(state, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(EnvironmentProblem, match="an HttpState needs the HTTP client.*the extra `http`"):
        state.check_store(ROWS)
