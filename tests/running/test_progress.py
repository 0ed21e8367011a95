"""Progress: records with PySpark's keys in snake_case, and displays that are quiet."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from trident.running.progress import PlainDisplay, ProgressLog, TerminalDisplay, make_display
from trident.running.reporting import Reporter
from trident.running.status import StandbyNote, StatusWriter, status_path
from trident.states.core.place import Place

ROOT = Path(__file__).resolve().parents[2]


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
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "150", "LINES": "40"},
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
