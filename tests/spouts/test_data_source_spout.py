"""Python data sources: offsets are the metadata, what lies between two comes once, commit is told on success only."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.long_cases import sample
from tests.spouts import source_helpers
from tests.spouts.source_helpers import WAIT_SECS, by_txid, out, rows_read, run_to_end
from trident.coordinators import faults
from trident.coordinators.errors import AttemptCapReached, SourceError, TopologyError
from trident.spouts.contracts import SpoutContext, TridentSpout
from trident.spouts.data_source import DataSourceSpout

start, warehouse = source_helpers.start, source_helpers.warehouse


class Journal:
    """A file with a line for each call of a method: what a source can tell a test, from any process."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "journal"

    def note(self, *what: object) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(what) + "\n")

    def of(self, method: str) -> list:
        notes = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [note[1:] for note in notes if note[0] == method]


def available(folder: str) -> int:
    return int((Path(folder) / "available").read_text())


class Letters(DataSource):
    """Rows 0, 1, 2, … up to the number in a file; simply, in one piece of what there is."""

    def schema(self):
        return "n long, word string"

    def simpleStreamReader(self, schema):  # noqa: N802
        return LettersReader(self.options["folder"])


class LettersReader(SimpleDataSourceStreamReader):
    def __init__(self, folder: str) -> None:
        self.folder, self.journal, self.thread = folder, Journal(folder), None
        self.lock = threading.Lock()  # cannot be pickled, and need not be: it reads on the driver

    def initialOffset(self):  # noqa: N802
        return {"at": 0}

    def read(self, start):
        end = available(self.folder)
        self.journal.note("read", start["at"], end)
        return iter([(n, f"w{n}") for n in range(start["at"], end)]), {"at": end}

    def readBetweenOffsets(self, start, end):  # noqa: N802
        self.journal.note("again", start["at"], end["at"])
        return iter([(n, f"w{n}") for n in range(start["at"], end["at"])])

    def commit(self, end):
        self.journal.note("commit", end["at"])


@dataclass
class Slice(InputPartition):
    begin: int
    end: int


class Parts(Letters):
    """The same, in partitions of two rows read by tasks, the odd ones as Arrow."""

    @classmethod
    def name(cls):
        return "parts"

    def streamReader(self, schema):  # noqa: N802
        return PartsReader(self.options["folder"], int(self.options.get("most", 0)))


class PartsReader(DataSourceStreamReader):
    def __init__(self, folder: str, most: int) -> None:
        self.folder, self.most, self.journal = folder, most, Journal(folder)

    def initialOffset(self):  # noqa: N802
        return {"at": {"n": 0}}

    def getDefaultReadLimit(self):  # noqa: N802
        return ReadMaxRows(self.most) if self.most else ReadAllAvailable()

    def latestOffset(self, start, limit):  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 10**9
        self.journal.note("limit", most)
        return {"at": {"n": min(available(self.folder), start["at"]["n"] + most)}}

    def partitions(self, start, end):
        cut = list(range(start["at"]["n"], end["at"]["n"], 2))
        return [Slice(begin, min(begin + 2, end["at"]["n"])) for begin in cut]

    def read(self, partition):
        rows = [(n, f"w{n}") for n in range(partition.begin, partition.end)]
        if partition.begin % 4:
            numbers, words = zip(*rows)
            return iter([pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "word": list(words)})])
        return iter(rows)

    def commit(self, end):
        self.journal.note("commit", end["at"]["n"])

    def stop(self):
        self.journal.note("stop")


def rows(begin: int, end: int) -> Counter:
    return Counter((n, f"w{n}") for n in range(begin, end))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "available").write_text("3")
    return tmp_path


@pytest.mark.parametrize("source", [Letters, Parts])
@pytest.mark.long
def test_what_lies_between_two_offsets_comes_once_over_failures_and_a_restart(start, source, folder, warehouse):
    spout = DataSourceSpout(source, {"folder": folder})
    assert isinstance(spout, TridentSpout) and spout.output_schema.names == ["n", "word"]
    faults.arm("stage.write:do_then_fail:1,zk.decide:do_then_fail:2")
    query = run_to_end(start, spout)
    (folder / "available").write_text("8")
    query.process_all_available(WAIT_SECS)
    assert rows_read(query) == 8
    query.stop(compact=False)
    (folder / "available").write_text("9")
    again = run_to_end(start, DataSourceSpout(source, {"folder": folder}))
    again.stop()
    assert by_txid(warehouse) == [rows(0, 3), rows(3, 8), rows(8, 9)] and faults.unfired() == []
    journal = Journal(str(folder))
    commits = [at for (at,) in journal.of("commit")]
    assert list(dict.fromkeys(commits)) == [3, 8, 9], "after success only; perhaps again after a restart"
    if source is Letters:
        assert journal.of("again") == [[0, 3]], "only the attempt that failed was read again"
    else:
        assert len(journal.of("stop")) == 4, "both readers of both starts"


class Context(SpoutContext):
    def __init__(self, spark, folder: Path) -> None:
        super().__init__(spark, "t", "rows", folder, "life", {"max_spout_pending": 3})


class Tail(Letters):
    """What comes from now on."""

    def simpleStreamReader(self, schema):  # noqa: N802
        return TailReader(self.options["folder"])


class TailReader(LettersReader):
    def initialOffset(self):  # noqa: N802
        return {"at": available(self.folder)}


def test_a_source_that_begins_now_begins_at_the_first_start_over_restarts(folder):
    """Also where nothing came between the two, so that there was no batch with rows."""
    spout = DataSourceSpout(Tail, {"folder": folder}, poll_interval_secs=0)
    context = SpoutContext(None, "t", "letters", folder, "life")
    first = spout.get_coordinator(context)
    assert first.is_ready(1)
    pin = first.initialize_transaction(1, None, None)
    assert pin == {"start": {"at": 3}, "end": {"at": 3}} and not first.is_ready(2)
    (folder / "available").write_text("5")
    again = spout.get_coordinator(context)
    again.resume(1, pin)
    assert again.is_ready(2)
    assert again.initialize_transaction(2, pin, None) == {"start": {"at": 3}, "end": {"at": 5}}


def test_commit_waits_for_success_and_a_pin_is_read_again_by_a_fresh_process(spark, folder):
    def parts():
        spout = DataSourceSpout(Letters, {"folder": folder}, poll_interval_secs=0)
        return spout.get_coordinator(Context(spark, folder)), spout.get_emitter(Context(spark, folder))

    journal, (coordinator, emitter) = Journal(str(folder)), parts()
    assert coordinator.is_ready(1)
    pin = coordinator.initialize_transaction(1, None, None)
    assert pin == {"start": {"at": 0}, "end": {"at": 3}} and not coordinator.is_ready(2) and journal.of("commit") == []
    (folder / "available").write_text("5")
    fresh, emitter = parts()
    fresh.resume(1, pin)
    assert fresh.initialize_transaction(1, None, pin) == pin and fresh.is_ready(2)
    for attempt_id in range(2):
        table = emitter.emit_batch((1, attempt_id), pin).data
        assert [tuple(row.values()) for row in table.to_pylist()] == sorted(rows(0, 3))
    fresh.success(1)
    assert journal.of("commit") == [[3]] and journal.of("again") == [[0, 3], [0, 3]]
    second = fresh.initialize_transaction(2, pin, None)
    assert second == {"start": {"at": 3}, "end": {"at": 5}}
    assert fresh.initialize_transaction(3, second, None) == {"start": {"at": 5}, "end": {"at": 5}}, (
        "empty: another stream began it"
    )
    assert fresh.shrink_transaction(2, pin, second) == second, "a simple reader has no limit"


def test_a_read_limit_halves_after_a_timeout_and_grows_again(spark, folder):
    (folder / "available").write_text("100")
    spout = DataSourceSpout(Parts, {"folder": folder, "most": 20}, poll_interval_secs=0)
    coordinator = spout.get_coordinator(Context(spark, folder))
    pin = coordinator.initialize_transaction(1, None, None)
    assert pin["end"] == {"at": {"n": 20}}
    sizes, shrunk = [], pin
    for _ in range(6):
        shrunk = coordinator.shrink_transaction(1, None, shrunk)
        sizes.append(shrunk["end"]["at"]["n"])
    assert sizes == [10, 5, 2, 1, 1, 1]
    end, txid = shrunk, 1
    while end["end"]["at"]["n"] < 100:
        coordinator.success(txid)
        txid, end = txid + 1, coordinator.initialize_transaction(txid + 1, end, None)
    assert max(limit for (limit,) in Journal(str(folder)).of("limit")[-3:]) > 5
    limited = DataSourceSpout(Parts, {"folder": folder, "most": 20}, read_limit=ReadMaxRows(7))
    assert limited.get_coordinator(Context(spark, folder)).initialize_transaction(1, None, None)["end"] == {
        "at": {"n": 7}
    }


class Broken(Parts):
    def streamReader(self, schema):  # noqa: N802
        reader = PartsReader(self.options["folder"], 0)
        how = self.options["how"]
        if how == "unpicklable":
            reader.lock = threading.Lock()
        elif how == "read":
            reader.read = lambda partition: iter([1 // 0])
        elif how == "rows":
            reader.read = lambda partition: iter([("x", "y")])
        elif how == "latest":
            reader.latestOffset = lambda start, limit: 7
        elif how == "partitions":
            reader.partitions = lambda start, end: [3]
        return reader


@pytest.mark.parametrize(
    "how, message",
    sample(
        [
            ("unpicklable", "cannot be sent to Spark's tasks"),
            ("read", "stream 'rows' raised ZeroDivisionError"),
            ("rows", "do not fit its schema"),
            ("latest", "latestOffset .* gave no offset"),
            ("partitions", "gave something else"),
        ],
        ("read", "stream 'rows' raised ZeroDivisionError"),
    ),
)
def test_what_a_source_does_wrong_ends_the_topology_and_says_so(start, folder, how, message, warehouse):
    query = start(DataSourceSpout(Broken, {"folder": folder, "how": how}), max_attempts=1)
    with pytest.raises((AttemptCapReached, SourceError), match=message):
        query.await_termination(WAIT_SECS)
    assert out(warehouse) == Counter()


def test_a_simple_reader_that_gives_rows_without_moving_on_is_refused(spark, folder):
    class Stuck(Letters):
        def simpleStreamReader(self, schema):  # noqa: N802
            reader = LettersReader(self.options["folder"])
            reader.read = lambda start: (iter([(1, "a")]), start)
            return reader

    coordinator = DataSourceSpout(Stuck, {"folder": folder}).get_coordinator(Context(spark, folder))
    assert coordinator.is_ready(1), "so that the error fails an attempt, and counts"
    with pytest.raises(SourceError, match="rows but no further offset"):
        coordinator.initialize_transaction(1, None, None)


def test_impossible_arguments_are_refused(folder):
    class Bare(DataSource):
        pass

    for make, message in (
        (lambda: DataSourceSpout(Bare, schema="n long"), "cannot be read as a stream"),
        (lambda: DataSourceSpout(Bare), "no schema of its own"),
        (lambda: DataSourceSpout("letters"), "needs a Python data source"),
        (lambda: DataSourceSpout(Letters({}), {"folder": "x"}), "has its options already"),
    ):
        with pytest.raises(TopologyError, match=message):
            make()
    assert (
        DataSourceSpout(Letters({"folder": str(folder)}), schema="n int").output_schema.simpleString()
        == "struct<n:int>"
    )
    with pytest.raises(SourceError, match="not written by a DataSourceSpout"):
        DataSourceSpout(Letters, {"folder": folder}).get_coordinator(Context(None, folder)).resume(1, {"start": 1})
