"""What it costs to read a state: one key in the leader, outside and by Spark; all keys, beside the plain table."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, rounds
from benchmarks.keys import GatedKeys
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trident import TopologyQuery

TITLE = "one key, and all keys, of a state of 8,000,000 keys with 30 transactions of 20,000 keys that are not merged"

_KEY = "k00000042"
_WAITING = 30
_WAIT_SECS = 900.0
_FIRST = """
import sys, time
import trident
trident.get(sys.argv[1], "few", "k00000001")
started = time.monotonic()
found = trident.get(sys.argv[1], "counts", sys.argv[2])
print((time.monotonic() - started) * 1000)
"""


def run(bench: Bench, report: Report) -> None:
    """Fills the state and merges it, lets transactions wait, and reads in rounds, one way beside the other."""
    state = _State(bench, bench.size(8_000_000, 5_000), bench.size(20_000, 500))
    state.fill()
    with state.running(look_ups=True) as query:
        state.transactions(query, _WAITING)
        _wait_for_copy(query)
        state.transactions(query, 1)  # looked up in the copy
        _measure(bench, report, state, query)


def _measure(bench: Bench, report: Report, state: "_State", query: "TopologyQuery") -> None:
    import trident
    from trident.states.keyed.key_reads import KeyReader

    where = str(state.warehouse)
    (expected,) = query.snapshot("counts").where(f"key = '{_KEY}'").collect()
    for found in (query.get("counts", _KEY), trident.get(where, "counts", _KEY)):
        if found != {"count": expected["count"]}:
            raise AssertionError(f"{_KEY} is {found}, and Spark reads {expected}")

    def known(number: int) -> float:
        return _ms(lambda: trident.get(where, "counts", f"k{number * 1_234_567 % state.keys:08d}"))

    def cold(number: int) -> float:
        reader = KeyReader(state.warehouse)
        return _ms(lambda: reader.get("counts", reader.requested("counts", [_KEY])))

    def process(number: int) -> float:
        command = [sys.executable, "-c", _FIRST, where, _KEY]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    contenders: dict[str, Callable[[int], float]] = {
        "one key: query.get in the leader": lambda number: _ms(lambda: query.get("counts", _KEY)),
        "one key: trident.get, tables known": known,
        "one key: trident.get, logs read anew": cold,
        "one key: trident.get, a process's first of the state": process,
        "one key: live read by Spark": lambda number: _ms(lambda: _one(query.snapshot("counts"))),
        "one key: plain table by Spark": lambda number: _ms(lambda: _one(state.plain())),
        "all rows: live read by Spark": lambda number: _ms(lambda: _all(query.snapshot("counts"))),
        "all rows: plain table by Spark": lambda number: _ms(lambda: _all(state.plain())),
        "one column: live read by Spark": lambda number: _ms(lambda: _sum(query.snapshot("counts"))),
        "one column: plain table by Spark": lambda number: _ms(lambda: _sum(state.plain())),
    }
    measured = rounds(1 if bench.quick else 5, contenders, bench.said, warm_up=True)
    goals = {} if bench.quick else dict(zip(list(contenders)[:4], [Goal(at_most=1), *[Goal(at_most=50)] * 3]))
    ms = {name: report.figure(name, "ms", values, goals.get(name)) for name, values in measured.items()}
    for way in list(contenders)[:5]:
        report.ratio(f"{way} / plain table by Spark", ms[way], ms["one key: plain table by Spark"])
    goal = None if bench.quick else Goal(at_most=1.5)
    for what in ("all rows", "one column"):
        live, plain = ms[f"{what}: live read by Spark"], ms[f"{what}: plain table by Spark"]
        # A live read must read the keys, which the plain table's sum of one column does not.
        report.ratio(f"{what}: live read / plain table", live, plain, goal if what == "all rows" else None)


def _ms(action: Callable[[], Any]) -> float:
    started = time.monotonic()
    action()
    return (time.monotonic() - started) * 1000


def _one(frame: "DataFrame") -> Any:
    return frame.where(f"key = '{_KEY}'").collect()


def _all(frame: "DataFrame") -> None:
    """Every row with all that the state has of it."""
    frame.select("key", "count").write.format("noop").mode("overwrite").save()


def _sum(frame: "DataFrame") -> int:
    return frame.groupBy().sum("count").first()[0]


def _wait_for_copy(query: "TopologyQuery") -> None:
    """A copy of a large table is built beside the transactions."""
    end = time.monotonic() + _WAIT_SECS
    while any(copy["condition"] != "following" for group in query.status["groups"] for copy in group["copies"]):
        if time.monotonic() > end:
            raise AssertionError(f"there is no local copy: {query.status['groups']}")
        time.sleep(0.1)


class _State:
    """A topology whose state has this many keys."""

    def __init__(self, bench: Bench, keys: int, changed: int) -> None:
        self._bench, self.keys, self._changed = bench, keys, changed
        self.warehouse = bench.fresh("get")
        self._spout: GatedKeys

    def fill(self) -> None:
        """All keys in one transaction, then a MERGE."""
        from trident.states.core.descriptor import load_descriptor
        from trident.states.delta.kernel import KernelEngine
        from trident.states.keyed.compactor import Compactor

        with self.running(look_ups=False) as query:
            self._spout.allow(1)
            query.process_all_available()
        spark, state = self._bench.spark, load_descriptor(self.warehouse, "counts")
        Compactor(spark, KernelEngine(spark), self.warehouse, state).merge_once(1, force=True)
        found = self.plain().count()
        if found != self.keys:
            raise AssertionError(f"the table has {found} keys after the MERGE, not {self.keys}")

    @contextlib.contextmanager
    def running(self, look_ups: bool) -> Iterator["TopologyQuery"]:
        """The topology; with a part that looks a few keys up in the state, so that it has a local copy."""
        from trident import DeltaAppend, DeltaMapState, MapGet, Sum, TridentTopology

        self._spout = GatedKeys(self._changed, self.keys, load=True)
        topology = TridentTopology("got")
        keys = topology.new_stream("keys", self._spout)
        never = {"merge_every_txids": 1_000_000, "merge_interval_secs": 1e9}
        counts = keys.group_by("key").persistent_aggregate(DeltaMapState("counts", **never), "n", Sum(), "count")
        few = keys.filter("key", lambda key: key.endswith("0001"))
        few.group_by("key").persistent_aggregate(DeltaMapState("few", **never), "n", Sum(), "count")
        if look_ups:
            few.state_query(counts, "key", MapGet(), "before").partition_persist(DeltaAppend("asked"))
        with self._bench.running(topology, self.warehouse, 1, message_timeout_secs=None) as query:
            while not query.is_leader:
                time.sleep(0.01)
            self._spout.allow(query.status["groups"][0]["current_txid"] - 1)
            yield query

    def transactions(self, query: "TopologyQuery", count: int) -> None:
        """This many more, each of changed keys only."""
        self._spout.allow(count)
        query.process_all_available()

    def plain(self) -> "DataFrame":
        """The table with one row per key, as any Delta reader sees it."""
        return self._bench.spark.read.format("delta").load(str(self.warehouse / "counts"))
