"""Whatever is in the place of a stored file, who reads it gets a TridentError that names it and says what to do."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from trident import cli
from trident.commands import exit_codes
from trident.config import TridentConfig
from trident.coordinators import stored_json
from trident.coordinators.errors import ConfigError, CorruptZnode, TableError, TridentError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.records import (
    Decision,
    GroupRecord,
    Holder,
    Identity,
    Incarnation,
    LeaderRecord,
    decode,
    decode_value,
    encode,
    encode_value,
)
from trident.coordinators.stored_json import Unreadable, parse_stored, read_stored
from trident.messages.dead_letters import ReplayRequests, request_replay
from trident.running.status import GroupStatus, StatusWriter, TopologyStatus, format_status, read_status, status_path
from trident.states.core.control import ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, list_descriptors, load_descriptor
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.manifest import Manifest, ManifestStore, ManifestTable

DEEP = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
BYTES = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe{}",
    "deep": DEEP,
    "deep list": b"[" * 100_000,
    "a list": b"[]",
    "half an object": b'{"schema":1',
    "two objects": b"{}{}",
    "null": b"null",
    "a number": b"1" * 6_000,
    "NaN": b'{"schema": NaN}',
    "NULs": b"\0" * 100,
    "a key twice": b'{"schema":1,"schema":1}',
    "half a pair": b'{"schema":1,"name":"\\ud800"}',
    "true": b'{"schema":true}',
}


def put(path: Path, what: str) -> None:
    """Instead of the file: other bytes, or something that is no file."""
    if path.exists():
        path.unlink()
    if what == "a folder":
        path.mkdir()
    elif what == "a FIFO":
        os.mkfifo(path)  # an ordinary open would wait for a writer for ever
    elif what == "a socket":
        with socket.socket(socket.AF_UNIX) as made:
            here = os.open(path.parent, os.O_RDONLY)  # its path may be longer than a socket's name
            made.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)
    elif what == "a link to itself":
        path.symlink_to(path)
    else:
        path.write_bytes(BYTES[what])


ODD = [*BYTES, "a folder", "a FIFO", "a socket", "a link to itself"]


@pytest.mark.parametrize("what", ODD)
def test_the_reader_gives_a_value_or_one_kind_of_error(what: str, tmp_path: Path) -> None:
    put(tmp_path / "x", what)
    try:
        assert parse_stored(read_stored(tmp_path / "x")) in ([], None, {"schema": True})
    except Unreadable as problem:
        assert str(problem)
    held = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert str(tmp_path / "x") not in held
    with pytest.raises(FileNotFoundError):
        read_stored(tmp_path / "y")
    with pytest.raises(Unreadable, match="null byte"):
        read_stored("a\0b")


# --- status --------------------------------------------------------------------------------------


def a_status(warehouse: Path) -> Path:
    status = TopologyStatus("top", "i", "r", 1, groups=(GroupStatus("g", 7),))
    StatusWriter(status_path(warehouse, "top")).update(status)
    return Path(status_path(warehouse, "top"))


@pytest.mark.parametrize("what", ODD)
def test_a_status_that_cannot_be_read_is_said_with_its_name(what: str, tmp_path: Path) -> None:
    path = a_status(tmp_path)
    put(path, what)
    with pytest.raises(TridentError) as caught:
        read_status(tmp_path, "top")
    assert str(path) in str(caught.value) and "delete what is there" in str(caught.value)
    done = CliRunner().invoke(cli.main, ["status", "top", "--warehouse", str(tmp_path)])
    assert done.exit_code == exit_codes.EXIT_BAD_INPUT and str(path) in done.output


@pytest.mark.parametrize("value", [None, True, -1, 1.5, "x", [], {}, [1], {"a": {}}, 10**400])
def test_a_status_with_values_of_other_types_is_shown_or_refused(value: Any, tmp_path: Path) -> None:
    path = a_status(tmp_path)
    whole = json.loads(path.read_text())
    for place in (whole, whole["groups"][0]):
        for key in list(place):
            before, place[key] = place[key], value
            path.write_text(json.dumps(whole))
            place[key] = before
            try:
                format_status(read_status(tmp_path, "top"))
            except TridentError as refused:
                assert str(path) in str(refused)


# --- descriptors ----------------------------------------------------------------------------------


def a_descriptor(warehouse: Path, **changed: Any) -> Path:
    StateDescriptor(
        name="counts",
        kind="keyed",
        topology="top",
        group="g",
        incarnation="i",
        keys=("k",),
        value_fields=("n",),
        schema_json='{"type":"struct","fields":[]}',
    ).save(warehouse)
    path = warehouse / "_trident/states/counts.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    return path


@pytest.mark.parametrize("what", ODD)
def test_a_descriptor_that_cannot_be_read_is_said_with_its_name(what: str, tmp_path: Path) -> None:
    path = a_descriptor(tmp_path)
    put(path, what)
    for read in (lambda: load_descriptor(tmp_path, "counts"), lambda: list_descriptors(tmp_path, "top")):
        with pytest.raises(TableError) as caught:
            read()
        assert str(path) in str(caught.value) and "move it away and start the topology" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "x",
        '{"type":"struct"}',
        '{"type":"struct","fields":[{}]}',
        '{"type":"struct","fields":[{"name":1,"type":"no","nullable":true,"metadata":{}}]}',
        '{"a":' * 50_000,
        '"string"',
        '{"type":"struct","fields":7}',
    ],
)
def test_a_descriptor_whose_schema_is_broken_is_said_with_its_name(text: str, tmp_path: Path) -> None:
    path = a_descriptor(tmp_path, schema_json=text)
    with pytest.raises(TableError) as caught:
        load_descriptor(tmp_path, "counts")
    assert str(path) in str(caught.value)


# --- manifests, control records, log entries, requests ------------------------------------------------


def test_manifests_that_cannot_be_read_are_no_manifests(tmp_path: Path) -> None:
    store = ManifestStore(tmp_path, "top", "g", "inc")
    part = ManifestTable("counts", "keyed", "counts__log", "id", "hash", ())
    spouts = {"s": {"metadata": 1}}
    written = store.write(Manifest("top", "g", "inc", TransactionAttempt(1, 0), None, (part,), spouts))
    folder = (tmp_path / written.manifest).parent
    for number, what in enumerate(ODD):
        put(folder / f"{number + 2}-0.json", what)
    whole = json.loads((tmp_path / written.manifest).read_bytes())
    number = 100
    for key in whole:
        for value in (None, True, 1.5, "x", [], {}, [1], ["x", "y"], {"a": 1}, [{}]):
            number += 1
            (folder / f"{number}-0.json").write_text(json.dumps({**whole, key: value}))
    for key in whole["tables"][0]:
        for value in (None, True, 1.5, [], {}, [1]):
            number += 1
            text = json.dumps({**whole, "tables": [{**whole["tables"][0], key: value}]})
            (folder / f"{number}-0.json").write_text(text)
    found = store.found()
    assert written in [decision for decision, _ in found]
    for _, manifest in found:  # what was taken can be used and written again
        assert Manifest.decode(manifest.encode()) == manifest


@pytest.mark.parametrize("what", BYTES)
def test_a_control_record_that_cannot_be_read_is_said_with_its_table(what: str) -> None:
    with pytest.raises(TableError, match="the control record of w/counts cannot be read") as caught:
        decode_control("w/counts", BYTES[what].decode("utf-8", "surrogateescape"))
    assert len(str(caught.value)) < 1_000
    good = ControlRecord("t", "g", "i", 1, 0, "d", 1, 1)
    assert decode_control("w", good.encode()) == good


@pytest.mark.parametrize("what", ["not UTF-8", "deep", "NULs", "a folder", "a FIFO", "a list", "a number"])
def test_a_log_entry_that_cannot_be_read_is_said_with_its_table(what: str, tmp_path: Path) -> None:
    (tmp_path / "t/_delta_log").mkdir(parents=True)
    put(tmp_path / "t/_delta_log" / f"{0:020d}.json", what)
    with pytest.raises(TableError, match="log entry 0 of table .*/t "):
        DeltaLog(tmp_path / "t").commit(0)


@pytest.mark.parametrize("what", ODD)
def test_a_replay_request_that_cannot_be_read_is_left_alone(what: str, tmp_path: Path) -> None:
    name = request_replay(tmp_path, [{"message": '"x"', "tuples": '[[1,"a"]]'}])
    put(tmp_path / "replays" / "broken.json", what)
    assert ReplayRequests.pending_ids(tmp_path) == ['"x"']
    assert {request for request, _ in ReplayRequests(tmp_path).poll()} == {name}


@pytest.mark.parametrize(
    "letter",
    [{"message": "1"}, {"message": 1, "tuples": "[]"}, {"message": "1", "tuples": "[]", "more": 0}, {"message": "1 2"}],
)
def test_a_replay_request_of_another_form_is_left_alone(letter: dict[str, Any], tmp_path: Path) -> None:
    name = request_replay(tmp_path, [{"message": '"x"', "tuples": '[[1,"a"]]'}])
    written = tmp_path / "replays" / f"{name}.json"
    assert written.read_bytes() == b'[{"message": "\\"x\\"", "tuples": "[[1,\\"a\\"]]"}]', "as versions before wrote it"
    written.write_text(json.dumps([letter]))
    assert ReplayRequests.pending_ids(tmp_path) == [] and list(ReplayRequests(tmp_path).poll()) == []
    assert written.exists()


# --- znodes, and settings ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", BYTES)
def test_a_znode_that_cannot_be_read_is_said_with_its_path(what: str) -> None:
    for kind in (GroupRecord, Decision, LeaderRecord, Holder, Identity, Incarnation):
        with pytest.raises(CorruptZnode, match="/t/g/x") as raised:
            decode("/t/g/x", BYTES[what], kind)
        assert raised.value.path == "/t/g/x" and raised.value.expected and raised.value.action


def test_half_of_a_surrogate_pair_in_a_znode_is_damage_but_a_users_value_is_his() -> None:
    data = encode(Incarnation("mine")).replace(b"mine", b"\\ud800")
    with pytest.raises(CorruptZnode, match="half of a surrogate pair"):
        decode("/t/incarnation", data, Incarnation)
    identity = encode(Identity({"s": "A"}, {}, {"g": ("s",)})).replace(b'"g"', b'"\\udfff"')
    with pytest.raises(CorruptZnode, match="half of a surrogate pair"):
        decode("/t/identity", identity, Identity)
    for value in ("\ud800", {"name": "a\udcff"}):
        assert decode_value("/t/s/coordinator/1", encode_value(value, "spout s")) == value


SETTINGS: list[Callable[[], Any]] = [
    lambda: TridentConfig(warehouse="a\0b"),
    lambda: TridentConfig(warehouse="a\ud800b"),
    lambda: TridentConfig().with_overrides(["warehouse=\0"]),
    lambda: TridentConfig(spark_master="local\0"),
    lambda: TridentConfig(message_timeout_secs=10**5000),
    lambda: TridentConfig(message_timeout_secs=float("inf")),
]


@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_a_setting_that_no_file_system_takes_is_refused(number: int) -> None:
    with pytest.raises(ConfigError, match="warehouse|spark_master|message_timeout_secs"):
        SETTINGS[number]()


def test_the_command_line_refuses_a_nul(tmp_path: Path) -> None:
    for options in (["--set", "warehouse=a\0b"], ["--warehouse", "a\0b"]):
        done = CliRunner().invoke(cli.main, ["status", "top", *options])
        assert done.exit_code == exit_codes.EXIT_BAD_INPUT and "warehouse" in done.output


def test_a_manifest_with_many_receipts_is_read_without_a_look_at_each_of_them(monkeypatch) -> None:
    """A transaction reads its manifest between the decision and the first commit: 10,000 receipts took 60 ms there."""
    receipts = [[f"id{number}", f"{number}:ticket"] for number in range(10_000)]
    spouts = {"queue": {"metadata": None, "commit_data": {"messages": receipts}}}
    data = Manifest("t", "g", "life", TransactionAttempt(1, 0), None, (), spouts).encode()
    looks = []
    difference = stored_json._difference
    monkeypatch.setattr(stored_json, "_difference", lambda *place: (looks.append(place[2]), difference(*place))[1])
    assert Manifest.decode(data).spouts == spouts
    assert 0 < len(looks) < 100
