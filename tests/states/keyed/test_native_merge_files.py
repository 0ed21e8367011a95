"""The files that a native MERGE writes, against a fold in plain Python: random states, logs and sizes of files."""

from __future__ import annotations

import datetime
import io
import math
import os
import pickle
import tempfile
import uuid
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers import store_servers
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.retention import Retention
from trident.states.keyed import merge_files
from trident.states.keyed.file_merge import MergeProcess
from trident.states.keyed.merge_files import (
    Abandoned,
    FileMerger,
    FileUnreadable,
    InFile,
    MergeFailed,
    MergeJob,
    Sizes,
    runs,
    written,
)
from trident.states.keyed.merge_rows import MergedMeanwhile, NotMergeable, RowMerge, why_not
from trident.states.keyed.merge_worker import serve

NAN = float("nan")
KEY_TYPES = {
    pa.string(): st.sampled_from(["", "a", "ab", "é", "\U0001f600", *(f"k{n:03}" for n in range(40))]),
    pa.int64(): st.integers(-30, 30),
    pa.date32(): st.dates(datetime.date(1999, 12, 1), datetime.date(2000, 1, 31)),
    pa.decimal128(9, 2): st.integers(-20, 20).map(lambda n: Decimal(n) / 4),
    pa.timestamp("us", "UTC"): st.integers(0, 30).map(lambda n: datetime.datetime.fromtimestamp(n, datetime.UTC)),
    pa.binary(): st.binary(max_size=1),
    pa.bool_(): st.booleans(),
}
# Arrow takes some for paths into structs; others are what grouped columns could be called.
NAMES = ["k", "K", ".x", "[0]", "a.b", "a`b", "row", "k0", "v", "v_max", "two words", "\\", ""]
SMALL = st.integers(-50, 50)
VALUE_TYPES: dict[str | None, dict[pa.DataType, Any]] = {
    None: {pa.string(): st.text(max_size=2), pa.list_(pa.int64()): st.lists(SMALL, max_size=2)},
    "sum": {pa.int64(): SMALL, pa.decimal128(20, 1): SMALL.map(Decimal), pa.float64(): SMALL.map(float)},
    "count": {pa.int64(): SMALL},
    "min": {pa.float64(): st.sampled_from([NAN, -1.0, 2.5, math.inf]), pa.string(): st.text(max_size=2)},
    "max": {pa.float64(): st.sampled_from([NAN, -1.0, 2.5, -math.inf]), pa.date32(): KEY_TYPES[pa.date32()]},
}


class Table:
    """A plain table and its log as files, and what they must hold."""

    def __init__(self, folder: Path, merge: RowMerge, sizes: Sizes, feed: bool = False) -> None:
        self.folder, self.merge, self.merger, self.feed = folder, merge, FileMerger(sizes), feed
        self.files: dict[str, InFile] = {}
        self.rows: dict[Any, Any] = {}
        self.upto = self.jobs = 0
        for name in ("plain", "log"):
            (folder / name).mkdir(parents=True)

    def log(self, rows: list[tuple[int, tuple[Any, ...]]]) -> InFile:
        """A file of log rows: (txid, (keys, values, deleted?))."""
        schema = self.merge.log_schema
        names = [name for name in schema.names if name != "_txid"]
        columns = {name: [row[n] for _, row in rows] for n, name in enumerate(names)}
        columns["_txid"] = [txid for txid, _ in rows]
        path = self.folder / "log" / f"{len(list((self.folder / 'log').iterdir()))}.parquet"
        pq.write_table(pa.table({f.name: pa.array(columns[f.name], f.type) for f in schema}, schema=schema), path)
        return InFile(path.name, path.stat().st_size)

    def job(self, logs: list[InFile], upto: int) -> MergeJob:
        self.jobs += 1
        root, files = self.folder, tuple(self.files.values())
        folder = f"data/inc/merge-{self.jobs}-x"
        roots = Place(root / "plain"), Place(root / "log")
        changes = f"_change_data/merge-{self.jobs}" if self.feed else ""
        return MergeJob(self.merge, *roots, files, tuple(logs), self.upto, upto, folder, ("data/inc/merge-",), changes)

    def merged(self, logs: list[InFile], upto: int) -> tuple[str, ...]:
        """Merges, and returns the paths of the files that were replaced."""
        before = self.rows_of(self.files) if self.feed else []
        done = self.merger.run(self.job(logs, upto))
        for path in done.replaced:
            del self.files[path]
        self.files.update({file.path: InFile(file.path, file.size) for file in done.written})
        self.upto = upto
        assert bool(done.changes) == (self.feed and bool(done.replaced or done.written)), "or all rows were changed"
        if not self.feed:
            return done.replaced
        changes = self.rows_of([file.path for file in done.changes])
        assert applied(before, changes, len(self.merge.keys)) == Counter(self.rows_of(self.files))
        return done.replaced

    def rows_of(self, paths: Any) -> list[tuple[Any, ...]]:
        """All columns of files, the keys first, in a form that can be compared."""
        found = []
        for path in paths:
            for row in pq.read_table(self.folder / "plain" / path).to_pylist():
                rest = [value for name, value in row.items() if name not in self.merge.keys]
                found.append(tuple(map(repr, [*(row[name] for name in self.merge.keys), *rest])))
        return found

    def fold(self, txid: int, row: tuple[Any, ...]) -> None:
        """A log row in plain Python."""
        width = len(self.merge.keys)
        key, value = row[:width], row[width:]
        if self.merge.aggregator is None:
            self.rows.pop(key, None)
            if not value[-1]:
                self.rows[key] = value[:-1]
            return
        old = self.rows.get(key, value)
        both = {"sum": lambda a, b: a + b, "count": lambda a, b: a + b, "min": _least, "max": _greatest}
        combine = both[self.merge.aggregator]
        if key in self.rows:
            value = tuple(b if a is None else a if b is None else combine(a, b) for a, b in zip(old, value))
        self.rows[key] = value

    def found(self) -> dict[Any, Any]:
        """The table's rows; its files must be in the order of the keys, and no key may be there twice."""
        found: dict[Any, Any] = {}
        width = len(self.merge.keys)
        ranges, ours = [], True
        for file in self.files.values():
            table = pq.read_table(self.folder / "plain" / file.path)
            assert table.schema.names == self.merge.table_schema.names
            assert max(table.column("_upto").to_pylist()) <= self.upto
            rows = [tuple(row.values()) for row in table.select(self.merge.schema.names).to_pylist()]
            ours = ours and file.path.startswith("data/")
            assert not (width and ours) or self.merge.order(table) == list(range(table.num_rows))
            ranges.append((table.slice(0, 1), table.slice(table.num_rows - 1)))
            for row in rows:
                assert row[:width] not in found, "a key is there twice"
                found[row[:width]] = row[width:]
        if width and ranges and ours:
            order = self.merge.order(pa.concat_tables([first for first, _ in ranges]))
            assert self.merge.are_apart([ranges[at] for at in order])
        return found


def applied(before: list[tuple[str, ...]], changes: list[tuple[str, ...]], width: int) -> Counter[tuple[str, ...]]:
    """Rows with the changes of a change data feed made to them, each of which must fit."""
    found, kinds = Counter(before), {}
    for *row, kind in changes:
        kinds.setdefault(tuple(row[:width]), []).append(kind)
        found[tuple(row)] += 1 if kind in ("'insert'", "'update_postimage'") else -1
    once = (["'insert'"], ["'delete'"], ["'update_preimage'", "'update_postimage'"])
    assert all(kind in once for kind in kinds.values())
    there = {row[:width] for row in before}
    assert all((kind != ["'insert'"]) == (key in there) for key, kind in kinds.items())
    assert all(count >= 0 for count in found.values()), "a row is gone that was not there"
    return +found


def _least(a: Any, b: Any) -> Any:
    return b if a != a or b < a else a


def _greatest(a: Any, b: Any) -> Any:
    return a if a != a or not (b != b or b > a) else b


def same(found: dict[Any, Any], expected: dict[Any, Any]) -> bool:
    one_nan = [{key: tuple("NaN" if v != v else v for v in row) for key, row in of.items()} for of in (found, expected)]
    return one_nan[0] == one_nan[1]


@st.composite
def states(draw: st.DrawFn) -> tuple[RowMerge, Any]:
    """A state, and the strategy of its log rows."""
    aggregator = draw(st.sampled_from(list(VALUE_TYPES)))
    kinds = draw(st.lists(st.sampled_from(list(KEY_TYPES)), max_size=2))
    values = draw(st.lists(st.sampled_from(list(VALUE_TYPES[aggregator])), min_size=1, max_size=2))
    width = len(kinds) + len(values)
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=width, max_size=width))
    keys = names[: len(kinds)]
    schema = pa.schema(list(zip(names, [*kinds, *values])))
    parts = [*(KEY_TYPES[kind] for kind in kinds), *(VALUE_TYPES[aggregator][kind] for kind in values)]
    row = [st.none() | part for part in parts] + ([st.booleans()] if aggregator is None else [])
    assert why_not(schema, keys, aggregator) is None
    return RowMerge(schema, tuple(keys), aggregator), st.tuples(*row)


@settings(max_examples=15)
@given(data=st.data())
def test_any_log_is_merged_into_files_of_key_ranges_as_a_fold_in_python_does(tmp_path_factory, data) -> None:
    merge, row = data.draw(states())
    sizes = Sizes(
        rows_min=data.draw(st.sampled_from([1, 4, 1000])),
        rows_max=data.draw(st.sampled_from([5, 2000])),
        files=4,
        bytes_at_once=data.draw(st.sampled_from([200, 1 << 20])),
    )
    table = Table(tmp_path_factory.mktemp("t"), merge, sizes, data.draw(st.booleans()))
    txid = 0
    for _ in range(data.draw(st.integers(1, 4))):
        logs = []
        for _ in range(data.draw(st.integers(1, 3))):
            txid += 1
            # One row a key and transaction, as batches have them where the last value counts.
            rows = {one[: len(merge.keys)]: one for one in data.draw(st.lists(row, max_size=30))}
            logs.append(table.log([(txid, one) for one in rows.values()]))
            for one in rows.values():
                table.fold(txid, one)
        later = table.log([(txid + 1, one) for one in data.draw(st.lists(row, max_size=3))])  # not advanced yet
        if data.draw(st.booleans()):  # another writer's OPTIMIZE: one file, in any order
            table.files = optimized(table)
        table.merged([*logs, later], txid)
        assert same(table.found(), table.rows)


def optimized(table: Table) -> dict[str, InFile]:
    tables = [pq.read_table(table.folder / "plain" / file.path) for file in table.files.values()]
    if not tables:
        return {}
    path = table.folder / "plain" / f"part-{table.jobs}.parquet"
    rows = pa.concat_tables(tables)
    pq.write_table(rows.take(pa.array(range(rows.num_rows - 1, -1, -1))), path)
    return {path.name: InFile(path.name, path.stat().st_size)}


def test_a_file_is_written_anew_when_enough_of_its_rows_are_of_forgotten_keys(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("s", pa.int64())])
    table = Table(tmp_path, RowMerge(schema, ("k",), None, "s", Retention(10)), Sizes(rows_min=100, rows_max=100))
    few, many = [7], [*range(110, 200)]
    rows = [(5, (key, 1, True if key in (*few, *many) else None)) for key in range(300)]
    table.merged([table.log(rows)], 8)
    files = sorted(table.files)
    assert len(files) == 3 and len(table.found()) == 300
    assert table.merged([], 19) == (), "they hold against changes of transaction 19"
    assert len(table.merged([], 20)) == 1, "the one with many"
    assert {key for (key,) in table.found()} == {*range(300)} - {*many}
    assert table.merged([], 29) == (), "it was looked through"
    table.merged([table.log([(30, (8, 2, None))])], 30)
    assert {key for (key,) in table.found()} == {*range(300)} - {*few, *many}, "the others with the next change"


COUNTS = RowMerge(pa.schema([("k", pa.int64()), ("n", pa.int64())]), ("k",), "count")


def counted(tmp_path: Path, keys: int = 1000, **sizes: int) -> Table:
    table = Table(tmp_path, COUNTS, Sizes(**{"rows_min": 100, "rows_max": 100, **sizes}))
    table.merged([table.log([(1, (key * 10, 1)) for key in range(keys)])], 1)
    return table


def test_only_the_files_are_rewritten_in_whose_range_keys_have_changed(tmp_path) -> None:
    table = counted(tmp_path)
    before = dict(table.files)
    assert len(before) == 10
    replaced = table.merged([table.log([(2, (4_005, 7)), (2, (4_010, 1)), (2, (-5, 1))])], 2)
    assert len(replaced) == 2 and len(before.keys() & table.files.keys()) == 8
    assert len(table.found()) == 1002
    assert table.found()[(4_010,)] == (2,) and table.found()[(4_005,)] == (7,) and table.found()[(-5,)] == (1,)
    assert table.merged([table.log([(3, (99_999, 1))])], 3) == tuple(  # behind all others: into the last one
        path for path in before if (9_990,) in keys_of(table, path)
    )


def keys_of(table: Table, path: str) -> set[tuple[int]]:
    return {(key,) for key in pq.read_table(table.folder / "plain" / path).column("k").to_pylist()}


def test_a_file_that_grew_is_split_and_small_ones_are_joined(tmp_path) -> None:
    table = counted(tmp_path)
    table.merged([table.log([(2, (key, 1)) for key in range(1, 990)])], 2)
    assert sorted(pq.read_metadata(tmp_path / "plain" / path).num_rows for path in table.files)[0] >= 75
    assert len(table.files) in range(17, 22)
    gone = Table(tmp_path / "last", RowMerge(COUNTS.schema, ("k",), None), Sizes(rows_min=100, rows_max=100))
    gone.merged([gone.log([(1, (key, 1, False)) for key in range(1000)])], 1)
    gone.merged([gone.log([(2, (key, 1, True)) for key in range(1000) if key % 100 and key < 800])], 2)
    gone.merged([gone.log([(3, (0, 3, False))])], 3)  # the small ones beside it go with it
    assert len(gone.files) <= 3
    assert gone.found()[(0,)] == (3,) and len(gone.found()) == 208


@pytest.mark.parametrize(
    ("changed", "small", "expected"),
    [
        ([0, 0, 0], [1, 1, 1], []),
        ([0, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0], [[1], [4, 5]]),
        ([0, 1, 0, 0, 1], [1, 0, 1, 1, 0], [[0, 1, 2, 3, 4]]),
        ([1, 0, 0, 0], [0, 0, 1, 1], [[0]]),
    ],
)
def test_small_files_beside_a_changed_one_go_with_it(changed: Any, small: Any, expected: Any) -> None:
    assert runs([bool(one) for one in changed], [bool(one) for one in small]) == expected


@pytest.mark.parametrize(
    "ordered",
    [
        pytest.param(True, id="as we write them"),
        pytest.param(False, id="as another writer does", marks=pytest.mark.long),
    ],
)
def test_the_memory_of_a_merge_is_bounded_however_small_the_files_are(tmp_path, ordered: bool) -> None:
    """A text that each row repeats is in a file once."""
    texts = RowMerge(pa.schema([("k", pa.int64()), ("v", pa.string())]), ("k",), None)
    table = Table(tmp_path, texts, Sizes(rows_min=1, rows_max=1_000_000, bytes_at_once=8 << 20))
    rows = pa.table({"k": range(100_000), "v": pa.array(["x" * 1000]).take(pa.array([0] * 100_000))})
    folder = "data/inc/merge-0-x" if ordered else "data/other"
    file = written(str(tmp_path / "plain"), folder, rows.append_column("_upto", pa.array([0] * 100_000)), ["k"])
    table.files[file.path] = InFile(file.path, file.size)
    assert file.size < 2 << 20 and rows.nbytes > 90 << 20
    logged = table.log([(1, (5, "new", False))])
    del rows
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        table.merged([logged], 1)
    finally:
        pa.set_memory_pool(before)
    assert 8 << 20 < pool.max_memory() < 40 << 20
    found = table.found()
    assert len(found) == 100_000 and found[(5,)] == ("new",) and len(table.files) > 20


def test_the_log_is_bounded_by_its_bytes_in_memory_too(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(merge_files, "_LOG_BYTES_MAX", 10 << 20)
    table = Table(tmp_path, RowMerge(pa.schema([("k", pa.int64()), ("v", pa.string())]), ("k",), None), Sizes())
    logged = table.log([(1, (key, "x" * 1000, False)) for key in range(20_000)])
    assert logged.size < 1 << 20
    with pytest.raises(MergeFailed, match="wait in the log"):
        table.merged([logged], 1)


def test_bounds_of_files_are_read_once_though_tables_take_turns(tmp_path, monkeypatch) -> None:
    merger, tables = FileMerger(Sizes(rows_min=100, rows_max=100)), []
    for name in ("a", "b"):
        tables.append(counted(tmp_path / name))
        tables[-1].merger = merger
    read: list[int] = []
    bounds = merge_files._Bounds
    monkeypatch.setattr(merge_files, "_Bounds", lambda *ends: (read.append(1), bounds(*ends))[1])
    for txid in (2, 3, 4):
        for table in tables:
            read.clear()
            replaced = table.merged([table.log([(txid, (10, 1))])], txid)
            # All ten at first; then those that the MERGE before has written.
            assert len(read) == 10 if txid == 2 else len(read) <= 2
            assert len(replaced) == 1
    monkeypatch.setattr(merge_files, "_BOUNDS_MAX", 5)
    for table in tables:
        table.merged([table.log([(5, (10, 1))])], 5)
        assert table.found()[(10,)] == (5,)
    assert len(merger._known) == 5


@pytest.mark.parametrize("ordered", [True, False])
def test_a_merge_that_is_not_wanted_ends_before_the_next_piece_is_read(tmp_path, monkeypatch, ordered: bool) -> None:
    table = counted(tmp_path, 20_000, rows_max=1000, bytes_at_once=50_000)
    if not ordered:
        table.files = optimized(table)
    asked, pieces, wanted = [0], [0], True
    read = merge_files.batches

    def counting(*args: Any) -> Any:
        for piece in read(*args):
            pieces[0] += 1
            yield piece

    def is_wanted() -> bool:
        asked[0] += 1
        return wanted or asked[0] < stop

    monkeypatch.setattr(merge_files, "batches", counting)
    table.merger._is_wanted = is_wanted
    log, stop = table.log([(2, (key, 1)) for key in range(0, 200_000, 70)]), 0
    table.merger.run(table.job([log], 2))
    all_of_it, wanted = asked[0], False
    assert all_of_it > (60 if ordered else 100)
    for stop in range(1, all_of_it, all_of_it // 7):  # also in the middle of the ranges
        asked[0] = pieces[0] = 0
        with pytest.raises(Abandoned):
            table.merger.run(table.job([log], 2))
        assert asked[0] == stop and pieces[0] <= stop


@pytest.mark.parametrize(
    "error", [pa.ArrowMemoryError, pa.ArrowNotImplementedError, pa.ArrowCapacityError, MemoryError]
)
def test_short_memory_and_gaps_of_arrow_are_no_fault_of_the_file(tmp_path, monkeypatch, error: Any) -> None:
    """The worker answers anything else than FileUnreadable with MergeFailed, and then Delta's MERGE is done."""
    table = counted(tmp_path)

    def failing(*args: Any) -> Any:
        raise error("the test says so")

    monkeypatch.setattr(merge_files, "shaped", failing)
    with pytest.raises(error, match="the test says so"):
        table.merged([table.log([(2, (10, 1))])], 2)
    answers = io.BytesIO()
    serve(io.BytesIO(pickle.dumps(table.job([table.log([(2, (10, 1))])], 2))), answers, table.merger)
    assert isinstance(pickle.loads(answers.getvalue()), MergeFailed)


def test_a_table_that_is_larger_than_memory_is_put_in_order_range_by_range(tmp_path) -> None:
    table = counted(tmp_path, 20_000, rows_max=1000, bytes_at_once=50_000)
    table.files = optimized(table)
    table.merged([table.log([(2, (key, 1)) for key in range(0, 200_000, 70)])], 2)
    found = table.found()
    assert len(found) == len({*range(0, 200_000, 10), *range(0, 200_000, 70)})
    assert found[(70,)] == (2,) and found[(10,)] == (1,)
    assert not (tmp_path / "plain" / "data" / "inc" / "merge-2-x" / "ranges").exists()


@pytest.mark.parametrize("rows", [[2**63 - 1, 1], [-(2**63), -1], [2**62] * 2, [2**63 - 1, 2**63 - 1, -5]])
def test_a_sum_that_does_not_fit_is_an_error_and_never_wraps(tmp_path, rows: list[int]) -> None:
    table = Table(tmp_path / "a", COUNTS, Sizes())
    with pytest.raises(NotMergeable, match="overflow"):
        table.merged([table.log([(txid, (1, n)) for txid, n in enumerate(rows, 1)])], 9)
    table = Table(tmp_path / "b", COUNTS, Sizes())
    table.merged([table.log([(1, (1, rows[0]))])], 1)
    with pytest.raises(NotMergeable, match="overflow"):
        table.merged([table.log([(2, (1, rows[1]))])], 2)


def test_sums_whose_parts_are_large_come_back_exact(tmp_path) -> None:
    table = Table(tmp_path, COUNTS, Sizes())
    parts = [2**62, 2**62 - 1, -(2**61), 2**61, -1, 2**40 + 1, -(2**40)]
    table.merged([table.log([(txid, (1, n)) for txid, n in enumerate(parts, 1)])], 9)
    assert table.found() == {(1,): (sum(parts),)}


def test_a_key_that_is_there_twice_is_found(tmp_path) -> None:
    table = counted(tmp_path)
    files = optimized(table)
    table.files.update(files)  # both: as a RESTORE gone wrong would leave it
    with pytest.raises(NotMergeable, match="twice"):
        table.merged([table.log([(2, (10, 1))])], 2)


def test_rows_that_are_merged_already_or_are_another_writers_are_not_changed(tmp_path) -> None:
    table = counted(tmp_path)
    table.upto = 0  # as a compactor that has read an older P
    with pytest.raises(MergedMeanwhile):
        table.merged([table.log([(2, (10, 1))])], 2)


def test_a_file_that_is_not_what_the_log_says_stops_it(tmp_path) -> None:
    table = counted(tmp_path)
    logged = table.log([(2, (10, 1))])
    with pytest.raises(FileUnreadable, match="bytes"):
        table.merged([InFile(logged.path, logged.size + 1)], 2)
    path = tmp_path / "log" / logged.path
    path.write_bytes(b"x" * logged.size)
    with pytest.raises(FileUnreadable):
        table.merged([logged], 2)


def test_files_named_as_ours_that_are_not_in_order_are_put_in_order(tmp_path) -> None:
    table = counted(tmp_path)
    (first, *_) = table.files
    path = tmp_path / "plain" / first
    rows = pq.read_table(path)
    pq.write_table(rows.take(pa.array([0, *range(rows.num_rows - 2, 0, -1), rows.num_rows - 1])), path)
    table.files[first] = InFile(first, path.stat().st_size)
    replaced = table.merged([table.log([(2, (10, 1))])], 2)
    assert len(replaced) == 10
    assert table.found()[(10,)] == (2,) and len(table.found()) == 1000


# --- in a store -------------------------------------------------------------------------------------------


STORES = ["s3", *(["hdfs"] if os.environ.get("TRIDENT_STORES") == "all" else [])]


def sent(table: Table, store: str, job: MergeJob) -> MergeJob:
    """The same job, over the same files in a store."""
    base = Place(f"{store_servers.running(store)}/{uuid.uuid4().hex[:8]}")
    for root, files in (("plain", job.files), ("log", job.log_files)):
        for file in files:
            path = base / root / file.path
            storage.make_folder(path.parent, base.root)
            storage.write(path, (table.folder / root / file.path).read_bytes())
    return replace(job, plain=base / "plain", log=base / "log")


@pytest.mark.parametrize("store", STORES)
def test_the_process_merges_in_a_store_that_it_is_told_of_with_the_job(tmp_path: Path, store: str) -> None:
    table = counted(tmp_path)
    log = table.log([(2, (key * 10 + 1, 1)) for key in range(0, 1000, 300)])
    job = sent(table, store, table.job([log], 2))
    process = MergeProcess()
    try:
        done = process.run(job, lambda: False)
    finally:
        assert process._process is not None
        process._forget(process._process)
    here = FileMerger().run(table.job([log], 2))
    assert sorted(done.replaced) == sorted(here.replaced) and done.keys == here.keys == 4
    there, same_here = (
        sorted((row["k"], row["n"], row["_upto"]) for file in found.written for row in _rows(root / file.path))
        for found, root in ((done, job.plain), (here, Place(tmp_path / "plain")))
    )
    assert there == same_here and len(there) >= 4
    for file in done.written:
        found = storage.stat(job.plain / file.path)
        assert found is not None and found.size == file.size


def test_a_table_in_a_store_that_is_larger_than_memory_is_spilled_to_this_host(tmp_path: Path, monkeypatch) -> None:
    table = counted(tmp_path, 400)
    shuffled = optimized(table)
    table.files = shuffled
    job = sent(table, "s3", table.job([table.log([(2, (5, 1))])], 2))
    (tmp_path / "spilled").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spilled"))
    spilled: list[list[str]] = []
    append = merge_files.Spill.append

    def looked(self: Any, parts: Any) -> None:
        append(self, parts)
        spilled.append([name for path in (tmp_path / "spilled").iterdir() for name in os.listdir(path)])

    monkeypatch.setattr(merge_files.Spill, "append", looked)
    done = FileMerger(Sizes(rows_min=100, rows_max=100, bytes_at_once=2000)).run(job)
    assert spilled and len(spilled[0]) > 1, "nothing was spilled"
    rows = [row for file in done.written for row in _rows(job.plain / file.path)]
    assert [row["k"] for row in rows] == sorted([5, *(key * 10 for key in range(400))])
    assert not list((tmp_path / "spilled").iterdir())


def test_a_file_that_a_store_lacks_is_named(tmp_path: Path) -> None:
    table = counted(tmp_path, 10)
    job = sent(table, "s3", table.job([table.log([(2, (5, 1))])], 2))
    storage.delete(job.log / job.log_files[0].path)
    with pytest.raises(FileUnreadable, match=job.log_files[0].path):
        table.merger.run(job)


def _rows(path: Place) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(storage.read(path))).to_pylist()
    return rows
