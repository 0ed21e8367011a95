"""A hand-over: from the last commit of the old leader to the first of the new one, in ordinary transactions.

The coordinators are those of test_failover.py: two that hand over to each other in turn, each time with a rehearsal,
while new input comes; a Delta table that is appended to, one by keys. Their JVMs start as a user's do.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.bench import Bench
from benchmarks.failover import AS_USERS
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from tests.chaos.deployment import Coordinator, Deployment

TITLE = "from the last commit of the leader that hands over to the first of its successor"

_ROUNDS = 20
_STEADY_TRANSACTIONS = 8
_LAST = 2


def run(bench: Bench, report: Report) -> None:
    from tests.chaos.deployment import with_ensemble

    count = int(os.environ.get("HANDOVER_ROUNDS", bench.size(_ROUNDS, 1)))
    gaps: list[float] = []
    ordinary: list[float] = []
    asked: list[float] = []
    settings = {"zookeeper_session_timeout_secs": 10.0, "batch_emit_interval_secs": 0.0}
    with with_ensemble(bench.fresh("handover"), kind="transactional", conf=AS_USERS, **settings) as cluster:
        leader, standby = cluster.start_all(warm=True)
        for number in range(count):
            steady = leader.wait_for(lambda leader=leader: leader.advanced(new=True)[_STEADY_TRANSACTIONS:])
            usual = statistics.median(_every(steady[-20:]))
            began = time.monotonic()
            _hand_over(cluster, standby)
            asked.append(time.monotonic() - began)
            first = standby.wait_for(lambda began=began: standby.advanced(began, new=True))[0]  # noqa: B023
            last = [one for one in leader.advanced() if one["at"] < first["at"]][-1]
            gaps.append(first["at"] - last["at"])
            ordinary.append(usual)
            bench.said(
                f"   round {number + 1}/{count}: {gaps[-1]:.3f} s between the commits, a transaction {usual:.3f} s "
                f"(load {os.getloadavg()[0]:.1f}); the command {asked[-1]:.1f} s"
            )
            leader.wait_for(lambda leader=leader, began=began: leader.events("standby: warm", began))
            leader, standby = standby, leader
        cluster.finish()
        cluster.check()
    report.figure("a transaction of the old leader, begin to advance", "s", ordinary)
    report.figure("from its last commit to the first of the new leader", "s", gaps)
    report.figure(f"the command, with {_LAST} transactions rehearsed", "s", asked)
    shares = [gap / usual for gap, usual in zip(gaps, ordinary)]
    report.figure("the gap, in ordinary transactions of the same round", "×", shares, Goal(at_most=2.0))
    report.figure("the slowest of them", "×", [max(shares)], Goal(at_most=2.0))


def _every(lines: list[dict[str, dict[str, float]]]) -> list[float]:
    return [line["duration_ms"]["total"] / 1000 for line in lines]


def _hand_over(cluster: Deployment, standby: Coordinator) -> None:
    code, said = cluster.hand_over(to=str(standby.pid), last=_LAST)
    if code:
        raise RuntimeError(f"the hand-over ended with {code}: {said}")
