"""A plan that is kept, one made anew, and the same query into nothing; small transactions against the durable floor."""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import words
from benchmarks.bench import Bench, Recorder, rounds, steady_ms
from benchmarks.machine import cpu_ms
from benchmarks.peers import noop
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from trident import TridentTopology
    from trident.planning.groups import GroupPlan
    from trident.spark.rows import Slot

TITLE = "staging one batch with a kept plan; transactions of 1,000 rows"

_WORDS, _PARTS = "word count", "word count of parts of files"
_APPEND, _COMBINER = "1,000 rows, append", "1,000 rows, combiner"
_ROWS, _KEYS = 1_000, 20_000


def run(bench: Bench, report: Report) -> None:
    """Staging alone, all ways in turn; then whole transactions, and the least that a durable one must do."""
    for name in (_WORDS, _PARTS, _APPEND, _COMBINER):
        _staging(bench, report, name)
    _transactions(bench, report)


# --- staging ----------------------------------------------------------------------------------


def _staging(bench: Bench, report: Report, name: str) -> None:
    from trident.planning.groups import plan
    from trident.running.kept_plans import early_plans
    from trident.states.delta.staging import StagingTarget

    slots = _slots(bench, name)
    group: GroupPlan = plan(_topology(name, bench.fresh("unused")).graph)[0]
    targets = [StagingTarget(binding.name, bench.fresh("staged")) for binding in group.bindings]
    kept = early_plans(bench.spark, group, targets, "snappy", True)
    ways: dict[str, Callable[[int], object]] = {
        "kept": lambda number: _kept(kept, slots[number % len(slots)], number),
        "made anew": lambda number: _anew(group, targets, slots[number % len(slots)], number),
        "into nothing": lambda number: noop(_query(name, slots[number % len(slots)].frame().coalesce(1))),
    }
    spent: dict[str, list[float]] = {way: [] for way in ways}

    def timed(way: str) -> Callable[[int], float]:
        def once(number: int) -> float:
            before, started = cpu_ms(), time.monotonic()
            ways[way](number + 1_000)
            wall = (time.monotonic() - started) * 1000
            spent[way].append(cpu_ms() - before)
            return wall

        return once

    contenders = {way: timed(way) for way in ways}
    warm_up, count = bench.size(20, 2), bench.size(40, 2)
    rounds(warm_up, contenders, lambda text: None)
    for values in spent.values():
        values.clear()
    measured = rounds(count, contenders, lambda text: None)
    ms = {way: report.figure(f"{name}, {way}", "ms", values) for way, values in measured.items()}
    for way, values in spent.items():
        report.figure(f"{name}, {way}: all processes", "CPU ms", [statistics.mean(values)])
    goal = Goal(at_most=1.0) if name == _WORDS else None
    report.ratio(f"{name}: kept / made anew", ms["kept"], ms["made anew"])
    report.ratio(f"{name}: kept / the query into nothing", ms["kept"], ms["into nothing"], goal)


def _topology(name: str, folder: Path) -> "TridentTopology":
    from pyspark.sql.types import StringType, StructField, StructType

    from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, Sum, TridentTopology

    topology = TridentTopology("staged")
    if name in (_WORDS, _PARTS):
        lines = FixedBatchSpout(StructType([StructField("value", StringType())]), [])
        counted = topology.new_stream("rows", lines).flat_map(words.split_column(), "word").group_by("word")
        counted.persistent_aggregate(DeltaMapState("counts"), Count(), "count")
        return topology
    rows = topology.new_stream("rows", FixedBatchSpout("key string, n long", []))
    if name == _APPEND:
        rows.partition_persist(DeltaAppend("out"))
    else:
        rows.group_by("key").persistent_aggregate(DeltaMapState("sums"), "n", Sum(), "sum")
    return topology


def _slots(bench: Bench, name: str) -> "list[Slot]":
    from trident.spark.rows import RowsSlot
    from trident.spouts.files.format import RowFormat
    from trident.spouts.files.ledger import FileRange, LedgerEntry
    from trident.spouts.files.reading import FileReader
    from trident.udf.types import as_schema

    if name not in (_WORDS, _PARTS):
        schema = as_schema("key string, n long", "the benchmark")
        return [RowsSlot(bench.spark, _table(number), schema) for number in range(8)]
    reader = FileReader(bench.spark, RowFormat("text", as_schema("value string", "the benchmark"), {}))
    found = []
    for path in sorted(words.write_files(bench.fresh("lines"), 8, bench.size(words.LINES, 200)).iterdir()):
        size, mtime_ns = path.stat().st_size, path.stat().st_mtime_ns
        begin = 0 if name == _WORDS else 1  # from the second line on: read by Python
        found.append(reader.read([FileRange(LedgerEntry(1, str(path), size, mtime_ns), begin, size)]).data)
    return found


def _table(number: int) -> "pa.Table":
    import pyarrow as pa

    keys = [(number * _ROWS + row) * 7919 % _KEYS for row in range(_ROWS)]
    return pa.table({"key": [f"key{key:06d}" for key in keys], "n": pa.array(range(_ROWS), pa.int64())})


def _query(name: str, frame: "DataFrame") -> "DataFrame":
    if name in (_WORDS, _PARTS):
        return words.counted(frame)
    return frame if name == _APPEND else frame.groupBy("key").sum("n")


def _kept(kept: Any, slot: Any, number: int) -> None:
    from trident.coordinators.identities import TransactionAttempt

    if kept.stage({"rows": slot}, "bench", TransactionAttempt(number, 0)) is None:
        raise AssertionError(f"the plan is not kept: {kept.why_not}")


def _anew(group: Any, targets: Any, slot: Any, number: int) -> None:
    from trident.coordinators.identities import TransactionAttempt
    from trident.states.delta.staging import stage

    attempt = TransactionAttempt(number, 0)
    with group.build({"rows": slot.frame().coalesce(1)}, attempt) as frames:
        stage(frames, targets, "bench", attempt)


# --- transactions -----------------------------------------------------------------------------


def _transactions(bench: Bench, report: Report) -> None:
    count, warm_up = bench.size(40, 6), bench.size(16, 2)
    floor = _Floor(bench)
    contenders: dict[str, Callable[[int], float]] = {
        "the durable floor": lambda number: floor.ms(count),
        **{
            f"{name}, {kept}": _transaction(bench, name, kept == "kept", count, warm_up)
            for name in (_APPEND, _COMBINER)
            for kept in ("kept", "made anew")
        },
    }
    measured = rounds(bench.size(3, 1), contenders, bench.said, warm_up=not bench.quick)
    floor.close()
    ms = {name: report.figure(f"transaction: {name}", "ms", values) for name, values in measured.items()}
    for name in (_APPEND, _COMBINER):
        report.ratio(
            f"transaction: {name} / the durable floor", ms[f"{name}, kept"], ms["the durable floor"], Goal(at_most=4)
        )
    report.note("the durable floor: three multis of ZooKeeper, a manifest, a Parquet file, a log entry, all flushed")


def _transaction(bench: Bench, name: str, kept: bool, count: int, warm_up: int) -> Callable[[int], float]:
    def once(number: int) -> float:
        from trident import DeltaAppend, DeltaMapState, FixedBatchSpout, Sum, TridentTopology

        batches = [list(zip(*_table(batch).to_pydict().values())) for batch in range(count)]
        topology = TridentTopology("small")
        rows = topology.new_stream("rows", FixedBatchSpout("key string, n long", batches))
        if name == _APPEND:
            rows.partition_persist(DeltaAppend("out"))
        else:
            rows.group_by("key").persistent_aggregate(DeltaMapState("sums"), "n", Sum(), "sum")
        with bench.running(topology, bench.fresh("small"), 1, keep_plans=kept) as query, Recorder(query) as recorder:
            query.process_all_available()
        return steady_ms(recorder.records, warm_up)

    return once


class _Floor:
    """The least that a durable transaction of 1,000 rows does, without anything that decides or computes."""

    def __init__(self, bench: Bench) -> None:
        from kazoo.client import KazooClient

        self._folder = bench.fresh("floor")
        self._folder.mkdir()
        self._client = KazooClient(bench.zookeeper)
        self._client.start()
        self._node = f"/floor-{uuid.uuid4().hex}"
        self._client.create(self._node, b"")

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def ms(self, count: int) -> float:
        tables = [_table(number) for number in range(8)]
        took = []
        for number in range(count):
            started = time.monotonic()
            self._transact(tables[number % len(tables)])
            took.append((time.monotonic() - started) * 1000)
        return statistics.median(took)

    def _transact(self, rows: "pa.Table") -> None:
        import pyarrow.parquet as pq

        name = uuid.uuid4().hex
        self._multi()
        pq.write_table(rows, self._folder / f"{name}.parquet")
        _flush(self._folder / f"{name}.parquet")
        self._durable(f"{name}.manifest", {"files": [f"{name}.parquet"], "stats": "x" * 500})
        self._multi()
        self._durable(f"{name}.json", {"add": f"{name}.parquet", "stats": "x" * 500})
        self._multi()

    def _multi(self) -> None:
        transaction = self._client.transaction()
        for _ in range(2):
            transaction.set_data(self._node, os.urandom(150).hex().encode())
        transaction.commit()

    def _durable(self, name: str, content: Mapping[str, object]) -> None:
        path = self._folder / name
        path.write_text(str(content))
        _flush(path)


def _flush(path: Path) -> None:
    """The file and its name."""
    for one in (path, path.parent):
        handle = os.open(one, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
