"""Checks positions by the last manifest where an older version wrote a group's record without digests.

From its first write on the record has them (trident/coordinators/positions.py).
Until then the manifest of the last published transaction is the only witness
of where its streams were: of the very pins when that transaction was the last
one, and, when empty ones came behind it, of which streams must have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trident.coordinators.ports import StoredGroup
from trident.coordinators.positions import Misplaced, contradiction, digest_of
from trident.coordinators.records import Decision, GroupRecord
from trident.states.core.place import Place
from trident.states.delta.manifest import Manifest, ManifestStore


def misplaced_by_manifest(
    record: GroupRecord | None,
    pins: Mapping[str, Mapping[int, Any]],
    partitions: Mapping[str, Mapping[str, Any]],
    manifests: list[tuple[Decision, Manifest]],
) -> list[Misplaced]:
    """Returns what the last manifest contradicts; nothing for a record with digests.

    Args:
        pins: tx_id → txid → metadata, as stored.
        partitions: tx_id → partition → metadata, as stored.
    """
    if record is None or record.pins is not None or record.last is None or record.last_published is None:
        return []
    last = record.last_published
    found = [
        manifest
        for decision, manifest in manifests
        if (decision.txid, decision.attempt_id, decision.sha256) == (last.txid, last.attempt_id, last.digest)
    ]
    return list(_contradicted(record, pins, partitions, found[0])) if found else []


def check_by_manifest(store: StoredGroup, warehouse: Place) -> None:
    """For a leader that has loaded its group, before it goes on.

    Raises:
        Halted: the last manifest contradicts a stream's position.
    """
    if store.record.pins is None:
        manifests = ManifestStore(warehouse, store.topology, store.group).found()
        misplaced = misplaced_by_manifest(store.record, store.pins, store.partition_values, manifests)
        if misplaced:
            raise contradiction(store.topology, store.group, misplaced)


def _contradicted(
    record: GroupRecord,
    pins: Mapping[str, Mapping[int, Any]],
    partitions: Mapping[str, Mapping[str, Any]],
    manifest: Manifest,
) -> Iterator[Misplaced]:
    assert record.last is not None
    txid, exact = record.last.txid, record.last == record.last_published
    for tx_id, spout in manifest.spouts.items():
        if tx_id not in pins:
            continue  # not a stream of this start
        if spout.get("opaque"):
            stored = dict(partitions.get(tx_id, {}))
            if stored != spout["opaque"] if exact else not spout["opaque"].keys() <= stored.keys():
                wanted = digest_of(spout["opaque"]) if exact else None
                yield Misplaced(tx_id, 0, digest_of(stored) if stored else "", wanted)
        elif _is_pinned(spout, pins[tx_id]):
            there = txid in pins[tx_id]
            if not there or (exact and pins[tx_id][txid] != spout.get("metadata")):
                found = digest_of(pins[tx_id][txid]) if there else ""
                yield Misplaced(tx_id, txid, found, digest_of(spout.get("metadata")) if exact else None)


def _is_pinned(spout: Mapping[str, Any], pins: Mapping[int, Any]) -> bool:
    # Of the other kinds some are pinned and some are not, and the manifest does not tell.
    return spout.get("kind") == "transactional" or bool(pins)
