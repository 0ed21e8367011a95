"""Faults of a store's own requests, and what each call makes of them: the table in docs/faults.md, on S3 (moto).

A proxy before the server loses requests and answers, cuts bodies, and refuses.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests import store_servers
from tests.store_servers import CUT_ANSWER, CUT_BODY, LOSE_ANSWER, LOSE_REQUEST, Fault, Proxy
from trident.coordinators.errors import CommitConflict, StoreProblem, StoreUnreachable, TableError
from trident.spark.slots import FilesSlot
from trident.states.core import object_storage, storage
from trident.states.core.store_problems import told_by_a_store
from trident.states.delta.log_commit import EntryMayBeLost, draft_of, publish_draft, remove_draft, write_draft

DATA = bytes(range(256)) * 1000
PASSING = [LOSE_REQUEST, LOSE_ANSWER, CUT_BODY, CUT_ANSWER, (503, "SlowDown"), (500, "InternalError")]
REFUSALS = [
    ((403, "AccessDenied"), "the store refuses this process"),
    ((403, "RequestTimeTooSkewed"), "clock is too far from the store's"),
    ((404, "NoSuchBucket"), "the bucket does not exist"),
]


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
        problem = told_by_a_store(raised.value)
        assert isinstance(problem, StoreProblem) and not isinstance(problem, StoreUnreachable)
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
def test_a_commit_that_is_refused_behind_one_without_an_answer_is_not_called_refused(
    proxy: Proxy, root: str, fault: Fault, said: str
) -> None:
    """The first may still be under way: only a commit of which no request is open certainly did not happen."""
    proxy.plan("PUT", fault)
    assert commit(root, b"ours") == "refused"
    proxy.plan("PUT", LOSE_REQUEST, fault)
    assert commit(root, b"ours") == "unknown"


def test_a_commit_that_is_never_answered_is_unknown_and_of_all_that_were_sent_one_counts(
    proxy: Proxy, root: str
) -> None:
    proxy.plan("PUT", *[LOSE_REQUEST] * 3)
    assert commit(root, b"ours") == "unknown" and not storage.exists(f"{root}/{ENTRY}")
    proxy.requests.clear()
    proxy.plan("PUT", LOSE_ANSWER)
    proxy.plan("HEAD", *[LOSE_REQUEST] * 6)
    assert commit(root, b"ours") == "committed", "the second is told that the first has the name, which is ours"
    assert [method for method, _ in proxy.requests].count("PUT") == 2


# --- others -----------------------------------------------------------------------------------------


def test_the_rows_of_a_kept_plan_are_named_in_their_store() -> None:
    files = [("s3a://lake/w/a b%20c.parquet", 5, 1), ("hdfs://h:1/w/y", 7, 2), ("/w/s3a://z", 1, 3)]
    slot = FilesSlot("kind", files, lambda paths: None, lambda frame: frame)  # type: ignore[arg-type, return-value]
    assert slot.rows == '[["/w/y", 7, 2], ["/w/a b%20c.parquet", 5, 1], ["/w/s3a://z", 1, 3]]'
