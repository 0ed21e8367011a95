"""Rows out of a folder into a store outside of the warehouse, by us and by Structured Streaming: what both share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, Recorder, rounds, steady_ms
from benchmarks.report import Report

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

KEY_BYTES, ROW_BYTES = 9, 100
KEYS = 10_000
_IN_FLIGHT = 4
# Of each series of transactions these warm up.
_WARM_UP = 2
# (files, rows of each, transactions in flight of ours) → milliseconds of a transaction or a batch.
Measure = Callable[[Path, int, int], float]


def compare(bench: Bench, report: Report, ours: str, theirs: str, measures: dict[str, Measure]) -> None:
    """Times small transactions one after the other, and large ones for as many rows a second as there may be.

    Args:
        ours, theirs: names of the two sides, which are the keys of ``measures``.
    """
    for name, rows, files, in_flight in (
        ("100 rows, one in flight", 100, bench.size(40, 5), 1),
        (f"20,000 rows, {_IN_FLIGHT} in flight", bench.size(20_000, 200), bench.size(24, 5), _IN_FLIGHT),
    ):
        folder = write_files(bench.fresh("rows"), files, rows)
        contenders = {
            side: lambda _, measure=measure, folder=folder, rows=rows, in_flight=in_flight: measure(
                folder, rows, in_flight
            )
            for side, measure in measures.items()
        }
        found = rounds(bench.size(5, 1), contenders, bench.said, warm_up=not bench.quick)
        ms = {side: report.figure(f"{name}: {side}", "ms/transaction", values) for side, values in found.items()}
        if in_flight > 1:
            for side, values in found.items():
                report.figure(f"{name}: {side}", "rows/s", [rows / value * 1000 for value in values])
        report.ratio(f"{name}: {ours} / {theirs}", ms[ours], ms[theirs])
    report.note(
        f"rows of {ROW_BYTES} bytes out of files, one file a transaction or a batch; of each series without {_WARM_UP}"
    )


def write_files(folder: Path, count: int, rows: int) -> Path:
    """Text files of ``rows`` lines each, which begin with a key."""
    folder.mkdir(parents=True)
    for number in range(count):
        begin = number * rows
        lines = (
            f"{each % KEYS:0{KEY_BYTES}d}{each:0{ROW_BYTES - KEY_BYTES}d}\n" for each in range(begin, begin + rows)
        )
        (folder / f"{number:05d}.txt").write_text("".join(lines))
    return folder


def ours_ms(bench: Bench, state: Any, folder: Path, rows: int, in_flight: int) -> float:
    """Milliseconds a transaction that writes its rows to an outside state, and nothing else."""
    from pyspark.sql import functions as F

    from trident import FileSpout, TridentTopology

    topology = TridentTopology("out")
    lines = topology.new_stream("rows", FileSpout(folder, min_rows=rows, max_rows=rows))
    keyed: Any = lines.select(F.substring("value", 1, KEY_BYTES).alias("key"), F.col("value"))
    keyed.partition_persist(state, "key, value")
    with bench.running(topology, bench.fresh("ours"), in_flight) as query, Recorder(query) as recorder:
        query.process_all_available()
    return steady_ms(recorder.records, _WARM_UP)


def theirs_ms(bench: Bench, folder: Path, start: Callable[[Any], "StreamingQuery"]) -> float:
    """Milliseconds a batch of Structured Streaming, as Spark counts them (``triggerExecution``).

    Args:
        start: begins a query on a frame with the columns key and value, one file a batch.
    """
    from pyspark.sql import functions as F

    session = bench.spark.newSession()
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    source = session.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
    query = start(source.select(F.substring("value", 1, KEY_BYTES).alias("key"), F.col("value")))
    query.awaitTermination()
    took = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]]
    files = len(list(folder.glob("*.txt")))
    if len(took) != files:
        raise RuntimeError(f"Structured Streaming made {len(took)} batches of {files} files")
    return sum(took[_WARM_UP:]) / (files - _WARM_UP)
