"""An SQLite file as one process has it open: the connection, its transactions, and what a fork or a new file means."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trident.coordinators.errors import OutcomeUnknown

BUSY_TIMEOUT_SECS = 30.0
USABLE = f"an SQLite file in a folder that exists, on a local disk, not locked for longer than {BUSY_TIMEOUT_SECS:g} s"
# Connections of the parent process: they may neither be used nor closed in a child
# (sqlite.org/howtocorrupt.html, section 2.6), so they are kept from the garbage collector.
_inherited: list[sqlite3.Connection] = []


class OpenFile:
    """A connection to the file that was at a path when it was opened; closed when it is no longer referred to.

    Args:
        path: of the file, which is made if it is not there; its folder is.
        synchronous: SQLite's setting; with FULL a committed transaction survives a loss of power.
        any_thread: any thread may use it, one at a time; else only the one that opened it.

    Attributes:
        connection: begins no transaction by itself: see :func:`transaction`.
        tables: those of which the user of this object knows that they are there.
    """

    def __init__(self, path: str, synchronous: str = "FULL", any_thread: bool = False) -> None:
        # Transactions are begun explicitly: Python's own would begin without the write lock.
        self.connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_SECS, isolation_level=None, check_same_thread=not any_thread
        )
        self._path, self._pid = path, os.getpid()
        self.tables: set[str] = set()
        try:
            _use_wal(self.connection)
            self.connection.execute(f"PRAGMA synchronous={synchronous}")
        except BaseException:
            self.close()
            raise
        self._file = _file(path)

    def is_current(self) -> bool:
        """Tells whether this process opened it, and the file was neither removed nor replaced since."""
        return self._pid == os.getpid() and self._file == _file(self._path)

    def close(self) -> None:
        """May be called again; in a child process the parent's connection stays as it is."""
        if self._pid == os.getpid():
            self.connection.close()
        else:
            _inherited.append(self.connection)

    def __del__(self) -> None:
        if hasattr(self, "_pid"):  # else SQLite has refused the path
            self.close()


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
    """All that is done within, or nothing.

    Raises:
        OutcomeUnknown: the commit failed, and may have happened.
        sqlite3.Error: nothing happened.
    """
    connection.execute(begin)
    try:
        yield connection
    except BaseException:
        _roll_back(connection)
        raise
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as problem:
        # Still in the transaction: certainly not committed.
        if connection.in_transaction:
            _roll_back(connection)
            raise
        raise OutcomeUnknown("an SQLite commit failed", found=f"{type(problem).__name__}: {problem}") from problem


def _roll_back(connection: sqlite3.Connection) -> None:
    # Some errors have rolled back already.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Readers and the writer do not wait for each other."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as problem:
            # Changing the mode waits for no lock: of two processes that make a file at once one is told "locked".
            if "locked" not in str(problem) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _file(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
