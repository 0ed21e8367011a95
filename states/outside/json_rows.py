"""Rows as JSON, as ``KafkaSpout(value="json")`` reads it, and the types that can be written so."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from trident.coordinators.errors import FieldError, TridentError

_AS_JSON = "strings, numbers, booleans, binary, dates, timestamps; arrays, structs, and maps with text as keys"
_SIMPLE = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "binary", "date")
_TIMES = ("timestamp", "timestamp_ntz")


def check_json(kind: Any, what: str) -> None:
    """Raises FieldError for a type of Spark whose values JSON has no form for."""
    name = kind.simpleString()
    inside: list[Any] = []
    if hasattr(kind, "fields"):
        inside = [field.dataType for field in kind.fields]
    elif name.startswith("array<"):
        inside = [kind.elementType]
    elif name.startswith("map<string,"):
        inside = [kind.valueType]
    elif name not in (*_SIMPLE, *_TIMES) and not name.startswith("decimal("):
        raise FieldError(f"{what} cannot be written as JSON", found=name, expected=_AS_JSON)
    for one in inside:
        check_json(one, what)


def values_alone(batch: pa.RecordBatch, name: str, what: str) -> Sequence[bytes | None]:
    """A field's values: binary as it is, text as UTF-8, other types as JSON; None for null."""
    column = batch.column(name)
    values = [row[name] for row in as_python(batch.select([name]), what)]
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return values
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return [None if value is None else value.encode() for value in values]
    plain = _plain(column.type)
    made = (value if value is None or plain is None else plain(value) for value in values)
    return [None if value is None else _json({name: value}, value, what) for value in made]


def objects(batch: pa.RecordBatch, names: Sequence[str], what: str) -> Sequence[bytes]:
    """Each row as a JSON object of some fields.

    Raises:
        TridentError: a row has NaN, an infinity, a time that Python has not, or text that is not UTF-8.
    """
    rows = batch.select(list(names))
    plain = {name: make for name in names if (make := _plain(rows.schema.field(name).type)) is not None}
    found = []
    for row in as_python(rows, what):
        for name, make in plain.items():
            if row[name] is not None:
                row[name] = make(row[name])
        found.append(_json(row, row, what))
    return found


def with_problems(
    make: Callable[[pa.RecordBatch], Sequence[bytes | None]], batch: pa.RecordBatch
) -> Sequence[tuple[bytes | None, str]]:
    """Gives (what ``make`` makes of a row, "") for each; of one that it cannot: (the row for a person, the problem)."""
    try:
        return [(made, "") for made in make(batch)]
    except TridentError:
        pass
    found: list[tuple[bytes | None, str]] = []
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        try:
            found.append((make(row)[0], ""))
        except TridentError as problem:
            shown = json.dumps(_for_a_person(row), ensure_ascii=False, default=str)
            found.append((shown.encode(), str(problem)))
    return found


def as_python(rows: pa.RecordBatch, what: str, form: str = "JSON") -> list[dict[str, Any]]:
    """The rows; an error names the fields with a value that Python has not, and shows nothing of it."""
    try:
        return rows.to_pylist()
    except (OverflowError, ValueError):  # UnicodeDecodeError is one, too
        wrong = [name for name in rows.schema.names if not _is_python(rows.column(name))]
        raise TridentError(
            f"a row of {what} cannot be written as {form}",
            found=f"a value that is out of range, or not UTF-8, in {', '.join(map(repr, wrong))}",
            expected="times of the years 1 to 9999, and text in UTF-8",
        ) from None


def _is_python(column: pa.Array) -> bool:
    try:
        column.to_pylist()
    except (OverflowError, ValueError):
        return False
    return True


def _for_a_person(row: pa.RecordBatch) -> Mapping[str, Any]:
    """The values of one row; one that Python has not as Arrow's text."""
    columns = ((name, row.column(name)) for name in row.schema.names)
    return {name: column.to_pylist()[0] if _is_python(column) else _text(column) for name, column in columns}


def _text(column: pa.Array) -> str:
    if pa.types.is_temporal(column.type):
        return str(column.cast(pa.string()).to_pylist()[0])
    return str(column.to_string())  # of structs, lists, and text that is not UTF-8


def _plain(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Makes objects of the maps inside a value, which Arrow gives as pairs; None: there is no map inside."""
    if pa.types.is_map(kind):
        item = _plain(kind.item_type) or (lambda value: value)
        return lambda pairs: {key: None if value is None else item(value) for key, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        each = _plain(kind.value_type)
        return each and (lambda values: [None if value is None else each(value) for value in values])
    if pa.types.is_struct(kind):
        inside = {field.name: make for field in kind if (make := _plain(field.type)) is not None}
        return (
            (lambda row: row | {name: make(row[name]) for name, make in inside.items() if row[name] is not None})
            if inside
            else None
        )
    return None


def _json(fields: Mapping[str, Any], value: Any, what: str) -> bytes:
    """The value, which is made of the fields; an error names the field, and shows nothing of the row."""
    try:
        return _ENCODER.encode(value).encode()
    except ValueError:  # NaN and the infinities, which a reader would take for null
        wrong = [name for name, one in fields.items() if not _is_json(one)]
        raise TridentError(
            f"a row of {what} cannot be written as JSON",
            found=f"NaN or an infinity in {', '.join(map(repr, wrong))}",
            expected="finite numbers, or null",
        ) from None


def _is_json(value: Any) -> bool:
    try:
        _ENCODER.encode(value)
    except ValueError:
        return False
    return True


def _other(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    raise TypeError(f"{type(value).__name__} is no JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_other)
