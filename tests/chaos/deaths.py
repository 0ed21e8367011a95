"""Coordinator processes that kill themselves with SIGKILL at a fault point, one after the other.

Each resumes what the one before has left, and is compared with the source before it is sent to its own death.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.cases import BEGINS, BEGINS_OUTSIDE, BESIDES, EVERY, NTH, kinds
from tests.chaos.checker import CLEANED_EACH_TIME
from tests.chaos.deployment import Deployment
from tests.chaos.workload import OUTSIDE, Group

PER_LIFE = 2  # transactions
# What each life leaves is seen in the next one, and one table of two is merged all the time.
PATCHES = [(f"trident.states.publishing.committer:{name}", value) for name, value in CLEANED_EACH_TIME.items()]
MERGED = {"two tables": {"again": 2}}
SETTINGS = {"max_spout_pending": 2}
# Three groups in one process: the sources and states of files, of a queue, and of a source whose replays change.
TOGETHER = (
    Group("files", "", "f_", per_batch=20, merged={"counts": 2}),
    Group("queue", "", "q_", per_batch=7),
    Group("opaque", "", "o_"),
)
# At spout.commit the queue has heard, and the coordinator has not; the fourth publish.table is the second table of a
# transaction: published, not advanced.
OF_TOGETHER = [
    ("running", fault.replace(":", ":do_then_die:"))
    for fault in (
        "spout.commit:2 publish.user:2 zk.decide:3 stage.write:3 zk.advance:4 zk.begin:3 spout.emit:2 resolve.stage:2 "
        "manifest.write:2 publish.table:3 publish.table:4 compact.merge:1 spout.success:2"
    ).split()
]


def deaths(kind: str) -> list[tuple[str, str]]:
    """(when, fault): at each point of a running coordinator, or in one kind of one that begins, where kinds are alike.

    All that a running coordinator passes in that kind it passes in the others too.
    """
    if kind == "transactional":
        return [("beginning", f"{point}:do_then_die:{NTH.get(point, 2)}") for point in BEGINS]
    found = [("running", f"{point}:do_then_die:{NTH.get(point, 2)}") for point in (*EVERY, *BESIDES[kind])]
    if kind in OUTSIDE:
        found += [("beginning", f"{point}:do_then_die:{NTH[point]}") for point in BEGINS_OUTSIDE]
    return found


def all_deaths() -> Iterator[tuple[str, str, str]]:
    for kind in kinds():
        yield from ((kind, *death) for death in deaths(kind))


def die_at_each(deployment: Deployment, ends: list[tuple[str, str]]) -> int:
    """A process for each end, and a last one that ends well; how many were killed."""
    deployment.feed(PER_LIFE)
    for when, fault in ends:
        print(when, fault, flush=True)
        if when == "beginning":
            # It dies in the midst of something, so that the one that begins has something to finish.
            _live(deployment, "running", "publish.table:do_then_die:2")
        _live(deployment, when, fault)
    deployment.start("a")
    _check(deployment)
    deployment.coordinators["a"].end()
    return deployment.lives - 1


def _live(deployment: Deployment, when: str, fault: str) -> None:
    one = deployment.start("a", fault if when == "beginning" else "")
    if when == "running":
        _check(deployment)
        one.arm(fault)
        one.wait_for(lambda: one.said("armed", fault=fault))
    deployment.feed(PER_LIFE)
    deployment.wait(one.died, f"the coordinator does not die at {fault}")


def _check(deployment: Deployment) -> None:
    deployment.finish()
    deployment.check()
    for books in deployment.books:
        books.check_cleaned()
