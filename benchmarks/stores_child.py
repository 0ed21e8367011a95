"""The process that `stores` starts for each store; tells what it found on standard output, as JSON lines.

python -m benchmarks.stores_child ZOOKEEPER PLACE FILES LINES SETTINGS ROUNDS
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import peers, words
from benchmarks.bench import Recorder, rounds, steady_ms
from benchmarks.stores import BEGINS, ENDS, FOUR, ONE, THEIRS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trident import TridentTopology

_WARM_UP = 5
_COMMIT = ("prepare", "decide", "publish", "advance")


def _tell(step: str, **more: Any) -> None:
    print(json.dumps({"step": step, **more}), flush=True)


def _topology(name: str, files: Path, lines: int) -> TridentTopology:
    from trident import Count, DeltaAppend, DeltaMapState, FileSpout, TridentTopology

    made = TridentTopology(name)
    read = made.new_stream("lines", FileSpout(files, min_rows=lines, max_rows=lines))
    counted = read.flat_map(words.split_column(), "word").group_by("word")
    counted.persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    counted.aggregate(Count(), "count").partition_persist(DeltaAppend("batches"))
    return made


def main(zookeeper: str, place: str, files: Path, lines: int, settings: dict[str, str], count: int) -> None:
    from trident.spark.session import make_session

    spark = make_session("stores", {"spark.trident.classArchive": "false", **settings})
    transactions = len(list(files.glob("*.txt")))
    warm_up = min(_WARM_UP, transactions // 2)
    commits: list[float] = []

    def ours(number: int, in_flight: int) -> float:
        name = f"run{number + 1}-{in_flight}"
        query = _topology("words", files, lines).start(
            spark,
            warehouse=f"{place}/{name}",
            zookeeper=zookeeper,
            zookeeper_root=f"/{place.rpartition('/')[2]}-{name}",
            max_spout_pending=in_flight,
            progress="none",
        )
        try:
            with Recorder(query) as recorder:
                while len(recorder.records) < warm_up and query.exception() is None:
                    time.sleep(0.005)
                begun = len(recorder.records)
                _tell(BEGINS)
                query.process_all_available()
                _tell(ENDS, transactions=transactions - begun)
            found = query.snapshot("counts").groupBy().sum("count").first()[0]
            if found != transactions * lines * words.WORDS_PER_LINE:
                raise AssertionError(f"{found} words were counted in {name}")
        finally:
            query.stop()
        if (error := query.exception()) is not None:
            raise error
        if in_flight == 1 and number >= 0:
            took = [sum(one["duration_ms"].get(step, 0) for step in _COMMIT) for one in recorder.records[warm_up:]]
            commits.append(median(took))
        return steady_ms(recorder.records, warm_up)

    found = rounds(
        count,
        {
            FOUR: lambda number: ours(number, 4),
            THEIRS: lambda number: _theirs(spark, files, f"{place}/theirs{number + 1}", transactions, warm_up),
            ONE: lambda number: ours(number, 1),
        },
        lambda text: print(text, file=sys.stderr, flush=True),
        warm_up=True,
    )
    _tell("found", figures={**found, "commit": commits})


def _theirs(spark: SparkSession, files: Path, place: str, transactions: int, warm_up: int) -> float:
    """The same query, by foreachBatch, appended with Delta's idempotence; milliseconds a batch."""
    sink = peers.append_sink(f"{place}/table", words.counted)
    done: list[float] = []

    def timed(frame: Any, batch_id: int) -> None:
        sink(frame, batch_id)
        done.append(time.monotonic())

    query = peers.start_stream(spark, files, timed, f"{place}/checkpoint")
    try:
        while len(done) < transactions:
            if query.exception() is not None:
                raise query.exception()
            time.sleep(0.005)
    finally:
        query.stop()
    return (done[-1] - done[warm_up - 1]) / (transactions - warm_up) * 1000


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]), int(sys.argv[6]))
