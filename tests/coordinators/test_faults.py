"""Fault points do what their outcome says, once, at the entry asked for, and nothing when off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.programs import python
from trident.coordinators import faults
from trident.coordinators.errors import ConfigError, TridentError
from trident.coordinators.faults import InjectedFault, fault_point

ROOT = Path(__file__).resolve().parents[2]


def entries(point: str, times: int) -> list[str]:
    """What happened at each of several entries."""
    seen = []
    for _ in range(times):
        done = False
        try:
            with fault_point(point):
                done = True
            seen.append("done")
        except InjectedFault:
            seen.append("done, failed" if done else "failed")
    return seen


def test_when_off_a_point_is_one_shared_context_that_does_nothing():
    assert fault_point("a.b") is fault_point("c.d")
    assert entries("a.b", 2) == ["done", "done"]


@pytest.mark.parametrize(
    ("armed", "expected"),
    [
        ("t.x:fail_before", ["failed", "done", "done"]),
        ("t.x:do_then_fail", ["done, failed", "done", "done"]),
        ("t.x:fail_before:2", ["done", "failed", "done"]),
        ("t.x:fail_before:1,t.x:do_then_fail:3", ["failed", "done", "done, failed"]),
        (" t.x:fail_before , t.y:fail_before", ["failed", "done", "done"]),
        ("t.y:fail_before", ["done", "done", "done"]),
    ],
)
def test_a_fault_fires_once_at_its_entry(armed, expected):
    faults.arm(armed)
    assert entries("t.x", 3) == expected


def test_an_injected_fault_is_an_ordinary_error_that_names_its_point():
    faults.arm("t.x:fail_before")
    with pytest.raises(TridentError, match="fail_before at t.x") as raised, fault_point("t.x"):
        pass
    assert raised.value.point == "t.x"


def test_the_error_of_the_io_itself_is_not_hidden():
    faults.arm("t.x:do_then_fail")
    with pytest.raises(OSError, match="real"), fault_point("t.x"):
        raise OSError("real")
    assert faults.unfired() == ["t.x:do_then_fail:1"]
    with pytest.raises(InjectedFault), fault_point("t.x"):  # it happens where the I/O can be done
        pass
    assert faults.unfired() == []


def test_unfired_faults_are_listed():
    faults.arm("t.x:fail_before:2,t.y:do_then_fail")
    entries("t.x", 2)
    assert faults.unfired() == ["t.y:do_then_fail:1"]


def test_a_hanging_point_waits_until_disarmed_and_then_fails():
    faults.arm("t.x:hang")
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.extend(entries("t.x", 1)))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive() and seen == []
    faults.disarm()
    thread.join(5)
    assert seen == ["failed"]


@pytest.mark.parametrize(("outcome", "before", "after"), [("do_then_hang", 1, "done, failed"), ("pause", 0, "done")])
def test_a_point_may_wait_behind_its_io_or_before_it(outcome, before, after):
    faults.arm(f"t.x:{outcome}")
    done: list[int] = []
    seen: list[str] = []

    def enter() -> None:
        try:
            with fault_point("t.x"):
                done.append(1)
            seen.append("done")
        except InjectedFault:
            seen.append("done, failed" if done else "failed")

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive() and seen == [] and len(done) == before and faults.unfired() == []
    faults.disarm()
    thread.join(5)
    assert seen == [after] and len(done) == 1


def test_the_entries_of_a_chained_fault_count_from_when_the_one_before_has_fired():
    faults.arm("t.x:fail_before:2>t.y:fail_before:2,t.y:do_then_fail:1")
    assert entries("t.y", 3) == ["done, failed", "done", "done"]
    assert entries("t.x", 2) == ["done", "failed"]
    assert entries("t.y", 3) == ["done", "failed", "done"]
    assert faults.unfired() == []


def test_a_chain_may_begin_where_a_point_is_reached_and_nothing_is_done_to_it():
    faults.arm("t.x:reach:2>t.y:fail_before")
    assert entries("t.x", 1) + entries("t.y", 1) == ["done", "done"]
    with fault_point("t.x"):  # in the midst of it is behind its being reached
        assert entries("t.y", 1) == ["failed"]
    assert entries("t.x", 1) == ["done"] and faults.unfired() == []


@pytest.mark.parametrize(
    "text", ["t.x", "t.x:hang>", "t.x:explode", "t.x:hang:0", "t.x:hang:x", ":hang", "t.x:hang:-1"]
)
def test_a_fault_that_cannot_be_read_is_an_error_and_arms_nothing(text):
    with pytest.raises(ConfigError, match="point:outcome"):
        faults.arm(f"t.y:fail_before,{text}")
    assert entries("t.y", 1) == ["done"]


def test_a_point_is_declared_once_with_one_meaning():
    assert faults.register("test.declared", "a") == "test.declared"
    faults.register("test.declared", "a")
    assert faults.registered()["test.declared"] == "a"
    with pytest.raises(ConfigError, match="declared twice"):
        faults.register("test.declared", "b")


def test_the_environment_arms_and_do_then_die_kills_after_the_io():
    program = (
        "from trident.coordinators.faults import fault_point\n"
        "with fault_point('t.x'): print('first', flush=True)\n"
        "with fault_point('t.x'): print('second', flush=True)\n"
        "print('alive', flush=True)\n"
    )
    done = python("-c", program, TRIDENT_FAULTS="t.x:do_then_die:2")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["first", "second"]


@pytest.mark.parametrize("outcome", ["stop", "do_then_stop"])
def test_a_process_stops_itself_before_or_behind_the_io_and_goes_on_where_it_was(outcome):
    """Its other threads stop too, and the thread that came to the point does nothing before it is continued."""
    program = (
        "import threading\n"
        "from trident.coordinators.faults import fault_point\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print('begun', flush=True)\n"
        "with fault_point('t.x'): print('done', flush=True)\n"
        "with fault_point('t.x'): print('again', flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TRIDENT_FAULTS": f"t.x:{outcome}"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
    os.set_blocking(child.stdout.fileno(), False)
    assert child.stdout.read().split() == (["begun", "done"] if outcome == "do_then_stop" else ["begun"])
    os.set_blocking(child.stdout.fileno(), True)
    os.kill(child.pid, signal.SIGCONT)
    rest, _ = child.communicate(timeout=30)
    assert rest.split() == (["again"] if outcome == "do_then_stop" else ["done", "again"])
    assert child.returncode == 0


def test_slow_io_is_done_late_from_its_entry_on_and_disarming_ends_the_wait(monkeypatch):
    monkeypatch.setattr(faults, "SLOW_SECS", 0.2)
    faults.arm("test.point:slow:2")
    spent = []
    for _ in range(3):
        started = time.monotonic()
        with fault_point("test.point"):
            pass
        spent.append(time.monotonic() - started)
    assert spent[0] < 0.1 and min(spent[1:]) >= 0.2
    monkeypatch.setattr(faults, "SLOW_SECS", 60.0)
    threading.Timer(0.1, faults.disarm).start()
    with fault_point("test.point"):
        pass
