"""A file that changes after it was looked at gives its rows, or an error that names it: never nothing."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.spouts.files import test_file_spout as helpers
from tests.spouts.files.test_file_spout import Run, put, starts_again
from trident.coordinators.errors import SourceError
from trident.spouts.files import listing
from trident.spouts.files.ledger import Position, ranges
from trident.spouts.files.listing import numbered
from trident.spouts.files.spout import FileSpout

inputs, plan = helpers.inputs, helpers.plan


def rows(run: Run, after: int = 0) -> list[str]:
    """The lines in the batches after a transaction, once all that waits has one."""
    run.begin_all()
    book, found = run.coordinator._ledger.book, []
    for txid, pin in run.pins.items():
        for part in ranges(book, Position(*pin["from"]), Position(*pin["to"])):
            data = Path(part.entry.path).read_bytes() if txid > after else b""
            found += data[part.begin : part.end].decode().splitlines()
    return found


def test_a_file_that_was_empty_when_it_was_found_is_read_once_it_has_content(inputs, plan):
    put(inputs, "a", "")
    run = plan()
    assert not run.ready() and run.coordinator.backlog().files == 0
    (inputs / "a").write_text("x\n")
    assert rows(run) == ["x"]


def test_an_empty_parquet_file_is_not_an_error_before_it_is_written(inputs, plan):
    put(inputs, "a", "")
    run = plan(format="parquet", schema="i int")
    assert not run.ready()
    helpers.parquet(inputs, "a", helpers.typed_table(0, 3))
    run.begin_all()
    assert [pin["rows"] for pin in run.pins.values()] == [3]


def read_one(inputs: Path, plan: Any, **more: Any) -> Run:
    put(inputs, "a", "x\n")
    run = plan(**more)
    assert rows(run) == ["x"]
    return run


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("how", ["grows", "is replaced"])
def test_a_file_that_changes_after_it_was_read_is_an_error_that_names_it(inputs, plan, how, restarted):
    run = read_one(inputs, plan)
    if how == "grows":
        with open(inputs / "a", "a") as file:
            file.write("more\n")
    else:
        put(inputs, "a", "of the next day\n", mtime=2)
    if restarted:
        starts_again(run)
    put(inputs, "b", "y\n")
    with pytest.raises(SourceError, match=r"in/a changed after it was read.*no batch.*on_changed='skip'"):
        run.ready()
    (inputs / "a").rename(inputs / "a2")  # as the error says
    expected = ["x", "more", "y"] if how == "grows" else ["of the next day", "y"]
    assert sorted(rows(run, after=1)) == sorted(expected)


def test_with_skip_or_where_only_the_time_is_another_it_is_said_once(inputs, plan, caplog):
    run = read_one(inputs, plan)
    with caplog.at_level(logging.WARNING):
        os.utime(inputs / "a", ns=(5, 5))
        assert not run.ready() and not run.ready()
        assert caplog.text.count("in/a changed after it was read") == 1
        starts_again(run, FileSpout(inputs, on_changed="skip", poll_interval_secs=0))
        caplog.clear()
        (inputs / "a").write_text("x\nmore\n")
        put(inputs, "b", "y\n")
        assert rows(run, after=1) == ["y"]
    assert caplog.text.count("in/a changed after it was read, and is not read again") == 1


@pytest.mark.parametrize("how", ["replaced", "written to"])
def test_a_change_that_leaves_size_and_time_as_they_were_is_said_once(inputs, plan, caplog, how):
    run = read_one(inputs, plan)
    if how == "replaced":
        put(inputs, "a", "y\n")
    else:
        before = (inputs / "a").stat().st_ctime_ns
        (inputs / "a").write_text("y\n")
        while (inputs / "a").stat().st_ctime_ns == before:  # the file system's clock has steps
            os.utime(inputs / "a", ns=(10**9, 10**9))
        os.utime(inputs / "a", ns=(10**9, 10**9))
    with caplog.at_level(logging.WARNING):
        assert not run.ready() and not run.ready()
    assert caplog.text.count("in/a was replaced or written to after it was discovered") == 1


def test_old_files_are_looked_at_again_in_their_turn(inputs, plan, monkeypatch):
    monkeypatch.setattr(listing, "_AGAIN", 2)
    for number in range(9):
        put(inputs, f"f{number}", f"{number}\n")
    run = plan()
    run.begin_all()
    (inputs / "f1").write_text("another\n")
    looks = 0
    with pytest.raises(SourceError, match="in/f1 changed"):
        while looks < 6:
            run.ready()
            looks += 1


def test_files_that_another_program_has_read_and_that_had_gone_may_come_again(inputs, plan):
    run = plan()
    numbered({str(inputs / "gone"): 1_700_000_000_123}, run.coordinator._ledger, False, "the stream")
    run.pins[1] = {"from": [2, 0], "to": [2, 0], "rows_estimate": 0}
    run.coordinator.resume(1, run.pins[1])
    put(inputs, "gone", "again\n")
    put(inputs, "new", "y\n")
    assert rows(run, after=1) == ["y"]
