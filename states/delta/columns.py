"""Checks the columns of a Delta table: allowed fields, and those it can be partitioned by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.types import AnsiIntervalType, ArrayType, CalendarIntervalType, MapType, NullType, StructType

from trident.coordinators.errors import ConfigError, FieldError, described
from trident.states.core.names import folded
from trident.states.delta.partition_values import can_partition

_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")


def check_partition_columns(name: str, columns: Sequence[str], schema: StructType) -> None:
    """Raises FieldError when state ``name`` cannot be partitioned by the columns."""
    for column in columns:
        if column not in schema.names:
            raise FieldError(
                f"state {name} is partitioned by a field that is not written to it",
                found=repr(column),
                expected=f"one of {', '.join(schema.names)}",
            )
        if not can_partition(schema[column].dataType):
            raise FieldError(
                f"state {name} cannot be partitioned by field {column!r}",
                found=schema[column].dataType.simpleString(),
                expected="a number, string, boolean, date or timestamp: values of other types do not come back exactly "
                "from the text that a Delta log has of them",
                action="partition by another field, as in with_column('part', F.hex('key'))",
            )
    if columns and len(columns) == len(schema.names):
        raise FieldError(
            f"state {name} is partitioned by every field written to it", expected="at least one other field"
        )


def check_txid_column(state: str, column: object) -> None:
    """Raises ConfigError when the column for the txids of an append table cannot have that name."""
    if column is None or (isinstance(column, str) and column and not set(column) & (_NOT_IN_NAMES | {"."})):
        return
    raise ConfigError(
        f"txid_column of state {state} is no name of a column",
        found=described(column),
        expected='a name without any of ,;{}()=, dots, blanks, tabs and line ends, such as "_txid", or None',
    )


def check_no_field_is(state: str, column: str | None, schema: StructType) -> None:
    """Raises FieldError when a field written to a state is the column for the txids."""
    same = [name for name in schema.names if column is not None and folded(name) == folded(column)]
    if same:
        raise FieldError(
            f"field {same[0]!r} cannot be written to state {state}: the table has the numbers of transactions there",
            found=f"txid_column={column!r}",
            expected="a column that is no field of the batch",
            action="rename the field, or give txid_column another name",
        )


def check_columns(state: str, schema: StructType) -> None:
    """Raises FieldError when a Delta table cannot have the fields as columns."""
    for path, kind in _columns(schema, ""):
        found = sorted(set(path) & _NOT_IN_NAMES)
        if found:
            raise FieldError(
                f"field {path!r} cannot be a column of state {state}",
                found=" ".join(map(repr, found)),
                expected="a name without any of ,;{}()=, blanks, tabs and line ends, as Delta asks",
                action="give it another name, as in F.sum('n').alias('total') or rename",
            )
        if isinstance(kind, (NullType, AnsiIntervalType, CalendarIntervalType)):
            raise FieldError(
                f"field {path!r} cannot be a column of state {state}",
                found=kind.simpleString(),
                expected="a type that Delta has",
                action="cast it, as in F.lit(None).cast('string')",
            )


def _columns(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each field and the parts of its type, with the way to it."""
    if isinstance(kind, StructType):
        for one in kind.fields:
            place = f"{path}.{one.name}" if path else one.name
            yield place, one.dataType
            yield from _columns(one.dataType, place)
    parts = [kind.elementType] if isinstance(kind, ArrayType) else []
    parts += [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []
    for part in parts:
        yield path, part
        yield from _columns(part, path)
