"""Brings a keyed state's plain table up to its log, and drops what is merged (docs/semantics.md 11).

``trident.states.keyed.compaction`` decides; this carries it out on Spark and Delta. None of
it can double or lose a row, in whichever process and however often it runs, so it needs no
fence: a deposed coordinator's compactor does the same work or fails.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, Halted, TableError
from trident.coordinators.identities import up_to
from trident.coordinators.threads import tries
from trident.states.core import storage
from trident.states.core.control import DOMAIN, ControlRecord
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import AnyPath, Place
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.kernel import CommitOutcomeUnknown, KernelEngine, TableSnapshot, TxnAlreadyApplied
from trident.states.delta.log_commit import until_committed
from trident.states.delta.torn_entries import fsync_log_entries, table_lock
from trident.states.keyed.compaction import (
    REST,
    LogView,
    MergePlan,
    TableView,
    ViewsDisagree,
    is_overdue,
    is_wanted,
    log_share,
    plan_drop,
    plan_merge,
)
from trident.states.keyed.delta_map import DeltaMapState
from trident.states.keyed.file_merge import CannotMerge, FileMerge, WorkerEnded
from trident.states.keyed.log_merge import combiner_of, keeps_last
from trident.states.keyed.merge_files import FileUnreadable, MergeFailed
from trident.states.keyed.merge_rows import DoesNotFit, NotMergeable
from trident.states.keyed.spark_merge import SparkMerge, merge_failed
from trident.states.keyed.table_watch import LOG_VERSION, check_log
from trident.states.keyed.tables import (
    as_stored,
    column_names,
    greatest_txid,
    merged_upto,
    open_plain,
    own_control,
    plain_as_of,
)

# Deletes the data files of a keyed state's log some time after the log has dropped them.
#
# A log drop removes files from the Delta table; on disk they would stay until
# a person runs VACUUM on a table that is internal, one folder for each
# transaction for ever. No snapshot can be asked for below the floor; a reader
# that had pinned an older table version before the drop has an hour to end.


GRACE_SECS = 3600.0


class LogSweeper:
    """The sweeper of one log; used by one thread. A new process gives the whole grace again.

    Args:
        incarnation: of the topology; files of others are not touched but those from before a rollback of it.
    """

    def __init__(self, root: Place, incarnation: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folders, self._clock = [root / "data" / each for each in up_to(incarnation)], clock
        self._drops: deque[tuple[float, int]] = deque()  # when a floor was first seen

    def dropped(self, floor: int) -> None:
        """The log's control record says that transactions up to this one are dropped."""
        if not self._drops or floor > self._drops[-1][1]:
            self._drops.append((self._clock(), floor))

    def sweep(self) -> int:
        """Deletes what was dropped long enough ago; returns how many folders that were.

        Raises:
            OSError: the folder cannot be listed.
        """
        floor = None
        while self._drops and self._clock() - self._drops[0][0] >= GRACE_SECS:
            floor = self._drops.popleft()[1]
        if floor is None:
            return 0
        doomed = [at / name for at in self._folders for name in storage.list_names(at) if _txid(name) <= floor]
        for folder in doomed:
            storage.try_delete(folder)
        return len(doomed)


def _txid(folder: str) -> float:
    """Of an attempt's folder, ``<txid>-<attempt>-<nonce>``."""
    number = folder.partition("-")[0]
    return int(number) if number.isdigit() else float("inf")


log = logging.getLogger("trident.compactor")

MERGE = faults.register("compact.merge", "the MERGE of a keyed state's log into its table")
SETTLE = faults.register("compact.settle", "the flush of a plain table's versions before readers see them")
DROP = faults.register("compact.drop", "the commit that drops merged files from a keyed state's log")

# A log is dropped from so often while as many transactions pass as are kept.
_DROPS = 4
_PLAN_TRIES = 5
# This many of the newest MERGEs may not be on disk yet when a process begins; older ones the system has written back.
_UNSETTLED = 100


@dataclass(frozen=True)
class MergeReport:
    """One MERGE that is in the table: of the transactions ``p_old < txid <= p_new``; and how long it took."""

    p_old: int
    p_new: int
    seconds: float


class Compactor:
    """Merges and drops the log of one keyed state.

    Any number may exist for a state, in any processes; of those that want the
    same transactions one wins and the others find it done or raise
    :class:`CommitConflict`. One object is used by one thread at a time.

    Args:
        settings: when to merge and how much log to keep.
        aggregator: of the state; needed for a Python combiner only.

    Raises:
        ConfigError: a Python combiner is needed and was not given.
    """

    def __init__(
        self,
        spark: "SparkSession",
        engine: KernelEngine,
        warehouse: AnyPath,
        state: StateDescriptor,
        settings: DeltaMapState | None = None,
        aggregator: Any = None,
    ) -> None:
        self._engine, self.state = engine, state
        self._settings = settings or DeltaMapState(state.name)
        self.plain = str(Place(warehouse) / state.plain_path)
        self.log = str(Place(warehouse) / state.published_path)
        self._cancelled = False
        self._by_spark = SparkMerge(spark, self.plain, state, combiner_of(state, aggregator))
        self._by_files = FileMerge(engine, self.plain, self.log, lambda: self._cancelled)
        self._said: set[str] = set()
        self._sweeper = LogSweeper(Place(self.log), state.incarnation)
        self._merged: int | None = None
        self._floor: int | None = None  # of the log, when it was last looked at
        self._settled = -1  # up to which version the plain table is known to outlive a power cut
        self._log_seen: int | None = None  # up to which version the log was looked at
        self._last_merge = time.monotonic()
        self._rest_until = self._pays_from = 0.0
        # As the committer writes it: it must recognise the log drop as the topology's own.
        self._engine_info = f"trident/{state.incarnation}"

    # --- MERGE ----------------------------------------------------------------------------------

    def merge_once(self, advanced: int, force: bool = False, upto: int | None = None) -> MergeReport | None:
        """One MERGE of everything that waits, up to the last advanced transaction.

        Args:
            advanced: the last advanced txid. Never more: a transaction that is
                published here may not be published yet in another table of the group.
            force: merge also when the settings do not ask for it yet.
            upto: merge up to this transaction at most, at which other states of the group have a table version too.

        Returns:
            The merge; None when it was not due or nothing waited. While
            nothing waits, or not enough, no table is opened.

        Raises:
            CommitConflict: another compactor merged meanwhile; nothing was changed.
            Halted: the log lacks rows that the table does not have, or another writer changed it.
            TableError: the MERGE failed, or is not in the table after it was told as done.
        """
        now = time.monotonic()
        settings, waited = self._settings, now - self._last_merge
        waiting = None if self._merged is None else advanced - self._merged
        if not force and waiting is not None:
            if not is_wanted(waiting, waited, settings.merge_every_txids, settings.merge_interval_secs):
                return None
            overdue = is_overdue(waiting, waited, settings.merge_every_txids, settings.merge_interval_secs)
            if not overdue and (now < self._rest_until or waiting < self._pays_from):
                return None
        elif waiting is not None and waiting <= 0:
            return None
        planned = self.plan(advanced, force or waited >= settings.merge_interval_secs, upto)
        if planned is None or not (force or self._pays(planned[0], planned[1], waited)):
            return None
        report = self.merge(*planned)
        if not self.state.retention.forgets:
            return report
        # A MERGE ends where a stretch of transactions does.
        while report.p_new < advanced and (planned := self.plan(advanced, upto=upto)) is not None:
            more = self.merge(*planned)
            report = MergeReport(report.p_old, more.p_new, report.seconds + more.seconds)
        return report

    def _pays(self, plan: MergePlan, plain: TableSnapshot, waited: float) -> bool:
        """Tells whether to merge now, or when the log is larger."""
        waiting, settings = plan.upto - plan.after, self._settings
        if is_overdue(waiting, waited, settings.merge_every_txids, settings.merge_interval_secs):
            return True
        try:
            rewritten, logged = self._by_files.bytes_to_move(self.state, plan, plain)
        except CannotMerge:
            return True  # Delta's MERGE: what it rewrites is not known
        self._pays_from = waiting * log_share(rewritten, logged)
        return self._pays_from <= waiting

    def plan(
        self, advanced: int, force: bool = True, upto: int | None = None
    ) -> tuple[MergePlan, TableSnapshot, TableSnapshot] | None:
        """Reads P, then pins the log, and decides; with the snapshots that :meth:`merge` takes."""
        for _ in tries(_PLAN_TRIES):
            plain = self._open_plain()
            log_snapshot = self._engine.load(self.log)
            control = self._control(log_snapshot)
            self._merged = merged_upto(self.state, plain, control.starts_at)
            try:
                plan = plan_merge(
                    LogView(log_snapshot.version, control.txid, control.floor),
                    TableView(plain.version, self._merged),
                    advanced,
                    self._settings.merge_every_txids,
                    force,
                    self.state.retention,
                    upto,
                )
            except ViewsDisagree as error:
                # Merged and dropped by another compactor between our two looks, unless it stays so.
                disagreement = error
                continue
            if plan is None:
                return None
            check_log(self.state, self.plain, self.log, log_snapshot.version, self._log_seen)
            self._log_seen = log_snapshot.version
            return plan, plain, log_snapshot
        raise Halted(f"state {self.state.name} cannot be merged: {disagreement}") from disagreement

    @property
    def known_merged(self) -> int | None:
        """The last transaction that is in the plain table, as it was last looked at; None: not yet."""
        return self._merged

    def merged_upto(self) -> int:
        """The last transaction that is in the plain table, as it is now."""
        control = self._control(self._engine.load(self.log))
        return merged_upto(self.state, self._open_plain(), control.starts_at)

    def merge(
        self, plan: MergePlan, plain: TableSnapshot, log_snapshot: TableSnapshot, clamps: bool = False
    ) -> MergeReport:
        """Carries out a plan; the guard makes that safe however old the plan is.

        Args:
            clamps: whether a sum that does not fit its column becomes the greatest, or least, value that does: for a
                repair, where a person has asked for it.
        """
        started = time.monotonic()
        state = self._as_stored(plain, log_snapshot)
        marker = {
            "topology": state.topology,
            "group": state.group,
            "incarnation": state.incarnation,
            "upto": plan.upto,
            LOG_VERSION: log_snapshot.version,
        }
        # A repair that restores the table must not come between: its lock, which MERGEs share.
        with faults.fault_point(MERGE), table_lock(self.plain, shared=True):
            try:
                if clamps:
                    raise CannotMerge("values that do not fit are clamped")
                merged, cpu_secs = self._merge_files(state, plan, plain, marker)
            except (CannotMerge, MergeFailed, WorkerEnded) as reason:
                self._say_why(reason)
                self._by_spark.merge(state, plan, plain, log_snapshot, marker, clamps)
                merged, cpu_secs = merged_upto(self.state, self._settled_plain(), self.state.starts_at), 0.0
        if merged < plan.upto:
            # Delta passes over a write whose txnVersion it thinks it has, without a word.
            raise TableError(
                f"a MERGE into {self.plain} was reported as done and is not in the table",
                found=f"merged up to {merged}",
                expected=plan.upto,
                action="nothing is lost: the log has the rows, and the MERGE is tried again",
            )
        self._merged, self._last_merge = merged, time.monotonic()
        self._rest_until, self._pays_from = self._last_merge + REST * cpu_secs, 0.0
        return MergeReport(plan.after, plan.upto, time.monotonic() - started)

    def _merge_files(
        self, state: StateDescriptor, plan: MergePlan, plain: TableSnapshot, marker: Mapping[str, object]
    ) -> tuple[int, float]:
        """The native MERGE; returns P behind it, and the processor's time that it took."""
        try:
            after, done = self._by_files.merge(state, plan, plain, marker, self._engine_info)
        except (CommitConflict, CommitOutcomeUnknown, TxnAlreadyApplied):
            # Of an old plan, or one whose answer was lost, it may be there: only the table tells.
            merged = merged_upto(self.state, self._open_plain(), self.state.starts_at)
            if merged < plan.upto:
                raise
            return merged, 0.0
        except DoesNotFit as error:
            raise MergeFailed(str(error)) from error
        except (FileUnreadable, NotMergeable) as error:
            raise merge_failed(self.plain, plan, str(error)) from error
        try:
            self._engine.run_maintenance(after)
        except TableError as error:  # only speed is lost
            log.warning("no checkpoint of %s: %s", self.plain, error)
        return plan.upto, done.cpu_secs

    def _say_why(self, reason: Exception) -> None:
        """Says once in the log why Spark merges this state."""
        if str(reason) not in self._said:
            self._said.add(str(reason))
            level = logging.INFO if isinstance(reason, CannotMerge) else logging.WARNING
            log.log(level, "Spark merges state %s: %s", self.state.name, reason)

    def _as_stored(self, plain: TableSnapshot, log_snapshot: TableSnapshot) -> StateDescriptor:
        """The state with the columns that its tables have by now.

        Columns are added to the plain table, then to the log, then to the
        descriptor. A compactor that was made before must carry them over like
        any other, or it would leave them behind and say that all is merged.
        """
        if not keeps_last(self.state):
            return self.state
        if set(column_names(log_snapshot)) - set(column_names(plain)) - {TXID_COLUMN, DELETED_COLUMN}:
            plain = self._open_plain()  # was looked at before the log: it may have got the column since
        return as_stored(self.state, plain, log_snapshot)

    # --- log drop -------------------------------------------------------------------------------

    def drop_once(self, advanced: int) -> int | None:
        """Drops whole log files that are merged and out of retention.

        It looks again once a quarter of the retention has come: to look costs more than a transaction.

        Returns:
            The log's new floor; None when there was nothing to drop.

        Raises:
            CommitConflict: publishing won every time; nothing was dropped.
            TableError: the commit failed.
        """
        retention = self._settings.snapshot_retention_txids
        if self._floor is not None and advanced - retention - self._floor < max(retention // _DROPS, 1):
            return None

        def commit() -> int | None:
            log_snapshot = self._engine.load(self.log)
            control = self._control(log_snapshot)
            self._floor = control.floor
            self._sweep(control.floor)
            floor = self._new_floor(LogView(log_snapshot.version, control.txid, control.floor), control, advanced)
            return floor if floor is not None and self._dropped(log_snapshot, control, floor) else None

        return until_committed(self.log, commit)

    def _dropped(self, log_snapshot: TableSnapshot, control: ControlRecord, floor: int) -> bool:
        """Drops the files whose rows are all at or below the floor; False when there are none."""
        with faults.fault_point(DROP):
            self._fsync_plain()
            after = self._engine.drop_files(
                log_snapshot,
                lambda file: greatest_txid(file) <= floor,
                {DOMAIN: replace(control, floor=floor).encode()},
                self._engine_info,
            )
        return after is not None

    def _fsync_plain(self) -> None:
        """Flushes the MERGEs behind a log drop: rows that leave the log are in the plain table alone."""
        root = storage.local_path(self.plain)
        if root is None:
            return
        entries = DeltaLog(self.plain)
        versions = [version for version in entries.versions() if version > self._settled][-_UNSETTLED:]
        if not versions:
            return
        try:
            for version in versions:
                commit = entries.commit(version)
                for file in (*commit.adds, *commit.changes):
                    with suppress(FileNotFoundError):  # merged again, and vacuumed
                        storage.flush(storage.join(root, file))
            storage.flush(root)
        except OSError as error:
            raise TableError(f"the table {self.plain} may not outlive a power cut", found=error) from error
        fsync_log_entries(self.plain, versions[0], versions[-1])
        self._settled = versions[-1]

    def _sweep(self, floor: int) -> None:
        """Deletes files from the disk that are dropped for good."""
        self._sweeper.dropped(floor)
        try:
            self._sweeper.sweep()
        except OSError as error:  # files left over cost space, nothing else
            log.warning("dropped files of %s stay on disk: %s", self.log, error)

    def _new_floor(self, view: LogView, control: ControlRecord, advanced: int) -> int | None:
        retention = self._settings.snapshot_retention_txids
        # P from the table itself, never what a MERGE was meant to reach.
        plain = self._open_plain()
        if plan_drop(view, merged_upto(self.state, plain, control.starts_at), advanced, retention) is None:
            return None
        # And of a table whose last MERGE can no longer be replaced: dropped rows are there alone.
        self._settled_plain()
        plain = self._open_plain()
        bound = plan_drop(view, merged_upto(self.state, plain, control.starts_at), advanced, retention)
        if bound is None:
            return None
        # A snapshot of a kept transaction needs an older table version, and the
        # log from there on: so the floor must be the P of a version, not lie between two.
        older = plain_as_of(self.state, plain, bound)
        if older is None:  # cleaned up: nothing up to the bound can be read any more
            return bound
        return plan_drop(view, merged_upto(self.state, older, control.starts_at), advanced, retention)

    # --- the tables -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Makes the plain table's versions such that none is replaced or lost any more, by a rival or a power cut.

        Raises:
            TableError: the disk refuses.
        """
        with faults.fault_point(SETTLE):
            self._settled_plain()
            self._fsync_plain()

    def _settled_plain(self) -> TableSnapshot:
        """The plain table, of which no entry can be replaced any more.

        On a local disk Spark's log store looks whether an entry is there and then renames its draft over it: of two
        compactors that look at the same moment the second takes the first one's place, also one that was stopped
        in between and goes on an hour later. Without its draft it cannot. Nothing is lost by a MERGE that was replaced
        as long as the log still has the rows that it had merged.
        """
        for _ in range(_PLAN_TRIES):
            before = self._engine.load(self.plain)
            self._engine.remove_drafts(self.plain, before.version)
            after = self._engine.load(self.plain)
            if (after.version, after.entry) == (before.version, before.entry):
                break
        return after

    def _open_plain(self) -> TableSnapshot:
        return open_plain(self._engine, self.state, self.plain, self.log)

    def _control(self, snapshot: TableSnapshot) -> ControlRecord:
        return own_control(self.state, snapshot)

    def cancel(self) -> None:
        """Ends a running MERGE; it then fails as a whole."""
        self._cancelled = True
        self._by_spark.cancel()
