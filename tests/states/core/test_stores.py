"""What each storage promises: a local disk, HDFS and S3, the real ones, by the same tests."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import store_servers
from trident.states.core import storage


@pytest.fixture(params=["local", "s3", "hdfs"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder of its own in each store."""
    if request.param == "local":
        yield str(tmp_path)
        return
    base = store_servers.running(request.param)
    folder = f"{base}/{uuid.uuid4().hex[:8]}"
    storage.make_folder(folder, base.rpartition("/")[0])
    yield folder
    storage.delete(folder)


def test_a_file_is_what_was_written_last(root: str) -> None:
    path = f"{root}/a"
    assert storage.stat(path) is None and storage.list_names(root) == []
    for text in (b"old", b"newer", b""):
        storage.write(path, text)
        assert storage.read(path) == text and storage.stat(path).size == len(text)
    storage.write(path, b"status", durable=False)
    assert storage.read(path, 3) == b"tus" and storage.read(path, 9) == b""
    assert storage.list_names(root) == ["a"], "no draft is left"
    with pytest.raises(FileNotFoundError):
        storage.read(f"{root}/b")


def test_one_of_many_creates_a_file(root: str) -> None:
    for number in range(5):
        won: list[int] = []
        begin = threading.Barrier(6)

        def create(writer: int, number: int = number, won: list[int] = won, begin: threading.Barrier = begin) -> None:
            begin.wait()
            try:
                storage.create(f"{root}/entry-{number}", f"{writer}".encode() * 100)
                won.append(writer)
            except FileExistsError:
                pass

        threads = [threading.Thread(target=create, args=(each,)) for each in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [f"{each}".encode() * 100 for each in won] == [storage.read(f"{root}/entry-{number}")]


def test_names_below_a_folder(root: str) -> None:
    storage.make_folder(f"{root}/t/p=a b/c%20d", root)
    for name in ("t/p=a b/x", "t/p=a b/c%20d/ü", "t/y"):
        storage.create(f"{root}/{name}", b"1")
    assert sorted(storage.list_names(f"{root}/t")) == ["p=a b", "y"]
    assert storage.list_names(f"{root}/t/p=a b/c%20d") == ["ü"] and storage.list_names(f"{root}/nothing") == []
    assert storage.stat(f"{root}/t/p=a b").is_folder and storage.stat(f"{root}/t/y").is_file
    assert storage.delete(f"{root}/t") and storage.stat(f"{root}/t") is None and not storage.delete(f"{root}/t")


def test_parquet_goes_through_it_and_a_file_without_its_end_is_none(root: str) -> None:
    table = pa.table({"n": list(range(100_000))})
    with storage.output(f"{root}/rows.parquet") as file:
        pq.write_table(table, file)
    with storage.input(f"{root}/rows.parquet") as file:
        assert pq.ParquetFile(file).read().equals(table)
        file.seek(-4, 2)
        assert file.read() == b"PAR1"


def test_a_name_is_claimed_once_and_the_signature_tells(root: str) -> None:
    storage.make_folder(f"{root}/_delta_log", root)
    drafts = [storage.draft(f"{root}/_delta_log", f".{n}.tmp") for n in range(2)]
    for n, draft in enumerate(drafts):
        storage.create(draft, b"entry %d" % n)
    with storage.hold(f"{root}/_delta_log") as folder:
        own = folder.claim(drafts[0], "0.json")
        assert folder.stat("0.json").signature == own
        with pytest.raises(FileExistsError):
            folder.claim(drafts[1], "0.json")
        assert storage.read(f"{root}/_delta_log/0.json") == b"entry 0" and "0.json" in folder.names()
        assert folder.stat("1.json") is None
        assert folder.delete("0.json") and folder.stat("0.json") is None
    for draft in drafts:
        storage.delete(draft)


def test_a_file_is_appended_to_by_two(root: str) -> None:
    path = f"{root}/ledger"
    with storage.append(path) as file:
        assert file.size == 0
        file.write(b"one\n")
        file.write(b"two\n")
    with storage.append(path) as file:
        assert file.size == 8 and file.read(4) == b"two\n" and file.read(5) == b"wo\n"
        file.write(b"three\n")
        assert file.read(0) == b"one\ntwo\nthree\n"
