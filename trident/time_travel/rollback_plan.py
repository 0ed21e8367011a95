"""Plans a rollback: what stands, what must stand, the steps between, and what is refused. Pure decisions.

Each table gets the files again that it had when it had the wanted transaction:

- an append table, dead letters and messages: those of its newest version without a later transaction;
- a keyed state's log: those too, but for rows up to its floor: these are in the plain table alone, and its files of
  them may be swept;
- its plain table: those of its newest version that is merged up to the wanted transaction at most. The log must have
  all rows above: its floor must not lie above that P.

A commit that takes files out and puts others in is a new table version: nothing of the past is rewritten, and readers
that have pinned a version read on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trident.coordinators.identities import after_rollback
from trident.coordinators.records import GroupRecord, Marker, TableMark, UnfinishedRollback, UsedAttempts
from trident.maintenance.facts import APPEND, LOG, PLAIN, GroupFacts, TableAt, TableFacts, TopologyFacts
from trident.states.core.control import ControlRecord
from trident.states.delta.kernel_files import LiveFile
from trident.states.keyed.tables import greatest_txid

# A transaction that changed nothing leaves no trace of its attempts: ids go on so far above those that are known.
UNSEEN_ATTEMPTS = 1000


@dataclass(frozen=True)
class Choices:
    """The user's explicit choices.

    Attributes:
        leave: states that are left as they are.
        accept_loss: what sources have been told to forget does not come again.
    """

    leave: frozenset[str] = frozenset()
    accept_loss: bool = False


@dataclass(frozen=True)
class Refusal:
    """Why a rollback is not done.

    Attributes:
        action: what to do, or the option with which it is done all the same.
    """

    text: str
    action: str


@dataclass(frozen=True)
class TableMove:
    """One table's part of a rollback.

    Attributes:
        goes, comes: the files that it loses, and that it gets again.
    """

    table: TableFacts
    goes: tuple[LiveFile, ...]
    comes: tuple[LiveFile, ...]

    @property
    def rows(self) -> tuple[int | None, int | None]:
        """The rows that go and that come; None where a file does not say how many it has."""
        return _rows(self.goes), _rows(self.comes)


@dataclass(frozen=True)
class Plan:
    """The steps of a rollback, or why it is refused.

    Attributes:
        facts: with the batch group that is taken back first.
        target_txid: the transaction that the user named.
        last: the last that stays of those that have changed anything; None where that is refused.
    """

    facts: TopologyFacts
    target_txid: int
    last: Marker | None
    moves: tuple[TableMove, ...]
    refusals: tuple[Refusal, ...]
    lost: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def group(self) -> GroupFacts:
        return self.facts.groups[0]

    @property
    def is_there(self) -> bool:
        """Tells whether the transaction is the last one: there is nothing to take back."""
        return self.target_txid == self.group.recorded.current_txid - 1 and self.group.decision is None

    @property
    def intent(self) -> UnfinishedRollback:
        """The record that is stored before the first step."""
        assert self.last is not None and not self.refusals
        versions = {move.table.path: move.table.then.version for move in self.moves if move.table.then is not None}
        return UnfinishedRollback(
            self.group.name, self.target_txid, self.last, self.incarnation, used(self.group), versions
        )

    @property
    def incarnation(self) -> str:
        """The one that it begins."""
        assert self.facts.incarnation is not None
        return after_rollback(self.facts.incarnation)


def plan(facts: TopologyFacts, target_txid: int, choices: Choices) -> Plan:
    """Decides on a rollback of one batch group to a transaction.

    Args:
        facts: with every table's ``then`` as of that transaction.
    """
    group = facts.groups[0]
    last = last_kept_transaction(group.tables)
    made = Plan(facts, target_txid, last, (), ())
    if made.is_there:
        return made
    refusals = list(_of_txid(facts, target_txid, last))
    moves: tuple[TableMove, ...] = ()
    if not refusals:
        moves = tuple(move_of(table) for table in group.tables if table.then is not None)
        refusals += _of_tables(group, target_txid)
        refusals += _of_positions(group, last)
        refusals += _of_others(facts)
        refusals += _of_outside(facts, choices)
    # A queue that came with a later transaction has been acknowledged too.
    spouts = (group.manifest.spouts, *group.since) if group.manifest else ()
    lost = tuple(sorted({tx_id for each in spouts for tx_id in acknowledged(each)}))
    if lost and not choices.accept_loss and not refusals:
        refusals.append(
            Refusal(
                f"stream {', '.join(lost)}: what it has given since was acknowledged, or has no position to go back "
                "to: it DOES NOT COME AGAIN, and its rows are lost",
                "--accept-loss takes that as it is",
            )
        )
    return Plan(facts, target_txid, last, moves, tuple(refusals), lost, tuple(sorted(facts.non_delta_states)))


def last_kept_transaction(tables: tuple[TableFacts, ...]) -> Marker | None:
    """The last transaction that changed anything, of those that stay: each of these is in every published table."""
    controls = [table.then.control for table in tables if table.role in (APPEND, LOG) and table.then is not None]
    published = [control for control in controls if control.attempt_id >= 0]
    if not published:
        return None
    last = max(published, key=lambda control: control.txid)
    return Marker(last.txid, last.attempt_id, last.digest)


def move_of(table: TableFacts) -> TableMove:
    """The files that a table loses, and those that it gets again."""
    assert table.then is not None
    goes, comes = moved_files(table.role, table.now, table.then)
    return TableMove(table, goes, comes)


def moved_files(role: str, now: TableAt, then: TableAt) -> tuple[tuple[LiveFile, ...], tuple[LiveFile, ...]]:
    """The files that a table loses on the way to an earlier version, and those that it gets again."""
    # Of other tables every file counts, also one of a user's column that has the name of a log's txids.
    floor: float = now.control.floor if role == LOG else -math.inf
    wanted = {path: file for path, file in then.files.items() if path in now.files or greatest_txid(file) > floor}
    goes = tuple(file for path, file in sorted(now.files.items()) if path not in wanted)
    comes = tuple(file for path, file in sorted(wanted.items()) if path not in now.files)
    return goes, comes


def control_after(
    role: str, now: ControlRecord, then: ControlRecord, last: Marker | None, incarnation: str, epoch: int
) -> ControlRecord:
    """The control record that a rollback gives a table.

    A table that began later begins again: behind the last transaction that stays.

    Args:
        last: the last transaction that stays; None of a group all of whose transactions stay.
        incarnation: the next one.
        epoch: of the command's lease.
    """
    of_then = now if role == PLAIN else then
    after = replace(of_then, incarnation=incarnation, epoch=epoch, floor=now.floor)
    if last is None or then.starts_at <= last.txid + 1:
        return after
    floor = 0 if role == PLAIN else last.txid
    return replace(after, txid=last.txid, attempt_id=-1, digest="", starts_at=last.txid + 1, floor=floor)


def merged_after(then: TableAt, last: Marker | None) -> int:
    """P of a plain table behind a rollback; ``last`` as for :func:`control_after`."""
    return then.merged if last is None else min(then.merged, last.txid)


def used(group: GroupFacts) -> UsedAttempts:
    """The attempt ids that may have begun for transactions that are taken back, or that had been before."""
    record, before = group.recorded, group.recorded.used
    last = record.current_txid - 1
    begun = {**group.begun, **record.attempts}
    upto = max([last + 1, *begun, before.upto if before else 0])
    greatest = max([0, *begun.values(), *_markers(record), before.attempt_id if before else 0])
    stays = last_kept_transaction(group.tables)
    seen = all(txid in group.begun for txid in range(stays.txid + 1 if stays else 1, last + 1))
    return UsedAttempts(upto, greatest if seen else greatest + UNSEEN_ATTEMPTS)


def _markers(record: GroupRecord) -> list[int]:
    return [marker.attempt_id for marker in (record.last, record.last_published) if marker is not None]


def record_after(record: GroupRecord, intent: UnfinishedRollback, tables: Mapping[str, TableMark]) -> GroupRecord:
    """ZooKeeper's record of the group behind a rollback: as when the last transaction that stays had advanced."""
    return GroupRecord(
        intent.incarnation,
        intent.last.txid + 1,
        last=intent.last,
        last_published=intent.last,
        tables=tables,
        used=intent.used,
    )


def acknowledged(spouts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The streams whose sources cannot give again what they have given.

    Queues and single messages are acknowledged once their transaction is published; a non-transactional source has no
    position.
    """
    for tx_id, spout in sorted(spouts.items()):
        forgets = spout.get("kind") == "opaque" and "opaque" not in spout
        if forgets or spout.get("commit_data") is not None or spout.get("kind") == "non-transactional":
            yield tx_id


# --- refusals -------------------------------------------------------------------------------------------


def _of_txid(facts: TopologyFacts, target_txid: int, last: Marker | None) -> Iterator[Refusal]:
    group, current = facts.groups[0], facts.groups[0].recorded.current_txid
    if target_txid < 1:
        yield Refusal(
            f"transaction {target_txid} never was: the first is 1",
            f"`trident reset {facts.name} --drop-tables` begins again, with empty tables",
        )
    elif target_txid >= current:
        there = f"the last that has advanced is {current - 1}" if current > 1 else "none has advanced yet"
        text = f"transaction {target_txid} of batch group {group.name!r} has not advanced: {there}"
        yield Refusal(text, "name an earlier one")
    elif last is None and all(table.then is not None for table in group.tables):
        yield Refusal(
            f"no table of batch group {group.name!r} had a transaction yet after transaction {target_txid}",
            f"`trident reset {facts.name} --drop-tables` begins again, with empty tables",
        )


def _of_tables(group: GroupFacts, target_txid: int) -> Iterator[Refusal]:
    logs = {table.state: table for table in group.tables if table.role == LOG}
    for table in group.tables:
        if table.then is None:
            yield Refusal(
                f"transaction {target_txid} is gone for table {table.path}: {table.unknown}", "name a later one"
            )
            continue
        if table.unwritable:
            yield Refusal(
                f"table {table.path} cannot be taken back: {table.unwritable}",
                "take that feature out of the table (Delta: ALTER TABLE ... DROP FEATURE), and run this again",
            )
        if table.gone:
            yield Refusal(
                f"transaction {target_txid} is gone for table {table.path}: of the files that it had then "
                f"{len(table.gone)} are deleted, by VACUUM or by hand, such as {table.gone[0]}",
                "name a later one; or bring the files back from a back-up, and run this again",
            )
        floor = logs[table.state].now.control.floor if table.role == PLAIN and table.state in logs else 0
        if table.role == PLAIN and table.then.merged < floor:
            yield Refusal(
                f"transaction {target_txid} lies under a floor: the log of state {table.state} no longer has "
                f"transactions {table.then.merged + 1} to {floor}, and {table.path} has no version between",
                f"name transaction {floor} or a later one; snapshot_retention_txids of a state sets how many are kept",
            )


def _of_positions(group: GroupFacts, last: Marker | None) -> Iterator[Refusal]:
    if last is not None and group.manifest is None:
        yield Refusal(
            f"the manifest of transaction {last.txid}, attempt {last.attempt_id}, is not kept: it has the positions of "
            "the streams",
            "name a later one: history_retention_txids and history_retention_secs say how many are kept",
        )


def _of_others(facts: TopologyFacts) -> Iterator[Refusal]:
    for group in facts.groups[1:]:
        if group.decision is not None:
            yield Refusal(
                f"batch group {group.name!r}, which stays, has decided transaction {group.decision.txid} and not "
                "finished it",
                f"start {facts.name} once, and stop it: a start finishes it first",
            )
        for table in group.tables:
            if table.unwritable:
                yield Refusal(
                    f"table {table.path} of batch group {group.name!r} cannot be taken along: {table.unwritable}",
                    "take that feature out of the table (Delta: ALTER TABLE ... DROP FEATURE), and run this again",
                )


def _of_outside(facts: TopologyFacts, choices: Choices) -> Iterator[Refusal]:
    for name, found in sorted(facts.non_delta_states.items()):
        kind, own = found.kind, facts.groups[0].name
        group = found.group or own
        if name not in choices.leave and group != own:
            # It has nothing of what is taken back; but the next incarnation is that of all batch groups.
            yield Refusal(
                f"state {name} ({kind}) of batch group {group!r}, which stays, is not in Delta tables: what it has is "
                "marked with the present incarnation, and a rollback begins the next one for all batch groups",
                f"--leave {name} continues: a state of PostgreSQL, Kafka or HTTP needs adopt=True at the next start, "
                "and loses nothing; a map with transactional or opaque values has to be cleared, and has later rows "
                "alone",
            )
        elif name not in choices.leave:
            yield Refusal(
                f"state {name} ({kind}) is not in Delta tables: what it has of later transactions cannot be taken back",
                f"--leave {name} leaves it as it is; its next start asks what to do with it",
            )
    for name in sorted(choices.leave - set(facts.non_delta_states)):
        known = ", ".join(sorted(facts.non_delta_states)) or "none: it has no such state"
        yield Refusal(f"{facts.name} has no state {name!r} outside of Delta tables", f"--leave takes one of {known}")


def _rows(files: tuple[LiveFile, ...]) -> int | None:
    counts = [file.num_records for file in files]
    return None if None in counts else sum(count or 0 for count in counts)
