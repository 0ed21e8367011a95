"""A data file or log entry that lost its bytes is an error wherever it is read, never fewer rows."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StructType

from tests.states.keyed_helpers import Group, Native, append, keyed
from tests.topology_helpers import starter
from trident import DeltaMapState, FixedBatchSpout, TridentTopology
from trident.coordinators.errors import AttemptCapReached, SourceError, StagedFileMissing, TableError, TridentError
from trident.spouts.delta.log import DeltaChanges, DeltaFrames
from trident.spouts.partitions import Emission, EmittedFile, PartitionEmission
from trident.states.core import storage
from trident.states.delta.data_files import require_whole, require_whole_log
from trident.states.delta.delta_log import DeltaLog, LogTables
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.staging import verify_staged
from trident.states.history.recorder import is_damage
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.key_reads import KeyReader
from trident.states.keyed.reading import base_of, read_state

ENTRY = b'{"commitInfo":{"operation":"WRITE"}}\n'


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def replaced_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [emptied, cut, grown, replaced_by_folder, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_file_is_as_long_as_it_was_written_or_an_error_says_what_it_is(tmp_path: Path, damage: Callable) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    file = LiveFile("a", 5, {}, None, None, 0)
    require_whole("table t", str(tmp_path), [file])
    verify_staged(tmp_path, [file])
    damage(tmp_path / "a")
    with pytest.raises(TableError, match="data file of table t .* a; found: .*expected: a file of 5 bytes"):
        require_whole("table t", str(tmp_path), [file])


def test_a_storage_that_does_not_answer_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged table of transactions is deleted and made again: one that is only out of reach must not be."""

    def no_answer(path: object) -> None:
        raise OSError(errno.EIO, "the store is away", str(path))

    file = LiveFile("a", 5, {}, None, None, 0)
    with pytest.raises(TableError) as gone:
        require_whole("table t", str(tmp_path), [file])
    monkeypatch.setattr(storage, "stat", no_answer)
    with pytest.raises(TableError, match="the store is away") as away:
        require_whole("table t", str(tmp_path), [file])
    assert (is_damage(gone.value), is_damage(away.value)) == (True, False)
    with pytest.raises(StagedFileMissing, match="5 bytes"):
        verify_staged(tmp_path, [file])


# --- logs -----------------------------------------------------------------------------------------


def log_of(table: Path, entries: dict[int, bytes], **others: bytes) -> str:
    folder = table / "_delta_log"
    folder.mkdir(parents=True)
    for version, content in entries.items():
        (folder / f"{version:020d}.json").write_bytes(content)
    for name, content in others.items():
        (folder / f"{int(name[1:]):020d}.checkpoint.parquet").write_bytes(content)
    return str(table)


def test_an_empty_or_missing_entry_in_the_middle_is_an_error(tmp_path: Path) -> None:
    whole = dict.fromkeys(range(6), ENTRY)
    require_whole_log(log_of(tmp_path / "whole", whole))
    require_whole_log(str(tmp_path / "none"))
    require_whole_log(str(tmp_path / "none"), 3)
    with pytest.raises(TableError, match="log entry 0 of table"):
        require_whole_log(log_of(tmp_path / "all_lost", {}), 3)
    require_whole_log("s3://bucket/table")
    for name, entries in (("empty", {**whole, 3: b""}), ("hole", {at: ENTRY for at in range(6) if at != 3})):
        table = log_of(tmp_path / name, entries)
        with pytest.raises(TableError, match="log entry 3 of table"):
            require_whole_log(table)
        with pytest.raises(TableError, match="3"):
            DeltaLog(table).commit(3)
        require_whole_log(table, 2)  # a version before it does not need it


def test_what_a_checkpoint_holds_needs_no_entry_and_an_empty_checkpoint_holds_nothing(tmp_path: Path) -> None:
    rest = {at: ENTRY for at in range(4, 6)}
    require_whole_log(log_of(tmp_path / "cleaned", rest, v3=b"PAR1"))
    require_whole_log(log_of(tmp_path / "passed_over", {**rest, 2: b"", 3: ENTRY}, v2=b"PAR1", v4=b""))
    with pytest.raises(TableError, match="log entry 0 of table"):
        require_whole_log(log_of(tmp_path / "empty", rest, v3=b""))
    with pytest.raises(TableError, match="log entry 5 of table"):
        require_whole_log(log_of(tmp_path / "torn", {**rest, 5: b""}, v3=b"PAR1"))


def test_a_log_that_was_cleaned_up_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    """Whoever reads the version says that it is too old, and not that a file must be brought back from a back-up."""
    later = {at: ENTRY for at in range(4, 9)}
    require_whole_log(log_of(tmp_path / "cleaned", later, v7=b"PAR1"), 5)
    with pytest.raises(TableError, match="log entry 5 of table"):
        require_whole_log(log_of(tmp_path / "empty", {**later, 5: b""}, v7=b"PAR1"), 6)


# --- reading --------------------------------------------------------------------------------------


def test_every_reader_of_a_keyed_state_refuses_what_lost_its_bytes(spark, engine, tmp_path) -> None:
    group = Group(spark, engine, tmp_path, keyed(aggregator=Native("count")))
    compactor = Compactor(spark, engine, tmp_path, group.descriptor("counts"))
    for txid in (1, 2, 3):
        group.publish(txid, {"counts": [("a", 1), (f"b{txid}", 1)]})
        if txid == 1:
            compactor.merge_once(1, force=True)
    tables, reader = LogTables(), KeyReader(tmp_path)
    readers = {
        "snapshot": lambda: read_state(spark, tmp_path, "counts", 3).collect(),
        "get": lambda: [
            one for one in reader.get("counts", reader.requested("counts", ["a", "b1", "b2", "b3", "c"])) if one
        ],
        "lookup": lambda: base_of(spark, tmp_path, "counts", None, 3, tables=tables).collect(),
        "lookup anew": lambda: base_of(spark, tmp_path, "counts", None, 3).collect(),
    }
    assert all(len(read()) == 4 for read in readers.values())
    log_file = next(iter((tmp_path / "counts__log").glob("data/*/3-*/*.parquet")))
    plain_file = next(iter((tmp_path / "counts").glob("**/*.parquet")))
    for file in (log_file, plain_file):
        content = file.read_bytes()
        emptied(file)
        for name, read in readers.items():
            with pytest.raises(TableError, match=f"{file.name}; found: 0 bytes; expected: a file of {len(content)} b"):
                raise AssertionError(f"{name}: {read()}")
        if file == log_file:
            with pytest.raises(TableError, match=f"{file.name}.* 0 bytes"):
                compactor.merge_once(3, force=True)
        file.write_bytes(content)


@pytest.mark.long
def test_readers_of_an_append_refuse_what_lost_its_bytes(spark, engine, tmp_path) -> None:
    group = Group(spark, engine, tmp_path, append())
    for txid in (1, 2, 3):
        group.publish(txid, {"lines": [(str(txid),)]})
    # A log entry: its rows would only be missing.
    entry = tmp_path / "lines" / "_delta_log" / f"{2:020d}.json"
    content = entry.read_bytes()
    for damaged in (b"", content[: len(content) // 2]):
        entry.write_bytes(damaged)
        with pytest.raises(TridentError, match="log entry 2|Delta refused"):
            raise AssertionError(read_state(spark, tmp_path, "lines").collect())
    entry.write_bytes(content)
    assert len(read_state(spark, tmp_path, "lines").collect()) == 3

    data = tmp_path / "lines" / DeltaLog(tmp_path / "lines").commit(2).adds[0]
    rows, size = data.read_bytes(), data.stat().st_size
    for damaged in (b"", rows[:-1]):  # of the second Delta itself would say so, once a job reads it
        data.write_bytes(damaged)
        with pytest.raises(TableError, match=f"{data.name}; found: {len(damaged)} bytes; expected: a file of {size} b"):
            read_state(spark, tmp_path, "lines")
    data.write_bytes(rows)

    # The same tables as a source.
    source = str(tmp_path / "lines")
    change = DeltaChanges(source).read(2)
    frames = DeltaFrames(spark, source)
    rows = frames.frame(frames.parsed([file.action for file in change.added]), 3)
    assert [row.line for row in rows.collect()] == ["2"]
    emptied(entry)
    for read in (lambda: DeltaChanges(source).read(2), lambda: DeltaFrames(spark, source).sizes(3)):
        with pytest.raises(SourceError, match="log entry 2"):
            read()
    entry.write_bytes(content)
    emptied(tmp_path / "lines" / DeltaLog(source).commit(2).adds[0])
    with pytest.raises(Exception, match="FAILED_READ_FILE|not a Parquet file|Length|File"):
        raise AssertionError(rows.collect())  # Delta itself refuses


def test_files_between_the_two_halves_of_a_batch_and_emitted_ones(spark, tmp_path: Path) -> None:
    emission = Emission({"p": 1}, parts=(EmittedFile("f", 7),))
    emptied(tmp_path / "f")

    class Here(PartitionEmission):
        _root = tmp_path

    spout = SimpleNamespace(output_schema=StructType.fromDDL("a long"))
    here = Here(spout, SimpleNamespace(spark=spark, tx_id="s"))
    with pytest.raises(TableError, match="emitted batch of stream s.*found: 0 bytes; expected: a file of 7 bytes"):
        here.emitted(emission)


class Total:
    """A reducer: reads the state before it writes it."""

    def init(self) -> int:
        return 0

    def reduce(self, current: int, n: int) -> int:
        return current + n


@pytest.mark.long
def test_a_reducer_never_goes_on_from_a_value_that_was_lost(spark, zk_server, zk_root, tmp_path: Path) -> None:
    def sums(batches: list) -> TridentTopology:
        topology = TridentTopology("sums")
        stream = topology.new_stream("s", FixedBatchSpout("k string, n long", batches))
        stream.group_by("k").persistent_aggregate(DeltaMapState("sums"), "n", Total(), "total long")
        return topology

    batches = [[("x", 100), ("y", 10)], [("x", 1)]]
    with starter(spark, zk_server, zk_root, tmp_path, max_attempts=1) as start:
        start.run(sums(batches[:1])).stop(compact=False)
        whole = {file: file.read_bytes() for file in (tmp_path / "warehouse" / "sums__log").glob("**/*.parquet")}
        for file in whole:
            emptied(file)
        query = start(sums(batches))
        with pytest.raises(AttemptCapReached, match=r"found: 0 bytes; expected: a file of \d+ bytes"):
            query.process_all_available(60)
        for file, content in whole.items():
            file.write_bytes(content)
        query = start.run(sums(batches))
        assert {row.k: row.total for row in query.snapshot("sums").collect()} == {"x": 101, "y": 10}
