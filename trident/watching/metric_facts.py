"""The facts that metrics are read from, as values, and how each metric's samples are read from them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# The facts that metrics are read from, as values: threads of the metrics' own collect them, a scrape only reads.


# So many advances of a group are known by their time: what lags further behind lags at least since the oldest of them.
ADVANCES_KEPT = 4096


@dataclass(frozen=True)
class MergeFacts:
    """The MERGEs of one keyed state under this leadership.

    Attributes:
        upto: the last transaction that is in the plain table; None: not known yet.
        count, seconds: those that were done, and the time that they took.
        failures: those that failed.
    """

    upto: int | None = None
    count: int = 0
    seconds: float = 0.0
    failures: int = 0


@dataclass(frozen=True)
class GroupFigures:
    """A batch group that runs in this process.

    Attributes:
        status: its ``trident.running.status.GroupStatus``.
        merges: keyed state → its MERGEs.
        failures: the most of a transaction that has not advanced.
        failing_secs: how long its spouts have raised whenever they are asked.
        advances: (txid, when), the oldest first: of the last transactions that advanced under this leadership.
        led_from: when this leadership began.
        backlog_since: since when something waits without a break; None: nothing does, or it is not known.
    """

    status: Any
    merges: Mapping[str, MergeFacts] = field(default_factory=dict)
    failures: int = 0
    failing_secs: float = 0.0
    advances: tuple[tuple[int, float], ...] = ()
    led_from: float = 0.0
    backlog_since: float | None = None


@dataclass(frozen=True)
class TableSize:
    """The live files of one table. ``state`` is "" for the table of dead letters."""

    group: str
    state: str
    table: str
    files: int
    bytes: int
    rows: int | None


@dataclass(frozen=True)
class DiskFacts:
    """The file system of a warehouse on a disk."""

    free: int
    size: int


@dataclass(frozen=True)
class MemoryFacts:
    """Bytes; a figure that is not known is None."""

    python: int | None = None
    jvm: int | None = None
    heap_used: int | None = None
    heap_max: int | None = None


@dataclass(frozen=True)
class Facts:
    """All that was collected last.

    Attributes:
        now: when these facts are read, seconds since the epoch.
        role, epoch: of this process.
        collected: what → when it was collected.
    """

    now: float = 0.0
    version: str = ""
    run_id: str = ""
    role: str = "starting"
    epoch: int = 0
    zookeeper_connected: bool | None = None
    groups: tuple[GroupFigures, ...] = ()
    tables: tuple[TableSize, ...] = ()
    disk: DiskFacts | None = None
    memory: MemoryFacts = MemoryFacts()
    collected: Mapping[str, float] = field(default_factory=dict)


# Reads the samples of each metric from facts: of each sample the values of its labels, and its value. Pure.


Found = Iterator[tuple[tuple[str, ...], float]]
ROLES = ("leader", "standby", "suspended", "starting", "running", "merging", "stopped", "failed", "halted")
MODES = ("running", "paused", "suspended", "recovering", "stopping", "stopped", "gave up", "deposed", "halted")
_IN_FLIGHT = ("PROCESSING", "PROCESSED", "COMMITTING")


def info(facts: Facts) -> Found:
    yield (facts.version, facts.run_id), 1


def roles(facts: Facts) -> Found:
    for role in ROLES:
        yield (role,), float(facts.role == role)


def epoch(facts: Facts) -> Found:
    yield (), facts.epoch


def zookeeper_connected(facts: Facts) -> Found:
    if facts.zookeeper_connected is not None:
        yield (), float(facts.zookeeper_connected)


# --- groups -----------------------------------------------------------------------------------


def _of_groups(value: Callable[[GroupFigures, float], float | None]) -> Callable[[Facts], Found]:
    def read(facts: Facts) -> Found:
        for group in facts.groups:
            found = value(group, facts.now)
            if found is not None:
                yield (group.status.name,), found

    return read


def _last_advance(group: GroupFigures, now: float) -> float:
    return group.advances[-1][1] if group.advances else group.led_from


def _oldest(group: GroupFigures, now: float) -> float:
    return max((now - attempt.since for attempt in group.status.attempts if attempt.since), default=0.0)


def _backlog_age(group: GroupFigures, now: float) -> float | None:
    if not group.status.backlog:
        return None
    return 0.0 if group.backlog_since is None else max(now - group.backlog_since, 0.0)


current_txid = _of_groups(lambda group, now: group.status.current_txid)
last_advance = _of_groups(_last_advance)
oldest_attempt = _of_groups(_oldest)
failures = _of_groups(lambda group, now: group.failures)
backlog_age = _of_groups(_backlog_age)
source_failing = _of_groups(lambda group, now: group.failing_secs)


def backlog(unit: str) -> Callable[[Facts], Found]:
    return _of_groups(lambda group, now: group.status.backlog.get(unit))


def in_flight(facts: Facts) -> Found:
    for group in facts.groups:
        for phase in _IN_FLIGHT:
            count = sum(attempt.phase == phase for attempt in group.status.attempts)
            yield (group.status.name, phase.lower()), count


def modes(facts: Facts) -> Found:
    for group in facts.groups:
        for mode in MODES:
            yield (group.status.name, mode), float(group.status.mode == mode)


# --- what lags ----------------------------------------------------------------------------------


def _lag(group: GroupFigures, upto: int) -> int:
    return max(group.status.current_txid - 1 - upto, 0)


def _lag_secs(group: GroupFigures, upto: int, now: float) -> float:
    """How long ago the oldest transaction behind ``upto`` advanced; as far as this leadership knows."""
    if not _lag(group, upto):
        return 0.0
    later = next((one for one in group.advances if one[0] > upto), None)
    is_oldest = later is not None and (later[0] == upto + 1 or len(group.advances) == ADVANCES_KEPT)
    # Otherwise it was decided by an earlier leader.
    known = later[1] if later is not None and is_oldest else group.led_from or now
    return max(now - known, 0.0)


def _of_merges(value: Callable[[GroupFigures, Any, float], float | None]) -> Callable[[Facts], Found]:
    def read(facts: Facts) -> Found:
        for group in facts.groups:
            for state, merge in group.merges.items():
                found = value(group, merge, facts.now)
                if found is not None:
                    yield (group.status.name, state), found

    return read


merge_lag_transactions = _of_merges(lambda group, one, now: None if one.upto is None else _lag(group, one.upto))
merge_lag_secs = _of_merges(lambda group, one, now: None if one.upto is None else _lag_secs(group, one.upto, now))
merges = _of_merges(lambda group, one, now: one.count)
merge_secs = _of_merges(lambda group, one, now: one.seconds)
merge_failures = _of_merges(lambda group, one, now: one.failures)


def _of_view(group: GroupFigures) -> int | None:
    found: int | None = group.status.view_txid
    return found


view_lag_transactions = _of_groups(
    lambda group, now: None if (upto := _of_view(group)) is None else _lag(group, upto),
)
view_lag_secs = _of_groups(
    lambda group, now: None if (upto := _of_view(group)) is None else _lag_secs(group, upto, now),
)


# --- tables, copies, outside states -------------------------------------------------------------


def table_bytes(facts: Facts) -> Found:
    for one in facts.tables:
        if one.state:
            yield (one.group, one.state, one.table), one.bytes


def table_files(facts: Facts) -> Found:
    for one in facts.tables:
        if one.state:
            yield (one.group, one.state, one.table), one.files


def dead_letters(facts: Facts) -> Found:
    for one in facts.tables:
        if not one.state and one.rows is not None:
            yield (one.group,), one.rows


def _of_copies(value: Callable[[Any], float]) -> Callable[[Facts], Found]:
    def read(facts: Facts) -> Found:
        for group in facts.groups:
            for copy in group.status.copies:
                if not copy.on_executors:
                    yield (group.status.name, copy.state), value(copy)

    return read


copy_following = _of_copies(lambda copy: float(copy.condition == "following"))
copy_bytes = _of_copies(lambda copy: copy.bytes)
copy_builds = _of_copies(lambda copy: copy.builds)


def _of_outside(value: Callable[[Any, float], float]) -> Callable[[Facts], Found]:
    def read(facts: Facts) -> Found:
        for group in facts.groups:
            for one in group.status.outside:
                yield (group.status.name, one.state), value(one, facts.now)

    return read


outside_lag = _of_outside(lambda one, now: float(one.waits is not None))
outside_waiting = _of_outside(lambda one, now: 0.0 if one.since is None else max(now - one.since, 0.0))
outside_tries = _of_outside(lambda one, now: one.tries)
outside_letters = _of_outside(lambda one, now: one.dead_letters)


# --- the process --------------------------------------------------------------------------------


def resident(facts: Facts) -> Found:
    for process, value in (("python", facts.memory.python), ("jvm", facts.memory.jvm)):
        if value is not None:
            yield (process,), value


def heap_used(facts: Facts) -> Found:
    if facts.memory.heap_used is not None:
        yield (), facts.memory.heap_used


def heap_max(facts: Facts) -> Found:
    if facts.memory.heap_max is not None:
        yield (), facts.memory.heap_max


def free(facts: Facts) -> Found:
    if facts.disk is not None:
        yield (), facts.disk.free


def size(facts: Facts) -> Found:
    if facts.disk is not None:
        yield (), facts.disk.size


def collected(facts: Facts) -> Found:
    for what, at in facts.collected.items():
        yield (what,), at
