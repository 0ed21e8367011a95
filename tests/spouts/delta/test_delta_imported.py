"""Offsets of Delta's streaming source become positions of a DeltaSpout, the same ones however often they are asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spouts.delta.test_delta_spout import added, write_log
from trident.coordinators.errors import SourceError
from trident.spouts.checkpoint import SourceOffset
from trident.spouts.contracts import SpoutContext
from trident.spouts.delta.coordinator import Place, Range
from trident.spouts.delta.spout import DeltaSpout
from trident.states.core.place import Place as Folder

FIELD = {"name": "n", "type": "long", "nullable": True, "metadata": {}}
SCHEMA = json.dumps({"type": "struct", "fields": [FIELD]})
FIRST: list[dict] = [{"metaData": {"id": "i", "schemaString": SCHEMA}}]


def offset(version: int, index: int, starting: bool = False) -> dict[str, Any]:
    """As Delta's source writes it; index -100 is before the first file of a version, which may not be there yet."""
    return {
        "sourceVersion": 3,
        "reservoirId": "i",
        "reservoirVersion": version,
        "index": index,
        "isStartingVersion": starting,
    }


def behind(spout: DeltaSpout, value: dict[str, Any], folder: Path) -> Any:
    source = SourceOffset("0", Folder(folder), value)
    assert spout.reads_source(source)
    return spout.position_after(source, SpoutContext(None, "t", "rows", folder, "i"))


@pytest.mark.parametrize(
    "value, place, snapshot",
    [
        (offset(0, 1, starting=True), Place(0, 2), 0),
        (offset(1, -100), Place(1, 0), -1),
        (offset(1, 0), Place(1, 1), -1),
        (offset(2, -1), Place(2, 0), -1),
    ],
    ids=str,
)
def test_a_position_stays_the_same_behind_further_commits(
    value: dict[str, Any], place: Place, snapshot: int, tmp_path: Path
) -> None:
    """`trident migrate` compares it with that of a run before, which was killed: nothing else may count."""
    versions: list[list[dict]] = [FIRST, [added("a"), added("b")]]
    table = write_log(tmp_path / "t", *versions)
    first = behind(DeltaSpout(table), value, tmp_path)
    write_log(tmp_path / "t", *versions, [added("c")], [added("d")])
    assert behind(DeltaSpout(table), value, tmp_path) == first
    found = Range.read(first)
    assert (found.begin, found.end, found.snapshot, found.files) == (place, place, snapshot, 0)


def test_a_new_schema_behind_the_offset_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the version that the offset names, which was not there when the position was made."""
    monkeypatch.setattr("trident.spouts.delta.spout.DeltaFrames", lambda spark, table: None)
    table = write_log(tmp_path / "t", FIRST, [added("a")])
    spout = DeltaSpout(table, poll_interval_secs=0)
    coordinator = spout.get_coordinator(SpoutContext(None, "t", "rows", tmp_path, "i"))
    position = behind(spout, offset(2, -100), tmp_path)
    fields = [FIELD, {**FIELD, "name": "further"}]
    other = {"metaData": {"id": "i", "schemaString": json.dumps({"type": "struct", "fields": fields})}}
    write_log(tmp_path / "t", FIRST, [added("a")], [other, added("b")])
    with pytest.raises(SourceError, match="is another one since version 2.*a new further"):
        coordinator.initialize_transaction(1, position, None)


def test_a_stream_of_changes_does_not_go_on_behind_a_checkpoint(tmp_path: Path) -> None:
    """A checkpoint does not say whether its query read changes or the rows that are added."""
    feed = {"metaData": {**FIRST[0]["metaData"], "configuration": {"delta.enableChangeDataFeed": "true"}}}
    spout = DeltaSpout(write_log(tmp_path / "t", [feed], [added("a")]), changes=True)
    with pytest.raises(SourceError, match=r"the stream 'rows' reads the change data feed .*starting_version=N"):
        behind(spout, offset(1, -100), tmp_path)
    assert Range.read(behind(DeltaSpout(spout.table), offset(1, -100), tmp_path)).changes is False
