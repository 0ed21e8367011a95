"""The parts of a fork alone: files that its streams keep, its record, the files of its tables, its znodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trident.coordinators.errors import CoordinationError, TransactionNotKept
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.leadership import Leadership
from trident.coordinators.records import Decision, GroupRecord, Marker
from trident.coordinators.repairing import RepairStore
from trident.coordinators.zookeeper import ZooKeeper
from trident.states.core.place import Place
from trident.states.core.tables import TXID_COLUMN
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.states.history.cloning import live_table
from trident.time_travel.fork_plan import ForkedState, ForkRecord, Past, load_fork
from trident.time_travel.forking import _Fork, _unmerged, copy_streams, pasts_of


def record_of(warehouse: Path, incarnation: str, source: str = "9f3c-r1") -> ForkRecord:
    return ForkRecord(str(warehouse), "words", source, "copy", incarnation, False, {})


def test_what_streams_keep_is_copied_with_its_folders_and_under_the_forks_own_id(tmp_path: Path) -> None:
    """Behind a rollback, too: the files of a stream have the id of the first start in their names."""
    (folder := tmp_path / "from" / "_trident" / "words" / "streams" / "lines" / "mine" / "deep").mkdir(parents=True)
    (folder / "x").write_text("1")
    (folder / ".x.17.draft").write_text("half")
    (folder.parents[1] / "files-9f3c.jsonl").write_text("whole\nhal")
    (tmp_path / "to").mkdir()
    for _ in range(2):  # the second goes on with what the first has left
        given = Place(str(tmp_path / "from")), Place(str(tmp_path / "to")), record_of(tmp_path, "ab12")
        assert copy_streams(*given, ["lines", "none"]) == len("whole\n1")
    own = tmp_path / "to" / "_trident" / "copy" / "streams" / "lines"
    found = {str(path.relative_to(own)): path.read_text() for path in own.rglob("*") if path.is_file()}
    assert found == {"files-ab12.jsonl": "whole\n", "mine/deep/x": "1"}


def test_of_two_calls_at_once_one_begins_the_fork(tmp_path: Path) -> None:
    warehouse = Place(str(tmp_path))
    begun = [record_of(tmp_path, incarnation).begin_in(warehouse) for incarnation in ("ab12", "cd34")]
    found = load_fork(warehouse, "copy")
    assert found is not None and found.incarnation == "ab12" and begun == [found, found]


def test_of_an_append_table_every_file_is_taken_whatever_a_column_of_the_users_has() -> None:
    file = LiveFile("a", 1, {}, {"maxValues": {TXID_COLUMN: -5}}, 1, 0)
    assert _unmerged(ForkedState(3, None, -1))(file)
    assert not _unmerged(ForkedState(3, None, 0))(file)


@pytest.mark.parametrize("removed", ["city=%C3%A9/a%20b", "city=é/a%20b"])
def test_a_removed_file_does_not_come_again_whichever_letters_of_its_path_are_encoded(
    tmp_path: Path, removed: str
) -> None:
    """Spark leaves é as it is, and this framework does not."""
    (log := tmp_path / "_delta_log").mkdir()
    metadata = {"id": "t", "schemaString": "{}", "partitionColumns": ["city"]}
    add = {"path": "city=é/a%20b", "size": 1, "partitionValues": {"city": "é"}, "modificationTime": 0}
    entries = [
        [{"protocol": {"minWriterVersion": 7}}, {"metaData": metadata}, {"add": add}],
        [{"remove": {"path": removed}}],
    ]
    for version, actions in enumerate(entries):
        (log / f"{version:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))
    assert list(live_table(Place(str(tmp_path)), 0).adds) == ["city=é/a b"]
    assert not live_table(Place(str(tmp_path)), 1).adds


def test_a_name_that_another_topology_took_meanwhile_stays_its(zk: ZooKeeper, tmp_path: Path) -> None:
    """While the tables of the fork were copied, which may take hours, one of its name was started and stopped."""

    def made(incarnation: str) -> tuple[_Fork, list[Past]]:
        manifest = Manifest(
            "words", "g", "9f3c", TransactionAttempt(5, 0), None, (), {"s": {"spout": "A", "metadata": {"n": 5}}}
        )
        decision = Decision(5, 0, "m", 1, "d" * 64)
        place = Place(str(tmp_path))
        fork = _Fork(place, place, record_of(tmp_path, incarnation), False, False)
        fork._decisions, fork._marks = {"g": decision}, {"g": {}}
        return fork, [Past("g", decision, manifest, {})]

    identity = {"streams": {"s": "A"}, "states": {}, "groups": {"g": ["s"]}}
    lease = Leadership(zk, "copy", ["g"]).acquire()
    assert lease is not None
    store = RepairStore(zk, "copy", "g", ["s"], lease.fences["g"])
    store.load()
    other = GroupRecord("other", 9, last=Marker(8, 0, "d"), last_published=Marker(8, 0, "d"))
    store.rebuild(other, None, {"s": {8: {"n": 8}}}, {}, 8, ("other", identity))
    lease.release()
    fork, pasts = made("ab12")
    with pytest.raises(CoordinationError, match="the name copy is taken.*incarnation other"):
        fork.register(zk, identity, pasts)
    record = RepairStore(zk, "copy", "g", ["s"]).load()[0]
    assert record is not None and (record.incarnation, record.current_txid) == ("other", 9)
    again, pasts = made("other")  # its own, which an earlier try has written
    again.register(zk, identity, pasts)


def test_a_batch_group_without_a_transaction_since_a_rollback_is_not_left_out(tmp_path: Path) -> None:
    """The fork would begin that group at its first transaction, with empty tables."""
    spouts = {"s": {"spout": "A", "kind": "transactional", "metadata": {"n": 1}}}
    place = Place(str(tmp_path))
    for group, incarnation in (("a", "9f3c-r1"), ("b", "9f3c")):
        for txid in (1, 2):  # the newest may not be decided
            attempt = TransactionAttempt(txid, 0)
            parent = TransactionAttempt(1, 0) if txid == 2 else None
            ManifestStore(place, "words", group, incarnation).write(
                Manifest("words", group, incarnation, attempt, parent, (), spouts)
            )
    with pytest.raises(TransactionNotKept, match="batch group b of words has no kept transaction since the last"):
        pasts_of(place, "words", "9f3c-r1", {"a": 1})
    (past,) = pasts_of(place, "words", "9f3c", {"b": 1})
    assert past.at == 1
