"""Finds the incarnations of a topology that have published in a warehouse, without Spark.

Each table names the one that published to it in its control record, each
manifest its own in its text. Tables of dead letters and of messages outlive a
reset, so they are no sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from trident.coordinators.errors import TableError
from trident.states.core.control import ControlRecord
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.place import Place
from trident.states.delta import halts
from trident.states.delta.delta_log import has_log
from trident.states.delta.history import control_at
from trident.states.delta.manifest import ManifestStore, groups_with_manifests


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
