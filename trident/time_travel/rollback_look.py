"""Looks at a topology for a rollback: ZooKeeper, the logs of its tables, manifests. Reads only; no Spark, no JVM."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trident.coordinators.errors import TableError, TopologyError
from trident.coordinators.group_store import GroupStore
from trident.coordinators.incarnation_ids import same_start, up_to
from trident.coordinators.records import Marker
from trident.coordinators.registration import Registration
from trident.coordinators.stored_json import Unreadable
from trident.coordinators.zookeeper import ZooKeeper
from trident.states.core import storage
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.kinds import stored_kind
from trident.states.core.place import Place
from trident.states.delta import history
from trident.states.delta.delta_log import DeltaLog, LogSnapshot
from trident.states.delta.kernel_files import LiveFile, is_plain
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.states.keyed.tables import merged_upto
from trident.states.publishing.dead_letters import tables_beside
from trident.time_travel.rollback_facts import (
    APPEND,
    BESIDE,
    LOG,
    PLAIN,
    GroupFacts,
    TableAt,
    TableFacts,
    TopologyFacts,
    last_that_stays,
)
from trident.time_travel.rollback_plan import move_of


def look(zk: ZooKeeper, warehouse: Place, name: str, group: str | None, txid: int) -> TopologyFacts:
    """Finds out all that a rollback of a batch group to a transaction has to know.

    Args:
        group: None: the only one.

    Raises:
        TopologyError: ZooKeeper knows no such topology or group, or it has several.
        CorruptZnode, TableError: something cannot be read.
    """
    registered = Registration(zk, name).read()
    if registered is None:
        raise TopologyError(
            f"ZooKeeper knows no topology {name!r}",
            action=f"check the name, warehouse and zookeeper; `trident repair {name}` rebuilds what it has forgotten",
        )
    incarnation, identity = registered
    groups = sorted(identity["groups"])
    if group is None and len(groups) > 1:
        raise TopologyError(
            f"{name} has several batch groups, each with transactions of its own",
            found=", ".join(groups),
            action="--group NAME says whose transactions are taken back; the others stay where they are",
        )
    chosen = groups[0] if group is None else group
    if chosen not in groups:
        raise TopologyError(f"{name} has no batch group {chosen!r}", expected=f"one of {', '.join(groups)}")
    descriptors = list_descriptors(warehouse, name)
    looks = {
        each: _Look(zk, warehouse, name, each, incarnation, descriptors, identity["groups"][each]) for each in groups
    }
    facts = {each: one.facts(txid if each == chosen else None) for each, one in looks.items()}
    outside, outside_of = _outside(
        warehouse, name, incarnation, groups, identity["states"], {one.name for one in descriptors}
    )
    others = tuple(facts[each] for each in groups if each != chosen)
    return TopologyFacts(name, incarnation, facts[chosen], others, outside, outside_of)


def _outside(
    warehouse: Place, name: str, incarnation: str, groups: Iterable[str], states: Iterable[str], described: set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The states whose rows are elsewhere, with their kinds and their batch groups as far as manifests say.

    Those of a process go with it.
    """
    wanted = [state for state in sorted(states) if state not in described]
    kinds: dict[str, str] = {}
    of: dict[str, str] = {}
    for group in groups if wanted else ():
        # Every transaction names all states of its group. Behind a rollback the newest has not the greatest number.
        store = ManifestStore(warehouse, name, group)
        manifest = store.newest_of(up_to(incarnation)) or next((one for _, one in store.newest_first()), None)
        for table in manifest.tables if manifest is not None else ():
            kinds[table.state] = table.kind
            if table.state in wanted:
                of[table.state] = group
    outside = {
        state: kinds.get(state, "of a kind that no manifest names")
        for state in wanted
        if state not in kinds or not stored_kind(kinds[state], state).in_process
    }
    return outside, of


@dataclass
class _Look:
    """At one batch group."""

    zk: ZooKeeper
    warehouse: Place
    topology: str
    group: str
    incarnation: str
    descriptors: Sequence[StateDescriptor]
    tx_ids: Sequence[str]

    def facts(self, txid: int | None) -> GroupFacts:
        """Args:
        txid: of the rollback; None of a group that stays.
        """
        store = GroupStore(self.zk, self.topology, self.group, self.tx_ids)
        record, decision, _ = store.load()
        if record is None:
            raise TopologyError(
                f"batch group {self.group!r} of {self.topology} has no transaction yet",
                action="start the topology once, and stop it",
            )
        tables = tuple(self._tables(record.current_txid - 1 if txid is None else txid, txid is None))
        pending = f"transaction {decision.txid}" if decision else ""
        last = last_that_stays(tables)
        manifest = self._manifest(last, record.incarnation) if last and txid is not None else None
        begun = self._begun(tables, last.txid if last else 0) if txid is not None else {}
        since = tuple(self._since(last, record.incarnation)) if manifest and last else ()
        return GroupFacts(self.group, record, tables, pending, manifest, begun, since)

    def _tables(self, txid: int, stays: bool) -> Iterator[TableFacts]:
        for state in self.descriptors:
            if state.group != self.group:
                continue
            has_log = state.state_kind.has_log
            yield self._table(state.name, LOG if has_log else APPEND, state.published_path, None, txid, stays)
            if has_log:
                yield self._table(state.name, PLAIN, state.plain_path, state, txid, stays)
        for path, group in own_tables_beside(self.warehouse, self.topology, self.incarnation):
            if group == self.group:
                yield self._table(path.name, BESIDE, path.name, None, txid, stays)

    def _table(
        self, name: str, role: str, relative: str, state: StateDescriptor | None, txid: int, stays: bool
    ) -> TableFacts:
        path = str(self.warehouse / relative)
        newest = DeltaLog(path).at()
        control = control_of(newest)
        now = table_at(newest, control, state)
        unwritable = why_unwritable(newest)
        if stays:
            return TableFacts(name, role, relative, now, now, unwritable=unwritable)
        try:
            then = self._then(path, control, state, txid)
        except TableError as error:
            return TableFacts(name, role, relative, now, unknown=error.message, unwritable=unwritable)
        if then is None:
            oldest = min(DeltaLog(path).versions(), default=0)
            unknown = f"what is left of its log begins at version {oldest}, which has a later transaction"
            return TableFacts(name, role, relative, now, unknown=unknown, unwritable=unwritable)
        snapshot, of_then = then
        table = TableFacts(
            name,
            role,
            relative,
            now,
            table_at(snapshot, of_then, state),
            unwritable=unwritable or why_unwritable(snapshot),
        )
        return replace(table, gone=tuple(missing_files(self.warehouse / relative, move_of(table).comes)))

    def _then(
        self, path: str, now: ControlRecord, state: StateDescriptor | None, txid: int
    ) -> tuple[LogSnapshot, ControlRecord] | None:
        """The newest version without a later transaction, with its control record; None where the log does not say."""
        if state is not None:
            version = history.find_version_by_txn(path, state.merge_app_at_first, txid)
        else:
            version = history.find_version_by_control(path, DOMAIN, txid)
        snapshot = None if version is None else DeltaLog(path).at(version)
        control = None if snapshot is None or snapshot.control(DOMAIN) is None else control_of(snapshot)
        if snapshot is not None and control is not None and same_start(control.incarnation, now.incarnation):
            if state is None or merged_upto(state, snapshot, control.starts_at) <= max(txid, control.starts_at - 1):
                return snapshot, control
        return self._beginning(path, now, txid)

    def _beginning(self, path: str, now: ControlRecord, txid: int) -> tuple[LogSnapshot, ControlRecord] | None:
        """The version with which a table that began behind a transaction began; None of a table that had begun."""
        log = DeltaLog(path)
        for version in log.versions():
            text = log.commit(version).control.get(DOMAIN)
            if isinstance(text, Mapping) and same_start(str(text.get("incarnation")), now.incarnation):
                began = text.get("attempt_id") == -1 and int(text.get("starts_at", 0)) > txid
                snapshot = log.at(version) if began else None
                return None if snapshot is None else (snapshot, control_of(snapshot))
        return None

    def _manifest(self, last: Marker, incarnation: str) -> Manifest | None:
        return decided_manifest(self.warehouse, self.topology, self.group, incarnation, last)

    def _since(self, last: Marker, incarnation: str) -> Iterator[Mapping[str, Mapping[str, Any]]]:
        """The streams of later attempts, as their manifests have them: a stream may have come behind ``last``."""
        for decision, manifest in ManifestStore(self.warehouse, self.topology, self.group).newest_first():
            if decision.txid <= last.txid:
                return  # so are all that follow; each that is kept is a file to read
            if same_start(manifest.incarnation, incarnation):
                yield manifest.spouts

    def _begun(self, tables: Sequence[TableFacts], txid: int) -> dict[int, int]:
        """Attempts at later transactions, of all that the tables' logs tell."""
        found: dict[int, int] = {}
        for table in tables:
            if table.role == PLAIN or table.then is None:
                continue
            log = DeltaLog(self.warehouse / table.path)
            for version in log.versions():
                control = log.commit(version).control.get(DOMAIN) if version > table.then.version else None
                if isinstance(control, Mapping):
                    each, attempt = int(control["txid"]), int(control["attempt_id"])
                    if each > txid and attempt >= 0:
                        found[each] = max(found.get(each, 0), attempt)
        return found


def own_tables_beside(warehouse: Place, topology: str, incarnation: str) -> Iterator[tuple[Place, str]]:
    """The tables of dead letters and settled messages, each with its batch group.

    Those of a life before a reset are kept by it, and are no part of this one: their transactions are others.
    """
    for path, group in tables_beside(warehouse, topology):
        if same_start(control_of(DeltaLog(path).at()).incarnation, incarnation):
            yield path, group


def control_of(snapshot: LogSnapshot) -> ControlRecord:
    """A table version's control record."""
    return decode_control(snapshot.path, snapshot.control(DOMAIN))


def table_at(snapshot: LogSnapshot, control: ControlRecord, state: StateDescriptor | None) -> TableAt:
    """A table version as a rollback sees it.

    Args:
        state: of a plain table.
    """
    merged = 0 if state is None else merged_upto(state, snapshot, control.starts_at)
    return TableAt(snapshot.version, control, merged, snapshot.files)


def why_unwritable(snapshot: LogSnapshot) -> str:
    """Why this framework does not write log entries of a table itself; "" where it does."""
    if storage.reached_path(snapshot.path) is None:
        return "it is on a file system that Spark alone reads"
    if snapshot.has_vectors:
        return "it has files of which only some rows count (deletion vectors)"
    if not is_plain(snapshot.protocol, snapshot.schema_json):
        return "it has features of Delta whose log entries are left to Delta"
    return ""


def missing_files(root: Place, files: Iterable[LiveFile]) -> Iterator[str]:
    """Those files of a table that are not there, or not whole."""
    for file in files:
        found = storage.stat_file(root / file.path)
        if found is None or found.size != file.size:
            yield file.path


def decided_manifest(warehouse: Place, topology: str, group: str, incarnation: str, last: Marker) -> Manifest | None:
    """The manifest of the attempt that was decided: the one that has the digest; None where it is not kept."""
    folder = warehouse / "_trident" / topology / group / "manifests"
    names = f"{last.txid}-{last.attempt_id}"
    for place in (*(folder / each for each in up_to(incarnation)), folder):
        for name in storage.list_names(place):
            if name != f"{names}.json" and not (name.startswith(f"{names}-") and name.endswith(".json")):
                continue
            try:
                data = storage.read(place / name)
                if hashlib.sha256(data).hexdigest() == last.digest:
                    return Manifest.decode(data)
            except (FileNotFoundError, TableError, Unreadable):
                continue
    return None
