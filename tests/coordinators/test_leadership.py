"""One leader at a time, by the fence; a dead one is followed at once; another topology is refused."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.servers.zk_fixtures import eventually
from trident.coordinators import processes
from trident.coordinators.errors import CorruptZnode, Deposed, IdentityMismatch
from trident.coordinators.leadership import Leadership, current_holder, holder_has_ended
from trident.coordinators.records import Holder, decode, encode
from trident.coordinators.registration import Registration, identity_conflicts, identity_difference
from trident.coordinators.znodes import Create, Delete, SetData

ROOT = Path(__file__).resolve().parents[2]

LEADER = """
import sys, time
from trident.coordinators.leadership import Leadership
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ZooKeeperConfig
zk = ZooKeeper(ZooKeeperConfig(sys.argv[1], sys.argv[2], session_timeout_secs=30))
zk.connect()
lease = Leadership(zk, "wc", ["lines"]).acquire()
print("leads", lease.fences["lines"].epoch, flush=True)
time.sleep(600)
"""


@pytest.fixture
def leader_process(zk_server, zk_root):
    """A process that leads, with a ZooKeeper session of 30 s."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER, zk_server, zk_root], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "leads 1\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


class Standby:
    """A contender in a thread."""

    def __init__(self, zk):
        self.lease = None
        self.waited_for: list[Holder] = []
        self.stop = threading.Event()
        self._contender = Leadership(zk, "wc", ("lines",))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self.lease = self._contender.acquire(self.stop, self.waited_for.append)

    def join(self, secs):
        self._thread.join(secs)
        return not self._thread.is_alive()


def test_a_standby_waits_and_takes_over_at_once_when_the_leader_is_killed(leader_process, zk):
    standby = Standby(zk)
    assert eventually(lambda: standby.waited_for)
    assert standby.waited_for[0].pid == leader_process.pid
    assert not standby.join(0.5)
    os.kill(leader_process.pid, signal.SIGKILL)
    started = time.monotonic()
    # Its ZooKeeper session lasts 30 s; and it is not reaped: a zombie counts as gone.
    assert standby.join(15.0) and time.monotonic() - started < 15.0
    assert standby.lease.fences["lines"].epoch == 2
    assert [holder.pid for holder in standby.waited_for] == [leader_process.pid]
    standby.lease.release()


def test_a_leader_on_another_host_is_waited_for_although_its_pid_is_not_here(zk, zk_connect):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    me = current_holder()
    elsewhere = Holder(me.host, "another boot", gone.pid, me.started, "t")
    away = zk_connect()
    away.ensure_path(away.path("wc"))
    away.multi([Create(away.path("wc", "live"), encode(elsewhere), ephemeral=True)])
    standby = Standby(zk)
    assert not standby.join(1.2)
    away.close()
    assert standby.join(5.0) and standby.lease is not None


def test_release_lets_the_standby_lead_at_once(zk, zk_connect):
    first = Leadership(zk, "wc", ["lines"]).acquire()
    standby = Standby(zk_connect())
    assert eventually(lambda: standby.waited_for)
    first.release()
    assert first.lost.is_set()
    assert standby.join(0.9)
    assert standby.lease.fences["lines"].epoch == first.fences["lines"].epoch + 1
    assert not standby.lease.lost.is_set()
    first.release()
    assert not standby.lease.lost.wait(0.2), "an old lease must not take the new leader's live znode with it"


def test_waiting_can_be_given_up(zk, zk_connect):
    lease = Leadership(zk, "wc", ["lines"]).acquire()
    standby = Standby(zk_connect())
    assert eventually(lambda: standby.waited_for)
    standby.stop.set()
    assert standby.join(3.0) and standby.lease is None
    assert not lease.lost.is_set()


def test_of_several_that_find_the_same_leader_dead_one_leads(zk, zk_connect):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    me = current_holder()
    zk.ensure_path(zk.path("wc"))
    zk.multi([Create(zk.path("wc", "live"), encode(Holder(me.host, me.boot_id, dead.pid, "1", "t")))])
    standbys = [Standby(zk_connect()) for _ in range(6)]
    assert eventually(lambda: any(standby.lease for standby in standbys))
    time.sleep(0.5)
    leases = [standby.lease for standby in standbys if standby.lease]
    assert len(leases) == 1 and not leases[0].lost.is_set()
    assert leases[0].fences["lines"].epoch == 1
    for standby in standbys:
        standby.stop.set()
    assert all(standby.join(3.0) for standby in standbys)


def test_every_group_that_zookeeper_knows_is_fenced(zk, zk_connect):
    first = Leadership(zk, "wc", ["old", "lines"]).acquire()
    zk.multi([Delete(zk.path("wc", "live"))])
    second = Leadership(zk_connect(), "wc", ["lines", "new"]).acquire()
    assert sorted(second.fences) == ["lines", "new", "old"]
    with pytest.raises(Deposed):
        first.fences["old"].verify(zk)
    ops = []
    first.fences["lines"].check_op(ops)
    with pytest.raises(Deposed):
        zk.multi([*ops, Create(zk.path("written"))])
    assert zk.get(zk.path("written")) is None


def test_the_lease_is_lost_when_the_live_znode_is_not_ours(zk, zk_connect):
    lease = Leadership(zk, "wc", ["lines"]).acquire()
    assert not lease.lost.wait(0.2)
    zk_connect().multi([Delete(zk.path("wc", "live"))])
    assert lease.lost.wait(3.0)


def test_the_lease_survives_a_short_interruption_and_is_watched_after_it(cutting_proxy, zk_connect, zk):
    behind = zk_connect(cutting_proxy.hosts)
    lease = Leadership(behind, "wc", ["lines"]).acquire()
    cutting_proxy.go_down()
    assert eventually(lambda: not behind.connected)
    cutting_proxy.down = False
    assert eventually(lambda: behind.connected)
    assert not lease.lost.wait(0.3)
    zk.multi([Delete(zk.path("wc", "live"))])
    assert lease.lost.wait(3.0)


def test_the_lease_is_lost_with_the_session_and_the_same_process_can_lead_again(cutting_proxy, zk_connect):
    behind = zk_connect(cutting_proxy.hosts, session_secs=1.5)
    lease = Leadership(behind, "wc", ["lines"]).acquire()
    cutting_proxy.go_down()
    assert lease.lost.wait(5.0)
    lease.release()
    cutting_proxy.down = False
    again = Standby(behind)
    assert again.join(8.0)
    assert again.lease.fences["lines"].epoch == 2 and not again.lease.lost.is_set()


@pytest.mark.parametrize("groups", [["lines"], []])
def test_a_lease_whose_session_was_lost_leaves_its_successor_the_lead(cutting_proxy, zk_connect, groups):
    """Without batch groups, too, when no fence tells that another leads."""
    behind = zk_connect(cutting_proxy.hosts, session_secs=1.5)
    lease = Leadership(behind, "wc", groups).acquire()
    cutting_proxy.go_down()
    assert lease.lost.wait(5.0)
    other = zk_connect()
    assert eventually(lambda: other.exists(other.path("wc", "live")) is None)
    successor = Leadership(other, "wc", groups).acquire()
    cutting_proxy.down = False
    assert eventually(lambda: behind.connected)
    lease.release()
    assert not successor.lost.wait(0.3)
    successor.release()
    assert other.exists(other.path("wc", "live")) is None


def test_a_lease_released_without_a_connection_does_not_block_its_own_process(cutting_proxy, zk_connect):
    """The server keeps the session, and with it the live znode of a process that is alive."""
    behind = zk_connect(cutting_proxy.hosts, session_secs=30)
    lease = Leadership(behind, "wc", ["lines"]).acquire()
    session_number = behind.session_number
    cutting_proxy.go_down()
    assert eventually(lambda: not behind.connected)
    lease.release()
    cutting_proxy.down = False
    again = Standby(behind)
    assert again.join(8.0) and behind.session_number == session_number
    assert again.lease.fences["lines"].epoch == 2 and not again.lease.lost.wait(0.2)
    again.lease.release()


@pytest.mark.parametrize("lose", ["request", "answer"])
def test_a_lost_answer_while_acquiring_leads_in_the_end(cutting_proxy, zk_connect, zk, lose):
    behind = zk_connect(cutting_proxy.hosts)
    cutting_proxy.cut_next_multi(lose)
    lease = Standby(behind)
    assert lease.join(8.0) and cutting_proxy.cuts == 1
    assert not lease.lease.lost.wait(0.3)
    lease.lease.fences["lines"].verify(zk)


@pytest.mark.parametrize("name", ["live", "lines/leader"])
def test_garbage_in_a_znode_of_the_leadership_is_named(zk, name):
    Leadership(zk, "wc", ["lines"]).acquire()
    path = f"{zk.path('wc')}/{name}"
    zk.multi([SetData(path, b"garbage", -1)])
    with pytest.raises(CorruptZnode, match=path):
        Leadership(zk, "wc", ["lines"]).acquire()


def test_a_process_is_known_by_pid_and_start_time():
    me = current_holder()
    assert not holder_has_ended(me, me)
    assert processes.has_ended(os.getpid(), "1"), "the pid was reused"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = processes.started(child.pid)
    assert not processes.has_ended(child.pid, start)
    child.kill()
    assert eventually(lambda: processes.has_ended(child.pid, start)), "a zombie has ended"
    child.communicate()
    assert processes.started(child.pid) is None
    assert not holder_has_ended(Holder("other", me.boot_id, child.pid, start, "t"), me)
    assert not holder_has_ended(Holder(me.host, "other boot", child.pid, start, "t"), me)


# -- identity ---------------------------------------------------------------

IDENTITY = {
    "streams": {"lines": "trident.FileSpout", "words": "mine.Words"},
    "states": {"counts": {"keys": ["word"], "value_schema": "n bigint", "aggregator": "Count"}},
    "groups": {"lines": ["lines"], "words": ["words"]},
}


def changed(edit):
    identity = copy.deepcopy(IDENTITY)
    edit(identity)
    return identity


NEW_STATE = changed(lambda i: i["states"].update(more={"keys": [], "value_schema": "a", "aggregator": ""}))
ALLOWED = {
    "nothing": IDENTITY,
    "a new state": NEW_STATE,
    "a state gone": changed(lambda i: i["states"].clear()),
    "a new stream": changed(lambda i: (i["streams"].update(z="Z"), i["groups"].update(z=["z"]))),
    "a new stream in a group": changed(lambda i: (i["streams"].update(z="Z"), i["groups"]["words"].append("z"))),
}
REFUSED = {
    "spout": (changed(lambda i: i["streams"].update(lines="Other")), "FileSpout, now Other"),
    "stream gone": (changed(lambda i: (i["streams"].pop("words"), i["groups"].pop("words"))), "stream 'words' is gone"),
    "keys": (changed(lambda i: i["states"]["counts"].update(keys=["word", "day"])), "keys of state 'counts' was"),
    "order of keys": (changed(lambda i: i["states"]["counts"].update(keys=["w", "o"])), "keys"),
    "schema": (changed(lambda i: i["states"]["counts"].update(value_schema="s")), "value_schema.*n bigint, now s"),
    "aggregator": (changed(lambda i: i["states"]["counts"].update(aggregator="Sum")), "was Count, now Sum"),
    "merged": (
        changed(lambda i: i.update(groups={"lines": ["lines", "words"]})),
        "'words' was in batch group 'words', now in 'lines'",
    ),
    "renamed": (
        changed(lambda i: (i["streams"].update(a="A"), i.update(groups={"a": ["a", "lines"], "words": ["words"]}))),
        "'lines' was in batch group 'lines', now in 'a'",
    ),
    "another topology": ({"streams": {"x": "X"}, "states": {}, "groups": {"x": ["x"]}}, "is gone"),
}


def test_no_difference_to_itself():
    assert identity_difference(IDENTITY, copy.deepcopy(IDENTITY)) == []


@pytest.mark.parametrize("case", ALLOWED)
def test_what_may_change_is_stored_under_the_same_incarnation(zk, case):
    lease = Leadership(zk, "wc", ["lines", "words"]).acquire()
    registration = Registration(zk, "wc")
    assert registration.read() is None
    incarnation = registration.ensure(IDENTITY, fences=lease.fences.values())
    registration.check(ALLOWED[case])
    assert registration.ensure(ALLOWED[case], fences=lease.fences.values()) == incarnation
    assert bool(identity_difference(IDENTITY, ALLOWED[case])) == (case != "nothing")
    again, stored = registration.read()
    assert again == incarnation and identity_difference(stored, ALLOWED[case]) == []


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_not_change_is_refused_with_the_difference(zk, case):
    given, text = REFUSED[case]
    registration = Registration(zk, "wc")
    incarnation = registration.ensure(IDENTITY)
    assert identity_conflicts(IDENTITY, given)
    for refused in (registration.check, registration.ensure):
        with pytest.raises(IdentityMismatch, match=text) as raised:
            refused(given)
        about_state = case in ("keys", "order of keys", "schema", "aggregator")
        assert ("give the state another name" in raised.value.action) == about_state
        assert ("trident reset wc" in raised.value.action) != about_state, "much too drastic for a state"
    assert registration.ensure(IDENTITY) == incarnation


def test_a_deposed_leader_does_not_change_the_identity(zk, zk_connect):
    lease = Leadership(zk, "wc", ["lines"]).acquire()
    Registration(zk, "wc").ensure(IDENTITY, fences=lease.fences.values())
    zk.multi([Delete(zk.path("wc", "live"))])
    Leadership(zk_connect(), "wc", ["lines"]).acquire()
    with pytest.raises(Deposed):
        Registration(zk, "wc").ensure(NEW_STATE, fences=lease.fences.values())
    assert identity_difference(Registration(zk, "wc").read()[1], IDENTITY) == []


@pytest.mark.parametrize("lose", ["request", "answer"])
def test_a_lost_answer_at_the_first_start_makes_one_incarnation(cutting_proxy, zk_connect, zk, lose):
    cutting_proxy.cut_next_multi(lose)
    made = Registration(zk_connect(cutting_proxy.hosts), "wc").ensure(IDENTITY)
    assert cutting_proxy.cuts == 1
    assert Registration(zk, "wc").read()[0] == made


def test_first_starts_at_once_agree_on_one_incarnation(zk_connect):
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda zk: made.append(Registration(zk, "wc").ensure(IDENTITY)), args=[zk_connect()])
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 5 and len(set(made)) == 1


@pytest.mark.parametrize(("name", "damage"), [("identity", None), ("incarnation", None), ("identity", b"{}")])
def test_half_or_damaged_registrations_are_named(zk, name, damage):
    Registration(zk, "wc").ensure(IDENTITY)
    path = zk.path("wc", name)
    zk.multi([Delete(path)] if damage is None else [SetData(path, damage, -1)])
    with pytest.raises(CorruptZnode) as raised:
        Registration(zk, "wc").ensure(IDENTITY)
    assert raised.value.path == path


def test_the_live_znode_names_its_process(zk):
    Leadership(zk, "wc", ["lines"]).acquire()
    data, znode = zk.get(zk.path("wc", "live"))
    holder = decode("live", data, Holder)
    assert holder.pid == os.getpid() and znode.ephemeral_owner == zk.session_id
