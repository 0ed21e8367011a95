"""Decides what of a Delta table is in each batch: which files of which versions.

A batch is a range of places, (version, number of a file in it). It is cut where
files begin, and where a version cannot be read with what came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trident.coordinators.errors import SourceError
from trident.coordinators.stored_json import MAY_BE_MISSING
from trident.spouts.checkpoint import SourceOffset
from trident.spouts.contracts import Backlog, Json, is_whole, read_metadata
from trident.spouts.delta.log import AddedFile, Change, DeltaChanges, has_feed, schema_of
from trident.spouts.ranged import AdaptiveBatchSize, RangedCoordinator

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from trident.spouts.delta.log import DeltaFrames

# How many versions beyond the planned ones are read, so that a poll stays quick.
_AHEAD_VERSIONS = 1_000
# Files of this many bytes in all go together: a transaction costs more than to read them.
_TOGETHER_BYTES = 8 << 20


class DeltaSettings(Protocol):
    """The part of a DeltaSpout that says how its table is cut into batches."""

    table: str
    starting_version: Any
    max_files: int
    max_bytes: int
    ignore_changes: bool
    changes: bool
    poll_interval_secs: float

    def check_schema(self, found: "StructType", version: int) -> None:
        """SourceError where the table's schema is not the one that the topology was built with."""


class Place(NamedTuple):
    """Before which file of which version a batch begins or ends."""

    version: int
    file: int


@dataclass(frozen=True)
class Range:
    """A batch: the files from one place to another.

    Attributes:
        table_id: of the table.
        snapshot: the version that was read as a whole at the beginning; -1: none was.
        begin, end: files of that version, or those that a later one adds.
        read_at: the version whose schema the files are read with.
        ignore_changes: whether versions that remove rows count as empty.
        files, bytes, rows: how many; rows -1: not known. Of changes a version is one file.
        changes: whether the rows behind the snapshot are those of the table's change data feed.
        keys: of such changes the names of the key columns, if the table says them.
    """

    table_id: str
    snapshot: int
    begin: Place
    end: Place
    read_at: int
    ignore_changes: bool
    files: int = 0
    bytes: int = 0
    rows: int = field(default=-1, metadata={MAY_BE_MISSING: True})
    changes: bool = field(default=False, metadata={MAY_BE_MISSING: True})
    keys: tuple[str, ...] = field(default=(), metadata={MAY_BE_MISSING: True})

    def to_json(self) -> dict[str, Any]:
        values = {**vars(self), "begin": list(self.begin), "end": list(self.end), "keys": list(self.keys)}
        left_out = {"rows": self.rows < 0, "changes": not self.changes, "keys": not self.keys}
        return {name: value for name, value in values.items() if not left_out.get(name)}

    @classmethod
    def read(cls, metadata: Json) -> "Range":
        return read_metadata(metadata, cls, "a DeltaSpout")


class DeltaCoordinator(RangedCoordinator[Range]):
    """Looks at the log and decides where each batch ends. Metadata: as :class:`Range`."""

    def __init__(self, spout: DeltaSettings, frames: "DeltaFrames", in_flight: int) -> None:
        super().__init__(AdaptiveBatchSize(1, spout.max_files, in_flight), spout.poll_interval_secs)
        self._spout, self._frames = spout, frames
        self._log = DeltaChanges(spout.table)
        info = self._log.info()
        if spout.changes:
            check_feed(info.change_feed, spout.table, info.version)
        self._table_id, self._newest = info.table_id, info.version
        self._keys = info.keys if spout.changes else ()
        self._stamp = self._log.stamp(info.version)
        spout.check_schema(info.schema, info.version)
        self._read_at = info.version  # files of earlier versions are read with that schema too
        self._sizes: tuple[int, list[AddedFile]] | None = None  # of the version read as a whole
        self._together = _TOGETHER_BYTES
        self._counted: dict[int, Backlog] = {}  # what each version has that waits
        self._without_files = (Place(-1, 0), 0)  # from that place on there are no files before that version

    @property
    def start_is_fixed(self) -> bool:
        return self._spout.starting_version != "latest"

    # --- discovery ----------------------------------------------------------------------------

    def poll(self) -> None:
        """Looks for new versions."""
        if self._log.stamp(self._newest) != self._stamp:
            self._check_same_table()
        checkpointed = self._log.checkpointed()  # before: no version that is committed meanwhile is a gap
        self._newest = self._log.newest(self._newest)
        self._stamp = self._log.stamp(self._newest)
        if checkpointed > self._newest:
            raise self._log.cleaned(self._newest + 1, "versions that were not read are gone")

    def _check_same_table(self) -> None:
        """The log entry of the version that was the newest is not the file that it was."""
        info = self._log.info()
        check_same(info.table_id, self._table_id, self._spout.table)
        check_not_older(info.version, self._newest, self._spout.table)

    def start(self) -> Range:
        start, newest = self._spout.starting_version, self._newest
        if isinstance(start, int) and start > newest + 1:
            raise SourceError(
                f"the Delta table {self._spout.table} has no version {start} yet",
                found=f"version {newest}",
                expected=f"a starting_version up to {newest + 1}",
            )
        snapshot = newest if start is None else -1
        begin = Place(snapshot if start is None else newest + 1 if start == "latest" else int(start), 0)
        changes = self._spout.changes
        if changes and begin.version < newest:
            check_feed(self._log.info(begin.version).change_feed, self._spout.table, begin.version)
        ignored = self._spout.ignore_changes
        return Range(self._table_id, snapshot, begin, begin, self._read_at, ignored, changes=changes)

    def _files(self, version: int, snapshot: int) -> tuple[AddedFile, ...] | list[AddedFile]:
        """The files of a version that are to be read."""
        if version == snapshot:
            if self._sizes is None:
                self._sizes = (version, [AddedFile(size, rows, "") for size, rows in self._frames.sizes(version)])
            return self._sizes[1]
        if self._spout.changes:
            return changed_files(self._log.read(version), self._spout.table)
        return added_files(self._log.read(version), self._spout.ignore_changes, self._spout.table)

    def _waiting(self, after: Range) -> Iterator[AddedFile]:
        """The files after a range, up to _AHEAD_VERSIONS versions on."""
        version, file = after.end
        start = self._without_files[1] if self._without_files[0] == after.end else version
        for each in range(start, min(self._newest, start + _AHEAD_VERSIONS) + 1):
            found = self._files(each, after.snapshot)[file if each == version else 0 :]
            if not found and each == start:
                start += 1
                self._without_files = (after.end, start)  # a long row of versions without new rows is read once
            yield from found

    def backlog(self) -> Backlog:
        """All that waits; not known until all versions were read, of which each call reads some.

        It looks at the log itself: while as many transactions are in flight as may be, is_ready is not called.

        Raises:
            SourceError: the table, or a version that waits, cannot be read.
        """
        with self._asking:
            self._poll()
            after = self._last() or self._first()
            version, file = after.end
            self._counted = {one: counted for one, counted in self._counted.items() if one > version}
            unread = [one for one in range(version + 1, self._newest + 1) if one not in self._counted]
            for one in unread[:_AHEAD_VERSIONS]:
                self._counted[one] = _totals(self._files(one, after.snapshot))
            if len(unread) > _AHEAD_VERSIONS:
                return Backlog()
            first = self._files(version, after.snapshot)[file:] if version <= self._newest else []
            counted = [_totals(first), *self._counted.values()]
        rows = [one.rows for one in counted if one.rows is not None]
        return Backlog(
            sum(rows) if len(rows) == len(counted) else None,
            sum(one.bytes or 0 for one in counted),
            None if self._spout.changes else sum(one.files or 0 for one in counted),
        )

    # --- planning -----------------------------------------------------------------------------

    def read(self, metadata: Json) -> Range:
        return Range.read(metadata)

    def stored(self, planned: Range) -> Json:
        return planned.to_json()

    def after(self, before: Range) -> Range:
        check_same(self._table_id, before.table_id, self._spout.table)
        if (last := before.end.version - (not before.end.file)) > self._newest:
            # Read by an earlier leader since this one has looked, or gone.
            check_not_older(self._log.newest(), last, self._spout.table)
        if before.changes != self._spout.changes:
            raise SourceError(
                f"the stream of the Delta table {self._spout.table} began with other rows",
                found=f"changes={self._spout.changes}",
                expected=f"changes={before.changes}",
                action="give the stream another name, or begin again with `trident reset NAME`",
            )
        return replace(before, begin=before.end, files=0, bytes=0, rows=-1)

    def waits(self, empty: Range) -> bool:
        if any(True for _ in self._waiting(empty)):
            return True
        place, unread = self._without_files
        return place == empty.end and unread <= self._newest  # which may have rows: the next batch goes past the others

    def cut(self, empty: Range, txid: int) -> Range:
        return self._cut(empty, self.next_size(self._count(empty)))

    def size(self, planned: Range) -> int:
        return planned.files

    def shrunk(self, found: Range, size: int, txid: int) -> Range:
        self._together = 0  # from now on only the number of files counts
        shorter = self._cut(replace(found, end=found.begin), size)
        return shorter if shorter.end <= found.end else found

    def _count(self, before: Range) -> int:
        count = 0
        try:
            for _ in self._waiting(before):
                count += 1
        except SourceError:  # the cut stops there, or raises it
            pass
        return count

    def _cut(self, before: Range, files: int) -> Range:
        """The range after another: about this many files, or up to a version that cannot go with them."""
        version, file = before.end
        read_at, full = max(before.read_at, self._read_at), False
        taken: list[AddedFile] = []
        size = 0
        while version <= self._newest and not full:
            try:
                found = self._files(version, before.snapshot)[file:]
                reads_at = read_at if version == before.snapshot else self._reads_at(version, read_at)
            except SourceError:
                if taken:
                    break  # what comes before it is read first
                raise
            if reads_at != read_at and taken:
                break
            read_at = reads_at
            for one in found:
                full = bool(taken) and not self._fits(len(taken), size + one.size, files)
                if full:
                    break
                taken.append(one)
                size, file = size + one.size, file + 1
            if not full:
                full = version == before.snapshot  # a batch is of the first snapshot, or of what was added since
                version, file = version + 1, 0
        known = [one.rows for one in taken if one.rows is not None]
        rows = sum(known) if len(known) == len(taken) else -1
        return replace(
            before,
            begin=before.end,
            end=Place(version, file),
            read_at=read_at,
            files=len(taken),
            bytes=size,
            rows=rows,
            ignore_changes=self._spout.ignore_changes,
            keys=self._keys,
        )

    def _fits(self, taken: int, size: int, files: int) -> bool:
        """Tells whether a batch of this many files takes one more, with which it has that size."""
        most = self._spout.max_files if size <= self._together else files
        return taken < most and size <= self._spout.max_bytes

    def _reads_at(self, version: int, read_at: int) -> int:
        """The version whose schema the files of a version are read with."""
        change = self._log.read(version)
        if not change.reads_differently or version <= read_at:
            return read_at
        if change.metadata is not None:
            check_same(str(change.metadata["id"]), self._table_id, self._spout.table)
            self._spout.check_schema(schema_of(change.metadata), version)
        return version

    def _remember(self, txid: int, planned: Range) -> None:
        super()._remember(txid, planned)
        if planned.end.version > planned.snapshot:
            self._sizes = None


def _totals(files: Sequence[AddedFile]) -> Backlog:
    rows = [file.rows for file in files if file.rows is not None]
    return Backlog(sum(rows) if len(rows) == len(files) else None, sum(file.size for file in files), len(files))


def check_same(found: str, expected: str, table: str) -> None:
    """Raises SourceError when a table's id is not the one that it was."""
    if found != expected:
        raise SourceError(
            f"the Delta table {table} is another one: it was dropped and created again",
            found=f"table id {found}",
            expected=f"table id {expected}",
            action="bring the table back, or begin again with `trident reset NAME`",
        )


def check_not_older(found: int, expected: int, table: str) -> None:
    """Raises SourceError when a version that was there is not."""
    if found < expected:
        raise SourceError(
            f"the Delta table {table} is older than it was",
            found=f"version {found}",
            expected=f"version {expected} or a later one",
            action="it was restored from a copy: begin again with `trident reset NAME`",
        )


def check_feed(has_feed: bool, table: str, version: int) -> None:
    """Raises SourceError when a version's changes were not written down."""
    if not has_feed:
        raise SourceError(
            f"version {version} of the Delta table {table} has no change data feed",
            found="delta.enableChangeDataFeed is not true there",
            expected="a table with it from the first version on that is read",
            action="set it: DeltaMapState(…, change_feed=True), or ALTER TABLE … SET TBLPROPERTIES; and begin after "
            "that, with a later starting_version or with None",
        )


def changed_files(change: Change, table: str) -> tuple[AddedFile, ...]:
    """The changed rows of a version: one unit, or none."""
    if change.metadata is not None:
        check_feed(has_feed(change.metadata), table, change.version)
    return () if change.rewritten is None else (change.rewritten,)


def added_files(change: Change, ignore_changes: bool, table: str) -> tuple[AddedFile, ...]:
    """The files with rows that a version adds and that are to be read."""
    if change.removed is None:
        return change.added
    if ignore_changes:
        return ()
    raise SourceError(
        f"version {change.version} of the Delta table {table} removes or rewrites rows",
        found=f"{change.operation or 'a commit'}, which removes {change.removed}",
        expected="versions that only add rows",
        action="with ignore_changes=True such versions are left out as a whole, with the new rows in them too",
    )


_KEYS = {"sourceVersion", "reservoirId", "reservoirVersion", "index", "isStartingVersion"}
_SOURCE_VERSIONS = (1, 3)
# Before the first file of a version, as the source's first version of offsets and its third write it.
_BEFORE_ALL = (-1, -100)
_AFTER_ALL = (1 << 63) - 1 - 100


def range_after(source: SourceOffset, table: str, ignore_changes: bool, what: str) -> Range:
    """The empty range at the source's offset.

    Both number the files of the first version, which is read as a whole, by their times of modification and names, and
    those of a later one as its log entry has them. So a version that was read to its middle goes on there.

    Raises:
        SourceError: the offset is in the middle of something else, such as a change of the schema.
    """
    offset = source.value
    version, index, starting = (offset.get(key) for key in ("reservoirVersion", "index", "isStartingVersion"))
    is_known = set(offset) == _KEYS and offset["sourceVersion"] in _SOURCE_VERSIONS and isinstance(starting, bool)
    if not (is_known and is_whole(version, 0) and (index in _BEFORE_ALL or is_whole(index, 0))):
        raise SourceError(
            f"{what} cannot continue at this offset of the Delta table {table}",
            found=str(dict(offset)),
            expected="a version, and how many of its files are read",
            action="run the query once more, until it is past that version (a change of the table's schema, or "
            "withEventTimeOrder)",
        )
    version, index = int(offset["reservoirVersion"]), int(offset["index"])
    place = Place(version, 0 if index in _BEFORE_ALL else index + 1)
    if index >= _AFTER_ALL:
        place = Place(version + 1, 0)
    snapshot = version if starting else -1
    # Of the offset, not of the table as it is now: asked again, behind further commits, it is the same position. The
    # coordinator reads by the version that it finds, if that is a later one; the offset's may not be there yet.
    read_at = max(0, version - 1)
    return Range(DeltaChanges(table).info().table_id, snapshot, place, place, read_at, ignore_changes, rows=0)
