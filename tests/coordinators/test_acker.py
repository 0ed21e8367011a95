"""The ledger of tuple trees: examples 6.1 and 6.2, and every order of messages (Hypothesis)."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.coordinators.acker import Acker, Ackers, Ended, Verdict
from trident.coordinators.errors import ConfigError

ids = st.integers(1, 2**64 - 1)


def test_the_names_of_example_6_1() -> None:
    acker, rng = Acker(), random.Random(61)
    msg = {number: rng.getrandbits(64) for number in range(2, 10)}
    root = rng.getrandbits(64)
    assert acker.init(root, msg[2] ^ msg[3], spout=1) is None
    assert acker.ack(root, msg[2] ^ msg[4] ^ msg[5] ^ msg[6]) is None  # the splitter, 刘备 关羽 张飞
    assert acker.ack(root, msg[3] ^ msg[7] ^ msg[8] ^ msg[9]) is None  # the splitter, 曹操 郭嘉 荀彧
    for number in (4, 5, 6, 7, 8):
        assert acker.ack(root, msg[number]) is None
    assert len(acker) == 1
    assert acker.ack(root, msg[9]) == Ended(root, 1, Verdict.ACKED)
    assert len(acker) == 0


def test_the_arithmetic_of_example_6_2() -> None:
    acker = Acker()
    t1, t2, t3, t4, t5 = (1 << number for number in range(5))
    assert acker.init(7, t1 ^ t2, 0) is None
    assert acker.ack(7, t1 ^ t3 ^ t4 ^ t5) is None
    assert acker.ack(7, t2) is None
    assert acker.ack(7, t3 ^ t4 ^ t5) == Ended(7, 0, Verdict.ACKED)


@dataclass
class Message:
    kind: str
    root: int
    value: int


@dataclass
class Tuple:
    """A tuple of a tree: root → its id, and root → XOR of the ids of what was anchored to it."""

    ids: dict[int, int]
    made: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


def trees(rng: random.Random, roots: int, size: int) -> list[Message]:
    """The messages of random trees: a tuple may have several parents, and so several roots."""
    names = [rng.getrandbits(64) | 1 for _ in range(roots)]
    init = dict.fromkeys(names, 0)
    live: list[Tuple] = []  # not acknowledged yet
    for name in names:
        for _ in range(rng.randrange(3)):
            number = rng.getrandbits(64)
            init[name] ^= number
            live.append(Tuple({name: number}))
    messages = [Message("init", name, value) for name, value in init.items()]
    for _ in range(size):
        if not live:
            break
        parents = rng.sample(live, min(len(live), rng.randrange(1, 4)))
        child = Tuple({})
        for parent in parents:
            for name in parent.ids:
                number = rng.getrandbits(64)
                child.ids[name] = child.ids.get(name, 0) ^ number
                parent.made[name] ^= number
        live.append(child)
        if rng.random() < 0.5:
            messages += acknowledge(live.pop(rng.randrange(len(live))))
    for done in live:
        messages += acknowledge(done)
    return messages


def acknowledge(one: Tuple) -> list[Message]:
    return [Message("ack", name, number ^ one.made[name]) for name, number in one.ids.items()]


def tell(acker: Acker | Ackers, message: Message) -> Ended | None:
    if message.kind == "init":
        return acker.init(message.root, message.value, 3)
    return acker.ack(message.root, message.value)


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 40), st.integers(1, 3))
def test_a_tree_completes_exactly_when_its_last_message_arrives(seed: int, roots: int, size: int, count: int) -> None:
    rng = random.Random(seed)
    messages = trees(rng, roots, size)
    rng.shuffle(messages)
    acker = Ackers(count)
    left = {name: sum(one.root == name for one in messages) for name in {one.root for one in messages}}
    for message in messages:
        left[message.root] -= 1
        expected = None if left[message.root] else Ended(message.root, 3, Verdict.ACKED)
        assert tell(acker, message) == expected
    assert len(acker) == 0


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 30))
def test_a_tree_with_a_missing_message_never_completes_and_times_out(seed: int, roots: int, size: int) -> None:
    rng = random.Random(seed)
    messages = [one for one in trees(rng, roots, size) if one.kind == "init" or one.value]
    rng.shuffle(messages)
    candidates = [one for one in messages if one.kind == "ack"]
    if not candidates:
        return
    lost = rng.choice(candidates)
    acker = Acker(timeout_secs=30, now=0)
    ended = [found for one in messages if one is not lost and (found := tell(acker, one))]
    assert lost.root not in {one.root for one in ended}
    assert acker.advance(29.9) == []
    assert acker.advance(30) == []  # begun within the first bucket: given up between one and two rotations
    assert acker.advance(60) == [Ended(lost.root, 3, Verdict.TIMED_OUT)]
    assert len(acker) == 0 and acker.advance(1e9) == []


@given(st.permutations(["init", "fail", "ack", "ack"]))
def test_a_failed_root_never_completes(order: list[str]) -> None:
    acker, ended = Acker(), []
    for kind in order:
        found = acker.init(5, 9, 0) if kind == "init" else acker.fail(5) if kind == "fail" else acker.ack(5, 0)
        ended += [found] if found else []
    assert ended == [Ended(5, 0, Verdict.FAILED)]


def test_a_fail_beats_a_zero_that_comes_with_the_init() -> None:
    acker = Acker()
    assert acker.fail(5) is None and acker.ack(5, 9) is None
    assert acker.init(5, 9, 2) == Ended(5, 2, Verdict.FAILED)


def test_a_root_that_nobody_takes_is_acknowledged_at_once() -> None:
    assert Acker().init(5, 0, 2) == Ended(5, 2, Verdict.ACKED)


def test_no_ackers_acknowledge_when_emitted() -> None:
    ackers = Ackers(0)
    assert not ackers.tracking
    assert ackers.init(5, 9, 2) == Ended(5, 2, Verdict.ACKED)
    assert ackers.ack(5, 9) is None and ackers.fail(5) is None and ackers.advance(1e6) == [] and len(ackers) == 0


@pytest.mark.parametrize(("buckets", "latest"), [(2, 60), (3, 45), (7, 35)])
def test_what_is_lost_is_given_up_between_the_timeout_and_a_rotation_later(buckets: int, latest: float) -> None:
    for begun in (0, 1, 14, 29):
        acker = Acker(30, buckets, now=0)
        acker.advance(begun)
        acker.init(5, 9, 0)
        moments = [now for now in range(begun, 200) if acker.advance(now)]
        assert len(moments) == 1 and 30 <= moments[0] - begun <= latest


def test_reset_timeout_gives_the_whole_time_again() -> None:
    acker = Acker(30, now=0)
    acker.init(5, 9, 0)
    acker.init(6, 9, 0)
    acker.advance(31)
    acker.reset_timeout(5)
    acker.reset_timeout(77)
    assert [one.root for one in acker.advance(60)] == [6]
    assert acker.ack(5, 9) == Ended(5, 0, Verdict.ACKED)


def test_acks_of_a_root_whose_init_was_lost_are_forgotten() -> None:
    acker = Acker(30, now=0)
    acker.ack(5, 9)
    assert len(acker) == 1
    assert acker.advance(1000) == [] and len(acker) == 0


@given(st.integers(0, 2**32), st.integers(1, 400))
def test_the_table_holds_what_a_dictionary_would(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    acker, model = Acker(), {}
    # Few different places, so that most roots meet others.
    near = [rng.choice((0, 8, 12, 2**64 - 12)) + rng.randrange(4) for _ in range(40)]
    roots = [root + 8 * 12 * rng.randrange(3) & (2**64 - 1) for root in near]
    for _ in range(steps):
        root, value = rng.choice(roots), rng.randrange(4)
        kind = rng.choice("iaaf")
        value_, known, failed = model.get(root, (0, False, False))
        model[root] = value_ ^ (0 if kind == "f" else value), known or kind == "i", failed or kind == "f"
        if kind == "i":
            found = acker.init(root, value, 0)
        else:
            found = acker.fail(root) if kind == "f" else acker.ack(root, value)
        value_, known, failed = model[root]
        expected = None
        if known and (failed or not value_):
            expected = Ended(root, 0, Verdict.FAILED if failed else Verdict.ACKED)
            del model[root]
        assert found == expected
        assert len(acker) == len(model)


def test_memory_is_the_same_for_a_tree_of_any_size() -> None:
    acker, rng = Acker(), random.Random(1)
    for root in range(10_000):
        acker.init(root * 0x9E3779B97F4A7C15 & (2**64 - 1), 1, 0)
    before = acker.nbytes
    for _ in range(50_000):  # a tree that grows
        acker.ack(0, rng.getrandbits(64))
    assert acker.nbytes == before and before / 10_000 <= 38
    shared = Ackers(3)
    assert shared.nbytes == 3 * Acker().nbytes


@pytest.mark.parametrize("wrong", [{"timeout_secs": 0}, {"buckets": 1}])
def test_what_an_acker_cannot_be(wrong: dict) -> None:
    with pytest.raises(ConfigError, match="found"):
        Acker(**wrong)
    with pytest.raises(ConfigError, match="number of ackers"):
        Ackers(-1)
