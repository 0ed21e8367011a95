"""The command line: what it reads, what it prints, and the exit code of each way to fail."""

from __future__ import annotations

import errno
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.programs import python
from trident.cli import main
from trident.commands.exit_codes import exit_code
from trident.commands.user_file import load_topology
from trident.config import TridentConfig
from trident.coordinators import errors
from trident.running.process_defaults import Terminated
from trident.running.status import GroupStatus, StatusWriter, TopologyStatus, status_path
from trident.states.core.storage import storage_problem_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def clean_process(monkeypatch):
    """What loading a user's file leaves behind in this process goes with the test."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for variable in [name for name in os.environ if name.startswith("TRIDENT_")]:
        monkeypatch.delenv(variable)
    yield
    for name in set(sys.modules) - set(before):
        origin = getattr(sys.modules[name], "__file__", None) or ""
        if "/pytest-" in origin:
            del sys.modules[name]


def trident(*arguments: str, code: int, **more) -> str:
    result = CliRunner().invoke(main, list(arguments), **more)
    assert result.exit_code == code, f"{result.exit_code}: {result.output} {result.exception!r}"
    return result.output


def write(folder: Path, text: str, name: str = "job.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


ONE = 'from trident import TridentTopology\ntopology = TridentTopology("word-count")\n'
TWO = ONE + 'other = TridentTopology("line-count")\nsame = other\n'


# --- the file -------------------------------------------------------------------------------


def test_the_topology_of_a_file_is_found(tmp_path):
    topology, config = load_topology(write(tmp_path, ONE))
    assert topology.name == "word-count" and config is None


def test_the_file_may_bring_its_settings(tmp_path):
    text = ONE + "from trident import TridentConfig\nconfig = TridentConfig(max_attempts=2)\n"
    assert load_topology(write(tmp_path, text))[1] == TridentConfig(max_attempts=2)


@pytest.mark.parametrize(("name", "expected"), [("other", "line-count"), ("word-count", "word-count")])
def test_one_of_several_is_chosen_by_its_variable_or_its_name(tmp_path, name, expected):
    assert load_topology(f"{write(tmp_path, TWO)}:{name}")[0].name == expected


def test_several_topologies_are_listed(tmp_path):
    output = trident("run", write(tmp_path, TWO), code=2)
    assert "job.py has several topologies" in output
    assert "topology (word-count), other (line-count)" in output and "job.py:topology" in output
    assert "no topology 'third'" in trident("run", write(tmp_path, TWO) + ":third", code=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "job.py has no topology; expected: a TridentTopology at module level"),
        ("x = 1\n\nraise RuntimeError('broken')\n", "job.py:3: RuntimeError: broken"),
        ("def f():\n    return 1 / 0\n\nf()\n", "job.py:2: ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", "job.py:2: SystemExit: 3"),
        ("x = = 1\n", "job.py:1: SyntaxError"),
        ("import no_such_module\n", "job.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_file_that_cannot_be_used_is_bad_input(tmp_path, text, message):
    output = trident("run", write(tmp_path, text), code=2)
    assert message in output and "Traceback" not in output


def test_a_topology_that_is_built_wrongly_is_bad_input(tmp_path):
    text = "from trident.errors import FieldError\nraise FieldError('no field word', found='value')\n"
    output = trident("plan", write(tmp_path, text), code=2)
    assert re.fullmatch(r"trident: /.*job\.py:2: no field word; found: value", output.strip())


def test_verbose_adds_the_traceback(tmp_path):
    output = trident("run", write(tmp_path, "1 / 0\n"), "--verbose", code=2)
    assert "Traceback" in output and "ZeroDivisionError" in output


def test_a_missing_file_is_bad_input(tmp_path):
    assert "nothing.py cannot be run; found: no such file" in trident("run", str(tmp_path / "nothing.py"), code=2)
    assert "found: a folder" in trident("run", str(tmp_path), code=2)


def test_what_stands_under_name_is_main_is_not_run(tmp_path):
    load_topology(write(tmp_path, ONE + 'if __name__ == "__main__":\n    raise SystemExit("run twice")\n'))


@pytest.mark.parametrize("name", ["states", "coordinators"])
def test_a_file_beside_it_may_be_named_as_a_package_of_the_framework(tmp_path, name):
    write(tmp_path, "SIZE = 3\n", f"{name}.py")
    load_topology(write(tmp_path, ONE + f"import {name}\nassert {name}.SIZE == 3\n"))
    sys.modules.pop(name)


def test_functions_of_the_file_and_of_its_neighbours_reach_a_process_that_cannot_import_them(tmp_path):
    from pyspark import cloudpickle

    write(tmp_path, "def exclaim(text):\n    return text + '!'\n", "neighbour.py")
    text = (
        ONE + "from dataclasses import dataclass\nfrom neighbour import exclaim\n"
        "@dataclass\nclass Greeter:\n    word: str\n    def greet(self):\n        return exclaim(self.word)\n"
        "def job():\n    return Greeter('hello').greet()\n"
    )
    load_topology(write(tmp_path, text))
    pickled = cloudpickle.dumps(sys.modules["trident_user_file.job"].job)
    script = "import pickle, sys; print(pickle.load(sys.stdin.buffer)())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickled,
        cwd="/",
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert done.stdout.decode() == "hello!\n", done.stderr.decode()


def test_installed_packages_beside_the_file_are_left_as_they_are(tmp_path):
    from pyspark import cloudpickle

    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    write(installed, "def f():\n    return 1\n", "installed_thing.py")
    sys.path.append(str(installed))
    load_topology(write(tmp_path, ONE + "import installed_thing\n"))
    assert "installed_thing" not in cloudpickle.list_registry_pickle_by_value()
    assert "trident_user_file.job" in cloudpickle.list_registry_pickle_by_value()


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["run"], ["plan"]])
def test_a_wrong_setting_is_told_before_the_file_is_run(tmp_path, command):
    file = write(tmp_path, "raise RuntimeError('it was run')\n")
    output = trident(*command, file, "--set", "max_atempts=3", code=2)
    assert "no setting 'max_atempts'" in output and "max_attempts" in output and "it was run" not in output
    assert "found: 'few'" in trident(*command, file, "--set", "max_attempts=few", code=2)


WORD_COUNT = """
from collections.abc import Iterator
from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, TridentTopology

def split(line: str) -> Iterator[str]:
    yield from line.split()

topology = TridentTopology("word-count")
lines = topology.new_stream("lines", FixedBatchSpout("line string", [[("a b a",)]]))
lines.partition_persist(DeltaAppend("raw"))
lines.each("line", split, "word").group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
"""


def test_plan_prints_the_topology_and_starts_nothing(tmp_path):
    file = write(tmp_path, WORD_COUNT)
    before = set(os.listdir(tmp_path))
    with_java_broken = {"JAVA_HOME": str(tmp_path), "PATH": ""}
    done = python("-m", "trident.cli", "plan", file, cwd=tmp_path, **with_java_broken)
    assert done.returncode == 0, done.stderr
    for name in ("word-count", "lines", "raw", "counts", "split"):
        assert name in done.stdout
    assert set(os.listdir(tmp_path)) - {"__pycache__"} == before


# --- status -----------------------------------------------------------------------------------


def put_status(warehouse: Path, name: str) -> None:
    groups = (GroupStatus("lines", 17, rows_per_second=12_345.0),)
    StatusWriter(status_path(warehouse, name)).update(TopologyStatus(name, "a1", "r1", 1, groups=groups))


def test_status_prints_one_or_all(tmp_path):
    put_status(tmp_path, "word-count")
    put_status(tmp_path, "line-count")
    warehouse = ["--set", f"warehouse={tmp_path}"]
    output = trident("status", "word-count", *warehouse, code=0)
    assert "word-count: running" in output and "current txid 17" in output and "12,345 rows/s" in output
    assert "line-count" not in output
    output = trident("status", *warehouse, code=0)
    assert output.index("line-count: ") < output.index("word-count: ")


@pytest.mark.parametrize(
    ("role", "mode", "error", "started", "code"),
    [
        ("leader", "running", None, None, 0),
        ("leader", "paused", None, None, 0),
        ("stopped", "stopped", None, None, 5),
        ("leader", "running", None, "1", 5),  # its process is gone
        ("starting", "stopped", None, None, 0),
        ("starting", "stopped", None, "1", 5),
        ("failed", "gave up", "8 tries", None, 1),
        ("failed", "running", "ended", None, 1),
        ("halted", "halted", "a table is gone", None, 3),
    ],
)
def test_the_exit_code_of_status_says_whether_it_runs(tmp_path, role, mode, error, started, code):
    groups = (GroupStatus("lines", 17, mode),)
    more = {"process_started": started} if started else {}
    status = TopologyStatus("word-count", "a1", "r1", 1, role, error, groups=groups, **more)
    StatusWriter(status_path(tmp_path, "word-count")).update(status)
    trident("status", "word-count", "--warehouse", str(tmp_path), code=code)
    put_status(tmp_path, "line-count")
    trident("status", "--warehouse", str(tmp_path), code=code)


def test_status_is_json_for_programs(tmp_path):
    import json

    put_status(tmp_path, "word-count")
    output = trident("status", "--json", "--set", f"warehouse={tmp_path}", code=0)
    assert json.loads(output)["groups"][0]["current_txid"] == 17
    assert json.loads(output)["condition"] == "running", "and not only what its process wrote last"


def test_the_warehouse_may_come_from_the_environment(tmp_path):
    put_status(tmp_path, "word-count")
    assert "word-count" in trident("status", code=0, env={"TRIDENT_WAREHOUSE": str(tmp_path)})


def test_status_of_what_is_not_there_is_bad_input(tmp_path):
    assert "has no topology" in trident("status", "--set", f"warehouse={tmp_path / 'none'}", code=2)
    put_status(tmp_path, "word-count")
    output = trident("status", "wordcount", "--set", f"warehouse={tmp_path}", code=2)
    assert "'wordcount' has no status" in output and "the topologies word-count" in output


# --- looking after -----------------------------------------------------------------------------


def test_reset_asks_first(tmp_path):
    warehouse = ["--set", f"warehouse={tmp_path}"]
    assert "Give --yes" in trident("reset", "word-count", *warehouse, code=2)


def test_a_reset_that_is_declined_changes_nothing(tmp_path):
    (tmp_path / "_trident" / "word-count").mkdir(parents=True)
    primary, secondary = pty.openpty()
    os.write(primary, b"n\n")
    done = subprocess.run(
        [sys.executable, "-m", "trident.cli", "reset", "word-count", "--set", f"warehouse={tmp_path}"],
        cwd=ROOT,
        stdin=secondary,
        capture_output=True,
        text=True,
        timeout=60,
    )
    os.close(primary)
    os.close(secondary)
    assert done.returncode == 0 and "Delete its transactions: word-count" in done.stdout
    assert done.stdout.endswith("Nothing is changed.\n")
    assert (tmp_path / "_trident" / "word-count").exists()


@pytest.mark.parametrize("name", ["..", "../other", "zookeeper", "states", "a/b", ""])
@pytest.mark.parametrize("command", [["reset", "--yes"], ["status"], ["compact"], ["skip", "--txid", "1"], ["repair"]])
def test_a_name_that_is_no_topologys_never_becomes_a_path(tmp_path, command, name):
    kept = tmp_path / "_trident" / "zookeeper" / "data"
    kept.mkdir(parents=True)
    output = trident(*command, "--set", f"warehouse={tmp_path}", "--", name, code=2)
    assert "Invalid value for" in output and "NAME" in output
    assert kept.exists()


def test_skip_wants_a_txid(tmp_path):
    assert "--txid" in trident("skip", "word-count", code=2)
    assert "0 is not in the range" in trident("skip", "word-count", "--txid", "0", code=2)


BAD_INPUT = (
    "FieldError ConfigError JavaProblem SourceError IdentityMismatch SchemaMismatch ForeignTable TridentError"
).split()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.AttemptCapReached("no", txid=3), 1),
        (errors.UserFunctionError("no", operation="each", location="job.py:3"), 1),
        (errors.StorageProblem("no"), 1),
        *((getattr(errors, name)("no"), 2) for name in BAD_INPUT),
        (errors.CoordinationError("it is running"), 2),
        (errors.Halted("no"), 3),
        (errors.CorruptZnode("/trident/x", found="?", expected="a record"), 3),
        (errors.StagedFileMissing("no"), 3),
        (errors.ZooKeeperUnreachable("no"), 4),
        (Terminated(signal.SIGTERM, "ended"), 143),
        (RuntimeError("no"), 70),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error, code):
    assert (error.code if isinstance(error, SystemExit) else exit_code(error)) == code


# One in a folder that may not be written, also by root; one that is a file; one below a file.
UNUSABLE = {"/sys/warehouse": "this process may not use it", "file": "is a file", "file/below": "is a file"}


COMMANDS = (
    "capture t --txid 1 --code job.py; diff t u --source .; fork t --at 1 --as u --source .; handover t; "
    "migrate checkpoint --topology job.py; repair t; reset t --yes; run job.py; skip t --txid 1; zookeeper start"
).split("; ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_warehouse_that_cannot_be_used_is_no_error_of_the_framework(tmp_path, monkeypatch, command):
    write(tmp_path, WORD_COUNT)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.chdir(tmp_path)
    for warehouse, said in UNUSABLE.items():
        result = CliRunner().invoke(main, [*command.split(), "--warehouse", warehouse])
        assert result.exit_code in (1, 2), result.output
        assert "an error of the framework" not in result.output and "Traceback" not in result.output
        if result.exit_code == 1:
            assert said in result.output and warehouse in result.output


def test_a_checkpoint_may_be_named_from_the_working_folder(tmp_path, monkeypatch):
    write(tmp_path, WORD_COUNT)
    monkeypatch.chdir(tmp_path)
    output = trident("migrate", "lake/ck", "--topology", "job.py", code=2)
    assert output.startswith(f"trident: {tmp_path}/lake/ck is no checkpoint of a query that has begun")


def test_zookeeper_is_tried_before_spark_and_the_status_says_how_the_start_ended(tmp_path, monkeypatch):
    from trident.running import starting

    monkeypatch.setattr(starting, "make_session", lambda *_: pytest.fail("Spark was started"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path, WORD_COUNT)
    output = trident(
        "run", "job.py", "--zookeeper", "127.0.0.1:1", "--set", "zookeeper_connect_timeout_secs=0.2", code=4
    )
    lines = [line[9:] for line in output.splitlines()]
    assert lines[:2] == ["reading job.py", "word-count: connecting to ZooKeeper (127.0.0.1:1)"]
    assert output.splitlines()[2].startswith(
        "trident: no ZooKeeper server answered within 0.2 s; found: no answer from"
    )
    output = trident("status", "word-count", code=1)
    assert output.startswith("word-count: failed\n") and "ended by: no ZooKeeper server answered" in output


def test_a_disk_that_is_full_or_read_only_is_a_problem_of_the_storage_and_a_missing_file_or_a_port_is_none():
    for number in (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO):
        told = storage_problem_of(OSError(number, os.strerror(number), "/data/warehouse"))
        assert isinstance(told, errors.StorageProblem) and exit_code(told) == 1
        assert "/data/warehouse" in str(told) and os.strerror(number) in str(told) and told.action
    assert storage_problem_of(OSError(errno.ENOSPC, "No space left on device")) is not None
    assert storage_problem_of(PermissionError(errno.EACCES, "Permission denied")) is None  # of a socket
    assert storage_problem_of(FileNotFoundError(errno.ENOENT, "No such file", "/data/warehouse")) is None


def test_every_error_of_the_tree_has_a_documented_exit_code():
    def leaves(kind: type) -> list[type]:
        return [kind, *(leaf for one in kind.__subclasses__() for leaf in leaves(one))]

    for kind in leaves(errors.TridentError):
        # A JVM that has died: a service is started again.
        expected = (70,) if issubclass(kind, errors.SessionEnded) else (1, 2, 3, 4)
        assert exit_code(kind.__new__(kind)) in expected, kind


def test_the_embedded_server_is_started_shown_and_stopped(tmp_path):
    warehouse = ["--set", f"warehouse={tmp_path}"]
    assert "not running" in trident("zookeeper", "status", *warehouse, code=5)
    started = trident("zookeeper", "start", *warehouse, code=0)
    try:
        address = started.removeprefix("running at ").strip()
        assert started == trident("zookeeper", "start", *warehouse, code=0)
        assert f"running at {address}, pid" in trident("zookeeper", "status", *warehouse, code=0)
    finally:
        stopped = trident("zookeeper", "stop", *warehouse, code=0)
    assert stopped == "stopped\n"
    assert trident("zookeeper", "stop", *warehouse, code=0) == "it was not running\n"


def test_a_zookeeper_of_your_own_is_not_started():
    output = trident("zookeeper", "start", "--set", "zookeeper=host:2181", code=2)
    assert "found: zookeeper=host:2181 (--set)" in output


def test_it_runs_as_a_program():
    done = python("-m", "trident.cli", "--help")
    assert done.returncode == 0
    for command in ("run", "status", "plan", "compact", "skip", "repair", "reset", "zookeeper"):
        assert f"\n  {command}" in done.stdout
