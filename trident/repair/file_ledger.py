"""Finds a FileSpout's ledger that is lost or damaged, and writes it again where that can be proved.

The proof is the digest that the last batch has of its last file: it is over
every line of the ledger up to there. So what is still readable, and then the
files that are there now in the order in which they would have been found, is
the ledger that was lost if, and only if, it comes to that digest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trident.coordinators import faults
from trident.coordinators.errors import SourceError
from trident.coordinators.stored_json import Unreadable
from trident.maintenance.facts import LedgerDamage
from trident.spouts.files.cuts import read_position
from trident.spouts.files.ledger import SCHEMA, FileLedger, LedgerBook, line_of
from trident.spouts.files.listing import FileListing
from trident.spouts.files.parquet import count_rows
from trident.states.core import storage
from trident.states.core.place import Place

_PINNED = {"path", "size", "mtime_ns", "digest"}
WRITE = faults.register("repair.ledger", "writing a ledger of files again")


def look_at_ledger(folder: Place, incarnation: str, pins: Mapping[int, Any], spout: str) -> LedgerDamage | None:
    """Returns what is wrong with the ledger of a stream; None for other streams than a FileSpout's.

    Args:
        folder: the stream's.
        pins: txid → what is pinned.
        spout: the class of its spout, as the topology's identity has it.
    """
    metadata = pins[max(pins)] if pins else None
    path = folder / f"files-{incarnation}.jsonl"
    if not isinstance(metadata, dict) or not {"from", "to"} <= metadata.keys():
        return None
    # A spout of the user's may have keys of these names for something else; a class made from FileSpout has its ledger.
    file = metadata.get("file")
    pinned = file if isinstance(file, dict) and file.keys() == _PINNED else None
    if pinned is None and spout != "FileSpout":
        return None
    unit = "rows" if "rows" in metadata else "bytes"
    try:
        position = read_position(metadata, "to")
    except SourceError:  # a class of the user's has that name
        return None
    number = position.number if position.offset else position.number - 1
    try:
        FileLedger(path, unit).check(number, pinned)
    except SourceError as error:
        try:
            data = _as_it_was(path, unit, number, pinned) if pinned is not None else None
        except (SourceError, OSError, Unreadable):  # the files are gone as well, or the disk refuses
            data = None
        return LedgerDamage(str(path), str(error), data)
    return None


def write_ledger(damage: LedgerDamage) -> str:
    """Writes the ledger again; the file that is there is kept beside it.

    Raises:
        SourceError: a folder, or another thing that is no file, is in its place.
    """
    assert damage.data is not None
    aside = f"{damage.path}.damaged"
    with faults.fault_point(WRITE):
        if storage.local_path(damage.path) is None:
            raise SourceError(
                f"the ledger of files {damage.path} is written again on a disk alone",
                found="a store, where it is a folder of parts",
                action="bring the parts back from the store's own versions, then run this again",
            )
        there = storage.stat(damage.path)
        if there is not None and not there.is_file:
            raise SourceError(
                f"the ledger of files {damage.path} cannot be written again",
                found=there.described,
                expected="the ledger, or nothing",
                action="move it away, then run this again",
            )
        if there is not None:
            storage.write(aside, storage.read(damage.path))
        storage.write(damage.path, damage.data)
    return f"{damage.path} is as it was again; the file that was there instead is {aside}"


def _as_it_was(path: Place, unit: str, number: int, pinned: Mapping[str, Any]) -> bytes | None:
    book, lines = LedgerBook(unit), list[bytes]()
    there = storage.stat(path)
    for line in storage.read(path).splitlines(keepends=True) if there is not None and there.is_file else ():
        try:
            book.apply(line)
        except ValueError:
            book, lines = _readable(unit, lines)
            break
        lines.append(line)
    if len(book) >= number:
        return None  # more is there than the batches have seen, and it is another ledger
    if not book.header_seen:
        source = [os.path.dirname(pinned["path"])]
        lines.append(_line(book, {"ledger": "trident-files", "schema": SCHEMA, "unit": unit, "source": source}))
    found = FileListing(book.source or (os.path.dirname(pinned["path"]),)).new_files(book.numbers)
    for file in found[: number - len(book)]:
        rows = None
        if unit == "rows":
            rows = count_rows(file.path)
        lines.append(_line(book, {"n": len(book) + 1, **file._replace(rows=rows).stored()}))
    proved = len(book) == number and book.digest_at(number) == pinned["digest"]
    return b"".join(lines) if proved else None


def _readable(unit: str, lines: list[bytes]) -> tuple[LedgerBook, list[bytes]]:
    book = LedgerBook(unit)  # anew: a line that is refused may have been taken in half
    for line in lines:
        book.apply(line)
    return book, lines


def _line(book: LedgerBook, value: dict[str, Any]) -> bytes:
    line, _ = line_of(book.digest, value)
    book.apply(line)
    return line
