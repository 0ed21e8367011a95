"""``trident doctor`` on this machine; with a cluster: tests/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from trident.cli import main
from trident.coordinators.loopback_port import LoopbackPort


def doctor(*arguments: str, code: int) -> str:
    result = CliRunner().invoke(main, ["doctor", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_this_machine_is_looked_at_and_nothing_stays(tmp_path: Path) -> None:
    told = doctor("--warehouse", str(tmp_path / "none"), code=0)
    assert "not there yet" in told and "Java         " in told and "pyarrow" in told and "No problem found." in told
    assert "writable" in doctor("--warehouse", str(tmp_path), code=0)
    assert list(tmp_path.iterdir()) == []


def test_a_zookeeper_that_answers_is_told_of_and_one_that_does_not_is_a_problem(
    tmp_path: Path, zk_server: str, zk_root: str
) -> None:
    root = ("--warehouse", str(tmp_path), "--set", f"zookeeper_root={zk_root}")
    assert f"{zk_server} answers" in doctor("--zookeeper", zk_server, *root, code=0)
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
        (("--cluster",), "there is no cluster to look at; found: local[*] (default)"),
        (("--cluster", "--conf", "spark.master=local[2]"), "there is no cluster to look at; found: local[2]"),
        (("--conf", "spark.master=yarn"), "the embedded ZooKeeper serves one machine, and the Spark master is yarn"),
    ],
)
def test_a_cluster_is_asked_for_by_its_master(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    assert told in doctor("--warehouse", str(tmp_path), *arguments, code=2)


def test_a_warehouse_that_is_no_folder_that_can_be_written_to_is_a_problem(tmp_path: Path) -> None:
    told = doctor("--warehouse", "/proc", code=2)  # root may write anywhere else
    assert "the warehouse /proc cannot be written to" in told
