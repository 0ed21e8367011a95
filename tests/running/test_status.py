"""status.json: replaced as a whole, seldom, on change; and read with its age and its writer's fate."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from trident.coordinators.errors import TridentError
from trident.running.status import (
    AttemptStatus,
    CopyStatus,
    FirstStatus,
    GroupStatus,
    StatusWriter,
    TopologyStatus,
    condition,
    format_status,
    read_status,
    status_path,
    topologies_with_status,
)
from trident.states.core.place import Place

ROOT = Path(__file__).resolve().parents[2]


def make(txid: int = 7, **group) -> TopologyStatus:
    attempts = (AttemptStatus(txid, 0, "COMMITTING", 100.0), AttemptStatus(txid + 1, 2, "PROCESSING", 190.0, 2))
    groups = (GroupStatus("lines", txid, attempts=attempts, backlog={"files": 12}, rows_per_second=1500.0, **group),)
    return TopologyStatus("word-count", "a1", "r1", 3, groups=groups)


class CountingClock:
    """The writer asks the time once for each file that it writes."""

    def __init__(self) -> None:
        self.writings = 0

    def __call__(self) -> float:
        self.writings += 1
        return 200.0


def test_what_is_written_is_what_is_read(tmp_path):
    writer = StatusWriter(Path(status_path(tmp_path, "word-count")), clock=lambda: 200.0)
    writer.update(make())
    assert read_status(tmp_path, "word-count") == replace(make(), written_at=200.0)
    assert os.listdir(Path(status_path(tmp_path, "word-count")).parent) == ["status.json"]


def test_many_updates_are_one_writing_per_interval_and_the_last_one_is_on_disk(tmp_path):
    clock = CountingClock()
    writer = StatusWriter(Path(status_path(tmp_path, "word-count")), 0.2, clock=clock)
    for txid in range(1, 200):
        writer.update(make(txid))
    assert clock.writings == 1
    writer.flush()
    assert clock.writings == 1, "not due yet"
    time.sleep(0.2)
    for _ in range(2):
        writer.flush()
    assert read_status(tmp_path, "word-count").groups[0].current_txid == 199
    assert clock.writings == 2
    writer.update(make(200))
    writer.forget()
    time.sleep(0.2)
    writer.flush()
    writer.close()
    assert clock.writings == 2, "the file is another leader's"


def test_local_copies_are_shown_with_where_they_are_and_why_one_is_not():
    copies = (
        CopyStatus("counts", "following", 7, 1_500_000, 64 << 30, 1),
        CopyStatus("open", "off", None, 0, 64 << 30, 7, "MDB_MAP_FULL"),
        CopyStatus("last", "following", 6, on_executors=True),
        CopyStatus("seen", "waiting", on_executors=True, reason="no disk"),
    )
    text = format_status(replace(make(copies=copies), written_at=200.0), now=200.0)
    shown = text.splitlines()
    first = next(n for n, line in enumerate(shown) if "local copies" in line)
    assert shown[first : first + 5] == [
        "    local copies 2 of 4 follow, 1.5 MB on this host's disk",
        "      counts: following transaction 7, 1.5 MB of at most 69 GB, built once",
        "      open: off, built 7 times: MDB_MAP_FULL",
        "      last: following transaction 6, on the executors' hosts",
        "      seen: waiting, on the executors' hosts: no disk",
    ]


def test_without_a_change_nothing_is_written(tmp_path):
    clock = CountingClock()
    writer = StatusWriter(Path(status_path(tmp_path, "word-count")), 0.0, clock=clock)
    for _ in range(5):
        writer.update(make())
    writer.close()
    assert clock.writings == 1


def test_close_writes_at_once_and_later_updates_are_ignored(tmp_path):
    writer = StatusWriter(Path(status_path(tmp_path, "word-count")), 60.0)
    writer.update(make(1))
    writer.update(make(2))
    writer.close()
    writer.close()
    writer.update(make(3))
    assert read_status(tmp_path, "word-count").groups[0].current_txid == 2


def test_a_reader_never_sees_half_a_status(tmp_path):
    writer = StatusWriter(Path(status_path(tmp_path, "word-count")), 0.0)
    writer.update(make(1))
    stop = threading.Event()

    def write() -> None:
        txid = 1
        while not stop.is_set():
            txid += 1
            writer.update(make(txid, last_error="x" * (txid % 50) * 1000))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = {read_status(tmp_path, "word-count").groups[0].current_txid for _ in range(200)}
    finally:
        stop.set()
        thread.join()
    assert len(seen) > 1


def test_a_status_that_cannot_be_written_does_not_fail_the_topology(tmp_path, caplog):
    (tmp_path / "_trident").write_text("a file where the folder should be")
    writer = StatusWriter(Path(status_path(tmp_path, "word-count")), 0.0)
    writer.update(make(1))
    writer.update(make(2))
    writer.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "status.json" in caplog.text


def test_no_status_names_the_topologies_that_have_one(tmp_path):
    with pytest.raises(TridentError, match="found: no topology"):
        read_status(tmp_path, "other")
    StatusWriter(Path(status_path(tmp_path, "word-count"))).update(make())
    assert topologies_with_status(tmp_path) == ["word-count"]
    with pytest.raises(TridentError, match="'other' has no status.*word-count"):
        read_status(tmp_path, "other")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"schema": 1', '"schema": 2'),
        lambda text: text.replace('"current_txid": 7', '"current_txid": "7"'),
        lambda text: text.replace('"phase"', '"stage"'),
        lambda text: text.replace('"groups"', '"group"'),
    ],
)
def test_a_damaged_status_is_an_error_that_names_the_file(tmp_path, damage):
    path = Path(status_path(tmp_path, "word-count"))
    StatusWriter(path).update(make())
    text = path.read_text()
    assert damage(text) != text
    path.write_text(damage(text))
    with pytest.raises(TridentError, match="status.json cannot be read"):
        read_status(tmp_path, "word-count")


def test_it_reads_well():
    text = format_status(replace(make(last_error="boom", last_error_at=195.0), written_at=198.0), now=200.0)
    assert text.splitlines()[0] == "word-count: running (leader)"
    assert f"written 2.0 s ago by process {os.getpid()} on {socket.gethostname()}, which is alive" in text
    assert "group lines: current txid 7" in text and "backlog  12 files" in text and "1,500 rows/s" in text
    assert "7:0  COMMITTING  for 1.7 min" in text and "8:2  PROCESSING  for 10 s, 2 failed before" in text
    assert "last error (5.0 s ago): boom" in text


def test_a_halted_topology_says_so_first():
    text = format_status(make(mode="halted", halted_by="table counts was restored to version 3"), now=200.0)
    assert text.splitlines()[0] == "word-count: HALTED: a person must look"
    assert "HALTED BY  table counts was restored to version 3" in text


_WRITE_AND_WAIT = """
import sys, time
from trident.running.status import *
StatusWriter(status_path(sys.argv[1], "word-count")).update(
    TopologyStatus("word-count", "a1", "r1", 1, groups=(GroupStatus("lines", 5),)))
print("written", flush=True)
time.sleep(60)
"""


def test_a_killed_process_is_reported_as_gone(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITE_AND_WAIT, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout.readline() == b"written\n"
        assert read_status(tmp_path, "word-count").process_is_alive() is True
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    status = read_status(tmp_path, "word-count")
    assert status.process_is_alive() is False
    assert "NOT RUNNING" in format_status(status) and f"process {process.pid}" in format_status(status)


def test_what_was_in_flight_in_a_process_that_is_gone_grows_no_older():
    status = replace(make(), process_started="1", written_at=198.0)
    text = format_status(status, now=5000.0)
    assert "NOT RUNNING" in text and "current txid 7, was running" in text
    assert "8:2  PROCESSING  for 8.0 s" in text, text


def test_a_process_that_starts_says_so_unless_another_one_runs(tmp_path):
    def first(run_id: str) -> FirstStatus:
        return FirstStatus(Place(tmp_path), "word-count", run_id)

    first("r1")
    assert condition(read_status(tmp_path, "word-count")) == "starting"
    first("r2")  # it is another process's, which lives
    assert read_status(tmp_path, "word-count").run_id == "r1"
    before = replace(make(), role="stopped", groups=(GroupStatus("lines", 17, "stopped", rows_per_second=3.0),))
    StatusWriter(status_path(tmp_path, "word-count")).update(before)
    start = first("r3")
    status = read_status(tmp_path, "word-count")
    assert (status.role, status.run_id, status.groups[0].current_txid) == ("starting", "r3", 17)
    assert format_status(status).splitlines()[0] == "word-count: starting"
    start.failed(ValueError("no such server"))
    status = read_status(tmp_path, "word-count")
    assert (condition(status), status.error) == ("failed", "no such server")
    first("r4").failed(KeyboardInterrupt())
    assert condition(read_status(tmp_path, "word-count")) == "stopped"


def test_a_pid_that_another_process_has_now_is_not_the_writer():
    assert replace(make(), process_started="1").process_is_alive() is False


def test_a_process_of_another_host_is_unknown():
    elsewhere = replace(make(), host="elsewhere")
    assert elsewhere.process_is_alive() is None
    assert "cannot be seen from here" in format_status(elsewhere)


def test_a_stopped_topology_is_not_called_gone():
    stopped = replace(make(mode="stopped"), process_started="1")
    assert format_status(stopped).splitlines()[0] == "word-count: stopped"


def test_a_topology_that_failed_says_what_ended_it():
    text = format_status(replace(make(), role="failed", error="no such folder", groups=()))
    assert text.splitlines()[0] == "word-count: failed" and "ended by: no such folder" in text


def test_the_file_is_plain_json(tmp_path):
    StatusWriter(Path(status_path(tmp_path, "word-count")), clock=lambda: 200.0).update(make())
    value = json.loads(Path(status_path(tmp_path, "word-count")).read_text())
    assert (value["schema"], value["written_at"], value["groups"][0]["attempts"][1]["failures"]) == (1, 200.0, 2)


def test_the_draft_of_a_writer_that_was_killed_is_removed_and_that_of_a_living_one_is_not(tmp_path) -> None:
    path = Path(status_path(tmp_path, "words"))
    path.parent.mkdir(parents=True)
    (living := path.with_name(f".status.json.{os.getppid()}")).touch()
    (dead := path.with_name(f".status.json.{2**22 + 1}")).touch()  # above the greatest pid there can be
    writer = StatusWriter(path)
    writer.update(TopologyStatus("words", "id", "run", 1))
    writer.close()
    assert path.exists() and living.exists() and not dead.exists()


@pytest.mark.parametrize(
    ("view_txid", "said"),
    [(6, "transaction 6, up to date"), (2, "transaction 2, lags by 4"), (9, "transaction 9, up to date"), (None, None)],
)
def test_how_far_the_view_of_plain_tables_is_behind_is_shown(view_txid, said):
    lines = [line for line in format_status(make(7, view_txid=view_txid), now=200.0).splitlines() if "view " in line]
    assert len(lines) == (said is not None) and (said is None or said in lines[0]), lines
