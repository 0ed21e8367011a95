"""What an upsert by a sequence costs beside a plain one in a large state: its transactions, commits and MERGEs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, Recorder, rounds, steady_ms
from benchmarks.keys import GatedKeys
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from trident import TopologyQuery

TITLE = "20,000 changed keys of 8,000,000: upserts with and without a sequence, and with a change data feed"

_COMMIT = ("prepare", "decide", "publish", "advance")
_PLAIN, _SEQUENCED, _FED = "upsert", "upsert by a sequence", "upsert by a sequence, change data feed"


def run(bench: Bench, report: Report) -> None:
    """All of them side by side: transactions by turns, then one MERGE of each one's log."""
    keys, changed = bench.size(8_000_000, 5_000), bench.size(20_000, 500)
    sides = [_Side(bench, what, keys, changed) for what in (_PLAIN, _SEQUENCED, _FED)]
    for side in sides:
        report.figure(f"{side.what}: filling the state, with its MERGE", "s", [side.build()])
    with contextlib.ExitStack() as stack:
        for side in sides:
            stack.enter_context(side.running())
        count = bench.size(10, 2)
        for side in sides:
            side.transactions(count)  # warm-up
            side.parts.clear()
        contenders: dict[str, Callable[[int], float]] = {
            f"{side.what}: a transaction": lambda number, side=side: side.transactions(count) for side in sides
        }
        measured = rounds(1 if bench.quick else 3, contenders, bench.said)
        ms = {name: report.figure(name, "ms", values) for name, values in measured.items()}
    commit, merge = {}, {}
    for side in sides:
        spent = [sum(one[part] for part in _COMMIT) for one in side.parts]
        commit[side.what] = report.figure(f"{side.what}: commit in all", "ms", spent)
        merge[side.what] = report.figure(f"{side.what}: the MERGE of its log", "ms", [side.merged_ms()])
    at_most = Goal(at_most=1.3)
    report.ratio(
        "a transaction: by a sequence / plain",
        ms[f"{_SEQUENCED}: a transaction"],
        ms[f"{_PLAIN}: a transaction"],
        at_most,
    )
    report.ratio("its commit: by a sequence / plain", commit[_SEQUENCED], commit[_PLAIN], at_most)
    report.ratio("the MERGE: by a sequence / plain", merge[_SEQUENCED], merge[_PLAIN])
    report.ratio("its commit: with a change data feed / without", commit[_FED], commit[_SEQUENCED])
    report.ratio("the MERGE: with a change data feed / without", merge[_FED], merge[_SEQUENCED])


class _Side:
    """A topology that upserts into a state of its own."""

    def __init__(self, bench: Bench, what: str, keys: int, changed: int) -> None:
        self._bench, self.what, self._keys, self._changed = bench, what, keys, changed
        self._warehouse = bench.fresh("cdc")
        self.parts: list[dict[str, float]] = []
        self._spout: GatedKeys
        self._query: "TopologyQuery"

    def build(self) -> float:
        """All keys in one transaction, then one MERGE; returns the seconds."""
        started = time.monotonic()
        with self.running() as query:
            self._spout.allow(1)
            query.process_all_available()
        self._merge()
        found = self._bench.spark.read.format("delta").load(str(self._warehouse / "rows")).count()
        if found != self._keys:
            raise AssertionError(f"the table has {found} keys after the MERGE, not {self._keys}")
        return time.monotonic() - started

    @contextlib.contextmanager
    def running(self):
        from trident import DeltaMapState, TridentTopology, Upsert

        self._spout = GatedKeys(self._changed, self._keys, load=True)
        topology = TridentTopology("cdc")
        # So that no MERGE falls into what is measured.
        state = DeltaMapState(
            "rows", merge_every_txids=1_000_000, merge_interval_secs=1e9, change_feed=self.what == _FED
        )
        upsert = Upsert("key", sequence_by=None if self.what == _PLAIN else "n")
        topology.new_stream("keys", self._spout).partition_persist(state, None, upsert)
        with self._bench.running(topology, self._warehouse, 1, message_timeout_secs=None) as query:
            self._query = query
            while not query.is_leader:
                time.sleep(0.01)
            self._spout.allow(self._current() - 1)
            yield query

    def _current(self) -> int:
        return self._query.status["groups"][0]["current_txid"]

    def transactions(self, count: int) -> float:
        """Milliseconds a transaction over this many, each of them of changed keys only."""
        with Recorder(self._query) as recorder:
            first = self._current()
            self._spout.allow(count)
            self._query.process_all_available()
        records = [record for record in recorder.records if record["batch_id"] >= first]
        if len(records) != count:
            raise AssertionError(f"{len(records)} transactions instead of {count}")
        self.parts += [record["duration_ms"] for record in records[1:]]
        return steady_ms(records, 1)

    def _merge(self) -> None:
        """stop() has merged, unless that took it too long."""
        from trident import TridentConfig
        from trident.commands.admin import compact

        where = {"zookeeper": self._bench.zookeeper, "zookeeper_root": f"/{self._warehouse.name}"}
        master = self._bench.spark.sparkContext.master
        compact("cdc", TridentConfig(warehouse=str(self._warehouse), spark_master=master, **where))

    def merged_ms(self) -> float:
        """Milliseconds of the last MERGE, of the log of all transactions that were measured."""
        from delta.tables import DeltaTable

        self._merge()
        history: Any = DeltaTable.forPath(self._bench.spark, str(self._warehouse / "rows")).history()
        row = history.where("operation = 'MERGE'").orderBy("version", ascending=False).first()
        return float(row.operationMetrics["executionTimeMs"])
