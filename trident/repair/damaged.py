"""Decides on what is lost, damaged or of other writers: positions, ledgers, outside states, commits to tables. Pure.

The proof of a position is the digest in the group's record: metadata of a
manifest, or of what is still stored, that has it is what was there. Pins of
transactions that are begun and not decided are simply begun anew: nothing of
them counts yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trident.coordinators.positions import digest_of
from trident.coordinators.records import TableMark, outside_id
from trident.maintenance.facts import APPEND, LOG, PLAIN, ForeignChange, GroupFacts, OutsideFacts, TableFacts
from trident.repair.rebuild import marks_of
from trident.repair.steps import (
    AbandonDecision,
    Choices,
    ClampValues,
    Finding,
    NewOutbox,
    Offer,
    PutPositions,
    Refused,
    Restore,
    SetMarks,
    Step,
    WriteLedger,
)
from trident.states.keyed.table_watch import ACCEPTED

_STUCK_SHOWN = 20


def lost_positions(group: GroupFacts, choices: Choices) -> list[Finding]:
    """Tells whether each stream is where the record says, and how it gets there again."""
    if not group.position_mismatches or group.record is None:
        return []
    text = (
        "ZooKeeper lacks positions of streams, or has older ones: begun from here, rows would be counted again, or be "
        f"missing; found: {'; '.join(map(str, group.position_mismatches))}"
    )
    pins: dict[str, dict[int, Any]] = {}
    opaque: dict[str, dict[str, Any]] = {}
    anew: set[int] = set()
    for tx_id in sorted({one.tx_id for one in group.position_mismatches if one.txid}):
        proved = _pins_of(group, tx_id)
        if isinstance(proved, Refused):
            return [choices.finding("positions lost", group.name, text, proved)]
        pins[tx_id], begun = proved
        anew |= begun
    for one in group.position_mismatches:
        if not one.txid:
            values = {} if one.expected == "" else next(_partitions(group, one.tx_id, one.expected), None)
            if values is None:
                return [choices.finding("positions lost", group.name, text, _unproved(one.tx_id))]
            opaque[one.tx_id] = values
    meaning = "put the positions back that the manifests have: they are proved to be those that were there"
    if anew:
        meaning += (
            f"; transactions {', '.join(map(str, sorted(anew)))}, begun and not decided, are begun anew, as if their "
            "attempts had failed"
        )
    last = group.record.last.txid if group.record.last else 1
    offer = Offer((), f"{meaning}. Nothing is lost or counted twice.", (PutPositions(group.name, pins, opaque, last),))
    return [choices.finding("positions lost", group.name, text, offer)]


def damaged_ledgers(group: GroupFacts, choices: Choices) -> list[Finding]:
    """Ledgers of files that are lost, older, or not as they were written."""
    mended = (
        "write it again from what is readable of it and the files that are there: by its digest it is proved to be the "
        "one that was there. No file is read twice or left out."
    )
    lost = Refused(
        "which files were read is known nowhere else. Bring the file back from a back-up of the warehouse, and run "
        "this again; or begin again with `trident reset NAME`."
    )
    return [
        choices.finding(
            "ledger of files damaged",
            group.name,
            f"the ledger of files {ledger.path} is damaged; {ledger.text}",
            lost if ledger.data is None else Offer((), mended, (WriteLedger(group.name, ledger),)),
        )
        for ledger in group.ledgers
    ]


def _pins_of(group: GroupFacts, tx_id: str) -> tuple[dict[int, Any], set[int]] | Refused:
    """All pins of a stream, and the transactions that lose theirs."""
    record = group.record
    assert record is not None
    stored = group.pins.get(tx_id, {})
    wanted = dict((record.pins or {}).get(tx_id, {}))
    first_undecided = record.current_txid + (1 if group.decision else 0)
    proved: dict[int, Any] = {}
    for txid, digest in sorted(wanted.items()):
        values = [stored[txid]] if txid in stored else []
        spouts = [one.manifest.spouts[tx_id] for one in group.manifests if tx_id in one.manifest.spouts]
        values += [spout.get("metadata") for spout in spouts]
        same = [value for value in values if digest_of(value) == digest]
        if same:
            proved[txid] = same[0]
        elif txid >= first_undecided:
            # Later ones of the stream were planned from it.
            return proved, {each for each in wanted if each >= txid}
        else:
            return _unproved(tx_id)
    return proved, set()


def _partitions(group: GroupFacts, tx_id: str, digest: str) -> Iterator[dict[str, Any]]:
    for one in reversed(group.manifests):
        values = one.manifest.spouts.get(tx_id, {}).get("opaque")
        if values is not None and digest_of(values) == digest:
            yield dict(values)


def _unproved(tx_id: str) -> Refused:
    return Refused(
        f"no manifest has the position of stream {tx_id!r} as it was (transactions without effect came after the last "
        "one that was published, or its manifest is gone), so nothing is guessed. Bring ZooKeeper's data, and the "
        "folder _trident, back from a copy of the present moment, and run this again; or begin again with `trident "
        "reset NAME`."
    )


def undecidable(group: GroupFacts, choices: Choices) -> list[Finding]:
    """Tells whether the decision that ZooKeeper has can be published, and what to do if not.

    Tables are published first, users' states and queues behind them. So where a
    table takes part and does not have the transaction, no state has it (docs/semantics.md 9.5).
    """
    decision = group.decision
    if decision is None:
        return []
    found = next((one for one in group.manifests if one.decision == decision), None)
    having = [table for table in group.tables if table.has(decision)]
    if found is None:
        problem, part_states = f"the manifest {decision.manifest} is gone or is not the one that was decided", None
    else:
        has = {table.state for table in having}
        missing = [name for state, names in found.missing.items() if state not in has for name in names]
        if not missing:
            return []
        problem = f"{len(missing)} files are gone or not the same: {', '.join(missing[:10])}"
        part_states = {part.state for part in found.manifest.tables}
    text = (
        f"ZooKeeper is the newer side: transaction {decision.txid} attempt {decision.attempt_id} is decided there and "
        f"cannot be published: {problem}"
    )
    back = "Bring the files back from a back-up and start again: nothing else completes a decided batch."
    published_to = [table for table in group.tables if table.exists and table.role in (APPEND, LOG)]
    if part_states is not None:
        published_to = [table for table in published_to if table.state in part_states]
    else:  # which take part is not known; those do that had the last one, and not those of states that are gone
        last = group.record.last_published if group.record else None
        batch_before = (last.txid, last.attempt_id) if last else None
        published_to = [t for t in published_to if t.control and (t.control.txid, t.control.attempt_id) == batch_before]
    kind, refusal = "staged files gone after the decision", ""
    if having:
        refusal = (
            f"{', '.join(table.path for table in having)} has the transaction already, so it cannot be given up: one "
            f"table would have it and another not. {back}"
        )
    elif not published_to:
        refusal = f"the group has no Delta table that would show whether something is published already. {back}"
    if refusal:
        return [choices.finding(kind, group.name, text, Refused(refusal))]
    offer = Offer(
        ("--abandon-decision",),
        f"give the decision up: nothing of transaction {decision.txid} is published, no table has it, and users' "
        "states and queues come after the tables. It is processed again as a new attempt: the same rows of a "
        "transactional source; of an opaque one, or a queue, what it gives now (earlier messages come again). "
        f"Nothing is lost or counted twice. Better, if you can: {back}",
        (AbandonDecision(group.name, decision),),
    )
    return [choices.finding(kind, group.name, text, offer)]


def stuck_values(group: GroupFacts, choices: Choices) -> list[Finding]:
    """Keyed states with a total that fits no value of its column, as earlier versions have let it in."""
    findings = []
    logs = {table.state: table for table in group.tables if table.role == LOG}
    for table in group.tables:
        control = logs[table.state].control if table.stuck_keys and table.state in logs else None
        if control is None:
            continue
        keys = "; ".join(f"key {key}: {reason}" for key, reason in table.stuck_keys[:_STUCK_SHOWN])
        more = f"; and {len(table.stuck_keys) - _STUCK_SHOWN} more" if len(table.stuck_keys) > _STUCK_SHOWN else ""
        offer = Offer(
            ("--clamp", table.state),
            f"merge the log of {table.state} with the greatest, or least, value of the type for these keys: write "
            "their exact totals down from this report first, THE TABLE HAS THEM NO MORE. The other keys are exact, "
            "no transaction is processed again. To keep exact totals, give the state another name and a wider type.",
            (ClampValues(group.name, table.state, control.txid),),
        )
        text = (
            f"state {table.state} has keys whose totals fit no value of their column, so that no read of them and no "
            f"MERGE succeeds: {keys}{more}"
        )
        findings.append(choices.finding("a value that does not fit", group.name, text, offer))
    return findings


# States outside of the warehouse that lack transactions, or whose outbox is ahead or damaged: what a repair can do.


_LACKS = "a state outside of the warehouse lacks transactions"
_AHEAD = "an outbox is ahead of ZooKeeper"
_DAMAGED = "the record of an outbox is damaged"


def outside_states(group: GroupFacts, choices: Choices) -> list[Finding]:
    """Stores that are said to lack transactions; outboxes that do, are ahead, or damaged. No store is asked."""
    findings = []
    for one in group.outside:
        accepted = one.state in choices.accept_outside
        if one.damage or _ahead(group, one):
            findings.append(_anew(group, one, choices))
        elif one.mark is not None and (accepted or _lacks(one, one.mark)):
            findings.append(_finding(group.name, one, one.mark, choices))
    return findings


def _lacks(one: OutsideFacts, mark: TableMark) -> bool:
    return one.outbox is not None and one.outbox < (mark.txid, mark.attempt_id)


def _ahead(group: GroupFacts, one: OutsideFacts) -> bool:
    """Tells whether an outbox has a transaction that ZooKeeper does not know as decided."""
    last = max(one.outbox or (0, 0), one.begun)
    decision = group.decision
    if group.record is None or (decision is not None and last == (decision.txid, decision.attempt_id)):
        return False
    return last[0] >= group.record.current_txid


def _anew(group: GroupFacts, one: OutsideFacts, choices: Choices) -> Finding:
    """Of a record that cannot be gone on with."""
    if one.damage:
        title, text = _DAMAGED, one.damage
        meaning = "a decided transaction that is not finished is sent again as a whole, with the same keys"
    else:
        last = max(one.outbox or (0, 0), one.begun)
        title = _AHEAD
        text = (
            f"the outbox of state {one.state} has sent rows of transaction {last[0]} attempt {last[1]}, which "
            "ZooKeeper does not know as decided: it was put back, or the decision was given up"
        )
        meaning = (
            "the rows that are decided next are all sent, with other keys: of those that were sent some MAY COME TWICE"
        )
    meaning = (
        f"the record of the outbox of state {one.state} begins anew, without a mark and its count of dead letters; "
        f"{meaning}. Refusals that were not yet in a file of dead letters are lost"
    )
    steps: tuple[Step, ...] = (NewOutbox(group.name, one.state),)
    if one.mark is not None:
        steps += (SetMarks(group.name, forget=(outside_id(one.state),)),)
    offer = Offer(("--accept-outside", one.state), meaning, steps)
    return choices.finding(title, group.name, text, offer)


def _finding(group: str, one: OutsideFacts, mark: TableMark, choices: Choices) -> Finding:
    known = f"transaction {mark.txid} attempt {mark.attempt_id}"
    if one.outbox is None:
        text = f"ZooKeeper says that state {one.state} has {known}; this command does not query its store"
    else:
        has = f"transaction {one.outbox[0]} attempt {one.outbox[1]}" if one.outbox[0] else "no transaction"
        text = f"the outbox of state {one.state} is the older side; found: {has}; expected: {known}"
    meaning = (
        f"ZooKeeper forgets which transaction state {one.state} has, and the next start takes its store as it is: "
        f"transactions up to {mark.txid} that the store lacks are not written to it again, and ARE LOST there. "
        "A store that has later ones than ZooKeeper is refused as before"
    )
    if one.outbox is not None:
        meaning += "; the server of an outbox may have them: they were sent"
    offer = Offer(("--accept-outside", one.state), meaning, (SetMarks(group, forget=(outside_id(one.state),)),))
    return choices.finding(_LACKS, group, text, offer)


# Decides on commits of others to a table: those that can be taken back exactly, and those that may stay.


def foreign_changes(group: GroupFacts, table: TableFacts, choices: Choices) -> list[Finding]:
    if not table.foreign:
        return _healed(group, table, choices)
    first, restored = table.foreign[0], any(change.operation == "RESTORE" for change in table.foreign)
    older = (
        "the table is the older side (its rows are those of an earlier version)"
        if restored
        else ("the table is the newer side (it has what no transaction wrote)")
    )
    said = "; ".join(f"version {change.version}: {change.what}" for change in table.foreign[:10])
    text = f"another writer changed {table.path} after version {first.version - 1}; {older}; found: {said}"
    kind = "table RESTOREd" if restored else "table written by someone else"
    offers = _undo(group, table, first), _accept(group, table, restored)
    return [choices.finding(kind, group.name, text, *offers)]


def _healed(group: GroupFacts, table: TableFacts, choices: Choices) -> list[Finding]:
    """A repair that died between the RESTORE and telling ZooKeeper of it."""
    if not table.healed or table.mark is None or table.mark.version >= table.version:
        return []
    text = f"{table.path} has its rows back (version {table.version}), ZooKeeper knows version {table.mark.version}"
    offer = Offer((), "tell ZooKeeper; nothing else is left to be done", (SetMarks(group.name, marks_of([table])),))
    return [choices.finding("repair not finished", group.name, text, offer)]


def _undo(group: GroupFacts, table: TableFacts, first: ForeignChange) -> Offer | Refused:
    if table.ours_after:
        return Refused(
            "It cannot be undone: transactions of this topology came after it, and a RESTORE would take them away too."
        )
    merged = _merged_meanwhile(group, table, first)
    if merged:
        return Refused(merged)
    good = first.version - 1
    return Offer(
        ("--undo-foreign", table.state),
        f"RESTORE {table.path} to version {good}, as this topology left it. The change is taken back; no transaction "
        "is lost or counted twice. Delta refuses it if VACUUM has removed files that this needs; then nothing changes. "
        "A stream that reads the table may stop at it, since rows are removed.",
        (Restore(group.name, table.path, table.table_id, good, table.version),),
    )


def _merged_meanwhile(group: GroupFacts, table: TableFacts, first: ForeignChange) -> str:
    """Why a log cannot be put back: its plain table may hold what others did to it."""
    if table.role != LOG:
        return ""
    for plain in group.tables:
        if plain.role != PLAIN or plain.state != table.state or not plain.exists or plain.merged < plain.starts_at:
            continue
        if plain.merged_log is None or plain.merged_log < 0:  # P says that there was a MERGE
            return (
                f"It cannot be undone: which version of it was merged into {plain.path} last is not known any more, so "
                "that the change may be in that table too."
            )
        if plain.merged_log >= first.version:
            return (
                f"It cannot be undone: its version {plain.merged_log} was merged into {plain.path}, which holds the "
                "change since then, or passes for having what was taken away. Bring both tables back from one copy "
                "with the rest of the warehouse, or begin again with `trident reset NAME --drop-tables`."
            )
    return ""


def _accept(group: GroupFacts, table: TableFacts, restored: bool) -> Offer | Refused:
    if table.not_written:
        return Refused(
            f"It cannot be accepted: the table asks more of its writers than this framework does: {table.not_written}. "
            "Take that away (ALTER TABLE … DROP CONSTRAINT, DROP DEFAULT, DROP NOT NULL, DROP FEATURE), run this again."
        )
    if all(change.only_properties for change in table.foreign):
        return Offer(
            ("--accept-foreign", table.state),
            f"take {table.path} with the table properties that it has now; its rows are as this topology left them.",
            (SetMarks(group.name, marks_of([table])),),
        )
    if table.role == LOG:
        return Refused(
            "It cannot be accepted: rows of others in the log of a keyed state are merged in part or not at all, "
            "according to the transaction that the row names."
        )
    if table.role == PLAIN and restored:
        return Refused(
            "It cannot be accepted: the rows are older than the transaction that the table says it holds, and those "
            "between would be missing."
        )
    if table.role == PLAIN and table.merged < table.floor:
        return Refused(f"It cannot be accepted: its log is kept above transaction {table.floor} only.")
    if table.role == PLAIN and table.odd_rows:
        return Refused(f"It cannot be accepted: {table.odd_rows}.")
    if table.role == PLAIN:
        meaning = "the values in it are the base of all that follows; the rows of the log above it are added"
    elif restored:
        meaning = "rows that the RESTORE took away stay away, though their transactions are done: THEY ARE LOST"
    else:
        meaning = "rows that were added stay, rows that were removed stay away; transactions continue from there"
    return Offer(
        ("--accept-foreign", table.state),
        f"take {table.path} as it is at version {table.version}: {meaning}. No transaction is processed again.",
        (SetMarks(group.name, _accepted(table)),),
    )


def unverified_log(group: GroupFacts, table: TableFacts, choices: Choices) -> list[Finding]:
    if not table.unverified:
        return []
    since = table.mark.version if table.mark else 0
    offer = Offer(
        ("--accept-unverified", table.state),
        f"take {table.path} as it is at version {table.version}. If another writer changed it since version {since}, "
        "that stays, and no later start will look again: compare the table with what you expect first.",
        (SetMarks(group.name, _accepted(table)),),
    )
    text = (
        f"the log entries of {table.path} after version {since} (the last that ZooKeeper knows) are gone up to some "
        f"point before version {table.version}; which side is older cannot be known"
    )
    return [choices.finding("Delta log cleaned too far", group.name, text, offer)]


def _accepted(table: TableFacts) -> Mapping[str, TableMark]:
    """The mark of a table that is taken as it is. A plain table's says so: its log alone no longer gives it."""
    marks = marks_of([table])
    if table.role != PLAIN:
        return marks
    return {table_id: replace(mark, digest=ACCEPTED) for table_id, mark in marks.items()}
