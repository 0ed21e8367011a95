"""Checks that nothing is missing before ZooKeeper's record is rebuilt: pure decisions.

A record that is rebuilt says "so it is right" of everything that it names, and
says nothing of what it does not. Missing things must therefore be found
before: a table that the manifest names, a plain table whose log no longer
fits it, a state that is no table. None of it can be mended from here, so all
of it is refused, with what is to be brought back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trident.maintenance.facts import LOG, PLAIN, GroupFacts, ManifestFacts, TableFacts, TopologyFacts
from trident.repair.steps import Finding
from trident.states.core.kinds import find_kind
from trident.states.delta.manifest import outlives_process


def not_whole(facts: TopologyFacts, group: GroupFacts, found: ManifestFacts, lossy: bool) -> str:
    """Why a group's record cannot be rebuilt from its tables; "" when nothing is missing.

    Args:
        found: the manifest of their last transaction.
        lossy: ZooKeeper knows later transactions, which the tables do not have.
    """
    return (
        _missing_tables(group, found)
        or next((text for _, text in _misfits(group)), "")
        or (_own_states(facts, group, found) if lossy else "")
    )


def _missing_tables(group: GroupFacts, found: ManifestFacts) -> str:
    here = {table.path: table for table in group.tables if table.exists}
    for part in found.manifest.tables:
        if not part.table_id:
            continue
        table = here.get(part.path)
        if table is None or table.table_id != part.table_id:
            what = "is gone" if table is None else f"is another table, dropped and made again (id {table.table_id})"
            return (
                f"{part.path} {what}: the manifest of transaction {found.decision.txid} names the table "
                f"{part.table_id} there. Its rows are nowhere else, so nothing is taken for them. Bring its folder "
                "back from a back-up, and run this again; or begin again with `trident reset NAME --drop-tables`."
            )
    return ""


def _misfits(group: GroupFacts) -> Iterator[tuple[TableFacts, str]]:
    """Plain tables that do not go with their logs, with why."""
    logs = {table.state: table for table in group.tables if table.role == LOG and table.exists and table.control}
    for plain in group.tables:
        log = logs.get(plain.state)
        if plain.role != PLAIN or log is None or log.control is None:
            continue
        if not plain.exists:
            if not plain.complete_log:
                yield (
                    plain,
                    (
                        f"{plain.path} is gone, and its log {log.path} is kept above transaction {plain.floor} only: "
                        "the earlier rows were in that table alone. Bring its folder back from a back-up, and run "
                        "this again; or begin again with `trident reset NAME --drop-tables`."
                    ),
                )
        elif plain.merged < plain.floor:
            yield (
                plain,
                (
                    f"{plain.path} is merged up to transaction {plain.merged}, and its log {log.path} is kept above "
                    f"transaction {plain.floor} only: the rows between are lost. Restore the table from a newer copy."
                ),
            )
        elif plain.merged > log.control.txid:
            yield plain, _ahead(plain, log)


def _ahead(plain: TableFacts, log: TableFacts) -> str:
    txid = log.control.txid if log.control else 0
    return (
        f"{plain.path} is merged up to transaction {plain.merged}, and its log {log.path} has transactions up to "
        f"{txid} only: they are of different moments. Merged rows cannot be taken out again, and the next "
        f"transactions {txid + 1} to {plain.merged} would be taken for merged and be missing. "
        "Bring both, with all other tables and the folder _trident, back from one copy."
    )


def ahead_of_log(group: GroupFacts) -> list[Finding]:
    """Plain tables with transactions that their logs do not have, where ZooKeeper agrees with the logs."""
    return [
        Finding(
            "plain table newer than its log",
            group.name,
            f"{plain.path} and its log are of different moments; the log is the older side; found: merged up to "
            f"transaction {plain.merged}",
            refusal=text,
        )
        for plain, text in _misfits(group)
        if plain.exists and plain.merged >= plain.floor
    ]


def _own_states(facts: TopologyFacts, group: GroupFacts, found: ManifestFacts) -> str:
    own = {part.state for part in found.manifest.tables if part.state_kind.survives_elsewhere}
    # A state that was added after the copy is in no manifest of it, but ZooKeeper knows it.
    elsewhere = {
        part.state
        for other in facts.groups
        if other.name != group.name
        for one in other.manifests[-1:]
        for part in one.manifest.tables
    }
    known = (facts.identity or {}).get("states", {})
    own |= {state for state, said in known.items() if _is_elsewhere(said) and state not in elsewhere}
    if own:
        return (
            f"the states {', '.join(sorted(own))} are not tables of the warehouse, and may hold later transactions: "
            "they cannot be taken back from here. Bring warehouse, these states and ZooKeeper back from one moment."
        )
    return ""


def _is_elsewhere(said: object) -> bool:
    """Tells whether the identity of a state says that its values are neither in a table nor gone with the process."""
    how = said.get("aggregator") if isinstance(said, Mapping) else None
    kind = find_kind(str(how or "").split(" ")[0].split("/")[0])
    return kind is not None and kind.survives_elsewhere


def without_record(facts: TopologyFacts, group: GroupFacts) -> Finding | None:
    """A group that has manifests, no table with a transaction, and nothing in ZooKeeper."""
    if group.record is not None:
        return None
    kept = [one for one in group.manifests if outlives_process(one.manifest)]
    if not kept:
        return None
    last = kept[-1]
    states = sorted({part.state for part in last.manifest.tables})
    return Finding(
        "ZooKeeper wiped",
        group.name,
        f"ZooKeeper is the older side: it knows no batch group {group.name!r}; found: a manifest of transaction "
        f"{last.decision.txid} attempt {last.decision.attempt_id} (incarnation {last.manifest.incarnation})",
        refusal=f"no Delta table of the group says which transaction was its last, and the states {', '.join(states)} "
        "are not looked at from here: their transactions may be the manifest's, or those before or behind it, and "
        "begun at transaction 1 everything would be counted again. Bring ZooKeeper's data back from a copy of the same "
        "moment, or empty these states and begin again with `trident reset NAME`.",
    )
