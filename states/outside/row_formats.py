"""Rows in the formats of outside stores: JSON, messages of Kafka, the text of PostgreSQL's COPY."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from trident.coordinators.errors import FieldError, TopologyError, TridentError
from trident.states.core.tables import DELETED_COLUMN
from trident.states.outside.port import OutsideRows

# Rows as JSON, as ``KafkaSpout(value="json")`` reads it, and the types that can be written so.


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


# Rows as messages of Kafka: the key, value and headers of each, and the types that they can be made of.


_HEADERS = ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>")


class Message(NamedTuple):
    """One message; a tombstone has no value."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


@dataclass(frozen=True)
class MessageForm:
    """The fields that messages are made of.

    A field that is alone goes as it is where it is binary, as UTF-8 where it is text, else as JSON; several are a JSON
    object. JSON is as ``KafkaSpout(value="json")`` reads it: times are RFC 3339, binary is base64, decimals are texts.

    Attributes:
        key: the fields of the key; none: messages have no key.
        value: the field of the value; None: all fields but the headers, as an object.
        headers: the field of the headers; None: there are none.
    """

    key: tuple[str, ...]
    value: str | None
    headers: str | None

    def check(self, rows: OutsideRows, what: str) -> None:
        """Raises FieldError or TopologyError for rows that messages cannot be made of."""
        kinds = {field.name: field.dataType for field in rows.schema}
        named = [*self.key, *filter(None, (self.value, self.headers))]
        missing = [name for name in named if name not in kinds]
        if missing:
            raise FieldError(
                f"{what} is made of fields that its rows do not have", found=", ".join(missing), expected=list(kinds)
            )
        if rows.upserts and set(self.key) != set(rows.keys):
            raise TopologyError(
                f"{what} with Upsert needs the key of the Upsert as the key of its messages",
                found=", ".join(self.key) or "none",
                expected=f"key={list(rows.keys)!r}",
            )
        for name in {*self.key, *([self.value] if self.value else self._of_object(list(kinds)))}:
            check_json(kinds[name], f"the field {name!r} of {what}")
        if self.headers and kinds[self.headers].simpleString() not in _HEADERS:
            raise FieldError(
                f"the field {self.headers!r} of {what} cannot be headers",
                found=kinds[self.headers].simpleString(),
                expected=" or ".join(_HEADERS),
            )

    def messages(self, batches: Iterator[pa.RecordBatch], upserts: bool, what: str) -> Iterator[Message]:
        """One message for each row, in their order; with upserts a tombstone where the key is deleted.

        Raises:
            TridentError: a row that no message can be made of.
        """
        for batch in batches:
            keys = self._keys(batch, what)
            if upserts and None in keys:
                raise TridentError(
                    f"a row of {what} has no key", found="null", expected="a key in each row of an Upsert"
                )
            gone = batch.column(DELETED_COLUMN).to_pylist() if upserts else [False] * len(keys)
            headers = self._headers_of(batch, self.headers, what) if self.headers else [None] * len(keys)
            for key, value, deleted, found in zip(keys, self._values(batch, what), gone, headers):
                yield Message(key, None if deleted else value, None if found is None else _headers(found, what))

    def _keys(self, batch: pa.RecordBatch, what: str) -> Sequence[bytes | None]:
        if not self.key:
            return [None] * batch.num_rows
        return values_alone(batch, self.key[0], what) if len(self.key) == 1 else objects(batch, self.key, what)

    def _values(self, batch: pa.RecordBatch, what: str) -> Sequence[bytes | None]:
        if self.value is not None:
            return values_alone(batch, self.value, what)
        return objects(batch, self._of_object(batch.schema.names), what)

    def _headers_of(self, batch: pa.RecordBatch, name: str, what: str) -> Sequence[Any]:
        return [row[name] for row in as_python(batch.select([name]), what, "headers of Kafka")]

    def _of_object(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in (self.headers, DELETED_COLUMN)]


def _headers(found: Sequence[Any], what: str) -> list[tuple[str, bytes | None]]:
    pairs = []
    for one in found:
        if one is None or one["key"] is None:
            raise TridentError(f"a row of {what} has a header without a key")
        value = one["value"]
        pairs.append((one["key"], value.encode() if isinstance(value, str) else value))
    return pairs


# Rows of Arrow as the text that PostgreSQL's COPY reads.


# In this order: the backslashes of the others must not be doubled.
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


def copy_lines(batch: pa.RecordBatch, names: Sequence[str]) -> bytes:
    """The batch's columns as lines of COPY's text format, in which a null is ``\\N`` and every value is escaped.

    Not CSV, where a line ``\\.`` within a quoted text ends the data of servers before PostgreSQL 18.
    """
    if not batch.num_rows:
        return b""
    columns = [_texts(batch.column(name)) for name in names]
    last = pc.binary_join_element_wise(
        columns[-1], pa.scalar("\n", pa.large_string()), pa.scalar("", pa.large_string())
    )
    lines = (
        pc.binary_join_element_wise(*columns[:-1], last, pa.scalar("\t", pa.large_string())) if columns[1:] else last
    )
    return "".join(lines.to_pylist()).encode()


def _texts(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [None if value is None else "\\\\x" + value.hex() for value in column.to_pylist()]
        text = pa.array(texts, pa.large_string())
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        plain = pc.cast(pc.cast(column, pa.timestamp("us", "UTC")), pa.timestamp("us"))
        text = pc.binary_join_element_wise(
            pc.cast(plain, pa.large_string()), pa.scalar("+00", pa.large_string()), pa.scalar("", pa.large_string())
        )
    else:
        text = pc.cast(column, pa.large_string())
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            for found, written in _ESCAPES:
                text = pc.replace_substring(text, found, written)
    return pc.fill_null(text, "\\N")
