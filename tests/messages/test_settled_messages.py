"""What is read of a stream's settled messages when it begins: the window, the tries, whoever wrote the files."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from trident.coordinators.errors import TableError
from trident.messages.ledger import Settled, settled_messages
from trident.spouts.contracts import SpoutContext

NEWEST = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
FIELDS = "message string, outcome string, attempts int, txid long, settled_at timestamp"
# (message, outcome, attempts, seconds before the newest), a list for each transaction.
TRANSACTIONS: list[list[tuple[str, str, int, float]]] = [
    [("older", "acked", 0, 700.001), ("replay r 1", "acked", 0, 700.0), ("tried long ago", "failed", 2, 700.0)],
    [("at the edge", "acked", 0, 600.0), ("just behind it", "acked", 0, 600.000001), ("tried", "failed", 1, 599.0)],
    [("tried", "failed", 2, 300.0), ("passed", "failed", 1, 300.0), ("given up", "dead", 4, 300.0)],
    [("passed", "acked", 1, 0.0)],
]


# The first two are of a host whose clock was eleven minutes ahead.
AHEAD: list[list[tuple[str, str, int, float]]] = [
    [("tried", "failed", 1, -600.0), ("older", "acked", 0, -59.0)],
    [("of the host ahead", "acked", 0, -660.0)],
    [("far behind it", "acked", 0, 1.0), ("tried", "failed", 2, 1.0)],
    [("the last", "acked", 0, 0.0)],
]


def write(
    spark: SparkSession, path: Path, partitions: Sequence[str] = (), transactions: Sequence[Any] = TRANSACTIONS
) -> None:
    for txid, ends in enumerate(transactions, 1):
        rows = [(*end, txid, NEWEST - datetime.timedelta(seconds=ago)) for *end, ago in ends]
        frame = spark.createDataFrame([(m, o, a, t, at) for m, o, a, t, at in rows], FIELDS)
        frame.coalesce(1).write.format("delta").partitionBy(*partitions).mode("append").save(str(path))


def read(warehouse: Path, spark: Any = None, requests: tuple[str, ...] = ()) -> tuple[Settled, dict[str, int]]:
    context = SpoutContext(spark, "t", "s", warehouse, "i", {"warehouse": str(warehouse)})
    return settled_messages(context, 600.0, requests)


def known(settled: Settled) -> set[str]:
    ends = {message for ends in [*TRANSACTIONS, *AHEAD] for message, *_ in ends}
    return {message for message in ends if settled.knows(message)}


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("settled")
    write(spark, folder / "t__s__messages")
    return folder


def test_the_window_is_read_without_a_spark_job(warehouse: Path) -> None:
    settled, attempts = read(warehouse)  # there is no session that could run one
    assert known(settled) == {"at the edge", "passed", "given up"} and attempts == {"tried": 2}


@pytest.mark.parametrize(
    "partitions", [pytest.param([], id="by pyarrow"), pytest.param(["outcome"], id="by Spark", marks=pytest.mark.long)]
)
def test_a_host_whose_clock_was_ahead_makes_its_successors_forget_nothing(
    spark: SparkSession, tmp_path: Path, partitions: list[str]
) -> None:
    write(spark, tmp_path / "t__s__messages", partitions, AHEAD)
    settled, attempts = read(tmp_path, spark)
    assert known(settled) == {"older", "of the host ahead", "far behind it", "the last"} and attempts == {"tried": 2}


def test_messages_of_a_replay_request_are_known_however_old_they_are(warehouse: Path) -> None:
    settled, _ = read(warehouse, requests=("r",))
    assert known(settled) == {"at the edge", "passed", "given up", "replay r 1"}


def test_files_behind_the_window_are_not_read_and_others_must_be_there(warehouse: Path, tmp_path: Path) -> None:
    table = shutil.copytree(warehouse / "t__s__messages", tmp_path / "t__s__messages")
    files = sorted(table.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    assert len(files) == len(TRANSACTIONS)
    files[0].unlink()
    assert known(read(tmp_path)[0]) == {"at the edge", "passed", "given up"}
    files[1].unlink()
    with pytest.raises(TableError, match="parquet"):
        read(tmp_path)


def test_a_stream_that_has_no_table_yet_knows_nothing(tmp_path: Path) -> None:
    settled, attempts = read(tmp_path)
    assert len(settled) == 0 and attempts == {}
