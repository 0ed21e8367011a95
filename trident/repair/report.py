"""``trident repair NAME``: the report of a dry run, and of the steps that were done."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from trident.config import is_secret_setting
from trident.maintenance.facts import GroupFacts, TableFacts
from trident.repair.apply import Repaired
from trident.repair.steps import Finding
from trident.settings import ENVIRONMENT_PREFIX

_HIDDEN = "***"


def where_words(settings: Sequence[str]) -> list[str]:
    """The options that name warehouse and ZooKeeper, to be typed again; the values of secret settings are hidden."""
    words = []
    for setting in settings:
        key = setting.partition("=")[0].strip()
        words += ["--set", f"{key}={_HIDDEN}" if is_secret_setting(key) else setting]
    return words


def _secrets(where: Sequence[str]) -> list[str]:
    hidden = [word.partition("=")[0] for word in where if word.endswith(f"={_HIDDEN}")]
    return [key for key in hidden if is_secret_setting(key)]


def report(repaired: Repaired, where: Sequence[str], applied: bool) -> str:
    """Returns what was found, what could be done or was done, for a terminal.

    Args:
        repaired: what there is to say.
        where: as :func:`where_words` gives them.
        applied: whether the command was to do something.
    """
    command = shlex.join(["trident", "repair", repaired.facts.name, *where])
    lines = []
    for group in repaired.facts.groups:
        lines += _group_lines(group, repaired.facts.incarnation)
    if not repaired.findings:
        return "\n".join([*lines, "", "ZooKeeper and the tables agree: there is nothing to repair."])
    for number, finding in enumerate(repaired.findings, 1):
        lines += ["", *_finding_lines(number, finding, command, repaired.facts.name)]
    lines.append("")
    secrets = sorted({f"{ENVIRONMENT_PREFIX}{key.upper()}" for key in _secrets(where)})
    if secrets:
        lines.append(f"{_HIDDEN} stands for what is not shown; better give it as environment: {', '.join(secrets)}.")
    if not applied:
        lines.append("Nothing was changed: this was a dry run. A line with * is what --apply would do with the options")
        lines.append("given; one with - needs those that it names.")
        return "\n".join(lines)
    lines += [f"done: {text}" for text in repaired.done] or ["Nothing was changed: no repair was chosen."]
    if repaired.left:
        lines.append(f"{len(repaired.left)} contradiction(s) are left: {command} shows them.")
    elif repaired.done:
        lines.append("ZooKeeper and the tables agree now: start the topology.")
    return "\n".join(lines)


def _group_lines(group: GroupFacts, incarnation: str | None) -> list[str]:
    record, decision = group.record, group.decision
    lines = [f"batch group {group.name}"]
    if record is None:
        lines.append("  ZooKeeper  knows nothing of it")
    else:
        last = record.last_published
        published = f"transaction {last.txid} attempt {last.attempt_id}" if last else "nothing"
        pending = f", decided: transaction {decision.txid} attempt {decision.attempt_id}" if decision else ""
        lines.append(f"  ZooKeeper  current transaction {record.current_txid}, published {published}{pending}")
        lines.append(f"             incarnation {record.incarnation}")
    for table in group.tables:
        lines.append(f"  {table.path:<20} {_table_text(table, incarnation)}")
    for one in group.outside:
        known = f"transaction {one.mark.txid} attempt {one.mark.attempt_id}" if one.mark else "no transaction"
        outbox = f"its outbox: transaction {one.outbox[0]} attempt {one.outbox[1]}" if one.outbox else ""
        outbox = "its outbox is damaged" if one.damage else outbox or "its store is not asked"
        lines.append(f"  {one.state:<20} outside of the warehouse; ZooKeeper: {known}; {outbox}")
    manifests = ", ".join(f"{one.decision.txid} attempt {one.decision.attempt_id}" for one in group.manifests[-3:])
    lines.append(f"  manifests  {f'of transaction {manifests}' if manifests else 'none'}")
    return lines


def _table_text(table: TableFacts, incarnation: str | None) -> str:
    if not table.exists:
        return "no table"
    parts = [f"version {table.version}"]
    if table.role == "plain":
        parts.append(f"merged up to transaction {table.merged}")
    elif table.control is not None:
        has = f"transaction {table.control.txid} attempt {table.control.attempt_id}"
        parts.append(has if table.has_transaction else "no transaction yet")
    if table.control is None:
        parts.append("no control record of a topology")
    elif table.control.incarnation != incarnation:
        parts.append(f"incarnation {table.control.incarnation}")
    if table.mark is not None:
        about = "" if table.role == "plain" else f", transaction {table.mark.txid} attempt {table.mark.attempt_id}"
        parts.append(f"ZooKeeper: version {table.mark.version}{about}")
    if table.foreign:
        parts.append(f"{len(table.foreign)} change(s) by others")
    return "; ".join(parts)


def _finding_lines(number: int, finding: Finding, command: str, name: str) -> list[str]:
    lines = [f"{number}. {finding.kind.upper()} (batch group {finding.group})", f"   {finding.text}"]
    for offer in finding.offers:
        mark = "*" if offer is finding.chosen else "-"
        lines.append(f"   {mark} {' '.join([command, shlex.join([*offer.options, '--apply'])])}")
        lines.append(f"       {offer.text}")
    if finding.refusal:
        lines.append(f"   ! {finding.refusal.replace('NAME', name)}")
    return lines
