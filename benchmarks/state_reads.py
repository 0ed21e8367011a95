"""Transactions that read a small and a large state, beside an append, and beside Structured Streaming with RocksDB."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import Bench
from benchmarks.beside import Running, in_turn, running
from benchmarks.peers import append_sink, make_table, merge_sink, stream_ms
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trident import Stream

TITLE = "a transaction of 1,000 rows that reads a state of 20,000 and of 8,000,000 keys, one in flight"
_ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_NEVER = {"merge_every_txids": 1_000_000, "merge_interval_secs": 1e9}


class _Total:
    """A reducer of the user's."""

    def init(self) -> int:
        return 0

    def reduce(self, current: int, n: int) -> int:
        return current + n


def _append(stream: "Stream") -> None:
    from trident import DeltaAppend

    stream.partition_persist(DeltaAppend("out"))


def _reducer(stream: "Stream") -> None:
    from trident import DeltaMapState

    stream.group_by("key").persistent_aggregate(DeltaMapState("totals", **_NEVER), "n", _Total(), "total long")


def _new_values(stream: "Stream") -> None:
    from trident import DeltaAppend, DeltaMapState, Sum

    sums = stream.group_by("key").persistent_aggregate(DeltaMapState("sums", **_NEVER), "n", Sum(), "sum")
    sums.new_values_stream().partition_persist(DeltaAppend("out"))


def _queried(stream: "Stream") -> None:
    from trident import DeltaAppend, DeltaMapState, MapGet, Sum

    sums = stream.group_by("key").persistent_aggregate(DeltaMapState("sums", **_NEVER), "n", Sum(), "sum")
    stream.state_query(sums, "key", MapGet(), "before").partition_persist(DeltaAppend("out"))


def _window(stream: "Stream") -> None:
    """All at one time, an hour before the watermark: each key is a part of an open window."""
    from trident import DeltaAppend, Sum
    from trident import functions as F

    timed = stream.with_column("at", F.timestamp_seconds(F.col("n") * 1_700_000_000)).with_watermark("at", "1 hour")
    windows = timed.tumbling_window("20 seconds", "open")
    windows.group_by("key").aggregate("n", Sum(), "total").partition_persist(DeltaAppend("out"))


_STREAMS: dict[str, Callable[["Stream"], None]] = {
    "reducer": _reducer,
    "new values": _new_values,
    "state_query": _queried,
    "window": _window,
}


def run(bench: Bench, report: Report) -> None:
    """All topologies run at once; in each round each is measured right behind the append. Then the peers."""
    rows, few, many = bench.size(1_000, 50), bench.size(20_000, 200), bench.size(8_000_000, 400)
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(running(bench, "append", _append, rows, few, has_copies=False))
        contenders: dict[str, Running] = {}
        for keys in (few, many):
            for name, stream in _STREAMS.items():
                bench.said(f"   {name}: fills {keys:,} keys")
                what = f"{name}, {keys:,} keys"
                contenders[what] = stack.enter_context(running(bench, name.replace(" ", "-"), stream, rows, keys))
        found = in_turn(bench, base, contenders, bench.size(5, 1))
        for name, contender in contenders.items():
            report.note(f"{name}: ms of its last transaction: {contender.spent}")
        report.note(f"append: ms of its last transaction: {base.spent}")
    report.figure("append", "ms", [pair[0] for pairs in found.values() for pair in pairs])
    ms = {name: report.figure(name, "ms", [pair[1] for pair in pairs]) for name, pairs in found.items()}
    goal, far = (None, None) if bench.quick else (Goal(at_most=1.5), Goal(at_most=0.1))
    for name, pairs in found.items():
        report.ratio(f"{name} / append", statistics.median(pair[1] / pair[0] for pair in pairs), 1.0, goal)
    peers = _Peers(bench, rows, few)
    beside = {
        "reducer": peers.merged,
        "new values": peers.appended,
        "state_query": peers.appended,
        "window": peers.windows,
    }
    took: dict[Callable[[], float], float] = {}
    for peer in dict.fromkeys(beside.values()):
        values = [peer() for _ in range(bench.size(2, 1))]
        took[peer] = report.figure(f"Structured Streaming, RocksDB, {few:,} keys: {peer.__doc__}", "ms", values)
    for name in ms:
        report.ratio(f"{name} / Structured Streaming", ms[name], took[beside[name.partition(",")[0]]], far)
    report.note(f"Structured Streaming has {few:,} keys in each of these ratios, which is in its favour")


class _Peers:
    """Structured Streaming with its state in RocksDB, into Delta by foreachBatch; a file of keys is a batch."""

    def __init__(self, bench: Bench, rows: int, keys: int) -> None:
        from pyspark.sql import functions as F

        from benchmarks.keys import keyed

        self._bench, self._warm_up = bench, bench.size(5, 2)
        self._folder = bench.fresh("batches")
        spark, batches = bench.spark, self._warm_up + bench.size(8, 2)
        for number in range(batches):
            first, count = (number * rows, rows) if number else (0, keys)
            ids = spark.range(first, first + count, 1, 1)
            one = keyed(ids, keys).withColumn("at", F.timestamp_seconds(F.lit(1_700_000_000)))
            one.write.mode("append").parquet(str(self._folder))

    def appended(self) -> float:
        """sums, new values appended"""
        return self._ms(append_sink(self._bench.fresh("peer"), lambda frame: frame), self._sums)

    def merged(self) -> float:
        """sums, merged into a table"""
        spark = self._bench.spark
        table = make_table(spark, self._bench.fresh("peer"), spark.createDataFrame([], "key string, sum long"))
        return self._ms(merge_sink(table, lambda frame: frame, "key", "sum", adds=False), self._sums)

    def windows(self) -> float:
        """tumbling windows, appended"""
        return self._ms(append_sink(self._bench.fresh("peer"), lambda frame: frame), self._windowed)

    def _sums(self, frame: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as F

        return frame.groupBy("key").agg(F.sum("n").alias("sum"))

    def _windowed(self, frame: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as F

        timed = frame.withWatermark("at", "1 hour")
        sums = timed.groupBy(F.window("at", "20 seconds"), "key").agg(F.sum("n").alias("sum"))
        return sums.select("window.start", "key", "sum")

    def _ms(self, sink: Callable[["DataFrame", int], None], query: Callable[["DataFrame"], "DataFrame"]) -> float:
        checkpoint: Path = self._bench.fresh("checkpoint")
        return stream_ms(
            self._bench.spark,
            self._folder,
            sink,
            checkpoint,
            self._warm_up,
            "parquet",
            "key string, n long, at timestamp",
            query,
            {"spark.sql.streaming.stateStore.providerClass": _ROCKS_DB},
        )
