"""The checks of the kills find what they are for; the kills themselves are ``python -m tests.kills`` (make kills)."""

from __future__ import annotations

import pytest

from tests.kills.compare import KEYS, appended, by_key, in_order, key_of

COUNT = 2 * KEYS + 1


def rows(numbers: list[int]) -> dict[str, list[int]]:
    return {"number": numbers, "key": [number % KEYS for number in numbers]}


def test_each_message_once_passes() -> None:
    whole = rows(list(range(COUNT)))
    assert appended("s", whole, COUNT) == []
    assert by_key("s", {key_of(number): 2 + (number == 0) for number in range(KEYS)}, COUNT) == []
    assert in_order("s", ((key_of(number), number) for number in range(COUNT))) == []


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([*range(COUNT - 1)], "1 lost, 0 doubled, 0 that never were"),
        ([*range(COUNT), 7], "0 lost, 1 doubled, 0 that never were, such as [7]"),
        ([*range(1, COUNT), 7], "1 lost, 1 doubled, 0 that never were, such as [0, 7]"),
        ([*range(COUNT), COUNT], "0 lost, 0 doubled, 1 that never were"),
        ([], f"{COUNT} lost, 0 doubled"),
    ],
)
def test_a_lost_a_doubled_and_a_foreign_row_are_told_apart(numbers: list[int], said: str) -> None:
    (found,) = appended("rows", rows(numbers), COUNT)
    assert said in found


def test_a_row_under_another_key_and_a_wrong_count_are_found() -> None:
    torn = rows(list(range(COUNT)))
    torn["key"][3] = 4
    (found,) = appended("rows", torn, COUNT)
    assert "1 that never were" in found
    counts = {key_of(number): 2 + (number == 0) for number in range(KEYS)}
    assert "1 keys differ, such as k7: 3 in place of 2" in by_key("totals", {**counts, "k7": 3}, COUNT)[0]
    assert "1 keys differ, such as more: 1 in place of None" in by_key("totals", {**counts, "more": 1}, COUNT)[0]
    assert (
        "1 keys differ, such as k7: None in place of 2"
        in by_key("totals", {k: n for k, n in counts.items() if k != "k7"}, COUNT)[0]
    )


@pytest.mark.parametrize("numbers", [[0, KEYS, 0], [KEYS, 0], [0, 0]])
def test_an_older_row_of_a_key_behind_a_newer_one_is_found(numbers: list[int]) -> None:
    assert in_order("copied", ((key_of(number), number) for number in numbers))
