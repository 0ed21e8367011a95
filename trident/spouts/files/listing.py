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
from collections.abc import Container, Iterator
from typing import Any

from trident.coordinators.errors import SourceError, TopologyError
from trident.spouts.files.ledger import FoundFile
from trident.spouts.files.tasks import shown

log = logging.getLogger(__name__)
_NOWHERE = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG)
_said: set[str] = set()


def as_paths(path: Any) -> tuple[str, ...]:
    """The absolute paths or globs that a user gave."""
    given = list(path) if isinstance(path, (list, tuple, set, frozenset)) else [path]
    if not given:
        raise TopologyError("FileSpout needs a path", found=repr(path), expected="a folder, a file or a glob")
    return tuple(_as_path(item) for item in given)


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
        raise TopologyError(
            "FileSpout reads files that the driver and the workers see in their file systems",
            found=text,
            expected="a path without a scheme, or file://",
            action="mount it, or read it with a spout of your own that returns DataFrames",
        )
    return os.path.abspath(os.path.expanduser(text))


def _hidden(name: str) -> bool:
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
                raise _cannot_list(path, base, error) from error

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
                        file = look_at(name)
                        if file is not None and file.size:
                            found[name] = file
            except OSError as error:
                raise _cannot_list(path, error.filename or path, error) from error
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
            if any(_hidden(part) for part in os.path.relpath(name, base).split(os.sep)):
                continue
            if os.path.isdir(name):
                if not recursive:
                    yield from _in_folder(name)
            else:
                yield name


def look_at(path: str) -> FoundFile | None:
    """A regular file as it is now; None when there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None  # renamed or removed since it was listed
    except OSError as error:
        if leads_nowhere(path, error):
            return None
        raise
    if not stat.S_ISREG(status.st_mode):
        return None
    return FoundFile(path, status.st_size, status.st_mtime_ns, identity=(status.st_ino, status.st_ctime_ns))


def _in_folder(folder: str) -> Iterator[str]:
    with os.scandir(folder) as items:
        for item in items:
            if not _hidden(item.name) and not _is_folder(item):
                yield item.path


def _is_folder(item: "os.DirEntry[str]") -> bool:
    try:
        return item.is_dir()
    except OSError as error:
        if leads_nowhere(item.path, error):
            return True  # passed over like one
        raise


def leads_nowhere(path: str, error: OSError) -> bool:
    """Tells whether a link leads to no file: to itself, or to where this process may not go. Logs it once."""
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
    if os.path.exists(path):
        return path
    while glob.has_magic(path):
        path = os.path.dirname(path)
    return path


def _cannot_list(path: str, base: str, error: OSError) -> SourceError:
    missing = isinstance(error, FileNotFoundError)
    return SourceError(
        f"the input path {path} cannot be read",
        found=f"{base} does not exist" if missing else str(error),
        expected="a folder, a file or a glob in a folder that exists",
        action="make the folder, or correct the path" if missing else "correct the path or its permissions",
    )
