"""Debezium's envelope: JSON with and without its schema, structs, what is left out and what fails."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from tests.streams.stream_helpers import stream_of
from trident.coordinators.errors import FieldError, TopologyError
from trident.testing import run_batch
from trident.workers.debezium import UNAVAILABLE

USERS = "id long, name string"


def message(op: str, before: Any = None, after: Any = None, payload: bool = False, **source: Any) -> str:
    said = {"op": op, "before": before, "after": after, "source": {"version": "3", **source}, "ts_ms": 5}
    return json.dumps({"schema": {"type": "struct"}, "payload": said} if payload else said)


def rows_of(stream: Any, rows: list[tuple]) -> list[tuple]:
    return sorted((tuple(row) for row in run_batch(stream, rows)), key=repr)


def test_json_with_and_without_its_schema_becomes_rows(spark) -> None:
    given = [
        message("r", None, {"id": 1, "name": "ann", "more": [1]}, lsn=10),
        message("u", {"id": 1, "name": "ann"}, {"id": 1, "name": "anna"}, payload=True, lsn=2**40),
        message("d", {"id": 2, "name": None}, lsn=30),
        message("m", lsn=40),
        None,
    ]
    found = rows_of(stream_of("value string").debezium(USERS), [(one,) for one in given])
    assert found == [(1, "ann", 10, False), (1, "anna", 2**40, False), (2, None, 30, True)]


def test_places_of_mysql_are_in_the_order_of_file_position_and_row(spark) -> None:
    places = [("bin.000009", 2**63 - 1, None), ("bin.000010", 4, 0), ("bin.000010", 4, 1), ("bin.000010", 5, 0)]
    given = [
        message("c", None, {"id": n, "name": None}, file=file, pos=pos, row=row)
        for n, (file, pos, row) in enumerate(places)
    ]
    found = rows_of(stream_of("value string").debezium(USERS, "mysql"), [(one,) for one in given])
    assert [row[0] for row in sorted(found, key=lambda row: row[2])] == [0, 1, 2, 3]
    assert len({row[2] for row in found}) == 4


@pytest.mark.long
def test_a_struct_brings_its_columns(spark) -> None:
    row = "struct<id:bigint,name:string>"
    stream = stream_of(f"value struct<before:{row},after:{row},op:string,source:struct<lsn:bigint,db:string>>")
    given = [(({"id": 1, "name": "a"}, None, "d", (7, "x")),), ((None, (2, "b"), "c", (8, "x")),), (None,)]
    assert rows_of(stream.debezium(), given) == [(1, "a", 7, True), (2, "b", 8, False)]


@pytest.mark.parametrize(
    ("kind", "lacking", "whole"),
    [
        ("string", UNAVAILABLE, "a"),
        ("binary", UNAVAILABLE.encode(), b"a"),
        ("array<binary>", [UNAVAILABLE.encode()], [b"a"]),
        ("array<smallint>", [*UNAVAILABLE.encode()], [1]),
        ("map<string,string>", {UNAVAILABLE: UNAVAILABLE}, {"a": "b"}),
    ],
)
def test_a_struct_whose_value_is_not_there_fails_the_batch(spark, kind: str, lacking: Any, whole: Any) -> None:
    row = f"struct<id:bigint,name:{kind}>"
    stream = stream_of(f"value struct<before:{row},after:{row},op:string,source:struct<lsn:bigint>>").debezium()
    there = [
        ((None, (n, value), "u", (n,)),) for n, value in enumerate([whole, None, []][: 3 if "array" in kind else 2])
    ]
    assert len(run_batch(stream, there)) == len(there)
    with pytest.raises(Exception, match="lacks the value of column name"):
        run_batch(stream, [((None, (1, lacking), "u", (7,)),)])


def test_times_and_decimals_are_those_that_the_user_says(spark) -> None:
    stream = stream_of("value string").debezium(
        "id long, at timestamp, price decimal(9,2)", times="microseconds", decimals="string"
    )
    after = {"id": 1, "at": 1_767_225_600_000_001, "price": "12.30"}
    ((id_, at, price, *_),) = rows_of(stream, [(message("c", None, after, lsn=1),)])
    assert (id_, price) == (1, Decimal("12.30")) and at.microsecond == 1 and at.year == 2026


def test_a_message_that_is_no_change_of_a_row_fails_the_batch(spark) -> None:
    """What is wrong with each: tests/workers/test_debezium_values.py."""
    for text, says in (
        ("{no json", "(?i)malformed"),
        (message("u", None, {"id": 1, "name": UNAVAILABLE}, lsn=1), "lacks the value of column name.*IDENTITY FULL"),
    ):
        with pytest.raises(Exception, match=f"(?s){says}"):
            run_batch(stream_of("value string").debezium(USERS), [(text,)])


@pytest.mark.parametrize(
    ("fields", "arguments", "error", "says"),
    [
        ("value string", {}, TopologyError, "needs the columns"),
        ("value string", {"schema": USERS, "connector": "db2"}, TopologyError, "does not know.*mysql"),
        ("value string", {"schema": "id interval day to second"}, Exception, "interval"),
        ("value string", {"schema": "id map<int, int>"}, TopologyError, "cannot read column id"),
        ("value string", {"schema": USERS, "times": "seconds"}, TopologyError, "times='seconds'.*microseconds"),
        ("value string", {"schema": USERS, "binary": "utf-8"}, TopologyError, "binary='utf-8'.*hex"),
        ("value string", {"schema": USERS, "field": "valeu"}, FieldError, "Did you mean"),
        ("value string", {"schema": "id long, Deleted boolean"}, FieldError, "makes a field 'deleted'"),
        ("value struct<after:struct<id:int>>", {}, FieldError, "no envelope"),
    ],
)
def test_arguments_are_checked_when_the_topology_is_built(spark, fields, arguments, error, says) -> None:
    with pytest.raises(error, match=f"(?s){says}"):
        stream_of(fields).debezium(**arguments)
