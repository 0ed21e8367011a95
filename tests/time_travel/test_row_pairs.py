"""Rows that only one of two tables has: none for another order, and those of one key side by side."""

from __future__ import annotations

import pyarrow as pa

from trident.time_travel.differences import RowPair, row_pairs


def rows(*values: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(values))


def test_the_order_of_rows_the_column_order_and_nan_are_no_difference() -> None:
    one = rows({"k": "a", "v": 1.0, "_txid": 1}, {"k": "b", "v": float("nan"), "_txid": 1})
    other = pa.table({"v": [float("nan"), 1.0], "k": ["b", "a"], "_txid": [2, 2]})
    assert row_pairs(["k"], one, other, ["_txid"]) == []
    assert row_pairs([], one, other, ["_txid"]) == []
    assert row_pairs(["k"], None, None) == []


def test_rows_of_one_key_stand_side_by_side() -> None:
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
    assert found == [
        RowPair({"k": 3}, {"k": 3, "v": None, "_deleted": True}, {"k": 3, "v": 5, "_deleted": False}),
    ]
    without = rows({"k": 2, "v": 4})
    assert row_pairs(["k"], without, rows({"k": 2, "v": 4, "_deleted": False})) == []
