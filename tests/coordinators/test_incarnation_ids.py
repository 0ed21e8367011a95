"""Incarnation ids: rollbacks are counted, and each has what is told apart by it to itself."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from trident.coordinators.identities import after_rollback, first_id, rollbacks_of, same_start, up_to

FIRST = st.one_of(st.just(uuid.uuid4().hex), st.text(min_size=1).filter(lambda text: first_id(text) == text))


@given(FIRST, st.integers(0, 12))
def test_each_rollback_makes_another_id_of_the_same_first_start(first: str, count: int) -> None:
    made = [first]
    for _ in range(count):
        made.append(after_rollback(made[-1]))
    assert len(set(made)) == count + 1
    assert [rollbacks_of(each) for each in made] == list(range(count + 1))
    assert {first_id(each) for each in made} == {first}
    assert up_to(made[-1]) == made[::-1]
    assert all(same_start(one, made[0]) for one in made)


@given(FIRST, FIRST)
def test_ids_of_two_first_starts_are_of_one_only_when_they_are_the_same(one: str, other: str) -> None:
    assert same_start(after_rollback(one), other) == (one == other)
    assert not same_start(one, None) and same_start(None, None)
