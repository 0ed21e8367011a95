"""The files of a fork besides its tables: what its streams keep, and its record, which only one of two calls begins."""

from __future__ import annotations

from pathlib import Path

from trident.states.core.place import Place
from trident.states.core.tables import TXID_COLUMN
from trident.states.delta.kernel_files import LiveFile
from trident.time_travel.fork_record import ForkedState, ForkRecord, load_fork
from trident.time_travel.fork_tables import _behind, copy_streams


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
    assert begun == [True, False] and found is not None and found.incarnation == "ab12"


def test_of_an_append_table_every_file_is_taken_whatever_a_column_of_the_users_has() -> None:
    file = LiveFile("a", 1, {}, {"maxValues": {TXID_COLUMN: -5}}, 1, 0)
    assert _behind(ForkedState(3, None, -1))(file)
    assert not _behind(ForkedState(3, None, 0))(file)
