"""Everything persisted as JSON goes through one strict decoder, and its bytes are the ones that they always were."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from trident.coordinators.errors import ForeignTable, SourceError, TableError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.stored_json import MAY_BE_MISSING, Unreadable, as_record, plain
from trident.spouts.delta.coordinator import Place, Range
from trident.spouts.structured_stream import Pin
from trident.states.core.control import ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, load_descriptor
from trident.states.core.tables import StagedFile
from trident.states.delta.manifest import Manifest, ManifestTable


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Leaf:
    text: str
    number: float | None = None


@dataclass(frozen=True)
class Tree:
    name: str
    at: Point
    leaves: tuple[Leaf, ...] = ()
    by_number: Mapping[int, Leaf] = field(default_factory=dict)
    anything: Mapping[str, Any] = field(default_factory=dict)
    later: int = field(default=7, metadata={MAY_BE_MISSING: True})

    def problem(self) -> str | None:
        return "`name` must not be x" if self.name == "x" else None


TREE = Tree("t", Point(1, 2), (Leaf("a"), Leaf("b", 0.5)), {3: Leaf("c")}, {"k": [1, {"z": None}]}, 8)
STORED = json.loads(json.dumps({"schema": 2, **plain(TREE)}))


def test_a_record_is_read_back_with_what_it_holds():
    assert as_record(STORED, Tree, 2) == TREE
    assert plain(dataclasses.replace(TREE, anything=MappingProxyType({"k": 1})))["anything"] == {"k": 1}
    older = {key: value for key, value in STORED.items() if key != "later"}
    found = as_record(older, Tree, 2)
    assert found.later == 7 and plain(found)["later"] == 7
    assert as_record({"text": "a", "number": 1}, Leaf) == Leaf("a", 1.0)


WRONG = {
    "no object": [1],
    "no schema": {key: value for key, value in STORED.items() if key != "schema"},
    "another schema": {**STORED, "schema": 3},
    "a schema that is true": {**STORED, "schema": True},
    "a missing key": {key: value for key, value in STORED.items() if key != "leaves"},
    "a missing key deep below": {**STORED, "leaves": [{"text": "a"}]},
    "a missing key in a mapping": {**STORED, "by_number": {"3": {"text": "a"}}},
    "an unknown key": {**STORED, "more": 1},
    "an unknown key deep below": {**STORED, "leaves": [{"text": "a", "number": None, "more": 1}]},
    "another type": {**STORED, "name": 5},
    "a truth value for a number": {**STORED, "later": True},
    "a text for a number": {**STORED, "at": ["1", 2]},
    "no tuple": {**STORED, "leaves": 7},
    "no mapping": {**STORED, "anything": []},
    "too short a tuple": {**STORED, "at": [1]},
    "too long a tuple": {**STORED, "at": [1, 2, 3]},
    "a fraction for a whole number": {**STORED, "at": [1, 2.5]},
    "a contradiction": {**STORED, "name": "x"},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_whatever_differs_is_refused(wrong: str):
    with pytest.raises(Unreadable):
        as_record(WRONG[wrong], Tree, 2)


# --- bytes as they always were ------------------------------------------------------------------------

FILE = StagedFile("data/a=1/ü.parquet", 10, 20, 3, '{"numRecords":3}', MappingProxyType({"a": "1", "b": None}))
MANIFEST = Manifest(
    "top",
    "g",
    "inc",
    TransactionAttempt(5, 1),
    TransactionAttempt(4, 0),
    (ManifestTable("counts", "keyed", "counts__log", "id", "hash", (FILE,), {"x": [1]}),),
    {"lines": {"spout": "S", "kind": "opaque", "metadata": {"b": 1, "a": None}, "commit_data": None}},
)
MANIFEST_BYTES = (
    b'{"attempt":[5,1],"group":"g","incarnation":"inc","parent":[4,0],"schema":1,"spouts":{"lines":{"commit_data":null,'
    b'"kind":"opaque","metadata":{"a":null,"b":1},"spout":"S"}},"tables":[{"details":{"x":[1]},"files":[{"mtime_ms":20,'
    b'"num_records":3,"partition_values":{"a":"1","b":null},"path":"data/a=1/\\u00fc.parquet","size":10,"stats":'
    b'"{\\"numRecords\\":3}"}],"kind":"keyed","path":"counts__log","rows":3,"schema_hash":"hash","state":"counts",'
    b'"table_id":"id"}],"topology":"top"}'
)


def test_a_manifest_has_the_bytes_that_its_digest_is_over():
    assert MANIFEST.encode() == MANIFEST_BYTES
    assert Manifest.decode(MANIFEST_BYTES) == MANIFEST
    first = dataclasses.replace(MANIFEST, parent=None, tables=())
    assert Manifest.decode(first.encode()) == first and b'"parent":null' in first.encode()


@pytest.mark.parametrize(
    "change",
    [
        {"spouts": {"lines": 1}},
        *(
            {"tables": [{**json.loads(MANIFEST_BYTES)["tables"][0], **table}]}
            for table in (
                {"path": "../x"},
                {"files": [{**FILE.to_json(), "path": "/etc/x"}]},
                {"files": [{**FILE.to_json(), "size": True}]},
            )
        ),
    ],
)
def test_a_manifest_that_is_not_as_written_is_refused(change: dict[str, Any]):
    with pytest.raises(TableError, match="the manifest cannot be read"):
        Manifest.decode(json.dumps({**json.loads(MANIFEST_BYTES), **change}).encode())


def test_a_control_record_is_refused_with_the_reason():
    record = ControlRecord("top", "g", "inc", 5, 1, "d", 2, 1)
    text = record.encode()
    assert text == (
        '{"attempt_id": 1, "digest": "d", "epoch": 2, "floor": 0, "group": "g", "incarnation": "inc", "schema": 1, '
        '"starts_at": 1, "topology": "top", "txid": 5}'
    )
    assert decode_control("/w/t", text) == record and decode_control("/w/t", text).encode() == text
    for change, reason in (
        ({"floor": None}, "floor"),
        ({"txid": "5"}, "txid"),
        ({"more": 1}, "more"),
        ({"schema": 2}, "schema"),
    ):
        with pytest.raises(ForeignTable, match=f"/w/t cannot be read.*{reason}"):
            decode_control("/w/t", json.dumps({**json.loads(text), **change}))
    with pytest.raises(ForeignTable, match="`.*floor` is missing"):
        decode_control("/w/t", json.dumps({key: value for key, value in json.loads(text).items() if key != "floor"}))


def test_a_descriptor_of_a_version_that_knew_no_merging_is_read(tmp_path: Path):
    schema = '{"type":"struct","fields":[]}'
    state = StateDescriptor("counts", "keyed", "top", "g", "inc", ("k",), ("n",), schema, "count")
    state.save(tmp_path)
    (file,) = (tmp_path / "_trident" / "states").glob("*.json")
    stored = json.loads(file.read_text())
    assert stored == {"schema": 1, **json.loads(json.dumps(dataclasses.asdict(state)))}
    del stored["merging"]
    file.write_text(json.dumps(stored))
    assert load_descriptor(tmp_path, "counts") == state
    for change in ({"starts_at": "1"}, {"keys": "k"}, {"aggregator": 1}, {"more": 1}, {"kind": "other"}):
        file.write_text(json.dumps({**stored, **change}))
        with pytest.raises(TableError, match=f"{file.name} cannot be read"):
            load_descriptor(tmp_path, "counts")


def test_metadata_of_batches_is_read_back_and_what_another_spout_wrote_is_refused():
    pin = Pin(3, True, "q", "d")
    assert Pin.read(pin.to_json()) == pin and pin.to_json() == {"batch": 3, "new": True, "query": "q", "offsets": "d"}
    planned = Range("id", 2, Place(2, 0), Place(3, 1), 2, False, 4, 5, 6)
    stored = json.loads(json.dumps(planned.to_json()))
    assert stored == {
        "table_id": "id",
        "snapshot": 2,
        "begin": [2, 0],
        "end": [3, 1],
        "read_at": 2,
        "ignore_changes": False,
        "files": 4,
        "bytes": 5,
        "rows": 6,
    }
    assert Range.read(stored) == planned
    del stored["rows"]
    unknown = Range.read(stored)
    assert unknown.rows == -1 and unknown.to_json() == stored
    for wrong in ({**stored, "begin": [1]}, {**stored, "files": "4"}, {**stored, "more": 1}, None, []):
        with pytest.raises(SourceError, match="was not written by a DeltaSpout"):
            Range.read(wrong)
    for wrong in ({**pin.to_json(), "new": 1}, {**pin.to_json(), "batch": -1}, {"batch": 3}):
        with pytest.raises(SourceError, match="was not written by a StructuredStreamSpout"):
            Pin.read(wrong)
