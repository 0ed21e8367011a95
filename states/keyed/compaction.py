"""The decisions of the log-structured keyed state: when to MERGE, drop and read.

A keyed state is two Delta tables (docs/semantics.md 11): a **log** to which each
transaction appends, and a **table** with one row per key, brought up to
transaction P by a MERGE in the background. This file decides, from versions
that the caller has pinned, what may be merged, dropped and read; it does no I/O.
``states/`` carries it out; ``tests/states/keyed/test_compaction_explorer.py`` runs exactly
these functions in every interleaving of two compactors, a publisher and a reader.

The invariants::

    F ≤ P ≤ last advanced txid          F: log rows with txid ≤ F may be gone
    a row of the table has _upto ≤ P    _upto: the P of the MERGE that wrote it
    state as of N = table as of P, combined with the log rows of P < txid ≤ N

This rests on two facts of Delta (both are tested against Delta itself, not here):
a MERGE that was overtaken by another MERGE of the same table is rejected
(both read and write the same SetTransaction application id); a Kernel commit
without retries is a compare-and-set of the table version.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from trident.coordinators.errors import TableError
from trident.states.core.retention import FOR_GOOD, Retention


class ViewsDisagree(TableError):
    """Two tables pinned at different moments do not fit: certainly nothing was done; read both again."""


class SnapshotUnavailable(TableError):
    """No reading of these tables gives the state as of the wanted transaction.

    Attributes:
        txid: the transaction that was asked for.
        available: the transaction that can be read instead, when there is one.
    """

    def __init__(self, message: str, *, txid: int, available: int | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.txid, self.available = txid, available


class LogView(NamedTuple):
    """A log at one table version: all of its files stay readable at that version.

    Attributes:
        control_txid: the txid of its control record: it holds every published row up to it.
        floor: F, rows with txid ≤ floor may be gone.
    """

    table_version: int
    control_txid: int
    floor: int


class TableView(NamedTuple):
    """The keyed table at one table version.

    Attributes:
        merged_txid: P, its SetTransaction of the MERGEs (0: none yet).
    """

    table_version: int
    merged_txid: int


class MergePlan(NamedTuple):
    """MERGE the log rows of ``after`` < txid ≤ ``upto``, read at ``log_version``.

    The caller writes ``_upto = upto`` into each row it touches, lets the
    statement raise where :func:`guard_condition` holds for a matched row, and
    commits ``upto`` as SetTransaction in the same Delta commit.
    """

    after: int
    upto: int
    log_version: int
    table_version: int


class LiveRead(NamedTuple):
    """How to read a group as of one transaction.

    Attributes:
        txid: N.
        ranges: for each pair (after P, upto N): the table at its pinned
            version, combined with the log rows of P < txid ≤ N.
    """

    txid: int
    ranges: tuple[tuple[int, int], ...]


class ReadAgain(enum.Enum):
    """The pinned versions do not fit together: pin all of them again."""

    READ_AGAIN = "read again"


READ_AGAIN: Final = ReadAgain.READ_AGAIN


def plan_merge(
    log: LogView,
    table: TableView,
    advanced_txid: int,
    every: int,
    force: bool = False,
    retention: Retention = FOR_GOOD,
    at_most: int | None = None,
) -> MergePlan | None:
    """The MERGE that is due, if one is.

    Args:
        log, table: pinned by the caller, in any order.
        advanced_txid: a txid that is known to have advanced. A transaction that is
            only decided or published is never merged: a reader as of the
            last advanced transaction could not go back behind it.
        every: merge when at least this many transactions wait (transactions ≥ 1).
        force: merge whatever there is, for ``stop()`` and ``trident compact``.
        retention: of the state's deleted keys: what is behind the first of its stretches is left to the next MERGE.
        at_most: a MERGE that is due goes up to this transaction at most; None: as far as it can.

    Raises:
        ViewsDisagree: the log does not reach from P on (its floor is above P,
            or it was pinned before rows that the table already holds). Pin
            both again; when it persists, one of the tables was restored.
    """
    after = table.merged_txid
    if log.floor > after or log.control_txid < after:
        raise ViewsDisagree(
            "the log and the table of a keyed state do not fit together",
            found=f"log at version {log.table_version} with rows of {log.floor} < txid ≤ {log.control_txid}, "
            f"table at version {table.table_version} merged up to {after}",
            expected="floor ≤ merged txid ≤ control record's txid",
            action="pin both versions again; if it stays so, a table was restored or truncated",
        )
    # Rows above the control record's txid may exist later; those at this version are complete up to it.
    upto = min(advanced_txid, log.control_txid)
    waiting = upto - after
    if waiting <= 0 or (waiting < every and not force):
        return None
    upto = upto if at_most is None else min(upto, at_most)
    if upto <= after:
        return None
    return MergePlan(after, retention.stretches(after, upto)[0][1], log.table_version, table.table_version)


# A MERGE is put off until this many times as many transactions, or as much time, have passed as the state asks for,
# at the latest.
PUT_OFF = 4
# It is put off while it would rewrite more than this many times the bytes that wait in the log, and more than so many.
AMPLIFICATION = 8
REWRITTEN_BYTES = 4 << 20
# And for this many times as long as the last one kept a processor busy.
REST = 8.0


def is_wanted(waiting: int, waited_secs: float, every: int, interval_secs: float) -> bool:
    """Tells whether the state's settings ask for a MERGE.

    Args:
        waiting: transactions that are not merged.
        waited_secs: since the MERGE before.
        every, interval_secs: of the state.
    """
    return waiting > 0 and (waiting >= every or waited_secs >= interval_secs)


def is_overdue(waiting: int, waited_secs: float, every: int, interval_secs: float) -> bool:
    """Tells whether a MERGE is due whatever it costs. So a log has no more than this, and what is merged meanwhile."""
    return is_wanted(waiting, waited_secs, every * PUT_OFF, interval_secs * PUT_OFF)


def log_share(rewritten_bytes: int, log_bytes: int) -> float:
    """How many times as much the log should have before it is merged: at most 1 when it should be merged now.

    Args:
        rewritten_bytes: of the table's files that the MERGE replaces, at the most.
        log_bytes: of the log's files that it merges.
    """
    if rewritten_bytes <= REWRITTEN_BYTES:
        return 1.0
    return rewritten_bytes / (AMPLIFICATION * max(log_bytes, 1))


def guard_condition(plan: MergePlan, upto_column: str) -> str:
    """SQL that is true of a matched row that already holds part of this MERGE: raise then.

    Two compactors that both read P can both pass Delta's SetTransaction, which
    is monotone and not a compare-and-set. A row that the other one has touched
    carries its ``_upto``, above the ``after`` of this plan.

    Args:
        upto_column: the matched row's ``_upto``, as the statement names it.
    """
    return f"{upto_column} > {plan.after}"


def plan_drop(log: LogView, merged_txid_read_again: int, advanced_txid: int, retention_txids: int) -> int | None:
    """The new floor of the log, or None when there is nothing to drop.

    The caller removes the log files whose rows all have txid ≤ the floor, and
    writes the floor into the control record, in one Kernel commit on exactly
    ``log.table_version`` (a publisher that was faster makes it conflict: plan again).

    Args:
        merged_txid_read_again: P, read from the table **after** the MERGE was
            seen committed; never the plan's own ``upto``, since Delta skips a
            MERGE silently when its SetTransaction is not new.
        advanced_txid: a txid that is known to have advanced.
        retention_txids: this many transactions back can still be read (≥ 0).
    """
    floor = min(merged_txid_read_again, advanced_txid - retention_txids)
    return floor if floor > log.floor else None


def plan_live_read(
    pairs: Sequence[tuple[LogView, TableView]],
    append_controls: Iterable[int] = (),
    want_txid: int | None = None,
    advanced_txid: int | None = None,
) -> LiveRead | ReadAgain:
    """How to read all tables of a group as of one transaction.

    N is the least txid in any control record: every table holds it, so it is
    never half-published, and being decided it will advance. An empty
    transaction leaves no control record; where one is known to have advanced
    above that, N is that one.

    Args:
        pairs: (log, table) of each keyed state, pinned in any order.
        append_controls: the control records' txids of the group's append tables, pinned.
        want_txid: read as of this transaction instead. Its pair may have to be
            pinned at an older version of the keyed table (P ≤ want_txid).
        advanced_txid: a txid that was known to have advanced **before** any log
            or append table was pinned: from ZooKeeper, or the greatest P of keyed
            tables that were pinned before them. Without it, and with P at an
            empty transaction above every control record, there is nothing
            but READ_AGAIN until the next transaction is published.

    Returns:
        the read, or READ_AGAIN when versions pinned at different moments do not fit.

    Raises:
        SnapshotUnavailable: want_txid is not published yet, is merged past in
            the pinned table, or is below a log's floor.
        ValueError: nothing to read.
    """
    controls = [log.control_txid for log, _ in pairs] + list(append_controls)
    if not controls:
        raise ValueError("a live read needs at least one table")
    # A transaction that has advanced was published in every table before that was pinned, or was empty.
    newest = max(min(controls), advanced_txid or 0)
    txid = newest if want_txid is None else want_txid
    if txid > newest:
        raise SnapshotUnavailable(
            f"transaction {want_txid} is not committed in every table yet",
            found=f"committed in all of them: {newest}" if newest > 0 else "none is committed",
            action="wait for it" + (", or read an earlier one" if newest > 0 else ""),
            txid=txid,
            available=newest,
        )
    for log, table in pairs:
        if want_txid is not None and log.floor > txid:
            raise SnapshotUnavailable(
                f"transaction {want_txid} is no longer kept",
                found=f"the log begins after {log.floor}",
                action="raise snapshot_retention_txids to keep more",
                txid=txid,
                available=newest,
            )
        if want_txid is not None and txid < table.merged_txid <= log.control_txid:
            raise SnapshotUnavailable(
                f"the table at version {table.table_version} is past transaction {want_txid}",
                found=f"merged up to {table.merged_txid}",
                expected=f"at most {txid}",
                action="pin an older version of the table",
                txid=txid,
                available=newest,
            )
        if not log.floor <= table.merged_txid <= txid:
            return READ_AGAIN
    return LiveRead(txid, tuple((table.merged_txid, txid) for _, table in pairs))


# Chooses up to which transaction each keyed state of a group is merged, so that all have a table version of one: pure.
#
# A reader of several plain tables wants them as of one transaction P. Each state has its own settings and its own price
# of a MERGE, and none is merged more often for that. But a MERGE that is due ends where one of another state has ended:
# so a state that is merged seldom meets those that are merged often.


_POINTS_MAX = 64


class MergePoints:
    """The transactions up to which the states of a group were merged, as far as this process knows.

    Args:
        names: of the group's keyed states.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._points: dict[str, list[int]] = {name: [] for name in names}

    def merged(self, name: str, upto: int) -> None:
        """A table has got a version that has the transactions up to this one, and none after it."""
        self._points[name] = [*self._points[name][-_POINTS_MAX + 1 :], upto]

    def upto(self, name: str, after: int, advanced: int) -> int:
        """The transaction up to which a state is to be merged, now that its MERGE is due.

        It is one at which as many of the other states as possible have a version, the newest of these; where there is
        none that takes at least half of what waits, it is the last that has advanced.

        Args:
            after: the last transaction that the table has.
            advanced: the last that has advanced.
        """
        others = [set(points) for other, points in self._points.items() if other != name]
        good = {
            point
            for point in chain.from_iterable(others)
            if after < point <= advanced and 2 * (point - after) >= advanced - after
        }
        return max(good, key=lambda point: (sum(point in points for points in others), point), default=advanced)


def common_point(merged: Callable[[int], Collection[int]], newest: int, above: int) -> int | None:
    """The greatest transaction at which every table has a version that has all up to it, and none after it.

    Args:
        merged: of a transaction the P of each table's newest version that is not merged further; none: no table.
        newest: begin here.
        above: a lesser one, or this one, is not wanted.
    """
    point = newest
    while point > above:
        found = merged(point)
        if not found:
            return None
        if min(found) == point:
            return point
        point = min(found)
    return None
