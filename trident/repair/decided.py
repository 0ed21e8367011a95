"""A decided transaction whose staged files are gone: when it may be given up, and when not: pure decisions.

Tables are published first, users' states and queues behind them. So where a
table takes part and does not have the transaction, no state has it (docs/semantics.md 9.5).
"""

from __future__ import annotations

from trident.repair.facts import APPEND, LOG, GroupFacts
from trident.repair.rebuild import batch_of
from trident.repair.steps import AbandonDecision, Choices, Finding, Offer


def undecidable(group: GroupFacts, choices: Choices) -> list[Finding]:
    """Tells whether the decision that ZooKeeper has can be published, and what to do if not."""
    decision = group.decision
    if decision is None:
        return []
    found = next((one for one in group.manifests if one.decision == decision), None)
    batch = batch_of(decision)
    having = [t for t in group.tables if t.has_transaction and t.control and t.control.same_batch(batch)]
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
    if having:
        return [
            Finding(
                "staged files gone after the decision",
                group.name,
                text,
                refusal=f"{', '.join(table.path for table in having)} has the transaction already, so it cannot be "
                f"given up: one table would have it and another not. {back}",
            )
        ]
    if not published_to:
        return [
            Finding(
                "staged files gone after the decision",
                group.name,
                text,
                refusal="the group has no Delta table that would show whether something is published already. " + back,
            )
        ]
    offer = Offer(
        ("--abandon-decision",),
        f"give the decision up: nothing of transaction {decision.txid} is published, no table has it, and users' "
        "states and queues come after the tables. It is processed again as a new attempt: the same rows of a "
        "transactional source; of an opaque one, or a queue, what it gives now (earlier messages come again). "
        f"Nothing is lost or counted twice. Better, if you can: {back}",
        (AbandonDecision(group.name, decision),),
    )
    chosen = offer if choices.abandon_decision else None
    return [Finding("staged files gone after the decision", group.name, text, (offer,), chosen=chosen)]
