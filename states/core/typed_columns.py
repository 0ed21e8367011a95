"""Columns of given types out of what users' code gives: columns of Arrow, NumPy or pandas, and rows.

The rule for their values is in ``typed_values``. Imported by workers: imports are light.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.plain_values import python_values
from trident.states.core.typed_values import PANDAS, PYSPARK, WrongValue, cut_repr, to_arrow, type_text


def typed(column: Any, kind: pa.DataType, name: str) -> pa.Array:
    """A column as an array of a type, where no value changes by that.

    A column of objects, and one whose type has parts, is held to the rule for the values of functions over rows
    (``states.core.typed_values``); numbers of another width are taken where each is the same number.

    Raises:
        WrongValue: its type is another one, or a value does not fit.
    """
    found = getattr(column, "type", None) or getattr(column, "dtype", None)
    try:
        if not isinstance(column, (pa.Array, pa.ChunkedArray)):
            if str(getattr(column, "dtype", "")) == "object":
                return _of_objects(column, kind, name)
            column = pa.array(column, from_pandas=True)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if array.type == kind:
            return array
        found = array.type
        if pa.types.is_nested(kind) and pa.types.is_nested(array.type):
            return to_arrow(python_values(array), kind, name)[0]
        if _may_become(array.type, kind):
            made = pc.cast(array, kind, safe=True)
            if not pa.types.is_floating(kind) or _as_finite(array, made):
                return made
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise WrongValue(
            f"output {name!r} does not fit its type: {str(error).splitlines()[0]}",
            str(found),
            type_text(kind),
            path=name,
        ) from None
    raise WrongValue(f"output {name!r} is not of its type", str(found), type_text(kind), path=name)


def _of_objects(column: Any, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return to_arrow(list(column), kind, name, terms=PANDAS)[0]
    except WrongValue as error:
        found = f"{error.details['found']}, in a column of dtype object"
        raise WrongValue(str(error), found, error.details["expected"], error.position, error.path) from None


def _as_finite(given: pa.Array, made: pa.Array) -> bool:
    """Tells whether no number has become infinite, nor 0: to the double's 1e300 a float has infinity."""
    numbers = given.cast(pa.float64())
    of_given, of_made = pc.equal(numbers, 0.0), pc.equal(made.cast(pa.float64()), 0.0)
    return bool(pc.is_inf(numbers).equals(pc.is_inf(made)) and of_given.equals(of_made))


def _may_become(found: pa.DataType, kind: pa.DataType) -> bool:
    """Tells whether a cast between the types means the same values: Arrow would also make text of numbers."""
    is_ = pa.types
    if is_.is_null(found):
        return True
    if _is_text(kind):
        return _is_text(found)
    if _is_binary(kind):
        return _is_binary(found)
    if is_.is_integer(kind) or is_.is_floating(kind):
        return is_.is_integer(found) or is_.is_floating(found)
    if is_.is_decimal(kind):
        return is_.is_integer(found) or is_.is_decimal(found)
    if is_.is_timestamp(kind):
        return is_.is_timestamp(found) and (found.tz is None) == (kind.tz is None)
    return is_.is_date(kind) and is_.is_date(found)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_binary(kind: pa.DataType) -> bool:
    is_ = pa.types
    return (
        is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind) or is_.is_binary_view(kind)
    )


# --- rows and tables of a source ---------------------------------------------------------


def batches_of(given: Iterable[Any], schema: pa.Schema, size: int) -> Iterator[pa.RecordBatch]:
    """The rows that a spout's code gives, in pieces: tuples in the schema's order, named Rows, tables, record batches.

    Args:
        size: rows in a batch that is made of tuples.

    Raises:
        WrongValue: something is no row, or a value is not of its field's type.
    """
    rows: list[tuple[Any, ...]] = []
    for one in [given] if isinstance(given, (pa.Table, pa.RecordBatch)) else given:
        if isinstance(one, (pa.Table, pa.RecordBatch)):
            table = pa.Table.from_batches([one]) if isinstance(one, pa.RecordBatch) else one
            yield from fitted(table, schema).to_batches()
            continue
        rows.append(_row(one, schema.names))
        if len(rows) >= size:
            yield from table_of(rows, schema).to_batches()
            rows = []
    if rows:
        yield from table_of(rows, schema).to_batches()


def _row(given: Any, names: Sequence[str]) -> tuple[Any, ...]:
    if not isinstance(given, (tuple, list)) or len(given) != len(names):
        raise WrongValue("a row cannot be used", cut_repr(given), f"a tuple of {len(names)}: {', '.join(names)}")
    own = getattr(given, "__fields__", None)
    if own is None:
        return tuple(given)
    if sorted(own) != sorted(names):
        raise WrongValue("a Row has other fields", ", ".join(own), ", ".join(names))
    return tuple(given[own.index(name)] for name in names)


def table_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Rows with a value for each field as a table; a datetime without a zone is this process's local time.

    Raises:
        WrongValue: a value is not of its field's type.
    """
    # Not zip(*rows): an iterator for each of many rows is work for the garbage collector.
    columns = [
        to_arrow([row[place] for row in rows], field.type, field.name, field.nullable, PYSPARK)[0]
        for place, field in enumerate(schema)
    ]
    return pa.table(columns, schema=schema)


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with the fields of a schema, in any order, as one of exactly this schema.

    Raises:
        WrongValue: it has others, or a value is not of its field's type.
    """
    if sorted(table.column_names) != sorted(schema.names):
        found = ", ".join(table.column_names) or "no field"
        raise WrongValue("the fields are not those of the schema", found, ", ".join(schema.names))
    columns = [typed(table.column(field.name), field.type, field.name) for field in schema]
    for field, column in zip(schema, columns):
        if column.null_count and not field.nullable:
            raise WrongValue(f"the field {field.name!r} holds nulls", "a null", "none, by the schema", 0, field.name)
    return pa.table(columns, schema=schema)
