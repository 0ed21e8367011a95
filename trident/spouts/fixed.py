"""A spout with a fixed list of batches, for tests and examples (docs/semantics.md 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Union

from trident.coordinators.errors import SourceError, TopologyError, described
from trident.coordinators.transactions import TransactionAttempt
from trident.spouts.contracts import Backlog, BatchCoordinator, Emitted, Emitter, Json, SpoutContext, SpoutKind
from trident.spouts.metadata import BatchIndex, read_metadata
from trident.udf.schemas import as_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SPOUT = "a FixedBatchSpout"


class FixedBatchSpout:
    """Gives the batches that it was made with, one a transaction.

    Transactional: the metadata of a transaction is the index of its batch, and
    the same index is always the same rows, also after a restart, as long as the
    program makes the spout with the same batches.

    Args:
        schema: a StructType or DDL text such as "word string, n long".
        batches: the rows of each batch, as tuples in the schema's order.
        cycle: begin again after the last batch, for ever.

    Raises:
        TopologyError: the schema or a batch cannot be used.
    """

    kind = SpoutKind.TRANSACTIONAL
    acknowledges = False

    def __init__(
        self, schema: Union[str, "StructType"], batches: Iterable[Iterable[Sequence[Any]]], cycle: bool = False
    ) -> None:
        self._schema = as_schema(schema, "FixedBatchSpout")
        self._batches = [self._checked(number, batch) for number, batch in enumerate(_listed("batches", batches))]
        self._cycle = cycle

    def _checked(self, number: int, batch: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
        width = len(self._schema.fields)
        rows = [tuple(row) if isinstance(row, (tuple, list)) else row for row in _listed(f"batch {number}", batch)]
        for row in rows:
            if not isinstance(row, tuple) or len(row) != width:
                raise TopologyError(
                    f"batch {number} of a FixedBatchSpout holds a row that does not fit its schema",
                    found=repr(row)[:200],
                    expected=f"a tuple of {width}: {', '.join(field.name for field in self._schema.fields)}",
                )
        return rows

    @property
    def output_schema(self) -> "StructType":
        return self._schema

    def get_coordinator(self, context: SpoutContext) -> "FixedBatchCoordinator":
        return FixedBatchCoordinator([len(batch) for batch in self._batches], self._cycle)

    def get_emitter(self, context: SpoutContext) -> "FixedBatchEmitter":
        return FixedBatchEmitter(self._batches)


def _listed(what: str, values: Any) -> list[Any]:
    try:
        if not isinstance(values, (str, bytes)):
            return list(values)
    except TypeError:
        pass
    raise TopologyError(
        f"the {what} of a FixedBatchSpout cannot be used",
        found=described(values),
        expected="a list of batches, each a list of tuples",
    )


class FixedBatchCoordinator(BatchCoordinator):
    """Counts through the batches. Metadata: {"batch": index, "rows": n}, and "empty": true where there was none."""

    def __init__(self, rows: Sequence[int], cycle: bool) -> None:
        self._rows, self._cycle = rows, cycle
        self._next: dict[int, int] = {}

    def resume(self, txid: int, metadata: Json) -> None:
        """Told, if at all, before the first question: the greatest txid that has metadata."""
        self._remember(txid, metadata)

    def initialize_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        if curr_metadata is not None:
            self._remember(txid, curr_metadata)
            return curr_metadata
        index = 0 if prev_metadata is None else read_metadata(prev_metadata, BatchIndex, _SPOUT).next
        if self._cycle and self._rows:
            index %= len(self._rows)
        # Another stream of the group began this transaction, and there was no batch for it.
        empty = index >= len(self._rows)
        metadata = {"batch": index, "rows": 0, "empty": True} if empty else {"batch": index, "rows": self._rows[index]}
        self._remember(txid, metadata)
        return metadata

    def _remember(self, txid: int, metadata: Json) -> None:
        self._next = {known: at for known, at in self._next.items() if known > txid - 100}
        self._next[txid] = read_metadata(metadata, BatchIndex, _SPOUT).next

    def is_ready(self, txid: int) -> bool:
        if self._cycle:
            return bool(self._rows)
        # Unknown after a restart: the metadata of txid - 1 comes with initialize_transaction.
        return self._next.get(txid - 1, 0) < len(self._rows)

    def backlog(self) -> Backlog:
        if self._cycle:
            return Backlog()
        begun = self._next[max(self._next)] if self._next else 0
        return Backlog(rows=sum(self._rows[begun:]))


class FixedBatchEmitter(Emitter):
    def __init__(self, batches: Sequence[Sequence[tuple[Any, ...]]]) -> None:
        self._batches = batches

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        found = read_metadata(metadata, BatchIndex, _SPOUT)
        index = found.batch
        if not found.empty and index >= len(self._batches):
            raise SourceError(
                "a FixedBatchSpout has fewer batches than when the transaction began",
                found=f"{len(self._batches)} batches",
                expected=f"batch {index} among them",
                action="make the spout with the same batches, or begin again with `trident reset NAME`",
            )
        rows = [] if found.empty else self._batches[index]
        return Emitted(rows, partitions=1)
