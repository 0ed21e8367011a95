"""Disk full, table folder read-only, storage slow: a clear error, nothing lost, and the same query goes on.

Real Spark, ZooKeeper and Delta over a small file system of its own, which is
filled at a chosen moment of a batch. The others of each kind run with
``TRIDENT_STORAGE=all``; memory is tests/whole/test_memory_faults.py.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import deltalake
import pytest

from tests.servers.zk_fixtures import eventually
from tests.topology_helpers import WAIT_SECS, starter
from tests.whole.storage_helpers import Moments, SmallDisk, leftovers, small_disk
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, TridentTopology
from trident.coordinators import faults
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.errors import AttemptCapReached, StorageProblem, TableError
from trident.running.query import TopologyQuery
from trident.states.core.tables import StagedFile
from trident.states.delta.kernel import KernelEngine

ALL = os.environ.get("TRIDENT_STORAGE") == "all"
everything = pytest.mark.skipif(not ALL, reason="a longer one: TRIDENT_STORAGE=all (make storage)")
FULL, READ_ONLY = "No space left on device", "Read-only file system"
# A megabyte of rows a batch would be: what is staged must not fit into what is left.
WORDS_A_FILE = 3_000


def split(line: str) -> Iterator[str]:
    yield from line.split()


class Case:
    """A word count whose warehouse is on a small disk, and its input beside it."""

    def __init__(self, disk: SmallDisk, folder: Path, start, moments: Moments, seed: random.Random) -> None:
        self.disk, self.warehouse, self.moments = disk, disk.folder / "w", moments
        self._start, self._random = start, seed
        self._input = folder / "in"
        self._input.mkdir()
        self.words: Counter[str] = Counter()
        self.query: TopologyQuery | None = None
        self._files = 0

    def feed(self, files: int = 1) -> None:
        for _ in range(files):
            # Random, so that no codec makes them small.
            words = [f"w{self._random.randrange(10**9):x}" for _ in range(WORDS_A_FILE)] + ["often"] * 5
            draft = self._input.parent / "draft"
            draft.write_text("".join(" ".join(words[at : at + 10]) + "\n" for at in range(0, len(words), 10)))
            draft.rename(self._input / f"{self._files:03d}.txt")
            self._files += 1
            self.words.update(words)

    def start(self, **settings) -> TopologyQuery:
        topology = TridentTopology("stored")
        spout = FileSpout(f"{self._input}/*.txt", min_rows=10_000, max_rows=10_000)
        words = topology.new_stream("lines", spout).each("value", split, "word string")
        counts = DeltaMapState("counts", merge_every_txids=2, merge_interval_secs=600)
        words.group_by("word").persistent_aggregate(counts, Count(), "count")
        words.partition_persist(DeltaAppend("words"), "word")
        self.query = self._start(topology, **{"max_spout_pending": 1, **settings})
        return self.query

    def leave_a_stray(self) -> None:
        """What a Python worker leaves that is killed in the middle of a file, when its task is tried again."""
        newest = max(self.warehouse.glob("words/data/*/*"), key=lambda folder: folder.stat().st_mtime_ns)
        (newest / "part-00000-stray.snappy.parquet").write_bytes(b"PAR1")

    def run(self) -> None:
        self.feed()
        self.query.process_all_available(WAIT_SECS)

    @property
    def trouble(self) -> str:
        return " ".join(group["last_error"] or "" for group in self.query.status["groups"])

    def forget_trouble(self) -> None:
        self.query._reporter.errors.clear()
        for group in self.query._supervisor.groups:
            group.driver.last_error = None

    def meets(self, what: str) -> None:
        """The status says what is wrong, where, and what to do; the query is still running."""
        assert eventually(lambda: what in self.trouble, 40), f"the status says: {self.trouble!r}"
        for said in (what, str(self.disk.folder), "nothing is lost", "ake room" if what == FULL else "ake it writable"):
            assert said in self.trouble, self.trouble
        assert self.query.is_active and self.query.exception() is None

    def check(self) -> None:
        """Everything is counted once, in all tables, and nothing is left over."""
        self.query.process_all_available(WAIT_SECS)
        counts = {row.word: row["count"] for row in self.query.snapshot("counts").collect()}
        assert counts == self.words
        rows = deltalake.DeltaTable(str(self.warehouse / "words")).to_pyarrow_table()
        assert Counter(rows.column("word").to_pylist()) == self.words
        assert eventually(lambda: leftovers(self.warehouse) == [], 20), leftovers(self.warehouse)


@pytest.fixture
def case(spark, tmp_path: Path, zk_server: str, zk_root: str, monkeypatch, rng) -> Iterator[Case]:
    with small_disk(tmp_path / "disk", 12) as disk:
        with starter(spark, zk_server, zk_root, disk.folder) as start:
            made = Case(
                disk,
                tmp_path,
                lambda *a, **s: start(*a, warehouse=str(disk.folder / "w"), **s),
                Moments(monkeypatch),
                rng,
            )
            yield made
            disk.make_room()


# Where the disk is found full: point, entry, bytes that are left.
MOMENTS = [("publish.table", 2, 0)]
if ALL:
    MOMENTS += [
        ("stage.write", 1, 40_000),
        ("manifest.write", 1, 0),
        ("stage.write", 1, 0),
        ("stage.write", 1, 4096),
        ("manifest.write", 1, 4096),
        ("publish.table", 1, 0),
        ("publish.table", 1, 4096),
        ("publish.table", 2, 4096),
        ("spout.ledger", 1, 0),
    ]


def test_a_full_disk_is_named_at_whatever_moment_and_the_same_query_goes_on(case: Case) -> None:
    case.start()
    case.run()
    for point, nth, left in MOMENTS:
        case.forget_trouble()
        case.moments.before(point, partial(case.disk.fill, left), nth)
        case.feed()
        case.meets(FULL)
        case.disk.make_room()
        case.query.process_all_available(WAIT_SECS)
    case.moments.before("manifest.write", case.leave_a_stray)
    case.run()
    case.check()


@everything
def test_a_full_disk_stops_a_merge_and_the_status_and_not_the_batches_after_it(case: Case) -> None:
    case.start()
    case.run()
    case.moments.before("compact.merge", case.disk.fill)
    case.feed()
    case.meets(FULL)
    status = case.warehouse / "_trident" / "stored" / "status.json"
    json.loads(status.read_text())  # whole, if old
    case.disk.make_room()
    assert eventually(lambda: case.query._supervisor.groups[0].parts.background_merger._failures["counts"] == 0, 30), (
        "the MERGE is tried again"
    )
    case.run()
    assert eventually(lambda: json.loads(status.read_text())["groups"][0]["current_txid"] == 4)
    case.check()


@everything
def test_at_the_attempt_cap_it_stops_with_the_cause_and_a_restart_goes_on(case: Case) -> None:
    case.start(max_attempts=2)
    case.run()
    case.moments.before("stage.write", lambda: case.disk.fill(40_000))
    case.feed()
    with pytest.raises(AttemptCapReached, match=FULL) as raised:
        case.query.await_termination(WAIT_SECS)
    assert isinstance(raised.value.__cause__, StorageProblem) and str(case.disk.folder) in str(raised.value)
    assert "no row is lost" in str(raised.value.action) and "trident skip" not in str(raised.value)
    case.disk.make_room()
    case.start()
    case.check()


@everything
def test_zookeeper_on_the_same_full_disk_comes_back_by_itself(case: Case) -> None:
    """The embedded server ends when it cannot write its log; nothing that it had acknowledged is lost."""
    folder = case.warehouse / "_trident" / "zookeeper"
    try:
        case.start(zookeeper="embedded")
        case.run()
        for left in (0, 4096, 12_288):
            before = EmbeddedZooKeeper.status(folder)
            case.disk.fill(left)
            case.feed()
            case.meets(FULL)
            case.disk.make_room()
            case.query.process_all_available(WAIT_SECS)
            assert EmbeddedZooKeeper.status(folder).port == before.port, "clients look for it there"
        case.check()
        case.query.stop(WAIT_SECS)
    finally:
        case.disk.make_room()
        EmbeddedZooKeeper.stop(folder)


def test_a_read_only_table_folder_is_named_and_the_same_query_goes_on(case: Case) -> None:
    case.start()
    case.run()
    case.disk.protect()
    try:
        case.feed()
        case.meets(READ_ONLY)
    finally:
        case.disk.unprotect()
    case.check()


@everything
def test_slow_storage_costs_time_and_nothing_else(case: Case, armed: Callable[[str], None]) -> None:
    """Each I/O takes two seconds more, publishing longer than the message timeout, which bounds processing only."""
    slow = ["manifest.write", "publish.table", "stage.write", "zk.begin", "zk.decide", "zk.advance"]
    case.start(message_timeout_secs=6.0)
    case.run()
    epoch = case.query.status["epoch"]
    armed(",".join(f"{point}:slow" for point in slow))
    case.run()
    faults.disarm()
    progress = case.query.recent_progress
    assert [(one["batch_id"], one["attempt"]) for one in progress] == [(1, 0), (2, 0)]
    spent = progress[-1]["duration_ms"]
    assert spent["publish"] > 2 * faults.SLOW_SECS * 1000 * 0.9
    assert spent["total"] > 6 * faults.SLOW_SECS * 1000 * 0.9, "far longer than the message timeout"
    assert case.query.status["epoch"] == epoch, "the lease was never lost"
    case.check()


# --- the log of a Delta table on a full disk ------------------------------------------------------

SCHEMA = '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'


def test_a_commit_on_a_full_disk_leaves_a_whole_log_entry_or_none(spark, tmp_path: Path) -> None:
    """At every fill level, with entries of one page and of many: never a torn one, never a wrong answer."""
    outcomes: Counter[str] = Counter()
    with small_disk(tmp_path / "disk", 2) as disk:
        engine, table = KernelEngine(spark), disk.folder / "table"
        engine.create_table(str(table), SCHEMA, [], {}, {"d": "{}"}, "test")
        for files, levels in ((1, range(0, 16_384, 4096)), (90, range(0, 65_536, 4096 if ALL else 12_288))):
            staged = [StagedFile(f"data/{'x' * 60}/{n}.parquet", 9, 1, 1, '{"numRecords":1}') for n in range(files)]
            for left in levels:
                snapshot = engine.load(str(table))
                version, app = snapshot.version + 1, ("app", snapshot.version + 1)
                disk.fill(left)
                try:
                    engine.commit_files(snapshot, staged, app, {"d": json.dumps({"v": version})}, "test")
                    outcome = "committed"
                except TableError as error:
                    # Before the link it is certain that nothing was committed; behind it the outcome is unknown.
                    assert FULL in str(error)
                    outcome = "refused"
                entry = table / "_delta_log" / f"{version:020d}.json"
                assert entry.exists() == (outcome == "committed")
                for one in entry.parent.glob("[0-9]*.json"):
                    assert one.read_text().endswith("\n") and [json.loads(line) for line in one.open()]
                disk.make_room()
                again = engine.load(str(table))
                assert again.version == (version if outcome == "committed" else version - 1)
                outcomes[outcome] += 1
                if outcome == "refused":
                    assert engine.commit_files(again, staged, app, {"d": "{}"}, "test").version == version
        assert leftovers(disk.folder) == []
    assert min(outcomes["committed"], outcomes["refused"]) >= 3, outcomes
