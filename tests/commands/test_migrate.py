"""``trident migrate``: a job of Structured Streaming with foreachBatch and MERGE goes on here, wherever it stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from delta.tables import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.topology_helpers import WAIT_SECS, Starter
from trident import Count, DeltaMapState, DeltaSpout, FileSpout, FixedBatchSpout, TridentTopology
from trident.cli import main
from trident.commands import admin
from trident.commands.migrate import InDoubt, migrate
from trident.config import TridentConfig
from trident.coordinators import faults
from trident.coordinators.errors import ConfigError, CoordinationError, Halted, SourceError, TopologyError, TridentError
from trident.coordinators.registration import Registration
from trident.spouts.checkpoint import StreamCheckpoint, seen_files
from trident.states.core.place import Place

APP = "old-job"
WORDS = ["a b a", "b c", "c c d", "a d e"]
ALL = Counter(" ".join(WORDS).split())


class Crash(Exception):
    """The old job ends here, or the command."""


def crash(*_: Any, **__: Any) -> None:
    raise Crash


class OldJob:
    """A query with foreachBatch that merges counts of words, exactly once by txnAppId and txnVersion."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark.newSession(), folder
        self.target, self.checkpoint = folder / "warehouse" / "counts", folder / "checkpoint"
        spark.sql(f"CREATE TABLE delta.`{self.target}` (word STRING, count BIGINT) USING delta")

    def source(self, kind: str) -> DataFrame:
        read = self.spark.readStream.option("maxFilesPerTrigger", 1)
        if kind == "files":
            return read.format("text").load(str(self.folder / "in"))
        return read.format("delta").load(str(self.folder / "source"))

    def run(self, kind: str, stop: tuple[int, str] | None = None, **settings: str) -> None:
        """All that is there, or up to a place in a batch: "before" or "after" its MERGE."""
        conf = self.spark.conf
        for key, value in settings.items():
            conf.set(key.replace("__", "."), value)

        def merge(rows: DataFrame, batch: int) -> None:
            if stop == (batch, "before"):
                raise Crash
            words = rows.select(F.explode(F.split("value", " ")).alias("word")).groupBy("word").count()
            session = rows.sparkSession
            session.conf.set("spark.databricks.delta.write.txnAppId", APP)
            session.conf.set("spark.databricks.delta.write.txnVersion", str(batch))
            target = DeltaTable.forPath(session, str(self.target)).alias("t")
            merged = target.merge(words.alias("s"), "t.word = s.word")
            merged.whenMatchedUpdate(set={"count": "t.count + s.count"}).whenNotMatchedInsertAll().execute()
            if stop == (batch, "after"):
                raise Crash

        query = self.source(kind).writeStream.foreachBatch(merge).option("checkpointLocation", str(self.checkpoint))
        running = query.trigger(availableNow=True).start()
        try:
            running.awaitTermination()
            assert stop is None
        except StreamingQueryException:
            assert stop is not None


def feed(spark: SparkSession, folder: Path, kind: str, lines: list[str], first: int = 0) -> None:
    if kind == "files":
        (folder / "in").mkdir(exist_ok=True)
        for number, line in enumerate(lines, first):
            (folder / "in" / f"part {number}.txt").write_text(line + "\n")
        return
    rows = spark.createDataFrame([(line,) for line in lines], "value string").repartition(len(lines))
    rows.write.format("delta").mode("append").save(str(folder / "source"))


def words(folder: Path, kind: str, adopt: bool = True) -> TridentTopology:
    topology = TridentTopology("words")
    spout = FileSpout(folder / "in") if kind == "files" else DeltaSpout(folder / "source")
    lines = topology.new_stream("lines", spout).flat_map(lambda value: value.split(), "word string")
    lines.group_by("word").persistent_aggregate(DeltaMapState("counts", adopt=adopt), Count(), "count")
    return topology


@pytest.fixture
def config(zk_server: str, zk_root: str, tmp_path: Path) -> TridentConfig:
    return TridentConfig(warehouse=str(tmp_path / "warehouse"), zookeeper=zk_server, zookeeper_root=zk_root)


def counts(query: Any) -> dict[str, int]:
    return {row["word"]: row["count"] for row in query.snapshot("counts").collect()}


# --- the old job, stopped anywhere ----------------------------------------------------------------------

STOPS: list[Any] = [pytest.param("files", (2, "before"), marks=pytest.mark.long)]
if os.environ.get("TRIDENT_MIGRATE"):
    STOPS += [("files", None), ("files", (2, "after")), ("delta", (1, "after")), ("delta", None)]


@pytest.mark.parametrize("kind, stop", STOPS, ids=str)
def test_a_job_that_was_stopped_anywhere_goes_on_here(
    kind: str, stop: tuple[int, str] | None, spark: SparkSession, start: Starter, config: TridentConfig, tmp_path: Path
) -> None:
    """The target says whether it has the batch in doubt; a starting snapshot goes on in its middle. No row twice."""
    feed(spark, tmp_path, kind, WORDS[:3])
    job = OldJob(spark, tmp_path)
    job.run(kind, stop)
    before = {path.name for path in job.target.glob("*.parquet")}
    if stop is not None:
        with pytest.raises(SourceError, match=f"batch {stop[0]} of the checkpoint .* is in doubt.*--target TABLE"):
            migrate(str(job.checkpoint), words(tmp_path, kind), config)
    doubt = InDoubt(targets=[str(job.target)], app_id=APP)
    done = {None: 2, (2, "before"): 1, (2, "after"): 2, (1, "after"): 1}[stop]
    if kind == "delta" and stop is None:
        done = 2
    said = migrate(str(job.checkpoint), words(tmp_path, kind), config, doubt)
    assert f"transaction 1 begins after batch {done} " in said and "stream lines: " in said
    assert migrate(str(job.checkpoint), words(tmp_path, kind), config, doubt) == said, "again it does nothing more"
    feed(spark, tmp_path, kind, WORDS[3:], 3)
    query = start.run(words(tmp_path, kind))
    assert counts(query) == ALL
    assert {path.name for path in job.target.glob("*.parquet")} >= before
    with pytest.raises(CoordinationError, match="words is running|has begun"):
        migrate(str(job.checkpoint), words(tmp_path, kind), config, doubt)
    query.stop(compact=False)
    again = start(words(tmp_path, kind))
    again.process_all_available(WAIT_SECS)
    assert counts(again) == ALL


@pytest.mark.long
def test_a_later_version_of_a_delta_table_goes_on_in_its_middle(
    spark: SparkSession, start: Starter, config: TridentConfig, tmp_path: Path
) -> None:
    """The files of one commit, one in each batch, in the order of the commit; and the format v2 of offsets."""
    feed(spark, tmp_path, "delta", WORDS[:1])
    job = OldJob(spark, tmp_path)
    job.run("delta", spark__sql__streaming__offsetLog__formatVersion="2")
    feed(spark, tmp_path, "delta", WORDS[1:])
    job.run("delta", (2, "before"), spark__sql__streaming__offsetLog__formatVersion="2")
    assert (job.checkpoint / "offsets" / "0").read_text().startswith("v2\n")
    found = StreamCheckpoint(Place(job.checkpoint)).ends(1)[0].value
    assert (found["reservoirVersion"], found["index"], found["isStartingVersion"]) == (1, 0, False)
    migrate(str(job.checkpoint), words(tmp_path, "delta"), config, InDoubt(again=True))
    assert counts(start.run(words(tmp_path, "delta"))) == ALL


def program(folder: Path, adopt: bool = True) -> Path:
    path = folder / "program.py"
    path.write_text(
        "from trident import *\n"
        "topology = TridentTopology('words')\n"
        f"lines = topology.new_stream('lines', FileSpout({str(folder / 'in')!r}))\n"
        f"counts = DeltaMapState('counts', adopt={adopt})\n"
        "lines.flat_map(str.split, 'word string').group_by('word').persistent_aggregate(counts, Count(), 'count')\n"
    )
    return path


def options(config: TridentConfig) -> list[str]:
    given = {"zookeeper_root": config.zookeeper_root, "zookeeper_session_timeout_secs": 4}
    sets = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    return ["--warehouse", config.warehouse, "--zookeeper", config.zookeeper, *sets]


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True], ids=["failed", "killed"])
def test_a_command_that_ends_halfway_leaves_a_topology_that_begins_nowhere_until_it_runs_again(
    killed: bool,
    spark: SparkSession,
    start: Starter,
    config: TridentConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the positions and the topology's registration. Files that the job has read are not read again: also one
    that is gone, and comes again with the same name."""
    feed(spark, tmp_path, "files", WORDS)
    folder = made(tmp_path / "c", 0, 0)
    paths = [tmp_path / "in" / f"part {number}.txt" for number in (0, 1)]
    lines = [json.dumps({"path": path.as_uri(), "timestamp": 5, "batchId": 0}) for path in paths]
    (folder / "sources" / "0" / "0").write_text("\n".join(["v1", *lines]))
    paths[1].unlink()
    asked = [sys.executable, "-m", "trident.cli", "migrate", str(folder), "--topology", str(program(tmp_path, False))]
    dying = {**os.environ, "TRIDENT_FAULTS": "zk.record:do_then_die"}
    topology = words(tmp_path, "files", adopt=False)

    def ends_halfway() -> None:
        if killed:
            ended = subprocess.run([*asked, *options(config)], env=dying, capture_output=True)
            assert ended.returncode == -signal.SIGKILL
            return
        with monkeypatch.context() as dies, pytest.raises(Crash):
            dies.setattr(Registration, "ensure", crash)
            migrate(str(folder), topology, config)

    ends_halfway()
    with pytest.raises(Halted, match="another incarnation"):
        start.run(topology)
    with pytest.raises(CoordinationError, match="trident reset words"):
        migrate(str(folder), topology, config)
    admin.reset("words", config=config)
    ends_halfway()
    migrate(str(folder), topology, config)
    feed(spark, tmp_path, "files", WORDS[:2])
    assert counts(start.run(topology)) == Counter(" ".join(WORDS[2:]).split())


@pytest.mark.long
def test_the_command_line_runs_it(spark: SparkSession, tmp_path: Path, config: TridentConfig) -> None:
    feed(spark, tmp_path, "files", WORDS[:1])
    job = OldJob(spark, tmp_path)
    job.run("files", (0, "after"))
    given = options(config)
    asked = ["migrate", str(job.checkpoint), "--topology", str(program(tmp_path)), *given]
    refused = CliRunner().invoke(main, asked)
    assert refused.exit_code == 2 and "batch 0 of the checkpoint" in refused.stderr
    assert "does not say where batch 0 began" in CliRunner().invoke(main, [*asked, "--again"]).stderr
    taken = CliRunner().invoke(main, [*asked, "--skip"])
    assert taken.exit_code == 0 and "transaction 1 begins after batch 0 of" in taken.stdout, taken.output
    assert CliRunner().invoke(main, ["repair", "words", *given]).exit_code == 0, "nothing contradicts it"


# --- which batch ----------------------------------------------------------------------------------------


def made(folder: Path, offsets: int, commits: int, values: list[Any] | None = None, version: str = "v1") -> Path:
    """A checkpoint as Spark writes it, with batches 0 … offsets and commits 0 … commits."""
    for part in ("offsets", "commits", "sources/0"):
        (folder / part).mkdir(parents=True)
    for batch in range(offsets + 1):
        given = [{"logOffset": batch}] if values is None else values
        lines = [version, '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}', *map(json.dumps, given)]
        (folder / "offsets" / str(batch)).write_text("\n".join(lines))
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    for batch in range(commits + 1):
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def fixed() -> TridentTopology:
    topology = TridentTopology("fixed")
    topology.new_stream("s", FixedBatchSpout("n long", [])).group_by("n").persistent_aggregate(
        DeltaMapState("counts"), Count(), "count"
    )
    return topology


def target(folder: Path, **txns: int) -> str:
    """The log of a Delta table with transaction ids."""
    (folder / "_delta_log").mkdir(parents=True)
    kind = {"type": "struct", "fields": []}
    actions: list[dict] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": folder.name,
                "schemaString": json.dumps(kind),
                "partitionColumns": [],
                "configuration": {},
            }
        },
        *({"txn": {"appId": app, "version": version}} for app, version in txns.items()),
    ]
    (folder / "_delta_log" / f"{0:020d}.json").write_text("".join(json.dumps(one) + "\n" for one in actions))
    return str(folder)


def refusal(checkpoint: Path, **doubt: Any) -> str:
    """No ZooKeeper is asked before that."""
    config = TridentConfig(warehouse=str(checkpoint.parent / "warehouse"), zookeeper="127.0.0.1:1")
    with pytest.raises(TridentError) as caught:
        migrate(str(checkpoint), fixed(), config, InDoubt(**doubt))
    return str(caught.value)


def test_targets_that_do_not_say_it_are_asked_for_nothing(tmp_path: Path) -> None:
    """Or that contradict each other: a batch is never taken for done, or for not done, by a guess."""
    checkpoint = made(tmp_path / "c", 7, 6)
    assert "batch 7 of the checkpoint" in refusal(checkpoint)
    at6, at7 = target(tmp_path / "six", job=6), target(tmp_path / "seven", job=7)
    assert "in some targets, and not in others" in refusal(checkpoint, targets=[at6, at7], app_id="job")
    for odd in (5, 8):
        text = refusal(checkpoint, targets=[target(tmp_path / str(odd), job=odd)], app_id="job")
        assert "does not say whether it has batch 7" in text and f"job at {odd}" in text
    assert "does not say whether it has batch 7" in refusal(checkpoint, targets=[at7], app_id="jop")
    for known in ({"targets": [at6], "app_id": "job"}, {"again": True}, {"skip": True}):
        assert "no stream that reads it" in refusal(checkpoint, **known), "the next thing that is wrong"
    with pytest.raises(ConfigError, match="--again and --skip"):
        InDoubt(again=True, skip=True)
    with pytest.raises(ConfigError, match="--target"):
        InDoubt(app_id="job")


def test_a_warehouse_in_a_store_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in a store"):
        migrate(str(made(tmp_path / "c", 0, 0)), fixed(), TridentConfig(warehouse="s3a://bucket/warehouse"))


def test_a_checkpoint_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is no checkpoint" in refusal(tmp_path / "empty")
    assert "is not whole" in refusal(made(tmp_path / "hole", 7, 5))
    assert "is not whole" in refusal(made(tmp_path / "ahead", 5, 6))
    stateful = made(tmp_path / "stateful", 1, 1)
    (stateful / "state" / "0").mkdir(parents=True)
    assert "state of Spark's own" in refusal(stateful)
    text = refusal(made(tmp_path / "newer", 1, 1, version="v3"))
    assert "cannot be read" in text and "'v3'" in text
    for number, torn in enumerate(["", "v1", "v1\n{}\n{", "v1\n[1]\n{}", "v2\n{}\nx", "v2\n{}\n../x:{}"]):
        checkpoint = made(tmp_path / f"torn{number}", 1, 1)
        (checkpoint / "offsets" / "1").write_text(torn)
        assert "cannot be read" in refusal(checkpoint), torn
    gone = made(tmp_path / "gone", 1, 0)
    (gone / "offsets" / "0").unlink()
    assert "is gone" in refusal(gone, again=True)
    assert "kind that cannot be imported" in refusal(made(tmp_path / "kind", 1, 1, [{"rate": 7}]))
    numbers = made(tmp_path / "long", 1, 1, [{"long": 1}])
    assert "StructuredStreamSpout" in refusal(numbers)


def test_a_checkpoint_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    checkpoint = made(tmp_path / "c", 1, 1)
    faults.arm("checkpoint.read:fail_before:2")
    try:
        assert "injected fault" in refusal(checkpoint)
    finally:
        faults.disarm()


# --- sources --------------------------------------------------------------------------------------------


def entries(folder: Path, name: str, batches: list[int]) -> None:
    lines = [json.dumps({"path": f"file:///in/a%20{batch}", "timestamp": batch, "batchId": batch}) for batch in batches]
    (folder / "sources" / "0" / name).write_text("\n".join(["v1", *lines]))


@pytest.mark.parametrize("upto", [0, 8, 9, 10, 11])
def test_the_files_that_were_read_are_found_in_compacted_logs(tmp_path: Path, upto: int) -> None:
    """A compacted log has all files up to it; older parts are deleted, so that the batch in doubt may be in it."""
    folder = made(tmp_path / "c", 11, 11)
    entries(folder, "9.compact", list(range(10)))
    for batch in (10, 11):
        entries(folder, str(batch), [batch])
    source = StreamCheckpoint(Place(folder)).ends(upto)[0]
    assert seen_files(source) == {f"file:///in/a%20{batch}": batch for batch in range(upto + 1)}


def test_a_log_of_files_with_a_hole_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "c", 3, 3)
    for batch in (0, 1, 3):
        entries(folder, str(batch), [batch])
    source = StreamCheckpoint(Place(folder)).ends(3)[0]
    with pytest.raises(SourceError, match="is gone: .*/2"):
        seen_files(source)
    (folder / "sources" / "0" / "2").write_text('v1\n{"path": 1}')
    with pytest.raises(SourceError, match="cannot be read: .*/2"):
        seen_files(source)


def test_a_source_without_one_stream_of_its_own_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "c", 0, 0, [{"logOffset": 0}])
    (tmp_path / "in").mkdir()
    (folder / "sources" / "0" / "0").write_text(
        'v1\n{"path":"file://%s/in/x","timestamp":1,"batchId":0}' % tmp_path  # noqa: UP031 (braces)
    )
    topology = words(tmp_path, "files")
    second = topology.new_stream("same", FileSpout(tmp_path / "in"))
    second.group_by("value").persistent_aggregate(DeltaMapState("others"), Count(), "count")
    with pytest.raises(TopologyError, match="has not one stream .*lines, same"):
        migrate(str(folder), topology, TridentConfig(warehouse=str(tmp_path / "warehouse")))
