"""HDFS that does not answer: no call waits for ever, and what was begun is begun anew."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.servers import store_servers
from trident.states.core import hdfs_storage, storage

ALL = os.environ.get("TRIDENT_STORES") == "all"


def test_a_call_without_an_answer_ends_with_an_error_and_one_with_an_answer_gives_it() -> None:
    never, began = threading.Event(), time.monotonic()
    with pytest.raises(TimeoutError, match="no answer of HDFS in 0 s") as raised:
        hdfs_storage._bounded(never.wait, secs=0.2)
    assert raised.value.errno == errno.ETIMEDOUT and time.monotonic() - began < 20
    never.set()
    assert hdfs_storage._bounded(divmod, 7, 2) == (3, 1)
    assert hdfs_storage._bounded(int, "11", secs=5, base=2) == 3
    with pytest.raises(ZeroDivisionError):
        hdfs_storage._bounded(divmod, 7, 0)

    def told() -> None:
        raise TimeoutError("the call's own")

    with pytest.raises(TimeoutError, match="the call's own"):
        hdfs_storage._bounded(told)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder on HDFS, of which no call takes more than four seconds."""
    if not ALL:
        pytest.skip("make stores runs it (TRIDENT_STORES=all)")
    made = f"{store_servers.running('hdfs')}/{uuid.uuid4().hex}/_trident"
    storage.make_folder(made, "/".join(made.split("/", 3)[:3]))
    monkeypatch.setattr(hdfs_storage, "CALL_SECS", 4.0)
    yield made
    store_servers.hdfs_clusters[-1].wait()
    storage.delete(made)


def _held(nodes: list, going_on: signal.Signals) -> None:
    for node in nodes:
        node.send_signal(going_on)


def test_a_flush_that_no_data_node_acknowledges_ends_and_leaves_nothing(folder: str) -> None:
    """A data node that dies amid a flush looks like one that is silent: the library waits for ever."""
    cluster = store_servers.hdfs_clusters[-1]
    storage.write(f"{folder}/before", b"1")
    _held(cluster.data_nodes, signal.SIGSTOP)
    try:
        with pytest.raises(OSError, match="no answer of HDFS") as raised:
            storage.write(f"{folder}/manifest", b"2")
        assert raised.value.errno == errno.ETIMEDOUT
        with pytest.raises(OSError):
            storage.create(f"{folder}/entry", b"3")
        assert storage.list_names(folder) == ["before"]
    finally:
        _held(cluster.data_nodes, signal.SIGCONT)
    storage.create(f"{folder}/entry", b"4")
    storage.write(f"{folder}/manifest", b"5")
    assert (storage.read(f"{folder}/entry"), storage.read(f"{folder}/manifest")) == (b"4", b"5")


def test_a_name_node_that_falls_silent_holds_no_call_up(folder: str) -> None:
    cluster = store_servers.hdfs_clusters[-1]
    storage.write(f"{folder}/before", b"1")
    _held([cluster.name_node], signal.SIGSTOP)
    try:
        for call in (storage.stat, storage.read, storage.list_names):
            with pytest.raises(OSError, match="no answer of HDFS"):
                call(f"{folder}/before")
    finally:
        _held([cluster.name_node], signal.SIGCONT)
    assert storage.read(f"{folder}/before") == b"1"
