"""What survives a crash, as a model: ZooKeeper's znodes and two tables (docs/semantics.md 9).

Each function below is one atomic effect: one multi, or one table commit. It
checks the claims at the moment of the effect, from what is durable alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.explorer.search import Violation
from trident.coordinators.transactions import TransactionAttempt

TABLES = 2


class Rejected(Exception):
    """The effect did not happen: the attempt is superseded."""


class Deposed(Exception):
    """The effect did not happen: the fence has another epoch."""


class Begun(NamedTuple):
    """The attempt begun last for its transaction, and the one it builds on."""

    attempt: TransactionAttempt
    parent: TransactionAttempt | None


class Record(NamedTuple):
    """The znodes ``coordinator`` and ``decided``.

    Attributes:
        used: up to which txid which attempt ids had begun before a rollback.
        life: how many rollbacks there were: the incarnation.
    """

    current: int = 1
    begun: tuple[Begun, ...] = ()
    last: TransactionAttempt | None = None
    last_published: TransactionAttempt | None = None
    decided: TransactionAttempt | None = None
    used: TransactionAttempt | None = None
    life: int = 0

    def begun_last(self, txid: int) -> Begun | None:
        return next((begun for begun in self.begun if begun.attempt.txid == txid), None)

    @property
    def attempts(self) -> dict[int, int]:
        """txid → the greatest attempt id that was begun."""
        return {attempt.txid: attempt.attempt_id for attempt, _ in self.begun}

    def greatest(self, txid: int) -> int:
        return self.attempts.get(txid, -1)


class Durable(NamedTuple):
    """What every process finds.

    Attributes:
        tables: of each, the attempts whose rows it holds, in commit order.
        lives: of each, the incarnation of its newest control record.
        rollback: the one that was begun and has not ended.
        ever: txid → the greatest attempt id that ever began; kept where there are rollbacks.
    """

    epoch: int = 0
    record: Record = Record()
    tables: tuple[tuple[TransactionAttempt, ...], ...] = ((),) * TABLES
    lives: tuple[int, ...] = (0,) * TABLES
    rollback: Any = None
    ever: tuple[tuple[int, int], ...] = ()

    def greatest(self, txid: int) -> int:
        """The greatest attempt id that ever began for a transaction, whatever the record says."""
        return max(self.record.greatest(txid), dict(self.ever).get(txid, -1))


class Rules(NamedTuple):
    """The protocol outside the coordinator. Each False is a defect that the search must find."""

    fence: bool = True  # leader znode checked in each multi
    control_record: bool = True  # table commits compare the control record


class Writer(NamedTuple):
    """Who writes: its epoch, and the record as it last saw or wrote it."""

    epoch: int
    view: Record


def _multi(durable: Durable, writer: Writer, rules: Rules, after: Record) -> Durable:
    if writer.epoch != durable.epoch and rules.fence:
        raise Deposed
    if writer.view != durable.record:
        # The znode versions do not fit. Under the fence this cannot happen to the leader.
        if writer.epoch == durable.epoch:
            raise Violation(f"another writer wrote the leader's record: {durable.record}")
        raise Deposed
    return durable._replace(record=after)


def begin(
    durable: Durable, writer: Writer, rules: Rules, attempt: TransactionAttempt, parent: TransactionAttempt | None
) -> Durable:
    """Step 1: in order, with a greater attempt id, not of a decided transaction."""
    seen = writer.view
    txid = attempt.txid
    if txid == seen.current:
        expected = seen.last
    elif txid > seen.current and seen.greatest(txid - 1) >= 0:
        expected = TransactionAttempt(txid - 1, seen.greatest(txid - 1))
    else:
        raise Rejected(f"{attempt} begins out of order: current {seen.current}, begun {seen.attempts}")
    if attempt.attempt_id <= seen.greatest(txid):
        raise Rejected(f"{attempt} is begun with an attempt id that was used: {seen.attempts}")
    if parent != expected:
        raise Rejected(f"{attempt} is begun on {parent}, not on {expected}")
    if seen.decided is not None and seen.decided.txid == txid:
        raise Rejected(f"{attempt} begins, but {seen.decided} is decided")
    others = [begun for begun in seen.begun if begun.attempt.txid != txid]
    begun = tuple(sorted([*others, Begun(attempt, parent)], key=lambda entry: entry.attempt))
    return _multi(durable, writer, rules, seen._replace(begun=begun))


def decide(durable: Durable, writer: Writer, rules: Rules, attempt: TransactionAttempt) -> Durable:
    """Step 4: the commit point of the group."""
    seen = writer.view
    after = _multi(durable, writer, rules, seen._replace(decided=attempt))
    if seen.decided is not None:
        raise Violation(f"{attempt} is decided while {seen.decided} is")
    if attempt.txid != seen.current:
        raise Violation(f"{attempt} is decided while {seen.current} is current")
    begun = seen.begun_last(attempt.txid)
    if begun is None or begun.attempt != attempt:
        raise Violation(f"{attempt} is decided, not the attempt begun last: {seen.attempts}")
    if begun.parent != seen.last:
        raise Violation(f"{attempt} is decided, built on {begun.parent}, but {seen.last} was committed")
    return after


def publish(durable: Durable, writer: Writer, rules: Rules, number: int, attempt: TransactionAttempt) -> Durable:
    """Step 5 for one table: compare the control record and set it with the rows."""
    rows = durable.tables[number]
    control = rows[-1] if rows else None
    if rules.control_record:
        if durable.lives[number] != writer.view.life:
            if writer.epoch != durable.epoch:
                raise Deposed
            raise Violation(f"HALT: table {number} is of incarnation {durable.lives[number]}, not {writer.view.life}")
        if control == attempt:
            return durable
        if control != writer.view.last_published:
            if writer.epoch != durable.epoch:
                raise Deposed
            raise Violation(f"HALT: table {number} holds {control}, expected {writer.view.last_published} or {attempt}")
    if any(row.txid == attempt.txid for row in rows):
        raise Violation(f"table {number} gets the rows of {attempt} but holds {rows}")
    if control is not None and control.txid >= attempt.txid:
        raise Violation(f"table {number} gets {attempt} after {control}: out of order")
    if durable.record.decided != attempt:
        raise Violation(f"table {number} gets {attempt}, which is not decided: {durable.record.decided}")
    tables = (*durable.tables[:number], (*rows, attempt), *durable.tables[number + 1 :])
    return durable._replace(tables=tables)


def advance(
    durable: Durable, writer: Writer, rules: Rules, attempt: TransactionAttempt, published: bool, empty: bool
) -> Durable:
    """Step 6: the next transaction is current, and the decision is gone."""
    seen = writer.view
    after = _multi(
        durable,
        writer,
        rules,
        Record(
            current=attempt.txid + 1,
            begun=tuple(begun for begun in seen.begun if begun.attempt.txid > attempt.txid),
            last=attempt,
            last_published=attempt if published else seen.last_published,
            used=seen.used,
            life=seen.life,
        ),
    )
    if attempt.txid != seen.current:
        raise Violation(f"{attempt} advances while {seen.current} is current")
    if published == empty:
        raise Violation(f"{attempt} advances as published={published}")
    if not empty and (seen.decided != attempt or any(attempt not in rows for rows in durable.tables)):
        raise Violation(f"{attempt} advances before it is published: decided {seen.decided}, tables {durable.tables}")
    return after


def check_recovery(durable: Durable) -> None:
    """What a new leader may find (docs/semantics.md 9, recovery); anything else is a HALT."""
    record = durable.record
    if durable.rollback is not None or set(durable.lives) != {record.life}:
        raise Violation(f"a coordinator leads amid a rollback: {durable}")
    allowed = {record.last_published, record.decided or record.last_published}
    for number, rows in enumerate(durable.tables):
        control = rows[-1] if rows else None
        if control not in allowed:
            raise Violation(f"HALT at recovery: table {number} holds {control}, ZooKeeper {record}")
