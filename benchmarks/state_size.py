"""Whether a transaction costs more when the state is large, and what its MERGEs and reads cost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers
from benchmarks.bench import Bench, Recorder, rounds, steady_ms
from benchmarks.keys import GatedKeys, keyed
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trident import TopologyQuery

TITLE = "publishing 20,000 changed keys with 20,000 and with 8,000,000 keys in the state"

_COMMIT = ("prepare", "decide", "publish", "advance")
# So that no MERGE falls into what is measured without one.
_NO_MERGE = {"merge_every_txids": 1_000_000, "merge_interval_secs": 1e9}


def run(bench: Bench, report: Report) -> None:
    """Both sizes side by side: publishing, reading, then publishing with MERGEs in the background."""
    changed = bench.size(20_000, 500)
    states = [_Sized(bench, keys, changed) for keys in (bench.size(20_000, 500), bench.size(8_000_000, 5_000))]
    for state in states:
        report.figure(f"{state.what}: filling the state, with its MERGE", "s", [state.build()])
    with contextlib.ExitStack() as stack:
        for state in states:
            stack.enter_context(state.running(1, **_NO_MERGE))
        _publishing(bench, report, states)
        _reading(bench, report, states)
    sustained = [_sustained(bench, report, state) for state in states]
    report.ratio("sustained with MERGEs: large / small", sustained[1], sustained[0])
    report.note("foreachBatch MERGE: the same keys from Parquet files, a file a batch; time of its batches alone")
    report.note("live read: 30 or so transactions of the log are not merged and are combined with the table")


def _publishing(bench: Bench, report: Report, states: list["_Sized"]) -> None:
    count = bench.size(10, 2)
    for state in states:
        state.transactions(count)  # warm-up
    contenders: dict[str, Callable[[int], float]] = {}
    for state in states:
        contenders[f"{state.what}: a transaction"] = lambda number, state=state: state.transactions(count)
        contenders[f"{state.what}: foreachBatch MERGE"] = lambda number, state=state: state.peer()
    measured = rounds(1 if bench.quick else 3, contenders, bench.said)
    ms = {name: report.figure(name, "ms", values) for name, values in measured.items()}
    commit = {}
    for state in states:
        for part in _COMMIT:
            report.figure(f"{state.what}: {part}", "ms", [one[part] for one in state.parts])
        spent = [sum(one[part] for part in _COMMIT) for one in state.parts]
        commit[state.what] = report.figure(f"{state.what}: commit in all", "ms", spent)
    small, large = (state.what for state in states)
    at_most = Goal(at_most=1.3)
    report.ratio("a transaction: large / small", ms[f"{large}: a transaction"], ms[f"{small}: a transaction"], at_most)
    report.ratio("its commit: large / small", commit[large], commit[small], at_most)
    for what in (small, large):
        report.ratio(
            f"{what}: foreachBatch MERGE / ours", ms[f"{what}: foreachBatch MERGE"], ms[f"{what}: a transaction"]
        )


def _reading(bench: Bench, report: Report, states: list["_Sized"]) -> None:
    contenders: dict[str, Callable[[int], float]] = {}
    for state in states:
        contenders[f"{state.what}: live read, all"] = _timed(lambda state=state: _sum(state.query.snapshot("counts")))
        contenders[f"{state.what}: live read, one key"] = _timed(
            lambda state=state: _one(state.query.snapshot("counts"))
        )
        contenders[f"{state.what}: plain table, all"] = _timed(lambda state=state: _sum(state.plain()))
        contenders[f"{state.what}: plain table, one key"] = _timed(lambda state=state: _one(state.plain()))
    measured = rounds(1 if bench.quick else 5, contenders, bench.said, warm_up=True)
    ms = {name: report.figure(name, "ms", values) for name, values in measured.items()}
    for state in states:
        for what in ("all", "one key"):
            live, plain = f"{state.what}: live read, {what}", f"{state.what}: plain table, {what}"
            report.ratio(f"{state.what}: live read / plain table, {what}", ms[live], ms[plain])
        state.check()


def _timed(action: Callable[[], Any]) -> Callable[[int], float]:
    def once(number: int) -> float:
        started = time.monotonic()
        action()
        return (time.monotonic() - started) * 1000

    return once


def _sum(frame: "DataFrame") -> int:
    return frame.groupBy().sum("count").first()[0]


def _one(frame: "DataFrame") -> Any:
    from pyspark.sql import functions as F

    return frame.where(F.col("key") == "k00000042").collect()


def _sustained(bench: Bench, report: Report, state: "_Sized") -> float:
    """This many seconds at full speed with four in flight and the MERGE settings that a user gets."""
    secs = bench.size(60, 2)
    # Quick: so that a MERGE falls into it at all.
    settings = {"merge_every_txids": 5} if bench.quick else {}
    with state.running(4, **settings) as query, Recorder(query) as recorder:
        merges = state.merges()
        state.spout.allow(1_000_000)
        time.sleep(secs)
        while len(recorder.records) < 12:  # a machine that is too slow for the window
            if query.exception() is not None:
                raise query.exception()
            time.sleep(0.1)
        state.spout.close_gate()
        query.process_all_available()
        # Those that ended in the window; one that still runs is seen in the transactions' times only.
        took = state.merges()[len(merges) :]
        records = recorder.records
    ms = report.figure(f"{state.what}: sustained, 4 in flight", "ms", [steady_ms(records, 4)])
    report.figure(f"{state.what}: MERGEs meanwhile", f"in {secs} s", [len(took)])
    if took:
        report.figure(f"{state.what}: a MERGE meanwhile", "ms", took)
    return ms


class _Sized:
    """A topology whose state has this many keys, and its peer."""

    def __init__(self, bench: Bench, keys: int, changed: int) -> None:
        self._bench, self._keys, self._changed = bench, keys, changed
        self.what = f"{keys:,} keys"
        self._warehouse = bench.fresh("ours")
        self._peer_table: Path | None = None
        self._peer_batches = 0
        self.parts: list[dict[str, float]] = []
        self._rows = 0
        self.spout: GatedKeys
        self.query: "TopologyQuery"

    def build(self) -> float:
        """All keys in one transaction, then one MERGE; returns the seconds."""
        started = time.monotonic()
        with self.running(1, **_NO_MERGE) as query:
            self.spout.allow(1)
            query.process_all_available()
        # stop() has merged, unless that took it too long.
        from trident import TridentConfig
        from trident.commands.admin import compact

        where = {"zookeeper": self._bench.zookeeper, "zookeeper_root": f"/{self._warehouse.name}"}
        master = self._bench.spark.sparkContext.master
        compact("sized", TridentConfig(warehouse=str(self._warehouse), spark_master=master, **where))
        found = self.plain().count()
        if found != self._keys:
            raise AssertionError(f"the table has {found} keys after the MERGE, not {self._keys}")
        self._rows += self._keys
        return time.monotonic() - started

    @contextlib.contextmanager
    def running(self, in_flight: int, **state: Any):
        from trident import DeltaMapState, Sum, TridentTopology

        self.spout = GatedKeys(self._changed, self._keys, load=True)
        topology = TridentTopology("sized")
        topology.new_stream("keys", self.spout).group_by("key").persistent_aggregate(
            DeltaMapState("counts", **state), "n", Sum(), "count"
        )
        with self._bench.running(topology, self._warehouse, in_flight, message_timeout_secs=None) as query:
            self.query = query
            while not query.is_leader:
                time.sleep(0.01)
            self.spout.allow(self._current() - 1)
            yield query

    def _current(self) -> int:
        return self.query.status["groups"][0]["current_txid"]

    def transactions(self, count: int) -> float:
        """Milliseconds a transaction over this many, each of them of changed keys only."""
        with Recorder(self.query) as recorder:
            first = self._current()
            self.spout.allow(count)
            self.query.process_all_available()
        records = [record for record in recorder.records if record["batch_id"] >= first]
        if len(records) != count:
            raise AssertionError(f"{len(records)} transactions instead of {count}")
        self._rows += count * self._changed
        self.parts += [record["duration_ms"] for record in records[1:]]
        return steady_ms(records, 1)

    def peer(self) -> float:
        """Milliseconds a batch of foreachBatch + MERGE into a table of as many keys."""
        spark, count = self._bench.spark, 3
        if self._peer_table is None:
            every = keyed(spark.range(0, self._keys, 1, 2 * spark.sparkContext.defaultParallelism), self._keys)
            self._peer_table = peers.make_table(
                spark, self._bench.fresh("merge"), every.withColumnRenamed("n", "count")
            )
        files = self._bench.fresh("keys")
        for _ in range(count):
            first = self._peer_batches * self._changed
            batch = keyed(spark.range(first, first + self._changed, 1, 1), self._keys)
            batch.write.mode("append").parquet(str(files))
            self._peer_batches += 1

        def summed(frame: "DataFrame") -> "DataFrame":
            return frame.groupBy("key").sum("n").withColumnRenamed("sum(n)", "count")

        sink = peers.merge_sink(self._peer_table, summed, "key", "count")
        return peers.stream_ms(spark, files, sink, self._bench.fresh("checkpoint"), 1, "parquet", "key string, n long")

    def plain(self) -> "DataFrame":
        """The table with one row per key, as any Delta reader sees it."""
        return self._bench.spark.read.format("delta").load(str(self._warehouse / "counts"))

    def merges(self) -> list[float]:
        """Milliseconds of each MERGE so far."""
        from delta.tables import DeltaTable

        history = DeltaTable.forPath(self._bench.spark, str(self._warehouse / "counts")).history()
        rows = history.where("operation = 'MERGE'").orderBy("version").collect()
        return [float(row.operationMetrics["executionTimeMs"]) for row in rows]

    def check(self) -> None:
        found = _sum(self.query.snapshot("counts"))
        if found != self._rows:
            raise AssertionError(f"{self.what}: {found} counted, there were {self._rows}")
        if self._peer_table is not None:
            table = self._bench.spark.read.format("delta").load(str(self._peer_table))
            expected = self._keys + self._peer_batches * self._changed
            if _sum(table) != expected:
                raise AssertionError(f"the peer counts {_sum(table)}, there were {expected}")
