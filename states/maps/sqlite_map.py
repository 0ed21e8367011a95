"""A fenced backing map in an SQLite file: no server, and exactly once across processes of one machine.

Each ``multi_put`` is one transaction that takes the write lock first
(``BEGIN IMMEDIATE``), then compares the epoch, then writes: an old coordinator
can come before its successor's first write or be refused, never in between.
Commits are synchronous (``synchronous=FULL``): an acknowledged one survives a
loss of power.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from trident.coordinators.errors import ConfigError, ForeignTable, TopologyError, TridentError, described
from trident.states.core.host_bound import SHARED_STORE
from trident.states.core.names import check_name
from trident.states.core.stored_values import dumps, loads
from trident.states.maps.backing_maps import stale_epoch
from trident.states.maps.map_states import key_text
from trident.states.maps.sqlite_file import USABLE, OpenFile, transaction
from trident.states.maps.user_states import Key

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
