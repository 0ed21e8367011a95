"""merge: the rows of several streams, within each batch (docs/semantics.md 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import DataType, StructField, StructType

from trident.coordinators.errors import FieldError
from trident.operations.join_ops import UnionOp
from trident.planning.basic_operations import ONLY_BRANCH
from trident.planning.builder import SegmentBuilder
from trident.planning.nodes import MultiInputNode, Node, check_given_type
from trident.planning.operation import ANCHORS_FIELD
from trident.udf.types import parse_outputs
from trident.workers.anchors import ANCHORS


@dataclass(frozen=True, eq=False, kw_only=True)
class MergeNode(MultiInputNode):
    """The rows of several streams.

    Attributes:
        sides: of each parent the fields, in the order of this node's.
    """

    passes_anchors = True

    sides: tuple[tuple[str, ...], ...]

    def carried(self, side: int, field: str) -> str | None:
        return next((name for name, given in zip(self.names, self.sides[side]) if given == field), None)

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        found = {
            given
            for side, names in zip(self.parents, self.sides)
            if side is parent
            for name, given in zip(self.names, names)
            if name in live
        }
        return frozenset(found)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        kept = [name for name in self.names if name in live]
        places = [self.names.index(name) for name in kept]
        sides = tuple(tuple(names[place] for place in places) for names in self.sides)
        fields = tuple(self.schema[name] for name in kept)
        if ANCHORS not in live:
            builder.push(UnionOp(fields, sides))
            return
        # A side without messages of its own has rows without anchors.
        branches = tuple(
            builder.branches.get((self, side), ONLY_BRANCH) if any(field.name == ANCHORS for field in given) else None
            for side, given in enumerate(builder.inputs)
        )
        builder.push(UnionOp((*fields, ANCHORS_FIELD), sides, branches))


def merge(streams: Sequence[Node], outputs: Any = None) -> MergeNode:
    """See :meth:`trident.topology.TridentTopology.merge`."""
    first = streams[0].schema
    if outputs is None:
        names = first.names
        sides = [_by_name(first, stream, number) for number, stream in enumerate(streams)]
    else:
        names = named_outputs(outputs, [field.dataType for field in first.fields], first.names, "merge")
        sides = [_by_position(names, stream, number) for number, stream in enumerate(streams)]
    for number, (stream, side) in enumerate(zip(streams, sides)):
        for name, given, base in zip(names, side, sides[0]):
            if stream.schema[given].dataType != first[base].dataType:
                raise FieldError(
                    f"merge: field {name!r} has two types",
                    found=f"{stream.schema[given].dataType.simpleString()} in stream {number + 1}",
                    expected=f"{first[base].dataType.simpleString()}, as in the first stream",
                    action=f"cast it in one of them, as in with_column({given!r}, "
                    f"F.col({given!r}).cast({first[base].dataType.simpleString()!r}))",
                )
    fields = [StructField(name, first[base].dataType, True) for name, base in zip(names, sides[0])]
    return MergeNode(
        parents=tuple(streams),
        schema=StructType(fields),
        operation="merge",
        sides=tuple(sides),
    )


def _by_name(first: StructType, stream: Node, number: int) -> tuple[str, ...]:
    if set(stream.names) != set(first.names):
        missing = [name for name in first.names if name not in stream.names]
        more = [name for name in stream.names if name not in first.names]
        raise FieldError(
            "merge: the streams have other fields",
            found=f"stream {number + 1} has {', '.join(stream.names)}"
            + (f"; it lacks {', '.join(missing)}" if missing else "")
            + (f"; only it has {', '.join(more)}" if more else ""),
            expected=f"{', '.join(first.names)}, as the first stream",
            action="use project, rename or map before the merge; or name the outputs: then fields go by their position",
        )
    return tuple(first.names)


def _by_position(names: Sequence[str], stream: Node, number: int) -> tuple[str, ...]:
    if len(stream.names) != len(names):
        raise FieldError(
            "merge: a stream has another number of fields than there are outputs",
            found=f"stream {number + 1} has {', '.join(stream.names)}",
            expected=f"{len(names)}: {', '.join(names)}",
        )
    return stream.names


def named_outputs(outputs: Any, kinds: Sequence[DataType], given: Sequence[str], what: str) -> list[str]:
    """The names of outputs, whose types, where they are given, are those that there are."""
    named = parse_outputs(outputs)
    if len(named) != len(given):
        raise FieldError(
            f"{what} has another number of outputs than fields",
            found=f"{len(named)}: {', '.join(name for name, _ in named)}",
            expected=f"{len(given)}, for {', '.join(given)}",
        )
    for (name, wanted), kind in zip(named, kinds):
        check_given_type(name, wanted, kind, what)
    return [name for name, _ in named]
