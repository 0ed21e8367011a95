"""SQLite: a file as one process has it open, and a fenced backing map in it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from trident.coordinators.errors import (
    ConfigError,
    ForeignTable,
    OutcomeUnknown,
    TopologyError,
    TridentError,
    described,
)
from trident.states.core.addresses import SHARED_STORE
from trident.states.core.names import check_name
from trident.states.core.values import dumps, loads
from trident.states.maps.backing_maps import stale_epoch
from trident.states.maps.map_states import Key, key_text

# An SQLite file as one process has it open: the connection, its transactions, and what a fork or a new file means.


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


# A fenced backing map in an SQLite file: no server, and exactly once across processes of one machine.
#
# Each ``multi_put`` is one transaction that takes the write lock first
# (``BEGIN IMMEDIATE``), then compares the epoch, then writes: an old coordinator
# can come before its successor's first write or be refused, never in between.
# Commits are synchronous (``synchronous=FULL``): an acknowledged one survives a
# loss of power.


_EPOCHS = "trident_epochs"
# SQLite's limit on parameters was 999 for a long time.
_KEYS_PER_SELECT = 500


@dataclass(frozen=True)
class SqliteMap:
    """A map in one table of an SQLite file, written by the processes of one machine.

    Picklable: it travels as its path. Each process and thread opens its own
    connection at its first use. The file must be on a local disk: SQLite's
    locks do not hold on network file systems. So it is refused when a topology
    starts on a Spark cluster, whose hosts would have a file each.

    Args:
        path: the file; made when it is not there, but not its folder. A
            relative one is taken from the current folder, once, here.
        table: the table's name; made when it is not there.

    Raises:
        TopologyError: the table's name cannot be used.
        ConfigError: the path cannot be used.
    """

    path: str
    table: str
    fenced: ClassVar[bool] = True
    bound_to_one_host: ClassVar[str] = f"{SHARED_STORE}; SQLite over a network folder is not safe"

    def __post_init__(self) -> None:
        check_name("state", self.table)
        if self.table.lower() == _EPOCHS or self.table.lower().startswith("sqlite_"):
            raise TopologyError(f"the table name {self.table!r} is taken", action="choose another")
        path = os.fspath(self.path) if isinstance(self.path, (str, os.PathLike)) else None
        if not isinstance(path, str) or not path or path.startswith((":memory:", "file:")) or "\0" in path:
            raise ConfigError(
                "the path of a SqliteMap cannot be used", found=described(self.path), expected="a file's path"
            )
        # Workers may have another current folder.
        object.__setattr__(self, "path", os.path.abspath(path))

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The stored values, all as of one moment; None where absent.

        Raises:
            TridentError: the file cannot be read.
        """
        texts = [key_text(key) for key in keys]
        rows: dict[str, str] = {}
        with self._errors("read"), transaction(self._connection(), "BEGIN") as connection:
            for start in range(0, len(texts), _KEYS_PER_SELECT):
                some = texts[start : start + _KEYS_PER_SELECT]
                marks = ",".join("?" * len(some))
                rows.update(connection.execute(f'SELECT key, value FROM "{self.table}" WHERE key IN ({marks})', some))
        return [loads(rows[text]) if text in rows else None for text in texts]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any], epoch: int | None = None) -> None:
        """Everything, or nothing, in one durable transaction with the fence.

        Raises:
            StaleEpoch: a newer coordinator has written to this table; nothing was written.
            OutcomeUnknown: the commit failed; it may have happened.
            TridentError: nothing was written (the file is locked, full, not a database, …).
        """
        rows = [(key_text(key), None if value is None else dumps(value)) for key, value in zip(keys, values)]
        with self._errors("write"), transaction(self._connection()) as connection:
            if epoch is not None:
                self._check_epoch(connection, epoch)
            # In their order: the same key may come twice.
            for key, text in rows:
                if text is None:
                    connection.execute(f'DELETE FROM "{self.table}" WHERE key = ?', (key,))
                else:
                    connection.execute(f'INSERT OR REPLACE INTO "{self.table}" VALUES (?, ?)', (key, text))

    def items(self) -> Iterator[tuple[Key, Any]]:
        """Every (key, stored value), as of one moment, in no promised order; all are read at the call."""
        with self._errors("read"), transaction(self._connection(), "BEGIN") as connection:
            rows = connection.execute(f'SELECT key, value FROM "{self.table}"').fetchall()
        return ((loads(key), loads(value)) for key, value in rows)

    def clear(self) -> None:
        """Removes every row and forgets the epoch; only while no topology writes to it."""
        with self._errors("write"), transaction(self._connection()) as connection:
            connection.execute(f'DELETE FROM "{self.table}"')
            connection.execute(f"DELETE FROM {_EPOCHS} WHERE map = ?", (self.table.lower(),))

    def _check_epoch(self, connection: sqlite3.Connection, epoch: int) -> None:
        found = connection.execute(f"SELECT epoch FROM {_EPOCHS} WHERE map = ?", (self.table.lower(),)).fetchone()
        if found is not None and epoch < found[0]:
            raise stale_epoch(f"table {self.table} of {self.path}", epoch, found[0])
        if found is None or epoch > found[0]:
            connection.execute(f"INSERT OR REPLACE INTO {_EPOCHS} VALUES (?, ?)", (self.table.lower(), epoch))

    def _connection(self) -> sqlite3.Connection:
        """This thread's connection with the table made."""
        opened = _of_this_thread(self.path)
        if self.table not in opened.tables:
            self._make_table(opened.connection)
            opened.tables.add(self.table)
        return opened.connection

    def _make_table(self, connection: sqlite3.Connection) -> None:
        columns = "(key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
        with transaction(connection):
            connection.execute(f'CREATE TABLE IF NOT EXISTS "{self.table}" {columns}')
            connection.execute(f"CREATE TABLE IF NOT EXISTS {_EPOCHS} (map TEXT PRIMARY KEY, epoch INTEGER NOT NULL)")
            found = [(name, kind) for _, name, kind, *_ in connection.execute(f'PRAGMA table_info("{self.table}")')]
            if found != [("key", "TEXT"), ("value", "TEXT")]:
                raise ForeignTable(
                    f"table {self.table} of {self.path} was not made by a SqliteMap",
                    found=", ".join(f"{name} {kind}" for name, kind in found),
                    expected="key TEXT, value TEXT",
                    action="choose another table name",
                )

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            raise TridentError(
                f"table {self.table} of {self.path} cannot be {'read' if doing == 'read' else 'written'}",
                found=f"{type(problem).__name__}: {problem}",
                expected=USABLE,
            ) from problem


_local = threading.local()


def _of_this_thread(path: str) -> OpenFile:
    """This thread's connection; of a parent process, or of a file that was replaced, there is none."""
    open_here: dict[str, OpenFile] = _local.__dict__.setdefault("open", {})
    opened = open_here.get(path)
    if opened is None or not opened.is_current():
        open_here.pop(path, None)
        opened = open_here[path] = OpenFile(path)
    return opened
