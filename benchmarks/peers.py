"""What we are measured against: foreachBatch into Delta, and Spark's noop sink as the limit."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Sink = Callable[["DataFrame", int], None]

# Structured Streaming's own files by the same file system that everything else uses;
# by default it takes another of Hadoop's, which starts a chmod process per file.
_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
_SAME_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def append_sink(
    table: Path | str,
    query: Callable[["DataFrame"], "DataFrame"],
    partitions: int | None = None,
    app: str | None = None,
) -> Sink:
    """Appends a batch's counts, exactly once by Delta's own idempotence (txnAppId, txnVersion)."""
    app = app or uuid.uuid4().hex

    def write(frame: "DataFrame", batch_id: int) -> None:
        frame = frame if partitions is None else frame.coalesce(partitions)
        writer = query(frame).write.format("delta").mode("append")
        writer.option("txnAppId", app).option("txnVersion", batch_id).save(str(table))

    return write


def merge_sink(
    table: Path | str,
    query: Callable[["DataFrame"], "DataFrame"],
    key: str,
    value: str,
    partitions: int | None = None,
    adds: bool = True,
) -> Sink:
    """Adds a batch's counts to a table with one row per key (value = value + new), or sets them, exactly once."""
    app = uuid.uuid4().hex

    def write(frame: "DataFrame", batch_id: int) -> None:
        from delta.tables import DeltaTable

        # foreachBatch gives the frame's own session, where MERGE takes its transaction id from.
        session = frame.sparkSession
        frame = frame if partitions is None else frame.coalesce(partitions)
        session.conf.set("spark.databricks.delta.write.txnAppId", app)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(batch_id))
        (
            DeltaTable.forPath(session, str(table))
            .alias("t")
            .merge(query(frame).alias("s"), f"t.{key} = s.{key}")
            .whenMatchedUpdate(set={value: f"t.{value} + s.{value}" if adds else f"s.{value}"})
            .whenNotMatchedInsertAll()
            .execute()
        )

    return write


def make_table(spark: "SparkSession", table: Path | str, frame: "DataFrame") -> Path | str:
    """A Delta table as ours are: a checkpoint every ten commits, no deletion vectors."""
    (
        frame.write.format("delta")
        .option("delta.checkpointInterval", "10")
        .option("delta.enableDeletionVectors", "false")
        .save(str(table))
    )
    return table


def stream_ms(
    spark: "SparkSession",
    folder: Path,
    sink: Sink,
    checkpoint: Path | str,
    warm_up: int,
    format: str = "text",
    schema: str = "value string",
    query: Callable[["DataFrame"], "DataFrame"] | None = None,
    confs: Mapping[str, str] | None = None,
) -> float:
    """Milliseconds a batch of Structured Streaming over a folder of files, one file a batch.

    Counts what Spark says that each batch took (``triggerExecution``: with its
    planning and its logs of offsets and commits, which are its exactly-once), not
    the query's start nor the waiting between batches.

    Args:
        query: of the stream, before its sink: what keeps a state; its changes go to the sink (update mode).
        confs: of the query's session.
    """
    files = [path for path in folder.iterdir() if not path.name.startswith((".", "_"))]
    started = start_stream(spark, folder, sink, checkpoint, format, schema, query, confs)
    started.awaitTermination()
    progress = [one for one in started.recentProgress if one["numInputRows"]]
    # The files are read by the query and by nothing else, so one count stands for the batch.
    took = [one["durationMs"]["triggerExecution"] for one in progress]
    if len(took) != len(files):
        raise RuntimeError(f"Structured Streaming made {len(took)} batches of {len(files)} files")
    counted = took[warm_up:]
    return sum(counted) / len(counted)


def start_stream(
    spark: "SparkSession",
    folder: Path,
    sink: Sink,
    checkpoint: Path | str,
    format: str = "text",
    schema: str = "value string",
    query: Callable[["DataFrame"], "DataFrame"] | None = None,
    confs: Mapping[str, str] | None = None,
) -> "StreamingQuery":
    """A query over what a folder has now, one file a batch."""
    session = session_of(spark, confs or {})
    source = session.readStream.format(format).schema(schema).option("maxFilesPerTrigger", 1).load(str(folder))
    writer = source.writeStream if query is None else query(source).writeStream.outputMode("update")
    return writer.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def session_of(spark: "SparkSession", confs: Mapping[str, str]) -> "SparkSession":
    """A session for streaming queries, which keep every progress record."""
    session = spark.newSession()
    wanted = {_CHECKPOINTS: _SAME_FILE_SYSTEM, "spark.sql.streaming.numRecentProgressUpdates": "1000", **confs}
    for name, value in wanted.items():
        session.conf.set(name, value)
    return session


def noop(frame: "DataFrame") -> None:
    """Computes everything and writes nothing."""
    frame.write.format("noop").mode("overwrite").save()


def in_flight_ms(spark: "SparkSession", jobs: list[Callable[[], None]], in_flight: int, warm_up: int) -> float:
    """Milliseconds a job with this many at once, each thread in a FAIR pool of its own."""

    def run(job: Callable[[], None]) -> None:
        # Local to the thread; the JVM has one of its own for each of ours.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
        job()

    with ThreadPoolExecutor(in_flight, "noop") as pool:
        list(pool.map(run, jobs[:warm_up]))
        started = time.monotonic()
        list(pool.map(run, jobs[warm_up:]))
        return (time.monotonic() - started) / (len(jobs) - warm_up) * 1000
