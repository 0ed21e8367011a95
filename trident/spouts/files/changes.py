"""Handles a file that is no longer the one in the ledger: removed, replaced or grown."""

from __future__ import annotations

import logging
import os

from trident.coordinators.errors import SourceError, TopologyError
from trident.spouts.files.ledger import FileLedger, LedgerEntry
from trident.spouts.files.tasks import describe_change

log = logging.getLogger(__name__)

ON_CHANGED = ("fail", "skip")


class ChangePolicy:
    """Compares files with the ledger before their rows are used.

    With "fail" a changed or missing file is an error. With "skip" the rest of it
    is left out from then on, and that is written to the ledger first: every
    replay after it, in any process, leaves out the same.

    Args:
        on_changed: "fail" or "skip".
    """

    def __init__(self, ledger: FileLedger, on_changed: str) -> None:
        if on_changed not in ON_CHANGED:
            raise TopologyError("on_changed is unknown", found=repr(on_changed), expected=" or ".join(ON_CHANGED))
        self._ledger, self._on_changed = ledger, on_changed

    def intact(self, entry: LedgerEntry) -> bool:
        """True when a file can be read and is as discovered, False when it is skipped (recorded by now)."""
        if entry.number in self._ledger.book.skipped:
            return False
        found = _found(entry)
        if found is None:
            return True
        expected = describe_change(entry.size, entry.mtime_ns)
        if self._on_changed == "skip":
            log.warning(
                "the input file %s changed (found: %s; expected: %s) and is skipped", entry.path, found, expected
            )
            self._ledger.skip(entry.number, found)
            return False
        raise SourceError(
            f"the input file {entry.path} changed after it was discovered",
            found=found,
            expected=expected,
            action="restore it, or build the spout with on_changed='skip'; files must appear whole, by a rename",
        )


def _found(entry: LedgerEntry) -> str | None:
    """Returns what is there instead of a file; None when it is the file itself."""
    try:
        descriptor = os.open(entry.path, os.O_RDONLY)  # opened, so that a file without permission is noticed here
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return "no file"
    except OSError as error:
        raise unreadable(entry.path, error) from error
    if (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime_ns):
        return None
    return describe_change(status.st_size, status.st_mtime_ns)


def unreadable(path: str, error: Exception) -> SourceError:
    return SourceError(
        f"the input file {path} cannot be read",
        found=str(error),
        expected="a file that this user may read",
        action="correct its permissions or restore it; the batch is tried again up to max_attempts",
    )
