"""Reads the transactions of a batch group, without Spark: from their table, and from manifests what it lacks.

A transaction is told as soon as a table of the group has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from trident.coordinators.errors import ForeignTable, TableError, TransactionNotKept
from trident.coordinators.identities import up_to
from trident.coordinators.records import Decision
from trident.states.core import storage
from trident.states.core.descriptor import descriptors_of_group
from trident.states.core.group_context import GroupContext
from trident.states.core.place import AnyPath, Place
from trident.states.delta.data_files import rows_of
from trident.states.delta.delta_log import LogTables
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.log_commit import TableMissing
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.states.history.kept import KeptManifests, Publications, published_as
from trident.states.history.transaction_rows import (
    DOMAIN,
    SCHEMA,
    RecordedUpTo,
    Row,
    owner_by_log,
    table_name,
    transaction_row,
)

Found = TypeVar("Found")


@dataclass(frozen=True)
class Transactions:
    """The past of a batch group, as far as it is known.

    Attributes:
        incarnation: whose transactions these are: the topology's present one.
        rows: by txid, the columns of the table of transactions.
        manifests: the transactions whose manifests are kept.
        problem: why the table could not be read, where all is from manifests; "" where it could.
        unreadable: txid → why its manifest, which is there, cannot be read, of transactions without a row.
        earlier: the transactions from before the last rollback, in the order in which they were made; where asked for.
        unreadable_earlier: as ``unreadable``, of transactions from before the last rollback: (incarnation, txid) → why.
    """

    incarnation: str
    rows: dict[int, Row]
    manifests: tuple[int, ...]
    problem: str = ""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    earlier: tuple[BeforeRollback, ...] = ()
    unreadable_earlier: Mapping[tuple[str, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class BeforeRollback:
    """A transaction from before a rollback.

    Attributes:
        row: the columns of the table of transactions.
        taken_back: whether a rollback has taken it back; None where the tables cannot tell any more.
    """

    row: Row
    taken_back: bool | None


class TableFiles(Generic[Found]):
    """The table of a batch group's transactions, for who looks at it again and again: each file is read once.

    For one thread at a time.

    Args:
        schema: the columns that ``of_file`` is given.
        of_file: makes of a file's rows what is remembered, for as long as the table has the file.
    """

    def __init__(
        self,
        warehouse: AnyPath,
        topology: str,
        group: str,
        schema: pa.Schema,
        of_file: Callable[[Iterable[pa.RecordBatch]], Found],
    ) -> None:
        self._of = Place(warehouse), topology, group
        self._schema, self._of_file = schema, of_file
        self._tables = LogTables()
        self._known: dict[str, Found] = {}

    def scan(self) -> tuple[RecordedUpTo | None, list[Found], str]:
        """The table's mark, what each file has, and why it cannot be read; "" where it can, or there is no table."""
        mark, found, problem = _of_table(self._tables, *self._of, self._read)
        return mark, found or [], problem

    def _read(self, path: str, files: Sequence[LiveFile]) -> list[Found]:
        known = self._known
        for file in files:
            if file.path not in known:
                known[file.path] = self._of_file(rows_of(path, [file], self._schema))
        self._known = {file.path: known[file.path] for file in files}
        return list(self._known.values())


def last_transactions(warehouse: AnyPath, topology: str, group: str, last: int) -> Callable[[], Transactions]:
    """As :func:`recorded_transactions` with ``last``, for who asks again: of the table each file is read once.

    Returns:
        gives them, for one thread at a time.
    """
    table = TableFiles(warehouse, topology, group, SCHEMA, lambda batches: _newest_of_each(batches, last))

    def found() -> Transactions:
        mark, parts, problem = table.scan()
        rows = [row for part in parts for row in part]
        return _transactions(Place(warehouse), topology, group, (mark, rows, problem), None, last)

    return found


def recorded_transactions(
    warehouse: AnyPath,
    topology: str,
    group: str,
    txids: Collection[int] | None = None,
    last: int | None = None,
    earlier: bool = False,
) -> Transactions:
    """The transactions of a batch group's present incarnation.

    Args:
        txids: only these; None: all.
        last: of the newest so many; None: all.
        earlier: with those from before the last rollback, where there are less than ``last`` behind it.

    Raises:
        OSError: the warehouse cannot be read.
    """
    warehouse = Place(warehouse)

    def read(path: str, files: Sequence[LiveFile]) -> list[Row]:
        wanted = [file for file in files if _may_have(file, txids)]
        rows = [row for batch in rows_of(path, wanted, SCHEMA) for row in batch.to_pylist()]
        return [row for row in rows if txids is None or row["txid"] in txids]

    mark, rows, problem = _of_table(LogTables(), warehouse, topology, group, read)
    return _transactions(warehouse, topology, group, (mark, rows or [], problem), txids, last, earlier)


def rows_after(
    warehouse: AnyPath, topology: str, group: str, mark: RecordedUpTo | None, last: int
) -> tuple[str, list[Row]]:
    """The present incarnation, and its transactions that the table does not have yet: of the newest so many.

    Args:
        mark: of the table; None: there is none.

    Raises:
        OSError: the warehouse cannot be read.
    """
    warehouse = Place(warehouse)
    incarnation = _incarnation(warehouse, topology, group, mark)
    if not incarnation:
        return "", []
    kept = KeptManifests(GroupContext(warehouse, topology, group, incarnation))
    upto = mark.upto if mark is not None and mark.incarnation == incarnation else 0
    rows, _ = _of_manifests(kept, [txid for txid in kept.txids() if txid > upto][-last:])
    return incarnation, list(rows.values())


def _transactions(
    warehouse: Place,
    topology: str,
    group: str,
    table: tuple[RecordedUpTo | None, list[Row], str],
    txids: Collection[int] | None,
    last: int | None,
    earlier: bool = False,
) -> Transactions:
    """Puts together what the table has, and what the manifests have beside it."""
    mark, rows, problem = table
    of = GroupContext(warehouse, topology, group, incarnation := _incarnation(warehouse, topology, group, mark))
    found = {row["txid"]: row for row in rows if row["incarnation"] == incarnation}
    kept = KeptManifests(of)
    there = kept.txids() if incarnation else []
    wanted = [txid for txid in there if txid not in found and (txids is None or txid in txids)]
    if last is not None:
        oldest = sorted(found)[-last] if 0 < last <= len(found) else 0
        wanted = [txid for txid in wanted if txid > oldest][-last:]
    more, unreadable = _of_manifests(kept, wanted)
    found |= more
    newest = sorted(found.keys() | unreadable.keys())
    newest = newest[-last:] if last else newest
    room = None if last is None else last - len(newest)
    before: list[BeforeRollback] = []
    lost: dict[tuple[str, int], str] = {}
    if earlier and incarnation:
        before, lost = _earlier(of, rows, txids, room)
    return Transactions(
        incarnation,
        {txid: found[txid] for txid in newest if txid in found},
        tuple(there),
        problem,
        {txid: unreadable[txid] for txid in newest if txid in unreadable},
        tuple(before),
        lost,
    )


def _earlier(
    of: GroupContext, rows: list[Row], txids: Collection[int] | None, room: int | None
) -> tuple[list[BeforeRollback], dict[tuple[str, int], str]]:
    """The transactions of the incarnations before rollbacks, of the newest so many; and what cannot be read of them."""
    found: list[BeforeRollback] = []
    lost: dict[tuple[str, int], str] = {}
    tables = Publications(of)
    for one in up_to(of.incarnation)[1:]:
        left = None if room is None else room - len(found) - len(lost)
        if left is not None and left <= 0:
            break
        recorded = {row["txid"]: row for row in rows if row["incarnation"] == one}
        kept = KeptManifests(replace(of, incarnation=one))
        wanted = [each for each in kept.txids() if each not in recorded and (txids is None or each in txids)]
        more, unreadable = _of_manifests(kept, wanted[-left:] if left else wanted)
        last = kept.unreadable_last()
        if last is not None and last[0] not in recorded and (txids is None or last[0] in txids):
            unreadable |= dict([last])
        recorded |= more
        newest = sorted(recorded.keys() | unreadable.keys())
        newest = newest[-left:] if left else newest
        lost |= {(one, txid): unreadable[txid] for txid in newest if txid in unreadable}
        found = _not_rolled_back([recorded[txid] for txid in newest if txid in recorded], tables) + found
    return found, lost


def _not_rolled_back(rows: list[Row], tables: Publications) -> list[BeforeRollback]:
    """Says of the transactions of one incarnation, in their order, whether a rollback has taken them back.

    It takes back all behind one transaction; and what the logs cannot tell any more are the oldest. So few are looked
    for, each of which costs a listing of the tables' logs.
    """
    answers: dict[int, bool | None] = {}

    def gone(place: int) -> bool | None:
        if place not in answers:
            answers[place] = _taken_back(tables, rows[place])
        return answers[place]

    first_gone = _first(len(rows), lambda place: gone(place) is True)
    first_known = first_gone if not first_gone or gone(first_gone - 1) is None else 0
    return [BeforeRollback(row, None if n < first_known else n >= first_gone) for n, row in enumerate(rows)]


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """The first of the places 0 to ``count`` of which something holds, as of all behind it."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _taken_back(tables: Publications, row: Row) -> bool | None:
    """Of a transaction that stays the tables tell the very attempt: a rollback uses no attempt id again."""
    try:
        last_published = tables.last_of(row["txid"], row["txid"])
    except TableError:
        return None
    if last_published.control is not None:
        return bool(last_published.control.attempt_id != row["attempt_id"])
    return True if last_published.known else None


def _of_table(
    tables: LogTables,
    warehouse: Place,
    topology: str,
    group: str,
    read: Callable[[str, Sequence[LiveFile]], Found],
) -> tuple[RecordedUpTo | None, Found | None, str]:
    """The mark, and what ``read`` makes of path and files; None where there is no table of the group's, or why not."""
    path = warehouse / table_name(topology, group)
    try:
        snapshot = tables.load(str(path))
        mark = RecordedUpTo.decode(path, snapshot.control(DOMAIN))
        if (mark.topology, mark.group) != (topology, group):
            return None, None, ""
        return mark, read(str(path), tables.live_files(snapshot)), ""
    except TableMissing:
        return None, None, ""
    except (TableError, ForeignTable) as error:
        return None, None, str(error)


def _newest_of_each(batches: Iterable[pa.RecordBatch], last: int) -> list[Row]:
    """Of each incarnation the newest so many rows."""
    found: dict[str, list[Row]] = {}
    for batch in batches:
        for incarnation in pc.unique(batch.column("incarnation")).to_pylist():
            own = batch.filter(pc.equal(batch.column("incarnation"), incarnation))
            newest = own.take(pc.sort_indices(own, [("txid", "descending")])[:last])
            found[incarnation] = [*found.get(incarnation, ()), *newest.to_pylist()]
    return [row for rows in found.values() for row in sorted(rows, key=lambda row: row["txid"])[-last:]]


def _may_have(file: LiveFile, txids: Collection[int] | None) -> bool:
    """Tells by the log's statistics; False only where the file surely has none of them."""
    stats: Any = file.stats or {}
    low, high = (dict(stats.get(name) or {}).get("txid") for name in ("minValues", "maxValues"))
    if txids is None or not isinstance(low, int) or not isinstance(high, int):
        return True
    return any(low <= txid <= high for txid in txids)


def _incarnation(warehouse: Place, topology: str, group: str, mark: RecordedUpTo | None) -> str:
    """The present one, by the states' descriptors; of a group without tables by the last manifest, or the mark."""
    try:
        named = {state.incarnation for state in descriptors_of_group(warehouse, topology, group)}
    except TableError:
        named = set()
    if len(named) == 1:
        return named.pop()
    for _, manifest in ManifestStore(warehouse, topology, group).newest_first():
        return manifest.incarnation
    return mark.incarnation if mark is not None else ""


def _of_manifests(kept: KeptManifests, txids: list[int]) -> tuple[dict[int, Row], dict[int, str]]:
    """The rows of transactions that changed something; and txid → why its manifest cannot be read."""
    found: list[tuple[Decision, Manifest]] = []
    unreadable: dict[int, str] = {}
    for txid in txids:
        try:
            found.append(kept.decided(txid))
        except TransactionNotKept:
            continue  # it changed nothing
        except TableError as error:
            unreadable[txid] = str(error)
    published = published_as(kept.of.warehouse, found)
    rows = {decision.txid: transaction_row(decision, each, published[decision.txid]) for decision, each in found}
    return rows, unreadable


def tables_of(warehouse: AnyPath, topology: str) -> list[Place]:
    """The folders of a topology's tables of transactions, of all its batch groups.

    Their names alone do not say whose they are: a topology's name may begin with another's. So each one's log is asked.
    """
    warehouse, pattern = Place(warehouse), table_name(topology, "*")
    found = [warehouse / name for name in sorted(storage.list_names(warehouse)) if fnmatchcase(name, pattern)]
    return [path for path in found if (owner := owner_by_log(path)) is not None and owner[0] == topology]


# Who led a topology before: the epochs of its kept transactions, from their table and manifests, without Spark.


LEADERSHIPS = 50
# Transactions that their table does not have yet: it gets those of a minute, or a hundred, at once.
_UNRECORDED_MAX = 200
_LEADERSHIP_SCHEMA = pa.schema([SCHEMA.field(name) for name in ("incarnation", "epoch", "decided_at", "published_at")])
_Led = dict[str, Any]


class PastLeaderships:
    """The earlier leaderships of which a transaction is kept. Keep one instance: it reads each file once.

    For one thread at a time.
    """

    def __init__(self, warehouse: Place, topology: str) -> None:
        self._warehouse, self._topology = warehouse, topology
        self._tables: dict[str, TableFiles[dict[tuple[str, int], _Led]]] = {}

    def __call__(self, groups: Sequence[str]) -> list[_Led]:
        """Gives them, the newest first, at most ``LEADERSHIPS``.

        Returns:
            of each ``epoch``, ``first_at`` and ``last_at`` (of its transactions, seconds since the epoch; None: not
            known), ``transactions``, how many are kept; of those that the table does not have yet at most
            ``_UNRECORDED_MAX`` of a group count. A leadership that has committed nothing is not among them.

        Raises:
            OSError: the warehouse cannot be read.
        """
        return leaderships(one for group in groups for one in self._of_group(group))

    def _of_group(self, group: str) -> list[_Led]:
        table = self._tables.get(group)
        if table is None:
            table = self._tables[group] = TableFiles(
                self._warehouse, self._topology, group, _LEADERSHIP_SCHEMA, _of_file
            )
        mark, files, _ = table.scan()
        incarnation, unrecorded = rows_after(self._warehouse, self._topology, group, mark, _UNRECORDED_MAX)
        recorded = [one for file in files for (of, _), one in file.items() if of == incarnation]
        return [*recorded, *(part_of(row) for row in unrecorded if row["epoch"] is not None)]


def _of_file(batches: Iterable[pa.RecordBatch]) -> dict[tuple[str, int], _Led]:
    """(incarnation, epoch) → the leadership, of the rows of a file of the table of transactions."""
    found: dict[tuple[str, int], _Led] = {}
    for batch in batches:
        for row in batch.to_pylist():
            if row["epoch"] is not None:
                _add(found, (row["incarnation"], row["epoch"]), part_of(row))
    return found


def part_of(row: Mapping[str, Any]) -> _Led:
    """The part of a leadership that a row of the table of transactions is."""
    at = row["decided_at"] or row["published_at"]
    moment = None if at is None else at.timestamp()
    return {"epoch": row["epoch"], "first_at": moment, "last_at": moment, "transactions": 1}


def leaderships(parts: Iterable[Mapping[str, Any]]) -> list[_Led]:
    """The newest leaderships, put together of their parts. Pure."""
    found: dict[int, _Led] = {}
    for part in parts:
        _add(found, part["epoch"], part)
    return [found[epoch] for epoch in sorted(found, reverse=True)][:LEADERSHIPS]


def _add(found: dict[Any, _Led], key: Any, more: Mapping[str, Any]) -> None:
    one = found.get(key)
    if one is None:
        found[key] = dict(more)
        return
    one["transactions"] += more["transactions"]
    moments = [part[name] for part in (one, more) for name in ("first_at", "last_at") if part[name] is not None]
    one["first_at"], one["last_at"] = min(moments, default=None), max(moments, default=None)
