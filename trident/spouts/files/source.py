"""The files that a stream has read so far: in the paths of its FileSpout, or by a query of Structured Streaming."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from trident.coordinators.errors import IdentityMismatch, SourceError
from trident.spouts.checkpoint import SourceOffset, seen_files
from trident.spouts.files.ledger import FileLedger, FoundFile, moved_path
from trident.spouts.files.listing import folder_of, look_at

log = logging.getLogger(__name__)


def accept_source(ledger: FileLedger, paths: Sequence[str], moved_from: str | None, topology: str, tx_id: str) -> None:
    """Compares the paths with those that the ledger has last been used with.

    They may grow, shrink, or become a glob in the same folder. Paths that
    have nothing to do with the ones before are most often another program's
    topology of the same name, and are refused. A ledger of a version before
    does not say its paths: there it is a warning.

    Raises:
        IdentityMismatch: other paths, and no setting says that the folder was moved.
        SourceError: the folder cannot be the one that was moved.
    """
    before = ledger.book.source
    if moved_from is not None:
        ledger.move(moved_from, folder_of(paths[0]))
        before = before and tuple(moved_path(path, moved_from, folder_of(paths[0])) for path in before)
    if not ledger.book.entries:
        return
    if before is None:
        known = [entry.path for entry in ledger.book.entries]
        if not any(_related(path, folder) for path in known[-1:] for folder in paths):
            log.warning(
                "stream %r of topology %r has read files such as %s, and now looks at %s: all files there are new",
                tx_id,
                topology,
                known[-1],
                ", ".join(paths),
            )
        return
    if not any(_related(one, other) for one in paths for other in before):
        raise IdentityMismatch(
            f"stream {tx_id!r} of topology {topology!r} has read other files so far than it is to read now",
            found=", ".join(paths),
            expected=", ".join(before),
            action="give the topology another name if it is another one; if the folder was moved, say so once with "
            f"FileSpout(…, moved_from={folder_of(before[0])!r}); to go on with other files, name both paths in a list "
            f"until a file of the new one was found; to begin again: `trident reset {topology}`",
        )


def _related(one: str, other: str) -> bool:
    one, other = (folder_of(path).rstrip("/") for path in (one, other))
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


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
