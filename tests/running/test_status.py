"""status.json: replaced as a whole, seldom, on change; and read with its age and its writer's fate."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from trident.coordinators.errors import TridentError
from trident.running.progress import PlainDisplay, ProgressLog, TerminalDisplay, make_display
from trident.running.reporting import Reporter
from trident.running.status import (
    AttemptStatus,
    CopyStatus,
    FirstStatus,
    GroupStatus,
    StandbyNote,
    StatusWriter,
    TopologyStatus,
    condition,
    format_status,
    read_status,
    status_path,
    topologies_with_status,
)
from trident.states.core.place import Place


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
    process = subprocess.Popen([sys.executable, "-c", _WRITE_AND_WAIT, str(tmp_path)], stdout=subprocess.PIPE)
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


def test_a_late_process_does_not_write_over_its_successors_status(tmp_path):
    """A leader that was paused, or stopped while ZooKeeper was away, does not know of its successor yet."""
    path = status_path(tmp_path, "word-count")
    late = StatusWriter(path, 0.0)
    late.update(make())
    successors = replace(make(8), id="a1-r1", run_id="r2", epoch=4)
    StatusWriter(path).update(successors)
    late.update(make(mode="suspended"))
    late.update(replace(make(mode="stopped"), role="stopped"))
    late.close()
    assert replace(read_status(tmp_path, "word-count"), written_at=0.0) == successors
    for next_one in (replace(successors, role="stopped"), replace(make(), id="b2", run_id="r3", epoch=1)):
        StatusWriter(path).update(next_one)  # its own, or of a topology that began again in a new ZooKeeper
        assert replace(read_status(tmp_path, "word-count"), written_at=0.0) == next_one


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


# --- progress --------------------------------------------------------------------------------------------
# Progress: records with PySpark's keys in snake_case, and displays that are quiet.


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def log_of(clock, display=None) -> ProgressLog:
    return ProgressLog("word-count", "a1", "r1", display, clock=clock)


def batch(txid: int, rows: int = 1000, **more) -> dict:
    return {"batch_id": txid, "num_input_rows": rows, "duration_ms": {"process": 150.0, "total": 200.0}, **more}


def plain(clock, interval_secs=5.0) -> tuple[PlainDisplay, io.StringIO]:
    stream = io.StringIO()
    return PlainDisplay(stream, interval_secs, clock), stream


def test_a_record_has_pysparks_keys_in_snake_case(clock):
    log = log_of(clock)
    clock.now += 0.5
    record = log.transaction(
        batch(1, attempt=2, in_flight=3, backlog={"files": 4}, states={"counts": 700}, group="lines")
    )
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "name": "word-count",
        "id": "a1",
        "run_id": "r1",
        "group": "lines",
        "batch_id": 1,
        "attempt": 2,
        "num_input_rows": 1000,
        "input_rows_per_second": 2000.0,
        "processed_rows_per_second": 5000.0,
        "duration_ms": {"process": 150.0, "total": 200.0},
        "in_flight": 3,
        "backlog": {"files": 4},
        "states": {"counts": 700},
    }
    assert log.last_progress["batch_id"] == 1


def test_the_keys_include_pysparks_own():
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    # Those of PySpark that make sense here: event-time windows come later, and sources, states
    # and the sink have other shapes.
    elsewhere = {"stateOperators", "eventTime", "sources", "sink", "observedMetrics", "batchDuration"}
    theirs = {name for name, item in vars(StreamingQueryProgress).items() if isinstance(item, property)} - elsewhere
    theirs -= {"json", "prettyJson"}  # methods
    snake = {"".join("_" + c.lower() if c.isupper() else c for c in name) for name in theirs}
    ours = log_of(Clock()).transaction(batch(1))
    assert len(snake) > 5 and snake <= set(ours), snake - set(ours)


def test_what_is_not_told_again_is_as_last_told(clock):
    log = log_of(clock)
    log.activity(3, {"files": 4, "rows": None})
    log.id = "a2"
    record = log.transaction(batch(1))
    assert (record["in_flight"], record["backlog"], record["id"]) == (3, {"files": 4}, "a2")


def test_rows_that_are_unknown_are_not_shown_as_none_read(clock):
    display, stream = plain(clock)
    log = log_of(clock, display)
    log.transaction(batch(1, group="a"))
    record = log.transaction({"batch_id": 1, "num_input_rows": None, "group": "b"})
    assert (record["num_input_rows"], record["processed_rows_per_second"], record["duration_ms"]) == (None, None, {})
    clock.now += 9.0
    assert log.rates("b") == (None, pytest.approx(1 / 9)) and log.rates("a")[0] == pytest.approx(1000 / 9)
    log.close()
    assert "(to txid a 1, b 1) · rows unknown · " in stream.getvalue().splitlines()[-1]
    clock.now += 60.0
    assert log.rates("b") == (0.0, 0.0), "nothing has come since"


def test_a_transaction_that_an_earlier_process_has_read_adds_no_rows_here(clock):
    log = log_of(clock)
    record = log.transaction({"batch_id": 1, "num_input_rows": None, "group": "a"}, recovered=True)
    clock.now += 1.0
    log.transaction(batch(2, group="a"))
    assert record["num_input_rows"] is None and log.rates("a") == pytest.approx((1000.0, 2.0))


def test_a_hundred_records_are_kept(clock):
    log = log_of(clock)
    assert log.recent_progress == [] and log.last_progress is None
    for txid in range(1, 151):
        log.transaction(batch(txid))
    assert [record["batch_id"] for record in log.recent_progress] == list(range(51, 151))


def test_the_input_rate_is_measured_within_each_group(clock):
    log = log_of(clock)
    log.transaction(batch(1, group="a"))
    clock.now += 1.0
    log.transaction(batch(1, group="b"))
    clock.now += 1.0
    assert log.transaction(batch(2, group="a"))["input_rows_per_second"] == 500.0


def test_the_rates_are_of_the_last_ten_seconds_and_fall_when_idle(clock):
    log = log_of(clock)
    for txid in range(1, 41):
        clock.now += 0.5
        log.transaction(batch(txid, group="a"))
        log.transaction(batch(txid, rows=1, group="b"))
    assert log.rates("a") == pytest.approx((2000.0, 2.0)) and log.rates("b") == pytest.approx((2.0, 2.0))
    clock.now += 5.0
    assert log.rates("a") == pytest.approx((1000.0, 1.0), rel=0.1)
    clock.now += 60.0
    assert log.rates("a") == log.rates("b") == log.rates("another") == (0.0, 0.0)


def test_plain_lines_are_seldom_and_the_last_state_is_printed_at_the_end(clock):
    display, stream = plain(clock)
    log = log_of(clock, display)
    for txid in range(1, 101):
        clock.now += 0.1
        log.transaction(batch(txid, in_flight=2, backlog={"files": 100 - txid, "rows": None}))
    log.close()
    log.close()
    log.transaction(batch(101))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3  # the first transaction, after 5 s, and the end
    assert "1 transaction (to txid 1)" in lines[0]
    assert lines[2].endswith(
        "word-count: 100 transactions (to txid 100) · 100,000 rows · 10,000 rows/s · 10.0 transactions/s"
        " · 2 in flight · backlog 0 files"
    )


def test_nothing_new_prints_nothing(clock):
    display, stream = plain(clock)
    log = log_of(clock, display)
    for _ in range(100):
        clock.now += 10.0
        log.activity(0, {"files": 0})
    log.close()
    assert stream.getvalue() == ""


def test_an_event_is_shown_at_once(clock):
    display, stream = plain(clock)
    log_of(clock, display).event("standby: waiting for host:42")
    assert stream.getvalue().endswith("standby: waiting for host:42\n")


def test_a_display_that_breaks_does_not_stop_the_topology(clock, caplog):
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w", buffering=1)
    log = log_of(clock, PlainDisplay(stream, 0.0, clock))
    log.transaction(batch(1))
    log.transaction(batch(2))
    log.event("still here")
    log.close()
    assert [record["batch_id"] for record in log.recent_progress] == [1, 2]
    assert len(caplog.records) == 1
    try:
        stream.close()
    except BrokenPipeError:
        pass


def test_it_may_be_used_from_many_threads(clock):
    log = log_of(clock, plain(clock, 0.0)[0])
    threads = [
        threading.Thread(target=lambda: [(log.transaction(batch(n)), log.rates("")) for n in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log._totals.transactions == 800 and log._totals.rows == 800_000


def test_the_display_is_chosen_by_where_it_goes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    primary, secondary = pty.openpty()
    with os.fdopen(secondary, "w") as terminal:
        assert isinstance(make_display("auto", stream=terminal), TerminalDisplay)
        assert isinstance(make_display("plain", stream=terminal), PlainDisplay)
        assert make_display("none", stream=terminal) is None
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(make_display("auto", stream=terminal), PlainDisplay)
    os.close(primary)
    assert isinstance(make_display("auto", stream=io.StringIO()), PlainDisplay)
    assert isinstance(make_display("terminal", stream=io.StringIO()), TerminalDisplay)


_ON_A_TERMINAL = """
import sys, time
from trident.running.progress import ProgressLog, make_display
log = ProgressLog("word-count", "a1", "r1", make_display("auto"))
for txid in (1, 2, 3):
    log.transaction({"batch_id": txid, "num_input_rows": 1000, "in_flight": 2, "backlog": {"files": 7}})
    time.sleep(0.3)
print("output of the user")
log.event("standby: waiting for host:42")
log.close()
"""


@pytest.mark.parametrize("stdout_is_piped", [False, True])
def test_on_a_terminal_one_line_is_redrawn(stdout_is_piped):
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_A_TERMINAL],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if stdout_is_piped else secondary,
        stderr=secondary,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "LINES": "40"},
    )
    os.close(secondary)
    shown = b""
    while True:
        try:
            piece = os.read(primary, 65536)
        except OSError:  # the terminal's last user is gone
            break
        if not piece:
            break
        shown += piece
    os.close(primary)
    piped = process.stdout.read() if process.stdout else b""
    assert process.wait() == 0
    text = shown.decode()
    assert "3 transactions (to txid 3) · 3,000 rows" in text and "2 in flight · backlog 7 files" in text
    assert "standby: waiting for host:42" in text
    assert text.count("\n") < 12, "it scrolls instead of redrawing"
    assert "\x1b[?25l" not in text, "a coordinator that is killed would leave the cursor hidden"
    # Standard output is the user's: where it is redirected it stays untouched.
    assert (piped == b"output of the user\n") if stdout_is_piped else ("output of the user" in text)


def test_work_that_fails_every_few_seconds_is_a_line_a_minute_and_in_the_status_each_time(tmp_path, caplog):
    writer, note = StatusWriter(status_path(tmp_path, "t")), StandbyNote(Place(tmp_path), "t")
    reporter = Reporter([], ProgressLog("t", "", "r1"), False, writer, False, note)
    reporter.site = SimpleNamespace(explain=lambda error: error)
    with caplog.at_level("INFO", logger="trident.query"):
        for number in range(5):
            reporter.compaction_failed("lines", "counts", OSError(f"full {number}"))
        reporter.compaction_failed("lines", "totals", OSError("full"))
    said = [record.getMessage().partition(" in the")[0] for record in caplog.records]
    assert said == ["merging counts", "merging totals"]
    reporter.compaction_failed("lines", "counts", OSError("full 9"))
    assert "full 9" in reporter.errors["lines"][0]
