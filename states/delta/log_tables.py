"""Delta tables by their logs alone, remembered as they were read last; and the port that they share with Kernel's.

Of a table that was read before only the entries since then are read. Where its files may be very many and only sums
are of interest, :class:`SizedTables` keeps no file in memory.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from trident.coordinators.errors import TableError
from trident.states.delta.delta_log import (
    DeltaLog,
    Facts,
    LogSnapshot,
    Segment,
    TableAt,
    TableCommit,
    Watched,
)
from trident.states.delta.kernel_files import LiveFile

_TABLES_MAX = 256


class TableAsOf(Protocol):
    """A Delta table as of one table version, as those who only read it need it. See ``kernel.TableSnapshot``."""

    @property
    def path(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def schema_json(self) -> str: ...

    def control(self, domain: str) -> str | None: ...

    def txn_version(self, app: str) -> int | None: ...


Snapshot = TypeVar("Snapshot", bound=TableAsOf)
_Known = TypeVar("_Known", bound=TableAt)


class _Remembered(ABC, Generic[_Known]):
    """The newest version that was seen of each table. May be used by several threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, path: str) -> _Known:
        """The newest version of a table.

        Raises:
            TableMissing: there is no table.
            TableError: its log cannot be read.
        """
        log = DeltaLog(path)
        with self._lock:
            found = self._known.pop(path, None)
            newer = None if found is None else log.since(found)
            if found is not None and newer:
                commits = [commit for commit, _ in newer]
                found = self._after(found, Watched(path, commits[-1].version, newer[-1][1]), commits)
            if found is None or newer is None:
                found = self._read(log.segment())
            self._known[path] = found
            if len(self._known) > _TABLES_MAX:
                self._known.popitem(last=False)
            return found

    @abstractmethod
    def _read(self, segment: Segment) -> _Known: ...

    @abstractmethod
    def _after(self, known: _Known, table: Watched, commits: Sequence[TableCommit]) -> _Known | None:
        """The table after some commits; None where it must be read anew."""


class LogTables(_Remembered[LogSnapshot]):
    """Reads tables with their files."""

    def live_files(self, snapshot: LogSnapshot) -> list[LiveFile]:
        """The data files of a table version, all of whose rows count.

        Raises:
            TableError: its rows are not those of its files.
        """
        if snapshot.why_not_rows is not None:
            raise TableError(f"table {snapshot.path} has {snapshot.why_not_rows}")
        return list(snapshot.files.values())

    def _read(self, segment: Segment) -> LogSnapshot:
        return LogSnapshot.of(segment.table, segment.replay())

    def _after(self, known: LogSnapshot, table: Watched, commits: Sequence[TableCommit]) -> LogSnapshot:
        return LogSnapshot.of(table, commits, known)


@dataclass(frozen=True)
class TableTotals(TableAt):
    """A table version without its files.

    Attributes:
        files, bytes: of the live files.
        counted: rows of the files whose statistics say how many count.
        uncounted: the number of the others.
    """

    files: int = 0
    bytes: int = 0
    counted: int = 0
    uncounted: int = 0

    @property
    def rows(self) -> int | None:
        """None where the log does not say."""
        return None if self.uncounted else self.counted


def totals_of(snapshot: LogSnapshot) -> TableTotals:
    """The sums of a table whose files are known."""
    table = Watched(snapshot.path, snapshot.version, snapshot.entry)
    return _added_up(Facts.of(snapshot), table, snapshot.files.values())


class SizedTables(_Remembered[TableTotals]):
    """Reads how large tables are."""

    def _read(self, segment: Segment) -> TableTotals:
        facts, last = Facts.of(None), dict[str, LiveFile | None]()

        def live() -> Iterator[LiveFile]:
            entries = list(segment.entries())  # few; they have the last word on a file
            for commit in entries:
                last.update(dict.fromkeys(commit.removes) | {file.path: file for file in commit.added})
            for part in facts.seen(segment.checkpoint()):
                yield from (file for file in part.added if file.path not in last)
            list(facts.seen(entries))
            yield from filter(None, last.values())

        return _added_up(facts, segment.table, live())

    def _after(self, known: TableTotals, table: Watched, commits: Sequence[TableCommit]) -> TableTotals | None:
        adds = (body for commit in commits for kind, body in commit.actions if kind == "add")
        # One that adds no rows may be of a file that is there already: with other statistics, for example.
        if any(commit.removes for commit in commits) or not all(body.get("dataChange", True) for body in adds):
            return None
        facts = Facts.of(known)
        return _added_up(facts, table, (file for commit in facts.seen(commits) for file in commit.added), known)


def _added_up(facts: Facts, table: Watched, files: Iterable[LiveFile], known: TableTotals | None = None) -> TableTotals:
    count, size, counted, uncounted = (
        (0, 0, 0, 0) if known is None else (known.files, known.bytes, known.counted, known.uncounted)
    )
    for file in files:
        rows = None if file.has_vector else file.num_records
        count, size = count + 1, size + file.size
        counted, uncounted = counted + (rows or 0), uncounted + (rows is None)
    return TableTotals(**facts.at(table), files=count, bytes=size, counted=counted, uncounted=uncounted)
