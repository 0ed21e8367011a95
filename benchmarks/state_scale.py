"""Keyed states of 2,000,000 keys, by kind and by rows a batch, in turn with Structured Streaming on RocksDB.

TRIDENT_BENCH_ONLY chooses what runs, in any order: kinds, sizes, and parts. ``TRIDENT_BENCH_ONLY=reducer,20000``
measures one case; ``skew`` and ``cluster`` run alone in the same way, ``ours`` leaves Structured Streaming out, and
``large`` (50,000,000 keys) runs only when it is named.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from benchmarks.bench import Bench, advanced_at
from benchmarks.peers import append_sink, session_of
from benchmarks.report import Goal, Report
from trident import DeltaAppend, DeltaMapState, Emitted, SpoutKind, Sum, TridentTopology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trident import SpoutContext, Stream, TopologyQuery, TransactionAttempt

TITLE = "a state of 2,000,000 keys by rows a batch, one in flight, in turn with Structured Streaming on RocksDB"
ONLY = "TRIDENT_BENCH_ONLY"
_ROCKS_DB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Windows that are due fire with the next rows, so that each batch is one micro-batch.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}
_CLUSTER, _CLUSTER_SECS_MAX = "local-cluster[4,1,1024]", 3 * 3600.0
_WAIT_SECS = 600.0
_STRIDE = 1_000_003  # has no divisor in common with the number of keys: meets each key once before any twice
_PRIME = 99_999_989
_BEGIN = 1_767_225_600_000_000  # 2026-01-01, microseconds
_OPEN = 7_200_000_000  # microseconds of event time in which as many ids are new as the state has keys


@dataclass(frozen=True)
class Size:
    """Rows a batch, and how often it is measured; ``in_driver``: a batch is an Arrow table, as messages are."""

    rows: int
    quick_rows: int
    goal: float
    warm_up: int
    batches: int
    rounds: int
    in_driver: bool


_SIZES = (
    Size(1_000, 20, 0.10, 15, 10, 2, True),
    Size(20_000, 40, 0.15, 5, 5, 2, True),
    Size(200_000, 120, 0.35, 2, 3, 2, False),
    Size(1_000_000, 200, 0.5, 1, 2, 2, False),
)
_SKEWED = _SIZES[2]


# --- kinds: the same work for both sides ------------------------------------------------------------------------------


class _Total:
    """A reducer of the user's."""

    def init(self) -> int:
        return 0

    def reduce(self, current: int, n: int) -> int:
        return current + n


def _reducer(stream: "Stream") -> None:
    stream.group_by("key").persistent_aggregate(DeltaMapState("totals"), "n", _Total(), "total long")


def _new_values(stream: "Stream") -> None:
    sums = stream.group_by("key").persistent_aggregate(DeltaMapState("totals"), "n", Sum(), "total")
    sums.new_values_stream().partition_persist(DeltaAppend("out"))


def _sliding(stream: "Stream") -> None:
    windows = stream.with_watermark("at", "2 hours").sliding_window("2 seconds", "1 second", "open")
    windows.group_by("key").aggregate("n", Sum(), "total").partition_persist(DeltaAppend("out"))


def _sessions(stream: "Stream") -> None:
    sessions = stream.with_watermark("at", "2 hours").session_window("1 second", "open")
    sessions.group_by("key").aggregate("n", Sum(), "total").partition_persist(DeltaAppend("out"))


def _deduplicated(stream: "Stream") -> None:
    first = stream.with_watermark("at", "1 hour").drop_duplicates("key", within="1 hour", name="seen")
    first.partition_persist(DeltaAppend("out"))


def _spark_sums(frame: "DataFrame") -> "DataFrame":
    return frame.groupBy("key").agg(F.sum("n").alias("total"))


def _spark_sliding(frame: "DataFrame") -> "DataFrame":
    timed = frame.withWatermark("at", "2 hours")
    return timed.groupBy(F.window("at", "2 seconds", "1 second"), "key").agg(F.sum("n").alias("total"))


def _spark_sessions(frame: "DataFrame") -> "DataFrame":
    timed = frame.withWatermark("at", "2 hours")
    return timed.groupBy(F.session_window("at", "1 second"), "key").agg(F.sum("n").alias("total"))


def _spark_deduplicated(frame: "DataFrame") -> "DataFrame":
    return frame.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["key"])


@dataclass(frozen=True)
class Kind:
    """One stateful operation in both frameworks.

    Attributes:
        timed: rows have an event time; half of a batch's ids are new, and as many leave the state as come.
        repeats_now: an id that repeats has the time of the rows around it, else that of its first row.
    """

    name: str
    ours: Callable[["Stream"], None]
    theirs: Callable[["DataFrame"], "DataFrame"]
    mode: str
    timed: bool = False
    repeats_now: bool = False


_KINDS = (
    Kind("reducer", _reducer, _spark_sums, "update"),
    Kind("new-values", _new_values, _spark_sums, "update"),
    Kind("sliding", _sliding, _spark_sliding, "append", timed=True),
    Kind("session", _sessions, _spark_sessions, "append", timed=True),
    Kind("deduplication", _deduplicated, _spark_deduplicated, "append", timed=True, repeats_now=True),
)


def run(bench: Bench, report: Report) -> None:
    """Kind by kind; in each, size by size; in each, both sides in turn with the same files."""
    only = {word.strip() for word in os.environ.get(ONLY, "").split(",") if word.strip()}
    known = {"skew", "cluster", "large", "ours", *(kind.name for kind in _KINDS), *(str(size.rows) for size in _SIZES)}
    if only - known:
        raise ValueError(f"{ONLY} names {', '.join(sorted(only - known))}; there are {', '.join(sorted(known))}")
    parts = only & {"skew", "cluster", "large"}
    kinds = [kind for kind in _KINDS if kind.name in only] or ([] if parts - {"cluster"} else list(_KINDS))
    sizes = [size for size in _SIZES if str(size.rows) in only] or list(_SIZES)
    ms: dict[str, float] = {}
    for kind in kinds:
        ms |= _measure(bench, report, kind, sizes, "ours" not in only)
    if "skew" in parts or not only:
        _skew(bench, report)
    if "cluster" in parts or not only:
        _cluster(bench, report, ms)
    if "large" in parts:
        _large(bench, report)
    report.note("Structured Streaming: RocksDB with changelog checkpoints, results appended to Delta by foreachBatch")
    report.note("reducer: Structured Streaming's is its own sum, as for new values; ours is a Python class")
    report.note("windows, sessions, duplicates: half of a batch's ids are new, as many are due; checked: same results")


def _measure(
    bench: Bench, report: Report, kind: Kind, sizes: Sequence[Size], has_peer: bool, skewed: bool | None = None
) -> dict[str, float]:
    """The medians of ours: ``KIND, ROWS rows`` → milliseconds."""
    batches = Batches(bench, kind, bool(skewed))
    more = {None: "", False: ", even", True: ", skewed"}[skewed]
    found: dict[str, float] = {}
    with _Ours.running(bench, kind) as ours, _Peer.running(bench, kind, has_peer) as peer:
        bench.said(f"   {kind.name}: fills {batches.keys:,} keys")
        filled = batches.fill()
        began = time.monotonic()
        ours.take(filled, in_driver=False)
        report.figure(f"{kind.name}{more}: filling the state", "s", [time.monotonic() - began])
        peer.take(filled)
        report.note(f"{kind.name}: copies of the full state: {_wait_for_copies(bench, ours, peer, batches)}")
        for size in sizes:
            name = f"{kind.name}, {size.rows:,} rows{more}"
            found |= _in_turn(bench, report, name, size, ours, peer, batches)
        if peer.is_there:
            _check(kind, ours.results(), peer.results())
    return found


def _in_turn(
    bench: Bench, report: Report, name: str, size: Size, ours: "_Ours", peer: "_Peer", batches: "Batches"
) -> dict[str, float]:
    rows = bench.size(size.rows, size.quick_rows)
    mine: list[float] = []
    theirs: list[float] = []
    records: list[dict[str, Any]] = []
    for number in range(bench.size(0, 1), bench.size(size.rounds, 1) + 1):  # 0 is the warm-up
        count = bench.size(size.batches if number else size.warm_up, 1)
        made = [batches.make(rows) for _ in range(count + 1)]
        took = ours.take(made, size.in_driver)
        peers = peer.take(made)
        bench.said(f"   {name}: " + ", ".join(f"{statistics.median(ms):,.0f} ms" for ms in (took, peers) if ms))
        if number:
            mine, theirs, records = mine + took, theirs + peers, records + ours.records[-count:]
    median = report.figure(f"{name}: ours", "ms", mine)
    if theirs:
        goal = None if bench.quick else Goal(at_most=size.goal)
        their_median = report.figure(f"{name}: Structured Streaming", "ms", theirs)
        report.ratio(f"{name}: ours / Structured Streaming", median, their_median, goal)
    parts = {part: [one["duration_ms"].get(part, 0.0) for one in records] for part in records[-1]["duration_ms"]}
    spent = ", ".join(f"{part} {statistics.median(values):,.0f}" for part, values in parts.items())
    report.note(f"{name}: load {os.getloadavg()[0]:.1f}; ms of a transaction: {spent}")
    if peer.spent:
        report.note(f"{name}: Structured Streaming, ms of its last batch: {peer.spent}")
    return {name: median}


def _wait_for_copies(bench: Bench, ours: "_Ours", peer: "_Peer", batches: "Batches") -> str:
    """Lets small batches go until every local copy follows: a copy of a large state is made next to transactions."""
    end = time.monotonic() + bench.size(int(_WAIT_SECS), 60)
    while True:
        made = [batches.make(20)]
        ours.take(made, in_driver=True)
        peer.take(made)
        copies = [copy for group in ours.query.status["groups"] for copy in group["copies"]]
        following = bool(copies) and all(copy["condition"] == "following" for copy in copies)
        if following or time.monotonic() > end:
            return ", ".join(f"{copy['condition']}, {copy['bytes'] / 1e6:.0f} MB" for copy in copies) or "none"
        time.sleep(0.2)


def _check(kind: Kind, ours: "DataFrame", theirs: "DataFrame") -> None:
    """Both have the same results, but for windows that only one of them has fired yet."""
    if not kind.timed:
        theirs = theirs.groupBy("key").agg(F.max("total").alias("total"))
    elif not kind.repeats_now:
        column = "window" if "window" in theirs.columns else "session_window"
        theirs = theirs.withColumnRenamed(column, "window")
        ends = [frame.agg(F.max("window.end")).first() for frame in (ours, theirs)]
        bound = min(end[0] for end in ends if end is not None)
        ours, theirs = (frame.where(F.col("window.end") < F.lit(bound)) for frame in (ours, theirs))
    total = "n" if kind.repeats_now else "total"
    counted = [
        tuple(frame.agg(F.count("key"), F.count_distinct("key"), F.sum(total)).collect()[0]) for frame in (ours, theirs)
    ]
    if counted[0] != counted[1] or not counted[0][0]:
        raise AssertionError(f"{kind.name}: rows, keys and sum are {counted[0]}, Structured Streaming's {counted[1]}")


# --- the rows: Parquet files, of which both sides get the same --------------------------------------------------------


class Batches:
    """A folder of Parquet files for each batch, in as many files as the session has cores (small: in one)."""

    def __init__(self, bench: Bench, kind: Kind, skewed: bool) -> None:
        self.keys, self._kind, self._skewed = bench.size(2_000_000, 2_000), kind, skewed
        self._root = bench.fresh("batches")
        self._files = max(2, bench.spark.sparkContext.defaultParallelism)
        self._in_one = _SIZES[1].rows if not bench.quick else _SIZES[1].quick_rows
        self._next = self._made = 0

    def fill(self) -> list[Path]:
        """Every key once, in two batches."""
        return [self._write(*self._new(self.keys // 2)) for _ in range(2)]

    def make(self, rows: int) -> Path:
        """The next batch: keys far apart from each other."""
        if not self._kind.timed:
            ids, times = self._new(rows)
            if self._skewed:
                ids[::2] = 0
            return self._write(ids, times)
        new, _ = self._new(rows // 2)
        # The other half was new half an hour ago: its windows are open, and it is a duplicate.
        ids = np.stack([new, new - self.keys // 4], 1).ravel()
        return self._write(ids, np.repeat(new, 2) if self._kind.repeats_now else ids)

    def _new(self, rows: int) -> tuple[Any, Any]:
        ids = np.arange(self._next, self._next + rows, dtype=np.int64)
        self._next += rows
        return ids, ids

    def _write(self, ids: Any, times: Any) -> Path:
        numbers = pa.array(ids * _STRIDE % (_PRIME if self._kind.timed else self.keys))
        keys = pc.binary_join_element_wise("k", pc.utf8_lpad(numbers.cast(pa.string()), 8, "0"), "")
        columns: dict[str, Any] = {"key": keys, "n": pa.array([1] * len(ids), pa.int64())}
        if self._kind.timed:
            columns["at"] = pa.array(_BEGIN + times * _OPEN // self.keys).cast(pa.timestamp("us", "UTC"))
        table = pa.table(columns)
        folder = self._root / f"b{self._made:05d}"
        folder.mkdir(parents=True)
        self._made += 1
        files = 1 if len(ids) <= self._in_one else self._files
        for number in range(files):
            first, end = (len(ids) * part // files for part in (number, number + 1))
            pq.write_table(table.slice(first, end - first), folder / f"{number}.parquet")
        return folder


@dataclass
class _Spout:
    """Gives each folder that is put into ``folders`` as a batch; transactional."""

    timed: bool
    kind: SpoutKind = SpoutKind.TRANSACTIONAL
    folders: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def output_schema(self) -> str:
        return "key string, n long, at timestamp" if self.timed else "key string, n long"

    def get_coordinator(self, context: "SpoutContext") -> "_Spout":
        return self

    def get_emitter(self, context: "SpoutContext") -> "_Emitter":
        return _Emitter(context, self.output_schema)

    def initialize_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> Any:
        return curr_metadata or self.folders[txid - 1]

    def is_ready(self, txid: int) -> bool:
        return txid <= len(self.folders)

    def success(self, txid: int) -> None: ...

    def close(self) -> None: ...


class _Emitter:
    def __init__(self, context: "SpoutContext", schema: str) -> None:
        self._spark, self._schema = context.spark, schema

    def emit_batch(self, attempt: "TransactionAttempt", metadata: Any) -> Any:
        folder, in_driver = metadata
        if in_driver:
            return Emitted(pq.read_table(folder), partitions=1)
        files = len(list(Path(folder).iterdir()))
        return Emitted(self._spark.read.schema(self._schema).parquet(folder), partitions=files)

    def success(self, attempt: "TransactionAttempt") -> None: ...

    def close(self) -> None: ...


# --- both sides: they stay up, and take batches when they get them ----------------------------------------------------


class _Ours:
    """A topology with default settings, one batch in flight."""

    def __init__(self, query: "TopologyQuery", spout: _Spout, kind: Kind, spark: Any, warehouse: Path) -> None:
        self.query, self._spout, self._kind, self._spark, self._warehouse = query, spout, kind, spark, warehouse
        self.records: list[dict[str, Any]] = []

    @classmethod
    @contextmanager
    def running(cls, bench: Bench, kind: Kind) -> Iterator["_Ours"]:
        spout, warehouse = _Spout(kind.timed), bench.fresh(kind.name)
        topology: TridentTopology = TridentTopology(kind.name)
        kind.ours(topology.new_stream("rows", spout))
        with bench.running(topology, warehouse, 1, message_timeout_secs=None) as query:
            yield cls(query, spout, kind, bench.spark, warehouse)
        shutil.rmtree(warehouse, ignore_errors=True)

    def take(self, folders: Sequence[Path], in_driver: bool) -> list[float]:
        """Milliseconds of each batch but the first: from the advance of the one before to its own."""
        self._spout.folders += [(str(folder), in_driver) for folder in folders]
        last, end = len(self._spout.folders), time.monotonic() + _WAIT_SECS
        self.query.process_all_available()
        while not (found := self.query.recent_progress) or found[-1]["batch_id"] < last:
            if time.monotonic() > end:
                raise AssertionError(f"no progress of transaction {last}")
            time.sleep(0.01)
        self.records = [one for one in found if one["batch_id"] > last - len(folders)]
        ends = [advanced_at(one) * 1000 for one in self.records]
        return [after - before for before, after in zip(ends, ends[1:])]

    def results(self) -> "DataFrame":
        if not self._kind.timed:
            return self.query.snapshot("totals")
        return self._spark.read.format("delta").load(str(self._warehouse / "out"))


class _Peer:
    """A streaming query that stays up; each folder that is moved into its own is a batch."""

    def __init__(self, bench: Bench, kind: Kind, is_there: bool) -> None:
        self.is_there, self._bench, self._kind = is_there, bench, kind
        self._root, self._watched = bench.fresh("peer"), bench.fresh("watched")
        self._watched.mkdir()
        self._query: Any = None
        self.spent = ""

    @classmethod
    @contextmanager
    def running(cls, bench: Bench, kind: Kind, is_there: bool) -> Iterator["_Peer"]:
        peer = cls(bench, kind, is_there)
        try:
            yield peer
        finally:
            if peer._query is not None:
                peer._query.stop()
            shutil.rmtree(peer._root, ignore_errors=True)

    def take(self, folders: Sequence[Path]) -> list[float]:
        """Milliseconds that Spark says of each batch but the first; the folders are gone afterwards."""
        took = []
        for folder in folders if self.is_there else ():
            folder.rename(self._watched / folder.name)
            if self._query is None:
                self._query = self._start()
            self._query.processAllAvailable()
            progress = [one for one in self._query.recentProgress if one["numInputRows"]][-1]
            took.append(float(progress["durationMs"]["triggerExecution"]))
            self.spent = ", ".join(f"{part} {ms}" for part, ms in progress["durationMs"].items())
            # Few folders in the one that it lists; a batch is done with its files once it is committed.
            shutil.rmtree(self._watched / folder.name)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return took[1:]

    def _start(self) -> Any:
        session = session_of(self._bench.spark, _ROCKS_DB)
        schema = _Spout(self._kind.timed).output_schema
        source = session.readStream.format("parquet").schema(schema).load(f"{self._watched}/*")
        writer = self._kind.theirs(source).writeStream.outputMode(self._kind.mode)
        # While it has nothing to do it lists its folder twice a second; that time is in none of the figures.
        writer = writer.foreachBatch(append_sink(self._root / "out", lambda frame: frame)).trigger(
            processingTime="500 milliseconds"
        )
        return writer.option("checkpointLocation", str(self._root / "checkpoint")).start()

    def results(self) -> "DataFrame":
        return self._bench.spark.read.format("delta").load(str(self._root / "out"))


# --- skew, executors, many keys ---------------------------------------------------------------------------------------


def _skew(bench: Bench, report: Report) -> None:
    """The same combiner with half of all rows of one key, and without."""
    kind = next(kind for kind in _KINDS if kind.name == "new-values")
    bench.said("   skew")
    (skewed,), (even,) = (_measure(bench, report, kind, [_SKEWED], False, is_so).values() for is_so in (True, False))
    goal = None if bench.quick else Goal(at_most=1.5)
    report.ratio("half of all rows of one key / none", skewed, even, goal)


def _cluster(bench: Bench, report: Report, local: dict[str, float]) -> None:
    """The same cases in a process whose executors are four processes of one core each."""
    found = bench.fresh("cluster").with_suffix(".json")
    only = {word for word in os.environ.get(ONLY, "").split(",") if word} - {"cluster", "skew", "large", "ours"}
    kinds = only - {str(size.rows) for size in _SIZES} or {kind.name for kind in _KINDS}
    command = [sys.executable, "-m", "benchmarks", "state-scale", "--master", _CLUSTER, "--json", str(found)]
    command += ["--folder", str(bench.folder), *(["--quick"] if bench.quick else [])]
    shards = {"TRIDENT_STATE_SHARDS": "4"}  # however many executors are there when the topology starts
    environment = {**os.environ, **shards, ONLY: ",".join(sorted(only | kinds | {"ours"}))}
    bench.said(f"   {_CLUSTER}")
    ended = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=_CLUSTER_SECS_MAX)
    if ended.returncode:
        raise RuntimeError(f"the benchmark on {_CLUSTER} ended with {ended.returncode}")
    theirs = json.loads(found.read_text(encoding="utf-8"))["benchmarks"]["state-scale"]
    goal = None if bench.quick else Goal(at_most=1.3)
    for figure in theirs["figures"]:
        name = figure["name"].removesuffix(": ours")
        report.figure(f"{_CLUSTER}: {figure['name']}", figure["unit"], figure["rounds"])
        if name in local:
            report.ratio(f"{name}: {_CLUSTER} / local", figure["median"], local[name], goal)
    for note in theirs["notes"]:
        if "ms of a transaction" in note:
            report.note(f"{_CLUSTER}: {note}")


def _large(bench: Bench, report: Report) -> None:
    """50,000,000 keys: a process that fills the state, then one that restarts on it."""
    from benchmarks.memory import child

    keys = bench.size(50_000_000, 4_000)
    found = child(bench, keys)
    for unit, values in (("s", found["secs"]), ("MB", found["mb"])):
        for what, value in values.items():
            report.figure(f"{keys:,} keys: {what}", unit, [value])
