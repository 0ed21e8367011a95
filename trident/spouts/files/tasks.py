"""The tasks of Spark's Python workers that read parts of files; workers import it, so it is small."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import numpy as np
import pyarrow
import pyarrow as pa
import pyarrow.compute as pc

from trident.coordinators.errors import SourceError
from trident.states.core import storage
from trident.states.core.place import Place
from trident.workers.failures import SOURCE, marked

# A worker unpacks these itself; Hadoop knows them too, except for the last one.
UNPACKED_HERE = (".gz", ".bz2", ".zst", ".zstd")
_HADOOP_ALONE = (".deflate", ".lz4", ".snappy")
_BY_SPARK = (".gz", ".bz2", ".zst", *_HADOOP_ALONE)
PACKED = (*UNPACKED_HERE, *_HADOOP_ALONE)
_UNKNOWN = tuple(".zip .7z .rar .tar .tgz .tbz .tbz2 .txz .tzst .xz .lzma .lz .lzo .br .z .jar .cab".split())
_TAR = tuple(f".tar{ending}" for ending in PACKED)
# Files of the tools of that name, which Hadoop's own way of packing, under the same ending, is not.
_OF_TOOLS = {".lz4": b"\x04\x22\x4d\x18", ".snappy": b"\xff\x06\x00\x00"}

# Reading a damaged one raises one of these.
BROKEN = (OSError, EOFError, zlib.error, pa.ArrowException)


def is_packed(path: str) -> bool:
    """Such a file is read as a whole: an offset into it means nothing."""
    return path.lower().endswith(PACKED)


def is_packed_for_spark(path: str) -> bool:
    """Tells whether only Spark can unpack a file."""
    return path.lower().endswith(_HADOOP_ALONE)


def spark_unpacks(path: str) -> bool:
    """Tells whether Spark reads the content of a file, packed or not."""
    return not is_packed(path) or path.lower().endswith(_BY_SPARK)


def why_not_unpacked(path: str) -> str | None:
    """Why the content of a file of lines cannot be read; None: it can."""
    name = path.lower()
    if name.endswith((*_UNKNOWN, *_TAR)):
        return "by its name it is an archive, or packed in a way that is not known here"
    for ending, magic in _OF_TOOLS.items():
        if name.endswith(ending):
            with opened_file(path, 64) as file:
                if file.read(len(magic)) == magic:
                    return f"it was packed by the tool for {ending} files, which is not the way of Hadoop and Spark"
    return None


def opened(file: Any, path: str) -> contextlib.AbstractContextManager[Any]:
    """The content of an open file, to be read from its beginning; those that workers unpack are unpacked."""
    name = path.lower()
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=file)
    if name.endswith(".bz2"):
        import bz2  # optional: a Python may be built without it

        return bz2.BZ2File(file)
    if name.endswith((".zst", ".zstd")):
        return io.BufferedReader(cast(Any, pa.CompressedInputStream(file, "zstd")), 1 << 16)
    return contextlib.nullcontext(file)


def is_stored(path: str) -> bool:
    """Tells whether a path is the URL of a file in a store."""
    return path.partition("://")[0] in storage.STORES


def opened_file(path: str, buffering: int = 1 << 16) -> BinaryIO:
    """A file on this machine's file systems, or in a store."""
    return storage.input(path, buffering) if is_stored(path) else open(path, "rb", buffering)


_BLOCK_BYTES = 2 << 20
# A file of a store up to this size is fetched as a whole, by one request; and others, up to this size together.
_WHOLE_BYTES, _FETCHED_BYTES = 4 << 20, 16 << 20
BOM = b"\xef\xbb\xbf"


class Piece(NamedTuple):
    """A part of a file: the lines whose first byte is at an offset begin ≤ … < end.

    Attributes:
        size, mtime_ns, tag: of the file when it was discovered.
        skip: so many bytes of the content are before the first row: a header and what is before it.
    """

    path: str
    size: int
    mtime_ns: int
    begin: int
    end: int
    skip: int = 0
    tag: str | None = None


class SourceFailure(Exception):
    """A failure on a worker, written so that the driver can read it back by :func:`reported`.

    Args:
        parts: ``found``, ``expected``, ``action``; ``error``: the name of the kind of SourceError that it is;
            ``repeats``: whether the data is at fault, which is the same whenever it is read.
    """

    def __init__(self, message: str, **parts: Any) -> None:
        super().__init__(f"{message} {marked({'kind': SOURCE, 'message': message, **parts})}")


def reported(report: Mapping[str, Any]) -> SourceError:
    """The error of a report of a SourceFailure."""
    kinds = {kind.__name__: kind for kind in SourceError.__subclasses__()}
    facts = {key: report.get(key) for key in ("found", "expected", "action")}
    error = kinds.get(report.get("error", ""), SourceError)(report["message"], **facts)
    error.fingerprint = str(error) if report.get("repeats") else None
    return error


def shown(path: str) -> str:
    """A path as text: a name that is not UTF-8 cannot be written down as it is."""
    return path.encode("utf-8", "backslashreplace").decode()


class _Known(Protocol):
    """A file as it was when it was discovered; the tag is None on this machine's file systems."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...
    @property
    def tag(self) -> str | None: ...


def describe_change(size: int, mtime_ns: int, tag: str | None = None) -> str:
    return f"{size} bytes, " + (f"modified at {mtime_ns} ns" if tag is None else f"tag {tag}")


def tag_of(found: storage.Stat) -> str:
    """Tells a content of a file in a store from another one: its ETag; on HDFS the time of its last change."""
    return str(found.signature[0])


def difference(known: _Known, found: storage.Stat | None) -> str | None:
    """The size and tag of the file that is there in its place; None: it is the file itself."""
    if found is None or not found.is_file:
        return "no file"
    tag = None if known.tag is None else tag_of(found)
    if known.tag is None:
        same = (found.size, found.mtime_ns) == (known.size, known.mtime_ns)
    else:
        same = (found.size, tag) == (known.size, known.tag)
    return None if same else describe_change(found.size, found.mtime_ns, tag)


def check_unchanged(known: _Known, found: storage.Stat | None) -> None:
    """Raises SourceFailure when a file is not the one that was discovered."""
    there = difference(known, found)
    if there is not None:
        raise SourceFailure(
            f"the input file {shown(known.path)} changed after it was discovered",
            found=there,
            expected=describe_change(known.size, known.mtime_ns, known.tag),
            action="restore it, or build the spout with on_changed='skip'; files must appear whole, by a rename",
        )


@contextlib.contextmanager
def unchanged(known: _Known, fetched: bytes | None = None) -> Iterator[BinaryIO]:
    """A file, opened, which is the one that was discovered, before it is read and afterwards.

    Args:
        fetched: the content, where it was checked already.
    """
    if fetched is not None:
        yield cast(BinaryIO, io.BufferedReader(cast(Any, io.BytesIO(fetched))))
    elif is_stored(known.path):
        check_unchanged(known, storage.stat_file(known.path))
        with storage.input(known.path) as file:
            yield file
        check_unchanged(known, storage.stat_file(known.path))
    else:
        with open(known.path, "rb", buffering=0) as file:
            check_unchanged(known, storage.opened_stat(file))
            # Not closed by a reader of packed files, which closes what it reads.
            yield cast(BinaryIO, io.BufferedReader(io.FileIO(file.fileno(), closefd=False), 1 << 16))
            # Read to the end while it was being overwritten: the size or time tells.
            check_unchanged(known, storage.opened_stat(file))


def _fetched(piece: Piece) -> bytes | None:
    """The content of a small file in a store, checked; None of any other."""
    if not is_stored(piece.path) or piece.size > _WHOLE_BYTES:
        return None
    with _reading(piece.path):
        data, found = storage.fetch(piece.path)
        check_unchanged(piece, found)
    return data


def _fetched_together(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, bytes | None]]:
    """The pieces, with the content of small files in stores: of several at once, since a store takes long to answer."""
    some: list[Piece] = []
    for number, piece in enumerate(pieces):
        some.append(piece)
        full = len(some) == storage.AT_ONCE or sum(min(one.size, _WHOLE_BYTES) for one in some) >= _FETCHED_BYTES
        if full or number == len(pieces) - 1 or not is_stored(piece.path):
            yield from zip(some, storage.run_concurrently([functools.partial(_fetched, one) for one in some]))
            some = []


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except BROKEN as error:
        raise SourceFailure(
            f"the input file {shown(path)} cannot be read",
            found=str(error),
            action="restore it or its permissions; the batch is tried again up to max_attempts",
        ) from error


def read_lines(
    groups: Sequence[Sequence[Piece]],
    names: bool,
    strict: bool,
    stores: Sequence[Place],
    batches: Iterable["pyarrow.RecordBatch"],
) -> Iterator["pyarrow.RecordBatch"]:
    """The function of a mapInArrow over tasks: the lines of each task's pieces.

    Args:
        groups: the pieces of each task, when rows have a task's number; when they have pickled pieces it is empty.
        names: whether to add the file's path to each line.
        strict: whether a line that is not UTF-8 is an error.
        stores: those that the files are in; a worker reaches them by what came along with these.
    """
    for batch in batches:
        for named in batch.column(0).to_pylist():
            yield from _lines_of(groups[named] if groups else pickle.loads(named), names, strict)


def _lines_of(pieces: Sequence[Piece], names: bool, strict: bool) -> Iterator["pyarrow.RecordBatch"]:
    waiting: list[tuple[str, bytes]] = []
    size = 0
    for piece, data in _fetched_together(pieces):
        for block in blocks_of(piece, data):
            if strict:
                _check_utf8(block, piece.path)
            waiting.append((shown(piece.path), block))
            size += len(block)
            if size >= _BLOCK_BYTES:
                yield _as_batch(waiting, names)
                waiting, size = [], 0
    if waiting:
        yield _as_batch(waiting, names)


def blocks_of(piece: Piece, fetched: bytes | None = None) -> Iterator[bytes]:
    """Blocks of whole lines, each line ending with a newline."""
    with _reading(piece.path), unchanged(piece, fetched) as raw, opened(raw, piece.path) as file:
        packed = is_packed(piece.path)
        position = _go_to_first_line(file, piece)
        # The first line begins at 0 for every piece, though a byte order mark be before it.
        first = piece.begin == 0 and not piece.skip
        while first or packed or position < piece.end:
            first = False
            block = file.read(_BLOCK_BYTES if packed else max(1, min(_BLOCK_BYTES, piece.end - position)))
            if not block:
                break
            if not block.endswith(b"\n"):
                block += file.readline()
            position += len(block)
            yield block if block.endswith(b"\n") else block + b"\n"


def _check_utf8(block: bytes, path: str) -> None:
    try:
        pa.array([block], pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        line = next(line for line in block.split(b"\n") if not _is_utf8(line))
        raise SourceFailure(
            f"a line is not UTF-8, in {shown(path)}",
            found=line.decode("utf-8", "replace")[:200],
            expected="text in UTF-8",
            action="correct the file's producer; where the files are in Latin-1 set the option encoding='ISO-8859-1'; "
            "with mode='PERMISSIVE' such bytes become U+FFFD",
            repeats=True,
            file=shown(path),
            digest=hashlib.sha256(line).hexdigest(),
            charset="UTF-8",
        ) from None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _go_to_first_line(file: Any, piece: Piece) -> int:
    """Goes there; returns how many bytes of the content are before it."""
    if piece.begin > piece.skip:
        # The line that begins before the piece belongs to the piece before;
        # when a line begins exactly here this reads the newline before it.
        file.seek(piece.begin - 1)
        return piece.begin - 1 + len(file.readline())
    before = piece.skip or (len(BOM) if file.peek(len(BOM))[: len(BOM)] == BOM else 0)
    return len(file.read(before))


def lines_of(block: bytes) -> "pyarrow.RecordBatch":
    """The lines of a block as a column ``value`` of bytes."""
    lines = pc.list_flatten(pc.split_pattern(pa.array([block[:-1]], pa.binary()), b"\n"))
    return pa.RecordBatch.from_arrays([lines], ["value"])


def _as_batch(blocks: list[tuple[str, bytes]], names: bool) -> "pyarrow.RecordBatch":
    lines = lines_of(b"".join(block for _, block in blocks)).column(0)
    if not names:
        return pa.RecordBatch.from_arrays([lines], ["value"])
    counts = [(path, block.count(b"\n")) for path, block in blocks]
    paths = pa.concat_arrays([pa.repeat(pa.scalar(path, pa.string()), count) for path, count in counts])
    return pa.RecordBatch.from_arrays([lines, paths], ["value", "file"])


_NEWLINE = 10
_BLANKS = bytes(range(33))  # those of `reading.py`


@dataclass(frozen=True)
class LineRows:
    """The number of rows in lines.

    Attributes:
        all_lines: whether each line is a row, as those of text are; else blank lines and comments are none, as
            `reading.py` has them.
        comment: what a line that is none begins with; empty: there are no comments.
    """

    all_lines: bool
    comment: bytes = b""

    def __call__(self, batch: "pyarrow.RecordBatch") -> int:
        """Of a batch whose first column is lines, as bytes."""
        if self.all_lines:
            return int(batch.num_rows)
        lines = batch.column(0)
        # Few lines begin as one that may be none; only these are looked at one by one.
        firsts = pa.array([b"", *(bytes([one]) for one in self._firsts)], pa.binary())
        some = lines.filter(pc.is_in(pc.binary_slice(lines, 0, 1), value_set=firsts)).to_pylist()
        return int(batch.num_rows - sum(map(self._is_none, some)))

    def of_pieces(self, pieces: Sequence[Piece]) -> int | None:
        """Of parts of files, which are read here; None: one has changed, or cannot be read."""
        try:
            return sum(self._of_block(block) for piece in pieces for block in blocks_of(piece))
        except SourceFailure:
            return None

    def _of_block(self, block: bytes) -> int:
        data = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        if self.all_lines:
            return len(ends)
        # Nearly always no line begins as one that may be none.
        firsts = np.concatenate([data[:1], data[ends[:-1] + 1]])
        some = np.isin(firsts, np.frombuffer(self._firsts, np.uint8)).any()
        return self(lines_of(block)) if some else len(ends)

    @property
    def _firsts(self) -> bytes:
        return _BLANKS + self.comment[:1]

    def _is_none(self, line: bytes) -> bool:
        return not line.strip(_BLANKS) or (self.comment != b"" and line.startswith(self.comment))
