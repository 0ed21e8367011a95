"""What merge, join and multi_reduce become in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import functions as F

from trident.planning.lowering import Branch, MeetOp

_KEY, _HAS = "__trident_key", "__trident_has"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class UnionOp(MeetOp):
    """The rows of all, one behind the other.

    Attributes:
        sides: of each frame the columns, in the order of ``fields``.
        branches: where the last field are the anchors: of each frame which branch of its rows
            this is, or None where they have no anchors.
    """

    spreads = True

    sides: tuple[tuple[str, ...], ...]
    branches: tuple[Branch | None, ...] = ()

    def meet(self, compiler: Any) -> Any:
        names = [field.name for field in self.fields]
        chosen = [[F.col(quoted(given)).alias(name) for given, name in zip(side, names)] for side in self.sides]
        for columns, branch in zip(chosen, self.branches):
            columns.append(_anchors(self.fields[-1], branch))

        def meet(frames: Sequence[Any], _: Any) -> Any:
            return reduce(lambda a, b: a.union(b), [frame.select(*columns) for frame, columns in zip(frames, chosen)])

        return meet

    def text(self) -> str:
        return f"union -> {', '.join(field.name for field in self.fields)}"


def _anchors(field: Any, branch: Branch | None) -> Any:
    from trident.planning.compiled import branch_column

    column = F.array().cast(field.dataType) if branch is None else branch_column(branch)
    return column.alias(field.name)


@dataclass(frozen=True)
class JoinOp(MeetOp):
    """A join of any number of frames; null is equal to null, as in a group.

    Attributes:
        names: of the keys behind it.
        keys: of each frame the columns that are compared.
        others: of each frame (column, its name behind the join).
        outer: of each frame whether its columns may be null for a key that it does not have.
    """

    spreads = True
    shuffles = True

    names: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    others: tuple[tuple[tuple[str, str], ...], ...]
    outer: tuple[bool, ...]

    def meet(self, compiler: Any) -> Any:
        chosen = [self._side(side) for side in range(len(self.keys))]
        inner = [side for side, outer in enumerate(self.outer) if not outer]
        # Sides that must have the key come first: what is joined to them cannot bring new keys.
        order = [*inner, *(side for side, outer in enumerate(self.outer) if outer)]
        keys = [f"{_KEY}{place}" for place in range(len(self.names))]
        renamed = dict(zip(self.names, keys))
        fields = [F.col(renamed.get(field.name, quoted(field.name))).alias(field.name) for field in self.fields]

        def meet(frames: Sequence[Any], _: Any) -> Any:
            sides = [frame.select(*columns) for frame, columns in zip(frames, chosen)]
            joined = sides[order[0]]
            for side in order[1:]:
                how = "full" if not inner else "left" if self.outer[side] else "inner"
                joined = _joined(joined, sides[side], keys, how)
            return joined.select(*fields)

        return meet

    def _side(self, side: int) -> list[Any]:
        columns = [F.col(quoted(name)).alias(f"{_KEY}{place}") for place, name in enumerate(self.keys[side])]
        return [*columns, *(F.col(quoted(given)).alias(name) for given, name in self.others[side])]

    def text(self) -> str:
        types = ", ".join("outer" if outer else "inner" for outer in self.outer)
        return f"join by {', '.join(self.names)} ({types})"


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
class TaggedUnionOp(MeetOp):
    """The rows of all: their keys, the frame's number, and a struct per frame that is null for the rows of others.

    Attributes:
        keys: of each frame.
        inputs: of each frame the columns of its struct.
    """

    spreads = True

    keys: tuple[tuple[str, ...], ...]
    inputs: tuple[tuple[str, ...], ...]

    def meet(self, compiler: Any) -> Any:
        count = len(self.keys[0])
        names, index, sides = self.fields[:count], self.fields[count], self.fields[count + 1 :]
        chosen = []
        for number, keys in enumerate(self.keys):
            columns = [F.col(quoted(key)).alias(field.name) for key, field in zip(keys, names)]
            columns.append(F.lit(number).alias(index.name))
            for other, field in enumerate(sides):
                own = F.struct(*[F.col(quoted(name)).alias(name) for name in self.inputs[number]])
                columns.append((own if other == number else F.lit(None).cast(field.dataType)).alias(field.name))
            chosen.append(columns)

        def meet(frames: Sequence[Any], _: Any) -> Any:
            return reduce(lambda a, b: a.union(b), [frame.select(*c) for frame, c in zip(frames, chosen)])

        return meet

    def text(self) -> str:
        return f"union of {len(self.keys)} streams"
