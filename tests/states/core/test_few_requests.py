"""Requests to a store that are saved, since the process knows the answer, and the looks that stay: on S3 (moto)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from tests.servers import store_servers
from tests.states.delta.test_commit_rules import manifest
from trident.coordinators.errors import Halted, StagedFileMissing
from trident.spouts.files.ledger import FileLedger, FoundFile
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.storage import AT_ONCE, run_concurrently
from trident.states.core.tables import StagedFile
from trident.states.delta.delta_log import DeltaLog, Watched, unchanged
from trident.states.delta.manifest import ManifestStore
from trident.states.delta.staging import verify_staged


@pytest.fixture
def proxy() -> Iterator[store_servers.Proxy]:
    """Before the S3 server; its bucket is ``s3a://few``."""
    with store_servers.before_bucket("few") as proxy:
        yield proxy


@pytest.fixture
def folder(proxy: store_servers.Proxy) -> Place:
    return Place(f"s3a://few/{uuid.uuid4().hex}")


def methods(proxy: store_servers.Proxy) -> list[str]:
    """Of the requests since the last call."""
    found = ["LIST" if "list-type" in path else method for method, path in proxy.requests]
    proxy.requests.clear()
    return found


def found(name: str) -> FoundFile:
    return FoundFile(f"/in/{name}", 10, 1)


def test_a_ledger_is_appended_to_by_one_request(proxy: store_servers.Proxy, folder: Place) -> None:
    ledger = FileLedger(folder / "l", "bytes")
    ledger.append([found("a")])
    other = FileLedger(folder / "l", "bytes")
    methods(proxy)
    ledger.append([found("b"), found("c")])
    ledger.skip(1, "gone")
    assert methods(proxy) == ["PUT", "PUT"]
    other.refresh()
    assert methods(proxy) == ["GET", "GET", "GET"], "two parts, and none behind them"
    assert [entry.path for entry in other.book.entries] == ["/in/a", "/in/b", "/in/c"] and other.book.skipped == {1}


def test_where_another_process_has_appended_no_number_is_given_twice(proxy: store_servers.Proxy, folder: Place) -> None:
    one, other = FileLedger(folder / "l", "bytes"), FileLedger(folder / "l", "bytes")
    one.append([found("a")])
    other.append([found("b")])  # has not seen the first
    one.append([found("b"), found("c")])
    other.append([found("d")])
    expected = {"/in/a": 1, "/in/b": 2, "/in/c": 3, "/in/d": 4}
    assert other.book.numbers == FileLedger(folder / "l", "bytes").book.numbers == expected


def test_a_table_is_unchanged_only_while_its_newest_entry_is_the_one_that_was_seen(proxy, folder):
    tables = [str(folder / name) for name in "abc"]
    for table in tables:
        storage.create(DeltaLog(table).entry(4), b"{}")
    seen = [Watched(table, 4, DeltaLog(table).signature(4)) for table in tables]
    methods(proxy)
    proxy.rounds = [[("HEAD", f"/{name}/_delta_log/{version:020d}.json") for name in "abc" for version in (4, 5)]]
    assert unchanged(seen) == set(tables)
    assert methods(proxy) == ["HEAD"] * 6 and not proxy.waited_in_vain, "all of them at once, and nothing is listed"
    storage.create(DeltaLog(tables[0]).entry(5), b"another's commit")
    storage.write(DeltaLog(tables[1]).entry(4), b"the table was made anew")
    assert unchanged(seen) == {tables[2]}
    storage.delete(DeltaLog(tables[2]).entry(4))
    assert unchanged(seen) == set()
    assert unchanged([Watched(tables[0], 5, None)]) == set(), "an entry that was not seen"


def test_a_manifest_is_not_read_back_but_by_the_decision_that_names_it(proxy, folder):
    store = ManifestStore(folder, "top", "g", "inc")
    first = store.write(manifest(1))
    assert methods(proxy) == ["PUT"]
    assert store.read(first) == manifest(1) and methods(proxy) == []
    second, third = store.write(manifest(2)), store.write(manifest(3))
    assert store.read(second) == manifest(2) and store.read(third) == manifest(3)
    assert store.read(third) == manifest(3) and methods(proxy) == ["PUT", "PUT", "GET", "GET", "GET"]
    storage.delete(folder / third.manifest)
    with pytest.raises(Halted, match="is gone"):
        store.read(third)


def test_manifests_are_deleted_by_one_request(proxy: store_servers.Proxy, folder: Place) -> None:
    store = ManifestStore(folder, "top", "g", "inc")
    for txid in range(1, 6):
        store.write(manifest(txid))
    methods(proxy)
    assert store.clean(4, None, due=False) == [] and methods(proxy) == []
    assert len(store.clean(4, None)) == 4
    assert methods(proxy) == ["LIST", "LIST", "POST"]
    assert [each.attempt.txid for _, each in store.found()] == [5]


def test_staged_files_are_looked_at_by_each_try_but_the_first(proxy: store_servers.Proxy, folder: Place) -> None:
    storage.write(folder / "p", b"rows")
    file = StagedFile("p", 4, 0, 1, "{}", {})
    methods(proxy)
    verify_staged(folder, [file], answered=True)
    assert methods(proxy) == []
    verify_staged(folder, [file])
    assert methods(proxy) == ["HEAD"]
    storage.delete(folder / "p")
    with pytest.raises(StagedFileMissing):
        verify_staged(folder, [file])


def test_a_part_of_a_file_is_read_by_one_request(proxy: store_servers.Proxy, folder: Place) -> None:
    storage.write(folder / "p", b"0123456789")
    methods(proxy)
    assert storage.read(folder / "p", 7) == b"789" and methods(proxy) == ["GET"]
    assert storage.read(folder / "p", 10) == storage.read(folder / "p", 11) == b""


def test_of_calls_side_by_side_all_have_ended_before_an_error_is_raised() -> None:
    ended: list[int] = []

    def call(number: int) -> int:
        try:
            if number in (2, 3):
                raise ValueError(number)
            return number
        finally:
            ended.append(number)

    assert run_concurrently([lambda each=each: call(each) for each in (0, 1, 4)]) == [0, 1, 4]
    with pytest.raises(ValueError, match="2"):
        run_concurrently([lambda each=each: call(each) for each in range(40)])
    assert sorted(ended) == sorted([0, 1, 4, *range(40)])
    assert run_concurrently([]) == []


def test_calls_that_run_others_side_by_side_do_not_wait_for_each_other() -> None:
    found: list[list[list[int]]] = []

    def outer(number: int) -> list[int]:
        return run_concurrently([lambda each=each: number * each for each in range(3)])

    def run() -> None:
        found.append(run_concurrently([lambda each=each: outer(each) for each in range(2 * AT_ONCE)]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert found == [[[0, each, 2 * each] for each in range(2 * AT_ONCE)]]
