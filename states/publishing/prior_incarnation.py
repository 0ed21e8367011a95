"""Finds transactions of a topology in a warehouse that ZooKeeper does not know of (docs/semantics.md 10).

Asked before a topology is registered for the first time. After `trident
reset` there is nothing to be found: it forgets descriptors and manifests too.
"""

from __future__ import annotations

from itertools import islice

from trident.states.core.control import DOMAIN, decode_control
from trident.states.core.descriptor import list_descriptors
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.delta import halts
from trident.states.delta.kernel import KernelEngine, TableMissing
from trident.states.delta.manifest import ManifestStore, groups_with_manifests, outlives_process


def check_no_prior_incarnation(engine: KernelEngine, warehouse: Place, topology: str) -> None:
    """Refuses to begin at transaction 1 over tables that have transactions of this topology.

    Raises:
        Halted: there are some: ZooKeeper was wiped, or is another one.
    """
    found = traces(engine, warehouse, topology)
    if found:
        raise halts.zookeeper_forgot(topology, warehouse, found)


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
            raise halts.group_forgotten(of.topology, of.group, decision)


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
