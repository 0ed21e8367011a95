"""``trident diff``: where a topology and its fork, or any two that were given the same batches, first part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import ConfigError, TopologyError, TridentError
from trident.coordinators.identities import same_start
from trident.coordinators.positions import digest_of
from trident.maintenance.inventory import incarnation_of
from trident.running.status import read_status
from trident.states.core.binding import COMBINE
from trident.states.core.copyable import arrow_schema
from trident.states.core.descriptor import StateDescriptor, list_descriptors, load_descriptor
from trident.states.core.group_context import GroupContext
from trident.states.core.names import check_name
from trident.states.core.place import Place, warehouse_place
from trident.states.core.tables import TXID_COLUMN
from trident.states.delta.manifest import Manifest, ManifestTable, groups_with_manifests
from trident.states.history.kept import KeptManifests
from trident.states.keyed.key_reads import KeyReader
from trident.states.keyed.merge_rows import RowMerge, why_not
from trident.time_travel.differences import RowPair, row_pairs
from trident.time_travel.fork_plan import ForkRecord, load_fork
from trident.time_travel.replay_inputs import staged_table

# Compares two topologies transaction by transaction: their batches, and the rows that each state was given.
#
# The rows are those of the files that the kept manifests name: what a transaction added to a table, and not what the
# table came to hold by it. So the first transaction that differs is the one in which two topologies part, and those
# behind it need not be looked at. The order of rows is no difference, nor are attempts, files and times.


Values = Mapping[str, Any]
_SHOWN = 5


class Side:
    """One of two topologies that are compared: a batch group of it.

    Args:
        processed: a transaction that it has processed, as far as that is known: those behind the newest kept manifest
            up to it have changed nothing.

    Attributes:
        txids: the transactions whose manifests are kept.
        upto: the last transaction that it has processed, as far as that is known.
    """

    def __init__(self, of: GroupContext, processed: int = 0) -> None:
        self.warehouse, self.topology, self.group = of.warehouse, of.topology, of.group
        self.kept = KeptManifests(of)
        self.txids = self.kept.txids()
        self.upto = max([processed, *self.txids[-1:]])
        self._states: dict[str, StateDescriptor | None] = {}

    def manifest(self, txid: int) -> Manifest | None:
        """The transaction's manifest; None of one that changed nothing.

        Raises:
            TransactionNotKept: it is not kept, or was not yet; or its manifest is lost.
        """
        return self.kept.read_if_any(txid, self.upto)

    def state(self, name: str) -> StateDescriptor | None:
        if name not in self._states:
            try:
                self._states[name] = load_descriptor(self.warehouse, name)
            except FileNotFoundError:
                self._states[name] = None
        return self._states[name]

    def rows(self, part: ManifestTable | None) -> pa.Table | None:
        """The rows that a transaction gave a state: of a state that combines parts one row for each key.

        Raises:
            TableError: a file is gone, or cannot be read.
        """
        rows = None if part is None else staged_table(self.warehouse / part.path, part.files)
        state = None if part is None else self.state(part.state)
        if rows is None or state is None or not state.state_kind.has_log or state.merging != COMBINE:
            return rows
        schema = arrow_schema(state.schema)
        if why_not(schema, state.keys, state.aggregator) is not None:
            return rows
        merge = RowMerge(schema, state.keys, state.aggregator)
        columns = [rows.column(column.name).cast(column.type) for column in merge.log_schema]
        return merge.reduced(pa.table(columns, schema=merge.log_schema))

    @cached_property
    def _reader(self) -> KeyReader:
        return KeyReader(self.warehouse)

    def value(self, state: str, key: Values, txid: int) -> Values | None:
        """The value of a key as of a transaction; None where there is none, or it can no longer be read."""
        try:
            return self._reader.get(state, self._reader.requested(state, [tuple(key.values())]), txid)[0]
        except (TridentError, ArithmeticError):
            return None


@dataclass(frozen=True)
class Part:
    """Rows of one key, or one row of an append table, that two topologies do not share.

    Attributes:
        key: the values of the state's keys; empty of an append table.
        one, other: the row that the transaction gave the state; None: none.
        value, other_value: the key's values as of the transaction, where they can be read.
    """

    key: Values
    one: Values | None
    other: Values | None
    value: Values | None = None
    other_value: Values | None = None


@dataclass(frozen=True)
class Divergence:
    """The first transaction in which two topologies differ, and in what.

    Attributes:
        txid: of the transaction.
        streams: stream → (the one's position, the other's): batches that are not the same.
        table: the state in which they differ; "" where only batches do.
        count: of the keys, or rows, that differ there.
        parts: the first of them.
        tables: all states in which they differ.
    """

    txid: int
    streams: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    table: str = ""
    count: int = 0
    parts: tuple[Part, ...] = ()
    tables: tuple[str, ...] = ()


def first_divergence(
    one: Side, other: Side, txids: Iterable[int], on_equal: Callable[[int], None] = lambda txid: None
) -> Divergence | None:
    """The first of some transactions in which two topologies differ; None where none does.

    Args:
        txids: ascending.
        on_equal: called with each transaction that was compared and does not differ.

    Raises:
        TransactionNotKept: a transaction is not kept on one side.
        TableError: rows of it are not there any more.
    """
    for txid in txids:
        found = _divergence(one, other, txid)
        if found is not None:
            return found
        on_equal(txid)
    return None


def _divergence(one: Side, other: Side, txid: int) -> Divergence | None:
    manifests = one.manifest(txid), other.manifest(txid)
    if manifests == (None, None):
        return None
    streams = _other_batches(*manifests)
    parts = [{part.state: part for part in manifest.tables} if manifest else {} for manifest in manifests]
    found: dict[str, list[RowPair]] = {}
    for state in sorted(parts[0].keys() | parts[1].keys()):
        part = parts[0].get(state) or parts[1][state]
        if part.state_kind.is_described and _is_shared(one, other, state):
            rows = one.rows(parts[0].get(state)), other.rows(parts[1].get(state))
            if differ := _differences(one, other, state, *rows):
                found[state] = differ
    if not found:
        return Divergence(txid, streams) if streams else None
    table = next(iter(found))
    shown = tuple(_part(one, other, table, each, txid) for each in found[table][:_SHOWN])
    return Divergence(txid, streams, table, len(found[table]), shown, tuple(found))


def _is_shared(one: Side, other: Side, state: str) -> bool:
    """A state that only one of two has, by its code, is no difference of a transaction."""
    return one.state(state) is not None and other.state(state) is not None


def _other_batches(one: Manifest | None, other: Manifest | None) -> dict[str, tuple[Any, Any]]:
    """Streams whose batches are not the same, as far as both sides say."""
    if one is None or other is None:
        return {}
    found = {}
    for tx_id in sorted(one.spouts.keys() & other.spouts.keys()):
        pair = [spout.get("opaque") or spout.get("metadata") for spout in (one.spouts[tx_id], other.spouts[tx_id])]
        if digest_of(pair[0]) != digest_of(pair[1]):
            found[tx_id] = (pair[0], pair[1])
    return found


def _differences(one: Side, other: Side, state: str, rows: pa.Table | None, others: pa.Table | None) -> list[RowPair]:
    known = one.state(state) or other.state(state)
    return row_pairs(known.keys if known is not None else (), rows, others, leave_out=(TXID_COLUMN,))


def _part(one: Side, other: Side, state: str, found: RowPair, txid: int) -> Part:
    ours, theirs = (
        None if row is None else {name: value for name, value in row.items() if name not in found.key}
        for row in (found.one, found.other)
    )
    known = one.state(state)
    if known is None or not known.state_kind.has_log:
        return Part(found.key, ours, theirs)
    values = one.value(state, found.key, txid), other.value(state, found.key, txid)
    return Part(found.key, ours, theirs, *values)


@dataclass(frozen=True)
class Diff:
    """Two topologies, compared.

    Attributes:
        name, other: of them.
        group: the batch group.
        first, last: the transactions that were compared; last is 0 where there was none.
        behind: how many transactions of the first one, of which the batches were given, the other has still to process.
        only_one, only_other: states that one of them has and the other has not; they are not compared.
        parting: the first transaction in which they differ, and in what; None: no difference.
    """

    name: str
    other: str
    group: str
    first: int
    last: int
    behind: int
    only_one: tuple[str, ...]
    only_other: tuple[str, ...]
    parting: Divergence | None


def diff(
    name: str,
    other: str,
    other_warehouse: str,
    config: TridentConfig | None = None,
    span: tuple[int, int] | None = None,
    group: str | None = None,
) -> Diff:
    """Compares two topologies transaction by transaction, up to the first difference.

    Reads files alone: both may run. Of a fork the transactions are compared whose batches it was given.

    Args:
        name: a topology.
        other: its fork; or another topology that was given the same batches.
        other_warehouse: where that is.
        config: ``warehouse`` is that of ``name``; of a fork's original its record says it. An original that was rolled
            back meanwhile is compared by what it has done since.
        span: the first and the last transaction; None: all that both have.
        group: the batch group, where there are several.

    Raises:
        ConfigError: the other one is a fork of another topology, or is not whole.
        TopologyError: a name, or a group, is not there.
        TransactionNotKept: a transaction is not kept on one side; the message says which are.
        TableError: rows of a transaction are not there any more.
    """
    check_name("topology", name)
    check_name("topology", other)
    config = as_config(config)
    warehouse = warehouse_place(other_warehouse)
    record = load_fork(warehouse, other)
    if record is not None:
        _check_fork(record, name)
        source = Place(record.warehouse)
        incarnation = _incarnation_now(source, record)
    else:
        source = config.warehouse_place()
        incarnation = incarnation_of(source, name)
    chosen = _group(source, name, warehouse, other, group)
    one = _side(source, name, chosen, incarnation)
    two = _side(warehouse, other, chosen, incarnation_of(warehouse, other))
    first, last, behind = _bounds(one, two, record, chosen, span)
    parting = first_divergence(one, two, range(first, last + 1))
    mine, theirs = ({state.name for state in list_descriptors(*side)} for side in ((source, name), (warehouse, other)))
    return Diff(
        name,
        other,
        chosen,
        first,
        parting.txid if parting else max(last, 0),
        behind,
        tuple(sorted(mine - theirs)),
        tuple(sorted(theirs - mine)),
        parting,
    )


def _side(warehouse: Place, topology: str, group: str, incarnation: str) -> Side:
    """With the transactions that its status knows of: the last ones may have changed nothing, and have no manifest."""
    processed = 0
    try:
        status = read_status(warehouse, topology)
    except TridentError:
        pass  # there is none, or it cannot be read: it is a help only
    else:
        if status.id == incarnation:
            processed = max((each.current_txid - 1 for each in status.groups if each.name == group), default=0)
    return Side(GroupContext(warehouse, topology, group, incarnation), processed)


def _check_fork(record: ForkRecord, name: str) -> None:
    if record.topology != name:
        raise ConfigError(
            f"{record.name} is not a fork of {name}",
            found=f"a fork of {record.topology} in {record.warehouse}",
            expected=f"a fork of {name}",
            action=f"`trident diff {record.topology} {record.name}` compares those two",
        )
    if not record.whole:
        raise ConfigError(
            f"the fork {record.name} is not whole",
            found="a record of a fork that was begun",
            expected="a whole fork",
            action="run the same `trident fork` again: it continues",
        )


def _incarnation_now(source: Place, record: ForkRecord) -> str:
    """The original's; behind a rollback of it what it has done since is compared, not what was taken back."""
    try:
        now = incarnation_of(source, record.topology)
    except TridentError:
        return record.source_incarnation  # which of its transactions are not kept is told by the comparison
    return now if same_start(now, record.source_incarnation) else record.source_incarnation


def _group(source: Place, name: str, warehouse: Place, other: str, group: str | None) -> str:
    ours, theirs = groups_with_manifests(source, name), groups_with_manifests(warehouse, other)
    both = [each for each in ours if each in theirs]
    if group is None and len(both) == 1:
        return both[0]
    if group in both:
        return group
    raise TopologyError(
        f"{name} and {other} have {'several batch groups' if both and group is None else 'no such batch group'} "
        "with kept transactions",
        found=f"of {name}: {', '.join(ours) or 'none'}; of {other}: {', '.join(theirs) or 'none'}",
        expected="one that both have",
        action="name it with --group",
    )


def _bounds(
    one: Side, two: Side, record: ForkRecord | None, group: str, span: tuple[int, int] | None
) -> tuple[int, int, int]:
    """(first, last, how many the other has still to process) of the transactions that are compared."""
    if span is not None:
        return *span, 0
    if record is not None and group in record.groups:
        part = record.groups[group]
        # An original that was rolled back may not have come to all of them again.
        first, until = part.at + 1, min(part.until, one.upto)
    else:
        first = max(side.txids[0] if side.txids else 1 for side in (one, two))
        until = min(side.upto for side in (one, two))
    last = min(until, two.upto)
    return first, last, max(until - max(last, first - 1), 0)
