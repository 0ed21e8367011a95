"""Failures below a running topology: of its Spark session, its storage, its memory, its warehouse's place."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trident.coordinators.errors import (
    BatchOutOfMemory,
    BatchTimeout,
    Deposed,
    FailedException,
    Halted,
    OutcomeUnknown,
    SessionEnded,
    StorageProblem,
    TridentError,
    UserFunctionError,
)
from trident.coordinators.tracebacks import causes, text_of
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.storage import STORES, store_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Detects the end of a running topology's Spark session: it was stopped, or its JVM has died.


def session_end(spark: "SparkSession", ask: bool = False) -> SessionEnded | None:
    """Why nothing can run on the session any more; None while it can. Cheap enough to be asked all the time.

    Args:
        ask: also asks the JVM, which costs a call.
    """
    context = spark.sparkContext
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    if process is not None and process.poll() is not None:
        return _jvm_gone(f"its process {process.pid} ended with {process.returncode}")
    if context._jsc is None:
        return _stopped()
    if ask:
        try:
            if context._jsc.sc().isStopped():
                return _stopped()
        except Exception as error:  # py4j's: no JVM answers
            return _jvm_gone(f"it does not answer: {type(error).__name__}")
    return None


def _stopped() -> SessionEnded:
    return SessionEnded(
        "the Spark session was stopped while the topology ran",
        found="spark.stop()",
        expected="query.stop() before spark.stop()",
        action="start the topology again, with a new session: it continues from its last transaction",
    )


def _jvm_gone(found: str) -> SessionEnded:
    return SessionEnded(
        "the JVM of the Spark session is gone",
        found=found,
        expected="a JVM that lives as long as the topology; the system's log says whether it ran out of memory",
        action="start the topology again in a new process: it continues from its last transaction",
    )


# Explains errors of the storage or the memory below: where, how much is left, and what to do.
#
# A full disk shows as an ``OSError`` of Python, as an exception of Java or of SQLite,
# or as the text of a Spark task that failed; an executor without memory as an
# exit code. None of them says which folder, or that nothing is lost. This module
# finds the cause in the text and says it in one line.


_FULL = ("no space left on device", "database or disk is full", "disk quota exceeded")
_READ_ONLY = ("read-only file system", "attempt to write a readonly database")
_FORBIDDEN = ("permission denied", "operation not permitted", "unable to open database file")
# 52 is Spark's exit code of an executor that ran out of heap. Not 137: that is any SIGKILL.
_MEMORY = re.compile(
    r"java\.lang\.OutOfMemoryError|exited with code 52\b|\bMemoryError\b|\bArrowMemoryError\b"
    r"|ExecutorLostFailure[^\n]*\bOOM\b|Not enough memory to build and broadcast"
    r"|is bigger than spark\.driver\.maxResultSize"
)
_OF_A_STORE = re.compile(rf"\[Errno (\d+)\] ([^\n]*?): '((?:{'|'.join(STORES)})://[^'\n]+)'")
_NEXT = "nothing is lost: the batch is tried again, and after max_attempts it continues at the next start"
_TRUSTED = (
    BatchOutOfMemory,
    BatchTimeout,
    FailedException,
    UserFunctionError,
    Deposed,
    Halted,
    OutcomeUnknown,
    StorageProblem,
)


class FailureExplainer:
    """Turns an error of an attempt into one that names the full disk, the read-only folder, or the lack of memory.

    Args:
        folders: what the topology writes to: the warehouse, Spark's local folders.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(dict.fromkeys(Path(folder) for folder in folders))

    def __call__(self, error: BaseException) -> BaseException:
        """The error itself unless its cause is the storage or the memory; never raises."""
        if isinstance(error, _TRUSTED) and not (isinstance(error, UserFunctionError) and "MemoryError" in str(error)):
            return error
        text = _text_of(error)
        found: TridentError | None = None
        try:
            found = _store(text) or self._storage(text) or _memory(text)
        except OSError:
            return error  # the folder itself cannot be looked at: the error says as much
        if found is None:
            return error
        found.__cause__ = error
        return found

    def _storage(self, text: str) -> StorageProblem | None:
        lower = text.lower()
        for words, meaning, judge in (
            (_FULL, "a disk is full (No space left on device)", _fullest),
            (_READ_ONLY, "a folder is read-only (Read-only file system)", _read_only),
            (_FORBIDDEN, "a folder may not be written (Permission denied)", _forbidden),
        ):
            if not any(word in lower for word in words):
                continue
            folders = judge(self._folders)
            if not folders and words is _FORBIDDEN:
                return None  # another refused: a server, a user's own file
            where = "; ".join(folders) or f"none of {', '.join(map(str, self._folders))} any more"
            action = "make room there" if words is _FULL else "make it writable again"
            return StorageProblem(f"{meaning}: {where}", found=_line_with(text, words), action=f"{action}; {_NEXT}")
        return None


def written_folders(spark: "SparkSession", warehouse: Place) -> list[Path]:
    """The folders that a topology writes to on this machine."""
    local = spark.sparkContext.getConf().get("spark.local.dir", "") or os.environ.get("SPARK_LOCAL_DIRS", "/tmp")
    here = [Path(warehouse)] if warehouse.is_local else []
    return [*here, *(Path(part) for part in local.split(",") if part)]


def _store(text: str) -> StorageProblem | None:
    """An error that a store told, here or in a task, whose text alone comes back."""
    for number, said, named in _OF_A_STORE.findall(text):
        if int(number) not in (errno.ENOENT, errno.EEXIST):
            return store_problem(OSError(int(number), said, named), then=_NEXT)
    return None


def _memory(text: str) -> BatchOutOfMemory | None:
    match = _MEMORY.search(text)
    if match is None:
        return None
    return BatchOutOfMemory(
        "the driver, an executor, or a Python worker, has run out of memory",
        found=_line_with(text, (match[0].lower(),)),
        action="make batches smaller (max_rows of the spout) or give more memory (spark.executor.memory, "
        f"spark.executor.pyspark.memory, in local mode spark.driver.memory); {_NEXT}",
    )


def _fullest(folders: Sequence[Path]) -> list[str]:
    """Those on a file system with little room; else the one with the least."""
    shares = []
    for folder in folders:
        status = os.statvfs(folder)
        free, size = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        files_left = status.f_favail if status.f_files else 1
        said = f"{folder} has {_size(free)} free of {_size(size)}" + ("" if files_left else ", and no file left")
        shares.append((0.0 if not files_left else free / size if size else 1.0, said))
    low = [said for share, said in shares if share < 0.05]
    return low or [min(shares)[1]] if shares else []


def _read_only(folders: Sequence[Path]) -> list[str]:
    return [str(folder) for folder in folders if os.statvfs(folder).f_flag & os.ST_RDONLY]


def _forbidden(folders: Sequence[Path]) -> list[str]:
    found = []
    for folder in folders:
        # Files in the others, which are for temporary files, may be other programs'.
        below = sorted(folder.glob("*")) if folder == folders[0] else []
        found += [str(one) for one in [folder, *below] if one.is_dir() and not os.access(one, os.W_OK | os.X_OK)]
    return found


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _text_of(error: BaseException) -> str:
    """Returns what the error and its causes say, the outermost first."""
    return "\n".join(f"{type(one).__name__}: {text_of(one)}" for one in causes(error))


def _line_with(text: str, words: Sequence[str]) -> str:
    for line in text.splitlines():
        if any(word in line.lower() for word in words):
            return line.strip()[:300]
    return text.strip().splitlines()[0][:300]


# Checks that a running topology's warehouse is still where it was when the topology started.


_CHECK_SECS = 0.5
_CHECK_STORE_SECS = 10.0  # each look costs requests


class WarehouseProbe:
    """Checks that the topology's own folder is in the warehouse, as it is from the start."""

    def __init__(self, warehouse: Place, topology: str) -> None:
        self._warehouse, self._topology = warehouse, topology
        self._folder = warehouse / "_trident"
        self._check_secs = _CHECK_SECS if warehouse.is_local else _CHECK_STORE_SECS
        self._checked_at = -self._check_secs
        self._missed = False

    def is_missing(self, sure: bool = False) -> bool:
        """Tells whether it is gone: seen twice, half a second apart, or at once when ``sure`` asks for it.

        A file system that does not answer is not one that is gone.
        """
        now = time.monotonic()
        if not sure and now - self._checked_at < self._check_secs:
            return False
        self._checked_at = now
        missed_before, self._missed = self._missed, not self._is_there()
        return self._missed and (sure or missed_before)

    def _is_there(self) -> bool:
        try:
            return storage.is_folder(self._folder)
        except OSError:
            return True

    def halted(self) -> Halted:
        """Why the topology stops."""
        return Halted(
            f"the warehouse {self._warehouse} was moved or deleted while topology {self._topology!r} runs; nothing is "
            "written at the old place, and no transaction is lost",
            found=f"no folder {self._folder}",
            expected="the warehouse where it was when the topology started",
            action="start the topology with the new place (--warehouse FOLDER, or warehouse=…): it continues where it "
            "was; or put the warehouse back. A disk that is not mounted looks the same",
        )
