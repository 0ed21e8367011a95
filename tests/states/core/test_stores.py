"""The promises of a storage, kept by a local disk, S3 (moto) and HDFS: the real ones, by the same tests.

HDFS takes part in ``make stores`` only: a name node and two data nodes take half a minute to start beside other tests.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers import store_servers
from trident.coordinators.errors import TableError
from trident.states.core import storage
from trident.states.core.remote_files import store_settings

STORES = ["local", "s3", *(["hdfs"] if os.environ.get("TRIDENT_STORES") else [])]


@pytest.fixture(params=STORES)
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


def test_it_is_found_to_let_one_writer_win(root: str) -> None:
    assert storage.is_exclusive(root) and storage.list_names(root) == []


def test_names_below_a_folder(root: str) -> None:
    storage.make_folder(f"{root}/t/p=a b/c%20d", root)
    for name in ("t/p=a b/x", "t/p=a b/c%20d/ü", "t/y"):
        storage.create(f"{root}/{name}", b"1")
    assert sorted(storage.list_names(f"{root}/t")) == ["p=a b", "y"]
    assert storage.list_names(f"{root}/t/p=a b/c%20d") == ["ü"] and storage.list_names(f"{root}/nothing") == []
    assert storage.stat(f"{root}/t/p=a b").is_folder and storage.stat(f"{root}/t/y").is_file
    assert storage.delete(f"{root}/t") and storage.stat(f"{root}/t") is None and not storage.delete(f"{root}/t")


def test_files_are_listed_from_a_name_on_and_in_the_order_of_their_names_where_it_is_said(root: str) -> None:
    for name in ("b", "a", "c/d", "ü", "z"):
        storage.make_folder(f"{root}/t/{name}".rpartition("/")[0], root)
        storage.write(f"{root}/t/{name}", name.encode())
    found = [one for page in storage.pages(f"{root}/t") for one in page]
    further = [name for page in storage.pages(f"{root}/t", "b") for name, _ in page]
    as_given = list if storage.storage_for(root).lists_after else sorted
    assert as_given(name for name, _ in found) == ["a", "b", "z", "ü"] and as_given(further) == ["z", "ü"]
    assert sorted(name for page in storage.pages(f"{root}/t", deep=True) for name, _ in page) == sorted(
        ["a", "b", "c/d", "z", "ü"]
    )
    data, stat = storage.fetch(f"{root}/t/b")
    assert data == b"b" and stat.signature == dict(found)["b"].signature == storage.stat(f"{root}/t/b").signature


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


def test_two_appenders_with_one_end_in_view_do_not_both_append(root: str) -> None:
    path = f"{root}/ledger"
    with storage.append(path) as one:
        one.write(b"one\n")
    if store_servers.is_local(root):
        return  # there the second waits for the first
    with storage.append(path) as one, storage.append(path) as other:
        one.write(b"two\n")
        assert one.size == other.size == 8
        end = other.size
        one.write(b"three\n")
        with pytest.raises(FileExistsError):
            storage.create(f"{path}/{end:020d}", b"four\n")  # the part that a writer makes that saw eight bytes
        assert other.read(0) == b"one\ntwo\nthree\n"
        storage.delete(f"{path}/{4:020d}")
        with pytest.raises(OSError, match="a part is missing"):
            other.read(0)


# --- HDFS alone -------------------------------------------------------------------------------------


@pytest.fixture
def on_hdfs() -> Iterator[tuple[Any, str]]:
    """The storage, and a folder of its own."""
    if "hdfs" not in STORES:
        pytest.skip("make stores runs it (TRIDENT_STORES=all)")
    folder = f"{store_servers.running('hdfs')}/{uuid.uuid4().hex[:8]}"
    storage.make_folder(folder, folder.rpartition("/")[0].rpartition("/")[0])
    yield storage.storage_for(folder), folder
    storage.delete(folder)


def test_a_rename_that_was_not_answered_is_ours_by_its_bytes_alone(on_hdfs: tuple[Any, str]) -> None:
    """An entry of the same length and the same millisecond is another's, if its bytes are."""
    hdfs, folder = on_hdfs
    entry, draft = f"{folder}/0.json", f"{folder}/.draft"
    own = hdfs.take(entry, b"ours 1")
    hdfs._rename_to(draft, entry, own, b"ours 1")  # as where a request is sent again behind one that was done
    with pytest.raises(FileNotFoundError):
        hdfs._rename_to(draft, entry, own, b"theirs")
    hdfs.create(draft, b"theirs")
    with pytest.raises(FileExistsError):
        hdfs._rename_to(draft, entry, own, b"ours 1")
    assert storage.read(entry) == b"ours 1" and storage.read(draft) == b"theirs"


class LostRename:
    """Stands in the place of the client's rename: once it raises as where the connection ends.

    Attributes:
        asked: what the client was asked for.
    """

    def __init__(self, hdfs: Any, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
        self.asked: tuple[str, str] | None = None
        rename = hdfs._client.rename

        def lost(source: str, target: str, overwrite: bool = False) -> None:
            if self.asked is not None:
                rename(source, target, overwrite)
                return
            self.asked = source, target
            if done:
                rename(source, target, overwrite)
            raise OSError("Connection reset by peer (os error 104)")

        monkeypatch.setattr(hdfs._client, "rename", lost)


def test_a_rename_that_was_done_and_not_answered_is_a_success(on_hdfs, monkeypatch):
    hdfs, folder = on_hdfs
    entry = f"{folder}/0.json"
    lost = LostRename(hdfs, monkeypatch, done=True)
    own = hdfs.take(entry, b"ours")
    assert lost.asked is not None and own == storage.stat(entry).signature and storage.read(entry) == b"ours"
    with pytest.raises(FileExistsError):
        storage.create(entry, b"another's")
    assert storage.read(entry) == b"ours" and storage.list_names(folder) == ["0.json"], "no draft is left"


def test_a_rename_that_never_came_fails_and_comes_too_late_afterwards(on_hdfs, monkeypatch):
    hdfs, folder = on_hdfs
    entry = f"{folder}/0.json"
    lost = LostRename(hdfs, monkeypatch, done=False)
    with pytest.raises(OSError, match="Connection reset") as raised:
        storage.create(entry, b"ours")
    assert type(raised.value) is OSError, "it certainly did not happen"
    assert storage.list_names(folder) == [], "no draft is left"
    assert lost.asked is not None
    with pytest.raises(FileNotFoundError):
        hdfs._client.rename(*lost.asked)  # the request was under way
    storage.create(entry, b"the next attempt's")
    assert storage.read(entry) == b"the next attempt's" and storage.list_names(folder) == ["0.json"]


@pytest.mark.parametrize("done", [False, True])
def test_a_rename_behind_which_no_request_is_answered_is_unknown(on_hdfs, monkeypatch, done):
    hdfs, folder = on_hdfs

    def unanswered(*_: object, **__: object) -> bool:
        raise OSError("Connection refused (os error 111)")

    with monkeypatch.context() as away:
        LostRename(hdfs, away, done)
        away.setattr(hdfs._client, "delete", unanswered)
        with pytest.raises(storage.OutcomeUnknown, match="Connection reset.*; then Connection refused"):
            storage.create(f"{folder}/0.json", b"ours")
    assert storage.exists(f"{folder}/0.json") == done


def test_a_process_that_a_folder_keeps_out_is_told_that_the_store_refuses_it(on_hdfs: tuple[Any, str]) -> None:
    """The name node's own AccessControlException, whatever is asked for."""
    hdfs, folder = on_hdfs
    storage.write(f"{folder}/a", b"1")
    hdfs._client.set_permission(hdfs._at(folder), 0o700)
    asks = (
        "import json, sys\n"
        "from trident.states.core import storage\n"
        "from trident.states.core.storage import store_problem\n"
        "folder, told = sys.argv[1], {}\n"
        "for name, call in {\n"
        "    'read': lambda: storage.read(f'{folder}/a'),\n"
        "    'input': lambda: storage.input(f'{folder}/a'),\n"
        "    'stat': lambda: storage.stat(f'{folder}/a'),\n"
        "    'list': lambda: storage.list_names(folder),\n"
        "    'write': lambda: storage.write(f'{folder}/a', b'2'),\n"
        "    'create': lambda: storage.create(f'{folder}/b', b'2'),\n"
        "    'output': lambda: storage.output(f'{folder}/b'),\n"
        "    'make folder': lambda: storage.make_folder(f'{folder}/b', folder),\n"
        "    'make warehouse': lambda: storage.make_warehouse(f'{folder}/w'),\n"
        "    'delete': lambda: storage.delete(f'{folder}/a'),\n"
        "}.items():\n"
        "    try:\n"
        "        told[name] = ['nothing', str(call())]\n"
        "    except OSError as error:\n"
        "        told[name] = [type(error).__name__, str(store_problem(error, folder))]\n"
        "print(json.dumps(told))\n"
    )
    environment = {**os.environ, "HADOOP_USER_NAME": "stranger"}
    asked = subprocess.run([sys.executable, "-c", asks, folder], env=environment, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    told = json.loads(asked.stdout)
    assert {name: kind for name, (kind, _) in told.items()} == dict.fromkeys(told, "PermissionError"), told
    for _, problem in told.values():
        assert "the store refuses this process" in problem and "AccessControlException" in problem
        assert "stranger" in problem and "\n" not in problem
    assert storage.read(f"{folder}/a") == b"1" and storage.list_names(folder) == ["a"]


def test_a_process_that_dies_while_it_appends_leaves_no_part(on_hdfs: tuple[Any, str]) -> None:
    """A part that has its name before it is whole would keep all others from appending."""
    hdfs, folder = on_hdfs
    path = f"{folder}/ledger"
    with storage.append(path) as file:
        file.write(b"one\n")
    dies = (
        "import os, sys; from hdfs_native import Client, FileWriter; from trident.states.core import storage\n"
        "write = FileWriter.write\n"
        "FileWriter.write = lambda self, data: (write(self, data), os._exit(9))\n"
        "with storage.append(sys.argv[1]) as file:\n    file.write(b'lost')\n"
    )
    assert subprocess.run([sys.executable, "-c", dies, path]).returncode == 9
    with storage.append(path) as file:
        assert file.size == 4
        file.write(b"two\n")
        assert file.read(0) == b"one\ntwo\n"


# --- S3 alone ---------------------------------------------------------------------------------------


@pytest.fixture
def proxy() -> Iterator[store_servers.Proxy]:
    """Before the S3 server; its bucket is ``s3a://behind``."""
    with store_servers.before_bucket("behind") as proxy:
        yield proxy


@pytest.mark.parametrize("call", ["create", "claim"])
def test_a_name_whose_taking_was_not_answered_is_looked_at(proxy, call, tmp_path):
    path = f"s3a://behind/{uuid.uuid4().hex}/0.json"
    (tmp_path / "draft").write_bytes(b"mine")
    proxy.loses_answers = 1
    if call == "create":
        storage.create(path, b"mine")
    else:
        with storage.hold(path.rpartition("/")[0]) as folder:
            assert folder.claim(tmp_path / "draft", "0.json") == folder.stat("0.json").signature
    assert storage.read(path) == b"mine" and proxy.loses_answers == 0
    proxy.loses_answers = 1
    with pytest.raises(FileExistsError):
        storage.create(path, b"another's")
    assert storage.read(path) == b"mine"
    assert len([each for each in proxy.requests if each[0] == "PUT"]) == 2, "each was sent once"


def test_a_store_that_lets_two_writers_win_is_found_out(proxy: store_servers.Proxy) -> None:
    proxy.ignores_conditions = True
    assert not storage.is_exclusive("s3a://behind/w")
    assert storage.list_names("s3a://behind/w") == []


def test_settings_of_one_bucket_count_more() -> None:
    given = {"fs.s3a.endpoint": "http://all", "fs.s3a.bucket.lake.endpoint": "http://lakes", "fs.s3a.access.key": "a"}
    assert store_settings(given, "lake").options == {"endpoint": "http://lakes", "access_key_id": "a"}
    assert store_settings(given, "pond").options["endpoint"] == "http://all"
    assert "access_key_id" not in repr(store_settings(given, "lake")), "credentials are not shown"


def test_hadoops_markers_of_folders_are_no_objects() -> None:
    endpoint, name = store_servers.s3_endpoint(), uuid.uuid4().hex
    store_servers.running("s3")
    made = urllib.request.Request(f"{endpoint}/lake/{name}/log/", method="PUT", headers={"Authorization": "AWS a/b"})
    urllib.request.urlopen(made, timeout=5)
    assert storage.stat(f"s3a://lake/{name}") is None and storage.stat(f"s3a://lake/{name}/log") is None
    storage.write(f"s3a://lake/{name}/log/0", b"")
    assert storage.stat(f"s3a://lake/{name}").is_folder
    assert storage.delete(f"s3a://lake/{name}") and storage.stat(f"s3a://lake/{name}") is None


def test_a_bucket_that_is_not_there_is_no_missing_file() -> None:
    storage.configure("s3a://none", store_servers.s3_settings(store_servers.s3_endpoint()))
    for call in (storage.read, storage.list_names, lambda path: storage.write(path, b"")):
        with pytest.raises(OSError, match="the bucket does not exist") as raised:
            call("s3a://none/a")
        assert raised.value.errno == errno.ENODEV


@pytest.mark.parametrize(
    ("url", "module", "extra"), [("s3a://x/a", "obstore", "s3"), ("hdfs://x/a", "hdfs_native", "hdfs")]
)
def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch, url, module, extra):
    ours = f"trident.states.core.{'object' if extra == 's3' else 'hdfs'}_storage"
    for name in [each for each in sys.modules if each == ours or each.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TableError, match=rf"(?i)pip install 'trident-spark\[{extra}\]'"):
        storage.stat(url)


def test_a_store_of_another_kind_is_refused() -> None:
    with pytest.raises(TableError, match="cannot keep files on gs://x"):
        storage.read("gs://x/a")
