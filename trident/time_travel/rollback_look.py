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
from trident.coordinators.stored_json import Unreadable
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.facts import PLAIN, Elsewhere, GroupFacts, TableAt, TableFacts, TopologyFacts
from trident.maintenance.inventory import StoredTable, choose_group, registered, table_now, tables_of
from trident.states.core import storage
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import list_descriptors
from trident.states.core.kinds import stored_kind
from trident.states.core.place import Place
from trident.states.delta.delta_log import DeltaLog, LogSnapshot
from trident.states.delta.kernel_files import LiveFile, is_plain
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.states.history.versions import plain_as_of, published_as_of
from trident.states.keyed.compaction import SnapshotUnavailable
from trident.time_travel.rollback_plan import last_that_stays, move_of


def look(zk: ZooKeeper, warehouse: Place, name: str, group: str | None, txid: int) -> TopologyFacts:
    """Finds out all that a rollback of a batch group to a transaction has to know.

    Args:
        group: None: the only one.

    Raises:
        TopologyError: ZooKeeper knows no such topology or group, or it has several.
        CorruptZnode, TableError: something cannot be read.
    """
    incarnation, identity = registered(zk, name)
    chosen = choose_group(name, list(identity["groups"]), group)
    groups = [chosen, *sorted(identity["groups"].keys() - {chosen})]
    states = list_descriptors(warehouse, name)
    tables = tables_of(states, warehouse, name, incarnation)
    facts = []
    for each in groups:
        own = [table for table in tables if table.group == each]
        looking = _Look(zk, warehouse, name, each, own, identity["groups"][each])
        facts.append(looking.facts(txid if each == chosen else None))
    wanted = sorted(identity["states"].keys() - {state.name for state in states})
    elsewhere = _elsewhere(warehouse, name, incarnation, groups, wanted)
    return TopologyFacts(name, incarnation, identity, tuple(facts), elsewhere=elsewhere)


def _elsewhere(
    warehouse: Place, name: str, incarnation: str, groups: Iterable[str], wanted: Sequence[str]
) -> dict[str, Elsewhere]:
    """The states without a descriptor; those of a process go with it."""
    found = {state: Elsewhere("of a kind that no manifest names") for state in wanted}
    for group in groups if wanted else ():
        # Every transaction names all states of its group. After a rollback the newest has not the greatest number.
        store = ManifestStore(warehouse, name, group)
        manifest = store.newest_of(up_to(incarnation)) or next((one for _, one in store.newest_first()), None)
        for table in manifest.tables if manifest is not None else ():
            if table.state in found and stored_kind(table.kind, table.state).in_process:
                del found[table.state]
            elif table.state in found:
                found[table.state] = Elsewhere(table.kind, group)
    return found


@dataclass
class _Look:
    """At one batch group."""

    zk: ZooKeeper
    warehouse: Place
    topology: str
    group: str
    tables: Sequence[StoredTable]
    tx_ids: Sequence[str]

    def facts(self, txid: int | None) -> GroupFacts:
        """Args:
        txid: of the rollback; None of a group that stays.
        """
        record, decision, _ = GroupStore(self.zk, self.topology, self.group, self.tx_ids).load()
        if record is None:
            raise TopologyError(
                f"batch group {self.group!r} of {self.topology} has no transaction yet",
                action="start the topology once, and stop it",
            )
        tables = tuple(self._table(table, txid) for table in self.tables)
        facts = GroupFacts(self.group, record, decision, tables)
        if txid is None:
            return facts
        last = last_that_stays(tables)
        facts = replace(facts, begun=self._begun(tables, last.txid if last else 0))
        if last is None:
            return facts
        manifest = decided_manifest(self.warehouse, self.topology, self.group, record.incarnation, last)
        since = tuple(self._since(last, record.incarnation)) if manifest else ()
        return replace(facts, manifest=manifest, since=since)

    def _table(self, table: StoredTable, txid: int | None) -> TableFacts:
        snapshot = DeltaLog(self.warehouse / table.path).at()
        control_of(snapshot)
        now = replace(table_now(table, snapshot, None), unwritable=why_unwritable(snapshot))
        if txid is None:
            return replace(now, then=now.now)
        try:
            older = self._then(table, now.now.control, txid)
        except TableError as error:
            return replace(now, unknown=error.message)
        now = replace(now, then=table_at(table, older), unwritable=now.unwritable or why_unwritable(older))
        return replace(now, gone=tuple(missing_files(self.warehouse / table.path, move_of(now).comes)))

    def _then(self, table: StoredTable, now: ControlRecord, txid: int) -> LogSnapshot:
        """The newest version without a later transaction; of a table that began later the one with which it began.

        Raises:
            TableError: what is left of the log does not say.
        """
        path = self.warehouse / table.path
        try:
            plain = plain_as_of(self.warehouse, table.state, txid) if table.role == PLAIN and table.state else None
            found = plain or published_as_of(path, self.topology, self.group, now.incarnation, txid)
            version = found.version
        except SnapshotUnavailable:
            began = self._beginning(DeltaLog(path), now, txid)
            if began is None:
                raise
            version = began
        return DeltaLog(path).at(version)

    def _beginning(self, log: DeltaLog, now: ControlRecord, txid: int) -> int | None:
        """The version with which a table that began after a transaction began; None of a table that had begun."""
        for version in log.versions():
            found = log.commit(version).control.get(DOMAIN)
            if isinstance(found, Mapping) and same_start(str(found.get("incarnation")), now.incarnation):
                return version if found.get("attempt_id") == -1 and int(found.get("starts_at", 0)) > txid else None
        return None

    def _since(self, last: Marker, incarnation: str) -> Iterator[Mapping[str, Mapping[str, Any]]]:
        """The streams of later attempts, as their manifests have them: a stream may have come after ``last``."""
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


def control_of(snapshot: LogSnapshot) -> ControlRecord:
    """A table version's control record.

    Raises:
        ForeignTable: it has none.
    """
    return decode_control(snapshot.path, snapshot.control(DOMAIN))


def table_at(table: StoredTable, snapshot: LogSnapshot) -> TableAt:
    """A table version as a rollback sees it."""
    control_of(snapshot)
    return table_now(table, snapshot, None).now


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
