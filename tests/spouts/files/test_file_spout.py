"""Each row of each file is in exactly one batch, and a batch is the same rows at each replay."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.long_cases import sample
from trident.coordinators import faults
from trident.coordinators.errors import Halted, IdentityMismatch, SourceError, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.repair.inspection import inspect_ledger, write_ledger
from trident.spark.rows import NamedRows
from trident.spouts.contracts import SpoutContext
from trident.spouts.files import reading as file_reading
from trident.spouts.files.ledger import FileRange, LedgerEntry
from trident.spouts.files.parquet import is_exact
from trident.spouts.files.reading import group, partitions_for, pieces, source_failure
from trident.spouts.files.spout import FileSpout
from trident.spouts.files.tasks import read_lines, shown

ROOT = Path(__file__).resolve().parents[3]


def lines_of(data: bytes) -> list[str]:
    """The rows of a text file, written without the code under test."""
    rows = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if rows[-1] == b"":
        rows.pop()
    return [(row[:-1] if row.endswith(b"\r") else row).decode("utf-8", "replace") for row in rows]


class Run:
    """Plays the framework's part: pins metadata, emits, replays, restarts."""

    def __init__(self, spout: FileSpout, spark: Any, state: Path, **options: Any) -> None:
        self.spout, self.spark = spout, spark
        state.mkdir(exist_ok=True)
        self.context = SpoutContext(spark, "t", "words", state, "life", options)
        self.pins: dict[int, Any] = {}
        self.counted: dict[int, int | None] = {}
        self.restart()

    def restart(self) -> None:
        self.coordinator = self.spout.get_coordinator(self.context)
        self.emitter = self.spout.get_emitter(self.context)

    def begin(self) -> int:
        txid = max(self.pins, default=0) + 1
        metadata = self.coordinator.initialize_transaction(txid, self.pins.get(txid - 1), None)
        self.pins[txid] = json.loads(json.dumps(metadata))
        return txid

    def ready(self) -> bool:
        return self.coordinator.is_ready(max(self.pins, default=0) + 1)

    def begin_all(self) -> None:
        while self.ready():
            self.begin()
            assert len(self.pins) < 10_000

    def rows(self, txid: int, attempt_id: int = 0) -> list[Any]:
        emitted = self.emitter.emit_batch(TransactionAttempt(txid, attempt_id), self.pins[txid])
        data = frame_of(emitted)
        assert data.schema.simpleString() == self.spout.output_schema.simpleString()
        found = [row[0] if len(row) == 1 else tuple(row) for row in data.coalesce(emitted.partitions).collect()]
        self.counted[txid] = emitted.rows() if callable(emitted.rows) else emitted.rows
        assert self.counted[txid] in (len(found), None), "the count is exact or unknown"
        return found

    def all_rows(self) -> Counter:
        self.begin_all()
        return Counter(row for txid in self.pins for row in self.rows(txid))


def failure(run: Run, txid: int = 1) -> SourceError:
    """The error of a batch, once all that waits has one."""
    run.begin_all()
    with pytest.raises(Exception) as caught:
        run.rows(txid)
    error = source_failure(caught.value)
    assert isinstance(error, SourceError), caught.value
    return error


def frame_of(emitted: Any) -> Any:
    """The batch as a DataFrame; files are only named, for a kept plan."""
    return emitted.data.frame() if isinstance(emitted.data, NamedRows) else emitted.data


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def new_run(spark, tmp_path):
    def make(path: Any, format: str = "text", options: Any = None, context: Any = None, **more: Any) -> Run:
        more.setdefault("poll_interval_secs", 0)
        return Run(FileSpout(path, format, options=options, **more), spark, tmp_path / "state", **(context or {}))

    return make


def put(folder: Path, name: str, data: bytes | str, mtime: int = 1) -> Path:
    """Makes a file appear as it should: by a rename."""
    hidden = folder / f".{name}.part"
    hidden.write_bytes(data.encode() if isinstance(data, str) else data)
    os.utime(hidden, ns=(mtime * 10**9, mtime * 10**9))
    return hidden.rename(folder / name)


def numbered(count: int, begin: int = 0) -> str:
    return "".join(f"row {i:06}\n" for i in range(begin, begin + count))


# --- every row once, the same at each replay ----------------------------------------------

PARTS = [
    *(b"a", b"word two", b"\n", b"\n", b"\n", b"\r", b"\r\n", b"\x00", b"\xef\xbb\xbf", b"\xff", b"\xe2\x82"),
    *("grüße €".encode(), "\u2028\u0085".encode(), b"x" * 200, b"\xed\xa0\x80", b"\xf0\x9f\x98"),
]
NASTY = st.lists(st.sampled_from(PARTS), max_size=40).map(b"".join)


@given(st.lists(NASTY, min_size=1, max_size=5), st.integers(1, 60), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_tasks_read_each_line_once_however_files_are_cut_into_pieces(tmp_path_factory, files, piece_bytes, partitions):
    folder = tmp_path_factory.mktemp("cut")
    parts, expected = [], []
    for number, data in enumerate(files, 1):
        path = put(folder, str(number), data)
        status = path.stat()
        entry = LedgerEntry(number, str(path), status.st_size, status.st_mtime_ns)
        parts.append(FileRange(entry, 0, entry.size))
        expected += lines_of(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_reading, "PARTITION_BYTES", piece_bytes)
        groups = group(pieces(parts), partitions)
    assert len(groups) <= partitions
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(groups)))})
    read = [
        line for batch in read_lines(groups, False, False, (), [numbers]) for line in batch.column("value").to_pylist()
    ]
    assert [(line.removesuffix(b"\r")).decode("utf-8", "replace") for line in read] == expected


@pytest.mark.long
@given(st.lists(NASTY, min_size=1, max_size=4), st.integers(1, 12), st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batches_of_any_size_hold_every_line_once_in_order_also_over_restarts(
    spark, tmp_path_factory, files, rows, data
):
    folder = tmp_path_factory.mktemp("any")
    (folder / "in").mkdir()
    for number, content in enumerate(files):
        put(folder / "in", str(number), content)
    lenient = {"mode": "PERMISSIVE"}
    spout = FileSpout(folder / "in", min_rows=rows, max_rows=rows, poll_interval_secs=0, options=lenient)
    run = Run(spout, spark, folder / "state")
    expected = [line for content in files for line in lines_of(content)]
    restarts = data.draw(st.sets(st.integers(1, 6)))
    got: dict[int, Counter] = {}
    while run.ready():
        txid = run.begin()
        if txid in restarts:  # killed after the pin: the new process is given the pin
            run.restart()
            assert (
                run.coordinator.initialize_transaction(txid, run.pins.get(txid - 1), run.pins[txid]) == run.pins[txid]
            )
        got[txid] = Counter(run.rows(txid))
        assert len(got) <= len(expected) + len(files)  # a file may be no more than a byte order mark
    # Batches in order hold consecutive parts of the lines.
    position = 0
    for _, batch in sorted(got.items()):
        assert Counter(expected[position : position + batch.total()]) == batch
        position += batch.total()
    assert position == len(expected)
    again = data.draw(st.sampled_from(sorted(got) or [0]))
    if again:
        run.restart()
        assert Counter(run.rows(again, attempt_id=7)) == got[again]


def test_spark_and_the_tasks_give_the_same_rows(inputs, new_run, monkeypatch):
    contents = [
        b"",
        b"\n",
        b"\n\n\na",
        b"a\r\nb\r\n\r\n\r\r\nlone\rcr\nlast",
        b"\xef\xbb\xbfbom\nx",
        b"\xef\xbb\xbf",
        b"\xef\xbb\xbf\n",
        b"\n\xef\xbb\xbfx\n",
        b"\xef\xbb",
        b"bad \xff\xfe\xe2\x82 \xed\xa0\x80 \xc0\xaf \xf5\x80\r\n",
        b"nul\x00byte\n",
        "ü €\u2028x\u0085y\n".encode(),
        b"x" * 30_000 + b"\n" + b"y" * 90_000,
    ]
    expected = Counter(line for content in contents for line in lines_of(content))
    for number, content in enumerate(contents):
        put(inputs, f"{number:02}", content)
    run = new_run(inputs, options={"mode": "PERMISSIVE"}, min_rows=10**6)
    run.begin_all()
    assert len(run.pins) == 1
    assert Counter(run.rows(1)) == expected  # whole files: by Spark
    monkeypatch.setattr(file_reading, "NATIVE_FILES_MAX", 0)
    monkeypatch.setattr(file_reading, "PARTITION_BYTES", 4_096)
    assert Counter(run.rows(1)) == expected  # by the tasks


@pytest.mark.parametrize("native_files", [30, 0])
def test_names_that_mean_something_to_spark_are_only_names(inputs, new_run, monkeypatch, native_files):
    monkeypatch.setattr(file_reading, "NATIVE_FILES_MAX", native_files)
    names = ["a b", "q\nr", *"c[1] d{x,y} e* f? g%20 h#1 k,l m\\n o'p\"` ü s=t c1 ee ~ $x".split()]
    for name in names:
        put(inputs, name, f"in {name!r}\n")
    assert new_run(inputs).all_rows() == Counter(f"in {name!r}" for name in names)


def test_a_name_with_a_colon_that_hadoop_cannot_open_is_read(inputs, new_run):
    put(inputs, "10:30.txt", "x\n")
    put(inputs, "a.txt", "y\n")
    assert new_run(inputs).all_rows() == Counter("xy")


def test_folders_named_like_partitions_add_no_column(tmp_path, new_run):
    folder = tmp_path / "in" / "day=1"
    folder.mkdir(parents=True)
    put(folder, "a", "x\n")
    assert new_run(folder).all_rows() == Counter("x")


def test_compressed_files_are_taken_whole(inputs, new_run):
    put(inputs, "a.txt.gz", gzip.compress(numbered(300).encode()))
    put(inputs, "b.txt.bz2", bz2.compress(numbered(300, 300).encode()))
    put(inputs, "c.txt", numbered(300, 600))
    run = new_run(inputs, min_rows=50, max_rows=50)
    assert run.all_rows() == Counter(numbered(900).splitlines())
    ends = [pin["to"] for pin in run.pins.values()]
    assert all(offset == 0 for number, offset in ends if number <= 2)
    assert any(offset > 0 for number, offset in ends if number == 3)


# --- discovery ----------------------------------------------------------------------------


def test_files_that_appear_later_come_later(inputs, new_run):
    run = new_run(inputs)
    assert not run.ready()
    put(inputs, "b", "1\n", mtime=9)
    put(inputs, "c", "0\n", mtime=5)
    run.begin_all()
    put(inputs, "a", "2\n", mtime=1)  # older, but discovered later
    run.begin_all()
    assert [sorted(run.rows(txid)) for txid in run.pins] == [["0", "1"], ["2"]]
    last = run.pins[1].pop("file")
    assert (last["path"], last["size"], last["mtime_ns"]) == (str(inputs / "b"), 2, 9 * 10**9)
    assert run.pins[1] == {"from": [1, 0], "to": [3, 0], "rows_estimate": 2}
    assert not run.ready()


def test_metadata_stays_small_and_planning_quick_for_thousands_of_files(inputs, new_run):
    for number in range(3_000):
        (inputs / f"{number:04}").write_text(f"{number}\n")
    run = new_run(inputs, min_rows=1_000, max_rows=1_000)
    run.begin_all()
    assert 3 <= len(run.pins) <= 5
    assert max(len(json.dumps(pin)) for pin in run.pins.values()) < 400
    assert run.coordinator.backlog().files == 0
    assert sum((Counter(run.rows(txid)) for txid in run.pins), Counter()) == Counter(map(str, range(3_000)))


def test_the_backlog_counts_what_no_transaction_has(inputs, new_run):
    put(inputs, "a", numbered(100))
    put(inputs, "b", numbered(100))
    run = new_run(inputs, min_rows=100, max_rows=100)
    assert run.ready()
    run.begin()
    backlog = run.coordinator.backlog()
    assert (backlog.files, backlog.bytes, backlog.rows) == (1, 1100, 100)
    run.begin_all()
    assert vars(run.coordinator.backlog()) == {"rows": 0, "bytes": 0, "files": 0}


def test_the_backlog_has_what_came_while_nobody_asked_for_a_transaction(inputs, new_run):
    put(inputs, "a", numbered(10))
    run = new_run(inputs, poll_interval_secs=0)
    run.begin_all()
    # As many transactions are in flight as may be: is_ready is not called.
    put(inputs, "b", numbered(100))
    put(inputs, "c", numbered(100))
    assert vars(run.coordinator.backlog()) == {"rows": 200, "bytes": 2200, "files": 2}
    run.begin_all()
    assert sorted(run.rows(2)) == sorted(2 * numbered(100).split("\n")[:-1]), "they are in the ledger once"


def test_rows_are_unknown_before_a_sample_and_all_is_while_the_folder_cannot_be_listed(inputs, new_run):
    put(inputs, "a", numbered(10))
    run = new_run(inputs, poll_interval_secs=1_000)
    assert vars(run.coordinator.backlog()) == {"rows": None, "bytes": 110, "files": 1}
    inputs.rename(inputs.with_name("away"))
    run.coordinator.refresh()
    for ask in (run.coordinator.backlog, run.ready):  # whichever thread has looked, both are told
        with pytest.raises(SourceError, match="does not exist"):
            ask()


def test_a_new_life_of_the_topology_begins_with_a_new_ledger(inputs, new_run, spark):
    put(inputs, "a", numbered(10))
    run = new_run(inputs)
    run.begin_all()
    run.context = SpoutContext(spark, "t", "words", run.context.state_folder, "second life")
    run.pins = {}
    run.restart()
    assert run.all_rows() == Counter(numbered(10).splitlines())


# --- batch sizes --------------------------------------------------------------------------


def test_a_backlog_is_taken_in_as_many_batches_as_are_in_flight(inputs, new_run):
    for number in range(4):
        put(inputs, str(number), numbered(25_000))
    run = new_run(inputs, context={"max_spout_pending": 4})
    run.begin_all()
    assert 4 <= len(run.pins) <= 5
    assert all(pin["rows_estimate"] <= 29_000 for pin in run.pins.values())


def test_max_bytes_bounds_a_batch_of_long_rows(inputs, new_run):
    put(inputs, "a", ("x" * 999 + "\n") * 100)
    run = new_run(inputs, min_rows=1_000, max_bytes=10_000)
    run.begin_all()
    assert [pin["to"][1] - pin["from"][1] for pin in list(run.pins.values())[:8]] == [10_000] * 8


def test_small_batches_are_worth_one_spark_partition():
    assert partitions_for(0, 2) == partitions_for(8 << 20, 2) == 1
    assert partitions_for(20 << 20, 8) == 3
    assert partitions_for(1 << 40, 2) == 4


# --- files that change --------------------------------------------------------------------


def two_batches(inputs, new_run, **more) -> Run:
    put(inputs, "a", numbered(100), mtime=1)
    put(inputs, "b", numbered(100, 100), mtime=2)
    put(inputs, "c", numbered(100, 200), mtime=3)
    run = new_run(inputs, min_rows=150, max_rows=150, **more)
    run.begin_all()
    assert len(run.pins) == 3
    return run


CHANGES = {
    "longer": lambda path: path.write_text(numbered(101, 100)),
    "rewritten at the same size": lambda path: path.write_text(numbered(100, 500)),
    "removed": lambda path: path.unlink(),
    "touched": lambda path: os.utime(path, ns=(7, 7)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_fails_the_batch_and_says_what_was_found_and_expected(inputs, new_run, change):
    run = two_batches(inputs, new_run)
    CHANGES[change](inputs / "b")
    found = "no file" if change == "removed" else r"\d+ bytes, modified at"
    with pytest.raises(
        SourceError, match=rf"in/b changed.*found: {found}.*expected: 1100 bytes, modified at 2000000000"
    ):
        for txid in run.pins:
            run.rows(txid)


def test_a_file_that_changes_back_is_read(inputs, new_run):
    run = two_batches(inputs, new_run)
    (inputs / "b").rename(inputs / ".away")
    with pytest.raises(SourceError):
        run.all_rows()
    (inputs / ".away").rename(inputs / "b")
    assert run.all_rows() == Counter(numbered(300).splitlines())


def test_a_file_that_was_read_to_its_end_may_go(inputs, new_run):
    put(inputs, "a", "x\n")
    run = new_run(inputs)
    run.begin_all()
    (inputs / "a").unlink()
    put(inputs, "b", "y\n")
    run.begin_all()
    assert run.rows(2) == ["y"]


@pytest.mark.parametrize("change", sample(CHANGES, "touched"))
def test_a_skipped_file_stays_out_of_every_replay_in_any_process(inputs, new_run, change):
    run = two_batches(inputs, new_run, on_changed="skip")
    kept = (inputs / "b").read_bytes(), (inputs / "b").stat()
    CHANGES[change](inputs / "b")
    rest = Counter(numbered(100).splitlines()) + Counter(numbered(100, 200).splitlines())
    assert run.all_rows() == rest
    # It comes back as it was: the replay must not read it, or a txid would have two meanings.
    (inputs / "b").write_bytes(kept[0])
    os.utime(inputs / "b", ns=(kept[1].st_atime_ns, kept[1].st_mtime_ns))
    assert run.all_rows() == rest
    run.restart()
    assert run.all_rows() == rest
    assert not run.ready()


def test_a_file_that_is_found_changed_while_a_batch_is_cut_is_skipped(inputs, new_run):
    put(inputs, "a", numbered(1_000))
    run = new_run(inputs, min_rows=300, max_rows=300, on_changed="skip")
    assert run.ready()
    (inputs / "a").write_text("short\n")
    put(inputs, "b", "x\n")
    assert run.all_rows() == Counter("x")


def test_a_change_while_the_batch_is_processed_is_found_before_the_decision(inputs, new_run):
    run = two_batches(inputs, new_run)
    attempt = TransactionAttempt(1, 0)
    run.emitter.emit_batch(attempt, run.pins[1])
    run.emitter.prepare(attempt)
    (inputs / "a").write_text("other\n")
    with pytest.raises(SourceError, match="in/a changed"):
        run.emitter.prepare(attempt)


def test_with_skip_a_change_while_the_batch_is_processed_fails_that_attempt_only(inputs, new_run):
    run = two_batches(inputs, new_run, on_changed="skip")
    attempt = TransactionAttempt(1, 0)
    run.emitter.emit_batch(attempt, run.pins[1])
    (inputs / "a").write_text("other\n")
    with pytest.raises(SourceError, match="changed while the batch was processed"):
        run.emitter.prepare(attempt)
    run.rows(1, attempt_id=1)
    run.emitter.prepare(TransactionAttempt(1, 1))
    assert not set(run.rows(1)) & set(numbered(100).splitlines())


def test_a_file_that_changes_before_its_task_runs_fails_the_job(inputs, new_run, monkeypatch):
    monkeypatch.setattr(file_reading, "NATIVE_FILES_MAX", 0)
    put(inputs, "a", "x\n")
    run = new_run(inputs)
    run.begin_all()
    emitted = run.emitter.emit_batch(TransactionAttempt(1, 0), run.pins[1])
    (inputs / "a").write_text("xx\n")
    with pytest.raises(Exception) as caught:
        emitted.data.collect()
    error = source_failure(caught.value)
    assert error is not None and "in/a changed" in str(error) and "expected: 2 bytes" in str(error)


def test_a_file_that_spark_cannot_read_is_named(inputs, new_run):
    put(inputs, "a.gz", b"this is no gzip")
    assert "in/a.gz cannot be read" in str(failure(new_run(inputs)))


def test_other_failures_are_no_source_failures():
    assert source_failure(ValueError("x")) is None


def test_an_unreadable_file_is_named(tmp_path):
    """In a process of another user when this one is root, who may read everything."""
    program = f"""
import os, sys, tempfile
sys.path.insert(0, {str(ROOT)!r})
from trident.spouts.files.listing import ChangePolicy
from trident.spouts.files.ledger import FileLedger, FoundFile
from pathlib import Path
folder = Path(tempfile.mkdtemp())
folder.chmod(0o777)
file = folder / "a"
file.write_text("x")
file.chmod(0)
if os.geteuid() == 0:
    os.setuid(65534)
ledger = FileLedger(folder / "ledger", "bytes")
ledger.append([FoundFile(str(file), 1, file.stat().st_mtime_ns)])
try:
    ChangePolicy(ledger, "skip").intact(ledger.book.entry(1))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SourceError") and "/a cannot be read" in done.stdout and "Permission" in done.stdout


@pytest.fixture
def plan(inputs, tmp_path):
    """A run that plans only: no session is needed."""

    def make(path=inputs, **more: Any) -> Run:
        (tmp_path / "state").mkdir(exist_ok=True)
        run = Run.__new__(Run)
        run.spout = FileSpout(path, poll_interval_secs=0, **more)
        run.context = SpoutContext(None, "t", "words", tmp_path / "state", "life")
        run.pins = {}
        run.coordinator = run.spout.get_coordinator(run.context)
        return run

    return make


def starts_again(run: Run, spout: FileSpout | None = None) -> None:
    """As a coordinator does that takes over."""
    run.spout = spout or run.spout
    run.coordinator = run.spout.get_coordinator(run.context)
    run.coordinator.resume(max(run.pins), run.pins[max(run.pins)])


def ledger_of(run: Run) -> Path:
    return next(run.context.state_folder.glob("files-*"))


def two_files_read(inputs: Path, plan: Any) -> Run:
    put(inputs, "a", "a\n", mtime=5)
    run = plan()
    run.begin_all()
    put(inputs, "b", "b\n", mtime=6)
    run.begin_all()
    put(inputs, "c", "c\n", mtime=1)  # moved in, and older
    return run


def test_a_lost_ledger_halts_before_another_is_begun(inputs, plan):
    run = two_files_read(inputs, plan)
    path = ledger_of(run)
    path.unlink()
    with pytest.raises(Halted, match=f"{path} lacks files.*found: 0 files; expected: at least 2.*/b.*back-up"):
        starts_again(run)
    assert not path.exists()
    with pytest.raises(SourceError, match="lacks files"):
        run.coordinator.initialize_transaction(3, {key: run.pins[2][key] for key in ("from", "to")}, None)


def test_any_damage_to_what_was_read_of_the_ledger_halts(inputs, plan):
    """Every byte, and every older copy: nothing is read twice or left out without a word."""
    run = two_files_read(inputs, plan)
    path = ledger_of(run)
    whole = path.read_bytes()
    lengths = [number for number, byte in enumerate(whole, 1) if byte == 10]
    for damaged in [
        *(whole[:length] for length in [0, *lengths[:-1], len(whole) - 1]),
        *(whole[:at] + bytes([whole[at] ^ 1 << at % 7]) + whole[at + 1 :] for at in range(0, len(whole), 3)),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(Halted, match=str(path)):
            starts_again(run)
    path.write_bytes(whole)
    starts_again(run)
    run.begin_all()
    assert [pin["file"]["path"][-1] for pin in run.pins.values()] == ["a", "b", "c"]


def test_a_ledger_and_pins_of_the_version_before_are_read_and_have_digests_from_then_on(inputs, plan):
    run = two_files_read(inputs, plan)
    path = ledger_of(run)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    old = [{key: value for key, value in line.items() if key not in ("digest", "source")} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    run.pins = {txid: {key: value for key, value in pin.items() if key != "file"} for txid, pin in run.pins.items()}
    starts_again(run)
    run.begin_all()
    assert run.pins[3]["file"]["path"] == str(inputs / "c")
    path.write_text(path.read_text().replace(f"{inputs}/a", f"{inputs}/x"))
    with pytest.raises(Halted, match="line 4.*one before it, is not as it was written"):
        starts_again(run)
    path.unlink()
    run.pins = {1: {"from": [1, 0], "to": [2, 0], "rows_estimate": 1}}
    with pytest.raises(Halted, match="lacks files"):
        starts_again(run)


def test_a_ledger_that_goes_while_it_is_used_is_not_begun_anew(inputs, plan):
    run = two_files_read(inputs, plan)
    path = ledger_of(run)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(Halted, match="became shorter.*found: 40 bytes"):
        run.begin_all()
    path.unlink()
    with pytest.raises(Halted, match="became shorter.*no file"):
        run.begin_all()
    assert not path.exists()


def test_a_ledger_is_written_again_only_where_its_digest_proves_it(inputs, plan):
    run = two_files_read(inputs, plan)
    path, whole = ledger_of(run), ledger_of(run).read_bytes()

    def damage() -> Any:
        return inspect_ledger(path.parent, "life", run.pins, "FileSpout")

    assert damage() is None
    (inputs / "c").rename(inputs.parent / "c")  # else it would come first: nobody knows that it came later
    lines = whole.splitlines(keepends=True)
    for damaged in (b"", lines[0], lines[0] + lines[1], whole.replace(b'"n": 1', b'"n": 3'), whole[:-5]):
        path.write_bytes(damaged)
        write_ledger(damage())
        assert path.read_bytes() == whole and damage() is None
        assert path.with_name(f"{path.name}.damaged").read_bytes() == damaged
    path.unlink()
    faults.arm("repair.ledger:fail_before")
    with pytest.raises(faults.InjectedFault):
        write_ledger(damage())
    faults.disarm()
    write_ledger(damage())
    assert path.read_bytes() == whole
    path.unlink()
    path.mkdir()
    with pytest.raises(SourceError, match="cannot be written again.*Move it away"):
        write_ledger(damage())
    path.rmdir()
    path.symlink_to("/proc/self/mem")  # a file that cannot be read from its beginning
    assert damage().data is None
    (inputs.parent / "c").rename(inputs / "c")
    path.unlink()
    found = damage()
    assert found.data is None and str(path) in found.text
    places = {"from": [1, 0], "to": [3, 0]}
    for of_another in ({"n": 1}, {"from": 3, "to": 7, "file": "f"}, places, {**places, "file": {"name": "f"}}):
        run.pins = {1: of_another}
        assert inspect_ledger(path.parent, "life", run.pins, "OwnFileSpout") is None
    run.pins = {1: {"from": 3, "to": 7, "file": "f"}}
    assert damage() is None  # of a class of the user's with that name


# --- odd entries and names ----------------------------------------------------------------


def test_a_link_to_itself_is_passed_over_and_said_once(inputs, plan, caplog):
    (inputs / "loop").symlink_to("loop")
    (inputs / "dangling").symlink_to("nowhere")
    put(inputs, "a", "x\n")
    run = plan()
    run.begin_all()
    run.coordinator.refresh()
    assert [pin["file"]["path"] for pin in run.pins.values()] == [str(inputs / "a")] and not run.ready()
    assert caplog.text.count("loop is passed over") == 1
    globbed = plan(str(inputs / "*"))
    globbed.begin_all()
    assert [pin["to"] for pin in globbed.pins.values()] == [[2, 0]]


def test_packed_files_with_a_header_a_colon_or_a_name_that_is_not_utf8_are_read(inputs, new_run):
    odd = os.fsdecode(b"caf\xe9")
    put(inputs, "x:1.gz", gzip.compress(b"k,v\n1,a\n"))
    put(inputs, "two.gz", gzip.compress(b"k,v\n2,b\n") + gzip.compress(b"3,c"))
    put(inputs, "b.bz2", bz2.compress(b"k,v\n4,d\n"))
    put(inputs, f"{odd}.csv", b"k,v\n5,e\n")
    put(inputs, f"{odd}.gz", gzip.compress(b"k,v\n6,f\n"))
    run = new_run(inputs, "csv", {"header": True}, schema=SCHEMA)
    assert run.all_rows() == Counter({(1, "a"): 1, (2, "b"): 1, (3, "c"): 1, (4, "d"): 1, (5, "e"): 1, (6, "f"): 1})
    put(inputs, "torn:.gz", gzip.compress(b"k,v\n" * 1000)[:-20])
    with pytest.raises(SourceError, match="torn:.gz"):  # before it is part of a batch
        run.ready()
    (inputs / "torn:.gz").unlink()
    put(inputs, f"{odd}-wrong.csv", "k,v\nnot a number,e\n")
    run.begin_all()
    assert "-wrong.csv" in str(failure(run, max(run.pins)))


@pytest.mark.parametrize("name", ["a:b.lz4", os.fsdecode(b"\xe9.lz4")])
def test_a_file_that_nothing_can_read_is_named_when_it_is_discovered(inputs, plan, name):
    put(inputs, "a", "x\n")
    put(inputs, name, "?")
    run = plan()
    with pytest.raises(SourceError, match=f"{shown(name)[-5:]} cannot be read by this stream".replace("\\", "\\\\")):
        run.ready()
    (inputs / name).unlink()
    assert run.ready()


# --- another path -------------------------------------------------------------------------


def test_other_files_than_before_are_refused_naming_both(inputs, plan, tmp_path):
    run = two_files_read(inputs, plan)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(IdentityMismatch, match=f"'words'.*found: {other}; expected: {inputs}.*moved_from='{inputs}'"):
        starts_again(run, FileSpout(other))
    for path in (inputs / "*.txt", [other, inputs], tmp_path, inputs / "a"):
        starts_again(run, FileSpout(path, poll_interval_secs=0))
    starts_again(run, FileSpout([inputs, other], poll_interval_secs=0))
    run.begin_all()  # c: from now on the ledger says both
    starts_again(run, FileSpout(other, poll_interval_secs=0))


def test_a_folder_that_was_moved_is_gone_on_with(inputs, plan, tmp_path):
    run = two_files_read(inputs, plan)
    moved = inputs.rename(tmp_path / "moved")
    for _ in range(2):  # the argument may stay
        starts_again(run, FileSpout(moved, moved_from=inputs, poll_interval_secs=0))
        run.begin_all()
    starts_again(run, FileSpout(moved, poll_interval_secs=0))
    put(moved, "d", "d\n")
    run.begin_all()
    assert [pin["file"]["path"] for pin in run.pins.values()] == [
        str(folder / name) for folder, name in ((inputs, "a"), (inputs, "b"), (moved, "c"), (moved, "d"))
    ]
    with pytest.raises(TopologyError, match="moved_from"):
        FileSpout([moved, inputs], moved_from=inputs)


def test_a_ledger_of_the_version_before_with_another_path_is_a_warning(inputs, plan, tmp_path, caplog):
    run = two_files_read(inputs, plan)
    path = ledger_of(run)
    old = [json.loads(line) for line in path.read_text().splitlines()]
    for line in old:
        line.pop("digest"), line.pop("source", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    run.pins = {2: {"from": [2, 0], "to": [3, 0], "rows_estimate": 1}}
    (tmp_path / "other").mkdir()
    starts_again(run, FileSpout(tmp_path / "other"))
    assert f"{inputs}/b" in caplog.text and f"{tmp_path}/other" in caplog.text


# --- CSV and JSON -------------------------------------------------------------------------

SCHEMA = "k int, v string"


def csv_file(begin: int, count: int = 20) -> str:
    return "k,v\n" + "".join(f'{i},"v, ""{i}"" ü"\r\n' for i in range(begin, begin + count))


@pytest.mark.parametrize("rows", sample([40, 1_000], 40))
def test_csv_with_headers_in_batches_of_any_size(inputs, new_run, rows):
    for number in range(3):
        put(inputs, f"{number}.csv", csv_file(20 * number))
    put(inputs, "only-a-header.csv", "k,v")
    put(inputs, "blank.csv", "k,v\n\n  \n7,x\n\n")
    run = new_run(inputs, "csv", {"header": True, "escape": '"'}, schema=SCHEMA, min_rows=rows, max_rows=rows)
    assert run.all_rows() == Counter([*((i, f'v, "{i}" ü') for i in range(60)), (7, "x")])
    assert (len(run.pins) == 1) == (rows == 1_000)


def test_csv_rows_are_those_of_sparks_own_reader(inputs, new_run, spark):
    put(inputs, "a", '1;"a;b";2026-01-02;1.5\n;;;\n# no\n2; c ;2026-01-03;x\n\n3;NA;;\n')
    schema, options = "k int, v string, d date, f string", {"sep": ";", "comment": "#", "nullValue": "NA"}
    expected = Counter(map(tuple, spark.read.csv(str(inputs / "a"), schema=schema, **options).collect()))
    assert new_run(inputs, "csv", options, schema=schema).all_rows() == expected
    assert len(expected) == 4


MALFORMED = {
    "csv by Spark": (30, "csv", "1,a\n", "2,b\n\nnot a number,c\r\n", "not a number,c", 3),
    "csv by tasks": (0, "csv", "1,a\n", "\ufeff2\n", "found: 2", 1),
    "an open quote": (30, "csv", "1,a\n", '2,b\n3,"c', '3,"c', 2),
    "json of another type": (0, "json", '{"k": 1, "v": "a"}\n', '{"k": "x"}\n', '{"k": "x"}', 1),
    "an open object": (30, "json", '{"k": 1, "v": "a"}\n', '{"k": 2, "v": "b"}\n{"k": 2\n', '{"k": 2', 2),
    "no object": (0, "json", '{"k": 1, "v": "a"}\n', "null\n", "null", 1),
}


@pytest.mark.parametrize("case", sample(MALFORMED, "csv by Spark", "json of another type"))
def test_a_malformed_row_fails_the_batch_and_names_its_file_and_line(inputs, new_run, monkeypatch, case):
    native_files, format, good, bad, shown, line = MALFORMED[case]
    monkeypatch.setattr(file_reading, "NATIVE_FILES_MAX", native_files)
    put(inputs, "good", good)
    put(inputs, "wrong one%20#", bad)
    run = new_run(inputs, format, schema=SCHEMA)
    run.begin_all()
    with pytest.raises(Exception) as caught:
        run.rows(1)
    error = source_failure(caught.value)
    assert isinstance(error, SourceError), caught.value
    assert shown in str(error) and f"in/wrong one%20#, line {line}; found" in str(error), error
    assert "mode=" in str(error), error
    (inputs / "wrong one%20#").unlink()
    gone = source_failure(caught.value)
    assert gone is not None and error.fingerprint == gone.fingerprint == str(gone), "another attempt fails the same way"


@pytest.mark.parametrize("encoding", sample(["utf-8", "ISO-8859-1"], "utf-8"))
def test_the_line_of_an_error_counts_from_the_files_beginning(inputs, new_run, encoding):
    lines = "k,v\n" + "".join(f"{number},ü\n" for number in range(50)) + "wrong,ü\n51,y\n"
    put(inputs, "a.gz", gzip.compress(lines.encode(encoding)))
    put(inputs, "b", lines.replace("wrong", "50").encode(encoding))
    run = new_run(inputs, "csv", {"header": True, "encoding": encoding}, schema=SCHEMA)
    assert "in/a.gz, line 52; found: wrong,ü" in str(failure(run))


UNUSED = {"csv": "1,a\nx,b\n", "json": '{"k":1,"v":"a"}\n{"k":2}{"k":1}\n'}


@pytest.mark.parametrize("format", sample(UNUSED, "csv"))
def test_malformed_rows_count_even_when_the_query_does_not_use_their_fields(inputs, new_run, format):
    put(inputs, "a", UNUSED[format])
    run = new_run(inputs, format, schema=SCHEMA)
    run.begin_all()
    data = frame_of(run.emitter.emit_batch(TransactionAttempt(1, 0), run.pins[1]))
    for query in (data.where("v = 'a'").select("k"), data.groupBy().count()):
        with pytest.raises(Exception) as caught:
            query.collect()
        assert source_failure(caught.value) is not None


def test_malformed_rows_are_kept_or_dropped_on_request(inputs, new_run):
    put(inputs, "a", "1,a\nx,b\n3,c\n")
    dropped = new_run(inputs, "csv", {"mode": "DROPMALFORMED"}, schema=SCHEMA)
    assert dropped.all_rows() == Counter([(1, "a"), (3, "c")]) and dropped.counted == {1: None}
    options = {"mode": "permissive", "columnNameOfCorruptRecord": "bad"}
    dropped.spout = FileSpout(inputs, "csv", SCHEMA + ", bad string", options=options, poll_interval_secs=0)
    dropped.restart()
    assert Counter(dropped.rows(1)) == Counter([(1, "a", None), (None, "b", "x,b"), (3, "c", None)])


@pytest.mark.parametrize(
    ("native_files", "format"), sample([(0, "text"), (30, "csv"), (0, "json")], (0, "text"), (30, "csv"))
)
def test_rows_are_counted_where_they_are_read(inputs, new_run, monkeypatch, native_files, format):
    """Lines of many lengths: an estimate from bytes is wrong. Blank lines and comments are rows of text alone."""
    monkeypatch.setattr(file_reading, "NATIVE_FILES_MAX", native_files)
    good = {"text": "{}", "csv": "{},a", "json": '{{"k": {}}}'}[format]
    lines = [good.format("1" * (1 + number % 9)) for number in range(300)]
    for at, line in (
        (290, ""),
        (200, " \t\x01 "),
        (100, "\t\r"),
        (50, "\r"),
        (7, "#,a" if format == "csv" else ""),
        (0, ""),
    ):
        lines.insert(at, line)
    put(inputs, "a", "\n".join(lines))
    put(inputs, "b", "\n".join(lines[:100]) + "\n")
    put(inputs, "empty", "")
    run = new_run(
        inputs, format, {"comment": "#"} if format == "csv" else None, schema=None if format == "text" else SCHEMA
    )
    assert run.all_rows().total() == sum(run.counted.values()) == (406 if format == "text" else 397)


# --- Parquet ------------------------------------------------------------------------------


def parquet(folder: Path, name: str, table: pa.Table, mtime: int = 1, **how: Any) -> Path:
    hidden = folder / f".{name}"
    pq.write_table(table, hidden, **how)
    return put(folder, name, hidden.read_bytes(), mtime)


def typed_table(begin: int, count: int) -> pa.Table:
    """Every type in which Arrow's and Spark's readers might differ."""
    number = range(begin, begin + count)
    at = [dt.datetime(2026, 1, 1) + dt.timedelta(microseconds=i) for i in number]
    return pa.table(
        {
            "i": pa.array(number, pa.int32()),
            "n": pa.array([i if i % 3 else None for i in number], pa.int64()),
            "d": pa.array([i / 7 for i in number]),
            "s": [f"ü {i}" if i % 5 else "" for i in number],
            "b": [bytes([i % 256, 255]) for i in number],
            "t": [i % 2 == 0 for i in number],
            "c": pa.array([Decimal(i) / 100 for i in number], pa.decimal128(12, 2)),
            "date": [dt.date(1960, 1, 1) + dt.timedelta(days=i) for i in number],
            "at": pa.array(at, pa.timestamp("us", tz="UTC")),
            "ntz": pa.array(at, pa.timestamp("us")),
        }
    )


TYPED = (
    "i int, n bigint, d double, s string, b binary, t boolean, c decimal(12,2), date date, at timestamp, "
    "ntz timestamp_ntz"
)
# What Arrow would read otherwise: wider or nested types, old times, names in another case, columns that are missing.
CONVERTED = "I int, wide bigint, old timestamp, list array<int>, missing string"


def plain(row: Any) -> Any:
    return tuple(bytes(value) if isinstance(value, bytearray) else str(value) for value in row)


@pytest.mark.parametrize("schema", sample([CONVERTED, TYPED], TYPED))
def test_parquet_in_batches_of_any_size_is_what_spark_reads(inputs, new_run, spark, schema):
    converted = schema == CONVERTED
    for number, row_group in enumerate((7, 100, 1_000)):
        table = typed_table(100 * number, 100)
        table = table.append_column("wide", table["i"])
        table = table.append_column("old", table["ntz"].cast(pa.timestamp("ns")))
        table = table.append_column("list", pa.array([[i, None] for i in range(100)], pa.list_(pa.int32())))
        parquet(inputs, f"{number}.parquet", table, row_group_size=row_group, use_deprecated_int96_timestamps=converted)
    expected = Counter(map(plain, spark.read.schema(schema).parquet(str(inputs)).collect()))
    assert expected.total() == 300
    run = new_run(inputs, "parquet", schema=schema, min_rows=64, max_rows=64)
    run.begin_all()
    got = {txid: Counter(map(plain, run.rows(txid))) for txid in run.pins}
    assert sum(got.values(), Counter()) == expected
    assert [batch.total() for batch in got.values()] == [pin["rows"] for pin in run.pins.values()]
    assert any(pin["from"][1] for pin in run.pins.values())
    # Both ways of reading a part of a file were taken: in the tasks, and by Spark with row numbers.
    assert is_exact(str(inputs / "0.parquet"), run.spout.row_format) == ("missing" not in schema)
    whole = new_run(inputs, "parquet", schema=schema)
    assert Counter(map(plain, whole.rows(whole.begin()))) == expected


def test_parquet_ranges_are_read_by_several_tasks(inputs, new_run, monkeypatch):
    parquet(inputs, "a", typed_table(0, 1_000), row_group_size=130)
    run = new_run(inputs, "parquet", schema="i int", min_rows=700, max_rows=700)
    monkeypatch.setattr(file_reading, "PARTITION_BYTES", 1_000)
    run.begin_all()
    assert [pin["rows"] for pin in run.pins.values()] == [700, 300]
    data = run.emitter.emit_batch(TransactionAttempt(1, 0), run.pins[1])
    assert data.partitions > 1 and data.data.rdd.getNumPartitions() == data.partitions
    assert [row.i for row in data.data.collect()] == list(range(700))
    assert run.rows(2) == list(range(700, 1_000))


def test_a_file_that_is_no_parquet_is_named_and_read_once_it_is_mended(inputs, new_run):
    put(inputs, "a.parquet", "no parquet at all")
    run = new_run(inputs, "parquet", schema="i int")
    with pytest.raises(SourceError, match=r"in/a\.parquet cannot be read as Parquet"):
        run.ready()
    parquet(inputs, "a.parquet", typed_table(0, 3))
    assert run.all_rows() == Counter(range(3))


def test_a_parquet_ledger_is_not_taken_for_one_of_bytes(inputs, new_run):
    parquet(inputs, "a.parquet", typed_table(0, 3))
    run = new_run(inputs, "parquet", schema="i int")
    run.begin_all()
    with pytest.raises(SourceError, match="another one before"):
        new_run(inputs, "text")


# --- what is refused when built -----------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "more", "message"),
    [
        ("avro", {}, "format"),
        ("csv", {}, "schema"),
        ("json", {}, "schema"),
        ("parquet", {}, "schema"),
        ("text", {"schema": "k int"}, "one field"),
        ("text", {"schema": "a string, b string"}, "one field"),
        ("csv", {"schema": "k"}, "without a type"),
        ("text", {"on_changed": "ignore"}, "on_changed"),
        ("text", {"min_rows": 9, "max_rows": 3}, "bounds"),
        ("csv", {"schema": SCHEMA, "options": {"mode": "LENIENT"}}, "mode"),
        ("parquet", {"schema": SCHEMA, "options": {"ignoreCorruptFiles": "true"}}, "ignoreCorruptFiles"),
    ],
)
def test_what_cannot_work_is_refused_when_built(tmp_path, format, more, message):
    with pytest.raises(TopologyError, match=message):
        FileSpout(tmp_path, format, **more)


def test_the_schema_of_text_is_one_string(tmp_path):
    assert FileSpout(tmp_path).output_schema.simpleString() == "struct<value:string>"
    assert FileSpout(tmp_path, schema="line string").output_schema.simpleString() == "struct<line:string>"
