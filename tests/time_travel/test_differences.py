"""Rows that were committed against rows of a replay: what differs, and what does not."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from trident.time_travel.differences import Difference, RowPair, differences, row_pairs


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


# --- pairs of rows ---------------------------------------------------------------------------------------
# Rows that only one of two tables has: none for another order, and those of one key side by side.


def rows(*values: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(values))


def test_the_order_of_rows_the_column_order_and_nan_are_no_difference() -> None:
    one = rows({"k": "a", "v": 1.0, "_txid": 1}, {"k": "b", "v": float("nan"), "_txid": 1})
    other = pa.table({"v": [float("nan"), 1.0], "k": ["b", "a"], "_txid": [2, 2]})
    assert row_pairs(["k"], one, other, ["_txid"]) == []
    assert row_pairs([], one, other, ["_txid"]) == []
    assert row_pairs(["k"], None, None) == []


def test_rows_of_one_key_are_a_pair() -> None:
    one = rows({"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": None, "v": 3})
    other = rows({"k": "b", "v": 4}, {"k": "c", "v": 5}, {"k": None, "v": 3})
    assert row_pairs(["k"], one, other) == [
        RowPair({"k": "a"}, {"k": "a", "v": 1}, None),
        RowPair({"k": "b"}, {"k": "b", "v": 2}, {"k": "b", "v": 4}),
        RowPair({"k": "c"}, None, {"k": "c", "v": 5}),
    ]


def test_rows_without_a_key_are_counted_and_each_is_alone() -> None:
    one, other = rows({"v": 1}, {"v": 1}, {"v": 2}), rows({"v": 1}, {"v": 3})
    assert row_pairs([], one, other) == [
        RowPair({}, {"v": 1}, None),
        RowPair({}, {"v": 2}, None),
        RowPair({}, None, {"v": 3}),
    ]
    assert row_pairs([], None, other) == [RowPair({}, None, {"v": 1}), RowPair({}, None, {"v": 3})]


def test_a_column_that_only_one_has_is_null_in_the_other() -> None:
    assert row_pairs(["k"], rows({"k": 1}), rows({"k": 1, "v": None})) == []
    assert row_pairs(["k"], rows({"k": 1}), rows({"k": 1, "v": 2})) == [
        RowPair({"k": 1}, {"k": 1, "v": None}, {"k": 1, "v": 2})
    ]


def test_the_order_of_a_map_is_no_difference_wherever_the_map_is() -> None:
    maps = pa.map_(pa.string(), pa.int64())
    kinds = {"m": maps, "s": pa.struct([("in", maps)]), "l": pa.list_(maps)}
    one, other = [("a", 1), ("b", 2)], [("b", 2), ("a", 1)]
    tables = [
        pa.table(
            {
                "m": pa.array([each], kinds["m"]),
                "s": pa.array([{"in": each}], kinds["s"]),
                "l": pa.array([[each]], kinds["l"]),
            }
        )
        for each in (one, other, [("a", 1), ("b", 3)])
    ]
    assert row_pairs([], *tables[:2]) == []
    assert len(row_pairs([], tables[0], tables[2])) == 2


def test_of_a_key_that_both_delete_nothing_else_counts() -> None:
    one = rows(
        {"k": 1, "v": 3, "_deleted": True}, {"k": 2, "v": 4, "_deleted": None}, {"k": 3, "v": 5, "_deleted": True}
    )
    other = rows(
        {"k": 1, "v": 9, "_deleted": True}, {"k": 2, "v": 4, "_deleted": False}, {"k": 3, "v": 5, "_deleted": False}
    )
    found = row_pairs(["k"], one, other)
    assert found == [RowPair({"k": 3}, {"k": 3, "v": None, "_deleted": True}, {"k": 3, "v": 5, "_deleted": False})]
    without = rows({"k": 2, "v": 4})
    assert row_pairs(["k"], without, rows({"k": 2, "v": 4, "_deleted": False})) == []
