"""The nodes of a topology: what the user's calls become, before anything is planned.

A node knows its parents and its fields and never changes, so a stream may be
used by several branches. The planner reads nodes; it never asks a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

from pyspark.sql.types import DataType, StructField, StructType

from trident.coordinators.errors import FieldError
from trident.udf.types import check_distinct, did_you_mean


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """A step of a stream.

    Attributes:
        parents: the nodes whose rows it takes.
        schema: its fields; every one nullable.
        operation: its name in plans and messages.
        location: "file:line" of the call that made it.

    Class attributes:
        passes_anchors: its rows can have the anchors of those that they are made of (trident.workers.anchors).
        takes_anchors: it calls a function that may fail for a row, so it needs the anchors of its rows.
    """

    passes_anchors = False
    takes_anchors = False

    parents: tuple["Node", ...]
    schema: StructType
    operation: str
    location: str

    def __post_init__(self) -> None:
        # The columns that plans add beside the user's are named so.
        taken = [name for name in self.schema.names if name.lower().startswith("__trident")]
        if taken:
            raise FieldError(
                f"a field of {self.operation} has a name that is kept for the framework",
                found=", ".join(taken),
                expected="a name that does not begin with __trident",
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    @property
    def links(self) -> tuple["Node", ...]:
        """Nodes that it belongs together with although no rows come from them."""
        return ()

    @property
    def gathers(self) -> bool:
        """Whether its rows are all in one Spark partition."""
        aggregation = getattr(self, "aggregation", None)
        return aggregation is not None and not aggregation.keys

    def carried(self, side: int, field: str) -> str | None:
        """The name under which a field of its parent ``side`` goes on; None when it ends here."""
        aggregation = getattr(self, "aggregation", None)
        if aggregation is not None:
            return field if field in aggregation.keys else None
        return field if field in self.names and field not in getattr(self, "outputs", ()) else None


def above(node: Node) -> Iterator[Node]:
    """The node and all that its rows come from, each once, children first."""
    seen, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        yield one
        for parent in one.parents:
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnNode(Node):
    """An operation that knows itself what it becomes: for modules beside the planner's.

    Class attributes:
        repeatable: computing it again on the same rows gives the same rows, in the same order.
        late: it runs in the transaction's turn.
        calls_user: it calls a function of the user's, so it is computed even when no state takes its rows.
        row_by_row: its rows are in the Spark partitions of those that they are made of.
    """

    repeatable = True
    late = False
    calls_user = False
    row_by_row = True

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        """The parent's fields that it needs when only its live fields are read behind it."""
        raise AssertionError(f"{type(self).__name__} has no reads")

    def lower(self, maker: Any, live: frozenset[str]) -> None:
        """Pushes its operations.

        Args:
            maker: a trident.planning.lowering._Maker.
            live: of its fields, those that are read behind it.
        """
        raise AssertionError(f"{type(self).__name__} has no lower")


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupingNode(OwnNode):
    """An aggregate of the batch, or of each group of it.

    Attributes:
        keys: the grouping fields; the only ones that go on.
    """

    row_by_row = False

    keys: tuple[str, ...]

    @property
    def gathers(self) -> bool:
        return not self.keys

    def carried(self, side: int, field: str) -> str | None:
        return field if field in self.keys else None


@dataclass(frozen=True, eq=False, kw_only=True)
class MeetNode(OwnNode):
    """An operation with several parents."""

    row_by_row = False

    def meet(self, maker: Any, live: frozenset[str], physical: Sequence[Sequence[StructField]]) -> None:
        """Pushes its operations, the first of which is a trident.planning.lowering.MeetOp.

        Args:
            maker: a trident.planning.lowering._Maker.
            live: of its fields, those that are read behind it.
            physical: the columns of each parent.
        """
        raise AssertionError(f"{type(self).__name__} has no meet")


@dataclass(frozen=True, eq=False, kw_only=True)
class SourceNode(Node):
    """A stream's spout."""

    tx_id: str
    spout: Any


# --- fields ------------------------------------------------------------------------------

Names = Union[str, Sequence[str]]


def field_names(given: object, what: str) -> tuple[str, ...]:
    """ "a", "a, b" or ["a", "b"] as a tuple of names."""
    if isinstance(given, str):
        names = tuple(name.strip() for name in given.split(","))
    elif isinstance(given, Iterable) and all(isinstance(name, str) for name in given):
        names = tuple(given)
    else:
        raise FieldError(f"{what} takes field names", found=repr(given), expected="'a', 'a, b' or ['a', 'b']")
    check_distinct(names, f"the fields of {what}")
    return names


def require_fields(names: Iterable[str], schema: StructType, what: str) -> None:
    """Raises FieldError for a name that is not a field, with the fields there are and the nearest."""
    for name in names:
        if name not in schema.names:
            raise FieldError(
                f"{what} uses a field that does not exist",
                found=repr(name),
                expected=f"one of {', '.join(schema.names)}",
                action=did_you_mean(name, schema.names) if isinstance(name, str) else "give the name as text",
            )


def appended(schema: StructType, outputs: Iterable[tuple[str, DataType]], what: str) -> StructType:
    """The schema with new fields behind.

    Raises:
        FieldError: one exists already.
    """
    existing = {name.lower(): name for name in schema.names}
    fields = []
    for name, kind in outputs:
        if name.lower() in existing:
            raise FieldError(
                f"{what} makes a field that exists already",
                found=repr(existing[name.lower()]),
                expected=f"a name that is not one of {', '.join(schema.names)}",
                action="choose another name, or use map or project to drop the earlier field",
            )
        fields.append(StructField(name, kind, True))
    return StructType([*schema.fields, *fields])


def picked(schema: StructType, names: Iterable[str]) -> StructType:
    return StructType([schema[name] for name in names])
