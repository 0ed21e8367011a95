"""A state's descriptor: read back as written, whole or not at all, and never another topology's."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from trident.coordinators.errors import ConfigError, ForeignTable, TableError, TopologyError
from trident.states.core.descriptor import StateDescriptor, descriptors_of_group, load_descriptor
from trident.states.keyed.delta_map import DeltaMapState

SCHEMA = '{"type":"struct","fields":[{"name":"word","type":"string","nullable":true,"metadata":{}}]}'


def descriptor(name: str = "counts", **changes: object) -> StateDescriptor:
    values: dict = {
        "name": name,
        "kind": "keyed",
        "topology": "top",
        "group": "lines",
        "incarnation": "i1",
        "keys": ("word",),
        "value_fields": ("count",),
        "schema_json": SCHEMA,
        "aggregator": "count",
        "starts_at": 3,
    }
    return StateDescriptor(**{**values, **changes})


def file_of(warehouse: Path, name: str = "counts") -> Path:
    return warehouse / "_trident" / "states" / f"{name}.json"


@pytest.mark.parametrize(
    "changes",
    [
        *[{}, {"kind": "append", "keys": (), "aggregator": None}, {"keys": ("a b", "ключ")}, {"ends_at": 17}],
        {"merging": "last"},
    ],
    ids=["keyed", "append", "odd names", "detached", "whole values"],
)
def test_is_read_back_as_written(tmp_path, changes):
    written = descriptor(**changes)
    written.save(tmp_path)
    assert load_descriptor(tmp_path, "counts") == written


def test_names_its_tables_and_its_merge_transactions():
    assert descriptor().published_path == "counts__log"
    assert descriptor().plain_path == "counts"
    assert descriptor(kind="append").published_path == "counts"
    assert descriptor().merge_app == "trident/top/lines/merge"


def test_there_is_no_state_that_was_not_saved(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_descriptor(tmp_path, "counts")
    assert descriptors_of_group(tmp_path, "top", "lines") == []


def test_a_group_lists_its_own_states_by_name(tmp_path):
    states = (("b", "lines", "top"), ("a", "lines", "top"), ("c", "other", "top"), ("d", "lines", "x"))
    for name, group, topology in states:
        descriptor(name, group=group, topology=topology).save(tmp_path)
    assert [state.name for state in descriptors_of_group(tmp_path, "top", "lines")] == ["a", "b"]


@pytest.mark.parametrize("owner", [{"topology": "other"}, {"group": "other"}])
def test_another_topologys_or_groups_state_is_refused_and_kept(tmp_path, owner):
    first = descriptor(**owner)
    first.save(tmp_path)
    with pytest.raises(ForeignTable, match="other"):
        descriptor().save(tmp_path)
    assert load_descriptor(tmp_path, "counts") == first


def test_a_new_incarnation_replaces_the_old(tmp_path):
    descriptor().save(tmp_path)
    descriptor(incarnation="i2").save(tmp_path)
    assert load_descriptor(tmp_path, "counts").incarnation == "i2"


def test_removing_forgets_it_and_removing_again_is_nothing(tmp_path):
    descriptor().save(tmp_path)
    descriptor().remove(tmp_path)
    descriptor().remove(tmp_path)
    assert descriptors_of_group(tmp_path, "top", "lines") == []


def _with(**changes: object) -> str:
    value = {"schema": 1, **json.loads(json.dumps(descriptor().__dict__))}
    return json.dumps({**value, **changes})


@pytest.mark.parametrize("text", [_with(kind="other"), _with(name="__x"), _with(merging="first"), _with(merging=None)])
def test_what_contradicts_itself_is_an_error_that_names_the_file(tmp_path, text):
    file_of(tmp_path).parent.mkdir(parents=True)
    file_of(tmp_path).write_text(_with())
    assert load_descriptor(tmp_path, "counts") == descriptor()
    file_of(tmp_path).write_text(text)
    with pytest.raises((TableError, TopologyError), match="cannot be"):
        load_descriptor(tmp_path, "counts")
    with pytest.raises((TableError, TopologyError)):
        descriptors_of_group(tmp_path, "top", "lines")


def test_a_save_that_fails_leaves_the_old_one_and_no_litter(tmp_path, monkeypatch):
    descriptor().save(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        descriptor(incarnation="i2").save(tmp_path)
    assert load_descriptor(tmp_path, "counts").incarnation == "i1"
    assert os.listdir(file_of(tmp_path).parent) == ["counts.json"]


def test_a_reader_never_sees_half_a_file(tmp_path):
    schema = '{"type":"struct","fields":[]}'
    descriptor(schema_json=schema).save(tmp_path)
    done = threading.Event()

    def write() -> None:
        for index in range(60):
            descriptor(schema_json=schema + " " * (100_000 if index % 2 else 10)).save(tmp_path)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    sizes = set()
    while not done.is_set():
        sizes.add(len(load_descriptor(tmp_path, "counts").schema_json))
    writer.join()
    assert {size - len(schema) for size in sizes} <= {0, 10, 100_000}


@pytest.mark.parametrize(
    "setting",
    [
        *[{"merge_every_txids": 0}, {"merge_every_txids": 1.5}, {"merge_every_txids": True}],
        *[{"merge_interval_secs": -1}, {"merge_interval_secs": float("nan")}, {"merge_interval_secs": "30"}],
        *[{"snapshot_retention_txids": -1}, {"snapshot_retention_txids": None}],
    ],
)
def test_an_impossible_setting_of_a_map_state_is_named(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        DeltaMapState("counts", **setting)


@pytest.mark.parametrize("name", ["", "a__b", "a-b", "1a", None])
def test_a_map_state_needs_a_name_that_can_be_a_tables(name):
    with pytest.raises(TopologyError):
        DeltaMapState(name)
