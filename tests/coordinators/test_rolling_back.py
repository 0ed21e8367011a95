"""A rollback in ZooKeeper: its intent keeps every leader away, records follow under the fence, the intent goes last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from trident.coordinators.errors import CoordinationError, Deposed
from trident.coordinators.group_store import SupersededAttempt
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.leadership import Leadership, Lease
from trident.coordinators.records import Decision, GroupRecord, Marker, TableMark, UnfinishedRollback, UsedAttempts
from trident.coordinators.registration import Registration, begin_rollback, finish_rollback, unfinished_rollback
from trident.coordinators.repairing import RepairStore
from trident.coordinators.zookeeper import ZooKeeper

IDENTITY = {"streams": {"lines": "A", "words": "B"}, "states": {}, "groups": {"lines": ["lines", "words"]}}
INTENT = UnfinishedRollback("lines", 1, Marker(1, 0, "d1"), "inc-r1", UsedAttempts(3, 4), {"counts": 7})


@pytest.fixture
def lease(zk: ZooKeeper) -> Iterator[Lease]:
    """Of a topology with two transactions, and a third one that is decided."""
    made = Leadership(zk, "wc", ["lines"]).acquire()
    assert made is not None
    Registration(zk, "wc").ensure(IDENTITY, fences=made.fences.values(), incarnation="inc")
    store = stored(zk, made)
    store.create(GroupRecord("inc", 1))
    for txid in (1, 2):
        parent = TransactionAttempt(txid - 1, 0) if txid > 1 else None
        store.begin(TransactionAttempt(txid, 0), parent, {"lines": {"n": txid}, "words": {"n": -txid}})
        store.decide(Decision(txid, 0, f"m/{txid}", 1, f"d{txid}"), parent)
        marks = {"t": TableMark(txid, txid, 0, f"d{txid}")}
        store.advance(Marker(txid, 0, f"d{txid}"), True, marks, {"words": {"p": {"at": txid}, f"q{txid}": {"at": 0}}})
    store.begin(TransactionAttempt(3, 4), TransactionAttempt(2, 0), {"lines": {"n": 3}})
    store.decide(Decision(3, 4, "m/3", 1, "d3"), TransactionAttempt(2, 0))
    yield made
    made.release()


def stored(zk: ZooKeeper, lease: Lease) -> RepairStore:
    store = RepairStore(zk, "wc", "lines", IDENTITY["groups"]["lines"], lease.fences["lines"])
    store.load()
    return store


def test_while_a_rollback_has_not_ended_no_process_leads_and_the_command_is_named(zk: ZooKeeper, lease: Lease) -> None:
    begin_rollback(zk, lease, "wc", INTENT)
    assert unfinished_rollback(zk, "wc") == INTENT
    asks: list[Any] = [
        lambda: Registration(zk, "wc").check(IDENTITY),
        lambda: Registration(zk, "wc").ensure(IDENTITY, fences=lease.fences.values()),
    ]
    for ask in asks:
        with pytest.raises(CoordinationError, match="`trident rollback wc --to 1 --apply` again"):
            ask()
    finish_rollback(zk, lease, "wc", "inc-r1")
    assert unfinished_rollback(zk, "wc") is None
    assert Registration(zk, "wc").ensure(IDENTITY, fences=lease.fences.values()) == "inc-r1"


def test_record_pins_partitions_and_decision_are_taken_back_as_one(zk: ZooKeeper, lease: Lease) -> None:
    store = stored(zk, lease)
    record = GroupRecord("inc-r1", 2, last=INTENT.last, last_published=INTENT.last, used=INTENT.used)
    store.rebuild(record, None, {"lines": {1: {"n": 1}}}, {"words": {"p": {"at": 1}, "q1": {"at": 0}}}, 1)
    again = stored(zk, lease)
    assert not again.position_mismatches
    assert again.record == record and again.decision is None
    assert again.pins == {"lines": {1: {"n": 1}}, "words": {}}
    assert again.partition_values["words"] == {"p": {"at": 1}, "q1": {"at": 0}}
    with pytest.raises(SupersededAttempt):
        again.begin(TransactionAttempt(2, 4), INTENT.last.attempt, {})
    again.begin(TransactionAttempt(2, 5), INTENT.last.attempt, {"lines": {"n": 2}})


def test_a_group_that_stays_is_carried_along_with_its_decision(zk: ZooKeeper, lease: Lease) -> None:
    store = stored(zk, lease)
    before, pins, partitions = store.record, store.pins, store.opaque_metadata
    store.carry("inc-r1", {"t": TableMark(3, 2, 0, "d2")})
    again = stored(zk, lease)
    assert again.record == replace(before, incarnation="inc-r1", tables={"t": TableMark(3, 2, 0, "d2")})
    assert (again.pins, again.opaque_metadata) == (pins, partitions) and not again.position_mismatches


def test_a_command_that_leads_no_longer_neither_begins_nor_ends_a_rollback(zk: ZooKeeper, lease: Lease) -> None:
    fences = dict(lease.fences)
    begin_rollback(zk, lease, "wc", INTENT)
    lease.release()
    successor = Leadership(zk, "wc", ["lines"]).acquire()
    assert successor is not None
    lease.fences.update(fences)
    for write in (lambda: begin_rollback(zk, lease, "wc", INTENT), lambda: finish_rollback(zk, lease, "wc", "inc-r1")):
        with pytest.raises(Deposed):
            write()
    assert unfinished_rollback(zk, "wc") == INTENT
    successor.release()
