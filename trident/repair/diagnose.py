"""Diagnoses contradictions between ZooKeeper and the tables, and decides on mending them: pure decisions.

In: facts (facts.py) and the user's choices. Out: findings, each with
what could be done, what that would mean, and, where the choices say so, the
steps. Nothing is read or written here: inspection.py reads, apply.py writes.

The rules behind it:

- A table's rows count, ZooKeeper's record follows: a record can be written
  again from control records and manifests, rows cannot.
- Positions come from the manifest of the last transaction that the tables
  have. Without it nothing is rebuilt: a source would be read from elsewhere.
- It may be unknown whether the last transaction was finished. Then it is decided
  again: all that follows a decision may be done twice.
- The user has to ask by name for a step that may lose rows, or count them twice.
"""

from __future__ import annotations

from dataclasses import replace

from trident.coordinators.records import Decision, GroupRecord, TableMark, is_outside_id
from trident.maintenance.facts import PLAIN, GroupFacts, TableFacts, TopologyFacts
from trident.repair.damaged import (
    damaged_ledgers,
    foreign_changes,
    lost_positions,
    outside_states,
    stuck_values,
    undecidable,
    unverified_log,
)
from trident.repair.rebuild import ahead_of_log, marks_of, rebuild, without_record
from trident.repair.steps import Choices, Finding, Offer, SetMarks, WriteRecord
from trident.states.keyed.table_watch import ACCEPTED

_NONE = Choices()
RECREATED = "table dropped and recreated"


def diagnose(facts: TopologyFacts, choices: Choices = _NONE) -> list[Finding]:
    """Every contradiction, in the order in which they are to be repaired."""
    return [finding for group in facts.groups for finding in _diagnose_group(facts, group, choices)]


def _diagnose_group(facts: TopologyFacts, group: GroupFacts, choices: Choices) -> list[Finding]:
    strangers = [finding for table in group.tables for finding in _foreign_tables(facts, group, table)]
    if strangers:
        return strangers
    changed = [
        finding
        for table in group.tables
        if table.exists
        for finding in (*foreign_changes(group, table, choices), *unverified_log(group, table, choices))
    ]
    lost = _lost_tables(group, choices)
    if lost and not _other_incarnation(facts, group):
        return [*changed, *lost]
    open_ones = [finding for finding in changed if finding.chosen is None]
    differ = _differ(facts, group, choices, blocked=bool(open_ones))
    if differ is not None:
        if group.record is not None and differ.chosen is None:
            return [*changed, differ]
        return _into_one_record(changed, differ)
    rest = [
        *stuck_values(group, choices),
        *ahead_of_log(group),
        *undecidable(group, choices),
        *lost_positions(group, choices),
        *damaged_ledgers(group, choices),
    ]
    return [*changed, *_version_regressions(group, choices), *outside_states(group, choices), *rest]


def _into_one_record(changed: list[Finding], differ: Finding) -> list[Finding]:
    """Puts the marks that were accepted into the record that is written: there is none to change, or it is replaced."""
    marks: dict[str, TableMark] = {}
    findings = []
    for finding in changed:
        if finding.chosen is not None:
            for step in finding.chosen.steps:
                marks.update(step.marks if isinstance(step, SetMarks) else {})
            rest = tuple(step for step in finding.chosen.steps if not isinstance(step, SetMarks))
            finding = replace(finding, chosen=replace(finding.chosen, steps=rest))
        findings.append(finding)
    if differ.chosen is None:
        return [*findings, differ]
    steps = tuple(
        replace(step, record=replace(step.record, tables={**step.record.tables, **marks}))
        if isinstance(step, WriteRecord)
        else step
        for step in differ.chosen.steps
    )
    return [*findings, replace(differ, chosen=replace(differ.chosen, steps=steps))]


def _other_incarnation(facts: TopologyFacts, group: GroupFacts) -> bool:
    """Tells whether tables are of another incarnation than ZooKeeper: then their ids say nothing more."""
    published = {table.control.incarnation for table in group.tables if table.has_transaction and table.control}
    return facts.incarnation is not None and bool(published - {facts.incarnation})


# --- tables that are not ours, or not there ----------------------------------------------------------


def _foreign_tables(facts: TopologyFacts, group: GroupFacts, table: TableFacts) -> list[Finding]:
    control = table.control
    if not table.exists or control is None or (control.topology, control.group) == (facts.name, group.name):
        return []
    return [
        Finding(
            "two topologies on one table",
            group.name,
            f"the table {table.path} belongs to topology {control.topology!r}, batch group {control.group!r}, which "
            f"has published transaction {control.txid} to it; expected: {facts.name!r}, {group.name!r}",
            refusal="a table has one writer: give the state another name in one of the two topologies. The other one's "
            "rows stay its own.",
        )
    ]


def _lost_tables(group: GroupFacts, choices: Choices) -> list[Finding]:
    """Tables of which ZooKeeper has a mark, and which are nowhere."""
    marks = group.record.tables if group.record else {}
    of_tables = {name for name in marks if not is_outside_id(name)}
    gone = sorted(of_tables - {table.table_id for table in group.tables if table.exists})
    if not gone:
        return []
    places = [table for table in group.tables if not table.exists or table.table_id not in marks]
    derived = [one for one in gone if marks[one].digest in ("", ACCEPTED)]
    plains = [table for table in places if table.role == PLAIN]
    if derived == gone and plains:
        return [_lost_plain(group, gone, plains, choices)]
    where = "; ".join(
        f"{table.path}: {'another table, dropped and made again' if table.exists else 'no table'}" for table in places
    )
    last = group.record.last_published if group.record else None
    return [
        Finding(
            RECREATED,
            group.name,
            f"ZooKeeper is the newer side: it knows tables {', '.join(gone)} with transactions up to "
            f"{last.txid if last else 0}; found: {where or 'no such table'}",
            refusal="the rows of these transactions are nowhere else, so nothing replaces them. Bring the folder "
            "of the table back from a back-up (with one of the present moment start at once, with an older one "
            "run this command again), or begin again with `trident reset NAME --drop-tables`.",
        )
    ]


def _lost_plain(group: GroupFacts, gone: list[str], plains: list[TableFacts], choices: Choices) -> Finding:
    names = ", ".join(sorted(table.path for table in plains))
    text = f"the plain table of a keyed state is gone or was made again: {names}; ZooKeeper is the newer side"
    short = [table for table in plains if not table.complete_log]
    if short:
        return Finding(
            RECREATED,
            group.name,
            text,
            refusal=f"the log of {short[0].state} is kept above transaction {short[0].floor} only; earlier rows were "
            "in the plain table alone. Bring the table back from a back-up, or begin again with `trident reset`.",
        )
    foreign = [table for table in plains if table.exists and table.control is None]
    if foreign:
        return Finding(
            RECREATED,
            group.name,
            text,
            refusal=f"{foreign[0].path} is another owner's table now: move its folder away, then run this again.",
        )
    steps = (SetMarks(group.name, forget=tuple(gone)),)
    marks = group.record.tables if group.record else {}
    if any(marks[one].digest == ACCEPTED for one in gone):
        meaning = (
            "it is made again from the log, which has every transaction; but changes of others, or versions that could "
            "not be checked, were accepted in it: they are in no log and ARE LOST. A back-up of the table has them"
        )
        offer = Offer(("--accept-loss",), meaning, steps)
    else:
        meaning = "it is made again from the log, which has every transaction: nothing is lost or doubled"
        offer = Offer((), meaning, steps)
    return choices.finding(RECREATED, group.name, text, offer)


# --- ZooKeeper and tables at different transactions --------------------------------------------------------


def _differ(facts: TopologyFacts, group: GroupFacts, choices: Choices, blocked: bool) -> Finding | None:
    tables = [table for table in group.tables if table.exists and table.has_transaction]
    record, decision = group.record, group.decision
    incarnations = sorted({table.control.incarnation for table in tables if table.control})
    if record is None or (facts.incarnation and incarnations and incarnations != [facts.incarnation]):
        if not tables:
            return without_record(facts, group)
        fresh = record is None or record.last_published is None
        said = "; ".join(_says(table) for table in tables)
        text = (
            f"ZooKeeper is the older side: it knows {'no' if record is None else 'another incarnation of this'} batch "
            f"group ({_zookeeper_says(record)}), but the tables have transactions; found: {said}"
        )
        if not fresh:
            return Finding(
                "incarnations differ",
                group.name,
                text,
                refusal="ZooKeeper has transactions of another incarnation of the topology ("
                f"{record.incarnation if record else ''}): tables and ZooKeeper are not of one system. Name the right "
                "warehouse and ZooKeeper, or begin again with `trident reset NAME --drop-tables`.",
            )
        return _rebuilt(facts, group, choices, "ZooKeeper wiped", text, lossy=False, blocked=blocked)
    ahead = [table for table in tables if _compare(table, decision) > 0]
    lagging = [table for table in tables if _compare(table, decision) < 0]
    if not ahead and not lagging:
        return None
    said = "; ".join(_says(table) for table in [*ahead, *lagging])
    if ahead and lagging:
        return Finding(
            "tables of different moments",
            group.name,
            f"neither side is the older one: some tables are ahead of ZooKeeper, some lag; found: {said}",
            refusal="bring all tables, and the folder _trident, back from one copy, then run this again.",
        )
    if ahead:
        text = f"ZooKeeper is the older side ({_zookeeper_says(record)}), restored from an older copy; found: {said}"
        return _rebuilt(facts, group, choices, "ZooKeeper restored from an older copy", text, False, blocked)
    text = f"the tables are the older side, ZooKeeper is newer ({_zookeeper_says(record)}); found: {said}"
    # A table that has no part in the later transactions (a detached state's) is the same in every copy.
    least_txid = min(_position(table) for table in lagging)[0]
    level = [table for table in tables if table not in lagging and _position(table)[0] > least_txid]
    if level:
        least = min(lagging, key=_position)
        return Finding(
            "one table restored from an older copy",
            group.name,
            text,
            refusal=f"{', '.join(table.path for table in level)} are as ZooKeeper says, {least.path} lacks "
            "transactions, and what it lacks is nowhere else. Rolling the other tables back is not offered: Delta's "
            "transaction ids never go back. Bring all tables, and the folder _trident, back from the copy of the older "
            "one came from and run this again; or begin again with `trident reset NAME --drop-tables`.",
        )
    return _rebuilt(facts, group, choices, "tables restored from an older copy", text, True, blocked)


def _says(table: TableFacts) -> str:
    control, mark = table.control, table.mark
    assert control is not None
    zookeeper = f"transaction {mark.txid} attempt {mark.attempt_id}" if mark else "nothing of it"
    return (
        f"{table.path} has transaction {control.txid} attempt {control.attempt_id} (version {table.version}), "
        f"ZooKeeper says {zookeeper}"
    )


def _zookeeper_says(record: GroupRecord | None) -> str:
    if record is None:
        return "no record"
    last = record.last_published
    said = f"transaction {last.txid} attempt {last.attempt_id}" if last else "nothing"
    return f"current transaction {record.current_txid}, last published {said}"


def _position(table: TableFacts) -> tuple[int, int]:
    assert table.control is not None
    return table.control.txid, table.control.attempt_id


def _compare(table: TableFacts, decision: Decision | None) -> int:
    """1: the table is ahead of ZooKeeper; −1: behind it; 0: as it is to be."""
    control, mark = table.control, table.mark
    assert control is not None
    if decision and control.is_of(decision):
        return 0
    if mark is None:
        return 1
    if control.same_batch(mark):
        return 0
    return 1 if (control.txid, control.attempt_id) > (mark.txid, mark.attempt_id) else -1


def _rebuilt(
    facts: TopologyFacts, group: GroupFacts, choices: Choices, kind: str, text: str, lossy: bool, blocked: bool
) -> Finding:
    offer = rebuild(facts, group, lossy)
    if blocked and isinstance(offer, Offer):
        reason = "first decide about the changes of others and the missing log entries above; name them in one command"
        return Finding(kind, group.name, text, (offer,), refusal=reason)
    return choices.finding(kind, group.name, text, offer)


# --- what is left --------------------------------------------------------------------------------------------


def _version_regressions(group: GroupFacts, choices: Choices) -> list[Finding]:
    findings = []
    for table in group.tables:
        mark = table.mark
        if not table.exists or mark is None or (table.version >= mark.version and table.merged >= _least(table)):
            continue
        text = (
            f"{table.path} is older than ZooKeeper: it was restored from a copy; found: version {table.version}"
            f"{f', merged up to {table.merged}' if table.role == PLAIN else ''}; expected: version {mark.version} "
            "or later"
        )
        if table.role == PLAIN and table.merged < table.floor:
            findings.append(
                Finding(
                    "plain table restored from an older copy",
                    group.name,
                    text,
                    refusal=f"its log is kept above transaction {table.floor} only, the table is merged up to "
                    f"{table.merged}: the transactions between are nowhere. Bring the table back from a newer copy.",
                )
            )
            continue
        if table.foreign or table.unverified:
            continue  # what is decided about these says of the table what it is
        if table.role == PLAIN:
            meaning = "the log has all that it lacks, and is merged into it again: nothing is lost or counted twice"
        else:
            meaning = "it has the same last transaction as ZooKeeper says: nothing of this topology is lost"
        options: tuple[str, ...] = ()
        if mark.digest == ACCEPTED:
            options = ("--accept-loss",)
            meaning += "; but changes of others were accepted in it: those that came after the copy ARE LOST"
        if table.unseen_before:
            meaning += f"; log entries before version {table.unseen_before} are gone and could NOT BE CHECKED"
        steps = (SetMarks(group.name, marks_of([table])),)
        offer = Offer(options, f"take {table.path} as it is: {meaning}", steps)
        findings.append(choices.finding("table restored from an older copy", group.name, text, offer))
    return findings


def _least(table: TableFacts) -> int:
    return table.mark.txid if table.role == PLAIN and table.mark else 0
