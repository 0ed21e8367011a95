"""The local copy gives the values of the mark that is asked for, or none; killed, cut, full, foreign or deleted."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.coordinators import faults
from trident.states.core import local_copy
from trident.states.core.local_copy import CopiedRows, CopyMark, LocalCopy, StaleCopy, in_order, look_up

ROOT = Path(__file__).resolve().parents[3]
BYTES_MAX = 1 << 28
LONG = b"long" * 500


def mark(txid: int, incarnation: str = "inc1", digest: str = "d", commit: str = "c") -> CopyMark:
    return CopyMark(incarnation, txid, digest, commit)


@pytest.fixture
def copy(tmp_path):
    made = LocalCopy(tmp_path / "copy", BYTES_MAX)
    yield made
    made.close()


def arrays(pairs: Iterable[tuple[bytes, bytes | None]]) -> CopiedRows:
    keys, values = zip(*pairs)
    gone = pa.array([value is None for value in values])
    return CopiedRows(*(pa.array([one or b"" for one in column], pa.large_binary()) for column in (keys, values)), gone)


def joining(stored: list[bytes | None], parts: list[list[bytes]]) -> list[bytes]:
    return [b"".join([before or b"", *ours]) for before, ours in zip(stored, parts)]


def by_first_word_or_none(keys: Sequence[bytes], values: Sequence[bytes]) -> list[int | None]:
    return [None if value.endswith(b"0") else int(value) for value in values]


def added(stored: list[bytes | None], parts: list[list[bytes]]) -> list[bytes]:
    return [b"%d" % sum(map(int, [before or b"0", *ours])) for before, ours in zip(stored, parts)]


def filled(copy: LocalCopy, **pairs: bytes) -> LocalCopy:
    copy.fill([arrays((key.encode(), value) for key, value in pairs.items())], mark(1))
    return copy


def in_another_process(folder: Path, keys: list[bytes], asked: CopyMark) -> list[bytes | None] | str:
    program = (
        "import sys; from pathlib import Path; from trident.states.core.local_copy import *\n"
        "try: print(repr(look_up(Path(sys.argv[1]), eval(sys.argv[2]), CopyMark(*eval(sys.argv[3])))))\n"
        "except StaleCopy as error: print(repr('stale: ' + str(error)))\n"
    )
    arguments = [str(folder), repr(keys), repr((asked.incarnation, asked.txid, asked.digest, asked.commit))]
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return eval(done.stdout)


def test_each_process_finds_the_values_of_the_mark(copy):
    filled(copy, a=b"1", b=b"2")
    keys = [b"a", b"b", b"c", b"a"]
    expected = [b"1", b"2", None, b"1"]
    assert copy.get(keys, mark(1)) == look_up(copy.folder, keys, mark(1)) == expected
    assert in_another_process(copy.folder, keys, mark(1)) == expected
    copy.apply([(b"a", b"3"), (b"b", None), (b"c", b"4"), (b"c", b"5")], mark(1), mark(2))
    assert copy.get(keys, mark(2)) == in_another_process(copy.folder, keys, mark(2)) == [b"3", None, b"5", b"3"]


def test_long_keys_and_keys_that_look_like_the_mark_are_keys(copy):
    odd = [b"", b"\x00mark", b"k", LONG, LONG + b"x", b"x" * 500, b"x" * 501]
    copy.fill([arrays((key, str(number).encode()) for number, key in enumerate(odd))], mark(1))
    assert copy.get(odd, mark(1)) == [str(number).encode() for number in range(len(odd))]
    copy.apply([(LONG, None), (LONG + b"x", b"new")], mark(1), mark(2))
    assert copy.get([LONG, LONG + b"x", LONG + b"y"], mark(2)) == [None, b"new", None]
    kept = [key for key, value in zip(odd, copy.get(odd, mark(2))) if value is not None]
    assert kept == [key for key in odd if key != LONG]


def test_parts_are_combined_with_what_is_stored_in_the_order_in_which_they_come(copy):
    filled(copy, a=b"1")
    rows = [(b"a", b"2"), (b"b", b"3"), (b"a", b"4"), (b"b", b"5")]
    copy.apply(rows, mark(1), mark(2), joining)
    assert copy.get([b"a", b"b"], mark(2)) == [b"124", b"35"]


@pytest.mark.parametrize(
    "asked",
    [mark(0), mark(2), mark(1, incarnation="inc2"), mark(1, digest="other"), mark(1, commit="other")],
    ids=["older", "newer", "life", "form", "history"],
)
def test_another_mark_gives_no_value_and_takes_none(copy, asked):
    filled(copy, a=b"1")
    with pytest.raises(StaleCopy, match="holds something else"):
        copy.get([b"a"], asked)
    with pytest.raises(StaleCopy, match="holds something else"):
        copy.apply([(b"a", b"9")], asked, mark(2))
    assert copy.get([b"a"], mark(1)) == [b"1"]


def test_what_fails_in_the_middle_changes_nothing(copy):
    filled(copy, a=b"1")

    def rows():
        yield b"a", b"2"
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        copy.apply(rows(), mark(1), mark(2))
    assert copy.get([b"a"], mark(1)) == [b"1"]


@pytest.mark.parametrize("order", [None, by_first_word_or_none])
@pytest.mark.parametrize("combine", [None, added])
@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
def test_many_rows_that_come_in_parts_do_what_they_do_at_once(tmp_path, rng, monkeypatch, order, combine, run_bytes):
    """In parts of three rows, which cut keys in two."""
    monkeypatch.setattr(local_copy, "PART_ROWS", 3)
    at_once, in_parts = (LocalCopy(tmp_path / name, BYTES_MAX, order) for name in ("at once", "in parts"))
    keys = [b"", LONG, LONG + b"x", *(b"%d" % n for n in range(40))]
    first = [(key, b"%d" % n) for n, key in enumerate(keys[::2])]
    changes = [(rng.choice(keys), b"%d" % rng.randrange(99)) for _ in range(100)]
    if combine is None:
        changes = [(key, value if rng.random() < 0.7 else None) for key, value in changes]
    for copy in (at_once, in_parts):
        copy.fill([arrays(first)], mark(1))
    at_once.apply(changes, mark(1), mark(2), combine)
    in_parts.apply_many((arrays(changes[n : n + 7]) for n in range(0, 100, 7)), mark(1), mark(2), combine, run_bytes)
    assert in_parts.get(keys, mark(2)) == at_once.get(keys, mark(2))
    assert in_parts.in_order(mark(2)) == at_once.in_order(mark(2))
    assert sorted(os.listdir(in_parts.folder)) == ["data.mdb", "lock.mdb", "owner.lock"]
    for copy in (at_once, in_parts):
        copy.close()


def test_many_rows_that_fail_in_the_middle_leave_no_copy(copy, monkeypatch):
    monkeypatch.setattr(local_copy, "PART_ROWS", 1)
    filled(copy, a=b"1", b=b"2")
    rows = [arrays([(b"a", b"3"), (b"b", b"4")])]
    with pytest.raises(StaleCopy, match="holds something else"):
        copy.apply_many(rows, mark(0), mark(2))
    assert copy.get([b"a"], mark(1)) == [b"1"]
    faults.arm("copy.apply_part:fail_before:2")
    with pytest.raises(faults.InjectedFault):
        copy.apply_many(rows, mark(1), mark(2))
    assert copy.mark is None
    for asked in (mark(1), mark(2)):
        with pytest.raises(StaleCopy, match="holds something else"):
            copy.get([b"a"], asked)


def test_of_two_processes_one_writes(copy):
    with pytest.raises(StaleCopy, match="cannot be written"):
        LocalCopy(copy.folder, BYTES_MAX)
    assert copy.folder.is_dir()


def test_the_next_process_goes_on_with_what_one_has_left(copy):
    filled(copy, a=b"1").close()
    again = LocalCopy(copy.folder, BYTES_MAX)
    assert again.mark == mark(1) and again.get([b"a"], mark(1)) == [b"1"]
    again.close()


@pytest.mark.parametrize("run_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("combine", [None, joining])
def test_a_copy_is_filled_in_runs_that_come_in_any_order(copy, rng, combine, run_bytes):
    pairs = [(str(n % 1500).encode() * (1 + n % 3 * 100), str(n).encode()) for n in range(3000)]
    rng.shuffle(pairs)
    if combine is None:
        pairs = [(key, value if rng.random() < 0.9 else None) for key, value in pairs]
    copy.fill((arrays(pairs[n : n + 300]) for n in range(0, 3000, 300)), mark(1), combine, run_bytes)
    expected = {}
    for key, value in pairs:
        expected[key] = value if combine is None else expected.get(key, b"") + value
    assert len(expected) == 1500
    assert copy.get(list(expected), mark(1)) == list(expected.values())
    assert sorted(os.listdir(copy.folder)) == ["data.mdb", "lock.mdb", "owner.lock"]


def test_a_copy_that_was_not_filled_to_its_end_has_no_mark(tmp_path):
    copy = LocalCopy(tmp_path / "small", 1 << 18)
    keys = [str(n).encode() for n in range(50_000)]
    with pytest.raises(StaleCopy, match="MDB_MAP_FULL"):
        copy.fill((arrays((key, b"1") for key in keys[n::20]) for n in range(20)), mark(1), None, run_bytes=1)
    assert copy.mark is None
    with pytest.raises(StaleCopy):
        copy.get([b"1000"], mark(1))
    with pytest.raises(StaleCopy, match="not empty"):
        filled(copy, a=b"1")
    copy.close()


def test_a_full_copy_says_so_and_stays_what_it_was(tmp_path):
    copy = LocalCopy(tmp_path / "small", 1 << 17)
    filled(copy, a=b"1")
    with pytest.raises(StaleCopy, match="MDB_MAP_FULL"):
        copy.apply([(str(n).encode(), b"x" * 1000) for n in range(1000)], mark(1), mark(2))
    assert copy.get([b"a"], mark(1)) == [b"1"]
    copy.close()


_REFUSED = """
import resource, sys
from pathlib import Path
from trident.states.core.local_copy import *
copy = LocalCopy(Path(sys.argv[1]), 1 << 28)
size = (copy.folder / "data.mdb").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
try:
    copy.apply([(str(n).encode(), b"x" * 1000) for n in range(1000)], copy.mark, CopyMark("inc1", 2, "d", "c"))
except StaleCopy as error:
    print(error, copy.mark.txid)
"""


def test_a_disk_that_takes_no_more_leaves_what_was_there(copy):
    """The kernel refuses each write beyond a size, as a full disk does."""
    filled(copy, a=b"1").close()
    done = subprocess.run(
        [sys.executable, "-c", _REFUSED, str(copy.folder)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "cannot be used" in done.stdout and done.stdout.split()[-1] == "1", done.stdout + done.stderr
    again = LocalCopy(copy.folder, BYTES_MAX)
    assert again.mark == mark(1) and again.get([b"a", b"1"], mark(1)) == [b"1", None]
    again.close()


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign", "deleted"])
def test_a_damaged_copy_gives_no_value_in_a_new_process_and_is_made_anew(copy, damage):
    filled(copy, **{f"key{n}": b"x" * 100 for n in range(1000)}).close()
    data = copy.folder / "data.mdb"
    if damage == "deleted":
        shutil.rmtree(copy.folder)
    elif damage == "foreign":
        data.write_bytes(random.Random(1).randbytes(data.stat().st_size))
    else:
        os.truncate(data, 0 if damage == "empty" else data.stat().st_size // 2)
    assert in_another_process(copy.folder, [b"key1"], mark(1)).startswith("stale: ")
    try:
        again = LocalCopy(copy.folder, BYTES_MAX)
    except StaleCopy:
        assert not copy.folder.exists()  # thrown away: the next one begins
        again = LocalCopy(copy.folder, BYTES_MAX)
    assert again.mark is None
    assert filled(again, a=b"1").get([b"a"], mark(1)) == [b"1"]
    again.close()


def test_a_file_that_was_copied_to_the_place_of_a_copy_has_no_mark(copy):
    """One that a back-up brings back may have been read while it was written."""
    filled(copy, a=b"1").close()
    shutil.copy(copy.folder / "data.mdb", copy.folder / "backup")
    os.replace(copy.folder / "backup", copy.folder / "data.mdb")
    assert in_another_process(copy.folder, [b"a"], mark(1)).startswith("stale: ")
    again = LocalCopy(copy.folder, BYTES_MAX)
    assert again.mark is None
    again.close()


def test_a_flipped_bit_of_a_value_is_found(copy):
    filled(copy, a=b"a value that is looked for", b=b"another").close()
    data = copy.folder / "data.mdb"
    data.write_bytes(data.read_bytes().replace(b"looked for", b"lookee for"))  # LMDB keeps older pages for a while
    assert "damaged" in in_another_process(copy.folder, [b"a"], mark(1))
    assert in_another_process(copy.folder, [b"b"], mark(1)) == [b"another"]


def test_a_copy_that_is_deleted_while_it_is_read_gives_no_other_ones_values(copy):
    filled(copy, a=b"1")
    assert look_up(copy.folder, [b"a"], mark(1)) == [b"1"]
    copy.delete()
    again = LocalCopy(copy.folder, BYTES_MAX)
    again.fill([arrays([(b"a", b"2")])], mark(2))
    assert look_up(copy.folder, [b"a"], mark(2)) == [b"2"]
    with pytest.raises(StaleCopy):
        look_up(copy.folder, [b"a"], mark(1))
    again.close()


READ_WHILE_IT_GOES = """
import sys, threading
from pathlib import Path
from tests.states.core.test_local_copy import BYTES_MAX, filled, mark
from trident.states.core import local_copy
from trident.states.core.local_copy import LocalCopy, look_up

folder, how = Path(sys.argv[1]), sys.argv[2]
reads, goes = threading.Event(), threading.Event()
real = local_copy._stored

def held(*args):
    if threading.current_thread() is reader:
        reads.set()
        assert goes.wait(60)
    return real(*args)

def read():
    found.append(look_up(folder, [b"a"], mark(1)))

copy, found = filled(LocalCopy(folder, BYTES_MAX), a=b"1" * 5000), []
local_copy._stored, reader = held, threading.Thread(target=read)
reader.start()
assert reads.wait(60)
if how == "opened again":
    copy.close()
    copy = filled(LocalCopy(folder.with_name("other"), BYTES_MAX), a=b"other")  # takes memory
    again = LocalCopy(folder, BYTES_MAX)
    goes.set()
    reader.join()
    assert again.get([b"a"], mark(1)) == [b"1" * 5000]
    again.close()
else:
    copy.delete()
    other = filled(LocalCopy(folder, BYTES_MAX), a=b"other")
    goes.set()
    reader.join()
    assert look_up(folder, [b"a"], mark(1)) == [b"other"]
    other.close()
assert found == [[b"1" * 5000]], found
maps = Path("/proc/self/maps")
mapped = [line for line in maps.read_text().splitlines() if str(folder) in line] if maps.exists() else []
assert not mapped, mapped
"""


@pytest.mark.parametrize("how", ["deleted", pytest.param("opened again", marks=pytest.mark.long)])
def test_a_thread_that_reads_goes_on_while_another_one_lets_go_of_the_copy(tmp_path, how):
    program = [sys.executable, "-c", READ_WHILE_IT_GOES, str(tmp_path / "copy"), how]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_reader_lets_go_of_copies_that_were_deleted(tmp_path):
    for number in range(3):
        copy = LocalCopy(tmp_path / str(number), BYTES_MAX)
        filled(copy, a=b"1")
        assert look_up(copy.folder, [b"a"], mark(1)) == [b"1"]
        shutil.rmtree(copy.folder)
    mapped = {line.split()[-2] for line in Path("/proc/self/maps").read_text().splitlines() if "data.mdb" in line}
    assert len([path for path in mapped if path.startswith(str(tmp_path))]) <= 1


# --- in the order of a position ----------------------------------------------------------------------


def at(value: bytes) -> int | None:
    """The position of the rows below: the value's first word."""
    word = value.split(b" ")[0]
    return None if word == b"none" else int(word)


def by_first_word(keys: Sequence[bytes], values: Sequence[bytes]) -> list[int | None]:
    return [at(value) for value in values]


POSITIONS = st.one_of(
    st.none(), st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1]), st.integers(-(2**63), 2**63 - 1)
)
KEYS = st.sampled_from([b"", b"a", b"b", b"\xff" * 3, LONG, LONG + b"x", b"x" * 500])
CHANGES = st.lists(st.dictionaries(KEYS, st.one_of(st.just("gone"), POSITIONS), max_size=7), max_size=5)
EDGES = st.one_of(st.none(), st.integers(-4, 4), st.integers(-(2**63) - 1, 2**63 + 1))


@given(st.dictionaries(KEYS, POSITIONS), CHANGES, EDGES, EDGES, st.one_of(st.none(), st.integers(0, 4)))
def test_a_range_gives_what_a_sorted_list_gives(tmp_path_factory, first, changes, low, below, limit):
    copy = LocalCopy(tmp_path_factory.mktemp("ordered") / "copy", 1 << 20, by_first_word)
    rows = {key: f"{'none' if p is None else p} 0".encode() for key, p in first.items()}
    copy.fill([arrays(rows.items())] if rows else [], mark(0), run_bytes=100)
    for txid, changed in enumerate(changes, start=1):
        new = {
            key: None if p == "gone" else f"{'none' if p is None else p} {txid}".encode() for key, p in changed.items()
        }
        copy.apply(new.items(), mark(txid - 1), mark(txid))
        rows = {key: value for key, value in {**rows, **new}.items() if value is not None}
    expected = sorted(
        ((at(value), key, value) for key, value in rows.items() if at(value) is not None),
        key=lambda row: (row[0], len(row[1]) > 500),
    )
    held = mark(len(changes))
    for edges in ((None, None), (low, below)):
        low, below = edges
        inside = [r for r in expected if (low is None or low <= r[0]) and (below is None or r[0] < below)]
        found = in_order(copy.folder, held, low, below)
        assert sorted(found) == sorted(inside) and [r[0] for r in found] == [r[0] for r in inside]
        assert found == copy.in_order(held, low, below)
        assert copy.in_order(held, low, below, limit) == (found if limit is None else found[:limit])
    copy.delete()


def by_key(keys: Sequence[bytes], values: Sequence[bytes]) -> list[int | None]:
    return [None if not key else -key[0] for key in keys]


@given(st.sets(KEYS), st.lists(st.dictionaries(KEYS, st.booleans(), max_size=7), max_size=5))
def test_a_range_gives_each_key_that_stays_in_its_place_once(tmp_path_factory, first, changes):
    copy = LocalCopy(tmp_path_factory.mktemp("ordered") / "copy", 1 << 20, by_key, stays=True)
    rows = dict.fromkeys(first, b"0")
    copy.fill([arrays(rows.items())] if rows else [], mark(0))
    for txid, changed in enumerate(changes, start=1):
        new = {key: b"%d" % txid if is_kept else None for key, is_kept in changed.items()}
        copy.apply(new.items(), mark(txid - 1), mark(txid))
        rows = {key: value for key, value in {**rows, **new}.items() if value is not None}
    expected = sorted((-key[0], key, value) for key, value in rows.items() if key)
    assert sorted(copy.in_order(mark(len(changes)))) == expected
    copy.delete()


@pytest.mark.parametrize(("bytes_max", "count"), [(None, 9), (900, 9), (899, 9), (300, 4), (299, 3), (0, 1)])
def test_a_range_ends_with_the_value_that_is_too_much(tmp_path, bytes_max, count):
    copy = LocalCopy(tmp_path / "copy", BYTES_MAX, by_first_word)
    copy.fill([arrays([(b"%d" % n, b"%d ".ljust(101, b"x") % n) for n in range(9)])], mark(1))
    found = in_order(copy.folder, mark(1), bytes_max=bytes_max)
    assert found == copy.in_order(mark(1), bytes_max=bytes_max) and [row[0] for row in found] == list(range(count))
    assert {len(value) for *_, value in found} == {100}
    copy.close()


def test_a_part_that_moves_its_key_moves_it_in_the_order(tmp_path):
    copy = LocalCopy(tmp_path / "copy", BYTES_MAX, by_first_word)
    copy.fill([arrays([(b"a", b"5 x"), (b"b", b"7 x")])], mark(1))

    def added(stored: list[bytes | None], parts: list[list[bytes]]) -> list[bytes]:
        return [b"%d y" % sum(map(at, [before or b"0", *ours])) for before, ours in zip(stored, parts)]

    copy.apply([(b"a", b"4 x"), (b"c", b"6 x"), (b"c", b"2 x")], mark(1), mark(2), added)
    assert copy.in_order(mark(2)) == [(7, b"b", b"7 x"), (8, b"c", b"8 y"), (9, b"a", b"9 y")]
    copy.close()


@pytest.mark.parametrize("asked", [mark(0), mark(2), mark(1, incarnation="inc2"), mark(1, commit="other")])
def test_a_range_is_that_of_the_mark(tmp_path, asked):
    copy = LocalCopy(tmp_path / "copy", BYTES_MAX, by_first_word)
    copy.fill([arrays([(b"a", b"5")])], mark(1))
    for find in (copy.in_order, lambda asked: in_order(copy.folder, asked)):
        with pytest.raises(StaleCopy, match="holds something else"):
            find(asked)
    copy.close()


def test_an_order_that_fails_in_the_middle_changes_nothing(tmp_path):
    copy = LocalCopy(tmp_path / "copy", BYTES_MAX, by_first_word)
    copy.fill([arrays([(b"a", b"5"), (b"b", b"6")])], mark(1))
    with pytest.raises(ValueError):
        copy.apply([(b"a", b"9"), (b"b", None), (b"c", b"no number")], mark(1), mark(2))
    assert copy.in_order(mark(1)) == [(5, b"a", b"5"), (6, b"b", b"6")]
    copy.close()


@pytest.mark.parametrize("harm", ["entry of the index", "row that is gone", "row"])
def test_a_damaged_order_gives_no_row(tmp_path, harm):
    copy = LocalCopy(tmp_path / "copy", BYTES_MAX, by_first_word)
    copy.fill([arrays([(LONG, b"5"), (b"b", b"6 looked for")])], mark(1))
    with copy._opened.env.begin(write=True) as txn:
        if harm == "entry of the index":
            name = next(name for name, _ in txn.cursor() if name[:1] == b"i")
            txn.put(name, b"\0\0\0\0")
        elif harm == "row":
            txn.put(b"kb", txn.get(b"kb").replace(b"looked", b"lookee"))
        else:
            txn.delete(b"kb")
    with pytest.raises(StaleCopy, match="damaged"):
        copy.in_order(mark(1))
    copy.close()


_READER = """
import sys, lmdb
txn = lmdb.open(sys.argv[1], readonly=True).begin()
print("reads", flush=True)
sys.stdin.read()
"""


def test_a_reader_that_was_killed_keeps_no_old_pages(copy):
    """LMDB lets go of no page that a reader may want: one that is gone would make the file grow for ever."""
    filled(copy, a=b"1")
    command = [sys.executable, "-c", _READER, str(copy.folder)]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout.readline() == "reads\n"
    assert f"{reader.pid} " in copy._opened.env.readers()
    reader.kill()
    reader.communicate()
    copy.apply([(b"a", b"2")], mark(1), mark(2))
    assert f"{reader.pid} " not in copy._opened.env.readers()


_WRITER = """
import sys
from pathlib import Path
from trident.states.core.local_copy import *
copy = LocalCopy(Path(sys.argv[1]), 1 << 28, lambda keys, values: map(int, values))
held = copy.mark
if held is None:
    held = CopyMark("inc1", 0, "d", "c")
    copy.fill([], held)
    copy.apply([(str(n).encode(), b"0") for n in range(200)], held, held)
while True:
    after = CopyMark("inc1", held.txid + 1, "d", "c")
    copy.apply([(str(n).encode(), str(after.txid).encode()) for n in range(200)], held, after)
    held = after
    print(held.txid, flush=True)
"""


def test_whenever_the_writer_is_killed_all_values_are_those_of_the_mark(tmp_path, rng):
    folder, reached = tmp_path / "copy", 0
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert int(writer.stdout.readline()) == reached + 1
        time.sleep(rng.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        said = writer.communicate()[0].split()
        copy = LocalCopy(folder, BYTES_MAX)
        reached = copy.mark.txid
        assert reached >= int(said[-1] if said else 0)
        keys = [str(n).encode() for n in range(200)]
        assert set(copy.get(keys, copy.mark)) == {str(reached).encode()}
        placed = copy.in_order(copy.mark)
        assert [row[0] for row in placed] == [reached] * 200 and {row[1] for row in placed} == set(keys)
        copy.close()
    assert reached >= 2
