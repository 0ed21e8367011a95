"""Windows that keep parts: of the rows of a pane or a session one value for each aggregate, in place of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, IntegerType, LongType, StructField, StructType

from trident.coordinators.errors import OutputTypeError
from trident.operations.aggregates import Aggregation, aggregator_class, partial_value
from trident.operations.aggregators import own_name
from trident.operations.window_spec import (
    END_FIELD,
    START_FIELD,
    PaneRules,
    SessionRules,
    SessionSpec,
    WindowSpec,
    duration_text,
    sql_position,
)
from trident.planning.operation import (
    Fields,
    Operation,
    PyOp,
    SegmentBuilder,
    SelectOp,
    arrow_op,
    arrow_type,
    arrow_types,
    names_of,
    users_op,
)
from trident.planning.session_frames import Batch, SessionFrames, Transform, bytes_read, column, column_list
from trident.states.core.binding import LAST, StateBinding, aggregator_name
from trident.states.core.copyable import arrow_schema, is_folded, why_not_copied
from trident.states.core.names import backquoted, folded
from trident.states.keyed.delta_map import KEYED, DeltaMapState
from trident.workers.anchors import ANCHORS
from trident.workers.chain import Chain, Rows
from trident.workers.failures import Label
from trident.workers.groups import FirstValue
from trident.workers.open_windows import (
    AT,
    BEFORE,
    DUE,
    END,
    FIRED,
    LATE,
    LATE_ROWS,
    NEWEST,
    NEXT,
    NOW,
    OLD,
    PANE,
    POSITION,
    ROWS,
    SESSIONS,
    START,
    STATE,
    TAG,
    Given,
    OpenWindows,
    Part,
    PartsOfPanes,
    UsersPart,
    UsersWindows,
    may_be_combined,
)

_PART, _RAW = "_part", "__trident_raw"
_SMALL_BYTES = 4 << 20
_LONG = LongType()
RESERVED = (PANE, POSITION, NEXT, LATE_ROWS, DUE, SESSIONS)


@dataclass(frozen=True)
class KeptParts:
    """The parts that a window keeps.

    Attributes:
        spec: of the windows or the sessions; of event time.
        keys: the grouping fields.
        aggregations: a part each.
        rows: where rows are needed: the fields of which each session keeps a list of rows.
        raws: where late rows are wanted: their fields.
    """

    spec: Union[WindowSpec, SessionSpec]
    keys: Fields
    aggregations: tuple[Aggregation, ...]
    rows: Fields = ()
    raws: Fields = ()

    @property
    def part_fields(self) -> Fields:
        kinds: list[DataType] = [one.outputs[0].dataType for one in self.aggregations]
        if self.rows:
            kinds.append(ArrayType(StructType(list(self.rows)), True))
        return tuple(StructField(f"{_PART}{number}", kind, True) for number, kind in enumerate(kinds))

    @property
    def raw_fields(self) -> Fields:
        return tuple(StructField(f"{_RAW}{n}", field.dataType, True) for n, field in enumerate(self.raws))

    @property
    def calls_user(self) -> bool:
        """Tells whether a combiner of the user's makes one of the parts."""
        return any(one.kind != "native" for one in self.aggregations)

    @property
    def rules(self) -> Union[PaneRules, SessionRules]:
        names = names_of(self.part_fields)
        return PaneRules(self.spec, names) if isinstance(self.spec, WindowSpec) else SessionRules(self.spec, names)

    @property
    def time(self) -> str:
        """The field of a row's time."""
        return self.spec.field or ""

    @property
    def reads(self) -> frozenset[str]:
        """The fields of the stream that are needed."""
        inputs = [name for one in self.aggregations for name in one.inputs]
        return frozenset((self.time, *names_of(self.keys), *inputs, *names_of(self.rows), *names_of(self.raws)))

    @property
    def native_name(self) -> str:
        """Names the state's contents in its descriptor; they are part of the topology's identity."""
        values = [_named(one) for one in self.aggregations]
        values += ["rows"] if self.rows else []
        spec = self.spec
        if isinstance(spec, SessionSpec):
            of = f"session(gap of {spec.gap} us of {spec.field} delayed by {spec.delay} us)"
        else:
            of = spec.native_name
        return f"{of} parts({', '.join(values)})"

    @property
    def schema(self) -> StructType:
        """Of the state."""
        about = [StructField(name, _LONG, True) for name in (POSITION, NEXT, LATE_ROWS)]
        values = list(self.part_fields)
        if isinstance(self.spec, SessionSpec):
            edges = [StructField(name, _LONG, True) for name in (START_FIELD, END_FIELD)]
            open_ = ArrayType(StructType([*edges, *values]), True)
            values = [StructField(DUE, _LONG, True), StructField(SESSIONS, open_, True)]
        return StructType([StructField(PANE, _LONG, True), *self.keys, *about, *values])

    def binding(self, name: str) -> StateBinding:
        """The state that keeps the parts."""
        keys, schema = (PANE, *names_of(self.keys)), self.schema
        values = tuple(schema.names[len(keys) :])
        return StateBinding(DeltaMapState(name), KEYED, keys, schema, values, self, LAST, self.rules.ordered_by)

    @property
    def pane_fields(self) -> Fields:
        """Of the parts of a batch."""
        at, rows, newest = (StructField(name, _LONG, True) for name in (AT, ROWS, NEWEST))
        return (at, *self.keys, *self.part_fields, rows, newest, *self.raw_fields)

    @property
    def given_fields(self) -> Fields:
        """Of what a transaction gives: the rows of the log, fired windows, late rows."""
        log = self.binding("x").log_schema.fields
        parts = [] if isinstance(self.spec, WindowSpec) else self.part_fields
        edges = [StructField(name, _LONG, True) for name in (START, END)]
        return (*log, *parts, *edges, StructField(TAG, IntegerType(), True), *self.raw_fields)

    def step(self, state: str, looks_up: bool) -> OpenWindows:
        """The step on the worker."""
        kinds, raws = arrow_types(self.part_fields), self.raw_fields
        parts = self._parts
        if self.rows:
            parts.append(Part(self.part_fields[-1].name, kinds[-1], ""))
        keys = (PANE, *names_of(self.keys))
        late = tuple(zip(names_of(raws), arrow_types(raws)))
        made = UsersWindows if self.calls_user else OpenWindows
        return made(state, self.rules, arrow_schema(self.schema), keys, tuple(parts), late, looks_up)

    @property
    def _parts(self) -> list[Part]:
        """Those of aggregates."""
        kinds = arrow_types(self.part_fields)
        return [_part(*one) for one in zip(names_of(self.part_fields), kinds, self.aggregations)]

    def panes_step(self) -> PartsOfPanes:
        """The step that makes one row of the rows of a pane and group which meet on a worker."""
        return PartsOfPanes(tuple(zip(names_of(self.keys), arrow_types(self.keys))), tuple(self._parts))

    @property
    def text(self) -> str:
        """For people."""
        by = f" and {', '.join(names_of(self.keys))}" if self.keys else ""
        of = "session" if isinstance(self.spec, SessionSpec) else "pane"
        if isinstance(self.rules, PaneRules):
            of = f"pane of {duration_text(self.rules.pane)}"
        values = "lists of rows" if self.rows else "parts, not rows"
        made = ", ".join(f"{_shown(one)} -> {one.outputs[0].name}" for one in self.aggregations)
        return f"stores {values}, per {of}{by}{': ' if made else ''}{made}"


def _shown(one: Aggregation) -> str:
    return repr(one.aggregator) if one.kind == "native" else aggregator_class(one.aggregator)


def _part(name: str, kind: pa.DataType, one: Aggregation) -> Part:
    if one.kind == "native":
        return Part(name, kind, own_name(one.aggregator))
    return UsersPart(name, kind, "", one.aggregator, label_of(one), one.outputs[0].name)


def label_of(one: Aggregation) -> Label:
    """Where a combiner of the user's comes from."""
    return Label(f"aggregate({aggregator_class(one.aggregator)})", one.location)


def _named(one: Aggregation) -> str:
    """An aggregate in the identity; two combiners of one class, which may differ, are told by the user's names."""
    name = f"{aggregator_name(one.aggregator)}({', '.join(one.inputs)})"
    return name if one.kind == "native" else f"{name} -> {one.outputs[0].name}"


def why_no_parts(kept: KeptParts) -> str | None:
    """Tells why the parts cannot be kept by a window; None when they can."""
    of_users = [name for one in kept.aggregations if one.kind != "native" for name in one.inputs]
    taken = [
        name for name in (*names_of(kept.keys), *of_users) if folded(name) in RESERVED or folded(name).startswith(_PART)
    ]
    if taken:
        return f"field {taken[0]!r} has a name that parts use"
    try:
        arrow_types((*kept.keys, *kept.part_fields, *kept.raw_fields))
    except OutputTypeError as error:
        return str(error)
    found = why_not_copied(kept.schema, (PANE, *names_of(kept.keys)))
    if found is not None:
        return found
    for one in kept.aggregations:
        (output,) = one.outputs
        if one.kind != "native":
            if not may_be_combined(arrow_type(output.dataType)):
                return f"{aggregator_class(one.aggregator)} makes values of type {output.dataType.simpleString()}"
            continue
        if not is_folded(own_name(one.aggregator), arrow_type(output.dataType)):
            return f"values of {one.aggregator!r} of type {output.dataType.simpleString()} are combined by Spark alone"
    return None


# --- its operations ----------------------------------------------------------------------


@dataclass(frozen=True)
class PanesOp(Operation):
    """Makes the parts of a batch: of each pane and group one, or of each row where rows or sessions need that."""

    kept: KeptParts

    @property
    def _grouped(self) -> bool:
        return isinstance(self.kept.spec, WindowSpec) and not self.kept.raws

    @property
    def shuffles(self) -> bool:
        return self._grouped

    @property
    def spreads_rows(self) -> bool:
        return self._grouped

    def transform(self, frames: SessionFrames) -> Transform:
        kept = self.kept
        parts = [field.name for field in kept.part_fields]
        placed = [*time_columns(kept), F.expr("*")]
        chosen = column_list(names_of(kept.pane_fields))
        if not self._grouped:
            values = [part_of_row(one).alias(name) for one, name in zip(kept.aggregations, parts)]
            if kept.rows:
                values.append(F.array(F.struct(*column_list(names_of(kept.rows)))).alias(parts[-1]))
            raws = [column(a.name).alias(b.name) for a, b in zip(kept.raws, kept.raw_fields)]
            one = F.lit(1).cast("long").alias(ROWS)
            keys = column_list(names_of(kept.keys))
            return frames.select([placed[0], *keys, *values, one, placed[1], *raws])
        select, order = frames.select(placed), frames.select(chosen)
        values = [
            partial_value(one.aggregator, column_list(one.inputs), one.outputs[0]).alias(name)
            for one, name in zip(kept.aggregations, parts)
        ]
        counts = [F.count(F.lit(1)).alias(ROWS), F.max(NEWEST).alias(NEWEST)]
        grouped = frames.aggregate((AT, *names_of(kept.keys)), *values, *counts)
        return lambda frame, batch: order(grouped(select(frame, batch), batch), batch)

    def describe(self) -> str:
        values = ", ".join(f"{one.aggregator!r} -> {one.outputs[0].name}" for one in self.kept.aggregations) or "rows"
        of = "each pane" if self._grouped else "each row"
        by = "".join(f" and {name}" for name in names_of(self.kept.keys)) if self._grouped else ""
        return f"parts of {of}{by}: {values}"


def time_columns(kept: KeptParts) -> list[Any]:
    """Of a row its pane, or of sessions its time; and its time."""
    micros, rules = sql_position(kept.time), kept.rules
    at = f"({micros} - pmod({micros}, {rules.pane}L))" if isinstance(rules, PaneRules) else micros
    return [F.expr(at).alias(AT), F.expr(micros).alias(NEWEST)]


def part_of_row(aggregation: Aggregation) -> Any:
    """The part of one row, of an aggregate of Spark."""
    kind = aggregation.outputs[0].dataType
    if own_name(aggregation.aggregator) == "count":
        return F.lit(1).cast("long")
    value, zero = column(aggregation.inputs[0]).cast(kind), aggregation.aggregator.zero()
    return value if zero is None else F.coalesce(value, F.lit(zero).cast(kind))


@dataclass(frozen=True)
class OpenWindowsOp(Operation):
    """Combines a batch's parts with those of open windows; gives the state's changes, fired windows and late rows."""

    kept: KeptParts
    binding: StateBinding
    materialise: bool

    shuffles = True
    spreads_rows = True

    @property
    def on_arrow(self) -> PyOp | None:
        name, takes = self.binding.name, names_of(self.kept.pane_fields)
        step = self.kept.step(name, looks_up=True)
        return arrow_op(self.fields, step, takes, name) if step.own else users_op(self.fields, step, takes, name)

    def describe(self) -> str:
        place = f" (of few rows in the local copy of {self.binding.name}, without moving them)"
        return f"windows of {self.kept.spec}: combine parts, fire what is due{place}"

    def transform(self, frames: SessionFrames) -> Transform:
        """All stored parts go through Python beside the new ones."""
        kept, step = self.kept, self.kept.step(self.binding.name, looks_up=False)
        state, new = self.binding.schema.fields, kept.pane_fields
        both = [*state, *(field for field in new if field.name not in self.binding.schema.names)]
        both += [StructField(OLD, BooleanType(), True), *(StructField(name, _LONG, True) for name in (BEFORE, NOW))]
        schema = pa.schema(list(zip(names_of(self.fields), arrow_types(self.fields))))
        mapped = frames.map_in_arrow(
            Chain((step,), schema, "windows"), names_of(tuple(both)), StructType(list(self.fields)), False
        )
        keys = names_of(kept.keys)

        def transform(frame: "DataFrame", batch: Batch) -> "DataFrame":
            assert batch.stored is not None and batch.once is not None, "states are read by late segments only"
            if self.materialise:
                frame, _ = batch.once(frame)
            stored = batch.stored(self.binding, None)
            turn = _turn(kept, stored, frame)
            constants = {BEFORE: turn["before"], NOW: turn["now"]}
            old = _columns(stored.where(f"{PANE} is not null"), both, {**constants, OLD: "true"}, state)
            ours = _columns(frame, both, {**constants, OLD: "false"}, new)
            rows = old.unionAll(ours)
            if bytes_read(stored) <= _SMALL_BYTES or not keys:
                rows = rows.coalesce(1)
            else:
                rows = rows.repartition(*column_list(keys))
            given = mapped(rows, batch)
            if not turn["new"]:
                return given
            about = {POSITION: turn["now"], NEXT: f"{turn['rows']}L", LATE_ROWS: f"{turn['late']}L", TAG: f"{STATE}"}
            about["_deleted"] = "false"
            one = _columns(frame.sparkSession.range(0, 1, 1, 1), list(self.fields), about, ())
            return given.unionAll(one)

        return transform


def _columns(frame: "DataFrame", fields: Sequence[StructField], given: dict[str, str], own: Sequence[Any]) -> Any:
    """Columns of some fields: constants, those that the frame has, and nulls."""
    there = {field.name for field in own}
    texts = []
    for field in fields:
        text = given.get(field.name) or (backquoted(field.name) if field.name in there else "null")
        texts.append(F.expr(text).cast(field.dataType).alias(field.name))
    return frame.select(*texts)


def _turn(kept: KeptParts, stored: "DataFrame", frame: "DataFrame") -> dict[str, Any]:
    """The watermarks, as SQL's constants, and the counts of a transaction, found before its rows are looked at."""
    about = stored.where(f"{PANE} is null").select(POSITION, NEXT, LATE_ROWS).collect()
    before, rows, late = tuple(about[0]) if about else (None, 0, 0)
    is_late = f"{AT} is null"
    if before is not None:
        spec = kept.spec
        end = f"{spec.sql_last_start(AT)} + {spec.length}L" if isinstance(spec, WindowSpec) else f"{AT} + {spec.gap}L"
        is_late = f"{is_late} or {end} <= {before}L"
    (found,) = frame.selectExpr(
        f"max({NEWEST}) as newest",
        f"coalesce(sum({ROWS}), 0) as new",
        f"coalesce(sum(if({is_late}, {ROWS}, 0)), 0) as late",
    ).collect()
    marks = [before, None if found.newest is None else found.newest - kept.spec.delay]
    now = max((mark for mark in marks if mark is not None), default=None)
    return {
        "before": "null" if before is None else f"{before}L",
        "now": "null" if now is None else f"{now}L",
        "rows": rows + found.new,
        "late": late + found.late,
        "new": found.new,
    }


@dataclass(frozen=True)
class GivenPartsOp(Operation):
    """The rows of fired windows, or late ones, as the user sees them.

    Attributes:
        tag: FIRED or LATE.
        outputs: the user's field → the column that it is.
        rows: the column with lists of rows, of which each row is to be one; "": none.
    """

    kept: KeptParts
    tag: int
    outputs: tuple[tuple[str, str], ...]
    rows: str = ""

    def transform(self, frames: SessionFrames) -> Transform:
        edges = (f"timestamp_micros({START})", f"timestamp_micros({END})")
        window = F.expr("named_struct('start', {}, 'end', {})".format(*edges))
        kept = frames.where(F.expr(f"{TAG} = {self.tag}"))
        names, taken = names_of(self.fields), dict(self.outputs)
        chosen = [(column(taken[name]) if name in taken else window).alias(name) for name in names]
        if not self.rows:
            select = frames.select(chosen)
            return lambda frame, batch: select(kept(frame, batch), batch)
        each = frames.select([window.alias("window"), F.expr(f"inline({self.rows})")])
        order = frames.select(column_list(names))
        return lambda frame, batch: order(each(kept(frame, batch), batch), batch)

    @property
    def on_arrow(self) -> PyOp | None:
        taken, window = dict(self.outputs), None
        columns = [(name, taken.get(name, name)) for name in names_of(self.fields)]
        if self.tag == FIRED:
            kinds = dict(zip(names_of(self.fields), arrow_types(self.fields)))
            window = next(((name, kinds[name]) for name in kinds if name == "window"), None)
            columns = [one for one in columns if one[0] != "window"]
        takes = (TAG, START, END, *((self.rows,) if self.rows else (column for _, column in columns)))
        return arrow_op(self.fields, Given(self.tag, tuple(columns), window, self.rows), takes)

    def describe(self) -> str:
        return f"{'fired windows' if self.tag == FIRED else 'rows that came too late'} of {self.kept.spec}"


def of_late(kept: KeptParts, fields: Fields) -> GivenPartsOp:
    """The late rows."""
    return GivenPartsOp(fields, kept, LATE, tuple((a.name, b.name) for a, b in zip(kept.raws, kept.raw_fields)))


def of_fired(kept: KeptParts, fields: Fields, outputs: Sequence[tuple[str, str]]) -> GivenPartsOp:
    """The fired windows: their keys and values; or where rows are kept, each row of theirs."""
    if kept.rows:
        return GivenPartsOp(fields, kept, FIRED, (), kept.part_fields[-1].name)
    keys = [(name, name) for name in names_of(kept.keys)]
    return GivenPartsOp(fields, kept, FIRED, (*keys, *outputs))


# The parts of a batch for a window whose aggregates call combiners of the user's: made on the workers.


def push_parts(builder: SegmentBuilder, kept: KeptParts) -> None:
    """Pushes what makes the parts of a batch: of each row one, and of those of a pane and group that meet one.

    Spark makes the parts of its own aggregates, so that they are what they are without a combiner beside them.
    """
    if builder.anchored:  # the trees of messages end at a window
        builder.narrow(tuple(field for field in builder.fields if field.name != ANCHORS))
    given = {field.name: field for field in builder.fields}
    users = [(one, field) for one, field in zip(kept.aggregations, kept.part_fields) if one.kind != "native"]
    theirs = names_of(tuple(field for _, field in users))
    inputs = dict.fromkeys(name for one, _ in users for name in one.inputs)
    placed = tuple(field for field in kept.pane_fields if field.name not in theirs)
    more = tuple(given[name] for name in inputs if name not in names_of(kept.keys))
    builder.push(PlacedRowsOp((*placed, *more), kept))
    for one, field in users:
        kind, keep, first = arrow_type(field.dataType), names_of(builder.fields), FirstValue(one.aggregator)
        step = Rows(label_of(one), first, one.inputs, (field.name,), (kind,), False, keep, drop_none=False)
        builder.push_python(step, (*builder.fields, field), keep)
    fields = names_of(kept.pane_fields)
    if not kept.raws:  # late rows are wanted as they are, so each row goes on by itself
        builder.push_python(kept.panes_step(), kept.pane_fields, fields)
    else:
        builder.push(SelectOp(kept.pane_fields, fields))


@dataclass(frozen=True)
class PlacedRowsOp(Operation):
    """The rows of a batch, each with its pane and its time, and with the parts that are Spark's."""

    kept: KeptParts

    def transform(self, frames: SessionFrames) -> Transform:
        kept = self.kept
        made = dict(zip((AT, NEWEST), time_columns(kept)))
        made[ROWS] = F.lit(1).cast("long").alias(ROWS)
        for one, field in zip(kept.aggregations, kept.part_fields):
            if one.kind == "native":
                made[field.name] = part_of_row(one).alias(field.name)
        made |= {b.name: column(a.name).alias(b.name) for a, b in zip(kept.raws, kept.raw_fields)}
        return frames.select([made.get(name, column(name)) for name in names_of(self.fields)])

    def describe(self) -> str:
        return f"rows of {self.kept.spec} with their panes"
