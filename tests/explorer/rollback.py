"""A rollback in the model: an intent, a commit to each table, the record; a killed one goes on with what is left.

What it decides is asked of production code (``rollback_plan``): the attempt ids that are used up, the record behind it.
The model itself remembers every attempt that ever began, and compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.explorer.durable import Durable, Record
from tests.explorer.search import Violation
from trident.coordinators.records import GroupRecord, Marker, UnfinishedRollback, UsedAttempts
from trident.coordinators.transactions import TransactionAttempt
from trident.states.core.control import ControlRecord
from trident.time_travel.rollback_facts import APPEND, GroupFacts, TableAt, TableFacts
from trident.time_travel.rollback_plan import record_after, used


class Intent(NamedTuple):
    """What the znode ``rollback.unfinished`` says."""

    last: TransactionAttempt
    used: TransactionAttempt


def points(durable: Durable) -> Iterator[TransactionAttempt]:
    """The transactions that a rollback can go back to: each that every table has, and that is not the last one."""
    record = durable.record
    for attempt in durable.tables[0]:
        is_there = attempt.txid == record.current - 1 and record.decided is None
        if attempt.txid < record.current and not is_there:
            yield attempt


def begin(durable: Durable, last: TransactionAttempt) -> Durable:
    """Leads, which no other process does then, and stores what it is going to do."""
    upto, attempt_id = _used(durable, last)
    intent = Intent(last, TransactionAttempt(upto, attempt_id))
    return durable._replace(epoch=durable.epoch + 1, rollback=intent)


def take_back(durable: Durable, number: int) -> Durable:
    """One table gets the rows of then, and the next incarnation."""
    last = durable.rollback.last.txid
    rows = tuple(row for row in durable.tables[number] if row.txid <= last)
    tables = (*durable.tables[:number], rows, *durable.tables[number + 1 :])
    lives = (*durable.lives[:number], durable.record.life + 1, *durable.lives[number + 1 :])
    return durable._replace(tables=tables, lives=lives)


def end(durable: Durable) -> Durable:
    """The record of then, and the intent goes; asked before is whether the tables are all of then."""
    intent, life = durable.rollback, durable.record.life + 1
    if any(one != life for one in durable.lives):
        raise Violation(f"the rollback ends, and a table is of another incarnation: {durable.lives}")
    unfinished = UnfinishedRollback(
        "g", intent.last.txid, _marker(intent.last), f"i-r{life}", UsedAttempts(*intent.used)
    )
    after = record_after(_stored(durable.record), unfinished, {})
    record = Record(
        after.current_txid,
        (),
        TransactionAttempt(after.last.txid, after.last.attempt_id),
        TransactionAttempt(after.last_published.txid, after.last_published.attempt_id),
        used=TransactionAttempt(after.used.upto, after.used.attempt_id) if after.used else None,
        life=life,
    )
    return durable._replace(record=record, rollback=None)


def remembered(durable: Durable) -> Durable:
    """Every attempt that has ever begun is kept: a rollback forgets them in the record."""
    ever = dict(durable.ever)
    for txid, attempt_id in durable.record.attempts.items():
        ever[txid] = max(ever.get(txid, -1), attempt_id)
    return durable._replace(ever=tuple(sorted(ever.items())))


def _used(durable: Durable, last: TransactionAttempt) -> tuple[int, int]:
    begun = {row.txid: row.attempt_id for rows in durable.tables for row in rows if row.txid > last.txid}
    then = TableAt(1, _control(last))
    tables = tuple(TableFacts(f"t{n}", APPEND, f"t{n}", then, then) for n in range(len(durable.tables)))
    found = used(GroupFacts("g", _stored(durable.record), tables, begun=begun))
    return found.upto, found.attempt_id


def _stored(record: Record) -> GroupRecord:
    return GroupRecord(
        f"i-r{record.life}" if record.life else "i",
        record.current,
        record.attempts,
        {begun.attempt.txid: begun.parent.attempt_id if begun.parent else None for begun in record.begun},
        _marker(record.last) if record.last else None,
        _marker(record.last_published) if record.last_published else None,
        used=UsedAttempts(*record.used) if record.used else None,
    )


def _marker(attempt: TransactionAttempt) -> Marker:
    return Marker(attempt.txid, attempt.attempt_id, "d")


def _control(attempt: TransactionAttempt) -> ControlRecord:
    return ControlRecord("top", "g", "i", attempt.txid, attempt.attempt_id, "d", 1, 1)
