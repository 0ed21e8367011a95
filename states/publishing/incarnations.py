"""Finds the incarnations of a topology that have published in a warehouse, also those unknown to ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from trident.coordinators.errors import TableError
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.delta import halts
from trident.states.delta.delta_log import has_log
from trident.states.delta.history import control_at
from trident.states.delta.kernel import KernelEngine, TableMissing
from trident.states.delta.manifest import ManifestStore, groups_with_manifests, outlives_process

# Finds the incarnations of a topology that have published in a warehouse, without Spark.
#
# Each table names the one that published to it in its control record, each
# manifest its own in its text. Tables of dead letters and of messages outlive a
# reset, so they are no sign.


@dataclass(frozen=True)
class IncarnationSign:
    """One table's, or one manifest's, word on an incarnation."""

    incarnation: str
    text: str


def incarnations_in(warehouse: Place, topology: str) -> list[IncarnationSign]:
    """Returns the signs that a topology has published transactions here; manifests are read where no table has one.

    Raises:
        TableError: a descriptor cannot be read.
    """
    found = [sign for one in list_descriptors(warehouse, topology) for sign in _of_table(warehouse, topology, one)]
    if found:
        return found
    for group in groups_with_manifests(warehouse, topology):
        for decision, manifest in islice(ManifestStore(warehouse, topology, group).newest_first(), 1):
            said = halts.attempt_text(decision.txid, decision.attempt_id)
            found.append(IncarnationSign(manifest.incarnation, f"a manifest of batch group {group} of {said}"))
    return found


def _of_table(warehouse: Place, topology: str, descriptor: StateDescriptor) -> list[IncarnationSign]:
    path = warehouse / descriptor.published_path
    if not has_log(path):
        return []
    try:
        control = control_at(path)
    except TableError as error:
        return [
            IncarnationSign(descriptor.incarnation, f"table {path.name}, of which a log entry cannot be read: {error}")
        ]
    if control is None:
        return [IncarnationSign(descriptor.incarnation, f"table {path.name}, of which it is not known what it has")]
    return [_sign(path.name, control)] if control.topology == topology and control.attempt_id >= 0 else []


def _sign(table: str, control: ControlRecord) -> IncarnationSign:
    said = halts.attempt_text(control.txid, control.attempt_id)
    return IncarnationSign(control.incarnation, f"table {table} has {said} (incarnation {control.incarnation})")


# Finds transactions of a topology in a warehouse that ZooKeeper does not know of (docs/semantics.md 10).
#
# Asked before a topology is registered for the first time. After `trident
# reset` there is nothing to be found: it forgets descriptors and manifests too.


def check_no_prior_incarnation(engine: KernelEngine, warehouse: Place, topology: str) -> None:
    """Refuses to begin at transaction 1 over tables that have transactions of this topology.

    Raises:
        Halted: there are some: ZooKeeper was wiped, or is another one.
    """
    found = traces(engine, warehouse, topology)
    if found:
        raise halts.topology_unknown_to_zookeeper(topology, warehouse, found)


def check_group_is_new(of: GroupContext) -> None:
    """Refuses to begin a batch group at transaction 1 that has manifests of this very incarnation.

    A group without tables leaves no other trace: its maps would get everything
    again. A group's record is written before its first manifest, so that a
    first start, killed anywhere, finds none.

    Raises:
        Halted: there are some: ZooKeeper has forgotten the group.
    """
    for decision, manifest in ManifestStore(of.warehouse, of.topology, of.group).newest_first():
        if manifest.incarnation == of.incarnation and outlives_process(manifest):
            raise halts.group_unknown_to_zookeeper(of.topology, of.group, decision)


def traces(engine: KernelEngine, warehouse: Place, topology: str) -> list[str]:
    """Returns what an earlier incarnation of a topology has published here, a text each."""
    found = []
    for descriptor in list_descriptors(warehouse, topology):
        try:
            snapshot = engine.load(str(warehouse / descriptor.published_path))
        except TableMissing:
            continue
        text = snapshot.control(DOMAIN)
        if text is None:
            continue
        control = decode_control(snapshot.path, text)
        if control.topology == topology and control.attempt_id >= 0:
            said = halts.attempt_text(control.txid, control.attempt_id)
            found.append(f"table {descriptor.published_path} has {said} (incarnation {control.incarnation})")
    for group in groups_with_manifests(warehouse, topology):
        for decision, manifest in islice(ManifestStore(warehouse, topology, group).newest_first(), 1):
            if outlives_process(manifest) and not found:
                said = halts.attempt_text(decision.txid, decision.attempt_id)
                found.append(f"a manifest of batch group {group} has {said} (incarnation {manifest.incarnation})")
    return found
