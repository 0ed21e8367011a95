"""``trident doctor`` on this machine; with a cluster: tests/cluster."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tests.whole.storage_helpers import small_disk
from trident import DeltaAppend, FixedBatchSpout, TridentTopology
from trident.cli import main
from trident.commands import doctor as doctor_warehouse
from trident.commands.doctor import Report, check_machine, check_warehouse
from trident.config import TridentConfig
from trident.coordinators.embedded_server import LoopbackPort
from trident.coordinators.errors import StorageProblem
from trident.spark import jars
from trident.states.core.place import Place


def doctor(*arguments: str, code: int) -> str:
    result = CliRunner().invoke(main, ["doctor", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_this_machine_is_looked_at_and_nothing_stays(tmp_path: Path) -> None:
    told = doctor("--warehouse", str(tmp_path / "none"), code=0)
    assert "in the cache" in told and "one that was tried answered" in told and "127.0.0.1 answers" in told
    assert "not there yet" in told and "Java         " in told and "pyarrow" in told and "No problem found." in told
    assert list(tmp_path.iterdir()) == []


def test_a_zookeeper_that_answers_is_told_of_and_one_that_does_not_is_a_problem(
    tmp_path: Path, zk_server: str, zk_root: str
) -> None:
    root = ("--warehouse", str(tmp_path), "--set", f"zookeeper_root={zk_root}")
    told = doctor("--zookeeper", zk_server, *root, code=0)
    assert f"{zk_server} answers" in told and "writable, one of four writers wins" in told
    assert list(tmp_path.iterdir()) == []
    refused = LoopbackPort()  # none listens there
    try:
        away = ("--zookeeper", f"127.0.0.1:{refused.number}", "--set", "zookeeper_connect_timeout_secs=0.5")
        told = doctor(*away, *root, code=2)
    finally:
        refused.close()
    assert "Problems:" in told and "see below" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--cluster",), "there is no cluster to check; found: local[*] (default)"),
        (("--cluster", "--conf", "spark.master=local[2]"), "there is no cluster to check; found: local[2]"),
        (("--conf", "spark.master=yarn"), "the embedded ZooKeeper serves one machine, and the Spark master is yarn"),
    ],
)
def test_a_cluster_is_asked_for_by_its_master(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    assert told in doctor("--warehouse", str(tmp_path), *arguments, code=2)


def refused(warehouse: Path) -> str:
    """The one problem that doctor finds with a warehouse; a start is refused for the same reason."""
    topology = TridentTopology("t")
    topology.new_stream("s", FixedBatchSpout("a long", [[(1,)]])).partition_persist(DeltaAppend("out"), "a")
    with pytest.raises(StorageProblem) as caught:
        topology.start(warehouse=str(warehouse), zookeeper="127.0.0.1:1")
    report = Report()
    check_warehouse(report, Place(warehouse))
    (problem,) = report.problems
    assert "see below" in report.text() and "No problem found" not in report.text()
    assert str(caught.value).partition("; found: ")[2] == problem.partition("; found: ")[2], "one reason, one remedy"
    return problem


def test_a_warehouse_that_a_start_cannot_make_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "a part of the path is a file" in refused(tmp_path / "file" / "below" / "w")
    assert "a part of the path is a file" in refused(tmp_path / "file")
    assert "it leads nowhere" in refused(Path("/proc/w"))
    # Root may write anywhere else.
    assert "may not use it" in (found := refused(Path("/sys/w"))) or "read-only" in found


def test_a_file_system_that_is_mounted_read_only_is_a_problem_wherever_a_start_writes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        disk.protect()
        assert "mounted read-only" in refused(tmp_path / "disk")
        assert "mounted read-only" in refused(tmp_path / "disk" / "none" / "w")
    (tmp_path / "w").mkdir()
    with small_disk(tmp_path / "w" / "_trident", 4) as disk:
        disk.protect()
        report = Report()
        check_warehouse(report, Place(tmp_path / "w"))
    assert "mounted read-only" in report.problems[0] and [*(tmp_path / "w").iterdir()] == [tmp_path / "w" / "_trident"]


# --- single looks, each at what is wrong -----------------------------------------------------------


def test_a_machine_without_java_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    report = Report()
    assert check_machine(report, TridentConfig()) is False
    assert "there is no Java" in report.text() and "apt-get install openjdk" in report.text()
    assert not any(line.startswith("jars") for line in report.lines)


def test_a_temporary_folder_in_which_no_file_can_be_made_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    report = Report()
    check_machine(report, TridentConfig(spark_conf=(("spark.local.dir", f"/sys/none,{tmp_path}/new/folder"),)))
    assert [one.partition("; found: ")[0] for one in report.problems] == [
        f"no temporary file can be written in {tmp_path}/file",
        "no temporary file can be written in /sys/none",
    ]


def test_a_port_that_is_taken_is_worth_knowing_and_stops_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        report = Report()
        check_machine(report, TridentConfig(http=str(taken.getsockname()[1])))
    assert "another process listens at http=" in report.text() and report.problems == []


def test_a_full_disk_is_a_problem_and_a_small_one_worth_knowing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"free": 1 << 20}
    monkeypatch.setattr(doctor_warehouse.shutil, "disk_usage", lambda _: SimpleNamespace(**free))
    full, small = Report(), Report()
    check_warehouse(full, Place(tmp_path))
    assert len(full.problems) == 1 and "is full" in full.problems[0] and "Make room" in full.problems[0]
    free["free"] = 1 << 30
    check_warehouse(small, Place(tmp_path))
    assert small.problems == [] and any("has 1.0 GB left" in note for note in small.notes)


def test_a_machine_that_does_not_know_its_own_name_starts_spark_at_the_loopback_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(jars.socket, "gethostname", lambda: "no-such-host.invalid")
    jars.use_loopback_if_unresolvable(environment)
    assert environment == {"SPARK_LOCAL_IP": "127.0.0.1"}
    said = {"SPARK_LOCAL_IP": "10.0.0.7"}
    jars.use_loopback_if_unresolvable(said)
    assert said == {"SPARK_LOCAL_IP": "10.0.0.7"}
    assert "/etc/hosts" in (jars.hostname_problem() or "")
    monkeypatch.setattr(jars.socket, "gethostname", lambda: "localhost")
    assert jars.hostname_problem() is None
