"""merge: the rows of several streams, within each batch; and the Spark operations of merge, join and multi_reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from trident.coordinators.errors import FieldError, OutputTypeError
from trident.planning.nodes import MultiInputNode, Node, check_given_type
from trident.planning.operation import (
    ANCHORS_FIELD,
    ONLY_BRANCH,
    Branch,
    Fields,
    MultiInputOp,
    PyOp,
    SegmentBuilder,
    arrow_types,
    names_of,
)
from trident.planning.session_frames import Batch, Join, SessionFrames, column
from trident.states.core.copyable import why_not_copied
from trident.states.core.names import backquoted
from trident.udf.types import parse_outputs
from trident.workers.anchors import ANCHORS
from trident.workers.chain import Step
from trident.workers.cogroups import Joined, TaggedUnion, Union

# The Spark operations of merge, join and multi_reduce.


_KEY, _HAS = "__trident_key", "__trident_has"


@dataclass(frozen=True)
class UnionOp(MultiInputOp):
    """The rows of all, one behind the other.

    Attributes:
        sides: of each frame the columns, in the order of ``fields``.
        branches: where the last field are the anchors: of each frame which branch of its rows
            this is, or None where they have no anchors.
    """

    spreads_rows = True

    sides: tuple[tuple[str, ...], ...]
    branches: tuple[Branch | None, ...] = ()

    def join(self, frames: SessionFrames) -> Join:
        names = [field.name for field in self.fields]
        chosen = [[column(given).alias(name) for given, name in zip(side, names)] for side in self.sides]
        for columns, branch in zip(chosen, self.branches):
            columns.append(_anchors(self.fields[-1], branch))

        return _union(frames, chosen)

    @property
    def on_arrow(self) -> PyOp | None:
        return None if self.branches else _step(self.fields, Union(names_of(self.fields), self.sides), self.sides)

    def describe(self) -> str:
        return f"union -> {', '.join(field.name for field in self.fields)}"


def _union(frames: SessionFrames, chosen: Sequence[Sequence[Any]]) -> Join:
    """The chosen columns of each frame, one frame behind the other."""
    selects = [frames.prepared_select(columns) for columns in chosen]
    return lambda sides, _: reduce(lambda a, b: a.union(b), [select(side) for select, side in zip(selects, sides)])


def _anchors(field: Any, branch: Branch | None) -> Any:
    anchors = F.array().cast(field.dataType) if branch is None else branch.anchors()
    return anchors.alias(field.name)


@dataclass(frozen=True)
class JoinOp(MultiInputOp):
    """A join of any number of frames; null is equal to null, as in a group.

    Attributes:
        compared: the keys behind it.
        keys: of each frame the columns that are compared.
        others: of each frame (column, its name behind the join).
        outer: of each frame whether its columns may be null for a key that it does not have.
    """

    spreads_rows = True
    shuffles = True

    compared: Fields
    keys: tuple[tuple[str, ...], ...]
    others: tuple[tuple[tuple[str, str], ...], ...]
    outer: tuple[bool, ...]

    def join(self, frames: SessionFrames) -> Join:
        selects = [frames.prepared_select(self._side(side)) for side in range(len(self.keys))]
        inner = [side for side, outer in enumerate(self.outer) if not outer]
        # Sides that must have the key come first: a side that is joined to them cannot bring new keys.
        order = [*inner, *(side for side, outer in enumerate(self.outer) if outer)]
        keys = [f"{_KEY}{place}" for place in range(len(self.compared))]
        renamed = dict(zip(names_of(self.compared), keys))
        fields = [F.col(renamed.get(field.name, backquoted(field.name))).alias(field.name) for field in self.fields]

        def join(given: Sequence[Any], _: Batch) -> Any:
            sides: list[Any] = [select(frame) for select, frame in zip(selects, given)]
            joined = sides[order[0]]
            for side in order[1:]:
                how = "full" if not inner else "left" if self.outer[side] else "inner"
                joined = _joined(joined, sides[side], keys, how)
            return joined.select(*fields)

        return join

    def _side(self, side: int) -> list[Any]:
        columns = [column(name).alias(f"{_KEY}{place}") for place, name in enumerate(self.keys[side])]
        return [*columns, *(column(given).alias(name) for given, name in self.others[side])]

    @property
    def on_arrow(self) -> PyOp | None:
        names = names_of(self.compared)
        if why_not_copied(StructType(list(self.compared)), names) is not None:
            return None
        schemas = _schema(self.fields), _schema(self.compared)
        if None in schemas:
            return None
        step = Joined(*schemas, self.keys, self.others, self.outer)
        given = [[name for name, _ in others] for others in self.others]
        return _step(self.fields, step, (*self.keys, *given))

    def describe(self) -> str:
        types = ", ".join("outer" if outer else "inner" for outer in self.outer)
        return f"join by {', '.join(names_of(self.compared))} ({types})"


def _joined(left: Any, right: Any, keys: Sequence[str], how: str) -> Any:
    """Two frames by their key columns, which there are once behind it."""
    theirs = {key: f"{key}_right" for key in keys}
    right = right.withColumnsRenamed(theirs)
    same = reduce(lambda a, b: a & b, [F.col(key).eqNullSafe(F.col(theirs[key])) for key in keys])
    if how == "full":
        left, right = left.withColumn(_HAS, F.lit(True)), right
    joined = left.join(right, same, how)
    if how == "full":
        # A key may be null, so it does not say by itself whether the left side has it.
        both = {key: F.when(F.col(_HAS), F.col(key)).otherwise(F.col(theirs[key])) for key in keys}
        joined = joined.withColumns(both).drop(_HAS)
    return joined.drop(*theirs.values())


@dataclass(frozen=True)
class TaggedUnionOp(MultiInputOp):
    """The rows of all: their keys, the frame's number, and a struct per frame that is null for the rows of others.

    Attributes:
        inputs: of each frame the columns of its struct.
    """

    spreads_rows = True

    keys: tuple[tuple[str, ...], ...]
    inputs: tuple[tuple[str, ...], ...]

    def join(self, frames: SessionFrames) -> Join:
        count = len(self.keys[0])
        names, index, sides = self.fields[:count], self.fields[count], self.fields[count + 1 :]
        chosen = []
        for number, keys in enumerate(self.keys):
            columns = [column(key).alias(field.name) for key, field in zip(keys, names)]
            columns.append(F.lit(number).alias(index.name))
            for other, field in enumerate(sides):
                own = F.struct(*[column(name).alias(name) for name in self.inputs[number]])
                columns.append((own if other == number else F.lit(None).cast(field.dataType)).alias(field.name))
            chosen.append(columns)

        return _union(frames, chosen)

    @property
    def on_arrow(self) -> PyOp | None:
        schema = _schema(self.fields)
        if schema is None or not all(self.inputs):
            return None
        return _step(self.fields, TaggedUnion(schema, self.keys, self.inputs), (*self.keys, *self.inputs))

    def describe(self) -> str:
        return f"union of {len(self.keys)} streams"


def _schema(fields: Fields) -> pa.Schema | None:
    """Fields in Arrow's types; None where one has none."""
    try:
        return pa.schema(list(zip(names_of(fields), arrow_types(fields))))
    except OutputTypeError:
        return None


def _step(fields: Fields, step: Step, taken: Sequence[Sequence[str]]) -> PyOp | None:
    """An operation's form for rows of several streams that are all together in a worker's process."""
    takes = frozenset(name for names in taken for name in names)
    return None if _schema(fields) is None else PyOp(fields, step, takes)


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
