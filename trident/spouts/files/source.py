"""Checks that a FileSpout still looks at the files that its stream has read so far."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Sequence

from trident.coordinators.errors import IdentityMismatch
from trident.spouts.files.ledger import FileLedger, moved_path

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


def folder_of(path: str) -> str:
    """The folder, or file, at the beginning of a glob; any other path itself."""
    if os.path.exists(path):
        return path
    while glob.has_magic(path):
        path = os.path.dirname(path)
    return path


def _related(one: str, other: str) -> bool:
    one, other = (folder_of(path).rstrip("/") for path in (one, other))
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")
