"""Reads Debezium's messages from JSON text: each column by what the message's schema says of it, never by a guess.

A connector writes a time as days, milli-, micro- or nanoseconds or as text, a decimal as bytes, text or a number, as
it is set. The schema in a message (``schemas.enable=true``) says which. Of a message without one the same JSON can
mean several values: these are refused unless the user says the connector's mode.
Sources: Debezium's reference of the connectors for PostgreSQL and MySQL, "Data type mappings"; Kafka Connect's
JsonConverter.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from functools import cached_property
from typing import Any

from pyspark.sql import types as T

# The connector for PostgreSQL writes this for a large value that an UPDATE has not touched, by default; in columns of
# bytes its bytes, in arrays one such element, in an hstore a pair, as a UUID what Java makes of its bytes.
UNAVAILABLE = "__debezium_unavailable_value"
_BYTES = base64.b64encode(UNAVAILABLE.encode()).decode()
_UUID = str(uuid.UUID(bytes=hashlib.md5(UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3))
UNAVAILABLE_TEXTS = (UNAVAILABLE, _BYTES, _UUID, f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}')
_PLACEHOLDERS = (
    *UNAVAILABLE_TEXTS,
    *([text] for text in UNAVAILABLE_TEXTS),
    [*UNAVAILABLE.encode()],
)
# The modes that a user may name for messages without a schema.
TIMES = {"milliseconds": 1_000_000, "microseconds": 1_000, "nanoseconds": 1}
DECIMALS = ("precise", "string")
BINARIES = ("base64", "base64-url-safe", "hex")
_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
_UNITS = {
    f"{_CONNECT}Timestamp": "milliseconds",
    f"{_TIME}Timestamp": "milliseconds",
    f"{_TIME}MicroTimestamp": "microseconds",
    f"{_TIME}NanoTimestamp": "nanoseconds",
}
_DAYS = (f"{_CONNECT}Date", f"{_TIME}Date")
_TEXT_TIMES, _TEXT_DATES = (f"{_TIME}ZonedTimestamp", f"{_TIME}IsoTimestamp"), (f"{_TIME}IsoDate",)
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
_BITS: Mapping[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_EPOCH, _UTC = dt.datetime(1970, 1, 1), dt.timezone.utc
_EXACT = Context(prec=200)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:\d\d)?")

Convert = Callable[[Any], Any]
About = Mapping[str, Any]


class NotRead(ValueError):
    """A message that is no change of a row, or has a value that cannot be its column's."""


@dataclass(frozen=True)
class Modes:
    """How a connector is set, for messages that bring no schema; None: not known.

    Attributes:
        times: a key of TIMES: the unit of numbers for timestamps.
        decimals: one of DECIMALS: what texts for decimals are. Bytes have the scale of the column then.
        binary: one of BINARIES: what texts for bytes are.
    """

    times: str | None = None
    decimals: str | None = None
    binary: str | None = None


@dataclass(frozen=True)
class EnvelopeReader:
    """Reads a message; safe to send to tasks.

    Attributes:
        row: the table's columns.
    """

    row: T.StructType
    modes: Modes = Modes()

    def read(self, text: "str | bytes") -> dict[str, Any]:
        """``op``, ``before`` or ``after`` (the row that counts, by its columns), and ``source``.

        Raises:
            NotRead: it says what was found, in which column.
        """
        if not text.strip():
            raise NotRead("the text is empty; expected a message of Debezium (a tombstone is null)")
        decode, row_of = self._decoders
        try:
            message = decode(text)
            envelope = message if message.payload is None else message.payload
            op, source = envelope.op, envelope.source or {}
            if op == "m":
                return {"op": op, "before": None, "after": None, "source": source}
            which = {"c": "after", "r": "after", "u": "after", "d": "before"}.get(op)
            found = None if which is None else row_of(getattr(envelope, which))
        except ValueError as error:  # of the parser, for what is no JSON or not of this form
            raise NotRead(f"{error}") from None
        if which is None:
            raise NotRead(f"a message is no change of a row: op is {op or 'null'}; expected c, r, u or d")
        if found is None:
            hint = " (of a delete: set the table's REPLICA IDENTITY)" if op == "d" else ""
            raise NotRead(f"a message is no change of a row: op is {op}, without the row{hint}")
        if source.get("connector") in (None, "postgresql"):
            _check_whole(found)
        row = self._fields(bytes(message.schema), which)(found)
        return {"op": op, "before": None, "after": None, "source": source, which: row}

    @cached_property
    def _decoders(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        import msgspec  # optional: executors of a cluster have it only for this

        raw, null = msgspec.Raw, msgspec.Raw(b"null")
        fields: list[Any] = [("op", "str | None", None), ("before", raw, null), ("after", raw, null)]
        fields += [("source", "dict | None", None)]
        envelope = msgspec.defstruct("Envelope", fields, namespace={"__module__": __name__})
        message = msgspec.defstruct("Message", [("payload", envelope | None, None), ("schema", raw, raw(b"")), *fields])
        return msgspec.json.Decoder(message).decode, msgspec.json.Decoder(dict | None, float_hook=Decimal).decode

    def _fields(self, schema: bytes, which: str) -> Convert:
        known: dict[tuple[bytes, str], Convert] = self.__dict__.setdefault("_known", {})
        if (schema, which) not in known:
            if len(known) >= _SCHEMAS_MAX:
                known.clear()
            known[schema, which] = _struct(self.row, _described(schema, which), self.modes, "column ")
        return known[schema, which]

    @property
    def envelope(self) -> T.StructType:
        """The type of what ``read`` gives, with what all connectors say of a change's place."""
        source = T.StructType().add("lsn", "long").add("file", "string").add("pos", "long").add("row", "integer")
        row = self.row
        return T.StructType().add("op", "string").add("before", row).add("after", row).add("source", source)

    def __getstate__(self) -> dict[str, Any]:
        return {"row": self.row, "modes": self.modes}


_SCHEMAS_MAX = 100


@dataclass(frozen=True)
class ChangeRows:
    """Called with a message, null for a tombstone: the row of the change, its sequence, whether it is a delete.

    Attributes:
        binary_log: the sequence is of MySQL's file, position and row; else PostgreSQL's lsn.
    """

    reader: EnvelopeReader
    binary_log: bool

    def __call__(self, text: "str | bytes | None") -> list[Any]:
        if text is None:
            return []
        envelope = self.reader.read(text)
        row = envelope["after"] or envelope["before"]
        if row is None:  # a message of the database's user
            return []
        source = envelope["source"]
        place = _place(source) if self.binary_log else _whole("lsn", source)
        return [(*row.values(), place, envelope["op"] == "d")]


def _place(source: Mapping[str, Any]) -> Decimal | None:
    """One number of a file's number, the position in it, and the row in an event: 9, 19 and 10 digits."""
    position = _whole("pos", source)
    number = re.search("[0-9]+$", str(source.get("file")))
    if position is None or number is None:
        return None
    return Decimal(f"{number[0]}{position:019}{_whole('row', source) or 0:010}")


def _whole(name: str, source: Mapping[str, Any]) -> int | None:
    value = source.get(name)
    if value is not None and type(value) is not int:
        raise NotRead(f"source.{name}: {_wrong('a whole number', value)}")
    return value


def _described(schema: bytes, which: str) -> About | None:
    """The schema's part about ``before`` or ``after``; None: there is none, or it says nothing of it."""
    import msgspec  # optional: executors of a cluster have it only for this

    found = msgspec.json.decode(schema) if schema else None
    fields = found.get("fields") if isinstance(found, dict) else None
    row = next((one for one in fields or () if one.get("field") == which), None)
    return row if row is not None and row.get("fields") else None


def _check_whole(row: Mapping[str, Any]) -> None:
    for name, value in row.items():
        if type(value) in (str, list) and value in _PLACEHOLDERS:
            raise NotRead(
                f"a message lacks the value of column {name}, which its UPDATE has not touched; the table needs "
                "REPLICA IDENTITY FULL"
            )


# --- converters ---------------------------------------------------------------------------------


def _converter(kind: T.DataType, about: About | None, modes: Modes) -> Convert:
    """Turns a value of JSON, which is not null, into one of a type.

    Args:
        about: what the message's schema says of it; None: nothing.
    """
    if isinstance(kind, T.StructType):
        return _struct(kind, about, modes, "field ")
    if isinstance(kind, T.ArrayType):
        return _array(_or_null(_converter(kind.elementType, about and about.get("items"), modes)))
    if isinstance(kind, T.MapType):
        return _map(_or_null(_converter(kind.valueType, about and about.get("values"), modes)))
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        return _timestamp(isinstance(kind, T.TimestampType), about, modes.times)
    if isinstance(kind, T.DateType):
        return _date(about)
    if isinstance(kind, T.DecimalType):
        return _decimal(kind, about, modes.decimals)
    if isinstance(kind, T.BinaryType):
        return _binary(about, modes.binary)
    if isinstance(kind, T.StringType):
        return _refusing(about, "text") if about is not None and about.get("type") != "string" else _of(str, "text")
    if isinstance(kind, T.BooleanType):
        return _of(bool, "a boolean")
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return _float(isinstance(kind, T.FloatType))
    return _integer(_BITS[type(kind)])


def can_be_read(kind: T.DataType) -> bool:
    """Tells whether values of a type can be read from a message."""
    if isinstance(kind, T.StructType):
        return all(can_be_read(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return can_be_read(kind.elementType)
    if isinstance(kind, T.MapType):
        return isinstance(kind.keyType, T.StringType) and can_be_read(kind.valueType)
    simple = (T.TimestampType, T.TimestampNTZType, T.DateType, T.DecimalType, T.BinaryType, T.StringType)
    return type(kind) in _BITS or isinstance(kind, (*simple, T.BooleanType, T.FloatType, T.DoubleType))


def _struct(kind: T.StructType, about: About | None, modes: Modes, what: str) -> Convert:
    fields = None if about is None else {one.get("field"): one for one in about.get("fields") or ()}
    parts = [
        (field.name, _converter(field.dataType, None if fields is None else fields.get(field.name), modes))
        for field in kind.fields
    ]
    # JsonConverter writes each field, also one that is null.
    optional = {name for name, one in (fields or {}).items() if one.get("optional")}

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        row: dict[str, Any] = {}
        for name, part in parts:
            one = value.get(name)
            if one is None:
                if name not in value and name not in optional:
                    raise NotRead(_lacks(name, value, what))
                row[name] = None
                continue
            try:
                row[name] = part(one)
            except (ValueError, ArithmeticError) as error:
                raise NotRead(f"{what}{name}: {error}") from None
        return row

    return convert


def _lacks(name: str, row: Mapping[str, Any], what: str) -> str:
    other = next((one for one in row if one.lower() == name.lower()), None)
    near = f" (it has {other!r}: write the name as the database has it)" if other is not None else ""
    there = ", ".join(map(str, list(row)[:50]))
    return f"the message has no {what}{name}{near}; found {there or 'none'}; it was renamed or dropped, or never there"


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _array(convert: Convert) -> Convert:
    return lambda value: [convert(one) for one in _of(list, "an array")(value)]


def _map(convert: Convert) -> Convert:
    return lambda value: {key: convert(one) for key, one in _of(dict, "an object")(value).items()}


def _of(kind: type, expected: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(expected, value)
        return value

    return convert


def _integer(bits: int) -> Convert:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _wrong(f"a whole number of {bits} bits", value)
        return value

    return convert


def _float(single: bool) -> Convert:
    def convert(value: Any) -> float:
        if value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        if type(value) not in (int, Decimal):
            raise _wrong("a number", value)
        found = float(value)
        if not math.isfinite(found) or (single and abs(found) > _FLOAT_MAX) or (type(value) is int and found != value):
            raise _wrong("a number that the type can be", value)
        return found

    return convert


_FLOAT_MAX = 3.4028235677973366e38  # above it a float is infinite


def _timestamp(zoned: bool, about: About | None, given: str | None) -> Convert:
    name, form = _meaning(about)
    unit = _UNITS.get(name or "", given if name is None else None)
    takes_text = about is None or name in _TEXT_TIMES or (name is None and form == "string")
    if name is not None and unit is None and not takes_text:
        return _refusing(about, "a timestamp")

    def convert(value: Any) -> dt.datetime:
        if type(value) is str and takes_text:
            return _time_of(value, zoned)
        if type(value) is not int:
            raise _wrong("a timestamp", value)
        if unit is None:
            raise _unknown("a number for a timestamp", value, "times", TIMES)
        whole, rest = divmod(value * TIMES[unit], 1_000)
        if rest:
            raise _wrong("a time in whole microseconds, which a timestamp can keep", value)
        return _since_epoch(whole, value).replace(tzinfo=_UTC if zoned else None)

    return convert


def _since_epoch(microseconds: int, value: Any) -> dt.datetime:
    try:
        return _EPOCH + dt.timedelta(microseconds=microseconds)
    except OverflowError:
        raise _wrong("a time in the years 1 to 9999", value) from None


def _time_of(text: str, zoned: bool) -> dt.datetime:
    match = _ISO.fullmatch(text)
    if match is None or match[2] is None or (match[3] or "")[6:].strip("0"):
        raise _wrong("a time as ISO 8601, in whole microseconds", text)
    zone = match[4]
    if zoned is (zone is None) and not (zone == "Z" and not zoned):
        raise _wrong("a time with a zone" if zoned else "a time without a zone", text)
    if not zoned and zone not in (None, "Z"):
        raise _wrong("a time without a zone", text)
    found = dt.datetime.fromisoformat(f"{match[1]}T{match[2]}.{(match[3] or '')[:6]:0<6}")
    if not zoned:
        return found
    return found.replace(tzinfo=_UTC if zone == "Z" else dt.datetime.fromisoformat(f"{match[1]}T00:00:00{zone}").tzinfo)


def _date(about: About | None) -> Convert:
    name, form = _meaning(about)
    days = about is None or name in _DAYS
    text = about is None or name in _TEXT_DATES or (name is None and form == "string")
    if not days and not text:
        return _refusing(about, "a date")

    def convert(value: Any) -> dt.date:
        if type(value) is int and days:
            return _since_epoch(value * 86_400_000_000, value).date()
        match = _ISO.fullmatch(value) if type(value) is str and text else None
        if match is None or match[2] is not None or match[4] not in (None, "Z"):
            raise _wrong("a date", value)
        return dt.date.fromisoformat(match[1])

    return convert


def _decimal(kind: T.DecimalType, about: About | None, given: str | None) -> Convert:
    name, form = _meaning(about)
    scale: int | None = kind.scale
    if name == f"{_CONNECT}Decimal":
        scale = int((about or {}).get("parameters", {}).get("scale", 0))
        given = "precise"
    elif about is not None and name is None and form == "string":
        given = "string"
    elif about is not None and not (name == _VARIABLE_DECIMAL or (name is None and form in _NUMBERS)):
        return _refusing(about, "a decimal")

    def convert(value: Any) -> Decimal:
        if type(value) is dict and value.keys() == {"scale", "value"}:  # VariableScaleDecimal
            found = _unscaled(value["value"], int(value["scale"]))
        elif type(value) in (int, Decimal) and given != "precise":
            found = Decimal(value)
        elif type(value) is str and given is not None:
            found = _unscaled(value, kind.scale if scale is None else scale) if given == "precise" else _number(value)
        elif type(value) is str:
            raise _unknown("a text for a decimal", value, "decimals", DECIMALS)
        else:
            raise _wrong("a decimal", value)
        return _fitting(found, kind)

    return convert


_NUMBERS = ("int8", "int16", "int32", "int64", "float", "double", "float32", "float64")


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise _wrong("a decimal", text) from None


def _unscaled(text: Any, scale: int) -> Decimal:
    return Decimal(int.from_bytes(_bytes(text, "base64"), "big", signed=True)).scaleb(-scale, _EXACT)


def _fitting(found: Decimal, kind: T.DecimalType) -> Decimal:
    if found.is_finite() and found.adjusted() < kind.precision:
        exact = found.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
        if exact == found and len(exact.as_tuple().digits) <= kind.precision:
            return exact
    raise _wrong(f"a value that {kind.simpleString()} can be without rounding", str(found))


def _binary(about: About | None, given: str | None) -> Convert:
    name, form = _meaning(about)
    if form == "bytes" and name != f"{_CONNECT}Decimal":
        given = "base64"
    elif about is not None and (form != "string" or name is not None):
        return _refusing(about, "bytes")

    def convert(value: Any) -> bytes:
        if type(value) is not str:
            raise _wrong("bytes", value)
        if given is None:
            raise _unknown("a text for bytes", value, "binary", BINARIES)
        return _bytes(value, given)

    return convert


def _bytes(text: Any, form: str) -> bytes:
    try:
        if type(text) is not str:
            raise ValueError
        if form == "hex":
            if not re.fullmatch("([0-9A-Fa-f]{2})*", text):
                raise ValueError
            return bytes.fromhex(text)
        return base64.b64decode(text, altchars=b"-_" if form == "base64-url-safe" else None, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(f"bytes as {form}", text) from None


def _meaning(about: About | None) -> tuple[str | None, str | None]:
    return (None, None) if about is None else (about.get("name"), about.get("type"))


def _refusing(about: About | None, wanted: str) -> Convert:
    name, form = _meaning(about)

    def refuse(value: Any) -> Any:
        raise NotRead(f"the message's schema says that it is {name or form}, which cannot be {wanted}")

    return refuse


def _wrong(expected: str, value: Any) -> NotRead:
    return NotRead(f"expected {expected}, found {str(value)[:100] if type(value) is Decimal else repr(value)[:100]}")


def _unknown(what: str, value: Any, argument: str, choices: Any) -> NotRead:
    return NotRead(
        f"{what} has several meanings, found {value!r:.100}, and the message brings no schema that says which; "
        f"expected schemas.enable=true, or debezium(…, {argument}=…) with one of {', '.join(choices)}"
    )
