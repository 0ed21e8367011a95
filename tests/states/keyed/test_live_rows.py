"""All rows of a state read by Arrow, range by range, against a fold in plain Python: random states, logs and files."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.states.keyed.test_native_merge_files import KEY_TYPES, NAMES, VALUE_TYPES, Table, same
from trident.coordinators.errors import TableError
from trident.states.core import storage
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place
from trident.states.core.retention import Retention
from trident.states.delta.kernel_files import LiveFile
from trident.states.keyed import live_read, live_rows
from trident.states.keyed.file_merge import ordered_folders
from trident.states.keyed.live_rows import KeyRange, LivePart, key_ranges
from trident.states.keyed.merge_files import InFile, MergedFiles, Sizes
from trident.states.keyed.merge_rows import RowMerge
from trident.states.keyed.snapshot import StoredFiles

TEXT = pa.string()


class Live(Table):
    """A table whose files are known with their statistics, and its log, as a reader finds them."""

    def __init__(self, folder: Path, merge: RowMerge, sizes: Sizes) -> None:
        super().__init__(folder, merge, sizes)
        self.live: dict[str, LiveFile] = {}

    def merged(self, logs: Any, upto: int) -> tuple[str, ...]:
        done: MergedFiles = self.merger.run(self.job(logs, upto))
        for path in done.replaced:
            del self.files[path], self.live[path]
        for file in done.written:
            self.files[file.path] = InFile(file.path, file.size)
            self.live[file.path] = LiveFile(file.path, file.size, {}, json.loads(file.stats), file.num_records, 0)
        self.upto = upto
        return done.replaced

    def parts(self, logs: list[LiveFile], upto: int, count: int) -> list[LivePart] | None:
        first = self.merge.keys[0]
        ranges = key_ranges(list(self.live.values()), first, self.merge.schema.field(first).type, count)
        roots = Place(self.folder / "plain"), Place(self.folder / "log")
        return ranges and [
            LivePart("s", self.merge, *roots, tuple(files), tuple(logs), keys, self.upto, upto)
            for keys, files in ranges
        ]

    def found_by(self, parts: list[LivePart]) -> dict[Any, Any]:
        width, found = len(self.merge.keys), {}
        for part in parts:
            for batch in part.rows():
                assert batch.schema.equals(self.merge.schema)
                for row in map(tuple, (row.values() for row in batch.to_pylist())):
                    assert row[:width] not in found, "a key is there twice"
                    found[row[:width]] = row[width:]
        return found


@st.composite
def states(draw: st.DrawFn) -> tuple[RowMerge, Any]:
    """A state whose first key is text or a whole number, and the strategy of its log rows."""
    aggregator = draw(st.sampled_from(list(VALUE_TYPES)))
    kinds = [draw(st.sampled_from([TEXT, pa.int64()])), *draw(st.lists(st.sampled_from(list(KEY_TYPES)), max_size=2))]
    value = draw(st.sampled_from(list(VALUE_TYPES[aggregator])))
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=len(kinds) + 1, max_size=len(kinds) + 1))
    schema = pa.schema(list(zip(names, [*kinds, value])))
    parts = [*(KEY_TYPES[kind] for kind in kinds), VALUE_TYPES[aggregator][value]]
    row = [st.none() | part for part in parts] + ([st.booleans()] if aggregator is None else [])
    return RowMerge(schema, tuple(names[:-1]), aggregator), st.tuples(*row)


@settings(max_examples=15)
@given(st.data())
def test_ranges_of_keys_together_are_the_table_with_its_log_on_top(tmp_path_factory: Any, data: st.DataObject) -> None:
    merge, row = data.draw(states())
    table = Live(tmp_path_factory.mktemp("live"), merge, Sizes(rows_min=2, rows_max=5, files=4))
    txid = 0
    for merges in range(data.draw(st.integers(0, 2)), -1, -1):
        logs = []
        for _ in range(data.draw(st.integers(1, 3))):
            txid += 1
            rows = {one[: len(merge.keys)]: one for one in data.draw(st.lists(row, max_size=25))}.values()
            for one in rows:
                table.fold(txid, one)
            logs.append(table.log([(txid, one) for one in rows]))
        if merges:
            table.merged(logs, txid)
    found = [LiveFile(file.path, file.size, {}, None, None, 0) for file in logs]
    parts = table.parts(found, txid, data.draw(st.integers(1, 4)))
    if parts is None:
        stats: list[Any] = [live.stats for live in table.live.values()]
        assert any(one["nullCount"].get(merge.keys[0], 1) for one in stats) or len(merge.keys) > 1
        return
    assert same(table.found_by(parts), table.rows)


def words(folder: Path, *keys: str) -> Live:
    """Counted words, merged into files of two."""
    merge = RowMerge(pa.schema([("k", TEXT), ("n", pa.int64())]), ("k",), "count")
    table = Live(folder, merge, Sizes(rows_min=2, rows_max=2, files=100))
    table.merged([table.log([(1, (key, 1)) for key in keys])], 1)
    return table


def as_live(*files: Any) -> list[LiveFile]:
    return [LiveFile(file.path, file.size, {}, None, None, 0) for file in files]


def test_each_key_of_the_log_is_in_one_range_alone_also_between_two_files_and_beyond_both_ends(tmp_path: Path) -> None:
    table = words(tmp_path, "b", "c", "f", "g")
    log = table.log([(2, (key, 10)) for key in ("a", "c", "d", "f", "h", None)] + [(3, ("z", 1))])
    parts = table.parts(as_live(log), 2, 2)
    assert parts is not None and [(part.keys.low, part.keys.high) for part in parts] == [(None, "f"), ("f", None)]
    each = [table.found_by([part]) for part in parts]
    assert each[0] == {("a",): (10,), ("b",): (1,), ("c",): (11,), ("d",): (10,)}
    assert each[1] == {("f",): (11,), ("g",): (1,), ("h",): (10,), (None,): (10,)}


def test_text_that_is_not_utf8_is_a_key_like_any_other(tmp_path: Path) -> None:
    table = words(tmp_path, "b", "c", "f", "g")

    def log(txid: int, *keys: bytes) -> InFile:
        file = table.log([(txid, ("", 1)) for _ in keys])
        path = tmp_path / "log" / file.path
        odd = pa.array(keys, pa.binary()).cast(TEXT, safe=False)
        pq.write_table(pq.read_table(path).set_column(0, "k", odd), path)
        return InFile(file.path, path.stat().st_size)

    def found(parts: list[LivePart] | None) -> dict[bytes, int]:
        rows = pa.Table.from_batches([batch for part in parts or () for batch in part.rows()])
        return dict(zip(rows.column("k").cast(pa.binary()).to_pylist(), rows.column("n").to_pylist()))

    first, second = log(2, b"\xff\xfe", b"c"), log(3, b"\xff\xfe", b"c", b"\x80")
    expected = {b"b": 1, b"c": 2, b"f": 1, b"g": 1, b"\xff\xfe": 1}
    assert found(table.parts(as_live(first), 2, 2)) == expected
    table.merged([first], 2)
    roots, files = (Place(tmp_path / "plain"), Place(tmp_path / "log")), (tuple(table.live.values()), as_live(second))
    whole = LivePart("s", table.merge, *roots, files[0], tuple(files[1]), KeyRange("k", None, None), 2, 3)
    expected |= {b"c": 3, b"\xff\xfe": 2, b"\x80": 1}
    assert found([whole]) == expected
    table.merged([second], 3)
    assert found([replace(whole, files=tuple(table.live.values()), log_files=(), after=3)]) == expected


def test_transactions_that_are_merged_or_come_later_are_left_out(tmp_path: Path) -> None:
    table = words(tmp_path, "a")
    log = table.log([(txid, ("a", 10**txid)) for txid in (1, 2, 3, 4)])
    parts = table.parts(as_live(log), 3, 1)
    assert parts is not None and table.found_by(parts) == {("a",): (1_101,)}


def test_a_deleted_key_is_forgotten_between_two_stretches_of_the_log(tmp_path: Path) -> None:
    schema = pa.schema([("k", TEXT), ("s", pa.int64()), ("v", TEXT)])
    table = Live(tmp_path, RowMerge(schema, ("k",), None, "s", Retention(10)), Sizes(rows_min=2, rows_max=2, files=100))
    gone = [(5, (key, 9, None, True)) for key in ("a", "b", "c", "d")]
    table.merged([table.log([*gone, (5, ("e", 1, "here", False))])], 8)
    log = table.log(
        [
            (19, ("a", 5, "held by its delete", False)),
            (20, ("a", 3, "not held", False)),
            (19, ("b", 5, "held by its delete", False)),
            (18, ("c", 11, None, True)),
            (21, ("c", 8, "held by a later delete", False)),
            (21, ("d", 1, "not held", False)),
        ]
    )
    here, d = ("e", 1, "here"), ("d", 1, "not held")
    for upto, rows in [(19, [here]), (20, [here, ("a", 3, "not held")]), (21, [here, ("a", 3, "not held"), d])]:
        parts = table.parts(as_live(log), upto, 2)
        assert parts is not None and table.found_by(parts) == {(key,): tuple(values) for key, *values in rows}


def test_files_that_overlap_or_whose_bounds_are_not_known_are_left_to_spark() -> None:
    def file(low: Any, high: Any, nulls: int | None = 0, rows: int = 3) -> LiveFile:
        stats = {"minValues": {"k": low}, "maxValues": {"k": high}, "nullCount": {"k": nulls}}
        return LiveFile(f"{low}", 1, {}, stats, rows, 0)

    apart = [file("d", "f", 1), file("a", "c")]
    ranges = key_ranges(apart, "k", TEXT, 2)
    assert ranges is not None and [keys for keys, _ in ranges] == [KeyRange("k", None, "d"), KeyRange("k", "d", None)]
    assert key_ranges([], "k", TEXT, 2) == [(KeyRange("k", None, None), [])]
    for others in (
        [file("a", "c"), file("c", "d")],  # of two keys with the same first part one may be in each
        [file("a", "c", 1), file("d", "e")],  # nulls are behind all others, and here they are not
        [file("a", None)],
        [file(1, 2)],
        [file("a", "c", None)],
        [LiveFile("x", 1, {}, None, 3, 0)],
    ):
        assert key_ranges(others, "k", TEXT, 2) is None, others
    assert key_ranges([file("a", "c")], "k", pa.date32(), 2) is None


def test_a_sum_that_does_not_fit_and_a_file_that_is_gone_are_errors(tmp_path: Path) -> None:
    table = words(tmp_path, "a")
    log = table.log([(2, ("a", (1 << 63) - 1))])
    parts = table.parts(as_live(log), 2, 1)
    assert parts is not None
    with pytest.raises(TableError, match="rows of state s cannot be merged.*overflow"):
        table.found_by(parts)
    (tmp_path / "plain" / next(iter(table.live))).unlink()
    with pytest.raises(TableError):
        table.found_by(parts)


def waiting(name: str, low: str | None, high: str | None, rows: int | None) -> LiveFile:
    stats = {"minValues": {"k": low}, "maxValues": {"k": high}, "nullCount": {"k": 0}}
    return LiveFile(name, 1, {}, stats, rows, 0)


def parts_of(*log: LiveFile, plain: tuple[LiveFile, ...] | None = None, root: str = "/w") -> list[LivePart] | None:
    """The parts of a table of two files, from b to c and from f to g."""
    state = StateDescriptor("s", "keyed", "t", "g", "i", ("k",), ("n",), "{}", "count")
    folder = ordered_folders(state)[0]
    if plain is None:
        plain = waiting(f"{folder}1", "b", "c", 10), waiting(f"{folder}2", "f", "g", 10)
    merge = RowMerge(pa.schema([("k", TEXT), ("n", pa.int64())]), ("k",), "count")
    return live_read._parts(state, StoredFiles(f"{root}/s", f"{root}/s__log", plain, log, 1, 2), merge, 2)


def test_a_part_has_the_files_of_the_log_that_may_have_keys_of_its_range() -> None:
    low, both, high = waiting("1", "a", "e", 3), waiting("2", "c", "f", 3), waiting("3", "f", "z", 3)
    parts = parts_of(low, both, high)
    assert parts is not None and [part.log_files for part in parts] == [(low, both), (both, high)]


def test_a_log_with_more_rows_of_one_range_than_a_task_is_to_hold_is_left_to_spark(monkeypatch: Any) -> None:
    monkeypatch.setattr(live_read, "_LOG_ROWS_A_PART", 100)
    assert parts_of(waiting("1", "a", "b", 100), waiting("2", "g", "h", 100)) is not None
    assert parts_of(waiting("1", "a", "b", 50), waiting("2", "a", "z", 51)) is None
    assert parts_of(waiting("1", "x", "y", 60), waiting("2", "y", "z", 60)) is None, "keys that grow"
    assert parts_of(waiting("1", None, None, 101)) is None
    assert parts_of(waiting("1", "a", "b", None)) is None
    assert parts_of(waiting("1", "a", "b", 1), plain=()) is None, "no MERGE yet: all would be one range"


def test_a_log_of_more_bytes_than_a_task_is_to_hold_is_an_error_that_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    table = words(tmp_path, "a")
    parts = table.parts(as_live(table.log([(2, (f"{n}", 1)) for n in range(100)] + [(9, ("z", 1))])), 2, 1)
    assert parts is not None and len(table.found_by(parts)) == 101
    monkeypatch.setattr(live_rows, "_LOG_BYTES", 1_000)
    with pytest.raises(TableError, match="too much of the log of state s waits for a MERGE"):
        table.found_by(parts)


def test_a_part_takes_the_settings_of_its_store_to_a_worker(monkeypatch: Any) -> None:
    root, settings = "s3a://live-part", {"fs.s3a.endpoint": "http://127.0.0.1:9"}
    storage.configure(root, settings)
    try:
        sent = pickle.dumps(parts_of(waiting("1", "a", "b", 1), root=root))
        monkeypatch.setattr(storage, "_settings", {})
        parts = pickle.loads(sent)
        assert str(parts[0].log) == f"{root}/s__log" and storage.settings_of(root) == settings
    finally:
        monkeypatch.undo()
        storage._settings.pop(root, None)
