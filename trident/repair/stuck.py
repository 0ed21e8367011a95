"""Decides on keyed states with a total that fits no value of its column, as earlier versions have let it in."""

from __future__ import annotations

from trident.repair.facts import LOG, GroupFacts
from trident.repair.steps import Choices, ClampValues, Finding, Offer

_SHOWN = 20


def stuck_values(group: GroupFacts, choices: Choices) -> list[Finding]:
    findings = []
    logs = {table.state: table for table in group.tables if table.role == LOG}
    for table in group.tables:
        control = logs[table.state].control if table.stuck_keys and table.state in logs else None
        if control is None:
            continue
        keys = "; ".join(f"key {key}: {reason}" for key, reason in table.stuck_keys[:_SHOWN])
        more = f"; and {len(table.stuck_keys) - _SHOWN} more" if len(table.stuck_keys) > _SHOWN else ""
        offer = Offer(
            ("--clamp", table.state),
            f"merge the log of {table.state} with the greatest, or least, value of the type for these keys: write "
            "their exact totals down from this report first, THE TABLE HAS THEM NO MORE. The other keys are exact, "
            "no transaction is processed again. To keep exact totals, give the state another name and a wider type.",
            (ClampValues(group.name, table.state, control.txid),),
        )
        findings.append(
            Finding(
                "a value that does not fit",
                group.name,
                f"state {table.state} has keys whose totals fit no value of their column, so that no read of them "
                f"and no MERGE succeeds: {keys}{more}",
                (offer,),
                chosen=offer if table.state in choices.clamp else None,
            )
        )
    return findings
