"""Writes the transactions of a batch group to their table, which any Delta reader can query; keeps the recent ones.

Lossless: the transactions that the table lacks are those whose manifests are
kept, so a process that is killed anywhere leaves to the next leader what it had
not written. Correctness of a batch never rests on it: a failure is told and
tried again with back-off.
"""

from __future__ import annotations

import errno
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, Deposed, ForeignTable, Halted, TableError, TransactionNotKept
from trident.coordinators.identities import up_to
from trident.coordinators.records import Decision
from trident.coordinators.retries import backoff_secs
from trident.states.core import storage
from trident.states.core.group_context import GroupContext
from trident.states.core.tables import PROPERTIES, StagedFile, table_schema
from trident.states.delta.data_files import require_whole, rows_of
from trident.states.delta.delta_log import LogTables
from trident.states.delta.kernel import (
    CommitOutcomeUnknown,
    KernelEngine,
    TableMissing,
    TableSnapshot,
    TxnAlreadyApplied,
)
from trident.states.delta.manifest import Manifest, ManifestStore, Retention
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.delta.staging import fsync_folders, staged_file
from trident.states.history.kept import KeptManifests, published_as
from trident.states.history.transaction_rows import (
    DOMAIN,
    SCHEMA,
    PublishedAs,
    RecordedUpTo,
    Row,
    instant,
    owner_by_log,
    table_name,
    transaction_row,
)

# The transactions that this process has published of late: what need not be looked for in files.


_KEPT_MAX = 500


@dataclass(frozen=True)
class RecentPublication:
    """One transaction that this process has published.

    Attributes:
        versions: table id → the table version that it made.
        published_at: when all tables and states had it; seconds since the epoch.
    """

    decision: Decision
    manifest: Manifest
    versions: Mapping[str, int]
    published_at: float


class RecentPublications:
    """The last few hundred transactions that this process published. May be used by several threads."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, RecentPublication] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, decision: Decision, manifest: Manifest, versions: Mapping[str, int]) -> None:
        """A transaction is published, perhaps once more."""
        with self._lock:
            self._found[decision.txid] = RecentPublication(decision, manifest, versions, time.time())
            while len(self._found) > _KEPT_MAX:
                self._found.popitem(last=False)

    def of(self, txid: int) -> RecentPublication | None:
        """The transaction, where it is remembered."""
        with self._lock:
            return self._found.get(txid)

    def forget_up_to(self, txid: int) -> None:
        """Transactions up to this one are recorded."""
        with self._lock:
            while self._found and next(iter(self._found)) <= txid:
                self._found.popitem(last=False)


# The table of a batch group's transactions, which any Delta reader can query: opened, added to, tidied.
#
# It holds nothing that is nowhere else: each row is made of a manifest, which is
# kept until the table has it. So a table that is damaged is made again. A mark in
# its log says up to which transaction it has all rows; a commit that adds rows
# moves it, and happens at exactly the version behind the one that was looked at,
# so that no row is added twice, also where another process writes.


log = logging.getLogger("trident.history")
WRITE = faults.register("history.write", "adding rows to the table of transactions")
TIDY = faults.register("history.tidy", "rewriting the table of transactions without its oldest rows")
_FOLDER = "data"
# Behind so many files the table is written anew as one, without rows that are past their retention.
FILES_MAX = 32
# A reader of an older table version has so long; then files that the table no longer has are deleted.
_GRACE_SECS = 24 * 3600.0


@dataclass(frozen=True)
class OpenTransactions:
    """The table as it was looked at.

    Attributes:
        before: its mark, where an incarnation from before a rollback wrote it: of that one some may be lacking.
    """

    snapshot: TableSnapshot
    mark: RecordedUpTo
    files: int
    before: RecordedUpTo | None = None


class TransactionsTable:
    """The table of one batch group's transactions, for the process that leads; for one thread."""

    def __init__(self, engine: KernelEngine, of: GroupContext) -> None:
        self._engine, self._warehouse = engine, of.warehouse
        self.path = of.warehouse / table_name(of.topology, of.group)
        self._new = RecordedUpTo(of.topology, of.group, of.incarnation, 0)

    def open(self) -> OpenTransactions | None:
        """Looks at the table; None where there is none.

        Raises:
            ForeignTable: it is not this batch group's.
            TableError: it is damaged: its log cannot be read, or a data file is not what was written.
        """
        try:
            snapshot = self._engine.load(str(self.path))
        except TableMissing:
            return None
        stored = RecordedUpTo.decode(self.path, snapshot.control(DOMAIN))
        mark = self._own(stored)
        files = self._engine.live_files(snapshot)
        require_whole(f"table {self.path.name}", str(self.path), files)
        before = stored if stored.incarnation in up_to(mark.incarnation)[1:] else None
        return OpenTransactions(snapshot, mark, len(files), before)

    def _own(self, mark: RecordedUpTo) -> RecordedUpTo:
        owner, own = (mark.topology, mark.group), (self._new.topology, self._new.group)
        if owner != own:
            raise ForeignTable(
                f"the table {self.path} is of another topology or batch group",
                found="/".join(owner),
                expected="/".join(own),
                action="give one of them another name: without '__' in them two never mean one table",
            )
        # Another incarnation's transactions have the same numbers; its rows stay.
        return mark if mark.incarnation == self._new.incarnation else replace(self._new, generation=mark.generation)

    def make(self) -> OpenTransactions:
        """Makes the table, empty."""
        schema = table_schema(from_arrow_schema(SCHEMA))
        storage.make_folder(self.path, self._warehouse)
        with faults.fault_point(WRITE):
            snapshot = self._engine.create_table(
                str(self.path), schema, (), PROPERTIES, {DOMAIN: self._new.encode()}, self._info
            )
        return OpenTransactions(snapshot, self._new, 0)

    def is_ours_by_its_log(self) -> bool:
        """Tells whether some entry that can still be read says that the table is this group's."""
        return owner_by_log(self.path) == (self._new.topology, self._new.group)

    def damage(self) -> TableError | None:
        """Looks without Kernel whether the log, or a file that it names, is not as it was written; None: all is well.

        A storage that does not answer is no damage.
        """
        tables = LogTables()
        try:
            snapshot = tables.load(str(self.path))
            require_whole(f"table {self.path.name}", str(self.path), tables.live_files(snapshot))
        except TableMissing:
            return None
        except TableError as error:
            return error if is_damage(error) else None
        return None

    def remove(self) -> None:
        """Deletes a table that is damaged, to be made again."""
        with faults.fault_point(WRITE):
            storage.delete(self.path)

    def add(self, table: OpenTransactions, rows: Sequence[Row], upto: int) -> OpenTransactions:
        """Adds rows, in one commit that says that the table has all transactions up to one.

        Raises:
            CommitConflict, CommitOutcomeUnknown, TxnAlreadyApplied: open the table again: it may have them.
        """
        mark = replace(table.mark, upto=upto)
        with faults.fault_point(WRITE):
            files = self._write(pa.Table.from_pylist(list(rows), SCHEMA)) if rows else []
            snapshot = self._engine.commit_files(
                table.snapshot, files, (mark.app_id, upto), {DOMAIN: mark.encode()}, self._info
            )
        return OpenTransactions(snapshot, mark, table.files + len(files))

    def tidy(self, table: OpenTransactions, retention: Retention) -> OpenTransactions:
        """Writes the table anew as one file, without rows past their retention, and deletes files long replaced.

        Raises:
            CommitConflict, CommitOutcomeUnknown: as for ``add``; TableError: a file cannot be read.
        """
        if not table.snapshot.takes_python_entries:
            return table  # another program has given it features that Python does not know: it grows
        with faults.fault_point(TIDY):
            tidied, live = self._rewritten(table, lambda rows: within(rows, table.mark, retention, time.time()))
        self._delete_replaced(live)
        return tidied

    def cut(self, table: OpenTransactions, txid: int) -> OpenTransactions:
        """Takes out the transactions after one: the group has gone back to it, and others will have their numbers.

        Raises: as ``tidy``. Killed in between, it is to be done again: until its end the table says that it has them.
        """
        if not table.snapshot.takes_python_entries:
            raise TableError(
                f"rows cannot be taken out of table {self.path}: another program has given it features",
                action="move the table away: it is made again from the manifests that are kept",
            )
        own = table.mark.incarnation

        def before(rows: pa.Table) -> pa.Table:
            recorded = zip(rows.column("incarnation").to_pylist(), rows.column("txid").to_pylist())
            return rows.filter(pa.array([whose != own or each <= txid for whose, each in recorded], pa.bool_()))

        with faults.fault_point(TIDY):
            rewritten, _ = self._rewritten(table, before)
        mark = replace(table.mark, generation=table.mark.generation + 1)
        return self.add(replace(rewritten, mark=mark), [], txid)

    def _rewritten(
        self, table: OpenTransactions, kept: Callable[[pa.Table], pa.Table]
    ) -> tuple[OpenTransactions, set[str]]:
        """The table with those of its rows that are kept, in one file; and the file's path."""
        snapshot = table.snapshot
        files = self._engine.live_files(snapshot)
        rows = pa.Table.from_batches(list(rows_of(str(self.path), files, SCHEMA)), SCHEMA)
        left = kept(rows)
        written = self._write(left) if left.num_rows else []
        snapshot = self._engine.replace_files(
            snapshot,
            files,
            written,
            (),
            (f"{table.mark.app_id}/tidy", snapshot.version + 1),
            self._info,
            json.dumps({"trident": {"kept": left.num_rows, "dropped": rows.num_rows - left.num_rows}}),
            {"numOutputRows": left.num_rows},
        )
        return OpenTransactions(snapshot, table.mark, len(written)), {file.path for file in written}

    def maintain(self, table: OpenTransactions) -> None:
        """Writes a checkpoint when one is due."""
        self._engine.run_maintenance(table.snapshot)

    @property
    def _info(self) -> str:
        return f"trident/{self._new.incarnation}"

    def _write(self, rows: pa.Table) -> list[StagedFile]:
        batches = rows.combine_chunks().to_batches()
        reports = list(write_partition(FileTarget("transactions", str(self.path), _FOLDER), batches))
        fsync_folders(self.path, _FOLDER)
        return [staged_file(report) for report in reports]

    def _delete_replaced(self, live: set[str]) -> None:
        """Also files of commits that came to nothing."""
        with faults.fault_point(TIDY):
            for name in storage.list_names(self.path / _FOLDER):
                path = self.path / _FOLDER / name
                found = storage.stat_file(path) if f"{_FOLDER}/{name}" not in live else None
                if found is not None and time.time() - found.mtime_ns / 1e9 > _GRACE_SECS:
                    storage.try_delete(path)


def is_damage(error: TableError) -> bool:
    """Tells contents that are not as they were written from a storage that did not give them."""
    cause = error.__cause__
    return not isinstance(cause, OSError) or cause.errno in (None, errno.ENOENT)


def within(rows: pa.Table, mark: RecordedUpTo, retention: Retention, now: float) -> pa.Table:
    """The rows that are within the retention; of earlier incarnations those that fit beside the present one's."""
    recorded = rows.select(["txid", "incarnation", "decided_at"]).to_pylist()
    oldest = instant(now - retention.secs) if retention.secs is not None else None
    own = [row["incarnation"] == mark.incarnation for row in recorded]
    kept = [is_own and row["txid"] > mark.upto - retention.txids for row, is_own in zip(recorded, own)]
    room = retention.txids - sum(kept)
    for at in range(len(recorded) - 1, -1, -1):
        if not own[at] and room > 0:
            kept[at], room = True, room - 1
    young = [oldest is None or row["decided_at"] is None or row["decided_at"] >= oldest for row in recorded]
    return rows.filter(pa.array([keep and fresh for keep, fresh in zip(kept, young)], pa.bool_()))


# One commit for so many transactions, or behind so many seconds; readers of history take the rest from manifests.
TXIDS_A_COMMIT, SECS_A_COMMIT = 100, 60.0
# Of a table that is made again, so many rows a commit.
_ROWS_MAX = 1_000
_BACKOFF_SECS_MIN, _BACKOFF_SECS_MAX = 1.0, 60.0
# So often damage is found, one time after the other, before the table is made again: a store may be away for a moment.
_DAMAGED_TIMES = 3
# How long a stop waits: for the last commit, and for what runs just now.
_FLUSH_SECS, _STOP_SECS = 10.0, 2.0


@dataclass(frozen=True)
class Published:
    """The source of the rows: the group's manifests, and what this process remembers of them."""

    of: GroupContext
    manifests: ManifestStore
    recent: RecentPublications

    def kept(self, upto: int) -> KeptManifests:
        return KeptManifests(self.of, upto)

    def rows(self, kept: KeptManifests, txids: list[int]) -> list[Row]:
        """The rows of transactions that have a manifest; none of one that turns out to have changed nothing."""
        found: list[tuple[Decision, Manifest]] = []
        known: dict[int, PublishedAs] = {}
        for txid in txids:
            here = self.recent.of(txid)
            if here is not None:
                found.append((here.decision, here.manifest))
                known[txid] = PublishedAs(here.versions, here.published_at)
                continue
            try:
                found.append(kept.decided(txid))
            except TransactionNotKept as error:
                log.debug("%s", error)
            except TableError as error:  # it will not mend itself, and the others must not wait for it
                log.warning("transaction %d has no row in the table of transactions: %s", txid, error)
        unknown = [one for one in found if one[0].txid not in known]
        known |= published_as(self.of.warehouse, unknown)
        return [transaction_row(decision, manifest, known[decision.txid]) for decision, manifest in found]


class TransactionRecorder:
    """The thread that writes a group's transactions to their table, under one lease.

    Args:
        check_fence: raises Deposed when another coordinator leads.
    """

    def __init__(self, table: TransactionsTable, published: Published, check_fence: Callable[[], None]) -> None:
        self._table, self._published, self._check_fence = table, published, check_fence
        self._manifests = published.manifests
        self._manifests.recorded_upto = 0  # until the table has told: none goes
        self._open: OpenTransactions | None = None
        self._wake = threading.Condition()
        self._advanced = 0
        self._began_at: int | None = None  # until the table has been looked at: where the group stood at the start
        self._covered = 0  # transactions up to this one are in the table, or have nothing for it
        self._stopping = self._flush = False
        self._failures = self._damaged = 0
        self._thread: threading.Thread | None = None

    def start(self, advanced: int) -> None:
        """Starts the thread; ``advanced`` is the last advanced txid."""
        self._advanced = self._began_at = advanced
        self._thread = threading.Thread(target=self._run, name="trident-history", daemon=True)
        self._thread.start()

    def advanced(self, txid: int) -> None:
        """txid is advanced; returns at once."""
        with self._wake:
            self._advanced = max(self._advanced, txid)
            if self._advanced - self._covered >= TXIDS_A_COMMIT:
                self._wake.notify_all()

    def stop(self, flush: bool) -> None:
        """Ends the thread, with ``flush`` behind a last commit; waits for it ten seconds at most, else two."""
        with self._wake:
            self._stopping, self._flush = True, flush
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(_FLUSH_SECS if flush else _STOP_SECS)

    def _run(self) -> None:
        wait = SECS_A_COMMIT
        while True:
            with self._wake:
                if not self._stopping and (self._failures or self._advanced - self._covered < TXIDS_A_COMMIT):
                    self._wake.wait(wait)
                stopping, advanced = self._stopping, self._advanced
            if stopping and not self._flush:
                return
            try:
                self.record(advanced)
                self._failures, wait = 0, SECS_A_COMMIT
            except (Halted, Deposed) as error:
                log.info("%s: no more transactions are recorded here: %s", self._table.path.name, error)
                return
            except ForeignTable as error:
                self._give_up(error)
                return
            except Exception as error:
                wait = self._failed(error)
            if stopping:
                return

    def record(self, advanced: int) -> None:
        """Brings the table up to a transaction that has advanced.

        Raises:
            Deposed: another coordinator leads.
            ForeignTable: the table's place is taken.
            TridentError, OSError: it did not come about; to be tried again.
        """
        table = self._open or self._opened(advanced)
        # By where it began: at the first look it may have come past the mark again, by other transactions.
        stands_at = advanced if self._began_at is None else self._began_at
        if table.mark.upto > stands_at:
            table = self._without_later(table, stands_at)
        self._began_at = None
        if table.before is not None:
            table = self._with_unrecorded_earlier(table, table.before)
        kept = self._published.kept(advanced)
        waiting = [txid for txid in kept.txids() if txid > table.mark.upto]
        while waiting:
            txids, waiting = waiting[:_ROWS_MAX], waiting[_ROWS_MAX:]
            rows, upto = self._published.rows(kept, txids), txids[-1] if waiting else advanced
            self._check_fence()
            self._open = None  # until it is known what became of the commit
            table = self._open = self._table.add(table, rows, upto)
            self._recorded_upto(table.mark.upto)
        self._covered = advanced
        if table.files >= FILES_MAX:
            table = self._tidied(table)
        self._table.maintain(table)

    def _with_unrecorded_earlier(self, table: OpenTransactions, before: RecordedUpTo) -> OpenTransactions:
        """The transactions from before a rollback that no leader has recorded, of which the manifests have stayed."""
        source = self._published
        earlier = up_to(source.of.incarnation)[1:]
        for one in reversed(earlier[: earlier.index(before.incarnation) + 1]):
            mark = before if one == before.incarnation else replace(before, incarnation=one, upto=0)
            earlier_one = replace(source.of, incarnation=one)
            kept = KeptManifests(earlier_one)
            waiting = [txid for txid in kept.txids() if txid > mark.upto]
            while waiting:
                txids, waiting = waiting[:_ROWS_MAX], waiting[_ROWS_MAX:]
                # Of the numbers that this process has published others are meant.
                rows = replace(source, of=earlier_one, recent=RecentPublications()).rows(kept, txids)
                self._check_fence()
                self._open = None
                table = self._table.add(replace(table, mark=mark), rows, txids[-1])
                mark = table.mark
        own = replace(before, incarnation=source.of.incarnation, upto=0)
        self._open = replace(table, mark=own, before=None)
        return self._open

    def _without_later(self, table: OpenTransactions, advanced: int) -> OpenTransactions:
        """After a rollback, or a repair by older tables, later transactions are not the group's any more."""
        self._check_fence()  # behind the look: a table that a successor has written to is not this process's to cut
        log.warning(
            "%s: transactions %d to %d are taken out: the batch group has gone back to transaction %d",
            self._table.path.name,
            advanced + 1,
            table.mark.upto,
            advanced,
        )
        self._open = None
        self._open = self._table.cut(table, advanced)
        self._recorded_upto(advanced)
        return self._open

    def _tidied(self, table: OpenTransactions) -> OpenTransactions:
        self._open = None
        try:
            self._open = self._table.tidy(table, self._manifests.retention)
        except (CommitConflict, TxnAlreadyApplied, CommitOutcomeUnknown):
            raise
        except TableError as error:  # of a data file only this reads the rows
            if is_damage(error):
                self._without_damage(error)
            raise
        return self._open

    def _opened(self, advanced: int) -> OpenTransactions:
        table: OpenTransactions | None = None
        try:
            table = self._table.open()
        except ForeignTable:
            raise
        except TableError:
            self._damaged += 1
            damage = self._table.damage() if self._damaged >= _DAMAGED_TIMES else None
            if damage is None:
                raise
            self._without_damage(damage)
        self._damaged = 0
        if table is None:
            kept = self._published.kept(advanced).txids()
            log.info("the table of transactions %s is made; of %d the manifests are kept", self._table.path, len(kept))
            table = self._table.make()
        self._open = table
        self._recorded_upto(table.mark.upto)
        return table

    def _without_damage(self, error: TableError) -> None:
        """Deletes a damaged table that is surely this group's, so that it is made again."""
        if not self._table.is_ours_by_its_log():
            raise ForeignTable(
                f"the table {self._table.path} cannot be read, and its log does not say that it is the table of "
                f"transactions: {error}",
                action="move it away: the table is made again from the manifests that are kept",
            )
        log.warning("the table of transactions is damaged and made again from the manifests that are kept: %s", error)
        self._check_fence()
        self._table.remove()

    def _recorded_upto(self, txid: int) -> None:
        self._manifests.recorded_upto = txid
        self._published.recent.forget_up_to(txid)

    def _failed(self, error: Exception) -> float:
        """Tells of a failure; returns how long to wait."""
        self._failures += 1
        if isinstance(error, (CommitConflict, TxnAlreadyApplied, CommitOutcomeUnknown)) and self._failures < 5:
            log.debug("recording transactions in %s: %s", self._table.path.name, error)
            return 0.0
        log.warning("transactions are not recorded in %s yet: %s", self._table.path.name, error)
        return backoff_secs(self._failures, _BACKOFF_SECS_MIN, _BACKOFF_SECS_MAX)

    def _give_up(self, error: ForeignTable) -> None:
        log.warning("no transactions are recorded under this lease: %s", error)
        self._manifests.recorded_upto = None  # there is no such table: manifests go by their retention
