"""What the storage promises to all that is written by it, on the local file system."""

from __future__ import annotations

import io
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.coordinators.errors import ConfigError
from trident.coordinators.stored_json import Unreadable
from trident.states.core import storage
from trident.states.core.addresses import check_server_url, is_this_host, without_credentials
from trident.states.core.local_storage import NotAllDeleted
from trident.states.core.remote_files import AppendedParts, RangedFile


def test_a_file_is_written_as_a_whole_durably_and_leaves_no_draft(tmp_path: Path, flushed: list[str]) -> None:
    for text in (b"old", b"new"):
        storage.write(tmp_path / "a", text)
        assert storage.read(tmp_path / "a") == text and os.listdir(tmp_path) == ["a"]
    draft, folder = flushed[-2:]
    assert Path(draft).name.startswith(".a.") and folder == str(tmp_path), "the bytes, then the name"
    flushed.clear()
    storage.write(tmp_path / "a", b"status", durable=False)
    assert flushed == [] and storage.read(tmp_path / "a", 3) == b"tus"


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch) -> None:
    storage.write(tmp_path / "a", b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for call in ("fsync", "replace"):
        monkeypatch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space"):
            storage.write(tmp_path / "a", b"new")
        monkeypatch.undo()
        assert storage.read(tmp_path / "a") == b"old" and os.listdir(tmp_path) == ["a"]


def test_one_of_many_creates_a_file_and_all_of_it_is_durable(tmp_path: Path, flushed: list[str]) -> None:
    begin = threading.Barrier(8)

    def create(number: int) -> int | None:
        begin.wait()
        try:
            storage.create(tmp_path / "a", str(number).encode())
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        won = [number for number in pool.map(create, range(8)) if number is not None]
    assert len(won) == 1 and storage.read(tmp_path / "a") == str(won[0]).encode()
    assert flushed == [str(tmp_path / "a"), str(tmp_path)]


def test_what_a_task_writes_piece_by_piece_is_durable_once_it_is_closed(tmp_path: Path, flushed: list[str]) -> None:
    file = storage.output(tmp_path / "a")
    file.write(b"one ")
    file.write(b"two")
    assert flushed == []
    file.close()
    assert flushed == [str(tmp_path / "a")] and storage.read(tmp_path / "a") == b"one two"
    with pytest.raises(FileExistsError):
        storage.output(tmp_path / "a")
    flushed.clear()
    with storage.output(tmp_path / "b", durable=False) as file:
        file.write(b"for a moment")
    assert flushed == [] and storage.read(tmp_path / "b") == b"for a moment"


def test_one_appends_at_a_time_and_a_torn_end_can_be_cut_off(tmp_path: Path, flushed: list[str]) -> None:
    def append(number: int) -> None:
        with storage.append(tmp_path / "a") as file:
            before = file.size
            file.write(f"{number} {before}\n".encode())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(10, 30)))
    lines = storage.read(tmp_path / "a").splitlines(keepends=True)
    sizes = [int(line.split()[1]) for line in lines]
    assert sizes == [sum(map(len, lines[:count])) for count in range(20)], "nobody else wrote between look and write"
    assert flushed[:2] == [str(tmp_path / "a"), str(tmp_path)] and flushed.count(str(tmp_path)) == 1
    with storage.append(tmp_path / "a") as file:
        file.cut(len(lines[0]))
        assert file.read(2) == lines[0][2:]


def test_what_is_there_is_told_without_an_error_where_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"four")
    os.mkfifo(tmp_path / "fifo")
    told = storage.stat(tmp_path / "file")
    assert told is not None and (told.size, told.is_file, told.is_folder) == (4, True, False)
    assert told.mtime_ns == (tmp_path / "file").stat().st_mtime_ns
    fifo = storage.stat(tmp_path / "fifo")
    assert fifo is not None and not fifo.is_file and not fifo.is_folder
    assert storage.stat(tmp_path / "none") is None and storage.stat(tmp_path / "file" / "below") is None
    assert storage.is_folder(tmp_path) and not storage.is_folder(tmp_path / "file")
    assert sorted(storage.list_names(tmp_path)) == ["fifo", "file"] and storage.list_names(tmp_path / "none") == []
    with pytest.raises(Unreadable, match="FIFO"):
        storage.read(tmp_path / "fifo")
    with pytest.raises(FileNotFoundError):
        storage.read(tmp_path / "none")


def test_a_folder_goes_with_all_that_is_in_it_and_a_link_without(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a").write_bytes(b"")
    (tmp_path / "gone" / "below").mkdir(parents=True)
    (tmp_path / "gone" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    assert [storage.delete(tmp_path / name) for name in ("gone", "link", "link", "none")] == [True, True, False, False]
    assert os.listdir(tmp_path) == ["kept"] and os.listdir(tmp_path / "kept") == ["a"]


def test_what_of_a_folder_could_not_be_deleted_is_told(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a").mkdir()

    def refuses(path, onerror) -> None:
        for name in ("x", "y"):
            onerror(None, f"{path}/{name}", (OSError, OSError(13, "Permission denied"), None))

    monkeypatch.setattr(shutil, "rmtree", refuses)
    with pytest.raises(NotAllDeleted, match=r"Permission denied: '.*/a/x'") as raised:
        storage.delete(tmp_path / "a")
    assert len(raised.value.problems) == 2 and raised.value.errno == 13
    storage.try_delete(tmp_path / "a")


def test_one_of_many_claims_a_name_in_a_folder_that_is_held(tmp_path: Path) -> None:
    drafts = [tmp_path / f"draft{number}" for number in range(8)]
    for draft in drafts:
        storage.write(draft, draft.name.encode())
    begin = threading.Barrier(8)

    def claim(draft: Path) -> Path | None:
        begin.wait()
        try:
            signature = folder.claim(draft, "a")
        except FileExistsError:
            return None
        assert signature == storage.stat(tmp_path / "a").signature
        return draft

    with storage.hold(tmp_path) as folder, ThreadPoolExecutor(8) as pool:
        (won,) = [draft for draft in pool.map(claim, drafts) if draft is not None]
        assert storage.read(tmp_path / "a") == won.name.encode() and set(folder.names()) > {"a", won.name}
        assert folder.stat("a").signature != folder.stat(f"draft{(drafts.index(won) + 1) % 8}").signature
        folder.rename("a", "b")
        assert folder.stat("a") is None and [folder.delete(name) for name in ("b", "b")] == [True, False]


def test_a_folder_that_is_held_is_not_the_one_that_takes_its_place(tmp_path: Path) -> None:
    place, draft = tmp_path / "place", tmp_path / "draft"
    place.mkdir()
    draft.write_bytes(b"")
    with storage.hold(place) as folder:
        place.rmdir()
        place.mkdir()
        (place / "other").write_bytes(b"")
        assert folder.names() == [] and folder.stat("other") is None
        with pytest.raises(FileNotFoundError):
            folder.claim(draft, "a")
    assert os.listdir(place) == ["other"]
    with pytest.raises(FileNotFoundError):
        storage.hold(tmp_path / "none")


def test_who_waited_for_a_lock_in_a_folder_that_was_made_anew_has_the_lock_there(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with ThreadPoolExecutor(1) as pool:
        with storage.lock(place / "lock", tmp_path):
            waiting = pool.submit(storage.lock, place / "lock", tmp_path)
            time.sleep(0.1)
            shutil.rmtree(place)
        with waiting.result(timeout=10), pytest.raises(storage.LockHeld, match="others hold the lock") as raised:
            storage.lock(place / "lock", tmp_path, shared=True, timeout_secs=0)
    assert raised.value.holder == f"process {os.getpid()}"
    with pytest.raises(FileNotFoundError, match="not made again"):
        storage.lock(tmp_path / "none" / "place" / "lock", tmp_path / "none")


def test_a_file_uri_is_a_path_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"x")
    assert storage.read(f"file://{tmp_path}/a%20b") == b"x"
    assert storage.join("s3a://lake/w/", "_trident", "x") == "s3a://lake/w/_trident/x"
    assert storage.anchor_of("s3a://lake/w/_trident/top/g") == "s3a://lake/w/_trident"


# --- the names in a folder --------------------------------------------------------------------------


def aged(folder: Path) -> None:
    """A folder whose last change is older than a tick of any file system's clock."""
    os.utime(folder, (1, 1))


def test_names_are_flushed_once_and_again_when_one_has_changed(tmp_path: Path, flushed: list[str]) -> None:
    for change in (lambda: None, (tmp_path / "a").mkdir, (tmp_path / "a").rmdir):
        change()
        storage.flush_names(tmp_path)
        aged(tmp_path)
        storage.flush_names(tmp_path)
        assert flushed == [str(tmp_path)] * 2, "the first time it had changed just now: two changes may have one time"
        storage.flush_names(tmp_path)
        assert flushed == [str(tmp_path)] * 2
        flushed.clear()


def test_a_folder_in_the_place_of_one_whose_names_were_flushed_is_flushed(tmp_path: Path, flushed: list[str]) -> None:
    folder = tmp_path / "folder"
    for _ in range(3):
        folder.mkdir()
        aged(folder)
        storage.flush_names(folder)
        folder.rename(tmp_path / f"{time.time_ns()}")  # its number is not given to the next
    assert len(flushed) == 3


def test_names_whose_flush_failed_are_flushed_again(tmp_path: Path, flushed: list[str], monkeypatch) -> None:
    aged(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            storage.flush_names(tmp_path)
    storage.flush_names(tmp_path)
    assert flushed == [str(tmp_path)]


# --- urls ------------------------------------------------------------------------------------------------
# URLs of servers: one, several, IPv6; and nothing of their credentials in a message.

EXPECTED = "postgresql://host/database"


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://me:secret@db/shop?password=secret", "postgresql://db/shop"),
        ("postgresql://me:secret@db1:5433,db2/shop", "postgresql://db1:5433,db2/shop"),
        ("postgresql://me:sec%40ret@[::1]:5433,db2:5434/shop", "postgresql://[::1]:5433,db2:5434/shop"),
        ("postgresql:///shop?host=/run/postgresql", "postgresql:///shop"),
    ],
)
def test_a_url_of_one_or_several_servers_is_shown_without_its_credentials(url: str, shown: str) -> None:
    check_server_url(url, "a test", ["postgresql"], EXPECTED, several=True)
    assert without_credentials(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db:port/shop",
        "postgresql://db1:1,db2:99999/shop",
        "mysql://db",
        None,
        3,
        "postgresql://me:pa@ss@db/shop",  # libpq ends the password at the first @, and tells the rest as a host
        "postgresql://me:12/3@db/shop",  # no user, and a path: to be shown as it is
    ],
)
def test_what_names_no_server_is_refused_without_being_shown(url: object) -> None:
    with pytest.raises(ConfigError, match="the url of a test cannot be used; expected: postgresql://host/database$"):
        check_server_url(url, "a test", ["postgresql"], EXPECTED, several=True)


def test_the_address_of_a_page_may_have_an_at_sign_in_its_path() -> None:
    check_server_url("https://api/@me/orders", "a test", ["https"], EXPECTED)


def test_a_client_of_one_server_is_given_one() -> None:
    check_server_url("redis://cache:6379/1", "a test", ["redis"], EXPECTED)
    with pytest.raises(ConfigError):
        check_server_url("redis://cache1:6379,cache2:6379/1", "a test", ["redis"], EXPECTED)


def test_one_of_several_servers_that_each_host_takes_for_its_own_is_enough() -> None:
    assert is_this_host("postgresql://db1,localhost:5432/shop")
    assert not is_this_host("postgresql://db1,db2:5432/shop")
    assert not is_this_host("//localhost:$PORT")


# --- ranges of a file ------------------------------------------------------------------------------------
# A file that is read range by range: as a file on a disk, however little a store gives at once.


@given(
    st.binary(max_size=60),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(-70, 70), st.integers(0, 2), st.integers(-1, 70))),
)
def test_it_is_read_as_a_file_is(data: bytes, most: int, reads: list[tuple[int, int, int]]) -> None:
    def read_range(start: int, count: int) -> bytes:
        assert 0 <= start < start + count <= len(data)
        return data[start : start + min(count, most)]

    file = io.BufferedReader(RangedFile(len(data), read_range), 8)
    known = io.BytesIO(data)
    for offset, whence, count in reads:
        place = max(0, offset + (0, known.tell(), len(data))[whence])
        assert file.seek(place) == known.seek(place)
        assert file.read(count) == known.read(count)


def test_a_store_that_gives_nothing_is_an_error_and_no_end() -> None:
    with pytest.raises(OSError, match="gave 0 of 5 bytes; expected: all of them"):
        RangedFile(5, lambda start, count: b"").readall()


def test_parts_are_read_side_by_side() -> None:
    """A ledger of files can have thousands, for each of which a store takes 30 ms: a take-over waits for them."""
    both = threading.Barrier(2)

    def read(path: str) -> bytes:
        both.wait(20)
        return b"ab"

    store: Any = SimpleNamespace(read=read, list=lambda _: [f"{at:020d}" for at in (2, 0)])
    assert AppendedParts(store, "s3a://lake/ledger").read(1) == b"bab"
