"""A spout with a fixed list of batches, for tests and examples (docs/semantics.md 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError, TopologyError, described
from trident.coordinators.stored_json import MAY_BE_MISSING
from trident.coordinators.transactions import TransactionAttempt
from trident.spouts.arguments import read_metadata
from trident.spouts.contracts import Backlog, Emitted, Emitter, Json, SpoutContext, SpoutKind
from trident.spouts.ranged import RangedCoordinator
from trident.udf.schemas import as_schema

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


@dataclass(frozen=True)
class BatchIndex:
    """The metadata of a spout that counts its batches.

    Attributes:
        batch: the index of the batch that the transaction took, or of the next one.
        empty: whether it took none.
        rows: of the batch, where that is known.
    """

    batch: int
    empty: bool = field(default=False, metadata={MAY_BE_MISSING: True})
    rows: int = field(default=0, metadata={MAY_BE_MISSING: True})

    def problem(self) -> str | None:
        return None if self.batch >= 0 else "`batch` is below 0"

    @property
    def next(self) -> int:
        """The index of the batch for the transaction after it."""
        return self.batch + (not self.empty)


class IndexCoordinator(RangedCoordinator[BatchIndex]):
    """Counts batches. Metadata: {"batch": index}, or {"batch": index, "empty": true}: no rows, and index comes later.

    Args:
        what: the spout, for messages.
        count: how many batches there are; None: no end.
    """

    def __init__(self, what: str, count: int | None) -> None:
        super().__init__()
        self._what, self._count = what, count

    def read(self, metadata: Json) -> BatchIndex:
        return read_metadata(metadata, BatchIndex, self._what)

    def stored(self, planned: BatchIndex) -> dict[str, Any]:
        return {"batch": planned.batch, **({"empty": True} if planned.empty else {})}

    def start(self) -> BatchIndex:
        return BatchIndex(0, empty=True)

    def after(self, before: BatchIndex) -> BatchIndex:
        return BatchIndex(before.next, empty=True)

    def waits(self, empty: BatchIndex) -> bool:
        return self._count is None or empty.batch < self._count

    def cut(self, empty: BatchIndex, txid: int) -> BatchIndex:
        # Where none waits another stream of the group has begun this transaction.
        return BatchIndex(empty.batch, empty=not self.waits(empty))


class FixedBatchCoordinator(IndexCoordinator):
    """Counts through the batches, perhaps again and again. Metadata: as the other's, with "rows": n."""

    def __init__(self, rows: Sequence[int], cycle: bool) -> None:
        super().__init__(_SPOUT, len(rows))
        self._rows, self._cycle = rows, cycle and bool(rows)

    def stored(self, planned: BatchIndex) -> dict[str, Any]:
        return {**super().stored(planned), "rows": 0 if planned.empty else self._rows[planned.batch]}

    def after(self, before: BatchIndex) -> BatchIndex:
        return BatchIndex(before.next % len(self._rows) if self._cycle else before.next, empty=True)

    def backlog(self) -> Backlog:
        return Backlog() if self._cycle else Backlog(rows=sum(self._rows[(self._last() or self.start()).next :]))


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
