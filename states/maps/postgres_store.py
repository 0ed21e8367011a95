"""PostgreSQL: one database as this process uses it, and a fenced backing map in one of its tables."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trident.coordinators.errors import (
    ConfigError,
    EnvironmentProblem,
    ForeignTable,
    StateAway,
    TopologyError,
    TridentError,
)
from trident.states.core.addresses import check_server_url, is_this_host, without_credentials, without_secrets
from trident.states.core.imports import client_module
from trident.states.core.names import check_flag, check_name
from trident.states.core.values import dumps, loads
from trident.states.maps.backing_maps import stale_epoch
from trident.states.maps.map_states import Key, key_text

# One PostgreSQL database as this process uses it: its connections, its required settings, its errors as ours.


SCHEMES = ("postgresql", "postgres")
POSTGRES_OF_ALL = "write the name or the address that every host knows the PostgreSQL server by"
# Settings of libpq that the url may set itself. A server that is gone without a word is noticed within half a minute.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
    "application_name": "trident",
    "target_session_attrs": "read-write",  # of several servers none that lags behind another
}
_IDLE_MAX = 4
_IDLE_SECS = 1.0
# libpq waits without end for an answer. After the first time a second connection asks what the server is doing for
# this one, and again after each of the second.
_FIRST_CHECK_SECS, _NEXT_CHECK_SECS = 30.0, 10.0
# Classes and codes of SQLSTATE that may pass by themselves: connections, resources, operators, the system; rollbacks of
# serialization and deadlocks; a lock that is held; a standby, which is read-only until it is promoted; our own pause.
_MAY_PASS = ("08", "53", "57", "58", "40", "55P03", "25006", "25P03")
# Those of them that do not: statement_timeout, or a person who cancels the statement.
_DOES_NOT_PASS = ("57014",)
# libpq keeps no SQLSTATE of a connection that was refused: the server's words, where they are English.
_REFUSED = re.compile(
    r'FATAL: .*(authentication failed|no pg_hba\.conf entry|(role|user|database) ".*" does not exist'
    r"|not permitted to log in|permission denied for database|no such database)|no password supplied",
    re.DOTALL,
)
_DATA_ERRORS = "22"
# A writer that is gone, or stopped amid its transaction, must not keep its locks for as long as the server's system
# waits, two hours by default.
_OF_TRANSACTIONS = {
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    "tcp_user_timeout": "30000",
}

_idle: dict[tuple[int, str], list[tuple[float, Any]]] = {}
_lock = threading.Lock()
_durable: set[tuple[int, str]] = set()


def check_url(url: Any, user: str) -> None:
    """Raises ConfigError when no PostgreSQL database can be named so."""
    expected = "postgresql://user@host:port/database, or several host:port with commas between"
    check_server_url(url, user, SCHEMES, expected, several=True)


def psycopg_module(user: str, name: str = "psycopg") -> Any:
    """The client package, or a module of it.

    Args:
        user: who needs it, for the message: "a PostgresMap".
    """
    return client_module(name, user, "the PostgreSQL client", '"psycopg[binary]"', "postgres")


@contextmanager
def connection_to(url: str, user: str, failure: str) -> Iterator[Any]:
    """A connection in autocommit mode, of this process's pool; the client's errors are raised as ours.

    Args:
        user: as of :func:`psycopg_module`.
        failure: for the message: "the map m cannot be read".

    Raises:
        StateAway: the server does not answer, or its answer was lost, or the cause may pass by itself.
        TridentError: it refuses.
    """
    psycopg = psycopg_module(user)
    connection = None
    try:
        try:
            with _watched(psycopg, url) as watched:
                connection = _take(psycopg, url, watched)
                yield connection
        except psycopg.Error as error:
            kind = StateAway if _may_pass(psycopg, error) else TridentError
            # Without its cause, which may quote the url.
            raise kind(
                failure,
                found=without_secrets(f"{type(error).__name__}: {_message(error)}", url),
                expected=f"a PostgreSQL server that answers, and takes this, at {without_credentials(url)}",
            ) from None
    except BaseException:
        if connection is not None:
            connection.close()  # an error may have left it anywhere
        raise
    _give_back(url, connection)


def _may_pass(psycopg: Any, error: Any) -> bool:
    if error.sqlstate is None:
        lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        return lost and not _REFUSED.search(str(error))
    return error.sqlstate.startswith(_MAY_PASS) and error.sqlstate not in _DOES_NOT_PASS


def _message(error: Any) -> str:
    """The server's message without values of rows: those are in its detail and context, and within quotes."""
    primary = error.diag.message_primary
    if primary is None:
        return str(error).strip()
    if (error.sqlstate or "").startswith(_DATA_ERRORS):
        primary = re.sub('".*"', '"…"', primary, flags=re.DOTALL)
    named = {"constraint": error.diag.constraint_name, "column": error.diag.column_name}
    names = "".join(f", {what} {name}" for what, name in named.items() if name and name not in primary)
    return f"{primary}{names} (SQLSTATE {error.sqlstate})"


@dataclass
class _Watched:
    """The connection that a caller uses now; ``done`` once it does not any more."""

    connection: Any = None
    done: threading.Event = field(default_factory=threading.Event)


@contextmanager
def _watched(psycopg: Any, url: str) -> Iterator[_Watched]:
    """Fails a call that would wait for ever: it ends the connection of a server that is silent or has lost the request.

    A statement that the server works on may take as long as it needs.
    """
    watched = _Watched()
    threading.Thread(
        target=_end_if_lost, args=(psycopg, url, watched), name="trident-postgres-watch", daemon=True
    ).start()
    try:
        yield watched
    finally:
        watched.done.set()


def _end_if_lost(psycopg: Any, url: str, watched: _Watched) -> None:
    before, wait_secs = None, _FIRST_CHECK_SECS
    while not watched.done.wait(wait_secs):
        connection, wait_secs = watched.connection, _NEXT_CHECK_SECS
        found = _unanswered(psycopg, url, connection)
        if found is not None and found == before and watched.connection is connection and not watched.done.is_set():
            # libpq's next look at the socket finds it closed.
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as end:
                end.shutdown(socket.SHUT_RDWR)
            return
        before = found


def _unanswered(psycopg: Any, url: str, connection: Any) -> Any:
    """Returns a sign that no answer will come, None if one may; the same sign twice: none has come meanwhile."""
    try:
        if connection is None or connection.info.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
            return None
        info = connection.info
        with (
            _watched(psycopg, url) as second,
            _connect(psycopg, url, host=info.host, port=info.port) as asking,
        ):
            second.connection = asking
            # A pooler's process id is not the server's: then nothing is found, and nothing is known.
            query = "SELECT state, state_change FROM pg_stat_activity WHERE pid = %s AND state <> 'active'"
            return asking.execute(query, (info.backend_pid,)).fetchone()
    except psycopg.Error as error:
        return "no answer" if error.sqlstate is None else None


def _take(psycopg: Any, url: str, watched: _Watched) -> Any:
    at = (os.getpid(), url)
    while True:
        with _lock:
            since, connection = _idle[at].pop() if _idle.get(at) else (0.0, None)
        if connection is None:
            connection = watched.connection = _connect(psycopg, url)
            return connection
        watched.connection = connection
        try:
            if time.monotonic() - since > _IDLE_SECS:
                connection.execute("SELECT 1")  # the server may have been restarted
            if not connection.closed:
                return connection
        except psycopg.Error:
            connection.close()


def _give_back(url: str, connection: Any) -> None:
    at = (os.getpid(), url)
    with _lock:
        idle = _idle.setdefault(at, [])
        if len(idle) < _IDLE_MAX and not connection.closed:
            idle.append((time.monotonic(), connection))
            return
    connection.close()


def _connect(psycopg: Any, url: str, **instead: Any) -> Any:
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ConfigError(
            "the url of a PostgreSQL database has a setting that the client does not take",
            expected="a query of libpq's connection parameters",
        ) from None
    # Nothing is prepared: a pooler between us and the server may change connections from transaction to transaction.
    parameters = {**_DEFAULTS, **given, **instead, "client_encoding": "utf8"}
    return psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)


@contextmanager
def durable_transaction(connection: Any) -> Iterator[Any]:
    """A transaction whose commit is durable when it returns; a cursor. It waits for no lock for ever, nor keeps one.

    Raises:
        StateAway: the server is a standby, which may lag: a map would build on old values.
    """
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {'set_config(%s, %s, true), ' * len(_OF_TRANSACTIONS)}"
            "CASE WHEN current_setting('synchronous_commit') = 'off' "
            "THEN set_config('synchronous_commit', 'on', true) END, pg_is_in_recovery()",
            [word for setting in _OF_TRANSACTIONS.items() for word in setting],
        )
        if cursor.fetchone()[-1]:
            raise StateAway(
                "a PostgreSQL server cannot be used",
                found="a standby, whose rows may be old",
                expected="the server that accepts writes",
                action="take target_session_attrs out of the url; a proxy must send reads of transactions there, too",
            )
        yield cursor


def check_durable(cursor: Any, url: str, what: str, parameter: str) -> None:
    """Once per process and database: does the server keep what it acknowledges?

    Args:
        what: whose server it is, for the message.
        parameter: how its user takes the risk.
    """
    at = (os.getpid(), url)
    if at in _durable:
        return
    (fsync,) = cursor.execute("SELECT current_setting('fsync')").fetchone()
    if fsync != "on":
        raise EnvironmentProblem(
            f"the PostgreSQL server of {what} could forget transactions that it has acknowledged",
            found=f"fsync = {fsync}",
            expected="fsync = on",
            action=f"set it in postgresql.conf, or take the risk with {parameter}",
        )
    _durable.add(at)


def make_table(cursor: Any, what: str, name: str, ddl: Any, columns: list[tuple[str, str]]) -> None:
    """Makes a table of our own where it is missing, and checks that it is ours.

    Args:
        what: for the messages.
        name: its quoted name, as SQL text.
        ddl: the statement that makes it.
        columns: (name, type) as they must be.
    """
    # Two processes may make it at once; without rights on the schema it may be made by others before.
    if cursor.execute("SELECT to_regclass(%s)", (name,)).fetchone()[0] is None:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"trident {name}",))
        if cursor.execute("SELECT to_regclass(%s)", (name,)).fetchone()[0] is None:
            cursor.execute(ddl)
    found = cursor.execute(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (name,),
    ).fetchall()
    if [tuple(row) for row in found] != columns:
        raise ForeignTable(
            f"the table {name} was not made by {what}",
            found=", ".join(f"{column} {kind}" for column, kind in found),
            expected=", ".join(f"{column} {kind}" for column, kind in columns),
            action="choose another name",
        )


def quoted(psycopg: Any, name: str) -> Any:
    """A table's name, "table" or "schema.table", as an identifier of SQL; capitals count."""
    return psycopg.sql.Identifier(*name.split("."))


# A fenced backing map in a PostgreSQL table: each put is one transaction with the fence.


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
