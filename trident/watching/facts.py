"""The facts that metrics are read from, as values: threads of the metrics' own collect them, a scrape only reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
