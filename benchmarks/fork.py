"""A fork: how long it takes, and how many bytes it writes, of a large state with many transactions."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.bench import Bench, rounds
from benchmarks.keys import GatedKeys
from benchmarks.report import Goal, Report

TITLE = "a fork of a state with 8,000,000 keys and 1,000 transactions"

KEYED = "counts"
_MB = 1_000_000


def run(bench: Bench, report: Report) -> None:
    """A topology with a keyed state and an append table; forked at its last transaction and half-way."""
    keys, count, changed = bench.size(8_000_000, 5_000), bench.size(1_000, 20), bench.size(2_000, 50)
    warehouse = bench.fresh("original")
    started = time.monotonic()
    last = run_transactions(bench, warehouse, keys, count + 1, changed, count)
    bench.said(f"   built: {time.monotonic() - started:.0f} s")
    new_bytes: dict[str, list[float]] = {}
    contenders = {
        name: lambda number, name=name, at=at: _forked(bench, warehouse, at, new_bytes.setdefault(name, []))
        for name, at in (("at its last transaction", last), ("half-way", last - count // 2))
    }
    measured = rounds(1 if bench.quick else 3, contenders, bench.said)
    for name, secs in measured.items():
        report.figure(f"a fork {name}", "s", secs, Goal(at_most=10.0))
        report.figure(f"new bytes of a fork {name}", "MB", [size / _MB for size in new_bytes[name]], Goal(at_most=5.0))
    data = sum(path.stat().st_size for path in warehouse.rglob("*.parquet"))
    report.figure("data files of the original, of all versions", "MB", [data / _MB])
    report.note(f"{count:,} transactions of {changed:,} keys each; MERGEs every 50; links on one file system")
    report.note("half-way the fork has the batches of the other half to read again, from kept manifests")


def run_transactions(bench: Bench, warehouse: Path, keys: int, more: int, changed: int, kept: int) -> int:
    """Runs so many transactions more of a topology and stops it; returns the last txid.

    Args:
        keys: of the state; the first transaction of all has each of them.
        more: how many transactions.
        changed: keys in each of the others.
        kept: how many transactions the state and the manifests are kept for, at least.
    """
    from trident import DeltaAppend, DeltaMapState, Sum, TridentTopology, expr

    spout = GatedKeys(changed, keys, load=True)
    topology = TridentTopology("sized")
    stream = topology.new_stream("keys", spout)
    state = DeltaMapState(KEYED, merge_every_txids=bench.size(50, 5), snapshot_retention_txids=kept + 10)
    stream.group_by("key").persistent_aggregate(state, "n", Sum(), "count")
    stream.filter(expr("key < 'k00100000'")).partition_persist(DeltaAppend("some"))
    settings = {"message_timeout_secs": None, "history_retention_txids": kept + 10}
    with bench.running(topology, warehouse, 4, **settings) as query:
        query.process_all_available()  # it leads: what it says of its group is there
        before: int = query.status["groups"][0]["current_txid"] - 1
        if not before:
            spout.allow(1)
            query.process_all_available()
        spout.allow(before + more if before else more - 1)
        query.process_all_available()
        last: int = query.status["groups"][0]["current_txid"] - 1
    if last != before + more:
        raise AssertionError(f"{last - before} transactions instead of {more}")
    return last


def _forked(bench: Bench, warehouse: Path, at: int, new_bytes: list[float]) -> float:
    """Seconds of a fork; adds what it has written."""
    from trident import TridentConfig
    from trident.time_travel.forking import fork

    target = bench.fresh("fork")
    config = TridentConfig(warehouse=str(warehouse), zookeeper=bench.zookeeper, zookeeper_root=f"/{target.name}")
    started = time.monotonic()
    made = fork("sized", at, "forked", str(target), config)
    secs = time.monotonic() - started
    if not made.cost.linked:
        raise AssertionError("no file was linked")
    files = [path.stat() for path in target.rglob("*") if path.is_file()]
    new_bytes.append(float(sum(file.st_size for file in files if file.st_nlink == 1)))
    return secs
