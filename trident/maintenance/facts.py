"""The stored facts of a topology, as values that commands decide on: ZooKeeper's records, tables, manifests.

A command fills in what it needs: only a repair looks for changes by others, only a rollback at the tables' past.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trident.coordinators.positions import PositionMismatch
from trident.coordinators.records import Decision, GroupRecord, TableMark
from trident.states.core.control import ControlRecord
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.manifest import Manifest

# The roles of a group's tables; auxiliary: dead letters and messages. Only a plain table takes no part in publishing.
APPEND, LOG, PLAIN, AUXILIARY = "append", "log", "plain", "auxiliary"


@dataclass(frozen=True)
class ForeignChange:
    """A commit that is not ours and may have changed rows.

    Attributes:
        version: the table version.
        operation: as its writer named it.
        what: who did what and when, as text.
        only_properties: whether it set table properties and nothing else.
    """

    version: int
    operation: str
    what: str
    only_properties: bool = False


@dataclass(frozen=True)
class TableAt:
    """A table of the topology at one table version.

    Attributes:
        control: its control record; of a table that began later the one that it began with.
        merged: P, of a plain table; else 0.
        files: path → live file.
    """

    version: int
    control: ControlRecord
    merged: int = 0
    files: Mapping[str, LiveFile] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFacts:
    """One table, as it is now.

    Attributes:
        state: the state's name; a keyed state's two tables have the same.
        path: relative to the warehouse.
        version: −1: there is no Delta table.
        control: its control record; None without one.
        merged: P of a plain table.
        files: path → live file.
        mark: what ZooKeeper says of the table.

        before: the control record before the present transaction; None when the log does not say any more.
        merged_log: of a plain table: the version of the log that its last MERGE has read; −1 before the first,
            None when that is not known.
        floor, starts_at: of a plain table, from its log's control record.
        foreign: changes by others, oldest first: since the mark; without one, or when the table went back behind it,
            all that its log still has.
        unseen_before: the version before which log entries that would have to be looked at for them are gone; 0 when
            none is.
        healed: whether a repair has taken back changes by others since the mark, and ZooKeeper may not know of it.
        ours_after: whether a transaction, or a MERGE, of ours came after the first of them.
        unverified: whether log entries that are needed to know are gone.
        odd_rows: why a plain table's rows, changed by others, could not be merged into; "" when they could.
        not_written: why this framework cannot commit to it, though others changed it; "" where it can.
        stuck_keys: of a plain table: the keys without a value that fits, each with the reason, both as text.

        then: its newest version without a transaction that a rollback takes back; None where it is not known.
        unknown: why not, as text.
        gone: files that it would get again, and that are not there, or not whole.
        unwritable: why this framework does not write its log entries itself; "" where it does.
    """

    state: str
    role: str
    path: str
    table_id: str = ""
    version: int = -1
    control: ControlRecord | None = None
    merged: int = 0
    files: Mapping[str, LiveFile] = field(default_factory=dict)
    mark: TableMark | None = None

    before: ControlRecord | None = None
    merged_log: int | None = -1
    floor: int = 0
    starts_at: int = 1
    foreign: tuple[ForeignChange, ...] = ()
    unseen_before: int = 0
    healed: bool = False
    ours_after: bool = False
    unverified: bool = False
    odd_rows: str = ""
    not_written: str = ""
    stuck_keys: tuple[tuple[str, str], ...] = ()

    then: TableAt | None = None
    unknown: str = ""
    gone: tuple[str, ...] = ()
    unwritable: str = ""

    @property
    def exists(self) -> bool:
        return self.version >= 0

    @property
    def now(self) -> TableAt:
        """The version that it is at, of a table that has a control record."""
        assert self.control is not None
        return TableAt(self.version, self.control, self.merged, self.files)

    @property
    def has_transaction(self) -> bool:
        """Tells whether a transaction was published to it."""
        return self.role != PLAIN and self.control is not None and self.control.attempt_id >= 0

    @property
    def complete_log(self) -> bool:
        """Tells of a plain table whether it can be made again from its log alone."""
        return self.floor < self.starts_at

    def has(self, decision: Decision) -> bool:
        """Tells whether the decided attempt was published to it."""
        return self.has_transaction and self.control is not None and self.control.is_of(decision)

    def missing_from(self, found: ManifestFacts) -> bool:
        """Tells whether files of a manifest that this table is to get are gone."""
        return bool(found.missing.get(self.state))

    @property
    def mark_now(self) -> TableMark | None:
        """Returns what ZooKeeper is to say of the table, as it is; None while it has no transaction."""
        if self.role == PLAIN:
            # The digest says whether changes of others were accepted in it: that stays true.
            return TableMark(self.version, self.merged, 0, self.mark.digest if self.mark else "")
        return self.control.mark(self.version) if self.has_transaction and self.control else None


@dataclass(frozen=True)
class ManifestFacts:
    """A manifest that is there.

    Attributes:
        decision: that would name it.
        missing: state → staged files that are gone or not the same.
    """

    decision: Decision
    manifest: Manifest
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class LedgerDamage:
    """A FileSpout's ledger that is not the one with which the last batches were planned.

    Attributes:
        path: the ledger.
        text: what is wrong.
        data: the ledger as it was, where that is proved; else None.
    """

    path: str
    text: str
    data: bytes | None = None


@dataclass(frozen=True)
class OutsideFacts:
    """A state outside of the warehouse.

    Attributes:
        mark: ZooKeeper's, of its last transaction; None: it has none.
        outbox: (txid, attempt id) of the last transaction that its record in the warehouse has, if it has one;
            (0, 0): of none.
        begun: likewise, of the one that the record has begun and not ended.
        damage: why the record cannot be read; empty: it can, or there is none.
    """

    state: str
    mark: TableMark | None
    outbox: tuple[int, int] | None = None
    begun: tuple[int, int] = (0, 0)
    damage: str = ""


@dataclass(frozen=True)
class GroupFacts:
    """One batch group.

    Attributes:
        record, decision: as ZooKeeper has them.
        tables: every table that the group writes, or has written.
        tx_ids: the group's streams, as far as known.

        manifests: by attempt.
        leftovers: txid → the greatest attempt id that was ever seen of it: in manifests and staged folders.
        pins: tx_id → txid → metadata, as ZooKeeper has them.
        position_mismatches: positions in ZooKeeper that are not those of the record.
        ledgers: of FileSpouts, that are not as they were written.
        outside: the states outside of the warehouse of which ZooKeeper has a mark, and outboxes without one.

        manifest: of the last transaction that a rollback keeps; None where it is not kept.
        begun: txid → the greatest attempt id that a table's log has of it, of the transactions after that one.
        since: the streams of each later attempt whose manifest is kept, as ``manifest.spouts``.
    """

    name: str
    record: GroupRecord | None
    decision: Decision | None
    tables: tuple[TableFacts, ...]
    tx_ids: tuple[str, ...] = ()

    manifests: tuple[ManifestFacts, ...] = ()
    leftovers: Mapping[int, int] = field(default_factory=dict)
    pins: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    position_mismatches: tuple[PositionMismatch, ...] = ()
    ledgers: tuple[LedgerDamage, ...] = ()
    outside: tuple[OutsideFacts, ...] = ()

    manifest: Manifest | None = None
    begun: Mapping[int, int] = field(default_factory=dict)
    since: tuple[Mapping[str, Mapping[str, Any]], ...] = ()

    @property
    def recorded(self) -> GroupRecord:
        """The record of a group that ZooKeeper knows."""
        assert self.record is not None
        return self.record


@dataclass(frozen=True)
class NonDeltaState:
    """A state whose rows are not in Delta tables, and outlive the process.

    Attributes:
        group: its batch group, as far as manifests say; else "".
    """

    kind: str
    group: str = ""


@dataclass(frozen=True)
class TopologyFacts:
    """A topology.

    Attributes:
        incarnation, identity: as ZooKeeper has them; None when it knows no such topology.
        groups: the one that a rollback takes back comes first.
        state_identities: of the states, from their descriptors.
        epoch: the greatest that was seen in tables, status and ZooKeeper.
        non_delta_states: by name.
    """

    name: str
    incarnation: str | None
    identity: Mapping[str, Any] | None
    groups: tuple[GroupFacts, ...]
    state_identities: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 0
    non_delta_states: Mapping[str, NonDeltaState] = field(default_factory=dict)


def identity_of(spouts: Mapping[str, Mapping[str, Mapping[str, Any]]], states: Mapping[str, Any]) -> dict[str, Any]:
    """A topology's identity, as its manifests and descriptors say; "" for a spout that they do not name.

    Args:
        spouts: batch group → tx_id → what a manifest says of the stream.
        states: name → its identity.
    """
    streams = {tx_id: str(one.get("spout") or "") for of_group in spouts.values() for tx_id, one in of_group.items()}
    groups = {group: sorted(of_group) for group, of_group in spouts.items() if of_group}
    return {"streams": streams, "states": dict(states), "groups": groups}


def positions(
    spouts: Mapping[str, Mapping[str, Any]], txid: int
) -> tuple[dict[str, dict[int, Any]], dict[str, dict[str, Any]]]:
    """The pins, and the metadata of opaque partitions, as they were after a transaction.

    Args:
        spouts: of the manifest of its decided attempt.

    Returns:
        tx_id → txid → metadata; tx_id → partition → metadata.
    """
    pins = {tx_id: {txid: spout.get("metadata")} for tx_id, spout in spouts.items() if "opaque" not in spout}
    opaque = {tx_id: dict(spout["opaque"]) for tx_id, spout in spouts.items() if spout.get("opaque")}
    return pins, opaque
