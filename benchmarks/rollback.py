"""A rollback: how long it takes to take back many transactions of a large state."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import Bench
from benchmarks.fork import KEYED, run_transactions
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from trident import TridentConfig

TITLE = "a rollback of 1,000 transactions on a state with 8,000,000 keys"

# The transaction that stays is so many behind the last MERGE before it.
_BETWEEN = 7


def run(bench: Bench, report: Report) -> None:
    """A topology with a keyed state and an append table; taken back, and run again for the next round."""
    keys, count, changed = bench.size(8_000_000, 5_000), bench.size(1_000, 20), bench.size(2_000, 50)
    warehouse = bench.fresh("taken-back")
    started = time.monotonic()
    kept = count + 4 * _BETWEEN
    run_transactions(bench, warehouse, keys, 1, changed, kept)
    bench.said(f"   built: {time.monotonic() - started:.0f} s")
    dry: list[float] = []
    applied: list[float] = []
    for number in range(bench.size(3, 1)):
        last = run_transactions(bench, warehouse, keys, count + _BETWEEN, changed, kept)
        before = _new_files(warehouse)
        dry.append(_rolled_back(bench, warehouse, last - count, apply=False))
        applied.append(_rolled_back(bench, warehouse, last - count, apply=True))
        new = sum((warehouse / path).stat().st_size for path in _new_files(warehouse) - before)
        bench.said(f"   round {number + 1}: dry run {dry[-1]:.1f} s, rollback {applied[-1]:.1f} s, {new:,} new bytes")
        _check(bench, warehouse, keys + (last - count - 1) * changed)
    report.figure("a rollback, a session of Spark being there", "s", applied, Goal(at_most=60.0))
    report.figure("its dry run", "s", dry)
    report.note(f"{count:,} transactions of {changed:,} keys each; MERGEs every 50, the last one at the stop before it")


def _config(bench: Bench, warehouse: Path) -> "TridentConfig":
    from trident import TridentConfig

    return TridentConfig(warehouse=str(warehouse), zookeeper=bench.zookeeper, zookeeper_root=f"/{warehouse.name}")


def _rolled_back(bench: Bench, warehouse: Path, txid: int, apply: bool) -> float:
    """Seconds of the command."""
    from trident.time_travel.rollback import roll_back

    started = time.monotonic()
    done = roll_back("sized", txid, apply=apply, config=_config(bench, warehouse), spark=bench.spark)
    secs = time.monotonic() - started
    if apply and not done.done or done.plan is None or done.plan.refusals:
        raise AssertionError(f"it was not done: {done}")
    return secs


def _new_files(warehouse: Path) -> set[str]:
    return {str(path.relative_to(warehouse)) for path in warehouse.rglob("*") if path.is_file()}


def _check(bench: Bench, warehouse: Path, total: int) -> None:
    """Each transaction adds one to so many keys: the sum of all tells how many there are."""
    import trident

    (row,) = trident.read(bench.spark, str(warehouse), KEYED).groupBy().sum("count").collect()
    if row[0] != total:
        raise AssertionError(f"behind the rollback the counts add up to {row[0]:,}, not {total:,}")
