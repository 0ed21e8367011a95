"""Rebuilds ZooKeeper's record of a batch group from its tables and manifests: pure decisions.

The manifest of the last transaction that the tables have is the source of the
streams' positions. It may be unknown whether that transaction was finished
everywhere: then it is decided again, since all that follows a decision may be
done twice (docs/semantics.md 9.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trident.coordinators.records import GroupRecord, Marker, TableMark
from trident.maintenance.facts import (
    APPEND,
    AUXILIARY,
    LOG,
    PLAIN,
    GroupFacts,
    ManifestFacts,
    TableFacts,
    TopologyFacts,
    identity_of,
    positions,
)
from trident.repair.steps import Finding, Offer, Refused, WriteRecord
from trident.states.core.control import ControlRecord
from trident.states.core.kinds import find_kind
from trident.states.delta.manifest import outlives_process

# Checks that nothing is missing before ZooKeeper's record is rebuilt: pure decisions.
#
# A record that is rebuilt says "so it is right" of everything that it names, and
# says nothing of what it does not. Missing things must therefore be found
# before: a table that the manifest names, a plain table whose log no longer
# fits it, a state that is no table. None of it can be mended from here, so all
# of it is refused, with what is to be brought back.


def not_whole(facts: TopologyFacts, group: GroupFacts, found: ManifestFacts, lossy: bool) -> str:
    """Why a group's record cannot be rebuilt from its tables; "" when nothing is missing.

    Args:
        found: the manifest of their last transaction.
        lossy: ZooKeeper knows later transactions, which the tables do not have.
    """
    return (
        _missing_tables(group, found)
        or next((text for _, text in _inconsistent_tables(group)), "")
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
                f"{part.table_id} there. Its rows are nowhere else, so nothing replaces them. Bring its folder "
                "back from a back-up, and run this again; or begin again with `trident reset NAME --drop-tables`."
            )
    return ""


def _inconsistent_tables(group: GroupFacts) -> Iterator[tuple[TableFacts, str]]:
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
        for plain, text in _inconsistent_tables(group)
        if plain.exists and plain.merged >= plain.floor
    ]


def _own_states(facts: TopologyFacts, group: GroupFacts, found: ManifestFacts) -> str:
    own = {part.state for part in found.manifest.tables if part.state_kind.is_external}
    # A state that was added after the copy is in no manifest of it, but ZooKeeper knows it.
    elsewhere = {
        part.state
        for other in facts.groups
        if other.name != group.name
        for one in other.manifests[-1:]
        for part in one.manifest.tables
    }
    known = (facts.identity or {}).get("states", {})
    own |= {state for state, said in known.items() if _is_external(said) and state not in elsewhere}
    if own:
        return (
            f"the states {', '.join(sorted(own))} are not tables of the warehouse, and may hold later transactions: "
            "they cannot be taken back from here. Bring warehouse, these states and ZooKeeper back from one moment."
        )
    return ""


def _is_external(said: object) -> bool:
    """Tells whether the identity of a state says that its values are neither in a table nor gone with the process."""
    how = said.get("aggregator") if isinstance(said, Mapping) else None
    kind = find_kind(str(how or "").split(" ")[0].split("/")[0])
    return kind is not None and kind.is_external


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
        "are not checked from here: their transactions may be the manifest's, or those before or after it, and "
        "begun at transaction 1 everything would be counted again. Bring ZooKeeper's data back from a copy of the same "
        "moment, or empty these states and begin again with `trident reset NAME`.",
    )


# Epochs go up by this when they are rebuilt: leaders that published nothing to a table have left no trace.
EPOCH_INCREMENT = 1000
_LEFTOVER_TXIDS_MAX = 100


def rebuild(facts: TopologyFacts, group: GroupFacts, lossy: bool) -> Offer | Refused:
    """ZooKeeper's record of a group, from what its tables and the manifest of their last transaction say.

    Args:
        lossy: ZooKeeper knows later transactions, which the tables do not have.
    """
    tables = [table for table in group.tables if table.exists and table.has_transaction]
    controls = [table.control for table in tables if table.control]
    incarnations = sorted({control.incarnation for control in controls})
    if len(incarnations) > 1:
        listed = ", ".join(incarnations)
        return Refused(f"the tables are of several incarnations of the topology ({listed}): bring all from one copy.")
    newest = max(controls, key=lambda control: (control.txid, control.attempt_id))
    found = next((one for one in group.manifests if newest.is_of(one.decision)), None)
    if found is None:
        return Refused(
            f"the manifest of transaction {newest.txid} attempt {newest.attempt_id} is not in "
            f"_trident/{facts.name}/{group.name}/manifests: it has the positions of the streams. Bring it back from a "
            "back-up of the warehouse, and run this again; without it, begin again with `trident reset NAME`."
        )
    lost = not_whole(facts, group, found, lossy)
    if lost:
        return Refused(lost)
    taking_part = {part.state for part in found.manifest.tables}
    lagging = [t for t in tables if t.state in taking_part and not t.has(found.decision)]
    fresh = [t for t in group.tables if t.exists and t.role in (APPEND, LOG) and not t.has_transaction]
    lagging += [table for table in fresh if table.state in taking_part]
    # Of the tables that have part in every transaction: the one before tells half published from restored.
    leaders = [t for t in tables if t.role != AUXILIARY and t.has(found.decision)]
    before = max((t.before for t in leaders if t.before), key=lambda one: (one.txid, one.attempt_id), default=None)
    problem = _incomplete_publish(found, lagging, before)
    if problem:
        return Refused(problem)
    pending = bool(lagging) or _may_be_unfinished(found)
    if isinstance(pending, str):
        return Refused(pending)
    identity = _identity(facts, found)
    if isinstance(identity, Refused):
        return identity
    return _offer(facts, group, found, bool(pending), before, identity, lossy)


def _incomplete_publish(found: ManifestFacts, lagging: list[TableFacts], before: ControlRecord | None) -> str:
    """Why tables that lack the last transaction cannot be given it; "" when they can."""
    for table in lagging:
        control = table.control
        if table.missing_from(found):
            return (
                f"{table.path} lacks transaction {found.decision.txid}, and of its files are gone: "
                f"{', '.join(found.missing[table.state][:5])}. Bring them back from a back-up, and run this again."
            )
        same_before = (
            before is not None
            and control is not None
            and (control.txid, control.attempt_id, control.digest) == (before.txid, before.attempt_id, before.digest)
        )
        new_one = control is not None and control.attempt_id < 0
        if not same_before and not new_one and table.role != AUXILIARY:
            return (
                f"{table.path} has transaction {control.txid if control else 0}, and the last before "
                f"{found.decision.txid} was {before.txid if before else 'not to be found in the logs'}: the table was "
                "restored from an older copy. Bring all tables, and the folder _trident, back from one copy."
            )
    return ""


def _may_be_unfinished(found: ManifestFacts) -> bool | str:
    """Tells whether the last transaction, which all tables have, may not have reached users' states and queues."""
    # A memory map's rows go when the transaction has advanced, like those of users' states.
    own = [part for part in found.manifest.tables if not part.state_kind.has_table and part.files]
    has_commit_data = any(spout.get("commit_data") is not None for spout in found.manifest.spouts.values())
    there = [part for part in own if not found.missing.get(part.state)]
    gone = [part for part in own if len(found.missing.get(part.state, ())) == len(part.files)]
    if own and len(gone) == len(own):
        return False  # they are removed only when the transaction has advanced
    if len(there) < len(own):
        return (
            f"of the rows for {', '.join(part.state for part in own if part not in there)} some are gone, so that it "
            "is not known whether the last transaction was finished. Bring the files back from a back-up."
        )
    return any(part.state_kind.is_external for part in own) or has_commit_data


def _identity(facts: TopologyFacts, found: ManifestFacts) -> Mapping[str, Any] | Refused:
    if facts.identity is not None:
        return facts.identity
    spouts = {one.name: one.manifests[-1].manifest.spouts if one.manifests else {} for one in facts.groups}
    identity = identity_of(spouts, facts.state_identities)
    unknown = sorted(tx_id for tx_id in found.manifest.spouts if not identity["streams"].get(tx_id))
    if unknown:
        return Refused(
            f"the manifest does not say which spout stream {unknown[0]!r} has (its last transaction was skipped): "
            "nothing is guessed. Restore ZooKeeper from a copy, or begin again with `trident reset NAME`."
        )
    return identity


def _offer(
    facts: TopologyFacts,
    group: GroupFacts,
    found: ManifestFacts,
    pending: bool,
    before: ControlRecord | None,
    identity: Mapping[str, Any],
    lossy: bool,
) -> Offer:
    decision, manifest = found.decision, found.manifest
    txid, attempt_id = decision.txid, decision.attempt_id
    incarnation = next(t.control.incarnation for t in group.tables if t.has(decision) and t.control)
    earlier = before if before is not None and before.attempt_id >= 0 else None
    attempts, parents = _attempts(group, txid, attempt_id)
    last: Marker | None = Marker(txid, attempt_id, decision.sha256)
    published = last
    if pending:
        parent = manifest.parent.attempt_id if manifest.parent else None
        attempts, parents = {txid: attempt_id, **attempts}, {txid: parent, **parents}
        digest = earlier.digest if earlier and earlier.txid == txid - 1 else ""
        last = Marker(txid - 1, parent or 0, digest) if txid > 1 else None
        published = Marker(earlier.txid, earlier.attempt_id, earlier.digest) if earlier and last else None
    current = txid if pending else txid + 1
    used = group.record.used if group.record else None
    record = GroupRecord(incarnation, current, attempts, parents, last, published, marks_of(group.tables), used=used)
    spouts = manifest.spouts
    pins, opaque = positions(spouts, txid)
    if pending:  # the decision stores them itself when it advances
        opaque = {}
    tx_ids = tuple(sorted({*group.tx_ids, *spouts}))
    step = WriteRecord(
        group.name,
        tx_ids,
        incarnation,
        identity,
        record,
        decision if pending else None,
        pins,
        opaque,
    )
    options, text = _meaning(group, found, current, pending, lossy)
    unsure = [t.path for t in group.tables if t.role == AUXILIARY and t.exists and t.control and t.control.txid < txid]
    if unsure:
        text += f" {', '.join(unsure)} may lack some of its earlier rows: not all transactions write there."
    return Offer(options, text, (step,))


def _attempts(group: GroupFacts, txid: int, attempt_id: int) -> tuple[dict[int, int], dict[int, int | None]]:
    """Attempt ids that were used after a transaction: none of them is used again."""
    seen = {found: attempt for found, attempt in group.leftovers.items() if found > txid}
    if group.record is not None:
        seen = {**{k: v for k, v in group.record.attempts.items() if k > txid}, **seen}
        for marker in (group.record.last, group.record.last_published):
            if marker is not None and marker.txid > txid:
                seen[marker.txid] = max(seen.get(marker.txid, 0), marker.attempt_id)
    if not seen:
        return {}, {}
    # A window without holes, each with the greatest id of all: ids only have to be new.
    until, greatest = min(max(seen), txid + _LEFTOVER_TXIDS_MAX), max(seen.values())
    attempts = {each: greatest for each in range(txid + 1, until + 1)}
    parents: dict[int, int | None] = {n: attempt_id if n == txid + 1 else greatest for n in attempts}
    return attempts, parents


def _meaning(
    group: GroupFacts, found: ManifestFacts, current: int, pending: bool, lossy: bool
) -> tuple[tuple[str, ...], str]:
    txid = found.decision.txid
    text = f"write ZooKeeper's record again from the tables and the manifest of transaction {txid}"
    if pending:
        text += (
            f"; transaction {txid} is decided again and finished at the next start, since it may not have reached all "
            "of its tables, states and queues: those that it has reached are left as they are"
        )
    text += f". The next {'is' if pending else 'transaction is'} {current}, from the positions that the manifest has"
    text += _unseen(group)
    outside = sorted(part.state for part in found.manifest.tables if part.state_kind.keeps_marks)
    if outside:
        text += (
            f". Of {', '.join(outside)}, outside of the warehouse, ZooKeeper will not know which transaction it has: "
            "the next start refuses a store that is ahead, but DOES NOT NOTICE ONE THAT LACKS TRANSACTIONS"
        )
    if not lossy:
        return (), f"{text}. No transaction is lost or counted twice."
    last = group.record.last_published if group.record else None
    text += (
        f". Transactions {txid + 1} to {last.txid if last else '?'} are not in the tables any more: they are processed "
        "again from the source, and counted once, as far as the source still has them"
    )
    unsure = sorted(tx_id for tx_id, spout in found.manifest.spouts.items() if spout.get("kind") != "transactional")
    if unsure:
        return ("--adopt-tables", "--accept-loss"), (
            f"{text}. Data that stream {', '.join(unsure)} has given since and then forgot (acknowledged "
            "messages, rows past its retention) DOES NOT COME AGAIN: IT IS LOST."
        )
    return ("--adopt-tables",), f"{text}. Files or rows that were deleted there since are lost."


def _unseen(group: GroupFacts) -> str:
    """The versions and manifests that could not be looked at, for the text: it must not leave them out."""
    said = [f"{table.path} before version {table.unseen_before}" for table in group.tables if table.unseen_before]
    text = ""
    if said:
        text += (
            f". Log entries of {', '.join(said)} are gone: changes of others there could NOT BE CHECKED, "
            "and are taken as they are"
        )
    remade = [table.path for table in group.tables if table.role == PLAIN and not table.exists]
    if remade:
        text += (
            f". {', '.join(remade)} is not there and is made again from its log: changes by others that were once "
            "accepted in it, if any, ARE LOST"
        )
    return text


def marks_of(tables: Iterable[TableFacts]) -> dict[str, TableMark]:
    found = {table.table_id: table.mark_now for table in tables if table.exists}
    return {table_id: mark for table_id, mark in found.items() if mark is not None}
