"""Each of Debezium's modes is read by what the message's schema says, or is refused by name: nothing is guessed."""

from __future__ import annotations

import base64
import datetime as dt
import json
import pickle
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.udf.types import as_schema
from trident.workers.debezium import UNAVAILABLE, ChangeRows, EnvelopeReader, Modes, NotRead

UTC = dt.timezone.utc
MOMENT = dt.datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
MICROS = (MOMENT - dt.datetime(1970, 1, 1, tzinfo=UTC)) // dt.timedelta(microseconds=1)
CONNECT, TIME, DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."
MISSING: Any = object()


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def read(kind: str, value: Any, form: dict[str, Any] | None = None, **modes: str) -> Any:
    """What a column of a type has of a value, in a message whose schema says that it is ``form``; None: without one."""
    row = {} if value is MISSING else {"a": value}
    envelope = {"op": "c", "before": None, "after": {"id": 1, **row}, "source": {"lsn": 5}}
    if form is not None:
        fields = [{"field": "id", "type": "int64"}, {"field": "a", "optional": True, **form}]
        described = {
            "type": "struct",
            "fields": [{"field": n, "type": "struct", "fields": fields} for n in ("before", "after")],
        }
        envelope = {"schema": described, "payload": envelope}
    reader = EnvelopeReader(as_schema(f"id long, a {kind}", "test"), Modes(**modes))
    rows = ChangeRows(pickle.loads(pickle.dumps(reader)), binary_log=False)
    ((id_, found, sequence, deleted),) = rows(json.dumps(envelope))
    assert (id_, sequence, deleted) == (1, 5, False)
    return found


def semantic(type_: str, name: str, **parameters: str) -> dict[str, Any]:
    return {"type": type_, "name": name, "parameters": parameters}


VARIABLE = {"scale": 3, "value": b64((1500).to_bytes(2, "big"))}
MICRO_TIMESTAMP, MICRO_TIME = (semantic("int64", TIME + name) for name in ("MicroTimestamp", "MicroTime"))
BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
SRID = {"field": "srid", "type": "int32", "optional": True}
POINT = {"type": "struct", "name": DATA + "geometry.Point", "fields": [{"field": "wkb", "type": "bytes"}, SRID]}
TEXTS, MICROS_ARRAY = {"type": "map", "values": {"type": "string"}}, {"type": "array", "items": MICRO_TIMESTAMP}


def decimal_of(scale: int) -> dict[str, Any]:
    return semantic("bytes", CONNECT + "Decimal", scale=str(scale))


@pytest.mark.parametrize(
    ("kind", "value", "form", "expected"),
    [
        ("timestamp", MICROS, MICRO_TIMESTAMP, MOMENT),
        ("timestamp", MICROS // 1000, semantic("int64", TIME + "Timestamp"), MOMENT.replace(microsecond=123000)),
        ("timestamp", MICROS // 1000, semantic("int64", CONNECT + "Timestamp"), MOMENT.replace(microsecond=123000)),
        ("timestamp", MICROS * 1000, semantic("int64", TIME + "NanoTimestamp"), MOMENT),
        ("timestamp", -1, MICRO_TIMESTAMP, BEFORE_1970),
        ("timestamp_ntz", MICROS, MICRO_TIMESTAMP, MOMENT.replace(tzinfo=None)),
        ("timestamp", "2026-05-01T14:00:00.123456+02:00", semantic("string", TIME + "ZonedTimestamp"), MOMENT),
        ("timestamp", "2026-05-01T12:00:00.123456Z", semantic("string", TIME + "IsoTimestamp"), MOMENT),
        ("timestamp_ntz", "2026-05-01T12:00:00.5", {"type": "string"}, dt.datetime(2026, 5, 1, 12, 0, 0, 500000)),
        ("long", MICROS, MICRO_TIME, MICROS),
        ("string", "P1Y2M", semantic("string", TIME + "Interval"), "P1Y2M"),
        ("long", 10**13, semantic("int64", TIME + "MicroDuration"), 10**13),
        ("date", 20574, semantic("int32", TIME + "Date"), dt.date(2026, 5, 1)),
        ("date", 20574, semantic("int32", CONNECT + "Date"), dt.date(2026, 5, 1)),
        ("date", "2026-05-01Z", semantic("string", TIME + "IsoDate"), dt.date(2026, 5, 1)),
        ("decimal(20,2)", "BNI=", decimal_of(2), Decimal("12.34")),
        ("decimal(20,2)", "1234", decimal_of(0), Decimal(0xD76DF8 - 2**24)),
        ("decimal(20,2)", b64(b"\xfb.".ljust(2)), decimal_of(1), Decimal("-123.4")),
        ("decimal(20,2)", "12.30", {"type": "string"}, Decimal("12.30")),
        ("decimal(20,2)", 12.34, {"type": "double"}, Decimal("12.34")),
        ("decimal(5,2)", VARIABLE, semantic("struct", DATA + "VariableScaleDecimal"), Decimal("1.50")),
        ("binary", "AAH/", {"type": "bytes"}, b"\x00\x01\xff"),
        ("binary", "BQ==", semantic("bytes", DATA + "Bits", length="3"), b"\x05"),
        ("string", "6f1d…", semantic("string", DATA + "Uuid"), "6f1d…"),
        ("string", '{"a": 1}', semantic("string", DATA + "Json"), '{"a": 1}'),
        ("struct<wkb: binary, srid: int>", {"wkb": "AQ==", "srid": None}, POINT, {"wkb": b"\x01", "srid": None}),
        ("array<timestamp>", [MICROS, None], MICROS_ARRAY, [MOMENT, None]),
        ("map<string, string>", {"k": "v", "n": None}, TEXTS, {"k": "v", "n": None}),
        ("double", "NaN", {"type": "double"}, "nan"),
        ("double", 3, None, 3.0),
        ("boolean", True, {"type": "boolean"}, True),
        ("tinyint", -128, {"type": "int16"}, -128),
        ("long", None, {"type": "int64"}, None),
        ("long", MISSING, {"type": "int64"}, None),  # the schema says that it may be away
        ("timestamp", "2026-05-01T12:00:00.123456Z", None, MOMENT),
        ("date", 20574, None, dt.date(2026, 5, 1)),
        ("decimal(20,2)", 12.34, None, Decimal("12.34")),
    ],
)
def test_each_mode_is_read_by_the_schema_of_the_message(kind: str, value: Any, form: Any, expected: Any) -> None:
    found = read(kind, value, form)
    assert str(found) == expected if expected == "nan" else (found == expected and type(found) is type(expected)), found


@pytest.mark.parametrize(
    ("kind", "value", "form", "says"),
    [
        ("timestamp", MICROS, {"type": "int64"}, "several meanings"),
        ("timestamp", MICROS, MICRO_TIME, "io.debezium.time.MicroTime, which cannot be a timestamp"),
        ("timestamp", MICROS * 1000 + 1, semantic("int64", TIME + "NanoTimestamp"), "whole microseconds"),
        ("timestamp", 2**63 - 1, MICRO_TIMESTAMP, "years 1 to 9999"),
        ("timestamp", "2026-05-01T12:00:00", semantic("string", TIME + "ZonedTimestamp"), "with a zone"),
        ("timestamp", "2026-05-01T12:00:00.1234567Z", None, "whole microseconds"),
        ("timestamp", "2026-05-01", None, "as ISO 8601"),
        ("date", MICROS, MICRO_TIMESTAMP, "cannot be a date"),
        ("date", MICROS, None, "years 1 to 9999"),
        ("decimal(20,2)", "BNI=", None, "a text for a decimal has several meanings.*decimals="),
        ("decimal(20,2)", "1234", None, "several meanings"),
        ("decimal(20,2)", "BNI=", {"type": "bytes"}, "cannot be a decimal"),
        ("decimal(20,2)", 12.345, {"type": "double"}, r"decimal\(20,2\) can be without rounding, found '12.345'"),
        ("decimal(4,2)", "123.00", {"type": "string"}, "without rounding"),
        ("decimal(20,2)", "NaN", {"type": "string"}, "without rounding"),
        ("decimal(20,2)", "1e999999999", {"type": "string"}, "without rounding"),
        ("decimal(20,2)", "MDB", decimal_of(3), "bytes as base64|without rounding"),
        ("binary", "00ff", None, "a text for bytes has several meanings.*binary="),
        ("binary", "00ff", {"type": "string"}, "a text for bytes has several meanings"),
        ("binary", "BNI=", decimal_of(2), "cannot be bytes"),
        ("string", "AA==", {"type": "bytes"}, "bytes, which cannot be text"),
        ("string", 1, None, "expected text, found 1"),
        ("long", "1", None, "whole number of 64 bits"),
        ("long", 1.0, None, "whole number of 64 bits"),
        ("long", True, None, "whole number"),
        ("tinyint", 128, None, "whole number of 8 bits"),
        ("float", 1e300, None, "a number that the type can be"),
        ("double", 2**53 + 1, None, "a number that the type can be"),
        ("boolean", 1, {"type": "int16"}, "a boolean"),
        ("array<long>", [1, "2"], None, "column a: expected a whole number"),
        ("struct<x: long>", {"X": 1}, None, "no field x .it has 'X'"),
        ("struct<wkb: binary>", "AQ==", semantic("string", "x"), "an object"),
        ("binary", b64(UNAVAILABLE.encode()), {"type": "bytes"}, "lacks the value of column a.*IDENTITY FULL"),
        ("array<string>", [UNAVAILABLE], None, "lacks the value of column a"),
        ("array<string>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], None, "lacks the value of column a"),
        ("array<int>", [*UNAVAILABLE.encode()], None, "lacks the value of column a"),
        ("string", f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}', None, "lacks the value of column a"),
    ],
)
def test_all_else_is_refused_by_name(kind: str, value: Any, form: Any, says: str) -> None:
    with pytest.raises(NotRead, match=f"(?s){says}"):
        read(kind, value, form)


def test_a_column_that_the_message_lacks_is_named() -> None:
    with pytest.raises(NotRead, match="the message has no column a; found id"):
        read("long", MISSING)


def test_a_number_for_a_timestamp_needs_a_unit() -> None:
    with pytest.raises(NotRead, match="column a: a number for a timestamp has several.*schemas.enable=true.*times="):
        read("timestamp", MICROS)


@pytest.mark.parametrize(
    ("kind", "value", "modes", "expected"),
    [
        ("timestamp", MICROS, {"times": "microseconds"}, MOMENT),
        ("timestamp", MICROS // 1000, {"times": "milliseconds"}, MOMENT.replace(microsecond=123000)),
        ("timestamp_ntz", MICROS * 1000, {"times": "nanoseconds"}, MOMENT.replace(tzinfo=None)),
        ("decimal(20,2)", "BNI=", {"decimals": "precise"}, Decimal("12.34")),
        ("decimal(20,2)", "1234", {"decimals": "precise"}, Decimal(0xD76DF8 - 2**24).scaleb(-2)),
        ("decimal(20,2)", "1234", {"decimals": "string"}, Decimal("1234.00")),
        ("binary", "00fF", {"binary": "hex"}, b"\x00\xff"),
        ("binary", "_-8=", {"binary": "base64-url-safe"}, b"\xff\xef"),
        ("binary", "/+8=", {"binary": "base64"}, b"\xff\xef"),
    ],
)
def test_without_a_schema_the_user_says_the_mode(kind: str, value: Any, modes: Any, expected: Any) -> None:
    assert read(kind, value, **modes) == expected


@given(st.integers(-(10**19), 10**19), st.integers(0, 20), st.integers(1, 38), st.data())
def test_a_decimal_is_exact_or_refused(unscaled: int, scale: int, precision: int, data: Any) -> None:
    declared = data.draw(st.integers(0, precision))
    raw = unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
    exact = Decimal(unscaled).scaleb(-scale)
    rest = Context(prec=100).remainder(exact, Decimal(1).scaleb(-declared))
    fits = rest == 0 and abs(exact) < Decimal(10) ** (precision - declared)
    try:
        found = read(f"decimal({precision},{declared})", b64(raw), decimal_of(scale))
    except NotRead:
        assert not fits
    else:
        assert fits and found == exact


@given(st.text(max_size=5))
def test_a_message_is_one_json_object(after: str) -> None:
    message = '{"op": "c", "after": {"id": 1}, "source": {"lsn": 1}}'
    reader = EnvelopeReader(as_schema("id long", "test"))
    try:
        reader.read(message + after)
    except NotRead:
        assert after.strip(" \t\r\n")
    else:
        assert not after.strip(" \t\r\n")


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_no_tombstone(text: str) -> None:
    rows = ChangeRows(EnvelopeReader(as_schema("id long", "test")), binary_log=False)
    assert rows(None) == []
    with pytest.raises(NotRead, match="the text is empty.*a tombstone is null"):
        rows(text)
