"""Keeps the last row of each key in a state: insert, update and delete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

from pyspark.sql import functions as F

from trident.coordinators.errors import FieldError
from trident.planning.builder import SegmentBuilder
from trident.planning.nodes import Node
from trident.planning.operation import Operation
from trident.planning.session_frames import SessionFrames, Transform, column, column_list, in_turn
from trident.states.core.names import backquoted
from trident.states.core.tables import DELETED_COLUMN

_ROW, _PLACE = "__trident_row", "__trident_place"
_NULL_ADVICE = "filter such rows out before, or give them a value: without one their place is not known"


@dataclass(frozen=True)
class Upsert:
    """The updater for ``partition_persist`` that keeps one row per key, the last one.

    ``stream.partition_persist(DeltaMapState("users"), "id, name, gone", Upsert("id", delete_when="gone"))``

    Exactly once like every state of its kind (docs/semantics.md 5). A topology may be
    started again with more fields behind the earlier ones: they are null in
    rows that were written before.

    Args:
        keys: the fields that name a row; ``"id"``, ``"country, id"`` or a list. Null is a key like any other.
        delete_when: a boolean field: where it is true the row is removed. It is not stored itself.
        order_by: a field: of the rows of one key in a batch the one with the
            greatest value is the last; nulls come first. None takes the order in
            which the batch has them: that of the source, as long as nothing in
            between moves rows among Spark partitions.
        sequence_by: a field: of all changes of a key, in whichever transactions they come, the one with the greatest
            value counts; of equal values that of the later transaction. A deleted key stays deleted against older
            changes that come later. Integers, a decimal, date, timestamp or text (by its bytes), never null: a batch
            with a null there fails. It is stored with the other values. For a DeltaMapState (docs/cdc.md).
        deleted_retention_txids: with ``sequence_by``: a deleted key holds against older changes of so many
            transactions behind its delete. It is forgotten before twice as many: then any change of it counts.
            None: for good. It may be changed at each start, and counts from that start's first transaction on.
        history: with ``sequence_by``: the state keeps each change, and a read gives each key's periods (SCD type 2):
            the values from ``valid_from``, the sequence of their change, to ``valid_to``, that of the next one or of
            the delete; null: they are valid now. Whole reads only, ``query.snapshot`` and ``trident.read``.

    WARNING: ``order_by`` orders within a batch only. Between batches the later
    transaction always wins, whatever the value in that field: an older change
    that arrives in a later batch replaces a newer one. Where the source does not keep
    the changes of a key in order over its batches, use ``sequence_by``, which is
    ``MERGE … WHEN MATCHED AND s.ts >= t.ts``, with deletes.
    """

    keys: Union[str, Sequence[str]]
    delete_when: str | None = None
    order_by: str | None = None
    sequence_by: str | None = None
    deleted_retention_txids: int | None = None
    history: bool = False

    @property
    def native_name(self) -> str:
        """The stored name: with another sequence the state's values would be others."""
        if self.sequence_by is None:
            return "upsert"
        return f"upsert {'history ' if self.history else ''}by {self.sequence_by}"

    def __post_init__(self) -> None:
        keys = self.keys
        given = keys.split(",") if isinstance(keys, str) else keys if isinstance(keys, (list, tuple)) else ()
        names = tuple(name.strip() if isinstance(name, str) else name for name in given)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise FieldError("Upsert needs the fields that name a row", found=repr(keys), expected="'id' or ['a', 'b']")
        object.__setattr__(self, "keys", names)
        if self.sequence_by is not None and self.order_by is not None:
            raise FieldError(
                "Upsert takes one order",
                found=f"order_by={self.order_by!r} and sequence_by={self.sequence_by!r}",
                expected="sequence_by, which orders within a batch too; or order_by, which orders nothing else",
            )
        self._check_retention()

    def _check_retention(self) -> None:
        kept = self.deleted_retention_txids
        if self.history and (self.sequence_by is None or kept is not None):
            raise FieldError(
                "Upsert keeps the history of keys by a sequence, and for good",
                found=f"sequence_by={self.sequence_by!r} and deleted_retention_txids={kept!r}",
                expected="sequence_by, and no deleted_retention_txids",
            )
        if kept is None:
            return
        if self.sequence_by is None or self.delete_when is None:
            raise FieldError(
                "Upsert keeps deleted keys only with a sequence and deletes",
                found=f"deleted_retention_txids={kept!r}",
                expected="sequence_by and delete_when besides",
            )
        if isinstance(kept, bool) or not isinstance(kept, int) or kept < 1:
            raise FieldError(
                "deleted_retention_txids of Upsert is impossible", found=repr(kept), expected="a number, at least 1"
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class LastNode(Node):
    """One row per key of the batch: the last one. Its fields: keys, values, and whether the key is deleted.

    Attributes:
        delete_when: a boolean field; where it is true the key is to be removed.
        order_by: the field whose greatest value is the last; None: the batch's own order.
        sequenced: whether that field, which is never null, orders over all batches.
        history: whether it is one of the keys, and deletes are rows with ``delete_when`` as a value.
    """

    row_by_row = False

    keys: tuple[str, ...]
    values: tuple[str, ...]
    delete_when: str | None = None
    order_by: str | None = None
    sequenced: bool = False
    history: bool = False

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset((*self.keys, *self.values, *filter(None, (self.delete_when, self.order_by))))

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        fields = tuple(self.schema.fields)
        builder.push(
            LastOp(fields, self.keys, self.values, self.delete_when, self.order_by, self.sequenced, self.history)
        )

    def notes(self) -> Iterator[str]:
        if self.order_by and not self.sequenced:
            wins = "between batches the later transaction wins, whatever its value"
            yield f"ordered by {self.order_by} within a batch only: {wins}"


@dataclass(frozen=True)
class LastOp(Operation):
    """One row per key: the last; see LastNode."""

    shuffles = True

    keys: tuple[str, ...]
    values: tuple[str, ...]
    delete_when: str | None
    order_by: str | None
    sequenced: bool = False
    history: bool = False

    @property
    def spreads_rows(self) -> bool:
        return bool(self.keys)

    @property
    def needs_order(self) -> bool:
        return self.order_by is None

    def transform(self, frames: SessionFrames) -> Transform:
        gone = F.coalesce(column(self.delete_when), F.lit(False)) if self.delete_when else F.lit(False)
        place = F.monotonically_increasing_id()
        order, kept = place, column_list(self.values)
        if self.order_by and not self.sequenced:
            order = F.struct(column(self.order_by), place)
        if self.order_by and self.sequenced:
            order = F.struct(_never_null(self.order_by), place)
            # A deleted key's row stays in the table: without its values.
            told = (self.order_by, self.delete_when)
            kept = [F.when(~gone, column(name)).alias(name) for name in self.values if name not in told]
            if not self.history:
                kept.append(column(self.order_by))
            elif self.delete_when:
                kept.append(gone.alias(self.delete_when))
        row = F.struct(*kept, (F.lit(False) if self.history else gone).alias(DELETED_COLUMN))
        keys = column_list(self.keys)
        # Positions are given before the rows move.
        placed = frames.select([*keys, row.alias(_ROW), order.alias(_PLACE)])
        last = frames.aggregate(self.keys, F.max_by(_ROW, _PLACE).alias(_ROW))
        values = [F.col(f"{_ROW}.{backquoted(name)}").alias(name) for name in self.values]
        return in_turn(placed, last, frames.select([*keys, *values, F.col(f"{_ROW}.{DELETED_COLUMN}")]))

    def describe(self) -> str:
        by = f", by {self.order_by} over all transactions" if self.sequenced else ""
        return f"the last row of each {', '.join(self.keys)}{by}"


def _never_null(name: str) -> Any:
    error = F.raise_error(F.lit(f"Upsert: the field {name!r} of sequence_by is null; {_NULL_ADVICE}"))
    return F.when(column(name).isNotNull(), column(name)).otherwise(error)
