"""Elects the one process that coordinates a topology: liveness and the fence (docs/semantics.md 10).

Two znodes with two jobs:

- ``/<topology>/live`` is ephemeral and says which process leads. It is
  liveness only: it makes the others wait. Losing it means another may lead.
- ``/<topology>/<group>/leader`` is persistent and never deleted. Its znode
  version is the **fence**: every write of a coordinator checks it, so that
  one which was paused and wakes up cannot write any more (docs/semantics.md 7.5).

Both are taken in *one* multi: delete the live znode of a process known dead,
create ours, bump every leader znode by compare-and-set. Hence two standbys
that find the same leader dead cannot delete each other's live znode: the
second one's multi fails at the first leader znode. After it: sync, then read.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from trident.coordinators import faults, processes
from trident.coordinators.errors import CorruptZnode, Deposed, OutcomeUnknown, ZooKeeperUnreachable
from trident.coordinators.handing_over import LEAD, Contender, HandoverRequest, Handovers, best_effort
from trident.coordinators.records import Holder, LeaderRecord, decode, encode
from trident.coordinators.threads import THREADS, Threads
from trident.coordinators.znodes import Check, Create, Delete, MultiRefused, Op, SetData, Znode
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ConnectionState

ACQUIRE = faults.register("zk.acquire", "the multi that takes the live znode and bumps every leader znode")
RELEASE = faults.register("zk.release", "the multi that lets another lead at once")

_POLL_SECS = 1.0
_RETRY_SECS = 0.05
# How often a standby looks whether the leader's process is gone, which costs a look into /proc; and after how many
# of these it reads the live znode anew.
_LIVE_POLL_SECS = 0.1
_REREAD_EVERY_POLLS = 50
# How long contenders leave a lease that is free to the one to which a hand-over gives it.
_LEAVE_SECS = 10.0

# Leases of this process that have ended. After a connection was away for the
# session timeout the server may still know the ZooKeeper session, and with it
# the live znode, while this process lives: only these tokens tell that the
# lease is over; without them a new contender here would wait for ever.
_ended_tokens: set[str] = set()


def current_holder() -> Holder:
    """This process as a holder, with a token of its own."""
    pid = os.getpid()
    return Holder(
        host=processes.host_name(),
        boot_id=processes.boot_id(),
        pid=pid,
        started=processes.started(pid) or processes.UNKNOWN,
        token=secrets.token_hex(8),
    )


def holder_has_ended(holder: Holder, me: Holder) -> bool:
    """True only if the holder's process can be seen from here to have ended."""
    same_host = (holder.host, holder.boot_id) == (me.host, me.boot_id) and me.boot_id != processes.UNKNOWN
    return same_host and processes.has_ended(holder.pid, holder.started)


def holder_is_this_process(holder: Holder, me: Holder) -> bool:
    """Tells whether the holder is of this very process."""
    return (holder.host, holder.boot_id, holder.pid) == (me.host, me.boot_id, me.pid)


@dataclass(frozen=True)
class Fence:
    """The leader znode of one batch group, as this leader left it.

    Attributes:
        znode_version: what every multi of this leader checks.
        epoch: counts the leaders of this group, from 1.
    """

    path: str
    znode_version: int
    epoch: int
    nonce: str

    def check_op(self, ops: list[Op]) -> None:
        """Add the check to a multi, which then fails as Deposed under another leader."""
        ops.append(Check(self.path, self.znode_version, fence=True))

    def verify(self, zk: ZooKeeper) -> None:
        """Ask now whether this is still the leader.

        Raises:
            Deposed: it is not.
            ZooKeeperUnreachable: it is not known.
        """
        zk.sync(self.path)
        found = zk.exists(self.path)
        if found is None or found.znode_version != self.znode_version:
            raise Deposed(
                "another coordinator leads now",
                found=f"znode version {found.znode_version} of {self.path}" if found else f"no znode {self.path}",
                expected=f"znode version {self.znode_version}",
                action="stop writing; this process is no longer the leader",
            )


class Leadership:
    """Contends for one topology."""

    def __init__(
        self,
        zk: ZooKeeper,
        topology: str,
        groups: Iterable[str],
        holder: Holder | None = None,
        threads: Threads = THREADS,
        me: Contender | None = None,
        handovers: Handovers | None = None,
    ) -> None:
        """Args:
        zk: a connected ZooKeeper.
        topology: its name.
        groups: the batch groups that will be led; those that ZooKeeper
            knows from an earlier run are fenced too.
        holder: this contender; by default this process.
        threads: where its threads and events come from.
        me: as which it is found by hand-overs; None: it takes no part in them.
        handovers: of the topology; a process that contends again and again has one of them.
        """
        # A token of its own: of two contenders in one process, or with one
        # holder, each must know which live znode it made.
        self.holder = replace(holder, token=secrets.token_hex(8)) if holder else current_holder()
        self._zk, self._topology, self._groups, self._threads = zk, topology, sorted(groups), threads
        self._root = zk.path(topology)
        self._live_path = zk.path(topology, "live")
        self._handovers, self._me = handovers or Handovers(zk, topology), me
        self._changed = threads.event()
        self._left_to: tuple[str, float] = ("", 0.0)  # the request by which a lease is left, and since when

    def acquire(
        self,
        stop_event: threading.Event | None = None,
        on_waiting: Callable[[Holder], None] | None = None,
        on_request: Callable[[HandoverRequest], None] | None = None,
    ) -> Lease | None:
        """Wait until this contender leads.

        A lease that is free is left to another contender while a hand-over gives it to that one: for ten seconds, or
        until it has died or the hand-over is taken back.

        Args:
            on_waiting: called once with every holder that is waited for.
            on_request: called with a hand-over to this contender, perhaps more than once.

        Returns:
            The lease; everything read after this is as the last leader left
            it. None if ``stop_event`` was set first.

        Raises:
            CorruptZnode: the live or a leader znode cannot be read.
        """
        stop = stop_event or self._threads.event()
        reported: Holder | None = None
        while not stop.is_set():
            changed = self._changed = self._threads.event()
            try:
                if not self._zk.wait_connected(timeout_secs=_POLL_SECS):
                    continue
                self._zk.sync(self._root)
                fences = self._read_leaders()
                live = self._zk.get(self._live_path, self._wake)
                other = self._waits_for(live)
                # Behind the look at the live znode: a leader gives way to a request that can be read by now.
                request = self._pending_request(fences)
                if other is None:
                    if self._leaves(request):
                        changed.wait(_LIVE_POLL_SECS)
                        continue
                    lease = self._take(fences, live[1] if live else None, request)
                    if lease:
                        return lease
                    stop.wait(_RETRY_SECS)
                    continue
                if self._me is not None:
                    self._enlist(self._me)
                    if request is not None and request.to == self._me.id and on_request:
                        on_request(request)
            except ZooKeeperUnreachable:
                continue
            if other != reported and on_waiting:
                on_waiting(other)
            reported = other
            self._wait(stop, changed, other)
        return None

    def _wake(self, *_: object) -> None:
        self._changed.set()

    def _enlist(self, me: Contender) -> None:
        best_effort(lambda: self._handovers.enlist(me))

    def _pending_request(self, leaders: Mapping[str, tuple[LeaderRecord, int] | None]) -> HandoverRequest | None:
        """The hand-over from the leader that there is, or was last."""
        return self._handovers.pending_request({name: one[0].epoch for name, one in leaders.items() if one}, self._wake)

    def _leaves(self, request: HandoverRequest | None) -> bool:
        """Tells whether the lease, which is free, is another contender's by a hand-over."""
        if request is None or request.phase != LEAD or (self._me is not None and request.to == self._me.id):
            return False
        chosen = self._handovers.contender(request.to)
        if chosen is None or holder_has_ended(chosen.holder, self.holder):
            return False
        now = self._threads.monotonic()
        if self._left_to[0] != request.id:
            self._left_to = (request.id, now)
        return now - self._left_to[1] < _LEAVE_SECS

    def _waits_for(self, live: tuple[bytes, Znode] | None) -> Holder | None:
        if live is None:
            return None
        holder = decode(self._live_path, live[0], Holder)
        # Our own token: an earlier try whose answer was lost.
        if holder.token == self.holder.token or holder.token in _ended_tokens:
            return None
        if holder_has_ended(holder, self.holder):
            return None
        return holder

    def _wait(self, stop: threading.Event, changed: threading.Event, other: Holder) -> None:
        for _ in range(_REREAD_EVERY_POLLS):
            if changed.wait(_LIVE_POLL_SECS) or stop.is_set() or holder_has_ended(other, self.holder):
                return

    def _read_leaders(self) -> dict[str, tuple[LeaderRecord, int] | None]:
        # Also groups of an earlier form of the topology: their old leader
        # must not go on beside this one.
        known = {name for name in self._zk.children(self._root) if self._zk.exists(f"{self._root}/{name}/leader")}
        leaders: dict[str, tuple[LeaderRecord, int] | None] = {}
        for group in sorted(known | set(self._groups)):
            path = self._zk.path(self._topology, group, "leader")
            found = self._zk.get(path)
            leaders[group] = (decode(path, found[0], LeaderRecord), found[1].znode_version) if found else None
        return leaders

    def _take(
        self,
        leaders: Mapping[str, tuple[LeaderRecord, int] | None],
        dead: Znode | None,
        request: HandoverRequest | None,
    ) -> Lease | None:
        """One multi; None if another was faster or the answer was lost (then look again)."""
        nonce = secrets.token_hex(8)
        fences: dict[str, Fence] = {}
        ops: list[Op] = []
        for group, leader in leaders.items():
            path = self._zk.path(self._topology, group, "leader")
            self._zk.ensure_path(self._zk.path(self._topology, group))
            epoch = leader[0].epoch + 1 if leader else 1
            data = encode(LeaderRecord(epoch, nonce))
            ops.append(SetData(path, data, leader[1]) if leader else Create(path, data))
            fences[group] = Fence(path, leader[1] + 1 if leader else 0, epoch, nonce)
        self._zk.ensure_path(self._root)
        if dead:
            ops.append(Delete(self._live_path, dead.znode_version))
        ops.append(Create(self._live_path, encode(self.holder), ephemeral=True))
        session_number = self._zk.session_number
        try:
            self._zk.multi(ops, ACQUIRE)
        except (MultiRefused, OutcomeUnknown):
            return None
        # A token of its own for every lease: one that has ended is never
        # taken for the next one.
        holder, self.holder = self.holder, replace(self.holder, token=secrets.token_hex(8))
        lease = Lease(
            self._zk, self._live_path, holder, fences, session_number, self._threads, self._handovers, self._me
        )
        if request is not None and request.phase == LEAD and self._me is not None and request.to == self._me.id:
            lease.given_by = request
        try:
            self._zk.sync(self._root)
        except ZooKeeperUnreachable:
            lease.release()
            return None
        return lease


class Lease:
    """The leader's hold on a topology, until it is lost or released.

    Attributes:
        lost: set when another may lead: the ZooKeeper session was lost, or
            the live znode is not this leader's any more. The leader must
            then abandon what is in flight. Nothing depends on its coming in
            time: the fences refuse a write that comes too late.
        given_by: the hand-over by which it was taken; None: it was taken without one.
        gives_way: the hand-over for which the leader is to give it back; None: it is to keep it.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        live_path: str,
        holder: Holder,
        fences: Mapping[str, Fence],
        session_number: int,
        threads: Threads = THREADS,
        handovers: Handovers | None = None,
        me: Contender | None = None,
    ) -> None:
        self.given_by: HandoverRequest | None = None
        self.gives_way: HandoverRequest | None = None
        self._handovers, self._me = handovers, me
        self.fences = dict(fences)
        self.lost = threads.event()
        self.holder = holder
        self._zk, self._live_path, self._session_number = zk, live_path, session_number
        self._released = False
        self._recheck_event = threads.event()
        self._recheck_event.set()
        zk.add_listener(self._on_state)
        if zk.session_number != session_number:
            # Lost between the multi and the listener, which therefore does not tell.
            self.lost.set()
        self._watcher = threads.thread(self._watch, "trident-lease")
        self._watcher.start()

    def verify(self) -> None:
        """Ask now whether this is still the leader of every group."""
        for fence in self.fences.values():
            fence.verify(self._zk)

    def release(self) -> None:
        """Let another lead at once; the caller's work under this lease must have ended.

        Never raises; without a connection the session's end, or the next
        contender in this process, does it.
        """
        if self._released:
            return
        self._released = True
        self._zk.remove_listener(self._on_state)
        self._recheck_event.set()
        self._watcher.join(_POLL_SECS)
        _ended_tokens.add(self.holder.token)
        if self._zk.connected:
            ops: list[Op] = []
            # A contender that replaces the live znode bumps the leader znodes
            # in the same multi: with this check only our own can be deleted.
            for fence in self.fences.values():
                fence.check_op(ops)
            try:
                if ops or self._is_ours():  # a topology without batch groups has no fence
                    self._zk.multi([*ops, Delete(self._live_path)], RELEASE)
            except (Deposed, MultiRefused, OutcomeUnknown, ZooKeeperUnreachable):
                pass
        self.lost.set()

    def _on_state(self, state: ConnectionState) -> None:
        if state is ConnectionState.LOST:
            self.lost.set()
        self._recheck_event.set()

    def _watch(self) -> None:
        while True:
            self._recheck_event.wait()
            self._recheck_event.clear()
            if self._released or self.lost.is_set():
                return
            try:
                if self._zk.connected and not self._is_ours():
                    self.lost.set()
                elif self._handovers is not None and self._zk.connected:
                    self.gives_way = self._pending_request(self._handovers)
            except ZooKeeperUnreachable:
                continue  # the listener tells when the connection is back, or lost

    def _pending_request(self, handovers: Handovers) -> HandoverRequest | None:
        """The hand-over that takes this lease, to a contender that lives; known by a watch."""
        epochs = {name: fence.epoch for name, fence in self.fences.items()}
        request = handovers.pending_request(epochs, self._wake)
        if request is None or request.phase != LEAD:
            return None
        if self._me is not None and request.to == self._me.id:
            return None  # the command has chosen it as a standby, and has seen the epoch in which it leads
        known = self.gives_way is not None and self.gives_way.id == request.id
        return request if known or handovers.contender(request.to) is not None else None

    def _wake(self, *_: object) -> None:
        self._recheck_event.set()

    def _is_ours(self) -> bool:
        found = self._zk.get(self._live_path, self._wake)
        if found is None:
            return False
        try:
            return decode(self._live_path, found[0], Holder).token == self.holder.token
        except CorruptZnode:
            return False


class Successor:
    """Tells a process that has released its lease, and has something left to do, when another leads."""

    def __init__(self, zk: ZooKeeper, topology: str, threads: Threads = THREADS) -> None:
        self._zk, self._live_path, self._threads = zk, zk.path(topology, "live"), threads
        self._checked_at, self._leads = float("-inf"), False

    def leads(self) -> bool:
        """May be read at any rate: it queries ZooKeeper ten times a second at most. Once True it stays so."""
        now = self._threads.monotonic()
        if not self._leads and now - self._checked_at >= _LIVE_POLL_SECS:
            self._checked_at = now
            try:
                found = self._zk.get(self._live_path) if self._zk.connected else None
                self._leads = found is not None and decode(self._live_path, found[0], Holder).token not in _ended_tokens
            except (ZooKeeperUnreachable, CorruptZnode):
                pass  # no process can lead without ZooKeeper
        return self._leads
