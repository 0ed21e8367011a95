"""States outside of the warehouse that lack transactions, or whose outbox is ahead or damaged: what a repair can do."""

from __future__ import annotations

from trident.coordinators.records import TableMark, outside_id
from trident.maintenance.facts import GroupFacts, OutsideFacts
from trident.repair.steps import Choices, Finding, NewOutbox, Offer, SetMarks, Step

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
        text = f"ZooKeeper says that state {one.state} has {known}; its store is not asked by this command"
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
