"""The parts of the live page that read: plan as data, sizes of states, keys as text, notes of standbys. No Spark."""

from __future__ import annotations

import json
import os
import tarfile
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import DateType, LongType, StringType, StructField

from tests.messages.message_helpers import Messages
from tests.servers.zk_fixtures import eventually
from tests.watching.page_topology import page_topology
from trident import TridentConfig
from trident.commands.ui import WarehouseSource, serve
from trident.coordinators.errors import TopologyError, WrongArguments
from trident.messages import dead_letters as letters_module
from trident.messages.dead_letters import DeadLetterReader, request_replay
from trident.planning.explain import plan_graph
from trident.planning.groups import plan
from trident.running.page_source import RunningSource
from trident.running.status import (
    AGAIN_SECS,
    GONE_SECS,
    AttemptStatus,
    GroupStatus,
    StandbyNote,
    TopologyStatus,
    waiting_standbys,
)
from trident.states.core import storage
from trident.states.core.place import Place
from trident.watching.live_feed import LiveFeed
from trident.watching.live_page import StateSizes, key_of_texts


def test_the_plan_as_data_has_nodes_in_their_depth_and_edges(tmp_path: Path) -> None:
    topology = page_topology(tmp_path, Messages("line string"))
    found = plan_graph(topology.graph, plan(topology.graph))
    assert json.loads(json.dumps(found)) == found
    lines, orders = found["groups"]
    assert (lines["name"], orders["name"]) == ("lines", "orders")
    by_label = {node["label"]: node for node in orders["nodes"]}
    spout, priced = by_label["FixedBatchSpout"], by_label["each(priced)"]
    assert (spout["kind"], spout["depth"], spout["stream"]) == ("spout", 0, "orders")
    assert (priced["kind"], priced["depth"]) == ("Python", 1)
    assert {node["state"] for node in orders["nodes"] if "state" in node} == {"sales", "revenue"}
    assert {"from": spout["id"], "to": priced["id"], "fields": ["item", "amount"], "reads": False} in orders["edges"]
    depths = {node["id"]: node["depth"] for node in orders["nodes"]}
    assert all(depths[edge["from"]] < depths[edge["to"]] for edge in orders["edges"])


def test_a_key_is_read_from_what_a_person_types() -> None:
    fields = [StructField("name", StringType()), StructField("n", LongType()), StructField("on", DateType())]
    assert [str(one) for one in key_of_texts("s", fields, ["3", "3", "2026-11-25"])] == ["3", "3", "2026-11-25"]
    assert key_of_texts("s", fields[:2], ["3", "3"]) == ("3", 3)
    assert key_of_texts("s", [], []) == ()
    with pytest.raises(WrongArguments, match="no value of key n of state s"):
        key_of_texts("s", fields[1:2], ["three"])
    with pytest.raises(WrongArguments, match="name string, n bigint"):
        key_of_texts("s", fields[:2], ["a"])


def test_a_warehouse_without_states_has_no_sizes(tmp_path: Path) -> None:
    assert StateSizes(Place(str(tmp_path)), "shop").records() == []


def test_a_descriptor_that_cannot_be_read_is_said_where_the_states_would_be(tmp_path: Path) -> None:
    folder = tmp_path / "_trident" / "states"
    folder.mkdir(parents=True)
    (folder / "counts.json").write_text("{")
    (found,) = StateSizes(Place(str(tmp_path)), "shop").records()
    assert "counts.json cannot be read" in found["trouble"]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_standby_has_a_note_while_it_waits(tmp_path: Path) -> None:
    warehouse, clock = Place(str(tmp_path)), Clock()
    storage.make_folder(warehouse / "_trident" / "shop", warehouse)
    note = StandbyNote(warehouse, "shop", clock)
    note.renew()
    note.left_standby()
    assert waiting_standbys(warehouse, "shop", clock.now) == []
    note.became_standby()
    note.renew()
    (found,) = waiting_standbys(warehouse, "shop", clock.now)
    assert (found["pid"], found["since"]) == (os.getpid(), 1000.0)
    clock.now += GONE_SECS
    assert waiting_standbys(warehouse, "shop", clock.now) == [], "a note that is not renewed is that of a dead process"
    note.renew()
    (found,) = waiting_standbys(warehouse, "shop", clock.now + AGAIN_SECS)
    assert found["since"] == 1000.0
    note.left_standby()
    note.renew()
    assert waiting_standbys(warehouse, "shop", clock.now) == []


def test_a_note_that_is_being_written_when_its_process_leads_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse, clock = Place(str(tmp_path)), Clock()
    storage.make_folder(warehouse / "_trident" / "shop", warehouse)
    note, write = StandbyNote(warehouse, "shop", clock), storage.write
    note.became_standby()
    note.renew()

    def slow(*given: Any, **named: Any) -> None:
        note.left_standby()
        note.renew()
        write(*given, **named)

    monkeypatch.setattr(storage, "write", slow)
    clock.now += AGAIN_SECS
    note.renew()
    assert waiting_standbys(warehouse, "shop", clock.now) == []


def test_notes_of_processes_that_were_killed_go_a_day_later(tmp_path: Path) -> None:
    warehouse, clock = Place(str(tmp_path)), Clock()
    folder = tmp_path / "_trident" / "shop"
    storage.make_folder(warehouse / "_trident" / "shop", warehouse)
    me = {"boot_id": "b", "pid": 1, "started": "s", "since": 1.0}
    (folder / "standby-old-1.json").write_text(json.dumps({**me, "host": "old", "written_at": 1.0}))
    (folder / "standby-new-1.json").write_text(json.dumps({**me, "host": "new", "written_at": 80_000.0}))
    clock.now = 100_000.0
    note = StandbyNote(warehouse, "shop", clock)
    note.became_standby()
    note.renew()
    left = sorted(file.name for file in folder.iterdir())
    assert len(left) == 2 and "standby-new-1.json" in left and "standby-old-1.json" not in left


def test_neither_a_wait_nor_a_take_over_waits_for_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "write", None)
    monkeypatch.setattr(storage, "delete", None)
    note = StandbyNote(Place(str(tmp_path)), "shop")
    note.became_standby()
    note.left_standby()


class Led:
    """As much of a reporter as the page asks: of a process that led until a moment ago, and waits now."""

    def __init__(self) -> None:
        attempts = (AttemptStatus(7, 0, "PROCESSING", 1.0),)
        self.supervisor: Any = SimpleNamespace(
            leading=threading.Event(), ended=threading.Event(), standby_of="other", groups=[]
        )
        self._status = TopologyStatus("shop", "i", "r", 3, "standby", groups=(GroupStatus("g", 7, attempts=attempts),))

    def status(self) -> TopologyStatus:
        return self._status


def test_a_process_that_leads_no_more_has_nothing_in_flight(tmp_path: Path) -> None:
    topology, reporter = page_topology(tmp_path, Messages("line string")), Led()
    feed: Any = LiveFeed()
    source = RunningSource(reporter, feed, topology.graph, [], Place(str(tmp_path)))  # type: ignore[arg-type]
    assert [group["attempts"] for group in source.live()["groups"]] == [[]]
    reporter.supervisor.leading.set()
    assert [len(group["attempts"]) for group in source.live()["groups"]] == [1]


def test_a_store_is_asked_seldom() -> None:
    disk, store = WarehouseSource(Place("/w"), "shop"), WarehouseSource(Place("s3a://bucket/w"), "shop")
    assert (disk.live_secs, disk.refresh_secs) == (0.2, 2.0)
    assert store.live_secs >= 5 and store.refresh_secs >= 30


def test_what_is_no_note_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "_trident" / "shop"
    folder.mkdir(parents=True)
    for name, text in {
        "standby-a-1.json": "{",
        "standby-b-2.json": "[]",
        "status.json": "{}",
        "standby-c-3.json": "{}",
    }.items():
        (folder / name).write_text(text)
    assert waiting_standbys(Place(str(tmp_path)), "shop", 0.0) == []


def test_a_note_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "_trident").write_text("no folder")
    note = StandbyNote(Place(str(tmp_path)), "shop")
    note.became_standby()
    note.renew()
    note.left_standby()
    note.renew()


@pytest.fixture
def left(tmp_path: Path) -> str:
    """A warehouse that an earlier version has left: tests/upgrade."""
    with tarfile.open(Path(__file__).parents[1] / "upgrade" / "round-one.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return str(tmp_path / "warehouse")


def test_a_replay_reads_no_letters_but_those_that_are_asked_for(left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that answers a page's request may lead, and there may be a million others."""
    box = DeadLetterReader(Place(left), "upgraded")
    (letter,) = box.letters(messages=["3"])
    assert letter.message == "3" and box.letters() == [letter] and box.letters(messages=["4"]) == []
    with pytest.raises(TopologyError, match="found: 4; expected: one of 3"):
        box.replay(messages=["4"])
    asked: list[Any] = []
    letters = box.letters
    monkeypatch.setattr(
        box, "letters", lambda *given, **named: asked.append((given, named)) or letters(*given, **named)
    )
    (line,) = box.replay(letter.stream, ["3"])
    assert "1 to be tried again" in line and asked == [((), {"messages": ["3"]})]
    assert box.replay(letter.stream, ["3"]) == [], "it was asked for already"


def test_a_page_that_is_open_has_no_file_of_letters_read_twice(left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    rows_of = letters_module.rows_of

    def watched(root: str, files: Any, schema: Any) -> Any:
        read.extend(file.path for file in files)
        return rows_of(root, files, schema)

    monkeypatch.setattr(letters_module, "rows_of", watched)
    box = DeadLetterReader(Place(left), "upgraded")
    (letter,) = found = box.letters(100)
    first = list(read)
    assert first and found == box.letters()
    read.clear()
    assert box.letters(100) == found and read == []
    request_replay(box._stream_folder(letter.stream), [{"message": letter.message, "tuples": letter.tuples}])
    assert box.letters(100) == [replace(letter, replay="asked for")] and read == []


def test_the_page_of_a_warehouse_that_no_process_runs_needs_no_spark(left: str) -> None:
    told: list[str] = []
    stop = threading.Event()
    token = "a-token-of-the-tests"
    config = TridentConfig(warehouse=left, http_token=token)
    server = threading.Thread(target=serve, args=("upgraded", config, 0, told.append, stop), daemon=True)
    server.start()

    def asked(path: str) -> Any:
        wanted = urllib.request.Request(told[0] + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(wanted, timeout=60) as answer:
            return json.load(answer)

    try:
        assert eventually(lambda: told, 60.0)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(told[0] + "state.json", timeout=60)
        state = asked("state.json")
        assert (state["topology"], state["role"], state["running"]) == ("upgraded", "stopped", False)
        assert {group["name"] for group in asked("plan.json")["groups"]} >= {"inbox", "lines", "numbers"}
        states = {one["name"]: one for one in asked("states.json")["states"]}
        counts = states["counts"]
        assert (counts["txid"], counts["merged"], counts["lag"], counts["trouble"]) == (3, 3, 0, "")
        assert [(table["path"], table["rows"]) for table in counts["tables"]] == [("counts__log", 13), ("counts", 5)]
        (letter,) = asked("dead-letters.json")["letters"]
        assert letter["message"] == "3" and letter["can_replay"] and "ValueError" in letter["error"]
        assert counts["keys"] == [{"name": "value", "type": "string"}] and counts["has_keys"]
        assert asked("state/counts?key=no-such-word") == {
            "state": "counts",
            "key": ["no-such-word"],
            "found": False,
            "value": None,
        }
    finally:
        stop.set()
        server.join(60)
