"""The local copy gives the values of the wanted mark, or none: killed, cut, full, foreign, deleted or merged."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from trident.coordinators import faults
from trident.states.core import copy_rows, local_copy
from trident.states.core.copy_rows import Rows
from trident.states.core.local_copy import CopyAsOf, CopyMark, LocalCopy, StaleCopy, count_in_order, in_order, look_up

BYTES_MAX = 1 << 28
LONG = b"long" * 500
VALUES = pa.schema([("v", pa.int64()), ("t", pa.string())])
SCHEMA = pa.schema([("k", pa.binary()), *VALUES])
Row = tuple[int, str | None]


def mark(txid: int, incarnation: str = "inc1", digest: str = "d", commit: str = "c") -> CopyMark:
    return CopyMark(incarnation, txid, digest, commit)


def as_of(folder: Path, held: CopyMark) -> CopyAsOf:
    return CopyAsOf(folder, held, SCHEMA, ("k",), "v")


def rows(*pairs: tuple[bytes, Row | None]) -> Rows:
    """Changed rows, whose position is their number; None: the key is deleted."""
    keys = pa.array([key for key, _ in pairs], pa.large_binary())
    columns = [pa.array([None if row is None else row[at] for _, row in pairs], VALUES.types[at]) for at in (0, 1)]
    gone = pa.array([row is None for _, row in pairs], pa.bool_())
    return Rows.of(keys, pa.table(columns, schema=VALUES), gone, columns[0])


def adding(stored: pa.Table, parts: pa.Table, places: np.ndarray) -> tuple[pa.Table, pa.Array]:
    sums = [before or 0 for before in stored.column(0).to_pylist()]
    for part, place in zip(parts.column(0).to_pylist(), places.tolist()):
        sums[place] += part
    made = pa.array(sums, pa.int64())
    return pa.table([made, pa.nulls(len(sums), pa.string())], schema=VALUES), made


def read(folder: Path, held: CopyMark, *keys: bytes) -> list[Row | None]:
    values, found = look_up(as_of(folder, held), pa.array(keys, pa.large_binary()))
    return [tuple(row.values()) if there else None for row, there in zip(values.to_pylist(), found.tolist())]


def ranged(folder: Path, held: CopyMark, *edges: int | None) -> list[tuple[int, bytes, Row]]:
    found = [
        (at, key, tuple(row.values()))
        for piece in in_order(as_of(folder, held), *edges)
        for at, key, row in zip(piece.positions.tolist(), piece.keys.to_pylist(), piece.values.to_pylist())
    ]
    assert len(found) <= count_in_order(as_of(folder, held), *edges)
    return found


@pytest.fixture
def copy(tmp_path):
    made = LocalCopy(tmp_path / "copy", BYTES_MAX, VALUES)
    yield made
    made.close()


def filled(copy: LocalCopy, **pairs: int) -> LocalCopy:
    copy.apply([rows(*((key.encode(), (number, None)) for key, number in pairs.items()))], None, mark(1))
    return copy


def in_another_process(folder: Path, keys: list[bytes], wanted: CopyMark) -> list[Row | None] | str:
    program = (
        "import sys; from pathlib import Path; from tests.states.core.test_local_copy import *\n"
        "try: print(repr(read(Path(sys.argv[1]), CopyMark(*eval(sys.argv[3])), *eval(sys.argv[2]))))\n"
        "except StaleCopy as error: print(repr('stale: ' + str(error)))\n"
    )
    arguments = [str(folder), repr(keys), repr((wanted.incarnation, wanted.txid, wanted.digest, wanted.commit))]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return eval(done.stdout)


def test_each_process_finds_the_values_of_the_mark(copy):
    filled(copy, a=1, b=2)
    copy.apply([rows((b"b", (3, "x")), (LONG, (4, None)), (b"", (5, None)))], mark(1), mark(2))
    keys = [b"a", b"b", b"c", b"a", LONG, LONG + b"x", b""]
    expected = [(1, None), (3, "x"), None, (1, None), (4, None), None, (5, None)]
    assert read(copy.folder, mark(2), *keys) == in_another_process(copy.folder, keys, mark(2)) == expected


KEYS = [b"", LONG, LONG + b"x", *(b"%d" % number for number in range(20))]
POSITIONS = st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1]))
CHANGED = st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), POSITIONS)), max_size=12)
EDGES = st.one_of(st.none(), st.integers(-4, 4), st.sampled_from([-(2**63), 2**63 - 1]))
BATCHES = st.lists(st.tuples(st.lists(CHANGED, max_size=3), st.booleans()), min_size=1, max_size=8)


# Not shrunk: an example is small, and to shrink it would take minutes of copies.
@settings(deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(BATCHES, EDGES, EDGES, st.booleans(), st.booleans(), st.booleans())
def test_a_copy_gives_what_a_dict_gives(tmp_path_factory, batches, first, below, sums, collide, small):
    """Deleted keys, parts that are added, keys of one hash, runs of few rows, merges and restarts in between."""
    folder = tmp_path_factory.mktemp("copies") / "copy"
    real = copy_rows.hashes
    with pytest.MonkeyPatch.context() as patch:
        for module in (copy_rows, local_copy) if collide else ():
            patch.setattr(module, "hashes", lambda keys: real(keys) % np.uint64(3))
        patch.setattr(copy_rows, "BATCH_ROWS", 4)
        patch.setattr(local_copy, "_STEP_ROWS", 3)
        patch.setattr(local_copy, "_SMALL_ROWS", 8 if small else 0)
        patch.setattr(local_copy, "PART_BYTES", 1 if small else 1 << 20)
        copy, model, held = LocalCopy(folder, BYTES_MAX, VALUES), dict[bytes, Row](), None
        for txid, (parts, restarts) in enumerate(batches):
            given_rows = []
            for part in parts:
                pairs = [(key, None if at is None else (at, str(txid))) for key, at in part]
                if sums:  # small ones, that fit
                    pairs = [(key, (row[0] % 7, None)) for key, row in pairs if row is not None]
                for key, row in pairs:
                    if row is None:
                        model.pop(key, None)
                    else:
                        model[key] = (model.get(key, (0, None))[0] + row[0], None) if sums else row
                given_rows.append(rows(*pairs))
            copy.apply(given_rows, held, mark(txid), adding if sums else None)
            held = mark(txid)
            copy.wait_for_merge()
            assert read(folder, held, *KEYS) == [model.get(key) for key in KEYS]
            placed = sorted((row[0], key, row) for key, row in model.items())
            assert ranged(folder, held) == placed
            inside = [row for row in placed if (first is None or first <= row[0]) and (below is None or row[0] < below)]
            assert ranged(folder, held, first, below) == inside
            if restarts:
                copy.close()
                copy = LocalCopy(folder, BYTES_MAX, VALUES)
                assert copy.mark == held
        assert len(os.listdir(folder)) == 3 + 3 * len(copy._runs), "what is not listed is deleted"
        copy.delete()


@pytest.mark.parametrize(
    "wanted",
    [mark(0), mark(2), mark(1, incarnation="inc2"), mark(1, digest="other"), mark(1, commit="other")],
    ids=["older", "newer", "incarnation", "form", "history"],
)
def test_another_mark_gives_no_value_and_takes_none(copy, wanted):
    filled(copy, a=1)
    for find in (read, ranged):
        with pytest.raises(StaleCopy, match="holds something else"):
            find(copy.folder, wanted)
    for before in (wanted, None):
        with pytest.raises(StaleCopy, match="holds something else"):
            copy.apply([rows((b"a", (9, None)))], before, mark(2))
    assert read(copy.folder, mark(1), b"a") == [(1, None)]


@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
def test_what_fails_in_the_middle_changes_nothing(copy, monkeypatch, part_bytes):
    filled(copy, a=1)
    before = sorted(os.listdir(copy.folder))
    monkeypatch.setattr(local_copy, "PART_BYTES", part_bytes)

    def given_rows():
        yield rows((b"a", (2, None)))
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        copy.apply(given_rows(), mark(1), mark(2))
    faults.arm("copy.publish:fail_before")
    with pytest.raises(faults.InjectedFault):
        copy.apply([rows((b"a", (2, None)))], mark(1), mark(2))
    assert read(copy.folder, mark(1), b"a") == [(1, None)] and ranged(copy.folder, mark(1)) == [(1, b"a", (1, None))]
    assert copy.mark == mark(1) and sorted(os.listdir(copy.folder)) == before
    copy.apply([rows((b"a", (2, None)))], mark(1), mark(2))
    assert read(copy.folder, mark(2), b"a") == [(2, None)]


def test_of_two_processes_one_writes(copy):
    with pytest.raises(StaleCopy, match="cannot be written"):
        LocalCopy(copy.folder, BYTES_MAX, VALUES)
    assert copy.folder.is_dir()


def test_the_next_process_takes_what_one_has_left_and_deletes_what_is_not_listed(copy):
    filled(copy, a=1).close()
    (copy.folder / "0123.rows").write_bytes(b"a process died before it was listed")
    again = LocalCopy(copy.folder, BYTES_MAX, VALUES)
    assert again.mark == mark(1) and read(copy.folder, mark(1), b"a") == [(1, None)]
    assert len(os.listdir(copy.folder)) == 6
    again.close()


def test_a_full_copy_says_so_and_stays_what_it_was(tmp_path):
    copy = LocalCopy(tmp_path / "small", 1 << 17, VALUES)
    filled(copy, a=1)
    with pytest.raises(StaleCopy, match="is full"):
        copy.apply([rows(*((b"%d" % n, (n, "x" * 1000)) for n in range(1000)))], mark(1), mark(2))
    assert read(copy.folder, mark(1), b"a") == [(1, None)] and len(os.listdir(copy.folder)) == 6
    copy.close()


_REFUSED = """
import resource, sys
from pathlib import Path
from tests.states.core.test_local_copy import *
copy = LocalCopy(Path(sys.argv[1]), 1 << 28, VALUES)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    copy.apply([rows(*((str(n).encode(), (n, "x" * 1000)) for n in range(1000)))], copy.mark, mark(2))
except StaleCopy as error:
    print(error, copy.mark.txid)
"""


def test_a_disk_that_takes_no_more_leaves_what_was_there(copy):
    """The kernel refuses each write beyond a size, as a full disk does."""
    filled(copy, a=1).close()
    program = [sys.executable, "-c", _REFUSED, str(copy.folder)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert "cannot be used" in done.stdout and done.stdout.split()[-1] == "1", done.stdout + done.stderr
    again = LocalCopy(copy.folder, BYTES_MAX, VALUES)
    assert again.mark == mark(1) and read(copy.folder, mark(1), b"a", b"1") == [(1, None), None]
    again.close()


@pytest.mark.parametrize("file", ["hash", "rows", "order", "list"])
@pytest.mark.parametrize("damage", ["cut", "empty", "foreign", "a bit", "deleted"])
def test_a_damaged_copy_gives_no_value_and_is_made_anew(copy, damage, file, rng):
    filled(copy, **{f"key{n}": n for n in range(1000)}).close()
    local_copy._forget(copy.folder)
    (data,) = copy.folder.glob(f"*.{file}")
    whole = bytearray(data.read_bytes())
    if damage == "deleted":
        data.unlink()
    elif damage == "a bit":
        whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        data.write_bytes(whole)
    else:
        size = {"cut": len(whole) // 2, "empty": 0, "foreign": len(whole)}[damage]
        data.write_bytes(whole[:size] if damage != "foreign" else random.Random(1).randbytes(size))
    with pytest.raises(StaleCopy):
        read(copy.folder, mark(1), b"key1")
    try:
        again = LocalCopy(copy.folder, BYTES_MAX, VALUES)
    except StaleCopy:
        assert not copy.folder.exists()  # deleted: the next one begins
        again = LocalCopy(copy.folder, BYTES_MAX, VALUES)
    assert again.mark is None
    filled(again, a=1)
    assert read(copy.folder, mark(1), b"a") == [(1, None)]
    again.close()


def test_a_folder_that_was_copied_to_the_place_of_a_copy_has_no_mark(copy, tmp_path):
    """One that a back-up brings back may have been read while it was written."""
    filled(copy, a=1).close()
    shutil.copytree(copy.folder, tmp_path / "backup", symlinks=True)
    assert in_another_process(tmp_path / "backup", [b"a"], mark(1)).startswith("stale: ")
    again = LocalCopy(tmp_path / "backup", BYTES_MAX, VALUES)
    assert again.mark is None and os.listdir(again.folder) == ["owner.lock"]
    again.close()


def test_a_copy_that_is_deleted_while_it_is_read_gives_no_other_ones_values(copy):
    filled(copy, a=1)
    assert read(copy.folder, mark(1), b"a") == [(1, None)]
    copy.delete()
    again = LocalCopy(copy.folder, BYTES_MAX, VALUES)
    again.apply([rows((b"a", (2, None)))], None, mark(2))
    assert read(copy.folder, mark(2), b"a") == [(2, None)]
    with pytest.raises(StaleCopy):
        read(copy.folder, mark(1), b"a")
    again.close()


def test_a_reader_of_runs_that_are_merged_meanwhile_reads_the_merged_one(copy, monkeypatch):
    monkeypatch.setattr(local_copy, "_SMALL_ROWS", 0)
    copy.apply([rows((b"a", (1, None)))], None, mark(1))
    real, merged = local_copy._runs, list[int]()

    def merged_meanwhile(folder: Path, current: object) -> object:
        if not merged:  # the list is read, and its files are not mapped
            merged.append(1)
            copy.apply([rows((b"b", (2, None)))], mark(1), mark(2))
            copy.wait_for_merge()
            copy.apply([], mark(2), mark(1))
            local_copy._forget(folder)
        return real(folder, current)

    monkeypatch.setattr(local_copy, "_runs", merged_meanwhile)
    local_copy._forget(copy.folder)
    assert read(copy.folder, mark(1), b"a", b"b") == [(1, None), (2, None)]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_reader_lets_go_of_copies_that_were_deleted(tmp_path):
    for number in range(3):
        copy = LocalCopy(tmp_path / str(number), BYTES_MAX, VALUES)
        filled(copy, a=1)
        assert read(copy.folder, mark(1), b"a") == [(1, None)]
        shutil.rmtree(copy.folder)
        copy.close()
        del copy
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert len({Path(line.split()[-2]).parent for line in lines}) <= 1, lines


def test_a_range_is_read_in_pieces(copy, monkeypatch):
    monkeypatch.setattr(local_copy, "_STEP_ROWS", 3)
    filled(copy, **{str(n): n for n in range(9)})
    pieces = [piece.positions.tolist() for piece in in_order(as_of(copy.folder, mark(1)))]
    assert pieces == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_merge_that_fails_leaves_the_copy_and_is_not_tried_at_each_transaction(copy, monkeypatch):
    monkeypatch.setattr(local_copy, "_SMALL_ROWS", 0)
    copy.apply([rows((b"a", (0, None)))], None, mark(0))
    faults.arm("copy.compact:fail_before:1")
    for txid in (1, 2, 3):
        copy.apply([rows((b"a", (txid, None)))], mark(txid - 1), mark(txid))
        copy.wait_for_merge()
        assert read(copy.folder, mark(txid), b"a") == [(txid, None)]
    assert not faults.unfired() and len(copy._runs) == 4, "the second merge would have made one of them"
    copy._merges_from = 0.0
    copy.apply([rows((b"b", (4, None)))], mark(3), mark(4))
    copy.wait_for_merge()
    assert len(copy._runs) == 1 and read(copy.folder, mark(4), b"a", b"b") == [(3, None), (4, None)]


def test_a_key_that_is_deleted_stays_so_when_later_files_are_merged(copy, monkeypatch):
    monkeypatch.setattr(local_copy, "_SMALL_ROWS", 0)
    copy.apply([rows(*((b"%d" % n, (n, None)) for n in range(50)))], None, mark(0))
    for txid, row in ((1, None), (2, (2, None)), (3, None)):
        copy.apply([rows((b"7", row), (b"x%d" % txid, (txid, None)))], mark(txid - 1), mark(txid))
        copy.wait_for_merge()
        assert read(copy.folder, mark(txid), b"7") == [row]
    assert 1 < len(copy._runs) < 4 and copy._runs[0].rows == 50, "the oldest, which has the key, is not merged"


def test_keys_that_are_deleted_by_the_first_part_of_a_transaction_stay_so(copy, monkeypatch):
    """Nothing is left of that part: the next one must not begin with the files before once more."""
    monkeypatch.setattr(local_copy, "PART_BYTES", 1)
    filled(copy, a=1, b=2)
    copy.apply([rows((b"a", None), (b"b", None)), rows((b"c", (3, None)))], mark(1), mark(2))
    assert read(copy.folder, mark(2), b"a", b"b", b"c") == [None, None, (3, None)]


def test_large_values_are_merged_a_few_at_a_time(copy, monkeypatch):
    monkeypatch.setattr(local_copy, "_SMALL_ROWS", 0)
    monkeypatch.setattr(copy_rows, "_BATCH_BYTES", 10_000)
    for txid in range(2):
        changed = rows(*((b"%d" % n, (txid, "x" * 1000)) for n in range(50)))
        copy.apply([changed], mark(txid - 1) if txid else None, mark(txid))
    copy.wait_for_merge()
    (run,) = copy._runs
    assert max(batch.num_rows for batch in run._batches) <= 20 and run.rows == 50


_WRITER = """
import sys
from pathlib import Path
from tests.states.core.test_local_copy import *
copy = LocalCopy(Path(sys.argv[1]), 1 << 28, VALUES)
while True:
    after = mark(1 if copy.mark is None else copy.mark.txid + 1)
    copy.apply([rows(*((str(n).encode(), (after.txid, None)) for n in range(200)))], copy.mark, after)
    print(after.txid, flush=True)
"""


def test_whenever_the_writer_is_killed_all_values_are_those_of_the_mark(tmp_path, rng):
    folder, reached = tmp_path / "copy", 0
    for _ in range(2):
        program = [sys.executable, "-c", _WRITER, str(folder)]
        writer = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert int(writer.stdout.readline()) == reached + 1
        time.sleep(rng.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        said = writer.communicate()[0].split()
        copy = LocalCopy(folder, BYTES_MAX, VALUES)
        reached = copy.mark.txid
        assert reached >= int(said[-1] if said else 0)
        keys = [str(n).encode() for n in range(200)]
        assert set(read(folder, copy.mark, *keys)) == {(reached, None)}
        assert ranged(folder, copy.mark) == sorted((reached, key, (reached, None)) for key in keys)
        copy.close()
    assert reached >= 2


def test_many_rows_are_searched_in_few_runs(copy, rng):
    held: CopyMark | None = None
    model: dict[bytes, Row | None] = {}
    for txid in range(30):
        changed: Mapping[bytes, Row] = {b"%d" % rng.randrange(50_000): (txid, None) for _ in range(1000)}
        model |= changed
        copy.apply([rows(*changed.items())], held, mark(txid))
        held = mark(txid)
    copy.wait_for_merge()
    assert len(copy._runs) < 6, [run.rows for run in copy._runs]
    wanted = rng.sample(sorted(model), 500) + [b"x"]
    assert held is not None and read(copy.folder, held, *wanted) == [model.get(key) for key in wanted]
