"""``trident compact``, ``trident skip`` and ``trident reset``: change what is stored of a topology."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from trident.config import TridentConfig, as_config
from trident.coordinators.driver import GroupDriver
from trident.coordinators.errors import CoordinationError, TableError, TopologyError, TridentError
from trident.coordinators.group_store import GroupStore
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.leadership import Lease
from trident.coordinators.master import Limits
from trident.coordinators.ports import Beginning, Initialized, ProcessedBatch
from trident.coordinators.registration import delete_topology, finish_reset, refuse_unfinished
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.applying import engine_for
from trident.maintenance.inventory import choose_group, registered, unknown_topology
from trident.running.status import read_status
from trident.running.view import recorder
from trident.running.zookeeper import leading, own_zookeeper
from trident.states.core import storage
from trident.states.core.binding import StateBinding
from trident.states.core.descriptor import StateDescriptor, descriptors_of_group, list_descriptors
from trident.states.core.group_context import GroupContext, LeaderContext
from trident.states.core.names import check_name
from trident.states.core.place import Place
from trident.states.delta.append import DEAD_LETTERS, MESSAGES, SIDE_TABLES, VIEWS
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.manifest import ALL_KEPT
from trident.states.history.recorded import tables_of
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.reading import latest_txid
from trident.states.publishing.committer import DeltaCommitter
from trident.states.publishing.dead_letters import dead_letter_binding, side_tables, stage_letters
from trident.states.publishing.incarnations import incarnations_in

# ``trident reset``: forgets a topology, first in ZooKeeper, then in the warehouse.
#
# Killed anywhere, or kept from deleting something, it is run again and goes on;
# until it has ended ZooKeeper has a mark of it, and no process starts the topology.


def reset(name: str, drop_tables: bool = False, config: TridentConfig | None = None, force: bool = False) -> str:
    """Forgets a topology's transactions: its next start begins at transaction 1 of a new incarnation.

    Without drop_tables its tables stay; the next start refuses them unless the
    states say ``adopt=True`` or have other names. States outside of the
    warehouse are not touched: their rows stay, and the next start refuses them
    in the same way. A reset that was interrupted is to be run again; until then
    the topology does not start.

    Args:
        force: do not ask whether this is the topology's ZooKeeper.

    Raises:
        CoordinationError: the topology runs, or is another ZooKeeper's.
        TopologyError: nothing is known of it.
        TableError: something could not be deleted: the message says what was, and what was not.
    """
    check_name("topology", name)  # it becomes a folder that is deleted
    config = as_config(config)
    warehouse = config.warehouse_place()
    descriptors = list_descriptors(warehouse, name)
    folder = warehouse / "_trident" / name
    with own_zookeeper(config, warehouse, name, "reset", force) as zk:
        # Messages settled before say nothing of those that come now, nor views; dead letters are kept like any table.
        kinds = (*SIDE_TABLES, VIEWS) if drop_tables else (MESSAGES, VIEWS)
        auxiliary = [path for path, _ in side_tables(warehouse, name, kinds)]
        auxiliary += tables_of(warehouse, name) if drop_tables else []  # else they are kept: they name the incarnation
        is_here = bool(descriptors or auxiliary) or storage.exists(folder)
        published = {one.incarnation for one in incarnations_in(warehouse, name)} if is_here else None
        known = delete_topology(zk, name, published)
        if not known and not is_here:
            finish_reset(zk, name)
            raise TopologyError(
                f"nothing is known of a topology {name!r}", action="check the name, warehouse and zookeeper"
            )
        removed = _Removed()
        for descriptor in descriptors:
            _forget_state(removed, warehouse, descriptor, drop_tables)
        for path in auxiliary:
            removed.folder(path)
        # Last: by the tables' descriptors a reset that is run again finds what is left.
        removed.folder(folder)
        if removed.failed:
            raise TableError(
                f"{name}: its transactions are forgotten, but not everything could be deleted",
                found="; ".join(removed.failed),
                expected=f"all of it deleted; this is: {', '.join(removed.gone) or 'nothing'}",
                action=f"fix that and run `trident reset {name}` again, with the same options: it continues; until it "
                "has ended the topology does not start",
            )
        finish_reset(zk, name)
    tables = ", ".join(descriptor.name for descriptor in descriptors) or "none"
    what = "dropped" if drop_tables else "kept; the next start refuses them unless their states have adopt=True"
    return (
        f"{name}: its transactions are forgotten; tables ({tables}): {what}; rows that were published to states "
        "outside of the warehouse are kept there; the next start refuses those states, too, unless they have adopt=True"
    )


def _forget_state(removed: _Removed, warehouse: Place, descriptor: StateDescriptor, drop_tables: bool) -> None:
    """The descriptor goes last, and only when the tables that it names have gone."""
    paths = sorted({warehouse / descriptor.published_path, warehouse / descriptor.plain_path}) if drop_tables else []
    if all([removed.folder(path) for path in paths]):
        try:
            descriptor.remove(warehouse)
        except OSError as error:
            removed.failed.append(f"the descriptor of state {descriptor.name}: {error}")


class _Removed:
    """Collects what was deleted, and what could not be, as text."""

    def __init__(self) -> None:
        self.gone: list[str] = []
        self.failed: list[str] = []

    def folder(self, path: Place) -> bool:
        """Deletes a folder with all that is in it; True when it is not there afterwards."""
        try:
            if storage.delete(path):
                self.gone.append(path.name)
            return True
        except OSError as error:
            others = len(getattr(error, "problems", ())) - 1
            more = f" and {others} more" if others > 0 else ""
            self.failed.append(f"{path} is left ({error}{more})")
            return False


__all__ = ["compact", "reset", "skip"]


def compact(name: str, config: TridentConfig | None = None, force: bool = False) -> str:
    """Brings the plain tables of a topology's keyed states up to their last transaction.

    May be called while the topology runs: a MERGE counts each transaction once,
    in whichever process.

    Args:
        force: do not ask whether this is the topology's ZooKeeper; none is needed then.

    Returns:
        what was done, a line a state.

    Raises:
        TopologyError: the warehouse has no such topology, or a state's aggregator
            is Python code, which only the running topology has.
        CoordinationError: the topology is another ZooKeeper's.
    """
    check_name("topology", name)
    config = as_config(config)
    warehouse = config.warehouse_place()
    descriptors = list_descriptors(warehouse, name)
    if not descriptors:
        raise unknown_topology(warehouse, name)
    if not force:
        with own_zookeeper(config, warehouse, name, "compact"):
            pass
    engine = engine_for(f"compact {name}", config, warehouse)
    lines = []
    keyed = [one for one in descriptors if one.state_kind.has_log and one.ends_at is None]
    for group in dict.fromkeys(one.group for one in keyed):
        lines += _compact_group(engine, warehouse, [one for one in keyed if one.group == group])
    return "\n".join(lines) or f"{name} has no keyed state: there is nothing to merge"


def _compact_group(engine: KernelEngine, warehouse: Place, states: Sequence[StateDescriptor]) -> list[str]:
    """Merges the keyed states of a batch group up to one transaction, and records the view of it."""
    first, lines = states[0], []
    txid = latest_txid(warehouse, first.name)
    compactors = [Compactor(engine.spark, engine, warehouse, state) for state in states]
    for compactor in compactors:
        report = compactor.merge_once(txid, force=True, upto=txid)
        # The log is dropped by the topology, which knows how much of it to keep.
        what = f"merged transactions {report.p_old + 1} to {report.p_new}" if report else "was up to date"
        lines.append(f"{compactor.state.name}: {what} (transaction {txid})")
    recorder(engine, GroupContext(warehouse, first.topology, first.group, first.incarnation), compactors).record()
    return lines


def skip(
    name: str, txid: int, config: TridentConfig | None = None, group: str | None = None, force: bool = False
) -> str:
    """Commits one transaction as empty and writes its metadata to the dead-letter table, together.

    For a batch that can never be processed (docs/semantics.md 1). The topology must not
    be running, and txid must be its current transaction.

    Args:
        group: its batch group; needed when there are several.
        force: do not ask whether this is the topology's ZooKeeper.

    Returns:
        what was done.

    Raises:
        CoordinationError: the topology runs, or is another ZooKeeper's, or txid is not the current transaction.
        TopologyError: no such topology or group.
    """
    check_name("topology", name)
    config = as_config(config)
    warehouse = config.warehouse_place()
    with own_zookeeper(config, warehouse, name, "skip", force) as zk:
        incarnation, identity = registered(zk, name)
        group = choose_group(name, list(identity["groups"]), group)
        engine = engine_for(f"skip {name}", config, warehouse)
        with leading(zk, name, list(identity["groups"])) as lease:
            # Again: the session took seconds to make, and another command may have begun, or ended, meanwhile.
            refuse_unfinished(zk, name)
            incarnation, identity = registered(zk, name)
            spouts = {tx_id: identity["streams"][tx_id] for tx_id in identity["groups"][group]}
            return _skip(engine, zk, lease, warehouse, name, group, spouts, incarnation, txid)


def _skip(
    engine: KernelEngine,
    zk: ZooKeeper,
    lease: Lease,
    warehouse: Place,
    name: str,
    group: str,
    spouts: dict[str, str],
    incarnation: str,
    txid: int,
) -> str:
    fence = lease.fences[group]
    store = GroupStore(zk, name, group, list(spouts), fence)
    record, decision, pins = store.load()
    if record is None or decision is not None or record.current_txid != txid or txid not in record.attempts:
        current = record.current_txid if record else None
        raise CoordinationError(
            f"transaction {txid} of {name} cannot be skipped",
            found=f"current transaction {current}" + (", which is decided" if decision else ""),
            expected="the current transaction, begun and not decided",
            action="start the topology to finish what is decided; `trident status` shows the current transaction",
        )
    metadata = {tx_id: of_stream.get(txid) for tx_id, of_stream in pins.items()}
    unpinned = [tx_id for tx_id, value in metadata.items() if value is None and not pins[tx_id]]
    if unpinned:
        raise CoordinationError(
            f"transaction {txid} of {name} cannot be skipped: the spout of stream {unpinned[0]!r} is opaque",
            found="no stored metadata: the rows of the failed attempts are not known",
            expected="a spout whose metadata is pinned",
            action="take the rows that fail out of the source, or correct the topology; the next attempt emits anew",
        )
    dead_letters = dead_letter_binding(name, group)
    bindings = [*(_binding(engine, warehouse, found) for found in _attached(warehouse, name, group)), dead_letters]
    of = LeaderContext(warehouse, name, group, incarnation, fence.epoch, lambda: fence.verify(zk))
    committer = DeltaCommitter(engine, of, bindings, outside=None, retention=ALL_KEPT)
    committer.open(record)
    error = _last_error(warehouse, name, group)
    runner = _SkipRunner(committer, warehouse, incarnation, spouts, metadata, error)
    done = _Advanced()
    driver = GroupDriver(store, _Pinned(txid, metadata), runner, committer, done, Limits(max_spout_pending=1), None)
    driver.start()
    while not driver.wait(0.02) and not done.done.is_set():
        if lease.lost.is_set():
            driver.abandon()
    driver.stop()
    driver.wait()
    driver.close()
    if driver.error is not None:
        raise driver.error
    if not done.done.is_set():
        raise CoordinationError(f"the lease of {name} was lost; transaction {txid} was not skipped")
    where = warehouse / DEAD_LETTERS.table_name(name, group)
    return (
        f"{name}: transaction {txid} is committed as empty; its metadata is in {where}. "
        "A spout that acknowledges in commit, such as a queue, was not notified: its messages come again."
    )


def _binding(engine: KernelEngine, warehouse: Place, descriptor: StateDescriptor) -> StateBinding:
    """Returns what a descriptor and its table say of a state: enough to commit nothing to it."""
    partitions = engine.load(str(warehouse / descriptor.published_path)).partition_columns
    state = SimpleNamespace(name=descriptor.name, partition_columns=tuple(partitions), adopt=False)
    state.change_feed = descriptor.change_feed
    # The descriptor is written again from this: it must say what it said.
    aggregator = SimpleNamespace(native_name=descriptor.aggregator) if descriptor.aggregator else None
    return StateBinding(
        state,
        descriptor.state_kind,
        descriptor.keys,
        descriptor.schema,
        descriptor.value_fields,
        aggregator,
        descriptor.merging,
        descriptor.ordered_by,
        descriptor.sequence,
        descriptor.deleted_retention_txids,
        descriptor.history_by,
        descriptor.history_end,
    )


def _attached(warehouse: Place, name: str, group: str) -> list[StateDescriptor]:
    return [found for found in descriptors_of_group(warehouse, name, group) if found.ends_at is None]


class _Pinned:
    """The spout host of a skip: the transaction's own metadata, and no other transaction."""

    def __init__(self, txid: int, metadata: dict[str, Any]) -> None:
        self._txid, self._metadata = txid, metadata

    def is_ready(self, txid: int) -> bool:
        return False

    def initialize(self, beginning: Beginning) -> Initialized:
        if beginning.attempt.txid != self._txid:
            raise TridentError("only one transaction is skipped; later ones stay for the topology")
        return Initialized({tx_id: value for tx_id, value in self._metadata.items() if value is not None})

    def cancel(self, attempt: TransactionAttempt) -> None:
        """It takes no time."""

    def commit(self, attempt: TransactionAttempt, commit_data: Any) -> None:
        """A skipped batch has nothing for its spout."""

    def success(self, attempt: TransactionAttempt) -> None:
        """The topology tells its spouts at its next start."""


class _SkipRunner:
    """Stages nothing but one dead letter."""

    def __init__(
        self,
        committer: DeltaCommitter,
        warehouse: Place,
        incarnation: str,
        spouts: dict[str, str],
        metadata: dict[str, Any],
        error: str,
    ) -> None:
        self._committer, self._warehouse, self._incarnation = committer, warehouse, incarnation
        self._spouts, self._metadata, self._error = spouts, metadata, error

    def process(self, attempt: TransactionAttempt, metadata: Any, timeout_secs: float | None) -> ProcessedBatch:
        targets = self._committer.staging_targets
        staged: dict[str, list[Any]] = {target.name: [] for target in targets}
        letters = targets[-1]
        letter = {"metadata": json.dumps(self._metadata), "error": self._error}
        staged[letters.name] = stage_letters(letters.root, self._incarnation, attempt, [letter])
        spouts = {
            tx_id: {"spout": self._spouts[tx_id], "kind": "", "metadata": value, "commit_data": None}
            for tx_id, value in self._metadata.items()
        }
        return ProcessedBatch(staged, spouts, skipped=self._error)

    def resolve(
        self, attempt: TransactionAttempt, processed: ProcessedBatch, timeout_secs: float | None
    ) -> ProcessedBatch:
        return processed

    def cancel(self, attempt: TransactionAttempt) -> None:
        """It takes no time."""


class _Advanced:
    def __init__(self) -> None:
        self.done = threading.Event()

    def began(self, attempt: TransactionAttempt) -> None:
        """It begins nothing."""

    def advanced(self, attempt: TransactionAttempt, info: Any) -> None:
        self.done.set()

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """The driver keeps the error."""

    def retries(self, attempt: TransactionAttempt, part: str, error: BaseException) -> None:
        """The driver keeps the error."""


def _last_error(warehouse: Place, name: str, group: str) -> str:
    try:
        status = read_status(warehouse, name)
    except TridentError:
        return ""
    return next((of.last_error or "" for of in status.groups if of.name == group), "")
