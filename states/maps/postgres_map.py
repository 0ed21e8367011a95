"""A fenced backing map in a PostgreSQL table: each put is one transaction with the fence."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trident.coordinators.errors import TopologyError
from trident.states.core.host_bound import is_this_host
from trident.states.core.names import check_flag, check_name
from trident.states.core.stored_values import dumps, loads
from trident.states.core.urls import without_credentials
from trident.states.maps.backing_maps import stale_epoch
from trident.states.maps.map_states import key_text
from trident.states.maps.postgres_server import (
    POSTGRES_OF_ALL,
    check_durable,
    check_url,
    connection_to,
    durable_transaction,
    make_table,
    psycopg_module,
    quoted,
)
from trident.states.maps.user_states import Key

_USER = "a PostgresMap"
_EPOCHS = "trident_epochs"
_KEYS_PER_STATEMENT = 10_000
_made: set[tuple[int, str, str]] = set()


@dataclass(frozen=True, repr=False)
class PostgresMap:
    """A map in a table of a PostgreSQL database, and its epoch in the table ``trident_epochs`` beside it.

    Each ``multi_put`` is one transaction that locks the map's epoch, compares it, and writes: an old coordinator comes
    before its successor's first write or is refused, never in between. Keys of any length: a row is found by the hash
    of its key. Picklable: it travels as its url; each process connects at its first use. Needs the client: the extra
    ``postgres``.

    Args:
        url: ``postgresql://user:password@host:port/database``, with parameters of libpq as its query, and several
            "host:port" with commas between where it is a cluster. Neither user nor password appears in a message or a
            repr.
        table: the table's name; made when it is not there, in the first schema of the user's search path.
        durable: refuse a server that could forget an acknowledged write (``fsync = off``); False takes it as it is.

    Raises:
        TopologyError: the table's name cannot be used.
        ConfigError: the url cannot be used.
    """

    url: str = field(repr=False)
    table: str
    durable: bool = True
    fenced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_name("state", self.table)
        if self.table == _EPOCHS:
            raise TopologyError(f"the table name {self.table!r} is taken", action="choose another")
        check_flag(self.durable, f"durable of the PostgresMap {self.table!r}")
        check_url(self.url, _USER)

    @property
    def bound_to_one_host(self) -> "str | bool":
        """A url with a loopback address names another server on each host of a cluster."""
        return POSTGRES_OF_ALL if is_this_host(self.url) else False

    def __repr__(self) -> str:
        return f"PostgresMap({without_credentials(self.url)!r}, {self.table!r})"

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The stored values; None where absent.

        Raises:
            EnvironmentProblem: the client is not installed.
            StateAway: the server does not answer.
            TridentError: it refuses.
        """
        hashes = [_hash(key_text(key)) for key in keys]
        rows: dict[bytes, str] = {}
        with self._cursor("read") as cursor:
            for start in range(0, len(hashes), _KEYS_PER_STATEMENT):
                some = hashes[start : start + _KEYS_PER_STATEMENT]
                rows.update(cursor.execute(self._sql("SELECT hash, value FROM {} WHERE hash = ANY(%s)"), (some,)))
        return [loads(rows[one]) if one in rows else None for one in hashes]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any], epoch: int | None = None) -> None:
        """Everything, or nothing, in one durable transaction with the fence.

        Raises:
            StaleEpoch: a newer coordinator has written to this table; nothing was written.
            StateAway: the server does not answer; where its answer was lost, it may have written.
            EnvironmentProblem: the client is not installed, or the server could forget writes.
            TridentError: the server refuses.
        """
        rows = {key_text(key): None if value is None else dumps(value) for key, value in zip(keys, values)}
        put = [(_hash(key), key, value) for key, value in rows.items() if value is not None]
        gone = [_hash(key) for key, value in rows.items() if value is None]
        with self._cursor("write") as cursor:
            if self.durable:
                check_durable(cursor, self.url, f"the map {self.table}", "PostgresMap(…, durable=False)")
            if epoch is not None:
                self._check_epoch(cursor, epoch)
            if gone:
                cursor.execute(self._sql("DELETE FROM {} WHERE hash = ANY(%s)"), (gone,))
            statement = self._sql(
                "INSERT INTO {} SELECT * FROM unnest(%s::bytea[], %s::text[], %s::text[]) "
                "ON CONFLICT (hash) DO UPDATE SET value = excluded.value"
            )
            for start in range(0, len(put), _KEYS_PER_STATEMENT):
                columns = zip(*put[start : start + _KEYS_PER_STATEMENT])
                cursor.execute(statement, tuple(list(column) for column in columns))

    def items(self) -> Iterator[tuple[Key, Any]]:
        """Every (key, stored value), as of one moment, in no promised order; all are read at the call."""
        with self._cursor("read") as cursor:
            rows = cursor.execute(self._sql("SELECT key, value FROM {}")).fetchall()
        return ((loads(key), loads(value)) for key, value in rows)

    def clear(self) -> None:
        """Removes every row and forgets the epoch; only while no topology writes to it."""
        with self._cursor("write") as cursor:
            cursor.execute(self._sql("DELETE FROM {}"))
            cursor.execute(f"DELETE FROM {_EPOCHS} WHERE map = %s", (self.table,))

    def _check_epoch(self, cursor: Any, epoch: int) -> None:
        cursor.execute(f"INSERT INTO {_EPOCHS} VALUES (%s, %s) ON CONFLICT DO NOTHING", (self.table, epoch))
        query = f"SELECT epoch FROM {_EPOCHS} WHERE map = %s FOR UPDATE"
        (newest,) = cursor.execute(query, (self.table,)).fetchone()
        if epoch < newest:
            raise stale_epoch(f"the PostgreSQL map {self.table}", epoch, newest)
        if epoch > newest:
            cursor.execute(f"UPDATE {_EPOCHS} SET epoch = %s WHERE map = %s", (epoch, self.table))

    def _sql(self, text: str) -> Any:
        psycopg = psycopg_module(_USER)
        return psycopg.sql.SQL(text).format(quoted(psycopg, self.table))

    @contextmanager
    def _cursor(self, doing: str) -> Iterator[Any]:
        """A transaction, in a database in which the map's tables are."""
        failure = f"the PostgreSQL map {self.table} cannot be {'read' if doing == 'read' else 'written'}"
        with connection_to(self.url, _USER, failure) as connection, durable_transaction(connection) as cursor:
            at = (os.getpid(), self.url, self.table)
            if at not in _made:
                self._make_tables(cursor)
            yield cursor
            _made.add(at)

    def _make_tables(self, cursor: Any) -> None:
        columns = "(hash bytea PRIMARY KEY, key text NOT NULL, value text NOT NULL)"
        expected = [("hash", "bytea"), ("key", "text"), ("value", "text")]
        make_table(cursor, "a PostgresMap", f'"{self.table}"', self._sql(f"CREATE TABLE {{}} {columns}"), expected)
        epochs = f"CREATE TABLE {_EPOCHS} (map text PRIMARY KEY, epoch bigint NOT NULL)"
        make_table(cursor, "a PostgresMap", _EPOCHS, epochs, [("map", "text"), ("epoch", "bigint")])


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
