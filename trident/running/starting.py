"""Starts a topology: checks it, puts the parts of its query together, and runs it until it ends where that is asked."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Protocol

from pyspark.sql import SparkSession

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import StateAway, TridentError
from trident.coordinators.master import Limits
from trident.coordinators.registration import IdentityDict, Registration
from trident.coordinators.supervisor import Settings, Supervised, Supervisor
from trident.coordinators.zookeeper import ZooKeeper
from trident.drpc.endpoint import DrpcFront
from trident.operations.windows import windows_with_rows
from trident.planning.groups import GroupPlan, plan
from trident.planning.nodes import Built
from trident.planning.requests import copied_states
from trident.running import interrupts, process_defaults
from trident.running.cluster_checks import (
    check_topology,
    folders_of_tasks,
    master_of,
    prepare_cluster,
    stores_of_sources,
)
from trident.running.ending import Ending
from trident.running.failures import session_end
from trident.running.interrupts import add, in_notebook, replace_running_query, scope_of
from trident.running.page_source import page_routes
from trident.running.process_defaults import Terminated, sigterm_ends
from trident.running.progress import ProgressLog, make_display
from trident.running.query import TopologyQuery
from trident.running.reporting import Reporter, measure
from trident.running.site import SparkSite
from trident.running.standby import Rehearsals, Rehearse
from trident.running.status import StandbyNote, StatusWriter, status_path
from trident.running.zookeeper import ServerWatchdog, open_zookeeper, server_folder
from trident.spark import stores
from trident.spark.cluster_files import renew_workers
from trident.spark.session import check_kind, check_session, make_session, spark_settings
from trident.spark.stores import drop_left_uploads
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.storage import explained_storage_errors
from trident.states.outside.port import OutsideState
from trident.states.publishing.dead_letters import check_names_apart
from trident.states.publishing.other_stores import check_store
from trident.watching import json_logs
from trident.watching.lineage import lineage_of
from trident.watching.listeners import TopologyListener, checked_listeners, made_listeners

log = logging.getLogger("trident.query")


class Startable(Built, Protocol):
    """A ``TridentTopology`` as a start reads it, which stands above: ``topology.start()`` calls down to here."""

    def identity(self) -> IdentityDict: ...

    def _rehearsal(self, spark: SparkSession, warehouse: Place, config: TridentConfig) -> Rehearse: ...


@explained_storage_errors()
def start_topology(
    topology: Startable,
    spark: SparkSession | None = None,
    config: TridentConfig | None = None,
    *,
    show_progress: bool = False,
    replace: bool | None = None,
    standby: bool = False,
    listeners: Iterable[TopologyListener] = (),
    **settings: Any,
) -> TopologyQuery:
    """Starts a topology and returns at once; see :class:`TopologyQuery`.

    Args:
        spark: the session; None makes one (or takes the active one, if it has what is needed).
        config: the settings; None takes the defaults and the environment.
        show_progress: also when the setting ``progress`` was left at its
            default: a library prints nothing unless asked.
        replace: stops the query of this topology that runs in this process; None: in a notebook alone.
        standby: it is to wait behind that one for its turn.
        listeners: are told of its events, from its start on; beside those of the setting ``listener_classes``.
        **settings: single settings on top of config.

    Raises:
        TopologyError: the topology cannot run as written.
        SourceError: a source's data is missing.
        SparkSessionProblem, JavaProblem: the session or the machine lacks something.
        ZooKeeperUnreachable: no server answered within the connect timeout.
        IdentityMismatch: another topology has this name.
        SchemaMismatch: a store outside of the warehouse cannot take the rows.
        StateAway: such a store does not answer, at a first start; later ones wait for it.
        StorageProblem: the warehouse's store refuses this process, or does not answer.
        TridentError: a query of this topology runs in this process already.
    """
    process_defaults.install()
    if spark is not None:
        check_kind(spark)
    config = as_config(config).replace(**settings)
    if config.log_format == "json":
        json_logs.install()
    all_listeners = [*made_listeners(config.listener_classes), *checked_listeners(listeners)]
    warehouse = config.warehouse_place()
    stores.prepare_store(warehouse, spark, dict(config.spark_conf), config.single_writer)
    topology.graph.kept_rows |= windows_with_rows(warehouse, topology.graph.sinks)
    plans = plan(topology.graph, tracking=config.ackers > 0)
    check_topology(topology.graph, config, master_of(spark, config))
    check_names_apart(warehouse, topology.name, [binding for plan_ in plans for binding in plan_.bindings])
    place = scope_of(topology.name, config, warehouse)
    replaces = in_notebook() if replace is None else replace
    replace_running_query(place, replace=replaces, standby=standby, check=lambda query: _check_follows(topology, query))
    if warehouse.is_local:
        storage.make_warehouse(warehouse)
    reporter = _make_reporter(topology.name, plans, config, warehouse, show_progress)
    with interrupts.while_starting(), reporter.starting(warehouse), ExitStack() as undo:
        # Before Spark, which takes longer: a wrong address, or another topology of this name, is an error at once.
        reporter.event(f"{topology.name}: connecting to ZooKeeper ({_where(config)})")
        zk = open_zookeeper(config, warehouse)
        undo.callback(zk.close)
        registration = Registration(zk, topology.name)
        registration.check(topology.identity())
        interrupts.check()
        if spark is None:
            reporter.event(f"{topology.name}: starting Spark ({master_of(None, config)})")
            spark = make_session(f"trident {topology.name}", spark_settings(config, stores_of_sources(topology.graph)))
        check_session(spark)
        interrupts.prepare()
        interrupts.check()
        stores.configure_by_session(warehouse, spark)
        drop_left_uploads(warehouse, spark)
        of_tasks = folders_of_tasks(topology.graph, warehouse)
        renew_workers(spark.sparkContext)
        prepare_cluster(spark, warehouse, config.python_archive, of_tasks, config.single_writer)
        _check_outside(spark, topology.name, plans, known=registration.read() is not None)
        query = _make_query(topology, plans, spark, config, warehouse, zk, reporter, all_listeners)
        undo.pop_all()
        add(place, query)
    return query


def _where(config: TridentConfig) -> str:
    return "the warehouse's own server" if config.zookeeper == "embedded" else config.zookeeper


def _make_query(
    topology: Startable,
    plans: list[GroupPlan],
    spark: SparkSession,
    config: TridentConfig,
    warehouse: Place,
    zk: ZooKeeper,
    reporter: Reporter,
    listeners: list[TopologyListener],
) -> TopologyQuery:
    """The query, whose threads run."""
    name, identity = topology.name, topology.identity()
    reporter.front = DrpcFront(topology.graph, config, reporter.event)
    if config.http and config.page:
        reporter.front.routes = page_routes(reporter, topology.graph, plans, warehouse)
    asked = copied_states(reporter.front.plans)
    reporter.site = SparkSite(name, plans, spark, config, warehouse, reporter.compaction_failed, asked)
    measure(reporter, plans, config, warehouse, zk, spark)
    reporter.front.listen()
    groups_of = {plan_.name: list(plan_.spouts) for plan_ in plans}
    supervised = Supervised(name, identity, groups_of, reporter.site.code_ids)
    rehearse = topology._rehearsal(spark, warehouse, config)
    reporter.rehearsals = Rehearsals(zk, name, identity, rehearse, reporter.event, reporter.wait_warm)
    reporter.supervisor = Supervisor(zk, supervised, reporter.site, reporter, _settings(config))
    reporter.front.role_of = lambda: reporter.supervisor.role
    closing = [zk.close]
    if config.zookeeper == "embedded":
        folder = server_folder(warehouse)
        closing.insert(0, ServerWatchdog(zk, folder, reporter.server_problem, reporter.site.explain).close)
    query = TopologyQuery(plans, config, reporter, zk)
    groups = tuple(f"trident-{plan_.name}-" for plan_ in plans)
    ending = Ending(
        name,
        reporter.supervisor,
        [
            reporter.write_last_status,
            reporter.close_copies,
            reporter.ends,
            reporter.front.end,
            reporter.close_display,
            *closing,
            reporter.listeners.close,  # the last: a slow one keeps no other process waiting for the lease
        ],
        config.stop_timeout_secs,
        lambda thread: thread == f"trident-{name}" or thread.startswith(groups),
    )
    for listener in listeners:
        reporter.listeners.add(listener)
    lineage = lineage_of(name, plans, warehouse)
    if lineage is not None:
        reporter.listeners.deliver(lineage, lineage)
    reporter.starts()
    query._start(ending)
    return query


def _check_follows(topology: Startable, query: object) -> None:
    """Raises IdentityMismatch where the topology cannot go on from a query that is about to be stopped for it."""
    if isinstance(query, TopologyQuery):
        query._check_follower(topology.identity())


def _check_outside(spark: SparkSession, topology: str, plans: list[GroupPlan], known: bool) -> None:
    """Looks, before any znode is written, whether stores outside of the warehouse can take the rows.

    Args:
        known: whether the topology has run before: then one that is away is waited for by the recovery.
    """
    for binding in (binding for plan_ in plans for binding in plan_.bindings):
        if isinstance(binding.state, OutsideState):
            try:
                check_store(spark, topology, binding)
            except StateAway as error:
                if not known:
                    raise
                log.warning("state %s will be waited for: %s", binding.name, error)


def _make_reporter(
    name: str, plans: list[GroupPlan], config: TridentConfig, warehouse: Place, show_progress: bool
) -> Reporter:
    shown = show_progress or config.origin("progress") != "default"
    every_secs = config.progress_interval_secs
    display = make_display(config.progress, interval_secs=every_secs, log_format=config.log_format) if shown else None
    progress = ProgressLog(name, "", uuid.uuid4().hex, display)
    writer = StatusWriter(status_path(warehouse, name), config.status_interval_secs)
    note = StandbyNote(warehouse, name)
    return Reporter(plans, progress, display is not None, writer, config.warm_standby, note)


def _settings(config: TridentConfig) -> Settings:
    limits = Limits(
        max_spout_pending=config.max_spout_pending,
        max_attempts=config.max_attempts,
        batch_emit_interval_secs=config.batch_emit_interval_secs,
    )
    return Settings(limits, config.message_timeout_secs, config.merge_at_stop_secs, config.keeps_for_creator)


def run_topology(
    topology: Startable,
    spark: SparkSession | None = None,
    config: TridentConfig | None = None,
    *,
    listeners: Iterable[TopologyListener] = (),
    **settings: Any,
) -> TopologyQuery:
    """Starts a topology and waits until it ends; see ``TridentTopology.run``.

    A first SIGINT or SIGTERM finishes what is decided and stops; a second one
    ends the process at once, which loses nothing: the next start goes on. While
    it starts, the first one ends it.

    Returns:
        the query, which has ended without an error.

    Raises:
        TridentError: why it ended; and as :func:`start_topology`.
        KeyboardInterrupt: SIGINT while it started.
        Terminated: SIGTERM while it started; or a signal that has ended Spark's JVM too.
    """
    config = as_config(config).replace(**settings)
    with sigterm_ends(f"the start of {topology.name}"):
        query = start_topology(topology, spark, config, show_progress=True, listeners=listeners)
    asked = threading.Event()
    numbers: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        if asked.is_set():
            print("trident: aborted", file=sys.stderr, flush=True)
            os._exit(128 + number)
        numbers.append(number)
        asked.set()

    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not query.await_termination(0.2):
            if asked.is_set() and query.is_active:
                query.request_stop()
    except TridentError:
        if not numbers or session_end(query.spark) is None:
            raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        gone = session_end(query.spark)
        if spark is None and gone is None:
            query.spark.stop()
    if numbers and gone is not None:  # sent to each process, as of a systemd unit without KillMode=mixed
        said = f"{topology.name} was ended by {signal.Signals(numbers[0]).name}, which has ended Spark's JVM too"
        raise Terminated(numbers[0], f"{said}; the next start finishes what is decided")
    return query
