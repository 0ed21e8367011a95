"""The ledger gives each file one number for ever, whatever crashes; cuts and listings build on it."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.programs import python
from trident.coordinators import faults
from trident.coordinators.errors import PositionLost, SourceError, TopologyError
from trident.spouts.files.ledger import (
    MAX_FILES,
    START,
    FileLedger,
    FoundFile,
    LedgerBook,
    LedgerEntry,
    Mark,
    Position,
    cut,
    length_after,
    ranges,
    read_position,
)
from trident.spouts.files.listing import FileListing, as_paths

ROOT = Path(__file__).resolve().parents[3]


def found(*names: str, size: int = 10) -> list[FoundFile]:
    return [FoundFile(f"/in/{name}", size, 1_000) for name in names]


def numbers(ledger: FileLedger) -> dict[str, int]:
    return {entry.path: entry.number for entry in ledger.book.entries}


# --- on disk ------------------------------------------------------------------------------


def test_numbers_count_from_one_and_survive_a_restart(tmp_path):
    ledger = FileLedger(tmp_path / "l", "bytes")
    ledger.append(found("b", "a"))
    ledger.append(found("c"))
    again = FileLedger(tmp_path / "l", "bytes")
    assert numbers(again) == {"/in/b": 1, "/in/a": 2, "/in/c": 3}
    assert again.book.entries == ledger.book.entries


def test_a_known_path_gets_no_second_number(tmp_path):
    ledger = FileLedger(tmp_path / "l", "bytes")
    ledger.append(found("a"))
    assert ledger.append(found("a", "b", "b")) == [LedgerEntry(2, "/in/b", 10, 1_000)]


@pytest.mark.parametrize("keep", range(0, 300, 7))
def test_every_prefix_of_a_ledger_is_a_ledger(tmp_path, keep):
    path = tmp_path / "l"
    FileLedger(path, "bytes").append(found("a", "b", "c", "d"))
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    ledger = FileLedger(path, "bytes")
    assert list(numbers(ledger).values()) == list(range(1, len(ledger.book) + 1))
    ledger.append(found("a", "b", "c", "d"))
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        (1, b"garbage"),
        (2, b"garbage"),
        (2, b"[]"),
        (2, b"\xff\xfe"),
        (2, b'{"n": 3, "path": "/x", "size": 1}'),
        (2, b'{"n": 1, "path": "/x", "size": -1, "mtime_ns": 1, "rows": null}'),
        (2, b'{"n": 1, "path": "/x", "size": 1, "mtime_ns": 1, "rows": null, "more": 0}'),
        (2, b'{"n": true, "path": "/x", "size": 1, "mtime_ns": 1, "rows": null}'),
        (2, b'{"n": 1, "n": 1, "path": "/x", "size": 1, "mtime_ns": 1, "rows": null}'),
        (1, b'{"ledger": "trident-files", "schema": true, "unit": "bytes"}'),
        (3, b'{"moved": ["/in"]}'),
        (2, b'{"skip": 1}'),
        (3, b'{"skip": 9}'),
        (3, b'{"n": 2, "path": "/in/a", "size": 1, "mtime_ns": 1, "rows": null}'),
    ],
)
def test_a_corrupt_line_is_an_error_that_names_file_and_line(tmp_path, line, bad):
    path = tmp_path / "l"
    FileLedger(path, "bytes").append(found("a", "b"))
    lines = path.read_bytes().splitlines()
    lines[line - 1] = bad
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(SourceError, match=f"{path}, line {line}.*expected"):
        FileLedger(path, "bytes")


def test_a_ledger_is_written_as_by_versions_before(tmp_path):
    path = tmp_path / "l"
    ledger = FileLedger(path, "bytes", ["/in"])
    ledger.append(found("a"))
    ledger.skip(1, "gone")
    ledger.move("/in", "/new")
    assert path.read_text().splitlines() == [
        '{"ledger": "trident-files", "schema": 1, "unit": "bytes", "source": ["/in"],'
        ' "digest": "e220cb43dd7bf744a47bcf6e"}',
        '{"n": 1, "path": "/in/a", "size": 10, "mtime_ns": 1000, "rows": null, "digest": "55ba6620b28efd7c10394ca6"}',
        '{"skip": 1, "found": "gone", "digest": "8c8d373f288aa25e5b4d17ba"}',
        '{"moved": ["/in", "/new"], "digest": "df90fb11c52d515fca9a8eb4"}',
    ]


def test_another_unit_is_refused(tmp_path):
    FileLedger(tmp_path / "l", "bytes").append(found("a"))
    with pytest.raises(SourceError, match="line 1.*another one before"):
        FileLedger(tmp_path / "l", "rows")


def test_a_ledger_that_cannot_be_read_or_written_is_a_source_error(tmp_path):
    (tmp_path / "l").mkdir()
    with pytest.raises(SourceError, match="cannot be read"):
        FileLedger(tmp_path / "l", "bytes")
    with pytest.raises(SourceError, match="cannot be written"):
        FileLedger(tmp_path / "missing" / "l", "bytes").append(found("a"))


def test_a_skip_is_remembered(tmp_path):
    ledger = FileLedger(tmp_path / "l", "bytes")
    ledger.append(found("a", "b"))
    ledger.skip(1, "no file")
    ledger.skip(1, "no file")
    assert FileLedger(tmp_path / "l", "bytes").book.skipped == {1}
    assert len((tmp_path / "l").read_text().splitlines()) == 4


def test_a_second_ledger_on_the_file_sees_what_the_first_appended(tmp_path):
    one, other = FileLedger(tmp_path / "l", "bytes"), FileLedger(tmp_path / "l", "bytes")
    one.append(found("a"))
    other.append(found("b", "a"))
    one.append(found("c"))
    other.refresh()
    assert numbers(one) == numbers(other) == {"/in/a": 1, "/in/b": 2, "/in/c": 3}


def _append_many(path: str, name: str) -> None:
    ledger = FileLedger(Path(path), "bytes")
    for i in range(60):
        ledger.append(found(f"{name}{i}", f"shared{i}"))


def test_processes_that_append_at_once_never_give_one_number_to_two_files(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append_many, args=(str(tmp_path / "l"), name)) for name in "xy"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    ledger = FileLedger(tmp_path / "l", "bytes")
    assert len(ledger.book) == 3 * 60
    assert sorted(numbers(ledger).values()) == list(range(1, 181))


def test_numbers_are_used_only_after_they_are_durable(tmp_path):
    ledger = FileLedger(tmp_path / "l", "bytes")
    ledger.append(found("a"))
    faults.arm("spout.ledger:fail_before")
    try:
        with pytest.raises(faults.InjectedFault):
            ledger.append(found("b"))
        assert len(ledger.book) == 1
        ledger.append(found("c"))
    finally:
        faults.disarm()
    assert numbers(FileLedger(tmp_path / "l", "bytes")) == {"/in/a": 1, "/in/c": 2}


def test_a_process_killed_right_after_an_append_leaves_a_good_ledger(tmp_path):
    program = (
        "from pathlib import Path; from trident.spouts.files.ledger import *\n"
        f"ledger = FileLedger(Path({str(tmp_path / 'l')!r}), 'bytes')\n"
        "for n in 'abc': ledger.append([FoundFile('/in/' + n, 1, 1)])\n"
    )
    ended = python("-c", program, TRIDENT_FAULTS="spout.ledger:do_then_die:2")
    assert ended.returncode == -9
    ledger = FileLedger(tmp_path / "l", "bytes")
    ledger.append(found("c"))
    assert numbers(ledger) == {"/in/a": 1, "/in/b": 2, "/in/c": 3}


def test_names_that_are_not_utf8_are_kept(tmp_path):
    name = os.fsdecode(b"/in/\xff.txt")
    FileLedger(tmp_path / "l", "bytes").append([FoundFile(name, 1, 1)])
    assert FileLedger(tmp_path / "l", "bytes").book.entries[0].path == name


# --- cuts ---------------------------------------------------------------------------------


def book_of(lengths: list[int], skipped: tuple[int, ...] = ()) -> LedgerBook:
    book = LedgerBook("bytes")
    book.apply(json.dumps({"ledger": "trident-files", "schema": 1, "unit": "bytes"}).encode())
    for number, length in enumerate(lengths, 1):
        line = {"n": number, "path": f"/in/{number}", "size": length, "mtime_ns": 1, "rows": None}
        book.apply(json.dumps(line).encode())
    for number in skipped:
        book.apply(json.dumps({"skip": number, "found": ""}).encode())
    return book


def every(width: int):
    """Rows of a fixed width: offsets are multiples of it."""
    return lambda entry, offset: min(entry.length, -(-offset // width) * width)


@given(
    st.lists(st.integers(0, 500), max_size=12),
    st.integers(1, 60),
    st.lists(st.integers(1, 700), min_size=1, max_size=5),
    st.sets(st.integers(1, 12)),
    st.booleans(),
)
def test_cuts_cover_every_byte_once_in_order(lengths, width, targets, skipped, splits):
    skipped = {number for number in skipped if number <= len(lengths)}
    book = book_of(lengths, tuple(skipped))
    position, covered, turn = START, [], 0
    while length_after(book, position):
        end = cut(book, position, targets[turn % len(targets)], every(width), lambda entry: splits)
        assert end > position, "a batch must make progress while something waits"
        for part in ranges(book, position, end):
            assert part.begin % width == 0 and (part.end % width == 0 or part.end == part.entry.length)
            assert splits or part.whole
            covered += [(part.entry.number, offset) for offset in range(part.begin, part.end)]
        position, turn = end, turn + 1
    assert covered == [
        (number, offset)
        for number, length in enumerate(lengths, 1)
        for offset in range(length)
        if number not in skipped
    ]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=10), st.integers(1, 300))
def test_a_batch_is_not_much_larger_than_its_target(lengths, target):
    book = book_of(lengths)
    end = cut(book, START, target, every(1))
    assert sum(part.end - part.begin for part in ranges(book, START, end)) <= 1.15 * target


@pytest.mark.parametrize(
    ("lengths", "target", "ends"),
    [
        ([1000, 1040, 960], 1000, [2, 3, 4]),  # files of about the target are taken whole
        ([100] * 60, 1499, [16, 31, 46, 61]),  # a quarter, as estimated from rows: a backlog is shared out evenly
        ([600, 600], 1000, [2, 3]),  # a batch ends at a file rather than in the next
    ],
)
def test_batches_end_at_files(lengths, target, ends):
    book, position = book_of(lengths), START
    for end in ends:
        position = cut(book, position, target, every(1))
        assert position == (end, 0)
    assert not length_after(book, position)


def test_what_waits_counts_only_what_will_be_read():
    book = book_of([100, 200, 300], skipped=(2,))
    assert length_after(book, START) == 400
    assert length_after(book, Position(1, 30)) == 370
    assert length_after(book, Position(2, 50)) == 300
    assert length_after(book, Position(4, 0)) == 0


def test_a_batch_has_a_bounded_number_of_files():
    book = book_of([1] * (MAX_FILES + 10))
    assert cut(book, START, 10**9, every(1)) == (MAX_FILES + 1, 0)


def test_empty_files_are_passed():
    book = book_of([0, 0, 10, 0])
    assert cut(book, START, 10, every(1)) == (5, 0)
    assert [part.entry.number for part in ranges(book, START, Position(5, 0))] == [3]


@pytest.mark.parametrize("metadata", [None, 3, {}, {"to": 1}, {"to": [1]}, {"to": [1, "2"]}])
def test_metadata_of_something_else_is_refused(metadata):
    with pytest.raises(SourceError, match="expected"):
        read_position(metadata, "to")


# --- segments -----------------------------------------------------------------------------


def segmented(folder: Path, count: int = 7) -> FileLedger:
    """Segments of two files."""
    ledger = FileLedger(folder / "l.jsonl", "bytes", segment_files=2)
    for number in range(count):
        ledger.append(found(f"{number}"))
    return ledger


def test_of_two_that_forget_the_one_that_knows_less_takes_nothing_back(tmp_path):
    new = segmented(tmp_path)
    old = FileLedger(tmp_path / "l.jsonl", "bytes", segment_files=2)
    new.forget(5, {"/in": Mark(50, 60, "x", 4)})
    old.forget(3, {"/in": Mark(20, 30, "x", 2)})
    for ledger in (old, FileLedger(tmp_path / "l.jsonl", "bytes", segment_files=2)):
        assert ledger.book.marks == {"/in": Mark(50, 60, "x", 4)} and ledger.book.first_number == 5


def test_an_earlier_leader_gives_no_number_to_files_that_its_successor_has_forgotten(tmp_path, monkeypatch):
    new, old = segmented(tmp_path, 1), FileLedger(tmp_path / "l.jsonl", "bytes", segment_files=2)
    new.append(found("listed by both"))
    monkeypatch.setattr("trident.states.core.storage.try_delete", lambda path: None)  # killed before
    new.append(found("3"))
    new.forget(3, {"/in": Mark(20)})
    with pytest.raises(SourceError, match="has forgotten files"):
        old.append(found("listed by both"))
    assert numbers(FileLedger(tmp_path / "l.jsonl", "bytes", segment_files=2)) == {"/in/3": 3}


def test_a_segment_that_an_earlier_leader_has_made_anew_up_to_its_end_is_passed_over(tmp_path):
    new, old = segmented(tmp_path, 2), FileLedger(tmp_path / "l.jsonl", "bytes", segment_files=2)
    for name in "34567":
        new.append(found(name))
    new.forget(5, {"/in": Mark(20)})
    old.append(found("late", "later"))
    again = FileLedger(tmp_path / "l.jsonl", "bytes", segment_files=2)
    assert again.book.digest == new.book.digest and again.book.first_number == 5


def test_a_segment_that_is_lost_is_not_taken_for_forgotten(tmp_path):
    segmented(tmp_path).forget(3, {"/in": Mark(20)})
    (tmp_path / "l.1.jsonl").unlink()
    with pytest.raises(PositionLost, match="lacks files.*file 5.*file 3"):
        FileLedger(tmp_path / "l.jsonl", "bytes", segment_files=2)


def test_a_segment_that_could_not_be_deleted_before_others_is_passed_over(tmp_path):
    kept = segmented(tmp_path)
    first = (tmp_path / "l.jsonl").read_bytes()
    kept.forget(5, {"/in": Mark(20)})
    (tmp_path / "l.jsonl").write_bytes(first)
    again = FileLedger(tmp_path / "l.jsonl", "bytes", segment_files=2)
    assert again.book.digest == kept.book.digest and again.book.first_number == 5


# --- listings -----------------------------------------------------------------------------


def write(path: Path, mtime: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, ns=(mtime, mtime))
    return path


def names(path: object, known: tuple[str, ...] = ()) -> list[str]:
    listing = FileListing(as_paths(path))
    listing.check()
    return [os.path.basename(file.path) for file in listing.new_files(known)]


def test_files_are_ordered_by_time_then_path(tmp_path):
    for name, mtime in (("c", 1), ("a", 2), ("b", 2), ("z", 0)):
        write(tmp_path / name, mtime)
    assert names(tmp_path) == ["z", "c", "a", "b"]


@pytest.mark.parametrize(
    ("there", "pattern", "expected"),
    [
        ("a .b _c d._COPYING_ below/e", "", "a"),
        ("a.txt x/b.txt x/y/c.txt x/_t/d.txt .h/e.txt x/f.csv", "/**/*.txt", "a.txt b.txt c.txt"),
        ("a.txt x/b.txt", "/*.txt", "a.txt"),
        ("d1/a d2/b e1/c", "/d*", "a b"),
        ("", "", ""),
        ("", "/*.txt", ""),
    ],
)
def test_hidden_names_are_left_out_and_globs_are_followed(tmp_path, there, pattern, expected):
    for name in there.split():
        write(tmp_path / name)
    assert sorted(names(f"{tmp_path}{pattern}")) == expected.split()


def test_one_file_several_paths_and_names_that_look_like_globs(tmp_path):
    write(tmp_path / "in[1]" / "a")
    one = write(tmp_path / "_b")
    assert sorted(names([tmp_path / "in[1]", str(one), f"file://{one}"])) == ["_b", "a"]


def test_known_files_are_not_found_again(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b")
    assert names(tmp_path, known=(str(tmp_path / "a"),)) == ["b"]


@pytest.mark.parametrize("path", ["missing", "missing/*.txt", "missing/x.txt"])
def test_a_path_that_does_not_exist_is_an_error(tmp_path, path):
    with pytest.raises(SourceError, match=r"missing.* does not exist; expected.*[Mm]ake the folder"):
        names(tmp_path / path)


def test_a_folder_that_disappears_is_an_error(tmp_path):
    listing = FileListing(as_paths(tmp_path / "in"))
    with pytest.raises(SourceError, match="does not exist"):
        listing.new_files(())


@pytest.mark.parametrize("path", [None, 7, "", b"x", [], ["a", 3], "gs://bucket/x", "s3a://a:b@bucket/x"])
def test_what_is_no_path_is_refused_when_built(path):
    with pytest.raises(TopologyError):
        as_paths(path)
