"""The faults at fault points: fault point × outcome × time × kind of topology.

Outcomes: the I/O fails before it is done; it is done and then fails; it is
done and then the coordinator dies; it hangs, is overtaken by a successor, and
is done after all. Times: at a first try, at a replay, in a recovery, at the
very first start, at a stop.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from tests.chaos.workload import OUTSIDE

KINDS = ("transactional", "opaque", "committer", "two tables", "user-coded map")

FAIL, LOST, DIE, HANG = "fail before", "do, then fail", "do, then die", "hang"
# In one process a coordinator dies by never going on; real SIGKILLs are in deaths.py.
OUTCOMES = {FAIL: "fail_before", LOST: "do_then_fail", DIE: "do_then_hang", HANG: "pause"}

FIRST, REPLAY, RECOVERY, BIRTH, STOP = "first try", "replay", "recovery", "first start", "stop"

# What each transaction passes, whatever its topology is; and what some kinds pass besides.
EVERY = tuple(
    "zk.begin stage.write manifest.write zk.decide manifest.read stage.verify publish.table delta.commit zk.advance "
    "spout.success clean.manifests clean.staged".split()
)
BESIDES = {
    "transactional": (),
    "opaque": ("spout.emit",),
    "committer": ("spout.commit",),
    "two tables": ("compact.merge", "compact.write", "compact.drop", "delta.files", "batch.call", "batch.keep"),
    "user-coded map": ("publish.user", "resolve.stage"),
    **dict.fromkeys(OUTSIDE, ("publish.outside", "publish.user", "resolve.stage")),
}
# What only MERGEs pass, or only tables that are merged.
MERGES = ("compact.merge", "compact.write", "compact.drop", "delta.files")
# What only a coordinator that begins passes.
BEGINS = ("zk.acquire", "zk.read", "zk.sync", "delta.load", "descriptor.write")
BEGINS_OUTSIDE = ("open.outside",)
# What only the very first one passes; in two kinds, for each case needs a warehouse of its own.
BIRTHS = ("two tables", "user-coded map")
BORN = ("zk.ensure", "zk.register", "zk.record", "delta.commit", "descriptor.write")
# Armed where it is certain to be passed: not in every cycle of the sweep's topologies.
SELDOM = ("delta.checkpoint", "zk.reset", "zk.write")

# The n-th entry, where the second is not the one that is wanted.
NTH = dict.fromkeys(
    "zk.acquire zk.sync delta.load descriptor.write open.outside zk.ensure zk.register zk.record zk.release "
    "spout.success clean.manifests clean.staged".split()
    + list(MERGES),
    1,
)


class Case(NamedTuple):
    kind: str
    point: str
    time: str
    outcome: str
    nth: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.point}, {self.outcome}, {self.time}"

    @property
    def fault(self) -> str:
        """As armed; see coordinators/faults.py."""
        # At a first try in the second transaction of two, so that there is one ahead of it; else one is behind it.
        nth = self.nth or (NTH.get(self.point, 2) if self.time == FIRST else 1)
        fault = f"{self.point}:{OUTCOMES[self.outcome]}:{nth}"
        return f"manifest.write:fail_before:1>{fault}" if self.time == REPLAY else fault

    @property
    def abandons(self) -> bool:
        """Whether another coordinator has to take over."""
        return self.outcome in (DIE, HANG)


def of_kind(kind: str) -> Iterator[Case]:
    for point in (*EVERY, *BESIDES[kind]):
        for time in (FIRST, REPLAY, RECOVERY):
            yield from (Case(kind, point, time, outcome) for outcome in OUTCOMES)
    for point in (*BEGINS, *(BEGINS_OUTSIDE if kind in OUTSIDE else ())):
        yield from (Case(kind, point, RECOVERY, outcome) for outcome in OUTCOMES)
    for point in BORN if kind in BIRTHS else ():
        yield from (Case(kind, point, BIRTH, outcome) for outcome in OUTCOMES)
    yield from (Case(kind, "zk.release", STOP, outcome) for outcome in OUTCOMES)


def kinds(store: str = "disk") -> tuple[str, ...]:
    return (*KINDS, *OUTSIDE) if store == "disk" else KINDS


def every(store: str = "disk", of: tuple[str, ...] = ()) -> list[Case]:
    """All cases of a warehouse on a disk, or in a store, of all kinds or of some."""
    return [case for kind in of or kinds(store) for case in of_kind(kind)]


def dangerous() -> list[Case]:
    """What `make test` runs on the disk: of the points that decide what is lost or doubled the worst moment of each."""
    of_map = (
        ("zk.begin", FIRST, LOST),
        ("stage.write", FIRST, DIE),
        ("manifest.write", FIRST, HANG),
        ("zk.decide", FIRST, DIE),
        ("delta.commit", REPLAY, LOST),
        ("publish.table", FIRST, HANG),
        ("publish.user", RECOVERY, HANG),
        ("resolve.stage", REPLAY, FAIL),
        ("zk.advance", FIRST, LOST),
        ("spout.success", FIRST, DIE),
        ("clean.staged", FIRST, DIE),
        ("zk.acquire", RECOVERY, DIE),
    )
    others = [Case("committer", "spout.commit", FIRST, DIE), Case("user-coded map", "zk.record", BIRTH, DIE)]
    return [*(Case("user-coded map", *case) for case in of_map), *others]


def in_a_store() -> list[Case]:
    """What `make test` runs over a warehouse in a store."""
    return [Case("opaque", "delta.commit", FIRST, LOST), Case("opaque", "publish.table", FIRST, HANG)]


SWEPT = {case.point for case in every()} | set(SELDOM)


def pairs(kind: str, count: int, seed: int) -> list[tuple[Case, Case]]:
    """Two faults of which the second counts from when the first has happened, sampled by seed."""
    generator = random.Random(f"{kind} {seed}")
    steady = [case for case in every() if case.kind == kind and case.time == FIRST]
    # What is left to do once the first has happened passes a point once at least.
    return [(generator.choice(steady), generator.choice(steady)._replace(nth=1)) for _ in range(count)]
