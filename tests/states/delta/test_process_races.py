"""Processes that race for the same table versions, on a disk, S3 and HDFS: one winner for each, whichever is stopped.

`make races STORE=s3 ROUNDS=500`. The racers do what a coordinator does for a commit: a draft, and the claim of the
entry's name. This process stops them with SIGSTOP at any moment; on S3 they lose requests and answers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import store_servers
from tests.servers.store_servers import LOSE_ANSWER, LOSE_REQUEST
from trident.states.core import storage

ALL = os.environ.get("TRIDENT_STORES") == "all"
ROUNDS = int(os.environ.get("TRIDENT_RACE_ROUNDS") or (100 if ALL else 15))
KINDS = [os.environ["TRIDENT_STORE"]] if os.environ.get("TRIDENT_STORE") else ["disk", "s3", *(["hdfs"] if ALL else [])]
RACERS = ("one", "other", "third")

RACE = """
import json, os, random, signal, sys, time
from trident.states.core import hdfs_storage, local_storage, object_storage, storage
from trident.coordinators.errors import CommitConflict
from trident.states.delta.log_commit import EntryMayBeLost, draft_of, publish_draft, remove_draft, write_draft
table, settings, name, rounds, stops = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
if "://" in table:
    storage.configure("/".join(table.split("/")[:3]), settings)
entry = lambda version: f"{table}/_delta_log/{version:020d}.json"
for kind in (object_storage.ObjectFolder, hdfs_storage.HdfsFolder, local_storage.LocalFolder) if stops else ():
    def claim(self, draft, name, claim=kind.claim):
        if stops == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        done = claim(self, draft, name)
        if stops == "behind":
            os.kill(os.getpid(), signal.SIGSTOP)
        return done
    kind.claim = claim
won = []
print("ready", flush=True)
sys.stdin.readline()
for version in range(rounds):
    while version and not storage.exists(entry(version - 1)):
        time.sleep(0.001)
    if not storage.exists(entry(version)):
        time.sleep(random.uniform(0, 0.03))  # else the one that has won comes first again
    mine = f"{name} {version}".encode()
    while True:
        draft = draft_of(table, version)
        write_draft(table, version, draft, mine)
        try:
            publish_draft(table, version, draft, None)
            won.append(version)
        except CommitConflict:
            pass
        except EntryMayBeLost:
            # Settled as a coordinator does, by what the table has; nothing is there: it tries again.
            if not storage.exists(entry(version)):
                continue
            if storage.read(entry(version)) == mine:
                won.append(version)
        finally:
            remove_draft(draft)
        break
print(json.dumps(won))
"""


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A table's folder, with a log folder and nothing in it."""
    if request.param == "disk":
        (tmp_path / "t" / "_delta_log").mkdir(parents=True)
        yield str(tmp_path / "t")
        return
    base = store_servers.running(request.param)
    url = f"{base}/{uuid.uuid4().hex[:8]}/t"
    storage.make_folder(f"{url}/_delta_log", base.rpartition("/")[0])
    yield url
    storage.delete(url.rpartition("/")[0])


class Racer:
    """A process that makes versions from 0 on, as soon as the one before is there.

    Args:
        stops: at which end of its first claim it stops itself, ``before`` or ``behind``; empty for never.
        endpoint: of a proxy before the S3 server, where it is to lose something.
    """

    def __init__(self, table: str, name: str, rounds: int, stops: str = "", endpoint: str = "") -> None:
        settings = {} if store_servers.is_local(table) else dict(storage.settings_of("/".join(table.split("/")[:3])))
        if endpoint:
            settings["fs.s3a.endpoint"] = endpoint
        command = [sys.executable, "-c", RACE, table, json.dumps(settings), name, str(rounds), stops]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None and self.process.stdin is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait_stopped(self) -> None:
        """Until it has stopped itself."""
        while (state := Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
            assert state != "Z" and self.process.poll() is None, "it has ended"
            time.sleep(0.005)

    def won(self) -> list[int]:
        out, _ = self.process.communicate(timeout=900)
        assert self.process.returncode == 0
        return json.loads(out)


def check(table: str, won: dict[str, list[int]], rounds: int) -> None:
    assert sorted(version for versions in won.values() for version in versions) == list(range(rounds)), (
        "each version has one winner"
    )
    for name, versions in won.items():
        for version in versions:
            assert storage.read(f"{table}/_delta_log/{version:020d}.json") == f"{name} {version}".encode()
    assert len(storage.list_names(f"{table}/_delta_log")) == rounds, "no draft is left"


def test_of_processes_that_race_one_wins_each_table_version(table: str) -> None:
    seed = int(os.environ.get("TRIDENT_SEED") or random.randrange(2**32))
    print(f"TRIDENT_SEED={seed}")
    rng = random.Random(seed)
    proxy = None
    if table.startswith("s3a"):
        proxy = store_servers.Proxy(store_servers.s3_endpoint())
        faults = [LOSE_ANSWER, LOSE_REQUEST, *[None] * 6]
        proxy.plan("PUT", *rng.choices(faults, k=3 * ROUNDS))
    racers = {name: Racer(table, name, ROUNDS, endpoint=proxy.endpoint if proxy else "") for name in RACERS}
    done = threading.Event()

    def stop_and_go() -> None:
        while not done.wait(rng.uniform(0.0, 0.05)):
            racer = racers[rng.choice(RACERS)]
            racer.signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.0, 0.05))
            racer.signal(signal.SIGCONT)

    stopping = threading.Thread(target=stop_and_go)
    for racer in racers.values():
        racer.go()
    stopping.start()
    try:
        won = {name: racer.won() for name, racer in racers.items()}
    finally:
        done.set()
        stopping.join()
        for racer in racers.values():
            racer.process.kill()
        if proxy is not None:
            proxy.end()
    check(table, won, ROUNDS)
    print(f"{ROUNDS} rounds: won { ({name: len(versions) for name, versions in won.items()}) }")
    if proxy is not None:
        assert len(proxy.planned["PUT"]) < 3 * ROUNDS, "nothing was lost, which tests nothing"
    assert ROUNDS < 100 or min(map(len, won.values())) > 0, "one never won, which tests nothing"


@pytest.mark.parametrize("stops", ["before", "behind"])
def test_a_process_that_is_stopped_at_its_claim_and_goes_on_wins_nothing_that_another_has(table, stops):
    """Stopped right before: its version is another's by the time. Right behind: it is its own, for all that come."""
    zombie = Racer(table, "zombie", 1, stops)
    zombie.go()
    zombie.wait_stopped()
    successor = Racer(table, "successor", 3)
    successor.go()
    won = successor.won()  # the one that is stopped keeps it from nothing
    assert won == ([0, 1, 2] if stops == "before" else [1, 2])
    zombie.signal(signal.SIGCONT)
    check(table, {"successor": won, "zombie": zombie.won()}, 3)
