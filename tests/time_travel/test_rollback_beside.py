"""A rollback's look: tables of dead letters that a reset has kept are left alone, and no manifest more is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.records import Marker
from trident.maintenance.facts import AUXILIARY
from trident.maintenance.inventory import StoredTable, tables_of
from trident.states.core.place import Place
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.time_travel.rollback import _GroupInspection


def dead_letters(folder: Path, incarnation: str) -> None:
    """A table of a group's dead letters whose newest commit is of an incarnation."""
    log = folder / f"top__{incarnation.partition('-')[0]}__dead_letters" / "_delta_log"
    log.mkdir(parents=True)
    control = {"schema": 1, "topology": "top", "group": "lines", "incarnation": incarnation, "txid": 812}
    control |= {"attempt_id": 0, "digest": "d", "epoch": 3, "starts_at": 1, "floor": 0}
    schema = {"type": "struct", "fields": [{"name": "txid", "type": "long", "nullable": True, "metadata": {}}]}
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "CREATE"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata"]}},
        {
            "metaData": {
                "id": incarnation,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": 1,
            }
        },
        {"domainMetadata": {"domain": "trident", "removed": False, "configuration": json.dumps(control)}},
    ]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")


def test_only_the_tables_of_this_life_are_taken_back(tmp_path: Path) -> None:
    dead_letters(tmp_path, "before")
    dead_letters(tmp_path, "now-r1")
    assert tables_of([], Place(tmp_path), "top", "now-r2") == [
        StoredTable("lines", AUXILIARY, "top__now__dead_letters")
    ]


def test_of_a_long_past_only_manifests_behind_the_transaction_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store takes a request for each."""
    place = Place(tmp_path)
    for txid in range(1, 41):
        made = Manifest("top", "lines", "9f3c", TransactionAttempt(txid, 0), None, (), {"s": {"metadata": txid}})
        ManifestStore(place, "top", "lines", "9f3c").write(made)
    read: list[str] = []
    whole = ManifestStore.read_found
    monkeypatch.setattr(ManifestStore, "read_found", lambda self, path: read.append(path.name) or whole(self, path))
    no_zookeeper: Any = None
    look = _GroupInspection(no_zookeeper, place, "top", "lines", (), ())
    assert [found["s"]["metadata"] for found in look._since(Marker(37, 0, "d"), "9f3c-r1")] == [40, 39, 38]
    assert len(read) == 4
