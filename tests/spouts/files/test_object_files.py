"""Files in stores, on the real S3 server of the tests (moto) and on HDFS: each object's rows once, or an error."""

from __future__ import annotations

import contextlib
import gzip
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers import store_servers
from tests.servers.zk_fixtures import eventually
from tests.spouts.files.test_file_spout import Run
from trident.coordinators.errors import IdentityMismatch, PositionLost, SourceError, TopologyError
from trident.spouts.contracts import SpoutContext
from trident.spouts.files import ledger as ledgers
from trident.spouts.files import objects
from trident.spouts.files import spout as file_spout
from trident.spouts.files.objects import fits
from trident.spouts.files.spout import FileSpout
from trident.states.core import object_storage, storage
from trident.states.core.place import Place

KINDS = ["s3", *(["hdfs"] if os.environ.get("TRIDENT_STORES") else [])]


@pytest.fixture(params=KINDS)
def inputs(request: pytest.FixtureRequest) -> Iterator[str]:
    """A folder of its own in a store."""
    base = store_servers.running(request.param)
    url = f"{base}/{uuid.uuid4().hex[:8]}"
    storage.make_folder(url, base.rpartition("/")[0])
    yield url
    storage.delete(url)


@pytest.fixture
def behind() -> Iterator[store_servers.Proxy]:
    """Before the S3 server; its bucket is ``s3a://source``."""
    with store_servers.before_bucket("source") as proxy:
        yield proxy


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    """A run that plans only: no session is needed."""

    def make(path: Any, **more: Any) -> Run:
        (tmp_path / "state").mkdir(exist_ok=True)
        run = Run.__new__(Run)
        run.spout = FileSpout(path, **{"poll_interval_secs": 0, **more})
        run.context = SpoutContext(None, "t", "words", tmp_path / "state", "life")
        run.pins = {}
        run.coordinator = run.spout.get_coordinator(run.context)
        return run

    return make


def put(folder: str, name: str, data: str | bytes) -> str:
    path = f"{folder}/{name}"
    storage.make_folder(path.rpartition("/")[0], "/".join(folder.split("/")[:3]))
    storage.write(path, data.encode() if isinstance(data, str) else data)
    return path


def taken(run: Run) -> list[str]:
    """The names of the files in the batches of all that waits, asked for as a topology that is to come to its end."""
    found = []
    run.coordinator.refresh()
    while run.ready():
        pin, book = run.pins[run.begin()], run.coordinator._ledger.book
        parts = ledgers.ranges(book, ledgers.Position(*pin["from"]), ledgers.Position(*pin["to"]))
        found += [part.entry.path.rpartition("/")[2] for part in parts]
        run.coordinator.refresh()
    return found


def again(run: Run) -> None:
    """As a coordinator does that takes over."""
    run.coordinator = run.spout.get_coordinator(run.context)
    run.coordinator.resume(max(run.pins), run.pins[max(run.pins)])


# --- rows -------------------------------------------------------------------------------------------


@pytest.fixture
def new_run(spark: Any, tmp_path: Path) -> Any:
    def make(path: Any, format: str = "text", **more: Any) -> Run:
        return Run(FileSpout(path, format, poll_interval_secs=0, **more), spark, tmp_path / "state")

    return make


def test_each_line_of_each_object_is_in_one_batch_and_the_same_at_a_replay(
    inputs: str, new_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trident.spouts.files.tasks._WHOLE_BYTES", 3_000)
    lines = {name: [f"{name} {n}" for n in range(count)] for name, count in (("a b%c", 5), ("ü", 900), ("z.gz", 40))}
    for name, rows in lines.items():
        data = "".join(f"{row}\n" for row in rows).encode()
        put(inputs, name, gzip.compress(data) if name.endswith(".gz") else data)
    put(inputs, "empty", "")
    put(inputs, "_hidden", "no\n")
    put(inputs, "below/x", "no\n")
    run = new_run(inputs, min_rows=100, max_rows=100)
    expected = Counter(row for rows in lines.values() for row in rows)
    assert run.all_rows() == expected and len(run.pins) > 3
    run.restart()
    assert Counter(row for txid in run.pins for row in run.rows(txid, 1)) == expected


def test_csv_by_its_header_json_and_parquet_are_read(inputs: str, new_run: Any, tmp_path: Path) -> None:
    put(inputs, "c/a.csv", "n,s\n1,x\n")
    put(inputs, "c/b.csv", "s,n\ny,2\n")
    run = new_run(f"{inputs}/c", "csv", schema="n long, s string", options={"header": True})
    assert run.all_rows() == Counter([(1, "x"), (2, "y")])
    put(inputs, "p/a.parquet", _parquet(tmp_path, pa.table({"n": [1, 2, 3]})))
    (tmp_path / "other").mkdir()
    run = Run(FileSpout(f"{inputs}/p", "parquet", "n long", 2, 2), run.spark, tmp_path / "other")
    assert run.all_rows() == Counter([1, 2, 3])


def _parquet(folder: Path, table: pa.Table) -> bytes:
    pq.write_table(table, folder / "x.parquet")
    return (folder / "x.parquet").read_bytes()


@pytest.mark.parametrize("change", ["missing", "one bit", "longer"])
def test_an_object_that_is_another_one_at_a_replay_fails_the_batch_and_is_named(
    inputs: str, new_run: Any, change: str
) -> None:
    path = put(inputs, "a", "row 1\nrow 2\n")
    run = new_run(inputs)
    assert run.all_rows() == Counter(["row 1", "row 2"])
    if change == "missing":
        storage.delete(path)
    else:
        storage.write(path, b"row 1\nrow 3\n" if change == "one bit" else b"row 1\nrow 2\nrow 3\n")
    run.restart()
    with pytest.raises(Exception, match=r"o such|cannot be read|changed after it was discovered") as raised:
        run.rows(1, 1)
    assert path in str(raised.value)


# --- discovery --------------------------------------------------------------------------------------


def test_late_objects_are_found_whatever_their_names(inputs: str, plan: Any) -> None:
    put(inputs, "m", "1\n")
    run = plan(inputs)
    assert taken(run) == ["m"]
    put(inputs, "a", "1\n")
    put(inputs, "z", "1\n")
    assert sorted(taken(run)) == ["a", "z"] and taken(run) == []
    again(run)
    put(inputs, "b", "1\n")
    assert taken(run) == ["b"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["a.csv", "b", "x.csv"]),
        ("*.csv", ["a.csv"]),
        ("**/*.csv", ["a.csv", "x.csv", "y.csv"]),
        ("d=?", ["x.csv"]),
    ],
)
def test_a_glob_in_a_store_is_what_it_is_on_a_disk(inputs: str, plan: Any, pattern: str, expected: list[str]) -> None:
    for name in ("a.csv", "b", "d=1/x.csv", "d=1/e/y.csv", "_hidden/z.csv"):
        put(inputs, name, "1\n")
    assert sorted(taken(plan(f"{inputs}/{pattern}"))) == expected


def test_patterns_are_of_the_parts_of_names() -> None:
    assert fits("a/b", "*/b") and fits("a/b/c", "**") and not fits("a/b/c", "*") and not fits("ab", "a?c")


def test_what_is_moved_on_hdfs_keeps_its_time_so_that_nothing_there_is_forgotten_unless_asked() -> None:
    age = {name: file_spout.remembered(FileSpout(f"{name}://lake/in"), f"{name}://lake/in") for name in ("s3a", "hdfs")}
    assert age == {"s3a": 86_400, "hdfs": 1e11}
    assert file_spout.remembered(FileSpout("hdfs://lake/in", remember_secs=5), "hdfs://lake/in") == 5


@pytest.mark.parametrize("on_changed", ["fail", "skip"])
def test_an_object_that_is_replaced_after_it_was_read_is_an_error_or_a_warning(
    inputs: str, plan: Any, caplog: pytest.LogCaptureFixture, on_changed: str
) -> None:
    path = put(inputs, "a", "x\n")
    run = plan(inputs, on_changed=on_changed)
    assert taken(run) == ["a"]
    storage.write(path, b"y\n")
    put(inputs, "b", "1\n")
    if on_changed == "skip":
        assert taken(run) == ["b"] and f"{path} changed after it was read" in caplog.text
        return
    with pytest.raises(SourceError, match=f"{path} changed after it was read"):
        taken(run)
    storage.delete(path)
    assert taken(run) == ["b"]


@pytest.mark.parametrize("last, later", [("g", "h"), ("g#", "g$"), ("g%3", "g%4"), ("gü", "gý")])
def test_a_large_path_is_listed_behind_its_last_name_between_whole_listings(
    behind: store_servers.Proxy, plan: Any, monkeypatch: pytest.MonkeyPatch, last: str, later: str
) -> None:
    monkeypatch.setattr("trident.states.core.object_storage._PAGE", 2)
    folder = f"s3a://source/{uuid.uuid4().hex}"
    for name in [*"bcdef", last]:
        put(folder, name, "1\n")
    run = plan(folder, full_listing_secs=3600)
    assert taken(run) == [*"bcdef", last]
    behind.requests.clear()
    put(folder, "a", "1\n")
    put(folder, later, "1\n")
    assert eventually(run.ready, 20)
    lists = [path for method, path in behind.requests if method == "GET" and "list-type" in path]
    assert lists and all("start-after" in path for path in lists), "nothing is listed as a whole"
    run.begin()
    assert run.coordinator._ledger.book.entries[-1].path == f"{folder}/{later}"
    assert taken(run) == ["a"], "the next whole listing has it"


def test_what_is_asked_for_while_a_look_is_under_way_is_answered_by_the_next() -> None:
    asked: list[bool] = []

    def new_files(book: Any, position: int, waits: bool, to_end: bool) -> list[Any]:
        asked.append(waits)
        if len(asked) == 1:
            listing.refresh()
        if len(asked) == 2:
            raise OSError
        return []

    path: Any = SimpleNamespace(path="s3a://lake/in", new_files=new_files, is_waited_for=False, give_up=lambda: None)
    listing, book = objects.ObjectListing([path]), ledgers.LedgerBook("bytes")
    for answers in (True, False, True, True):
        with contextlib.nullcontext() if answers else pytest.raises(OSError):
            listing.new_files(book, 1)
        if not answers:
            listing.give_up()
    assert asked == [True, True, True, False]


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A path whose store lists what a generator gives, called with the name to begin after."""

    def make(pages: Any) -> objects.ObjectPath:
        monkeypatch.setattr(storage, "storage_for", lambda _: SimpleNamespace(lists_after=True))
        monkeypatch.setattr(storage, "pages", lambda _folder, after, _deep: pages(after))
        monkeypatch.setattr(storage, "stat_file", lambda _: None)
        return objects.ObjectPath("s3a://lake/in", 3600, 60, lambda _: False, lambda *_: None, step_objects=1)

    return make


def page(*names: str) -> list[tuple[str, storage.Stat]]:
    return [(name, storage.Stat(1, 1, True, False, (name, 1))) for name in names]


def test_a_listing_that_was_asked_for_is_waited_for_to_its_end(listed: Any) -> None:
    """Who has all that is there processed asks once, and takes a look without new files for the end."""

    def pages(after: str) -> Iterator[Any]:
        yield page("a")
        goes_on.wait(20)
        if broken:
            raise OSError(broken.pop())
        time.sleep(0.3)
        yield page("b")

    def look(position: int) -> list[str]:
        return [file.path[-1] for file in listing.new_files(book, position)]

    broken, goes_on = ["no"], threading.Event()
    listing, book = objects.ObjectListing([listed(pages)]), ledgers.LedgerBook("bytes")
    listing.refresh()
    assert look(1) == ["a"]
    book.apply(b'{"ledger": "trident-files", "schema": 1, "unit": "bytes"}')
    book.apply(b'{"n": 1, "path": "s3a://lake/in/a", "size": 1, "mtime_ns": 1, "rows": null, "tag": "a"}')
    assert look(1) == [], "a file that waits is not held up"
    goes_on.set()
    with pytest.raises(OSError):
        look(2)
    listing.give_up()
    assert look(2) == ["b"]


def test_a_step_ends_long_before_it_counts_as_without_an_answer(listed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with few files is listed with all that is in the folders below it."""
    clock = [0.0]

    def pages(after: str) -> Iterator[Any]:
        for _ in range(5):
            clock[0] += 50.0
            yield page()
        yield page("a")

    path = listed(pages)
    monkeypatch.setattr(objects, "time", SimpleNamespace(monotonic=lambda: clock[0], time_ns=time.time_ns))
    listing = objects._Pass(path.folder, "", False, 1)
    assert listing.step(True) == [] and listing.pages_seen < 4 and not listing.ended


def test_only_a_path_that_was_listed_once_is_listed_behind_its_last_name(listed: Any) -> None:
    asked, goes_on = list[str](), threading.Event()

    def pages(after: str) -> Iterator[Any]:
        asked.append(after)
        if after:
            time.sleep(0.1)
            yield from [page(), page()]
            return
        yield page("a")
        goes_on.wait(20)
        yield page("b")

    path, book = listed(pages), ledgers.LedgerBook("bytes")
    deadline = time.monotonic() + 20
    while not path.new_files(book, 1, False) and time.monotonic() < deadline:
        pass
    assert path.new_files(book, 1, False) == [] and asked == [""], "the whole listing is under way"
    goes_on.set()
    while path.new_files(book, 1, False) != [] or len(asked) < 2 and time.monotonic() < deadline:
        pass
    while path._tail is not None and time.monotonic() < deadline:
        path.new_files(book, 1, False)
    assert asked == ["", "b"]
    for _ in range(3):
        path.new_files(book, 1, False)
    assert asked == ["", "b"], "pages without anything new are not listed again at once"


def test_a_name_that_is_an_object_and_a_folder_is_the_folder(behind: store_servers.Proxy, plan: Any) -> None:
    folder = f"s3a://source/{uuid.uuid4().hex}"
    put(folder, "in/below/a", "1\n")
    storage.write(f"{folder}/in", b"by mistake\n")
    assert taken(plan(f"{folder}/in")) == []
    put(folder, "in/b", "1\n")
    assert taken(plan(f"{folder}/in")) == ["b"]


def test_a_bucket_is_a_folder(behind: store_servers.Proxy, plan: Any) -> None:
    name = uuid.uuid4().hex
    put("s3a://source", name, "1\n")
    assert name in taken(plan("s3a://source"))


def test_a_listing_that_has_no_answer_is_an_error_and_begins_anew(
    behind: store_servers.Proxy, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"s3a://source/{uuid.uuid4().hex}"
    put(folder, "a", "1\n")
    run = plan(folder)
    monkeypatch.setattr(objects, "ANSWER_SECS", 0.05)
    behind.delay_secs = 1.0
    with pytest.raises(SourceError, match="has no answer"):
        taken(run)
    behind.delay_secs = 0.0
    monkeypatch.setattr(objects, "ANSWER_SECS", 60.0)
    assert taken(run) == ["a"]


def test_a_store_that_refuses_is_an_error_that_names_the_path(behind: store_servers.Proxy, plan: Any) -> None:
    folder = f"s3a://source/{uuid.uuid4().hex}"
    put(folder, "a", "1\n")
    run = plan(folder)
    behind.answers = {"GET": (403, "AccessDenied")}
    with pytest.raises(SourceError, match="s3a://source.*AccessDenied"):
        taken(run)
    behind.answers = {}
    assert taken(run) == ["a"]


def test_objects_that_were_not_put_into_the_ledger_are_found_again(
    inputs: str, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(inputs, "a", "1\n")
    run = plan(inputs, remember_secs=0)
    with monkeypatch.context() as broken:
        broken.setattr(file_spout, "check_readable", lambda *_: (_ for _ in ()).throw(SourceError("no")))
        with pytest.raises(SourceError, match="no"):
            taken(run)
    assert taken(run) == ["a"]


# --- forgetting -------------------------------------------------------------------------------------


@pytest.fixture
def forgetful(plan: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that forgets files as soon as it may: segments of three files, and batches that few later ones need."""
    for owner, name in ((file_spout, "SEGMENT_FILES"), (file_spout, "STEP_OBJECTS"), (object_storage, "_PAGE")):
        monkeypatch.setattr(owner, name, 3)
    monkeypatch.setattr("trident.states.core.hdfs_storage._PAGE", 3)
    monkeypatch.setattr("trident.spouts.ranged._REMEMBERED", 2)

    def make(path: str, **more: Any) -> Run:
        return plan(path, full_listing_secs=0, min_rows=1, max_rows=1, **{"remember_secs": 1, **more})

    return make


def read_and_forgotten(run: Run, folder: str, names: str) -> list[str]:
    """Each object is a batch; a whole listing that began a second after they were written lets most be forgotten."""
    for name in names:
        put(folder, name, "1\n")
    found = taken(run)
    assert len(run.coordinator._ledger.book) >= len(names)
    deadline = time.monotonic() + 20
    while len(run.coordinator._ledger.book.entries) > 6 and time.monotonic() < deadline:
        assert taken(run) == []
    return found


def test_files_that_were_read_are_forgotten_and_never_read_again(inputs: str, forgetful: Any) -> None:
    run = forgetful(inputs)
    names = "mnopabcdefzyxw"
    assert sorted(read_and_forgotten(run, inputs, names)) == sorted(names)
    book = run.coordinator._ledger.book
    assert len(book) == len(names) and len(book.entries) <= 6 and len(book.numbers) == len(book.entries)
    files = [path.name for path in run.context.state_folder.iterdir()]
    assert len(files) <= 4 and "files-life.jsonl" not in files, "their segments are deleted"
    again(run)
    assert taken(run) == []
    for name in "gqm":  # m was there: it is written anew
        put(inputs, name, "2\n")
    assert sorted(taken(run)) == ["g", "m", "q"] and taken(run) == []


def test_the_emitter_of_a_process_follows_a_ledger_that_forgets(inputs: str, forgetful: Any) -> None:
    run = forgetful(inputs)
    reader = run.spout.open_ledger(run.context)
    read_and_forgotten(run, inputs, "abcdefghij")
    assert reader.book.first_number == 1 < run.coordinator._ledger.book.first_number
    last = run.pins[max(run.pins)]
    reader.check(last["to"][0] - 1, last["file"])
    assert reader.book.digest == run.coordinator._ledger.book.digest
    with pytest.raises(PositionLost, match="has forgotten a file.*expected: file 1.*remember_secs"):
        list(ledgers.ranges(reader.book, ledgers.Position(1, 0), ledgers.Position(3, 0)))


def test_more_old_objects_than_were_forgotten_are_an_error(inputs: str, forgetful: Any) -> None:
    run = forgetful(inputs)
    read_and_forgotten(run, inputs, "abcdefghij")
    ledger = run.coordinator._ledger
    ((path, mark),) = ledger.book.marks.items()
    put(inputs, "new", "1\n")
    # As of a file that is moved in with its old time, or of an upload that took too long.
    ledger.forget(1, {path: mark._replace(floor=time.time_ns())})
    again(run)
    with pytest.raises(SourceError, match=r"older than those that were read.*expected: at most \d+"):
        taken(run)


def test_files_that_another_process_has_forgotten_are_not_taken_for_too_old(listed: Any) -> None:
    """Nor are those of which this one did not know whether it has forgotten them: the answer was lost."""
    names: list[str] = []
    path, book = listed(lambda after: iter([page(*names)])), ledgers.LedgerBook("bytes")
    assert path.new_files(book, 1, True) == []
    book.marks[path.path], names[:] = ledgers.Mark(5, files=2), "ab"
    for _ in range(2):
        assert path.new_files(book, 1, True) == []
    names[:] = "abc"
    with pytest.raises(SourceError, match="found: 3 objects.*expected: at most 2"):
        path.new_files(book, 1, True)


def test_a_path_that_overlaps_one_whose_files_are_forgotten_is_refused(inputs: str, forgetful: Any) -> None:
    run = forgetful(inputs)
    read_and_forgotten(run, inputs, "abcdefghij")
    run.spout = FileSpout(f"{inputs}/*")
    with pytest.raises(IdentityMismatch, match="would be read again"):
        again(run)


def test_a_ledger_that_was_used_by_two_has_each_number_once(inputs: str, forgetful: Any) -> None:
    """The old leader's, that wakes up behind several segments, and the new one's."""
    run = forgetful(inputs)
    zombie = run.spout.open_ledger(run.context)
    read_and_forgotten(run, inputs, "abcdefgh")
    behind = run.spout.open_ledger(run.context)
    zombie.append([ledgers.FoundFile("s3a://lake/late", 1, 1, tag="t")])  # to a segment that is deleted
    true = run.coordinator._ledger.book.digest
    assert run.spout.open_ledger(run.context).book.digest == true
    (added,) = behind.append([ledgers.FoundFile("s3a://lake/late", 1, 1, tag="t")])
    assert added.number == 9 and run.spout.open_ledger(run.context).book.digest == behind.book.digest != true


def test_an_object_that_is_uploaded_again_as_it_was_is_remembered_by_its_new_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tag is the same: nothing has changed. It would be new to marks of its first time."""
    now, hour, url = time.time_ns(), 3600 * 10**9, "s3a://lake/in"
    ledger = ledgers.FileLedger(Place(tmp_path / "l"), "bytes")
    (entry,) = ledger.append([ledgers.FoundFile(f"{url}/a", 1, now - hour, tag="t")])
    listed, may_answer = [now], threading.Event()

    def pages(*_: Any) -> Any:
        may_answer.wait(20)
        yield [("a", storage.Stat(1, listed[0], True, False, ("t", 1)))]

    real, store = storage.storage_for, SimpleNamespace(lists_after=True)
    monkeypatch.setattr(storage, "storage_for", lambda place: store if str(place).startswith(url) else real(place))
    monkeypatch.setattr(storage, "stat_file", lambda _: None)
    monkeypatch.setattr(storage, "pages", pages)

    def looked(waits: bool) -> objects.ObjectPath:
        path = objects.ObjectPath(url, 0, 60, lambda _: False, lambda *_: None)
        assert path.new_files(ledger.book, 2, waits) == []
        return path

    ledger.forget(1, {url: ledgers.Mark(now - hour)})  # by another process, which has listed it
    assert not looked(False).forgets(entry), "it is not listed yet, and may have another time"
    may_answer.set()
    assert not looked(True).forgets(entry)
    listed[0] = now - hour
    assert looked(True).forgets(entry)


def test_what_a_restart_replays_is_not_forgotten_before(inputs: str, forgetful: Any) -> None:
    run = forgetful(inputs, remember_secs=3600)
    for name in "abcdefghi":
        put(inputs, name, "1\n")
    assert len(taken(run)) == 9 and run.coordinator._ledger.book.first_number == 1
    run.spout.remember_secs = 1
    again(run)  # transactions 6 to 9 were in flight
    assert not eventually(lambda: run.coordinator.backlog() is None, 2)
    pin = run.pins[6]
    assert run.coordinator.initialize_transaction(6, run.pins[5], pin) == pin
    run.coordinator.backlog()
    begin, end = ledgers.Position(*pin["from"]), ledgers.Position(*pin["to"])
    assert [part.entry.number for part in ledgers.ranges(run.coordinator._ledger.book, begin, end)] == [6]


def test_a_coordinator_whose_ledger_was_opened_anew_plans_by_it(inputs: str, forgetful: Any) -> None:
    run = forgetful(inputs)
    put(inputs, "a", "1\n")
    taken(run)
    late = run.spout.get_coordinator(run.context)
    read_and_forgotten(run, inputs, "bcdefghij")
    late.resume(max(run.pins), run.pins[max(run.pins)])
    run.coordinator = late
    assert taken(run) == [] and len(late._ledger.book) == 10


def test_a_path_that_is_added_and_overlaps_one_whose_files_are_forgotten_is_refused(
    inputs: str, forgetful: Any
) -> None:
    run = forgetful(inputs)
    read_and_forgotten(run, inputs, "abcdefghij")
    run.spout = FileSpout([inputs, f"{inputs}/*"], remember_secs=1)
    with pytest.raises(IdentityMismatch, match="would be read again"):
        again(run)


def test_a_coordinator_that_is_closed_ends_its_listings(inputs: str, forgetful: Any) -> None:
    for name in "abcdefgh":
        put(inputs, name, "1\n")

    def listings() -> int:
        return sum(thread.name.startswith("trident-listing") for thread in threading.enumerate())

    before, run = listings(), forgetful(inputs)
    while not run.ready():
        pass
    assert run.coordinator._objects._paths[inputs]._whole is not None, "under way"
    run.coordinator.close()
    assert eventually(lambda: listings() <= before)


@pytest.mark.parametrize("pattern, first, later", [("/**", "a/x", "a-b"), ("", "ü", "a")])
def test_names_that_a_listing_gives_in_another_order_are_not_taken_for_listed(
    monkeypatch: pytest.MonkeyPatch, pattern: str, first: str, later: str
) -> None:
    """As HDFS lists: what is in a folder where the folder comes, and names as rows of signed bytes."""
    store = SimpleNamespace(lists_after=False)
    pages = [[(name, storage.Stat(1, 1, True, False, (name, 1)))] for name in (first, later)]
    monkeypatch.setattr(storage, "storage_for", lambda _: store)
    monkeypatch.setattr(storage, "pages", lambda *_: iter(pages))
    monkeypatch.setattr(storage, "stat_file", lambda _: None)
    path = objects.ObjectPath(f"hdfs://lake/in{pattern}", 3600, 1, lambda _: False, lambda *_: None, step_objects=1)
    book = ledgers.LedgerBook("bytes")
    (found,) = path.new_files(book, 1, True)
    assert found.path == f"hdfs://lake/in/{first}" and path.reached is not None
    assert not path.reached.knows(later, 1)


# --- arguments --------------------------------------------------------------------------------------


def test_paths_of_two_kinds_and_moved_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="two kinds"):
        FileSpout(["s3a://lake/in", tmp_path])
    with pytest.raises(TopologyError, match="moved_from"):
        FileSpout("s3a://lake/in", moved_from="s3a://lake/old")
    with pytest.raises(TopologyError, match="s3a://BUCKET/PREFIX"):
        FileSpout("s3://lake/in")
