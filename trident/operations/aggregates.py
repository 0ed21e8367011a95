"""The nodes of ``aggregate``: an aggregate of Spark, parts that are combined, or a fold row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from trident.coordinators.errors import OutputTypeError, TopologyError
from trident.operations.aggregators import aggregator_kind, is_groupable, is_plain, own_name
from trident.planning.nodes import Node, check_given_type, field_names, picked, require_fields
from trident.planning.operation import (
    ANCHORS_FIELD,
    Fields,
    GroupingOp,
    Operation,
    PyOp,
    SegmentBuilder,
    arrow_op,
    arrow_type,
    arrow_types,
    names_of,
)
from trident.planning.session_frames import SessionFrames, Transform, column, column_list
from trident.states.core.copyable import is_folded, why_not_exact
from trident.udf.signatures import (
    call_site,
    check_arity,
    check_for_workers,
    describe,
    function_location,
    function_name,
    resolve_outputs,
    return_annotation,
)
from trident.udf.types import check_distinct, is_known, parse_outputs
from trident.workers.anchors import ANCHORS
from trident.workers.arrow_plan import Aggregate, Aggregated, Gathered
from trident.workers.chain import CountRows, Rows
from trident.workers.failures import Label
from trident.workers.groups import Folded, Groups
from trident.workers.tracking import ROW, TrackedGroups

# Reads the arguments of ``aggregate`` and ``persistent_aggregate``, and checks them.


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregation:
    """The rows that an aggregator is applied to.

    Attributes:
        kind: "native", "combiner", "reducer" or "aggregator".
        keys: the grouping fields; none for the whole batch.
        many: of an aggregator's ``complete``: as in PythonNode.
        location: "file:line" of the aggregator's class, or of the call.
    """

    aggregator: Any
    kind: str
    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[StructField, ...]
    location: str
    many: bool | None = False

    @property
    def reads(self) -> frozenset[str]:
        """The fields that the rows must have."""
        return frozenset((*self.keys, *self.inputs))


def read_aggregation(
    schema: StructType, what: str, keys: tuple[str, ...], inputs: Any, aggregator: Any, outputs: Any, site: str
) -> Aggregation:
    """Checks the arguments of an aggregate.

    Args:
        site: "file:line" of the call.

    Raises:
        FieldError, OutputTypeError, TopologyError: as the operations of streams say.
    """
    if isinstance(aggregator, type):
        raise TopologyError(
            f"{what} needs an aggregator, not its class", found=aggregator.__name__, expected=f"{aggregator.__name__}()"
        )
    kind = aggregator_kind(aggregator, what)
    names = field_names(inputs, what) if inputs else ()
    require_fields(names, schema, what)
    given = parse_outputs(outputs)
    check_distinct([*keys, *(name for name, _ in given)], f"the keys and outputs of {what}")
    fields, many = _result(schema, what, kind, names, aggregator, given, site)
    return Aggregation(
        aggregator=aggregator,
        kind=kind,
        keys=keys,
        inputs=names,
        many=many,
        outputs=tuple(StructField(name, type_, True) for name, type_ in fields),
        location=function_location(_main_method(kind, aggregator)) or site,
    )


def _result(
    schema: StructType, what: str, kind: str, inputs: tuple[str, ...], aggregator: Any, given: Any, site: str
) -> tuple[list[tuple[str, DataType]], bool | None]:
    name = aggregator_class(aggregator)
    if kind != "aggregator" and len(given) != 1:
        raise OutputTypeError(
            f"{what}({name}) gives one value",
            found=f"{len(given)} outputs",
            expected="one output field",
            action="give a struct type, as in 'stats struct<n: long, total: double>', for several values in one",
        )
    if kind == "native":
        output, type_ = given[0]
        actual = aggregator.result_type([schema[field].dataType for field in inputs])
        check_given_type(output, type_, actual, f"{what}({name})")
        return [(output, actual)], False
    _check_methods(kind, aggregator, len(inputs), f"{what}({name})")
    check_for_workers(aggregator, f"{what}({name})")
    described = describe(_typed_method(kind, aggregator), what, site)
    return resolve_outputs("each" if kind == "aggregator" else "map", described, given, f"{what}({name})")


def aggregator_class(aggregator: Any) -> str:
    """Its class, for plans and messages."""
    return function_name(type(aggregator))


def _main_method(kind: str, aggregator: Any) -> Any:
    method = {"combiner": "combine", "reducer": "reduce", "aggregator": "aggregate"}.get(kind)
    return getattr(aggregator, method) if method else None


def _typed_method(kind: str, aggregator: Any) -> Any:
    """The method whose return annotation says the type of the result."""
    names = {"combiner": ("init", "combine", "zero"), "reducer": ("reduce", "init"), "aggregator": ("complete",)}[kind]
    methods = [getattr(aggregator, name) for name in names]
    return next((method for method in methods if is_known(return_annotation(method))), methods[0])


def _check_methods(kind: str, aggregator: Any, count: int, what: str) -> None:
    if kind == "combiner":
        check_arity(aggregator.init, count, f"init of {what}", yields=False)
        check_arity(aggregator.combine, 0, f"combine of {what}", ("two values",) * 2, yields=False)
        check_arity(aggregator.zero, 0, f"zero of {what}", yields=False)
    elif kind == "reducer":
        check_arity(aggregator.init, 0, f"init of {what}", yields=False)
        check_arity(aggregator.reduce, count, f"reduce of {what}", ("the value so far",), yields=False)
    else:
        check_arity(aggregator.init, 0, f"init of {what}", ("the batch id",), yields=False)
        check_arity(aggregator.aggregate, count, f"aggregate of {what}", ("the state",), yields=False)
        check_arity(aggregator.complete, 0, f"complete of {what}", ("the state",))


_PARTIAL, _PARTIALS = "__trident_partial", "__trident_partials"


@dataclass(frozen=True, eq=False, kw_only=True)
class AggregateNode(Node):
    """aggregate: one row per batch, or per group of it."""

    row_by_row = False
    passes_anchors = True

    aggregation: Aggregation

    @property
    def calls_user(self) -> bool:
        return self.aggregation.kind != "native"

    @property
    def takes_anchors(self) -> bool:
        return self.calls_user

    @property
    def repeatable(self) -> bool:
        return not self.calls_user

    @property
    def gathers(self) -> bool:
        return not self.aggregation.keys

    @property
    def together(self) -> tuple[str, ...] | None:
        return self.aggregation.keys or None

    def carried(self, side: int, field: str) -> str | None:
        return field if field in self.aggregation.keys else None

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return self.aggregation.reads

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        if self.parents[0].aggregates_for(self):
            return
        fields = tuple(self.schema.fields)
        lower_aggregation(builder, self.aggregation, self, (*fields, ANCHORS_FIELD) if ANCHORS in live else fields)


def check_groupable(parent: Node, names: Sequence[str], what: str) -> None:
    """Raises FieldError or TopologyError unless rows can be grouped by the fields."""
    require_fields(names, parent.schema, what)
    for name in names:
        if not is_groupable(parent.schema[name].dataType):
            raise TopologyError(
                f"{what} cannot use field {name!r}",
                found=parent.schema[name].dataType.simpleString(),
                expected="a type that can be compared",
            )


def aggregate(parent: Node, keys: tuple[str, ...], inputs: Any, aggregator: Any, outputs: Any) -> AggregateNode:
    """See :meth:`trident.streams.stream.Stream.aggregate`."""
    aggregation = read_aggregation(parent.schema, "aggregate", keys, inputs, aggregator, outputs, call_site())
    return AggregateNode(
        parents=(parent,),
        schema=StructType([*picked(parent.schema, keys).fields, *aggregation.outputs]),
        aggregation=aggregation,
        operation=f"aggregate({aggregator_class(aggregation.aggregator)})",
    )


# --- its operations ----------------------------------------------------------------------


def lower_aggregation(
    builder: SegmentBuilder, aggregation: Aggregation, node: Node, fields: Fields, persists: bool = False
) -> None:
    """Pushes an aggregate over the batch, or per group of it.

    Args:
        fields: the columns behind it; the anchors among them, where they are wanted there.
        persists: a state takes the result, and combines partial values itself.
    """
    _AggregateLowering(builder, aggregation, node, fields, persists).lower()


@dataclass(frozen=True)
class _AggregateLowering:
    builder: SegmentBuilder
    aggregation: Aggregation
    node: Node
    fields: Fields
    persists: bool

    @property
    def _goes_on(self) -> bool:
        """Tells whether the anchors are wanted behind it."""
        return self.fields[-1].name == ANCHORS

    def lower(self) -> None:
        builder = self.builder
        if not self.node.takes_anchors and not self._goes_on and builder.anchored:
            # Nothing fails here: the trees have ended, or the anchors are another branch's.
            builder.narrow(tuple(field for field in builder.fields if field.name != ANCHORS))
        if self.aggregation.kind == "native":
            self._in_spark()
        elif self.aggregation.kind == "combiner":
            self._combine()
        else:
            self._fold()

    def _in_spark(self) -> None:
        builder, aggregation, merges = self.builder, self.aggregation, False
        keys, outputs = aggregation.keys, names_of(aggregation.outputs)
        if (
            builder.ends_in_python
            and keys
            and own_name(aggregation.aggregator) == "count"
            and not builder.anchored
            and all(is_plain(field.dataType) for field in self.fields)
        ):
            builder.push_python(CountRows(keys, outputs[0]), self.fields, keys)
            merges = True
        inputs = outputs if merges else aggregation.inputs
        parts_suffice = self.persists and merges
        builder.push(NativeAggregateOp(self.fields, keys, inputs, aggregation.aggregator, merges, parts_suffice))

    def _combine(self) -> None:
        builder, aggregation = self.builder, self.aggregation
        keys, output = aggregation.keys, aggregation.outputs[0]
        if keys:
            self._groups("combine", aggregation.inputs, self.fields, output.name, merged=not self.persists)
            if not self.persists:  # a state combines the parts itself
                builder.by_key(keys)
                self._groups("merge", (output.name,), self.fields, output.name)
            return
        part = StructField(_PARTIAL, output.dataType, True)
        self._groups("combine", aggregation.inputs, (part,), _PARTIAL, merged=True)
        parts = ArrayType(StructType([StructField("value", output.dataType, True)]), False)
        anchors = (ANCHORS_FIELD,) if builder.anchored else ()
        builder.push(CollectOp((StructField(_PARTIALS, parts, False), *anchors), _PARTIAL))
        step = Rows(
            Label(self.node.operation, aggregation.location),
            Folded(aggregation.aggregator),
            (_PARTIALS,),
            (output.name,),
            (arrow_type(output.dataType),),
            False,
            (ROW,) if self._goes_on else (),
            drop_none=False,
        )
        builder.push_rows(step, (output,), (_PARTIALS,), self._goes_on)

    def _fold(self) -> None:
        builder, aggregation = self.builder, self.aggregation
        if aggregation.keys:
            builder.by_key(aggregation.keys)
        else:
            builder.narrow(builder.narrowed({*aggregation.inputs, ANCHORS}))
            builder.mark_one_partition()
            builder.drop_marker()
        self._groups("reduce" if aggregation.kind == "reducer" else "aggregate", aggregation.inputs, self.fields)

    def _groups(
        self, mode: str, inputs: tuple[str, ...], fields: Fields, output: str | None = None, merged: bool = False
    ) -> None:
        """Folds rows by key; where they have anchors, a group has those of its rows.

        Args:
            fields: behind the aggregate; with the anchors, where they are wanted there.
            merged: the groups are parts, which are merged next: their anchors are wanted in any case.
        """
        step = groups_step(self.aggregation, self.node, mode, inputs, output)
        takes, batch_id = (*self.aggregation.keys, *inputs), mode == "aggregate"
        fields = tuple(field for field in fields if field.name != ANCHORS or not merged)
        if self.builder.anchored:
            goes_on = merged or fields[-1].name == ANCHORS
            own = {one.name: getattr(step, one.name) for one in dataclass_fields(step)}
            step, takes = TrackedGroups(**own, keeps=goes_on), (*takes, ANCHORS)
            fields = (*fields, ANCHORS_FIELD) if merged else fields
        self.builder.push_python(step, fields, takes, batch_id)


def groups_step(
    aggregation: Aggregation, node: Node, mode: str, inputs: tuple[str, ...], output: str | None = None
) -> Groups:
    """The step on the worker that folds rows by key; see Groups for the modes."""
    return Groups(
        label=Label(node.operation, aggregation.location),
        aggregator=aggregation.aggregator,
        mode=mode,
        keys=aggregation.keys,
        inputs=inputs,
        outputs=(output,) if output else names_of(aggregation.outputs),
        types=arrow_types(aggregation.outputs),
        many=aggregation.many,
        always=mode in ("reduce", "aggregate") and not aggregation.keys,
    )


@dataclass(frozen=True)
class NativeAggregateOp(GroupingOp):
    """An aggregate by Spark.

    Attributes:
        merges: its input is partial values already.
        parts_suffice: the partial values can go on as they are: a state combines
            them, so this only saves rows where they come from several partitions.
    """

    inputs: tuple[str, ...]
    aggregator: Any
    merges: bool
    parts_suffice: bool = False

    @property
    def no_op_on_one_partition(self) -> bool:
        return self.parts_suffice

    def transform(self, frames: SessionFrames) -> Transform:
        inputs = column_list(self.inputs)
        output = next(field for field in reversed(self.fields) if field.name != ANCHORS)
        value = self.aggregator.merge(inputs[0]) if self.merges else partial_value(self.aggregator, inputs, output)
        # A group has the anchors of all of its rows.
        anchors = [_all_anchors()] if self.fields[-1].name == ANCHORS else []
        return frames.aggregate(self.keys, value.alias(output.name), *anchors)

    @property
    def on_arrow(self) -> PyOp | None:
        output = self.fields[-1]
        keys = tuple(field for field in self.fields if field.name in self.keys)
        if output.name == ANCHORS or len(keys) + 1 != len(self.fields) or (self.merges and not keys):
            return None
        return aggregated(self.fields, self.keys, [(self.inputs, output, self.aggregator)], self.merges)

    def describe(self) -> str:
        verb = "merge" if self.merges else "partial"
        return f"{verb} {self.aggregator!r}{self.by_keys} -> {self.fields[-1].name}"


def aggregated(
    fields: Fields, keys: tuple[str, ...], of: Sequence[tuple[tuple[str, ...], StructField, Any]], merges: bool
) -> PyOp | None:
    """Built-in aggregates as a step over Arrow; None: Spark alone can do it.

    Args:
        fields: the keys and the results.
        of: of each aggregate its inputs, its result, and the aggregator.
        merges: the inputs are partial values.
    """
    if why_not_exact(StructType(list(fields)), keys) is not None:
        return None
    schema = pa.schema(list(zip(names_of(fields), arrow_types(fields))))
    made = []
    for inputs, output, aggregator in of:
        name, kind = own_name(aggregator), schema.field(output.name).type
        if not is_folded(name, kind):
            return None
        made.append(Aggregate("" if name == "count" and not merges else inputs[0], (output.name, kind), name, merges))
    step = Aggregated(tuple((key, schema.field(key).type) for key in keys), tuple(made), names_of(fields))
    return arrow_op(fields, step, (*keys, *filter(None, (one.input for one in made))))


def partial_value(aggregator: Any, inputs: Sequence[Any], output: StructField) -> Any:
    """The Column of a native aggregate over rows; its zero for no row, where it has one."""
    value, zero = aggregator.partial(inputs), aggregator.zero()
    return value if zero is None else F.coalesce(value, F.lit(zero).cast(output.dataType))


@dataclass(frozen=True)
class CollectOp(Operation):
    """All values of one column as one row with one list, also when there is none; and all anchors, where there are."""

    shuffles = True
    gives_rows_for_empty_batch = True

    column: str

    def transform(self, frames: SessionFrames) -> Transform:
        value = F.struct(column(self.column).alias("value"))
        anchors = [_all_anchors()] if self.fields[-1].name == ANCHORS else []
        return frames.aggregate((), F.collect_list(value).alias(self.fields[0].name), *anchors)

    @property
    def on_arrow(self) -> PyOp | None:
        (output, *anchors) = self.fields
        (kind,) = arrow_types((output,))
        return None if anchors else arrow_op(self.fields, Gathered(self.column, output.name, kind), (self.column,))

    def describe(self) -> str:
        return "gather the partial values"


def _all_anchors() -> Any:
    """The anchors of all rows of a group."""
    return F.flatten(F.collect_list(F.col(ANCHORS))).alias(ANCHORS)
