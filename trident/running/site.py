"""The supervisor's way to Spark and Delta: opens a topology's batch groups, and sees when the session is lost."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession

from trident.config import TridentConfig
from trident.coordinators.identities import first_id
from trident.coordinators.ports import GroupParts, StoredGroup, Term
from trident.coordinators.processes import UNKNOWN, boot_id, host_name
from trident.messages.executor import MessageSpoutExecutor
from trident.planning.groups import GroupPlan, code_id
from trident.running.failures import FailureExplainer, WarehouseProbe, session_end, written_folders
from trident.running.runner import SparkBatchRunner
from trident.running.view import recorder
from trident.spark.jobs import executor_cores
from trident.spouts.contracts import PartitionedTridentSpout, SpoutContext, SpoutKind
from trident.spouts.executors import (
    BatchSpoutExecutor,
    SpoutExecutor,
    TridentSpoutExecutor,
    check_reads_only,
    is_batch_spout,
)
from trident.spouts.host import (
    GivenBatches,
    GivenBatchesHost,
    GivenExecutor,
    RecoverySpouts,
    TridentSpoutHost,
    load_given,
)
from trident.spouts.partitions import OpaquePartitionedTridentSpoutExecutor, PartitionedTridentSpoutExecutor
from trident.spouts.rich import is_rich_spout
from trident.states.core import storage
from trident.states.core.addresses import is_local_master
from trident.states.core.descriptor import load_descriptor
from trident.states.core.group_context import LeaderContext
from trident.states.core.place import Place
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.manifest import Retention
from trident.states.history.recorder import Published, TransactionRecorder, TransactionsTable
from trident.states.history.views import ViewRecorder
from trident.states.keyed.background_compactor import BackgroundCompactor
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.copies import HostCopies, StateCopies, own_folder, settled_repair, settled_shards
from trident.states.keyed.reading import StoredFrames
from trident.states.outside.health import OutsideProgress
from trident.states.outside.port import OutsideState
from trident.states.publishing.committer import DeltaCommitter
from trident.states.publishing.incarnations import check_group_is_new, check_no_prior_incarnation

_SPOUT_SETTINGS = (
    "max_spout_pending",
    "ackers",
    "max_pending_messages",
    "max_replays",
    "replay_backoff_secs",
    "remember_messages_secs",
)


class SparkSite:
    """``trident.coordinators.ports.Site`` on a Spark session and a warehouse folder.

    Args:
        compaction_failed: told of a group, a state and why merging the state failed.
        queried_states: group → its states that requests ask in their local copies.
    """

    def __init__(
        self,
        topology: str,
        plans: Sequence[GroupPlan],
        spark: SparkSession,
        config: TridentConfig,
        warehouse: Place,
        compaction_failed: Callable[[str, str, BaseException], None],
        queried_states: Mapping[str, Collection[str]],
    ) -> None:
        self._asked = queried_states
        self.topology, self.plans = topology, {plan.name: plan for plan in plans}
        self.spark, self.config, self.warehouse = spark, config, warehouse
        self.compaction_failed = compaction_failed
        # Of the code that is loaded: its files may be edited while it runs.
        self.code_ids = {plan.name: code_id(plan) for plan in plans}
        self.engine = KernelEngine(spark)
        self._copies: dict[str, StateCopies | None] = {}
        self._copies_lock = threading.Lock()
        self.host_copies: dict[str, HostCopies] = {}
        self.views: dict[str, ViewRecorder] = {}  # of the groups that have keyed states, once they are open
        self.outside = {plan.name: OutsideProgress(_outside_states(plan)) for plan in plans}
        self._place = WarehouseProbe(warehouse, topology)
        self._explain_storage = FailureExplainer(written_folders(spark, warehouse))

    def opening(self, group: str, term: Term, epoch: int, check_fence: Callable[[], None]) -> SparkOpening:
        return SparkOpening(self, self.plans[group], term, epoch, check_fence)

    def check_first_incarnation(self) -> None:
        check_no_prior_incarnation(self.engine, self.warehouse, self.topology)

    def copies(self, group: str) -> StateCopies | None:
        """The local copies of the states that batches and requests look up: the same object in each of a group's terms.

        They are where two boots of the host can be told apart: a copy is never flushed, and one that a power cut has
        left half written must not be taken for whole. On a cluster they are on a disk of this host alone.
        """
        with self._copies_lock:  # batches, requests, a standby's thread
            if group not in self._copies:
                self._copies[group] = self._new_copies(self.plans[group], self._asked.get(group, ()))
            return self._copies[group]

    def _new_copies(self, plan: GroupPlan, queried_states: Collection[str] = ()) -> StateCopies | None:
        one_host = is_local_master(self.spark.sparkContext.master)
        # On a cluster a task has the copies of its own host: see _host_copies.
        boot, states, base = boot_id(), {*(plan.copied_states if one_host else ()), *queried_states}, None
        if not states or not self.config.local_copies or boot == UNKNOWN:
            return None
        if not one_host or not self.warehouse.is_local:
            base = own_folder(self.warehouse)
            if base is None:
                return None
        return StateCopies(self.warehouse, self.config.local_copy_bytes_max, host_name(), boot, states, base)

    def warehouse_lost(self, sure: bool) -> Exception | None:
        return self._place.halted() if self._place.is_missing(sure) else None

    def session_end(self) -> Exception | None:
        return session_end(self.spark)

    def explain(self, error: BaseException) -> BaseException:
        return session_end(self.spark, ask=True) or self._explain_storage(error)


class SparkOpening:
    """``trident.coordinators.ports.GroupOpening``: one batch group under one lease."""

    def __init__(
        self, site: SparkSite, plan: GroupPlan, term: Term, epoch: int, check_fence: Callable[[], None]
    ) -> None:
        self._site, self._plan, self._term = site, plan, term
        self._of = LeaderContext(site.warehouse, site.topology, plan.name, term.incarnation, epoch, check_fence)

    @cached_property
    def committer(self) -> DeltaCommitter:
        site, plan = self._site, self._plan
        return DeltaCommitter(
            site.engine,
            self._of,
            plan.bindings,
            site.outside[plan.name],
            Retention(site.config.history_retention_txids, site.config.history_retention_secs),
            site.code_ids[plan.name],
        )

    def check_new(self) -> None:
        check_group_is_new(self._of)

    def check_stored(self, store: StoredGroup) -> None:
        given = self._given()
        if given is not None and not given.may_acknowledge:
            check_reads_only(self._site.topology, self._plan.spouts)

    def recovery_spouts(self, finishing: int) -> RecoverySpouts:
        spouts = self._plan.spouts
        return RecoverySpouts(lambda tx_id: self._executor(tx_id) if tx_id in spouts else None, spouts, finishing)

    def parts(self, store: StoredGroup) -> GroupParts:
        site, plan, committer = self._site, self._plan, self.committer
        spouts = self._spouts(store)
        runner = SparkBatchRunner(
            site.spark,
            site.topology,
            plan,
            spouts,
            committer.staging_targets,
            self._of.folder,
            StoredFrames(site.spark, site.warehouse),
            self._term.incarnation,
            self._of.epoch,
            site.config.batch_partitions,
            self._copies(),
            site.config.keep_plans,
            self._host_copies(),
        )
        return GroupParts(spouts, runner, self._background_merger(runner.advanced))

    def _copies(self) -> StateCopies | None:
        """Those that followed while this process waited, as far as the states are the same."""
        copies = self._site.copies(self._plan.name)
        if copies is not None:
            copies.leads()
        return copies

    def _host_copies(self) -> HostCopies | None:
        """Those that executors have on their hosts."""
        site, name, states = self._site, self._plan.name, self._plan.copied_states
        site.host_copies.pop(name, None)
        if states and site.config.local_copies and not is_local_master(site.spark.sparkContext.master):
            repair, shards = settled_repair(site.warehouse), site.config.state_shards
            shards = shards or settled_shards(site.warehouse, executor_cores(site.spark.sparkContext))
            made = HostCopies(site.warehouse, site.config.local_copy_bytes_max, states, repair, shards)
            site.host_copies[name] = made
        return site.host_copies.get(name)

    def _given(self) -> GivenBatches | None:
        return load_given(self._of)

    def _spouts(self, store: StoredGroup) -> TridentSpoutHost:
        executors: dict[str, SpoutExecutor] = {}
        given = self._given()
        host = TridentSpoutHost(executors) if given is None else GivenBatchesHost(executors, given)
        try:
            for tx_id in self._plan.spouts:
                executors[tx_id] = executor = self._executor(tx_id)
                if given is not None and executor.pins:
                    executors[tx_id] = cast(SpoutExecutor, GivenExecutor(executor, tx_id, given))
                _resume(executors[tx_id], store.pins.get(tx_id, {}), store.opaque_metadata.get(tx_id, {}))
        except BaseException:  # the recovery may be tried again: no open spout may stay beside it
            host.close()
            raise
        return host

    def _executor(self, tx_id: str) -> SpoutExecutor:
        site, term = self._site, self._term
        folder = site.warehouse / "_trident" / site.topology / "streams" / tx_id
        storage.make_folder(folder, site.warehouse)
        settings = {name: getattr(site.config, name) for name in _SPOUT_SETTINGS}
        known = {"epoch": term.epoch, "warehouse": str(site.warehouse), **settings}
        own: Path | Place = Path(folder) if folder.is_local else folder
        # A rollback is no new beginning for a source: its positions are those that are pinned, its folders stay.
        context = SpoutContext(site.spark, site.topology, tx_id, own, first_id(term.incarnation), known)
        return make_executor(self._plan.spouts[tx_id], context)

    def _recorder(self) -> TransactionRecorder | None:
        """None where no history is kept."""
        manifests = self.committer.manifests
        if not manifests.retention.txids:
            return None
        published = Published(self._of, manifests, self.committer.recent)
        return TransactionRecorder(TransactionsTable(self._site.engine, self._of), published, self._of.check_fence)

    def _background_merger(self, on_advanced: Callable[[int], None]) -> BackgroundCompactor:
        site, name = self._site, self._plan.name
        compactors = [
            Compactor(
                site.spark,
                site.engine,
                site.warehouse,
                load_descriptor(site.warehouse, binding.name),
                binding.state,
                binding.aggregator,
            )
            for binding in self._plan.bindings
            if binding.state_kind.has_log
        ]
        views = recorder(site.engine, self._of, compactors, self._of.epoch)
        site.views[name] = views
        return _RecordingCompactor(
            compactors,
            partial(site.compaction_failed, name),
            on_advanced,
            views.record if compactors else None,
            self._recorder(),
        )


class _RecordingCompactor(BackgroundCompactor):
    """Merges a group's tables and records their views and its transactions; the runner hears of advances too."""

    def __init__(
        self,
        compactors: Sequence[Compactor],
        on_error: Callable[[str, BaseException], None],
        on_advanced: Callable[[int], None],
        record: Callable[[], object] | None,
        recorder: TransactionRecorder | None,
    ) -> None:
        super().__init__(compactors, on_error, record=record)
        self._on_advanced, self._recorder = on_advanced, recorder

    def start(self, advanced: int = 0) -> None:
        self._on_advanced(advanced)
        super().start(advanced)
        if self._recorder is not None:
            self._recorder.start(advanced)

    def advanced(self, txid: int) -> None:
        self._on_advanced(txid)
        super().advanced(txid)
        if self._recorder is not None:
            self._recorder.advanced(txid)

    def stop(
        self, compact: bool = True, timeout_secs: float = 60.0, give_up: Callable[[], bool] = lambda: False
    ) -> bool:
        if self._recorder is not None:
            self._recorder.stop(flush=compact)
        return super().stop(compact, timeout_secs, give_up)


def _outside_states(plan: GroupPlan) -> list[str]:
    return [binding.name for binding in plan.bindings if isinstance(binding.state, OutsideState)]


def _resume(executor: SpoutExecutor, pins: Mapping[int, Any], committed: Mapping[str, tuple[int, Any]]) -> None:
    """Tells a stream's executor where its last committed batch ended."""
    if pins:
        executor.resume(max(pins), pins[max(pins)])
    elif committed:
        # A copy: a spout that changes it must not change what is stored with the next transaction.
        positions = {partition: copy.deepcopy(metadata) for partition, (_, metadata) in committed.items()}
        executor.resume(max(txid for txid, _ in committed.values()), positions)


def make_executor(spout: Any, context: SpoutContext) -> SpoutExecutor:
    """The executor for a spout, by its kind."""
    if isinstance(spout, PartitionedTridentSpout):
        opaque = spout.kind is SpoutKind.OPAQUE
        cls = OpaquePartitionedTridentSpoutExecutor if opaque else PartitionedTridentSpoutExecutor
        return cls(spout, context)
    if is_rich_spout(spout):
        return MessageSpoutExecutor(spout, context)
    if is_batch_spout(spout):
        spout = BatchSpoutExecutor(spout)
    return TridentSpoutExecutor(spout, context)
