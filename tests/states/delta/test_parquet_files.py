"""What a task reports about a file is true, and its statistics never exclude a row that is there."""

from __future__ import annotations

import datetime
import decimal
import errno
import gc
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trident.states.delta import file_layout, parquet_files
from trident.states.delta.parquet_files import FileTarget, ParquetWriter, write_partition

UTC = datetime.timezone.utc


def written(folder: Path, table: pa.Table, **target: object) -> list[dict]:
    return list(write_partition(FileTarget("t", str(folder), "data/i/1-0-aa", **target), table.to_batches(7)))


def test_a_file_is_reported_with_its_size_rows_and_null_counts(tmp_path: Path) -> None:
    table = pa.table({"word": ["b", None, "a"], "n": pa.array([3, 1, None], pa.int64())})
    (report,) = written(tmp_path, table, constants={"_txid": 7})
    path = tmp_path / report["path"]
    assert report["size"] == path.stat().st_size and report["num_records"] == 3
    assert pq.read_table(path).column("_txid").to_pylist() == [7, 7, 7]
    stats = json.loads(report["stats"])
    assert stats["nullCount"] == {"word": 1, "n": 1, "_txid": 0}
    assert stats["minValues"] == {"word": "a", "n": 1, "_txid": 7}
    assert stats["maxValues"] == {"word": "b", "n": 3, "_txid": 7}


def test_times_that_python_has_not_are_written_without_bounds(tmp_path: Path) -> None:
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        folder = tmp_path / str(kind.tz)
        garbage = pa.table({"at": pa.array([1_700_000_000_000_000_000, 0], kind), "n": [1, 2]})  # read as microseconds
        (report,) = written(folder, garbage)
        stats = json.loads(report["stats"])
        assert "at" not in stats["minValues"] and stats["maxValues"] == {"n": 2}
        assert (
            pq.read_table(folder / report["path"]).column("at").cast(pa.int64()).to_pylist()[0]
            == 1_700_000_000_000_000_000
        )
    last = pa.table({"at": pa.array([253_402_300_799_999_999], pa.timestamp("us", "UTC"))})
    (report,) = written(tmp_path / "last", last)
    assert "at" not in json.loads(report["stats"])["maxValues"]


def test_no_rows_no_file(tmp_path: Path) -> None:
    empty = pa.table({"n": pa.array([], pa.int64())})
    assert written(tmp_path, empty) == []
    assert not list(tmp_path.iterdir())


_WORKER = """
import gc, sys
import pyarrow as pa
from trident.states.delta import file_layout, parquet_files
parquet_files.attempt_of_job = lambda: '{"folder": "data/i/1-0-aa", "txid": 1}'
write = parquet_files.writer_of(parquet_files.FileTarget("t", sys.argv[1]))
list(write([pa.RecordBatch.from_arrays([pa.nulls(1, pa.int64())], ["n"])]))
print(len(gc.get_objects()))
"""


def test_a_worker_collects_no_garbage_of_modules_behind_its_first_task(tmp_path: Path) -> None:
    """Spark's daemon looks for garbage behind each task: over pandas, which the first report imports, for 10 ms."""
    command = [sys.executable, "-c", _WORKER, str(tmp_path)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(found) < 5_000


def test_partition_columns_leave_the_rows_and_become_values(tmp_path: Path) -> None:
    table = pa.table({"day": [datetime.date(2026, 1, 2), None, datetime.date(2026, 1, 2)], "n": [1, 2, 3]})
    reports = written(tmp_path, table, partition_columns=("day",))
    by_value = {json.loads(r["partition_values"])["day"]: r for r in reports}
    assert set(by_value) == {"2026-01-02", None}
    assert pq.read_table(tmp_path / by_value["2026-01-02"]["path"]).to_pydict() == {"n": [1, 3]}
    assert pq.read_table(tmp_path / by_value[None]["path"]).to_pydict() == {"n": [2]}


def test_a_sorted_file_has_its_rows_in_order_in_row_groups_of_one_range_each(tmp_path: Path) -> None:
    keys = [f"w{n * 7919 % 9_000:05}" for n in range(9_000)]
    table = pa.table({"part": [[n] for n in range(9_000)], "word": [None, *keys[1:]], "n": range(9_000)})
    (report,) = written(tmp_path, table, sorted_by=("part", "word", "n"))
    file = pq.ParquetFile(tmp_path / report["path"])
    rows = file.read().to_pylist()
    assert sorted(rows, key=lambda row: row["n"]) == table.to_pylist(), "each row stays whole"
    assert [row["word"] for row in rows] == [*sorted(keys[1:]), None]
    found = [file.metadata.row_group(n).column(1).statistics for n in range(file.num_row_groups)]
    assert len(found) == 3 and all(a.max < b.min for a, b in zip(found, found[1:]))


def test_sort_keys_are_pairs_which_every_arrow_that_we_take_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its version 25 Arrow unpacks each into a name and an order."""
    sort = pc.sort_indices

    def older(rows: pa.Table, sort_keys: list[Any]) -> pa.Array:
        return sort(rows, sort_keys=[(name, order) for name, order in sort_keys])

    monkeypatch.setattr(pc, "sort_indices", older)
    keys = [pa.array([2, None, 1, 1]), pa.array(["a", "b", None, "c"])]
    assert file_layout.positions_in_order(keys).to_pylist() == [3, 2, 0, 1]


@pytest.mark.parametrize("values", [[1.0, math.nan], [math.inf, 1.0]])
def test_bounds_of_floats_that_could_be_wrong_are_left_out(tmp_path: Path, values: list[float]) -> None:
    (report,) = written(tmp_path, pa.table({"x": values}))
    assert json.loads(report["stats"])["minValues"] == {}


@given(st.lists(st.text(min_size=0, max_size=80), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_string_bounds_enclose_every_value(values: list[str]) -> None:
    from trident.states.delta.parquet_files import _string_bounds

    bounds = _string_bounds(min(values), max(values))
    if bounds is not None:
        low, high = bounds
        assert all(low <= value <= high for value in values)
        assert len(low) <= 33 and len(high) <= 33


@given(st.lists(st.datetimes(timezones=st.just(UTC), min_value=datetime.datetime(1900, 1, 1)), min_size=1))
@settings(max_examples=60, deadline=None)
def test_timestamp_bounds_are_whole_milliseconds_that_enclose_every_value(values: list) -> None:
    from trident.states.delta.parquet_files import _milliseconds

    low = datetime.datetime.fromisoformat(_milliseconds(min(values), up=False).replace("Z", "+00:00"))
    high = datetime.datetime.fromisoformat(_milliseconds(max(values), up=True).replace("Z", "+00:00"))
    assert all(low <= value <= high for value in values)


def test_decimals_and_dates_have_bounds_and_nested_columns_none(tmp_path: Path) -> None:
    table = pa.table(
        {
            "amount": pa.array([decimal.Decimal("1.10"), decimal.Decimal("-2.25")], pa.decimal128(10, 2)),
            "day": [datetime.date(2026, 1, 2), datetime.date(2025, 1, 2)],
            "tags": [["a"], ["b", "c"]],
        }
    )
    (report,) = written(tmp_path, table)
    stats = json.loads(report["stats"])
    assert stats["minValues"] == {"amount": -2.25, "day": "2025-01-02"}
    assert stats["maxValues"] == {"amount": 1.1, "day": "2026-01-02"}
    assert "tags" not in stats["nullCount"]


def test_a_job_that_does_not_name_its_attempt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    task = SimpleNamespace(getLocalProperty=lambda name: None)
    monkeypatch.setattr(parquet_files, "TaskContext", SimpleNamespace(get=lambda: task))
    with pytest.raises(AssertionError, match="no local property trident.attempt"):
        parquet_files.attempt_of_job()


class _Disk(io.RawIOBase):
    """A file of a disk that gets full."""

    full = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)


@pytest.mark.parametrize(("writer", "tracebacks"), [(ParquetWriter, 0), (pq.ParquetWriter, 1)])
def test_a_writer_that_is_left_on_a_full_disk_prints_nothing_when_it_is_collected(monkeypatch, writer, tracebacks):
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: ignored.append(raised.exc_type))
    disk, table = _Disk(), pa.table({"n": list(range(1000))})
    left = writer(disk, table.schema)
    left.write_table(table)
    disk.full = True  # another file of the batch finds it out, and the batch fails
    del left
    gc.collect()
    assert len(ignored) == tracebacks
