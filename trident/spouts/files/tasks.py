"""The tasks of Spark's Python workers that read parts of files; workers import it, so it is small."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from trident.coordinators.errors import SourceError
from trident.spouts.files.packing import BROKEN, is_packed, opened
from trident.workers.reports import SOURCE, marked

if TYPE_CHECKING:
    import pyarrow

_BLOCK_BYTES = 2 << 20
BOM = b"\xef\xbb\xbf"


class Piece(NamedTuple):
    """A part of a file: the lines whose first byte is at an offset begin ≤ … < end.

    Attributes:
        size, mtime_ns: of the file when it was discovered.
        skip: so many bytes of the content are before the first row: a header and what is before it.
    """

    path: str
    size: int
    mtime_ns: int
    begin: int
    end: int
    skip: int = 0


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


def describe_change(size: int, mtime_ns: int) -> str:
    return f"{size} bytes, modified at {mtime_ns} ns"


def check_unchanged(path: str, status: os.stat_result, size: int, mtime_ns: int) -> None:
    """Raises SourceFailure when a file is not the one that was discovered."""
    if (status.st_size, status.st_mtime_ns) != (size, mtime_ns):
        raise SourceFailure(
            f"the input file {shown(path)} changed after it was discovered",
            found=describe_change(status.st_size, status.st_mtime_ns),
            expected=describe_change(size, mtime_ns),
            action="restore it, or build the spout with on_changed='skip'; files must appear whole, by a rename",
        )


def read_lines(
    groups: Sequence[Sequence[Piece]], names: bool, strict: bool, batches: Iterable["pyarrow.RecordBatch"]
) -> Iterator["pyarrow.RecordBatch"]:
    """The function of a mapInArrow over tasks: the lines of each task's pieces.

    Args:
        groups: the pieces of each task, when rows have a task's number; when they have pickled pieces it is empty.
        names: whether to add the file's path to each line.
        strict: whether a line that is not UTF-8 is an error.
    """
    for batch in batches:
        for named in batch.column(0).to_pylist():
            yield from _lines_of(groups[named] if groups else pickle.loads(named), names, strict)


def _lines_of(pieces: Sequence[Piece], names: bool, strict: bool) -> Iterator["pyarrow.RecordBatch"]:
    waiting: list[tuple[str, bytes]] = []
    size = 0
    for piece in pieces:
        for block in blocks_of(piece):
            if strict:
                _check_utf8(block, piece.path)
            waiting.append((shown(piece.path), block))
            size += len(block)
            if size >= _BLOCK_BYTES:
                yield _as_batch(waiting, names)
                waiting, size = [], 0
    if waiting:
        yield _as_batch(waiting, names)


def blocks_of(piece: Piece) -> Iterator[bytes]:
    """Blocks of whole lines, each line ending with a newline."""
    try:
        with open(piece.path, "rb", buffering=1 << 16) as raw, opened(raw, piece.path) as file:
            check_unchanged(piece.path, os.fstat(raw.fileno()), piece.size, piece.mtime_ns)
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
            # Read to the end while it was being overwritten: the size or time tells.
            check_unchanged(piece.path, os.fstat(raw.fileno()), piece.size, piece.mtime_ns)
    except BROKEN as error:
        raise SourceFailure(
            f"the input file {shown(piece.path)} cannot be read",
            found=str(error),
            action="restore it or its permissions; the batch is tried again up to max_attempts",
        ) from error


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
