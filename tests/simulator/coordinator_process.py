"""One simulated coordinator process: the production supervisor, with a simulated site and listener.

Production code in it: Supervisor and Recovery (lead, finish the decision, open,
drive, watch, hand over), ZooKeeper, Leadership, Lease, Registration, GroupStore,
GroupDriver, the pure coordinator, TridentSpoutHost, RecoverySpouts and the
committer's publishing. Simulated are the ports: spouts, runner, tables, upkeep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from tests.simulator.checker import Checker
from tests.simulator.copies import Copies, ProcessCopies
from tests.simulator.faults import Faults
from tests.simulator.sources import SimExecutor, SimRunner, Source
from tests.simulator.tables import Engine, SimCommitter, Warehouse
from tests.simulator.threads import SimThreads
from tests.simulator.world import Process, World
from tests.simulator.zookeeper_client import SimKazooClient
from tests.simulator.zookeeper_server import Ensemble
from trident.coordinators import master
from trident.coordinators.driver import GroupDriver
from trident.coordinators.errors import Halted, ZooKeeperUnreachable
from trident.coordinators.master import Limits, Mode
from trident.coordinators.ports import GroupParts, StoredGroup, Term
from trident.coordinators.records import Holder
from trident.coordinators.supervisor import RunningGroup, Settings, Supervised, Supervisor
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ConnectionState, ZooKeeperConfig
from trident.spouts.host import RecoverySpouts, TridentSpoutHost

TOPOLOGY = "wc"
_WATCH_SECS = 1.0


class Shared:
    """What survives every process, and the settings that all have."""

    def __init__(
        self,
        world: World,
        faults: Faults,
        sources: dict[str, Source],
        limits: Limits,
        checker: Checker,
        ensemble: Ensemble,
    ) -> None:
        self.world, self.faults, self.sources, self.limits = world, faults, sources, limits
        self.checker, self.ensemble = checker, ensemble
        self.warehouse = Warehouse()
        self.copies = Copies(world, faults)
        self.group = min(sources)
        self.session_timeout_secs = world.rng.choice((4.0, 10.0, 20.0))
        self.message_timeout_secs = world.rng.choice((None, 1.0, 1.0, 6.0))
        self.merge_at_stop_secs = world.rng.choice((0.0, 5.0))

    def supervised(self) -> Supervised:
        names = sorted(self.sources)
        streams = {name: "Simulated" for name in names}
        identity = {"streams": streams, "states": {}, "groups": {self.group: names}}
        return Supervised(TOPOLOGY, identity, {self.group: list(self.sources)})

    def settings(self) -> Settings:
        return Settings(
            self.limits,
            self.message_timeout_secs,
            self.merge_at_stop_secs,
            keeps_for_creator=False,
            poll_secs=_WATCH_SECS,
        )


class CoordinatorProcess:
    """From the start of one process to its end; the supervisor's listener, too.

    Attributes:
        error: why it ended, None after a stop.
        ended: whether it has.
        leading: from the lease to the close of the groups.
        leases: how many it has had.
    """

    def __init__(
        self, shared: Shared, process: Process, host: str, on_end: Callable[[CoordinatorProcess], None]
    ) -> None:
        self.shared, self.process = shared, process
        self.world, self.faults = shared.world, shared.faults
        self.threads = SimThreads(process)
        self.leading = self.ended = False
        self.leases = 0
        self.error: BaseException | None = None
        self._on_end = on_end
        self.client: SimKazooClient | None = None
        config = ZooKeeperConfig("simulated", session_timeout_secs=shared.session_timeout_secs)
        self.zk = ZooKeeper(config, self.threads, self._make_client)
        self.zk.add_listener(self._on_state)
        holder = Holder(host, "boot", process.life, f"{process}", "token")
        site = SimSite(shared, process, self.threads, host)
        self.supervisor = Supervisor(self.zk, shared.supervised(), site, self, shared.settings(), holder, self.threads)
        self.task = process.spawn(self._main)

    @property
    def driver(self) -> GroupDriver | None:
        groups = self.supervisor.groups
        return groups[0].driver if groups else None

    @property
    def waiting(self) -> bool:
        return self.supervisor.mode == "standby" and not self.leading

    def stop(self) -> None:
        driver = self.driver
        if driver is not None and driver.state.live and driver.state.live[0].stage >= master.Stage.DECIDING:
            self.world.reached("stop finishes what is decided")
        self.supervisor.request_stop()

    def _make_client(self, **options: Any) -> SimKazooClient:
        self.client = SimKazooClient(self.shared.ensemble, self.process, self.faults, **options)
        self.client.on_session_lost = self._session_lost
        return self.client

    def _session_lost(self) -> None:
        live = self.driver.state.live if self.driver is not None and self.leading else ()
        self.world.reached("session lost " + (f"while {live[0].stage.name}" if live else "with nothing live"))

    def _on_state(self, state: ConnectionState) -> None:
        if self.driver is not None:
            self.world.reached("reconnected" if state is ConnectionState.CONNECTED else "suspended")

    def _main(self) -> None:
        """The process's main thread."""
        try:
            self.zk.connect()
            self.supervisor.run()
            self.error = self.supervisor.error
        except ZooKeeperUnreachable as error:
            self.error = error
        finally:
            if not self.process.dead:
                self.zk.close()
                self.ended = True
                self._on_end(self)

    # --- what the supervisor tells ---------------------------------------------------------------

    def event(self, text: str) -> None:
        self.world.tell("says:", text)
        if text.startswith("hands over"):
            self.world.reached("a leader gives way to a hand-over")
            self.shared.checker.on_gives_way(self.process, self.supervisor.term.epoch)
        elif text.startswith("the hand-over was taken back"):
            self.world.reached("a hand-over is taken back in time")

    def notice(self, text: str) -> None:
        self.world.tell("says:", text)

    def became_standby(self, holder: Holder) -> None:
        self.world.tell("waits for", holder.started)

    def left_standby(self) -> None:
        pass

    def handover_requested(self, request: Any) -> None:
        self.world.reached("a standby is asked to take over")

    def leads(self, term: Term) -> None:
        self.leading = True
        self.leases += 1
        if self.leases > 1:
            self.world.reached("a process leads again")

    def recovery_waits(self, cause: str) -> None:
        self.world.reached("a recovery waits for what has failed")

    def serves(self, advanced: Mapping[str, Callable[[], int]]) -> None:
        self.shared.checker.on_serves(self.process)
        for group in self.supervisor.groups:
            self._watch_late_reports(group)

    def _watch_late_reports(self, group: RunningGroup) -> None:
        runner: Any = group.parts.runner
        runner.is_live = lambda attempt: group.driver.state.live_attempt(attempt) is not None

    def stops_serving(self) -> None:
        pass

    def closes(self) -> None:
        self.leading = False
        driver = self.driver
        if driver is not None and driver.state.mode is Mode.STOPPED and not self.process.dead:
            self.world.reached("stopped as asked")
            self.shared.checker.on_stopped(self.process)

    def advanced(self, group: str, attempt: Any, info: Any) -> None:
        pass

    def began(self, group: str, attempt: Any) -> None:
        pass

    def failed(self, group: str, attempt: Any, error: BaseException) -> None:
        pass

    def retries(self, group: str, attempt: Any, part: str, error: BaseException) -> None:
        pass


class SimSite:
    """``trident.coordinators.ports.Site`` of one process."""

    def __init__(self, shared: Shared, process: Process, threads: SimThreads, host: str) -> None:
        self.shared, self.process, self.threads, self.host = shared, process, threads, host

    def opening(self, group: str, term: Term, epoch: int, check_fence: Callable[[], None]) -> SimOpening:
        return SimOpening(self, group, term, epoch, check_fence)

    def check_first_incarnation(self) -> None:
        if any(table.versions for table in self.shared.warehouse.tables.values()):
            raise Halted("there are tables, and ZooKeeper knows of no life")

    def warehouse_lost(self, sure: bool) -> Exception | None:
        return None

    def session_end(self) -> Exception | None:
        return None

    def explain(self, error: BaseException) -> BaseException:
        return error


class SimOpening:
    """``trident.coordinators.ports.GroupOpening`` under one lease of one process."""

    def __init__(self, site: SimSite, group: str, term: Term, epoch: int, check_fence: Callable[[], None]) -> None:
        self._shared, self._process, self._threads = site.shared, site.process, site.threads
        self._names, self._epoch, self._check_fence = (TOPOLOGY, group, term.incarnation), epoch, check_fence
        self._site = site

    @cached_property
    def committer(self) -> SimCommitter:
        shared, process = self._shared, self._process
        engine = Engine(process, shared.faults, shared.warehouse, shared.checker)
        return SimCommitter(
            engine, process, shared.faults, shared.warehouse, self._names, self._epoch, self._check_fence
        )

    def check_new(self) -> None:
        self._site.check_first_incarnation()

    def check_stored(self, store: StoredGroup) -> None:
        """No fork is simulated, and so no given batches."""

    def recovery_spouts(self, finishing: int) -> RecoverySpouts:
        self._shared.world.tell("finishes", finishing)
        return RecoverySpouts(self._executor, self._shared.sources, finishing)

    def parts(self, store: StoredGroup) -> GroupParts:
        shared, process = self._shared, self._process
        shared.checker.on_open(process)
        executors = {name: self._executor(name) for name in shared.sources}
        for name, executor in executors.items():
            pins, committed = store.pins.get(name, {}), store.opaque_metadata.get(name, {})
            if pins:
                executor.resume(max(pins), pins[max(pins)])
            elif committed:
                positions = {partition: metadata for partition, (_, metadata) in committed.items()}
                executor.resume(max(txid for txid, _ in committed.values()), positions)
        copies = (
            ProcessCopies(shared, process, self._site.host, self._names, self._threads.lock)
            if shared.copies.are_used
            else None
        )
        runner = SimRunner(process, self._threads, shared.faults, shared.sources, shared.checker, copies)
        return GroupParts(TridentSpoutHost(executors), runner, SimUpkeep(shared, process))

    def _executor(self, name: str) -> Any:
        return SimExecutor(self._process, self._shared.faults, self._shared.sources[name], self._shared.checker)


class SimUpkeep:
    """``trident.coordinators.ports.Upkeep``: a last merge that takes a while."""

    def __init__(self, shared: Shared, process: Process) -> None:
        self._shared, self._process = shared, process

    def start(self, advanced: int) -> None:
        pass

    def advanced(self, txid: int) -> None:
        self._shared.checker.on_upkeep(txid)

    def stop(
        self, compact: bool = True, timeout_secs: float = 60.0, give_up: Callable[[], bool] = lambda: False
    ) -> bool:
        world, left = self._shared.world, timeout_secs
        if not compact:
            return True
        needs = world.rng.random() * 8.0
        while needs > 0 and left > 0:
            if give_up():
                world.reached("the last merge is left to the successor")
                return False
            world.sleep(0.5)
            needs, left = needs - 0.5, left - 0.5
        return needs <= 0

    def lagging_tables(self, topology: str) -> list[str]:
        return ["a table is behind"]
