"""The leader dies: how long until its warm standby has committed something new.

The coordinators, the ensemble and its networks are those of test_failover.py: a batch group with two Delta
tables and a map, three transactions in flight, a new one every 0.3 s. Their JVMs start as a user's do.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from benchmarks.bench import Bench
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from tests.chaos.deployment import Coordinator, Deployment

TITLE = "from the leader's death to the first transaction that its warm standby has begun and committed"

SESSION_SECS = 4.0
# What may be added to the session timeout.
BOUND_SECS = 2.0
_ROUNDS = 20
_STEADY_TRANSACTIONS = 8
# The tests' coordinators, which live for seconds, have one compiler and generate no code.
AS_USERS = {
    "spark.driver.extraJavaOptions": "",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}


def run(bench: Bench, report: Report) -> None:
    from tests.servers.networks import may_make_namespaces

    count = int(os.environ.get("FAILOVER_ROUNDS", bench.size(_ROUNDS, 1)))
    cases = os.environ.get("FAILOVER_CASES", "same other cut" if may_make_namespaces() else "same").split()
    if not may_make_namespaces():
        report.note("another host and a cut network were not measured: network namespaces need root")
    measures = {"same": _same_host, "other": _other_host, "cut": _cut_off}
    for case in cases[:1] if bench.quick else cases:
        measures[case](bench, report, count)
    report.note(f"session timeout {SESSION_SECS:g} s, the ensemble's tick 0.5 s: a session ends up to a tick late")


def _same_host(bench: Bench, report: Report, count: int) -> None:
    found = _rounds(bench, "SIGKILL, same host", count, False, _killed)
    # A successor on the same machine sees that the process is gone and does not wait for its session.
    _report(report, "SIGKILL, the standby on the same host", found, 0.0, SESSION_SECS + BOUND_SECS)


def _other_host(bench: Bench, report: Report, count: int) -> None:
    found = _rounds(bench, "its host dies", count, True, _killed)
    _report(report, "the leader's host dies, minus the session timeout", found, SESSION_SECS, BOUND_SECS)


def _cut_off(bench: Bench, report: Report, count: int) -> None:
    found = _rounds(bench, "cut off", count, True, _isolated)
    _report(report, "the leader is cut off, minus the session timeout", found, SESSION_SECS, BOUND_SECS)


def _killed(cluster: Deployment, leader: Coordinator) -> float:
    leader.kill()
    return leader.killed_at


def _isolated(cluster: Deployment, leader: Coordinator) -> float:
    at = time.monotonic()
    cluster.partition((leader.name,), ())
    return at


def _rounds(
    bench: Bench, what: str, count: int, own_host: bool, dies: Callable[[Deployment, Coordinator], float]
) -> list[tuple[float, float]]:
    """Seconds from each death to the lease, and to the first new commit."""
    from tests.chaos.deployment import LEADS, with_ensemble

    found: list[tuple[float, float]] = []
    settings = {"zookeeper_session_timeout_secs": SESSION_SECS}
    with with_ensemble(bench.fresh("failover"), conf=AS_USERS, **settings) as cluster:
        leader, standby = cluster.start_all(own_host=own_host, warm=True)
        for number in range(count):
            steady = leader.wait_for(lambda leader=leader: leader.advanced(new=True)[_STEADY_TRANSACTIONS:])
            died = dies(cluster, leader)
            new = standby.wait_for(lambda died=died: standby.advanced(died, new=True))[0]  # noqa: B023
            leads = standby.events(LEADS, died)[-1]
            found.append((leads["at"] - died, new["at"] - died))
            usual = statistics.median(one["duration_ms"]["total"] for one in steady[-20:]) / 1000
            bench.said(
                f"   {what}, round {number + 1}/{count}: leads after {found[-1][0]:.2f} s, commits after "
                f"{found[-1][1]:.2f} s (a transaction of the old leader: {usual:.2f} s; load {os.getloadavg()[0]:.1f}) "
                f"{new['duration_ms']}"
            )
            leader, standby = standby, _back(cluster, leader, own_host, died)
        cluster.finish()
        cluster.check()
    return found


def _back(cluster: Deployment, old: Coordinator, own_host: bool, died: float) -> Coordinator:
    """The old leader, or a new process in its place, as a warm standby."""
    if old.process.poll() is None:
        cluster.heal()
        old.wait_for(lambda: old.events("standby: warm", died))
        return old
    made = cluster.start(old.name, own_host=own_host)
    made.wait_for(made.is_warm)
    return made


def _report(report: Report, what: str, found: Sequence[tuple[float, float]], less: float, bound: float) -> None:
    commits = sorted(commit - less for _, commit in found)
    report.figure(f"{what}: it leads", "s", [lead - less for lead, _ in found])
    report.figure(f"{what}: first new commit", "s", commits, Goal(at_most=bound))
    report.figure(f"{what}: the slowest of them", "s", commits[-1:], Goal(at_most=bound))
    p90 = commits[min(len(commits) - 1, round(0.9 * (len(commits) - 1)))]
    report.note(
        f"{what}: min {commits[0]:.2f}, median {statistics.median(commits):.2f}, p90 {p90:.2f}, "
        f"max {commits[-1]:.2f} s of {len(commits)} rounds; load {os.getloadavg()[0]:.1f} in the end"
    )
