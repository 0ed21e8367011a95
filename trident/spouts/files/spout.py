"""A transactional source of files: text, CSV, JSON lines or Parquet, in a folder that grows (docs/semantics.md 3).

Discovered files get running numbers in a ledger (`ledger.py`); a batch is a
range of positions over them (`ledger.py`), which is all its metadata holds; a
range is turned into rows by `reading.py`; the skeleton of the coordinator is in `trident/spouts/ranged.py`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from os import PathLike
from typing import Any, NamedTuple, Union

from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.spark.stores import reach
from trident.spouts import contracts as spout_arguments
from trident.spouts.checkpoint import FILES, SourceOffset
from trident.spouts.contracts import Backlog, Emitted, Emitter, Json, SpoutContext, SpoutKind
from trident.spouts.files.format import FORMATS, RowFormat
from trident.spouts.files.ledger import (
    SEGMENT_FILES,
    START,
    FileLedger,
    FileRange,
    FoundFile,
    LedgerBook,
    LedgerEntry,
    Position,
    cut,
    length_after,
    ranges,
    read_position,
)
from trident.spouts.files.listing import (
    ON_CHANGED,
    ChangePolicy,
    FileListing,
    accept_source,
    are_below,
    as_paths,
    cannot_list,
    hidden,
    local_files,
    numbered,
    position,
    unreadable,
)
from trident.spouts.files.objects import STEP_OBJECTS, ObjectListing, ObjectPath
from trident.spouts.files.parquet import count_rows
from trident.spouts.files.reading import FileReader, check_readable
from trident.spouts.files.tasks import is_packed, is_stored, opened_file
from trident.spouts.ranged import AdaptiveBatchSize, RangedCoordinator
from trident.states.core import storage
from trident.states.core.place import Place
from trident.udf.types import as_schema

Path = Union[str, "PathLike[str]"]

_SAMPLE_BYTES = 64 << 10
# Files of which something has to be read when they are discovered are discovered a few at a time.
_READ_AT_ONCE = 1_000
_UNPACKED = 4  # a compressed file is taken for this many times its size


# So long files of a store are remembered: S3 gives an object the time of its upload, HDFS keeps that of a moved file.
_REMEMBERED_SECS, _FOR_EVER_SECS = 86_400.0, 1e11


def remembered(spout: "FileSpout", path: str) -> float:
    """The seconds for which files of a path are remembered."""
    if spout.remember_secs is not None:
        return spout.remember_secs
    return _FOR_EVER_SECS if path.startswith("hdfs:") else _REMEMBERED_SECS


class FileSpout:
    """Rows of files, each file once, in the order in which the files were discovered.

    Files must appear whole, by a rename into the folder, and never change
    afterwards. Those found by one look are ordered by modification time, then
    path. Names that begin with ``_`` or ``.`` are left out; folders below are
    not searched, except by a glob with ``**``. An empty file is not taken until it has content.

    Transactional: the rows of a transaction are fixed by its metadata (a range
    of files and offsets) and are the same at each replay; their order within the
    batch is not fixed. A file whose size or modification time changed before it was
    read to its end fails the batch, or with ``on_changed="skip"`` its rest is left out.
    Files that were read are looked at again: one whose size has changed since is an error that
    names it, and nothing new is taken until it is moved away; with ``on_changed="skip"``, or where only its
    modification time has changed, a warning. One that was replaced or written to and has the same size and the same
    modification time is a warning too, but only in the process that has seen it before.

    Text gives one field ``value``: a row is a line without its newline and without
    one carriage return before it; empty lines count, and so does a last line without
    a newline. CSV and JSON have a row per line, blank lines left out.
    A row that cannot be parsed, a line that is not UTF-8, and a quoted value that is not closed on its line fail
    the batch with the file's name, unless the option ``mode`` is PERMISSIVE or DROPMALFORMED (as in Spark; with
    PERMISSIVE bytes that are not UTF-8 become U+FFFD). Files in Latin-1 are read with the option
    ``encoding="ISO-8859-1"``.

    With ``header=True`` blank lines and comments before the header are passed over. A file whose header has the
    schema's names in another order is read by name; one with other names is refused when it is discovered,
    unless the option ``enforceSchema`` is True: then names are not looked at. With False they must be in the
    schema's order.

    Packed files (.gz, .bz2, .zst, .zstd, in capitals too; .deflate, .lz4, .snappy of Hadoop) are never cut. A file that
    cannot be read because of its name or packing (.zip and the like, a file of the lz4 tool; .deflate, .lz4 and
    .snappy with a header line or with a colon in the name) is named when it is discovered, and nothing new is taken
    until it is gone. Links to nowhere, and to themselves, are passed over.

    In a store (``s3a://``, ``hdfs://``) files are listed in the background, by what is new (docs/spouts.md); one is
    the same file while its ETag is, on HDFS its size and time. Files that were read are forgotten after
    ``remember_secs``: one that is written anew under its name after that is another file, and is read.

    Args:
        path: a folder, a file, a glob, or a list of these, on this machine's file systems; or such URLs of stores.
            Must exist when the topology starts; in an object store a folder need not.
        format: "text", "csv", "json" (lines) or "parquet".
        schema: a StructType or DDL text; needed except for text.
        min_rows: about how many rows a batch has when little waits; by default 1,000, or max_rows if that is less.
        max_rows: about how many it has at most. Rows are estimated from bytes (exact for Parquet).
            With both equal every batch has about that size, except the last of what waits.
        options: Spark's options for the format, such as ``{"header": True, "sep": ";"}``. Each is used as Spark's
            reader does, or refused by name.
        on_changed: "fail" or "skip"; "skip" leaves out what is not read yet of a file that has changed.
        poll_interval_secs: least time between two looks at the folder.
        max_bytes: about how many bytes a batch has at most, whatever its rows.
        moved_from: the folder in which the files were before they were moved to ``path``; those that were
            read are known at their new place. Of use once; it may stay. Not in stores.
        full_listing_secs: in a store least time between two listings of a whole path that has more than 1,000 objects.
        remember_secs: in a store files that were read are remembered so long after they were written, at least. No
            file may appear later after its time of modification: an upload may take no longer than this, and what is
            moved into a folder of HDFS be no older. One that is older is an error, where more such files are
            there than were forgotten. At least a second, and far more than the clocks of the hosts differ. None: a
            day on S3, for ever on HDFS, where a file that is moved keeps its time.

    A stream keeps which files it has read in a ledger in the warehouse, and what it reads may not change to
    something else without a word: other paths than those of the run before are refused when it starts.

    Raises:
        TopologyError: an argument cannot be used.
    """

    kind = SpoutKind.TRANSACTIONAL
    acknowledges = False

    def __init__(
        self,
        path: Union[Path, list[Path], tuple[Path, ...]],
        format: str = "text",
        schema: Union[str, "StructType", None] = None,
        min_rows: int | None = None,
        max_rows: int = 1_000_000,
        options: Mapping[str, Any] | None = None,
        on_changed: str = "fail",
        poll_interval_secs: float = 0.5,
        max_bytes: int = 256 << 20,
        moved_from: Path | None = None,
        full_listing_secs: float = 60.0,
        remember_secs: float | None = None,
    ) -> None:
        if format not in FORMATS:
            raise TopologyError("the format of a FileSpout is unknown", found=repr(format), expected=", ".join(FORMATS))
        if on_changed not in ON_CHANGED:
            raise TopologyError("on_changed is unknown", found=repr(on_changed), expected=" or ".join(ON_CHANGED))
        poll_interval_secs = spout_arguments.seconds("poll_interval_secs of a FileSpout", poll_interval_secs)
        spout_arguments.whole("max_bytes of a FileSpout", max_bytes, 1)
        sizes = AdaptiveBatchSize(min_rows, max_rows)  # raises when the bounds are impossible
        self.paths = as_paths(path)
        self.moved_from = None if moved_from is None else as_paths(moved_from)[0]
        if moved_from is not None and len(self.paths) > 1:
            raise TopologyError(
                "moved_from needs to know where the folder is now",
                found=f"{len(self.paths)} paths",
                expected="one path",
            )
        self.stored = is_stored(self.paths[0])
        if moved_from is not None and self.stored:
            raise TopologyError(
                "files in a store are not moved by a change of their path",
                found=f"moved_from={os.fspath(moved_from)}",
                expected="no moved_from: in a store each file at another place is another one",
            )
        self.full_listing_secs = spout_arguments.seconds("full_listing_secs", full_listing_secs)
        self.remember_secs = remember_secs
        if remember_secs is not None:
            self.remember_secs = max(1.0, spout_arguments.seconds("remember_secs", remember_secs))
        self.format, self.on_changed = format, on_changed
        self.min_rows, self.max_rows, self.max_bytes = sizes.min_rows, max_rows, max_bytes
        self.poll_interval_secs = poll_interval_secs
        self.options = spout_arguments.options("a FileSpout", options)
        if format == "text" and schema is None:
            schema = "value string"
        self._schema = as_schema(schema, f"FileSpout({format})")
        if format == "text" and [field.dataType.simpleString() for field in self._schema.fields] != ["string"]:
            raise TopologyError(
                "text has one field", found=self._schema.simpleString(), expected="no schema, or one string field"
            )
        self.row_format = RowFormat(format, self._schema, self.options)

    @property
    def output_schema(self) -> "StructType":
        return self._schema

    @property
    def folders_of_tasks(self) -> tuple[str, ...]:
        """Read by tasks on a cluster's hosts, which must have them at the same paths."""
        return FileListing(self.paths).places()

    @property
    def places(self) -> tuple[Place, ...]:
        """The stores that the session and this process have to reach for it."""
        return tuple(dict.fromkeys(Place(Place(path).root) for path in self.paths)) if self.stored else ()

    def open_ledger(self, context: SpoutContext) -> FileLedger:
        """The ledger of this stream's incarnation; `trident reset` begins another."""
        unit = "rows" if self.format == "parquet" else "bytes"
        path = Place(context.state_folder) / f"files-{context.incarnation}.jsonl"
        return FileLedger(path, unit, self.paths, SEGMENT_FILES if self.stored else None)

    def reads_source(self, source: SourceOffset) -> bool:
        """Tells whether a source of Structured Streaming reads this stream's files (trident.spouts.checkpoint)."""
        return source.kind == FILES and are_below(local_files(source), self.paths)

    def position_after(self, source: SourceOffset, context: SpoutContext) -> Json:
        """Where the stream continues after a source's offset; writes the ledger (trident.spouts.checkpoint)."""
        ledger, counts_rows = self.open_ledger(context), self.format == "parquet"
        number = numbered(local_files(source), ledger, counts_rows, f"the stream {context.tx_id!r}")
        return position(number, ledger, counts_rows)

    def get_coordinator(self, context: SpoutContext) -> "FileCoordinator":
        """Opens the ledger, and looks whether it is the one that belongs to the path.

        Raises:
            SourceError: the path does not exist.
            IdentityMismatch: the stream has read other files so far.
            PositionLost: the ledger is not as it was written.
        """
        reach(self.places, context.spark)
        return FileCoordinator(self, context)

    def get_emitter(self, context: SpoutContext) -> "FileEmitter":
        reach(self.places, context.spark)
        return FileEmitter(self, context)


class FileBatch(NamedTuple):
    """The files between two positions, and the metadata that says so; None of a range that no transaction has."""

    begin: Position
    end: Position
    metadata: Json = None


class FileCoordinator(RangedCoordinator[FileBatch]):
    """Discovers files and decides where each batch ends.

    Metadata: ``{"from": [file number, offset], "to": [file number, offset], "rows_estimate": n,
    "file": {path, size, mtime_ns, digest}}``, for Parquet ``"rows": n``; offsets are bytes, for Parquet rows.
    ``file`` is the last one before ``to``; with its digest the ledger is compared (a version before did not write it).
    """

    waits_for_source = True
    pause_per_poll = 10  # a folder so large that a poll takes long is polled less often

    def __init__(self, spout: FileSpout, context: SpoutContext) -> None:
        in_flight = context.options.get("max_spout_pending") or 3
        super().__init__(AdaptiveBatchSize(spout.min_rows, spout.max_rows, in_flight), spout.poll_interval_secs)
        self._spout = spout
        self._listing = FileListing(spout.paths)
        self._objects = self._listed_objects(spout) if spout.stored else None
        if self._objects is None:
            self._listing.check()
        else:
            self.pause_per_poll = 0  # the listing is in the background
        self._ledger = spout.open_ledger(context)
        accept_source(self._ledger, spout.paths, spout.moved_from, context.topology, context.tx_id)
        self._policy = ChangePolicy(self._ledger, spout.on_changed)
        self._exact = spout.format == "parquet"
        self._row_bytes: float | None = 1.0 if self._exact else None
        self._may_forget = True

    @property
    def _book(self) -> LedgerBook:
        return self._ledger.book  # another one once the ledger was opened anew

    def resume(self, txid: int, metadata: Json) -> None:
        """Called, if at all, before the first question: the greatest txid that has metadata.

        Without it the first transaction after a restart is begun even when nothing waits, and is empty.

        Raises:
            PositionLost: the ledger is lost, older, or another one.
        """
        _check_known(self._ledger, metadata)  # before new files are put into it
        super().resume(txid, metadata)
        self._may_forget = False  # until it begins the first transaction: those in flight before are begun in order

    def _remember(self, txid: int, planned: FileBatch) -> None:
        with self._lock:
            super()._remember(txid, planned)
            self._may_forget = True

    # --- discovery --------------------------------------------------------------------------

    def poll(self) -> None:
        """Puts new files into the ledger."""
        if self._objects is None:
            self._discovered(self._listing.new_files(self._book.numbers))
            self._policy.recheck(self._position().number)
            return
        try:
            self._discovered(self._objects.new_files(self._book, self._position().number))
        except OSError as error:
            self._objects.give_up()
            where = error.filename or self._spout.paths[0]
            raise cannot_list(where, where, error) from error
        except BaseException:
            self._objects.give_up()
            raise
        with self._lock:
            begins = [planned.begin.number for planned in self._planned.values()] if self._may_forget else []
        oldest = min(begins, default=1)
        # The last file before the oldest batch that may be asked for is what that batch begins with.
        if (forgotten := self._objects.forgettable(self._book, oldest - 1)) is not None:
            self._ledger.forget(*forgotten)

    def _discovered(self, found: list[FoundFile]) -> None:
        schema = self._spout.output_schema

        def checked(file: FoundFile) -> FoundFile:
            if self._exact:
                file = file._replace(rows=count_rows(file.path, schema))
            check_readable(file.path, self._spout.row_format)
            return file

        calls = [functools.partial(checked, file) for file in found]
        found = storage.run_concurrently(calls) if self._objects is not None else [call() for call in calls]
        if found:
            self._ledger.append(found)
            self._policy.discovered(found)

    def _listed_objects(self, spout: FileSpout) -> ObjectListing:
        reads = spout.format == "parquet" or spout.row_format.header
        step = _READ_AT_ONCE if reads else STEP_OBJECTS
        paths = [
            ObjectPath(path, spout.full_listing_secs, remembered(spout, path), hidden, self._changed_after, step)
            for path in spout.paths
        ]
        for path in paths:
            try:
                path.check()
            except OSError as error:
                raise cannot_list(path.path, path.folder, error) from error
        return ObjectListing(paths)

    def _changed_after(self, entry: LedgerEntry, found: FoundFile) -> None:
        self._policy.changed_after(entry, found)

    def close(self) -> None:
        if self._objects is not None:
            self._objects.give_up()

    def refresh(self) -> None:
        super().refresh()
        if self._objects is not None:
            self._objects.refresh()

    def _position(self) -> Position:
        """Where the last transaction ends."""
        last = self._last()
        return START if last is None else last.end

    def waits(self, empty: FileBatch) -> bool:
        return length_after(self._book, empty.end) > 0

    def backlog(self) -> Backlog:
        """All that waits; the rows of text, CSV and JSON are estimated from bytes, once there was a sample.

        It looks at the folder itself: while as many transactions are in flight as may be, is_ready is not called.

        Raises:
            SourceError: the newest poll has failed.
        """
        with self._asking:
            self._poll()
            position = self._position()
            length = length_after(self._book, position)
            waiting = [e for e in self._book.from_number(position.number) if e.number not in self._book.skipped]
        if self._exact:
            inside = position.offset / max(1, waiting[0].length) * waiting[0].size if waiting and position.offset else 0
            return Backlog(length, int(sum(entry.size for entry in waiting) - inside), len(waiting))
        rows = 0 if not length else None if self._row_bytes is None else int(length / self._row_bytes)
        return Backlog(rows, length, len(waiting))

    # --- planning ---------------------------------------------------------------------------

    def read(self, metadata: Json) -> FileBatch:
        return FileBatch(read_position(metadata, "from"), read_position(metadata, "to"), metadata)

    def stored(self, planned: FileBatch) -> Json:
        return planned.metadata

    def start(self) -> FileBatch:
        return FileBatch(START, START)

    def after(self, before: FileBatch) -> FileBatch:
        if before.metadata is not None:
            _check_known(self._ledger, before.metadata)
        return self._batch(before.end, before.end)

    def cut(self, empty: FileBatch, txid: int) -> FileBatch:
        row_bytes = self._sample(empty.begin)
        return self._cut(empty.begin, self.next_size(int(length_after(self._book, empty.begin) / row_bytes)))

    def size(self, planned: FileBatch) -> int:
        _check_known(self._ledger, planned.metadata)
        return int(self._length(planned.begin, planned.end) / self._sample(planned.begin))

    def shrunk(self, found: FileBatch, size: int, txid: int) -> FileBatch:
        """A batch of one row or one compressed file stays as it is."""
        shorter = self._cut(found.begin, size)
        return found if shorter.end > found.end else shorter  # estimates may differ by now; a retry never grows

    def _cut(self, begin: Position, rows: int) -> FileBatch:
        target = max(1, int(rows * (self._row_bytes or 1.0)))
        if not self._exact:
            target = min(target, self._spout.max_bytes)
        while True:
            try:
                end = cut(self._book, begin, target, self._align, lambda entry: not is_packed(entry.path))
                return self._batch(begin, end)
            except _Skipped:
                continue  # the ledger says so now; the cut begins again without that file

    def _batch(self, begin: Position, end: Position) -> FileBatch:
        length, last = self._length(begin, end), _last_file(end)
        rows = {"rows": length} if self._exact else {"rows_estimate": round(length / (self._row_bytes or 1.0))}
        pin = {"file": self._ledger.pin(last)} if last else {}
        return FileBatch(begin, end, {"from": list(begin), "to": list(end), **rows, **pin})

    def _length(self, begin: Position, end: Position) -> int:
        return sum(part.end - part.begin for part in ranges(self._book, begin, end))

    def _sample(self, start: Position) -> float:
        """Bytes per row, a running average over samples of the files that batches begin in; at least 1."""
        if self._exact:
            return 1.0
        part = next(ranges(self._book, start, Position(len(self._book) + 1, 0)), None)
        if part is not None:
            measured = self._bytes_per_row(part)
            if measured is not None:
                self._row_bytes = measured if self._row_bytes is None else (self._row_bytes + measured) / 2
        return self._row_bytes or 1.0

    def _bytes_per_row(self, part: FileRange) -> float | None:
        if is_packed(part.entry.path):
            return None if self._row_bytes else 100.0 / _UNPACKED
        try:
            with opened_file(part.entry.path, _SAMPLE_BYTES) as file:
                file.seek(part.begin)
                sample = file.read(min(_SAMPLE_BYTES, part.end - part.begin))
        except FileNotFoundError:
            return None  # the policy for changed files decides, when the file is cut or emitted
        except OSError as error:
            raise unreadable(part.entry.path, error) from error
        return max(1.0, len(sample) / max(1, sample.count(b"\n"))) if sample else None

    def _align(self, entry: LedgerEntry, offset: int) -> int:
        """The first offset from there on at which a row begins."""
        if not self._policy.intact(entry):
            raise _Skipped
        if self._exact or offset >= entry.length:
            return min(offset, entry.length)
        try:
            with opened_file(entry.path, _SAMPLE_BYTES if is_stored(entry.path) else 4096) as file:
                file.seek(offset - 1)
                while offset < entry.size:
                    block = file.readline(1 << 16)
                    if not block:
                        break
                    offset = file.tell()
                    if block.endswith(b"\n"):
                        return min(offset, entry.size)
        except OSError as error:
            raise unreadable(entry.path, error) from error
        return entry.size


class FileEmitter(Emitter):
    """Turns ranges of the ledger into DataFrames."""

    def __init__(self, spout: FileSpout, context: SpoutContext) -> None:
        self._ledger = spout.open_ledger(context)
        self._policy = ChangePolicy(self._ledger, "fail" if context.replays else spout.on_changed)  # "skip" writes
        self._reader = FileReader(context.spark, spout.row_format)
        # Tasks, which read each file of a store that Spark does not, see for themselves that it is the one.
        self._checked_by_tasks = self._policy.fails and spout.format != "parquet"
        self._emitted: dict[TransactionAttempt, Json] = {}

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        """The rows of a range.

        Raises:
            SourceError: a file is missing, unreadable or has changed.
        """
        parts = self._parts(metadata)
        self._emitted[attempt] = metadata
        return self._reader.read(parts)

    def prepare(self, attempt: TransactionAttempt) -> None:
        """Looks again, once the rows are staged, whether the files are still those that were to be read."""
        metadata = self._emitted.get(attempt)
        if metadata is None:
            return
        start, end = read_position(metadata, "from"), read_position(metadata, "to")
        before = list(ranges(self._ledger.book, start, end))
        if self._parts(metadata) != before:
            raise SourceError(
                f"an input file of batch {attempt} changed while the batch was processed",
                action="the batch is tried again without the rest of that file",
            )

    def _parts(self, metadata: Json) -> list[FileRange]:
        start, end = read_position(metadata, "from"), read_position(metadata, "to")
        if self._ledger.path.is_local:
            self._ledger.refresh()  # an earlier leader may have added to it; in a store the next append finds that out
        _check_known(self._ledger, metadata)
        parts = list(ranges(self._ledger.book, start, end))
        calls = [functools.partial(self._policy.intact, part.entry) for part in parts]
        if parts and is_stored(parts[0].entry.path):
            if self._checked_by_tasks:
                return parts
            intact = storage.run_concurrently(calls)
        else:
            intact = [call() for call in calls]
        return [part for part, is_intact in zip(parts, intact) if is_intact]

    def success(self, attempt: TransactionAttempt) -> None:
        for earlier in [one for one in list(self._emitted) if one.txid <= attempt.txid]:
            self._emitted.pop(earlier, None)


class _Skipped(Exception):
    """A file was found changed while a batch was planned, and is skipped from now on."""


def _check_known(ledger: FileLedger, metadata: Json) -> None:
    """Makes sure that the ledger has the files that a batch refers to, and has them as they were then."""
    last = _last_file(read_position(metadata, "to"))
    ledger.check(last, metadata.get("file") if isinstance(metadata, dict) else None)


def _last_file(position: Position) -> int:
    """The number of the last file of which something is before a position; 0 at the beginning."""
    return position.number if position.offset else position.number - 1
