"""A fenced backing map in an SQLite file: no server, and exactly once across processes of one machine.

Each ``multi_put`` is one transaction that takes the write lock first
(``BEGIN IMMEDIATE``), then compares the epoch, then writes: an old coordinator
can come before its successor's first write or be refused, never in between.
Commits are synchronous (``synchronous=FULL``): what is acknowledged survives a
loss of power.
"""

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
from trident.states.core.host_bound import SHARED_STORE
from trident.states.core.names import check_name
from trident.states.core.values import dumps, loads
from trident.states.maps.backing_maps import stale_epoch
from trident.states.maps.map_states import key_text
from trident.states.maps.user_states import Key

BUSY_TIMEOUT_SECS = 30.0
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
        with self._errors("read"), _transaction(self._connection(), "BEGIN") as connection:
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
        with self._errors("write"), _transaction(self._connection(), "BEGIN IMMEDIATE") as connection:
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
        with self._errors("read"), _transaction(self._connection(), "BEGIN") as connection:
            rows = connection.execute(f'SELECT key, value FROM "{self.table}"').fetchall()
        return ((loads(key), loads(value)) for key, value in rows)

    def clear(self) -> None:
        """Removes every row and forgets the epoch; only while no topology writes to it."""
        with self._errors("write"), _transaction(self._connection(), "BEGIN IMMEDIATE") as connection:
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
        open_here = _this_thread()
        opened = open_here.get(self.path)
        if opened is None or opened.file != _file(self.path):
            open_here.pop(self.path, None)
            opened = open_here[self.path] = _Opened(self.path)
        if self.table not in opened.tables:
            self._make_table(opened.connection)
            opened.tables.add(self.table)
        return opened.connection

    def _make_table(self, connection: sqlite3.Connection) -> None:
        columns = "(key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
        with _transaction(connection, "BEGIN IMMEDIATE"):
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
                expected="an SQLite file in a folder that exists, on a local disk, not locked "
                f"for longer than {BUSY_TIMEOUT_SECS:g} s",
            ) from problem


class _Opened:
    """A connection of one process and thread, and which file it has open."""

    def __init__(self, path: str) -> None:
        # Transactions are begun explicitly: Python's own would begin without the write lock.
        self.connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECS, isolation_level=None)
        _use_wal(self.connection)
        self.connection.execute("PRAGMA synchronous=FULL")
        self.file, self.pid = _file(path), os.getpid()
        self.tables: set[str] = set()

    def __del__(self) -> None:
        # With its thread, or when the file was replaced; never in a child process (below).
        if getattr(self, "pid", None) == os.getpid():
            self.connection.close()


def _use_wal(connection: sqlite3.Connection) -> None:
    """Readers and the writer do not wait for each other."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as problem:
            # Of two processes that make a file at once one is told "locked" without any waiting.
            if "locked" not in str(problem) or time.monotonic() > deadline:
                connection.close()
                raise
            time.sleep(0.01)


_local = threading.local()
_inherited: list[Any] = []


def _this_thread() -> dict[str, _Opened]:
    """Path -> connection of this thread of this process."""
    if getattr(_local, "pid", None) != os.getpid():
        # After a fork: a connection of the parent may neither be used nor closed here
        # (sqlite.org/howtocorrupt.html, section 2.6), so it is kept from the garbage collector.
        _inherited.append(getattr(_local, "opened", None))
        _local.pid, _local.opened = os.getpid(), {}
    return _local.opened


def _file(path: str) -> tuple[int, int] | None:
    """Which file is there now: one that was removed and made again must be opened again."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[sqlite3.Connection]:
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
