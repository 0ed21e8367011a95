"""Faults of a store's own requests, and what each call makes of them: the table in docs/faults.md, on S3 (moto).

A proxy before the server loses requests and answers, cuts bodies, and refuses.
"""

from __future__ import annotations

import random
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.servers import store_servers
from tests.servers.store_servers import CUT_ANSWER, CUT_BODY, LOSE_ANSWER, LOSE_REQUEST, Fault, Proxy
from trident.coordinators.errors import CommitConflict, StoreProblem, StoreUnreachable, TableError
from trident.spark.rows import FilesSlot
from trident.states.core import object_storage, storage
from trident.states.core.remote_files import store_settings
from trident.states.core.storage import store_problem_of
from trident.states.delta.log_commit import EntryMayBeLost, draft_of, publish_draft, remove_draft, write_draft

DATA = bytes(range(256)) * 1000
PASSING: list[Fault] = [LOSE_REQUEST, LOSE_ANSWER, CUT_BODY, CUT_ANSWER, (503, "SlowDown"), (500, "InternalError")]
REFUSALS = [
    ((403, "AccessDenied"), "the store refuses this process"),
    ((403, "RequestTimeTooSkewed"), "clock is too far from the store's"),
    ((404, "NoSuchBucket"), "the bucket does not exist"),
]


def some(faults: list[Fault], *kept: Fault) -> list[Any]:
    """Those that are not kept are long."""
    return [fault if fault in kept else pytest.param(fault, marks=pytest.mark.long) for fault in faults]


def hurry(monkeypatch: pytest.MonkeyPatch, timeout_secs: float, retry_secs: float) -> None:
    """Stores that are configured from now on are given up so soon, in place of 30 and 20 s."""

    def hurried(hadoop: Any, bucket: str = "") -> Any:
        return replace(store_settings(hadoop, bucket), timeout_secs=timeout_secs, retry_secs=retry_secs)

    monkeypatch.setattr(storage, "store_settings", hurried)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Before the S3 server; its bucket is ``s3a://faults``."""
    monkeypatch.setattr(object_storage, "_AGAIN_SECS", (0.01, 0.02))
    proxy = Proxy(store_servers.s3_endpoint())
    store_servers.make_bucket(proxy.endpoint, "faults")
    storage.configure("s3a://faults", store_servers.s3_settings(proxy.endpoint))
    yield proxy
    storage.configure("s3a://faults", {})
    proxy.end()


@pytest.fixture
def root() -> str:
    return f"s3a://faults/{uuid.uuid4().hex}"


@pytest.mark.parametrize("fault", PASSING, ids=str)
def test_what_passes_is_tried_again_and_nothing_is_cut(proxy: Proxy, root: str, fault: Fault) -> None:
    for call in (storage.write, storage.create):
        path = f"{root}/{call.__name__}"
        proxy.plan("PUT", fault)
        call(path, DATA)
        assert not proxy.planned["PUT"] and storage.read(path) == DATA
    for read in (lambda: storage.read(path), lambda: storage.read(path, 100), lambda: storage.input(path).read()):
        proxy.plan("GET", fault)
        assert DATA.endswith(read()) and not proxy.planned["GET"]
    with pytest.raises(FileExistsError):
        storage.create(path, b"another's")
    assert storage.read(path) == DATA


def test_a_file_is_read_whole_in_one_request(proxy: Proxy, root: str) -> None:
    storage.write(f"{root}/a", DATA)
    proxy.requests.clear()
    with storage.input(f"{root}/a") as file:
        assert file.read() == DATA
    assert [method for method, _ in proxy.requests] == ["HEAD", "GET"]


@pytest.mark.parametrize(("fault", "said"), REFUSALS, ids=["no permission", "clock skew", "no bucket"])
def test_a_refusal_is_told_at_once_and_nothing_happens(proxy: Proxy, root: str, fault: Fault, said: str) -> None:
    proxy.answers = {"PUT": fault, "GET": fault}  # type: ignore[dict-item]
    for call in (
        lambda: storage.write(f"{root}/a", DATA),
        lambda: storage.create(f"{root}/a", DATA),
        lambda: storage.read(f"{root}/a"),
        lambda: storage.list_names(root),
    ):
        proxy.requests.clear()
        with pytest.raises(OSError) as raised:
            call()
        problem = store_problem_of(raised.value)
        assert isinstance(problem, StoreProblem) and not isinstance(problem, StoreUnreachable)
        assert isinstance(raised.value, PermissionError) == (fault[0] == 403)  # type: ignore[index]
        assert not isinstance(raised.value, FileNotFoundError)
        assert said in str(problem) and f"{root}" in str(problem)
        assert len(proxy.requests) == 1, "a refusal is not asked for again"
    proxy.answers = {}
    assert not storage.exists(f"{root}/a")


# --- the entry of a table version -------------------------------------------------------------------


def commit(root: str, text: bytes) -> str:
    """Outcome of a commit of version 0, as a coordinator is told it."""
    draft = draft_of(root, 0)
    write_draft(root, 0, draft, text)
    try:
        publish_draft(root, 0, draft, None)
        return "committed"
    except CommitConflict:
        return "another's"
    except TableError:
        return "refused"
    except EntryMayBeLost:
        return "unknown"
    finally:
        remove_draft(draft)


ENTRY = "_delta_log/00000000000000000000.json"


@pytest.mark.parametrize("fault", PASSING, ids=str)
@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
def test_a_commit_without_an_answer_is_looked_at(proxy: Proxy, root: str, fault: Fault, taken: bool) -> None:
    if taken:
        assert commit(root, b"theirs") == "committed"
    proxy.plan("PUT", fault)
    assert commit(root, b"ours") == ("another's" if taken else "committed")
    assert storage.read(f"{root}/{ENTRY}") == (b"theirs" if taken else b"ours")
    proxy.plan("PUT", fault, fault)
    assert commit(f"{root}/again", b"ours") == "committed"


@pytest.mark.parametrize(("fault", "said"), REFUSALS, ids=["no permission", "clock skew", "no bucket"])
def test_a_commit_that_is_refused_behind_one_without_an_answer_is_not_called_refused(proxy, root, fault, said):
    """The first may still be under way: only a commit of which no request is open certainly did not happen."""
    proxy.plan("PUT", fault)
    assert commit(root, b"ours") == "refused"
    proxy.plan("PUT", LOSE_REQUEST, fault)
    assert commit(root, b"ours") == "unknown"


def test_a_commit_that_is_never_answered_is_unknown_and_of_all_that_were_sent_one_counts(proxy, root):
    proxy.plan("PUT", *[LOSE_REQUEST] * 3)
    assert commit(root, b"ours") == "unknown" and not storage.exists(f"{root}/{ENTRY}")
    proxy.requests.clear()
    proxy.plan("PUT", LOSE_ANSWER)
    proxy.plan("HEAD", *[LOSE_REQUEST] * 6)
    assert commit(root, b"ours") == "committed", "the second is told that the first has the name, which is ours"
    assert [method for method, _ in proxy.requests].count("PUT") == 2


# --- a file that is sent in parts -------------------------------------------------------------------

# The library cuts at five megabytes: two parts.
LARGE = random.Random(6).randbytes(6 << 20)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of more than a megabyte is sent in parts, as is one of more than 64."""
    monkeypatch.setattr(object_storage, "_SPOOL_BYTES", 1 << 20)


def write_large(path: str) -> None:
    """As a task writes: piece by piece, and the file is there once it is closed."""
    with storage.output(path) as file:
        for at in range(0, len(LARGE), 1 << 20):
            file.write(LARGE[at : at + (1 << 20)])


def is_whole(path: str) -> bool:
    with storage.input(path) as file:
        file.seek(5 << 20)
        end = file.read()
    return storage.read(path) == LARGE and LARGE[5 << 20 :] == end and storage.stat(path).size == len(LARGE)


@pytest.mark.usefixtures("in_parts")
def test_a_large_file_is_sent_in_parts_and_is_what_was_written(proxy: Proxy, root: str) -> None:
    proxy.requests.clear()
    write_large(f"{root}/a")
    assert sorted(method for method, _ in proxy.requests) == ["POST", "POST", "PUT", "PUT"], "begin, two parts, end"
    assert is_whole(f"{root}/a")
    write_large(f"{root}/a")
    assert is_whole(f"{root}/a") and storage.list_names(root) == ["a"]


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("fault", some(PASSING, LOSE_ANSWER, CUT_ANSWER), ids=str)
@pytest.mark.parametrize("method", ["POST", "PUT"], ids=["begin", "part"])
def test_the_begin_of_a_large_file_and_its_parts_are_sent_again(proxy, root, fault, method):
    proxy.plan(method, fault)
    if (method, fault) == ("POST", CUT_ANSWER):  # the library takes this one for an answer, which it cannot read
        with pytest.raises(OSError, match=f"{root}/a"):
            write_large(f"{root}/a")
        assert not storage.exists(f"{root}/a")
        write_large(f"{root}/a")
    else:
        write_large(f"{root}/a")
    assert not proxy.planned[method] and is_whole(f"{root}/a")


IN_AN_ANSWER: Fault = (200, "InternalError")
NOT_COMPLETED: list[Fault] = [LOSE_REQUEST, CUT_BODY, (503, "SlowDown"), (500, "InternalError"), IN_AN_ANSWER]


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("fault", some(NOT_COMPLETED, LOSE_REQUEST, IN_AN_ANSWER), ids=str)
def test_a_completion_of_a_large_file_that_fails_is_sent_again(proxy: Proxy, root: str, fault: Fault) -> None:
    proxy.plan("POST", None, fault)
    write_large(f"{root}/a")
    assert not proxy.planned["POST"] and is_whole(f"{root}/a")
    assert [method for method, _ in proxy.requests].count("POST") == 3, "begin, and two completions"


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(
    ("faults", "fails"),
    [([LOSE_ANSWER], False), ([LOSE_ANSWER, (404, "NoSuchUpload")], True), ([CUT_ANSWER], True)],
    ids=["the second is answered as the first", "the second finds no upload", "half an answer"],
)
def test_a_large_file_whose_completion_was_done_and_not_answered_is_whole_whatever_is_told(proxy, root, faults, fails):
    """Where an error is told, the attempt fails; the next one writes a file of another name."""
    proxy.plan("POST", None, *faults)
    if fails:
        with pytest.raises(OSError, match=f"{root}/a"):
            write_large(f"{root}/a")
    else:
        write_large(f"{root}/a")
    assert not proxy.planned["POST"] and is_whole(f"{root}/a"), "never a part of it, and of no other size"
    write_large(f"{root}/again")
    assert is_whole(f"{root}/again") and sorted(storage.list_names(root)) == ["a", "again"]


@pytest.mark.usefixtures("in_parts")
def test_a_large_file_whose_completion_is_refused_is_not_there(proxy: Proxy, root: str) -> None:
    proxy.plan("POST", None, (403, "AccessDenied"))
    with pytest.raises(PermissionError, match=f"{root}/a"):
        write_large(f"{root}/a")
    assert not storage.exists(f"{root}/a") and storage.list_names(root) == []
    write_large(f"{root}/a")
    assert is_whole(f"{root}/a")


# --- deletions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [(403, "AccessDenied"), pytest.param((500, "InternalError"), marks=pytest.mark.long)], ids=str
)
def test_a_deletion_that_is_refused_fails_and_a_later_one_deletes(monkeypatch, proxy, root, fault):
    hurry(monkeypatch, 30.0, 0.2)
    files = [f"{root}/a", f"{root}/b"]
    for path in files:
        storage.write(path, DATA)
    proxy.answers = {"POST": fault, "DELETE": fault}
    calls: list[Callable[[], object]] = [
        lambda: storage.delete(files[0]),
        lambda: storage.delete(root),
        lambda: storage.delete_files(files),
    ]
    for call in calls:
        with pytest.raises(OSError) as raised:
            call()
        assert isinstance(raised.value, PermissionError) == (fault[0] == 403)
        assert isinstance(store_problem_of(raised.value), StoreProblem)
    storage.try_delete(files[0])  # of what is needed no more: it only costs space
    proxy.answers = {}
    assert [storage.read(path) for path in files] == [DATA, DATA]
    assert storage.delete(files[0]) and storage.list_names(root) == ["b"]
    assert storage.delete(root) and storage.list_names(root) == []


def test_a_deletion_that_was_not_answered_fails_and_a_later_one_finds_nothing(proxy: Proxy, root: str) -> None:
    for path in (f"{root}/a", f"{root}/b"):
        storage.write(path, DATA)
    proxy.plan("POST", LOSE_ANSWER)
    with pytest.raises(OSError, match=f"{root}/a"):
        storage.delete(f"{root}/a")
    assert not proxy.planned["POST"] and not storage.delete(f"{root}/a")
    storage.delete_files([f"{root}/a", f"{root}/b"])
    assert storage.list_names(root) == []


# --- a server that takes connections and is silent --------------------------------------------------


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its bucket; a request is given up after a fifth of a second, in place of 30."""
    hurry(monkeypatch, 0.2, 0.1)
    monkeypatch.setattr(object_storage, "_AGAIN_SECS", (0.01, 0.02))
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        # The system takes the connections, and no process looks at them.
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        storage.configure("s3a://silent", store_servers.s3_settings(endpoint))
        yield "s3a://silent/w"
    storage.configure("s3a://silent", {})


@pytest.mark.long
@pytest.mark.usefixtures("in_parts")
def test_a_store_that_is_silent_is_given_up_by_every_call(silent: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: storage.read(f"{silent}/a"),
        lambda: storage.read(f"{silent}/a", 100),
        lambda: storage.input(f"{silent}/a"),
        lambda: storage.write(f"{silent}/a", DATA),
        lambda: storage.create(f"{silent}/a", DATA),
        lambda: write_large(f"{silent}/a"),
        lambda: storage.stat(f"{silent}/a"),
        lambda: storage.list_names(silent),
        lambda: storage.delete(f"{silent}/a"),
        lambda: storage.delete_files([f"{silent}/a"]),
    ]
    pool = ThreadPoolExecutor(len(calls))
    for number, asked in enumerate([pool.submit(call) for call in calls]):
        error = asked.exception(timeout=60)
        assert isinstance(error, OSError), (number, error)
        assert isinstance(store_problem_of(error), StoreUnreachable), (number, error)
    assert commit(silent, b"ours") == "unknown", "it is not known whether the server has heard it"


# --- others -----------------------------------------------------------------------------------------


def test_the_rows_of_a_kept_plan_are_named_in_their_store() -> None:
    files = [("s3a://lake/w/a b%20c.parquet", 5, 1), ("hdfs://h:1/w/y", 7, 2), ("/w/s3a://z", 1, 3)]
    slot = FilesSlot("kind", files, lambda paths: None, lambda frame: frame)  # type: ignore[arg-type, return-value]
    assert slot.rows == '[["/w/y", 7, 2], ["/w/a b%20c.parquet", 5, 1], ["/w/s3a://z", 1, 3]]'
