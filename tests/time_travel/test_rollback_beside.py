"""Tables of dead letters that a reset has kept are of another life of the topology: a rollback leaves them alone."""

from __future__ import annotations

import json
from pathlib import Path

from trident.states.core.place import Place
from trident.time_travel.rollback_look import own_tables_beside


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
    (found,) = own_tables_beside(Place(tmp_path), "top", "now-r2")
    assert found == (Place(tmp_path) / "top__now__dead_letters", "lines")
