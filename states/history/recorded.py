"""Reads the transactions of a batch group, without Spark: from their table, and from manifests what it lacks.

A transaction is told as soon as a table of the group has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from trident.coordinators.errors import ForeignTable, TableError, TransactionNotKept
from trident.coordinators.incarnation_ids import up_to
from trident.coordinators.records import Decision
from trident.states.core import storage
from trident.states.core.descriptor import descriptors_of_group
from trident.states.core.place import AnyPath, Place
from trident.states.delta.file_rows import rows_of
from trident.states.delta.kernel_errors import TableMissing
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.log_tables import LogTables
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.states.history.kept import KeptManifests
from trident.states.history.publications import Publications
from trident.states.history.published_entries import published_as
from trident.states.history.recorded_mark import DOMAIN, RecordedUpTo, owner_by_log, table_name
from trident.states.history.transaction_rows import SCHEMA, Row, transaction_row


@dataclass(frozen=True)
class Transactions:
    """The past of a batch group, as far as it is known.

    Attributes:
        incarnation: whose transactions these are: the topology's present one.
        rows: by txid, the columns of the table of transactions.
        manifests: the transactions whose manifests are kept.
        trouble: why the table could not be read, where all is from manifests; "" where it could.
        unreadable: txid → why its manifest, which is there, cannot be read, of transactions without a row.
        earlier: the transactions from before the last rollback, in the order in which they were made; where asked for.
    """

    incarnation: str
    rows: dict[int, Row]
    manifests: tuple[int, ...]
    trouble: str = ""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    earlier: tuple[BeforeRollback, ...] = ()


@dataclass(frozen=True)
class BeforeRollback:
    """A transaction from before a rollback.

    Attributes:
        row: the columns of the table of transactions.
        taken_back: whether a rollback has taken it back; None where the tables cannot tell any more.
    """

    row: Row
    taken_back: bool | None


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
    mark, rows, trouble = _of_table(warehouse, topology, group, txids)
    incarnation = _incarnation(warehouse, topology, group, mark)
    found = {row["txid"]: row for row in rows if row["incarnation"] == incarnation}
    kept = KeptManifests(warehouse, topology, group, incarnation)
    there = kept.txids() if incarnation else []
    wanted = [txid for txid in there if txid not in found and (txids is None or txid in txids)]
    if last is not None:
        wanted = wanted[-last:]
    more, unreadable = _of_manifests(warehouse, kept, wanted)
    found |= more
    newest = sorted(found.keys() | unreadable.keys())
    newest = newest[-last:] if last else newest
    room = None if last is None else last - len(newest)
    before = _earlier(warehouse, topology, group, incarnation, rows, txids, room) if earlier and incarnation else []
    return Transactions(
        incarnation,
        {txid: found[txid] for txid in newest if txid in found},
        tuple(there),
        trouble,
        {txid: unreadable[txid] for txid in newest if txid in unreadable},
        tuple(before),
    )


def _earlier(
    warehouse: Place,
    topology: str,
    group: str,
    incarnation: str,
    rows: list[Row],
    txids: Collection[int] | None,
    room: int | None,
) -> list[BeforeRollback]:
    """The transactions of the incarnations before rollbacks: of the newest so many."""
    found: list[Row] = []
    for one in up_to(incarnation)[1:]:
        if room is not None and len(found) >= room:
            break
        recorded = {row["txid"]: row for row in rows if row["incarnation"] == one}
        kept = KeptManifests(warehouse, topology, group, one)
        wanted = [each for each in kept.txids() if each not in recorded and (txids is None or each in txids)]
        recorded |= _of_manifests(warehouse, kept, wanted[-room:] if room else wanted)[0]
        found += [recorded[each] for each in sorted(recorded, reverse=True)]
    tables = Publications(warehouse, topology, group, incarnation)
    newest = found[:room] if room is not None else found
    return [BeforeRollback(row, _taken_back(tables, row)) for row in reversed(newest)]


def _taken_back(tables: Publications, row: Row) -> bool | None:
    """Of a transaction that stays the tables tell the very attempt: a rollback uses no attempt id again."""
    try:
        told = tables.last_of(row["txid"], row["txid"])
    except TableError:
        return None
    if told.control is not None:
        return bool(told.control.attempt_id != row["attempt_id"])
    return True if told.known else None


def _of_table(
    warehouse: Place, topology: str, group: str, txids: Collection[int] | None
) -> tuple[RecordedUpTo | None, list[Row], str]:
    path, tables = warehouse / table_name(topology, group), LogTables()
    try:
        snapshot = tables.load(str(path))
        mark = RecordedUpTo.decode(path, snapshot.control(DOMAIN))
        if (mark.topology, mark.group) != (topology, group):
            return None, [], ""
        files = [file for file in tables.live_files(snapshot) if _may_have(file, txids)]
        rows = [row for batch in rows_of(str(path), files, SCHEMA) for row in batch.to_pylist()]
    except TableMissing:
        return None, [], ""
    except (TableError, ForeignTable) as error:
        return None, [], str(error)
    return mark, [row for row in rows if txids is None or row["txid"] in txids], ""


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


def _of_manifests(warehouse: Place, kept: KeptManifests, txids: list[int]) -> tuple[dict[int, Row], dict[int, str]]:
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
    published = published_as(warehouse, found)
    rows = {decision.txid: transaction_row(decision, each, published[decision.txid]) for decision, each in found}
    return rows, unreadable


def tables_of(warehouse: AnyPath, topology: str) -> list[Place]:
    """The folders of a topology's tables of transactions, of all its batch groups.

    Their names alone do not say whose they are: a topology's name may begin with another's. So each one's log is asked.
    """
    warehouse, pattern = Place(warehouse), table_name(topology, "*")
    found = [warehouse / name for name in sorted(storage.list_names(warehouse)) if fnmatchcase(name, pattern)]
    return [path for path in found if (owner := owner_by_log(path)) is not None and owner[0] == topology]
