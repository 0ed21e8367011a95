"""What the storage promises to all that is written by it, on the local file system."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trident.coordinators.stored_json import Unreadable
from trident.states.core import storage
from trident.states.core.local_storage import NotAllDeleted


@pytest.fixture
def flushed(monkeypatch) -> list[str]:
    """Names of what was flushed, in order."""
    names: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (names.append(os.readlink(f"/proc/self/fd/{handle}")), fsync(handle))[1]
    )
    return names


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
