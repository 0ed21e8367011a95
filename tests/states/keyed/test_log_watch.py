"""What is looked at in a log before it is merged, and by `trident repair`: over log entries written here by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trident.coordinators.errors import Halted
from trident.coordinators.records import TableMark
from trident.maintenance.facts import APPEND, TableFacts
from trident.repair.inspection import _GroupInspection
from trident.states.core.control import ControlRecord
from trident.states.keyed.table_watch import check_log, merged_log_version, repair_marker, start_of

STATE: Any = SimpleNamespace(topology="top", group="lines", incarnation="inc", name="counts", merge_app="merge")
LEFT = "another writer changed the table"


class Entries:
    """A table of which there is only the log."""

    def __init__(self, path: Path) -> None:
        self.path, self.version = str(path), -1
        (path / "_delta_log").mkdir(parents=True)

    def put(self, *actions: dict[str, Any], engine: str = "Spark", operation: str = "WRITE", user: Any = None) -> int:
        self.version += 1
        info = {"operation": operation, "engineInfo": engine}
        if user is not None:
            info["userMetadata"] = user if isinstance(user, str) else json.dumps(user)
        lines = [{"commitInfo": info}, *actions]
        name = Path(self.path, "_delta_log", f"{self.version:020d}.json")
        name.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return self.version

    def ours(self, txid: int, attempt_id: int = 0) -> int:
        said = {"incarnation": "inc", "txid": txid, "attempt_id": attempt_id}
        control = {"domain": "trident", "configuration": json.dumps(said), "removed": False}
        return self.put({"domainMetadata": control}, {"txn": {"appId": "a", "version": txid}}, engine="K trident/inc")

    def merge(self, upto: int, **log: int) -> int:
        marker = {"topology": "top", "group": "lines", "incarnation": "inc", "upto": upto, **log}
        return self.put({"txn": {"appId": "merge", "version": upto}}, operation="MERGE", user={"trident": marker})

    def foreign(self) -> int:
        return self.put({"remove": {"path": "f", "dataChange": True, "deletionTimestamp": 1}}, operation="DELETE")

    def properties(self) -> int:
        return self.put(operation="SET TBLPROPERTIES")

    def restored(self, version: int, **seen: int) -> int:
        marker = repair_marker("top", version, seen.get("seen", self.version))
        return self.put({"remove": {"path": "f", "dataChange": True}}, operation="RESTORE", user=marker)

    def clean(self, below: int) -> None:
        for version in range(below):
            Path(self.path, "_delta_log", f"{version:020d}.json").unlink(missing_ok=True)


@pytest.fixture
def log(tmp_path: Path) -> Entries:
    """Made by us, with two transactions."""
    made = Entries(tmp_path / "counts__log")
    made.ours(0, attempt_id=-1)
    made.ours(1)
    made.ours(2)
    return made


@pytest.fixture
def plain(tmp_path: Path) -> Entries:
    made = Entries(tmp_path / "counts")
    made.ours(0, attempt_id=-1)
    return made


def check(log: Entries, plain: Entries, pinned: int | None = None, seen: int | None = None) -> None:
    check_log(STATE, plain.path, log.path, log.version if pinned is None else pinned, seen)


def test_a_log_that_others_changed_is_not_merged(log: Entries, plain: Entries) -> None:
    check(log, plain)
    changed = log.foreign()
    log.ours(3)
    with pytest.raises(Halted, match=LEFT) as caught:
        check(log, plain)
    assert f"table version {changed}: DELETE" in str(caught.value) and "--undo-foreign counts" in str(caught.value)
    check(log, plain, pinned=changed - 1)  # this MERGE does not read it
    check(log, plain, seen=changed)


def test_it_is_looked_at_from_the_version_that_the_last_merge_has_read(log: Entries, plain: Entries) -> None:
    assert merged_log_version(plain.path, STATE) == -1
    changed = log.foreign()
    plain.merge(2, log=changed - 1)
    assert merged_log_version(plain.path, STATE) == changed - 1
    plain.foreign()  # another writer's entry says nothing
    assert merged_log_version(plain.path, STATE) == changed - 1
    with pytest.raises(Halted, match=LEFT):
        check(log, plain)
    plain.merge(2, log=changed)  # whoever accepted that
    check(log, plain)
    plain.merge(3)  # of a version of the framework that did not say it
    assert merged_log_version(plain.path, STATE) is None
    with pytest.raises(Halted, match=LEFT):
        check(log, plain)


def test_columns_added_to_a_plain_table_do_not_hide_what_was_before(log: Entries, plain: Entries) -> None:
    """Its control record says "no transaction yet" for ever, and is repeated by them."""
    changed = log.foreign()
    plain.merge(2, log=changed)
    plain.ours(0, attempt_id=-1)
    assert merged_log_version(plain.path, STATE) == changed
    assert start_of(plain.path, plain.version, "inc") == (0, True)
    plain.clean(below=2)
    assert merged_log_version(plain.path, STATE) == -1  # P, from the table, says whether there was one


def test_what_a_repair_has_taken_back_and_properties_do_not_stop_a_merge(log: Entries, plain: Entries) -> None:
    log.properties()
    check(log, plain)
    changed = log.foreign()
    log.restored(changed - 1)
    log.ours(3)
    check(log, plain)
    log.foreign()  # came between the look and the RESTORE: that has not taken it back
    log.restored(log.version - 1, seen=log.version - 1)
    with pytest.raises(Halted, match=LEFT):
        check(log, plain)


def test_entries_that_were_cleaned_up_do_not_stop_a_merge(log: Entries, plain: Entries) -> None:
    log.clean(below=2)
    check(log, plain)
    log.foreign()
    with pytest.raises(Halted, match=LEFT):
        check(log, plain)


def looked(log: Entries, mark: TableMark | None, txid: int = 2) -> TableFacts:
    control = ControlRecord("top", "lines", "inc", txid, 0, "d", 1, 1)
    table = TableFacts("words", APPEND, "words", "id", log.version, control, mark=mark)
    looking = _GroupInspection(None, None, Path(log.path).parent, "top", "lines", [], "inc", {})  # type: ignore[arg-type]
    return looking._with_changes(table, Path(log.path), control, None)  # type: ignore[arg-type]


def test_without_a_mark_the_whole_log_is_looked_at_for_changes_by_others(tmp_path: Path) -> None:
    log = Entries(tmp_path / "words")
    log.foreign()  # before the table became ours: adopted as it was
    log.ours(0, attempt_id=-1)
    log.ours(1)
    changed = log.foreign()
    log.ours(2)
    found = looked(log, None)
    assert [change.version for change in found.foreign] == [changed] and found.ours_after
    assert found.unseen_before == 0
    assert looked(log, TableMark(changed, 1, 0, "d")).foreign == ()  # the mark vouches for what is before it
    log.clean(below=3)
    found = looked(log, None)
    assert [change.version for change in found.foreign] == [changed] and found.unseen_before == 3
    log.clean(below=5)
    log.foreign()
    assert looked(log, None).unverified  # no commit of ours is left


@pytest.mark.parametrize(("version", "txid"), [(9, 2), (3, 5)])
def test_a_table_that_is_older_than_its_mark_is_looked_at_as_a_whole(log: Entries, version: int, txid: int) -> None:
    changed = log.foreign()
    log.foreign()
    found = looked(log, TableMark(version, txid, 0, "d"))
    assert [change.version for change in found.foreign] == [changed, changed + 1]
