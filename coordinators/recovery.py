"""Opens a batch group for a new leader: the pending decision first, then the tables, then spouts and runner.

The order of docs/semantics.md 9. Spark, Delta and the spouts are behind the
ports of ``coordinators/ports.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trident.coordinators.driver import GroupDriver
from trident.coordinators.errors import Halted, TridentError
from trident.coordinators.group_store import GroupStore
from trident.coordinators.leadership import Lease
from trident.coordinators.master import Limits, Mode
from trident.coordinators.ports import (
    BatchRunner,
    GroupOpening,
    GroupParts,
    Observer,
    Site,
    SpoutHost,
    SupervisorListener,
    Term,
    Upkeep,
)
from trident.coordinators.records import GroupRecord
from trident.coordinators.registration import IdentityDict
from trident.coordinators.threads import Threads
from trident.coordinators.transactions import TransactionAttempt
from trident.coordinators.zookeeper import ZooKeeper


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
                raise self._other_life(name, record.incarnation)
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
        observer = _Observer(name, self.listener, parts.upkeep)
        timeout_secs = self.settings.message_timeout_secs
        driver = self._driver(store, parts.spouts, parts.runner, opening, observer, timeout_secs)
        return RunningGroup(name, parts, driver)

    def _other_life(self, group: str, incarnation: str) -> Halted:
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
    """Tells upkeep and listener what a group's driver does."""

    def __init__(self, group: str, listener: SupervisorListener, upkeep: Upkeep | None = None) -> None:
        self._group, self._listener, self._upkeep = group, listener, upkeep

    def began(self, attempt: TransactionAttempt) -> None:
        self._listener.began(self._group, attempt)

    def advanced(self, attempt: TransactionAttempt, info: Mapping[str, Any]) -> None:
        if self._upkeep is not None:
            self._upkeep.advanced(attempt.txid)
        self._listener.advanced(self._group, attempt, info)

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        self._listener.failed(self._group, attempt, error)

    def retries(self, attempt: TransactionAttempt, part: str, error: BaseException) -> None:
        self._listener.retries(self._group, attempt, part, error)
