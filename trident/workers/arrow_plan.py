"""Plans over Arrow in one process, on a worker or in the driver, and the steps of the framework's own in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.shards import WHOLE
from trident.workers.calls import prepared
from trident.workers.chain import Chain, Frame, Meter, Step

# Steps of the framework's own over Arrow: what Spark does to many rows, done to few of them without Spark.
#
# Each gives what the operation of Spark in whose place it stands would give, and fails where that would fail, such as
# for a sum that does not fit its type. Imported by workers: keep its imports light.


# --- columns and rows --------------------------------------------------------------------


@dataclass(frozen=True)
class Columns(Step):
    """Some columns in an order."""

    own = True

    keep: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"select {', '.join(self.keep)}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            yield Frame(frame.only(self.keep), frame.length, frame.meter)


@dataclass(frozen=True)
class Expanded(Step):
    """Some columns in an order, and fields of one that holds structs beside them.

    Attributes:
        values: a new column → its field of the struct.
    """

    own = True

    keep: tuple[str, ...]
    struct: str
    values: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return f"select {', '.join(self.keep)}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        fields = dict(self.values)
        for frame in frames:
            columns = frame.only(tuple(name for name in self.keep if name not in fields))
            if fields:
                structs = frame.array(self.struct)
                parts = dict(zip([field.name for field in structs.type], structs.flatten()))
                columns = {**columns, **{name: parts[field] for name, field in fields.items()}}
            yield Frame({name: columns[name] for name in self.keep}, frame.length, frame.meter)


@dataclass(frozen=True)
class Unchanged(Step):
    """The rows as they are: they are in one partition already."""

    own = True
    text = ""

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        return frames


@dataclass(frozen=True)
class WithConstant(Step):
    """A column that has the same value in each row, behind the kept ones: of rows that are together already."""

    own = True
    text = ""

    keep: tuple[str, ...]
    name: str
    value: Any
    kind: pa.DataType

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            constant = pa.repeat(pa.scalar(self.value, self.kind), frame.length)
            yield Frame({**frame.only(self.keep), self.name: constant}, frame.length, frame.meter)


@dataclass(frozen=True)
class WithMarker(Step):
    """The rows, marked 0, and behind them one of nulls that is none, marked 1."""

    own = True
    text = ""

    schema: pa.Schema
    marker: str

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            yield self._marked({name: frame.array(name) for name in self.schema.names}, 0, frame.length, frame.meter)
        yield self._marked({field.name: pa.nulls(1, field.type) for field in self.schema}, 1, 1, Meter())

    def _marked(self, columns: dict[str, pa.Array], mark: int, length: int, meter: Meter) -> Frame:
        return Frame({**columns, self.marker: pa.repeat(pa.scalar(mark, pa.int64()), length)}, length, meter)


# --- filters and functions ---------------------------------------------------------------


class Condition:
    """A condition of the framework's own on each row."""

    def holds(self, columns: Sequence[pa.Array], length: int) -> pa.BooleanArray:
        """Tells of each row whether it holds; never null."""
        raise AssertionError(f"{type(self).__name__} has no holds")


@dataclass(frozen=True)
class NoneIsNull(Condition):
    """FilterNull: no value of the row is null."""

    def holds(self, columns: Sequence[pa.Array], length: int) -> pa.BooleanArray:
        found = pa.repeat(pa.scalar(True), length)
        for column in columns:
            found = pc.and_(found, pc.is_valid(column))
        return found


@dataclass(frozen=True)
class Always(Condition):
    """TrueFilter."""

    def holds(self, columns: Sequence[pa.Array], length: int) -> pa.BooleanArray:
        return pa.repeat(pa.scalar(True), length)


@dataclass(frozen=True)
class AllEqual(Condition):
    """Equals: all values of the row are equal, as Spark's ``<=>`` compares them."""

    def holds(self, columns: Sequence[pa.Array], length: int) -> pa.BooleanArray:
        first, *others = map(_compared, columns)
        found = pa.repeat(pa.scalar(True), length)
        for other in others:
            found = pc.and_(found, pc.equal(first, other))
        return found


def _compared(column: pa.Array) -> pa.LargeBinaryArray:
    """Bytes that are equal where the values are; of integers of any width."""
    # The time that an import takes: workers without such a step need none of it.
    from trident.states.core.copy_rows import RowCodec

    kind = pa.int64() if pa.types.is_integer(column.type) else column.type
    schema = pa.schema([("value", kind)])
    return RowCodec(schema, ["value"]).key_array(pa.record_batch([column.cast(kind)], schema=schema))


@dataclass(frozen=True)
class Not(Condition):
    """Negate of another one."""

    inner: Condition

    def holds(self, columns: Sequence[pa.Array], length: int) -> pa.BooleanArray:
        return pc.invert(self.inner.holds(columns, length))


@dataclass(frozen=True)
class KeepWhere(Step):
    """The rows for which a condition holds."""

    own = True

    condition: Condition
    inputs: tuple[str, ...]
    keep: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"filter {', '.join(self.inputs)}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            yield _filtered(
                frame, self.condition.holds([frame.array(name) for name in self.inputs], frame.length), self
            )


@dataclass(frozen=True)
class KeepTrue(Step):
    """The rows where a boolean field is true; negated, those where it is false or null."""

    own = True

    condition: str
    negated: bool
    keep: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"filter {'not ' if self.negated else ''}{self.condition}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            holds = pc.fill_null(frame.array(self.condition), False)
            yield _filtered(frame, pc.invert(holds) if self.negated else holds, self)


def _filtered(frame: Frame, holds: pa.BooleanArray, step: KeepWhere | KeepTrue) -> Frame:
    columns = {name: frame.array(name).filter(holds) for name in step.keep}
    return Frame(columns, holds.true_count, frame.meter)


# The parts of texts leave in pieces of so many: each has the other fields beside it.
_PARTS_AT_ONCE = 100_000


@dataclass(frozen=True)
class SplitText(Step):
    """Split: a row for each part of a text; empty parts are left out, and a null text has none."""

    own = True

    input: str
    output: str
    separator: str
    keep: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"split {self.input} -> {self.output}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            lists = pc.split_pattern(frame.array(self.input), self.separator)
            parts, rows = pc.list_flatten(lists), pc.list_parent_indices(lists)
            full = pc.not_equal(parts, "")
            parts, rows = parts.filter(full), rows.filter(full)
            frame.meter.rows = max(frame.meter.rows, len(parts))
            for start in range(0, len(parts), _PARTS_AT_ONCE):
                some = parts.slice(start, _PARTS_AT_ONCE)
                columns = frame.only(self.keep, rows.slice(start, _PARTS_AT_ONCE))
                yield Frame({**columns, self.output: some}, len(some), frame.meter)


@dataclass(frozen=True)
class OwnFunction:
    """A built-in function over some fields, without Spark.

    Attributes:
        does: a condition; or the separator of Split.
    """

    does: Condition | str
    inputs: tuple[str, ...]

    def kept(self, keep: tuple[str, ...]) -> Step:
        """The step that keeps the rows for which it holds."""
        assert isinstance(self.does, Condition), "only a condition filters"
        return KeepWhere(self.does, self.inputs, keep)

    def made(self, output: str, keep: tuple[str, ...]) -> Step:
        """The step that makes a field of its result."""
        if isinstance(self.does, Condition):
            return WithCondition(self.does, self.inputs, output, keep)
        (name,) = self.inputs
        return SplitText(name, output, self.does, keep)


@dataclass(frozen=True)
class WithCondition(Step):
    """A boolean field that says whether a condition holds."""

    own = True

    condition: Condition
    inputs: tuple[str, ...]
    output: str
    keep: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"condition of {', '.join(self.inputs)} -> {self.output}"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in frames:
            holds = self.condition.holds([frame.array(name) for name in self.inputs], frame.length)
            yield Frame({**frame.only(self.keep), self.output: holds}, frame.length, frame.meter)


# --- aggregates --------------------------------------------------------------------------


@dataclass(frozen=True)
class Aggregate:
    """A built-in aggregate of one field.

    Attributes:
        input: the field; "": of Count, which counts rows.
        output: the result's name, and its type.
        aggregator: the name under which states keep it.
        merges: its input is partial values.
    """

    input: str
    output: tuple[str, pa.DataType]
    aggregator: str
    merges: bool

    def of(self, rows: pa.Table, groups: Any, count: int) -> pa.Array:
        """The results of so many groups.

        Args:
            groups: the number of the group of each row.
        """
        # The time that an import takes: workers without such a step need none of it.
        from trident.states.core.folds import onto

        kind = self.output[1]
        some = self.input and rows.num_rows  # a table of no frame has no columns
        none = pa.nulls(0, kind) if self.input else pa.repeat(pa.scalar(1, kind), rows.num_rows)
        values = rows.column(self.input).cast(kind) if some else none
        nothing = None if self.merges or self.aggregator in ("min", "max") else pa.scalar(0).cast(kind).as_py()
        return onto(self.aggregator, pa.repeat(pa.scalar(nothing, kind), count), values, groups)


@dataclass(frozen=True)
class Aggregated(Step):
    """Built-in aggregates of the rows, or of each group of them.

    Attributes:
        keys: the grouping fields with their types; none: one row, also for no input.
        aggregates: one or more.
        keep: the grouping fields and the results, in the order in which they leave.
    """

    own = True

    keys: tuple[tuple[str, pa.DataType], ...]
    aggregates: tuple[Aggregate, ...]
    keep: tuple[str, ...]

    @property
    def text(self) -> str:
        by = f" by {', '.join(name for name, _ in self.keys)}" if self.keys else ""
        verbs = [("merge" if one.merges else "aggregate", one) for one in self.aggregates]
        return "; ".join(f"{verb} {one.aggregator}{by} -> {one.output[0]}" for verb, one in verbs)

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        # The time that an import takes: workers without such a step need none of it.
        from trident.states.core.copy_rows import key_column
        from trident.states.core.folds import DoesNotFit, numbered

        names = tuple(dict.fromkeys((*(name for name, _ in self.keys), *(one.input for one in self.aggregates))))
        tables = [frame.table(tuple(filter(None, names))) for frame in frames if frame.length]
        if not tables and self.keys:
            return
        rows = pa.concat_tables(tables) if tables else pa.table({})
        groups, first = numbered(rows, pa.schema(self.keys))
        heads = rows.take(pa.array(first)) if self.keys else rows
        made = {name: key_column(heads.column(name).combine_chunks(), kind) for name, kind in self.keys}
        try:
            made |= {one.output[0]: one.of(rows, groups, len(first)) for one in self.aggregates}
        except DoesNotFit as error:
            row = Frame(made, len(first), Meter()).row(tuple(made), error.key[0])
            raise ArithmeticError(f"{self.text}: {error}; key: {row}") from error
        yield Frame({name: made[name] for name in self.keep}, len(first), Meter())


@dataclass(frozen=True)
class CombineStored(Step):
    """A built-in aggregate's stored value and the batch's partial value of it become one.

    Attributes:
        value, stored: the partial and the stored value by name; the result has the first name.
        aggregator: the name under which states keep it.
    """

    own = True

    keep: tuple[str, ...]
    value: str
    stored: str
    aggregator: str
    kind: pa.DataType

    @property
    def text(self) -> str:
        return f"{self.aggregator} of the stored value and the batch's"

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        # The time that an import takes: workers without such a step need none of it.
        from trident.states.core.folds import DoesNotFit, onto

        for frame in frames:
            stored, values = (frame.array(name).cast(self.kind) for name in (self.stored, self.value))
            try:
                both = onto(self.aggregator, stored, values)
            except DoesNotFit as error:
                raise ArithmeticError(f"{self.text}: {error}; key: {frame.row(self.keep, error.key[0])}") from error
            yield Frame({**frame.only(self.keep), self.value: both}, frame.length, frame.meter)


@dataclass(frozen=True)
class Gathered(Step):
    """All values of one column as one row with one list of structs, also where there is none.

    Attributes:
        kind: of the list, whose items are structs of one field.
    """

    own = True
    text = ""

    column: str
    output: str
    kind: pa.DataType

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        (field,) = self.kind.value_type
        values = pa.concat_arrays([pa.array([], field.type), *(frame.array(self.column) for frame in frames)])
        items = pa.StructArray.from_arrays([values], fields=[field])
        yield Frame({self.output: pa.ListArray.from_arrays([0, len(items)], items, type=self.kind)}, 1, Meter())


SIDE = "__trident_side"


@dataclass(frozen=True)
class ArrowSegment:
    """The rows under one name, or several, become those under another.

    Attributes:
        begins: where they are several, SIDE says of each row which.
        chain: its schema is that of the rows that it gives.
    """

    begins: tuple[str, ...]
    ends: str
    chain: Chain

    def batches(self, rows: Mapping[str, pa.Table]) -> Iterator[pa.RecordBatch]:
        """The rows that it begins with."""
        for side, name in enumerate(self.begins):
            for batch in rows[name].to_batches():
                if len(self.begins) > 1:
                    batch = batch.append_column(SIDE, pa.repeat(pa.scalar(side, pa.int32()), batch.num_rows))
                yield batch


@dataclass(frozen=True)
class ArrowPlan:
    """Segments that run one behind the other.

    Attributes:
        outputs: name of an output → the name of its rows.
        states: those that are looked up in local copies.
    """

    segments: tuple[ArrowSegment, ...]
    outputs: Mapping[str, str]
    states: frozenset[str] = frozenset()

    def run(self, inputs: Mapping[str, pa.Table], info: Any, copies: Any, shard: Any = WHOLE) -> dict[str, pa.Table]:
        """The outputs' rows.

        Args:
            inputs: the rows that segments begin with, by name.
            info: a BatchInfo.
            copies: state → its local copy, of each state that is looked up.
            shard: whose keys' rows are wanted.

        Raises:
            StaleCopy: a copy is not that of its mark.
            ArithmeticError: a sum does not fit its type.
        """
        rows = dict(inputs)
        for segment in self.segments:
            chain = segment.chain.for_batch(info).with_copies(copies).in_shard(shard)
            batches = chain(segment.batches(rows))
            rows[segment.ends] = pa.Table.from_batches(batches, schema=chain.schema)
        return {output: rows[name] for output, name in self.outputs.items()}

    # --- several times, with objects of the user's that are prepared once --------------------

    def for_copies(self, copies: Any) -> ArrowPlan:
        """The plan with local copies of states, for ``run_prepared``."""
        segments = tuple(replace(one, chain=one.chain.with_copies(copies)) for one in self.segments)
        return replace(self, segments=segments)

    def prepared(self) -> AbstractContextManager[None]:
        """Prepares the objects of all steps, and cleans them up behind."""
        return prepared([step for segment in self.segments for step in segment.chain.steps])

    def run_prepared(self, inputs: Mapping[str, pa.Table], info: Any) -> dict[str, pa.Table]:
        """As ``run``, with the copies of ``for_copies``, within ``prepared``; once for each input."""
        rows = dict(inputs)
        for segment in self.segments:
            chain = segment.chain.for_batch(info)
            rows[segment.ends] = pa.Table.from_batches(chain.pass_over(segment.batches(rows)), schema=chain.schema)
        return {output: rows[name] for output, name in self.outputs.items()}

    @property
    def is_own(self) -> bool:
        """Tells whether each step says that it is the framework's own: no other plan runs in the leader's process."""
        return all(map(_is_own, self.segments))


def _is_own(segment: ArrowSegment) -> bool:
    return all(isinstance(step, Step) and step.own for step in segment.chain.steps)
