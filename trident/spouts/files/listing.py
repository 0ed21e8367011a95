"""Lists the files of a path again and again: a folder, a glob or one file.

Names that begin with ``_`` or ``.`` are left out, as Spark leaves them out, and
so are Hadoop's half-copied ``…._COPYING_``: a file appears by being renamed.
"""

from __future__ import annotations

import errno
import glob
import logging
import os
import stat
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from trident.coordinators.errors import IdentityMismatch, SourceError, TopologyError
from trident.spouts.checkpoint import SourceOffset, seen_files
from trident.spouts.files.ledger import FileLedger, FoundFile, LedgerEntry, moved_path
from trident.spouts.files.objects import folder_of_url, found_object
from trident.spouts.files.tasks import describe_change, difference, is_stored, opened_file, shown
from trident.states.core import storage
from trident.states.core.place import store_place

log = logging.getLogger(__name__)
_NOWHERE = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG)
_said: set[str] = set()


def as_paths(path: Any) -> tuple[str, ...]:
    """The absolute paths or globs that a user gave."""
    given = list(path) if isinstance(path, (list, tuple, set, frozenset)) else [path]
    if not given:
        raise TopologyError("FileSpout needs a path", found=repr(path), expected="a folder, a file or a glob")
    paths = tuple(_as_path(item) for item in given)
    if len({is_stored(path) for path in paths}) > 1:
        raise TopologyError(
            "the paths of a FileSpout are of two kinds",
            found=", ".join(paths),
            expected="paths of this machine's file systems, or URLs of stores",
            action="give each kind a stream of its own",
        )
    return paths


def _as_path(item: Any) -> str:
    try:
        text = os.fspath(item)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise TopologyError("FileSpout needs a path", found=repr(item), expected="a folder, a file or a glob")
    if text.startswith("file://"):
        text = text[len("file://") :]
    elif "://" in text:
        return str(store_place(text, "the files of a FileSpout", "correct its path", TopologyError))
    return os.path.abspath(os.path.expanduser(text))


def hidden(name: str) -> bool:
    return name.startswith(("_", ".")) or name.endswith("._COPYING_")


class FileListing:
    """Finds files that are not known yet.

    Args:
        paths: absolute folders, files or globs. A folder is not searched below
            itself; a glob with ``**`` is.
    """

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = paths

    def check(self) -> None:
        """Makes sure that each path exists; a folder may be empty, a glob may match nothing yet.

        Raises:
            SourceError: one does not, or cannot be listed.
        """
        for path in self._paths:
            if os.path.isfile(path):
                continue
            base = folder_of(path)
            try:
                os.scandir(base).close()
            except OSError as error:
                raise cannot_list(path, base, error) from error

    def places(self) -> tuple[str, ...]:
        """Each path as far as it is a folder or a file: of a glob the folder that it begins with."""
        return tuple(map(folder_of, self._paths))

    def new_files(self, known: Container[str]) -> list[FoundFile]:
        """The files whose path is not known, in the order (mtime, path).

        Empty files are left out: one that has just been opened for writing is empty for a moment, and has no rows.

        Raises:
            SourceError: a folder cannot be listed.
        """
        found: dict[str, FoundFile] = {}
        for path in self._paths:
            try:
                for name in self._candidates(path):
                    if name not in known and name not in found:
                        file = found_file(name)
                        if file is not None and file.size:
                            found[name] = file
            except OSError as error:
                raise cannot_list(path, error.filename or path, error) from error
        return sorted(found.values(), key=lambda file: (file.mtime_ns, file.path))

    def _candidates(self, path: str) -> Iterator[str]:
        if not _is_glob(path):
            try:
                yield from _in_folder(path)
            except NotADirectoryError:
                yield path  # a file named by the user is read whatever its name
            return
        base = folder_of(path)
        recursive = "**" in path
        for name in glob.iglob(path, recursive=True):
            if any(hidden(part) for part in os.path.relpath(name, base).split(os.sep)):
                continue
            if os.path.isdir(name):
                if not recursive:
                    yield from _in_folder(name)
            else:
                yield name


def found_file(path: str) -> FoundFile | None:
    """A regular file as it is now; None when there is none."""
    if is_stored(path):
        return found_object(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None  # renamed or removed since it was listed
    except OSError as error:
        if is_dangling_link(path, error):
            return None
        raise
    if not stat.S_ISREG(status.st_mode):
        return None
    return FoundFile(path, status.st_size, status.st_mtime_ns, identity=(status.st_ino, status.st_ctime_ns))


def _in_folder(folder: str) -> Iterator[str]:
    with os.scandir(folder) as items:
        for item in items:
            if not hidden(item.name) and not _is_folder(item):
                yield item.path


def _is_folder(item: "os.DirEntry[str]") -> bool:
    try:
        return item.is_dir()
    except OSError as error:
        if is_dangling_link(item.path, error):
            return True  # passed over like one
        raise


def is_dangling_link(path: str, error: OSError) -> bool:
    """Tells whether a link leads to no file: to itself, or to where this process has no access. Logs it once."""
    if not os.path.islink(path) or error.errno not in _NOWHERE:
        return False
    if path not in _said:
        _said.add(path)
        log.warning("%s is passed over: %s", shown(path), error.strerror)
    return True


def _is_glob(path: str) -> bool:
    # A file or folder of exactly that name comes first: [a] may be a name.
    return glob.has_magic(path) and not os.path.exists(path)


def folder_of(path: str) -> str:
    """The folder, or file, at the beginning of a glob; any other path itself."""
    if is_stored(path):
        return folder_of_url(path)
    if os.path.exists(path):
        return path
    while glob.has_magic(path):
        path = os.path.dirname(path)
    return path


def cannot_list(path: str, base: str, error: OSError) -> SourceError:
    missing = isinstance(error, FileNotFoundError)
    return SourceError(
        f"the input path {path} cannot be read",
        found=f"{base} does not exist" if missing else str(error),
        expected="a folder, a file or a glob in a folder that exists",
        action="make the folder, or correct the path" if missing else "correct the path or its permissions",
    )


# Handles a file that is no longer the one in the ledger: removed, replaced or grown.


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
        self.fails = on_changed == "fail"
        self._rechecked_to = 0  # the number of the last file that was looked at once more
        self._said: set[tuple[int, int, int]] = set()
        self._identities: dict[str, tuple[int, int] | None] = {}  # of files as this process has first seen them

    def discovered(self, found: Sequence[FoundFile]) -> None:
        """Remembers which files those are that were just put into the ledger."""
        self._identities.update((file.path, file.identity) for file in found)

    def recheck(self, before: int) -> None:
        """Checks whether files that were read to their end have changed since: later rows are in no batch.

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
        at = self._rechecked_to if self._rechecked_to + 1 < newest.start else 0
        others = range(at + 1, min(at + 1 + _AGAIN, newest.start))
        self._rechecked_to = others.stop - 1
        touched = []
        for number in (*others, *newest):
            entry = book.entry(number)
            if number in book.skipped or _is_imported(entry):
                continue
            found = found_file(entry.path)
            if found is None:
                continue
            if (found.size, found.mtime_ns) != (entry.size, entry.mtime_ns):
                self.changed_after(entry, found)
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

    def changed_after(self, entry: LedgerEntry, found: FoundFile) -> None:
        """Raises SourceError, or warns, where a file that was read to its end is another one now."""
        what = f"the input file {shown(entry.path)} changed after it was read"
        there = describe_change(found.size, found.mtime_ns, found.tag)
        was = describe_change(entry.size, entry.mtime_ns, entry.tag)
        if self._on_changed == "fail" and (found.size, found.tag) != (entry.size, entry.tag):
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
        expected = describe_change(entry.size, entry.mtime_ns, entry.tag)
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
        if is_stored(entry.path):
            return difference(entry, storage.stat_file(entry.path))
        with opened_file(entry.path, 0) as file:  # opened, so that a file without permission is noticed here
            return difference(entry, storage.opened_stat(file))
    except (FileNotFoundError, NotADirectoryError):
        return "no file"
    except OSError as error:
        raise unreadable(entry.path, error) from error


def unreadable(path: str, error: Exception) -> SourceError:
    return SourceError(
        f"the input file {path} cannot be read",
        found=str(error),
        expected="a file that this user may read",
        action="correct its permissions or restore it; the batch is tried again up to max_attempts",
    )


# The files that a stream has read so far: in the paths of its FileSpout, or by a query of Structured Streaming.


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
    marks = ledger.book.marks
    others = [
        one
        for one in marks
        if any(_related(one, path) for path in paths if one not in paths or (path not in marks and path != one))
    ]
    if others:
        raise IdentityMismatch(
            f"stream {tx_id!r} of topology {topology!r} has forgotten which files it has read at a path that overlaps "
            "with one of now: they would be read again",
            found=", ".join(paths),
            expected=", ".join([*others, "or paths that are not below these or above them"]),
            action=f"give the spout the path that it had; to begin again: `trident reset {topology}`",
        )
    if not ledger.book.entries:
        return
    if before is None:
        known = [entry.path for entry in ledger.book.entries]
        if not any(_related(path, folder) for path in known[-1:] for folder in paths):
            log.warning(
                "stream %r of topology %r has read files such as %s, and now reads %s: all files there are new",
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
            f"FileSpout(…, moved_from={folder_of(before[0])!r}); to continue with other files, name both paths in a "
            f"list until a file of the new one was found; to begin again: `trident reset {topology}`",
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
        if is_stored(url):
            found[unquote(url)] = moment
            continue
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
    paths = sorted(files, key=lambda path: (files[path], path))
    found = [
        FoundFile(path, 0, files[path] * 1_000_000, rows) if there is None else there._replace(rows=rows)
        for path, there in zip(paths, storage.run_concurrently([partial(found_file, path) for path in paths]))
    ]
    if found:
        ledger.append(found)
    return len(ledger.book)


def position(number: int, ledger: FileLedger, counts_rows: bool) -> dict[str, Any]:
    """The metadata of an empty batch behind this many files."""
    place = [number + 1, 0]
    last = {"file": ledger.pin(number)} if number else {}
    return {"from": place, "to": place, "rows" if counts_rows else "rows_estimate": 0, **last}
