"""A script as in the README whose session is stopped below it, and which is interrupted: a line for each, no pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, threading, time
from trident import Count, DeltaMapState, RateSpout, TridentTopology

def count_them():
    topology = TridentTopology("ticks")
    stream = topology.new_stream("ticks", RateSpout(rows_per_second=50))
    stream.group_by("value").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    return topology

query = count_them().start(warehouse=sys.argv[1])
while not query.recent_progress:
    time.sleep(0.05)
query.spark.stop()
try:
    query.await_termination(30)
except Exception as error:
    print(type(error).__name__, query.last_progress["batch_id"])
again = count_them().start(warehouse=sys.argv[1])
while not again.recent_progress:
    time.sleep(0.05)
print("goes on with", again.recent_progress[0]["batch_id"])
again.spark.range(10).count()
sys.stdout.flush()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
again.process_all_available()  # never: there is always more
"""


@pytest.mark.skipif(os.environ.get("TRIDENT_KILLS") != "all", reason="two JVM sessions: make kills runs it")
def test_a_stopped_session_and_ctrl_c_are_a_line_each_and_the_exit_code_is_pythons(tmp_path: Path) -> None:
    script = tmp_path / "ticks.py"
    script.write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "warehouse")], capture_output=True, text=True, timeout=240
    )
    ended, goes_on = ran.stdout.splitlines()
    name, last = ended.split()
    assert name == "SessionEnded" and int(goes_on.rpartition(" ")[2]) == int(last) + 1, ran.stdout + ran.stderr
    said = [line for line in ran.stderr.splitlines() if "incubator modules" not in line]
    assert len(said) == 2, ran.stderr
    assert "ticks has ended: the Spark session was stopped while the topology ran" in said[0], said
    assert said[1] == "trident: interrupted; ticks continues where it was at the next start"
    assert ran.returncode == -2, "as an interrupt ends a program: 130 in a shell"
