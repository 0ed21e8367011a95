"""The process that `stores` starts for each store; tells what it found on standard output, as JSON lines.

python -m benchmarks.stores_child ZOOKEEPER PLACE FILES LINES SETTINGS ROUNDS [backlog]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import peers, words
from benchmarks.bench import Recorder, advanced_at, rounds, steady_ms
from benchmarks.stores import (
    BEGINS,
    CATCH_UP,
    ENDS,
    FOUR,
    LIVE_READ,
    MERGE,
    ONE,
    ONE_JOB,
    PLAIN_READ,
    THEIR_MERGE,
    THEIRS,
)
from benchmarks.sustained import NEVER

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


def main(
    zookeeper: str, place: str, files: Path, lines: int, settings: dict[str, str], count: int, with_backlog: bool
) -> None:
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
                _tell(BEGINS, in_flight=in_flight)
                query.process_all_available()
                _tell(ENDS, in_flight=in_flight, transactions=transactions - begun)
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
        _say,
        warm_up=True,
    )
    if with_backlog:
        backlog = _Backlog(spark, zookeeper, place, transactions, lines)
        found |= rounds(count, backlog.contenders(), _say, warm_up=True)
        found |= backlog.beside()
    _tell("found", figures={**found, "commit": commits})


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Backlog:
    """A running topology that catches up; then its state is read, merged, and its plain table read."""

    def __init__(self, spark: SparkSession, zookeeper: str, place: str, files: int, lines: int) -> None:
        self._spark, self._zookeeper, self._place = spark, zookeeper, place
        self._files, self._lines = files, lines
        self._beside: dict[str, list[float]] = {LIVE_READ: [], MERGE: [], PLAIN_READ: []}

    def contenders(self) -> dict[str, Callable[[int], float]]:
        return {CATCH_UP: self._ours, ONE_JOB: self._one_job, THEIR_MERGE: self._their_merge}

    def beside(self) -> dict[str, list[float]]:
        """What was measured at the end of each catch-up, but that of the warm-up."""
        return {name: values[1:] for name, values in self._beside.items()}

    def _ours(self, number: int) -> float:
        from trident import Count, DeltaMapState, FileSpout, TridentTopology

        name = f"backlog{number + 1}"
        with tempfile.TemporaryDirectory(prefix="trident-bench-backlog-") as folder:
            files = words.write_files(Path(folder), 1, 100)
            topology = TridentTopology("words")
            read = topology.new_stream("lines", FileSpout(files, poll_interval_secs=0.05))
            counted = read.flat_map(words.split_column(), "word").group_by("word")
            counted.persistent_aggregate(DeltaMapState("counts", **NEVER), Count(), "count")
            query = topology.start(
                self._spark,
                warehouse=f"{self._place}/{name}",
                zookeeper=self._zookeeper,
                zookeeper_root=f"/{self._place.rpartition('/')[2]}-{name}",
                max_spout_pending=4,
                merge_at_stop_secs=0,
                progress="none",
            )
            try:
                query.process_all_available()
                query.pause()
                words.write_files(files, self._files, self._lines, first=1)
                started = time.time()
                query.resume()
                query.process_all_available()
                secs = advanced_at(query.last_progress) - started
                all_words = (self._files * self._lines + 100) * words.WORDS_PER_LINE
                self._timed(LIVE_READ, lambda: _sum(query.snapshot("counts"), all_words))
            finally:
                query.stop()
            if (error := query.exception()) is not None:
                raise error
        self._timed(MERGE, lambda: self._merge(name))
        plain = f"{self._place}/{name}/counts"
        self._timed(PLAIN_READ, lambda: _sum(self._spark.read.format("delta").load(plain), all_words))
        return self._million() / secs

    def _timed(self, what: str, act: Callable[[], None]) -> None:
        started = time.monotonic()
        act()
        self._beside[what].append((time.monotonic() - started) * 1000)

    def _million(self) -> float:
        return self._files * self._lines * words.WORDS_PER_LINE / 1e6

    def _merge(self, name: str) -> None:
        from trident.states.core.descriptor import load_descriptor
        from trident.states.core.place import Place
        from trident.states.delta.kernel import KernelEngine
        from trident.states.keyed.compactor import Compactor
        from trident.states.keyed.reading import latest_txid

        engine, warehouse = KernelEngine(self._spark), Place(f"{self._place}/{name}")
        txid = latest_txid(warehouse, "counts")
        compactor = Compactor(self._spark, engine, warehouse, load_descriptor(warehouse, "counts"))
        merged = compactor.merge_once(txid, force=True)
        if merged is None or merged.p_new != txid:
            raise AssertionError(f"merged {merged}, wanted up to {txid}")

    def _one_job(self, number: int) -> float:
        with tempfile.TemporaryDirectory(prefix="trident-bench-backlog-") as folder:
            files = words.write_files(Path(folder), self._files, self._lines)
            started = time.monotonic()
            frame = words.counted(self._spark.read.text(str(files)))
            frame.write.format("delta").save(f"{self._place}/job{number + 1}")
            return self._million() / (time.monotonic() - started)

    def _their_merge(self, number: int) -> float:
        """Milliseconds of Delta's MERGE of the same counts, which are ready, into an empty table, as ours is."""
        table = f"{self._place}/merged{number + 1}"
        with tempfile.TemporaryDirectory(prefix="trident-bench-backlog-") as folder:
            lines = self._spark.read.text(str(words.write_files(Path(folder), self._files, self._lines)))
            counts = words.counted(lines).persist()
            try:
                counts.count()
                peers.make_table(self._spark, table, counts.limit(0))
                merge = peers.merge_sink(table, lambda frame: frame, "word", "count")
                started = time.monotonic()
                merge(counts, 0)
                return (time.monotonic() - started) * 1000
            finally:
                counts.unpersist()


def _sum(frame: Any, wanted: int) -> None:
    found = frame.groupBy().sum("count").first()[0]
    if found != wanted:
        raise AssertionError(f"{found} words were counted, there were {wanted}")


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
    main(
        sys.argv[1],
        sys.argv[2],
        Path(sys.argv[3]),
        int(sys.argv[4]),
        json.loads(sys.argv[5]),
        int(sys.argv[6]),
        "backlog" in sys.argv[7:],
    )
