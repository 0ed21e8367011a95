"""Handles a file that is no longer the one in the ledger: removed, replaced or grown."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from trident.coordinators.errors import SourceError, TopologyError
from trident.spouts.files.ledger import FileLedger, FoundFile, LedgerEntry
from trident.spouts.files.listing import look_at
from trident.spouts.files.tasks import describe_change, shown

log = logging.getLogger(__name__)

ON_CHANGED = ("fail", "skip")
# At each look so many of the files that were read last are looked at once more, and as many of the others.
_AGAIN = 200


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
        self._looked_to = 0  # the number of the last file that was looked at once more
        self._said: set[tuple[int, int, int]] = set()
        self._identities: dict[str, tuple[int, int] | None] = {}  # of files as this process has first seen them

    def discovered(self, found: Sequence[FoundFile]) -> None:
        """Remembers which files those are that were just put into the ledger."""
        self._identities.update((file.path, file.identity) for file in found)

    def look_again(self, before: int) -> None:
        """Looks whether files that were read to their end have changed since: rows that came later are in no batch.

        At each look the files that were discovered last and some of the others, in their turn. A file that has
        gone may go. With "skip", or where the size is what it was, a change is a warning; else an error,
        until the file is moved away. Where the time is what it was, too, the inode tells.

        Args:
            before: files with a smaller number were read to their end.

        Raises:
            SourceError: a file has another size than when it was read, and on_changed is "fail".
        """
        book = self._ledger.book
        newest = range(max(1, before - _AGAIN), before)
        at = self._looked_to if self._looked_to + 1 < newest.start else 0
        others = range(at + 1, min(at + 1 + _AGAIN, newest.start))
        self._looked_to = others.stop - 1
        touched = []
        for number in (*others, *newest):
            entry = book.entry(number)
            if number in book.skipped or _is_imported(entry):
                continue
            found = look_at(entry.path)
            if found is None:
                continue
            if (found.size, found.mtime_ns) != (entry.size, entry.mtime_ns):
                self._changed_after(entry, found)
            elif self._identities.setdefault(entry.path, found.identity) != found.identity:
                self._identities[entry.path] = found.identity
                touched.append(shown(entry.path))
        if touched:
            log.warning(
                "the input file %s%s was replaced or written to after it was discovered, and has the same size and "
                "modification time; rows that it did not have when it was read are in no batch (a change of owner or "
                "permissions, or a new link to it, shows the same)",
                touched[0],
                f" (and {len(touched) - 1} others)" if len(touched) > 1 else "",
            )

    def _changed_after(self, entry: LedgerEntry, found: FoundFile) -> None:
        what = f"the input file {shown(entry.path)} changed after it was read"
        there = describe_change(found.size, found.mtime_ns)
        was = describe_change(entry.size, entry.mtime_ns)
        if self._on_changed == "fail" and found.size != entry.size:
            raise SourceError(
                f"{what}: rows that came since are in no batch",
                found=there,
                expected=was,
                action="move it to a name that was not read yet, and it is read from its beginning; or take it out of "
                "the folder; with on_changed='skip' this is a warning. Each file must appear whole, under a new name",
            )
        key = (entry.number, found.size, found.mtime_ns)
        if key not in self._said:
            self._said.add(key)
            log.warning("%s, and is not read again (found: %s; was: %s)", what, there, was)

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


def _is_imported(entry: LedgerEntry) -> bool:
    """A file that another program has read, and that had gone when this was written down: its size is not known."""
    return entry.size == 0 and entry.mtime_ns % 1_000_000 == 0


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
