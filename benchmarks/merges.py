"""The background MERGE: whether transactions feel it, and what it costs beside Delta's own."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import words
from benchmarks.bench import Bench, rounds, steady_ms
from benchmarks.keys import GatedKeys
from benchmarks.report import Goal, Report
from benchmarks.sustained import NEVER, counted

TITLE = "a keyed state's MERGEs: native, by Delta, and none"

_NATIVE, _DELTA, _NONE = "native MERGEs", "Delta's MERGEs", "no MERGE"


def run(bench: Bench, report: Report) -> None:
    """Word counts at full speed with each of the three, in turn; then single MERGEs of 50 transactions."""
    transactions = bench.size(160, 8)
    files = words.write_files(bench.fresh("lines"), transactions, bench.size(words.LINES, 200))
    merges: dict[str, list[float]] = {}
    contenders = {name: _sustained(bench, files, name, merges) for name in (_NONE, _NATIVE, _DELTA)}
    measured = rounds(bench.size(3, 1), contenders, bench.said, warm_up=not bench.quick)
    ms = {name: report.figure(f"sustained, {name}", "ms/transaction", values) for name, values in measured.items()}
    for name in (_NATIVE, _DELTA):
        report.figure(f"{name} meanwhile", f"in {transactions} transactions", merges[name])
    report.ratio("sustained: with native MERGEs / without", ms[_NATIVE], ms[_NONE], Goal(at_most=1.15))
    report.ratio("sustained: with Delta's MERGEs / without", ms[_DELTA], ms[_NONE])
    for keys in (bench.size(20_000, 500), bench.size(8_000_000, 5_000)):
        _single(bench, report, keys)
    report.note(f"sustained: {transactions} transactions of the word count, 4 in flight, the settings that a user gets")
    report.note("a MERGE: of 50 transactions of 20,000 keys each, spread over all keys; CPU of all processes")


def _sustained(bench: Bench, files: Path, which: str, merges: dict[str, list[float]]) -> Callable[[int], float]:
    """Milliseconds a transaction; adds to ``merges`` how many there were of that kind."""

    def once(number: int) -> float:
        from trident import DeltaMapState

        lines = bench.size(words.LINES, 200)
        settings: dict[str, Any] = dict(NEVER) if which == _NONE else {}
        if bench.quick and which != _NONE:
            settings["merge_every_txids"] = 1
        warehouse = bench.fresh("ours")
        topology = words.topology("words", files, DeltaMapState("counts", **settings), lines)
        with _by_delta(which == _DELTA), bench.running(topology, warehouse, 4, merge_at_stop_secs=0) as query:
            records = counted(query, files, lines)
        commits = len(list((warehouse / "counts" / "_delta_log").glob("*.json"))) - 1
        merges.setdefault(which, []).append(commits)
        return steady_ms(records, 8 if not bench.quick else 1)

    return once


@contextlib.contextmanager
def _by_delta(wanted: bool) -> Iterator[None]:
    """Has MERGEs made by Delta, as for tables that are not for native ones."""
    from trident.states.keyed.file_merge import FileMerge

    kept = FileMerge._why_not
    if wanted:
        FileMerge._why_not = lambda *_: "the benchmark compares"  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        FileMerge._why_not = kept  # type: ignore[method-assign]


def _single(bench: Bench, report: Report, keys: int) -> None:
    """The same 50 transactions merged by each, on copies of the same tables that the same kind of MERGE has made."""
    changed, count = bench.size(20_000, 100), bench.size(50, 4)
    what = f"{keys:,} keys"
    cost: dict[str, float] = {}
    for name in (_NATIVE, _DELTA):
        with _by_delta(name == _DELTA):
            warehouse = _filled(bench, keys, changed, count)
            # All but the first transaction, which filled the state.
            staged = (warehouse / "counts__log").glob("data/*/*/*.parquet")
            logged = sum(path.stat().st_size for path in staged if not path.parent.name.startswith("1-"))
            wall, cpu = _merged(bench, warehouse)
        rows = count * changed
        entry = _last_merge(bench, warehouse)
        cost[name] = report.figure(f"{what}, {name}: CPU a row of the log", "µs", [cpu / rows * 1e6])
        report.figure(f"{what}, {name}: a MERGE", "s", [wall])
        written = float(entry.get("numTargetBytesAdded", 0))
        report.figure(f"{what}, {name}: bytes written a byte of the log", "×", [written / max(logged, 1)])
        shutil.rmtree(warehouse)
    report.ratio(f"{what}: CPU of Delta's MERGE / native", cost[_DELTA], cost[_NATIVE])


def _filled(bench: Bench, keys: int, changed: int, count: int) -> Path:
    """A warehouse whose state has all keys merged, and this many transactions that wait."""
    from trident import DeltaMapState, Sum, TridentTopology

    warehouse = bench.fresh("ours")

    def run(transactions: int) -> None:
        spout = GatedKeys(changed, keys, load=True)
        topology = TridentTopology("sized")
        topology.new_stream("keys", spout).group_by("key").persistent_aggregate(
            DeltaMapState("counts", **NEVER), "n", Sum(), "count"
        )
        settings = {"message_timeout_secs": None, "merge_at_stop_secs": 0}
        with bench.running(topology, warehouse, 1, **settings) as query:
            spout.allow(transactions)
            query.process_all_available()

    run(1)
    _merged(bench, warehouse)
    run(1 + count)
    return warehouse


def _merged(bench: Bench, warehouse: Path) -> tuple[float, float]:
    """One MERGE of all that waits; its seconds, and those of the processor."""
    from trident.states.core.descriptor import load_descriptor
    from trident.states.delta.kernel import KernelEngine
    from trident.states.keyed.compactor import Compactor
    from trident.states.keyed.reading import latest_txid

    engine = KernelEngine(bench.spark)
    txid = latest_txid(warehouse, "counts")
    compactor = Compactor(bench.spark, engine, warehouse, load_descriptor(warehouse, "counts"))
    started, cpu = time.monotonic(), _cpu_secs(bench)
    report = compactor.merge_once(txid, force=True)
    if report is None or report.p_new != txid:
        raise AssertionError(f"merged {report}, wanted up to {txid}")
    return time.monotonic() - started, _cpu_secs(bench) - cpu


def _cpu_secs(bench: Bench) -> float:
    """The processor's time of this process, the JVM and the process that merges."""
    from trident.states.keyed.file_merge import MERGE_PROCESS

    own = resource.getrusage(resource.RUSAGE_SELF)
    jvm: Any = bench.spark._jvm
    pids = [int(jvm.java.lang.ProcessHandle.current().pid())]
    if MERGE_PROCESS.pid is not None:
        pids.append(MERGE_PROCESS.pid)
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return own.ru_utime + own.ru_stime + sum((int(one[11]) + int(one[12])) / ticks for one in fields)


def _last_merge(bench: Bench, warehouse: Path) -> dict[str, str]:
    from delta.tables import DeltaTable

    (row,) = DeltaTable.forPath(bench.spark, str(warehouse / "counts")).history(1).collect()
    if row.operation != "MERGE":
        raise AssertionError(f"the last commit is a {row.operation}")
    return dict(row.operationMetrics)
