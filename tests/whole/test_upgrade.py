"""The present code goes on with the warehouse and the ZooKeeper data of each older version, exactly."""

from __future__ import annotations

import sqlite3
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.upgrade.job import PARTITIONS, WORDS, feed, lines_of
from tests.upgrade.make import FED, HERE, job, program_of, stop_servers
from trident import read
from trident.config import TridentConfig
from trident.repair.apply import repair
from trident.states.core.values import loads

FIXTURES = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))
OF_ROUND_ONE = [name for name in FIXTURES if program_of(name).name == "job.py"]
MORE = FED + 3


def test_there_is_a_fixture_of_round_one() -> None:
    assert "round-one" in OF_ROUND_ONE


def extract(name: str, folder: Path) -> None:
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(folder)


@pytest.fixture(params=OF_ROUND_ONE)
def older(request: pytest.FixtureRequest, tmp_path: Path):
    extract(request.param, tmp_path)
    yield tmp_path
    stop_servers(tmp_path)


def rows(folder: Path, table: str) -> list[dict]:
    """Read by another implementation of Delta."""
    return DeltaTable(str(folder / "warehouse" / table)).to_pyarrow_table().to_pylist()


def test_what_an_older_version_has_stored_is_read_and_nothing_contradicts_it(older: Path, spark: SparkSession) -> None:
    """Its znodes, manifests, descriptors, control records and half merged tables, with a decision pending."""
    config = TridentConfig(warehouse=str(older / "warehouse"))
    found = repair("upgraded", config=config, spark=spark)
    groups = {group.name: group for group in found.facts.groups}
    assert found.findings == [] and groups.keys() == {"inbox", "lines", "numbers", "orders"}
    assert {name for name, group in groups.items() if group.decision is not None} == {"numbers"}
    assert groups["lines"].record.current_txid == 4 and groups["lines"].record.attempts == {4: 0, 5: 0, 6: 0}
    counts = {row["value"]: row["n"] for row in read(spark, str(older / "warehouse"), "counts").collect()}
    assert counts == Counter(row["value"] for row in rows(older, "seen")) == dict.fromkeys(WORDS, 4)


@pytest.mark.long
def test_an_older_versions_decision_is_finished_and_everything_counts_once(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(older)
    feed(FED, MORE)
    done = job(older, "run")
    assert done.returncode == 0 and "all advanced" in done.stdout, done.stderr

    words = Counter(word for number in range(MORE) for word in lines_of(number))
    assert {row["value"]: row["n"] for row in rows(older, "counts")} == words
    assert Counter(row["value"] for row in rows(older, "seen")) == words
    with sqlite3.connect(older / "totals.db") as totals:
        stored = {loads(key)[0]: loads(value) for key, value in totals.execute("SELECT key, value FROM totals")}
    assert {word: value.current for word, value in stored.items()} == words
    orders = Counter((row["item"], row["n"]) for row in rows(older, "order_lines"))
    assert orders == Counter((WORDS[number % 5], number) for number in range(MORE))
    numbers = Counter(row["number"] for row in rows(older, "numbers_seen"))
    assert numbers == Counter(f"{partition}-{number}" for partition in PARTITIONS for number in range(MORE))
    names = Counter(f"name {number % 4}" for number in range(MORE) if number % 7 != 3)
    assert {row["known"]: row["n"] for row in rows(older, "names")} == names
    dead = Counter(row["message"] for row in rows(older, "upgraded__inbox__dead_letters"))
    assert dead == Counter(str(number) for number in range(MORE) if number % 7 == 3)
