"""Rows that were committed against rows of a replay: what differs, and what does not."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from trident.time_travel.differences import Difference, differences


def table(*rows: dict[str, Any], **types: pa.DataType) -> pa.Table:
    schema = pa.schema(list(types.items())) if types else None
    return pa.Table.from_pylist(list(rows), schema=schema)


def test_equal_rows_in_another_order_and_type_of_zone_do_not_differ() -> None:
    at = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
    theirs = pa.table({"at": pa.array([at, None], pa.timestamp("us", "UTC")), "x": [float("nan"), 0.0]})
    ours = pa.table({"x": [-0.0, float("nan")], "at": pa.array([None, at], pa.timestamp("us", "Europe/Rome"))})
    assert differences("s", (), theirs, ours) == []


def test_rows_count_as_often_as_they_are_there() -> None:
    found = differences("s", (), table({"n": 1}, {"n": 1}, {"n": 2}), table({"n": 1}, {"n": 3}))
    assert found == [
        Difference("s", {}, {"n": 1}, None),
        Difference("s", {}, {"n": 2}, None),
        Difference("s", {}, None, {"n": 3}),
    ]


def test_rows_of_one_key_stand_side_by_side() -> None:
    theirs = table({"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": None, "n": 3})
    ours = table({"k": "a", "n": 1}, {"k": "b", "n": 7}, {"k": "c", "n": 4})
    found = differences("s", ("k",), theirs, ours)
    assert found == [
        Difference("s", {"k": "b"}, {"k": "b", "n": 2}, {"k": "b", "n": 7}),
        Difference("s", {"k": "c"}, None, {"k": "c", "n": 4}),
        Difference("s", {"k": None}, {"k": None, "n": 3}, None),
    ]
    assert str(found[0]) == "s {'k': 'b'}: committed {'k': 'b', 'n': 2}, replayed {'k': 'b', 'n': 7}"


def test_columns_that_only_one_has_are_null_in_the_other_but_for_the_frameworks_own() -> None:
    theirs = table({"k": "a", "n": 1, "_txid": 8})
    assert differences("s", ("k",), theirs, table({"k": "a", "n": 1}), leave_out=["_txid"]) == []
    (one,) = differences("s", ("k",), theirs, table({"k": "a", "m": 1}), leave_out=["_txid"])
    assert (one.committed, one.replayed) == ({"k": "a", "m": None, "n": 1}, {"k": "a", "m": 1, "n": None})


def test_a_partition_column_is_compared_by_its_text() -> None:
    day, when = date(2026, 5, 1), datetime(2026, 5, 1, 1, tzinfo=timezone.utc)
    theirs = table({"n": 1, "day": "2026-05-01", "at": "2026-05-01T01:00:00.000000Z", "t": None})
    ours = table({"n": 1, "day": day, "at": when, "t": ""})
    assert differences("s", (), theirs, ours, partition_columns=["day", "at", "t"]) == []
    other = table({"n": 1, "day": day + timedelta(1), "at": when, "t": ""})
    assert len(differences("s", (), theirs, other, partition_columns=["day", "at", "t"])) == 2


def test_nothing_was_staged_or_nothing_is_replayed() -> None:
    none = table(n=pa.int64())
    assert differences("s", (), None, none) == []
    assert differences("s", (), None, table({"n": 1})) == [Difference("s", {}, None, {"n": 1})]
    assert differences("s", (), table({"n": 1}), none) == [Difference("s", {}, {"n": 1}, None)]


def test_nested_values_and_bytes_are_compared() -> None:
    row = {"k": b"\x00", "l": [1, None], "s": {"a": 1, "b": [2.0]}}
    assert differences("s", ("k",), table(row), table(dict(row))) == []
    (one,) = differences("s", ("k",), table(row), table({**row, "s": {"a": 1, "b": [2.5]}}))
    assert one.key == {"k": b"\x00"}
