"""One simulated coordinator process, as ``trident.running.query.TopologyQuery`` runs one.

Production code in it: ZooKeeper, Leadership, Lease, Registration, GroupStore,
GroupDriver, the pure coordinator, TridentSpoutHost, RecoverySpouts and the
committer's publishing. What is written here again is TopologyQuery's order of
calls (lead, finish the decision, open the tables, drive, watch), which is
bound to Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulator.checker import Checker
from tests.simulator.faults import Faults
from tests.simulator.sources import SimExecutor, SimRunner, Source
from tests.simulator.tables import Engine, SimCommitter, Warehouse
from tests.simulator.threads import SimThreads
from tests.simulator.world import Process, World
from tests.simulator.zookeeper_client import SimKazooClient
from tests.simulator.zookeeper_server import Ensemble
from trident.coordinators import master
from trident.coordinators.driver import GroupDriver
from trident.coordinators.errors import Deposed, OutcomeUnknown, ZooKeeperUnreachable
from trident.coordinators.group_store import GroupStore
from trident.coordinators.leadership import Leadership, Lease
from trident.coordinators.master import Limits, Mode
from trident.coordinators.records import GroupRecord, Holder
from trident.coordinators.registration import Registration
from trident.coordinators.zookeeper import ZooKeeper, ZooKeeperConfig
from trident.spouts.host import RecoverySpouts, TridentSpoutHost

TOPOLOGY = "wc"
LEFT = (Deposed, OutcomeUnknown, ZooKeeperUnreachable)
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
        self.group = min(sources)
        self.session_timeout_secs = world.rng.choice((4.0, 10.0, 20.0))
        self.message_timeout_secs = world.rng.choice((None, 1.0, 1.0, 6.0))


class _NoRunner:
    def cancel(self, attempt: Any) -> None:
        pass


class _LeaseLost(Exception):
    """Contend again."""


class CoordinatorProcess:
    """From the start of one process to its end.

    Attributes:
        error: why it ended, None after a stop.
        ended: whether it has.
    """

    def __init__(
        self, shared: Shared, process: Process, host: str, on_end: Callable[[CoordinatorProcess], None]
    ) -> None:
        self.shared, self.process, self.host_name = shared, process, host
        self.world, self.faults = shared.world, shared.faults
        self.threads = SimThreads(process)
        self.stopping = self.threads.event()
        self.driver: GroupDriver | None = None
        self.leading = self.waiting = False
        self.error: BaseException | None = None
        self.ended = False
        self._on_end = on_end
        self.client: SimKazooClient | None = None
        config = ZooKeeperConfig("simulated", session_timeout_secs=shared.session_timeout_secs)
        self.zk = ZooKeeper(config, self.threads, self._make_client)
        self.task = process.spawn(self._main)

    def _make_client(self, **options: Any) -> SimKazooClient:
        self.client = SimKazooClient(self.shared.ensemble, self.process, self.faults, **options)
        self.client.on_session_lost = self._session_lost
        return self.client

    def _session_lost(self) -> None:
        live = self.driver.state.live if self.driver is not None and self.leading else ()
        self.world.reached("session lost " + (f"while {live[0].stage.name}" if live else "with nothing live"))

    # --- the process's main thread -------------------------------------------------------------

    def _main(self) -> None:
        try:
            self.zk.connect()
            self._supervise()
        except ZooKeeperUnreachable as error:
            self.error = error
        except Exception as error:
            self.error = error
        finally:
            if not self.process.dead:
                self.zk.close()
                self.ended = True
                self._on_end(self)

    def _supervise(self) -> None:
        leases = 0
        while not self.stopping.is_set():
            self.waiting = True
            lease = self._leadership().acquire(self.stopping, on_waiting=self._on_waiting)
            self.waiting = False
            if lease is None:
                return
            leases += 1
            if leases > 1:
                self.world.reached("a process leads again")
            try:
                self._lead(lease)
            except (_LeaseLost, *LEFT) as lost:
                self.world.tell("not the leader any more:", type(lost).__name__)
            finally:
                lease.release()

    def _leadership(self) -> Leadership:
        holder = Holder(self.host_name, "boot", self.process.life, f"{self.process}", "token")
        return Leadership(self.zk, TOPOLOGY, [self.shared.group], holder, self.threads)

    def _on_waiting(self, holder: Holder) -> None:
        self.world.tell("waits for", holder.started)

    def _lead(self, lease: Lease) -> None:
        self.leading = True
        shared, world = self.shared, self.world
        try:
            incarnation = Registration(self.zk, TOPOLOGY).ensure(self._identity(), fences=lease.fences.values())
            fence = lease.fences[shared.group]
            world.tell("leads, epoch", fence.epoch)
            store = GroupStore(self.zk, TOPOLOGY, shared.group, list(shared.sources), fence, self.threads)
            record, decision, _ = store.load()
            if record is None:
                store.create(GroupRecord(incarnation=incarnation, current_txid=1))
            engine = Engine(self.process, self.faults, shared.warehouse, shared.checker)
            committer = SimCommitter(
                engine,
                self.process,
                self.faults,
                shared.warehouse,
                (TOPOLOGY, shared.group, incarnation),
                fence.epoch,
                lambda: fence.verify(self.zk),
            )
            if decision is not None:
                self._finish_decision(store, committer, lease)
            committer.open(store.record)
            self._drive(store, committer, lease)
        finally:
            self.leading = False

    def _identity(self) -> dict[str, Any]:
        names = sorted(self.shared.sources)
        return {"streams": {name: "Simulated" for name in names}, "states": {}, "groups": {names[0]: names}}

    def _finish_decision(self, store: GroupStore, committer: SimCommitter, lease: Lease) -> None:
        self.world.tell("finishes", *store.decision.attempt)
        spouts = RecoverySpouts(self._make_executor, self.shared.sources, store.decision.txid)
        driver = self.driver = GroupDriver(
            store,
            spouts,
            _NoRunner(),
            committer,
            _Observer(),
            self.shared.limits,
            None,
            threads=self.threads,  # type: ignore[arg-type]
        )
        driver.start()
        driver.stop()
        while not driver.wait(_WATCH_SECS):
            if lease.lost.is_set():
                driver.abandon()
        driver.close()
        if driver.error is not None:
            raise driver.error
        if lease.lost.is_set() or driver.state.mode is not Mode.STOPPED:
            raise _LeaseLost
        store.load()

    def _make_executor(self, name: str) -> Any:
        return SimExecutor(self.process, self.faults, self.shared.sources[name], self.shared.checker)

    def _make_host(self, store: GroupStore) -> TridentSpoutHost:
        executors = {}
        for name in self.shared.sources:
            executor = executors[name] = self._make_executor(name)
            pins, committed = store.pins.get(name, {}), store.opaque_metadata.get(name, {})
            if pins:
                executor.resume(max(pins), pins[max(pins)])
            elif committed:
                positions = {partition: metadata for partition, (_, metadata) in committed.items()}
                executor.resume(max(txid for txid, _ in committed.values()), positions)
        return TridentSpoutHost(executors)

    def _drive(self, store: GroupStore, committer: SimCommitter, lease: Lease) -> None:
        shared = self.shared
        runner = SimRunner(self.process, self.threads, self.faults, shared.sources, shared.checker)
        driver = self.driver = GroupDriver(
            store,
            self._make_host(store),
            runner,
            committer,
            _Observer(),
            shared.limits,
            shared.message_timeout_secs,
            threads=self.threads,
        )
        runner.is_live = lambda attempt: driver.state.live_attempt(attempt) is not None
        driver.start()
        try:
            self._watch(driver, lease)
        finally:
            if not self.process.dead:
                driver.abandon()
                runner.close()
                driver.wait()
                driver.close()

    def _watch(self, driver: GroupDriver, lease: Lease) -> None:
        suspended = False
        while True:
            if lease.lost.is_set():
                raise _LeaseLost
            if driver.wait(_WATCH_SECS):
                if driver.error is not None:
                    raise driver.error
                if driver.state.mode is Mode.STOPPED:
                    self.world.reached("stopped as asked")
                    self.shared.checker.on_stopped(self.process)
                return
            if self.stopping.is_set():
                if driver.state.live and driver.state.live[0].stage >= master.Stage.DECIDING:
                    self.world.reached("stop finishes what is decided")
                driver.stop()
            if self.zk.connected == suspended:
                suspended = not self.zk.connected
                self.world.reached("suspended" if suspended else "reconnected")
                driver.tell(master.Suspended() if suspended else master.Reconnected())


class _Observer:
    def advanced(self, attempt: Any, info: Any) -> None:
        pass

    def failed(self, attempt: Any, error: BaseException) -> None:
        pass
