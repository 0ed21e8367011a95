"""The files that Spark's own source of files has read, from a checkpoint, as a position of a FileSpout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from trident.coordinators.errors import SourceError
from trident.spouts.checkpoint import SourceOffset, seen_files
from trident.spouts.files.ledger import FileLedger, FoundFile
from trident.spouts.files.listing import look_at
from trident.spouts.files.source import folder_of


def local_files(source: SourceOffset) -> dict[str, int]:
    """The files that the source had given: path on this host → modification time in ms.

    Raises:
        SourceError: they are elsewhere, or the source's log is torn.
    """
    found = {}
    for url, moment in seen_files(source).items():
        parts = urlsplit(url)
        if parts.scheme not in ("", "file") or parts.netloc:
            raise SourceError(
                f"source {source.name} of the checkpoint has read files that a FileSpout cannot",
                found=url,
                expected="files that the driver and the workers see in their file systems",
            )
        found[unquote(parts.path)] = moment
    return found


def are_below(files: Mapping[str, int], paths: Sequence[str]) -> bool:
    """Tells whether all files are in the folders, or globs, that a spout looks at."""
    folders = [folder_of(path).rstrip("/") for path in paths]
    return all(any(file == folder or file.startswith(folder + "/") for folder in folders) for file in files)


def numbered(files: Mapping[str, int], ledger: FileLedger, counts_rows: bool, what: str) -> int:
    """Gives numbers to the files that were read, durably, and returns how many there are.

    A file that is there no more has a number too, so that one of its name is not read later, as Spark would not.

    Raises:
        SourceError: the ledger has files that were not read: the topology has begun, or another import has.
    """
    strange = [entry.path for entry in ledger.book.entries if entry.path not in files]
    if strange:
        raise SourceError(
            f"{what} has a ledger already, with files that the checkpoint has not read",
            found=f"{strange[0]} in {ledger.path}",
            expected="a topology that has not begun",
            action="begin again with `trident reset NAME`",
        )
    rows = 0 if counts_rows else None
    found = []
    for path in sorted(files, key=lambda path: (files[path], path)):
        there = look_at(path)
        found.append(FoundFile(path, 0, files[path] * 1_000_000, rows) if there is None else there._replace(rows=rows))
    if found:
        ledger.append(found)
    return len(ledger.book)


def position(number: int, ledger: FileLedger, counts_rows: bool) -> dict[str, Any]:
    """The metadata of an empty batch behind this many files."""
    place = [number + 1, 0]
    last = {"file": ledger.pin(number)} if number else {}
    return {"from": place, "to": place, "rows" if counts_rows else "rows_estimate": 0, **last}
