"""The checks of the suites in real processes find what they are for; the suites are ``python -m tests.chaos``."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.chaos import measure
from tests.chaos.bounds import broken_bounds
from tests.chaos.checker import compare, in_order
from tests.chaos.deployment import LEADS, TOPOLOGY, Deployment
from tests.chaos.sources import Words
from tests.chaos.workload import Group, topology_of
from tests.topology_helpers import WAIT_SECS, starter

GIVEN = Words(7)[:100]
LIMITS = {"heap_mb": 512, "log_files": 300, "state_files": 40}


def test_each_word_once_and_in_order_passes() -> None:
    compare(GIVEN, GIVEN, ordered=True)
    compare(GIVEN, GIVEN[::-1], ordered=False)
    in_order((word.split("-")[0], word) for word in GIVEN)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (GIVEN[:-1], "1 lost, 0 doubled, 0 that never were"),
        ([*GIVEN, "k0-7"], r"0 lost, 1 doubled, 0 that never were, such as \['k0-7'\]"),
        ([*GIVEN[1:], "k0-7"], "1 lost, 1 doubled, 0 that never were"),
        ([*GIVEN, "k2-100"], "0 lost, 0 doubled, 1 that never were"),
        ([*GIVEN[:3], "k4-3", *GIVEN[4:]], "1 lost, 0 doubled, 1 that never were"),
        ([], "100 lost, 0 doubled"),
        ([GIVEN[1], GIVEN[0], *GIVEN[2:]], "out of order"),
    ],
)
def test_lost_doubled_and_foreign_rows_are_told_apart(found: list[str], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        compare(GIVEN, found, ordered=True)


@pytest.mark.parametrize("numbers", [[0, 7, 0], [7, 0], [0, 0]])
def test_an_older_row_of_a_key_behind_a_newer_one_is_found(numbers: list[int]) -> None:
    with pytest.raises(AssertionError, match="comes behind"):
        in_order(("k0", f"k0-{number}") for number in numbers)


def final(**changed: object) -> dict:
    found = {
        "struck": {"leader": 2},
        "state": {"files": 5},
        "znodes": 15,
        "zookeeper": {"mb": 3.0},
        "orphans": {"lines": 1, "f_counts__log": 0},
        "local": {"files": 3},
        "queue_kb": 40,
        "temporary": 0,
        "data_files": {"f_counts__log": 90},
    }
    return {**found, **changed}


def leader(**growth: float) -> list[dict]:
    """Ten minutes of a leader that is flat but for what is said, so much a minute."""
    flat = {
        "python_mb": 150.0,
        "heap_mb": 200.0,
        "jvm_mb": 900.0,
        "python_files": 30.0,
        "jvm_files": 350.0,
        "python_threads": 30.0,
        "jvm_threads": 120.0,
    }
    return [
        {
            "kind": "process",
            "quiet": True,
            "pid": 1,
            "at": at,
            "age": 100.0 + at,
            **{name: value + growth.get(name, 0.0) * at / 60 for name, value in flat.items()},
        }
        for at in range(0, 600, 10)
    ]


def test_what_is_bounded_passes(tmp_path: Path) -> None:
    assert broken_bounds(leader(), final(), tmp_path, LIMITS) == []


@pytest.mark.parametrize(
    "grown",
    [
        {"znodes": 500},
        {"znodes": -1},
        {"state": {"files": 200}},
        {"zookeeper": {"mb": 900.0}},
        {"temporary": 3},
        {"orphans": {"lines": 90}},
        {"local": {"files": 900}},
        {"data_files": {"f_counts__log": 3_000}},
    ],
)
def test_what_piles_up_on_disk_is_found(tmp_path: Path, grown: dict) -> None:
    assert len(broken_bounds(leader(), final(**grown), tmp_path, LIMITS)) == 1


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("python_mb", 3.0),
        ("heap_mb", 10.0),
        ("python_files", 3.0),
        ("jvm_files", 8.0),
        ("python_threads", 2.0),
        ("jvm_threads", 6.0),
    ],
)
def test_what_a_leader_gathers_is_found(tmp_path: Path, name: str, each: float) -> None:
    (found,) = broken_bounds(leader(**{name: each}), final(), tmp_path, LIMITS)
    assert found.startswith(name)


def test_files_that_no_commit_names_and_drafts_are_counted(tmp_path: Path) -> None:
    log, data = tmp_path / "t" / "_delta_log", tmp_path / "t" / "data" / "i"
    log.mkdir(parents=True)
    for name in ("1-0-a/named.parquet", "1-1-b/left.parquet"):
        (data / name).parent.mkdir(parents=True)
        (data / name).touch()
    (log / f"{0:020d}.json").write_text('{"add":{"path":"data/i/1-0-a/named.parquet"}}\n')
    (log / f".{1:020d}.json.x.tmp").touch()
    assert measure.orphans(tmp_path / "t") == {"data/i/1-1-b/left.parquet"}
    assert measure.temporary(tmp_path) == [f"t/_delta_log/.{1:020d}.json.x.tmp"]


def test_a_leader_that_dies_between_two_tables_is_succeeded_by_its_standby(
    spark: SparkSession, zk_server: str, tmp_path: Path
) -> None:
    """Of `make sweep`, kills, soak, failover and handover what `make test` has: a real process dies, this one waits."""
    with Deployment(tmp_path / "d", [Group("transactional", "")], zookeeper=zk_server) as deployment:
        leader = deployment.start("leader", faults="publish.table:do_then_die:1")
        (books,) = deployment.books
        deployment.wait(lambda: leader.events(LEADS), "no process leads")
        with starter(spark, zk_server, deployment.root, deployment.folder) as start:
            query = start(topology_of(TOPOLOGY, [books.group]))
            deployment.feed(2)
            deployment.wait(leader.died, "the leader does not die")
            query.process_all_available(WAIT_SECS)
            deployment.check()
        controls = [control for name in ("audit", "counts__log") for control in books.stored.table(name).history]
        assert {control["epoch"] for control in controls if control.get("txid")} == {1, 2}
