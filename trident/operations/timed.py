"""The nodes of keyed states with a time: one that keeps the state, and those of the rows that it gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from trident.coordinators.errors import FieldError, TopologyError
from trident.operations.state_checks import check_fields
from trident.operations.state_writes import PersistNode
from trident.operations.timed_ops import GatherOp, NewRowsOp, TaggedRowsOp, given_fields, new_fields, turn_fields
from trident.operations.timed_spec import TimedSpec
from trident.operations.watermarks import Watermark, watermark_of
from trident.operations.window_nodes import now_us
from trident.planning.builder import SegmentBuilder
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import Node, above
from trident.planning.operation import Fields, arrow_types, names_of
from trident.states.core.binding import LAST, StateBinding
from trident.states.core.copyable import why_not_copied
from trident.states.core.names import folded
from trident.states.keyed.delta_map import KEYED, DeltaMapState
from trident.workers.chain import Step
from trident.workers.failures import Label
from trident.workers.timed import CHANGED, DELETED, DUE, GIVEN, LATE, PART, TAG, Rule, TimedStep, UserTimedStep
from trident.workers.timed_copy import Tagged

# Makes the rule, when the node is lowered.
MakeRule = Callable[["TimedNode"], Rule]


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedNode(PersistNode):
    """Keeps a keyed state with a time; gives the rows that its rule lets go on, and those that come too late.

    Attributes:
        compared: of each parent the fields that are the key.
        spec: of positions and delays.
        given: the fields of the rows that go on.
        rule: made for the worker, when the node is lowered.
        clock: of processing time; microseconds since 1970.
        keeps_watermark: whether the rows that go on have the watermark of those that came.
        user_code: whether the rule calls a function of the user's.
    """

    compared: tuple[tuple[str, ...], ...]
    spec: TimedSpec
    given: StructType
    rule: MakeRule
    clock: Callable[[], int] = now_us
    keeps_watermark: bool = False
    user_code: bool = False

    @property
    def joins(self) -> bool:
        return len(self.parents) > 1

    @property
    def calls_user(self) -> bool:
        return self.user_code

    @property
    def ends_watermark(self) -> bool:
        return not self.keeps_watermark

    def carried(self, side: int, field: str) -> str | None:
        return field if self.keeps_watermark else None

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names)

    @property
    def keys(self) -> tuple[str, ...]:
        """The state's key columns behind PART."""
        return tuple(self.binding.keys[1:])

    @property
    def sides(self) -> tuple[StructType, ...]:
        """The fields of each parent's rows."""
        return tuple(parent.schema for parent in self.parents)

    def fields_left(self, live: frozenset[str]) -> Fields:
        return given_fields(self.binding, self.given, self.sides)

    def output(self, frame: "DataFrame") -> "DataFrame":
        return frame.where(f"{TAG} = {CHANGED}").drop(TAG, GIVEN, *LATE[: len(self.sides)])

    @property
    def output_step(self) -> Step:
        return Tagged(CHANGED, "", tuple(enumerate(self.binding.log_schema.names)))

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        keys = tuple(self.binding.schema[name] for name in self.keys)
        new = new_fields(keys, self.sides)
        builder.push(
            NewRowsOp(new, self.compared, tuple(tuple(side.names) for side in self.sides), self.spec, self.clock)
        )
        # Rows that are late themselves are computed as often as they are used, unless they were staged.
        computed = builder.computed or any(one.late for parent in self.parents for one in above(parent))
        takes = turn_fields(self.binding, new)
        builder.push(GatherOp(takes, self.binding, self.spec, self.keys, self.clock, computed))
        gives = self.fields_left(live)
        typed = tuple(tuple(zip(names_of(fields), arrow_types(fields))) for fields in (takes, gives))
        kind = UserTimedStep if self.user_code else TimedStep
        step = kind(Label(self.operation, self.location), self.rule(self), self.keys, self.spec.event, *typed)
        builder.push_python(step, gives, names_of(takes))


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedRowsNode(Node):
    """Rows that a TimedNode gives: those that go on, or the late ones of a side.

    Attributes:
        side: of late rows; None: the rows that go on.
    """

    late = True
    row_by_row = False
    is_called_through = False
    side: int | None

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset(parent.names)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        fields = tuple(field for field in self.schema.fields if field.name in live)
        builder.push(TaggedRowsOp(fields, self.side, tuple(self.schema.names), self.operation))


def rows_of(node: TimedNode) -> TimedRowsNode:
    """The rows that go on."""
    return TimedRowsNode(parents=(node,), schema=node.given, side=None, operation=f"rows({node.binding.name})")


def late_rows_behind(given: Node, side: int) -> TimedRowsNode:
    """The rows of a side that came too late for the operation that gave the rows of a node.

    Raises:
        TopologyError: no row is late for it.
    """
    (node,) = given.parents if isinstance(given, TimedRowsNode) and given.side is None else (given,)
    if not isinstance(node, TimedNode) or side not in range(len(node.sides)):
        raise TopologyError(
            "there are no such late rows",
            found=f"late_rows({side}) of {given.operation}",
            expected="what drop_duplicates, process or a join within a time gave; of a join side 0 or 1",
            action="of windows call late_rows() on the windows themselves",
        )
    if not node.spec.event:
        raise TopologyError(
            f"no row is late for {node.operation}",
            found="processing time",
            expected="event time",
            action="put with_watermark(field, delay) before it",
        )
    name = f"late_rows({node.binding.name})"
    return TimedRowsNode(parents=(node,), schema=node.sides[side], side=side, operation=name)


def timed(
    parents: Sequence[Node],
    what: str,
    operation: str,
    compared: Sequence[tuple[str, ...]],
    spec: TimedSpec,
    values: Sequence[StructField],
    name: str,
    **more: Any,
) -> TimedNode:
    """Makes the node.

    Args:
        what: the operation, for messages; ``operation`` with its arguments.
        compared: of each parent the fields that are the key; those of the first name the state's.
        values: the columns of the state behind the keys and DUE.
        name: of the state.
        more: the further attributes of the node.

    Raises:
        FieldError: a field cannot be a key, or has a name that the state uses itself.
        TopologyError: the state cannot keep such rows.
    """
    keys = [parents[0].schema[key] for key in compared[0]]
    reason = why_not_copied(StructType(keys), [key.name for key in keys])
    if reason is not None:
        raise FieldError(f"{what} cannot compare its keys", found=reason, expected="keys whose equality Python knows")
    own = (PART, DUE, DELETED, *(field.name for field in values))
    for key in keys:
        if folded(key.name) in own:
            raise FieldError(
                f"{what} cannot have the key {key.name!r}",
                expected=f"a name other than {', '.join(own)}",
                action="give the field another name",
            )
    state = DeltaMapState(name)
    part, due = StructField(PART, IntegerType(), True), StructField(DUE, LongType(), True)
    schema = StructType([part, *(StructField(key.name, key.dataType, True) for key in keys), due, *values])
    check_fields(state, KEYED, schema, ())
    by = (PART, *compared[0])
    binding = StateBinding(state, KEYED, by, schema, tuple(schema.names[len(by) :]), spec, merging=LAST, ordered_by=DUE)
    return TimedNode(
        parents=tuple(parents),
        schema=schema,
        operation=operation,
        binding=binding,
        mode="timed",
        compared=tuple(compared),
        spec=spec,
        **more,
    )


def default_name(graph: TopologyGraph, kind: str) -> str:
    """The topology's name, since several may share a warehouse, the kind, and which of its kind this is."""
    number = 1 + sum(isinstance(node, TimedNode) and node.operation.startswith(f"{kind}(") for node in graph.nodes)
    return f"{re.sub('[-_]+', '_', graph.name)[:80].rstrip('_')}_{kind}{number}"


def watermark_required(parent: Node, what: str, why: str) -> Watermark:
    """The stream's watermark.

    Raises:
        TopologyError: it has none.
    """
    found = watermark_of(parent)
    if found is None:
        raise TopologyError(
            f"{what} needs a watermark",
            found=f"{parent.operation}, a stream without one",
            expected="a stream behind with_watermark",
            action=f"put with_watermark(field, delay) before it: {why}",
        )
    return found
