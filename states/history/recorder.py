"""Writes the transactions of a batch group to their table, beside the batches.

Lossless: the transactions that the table lacks are those whose manifests are
kept, so a process that is killed anywhere leaves to the next leader what it had
not written. Correctness of a batch never rests on it: a failure is told and
tried again with back-off.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from trident.coordinators.backoff import backoff_secs
from trident.coordinators.errors import (
    CommitConflict,
    Deposed,
    ForeignTable,
    Halted,
    TableError,
    TransactionNotKept,
)
from trident.coordinators.incarnation_ids import up_to
from trident.coordinators.records import Decision
from trident.states.core.group_context import GroupContext
from trident.states.delta.kernel import CommitOutcomeUnknown, TxnAlreadyApplied
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.states.history.kept import KeptManifests
from trident.states.history.lately import PublishedLately
from trident.states.history.recorded_mark import RecordedUpTo
from trident.states.history.transaction_rows import PublishedAs, Row, transaction_row
from trident.states.history.transactions_table import FILES_MAX, OpenTransactions, TransactionsTable, is_damage
from trident.states.history.versions import published_as

log = logging.getLogger("trident.history")
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
    lately: PublishedLately

    def kept(self, upto: int) -> KeptManifests:
        return KeptManifests(self.of, upto)

    def rows(self, kept: KeptManifests, txids: list[int]) -> list[Row]:
        """The rows of transactions that have a manifest; none of one that turns out to have changed nothing."""
        found: list[tuple[Decision, Manifest]] = []
        known: dict[int, PublishedAs] = {}
        for txid in txids:
            here = self.lately.of(txid)
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
            table = self._gone_back(table, stands_at)
        self._began_at = None
        if table.before is not None:
            table = self._with_those_before(table, table.before)
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

    def _with_those_before(self, table: OpenTransactions, before: RecordedUpTo) -> OpenTransactions:
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
                rows = replace(source, of=earlier_one, lately=PublishedLately()).rows(kept, txids)
                self._check_fence()
                self._open = None
                table = self._table.add(replace(table, mark=mark), rows, txids[-1])
                mark = table.mark
        own = replace(before, incarnation=source.of.incarnation, upto=0)
        self._open = replace(table, mark=own, before=None)
        return self._open

    def _gone_back(self, table: OpenTransactions, advanced: int) -> OpenTransactions:
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
        self._published.lately.forget_up_to(txid)

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
