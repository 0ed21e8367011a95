"""The acker, which adds up tuple trees: examples 6.1 and 6.2, and every order of messages (Hypothesis)."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import reduce
from operator import xor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.workers import anchors
from trident.workers.anchors import Ledger


def incomplete(acker: Ledger) -> dict[int, int]:
    return dict(zip(*(column.tolist() for column in acker.incomplete())))


def test_the_names_of_example_6_1() -> None:
    acker, rng = Ledger(), random.Random(61)
    msg = {number: rng.getrandbits(64) for number in range(2, 10)}
    root = rng.getrandbits(64)
    acker.add([root], [msg[2] ^ msg[3]])
    acker.add([root], [msg[2] ^ msg[4] ^ msg[5] ^ msg[6]])  # the splitter, 刘备 关羽 张飞
    acker.add([root], [msg[3] ^ msg[7] ^ msg[8] ^ msg[9]])  # the splitter, 曹操 郭嘉 荀彧
    for number in (4, 5, 6, 7, 8):
        acker.add([root], [msg[number]])
    assert incomplete(acker) == {root: msg[9]}
    acker.add([root], [msg[9]])
    assert incomplete(acker) == {}


def test_the_arithmetic_of_example_6_2() -> None:
    acker = Ledger()
    t1, t2, t3, t4, t5 = (1 << number for number in range(5))
    for value, left in ((t1 ^ t2, t1 ^ t2), (t1 ^ t3 ^ t4 ^ t5, t2 ^ t3 ^ t4 ^ t5), (t2, t3 ^ t4 ^ t5)):
        acker.add([7], [value])
        assert incomplete(acker) == {7: left}
    acker.add([7], [t3 ^ t4 ^ t5])
    assert incomplete(acker) == {}


@dataclass
class Tuple:
    """A tuple of a tree: root → its id, and root → XOR of the ids of what was anchored to it."""

    ids: dict[int, int]
    made: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))

    def acks(self) -> list[tuple[int, int]]:
        return [(name, number ^ self.made[name]) for name, number in self.ids.items()]


def trees(rng: random.Random, roots: int, size: int) -> list[tuple[int, int]]:
    """What is added for random trees; a tuple may have several parents, and so several roots."""
    added: list[tuple[int, int]] = []
    live: list[Tuple] = []  # not acknowledged yet
    for name in [rng.getrandbits(64) for _ in range(roots)]:
        emitted = [Tuple({name: rng.getrandbits(64)}) for _ in range(rng.randrange(3))]
        live += emitted
        added.append((name, reduce(xor, (one.ids[name] for one in emitted), 0)))
    for _ in range(size if live else 0):
        parents = rng.sample(live, min(len(live), rng.randrange(1, 4)))
        child = Tuple({})
        for parent in parents:
            for name in parent.ids:
                number = rng.getrandbits(64)
                child.ids[name] = child.ids.get(name, 0) ^ number
                parent.made[name] ^= number
        live.append(child)
        if rng.random() < 0.5:
            added += live.pop(rng.randrange(len(live))).acks()
    return [*added, *(ack for done in live for ack in done.acks())]


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 40), st.sampled_from([1, 3, 1 << 20]))
def test_a_tree_is_complete_exactly_when_all_of_it_was_added_in_any_order(seed, roots, size, at_once):
    rng = random.Random(seed)
    added = trees(rng, roots, size)
    rng.shuffle(added)
    acker, left = Ledger(), defaultdict(list)
    for root, value in added:
        left[root].append(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchors, "_ADDED_AT_ONCE", at_once)
        for number, (root, value) in enumerate(added, 1):
            acker.add([root], [value])
            left[root].remove(value)
            begun = {name for name, _ in added[:number]}
            assert incomplete(acker).keys() == {name for name in begun if any(left[name])}


def test_memory_is_that_of_the_roots_and_not_of_their_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "_ADDED_AT_ONCE", 100)
    acker, rng = Ledger(), random.Random(1)
    for _ in range(5_000):
        acker.add([rng.randrange(50)], [rng.getrandbits(64)])
    assert sum(map(len, acker.roots)) < 50 + 100
