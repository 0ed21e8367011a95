"""Decides on commits of others to a table: those that can be taken back exactly, and those that may stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trident.coordinators.records import TableMark
from trident.maintenance.facts import LOG, PLAIN, ForeignChange, GroupFacts, TableFacts
from trident.repair.rebuild import marks_of
from trident.repair.steps import Choices, Finding, Offer, Refused, Restore, SetMarks
from trident.states.keyed.plain_watch import ACCEPTED


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
        meaning = "rows that were added stay, rows that were removed stay away; transactions go on from there"
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
