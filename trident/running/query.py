"""A running topology: contends for leadership, recovers, drives its groups, and stops.

One supervisor thread does the following until it is stopped, or a group ends
with an error: wait for the lease (other processes of the same topology wait
as standbys), check the identity, finish a pending decision from its manifest,
open the tables, drive every batch group; when the lease is lost, wait for its
own threads and contend again.
"""

from __future__ import annotations

import copy
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.config import TridentConfig, as_config
from trident.coordinators import faults
from trident.coordinators.driver import GroupDriver
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.errors import (
    CoordinationError,
    Deposed,
    ForeignTable,
    Halted,
    OutcomeUnknown,
    SchemaMismatch,
    SessionEnded,
    SourceError,
    StagedFileMissing,
    TableError,
    TopologyError,
    TridentError,
    ZooKeeperUnreachable,
)
from trident.coordinators.group_store import GroupStore
from trident.coordinators.leadership import Holder, Leadership, Lease, Successor, holder_is_here
from trident.coordinators.master import Limits, Mode
from trident.coordinators.records import GroupRecord
from trident.coordinators.registration import Registration
from trident.coordinators.transactions import TransactionAttempt
from trident.coordinators.znode_access import keep_for_creator
from trident.coordinators.zookeeper import ZooKeeper, ZooKeeperConfig
from trident.drpc.endpoint import DrpcFront
from trident.drpc.requests import TIMEOUT_SECS, Answer, DrpcRequests
from trident.planning.groups import GroupPlan, plan
from trident.running import last_resort
from trident.running.cluster_probe import prepare_cluster
from trident.running.embedded_keeper import EmbeddedKeeper
from trident.running.executors import make_executor
from trident.running.interrupts import prepare
from trident.running.one_host import check_topology
from trident.running.positions_check import check_by_manifest
from trident.running.progress import ProgressLog, make_display
from trident.running.registry import add, make_room, place_of
from trident.running.runner import SparkBatchRunner
from trident.running.session_end import session_end
from trident.running.shown import query_facts
from trident.running.status import AttemptStatus, GroupStatus, StatusWriter, TopologyStatus, status_path
from trident.running.storage_failures import FailureExplainer, written_folders
from trident.running.stuck_calls import stuck_calls
from trident.running.warehouse_place import WarehousePlace
from trident.running.warm_up import WarmUp
from trident.running.zookeeper_access import warn_if_open
from trident.spark.session import check_session, make_session
from trident.spouts.contracts import SpoutContext
from trident.spouts.executors import SpoutExecutor
from trident.spouts.host import RecoverySpouts, TridentSpoutHost
from trident.states.core import storage
from trident.states.core.descriptor import load_descriptor
from trident.states.delta.halts import repair_command
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed.background_compactor import BackgroundCompactor
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.frames import StoredFrames, own_snapshot
from trident.states.keyed.reading import read_state
from trident.states.publishing.committer import DeltaCommitter
from trident.states.publishing.dead_letters import check_names_apart
from trident.states.publishing.prior_incarnation import check_group_is_new, check_no_earlier_life
from trident.streams.other_names import QUERY_NAMES, OtherNames
from trident.streams.shown import as_html, as_line
from trident.udf.expressions import current_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from trident.streams.topology import TridentTopology

log = logging.getLogger("trident.query")
_SPOUT_SETTINGS = (
    "max_spout_pending",
    "ackers",
    "max_pending_messages",
    "max_replays",
    "replay_backoff_secs",
    "remember_messages_secs",
)
_STATUS_POLL_SECS = 0.5
# Of process_all_available: how long a standby waits beyond the session timeout, and how long a source may fail to say
# whether it has data.
_TAKE_OVER_SECS, _UNREADY_SECS = 10.0, 30.0
# How long the last writes and the connection's end may take; and how long a thread that has ended is waited for.
_END_SECS, _JOIN_SECS = 15.0, 5.0
# Errors in a recovery that may be gone at the next try, and those among them that a person must mend.
_MAY_PASS = (OSError, TableError, faults.InjectedFault)
_STAYS = (ForeignTable, SchemaMismatch, StagedFileMissing)


def open_zookeeper(config: TridentConfig, warehouse: Path) -> ZooKeeper:
    """Connects to ZooKeeper as the settings say; starts the embedded server when it is to be.

    Raises:
        ZooKeeperUnreachable: nobody answered within the connect timeout.
        ZooKeeperRefused: a certificate, an identity or a password is not accepted.
        JavaProblem: the embedded server needs a Java that is not here.
    """
    hosts = config.zookeeper
    if hosts == "embedded":
        hosts = EmbeddedZooKeeper.ensure(server_folder(warehouse))
    zk = ZooKeeper(
        ZooKeeperConfig(
            hosts=hosts,
            root=config.zookeeper_root,
            session_timeout_secs=config.zookeeper_session_timeout_secs,
            connect_timeout_secs=config.zookeeper_connect_timeout_secs,
            options=config.kazoo_options(),
        )
    )
    zk.connect()
    warn_if_open(config, zk)
    return zk


def server_folder(warehouse: Path) -> Path:
    """The data folder of a warehouse's embedded ZooKeeper server."""
    return warehouse / "_trident" / "zookeeper"


def spark_settings(config: TridentConfig) -> dict[str, str]:
    """The Spark settings that follow from the topology's."""
    settings = {"spark.master": config.spark_master}
    if config.driver_memory is not None:
        settings["spark.driver.memory"] = config.driver_memory
    if config.shuffle_partitions is not None:
        settings["spark.sql.shuffle.partitions"] = str(config.shuffle_partitions)
    return settings | dict(config.spark_conf)


def master_of(spark: "SparkSession | None", config: TridentConfig) -> str:
    """The Spark master that a topology will run on: that of a session that there is, else what the settings say."""
    spark = spark or current_session()
    return spark.sparkContext.master if spark is not None else spark_settings(config)["spark.master"]


def start_topology(
    topology: "TridentTopology",
    spark: "SparkSession | None" = None,
    config: TridentConfig | None = None,
    *,
    show_progress: bool = False,
    replace: bool = False,
    standby: bool = False,
    **settings: Any,
) -> "TopologyQuery":
    """Starts a topology and returns at once; see :class:`TopologyQuery`.

    Args:
        topology: what to run.
        spark: the session; None makes one (or takes the active one, if it has what is needed).
        config: the settings; None takes the defaults and the environment.
        show_progress: also when the setting ``progress`` was left at its
            default: a library prints nothing unless asked.
        replace: stops the query of this topology that runs in this process.
        standby: it is to wait behind that one for its turn.
        **settings: single settings on top of config.

    Raises:
        TopologyError: the topology cannot run as written.
        SourceError: a source's data is missing.
        SparkSessionProblem, JavaProblem: the session or the machine lacks something.
        ZooKeeperUnreachable: nobody answered within the connect timeout.
        IdentityMismatch: another topology has this name.
        TridentError: a query of this topology runs in this process already.
    """
    last_resort.install()
    config = as_config(config).replace(**settings)
    plans = plan(topology.graph, tracking=config.ackers > 0)
    warehouse = Path(config.warehouse).resolve()
    if "://" in config.warehouse:
        raise TopologyError(
            "the warehouse must be a folder of a file system that all processes share",
            found=config.warehouse,
            expected="a path such as ./trident-warehouse",
        )
    check_topology(topology.graph, config, master_of(spark, config))
    check_names_apart(warehouse, topology.name, [binding for plan_ in plans for binding in plan_.bindings])
    place = place_of(topology.name, config, warehouse)
    make_room(place, replace=replace, standby=standby)
    (warehouse / "_trident").mkdir(parents=True, exist_ok=True)
    if spark is None:
        spark = make_session(f"trident {topology.name}", spark_settings(config))
    check_session(spark)
    prepare_cluster(spark, warehouse)
    query = TopologyQuery(topology, plans, spark, config, warehouse, show_progress)
    query._start()
    add(place, query)
    prepare()
    return query


def run_topology(
    topology: "TridentTopology",
    spark: "SparkSession | None" = None,
    config: TridentConfig | None = None,
    **settings: Any,
) -> "TopologyQuery":
    """Starts a topology and waits until it ends; see ``TridentTopology.run``.

    A first SIGINT or SIGTERM finishes what is decided and stops; a second one
    ends the process at once, which loses nothing: the next start goes on.

    Returns:
        the query, which has ended without an error.

    Raises:
        TridentError: why it ended; and as :func:`start_topology`.
    """
    config = as_config(config).replace(**settings)
    query = start_topology(topology, spark, config, show_progress=True)
    asked = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if asked.is_set():
            print("trident: aborted", file=sys.stderr, flush=True)
            os._exit(128 + number)
        asked.set()

    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not query.await_termination(0.2):
            if asked.is_set() and query.is_active:
                query.request_stop()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if spark is None:
            query.spark.stop()
    return query


@dataclass
class _RunningGroup:
    plan: GroupPlan
    driver: GroupDriver
    host: TridentSpoutHost
    runner: SparkBatchRunner
    compactor: BackgroundCompactor


class TopologyQuery(OtherNames):
    """A topology that runs in this process; the counterpart of PySpark's StreamingQuery.

    Made by ``TridentTopology.start``. All methods may be called from any thread. As a context manager it is stopped
    at the end of its block; an exception of the block goes on, and otherwise one that has ended the topology.
    """

    _OTHER_NAMES = QUERY_NAMES

    def __init__(
        self,
        topology: "TridentTopology",
        plans: list[GroupPlan],
        spark: "SparkSession",
        config: TridentConfig,
        warehouse: Path,
        show_progress: bool = False,
    ) -> None:
        self._topology, self._plans, self._spark, self._config = topology, plans, spark, config
        self._warehouse, self._place = warehouse, WarehousePlace(warehouse, topology.name)
        self._engine = KernelEngine(spark)
        self._explain_storage = FailureExplainer(written_folders(spark, warehouse))
        self._zk: ZooKeeper | None = None
        self._registration: Registration | None = None
        self._keeper: EmbeddedKeeper | None = None
        self._run_id = uuid.uuid4().hex
        self._incarnation = ""
        self._epoch = 0
        self._groups: list[_RunningGroup] = []
        self._front = DrpcFront(topology.graph, config, self._event)
        self._stop_requested = threading.Event()
        self._compact_at_end = True
        self._done = threading.Event()
        self._leading = threading.Event()
        self._changed = threading.Condition()
        self._paused = False
        self._error: BaseException | None = None
        self._final_groups: tuple[GroupStatus, ...] = ()
        self._to_merge: list[_RunningGroup] = []  # closed in good order
        self._successor: Successor | None = None
        self._errors: dict[str, tuple[str, float]] = {}
        self._mode = "starting"
        shown = show_progress or config.origin("progress") != "default"
        display = make_display(config.progress, interval_secs=config.progress_interval_secs) if shown else None
        self._shows = display is not None
        self._progress = ProgressLog(topology.name, "", self._run_id, display)
        self._has_led = False
        self._recovering, self._failed_recoveries = False, 0
        self._lost_recovering = 0  # leases, in a row
        self._status_writer = StatusWriter(status_path(warehouse, topology.name), config.status_interval_secs)
        self._standby_of = ""  # who leads, as text
        self._end_begins = threading.Lock()  # taken by whoever ends it, and never given back
        self._leave_at: float | None = None  # when a stop goes on without what still runs
        self._thread = threading.Thread(target=self._supervise, name=f"trident-{topology.name}", daemon=True)
        # Each of its own: a spout's backlog may hang, and so may the disk with the status; a stop ends all the same.
        self._helpers = [
            threading.Thread(target=work, name=f"trident-{name}", daemon=True)
            for name, work in (
                ("status", self._pulse_status),
                ("backlog", self._ask_backlogs),
                ("stop", self._time_the_stop),
            )
        ]

    # --- what a user asks ---------------------------------------------------------------------

    def __enter__(self) -> "TopologyQuery":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Whoever was interrupted does not wait for a MERGE.
        self.stop(compact=kind is None or issubclass(kind, Exception))
        if kind is None:
            self._raise_error()

    def __repr__(self) -> str:
        return as_line("TopologyQuery", self.name, query_facts(self.status))

    def _repr_html_(self) -> str:
        return as_html("TopologyQuery", self.name, query_facts(self.status))

    @property
    def name(self) -> str:
        """The topology's name."""
        return self._topology.name

    @property
    def id(self) -> str:
        """The incarnation: the same over restarts, another after `trident reset`."""
        return self._incarnation

    @property
    def run_id(self) -> str:
        """Unique to this start."""
        return self._run_id

    @property
    def is_active(self) -> bool:
        """Whether it runs or waits as a standby."""
        return not self._done.is_set()

    @property
    def is_leader(self) -> bool:
        """Whether this process coordinates now; False for a standby."""
        return self._leading.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """What it does now: the same as ``trident status`` shows, as a dict."""
        return replace(self._make_status(), written_at=round(time.time(), 3)).to_json()

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The last advanced transaction, PySpark's keys in snake_case (docs/semantics.md 15); None before the first."""
        return self._progress.last_progress

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last 100 of them, the oldest first."""
        return self._progress.recent_progress

    def exception(self) -> BaseException | None:
        """Why it ended; None while it runs or when it was stopped."""
        return self._error if self._done.is_set() else None

    def process_all_available(self, timeout_secs: float | None = None) -> None:
        """Blocks until all that the sources have now is committed.

        A standby first waits for its turn: for timeout_secs, or, without it, for as long as a leader that has died
        may still count as alive (the session timeout, and ten seconds more).

        Raises:
            TridentError: the topology ended with it, or was stopped; or it is paused.
            CoordinationError: another process leads; with timeout_secs that is a TimeoutError.
            SourceError: for half a minute every question whether there is data has failed.
            TimeoutError: timeout_secs went by.
        """
        began = time.monotonic()
        deadline = None if timeout_secs is None else began + timeout_secs
        while True:
            self._wait_for_turn(began, timeout_secs)
            self._check_can_process()
            with self._changed:
                groups = list(self._groups)
            for group in groups:
                group.host.refresh()
            # A spout that has handed out as much as it may, or waits before a replay, says no although there is more:
            # then messages are open, or others come meanwhile.
            before = [group.host.messages() for group in groups]
            idle = (group.driver.wait_idle(deadline, self._check_can_process) for group in groups)
            if (groups or not self._plans) and all(idle):
                if before == [group.host.messages() for group in groups] and not any(open_ for _, open_ in before):
                    return
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.name} did not process all available data within {timeout_secs} s")
            self._done.wait(0.01)

    def _wait_for_turn(self, began: float, timeout_secs: float | None) -> None:
        """Until this process leads."""
        patience = timeout_secs
        if patience is None:
            patience = self._config.zookeeper_session_timeout_secs + _TAKE_OVER_SECS
        with self._changed:
            while not self._leading.is_set() and not self._done.is_set():
                who = self._standby_of
                left = began + patience - time.monotonic()
                if left > 0 or (timeout_secs is None and not who):  # a recovery takes as long as it takes
                    self._changed.wait(min(max(left, 0.05), 0.5))
                    continue
                if timeout_secs is not None:
                    reason = f": {who}" if who else ""
                    raise TimeoutError(f"{self.name} did not lead within {timeout_secs} s{reason}")
                raise CoordinationError(
                    f"{self.name} is a standby here and processes nothing",
                    found=who,
                    expected="this process to lead",
                    action="ask the process that leads, or stop it; with timeout_secs this waits for longer",
                )

    def _check_can_process(self) -> None:
        """Raises where waiting would never end."""
        if self._done.is_set():
            self._raise_error()
            raise TridentError(f"{self.name} was stopped before all available data was processed")
        if self._paused:
            raise TridentError(f"{self.name} is paused, and begins no transactions", action="call resume() first")
        for group in list(self._groups):
            unready = group.driver.unready
            if unready is not None and time.monotonic() - unready[0] > _UNREADY_SECS:
                raise SourceError(
                    f"whether the sources of {group.plan.name} have data cannot be asked",
                    found=self._explain(unready[1]),
                    expected="an answer within half a minute",
                    action="mend the source and try again; the topology goes on asking",
                ) from unready[1]

    def await_termination(self, timeout_secs: float | None = None) -> bool:
        """Blocks until it ends; False when timeout_secs went by first.

        Raises:
            TridentError: it ended with this error.
        """
        if not self._done.wait(timeout_secs):
            return False
        self._thread.join(_JOIN_SECS)  # not for ever: it may be in a call that was left behind
        self._raise_error()
        return True

    def pause(self) -> None:
        """No new transactions; those that have begun are committed."""
        self._paused = True
        self._tell_groups("Paused")

    def resume(self) -> None:
        self._paused = False
        self._tell_groups("Resumed")

    def stop(self, timeout_secs: float | None = None, compact: bool = True) -> None:
        """Finishes what is decided, brings the plain tables up to date, and ends.

        Transactions that are not decided are processed again at the next start. It always ends: what is not done
        within ``stop_timeout_secs``, and a call of a spout or a state that does not return by then, is left behind,
        which a line in the log says; the last MERGE has ``merge_at_stop_secs``. What is left behind is lost for
        nobody: the next start goes on from it, as after a kill.

        Args:
            timeout_secs: how long this call waits; then it returns, a line says so, and the end goes on
                (``is_active``). None: until the end.
            compact: False leaves the plain tables of keyed states as far behind as they are: quicker, and a
                restart does not mind.
        """
        self.request_stop(compact)
        if not self._done.wait(timeout_secs):
            log.warning("%s is still ending after %g s; is_active says when it has", self.name, timeout_secs)

    def request_stop(self, compact: bool = True) -> None:
        """What :meth:`stop` does, without waiting for it."""
        self._compact_at_end = self._compact_at_end and compact
        self._stop_requested.set()
        for group in list(self._groups):
            group.driver.stop()

    @property
    def spark(self) -> "SparkSession":
        """The session that the batches run on."""
        return self._spark

    def snapshot(self, state: str, txid: int | None = None) -> "DataFrame":
        """The state as of one transaction, the same for all states of its batch group.

        Args:
            state: the state's name.
            txid: as of which transaction; None = the last advanced one.

        Raises:
            TopologyError: no state has that name.
            TableError: that transaction is no longer kept (the message says which is the oldest).
        """
        bindings = {binding.name: binding for plan_ in self._plans for binding in plan_.bindings}
        if state not in bindings:
            raise TopologyError(f"there is no state {state!r}", expected=f"one of {sorted(bindings)}")
        binding = bindings[state]
        if binding.kind in ("memory", "map", "user"):
            return own_snapshot(self._spark, binding, txid, self._incarnation)
        return read_state(
            self._spark,
            self._engine,
            self._warehouse,
            state,
            txid=txid,
            aggregator=binding.aggregator,
            advanced_txid=self._advanced_txid(state),
        )

    # --- requests to DRPC streams -------------------------------------------------------------

    @property
    def drpc_functions(self) -> dict[str, str]:
        """Function → its arguments with their types, as they were given to ``new_drpc_stream``."""
        return {
            name: ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in plan_.arguments.fields)
            for name, plan_ in self._front.plans.items()
        }

    @property
    def http_address(self) -> str | None:
        """Where requests are answered over HTTP, "host:port"; None when they are not, or not yet."""
        return self._front.http_address

    def execute(self, function: str, /, *args: Any, timeout_secs: float = TIMEOUT_SECS, **named: Any) -> Answer:
        """Asks a DRPC stream: ``query.execute("reach", "a.com")``.

        The request runs beside the batches and beside other requests, in Spark's
        pool ``trident-drpc``. It reads the states of one batch group as of one
        transaction, the last advanced one when it began:

        - Delta states and memory maps exactly;
        - opaque(…) and transactional(…) maps exactly, or not at all: they keep one
          or two transactions, so where batches are faster than the request it
          begins again with a newer one, at most ten times, and then fails;
        - non_transactional(…) and states of your own as they are when they are
          asked, perhaps with transactions that have not advanced yet.

        The caller's duty: what its functions do besides may be done twice, as in a batch.

        Args:
            function: the name given to ``new_drpc_stream``.
            args: its arguments by position.
            timeout_secs: how long it may take; its Spark jobs are cancelled then.
            named: its arguments by name.

        Returns:
            the rows, in no promised order: a list, whose ``as_of`` says as of
            which transaction of each batch group it holds.

        Raises:
            UnknownFunction: there is no such function; with those there are.
            WrongArguments: the arguments do not fit its fields.
            NotLeading: another process leads the topology, or this one has stopped.
            DrpcTimeout: it took too long.
            UserFunctionError, FailedException: a function of yours raised.
            DrpcError: the states change faster than they can be read.
        """
        return self._front.execute(function, args, named, timeout_secs)

    def _advanced_txid(self, state: str) -> int | None:
        for group in list(self._groups):
            if any(binding.name == state for binding in group.plan.bindings):
                return group.driver.last_advanced
        return None

    # --- start and supervision -------------------------------------------------------------------

    def _start(self) -> None:
        self._zk = open_zookeeper(self._config, self._warehouse)
        try:
            self._registration = Registration(self._zk, self._topology.name)
            # Refused at once, not when it is this process's turn to lead.
            self._registration.check(self._topology.identity())
            self._front.listen()
        except BaseException:
            self._zk.close()
            raise
        if self._config.zookeeper == "embedded":
            folder = server_folder(self._warehouse)
            self._keeper = EmbeddedKeeper(self._zk, folder, self._server_trouble, self._explain)
        self._thread.start()
        for helper in self._helpers:
            helper.start()

    def _supervise(self) -> None:
        try:
            while not self._stop_requested.is_set() and self._error is None:
                lease = self._wait_for_lease()
                if lease is None:
                    break
                try:
                    self._lead(lease)
                except (_LeaseLost, Deposed, OutcomeUnknown, ZooKeeperUnreachable) as lost:
                    self._event(f"not the leader any more: {_first_line(lost)}")
                    self._lost_recovering += self._recovering
                except Exception as error:
                    if not self._may_recover_later(error):
                        raise
                finally:
                    lease.release()
                self._merge_last()
                if failures := self._failed_recoveries + self._lost_recovering:
                    self._stop_requested.wait(self._limits().backoff_secs(failures))
        except Exception as error:
            self._error = self._explain(error)
            log.debug("the topology ended", exc_info=True)
        finally:
            if isinstance(self._error, SessionEnded):
                log.error("%s has ended: %s", self.name, self._error)
            self._each([partial(group.compactor.stop, compact=False) for group in self._to_merge])
            self._end()

    def _end(self) -> None:
        """The last of everything, once, by whoever comes first; nothing in it keeps the query from having ended."""
        if not self._end_begins.acquire(blocking=False):
            return
        halted = isinstance(self._error, Halted)
        self._mode = "halted" if halted else "failed" if self._error else "stopped"
        parts: list[Callable[[], Any]] = [self._write_last_status, self._front.end, self._progress.close]
        parts += [part.close for part in (self._keeper, self._zk) if part is not None]
        ending = threading.Thread(target=self._each, args=(parts,), name="trident-ending", daemon=True)
        try:
            ending.start()
            ending.join(_END_SECS)
        finally:
            self._done.set()
            with self._changed:
                self._changed.notify_all()

    def _write_last_status(self) -> None:
        # A standby must not write over the leader's, nor whoever has a successor already.
        if self._has_led and not (self._successor is not None and self._successor.leads()):
            self._status_writer.update(self._make_status())
            self._status_writer.close()
        else:
            self._status_writer.discard()

    def _each(self, parts: Sequence[Callable[[], Any]]) -> None:
        """Calls them all, whatever they raise."""
        for part in parts:
            try:
                part()
            except Exception as error:
                expected = session_end(self._spark) is not None  # what is to be cancelled there is gone
                level = logging.DEBUG if expected else logging.WARNING
                log.log(level, "ending %s: %s: %s", self.name, type(error).__name__, error)

    def _leave_behind(self) -> None:
        """Ends it without what still runs: a write that does not return, a hook of the user's that hangs."""
        groups = [f"trident-{plan_.name}-" for plan_ in self._plans]
        calls = stuck_calls(lambda name: name == self._thread.name or name.startswith(tuple(groups)))
        log.warning(
            "%s: after %g s its stop goes on without %s; the next start goes on from there, as after a kill",
            self.name,
            self._config.stop_timeout_secs,
            " and ".join(calls) + (" (of yours), which does not return" if calls else "what still runs"),
        )
        parts = [part for group in list(self._groups) for part in (group.driver.abandon, group.runner.close)]
        # A JVM that does not answer keeps whoever cancels something there.
        cancelling = threading.Thread(target=self._each, args=(parts,), name="trident-ending", daemon=True)
        cancelling.start()
        cancelling.join(_JOIN_SECS)
        self._end()

    def _explain(self, error: BaseException) -> BaseException:
        """What is behind an error: the session's end, a full disk; the error itself when nothing more is known."""
        return session_end(self._spark, ask=True) or self._explain_storage(error)

    def _may_recover_later(self, error: Exception) -> bool:
        """Whether what ended a recovery may pass: a disk that is full or does not answer, a table that is busy.

        The lease is given up meanwhile: another process may have a better view of the same disk.
        """
        if not self._recovering or not isinstance(error, _MAY_PASS) or isinstance(error, _STAYS):
            return False
        self._failed_recoveries += 1
        self._recovery_waits_for(str(error))
        self._event(f"the recovery failed ({self._failed_recoveries}), trying again: {_first_line(error)}")
        return self._failed_recoveries < self._config.max_attempts

    def _recovery_waits_for(self, cause: str) -> None:
        """Until there are groups again the status has the cause, and nothing else to say of them."""
        self._final_groups = tuple(
            GroupStatus(plan_.name, 0, "recovering", (), 0.0, 0.0, {}, f"recovery: {cause}", time.time(), None)
            for plan_ in self._plans
        )
        self._status_writer.update(self._make_status())

    def _wait_for_lease(self) -> Lease | None:
        assert self._zk is not None
        self._mode, self._standby_of = "standby", ""
        leadership = Leadership(self._zk, self._topology.name, [plan_.name for plan_ in self._plans])
        warm_up = WarmUp(
            self._spark,
            self._engine,
            self._warehouse,
            self._topology.name,
            self._plans,
            lambda secs: self._event(f"standby: warm after {secs:.1f} s"),
        )
        try:
            return leadership.acquire(
                self._stop_requested,
                on_waiting=lambda holder: self._is_standby(holder, warm_up),
            )
        finally:
            warm_up.stop()
            self._standby_of = ""

    def _is_standby(self, holder: Holder, warm_up: WarmUp) -> None:
        self._front.waits()
        if self._config.warm_standby:
            warm_up.start()
        here = " (this process: another query of it)" if holder_is_here(holder) else ""
        self._standby_of = f"{holder.host} pid {holder.pid}{here} leads"
        self._event(f"standby: {self._standby_of}")

    def _lead(self, lease: Lease) -> None:
        assert self._zk is not None and self._registration is not None
        if self._place.is_gone(sure=True):
            raise self._place.halted()
        self._recovering = True
        fences = lease.fences.values()
        if self._registration.read() is None:
            # Before ZooKeeper is told of a new life: of an old one, tables would be adopted and counted twice.
            check_no_earlier_life(self._engine, self._warehouse, self.name)
        self._incarnation = self._registration.ensure(self._topology.identity(), fences=fences)
        self._epoch = max((fence.epoch for fence in lease.fences.values()), default=0)
        self._progress.id = self._incarnation
        self._has_led = True
        self._event(f"leads {self.name} (epoch {self._epoch})")
        opened = keep_for_creator(self._zk, self.name) if self._config.keeps_for_creator else 0
        if opened:
            self._event(f"{opened} znodes that everybody could change are left to this identity alone now")
        groups: list[_RunningGroup] = []
        try:
            for plan_ in self._plans:
                groups.append(self._open_group(plan_, lease))
            with self._changed:
                self._groups = groups
                self._mode = "running"
            for group in groups:
                last = group.driver.last_advanced
                group.compactor.start(last)
                group.driver.start()
                if self._paused:
                    self._tell_groups("Paused")
            self._front.leads(self._make_requests(groups))
            self._failed_recoveries, self._lost_recovering, self._recovering = 0, 0, False
            self._leading.set()
            with self._changed:
                self._changed.notify_all()
            self._watch(groups, lease)
        finally:
            self._leading.clear()
            self._front.stops_leading()
            self._close_groups(groups)
            self._final_groups = self._group_statuses() or self._final_groups
            self._groups = []

    def _open_group(self, plan_: GroupPlan, lease: Lease) -> _RunningGroup:
        """Recovery (docs/semantics.md 9): the pending decision first, then the tables, then the new plan."""
        assert self._zk is not None
        fence = lease.fences[plan_.name]
        store = GroupStore(self._zk, self._topology.name, plan_.name, list(plan_.spouts), fence)
        record, decision, _ = store.load()
        if record is None:
            check_group_is_new(self._warehouse, self._topology.name, plan_.name, self._incarnation)
            store.create(GroupRecord(incarnation=self._incarnation, current_txid=1))
        elif record.incarnation != self._incarnation:
            raise Halted(
                f"batch group {plan_.name!r} in ZooKeeper is of another life of {self.name!r}",
                found=f"incarnation {record.incarnation}",
                expected=f"incarnation {self._incarnation}",
                action=f"{repair_command(self.name)} shows what can be done and changes nothing; to begin again: "
                f"`trident reset {self.name}`",
            )
        else:
            check_by_manifest(store, self._warehouse)
        committer = DeltaCommitter(
            self._engine,
            self._warehouse,
            self._topology.name,
            plan_.name,
            self._incarnation,
            fence.epoch,
            plan_.bindings,
            lambda: fence.verify(self._zk),
        )
        if decision is not None:
            self._finish_decision(plan_, store, committer, lease)
        committer.open(store.record)
        return self._make_group(plan_, store, committer)

    def _finish_decision(self, plan_: GroupPlan, store: GroupStore, committer: DeltaCommitter, lease: Lease) -> None:
        """Rolls a decided transaction forward from its manifest alone, by the same driver."""
        decided = store.decision.attempt  # the store has none any more once it is finished
        self._event(f"finishing the decided transaction {decided} of {plan_.name}")
        spouts = RecoverySpouts(lambda tx_id: self._make_executor(plan_, tx_id), plan_.spouts, decided.txid)
        driver = GroupDriver(
            store,
            spouts,
            _NoRunner(),
            committer,
            _GroupObserver(self, plan_.name),
            self._limits(),
            None,
            self._explain,
        )
        driver.start()
        driver.stop()
        told: BaseException | None = None
        while not driver.wait(0.05):
            if lease.lost.is_set():
                driver.abandon()
            if driver.last_error is not told:
                told = driver.last_error
                self._recovery_waits_for(f"finishing transaction {decided}: {told}")
        driver.close()
        spouts.close()
        if driver.error is not None:
            raise driver.error
        if lease.lost.is_set() or driver.state.mode is not Mode.STOPPED:
            raise _LeaseLost("the lease was lost while a decided transaction was being finished")
        store.load()

    def _make_executor(self, plan_: GroupPlan, tx_id: str) -> SpoutExecutor | None:
        spout = plan_.spouts.get(tx_id)
        if spout is None:
            return None
        return make_executor(spout, self._spout_context(tx_id))

    def _make_group(self, plan_: GroupPlan, store: GroupStore, committer: DeltaCommitter) -> _RunningGroup:
        executors: dict[str, SpoutExecutor] = {}
        host = TridentSpoutHost(executors)
        try:
            for tx_id in plan_.spouts:
                executor = self._make_executor(plan_, tx_id)
                assert executor is not None
                executors[tx_id] = executor
                _resume(executor, store.pins.get(tx_id, {}), store.opaque_metadata.get(tx_id, {}))
        except BaseException:  # the recovery may be tried again: what is open must not stay open beside it
            host.close()
            raise
        stored = StoredFrames(self._spark, self._engine, self._warehouse)
        runner = SparkBatchRunner(
            self._spark,
            self._topology.name,
            plan_,
            host,
            committer.staging_targets,
            committer.folder,
            stored,
            self._incarnation,
            committer.epoch,
            self._config.batch_partitions,
            self._config.ackers,
        )
        compactor = self._make_compactor(plan_)
        observer = _GroupObserver(self, plan_.name, compactor)
        driver = GroupDriver(
            store,
            host,
            runner,
            committer,
            observer,
            self._limits(),
            self._config.message_timeout_secs,
            self._explain,
        )
        return _RunningGroup(plan_, driver, host, runner, compactor)

    def _make_requests(self, groups: Sequence[_RunningGroup]) -> DrpcRequests:
        advanced = {group.plan.name: partial(getattr, group.driver, "last_advanced") for group in groups}
        return DrpcRequests(
            self._spark,
            self._engine,
            self._warehouse,
            self.name,
            self._front.plans,
            advanced,
            self._incarnation,
            self._epoch,
        )

    def _make_compactor(self, plan_: GroupPlan) -> BackgroundCompactor:
        return BackgroundCompactor(
            [
                Compactor(
                    self._spark,
                    self._engine,
                    self._warehouse,
                    load_descriptor(self._warehouse, binding.name),
                    binding.state,
                    binding.aggregator,
                )
                for binding in plan_.bindings
                if binding.kind == "keyed"
            ],
            on_error=partial(self._compaction_error, plan_.name),
        )

    def _compaction_error(self, group: str, state: str, error: BaseException) -> None:
        text = f"merging {state} in the background failed, trying again: {self._explain(error)}"
        self._errors[group] = (text, time.time())
        self._event(text)

    def _server_trouble(self, text: str) -> None:
        self._errors.update({plan_.name: (text, time.time()) for plan_ in self._plans})
        self._event(text)

    def _spout_context(self, tx_id: str) -> SpoutContext:
        folder = self._warehouse / "_trident" / self._topology.name / "streams" / tx_id
        storage.make_folder(folder, self._warehouse)
        return SpoutContext(
            self._spark,
            self._topology.name,
            tx_id,
            folder,
            self._incarnation,
            {
                "epoch": self._epoch,
                "warehouse": str(self._warehouse),
                **{name: getattr(self._config, name) for name in _SPOUT_SETTINGS},
            },
        )

    def _limits(self) -> Limits:
        return Limits(
            max_spout_pending=self._config.max_spout_pending,
            max_attempts=self._config.max_attempts,
            batch_emit_interval_secs=self._config.batch_emit_interval_secs,
        )

    def _watch(self, groups: list[_RunningGroup], lease: Lease) -> None:
        """Until all groups have ended, one has failed, or the lease is lost."""
        assert self._zk is not None
        suspended = False
        while True:
            if lease.lost.is_set():
                self._event("the lease is lost: what is in flight is abandoned")
                for group in groups:
                    group.driver.abandon()
                return
            gone = session_end(self._spark)
            if gone is not None:
                self._stop_requested.set()  # so that a call that hangs now is left behind, too
                raise gone
            ended = [group for group in groups if group.driver.wait(0.02 if self._stop_requested.is_set() else 0.1)]
            if self._place.is_gone(sure=any(group.driver.error is not None for group in ended)):
                for group in groups:
                    group.driver.abandon()
                raise self._place.halted()
            for group in ended:
                if group.driver.error is not None:
                    self._error = group.driver.error
                    self._stop_requested.set()
                elif group.driver.state.mode is Mode.DEPOSED:
                    return
            if self._stop_requested.is_set():
                for group in groups:
                    group.driver.stop()
            if len(ended) == len(groups) and (groups or self._stop_requested.wait(0.1)):
                return
            connected = self._zk.connected
            if connected == suspended:
                suspended = not connected
                self._tell_groups("Reconnected" if connected else "Suspended")

    def _close_groups(self, groups: list[_RunningGroup]) -> None:
        for group in groups:
            self._each([group.driver.abandon, group.runner.close, group.host.cancel_all])
        for group in groups:
            group.driver.wait()
            group.driver.close()
            group.host.close()
            # In good order: where the lease was lost the successor merges.
            wanted = self._compact_at_end and self._config.merge_at_stop_secs > 0
            if group.driver.state.mode is Mode.STOPPED and wanted:
                self._to_merge.append(group)
            else:
                self._each([partial(group.compactor.stop, compact=False)])

    def _merge_last(self) -> None:
        """Brings the plain tables up to date, once another may lead; the one that does merges instead.

        A hand-over must not wait for a MERGE. Two that merge at once can neither lose nor double a row
        (docs/semantics.md 11), so all that matters here is not to be in the successor's way.
        """
        if not self._to_merge or self._zk is None:
            return
        successor = self._successor = Successor(self._zk, self.name)
        self._mode = "merging"
        until = time.monotonic() + self._config.merge_at_stop_secs
        while self._to_merge:
            compactor = self._to_merge.pop(0).compactor
            left = max(0.0, until - time.monotonic())
            self._leave_at = time.monotonic() + left + 2 * _END_SECS  # it has a time of its own
            done = compactor.stop(True, left, successor.leads)
            if not done and not successor.leads():
                for text in compactor.behind(self.name):
                    self._notice(text)
        if successor.leads():
            self._event("another process leads, and merges what waits")

    # --- small things ------------------------------------------------------------------------------

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _tell_groups(self, event: str) -> None:
        from trident.coordinators import master

        for group in list(self._groups):
            group.driver.tell(getattr(master, event)())

    def _event(self, text: str) -> None:
        log.info(text)
        self._progress.event(text)

    def _notice(self, text: str) -> None:
        """Something that a person is to see, with a display or without one."""
        if self._shows:
            self._event(text)
        else:
            log.warning("%s: %s", self.name, text)

    def _pulse_status(self) -> None:
        """Status and display once in a while, off every critical path; it may hang where the disk does."""
        while not self._done.wait(_STATUS_POLL_SECS):
            try:
                self._show_status()
            except Exception as error:  # for show only: it must go on
                log.debug("the status of %s cannot be shown: %s", self.name, error)

    def _time_the_stop(self) -> None:
        while not self._done.wait(_STATUS_POLL_SECS):
            if self._stop_requested.is_set():
                if self._leave_at is None:
                    self._leave_at = time.monotonic() + self._config.stop_timeout_secs
                elif time.monotonic() > self._leave_at:
                    self._leave_behind()
                    return

    def _show_status(self) -> None:
        self._front.listen_again()
        if self._leading.is_set():
            in_flight = sum(len(group.driver.state.live) for group in self._groups)
            self._progress.activity(in_flight, self._backlog())
            self._status_writer.update(self._make_status())
        elif self._mode == "merging" and self._successor is not None and not self._successor.leads():
            self._status_writer.update(self._make_status())

    def _ask_backlogs(self) -> None:
        """Has the spouts' hosts know how much waits; nobody waits for this thread."""
        while not self._done.is_set():
            for group in list(self._groups):
                for text in group.host.ask_backlog():
                    self._errors[group.plan.name] = (text, time.time())
                    log.info(text)
            self._done.wait(_STATUS_POLL_SECS)

    def _backlog(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for group in list(self._groups):
            for unit, count in group.host.backlog().items():
                total[unit] = total.get(unit, 0) + count
        return total

    def _make_status(self) -> TopologyStatus:
        role = "leader" if self._leading.is_set() else self._mode
        return TopologyStatus(
            self.name,
            self._incarnation,
            self._run_id,
            self._epoch,
            role,
            error=str(self._error) if self._error else None,
            groups=self._group_statuses() or self._final_groups,
        )

    def _group_statuses(self) -> tuple[GroupStatus, ...]:
        return tuple(self._group_status(group) for group in list(self._groups))

    def _group_status(self, group: _RunningGroup) -> GroupStatus:
        state, began = group.driver.state, group.driver.began_at()
        error, last = self._errors.get(group.plan.name), group.driver.last_error
        if last is not None and (error is None or group.driver.last_error_at > error[1]):
            error = (str(last), group.driver.last_error_at)  # what a decided transaction waits for
        mode = "paused" if state.paused else "suspended" if state.suspended else state.mode.value
        rows, txids = self._progress.rates()
        attempts = tuple(
            AttemptStatus(
                live.attempt.txid,
                live.attempt.attempt_id,
                live.stage.phase.value,
                began.get(live.attempt, 0.0),
                state.trouble_of(live.attempt.txid).failures,
            )
            for live in state.live
        )
        return GroupStatus(
            group.plan.name,
            state.current,
            mode,
            attempts,
            rows,
            txids,
            group.host.backlog(),
            error[0] if error else None,
            error[1] if error else None,
            str(group.driver.error) if state.mode is Mode.HALTED else None,
        )


def _resume(executor: SpoutExecutor, pins: Mapping[int, Any], committed: Mapping[str, tuple[int, Any]]) -> None:
    """Tells a stream's executor where its last committed batch ended."""
    if pins:
        executor.resume(max(pins), pins[max(pins)])
    elif committed:
        # A copy: what a spout does with it must not reach what is stored with the next transaction.
        positions = {partition: copy.deepcopy(metadata) for partition, (_, metadata) in committed.items()}
        executor.resume(max(txid for txid, _ in committed.values()), positions)


class _LeaseLost(TridentError):
    """The lease went while a decision was being finished."""


class _NoRunner:
    """The runner while a pending decision is finished: nothing is emitted."""

    def process(self, attempt: TransactionAttempt, metadata: Mapping[str, Any], timeout_secs: float | None) -> Any:
        raise AssertionError("nothing is emitted while a decision is finished")

    def resolve(self, attempt: TransactionAttempt, processed: Any, timeout_secs: float | None) -> Any:
        raise AssertionError("nothing is read while a decision is finished")

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Nothing runs."""


class _GroupObserver:
    def __init__(self, query: TopologyQuery, group: str, compactor: BackgroundCompactor | None = None) -> None:
        self._query, self._group, self._compactor = query, group, compactor

    def advanced(self, attempt: TransactionAttempt, info: Mapping[str, Any]) -> None:
        if self._compactor is not None:
            self._compactor.advanced(attempt.txid)
        self._query._progress.transaction(
            {
                "group": self._group,
                "batch_id": attempt.txid,
                "attempt": attempt.attempt_id,
                "num_input_rows": info["input_rows"],
                "duration_ms": info["duration_ms"],
                "in_flight": info["in_flight"],
                "states": info["rows"],
            }
        )

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        self._query._errors[self._group] = (f"attempt {attempt}: {error}", time.time())  # the driver has logged it


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]


__all__ = ["TopologyQuery", "open_zookeeper", "start_topology", "faults"]
