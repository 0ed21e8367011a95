"""States outside of the warehouse whose stores lack transactions: what a repair can do about them."""

from __future__ import annotations

from trident.coordinators.records import outside_id
from trident.repair.facts import GroupFacts, OutsideFacts
from trident.repair.steps import Choices, Finding, Offer, SetMarks

_LACKS = "a state outside of the warehouse lacks transactions"


def outside_states(group: GroupFacts, choices: Choices) -> list[Finding]:
    """Stores that are said to lack transactions, and outboxes that do: a repair asks no other store."""
    return [
        _finding(group.name, one, one.state in choices.accept_outside)
        for one in group.outside
        if one.state in choices.accept_outside or _lacks(one)
    ]


def _lacks(one: OutsideFacts) -> bool:
    return one.outbox is not None and one.outbox < (one.mark.txid, one.mark.attempt_id)


def _finding(group: str, one: OutsideFacts, accepted: bool) -> Finding:
    known = f"transaction {one.mark.txid} attempt {one.mark.attempt_id}"
    if one.outbox is None:
        text = f"ZooKeeper says that state {one.state} has {known}; its store is not asked by this command"
    else:
        has = f"transaction {one.outbox[0]} attempt {one.outbox[1]}" if one.outbox[0] else "no transaction"
        text = f"the outbox of state {one.state} is the older side; found: {has}; expected: {known}"
    meaning = (
        f"ZooKeeper forgets which transaction state {one.state} has, and the next start takes its store as it is: "
        f"transactions up to {one.mark.txid} that the store lacks are not written to it again, and ARE LOST there. "
        "A store that has later ones than ZooKeeper is refused as before"
    )
    if one.outbox is not None:
        meaning += "; the server of an outbox may have them: they were sent"
    offer = Offer(("--accept-outside", one.state), meaning, (SetMarks(group, forget=(outside_id(one.state),)),))
    return Finding(_LACKS, group, text, (offer,), chosen=offer if accepted else None)
