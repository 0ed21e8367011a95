"""Cuts batches of files: pure positions over the ledger.

A position is ``(number, offset)``: all of the files before that number and the
first offset bytes (Parquet: rows) of it are before the position. The end of a
file is written as the beginning of the next number, also when that file is not
there yet, so that one place has one name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from trident.spouts.arguments import foreign_metadata
from trident.spouts.contracts import Json
from trident.spouts.files.ledger import LedgerBook, LedgerEntry

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
