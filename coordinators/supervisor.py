"""Supervises one process of a topology: contend, finish the decision, open its batch groups, drive, watch, hand over.

One thread does the following until it is asked to stop, or a group ends with an
error: wait for the lease (other processes of the same topology wait as
standbys), check the identity, finish a pending decision from its manifest, open
the tables, drive every batch group, watch them; when the lease is lost, wait
for its own threads and contend again (docs/semantics.md 9 and 10).

Spark, Delta and the spouts are behind the ports of ``coordinators/ports.py``,
threads and clocks behind ``coordinators/threads.py``: the simulator
(``tests/simulator``) runs this very order of calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trident.coordinators import faults, master
from trident.coordinators.driver import GroupDriver
from trident.coordinators.errors import (
    Deposed,
    ForeignTable,
    Halted,
    OutcomeUnknown,
    SchemaMismatch,
    SessionEnded,
    StagedFileMissing,
    StateAway,
    TableError,
    TridentError,
    ZooKeeperUnreachable,
)
from trident.coordinators.group_store import GroupStore
from trident.coordinators.handing_over import (
    SERVES,
    HandoverAnswer,
    Handovers,
    PendingHandover,
    Step,
    best_effort,
    contender,
    give_way,
)
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.leadership import Leadership, Lease, Successor, current_holder, holder_is_this_process
from trident.coordinators.master import Limits, Mode
from trident.coordinators.ports import (
    BackgroundMerger,
    BatchRunner,
    GroupOpening,
    GroupParts,
    Observer,
    Site,
    SpoutHost,
    SupervisorListener,
    Term,
)
from trident.coordinators.records import GroupRecord, Holder
from trident.coordinators.registration import IdentityDict, Registration
from trident.coordinators.threads import THREADS, Threads
from trident.coordinators.tracebacks import first_line
from trident.coordinators.zookeeper import ZooKeeper, keep_for_creator

# Opens a batch group for a new leader: the pending decision first, then the tables, then spouts and runner.
#
# The order of docs/semantics.md 9. Spark, Delta and the spouts are behind the
# ports of ``coordinators/ports.py``.


@dataclass(frozen=True)
class Supervised:
    """A topology as its supervisor sees it.

    Attributes:
        groups: batch group → the names of its streams.
        code_ids: batch group → the hash of its code.
    """

    name: str
    identity: IdentityDict
    groups: Mapping[str, Sequence[str]]
    code_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """Of a supervisor.

    Attributes:
        message_timeout_secs: bounds the processing of a batch; None = unbounded.
        merge_at_stop_secs: how long the last merge may take; 0 = there is none.
        keeps_for_creator: whether znodes that everybody may change are made this identity's own.
    """

    limits: Limits
    message_timeout_secs: float | None = None
    merge_at_stop_secs: float = 0.0
    keeps_for_creator: bool = False
    poll_secs: float = 0.1


@dataclass(frozen=True)
class RunningGroup:
    """One batch group under one lease."""

    name: str
    parts: GroupParts
    driver: GroupDriver


class LeaseLost(TridentError):
    """The lease was lost while a decision was being finished."""


@dataclass(frozen=True)
class Recovery:
    """Opens the groups of a topology under one lease."""

    zk: ZooKeeper
    topology: Supervised
    site: Site
    listener: SupervisorListener
    settings: Settings
    threads: Threads
    lease: Lease
    term: Term

    def open(self, name: str) -> RunningGroup:
        """Recovery (docs/semantics.md 9): the pending decision first, then the tables, then the new plan."""
        fence = self.lease.fences[name]
        store = GroupStore(self.zk, self.topology.name, name, list(self.topology.groups[name]), fence, self.threads)
        opening = self.site.opening(name, self.term, fence.epoch, lambda: fence.verify(self.zk))
        record, decision, _ = store.load()
        try:
            if record is None:
                opening.check_new()
            elif record.incarnation != self.term.incarnation:
                raise self._other_incarnation(name, record.incarnation)
            else:
                opening.check_stored(store)
        except Halted:
            self.lease.verify()  # a leader that was deposed since it read sees its successor's tables: no halt
            raise
        if record is None:
            store.create(GroupRecord(incarnation=self.term.incarnation, current_txid=1))
        if decision is not None:
            self._finish_decision(store, opening)
        opening.committer.open(store.record)
        parts = opening.parts(store)
        observer = _Observer(name, self.listener, parts.background_merger)
        timeout_secs = self.settings.message_timeout_secs
        driver = self._driver(store, parts.spouts, parts.runner, opening, observer, timeout_secs)
        return RunningGroup(name, parts, driver)

    def _other_incarnation(self, group: str, incarnation: str) -> Halted:
        name = self.topology.name
        return Halted(
            f"batch group {group!r} in ZooKeeper is of another incarnation of {name!r}",
            found=f"incarnation {incarnation}",
            expected=f"incarnation {self.term.incarnation}",
            action=f"`trident repair {name}` shows what can be done and changes nothing; to begin again: "
            f"`trident reset {name}`",
        )

    def _finish_decision(self, store: GroupStore, opening: GroupOpening) -> None:
        """Rolls a decided transaction forward from its manifest alone, by the same driver."""
        decided = store.decision.attempt  # type: ignore[union-attr]  # the store has none any more once it is finished
        self.listener.event(f"finishing the decided transaction {decided} of {store.group}")
        spouts = opening.recovery_spouts(decided.txid)
        driver = self._driver(store, spouts, _NoRunner(), opening, _Observer(store.group, self.listener), None)
        driver.start()
        driver.stop()
        said: BaseException | None = None
        while not driver.wait(self.settings.poll_secs):
            if self.lease.lost.is_set():
                driver.abandon()
            if driver.last_error is not said:
                said = driver.last_error
                self.listener.recovery_waits(f"finishing transaction {decided}: {said}")
        driver.close()
        spouts.close()
        if driver.error is not None:
            raise driver.error
        if self.lease.lost.is_set() or driver.state.mode is not Mode.STOPPED:
            raise LeaseLost("the lease was lost while a decided transaction was being finished")
        store.load()

    def _driver(
        self,
        store: GroupStore,
        spouts: SpoutHost,
        runner: BatchRunner,
        opening: GroupOpening,
        observer: Observer,
        timeout_secs: float | None,
    ) -> GroupDriver:
        committer, limits, explain = opening.committer, self.settings.limits, self.site.explain
        return GroupDriver(store, spouts, runner, committer, observer, limits, timeout_secs, explain, self.threads)


class _NoRunner:
    """The runner while a pending decision is finished: nothing is emitted."""

    def process(self, attempt: TransactionAttempt, metadata: Mapping[str, Any], timeout_secs: float | None) -> Any:
        raise AssertionError("nothing is emitted while a decision is finished")

    def resolve(self, attempt: TransactionAttempt, processed: Any, timeout_secs: float | None) -> Any:
        raise AssertionError("nothing is read while a decision is finished")

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Nothing runs."""


class _Observer:
    """Reports to background merger and listener what a group's driver does."""

    def __init__(
        self, group: str, listener: SupervisorListener, background_merger: BackgroundMerger | None = None
    ) -> None:
        self._group, self._listener, self._background_merger = group, listener, background_merger

    def began(self, attempt: TransactionAttempt) -> None:
        self._listener.began(self._group, attempt)

    def advanced(self, attempt: TransactionAttempt, info: Mapping[str, Any]) -> None:
        if self._background_merger is not None:
            self._background_merger.advanced(attempt.txid)
        self._listener.advanced(self._group, attempt, info)

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        self._listener.failed(self._group, attempt, error)

    def retries(self, attempt: TransactionAttempt, part: str, error: BaseException) -> None:
        self._listener.retries(self._group, attempt, part, error)


log = logging.getLogger("trident.query")

# Errors in a recovery that may be gone at the next try, and those among them that a person must mend.
_MAY_PASS = (OSError, TableError, StateAway, faults.InjectedFault)
_STAYS = (ForeignTable, SchemaMismatch, StagedFileMissing)
# How long a stop may go on behind the time of the last merge.
_AFTER_MERGE_SECS = 30.0

# Errors after which this process is not the leader any more, and contends again.
_DEPOSING = (LeaseLost, Deposed, OutcomeUnknown, ZooKeeperUnreachable)


class Supervisor:
    """Runs one process of a topology; :meth:`run` is its thread, the other methods may be called from any.

    Args:
        site: opens groups; knows warehouse and session.
        holder: this contender; by default this process.

    Attributes:
        stop_requested: set once it is to end.
        leading: set while every group runs under this process's lease.
        ended: set by :meth:`end`.
        changed: notified when one of the two changes.
        groups: what runs now.
        mode: "starting", "standby", "running" or "merging"; the thread that ends it sets the last one.
        standby_of: who leads, as text.
        error: why it has ended; None after a stop.
        leave_at: when a stop goes on without what still runs (monotonic seconds); None = not known yet.
        me: as which hand-overs find this process.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        topology: Supervised,
        site: Site,
        listener: SupervisorListener,
        settings: Settings,
        holder: Holder | None = None,
        threads: Threads = THREADS,
    ) -> None:
        self.topology = topology
        self._zk, self._site, self._listener = zk, site, listener
        self._settings, self._holder, self._threads = settings, holder or current_holder(), threads
        self._handovers = Handovers(zk, topology.name)
        self.me = contender(self._holder, topology.code_ids)
        self._giving: PendingHandover | None = None
        self._exits_after_handover = False  # it has given way for good: once another process leads
        self.stop_requested, self.leading, self.ended = threads.event(), threads.event(), threads.event()
        self.changed = threads.condition()
        self.groups: list[RunningGroup] = []
        self.mode, self.standby_of = "starting", ""
        self.term = Term()
        self.error: BaseException | None = None
        self.leave_at: float | None = None
        self._paused = False
        self._compact_at_end = True
        self._to_merge: list[BackgroundMerger] = []  # of groups that were closed in good order
        self._successor: Successor | None = None
        self._recovering = False
        self._failed_recoveries = self._lost_recovering = 0  # in a row; the second: leases

    # --- control, from any thread ---------------------------------------------------------

    def request_stop(self, compact: bool = True) -> None:
        """Has everything that is decided finished, then ends; ``compact`` False leaves out the last merge."""
        self._compact_at_end = self._compact_at_end and compact
        self.stop_requested.set()
        for group in list(self.groups):
            group.driver.stop()

    def pause(self) -> None:
        """No new transactions, also under the next lease; those that have begun are committed."""
        self._paused = True
        self._post(master.Paused())

    def resume(self) -> None:
        """New transactions again; while this process hands over, once that is taken back."""
        self._paused = False
        if self._giving is None:
            self._post(master.Resumed())

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def successor_leads(self) -> bool:
        """Tells whether another process has taken over since this one gave its lease back."""
        return self._successor is not None and self._successor.leads()

    def end(self) -> None:
        """Wakes those who wait for the end."""
        self.ended.set()
        self._notify()

    @property
    def role(self) -> str:
        """The role of this process, the same for status, page, metrics and ``/health``.

        "leader"; "suspended" while it can neither lead nor wait for another, for ZooKeeper is away; else :attr:`mode`.
        """
        if self.leading.is_set():
            return "leader"
        return "suspended" if self.mode == "standby" and not self._zk.connected else self.mode

    def call_each(self, parts: Iterable[Callable[[], Any]]) -> None:
        """Calls them all, whatever they raise."""
        for part in parts:
            try:
                part()
            except Exception as error:
                # In a session that has ended there is nothing left to cancel.
                level = logging.WARNING if self._site.session_end() is None else logging.DEBUG
                log.log(level, "ending %s: %s: %s", self.topology.name, type(error).__name__, error)

    # --- the thread -----------------------------------------------------------------------

    def run(self) -> None:
        """Until it is asked to stop, or a group has ended with an error, which is in :attr:`error` then."""
        try:
            while not self.stop_requested.is_set() and self.error is None:
                lease = self._contend()
                if lease is None:
                    break
                self._hold(lease)
                self._merge_last()
                if failures := self._failed_recoveries + self._lost_recovering:
                    self.stop_requested.wait(self._settings.limits.backoff_secs(failures))
        except Exception as error:
            self.error = self._site.explain(error)
            log.debug("the topology ended", exc_info=True)
        finally:
            if isinstance(self.error, SessionEnded):
                log.error("%s has ended: %s", self.topology.name, self.error)
            self.call_each([partial(background_merger.stop, compact=False) for background_merger in self._to_merge])

    def _contend(self) -> Lease | None:
        self.mode, self.standby_of = "standby", ""
        name, groups = self.topology.name, self.topology.groups
        leadership = Leadership(self._zk, name, groups, self._holder, self._threads, self.me, self._handovers)
        try:
            return leadership.acquire(
                self.stop_requested,
                on_waiting=lambda holder: self._waits(holder, leadership.holder),
                on_request=self._listener.handover_requested,
            )
        finally:
            self._listener.left_standby()
            self.standby_of = ""

    def _waits(self, other: Holder, me: Holder) -> None:
        if self._exits_after_handover:
            self._listener.event(f"{other.host} pid {other.pid} leads: this process ends, as the hand-over requested")
            self.stop_requested.set()
            return
        self._listener.became_standby(other)
        here = " (this process: another query of it)" if holder_is_this_process(other, me) else ""
        self.standby_of = f"{other.host} pid {other.pid}{here} leads"
        self._listener.event(f"standby: {self.standby_of}")

    def _hold(self, lease: Lease) -> None:
        """Leads until the lease is lost or a group has ended; then gives it back."""
        self._successor, self._exits_after_handover = None, False
        try:
            self._lead(lease)
        except _DEPOSING as lost:
            self._listener.event(f"not the leader any more: {first_line(lost)}")
            self._lost_recovering += self._recovering
        except Exception as error:
            if not self._may_recover_later(error):
                raise
        finally:
            lease.release()
            self._successor = Successor(self._zk, self.topology.name, self._threads)

    def _lead(self, lease: Lease) -> None:
        lost = self._site.warehouse_lost(sure=True)
        if lost is not None:
            raise lost
        self._recovering = True
        self._register(lease)
        recovery = Recovery(
            self._zk, self.topology, self._site, self._listener, self._settings, self._threads, lease, self.term
        )
        groups: list[RunningGroup] = []
        try:
            for name in self.topology.groups:
                groups.append(recovery.open(name))
            self._drive(groups)
            self._watch(groups, lease)
        finally:
            self._giving = None
            self.leading.clear()
            self._listener.stops_serving()
            self._close(groups)
            self._listener.closes()
            self.groups = []

    # --- lead ------------------------------------------------------------------------------

    def _register(self, lease: Lease) -> None:
        registration = Registration(self._zk, self.topology.name)
        if registration.read() is None:
            # Before ZooKeeper is told of a new incarnation: tables of an old one would be adopted and counted twice.
            try:
                self._site.check_first_incarnation()
            except TridentError:
                lease.verify()  # a leader that was deposed since it read sees its successor's tables: no halt
                raise
        incarnation = registration.ensure(self.topology.identity, fences=lease.fences.values())
        self.term = Term(incarnation, max((fence.epoch for fence in lease.fences.values()), default=0))
        self._listener.leads(self.term)
        self._listener.event(f"leads {self.topology.name} (epoch {self.term.epoch})")
        opened = keep_for_creator(self._zk, self.topology.name) if self._settings.keeps_for_creator else 0
        if opened:
            self._listener.event(f"{opened} znodes that everybody could change are left to this identity alone now")

    def _may_recover_later(self, error: Exception) -> bool:
        """Tells whether the cause that ended a recovery may pass: a disk that is full or does not answer, a busy table.

        The lease is given up meanwhile: another process may have a better view of the same disk.
        """
        if not self._recovering or not isinstance(error, _MAY_PASS) or isinstance(error, _STAYS):
            return False
        if isinstance(self._site.explain(error), SessionEnded):  # a JVM that has died shows as a table's error
            return False
        self._failed_recoveries += 1
        away = isinstance(error, StateAway)  # decided rows wait for their store for as long as it takes
        self._listener.recovery_waits(str(error))
        self._listener.event(f"the recovery failed ({self._failed_recoveries}), trying again: {first_line(error)}")
        return away or self._failed_recoveries < self._settings.limits.max_attempts

    # --- drive, watch, close --------------------------------------------------------------

    def _drive(self, groups: list[RunningGroup]) -> None:
        with self.changed:
            self.groups = groups
            self.mode = "running"
        for group in groups:
            group.parts.background_merger.start(group.driver.last_advanced)
            group.driver.start()
            if self._paused:
                self._post(master.Paused())
        self._listener.serves({group.name: partial(getattr, group.driver, "last_advanced") for group in groups})
        self._failed_recoveries, self._lost_recovering, self._recovering = 0, 0, False
        self.leading.set()
        self._notify()

    def _announce_lead(self, lease: Lease) -> bool:
        """Tells a command that has handed over that this process serves, and later ones that it is there.

        Returns:
            whether all of it is told; else it is to be called again.
        """
        if lease.given_by is not None:
            said = HandoverAnswer(lease.given_by.id, SERVES, (f"{self.me.text} leads (epoch {self.term.epoch})",))
            if not best_effort(lambda: self._handovers.answer(said)):
                return False
            lease.given_by = None
        return best_effort(lambda: self._handovers.enlist(self.me))

    def _give_way(self, groups: list[RunningGroup], lease: Lease) -> None:
        """Where a hand-over asks for it, ends what has begun, so that the lease can be given back."""
        request = lease.gives_way
        if self._giving is None and (request is None or self.stop_requested.is_set()):
            return
        drained = all(group.driver.state.is_drained for group in groups)
        id = request.id if request is not None else None
        self._giving, step = give_way(self._giving, id, drained, self._threads.monotonic())
        if step is Step.PAUSE:
            self._listener.event("hands over: no new transactions, then another process leads")
            self._post(master.Paused())
        elif step is Step.RESUME:
            self._listener.event("the hand-over was taken back: continues")
            if not self._paused:
                self._post(master.Resumed())
        elif step is Step.STOP:
            # Not at once: where the chosen one has died, or hangs, no process would lead.
            self._exits_after_handover = request is not None and request.stop_old
            for group in groups:
                group.driver.stop()

    def _watch(self, groups: list[RunningGroup], lease: Lease) -> None:
        """Until all groups have ended, one has failed, or the lease is lost."""
        suspended = announced = False
        while True:
            if lease.lost.is_set():
                self._abandon(groups)
                self._listener.event("the lease is lost: attempts in flight are abandoned")
                return
            gone = self._site.session_end()
            if gone is not None:
                self.stop_requested.set()  # so that a call that hangs now is left behind, too
                raise gone
            announced = announced or (self._zk.connected and self._announce_lead(lease))
            self._give_way(groups, lease)
            ending = self.stop_requested.is_set() or self._giving is not None
            wait_secs = self._settings.poll_secs / (5 if ending else 1)
            ended = [group for group in groups if group.driver.wait(wait_secs)]
            lost = self._site.warehouse_lost(sure=any(group.driver.error is not None for group in ended))
            if lost is not None:
                self._abandon(groups)
                raise lost
            for group in ended:
                if group.driver.error is not None:
                    self.error = group.driver.error
                    self.stop_requested.set()
                elif group.driver.state.mode is Mode.DEPOSED:
                    return
            if self.stop_requested.is_set():
                for group in groups:
                    group.driver.stop()
            if len(ended) == len(groups) and (groups or self.stop_requested.wait(self._settings.poll_secs)):
                return
            if self._zk.connected == suspended:
                suspended = not suspended
                self._post(master.Suspended() if suspended else master.Reconnected())

    def _abandon(self, groups: list[RunningGroup]) -> None:
        """Nothing more is written; called before any call that a JVM without an answer may keep."""
        self.call_each([group.driver.abandon for group in groups])

    def _close(self, groups: list[RunningGroup]) -> None:
        """Ends all that runs under the lease, and waits for it: nothing of it may run when another leads."""
        self._abandon(groups)
        for group in groups:
            self.call_each([group.parts.runner.close, group.parts.spouts.cancel_all])
        for group in groups:
            group.driver.wait()
            group.driver.close()
            group.parts.spouts.close()
            # In good order: where the lease was lost the successor merges.
            wanted = self._compact_at_end and self._settings.merge_at_stop_secs > 0
            if group.driver.state.mode is Mode.STOPPED and wanted:
                self._to_merge.append(group.parts.background_merger)
            else:
                self.call_each([partial(group.parts.background_merger.stop, compact=False)])

    def _merge_last(self) -> None:
        """Brings the plain tables up to date, once another may lead; the one that does merges instead.

        A hand-over must not wait for a MERGE. Two that merge at once can neither lose nor double a row
        (docs/semantics.md 11), so all that matters here is not to be in the successor's way.
        """
        successor = self._successor
        if not self._to_merge or successor is None:
            return
        if not self.stop_requested.is_set():
            # It has handed over, and goes on: its successor merges. Where that one has died a MERGE would keep this
            # process from contending; and its time is that of a stop, which may come much later.
            given, self._to_merge = self._to_merge, []
            self.call_each([partial(background_merger.stop, compact=False) for background_merger in given])
            return
        self.mode = "merging"
        until = self._threads.monotonic() + self._settings.merge_at_stop_secs
        while self._to_merge:
            background_merger = self._to_merge.pop(0)
            left = max(0.0, until - self._threads.monotonic())
            self.leave_at = self._threads.monotonic() + left + _AFTER_MERGE_SECS  # it has a time of its own
            done = background_merger.stop(True, left, successor.leads)
            if not done and not successor.leads():
                for text in background_merger.lagging_tables(self.topology.name):
                    self._listener.notice(text)
        if successor.leads():
            self._listener.event("another process leads, and merges what waits")

    # --- small things ---------------------------------------------------------------------

    def _post(self, event: master.Event) -> None:
        for group in list(self.groups):
            group.driver.post(event)

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()
