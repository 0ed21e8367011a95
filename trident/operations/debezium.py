"""Debezium's envelope: messages about changes become rows that ``Upsert(sequence_by=…)`` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Union

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from trident.coordinators.errors import FieldError, TopologyError, described
from trident.operations.columns import select
from trident.operations.row_functions import by_function, filter_by_expression
from trident.planning.nodes import Node, require_fields
from trident.states.core.names import backquoted, folded
from trident.udf.deferred import expr
from trident.udf.types import table_schema
from trident.workers.debezium import (
    BINARIES,
    DECIMALS,
    TIMES,
    UNAVAILABLE,
    UNAVAILABLE_TEXTS,
    ChangeRows,
    EnvelopeReader,
    Modes,
)

SEQUENCE, DELETED = "sequence", "deleted"
_ENVELOPE, _ROW = "envelope", "changed"
# Of each connector the fields of `source`, and one value of them that grows with each change of a row.
_PLACES: dict[str, tuple[dict[str, DataType], str]] = {
    "postgresql": ({"lsn": LongType()}, "{source}.lsn"),
    # A file's number, the position in it, and the place of the row in an event that has several: 9, 19 and 10 digits.
    "mysql": (
        {"file": StringType(), "pos": LongType(), "row": IntegerType()},
        "cast(concat(regexp_extract({source}.file, '[0-9]+$', 0), lpad({source}.pos, 19, '0'), "
        "lpad(coalesce({source}.row, 0), 10, '0')) as decimal(38,0))",
    ),
}
_PLACES["mariadb"] = _PLACES["mysql"]
# The row of a change. Any other message is none, and is not passed over.
_CHANGED = """
case when {envelope}.op in ('c', 'r', 'u') and {envelope}.after is not null then {envelope}.after
     when {envelope}.op = 'd' and {envelope}.before is not null then {envelope}.before
     else raise_error(concat('debezium: a message is no change of a row: op is ', coalesce({envelope}.op, 'null'),
       if({envelope}.op in ('c', 'r', 'u', 'd'), ', without the row (of a delete: set the table''s REPLICA IDENTITY)',
         '; expected c, r, u or d')))
end
"""


def debezium(
    parent: Node, schema: Union[str, StructType, None], connector: str, field: str, modes: dict[str, Any]
) -> Node:
    """See :meth:`trident.streams.ungrouped.StreamOperations.debezium`."""
    require_fields([field], parent.schema, "debezium")
    if connector not in _PLACES:
        raise TopologyError(
            "debezium does not know the connector", found=repr(connector), expected=f"one of {sorted(_PLACES)}"
        )
    about, place = _PLACES[connector]
    kind = parent.schema[field].dataType
    if isinstance(kind, StringType):
        return _of_text(parent, schema, connector, field, _modes(modes))
    for name, value in modes.items():
        if value is not None:
            raise TopologyError(f"debezium takes {name}= for JSON text", found=f"{field} {kind.simpleString()}"[:300])
    present = filter_by_expression(parent, expr(f"{backquoted(field)} is not null"))  # Kafka's tombstone says nothing
    row = _row_of(field, kind, list(about))
    _check_names(row.names)
    opened = select(present, [expr(backquoted(field)).alias(_ENVELOPE)])
    changes = filter_by_expression(opened, expr(f"not ({_ENVELOPE}.op <=> 'm')"))  # a message of the database's user
    made = [
        expr(_CHANGED.format(envelope=_ENVELOPE)).alias(_ROW),
        expr(place.format(source=f"{_ENVELOPE}.source")).alias(SEQUENCE),
        expr(f"{_ENVELOPE}.op = 'd'").alias(DELETED),
    ]
    values = [_value(field, connector).alias(field.name) for field in row.fields]
    return select(select(changes, made, "debezium"), [*values, SEQUENCE, DELETED], "debezium")


def _of_text(parent: Node, schema: Union[str, StructType, None], connector: str, field: str, modes: Modes) -> Node:
    row = table_schema(schema, "debezium")
    _check_names(row.names)
    sequence: DataType = LongType() if connector == "postgresql" else DecimalType(38, 0)
    made = StructType([*row.fields, StructField(SEQUENCE, sequence), StructField(DELETED, BooleanType())])
    rows = ChangeRows(EnvelopeReader(row, modes), connector != "postgresql")
    return replace(by_function(parent, "flat_map", (field,), rows, made), operation="debezium")


def _modes(given: dict[str, Any]) -> Modes:
    for (name, value), choices in zip(given.items(), (TIMES, DECIMALS, BINARIES)):
        if value is not None and value not in choices:
            raise TopologyError(
                f"debezium does not know {name}={described(value)}", expected=f"one of {', '.join(choices)}"
            )
    return Modes(**given)


def _value(field: StructField, connector: str) -> Any:
    """A column of the row; a value that the message lacks would replace one that the state has."""
    value = f"{_ROW}.{backquoted(field.name)}"
    lacking = _is_placeholder(value, field.dataType) if connector == "postgresql" else None
    if lacking is None:
        return expr(value)
    lacks = f"debezium: a message lacks the value of column {field.name}, which its UPDATE has not touched; the table "
    text = (lacks + "needs REPLICA IDENTITY FULL").replace("\\", "\\\\").replace("'", "\\'")
    return expr(f"case when {lacking} then raise_error('{text}') else {value} end")


def _is_placeholder(value: str, kind: DataType) -> str | None:
    """The condition, in SQL, for a value that the message lacks; None: there is no placeholder of that type."""
    texts = ", ".join(f"'{text}'" for text in UNAVAILABLE_TEXTS)
    if isinstance(kind, StringType):
        return f"{value} in ({texts})"
    if isinstance(kind, BinaryType):
        return f"{value} = X'{UNAVAILABLE.encode().hex()}'"
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType):
        return f"{value}['{UNAVAILABLE}'] = '{UNAVAILABLE}'"
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, (StringType, BinaryType)):
        return f"size({value}) = 1 and {_is_placeholder(f'{value}[0]', kind.elementType)}"
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, IntegralType):
        return f"{value} = cast(array({', '.join(map(str, UNAVAILABLE.encode()))}) as {kind.simpleString()})"
    return None


def _row_of(field: str, kind: DataType, source: Sequence[str]) -> StructType:
    """The columns of the table, from the type of an envelope that was parsed already."""
    names = kind.names if isinstance(kind, StructType) else []
    before, after, about = (
        kind[name].dataType if isinstance(kind, StructType) and name in names else None
        for name in ("before", "after", "source")
    )
    has_source = isinstance(about, StructType) and set(source) <= set(about.names)
    if not isinstance(after, StructType) or before != after or "op" not in names or not has_source:
        raise FieldError(
            f"field {field!r} is no envelope of Debezium's",
            found=kind.simpleString()[:300],
            expected=f"text of JSON, or a struct with before, after, op, and source with {', '.join(source)}",
        )
    return after


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if folded(name) in (SEQUENCE, DELETED):
            raise FieldError(f"debezium makes a field {folded(name)!r}, and the table has one", expected="another name")
