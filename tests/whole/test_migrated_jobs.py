"""A job of Structured Streaming over Kafka is killed with SIGKILL anywhere, goes on here, and ends as a control run.

The two programs are those of examples/migrate. TRIDENT_MIGRATE says how many messages; `make migrate` has 8 million.
"""

from __future__ import annotations

import difflib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.servers.kafka_fixtures import KafkaBroker
from tests.topology_helpers import starter
from trident.commands.user_file import load_topology
from trident.spark.jars import delta_package, resolved_jars

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "examples" / "migrate"
MESSAGES = int(os.environ.get("TRIDENT_MIGRATE", "0"))
PARTITIONS, BATCHES, CHANGED_LINES_MAX = 4, 10, 20
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
LONG = pytest.mark.skipif(not MESSAGES, reason="NOT TESTED: a killed job that goes on here. `make migrate` does")


def changed_lines() -> list[str]:
    before, after = ((PROGRAMS / name).read_text().splitlines() for name in ("before.py", "after.py"))
    return [line for line in difflib.ndiff(before, after) if line[0] in "+-" and line[2:].strip()]


def test_a_job_is_taken_over_with_twenty_changed_lines() -> None:
    """Of both programs together; and the page shows them as they are."""
    assert len(changed_lines()) <= CHANGED_LINES_MAX
    page = (ROOT / "docs" / "migrate.md").read_text()
    for name in ("before.py", "after.py"):
        assert (PROGRAMS / name).read_text().split("\n", 2)[2].strip() in page


class OldJob:
    """The program before, in a process of its own, over one lake."""

    def __init__(self, spark: SparkSession, lake: Path, broker: KafkaBroker, rows: int) -> None:
        self.lake, self.checkpoint = lake, lake / "checkpoint"
        lake.mkdir()
        text = (PROGRAMS / "before.py").read_text().replace("400_000", str(rows))
        assert str(rows) in text
        self.program = lake / "job.py"
        self.program.write_text(text)
        spark.sql(f"CREATE TABLE delta.`{lake}/counts` (item STRING, count BIGINT) USING delta")
        jars = resolved_jars(
            "Spark's source for Kafka", [CONNECTOR, delta_package()], ("io.delta", "org.apache", "org."), {}
        )
        settings = {
            "spark.master": "local[2]",
            "spark.driver.memory": "2g",
            "spark.ui.enabled": "false",
            "spark.jars": ",".join(jars),
            "spark.sql.shuffle.partitions": "4",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
        confs = " ".join(f"--conf {key}={value}" for key, value in settings.items())
        self.environment = {
            **os.environ,
            "BROKERS": broker.address,
            "LAKE": str(lake),
            "PYSPARK_SUBMIT_ARGS": f"{confs} pyspark-shell",
        }

    def start(self) -> subprocess.Popen:
        log = open(self.lake / "job.log", "ab")
        return subprocess.Popen(
            [sys.executable, str(self.program)], env=self.environment, stdout=log, stderr=log, start_new_session=True
        )

    def run_until(self, is_there: Callable[[], bool]) -> None:
        """Starts it, and kills it, and its JVM, at once when something is there."""
        process = self.start()
        try:
            while not is_there():
                assert process.poll() is None, (self.lake / "job.log").read_text(errors="replace")[-3000:]
                time.sleep(0.002)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def batches(self, part: str) -> int:
        """Counts the batches that are planned, or committed."""
        folder = self.checkpoint / part
        return sum(name.isdigit() for name in os.listdir(folder)) if folder.is_dir() else 0

    def merges(self) -> int:
        """Counts the versions of the target."""
        return sum(name.endswith(".json") for name in os.listdir(self.lake / "counts" / "_delta_log")) - 1


STOPS: dict[str, Callable[[OldJob, int], bool]] = {
    "planned": lambda job, batch: job.batches("offsets") > batch,
    "merged": lambda job, batch: job.merges() > batch,
    "committed": lambda job, batch: job.batches("commits") > batch,
}


@pytest.fixture(scope="module")
def filled(kafka_session: KafkaBroker) -> KafkaBroker:
    """The topic of both programs, with messages over items that come again in many batches."""
    kafka_session.create("orders", PARTITIONS)
    seed = random.Random(22)
    for partition in range(PARTITIONS):
        count = MESSAGES // PARTITIONS
        kafka_session.put("orders", [b"item-%d" % seed.randrange(MESSAGES // 8 + 1) for _ in range(count)], partition)
    return kafka_session


def counted(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("item", "count")


@pytest.fixture(scope="module")
def control(spark: SparkSession, filled: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataFrame]:
    """The table of a run of the old program that nothing interrupts."""
    job = OldJob(spark, tmp_path_factory.mktemp("control") / "lake", filled, MESSAGES // BATCHES)
    job.run_until(lambda: job.batches("commits") >= BATCHES)
    frame = spark.read.format("delta").load(f"{job.lake}/counts")
    assert frame.selectExpr("sum(count)").collect()[0][0] == MESSAGES // PARTITIONS * PARTITIONS
    yield counted(frame)


@LONG
@pytest.mark.parametrize("stop", STOPS)
def test_a_job_that_was_killed_goes_on_here_and_ends_as_a_control_run(
    stop: str,
    spark: SparkSession,
    filled: KafkaBroker,
    control: DataFrame,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed where a batch is planned, merged or committed, in the run's middle; the target knows what it has."""
    # Behind the control run, and with a connection that stays: a server that no client needs for ten minutes ends.
    _, zk_server, zk_root = (request.getfixturevalue(name) for name in ("zk", "zk_server", "zk_root"))
    job = OldJob(spark, tmp_path / "warehouse", filled, MESSAGES // BATCHES)
    middle = random.Random(uuid.uuid4().int).randrange(3, BATCHES - 3)
    job.run_until(lambda: STOPS[stop](job, middle))
    found = {part: job.batches(part) for part in ("offsets", "commits")}
    print(f"\n{stop}: batches planned and committed when it was killed: {found}, {job.merges()} MERGEs")
    for key in ("BROKERS", "LAKE"):
        monkeypatch.setenv(key, job.environment[key])
    settings = ["--set", f"zookeeper={zk_server}", "--set", f"zookeeper_root={zk_root}"]
    asked = [str(job.checkpoint), "--topology", str(PROGRAMS / "after.py"), *settings]
    asked += ["--target", str(job.lake / "counts"), "--app-id", "orders"]
    done = subprocess.run([sys.executable, "-m", "trident.cli", "migrate", *asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    before = {path.name: path.stat().st_mtime_ns for path in (job.lake / "counts").glob("*.parquet")}
    began = time.monotonic()
    topology, config = load_topology(str(PROGRAMS / "after.py"))
    assert config is not None and config.warehouse == str(job.lake)
    with starter(spark, zk_server, zk_root, tmp_path) as start:
        query = start(topology)
        query.process_all_available(1200)
        rows = counted(query.snapshot("counts"))
        assert rows.exceptAll(control).isEmpty() and control.exceptAll(rows).isEmpty()
    print(f"{stop}: the rest took {time.monotonic() - began:.0f} s here")
    after = {path.name: path.stat().st_mtime_ns for path in (job.lake / "counts").glob("*.parquet")}
    assert after.items() >= before.items(), "no data file of the old table was written again"
