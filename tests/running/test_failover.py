"""Failover for real: an ensemble of three servers, coordinators that are killed, stopped and cut off, one disk.

Each process has a network of its own where root allows, so that a coordinator can be cut off from ZooKeeper while it
still reaches the tables. A zombie is a coordinator that stops itself right before a write (``TRIDENT_FAULTS``), is
succeeded, and then goes on: it attempts precisely that write. Attempted must be more than 0, accepted 0.

In the end, whatever was broken: every number of the source once in each state, every transaction once in each table
and none left out, and no commit of an old coordinator behind one of a newer.

``TRIDENT_FAILOVER=all`` runs all of it; ``TRIDENT_FAILOVER_NETWORK=proxies`` as without root.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.deployment import LEADS, Coordinator, Deployment, wait_for, with_ensemble
from tests.servers.ensemble import SERVERS

SESSION_SECS = 4.0
everything = pytest.mark.skipif(os.environ.get("TRIDENT_FAILOVER") != "all", reason="TRIDENT_FAILOVER=all runs it")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Deployment]:
    with with_ensemble(tmp_path / "cluster") as made:
        yield made


def at_the_commit(nth: int) -> str:
    """The fault that stops a process amid the nth commit to a table: behind its last look whether it still leads."""
    return f"publish.table:reach:{nth}>delta.commit:stop"


def point_of(fault: str) -> str:
    """The point that a fault stops a process at."""
    return fault.rpartition(">")[2].partition(":")[0]


class Zombies:
    """Counts what zombies have attempted, and that none of it was accepted."""

    def __init__(self) -> None:
        self.attempted: Counter[str] = Counter()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.stopped_at: list[str] = []

    def succeeded_by(self, other: Coordinator, zombie: Coordinator) -> None:
        """The zombie-to-be stops itself, the other one takes over and commits newer transactions."""
        zombie.wait_stopped()
        stopping = zombie.events("stopping at")[-1]
        self.stopped_at.append(stopping["text"].removeprefix("stopping at "))
        self._epoch = zombie.epoch
        leads = other.wait_for(lambda: other.events(LEADS, stopping["at"]))[0]["at"]
        other.wait_for(lambda: len(other.advanced(leads, new=True)) >= 2)

    def goes_on(self, zombie: Coordinator) -> None:
        """The zombie attempts its write, is refused, and waits for its turn like any standby."""
        since = zombie.go_on()
        zombie.wait_for(lambda: zombie.events("standby: ", since) or zombie.events(LEADS, since))
        found = zombie.attempts(self._epoch, since)
        for what, outcomes in found.items():
            self.outcomes.update({(what, outcome): count for outcome, count in outcomes.items()})
            self.attempted[what] += outcomes.total()
            assert "ok" not in outcomes, f"a zombie of epoch {self._epoch} was let through: {found}"


@everything
def test_zombies_are_refused_by_delta_and_by_a_map_and_a_leader_that_is_killed_is_succeeded(cluster):
    """One stops behind the first of two tables; of the next a worker stops right before it writes to the map."""
    a, b = cluster.start_all(a={"faults": at_the_commit(6)})
    zombies = Zombies()
    zombies.succeeded_by(b, zombie=a)
    zombies.goes_on(a)
    assert zombies.attempted["commit"] >= 1, zombies.outcomes

    # The rows that it would put are gone when it goes on, if it has not read them: so it is stopped behind that.
    Path(f"{cluster.books[0].group.maps_file}.stop").touch()
    worker = b.wait_for(lambda: b.said("worker stops"))[0]
    b.stop()
    a.wait_for(lambda: len(a.advanced(worker["at"], new=True)) >= 2)
    since = time.monotonic()
    os.kill(worker["worker"], signal.SIGCONT)
    put, *_ = b.wait_for(lambda: b.said("put", since, pid=worker["worker"]))
    assert (put["epoch"], put["outcome"]) == (b.epoch, "StaleEpoch")
    b.go_on()
    b.wait_for(lambda: b.events("standby: ", since))
    assert not [line for line in b.said("put", since) if line["outcome"] == "ok"]

    a.kill()
    b.wait_for(lambda: b.advanced(a.killed_at, new=True))
    cluster.finish()
    cluster.check()


@everything
def test_a_zombie_at_every_moment_of_a_commit(cluster: Deployment) -> None:
    """Two coordinators in turn; one of them sends a late multi only when it has a new ZooKeeper session."""
    # Far enough from each other that whoever leads commits some transactions before it stops.
    of_a = f"zk.decide:do_then_stop:3,{at_the_commit(20)},zk.advance:stop:17,{at_the_commit(52)}"
    of_b = "zk.decide:stop:4,publish.user:stop:12,zk.advance:stop:20,zk.begin:stop:45"
    a, b = cluster.start_all(a={"faults": of_a}, b={"faults": of_b, "late": True})
    zombies = Zombies()
    for _ in range(4):
        zombies.succeeded_by(b, zombie=a)
        zombies.goes_on(a)
        zombies.succeeded_by(a, zombie=b)
        zombies.goes_on(b)
    print(f"stopped at {zombies.stopped_at}; attempted and refused: {dict(zombies.outcomes)}")
    assert sorted(zombies.stopped_at) == sorted([point_of(fault) for fault in (of_a + "," + of_b).split(",")])
    assert zombies.attempted["commit"] >= 2 and zombies.attempted["multi"] >= 3
    assert zombies.outcomes["multi", "Deposed"] >= 2, "sent over a living session: ZooKeeper's own check has refused it"
    cluster.finish()
    cluster.check()


@everything
def test_servers_of_the_ensemble_are_killed_while_a_transaction_commits(cluster: Deployment) -> None:
    """The ensemble's leader, in the middle of a decision; a follower; a rolling restart of all three."""
    a, b = cluster.start_all(a={"faults": "zk.decide:stop:4,zk.advance:stop:9"})
    for victim in (cluster.ensemble.leader, lambda: cluster.ensemble.followers()[0]):
        a.wait_stopped()
        server = victim()
        cluster.ensemble.kill(server)
        since = a.go_on()
        cluster.goes_on(since)
        cluster.ensemble.start(server)
        cluster.ensemble.wait_ready()
    for server in SERVERS:
        cluster.ensemble.kill(server)
        since = time.monotonic()
        cluster.goes_on(since)
        cluster.ensemble.start(server)
        cluster.ensemble.wait_ready()
    assert a.process.poll() is None and b.process.poll() is None
    print(f"led in the end by epoch {cluster.epoch()}")
    cluster.finish()
    cluster.check()


@everything
def test_a_coordinator_that_is_cut_off_from_zookeeper_still_reaches_the_disk(cluster: Deployment) -> None:
    """The dangerous partition: it publishes what was decided, while its successor has gone on."""
    a, b = cluster.start_all(a={"faults": at_the_commit(6)})
    zombies = Zombies()
    a.wait_stopped()
    cluster.partition(("a",), ("b",))
    zombies.succeeded_by(b, zombie=a)
    # Zombie and cut off: what refuses it now is the table alone.
    since = a.go_on()
    a.wait_for(lambda: a.said("commit", since, epoch=1))
    time.sleep(1.0)
    assert "ok" not in a.attempts(1, since)["commit"]
    cluster.heal()
    a.wait_for(lambda: a.events("standby: ", since))
    assert "ok" not in [outcome for found in a.attempts(1, since).values() for outcome in found]
    # The other way round, and nobody is stopped: it notices by itself, and its successor does not wait for that.
    cut = time.monotonic()
    cluster.partition(("b",), ("a",))
    a.wait_for(lambda: a.advanced(cut, new=True))
    b.wait_for(lambda: b.events("the lease is lost", cut) or b.events("deposed", cut))
    cluster.heal()
    b.wait_for(lambda: b.events("standby: ", cut))
    cluster.finish()
    cluster.check()


@everything
def test_a_server_is_cut_off_from_its_quorum_with_the_coordinator_that_is_connected_to_it(tmp_path: Path) -> None:
    with with_ensemble(tmp_path / "cluster") as cluster:
        server = cluster.ensemble.followers()[0]
        only = cluster.network.hosts("a").split(",")[SERVERS.index(server)]
        a, b = cluster.start_all(a={"zookeeper": only})
        a.wait_for(lambda: len(a.advanced()) >= 2)
        cut = time.monotonic()
        cluster.partition((server, "a"), ("b",))
        b.wait_for(lambda: len(b.advanced(cut, new=True)) >= 2)
        cluster.heal()
        a.wait_for(lambda: a.events("standby: ", cut))
        cluster.finish()
        cluster.check()


@everything
def test_an_ensemble_without_a_quorum_holds_everybody_up_and_nobody_is_restarted(cluster: Deployment) -> None:
    a, b = cluster.start_all()
    for away_secs in (1.0, SESSION_SECS + 3.0):
        servers = (cluster.ensemble.leader(), cluster.ensemble.followers()[0])
        cluster.ensemble.pause(*servers)
        time.sleep(away_secs)
        held_up = [len(one.advanced()) for one in (a, b)]
        time.sleep(1.0)
        assert [len(one.advanced()) for one in (a, b)] == held_up
        cluster.ensemble.go_on()
        cluster.goes_on(time.monotonic())
    assert a.process.poll() is None and b.process.poll() is None
    cluster.finish()
    cluster.check()


@everything
def test_three_coordinators_whose_leaders_are_killed_one_after_the_other(tmp_path: Path) -> None:
    with with_ensemble(tmp_path / "cluster", ("a", "b", "c")) as cluster:
        leading, *standbys = cluster.start_all()
        while standbys:
            leading.kill()
            at = leading.killed_at
            wait_for(lambda at=at: any(one.advanced(at, new=True) for one in standbys), standbys[0].story)
            leading = max((one for one in standbys if one.events(LEADS)), key=lambda one: one.epoch)
            standbys.remove(leading)
        assert cluster.epoch() >= 3
        for name in "a", "b":
            if name != leading.name:
                cluster.start(name)
        cluster.finish()
        cluster.check()


def test_what_dead_test_processes_have_left_is_swept_away() -> None:
    from tests.servers import networks

    if not networks.may_make_namespaces():
        pytest.skip("NOT TESTED: network namespaces need root; the others run over proxies")
    import subprocess
    import sys

    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    name = f"trf{int(gone.stdout)}-s1"
    networks._ip("netns", "add", name)
    sleeper = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "600"])
    wait_for(lambda: networks._ip("netns", "pids", name).stdout, lambda: "it does not start")
    networks.sweep()
    assert sleeper.wait(10) == -9
    assert name not in networks._ip("netns", "list").stdout
