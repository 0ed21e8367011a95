"""Builds a segment: operations are pushed one by one, and the columns behind the last one are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trident.planning.basic_operations import (
    PARTITION_FIELD,
    Branch,
    ByKeyOp,
    IntoPartitionsOp,
    OnePartitionOp,
    SelectOp,
)
from trident.planning.operation import ANCHORS_FIELD, MARKER, MARKER_FIELD, Fields, Operation, PyOp, names_of
from trident.workers.anchors import ANCHORS
from trident.workers.chain import Step, WithoutMarker
from trident.workers.tracking import TrackedStep


@dataclass(frozen=True)
class PartitionHints:
    """The Spark partitions that hints ask for, known before any exist.

    Attributes:
        counts: node → how many Spark partitions a hint gives its rows.
        exact: repartitionings behind which every partition must exist, also an empty one.
    """

    counts: Mapping[Any, int] = field(default_factory=dict)
    exact: frozenset[Any] = frozenset()


class SegmentBuilder:
    """Takes the operations that nodes push, and knows the columns behind the last one.

    Args:
        inputs: the columns at each anchor of the segment.
        branches: (node, which of its parents) → its branch, where several nodes take the anchors of one.
    """

    def __init__(
        self,
        inputs: Sequence[Fields],
        hints: PartitionHints,
        branches: Mapping[tuple[Any, int], Branch] | None = None,
    ) -> None:
        self.inputs, self.fields = tuple(inputs), inputs[0]
        self.hints, self.branches = hints, branches or {}
        self.ops: list[Operation] = []

    @property
    def anchored(self) -> bool:
        """Tells whether the rows have anchors here."""
        return any(field.name == ANCHORS for field in self.fields)

    @property
    def ends_in_python(self) -> bool:
        """Tells whether the last operation is one on the worker."""
        return bool(self.ops) and self.ops[-1].in_python

    @property
    def computed(self) -> bool:
        """Tells whether the rows cost more than a read of staged files, and so are to be computed only once."""
        return not all(op.cheap_to_repeat for op in self.ops)

    def narrowed(self, names: Sequence[str] | frozenset[str] | set[str]) -> Fields:
        """The columns of these names; one column where there are none, since rows without columns are no rows."""
        return tuple(field for field in self.fields if field.name in names) or self.fields[:1]

    def push(self, op: Operation) -> None:
        """Adds an operation."""
        self.ops.append(op)
        self.fields = op.fields

    def push_python(self, step: Step, fields: Sequence[Any], takes: Sequence[str], batch_id: bool = False) -> None:
        """Adds a step on the worker; see PyOp."""
        taken = frozenset(takes or names_of(self.fields[:1]))
        if not self.ends_in_python and taken != set(names_of(self.fields)):
            # Columns that Python does not need are not converted for it.
            self._select(tuple(field for field in self.fields if field.name in taken))
        self.push(PyOp(tuple(fields), step, taken, batch_id))

    def push_rows(self, step: Step, fields: Fields, takes: Sequence[str], goes_on: bool) -> None:
        """Adds a step that calls a function for rows; where they have anchors, a call that raises fails its row alone.

        Args:
            step: with ROW among the columns that it keeps where the anchors go on.
            fields, takes: as of ``push_python``, without the anchors.
            goes_on: the anchors are wanted behind it.
        """
        if not self.anchored:
            self.push_python(step, fields, takes)
            return
        fields = (*fields, ANCHORS_FIELD) if goes_on else fields
        self.push_python(TrackedStep(step, goes_on), fields, (*takes, ANCHORS))

    def push_unchanged(self, step: Step) -> None:
        """Adds a step on the worker that takes and gives all columns."""
        self.push_python(step, self.fields, names_of(self.fields))

    def by_key(self, keys: tuple[str, ...]) -> None:
        """Brings the rows of a group into one Spark partition."""
        self.push(ByKeyOp(self.fields, keys))

    def into_partitions(self, keys: tuple[str, ...], count: int) -> None:
        """Brings the rows of a key into the Spark partition of its number; see IntoPartitionsOp."""
        self.push(IntoPartitionsOp((*self.fields, PARTITION_FIELD), keys, count))

    def mark_one_partition(self) -> None:
        """Brings all rows into one Spark partition with a marker row, so that it exists for an empty batch too."""
        self.push(OnePartitionOp((*self.fields, MARKER_FIELD)))

    def drop_marker(self) -> None:
        """Drops marker rows, on the worker."""
        kept = tuple(field for field in self.fields if field.name != MARKER)
        self.push_python(WithoutMarker(MARKER), kept, names_of(self.fields))

    def narrow(self, fields: Fields) -> None:
        """Leaves exactly these columns in their order."""
        if self.ends_in_python:
            self.ops[-1] = replace(self.ops[-1], fields=fields)
            self.fields = fields
        elif names_of(fields) != names_of(self.fields):
            self._select(fields)

    def _select(self, fields: Fields) -> None:
        self.push(SelectOp(fields, names_of(fields)))
