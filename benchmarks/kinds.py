"""What a transaction costs with each spout kind and each state kind, and with states that are read first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks import kind_sources
from benchmarks.bench import Bench, Recorder, rounds, steady_ms
from benchmarks.keys import GatedKeys
from benchmarks.kind_sources import Gate
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from trident import Stream, TridentTopology

TITLE = "a transaction of 1,000 rows, one in flight, by spout kind and state kind"
_WARM_UP = 4
_BASE = "spout: transactional"

SPOUTS: dict[str, Callable[[Gate], Any]] = {
    "transactional": kind_sources.Transactional,
    "batch": kind_sources.Batch,
    "committer": kind_sources.Committer,
    "partitioned, 2 partitions": lambda gate: kind_sources.Partitioned(gate, 2),
    "opaque, 1 partition": lambda gate: kind_sources.OpaquePartitioned(gate, 1),
    "opaque, 2 partitions": lambda gate: kind_sources.OpaquePartitioned(gate, 2),
}


class _Longest:
    def init(self) -> int:
        return 0

    def reduce(self, current: int, n: int) -> int:
        return current + n


class _Noted:
    """A state of the user's that only takes note of the txid."""

    name = "own"

    def make_state(self, config: Any, partition_index: int, num_partitions: int) -> "_Noted":
        return self

    def begin_commit(self, txid: int | None) -> None: ...

    def commit(self, txid: int | None) -> None: ...

    def update_state(self, state: Any, tuples: Any, collector: Any) -> None: ...


def _states(folder: str) -> dict[str, Callable[["Stream"], Any]]:
    from trident import (
        Count,
        DeltaAppend,
        DeltaMapState,
        MapGet,
        SqliteMap,
        Upsert,
        non_transactional,
        opaque,
        transactional,
    )

    def keyed(state: Any, *aggregate: Any) -> Callable[["Stream"], Any]:
        return lambda stream: stream.group_by("key").persistent_aggregate(state, *(aggregate or (Count(), "count")))

    def store() -> SqliteMap:
        return SqliteMap(f"{folder}/maps.db", "kinds")

    def new_values(stream: "Stream") -> None:
        keyed(DeltaMapState("counts"))(stream).new_values_stream().partition_persist(DeltaAppend("news"))

    def new_values_and_queried(stream: "Stream") -> None:
        # Its late part takes rows from two places, so that it is a job of its own.
        counts = keyed(DeltaMapState("counts"))(stream)
        counts.new_values_stream().partition_persist(DeltaAppend("news"))
        stream.state_query(counts, "key", MapGet(), "before").partition_persist(DeltaAppend("looked"))

    def queried(stream: "Stream") -> None:
        counts = keyed(DeltaMapState("counts"))(stream)
        stream.state_query(counts, "key", MapGet(), "before").partition_persist(DeltaAppend("looked"))

    return {
        "Delta keyed, combiner": keyed(DeltaMapState("counts")),
        "Delta keyed, upsert": lambda stream: stream.partition_persist(DeltaMapState("counts"), None, Upsert("key")),
        "Delta keyed, upsert by a sequence": lambda stream: stream.partition_persist(
            DeltaMapState("counts"), None, Upsert("key", sequence_by="n")
        ),
        "Delta keyed, reducer": keyed(DeltaMapState("counts"), "n", _Longest(), "count long"),
        "Delta keyed, new values appended": new_values,
        "Delta keyed, queried and appended": queried,
        "Delta keyed, new values and queried": new_values_and_queried,
        "opaque, SQLite": keyed(opaque("counts", store())),
        "transactional, SQLite": keyed(transactional("counts", store())),
        "non-transactional, SQLite": keyed(non_transactional("counts", store())),
        "a StateFactory": lambda stream: stream.partition_persist(_Noted(), None, _Noted()),
    }


def run(bench: Bench, report: Report) -> None:
    """Every kind once a round; figures beside the plainest pair: a transactional spout that is appended."""
    contenders: dict[str, Callable[[int], float]] = {}
    parts: dict[str, dict[str, float]] = {}
    for name, make in SPOUTS.items():
        contenders[f"spout: {name}"] = _timed(bench, parts, f"spout: {name}", make, _append)
    for name in _states(""):
        contenders[f"state: {name}"] = _timed(bench, parts, f"state: {name}", kind_sources.Transactional, name)
    values = rounds(1 if bench.quick else 3, contenders, bench.said, warm_up=not bench.quick)
    ms = {name: report.figure(name, "ms", found) for name, found in values.items()}
    for name, found in parts.items():
        spent = ", ".join(
            f"{part} {found[part]:.0f}"
            for part in ("begin", "process", "resolve", "publish", "advance")
            if part in found
        )
        report.note(f"{name}: ms of its last transaction: {spent}")
    _by_size(bench, report)
    upsert = "state: Delta keyed, upsert"
    report.ratio("upsert by a sequence / upsert", ms[f"{upsert} by a sequence"], ms[upsert], Goal(at_most=1.3))
    for name in contenders:
        if name != _BASE:
            report.ratio(f"{name} / {_BASE}, appended", ms[name], ms[_BASE])


def _by_size(bench: Bench, report: Report) -> None:
    """Looking 1,000 changed keys up, and appending their new values, in a small and in a large state."""
    from trident import Count, DeltaAppend, DeltaMapState, TridentConfig, TridentTopology
    from trident.commands.admin import compact

    resolve, master = {}, bench.spark.sparkContext.master
    for keys in (bench.size(20_000, 200), bench.size(1_000_000, 400)):
        spout = GatedKeys(bench.size(1_000, 50), keys, load=True)
        warehouse = bench.fresh("sized")

        def topology(spout: GatedKeys = spout) -> "TridentTopology":
            made = TridentTopology("sized")
            state = DeltaMapState("counts", merge_every_txids=1_000_000, merge_interval_secs=1e9)
            counts = made.new_stream("keys", spout).group_by("key").persistent_aggregate(state, Count(), "count")
            counts.new_values_stream().partition_persist(DeltaAppend("news"))
            return made

        with bench.running(topology(), warehouse, 1, message_timeout_secs=None) as query:
            spout.allow(1)
            query.process_all_available()
        settings = {"zookeeper": bench.zookeeper, "zookeeper_root": f"/{warehouse.name}"}
        compact("sized", TridentConfig(warehouse=str(warehouse), spark_master=master, **settings))
        with bench.running(topology(), warehouse, 1, message_timeout_secs=None) as query, Recorder(query) as recorder:
            spout.allow(bench.size(14, 3))
            query.process_all_available()
        spent = [record["duration_ms"]["resolve"] for record in recorder.records[-bench.size(8, 2) :]]
        resolve[keys] = report.figure(f"{keys:,} keys in the state: resolve, 1,000 keys changed", "ms", spent)
    small, large = resolve.values()
    report.ratio("resolve: large / small state", large, small)


def _append(stream: "Stream") -> None:
    from trident import DeltaAppend

    stream.partition_persist(DeltaAppend("rows"))


def _timed(
    bench: Bench, parts: dict[str, dict[str, float]], name: str, make: Callable[[Gate], Any], state: Any
) -> Callable[[int], float]:
    def once(number: int) -> float:
        import warnings

        from trident import TridentTopology

        count = bench.size(20, 3)
        gate = Gate(bench.size(1_000, 20), bench.size(20_000, 50))
        warehouse = bench.fresh("kinds")
        topology: TridentTopology = TridentTopology("kinds")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pairs that are not exactly once are measured on purpose
            stream = topology.new_stream("keys", make(gate))
            warehouse.mkdir(parents=True, exist_ok=True)
            (_states(str(warehouse))[state] if isinstance(state, str) else state)(stream)
        settings = {"message_timeout_secs": None}
        with bench.running(topology, warehouse, 1, **settings) as query, Recorder(query) as recorder:
            gate.to = _WARM_UP + count
            query.process_all_available()
        parts[name] = recorder.records[-1]["duration_ms"]
        return steady_ms(recorder.records, _WARM_UP)

    return once
