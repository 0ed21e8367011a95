"""Reports on a running topology: its lines, its progress, its status file, its role towards requests."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pyspark.sql import SparkSession

from trident.config import TridentConfig
from trident.coordinators.handing_over import HandoverRequest
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.master import Mode
from trident.coordinators.ports import Term
from trident.coordinators.records import Holder
from trident.coordinators.supervisor import RunningGroup, Supervisor
from trident.coordinators.zookeeper import ZooKeeper
from trident.drpc.endpoint import DrpcFront
from trident.drpc.requests import DrpcRequests
from trident.planning.groups import GroupPlan
from trident.running.progress import ProgressLog
from trident.running.site import SparkSite
from trident.running.standby import Rehearsals, StandbyCopies, WarmUp
from trident.running.status import (
    AttemptStatus,
    CopyStatus,
    FirstStatus,
    GroupStatus,
    StandbyNote,
    StatusWriter,
    TopologyStatus,
)
from trident.spark.class_archive import make_later
from trident.spouts.host import added
from trident.states.core.place import Place
from trident.states.keyed.background_compactor import VIEWS, BackgroundCompactor
from trident.watching.events import (
    Advanced,
    Began,
    Event,
    Failed,
    LostLead,
    Started,
    Terminated,
    TookOver,
    Waits,
    Watchers,
)
from trident.watching.listeners import Listeners
from trident.watching.metric_facts import MergeFacts
from trident.watching.otel import configured_exporters

log = logging.getLogger("trident.query")
_POLL_SECS = 0.5
# One failure of the same work is a line as often as this.
_QUIET_SECS = 60.0


class Reporter:
    """``trident.coordinators.ports.SupervisorListener`` for people, status readers and requests.

    Attributes:
        supervisor, site, front, rehearsals: set before the supervisor starts.
        errors: group → its last error as text, and when (seconds since the epoch).
        watchers: are told of each event.
        listeners: are told of it in threads of their own.
    """

    supervisor: Supervisor
    site: SparkSite
    front: DrpcFront
    rehearsals: Rehearsals

    def __init__(
        self,
        plans: Sequence[GroupPlan],
        progress: ProgressLog,
        shows: bool,
        writer: StatusWriter,
        keeps_warm: bool,
        note: StandbyNote,
    ) -> None:
        self.progress = progress
        self.errors: dict[str, tuple[str, float]] = {}
        self.watchers = Watchers()
        self.listeners = Listeners(self.watchers)
        self._plans, self._shows, self._writer, self._keeps_warm = plans, shows, writer, keeps_warm
        self._note = note
        self._warm_up: WarmUp | None = None
        self._is_warm = threading.Event()
        self._copies: StandbyCopies | None = None
        self._leads_last = False  # of all that is known here: no other process has led since
        self._final_groups: tuple[GroupStatus, ...] = ()
        self._quiet_until: dict[tuple[str, str], float] = {}  # of a group's state; monotonic seconds
        self._has_advanced = False

    @contextmanager
    def starting(self, warehouse: Place) -> Iterator[None]:
        """Within it the status says that this process starts, or how that has ended, unless another process runs."""
        first = FirstStatus(warehouse, self.progress.name, self.progress.run_id)
        try:
            yield
        except BaseException as error:
            first.failed(error)
            self.progress.close()
            raise

    def starts(self) -> None:
        """The query is made, and its thread begins."""
        self._notify(Started)

    def ends(self) -> None:
        """The last events; nothing runs any more."""
        self._notify(Terminated, error=self.supervisor.error)

    def close_display(self) -> None:
        """The last line of a run; an error is told by who raises it."""
        supervisor, following = self.supervisor, ", ".join(str(group.current_txid) for group in self._final_groups)
        goes_on = f"; the next start continues with transaction {following}" if following else ""
        text = f"{self.progress.name}: stopped{goes_on}" if supervisor.error is None else ""
        log.info(text)
        self.progress.close(text)

    def _notify(self, kind: type[Event], **facts: Any) -> None:
        progress = self.progress
        self.watchers.notify(kind(topology=progress.name, incarnation=progress.id, run_id=progress.run_id, **facts))

    # --- the listener's calls ---------------------------------------------------------------------

    def event(self, text: str) -> None:
        log.info(text)
        self.progress.event(text)

    def notice(self, text: str) -> None:
        if self._shows:
            self.event(text)
        else:
            log.warning("%s: %s", self.progress.name, text)

    def became_standby(self, holder: Holder) -> None:
        self._leads_last = False
        self._notify(Waits, host=holder.host, pid=holder.pid)
        self.front.became_standby()
        self._writer.forget()
        self._note.became_standby()
        if self._keeps_warm and self._warm_up is None:
            site = self.site
            self._warm_up = WarmUp(
                site.spark,
                site.engine,
                site.warehouse,
                site.topology,
                self._plans,
                self._on_warm,
            )
            self._warm_up.start()
            copies = [found for plan in self._plans if (found := site.copies(plan.name)) is not None]
            self._copies = StandbyCopies(copies)
            self._copies.start()

    def _on_warm(self, secs: float) -> None:
        self._is_warm.set()
        self.event(f"standby: warm after {secs:.1f} s")

    def wait_warm(self, secs: float) -> bool:
        """Until this process is warm, where it is to be; tells whether it is."""
        return not self._keeps_warm or self._is_warm.wait(secs)

    def left_standby(self) -> None:
        self.rehearsals.stop()
        self._note.left_standby()
        if self._copies is not None:
            self._copies.stop()
            self._copies = None
        if self._warm_up is not None:
            self._warm_up.stop()
            self._warm_up = None

    def handover_requested(self, request: HandoverRequest) -> None:
        self.rehearsals.handover_requested(request)

    def leads(self, term: Term) -> None:
        self.progress.id = term.incarnation
        self._leads_last = True
        self._notify(TookOver, epoch=term.epoch)

    def recovery_waits(self, cause: str) -> None:
        """Until there are groups again the status has the cause, and nothing else to say of them."""
        self._final_groups = tuple(
            GroupStatus(plan.name, 0, "recovering", (), 0.0, 0.0, {}, f"recovery: {cause}", time.time(), None)
            for plan in self._plans
        )
        self._writer.update(self.status())

    def serves(self, advanced: Mapping[str, Callable[[], int]]) -> None:
        site, term = self.site, self.supervisor.term
        self.front.leads(
            DrpcRequests(
                site.spark,
                site.warehouse,
                site.topology,
                self.front.plans,
                advanced,
                term.incarnation,
                term.epoch,
                site.copies,
            )
        )

    def stops_serving(self) -> None:
        self.front.stops_leading()

    def closes(self) -> None:
        self._final_groups = self._group_statuses() or self._final_groups
        self._notify(LostLead)

    def began(self, group: str, attempt: TransactionAttempt) -> None:
        self._notify(Began, group=group, txid=attempt.txid, attempt_id=attempt.attempt_id)

    def advanced(self, group: str, attempt: TransactionAttempt, info: Mapping[str, Any]) -> None:
        if not self._has_advanced:
            self._has_advanced = True
            make_later(self.site.spark)
        record = self.progress.transaction(
            {
                "group": group,
                "batch_id": attempt.txid,
                "attempt": attempt.attempt_id,
                "num_input_rows": info["input_rows"],
                "duration_ms": info["duration_ms"],
                "in_flight": info["in_flight"],
                "states": info["rows"],
            },
            info["recovered"],
        )
        self._notify(
            Advanced,
            group=group,
            txid=attempt.txid,
            attempt_id=attempt.attempt_id,
            progress=record,
            published=info["published"],
            recovered=info["recovered"],
            written_bytes=info.get("bytes", {}),
        )

    def failed(self, group: str, attempt: TransactionAttempt, error: BaseException) -> None:
        self.errors[group] = (f"attempt {attempt}: {error}", time.time())  # the driver has logged it
        attempt_id = attempt.attempt_id if attempt.attempt_id >= 0 else None
        part = "ready" if attempt_id is None else "processing"
        self._notify(Failed, group=group, txid=attempt.txid, attempt_id=attempt_id, part=part, error=error)

    def retries(self, group: str, attempt: TransactionAttempt, part: str, error: BaseException) -> None:
        self._notify(Failed, group=group, txid=attempt.txid, attempt_id=attempt.attempt_id, part=part, error=error)

    # --- other things that go wrong ----------------------------------------------------------------

    def compaction_failed(self, group: str, state: str, error: BaseException) -> None:
        doing = "recording" if state == VIEWS else "merging"
        text = f"{doing} {state} in the background failed, trying again: {self.site.explain(error)}"
        self.errors[group] = (text, time.time())
        now = time.monotonic()
        if now >= self._quiet_until.get((group, state), now):  # it is tried again every few seconds
            self._quiet_until[group, state] = now + _QUIET_SECS
            self.event(text)

    def server_problem(self, text: str) -> None:
        """The embedded ZooKeeper server does not answer."""
        self.errors.update({plan.name: (text, time.time()) for plan in self._plans})
        self.event(text)

    # --- status -----------------------------------------------------------------------------------

    def refresh_status(self) -> None:
        """A thread: status and display once in a while, off every critical path; it may hang where the disk does."""
        while not self.supervisor.ended.wait(_POLL_SECS):
            try:
                self._show_status()
            except Exception as error:  # for show only: it must go on
                log.debug("the status of %s cannot be shown: %s", self.progress.name, error)

    def _show_status(self) -> None:
        supervisor = self.supervisor
        if supervisor.successor_leads:
            self._writer.forget()  # what waits since before is older than the successor's
        self._writer.flush()
        self._note.renew()
        self.front.listen_again()
        if supervisor.leading.is_set():
            in_flight = sum(len(group.driver.state.live) for group in supervisor.groups)
            self.progress.activity(in_flight, self._backlog())
            self._writer.update(self.status())
        elif supervisor.mode == "merging" and not supervisor.successor_leads:
            self._writer.update(self.status())

    def write_last_status(self) -> None:
        # A standby must not write over the leader's, nor a process that has a successor already.
        if self._leads_last and not self.supervisor.successor_leads:
            self._writer.update(self.status())
            self._writer.close()
        else:
            self._writer.discard()
        self._note.renew()

    def close_copies(self) -> None:
        """Leaves the local copies of a process that waited to the next one on this host."""
        for plan in self._plans:
            copies = self.site.copies(plan.name)
            if copies is not None:
                copies.close()

    def ask_backlogs(self) -> None:
        """A thread: the spouts' hosts ask how much waits. A spout may hang here, and keeps no other thread waiting."""
        while not self.supervisor.ended.is_set():
            began = time.monotonic()
            for group in list(self.supervisor.groups):
                for text in group.parts.spouts.ask_backlog(self.site.explain):
                    self.errors[group.name] = (text, time.time())
                    log.info(text)
            # Counting may take long: at most a tenth of the time goes to it.
            self.supervisor.ended.wait(max(_POLL_SECS, 9 * (time.monotonic() - began)))

    def _backlog(self) -> dict[str, int]:
        return added([group.parts.spouts.backlog() for group in list(self.supervisor.groups)])

    def status(self) -> TopologyStatus:
        """Returns what the topology does now."""
        supervisor = self.supervisor
        return TopologyStatus(
            self.progress.name,
            supervisor.term.incarnation,
            self.progress.run_id,
            supervisor.term.epoch,
            supervisor.role,
            error=str(supervisor.error) if supervisor.error else None,
            groups=self._group_statuses() or self._final_groups,
        )

    def _group_statuses(self) -> tuple[GroupStatus, ...]:
        return tuple(self._group_status(group) for group in list(self.supervisor.groups))

    def _group_status(self, group: RunningGroup) -> GroupStatus:
        state, began = group.driver.state, group.driver.began_at()
        error, last = self.errors.get(group.name), group.driver.last_error
        if last is not None and (error is None or group.driver.last_error_at > error[1]):
            error = (str(last), group.driver.last_error_at)  # what a decided transaction waits for
        mode = "paused" if state.paused else "suspended" if state.suspended else state.mode.value
        rows, txids = self.progress.rates(group.name)
        attempts = tuple(
            AttemptStatus(
                live.attempt.txid,
                live.attempt.attempt_id,
                live.stage.phase.value,
                began.get(live.attempt, 0.0),
                state.failures_of(live.attempt.txid).failures,
            )
            for live in state.live
        )
        return GroupStatus(
            group.name,
            state.current,
            mode,
            attempts,
            rows,
            txids,
            dict(group.parts.spouts.backlog()),
            error[0] if error else None,
            error[1] if error else None,
            str(group.driver.error) if state.mode is Mode.HALTED else None,
            self._copies_of(group.name),
            tuple(self.site.outside[group.name].health()),
            views.last_txid if (views := self.site.views.get(group.name)) is not None else None,
        )

    def _copies_of(self, group: str) -> tuple[CopyStatus, ...]:
        copies, on_hosts = self.site.copies(group), self.site.host_copies.get(group)
        found = [] if copies is None else [*copies.health()]
        if on_hosts is not None:
            found += [one for one in on_hosts.health() if copies is None or one.condition != "waiting"]
        return tuple(CopyStatus(**asdict(one)) for one in found)


# Puts metrics to a topology that is being started: where its port is open, or OpenTelemetry has an exporter.


def measure(
    reporter: Reporter,
    plans: Sequence[GroupPlan],
    config: TridentConfig,
    warehouse: Place,
    zk: ZooKeeper,
    spark: SparkSession,
) -> None:
    """Adds a watcher and the route ``/metrics``; nothing where no program could read the metrics.

    Raises:
        ConfigError: OpenTelemetry's environment variables cannot be used.
    """
    if not config.metrics or not (config.http or configured_exporters(os.environ)):
        return
    from trident.watching.metrics import Metrics  # time: 60 ms, only where there are metrics

    observed = RunningTopology(reporter, plans, warehouse, zk, spark)
    metrics = Metrics(reporter.progress.name, observed, config.metrics_interval_secs)
    zk.timed = metrics.instruments.zookeeper
    reporter.watchers.add(metrics.watch)
    reporter.front.routes = [*reporter.front.routes, metrics.route]


class RunningTopology:
    """A topology of this process as metrics observe it: ``trident.watching.metrics.Observed``."""

    def __init__(
        self, reporter: Reporter, plans: Sequence[GroupPlan], warehouse: Place, zk: ZooKeeper, spark: SparkSession
    ) -> None:
        self.warehouse = warehouse
        self._reporter, self._zk, self._spark = reporter, zk, spark
        self._states = [(plan.name, binding.name) for plan in plans for binding in plan.bindings]

    def status(self) -> TopologyStatus:
        return self._reporter.status()

    def merges(self) -> Mapping[str, Mapping[str, MergeFacts]]:
        found: dict[str, dict[str, MergeFacts]] = {}
        for group in list(self._reporter.supervisor.groups):
            background_merger = group.parts.background_merger
            if isinstance(background_merger, BackgroundCompactor):
                found[group.name] = {
                    state: MergeFacts(upto, totals.count, totals.seconds, totals.failures)
                    for state, (upto, totals) in background_merger.merged.items()
                }
        return found

    def failures(self) -> Mapping[str, tuple[int, float]]:
        found = {}
        for group in list(self._reporter.supervisor.groups):
            driver = group.driver
            most = max(
                (count.failures for txid, count in driver.state.failures if txid >= driver.state.current), default=0
            )
            since = driver.unready
            found[group.name] = most, 0.0 if since is None else max(time.monotonic() - since[0], 0.0)
        return found

    def zookeeper_connected(self) -> bool:
        return self._zk.connected

    def states(self) -> Sequence[tuple[str, str]]:
        return self._states

    def jvm(self) -> Any:
        return self._spark.sparkContext._jvm
