"""The embedded ZooKeeper server is there for as long as a topology runs, whoever is killed, whichever disk was full."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.servers.zk_fixtures import connected, eventually
from tests.whole.storage_helpers import small_disk
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.znodes import Create
from trident.coordinators.zookeeper import OutcomeUnknown, ZooKeeper
from trident.running.failures import FailureExplainer
from trident.running.zookeeper import ServerWatchdog

LEVELS = (0, 4096, 8192, 12_288) if os.environ.get("TRIDENT_STORAGE") == "all" else (4096,)


@contextmanager
def kept_server(folder: Path) -> Iterator[tuple[ZooKeeper, list[str]]]:
    """A server, a connection and what the keeper has told."""
    told: list[str] = []
    try:
        with (
            connected(EmbeddedZooKeeper.ensure(folder), "/kept", session_secs=30) as zk,
            closing(ServerWatchdog(zk, folder, told.append, FailureExplainer([folder]))),
        ):
            yield zk, told
    finally:
        EmbeddedZooKeeper.stop(folder)


@pytest.mark.long
def test_a_supervisor_that_is_killed_is_replaced_and_the_session_lives_on(tmp_path: Path) -> None:
    with kept_server(tmp_path / "server") as (zk, told):
        before, session = EmbeddedZooKeeper.status(tmp_path / "server"), zk.session_id
        os.kill(before.supervisor_pid, signal.SIGKILL)
        assert eventually(lambda: told and zk.connected, 25), told
        after = EmbeddedZooKeeper.status(tmp_path / "server")
        assert (after.port, after.supervisor_pid == before.supervisor_pid) == (before.port, False)
        assert zk.session_id == session


@pytest.mark.parametrize("left", LEVELS)
@pytest.mark.long
def test_a_full_disk_ends_the_server_and_with_room_it_is_back_with_all_that_it_had_acknowledged(tmp_path, left):
    with small_disk(tmp_path / "disk", 3) as disk:
        folder = disk.folder / "server"
        with kept_server(folder) as (zk, told):
            port, written = EmbeddedZooKeeper.status(folder).port, set()
            disk.fill(left)
            session = zk.session_number
            for _ in range(200):
                name = uuid.uuid4().hex
                try:
                    zk.multi([Create(f"/kept/{name}", bytes(500))])
                    written.add(name)
                except OutcomeUnknown:
                    break
            else:
                pytest.fail("the disk never was full")
            # Long enough for two starts on the full disk.
            time.sleep(3.0)
            disk.make_room()
            assert eventually(lambda: zk.connected, 30), told
            found = set(zk.children("/kept"))
            assert written <= found and len(found - written) <= 1, "the last one's outcome is unknown"
            assert EmbeddedZooKeeper.status(folder).port == port, "clients look for it there"
            assert zk.session_number == session
            zk.multi([Create("/kept/again")])
