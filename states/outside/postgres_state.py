"""A table of the user's in PostgreSQL as an outside state: rows and mark in one SQL transaction."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from trident.coordinators.errors import ConfigError, FieldError, SchemaMismatch, TopologyError, TridentError, described
from trident.states.core.addresses import is_this_host, without_credentials
from trident.states.core.names import check_flag, check_name
from trident.states.core.tables import DELETED_COLUMN
from trident.states.maps.postgres_store import (
    POSTGRES_OF_ALL,
    check_durable,
    check_url,
    connection_to,
    durable_transaction,
    make_table,
    psycopg_module,
    quoted,
)
from trident.states.outside.port import OutsideMark, OutsidePart, OutsideRows, OutsideState
from trident.states.outside.row_formats import copy_lines

_USER = "a PostgresState"
_MARKS = "trident_marks"
_FENCE = -1  # in the place of a part's number
_TEMPORARY = "trident_rows"
# Type of Spark → the types of PostgreSQL that take each of its values unchanged.
_NUMBERS = ("smallint", "integer", "bigint", "numeric")
# Others call texts the same that are two keys to the topology, or have no equality.
_KEY_TEXTS = ("text", "character varying")
_TEXTS = (*_KEY_TEXTS, "json", "jsonb", "uuid", "inet", "citext")
_TYPES: dict[str, tuple[str, ...]] = {
    "boolean": ("boolean",),
    "tinyint": _NUMBERS,
    "smallint": _NUMBERS,
    "int": _NUMBERS[1:],
    "bigint": _NUMBERS[2:],
    "float": ("real", "double precision"),
    "double": ("double precision",),
    "decimal": ("numeric",),
    "string": _TEXTS,
    "binary": ("bytea",),
    "date": ("date",),
    "timestamp": ("timestamp with time zone",),
    "timestamp_ntz": ("timestamp without time zone",),
}
_MARK_COLUMNS = (
    "topology text NOT NULL, state text NOT NULL, part integer NOT NULL, incarnation text NOT NULL, "
    "epoch bigint NOT NULL, txid bigint NOT NULL, attempt_id bigint NOT NULL, PRIMARY KEY (topology, state, part)"
)
_MARK_KEYS = ("topology", "state", "part")
_MARK_TYPES = [("topology", "text"), ("state", "text"), ("part", "integer"), ("incarnation", "text")] + [
    (name, "bigint") for name in ("epoch", "txid", "attempt_id")
]


@dataclass(frozen=True, repr=False)
class PostgresState(OutsideState):
    """Rows into a table of yours in a PostgreSQL database, once: ``partition_persist(PostgresState(url, "t"))``

    Appended as they are; with ``Upsert(keys)`` a row replaces that of its key, or deletes it. Rows and mark are one SQL
    transaction, and the rows go in by COPY. The marks are in the table ``trident_marks`` of the same schema, which is
    made when it is not there. Other columns of the table keep their value, or get their default.

    Args:
        url: ``postgresql://user:password@host:port/database``, with parameters of libpq as its query, and several
            "host:port" with commas between where it is a cluster. Neither user nor password appears in a message or a
            repr.
        table: "table" or "schema.table"; capitals count. It must be there.
        name: the state's name; None: the table's.
        partitions: a transaction is written by at most this many tasks, each an SQL transaction of its own.
        adopt: replace the marks of another life of the topology, after ``trident reset``; as of every OutsideState.
        durable: refuse a server or a table that could forget an acknowledged transaction (``fsync = off``, UNLOGGED).

    Raises:
        TopologyError: a name cannot be used.
        ConfigError: the url or a number cannot be used.
    """

    url: str = field(repr=False)
    table: str
    name: str = ""
    partitions: int = 1
    adopt: bool = False
    durable: bool = True
    takes_upserts: ClassVar[bool] = True
    calls_user: ClassVar[bool] = False

    def __post_init__(self) -> None:
        parts = self.table.split(".") if isinstance(self.table, str) else []
        if len(parts) not in (1, 2) or not all(parts) or "\0" in self.table:
            raise TopologyError(
                "the table of a PostgresState cannot be used",
                found=described(self.table),
                expected="table, schema.table",
            )
        object.__setattr__(self, "name", check_name("state", self.name or parts[-1]))
        check_url(self.url, _USER)
        check_flag(self.durable, f"durable of state {self.name}")
        if type(self.partitions) is not int or self.partitions < 1:
            raise ConfigError(f"partitions of state {self.name} is impossible", found=described(self.partitions))

    def __repr__(self) -> str:
        return f"PostgresState({without_credentials(self.url)!r}, {self.table!r})"

    @property
    def bound_to_one_host(self) -> "str | bool":
        """A url with a loopback address names another server on each host of a cluster."""
        return POSTGRES_OF_ALL if is_this_host(self.url) else False

    def check_rows(self, rows: OutsideRows) -> None:
        for each in rows.schema.fields:
            if each.dataType.typeName() not in _TYPES and each.dataType.simpleString() not in _TYPES:
                raise FieldError(
                    f"field {each.name!r} cannot be written to state {self.name}",
                    found=each.dataType.simpleString(),
                    expected=", ".join(_TYPES),
                    action="make it text with to_json(…), for a column of type jsonb",
                )

    # --- the store

    def check_store(self, rows: OutsideRows) -> None:
        with self._cursor("checked") as cursor:
            if self.durable:
                check_durable(cursor, self.url, f"state {self.name}", "PostgresState(…, durable=False)")
            found = cursor.execute(
                "SELECT oid, relkind, relpersistence FROM pg_class WHERE oid = to_regclass(%s)", (_text(self.table),)
            ).fetchone()
            if found is None or found[1] not in ("r", "p"):
                raise SchemaMismatch(
                    f"state {self.name}: there is no table {self.table}", expected="one that takes rows"
                )
            if self.durable and found[2] != "p":
                raise SchemaMismatch(f"state {self.name}: the table {self.table} is unlogged, and empty after a crash")
            self._check_columns(cursor, found[0], rows)
            needed = ["INSERT", "SELECT", "UPDATE", "DELETE"] if rows.upserts else ["INSERT"]
            self._check_rights(cursor, found[0], self.table, needed)
            if rows.upserts:
                self._check_keys(cursor, found[0], rows.keys, self.table)
                query = "SELECT has_database_privilege(current_database(), 'TEMPORARY')"
                if not cursor.execute(query).fetchone()[0]:
                    raise SchemaMismatch(f"state {self.name}: no right to TEMPORARY on the database, for its Upsert")
            marks = _text(self._marks)
            make_table(cursor, "a PostgresState", marks, f"CREATE TABLE {marks} ({_MARK_COLUMNS})", _MARK_TYPES)
            (oid, persistence) = cursor.execute(
                "SELECT oid, relpersistence FROM pg_class WHERE oid = to_regclass(%s)", (marks,)
            ).fetchone()
            if self.durable and persistence != "p":
                raise SchemaMismatch(f"state {self.name}: the table {self._marks} is unlogged, and empty after a crash")
            self._check_keys(cursor, oid, _MARK_KEYS, self._marks)
            self._check_rights(cursor, oid, self._marks, ["INSERT", "SELECT", "UPDATE"])

    def _check_rights(self, cursor: Any, table: int, name: str, needed: Sequence[str]) -> None:
        query = "SELECT has_table_privilege(%s::oid, %s)"
        lacking = [right for right in needed if not cursor.execute(query, (table, right)).fetchone()[0]]
        if lacking:
            raise SchemaMismatch(f"state {self.name}: no right to {', '.join(lacking)} on {name}")
        if cursor.execute("SELECT row_security_active(%s::oid)", (table,)).fetchone()[0]:
            raise SchemaMismatch(
                f"state {self.name}: row security hides rows of {name} from its user, and lets no COPY in",
                expected="a user with BYPASSRLS, or the table's owner",
            )

    def _check_columns(self, cursor: Any, table: int, rows: OutsideRows) -> None:
        """Each field has a column that takes it, and each other column a value of its own."""
        columns = {
            name: (kind, filled, not_null, modifier)
            for name, kind, filled, not_null, modifier in cursor.execute(
                "SELECT a.attname, format_type(COALESCE(NULLIF(t.typbasetype, 0), t.oid), NULL), "
                "CASE WHEN a.attgenerated <> '' OR a.attidentity = 'a' THEN 'always' "
                "WHEN a.atthasdef OR a.attidentity <> '' THEN 'default' ELSE '' END, a.attnotnull, "
                "CASE WHEN a.atttypmod = -1 THEN t.typtypmod ELSE a.atttypmod END "
                "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
                "WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped",
                (table,),
            )
        }
        problems = []
        for each in rows.schema.fields:
            kind = each.dataType.typeName() if each.dataType.typeName() in _TYPES else each.dataType.simpleString()
            takes = _KEY_TEXTS if kind == "string" and each.name in rows.keys else _TYPES[kind]
            if each.name not in columns:
                problems.append(f"no column {each.name!r} for the field of that name")
            elif columns[each.name][1] == "always":
                problems.append(f"the database fills column {each.name!r} itself")
            elif columns[each.name][0] not in takes:
                what = f"a {'key' if each.name in rows.keys else 'field'} of type {kind}"
                problems.append(f"column {each.name!r} is {columns[each.name][0]}; {what} needs {' or '.join(takes)}")
            elif columns[each.name][0] == "character varying" and columns[each.name][3] != -1:
                problems.append(
                    f"column {each.name!r} is varchar with a length, which cuts blanks and refuses longer texts; a "
                    "field of type string needs text, or varchar without a length"
                )
            elif _rounds(kind, getattr(each.dataType, "scale", 0), columns[each.name][0], columns[each.name][3]):
                problems.append(f"column {each.name!r} would round the values of a field of type {kind}")
        fields = set(rows.schema.names)
        problems += [
            f"column {name!r} is NOT NULL, has no default, and no field gives it a value"
            for name, (_, filled, not_null, _) in columns.items()
            if not_null and not filled and name not in fields
        ]
        if problems:
            raise SchemaMismatch(
                f"the table {self.table} cannot take the rows of state {self.name}", found="; ".join(problems)
            )

    def _check_keys(self, cursor: Any, table: int, keys: Sequence[str], name: str) -> None:
        found = cursor.execute(
            "SELECT array_agg(a.attname::text), bool_and(a.attnotnull) FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) "
            "WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL "
            "AND i.indexprs IS NULL GROUP BY i.indexrelid",
            (table,),
        ).fetchall()
        if not any(set(columns) == set(keys) and not_null for columns, not_null in found):
            raise SchemaMismatch(
                f"state {self.name} cannot tell the rows of {name} by {', '.join(keys)}",
                found=f"unique: {'; '.join(', '.join(columns) for columns, _ in found) or 'nothing'}",
                expected=f"PRIMARY KEY ({', '.join(keys)}), or UNIQUE with NOT NULL columns",
            )

    def take_over(self, topology: str, incarnation: str, epoch: int) -> Mapping[int, OutsideMark]:
        with self._cursor("taken over") as cursor:
            fence = (topology, self.name, _FENCE)
            self._make_mark(cursor, fence)
            self._marks_of(cursor, fence, "FOR UPDATE")  # by itself: the next statement sees the parts that held it
            stored = self._marks_of(cursor, (topology, self.name), "FOR UPDATE")
            marks = {part: mark.taken_over(incarnation, epoch, self.adopt) for part, mark in stored.items()}
            marks.setdefault(_FENCE, OutsideMark(incarnation, epoch, 0, 0))
            for part, mark in marks.items():
                self._put_mark(cursor, (topology, self.name, part), mark)
            return marks

    def publish(self, part: OutsidePart, batches: "Iterator[pa.RecordBatch]") -> None:
        of, where = (part.topology, part.state, part.number), f"the table {self.table}"
        # No lock is held while the storage is asked for the first rows.
        batches = itertools.chain([first] if (first := next(batches, None)) is not None else [], batches)
        with self._cursor("written") as cursor:
            self._check_fence(cursor, part)
            # The row is locked until the end: a second try waits for the one whose answer was lost, and finds its mark.
            self._make_mark(cursor, of)
            stored = self._marks_of(cursor, of, "FOR UPDATE").get(part.number)
            part.check_known(self._marks_of(cursor, of[:2]).values(), where)
            if part.mark.is_new(stored, where):
                self._write(cursor, part, batches)
            self._put_mark(cursor, of, part.mark)

    def _check_fence(self, cursor: Any, part: OutsidePart) -> None:
        """Holds the fence until the end: a take-over waits for the part, or the part finds that it was taken over."""
        of = (part.topology, part.state, _FENCE)
        life = (part.mark.incarnation, part.mark.epoch)
        fence = self._marks_of(cursor, of, "FOR SHARE").get(_FENCE)
        if fence is None or fence.epoch < part.mark.epoch:  # a replica leads that did not have the take-over
            self._make_mark(cursor, of)
            fence = self._marks_of(cursor, of, "FOR UPDATE").get(_FENCE)
            fence = fence.taken_over(*life, self.adopt) if fence else OutsideMark(*life, 0, 0)
            self._put_mark(cursor, of, fence)
        part.mark.check_fence(fence, f"the table {self.table}")

    def _make_mark(self, cursor: Any, of: tuple[str, str, int]) -> None:
        """Puts a row, which can be locked, where there is none. One with epoch 0 is no mark yet."""
        into = "INSERT INTO {} VALUES (%s, %s, %s, '', 0, 0, 0) ON CONFLICT (topology, state, part) DO NOTHING"
        cursor.execute(self._sql(into), of)

    def _marks_of(self, cursor: Any, of: tuple[Any, ...], lock: str = "") -> dict[int, OutsideMark]:
        """The marks of a part, or of all parts, in one order, so that two that lock them do not wait for each other."""
        names = "topology, state, part" if of[2:] else "topology, state"
        select = f"SELECT part, incarnation, epoch, txid, attempt_id FROM {{}} WHERE ({names}) = "
        query = self._sql(f"{select}({', '.join(['%s'] * len(of))}) ORDER BY part {lock}")
        found = {part: OutsideMark(*mark) for part, *mark in cursor.execute(query, of).fetchall()}
        return {part: mark for part, mark in found.items() if mark.epoch}

    def _put_mark(self, cursor: Any, of: tuple[str, str, int], mark: OutsideMark) -> None:
        cursor.execute(
            self._sql(
                "UPDATE {} SET incarnation = %s, epoch = %s, txid = %s, attempt_id = %s "
                "WHERE (topology, state, part) = (%s, %s, %s)"
            ),
            (mark.incarnation, mark.epoch, mark.txid, mark.attempt_id, *of),
        )

    def _write(self, cursor: Any, part: OutsidePart, batches: "Iterator[pa.RecordBatch]") -> None:
        first = next(batches, None)
        if first is None:
            return
        psycopg = psycopg_module(_USER)
        sql, table = psycopg.sql, quoted(psycopg, self.table)
        names = [name for name in first.schema.names if name != DELETED_COLUMN]
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        if not part.upserts:
            self._copy(cursor, sql.SQL("COPY {} ({}) FROM STDIN").format(table, columns), first, batches, names)
            return
        temporary, deleted = sql.Identifier(_TEMPORARY), sql.Identifier(DELETED_COLUMN)
        cursor.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {}, NULL::boolean AS {} FROM {} LIMIT 0"
            ).format(temporary, columns, deleted, table)
        )
        copy = sql.SQL("COPY {} ({}, {}) FROM STDIN").format(temporary, columns, deleted)
        self._copy(cursor, copy, first, batches, [*names, DELETED_COLUMN])
        same = sql.SQL(" AND ").join(sql.SQL("t.{0} = r.{0}").format(sql.Identifier(key)) for key in part.keys)
        cursor.execute(sql.SQL("DELETE FROM {} t USING {} r WHERE r.{} AND {}").format(table, temporary, deleted, same))
        keys = sql.SQL(", ").join(map(sql.Identifier, part.keys))
        values = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in names if name not in part.keys]
        update = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(values)) if values else sql.SQL("NOTHING")
        cursor.execute(
            sql.SQL(
                "INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} IS NOT TRUE ORDER BY {} ON CONFLICT ({}) DO {}"
            ).format(table, columns, columns, temporary, deleted, keys, keys, update)
        )

    def _copy(
        self,
        cursor: Any,
        statement: Any,
        first: "pa.RecordBatch",
        batches: "Iterator[pa.RecordBatch]",
        names: list[str],
    ) -> None:
        rows = 0
        with cursor.copy(statement) as copy:
            batch: pa.RecordBatch | None = first
            while batch is not None:
                copy.write(copy_lines(batch, names))
                rows += batch.num_rows
                batch = next(batches, None)
        if cursor.rowcount != rows:
            raise TridentError(f"of {rows} rows for state {self.name} the server took {cursor.rowcount}")

    # --- helpers

    @property
    def _marks(self) -> str:
        schema, dot, _ = self.table.rpartition(".")
        return f"{schema}{dot}{_MARKS}"

    def _sql(self, text: str) -> Any:
        psycopg = psycopg_module(_USER)
        return psycopg.sql.SQL(text).format(quoted(psycopg, self._marks))

    def _cursor(self, done: str) -> Any:
        return _transaction(self.url, f"the PostgreSQL table {self.table} of state {self.name} cannot be {done}")


@contextmanager
def _transaction(url: str, failure: str) -> Iterator[Any]:
    with connection_to(url, _USER, failure) as connection, durable_transaction(connection) as cursor:
        yield cursor


def _rounds(kind: str, scale: int, column: str, modifier: int) -> bool:
    """Tells whether a column keeps fewer digits behind the point than the field may have: PostgreSQL says nothing."""
    if modifier == -1:
        return False
    if column == "numeric":
        return (((modifier - 4) & 0x7FF) ^ 1024) - 1024 < scale
    return kind.startswith("timestamp") and modifier < 6


def _text(name: str) -> str:
    """A table's name as SQL text."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))
