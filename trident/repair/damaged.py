"""Positions, ledgers, a decision, values that are lost or damaged, mended where that can be proved: pure decisions.

The proof of a position is the digest in the group's record: metadata of a
manifest, or of what is still stored, that has it is what was there. Pins of
transactions that are begun and not decided are simply begun anew: nothing of
them counts yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trident.coordinators.positions import digest_of
from trident.maintenance.facts import APPEND, LOG, GroupFacts
from trident.repair.steps import (
    AbandonDecision,
    Choices,
    ClampValues,
    Finding,
    Offer,
    PutPositions,
    Refused,
    WriteLedger,
)

_STUCK_SHOWN = 20


def lost_positions(group: GroupFacts, choices: Choices) -> list[Finding]:
    """Tells whether each stream is where the record says, and how it gets there again."""
    if not group.misplaced or group.record is None:
        return []
    text = (
        "ZooKeeper lacks positions of streams, or has older ones: begun from here, rows would be counted again, or be "
        f"missing; found: {'; '.join(map(str, group.misplaced))}"
    )
    pins: dict[str, dict[int, Any]] = {}
    opaque: dict[str, dict[str, Any]] = {}
    anew: set[int] = set()
    for tx_id in sorted({one.tx_id for one in group.misplaced if one.txid}):
        proved = _pins_of(group, tx_id)
        if isinstance(proved, Refused):
            return [choices.finding("positions lost", group.name, text, proved)]
        pins[tx_id], begun = proved
        anew |= begun
    for one in group.misplaced:
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
