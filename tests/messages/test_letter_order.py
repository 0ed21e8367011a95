"""What came first, a letter or the end of a replay: over resets, hosts whose clocks differ, and files of OPTIMIZE."""

from __future__ import annotations

import datetime
import random
from itertools import pairwise

import pytest

from trident.messages.dead_letters import UNFINISHED, LetterRow, ReplayEnd, first_start_of, in_order
from trident.states.delta.kernel_files import LiveFile

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)


def at(secs: float) -> datetime.datetime:
    return BEGIN + datetime.timedelta(seconds=secs)


def letter(life: str | None, txid: int, secs: float) -> LetterRow:
    return LetterRow(life, {"txid": txid, "given_up_at": at(secs)})


def end(txid: int, secs: float) -> ReplayEnd:
    return ReplayEnd("b", txid, at(secs), "acked")


@pytest.mark.parametrize(
    ("path", "life"),
    [
        ("data/9f3c/4-0-aa/part-0.parquet", "9f3c"),
        ("data/9f3c-r2/4-0-aa/part-0.parquet", "9f3c"),
        ("part-00000-optimized.snappy.parquet", None),
    ],
)
def test_a_staged_file_lies_in_a_folder_of_its_life(path: str, life: str | None) -> None:
    assert first_start_of(LiveFile(path, 1, {}, None, 1, 0)) == life


def test_within_a_life_txids_tell_and_else_times() -> None:
    # A host that led later has a clock that is behind.
    assert end(9, 0).is_after(letter("b", 8, 60)) and not end(7, 90).is_after(letter("b", 8, 60))
    # A letter of before the reset has a greater number.
    assert end(1, 100).is_after(letter("a", 8, 60))
    # Where OPTIMIZE has written the letter, its life is not known.
    assert end(1, 100).is_after(letter(None, 8, 60)) and not end(9, 50).is_after(letter(None, 8, 60))
    assert all(UNFINISHED.is_after(letter(life, 8, 60)) for life in ("a", "b", None))


def test_letters_are_in_order_within_each_life_and_by_time_beside_it(rng: random.Random) -> None:
    for _ in range(200):
        rows = [letter(rng.choice(["a", "b", None]), rng.randrange(20), rng.randrange(100)) for _ in range(12)]
        ordered = in_order(rows)
        assert sorted(map(repr, ordered)) == sorted(map(repr, rows))
        for life in ("a", "b"):
            txids = [one.row["txid"] for one in ordered if one.first_start == life]
            assert txids == sorted(txids)
        unknown = [one.row["given_up_at"] for one in ordered if one.first_start is None]
        assert unknown == sorted(unknown)
    before, behind = [letter("a", txid, txid) for txid in (7, 8)], [letter("b", txid, 10 + txid) for txid in (1, 2)]
    assert in_order([*behind, *before]) == [*before, *behind]
    assert all(one.row["given_up_at"] < two.row["given_up_at"] for one, two in pairwise([*before, *behind]))
