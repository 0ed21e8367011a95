"""The lock that a repair has against MERGEs, on a local disk, over real processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.servers.zk_fixtures import eventually
from trident.states.delta import torn_entries as table_locks
from trident.states.delta.torn_entries import table_lock

HOLDER = """
import sys
from trident.states.delta.torn_entries import table_lock
with table_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def holder(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_stopped_holder_is_waited_for_and_named_and_its_death_lets_the_next_one_in(
    holder, tmp_path: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(table_locks, "_WARN_AFTER_SECS", 0.2)
    entered = threading.Event()

    def enter() -> None:
        with table_lock(str(tmp_path)):
            entered.set()

    os.kill(holder.pid, signal.SIGSTOP)
    waiting = threading.Thread(target=enter, daemon=True)
    with caplog.at_level(logging.WARNING):
        waiting.start()
        assert eventually(lambda: caplog.messages)
    assert f"{tmp_path} since 0 s; it is held by process {holder.pid} (stopped)" in caplog.text
    assert not entered.is_set()
    holder.kill()
    assert entered.wait(10)


def test_who_waits_a_moment_hears_nothing(holder, tmp_path: Path, caplog) -> None:
    threading.Timer(0.2, holder.stdin.close).start()
    with caplog.at_level(logging.WARNING), table_lock(str(tmp_path)):
        assert holder.wait(10) == 0
    assert not caplog.messages
