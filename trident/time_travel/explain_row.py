"""``trident.explain_row``: the transactions that wrote a row, their attempts, and where in the sources it is from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trident.config import TridentConfig
from trident.coordinators.errors import TableError, TransactionNotKept
from trident.coordinators.identities import same_start, up_to
from trident.states.core.control import ControlRecord
from trident.states.core.copy_rows import RowCodec
from trident.states.core.copyable import arrow_schema, why_not_exact
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.group_context import GroupContext
from trident.states.core.names import check_name
from trident.states.core.place import Place
from trident.states.core.storage import explained_storage_errors
from trident.states.delta.manifest import Manifest
from trident.states.history.kept import KeptManifests, published_as_of
from trident.states.history.row_origins import Origins, Writer, origins_of_key, origins_of_rows
from trident.states.keyed.compaction import SnapshotUnavailable
from trident.states.keyed.key_reads import requested_keys
from trident.states.keyed.pinning import load_state


@dataclass(frozen=True)
class RowSource:
    """Where in a stream's source the rows of a transaction came from.

    Attributes:
        spout: the spout's class.
        kind: of its contract: "transactional", "opaque" or another.
        metadata: what the batch was made from: of a FileSpout its files and bytes, of Kafka its offsets, as the spout
            writes them. Of an opaque source where it stood behind the batch.
        before: the same of the transaction before, behind which an opaque source began; None where it is not kept.
    """

    spout: str
    kind: str
    metadata: Any
    before: Any


@dataclass(frozen=True)
class RowWriter:
    """A transaction that wrote rows.

    Attributes:
        txid: its number.
        attempt_id: the attempt that was decided; None where neither a manifest nor a table's log has it any more.
        epoch: of the leader that published it; None likewise.
        incarnation: of the topology then.
        rows: how many of the rows it wrote; of a key, how many changes of it.
        sources: by stream; None where its manifest is not kept (``history_retention_txids``).
    """

    txid: int
    attempt_id: int | None
    epoch: int | None
    incarnation: str
    rows: int
    sources: Mapping[str, RowSource] | None


# A hot key is written by every transaction, and a position names every partition.
_SHOWN_WRITERS, _SHOWN_CHARS = 10, 200


def _short(metadata: Any) -> str:
    text = json.dumps(metadata, sort_keys=True)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


@dataclass(frozen=True)
class RowExplanation:
    """The answer of :func:`explain_row`; ``print`` shows the last ten transactions of it.

    Attributes:
        table: the state's name.
        row: the key or the values that were asked for.
        found: how many rows there are; of a key how many changes its log has.
        writers: the transactions that wrote them, the oldest first.
        not_known: the reasons for which others may have written some, too; none: these are all.
    """

    topology: str
    group: str
    table: str
    row: Any
    found: int
    writers: tuple[RowWriter, ...]
    not_known: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.table} {self.row!r}: {self.found} rows, of {len(self.writers)} transactions"]
        earlier = self.writers[:-_SHOWN_WRITERS]
        if earlier:
            txids = f"{earlier[0].txid} to {earlier[-1].txid}"
            lines.append(f"  {len(earlier)} earlier transactions, {txids}: see .writers")
        for one in self.writers[-_SHOWN_WRITERS:]:
            lines.append(f"  transaction {one.txid}: {one.rows} rows, attempt {one.attempt_id}, epoch {one.epoch}")
            for stream, source in (one.sources or {}).items():
                lines.append(f"    {stream} ({source.spout}): {_short(source.metadata)}")
                if source.before is not None and source.before != source.metadata:
                    lines.append(f"      after {_short(source.before)}")
            if one.sources is None:
                lines.append("    its manifest is not kept: where its rows came from is not known")
        return "\n".join([*lines, *(f"  {reason}" for reason in self.not_known)])


def explain_row(warehouse: "str | os.PathLike[str]", topology: str, table: str, row: Any) -> RowExplanation:
    """The transactions that wrote a row, with their attempts, and where in the sources they came from.

    ::

        print(trident.explain_row("warehouse", "wordcount", "counts", "storm"))  # a key of a keyed state
        trident.explain_row("warehouse", "orders", "lines", {"order": 4711, "item": 3})  # rows of an append table

    Of a key all transactions that changed it, as far back as its state's log goes (``snapshot_retention_txids``); a
    MERGE changes nothing of that. Of rows of an append table those that wrote them: certain of rows in the files that
    were staged, and of all rows where the table has a column of txids (``DeltaAppend(name, txid_column="_txid")``).
    Without it, rows that OPTIMIZE has moved are known until a VACUUM, and then said to be unknown.

    Needs no Spark, no ZooKeeper and no running topology. It reads the files that may have the row, by their bounds.

    Args:
        warehouse: the topology's warehouse folder or URL.
        topology: its name.
        table: the name of a DeltaMapState or DeltaAppend.
        row: of a keyed state one key, as for :func:`trident.get`; of an append table a dict of values by which its rows
            are told: all rows that have these are explained together.

    Raises:
        TableError: there is no such state, or only Spark can read its table.
        FieldError: the key or a value does not fit.
        StoreProblem: the warehouse's store refuses, or cannot be reached.
    """
    check_name("topology", topology)
    place = TridentConfig(warehouse=os.fspath(warehouse)).warehouse_place()
    with explained_storage_errors():
        state = load_state(place, table)
        if state.topology != topology:
            raise TableError(
                f"state {table!r} is not of topology {topology!r}",
                found=f"one of {state.topology!r}",
                action="name the topology that writes it",
            )
        found = _origins(place, state, row)
        writers = _Writers(place, state)
        origins = [writers.origin_of(one, count) for one, count in found.rows.items()]
        origins.sort(key=lambda one: (same_start(one.incarnation, state.incarnation), one.txid))
        return RowExplanation(topology, state.group, table, row, found.found, tuple(origins), tuple(found.not_known))


def _origins(warehouse: Place, state: StateDescriptor, row: Any) -> Origins:
    if state.state_kind.has_log:
        reason = why_not_exact(state.schema, state.keys)
        if reason is not None:
            raise TableError(f"the keys of state {state.name} cannot be distinguished without Spark", found=reason)
        schema = arrow_schema(state.schema)
        return origins_of_key(
            warehouse, state, requested_keys(state.name, schema, state.keys, [row], RowCodec(schema, state.keys))
        )
    if not isinstance(row, Mapping):
        raise TableError(
            f"rows of append table {state.name} are not given by {row!r}",
            found=type(row).__name__,
            expected="a dict of values by the names of its columns",
        )
    return origins_of_rows(warehouse, state, row)


class _Writers:
    """Tells of transactions by their manifests, or by the control records of a table that they wrote."""

    def __init__(self, warehouse: Place, state: StateDescriptor) -> None:
        self._warehouse, self._state = warehouse, state
        self._kept: dict[str, KeptManifests] = {}

    def origin_of(self, writer: Writer, rows: int) -> RowWriter:
        control = self._published(writer)
        incarnation = writer.incarnation or (control or self._state).incarnation
        attempt = None if control is None else control.attempt_id
        manifest = self._manifest(incarnation, writer.txid, attempt)
        return RowWriter(
            writer.txid,
            attempt if manifest is None else manifest.attempt.attempt_id,
            None if control is None else control.epoch,
            incarnation if manifest is None else manifest.incarnation,
            rows,
            None if manifest is None else self._sources(manifest),
        )

    def _published(self, writer: Writer) -> ControlRecord | None:
        """The control record that the transaction has left in the table's log; None where it is there no more."""
        state = self._state
        try:
            path = self._warehouse / state.published_path
            control = published_as_of(path, state.topology, state.group, state.incarnation, writer.txid).control
        except SnapshotUnavailable:
            return None
        is_its = writer.incarnation is None or same_start(writer.incarnation, control.incarnation)
        return control if is_its and control.txid == writer.txid else None

    def _sources(self, manifest: Manifest) -> dict[str, RowSource]:
        parent = manifest.parent
        before = None if parent is None else self._manifest(manifest.incarnation, parent.txid, parent.attempt_id)
        earlier = {} if before is None else before.spouts
        return {
            stream: RowSource(
                str(spout.get("spout", "")),
                str(spout.get("kind", "")),
                _position(spout),
                _position(earlier[stream]) if stream in earlier else None,
            )
            for stream, spout in manifest.spouts.items()
        }

    def _manifest(self, incarnation: str, txid: int, attempt_id: int | None) -> Manifest | None:
        """The manifest of a transaction; of those that a rollback has let stand it is in an incarnation before."""
        state = self._state
        for one in up_to(incarnation):
            if one not in self._kept:
                self._kept[one] = KeptManifests(GroupContext(self._warehouse, state.topology, state.group, one))
            with suppress(TransactionNotKept):
                found = self._kept[one].read(txid)
                if attempt_id in (None, found.attempt.attempt_id):
                    return found
        return None


def _position(spout: Mapping[str, Any]) -> Any:
    """Where a stream's batch came from, as its manifest says; of opaque partitions where they stood behind it."""
    return spout.get("opaque") or spout.get("metadata")
