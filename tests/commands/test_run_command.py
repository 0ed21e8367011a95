"""`trident run` as a user runs it: status, a signal, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.servers.zk_fixtures import eventually
from trident import cli

ROOT = Path(__file__).resolve().parents[2]
JOB = """
import warnings

from trident import Count, DeltaMapState, FileSpout, TridentConfig, TridentTopology

def split(line: str) -> list[str]:
    if line == "poison":
        raise ValueError("cannot be split")
    return line.split()

topology = TridentTopology("job")
lines = topology.new_stream("lines", FileSpout("in"))
lines.each("value", split, "word").group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
warnings.warn("mine")
config = TridentConfig(spark_master="local[2]", max_attempts=1, zookeeper_session_timeout_secs=4)
"""


@pytest.fixture
def job(tmp_path: Path, zk_server: str, zk_root: str):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a b\nb\n")
    (tmp_path / "job.py").write_text(JOB)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TRIDENT_ZOOKEEPER": zk_server,
        "TRIDENT_ZOOKEEPER_ROOT": zk_root,
    }
    started: list[subprocess.Popen] = []

    def command(*arguments: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "trident.cli", *arguments],
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield command
    for process in started:
        process.kill()
        process.wait()


def status(folder: Path) -> str:
    """What `trident status` says."""
    return CliRunner().invoke(cli.main, ["status", "job", "--set", f"warehouse={folder / 'trident-warehouse'}"]).output


def json_lines(out: str) -> list[dict[str, object]]:
    """The lines of a log; what the JVM prints before its log is configured is left out, and nothing else."""
    return [json.loads(line) for line in out.splitlines() if not re.match(r"WARNING: |Picked up |OpenJDK ", line)]


@pytest.mark.long
def test_it_runs_until_sigterm_and_then_exits_with_0(job, tmp_path: Path) -> None:
    """And its log is JSON, where that is asked for: the framework's, the progress, Spark's."""
    process = job("run", "job.py", "--log-format", "json")
    file = tmp_path / "trident-warehouse" / "_trident" / "job" / "status.json"
    assert eventually(lambda: file.exists() and re.search(r'"current_txid": *2\b', file.read_text()), 90)
    said = status(tmp_path)
    assert "running (leader)" in said and "current txid 2" in said
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert (
        "leads job (epoch 1)" in out
        and "job: stopped; the next start continues with transaction 2" in out
        and "Traceback" not in out
    )
    lines = json_lines(out)
    own = [line for line in lines if str(line.get("logger", "")).startswith("trident.")]
    assert all({"ts", "level", "logger", "message"} <= set(line) for line in own)
    (progress,) = [line for line in own if "progress" in line][:1]
    assert progress["topology"] == "job" and progress["progress"]["transactions"] == 1
    assert any(line.get("logger") == "py.warnings" and "mine" in str(line["message"]) for line in lines)
    assert "job: stopped" in status(tmp_path)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM], ids=lambda number: number.name
)
def test_a_signal_while_it_starts_is_one_line_and_its_exit_code(job, tmp_path: Path, number: signal.Signals) -> None:
    """And the first line comes before anything heavy, ZooKeeper before Spark, and the status knows that it starts."""
    process = job("run", "job.py")
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line[9:].rstrip())  # behind the time
        if "starting Spark" in line:
            break
    assert lines[0] == "reading job.py" and lines[-2].startswith("job: connecting to ZooKeeper (127.0.0.1:")
    assert lines[-1] == "job: starting Spark (local[2])" and "warnings.warn" not in lines[0]
    assert status(tmp_path).startswith("job: starting\n")
    os.killpg(process.pid, number)  # as a terminal sends it
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, out
    said = [line for line in out.splitlines() if "incubator modules" not in line]
    ended = {signal.SIGINT: "trident: interrupted", signal.SIGTERM: "trident: the start of job was ended by SIGTERM"}
    assert said == [ended[number]], out
    assert status(tmp_path).startswith("job: stopped\n")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)], ids=lambda number: number.name
)
def test_a_signal_to_the_whole_group_is_a_stop_in_good_order(job, tmp_path: Path, number: signal.Signals) -> None:
    """As a terminal's Ctrl-C, ``timeout`` and ``kill -- -PGID`` send it: the JVM goes on until it is not needed."""
    process = job("run", "job.py")
    while "leads job" not in (line := process.stdout.readline()):
        assert line, "it has ended"
    os.killpg(process.pid, number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "job: stopped; the next start continues with transaction" in out
    assert "Traceback" not in out and "py4j" not in out and "ERROR" not in out
    assert status(tmp_path).startswith("job: stopped\n")


def test_an_error_before_the_start_is_a_line_of_json_too(job) -> None:
    out, _ = job("run", "missing.py", "--log-format", "json").communicate(timeout=120)
    reading, line = [json.loads(line) for line in out.splitlines()]
    assert (reading["level"], reading["message"]) == ("INFO", "reading missing.py")
    assert (line["level"], line["logger"]) == ("ERROR", "trident.cli")
    assert line["error"].startswith("TopologyError: missing.py cannot be run") and "Traceback" in line["traceback"]


@pytest.mark.long
def test_a_batch_that_always_fails_exits_with_1_and_names_function_line_and_batch(job, tmp_path: Path) -> None:
    (tmp_path / "in" / "1.txt").write_text("poison\n")
    process = job("run", "job.py")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1, out
    assert "transaction 1 of batch group 'lines' failed 1 times" in out
    assert "ValueError: cannot be split" in out and "job.py:8" in out and "Traceback" not in out
    own = 'job.py", line 8, in split\n    raise ValueError("cannot be split")\nValueError: cannot be split\ntrident: '
    assert own in out and "trident-failure" not in out
    # Once, with date, level and topology.
    (told,) = [line for line in out.splitlines() if "attempt 1:0 of" in line]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d WARNING attempt 1:0 of job/lines failed: each\(split\)", told)
