"""The ledger of discovered files: a running number for each, never changed, never reused.

The metadata of a batch holds numbers and offsets only, and means the same rows
for ever because the ledger is append-only: JSON lines, on disk (fsync) before
a number is used. The first line is the header, then::

    {"n": 1, "path": "…", "size": 350000, "mtime_ns": …, "rows": null, "digest": "…"}
    {"skip": 1, "found": "size 12, …", "digest": "…"}      its rows are left out from now on
    {"moved": ["/old", "/new"], "digest": "…"}             the files of a folder are in another one now

The digest of a line is over it and all lines before it. A line that is not as
it was written is therefore found when the ledger is read; a ledger that is
lost, or an older copy, when the digest that a batch has of its last file is
compared (:meth:`FileLedger.check`). Lines that a version before wrote have no
digest; the next one with a digest covers them, too. With the first line of a
ledger, and where they have changed, stand the paths that are looked at
(``"source"``).

Two processes may have it open, for a moment after a take-over: each append
takes a lock and reads first what the other appended, so that one number never
names two files. A crash in the middle of an append leaves a last line without
its end; no batch has used it, and the next append cuts it off. Any other line
that cannot be read is an error: guessing could read rows twice.

A ledger of objects in a store does not grow for ever. It is a row of segments
(``files-ID.jsonl``, ``files-ID.1.jsonl``, …). The last line of each says that the next one goes on, and the
first line of that with which number and digest::

    {"closed": true, "digest": "…"}
    {"ledger": "trident-files", …, "first": 10001, "before": "…", "marks": {…}, "digest": "…"}
    {"forgot": 10001, "marks": {"s3a://lake/in": [floor, next, "cursor", count]}, "digest": "…"}

Files with smaller numbers than ``forgot`` are forgotten, and their segments deleted afterwards. The marks
say by modification time and name which files of a path were known (:class:`Mark`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from trident.coordinators import faults
from trident.coordinators.errors import PositionLost, SourceError
from trident.coordinators.stored_json import MAY_BE_MISSING, Unreadable, as_record, parse_stored
from trident.spouts.contracts import Json, foreign_metadata
from trident.spouts.files.tasks import shown
from trident.states.core import storage
from trident.states.core.place import Place

log = logging.getLogger(__name__)

APPEND = faults.register("spout.ledger", "appending to the ledger of discovered files, with its fsync")
SCHEMA = 1
ENDING = ".jsonl"
SEGMENT_FILES = 10_000


class FoundFile(NamedTuple):
    """A file as it was when it was discovered.

    Attributes:
        size: bytes.
        mtime_ns: modification time, ns since 1970.
        rows: where the format tells without reading all of it (Parquet), else None.
        identity: its inode, and when that has changed; not kept in the ledger, for a copy has another one.
        tag: of a file in a store its ETag, or what tells its content there from another one.
    """

    path: str
    size: int
    mtime_ns: int
    rows: int | None = None
    identity: tuple[int, int] | None = None
    tag: str | None = None

    def stored(self) -> dict[str, Any]:
        """As a line of a ledger has it, without its number."""
        own = {"path": self.path, "size": self.size, "mtime_ns": self.mtime_ns, "rows": self.rows}
        return own if self.tag is None else {**own, "tag": self.tag}


@dataclass(frozen=True)
class LedgerEntry:
    """One file of the ledger.

    Attributes:
        number: its running number, from 1.
        length: what offsets into the file count: bytes, or rows for Parquet.
    """

    number: int
    path: str
    size: int
    mtime_ns: int
    rows: int | None = None
    tag: str | None = None

    @property
    def length(self) -> int:
        return self.size if self.rows is None else self.rows


class Mark(NamedTuple):
    """Which files of one path in a store are known, whether the ledger still has their numbers or not.

    Attributes:
        floor: those that were modified up to then, ns since 1970: a listing that began long after has had them all.
        next: the floor once the listing that is under way has come to its end.
        cursor: the last name that this listing has had; up to it ``next`` holds already.
        files: so many forgotten files there can be; more in a listing are files that were never read.
    """

    floor: int = -1
    next: int = -1
    cursor: str = ""
    files: int = 0

    def knows(self, name: str, mtime_ns: int) -> bool:
        return mtime_ns <= self.floor or (mtime_ns <= self.next and name <= self.cursor)


Marks = Mapping[str, Mark]


@dataclass(frozen=True)
class _Line:
    """One line as it is stored, without its digest."""

    source: tuple[str, ...] | None = field(default=None, kw_only=True, metadata={MAY_BE_MISSING: True})


@dataclass(frozen=True)
class _Header(_Line):
    ledger: Literal["trident-files"]
    unit: str
    first: int | None = field(default=None, metadata={MAY_BE_MISSING: True})
    before: str = field(default="", metadata={MAY_BE_MISSING: True})
    marks: Mapping[str, Mark] | None = field(default=None, metadata={MAY_BE_MISSING: True})


@dataclass(frozen=True)
class _Added(_Line):
    n: int
    path: str
    size: int
    mtime_ns: int
    rows: int | None
    tag: str | None = field(default=None, metadata={MAY_BE_MISSING: True})

    def problem(self) -> str | None:
        return None if min(self.size, self.mtime_ns, self.rows or 0) >= 0 else "a number is below 0"


@dataclass(frozen=True)
class _Skipped(_Line):
    skip: int
    found: str


@dataclass(frozen=True)
class _Moved(_Line):
    moved: tuple[str, str]


@dataclass(frozen=True)
class _Closed(_Line):
    closed: bool


@dataclass(frozen=True)
class _Forgot(_Line):
    forgot: int
    marks: Mapping[str, Mark]


class LedgerBook:
    """The meaning of a ledger's lines; pure.

    Attributes:
        first_number: of the files that it has.
        forgot: of those that are not forgotten; greater than ``first_number`` never, smaller where segments are lost.
        segments: the number of the first file of each segment that was read.
        closed: the segment that was read last has ended; the next line is the first one of another.
    """

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.first_number = self.forgot = 1
        self.marks: dict[str, Mark] = {}
        self.segments: list[int] = []
        self.closed = False
        self.entries: list[LedgerEntry] = []
        self.first: list[LedgerEntry] = []  # as they were discovered, wherever they are now
        self.numbers: dict[str, int] = {}
        self.skipped: set[int] = set()
        self.header_seen = False
        self.digest = ""  # over all lines
        self.source: tuple[str, ...] | None = None  # the paths that the stream looks at; None when no line says it
        self._digests: list[str] = []  # right behind each entry
        self._ends: list[int] | None = None

    def __len__(self) -> int:
        """The number of the last file."""
        return self.first_number - 1 + len(self.entries)

    def entry(self, number: int) -> LedgerEntry:
        return self.entries[self._at(number)]

    def from_number(self, number: int) -> list[LedgerEntry]:
        """The files with this number and greater ones."""
        return self.entries[max(0, number - self.first_number) :]

    def _at(self, number: int) -> int:
        if number < self.first_number:
            raise PositionLost(
                "the ledger of files has forgotten a file that a batch refers to",
                found=f"file {self.first_number} and later ones",
                expected=f"file {number}",
                action="go back to a later transaction, or begin again with `trident reset NAME`; FileSpout(…, "
                "remember_secs=…) says how long files are remembered",
            )
        return number - self.first_number

    def apply(self, line: bytes) -> None:
        """Takes in one line.

        Raises:
            ValueError: it is not what must stand there; the text says what was expected.
        """
        value = parse_stored(line, halves=True)  # a path need not be UTF-8
        if not isinstance(value, dict):
            raise ValueError("a JSON object")
        claimed = value.pop("digest", None)
        is_first = not self.header_seen or self.closed
        if is_first and not self.segments and isinstance(value.get("before"), str):
            self.digest = value["before"]  # of the segments before, which are forgotten
        digest = line_digest(self.digest, value)
        if claimed is not None and claimed != digest:
            raise ValueError(f"a line with the digest {digest}: this line, or one before it, is not as it was written")
        self.digest = digest
        entry: _Header | _Moved | _Skipped | _Added | _Closed | _Forgot
        if is_first:
            entry = as_record(value, _Header, SCHEMA)
            if entry.unit != self.unit:
                raise ValueError(f"offsets that count {self.unit}: the stream's format was another one before")
            self._begin_segment(entry)
        elif "closed" in value:
            entry = as_record(value, _Closed)
            self.closed = True
        elif "forgot" in value:
            entry = as_record(value, _Forgot)
            self.marks = dict(entry.marks)
            self._forget(entry.forgot)
        elif "moved" in value:
            entry = as_record(value, _Moved)
            self._move(*entry.moved)
        elif "skip" in value:
            entry = as_record(value, _Skipped)
            if not 1 <= entry.skip <= len(self):
                raise ValueError(f"a skipped file's number, 1 to {len(self)}")
            if entry.skip >= self.first_number:
                self.skipped.add(entry.skip)
                self._ends = None
        else:
            entry = as_record(value, _Added)
            self._add(entry)
        if entry.source is not None:
            self.source = entry.source

    def digest_at(self, number: int) -> str:
        """Over all lines up to the one that gave a file its number."""
        return self._digests[self._at(number)]

    def _begin_segment(self, header: _Header) -> None:
        first = header.first or 1
        if not self.segments:
            self.first_number = first
        elif first != len(self) + 1:
            raise ValueError(f"a segment that begins with file number {len(self) + 1}")
        if header.marks is not None:
            self.marks = dict(header.marks)
        self.segments.append(first)
        self.header_seen, self.closed = True, False

    def _forget(self, number: int) -> None:
        """Leaves out the files before a number, with which a segment begins."""
        self.forgot = max(self.forgot, number)
        gone = max(0, number - self.first_number)
        for entry in self.entries[:gone]:
            if self.numbers.get(entry.path) == entry.number:
                del self.numbers[entry.path]
        del self.entries[:gone], self.first[:gone], self._digests[:gone]
        self.first_number += gone
        self.skipped = {one for one in self.skipped if one >= self.first_number}
        self.segments = [one for one in self.segments if one >= self.first_number] or self.segments[-1:]
        self._ends = None

    def _move(self, old: str, new: str) -> None:
        entries = [replace(entry, path=moved_path(entry.path, old, new)) for entry in self.entries]
        if len({entry.path for entry in entries}) < len(entries):
            raise ValueError("a folder none of whose files is known at its new place")
        self.entries, self.numbers = entries, {entry.path: entry.number for entry in entries}

    def _add(self, added: _Added) -> None:
        if added.n != len(self) + 1:
            raise ValueError(f"file number {len(self) + 1}")
        if added.path in self.numbers:
            raise ValueError(f"a file that is not there yet (this one is number {self.numbers[added.path]})")
        entry = LedgerEntry(added.n, added.path, added.size, added.mtime_ns, added.rows, added.tag)
        self.entries.append(entry)
        self.first.append(entry)
        self.numbers[entry.path] = entry.number
        self._digests.append(self.digest)
        if self._ends is not None:
            self._ends.append(self._ends[-1] + entry.length)

    def length_before(self, number: int) -> int:
        """Bytes or rows of all files before a number, without those skipped."""
        ends = self._ends
        if ends is None:
            ends, total = [0], 0
            for entry in self.entries:
                total += 0 if entry.number in self.skipped else entry.length
                ends.append(total)
            self._ends = ends
        return ends[max(0, min(number - self.first_number, len(ends) - 1))]


def line_digest(before: str, value: Any) -> str:
    """Of a line without its digest, and, by the digest before it, of all lines before."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()[:24]


def line_of(before: str, value: Mapping[str, Any]) -> tuple[bytes, str]:
    """A line as it is written behind those with a digest, and the digest up to it."""
    digest = line_digest(before, value)
    return json.dumps({**value, "digest": digest}).encode() + b"\n", digest


def moved_path(path: str, old: str, new: str) -> str:
    """Where a file is after its folder was moved."""
    return new + path[len(old) :] if path == old or path.startswith(old.rstrip("/") + "/") else path


def _shown(pinned: Mapping[str, Any]) -> str:
    return f"{pinned['path']}, {pinned['size']} bytes, modified at {pinned['mtime_ns']} ns, digest {pinned['digest']}"


class FileLedger:
    """A ledger on disk.

    Args:
        path: the file; made when the first entry is appended.
        unit: what offsets count, "bytes" or "rows".
        source: the paths that the stream looks at; () when that is not known.
        segment_files: so many files a segment has; None: there is one segment, for ever.

    Raises:
        PositionLost: a line in the middle cannot be read, or the unit is another one.
        SourceError: the file cannot be read.
    """

    def __init__(self, path: Place, unit: str, source: Sequence[str] = (), segment_files: int | None = None) -> None:
        self._base = self.path = Place(path)
        self._source, self._segment_files = tuple(source), segment_files
        self._lock = threading.RLock()
        self.book = LedgerBook(unit)
        self._open()

    def _open(self) -> None:
        """Reads it from the first segment that there is.

        One that does not lead to the last, or not to the next, was made by an earlier leader that woke up after its
        segment was deleted, and nothing of it was used; or it is forgotten, and could not be deleted.

        Raises:
            PositionLost: a segment is lost.
        """
        with self._lock:
            segments = sorted(self._segments()) or [0]
            for segment in segments:
                if self._begin_at(segment, segments[-1]):
                    break
            if self.book.first_number > self.book.forgot:
                raise PositionLost(
                    f"the ledger of files {self._base} lacks files that it has not forgotten",
                    found=f"file {self.book.first_number} and later ones",
                    expected=f"file {self.book.forgot} and later ones",
                    action="bring its segments back from a back-up of the warehouse, then start again; without one, "
                    "begin again with `trident reset NAME`: nothing else knows which files were read",
                )

    def _begin_at(self, segment: int, last: int) -> bool:
        self.book = LedgerBook(self.book.unit)
        self._segment, self._read_to, self._lines = segment, 0, 0
        self.path = self._path_of(segment)
        try:
            self.refresh()
        except SourceError:
            if segment == last or (self._segment != segment and self._lines > 1):
                raise
        return self._segment >= last

    def _path_of(self, segment: int) -> Place:
        name = self._base.name
        return self._base.parent / f"{name.removesuffix(ENDING)}.{segment}{ENDING}" if segment else self._base

    def _segments(self) -> list[int]:
        stem = self._base.name.removesuffix(ENDING)
        found = []
        for name in storage.list_names(self._base.parent):
            middle = name[len(stem) + 1 : -len(ENDING)]
            if name == self._base.name:
                found.append(0)
            elif name == f"{stem}.{middle}{ENDING}" and middle.isdigit():
                found.append(int(middle))
        return found

    def refresh(self) -> None:
        """Reads what was appended since, perhaps by another process."""
        with self._lock:
            try:
                while data := storage.read_appended(self.path, self._read_to):
                    segment = self._segment
                    self._read_on(data)
                    if self._segment == segment:
                        return
            except FileNotFoundError:
                return
            except (OSError, Unreadable) as error:
                raise SourceError(f"the ledger of files {self.path} cannot be read: {error}") from error

    def _read_on(self, data: bytes) -> None:
        """Takes in what was appended since."""
        complete = data[: data.rfind(b"\n") + 1]
        for line in complete.splitlines(keepends=True):
            self._lines += 1
            try:
                self.book.apply(line)
            except ValueError as error:
                unreadable = isinstance(error, Unreadable)
                expected = f"a line of a ledger of files, schema {SCHEMA} ({error})" if unreadable else str(error)
                raise PositionLost(
                    f"the ledger of files cannot be read: {self.path}, line {self._lines}",
                    found=repr(line[:120].decode(errors="replace")),
                    expected=expected,
                    action="restore the file from a back-up, or begin again with `trident reset NAME`",
                ) from error
            self._read_to += len(line)
        if complete and self.book.closed:
            self._segment += 1
            self._read_to = self._lines = 0
            self.path = self._path_of(self._segment)

    def check(self, number: int, pinned: Mapping[str, Any] | None) -> None:
        """Tells whether the ledger is the one with which a batch was planned that ends with this file.

        Args:
            number: of the file; 0 when there is none before the position.
            pinned: what :meth:`pin` gave then; None of a batch that a version before has planned.

        Raises:
            PositionLost: it is lost, older, or another one.
        """
        if number > len(self.book):
            self.refresh()
        if number > len(self.book) and self._segment_files is not None:
            self._open()  # the segment that was read last may be forgotten by now
        action = (
            f"bring {self.path} back from a back-up of the warehouse, then start again; without one, begin again with "
            "`trident reset NAME`: nothing else knows which files were read"
        )
        if number > len(self.book):
            raise PositionLost(
                f"the ledger of files {self.path} lacks files that a batch refers to",
                found=f"{len(self.book)} files",
                expected=f"at least {number}" + (f", the last one {pinned['path']}" if pinned else ""),
                action=action,
            )
        if number >= self.book.first_number and pinned is not None and pinned != self.pin(number):
            found = self.pin(number)
            raise PositionLost(
                f"the ledger of files {self.path} is not the one with which the last batches were planned: files would "
                "be read twice, or never",
                found=f"file {number}: {_shown(found)}",
                expected=_shown(pinned),
                action=action,
            )

    def pin(self, number: int) -> dict[str, Any]:
        """A file as batches remember it, with a digest over all before it; a folder that moves changes nothing."""
        entry = self.book.first[self.book._at(number)]
        digest = self.book.digest_at(number)
        return {"path": shown(entry.path), "size": entry.size, "mtime_ns": entry.mtime_ns, "digest": digest}

    def append(self, found: Sequence[FoundFile]) -> list[LedgerEntry]:
        """Gives numbers to the files that have none yet, in this order; durable when it returns.

        Raises:
            SourceError: the ledger cannot be written, or another process has forgotten files: these may be among them.
        """
        first, forgot = 0, self.book.forgot

        def lines() -> list[dict[str, Any]]:
            nonlocal first
            if self.book.forgot > forgot:
                raise SourceError(
                    f"another process has forgotten files of the ledger {self.path} since these were listed",
                    found=f"files before number {self.book.forgot} are forgotten",
                    expected=f"files before number {forgot}",
                    action="none where this process leads: they are listed again",
                )
            first = len(self.book) + 1
            fresh = {file.path: file for file in found if file.path not in self.book.numbers}
            return [{"n": number, **file.stored()} for number, file in enumerate(fresh.values(), first)]

        self._append(lines)
        return self.book.from_number(first)

    def forget(self, number: int, marks: Marks) -> None:
        """Forgets the files before a number, with which a segment begins; durable when it returns.

        Nothing is forgotten where another process has forgotten more since: its marks know files that these do not.

        Args:
            marks: of each path: by them those files are known from now on.
        """
        with self._lock:
            stored, before = {path: list(mark) for path, mark in marks.items()}, self.book.marks
            self._append(lambda: [{"forgot": number, "marks": stored}] if self.book.marks == before else [])
            oldest = self._segment - len(self.book.segments) + (0 if self.book.closed else 1)
            for segment in self._segments():
                if segment < oldest:
                    storage.try_delete(self._path_of(segment))

    def skip(self, number: int, found: str) -> None:
        """Leaves a file's rows out of every emission from now on; durable when it returns."""
        self._append(lambda: [] if number in self.book.skipped else [{"skip": number, "found": found}])

    def move(self, old: str, new: str) -> None:
        """The files of a folder are in another one now, with the same numbers; durable when it returns."""

        def lines() -> list[dict[str, Any]]:
            known = [entry.path for entry in self.book.entries]
            after = [moved_path(path, old, new) for path in known]
            if len(set(after)) < len(after):
                raise SourceError(
                    f"{old} cannot be taken for moved to {new}: both have files that are known",
                    found=next(path for path in after if after.count(path) > 1),
                    expected="a new place without files that were read from there",
                    action="take moved_from away",
                )
            return [{"moved": [old, new]}] if after != known else []

        self._append(lines)

    def _shorter(self, found: str) -> PositionLost:
        return PositionLost(
            f"the ledger of files {self.path} became shorter while it was used",
            found=found,
            expected=f"at least {self._read_to} bytes",
            action="bring the file back from a back-up of the warehouse; nothing was written to it",
        )

    def _append(self, make: Callable[[], list[dict[str, Any]]]) -> None:
        """Writes lines at once, under the lock, and takes them in.

        A store is not asked first: where another process has appended since, the write fails, and then it is looked.

        Args:
            make: gives them, by what the ledger has now.
        """
        with self._lock:
            try:
                if self._read_to and self.path.is_local and not storage.exists(self.path):
                    raise self._shorter("no file")
                while True:
                    try:
                        done = self._append_after(self._read_to, make)
                    except FileExistsError:
                        done = self._append_after(0, make)
                    if done:
                        return
            except OSError as error:
                raise SourceError(f"the ledger of files {self.path} cannot be written: {error}") from error

    def _append_after(self, known: int, make: Callable[[], list[dict[str, Any]]]) -> bool:
        """Returns whether the lines were written; another process may have closed the segment."""
        segment = self._segment
        with storage.append(self.path, known) as file:
            if file.size < self._read_to:
                raise self._shorter(f"{file.size} bytes")
            self._read_on(file.read(self._read_to))
            if self._segment != segment:
                return False
            if file.size > self._read_to:
                # No other process writes now: a line without its end was torn by a crash, and never used.
                log.warning("%s: an unfinished last line is cut off", self.path)
                file.cut(self._read_to)
            if lines := make():
                self._write(file, lines)
        return True

    def _write(self, file: storage.Appending, lines: list[dict[str, Any]]) -> None:
        book = self.book
        if self._segment_files is not None:
            first = book.segments[-1] if book.segments and not book.closed else len(book) + 1
            if len(book) + sum("n" in line for line in lines) - first + 1 >= self._segment_files:
                lines.append({"closed": True})
        if not book.header_seen or book.closed:
            header: dict[str, Any] = {"ledger": "trident-files", "schema": SCHEMA, "unit": book.unit}
            if book.closed:
                marks = {path: list(mark) for path, mark in book.marks.items()}
                header |= {"first": len(book) + 1, "before": book.digest, "marks": marks}
            lines.insert(0, header)
        if self._source and book.source != self._source or (self._source and book.closed):
            lines[0]["source"] = list(self._source)
        digest, written = self.book.digest, []
        for value in lines:
            line, digest = line_of(digest, value)
            written.append(line)
        with faults.fault_point(APPEND):
            file.write(b"".join(written))
        self._read_on(file.read(self._read_to))


# Cuts batches of files: pure positions over the ledger.
#
# A position is ``(number, offset)``: all of the files before that number and the
# first offset bytes (Parquet: rows) of it are before the position. The end of a
# file is written as the beginning of the next number, also when that file is not
# there yet, so that one place has one name.


# Up to this much over the target is taken to end at a file's end: rows are
# estimated, and files of about the target's size should not leave crumbs.
_SLACK = 0.15
# A batch that is this full ends at the end of a file rather than in the next:
# whole files are read by Spark itself, parts of files by Python.
_ENOUGH = 0.5
# Each file costs a look and an open; thousands in a batch gain nothing more.
MAX_FILES = 2_000


class Position(NamedTuple):
    """A place in the sequence of all files."""

    number: int
    offset: int


START = Position(1, 0)


class FileRange(NamedTuple):
    """A part of one file: offsets begin ≤ … < end."""

    entry: LedgerEntry
    begin: int
    end: int

    @property
    def whole(self) -> bool:
        return self.begin == 0 and self.end == self.entry.length

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        if self.entry.rows is None:
            return self.end - self.begin
        return self.entry.size * (self.end - self.begin) // max(1, self.entry.rows)


def length_after(book: LedgerBook, position: Position) -> int:
    """Bytes or rows that wait from a position on."""
    rest = book.length_before(len(book) + 1) - book.length_before(position.number)
    inside = position.number <= len(book) and position.number not in book.skipped
    return rest - (position.offset if inside else 0)


def cut(
    book: LedgerBook,
    start: Position,
    target: int,
    align: Callable[[LedgerEntry, int], int],
    splits: Callable[[LedgerEntry], bool] = lambda entry: True,
) -> Position:
    """The end of a batch of about target bytes or rows.

    Args:
        target: its length; at least 1.
        align: (file, offset) → the first offset at or after it where a row begins, at most the file's length.
        splits: whether a file may be cut; one that may not is taken whole.

    Returns:
        The end: after start unless nothing waits there.
    """
    position, taken = start, 0
    last = min(len(book), start.number + MAX_FILES - 1)
    while position.number <= last:
        entry = book.entry(position.number)
        rest = 0 if entry.number in book.skipped else entry.length - position.offset
        # Of a batch of many files the end is the file's end that is nearest: those of one backlog are of one size.
        if taken + rest <= target * (1 + _SLACK) and taken + rest / 2 <= target:
            taken += rest
            position = Position(entry.number + 1, 0)
            continue
        if taken >= target * _ENOUGH:
            break
        if not splits(entry):
            return position if taken else Position(entry.number + 1, 0)
        end = align(entry, position.offset + max(1, target - taken))
        assert position.offset < end <= entry.length, (position, end, entry)
        return Position(entry.number + 1, 0) if end == entry.length else Position(entry.number, end)
    return position


def ranges(book: LedgerBook, start: Position, end: Position) -> Iterator[FileRange]:
    """The parts of files between two positions, in order, empty ones and skipped files left out."""
    for number in range(start.number, min(end.number, len(book)) + 1):
        entry = book.entry(number)
        begin = start.offset if number == start.number else 0
        stop = end.offset if number == end.number else entry.length
        if begin < stop and number not in book.skipped:
            yield FileRange(entry, begin, stop)


def read_position(metadata: Json, key: str) -> Position:
    """The position that a batch's metadata holds under "from" or "to".

    Raises:
        SourceError: it holds none; another spout wrote it.
    """
    value = metadata.get(key) if isinstance(metadata, dict) else None
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, int) for part in value):
        return Position(*value)
    raise foreign_metadata(metadata, "a FileSpout", '{"from": [file number, offset], "to": [file number, offset], …}')
