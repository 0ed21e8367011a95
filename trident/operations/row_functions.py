"""each, map, flat_map, filter, peek and project: checks, nodes, and which of them become expressions of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import BooleanType, StructField, StructType

from trident.coordinators.errors import FieldError, OutputTypeError
from trident.planning.nodes import Node, OutputsNode, appended, field_names, picked, require_fields
from trident.planning.operation import (
    ANCHORS_FIELD,
    Operation,
    PyOp,
    SegmentBuilder,
    SelectOp,
    arrow_op,
    arrow_types,
    names_of,
)
from trident.planning.session_frames import SessionFrames, Transform
from trident.udf.builtins import NativeForm, form_of
from trident.udf.deferred import Expr
from trident.udf.expressions import Analysis, Expression, resolve, to_column
from trident.udf.signatures import (
    UserFunction,
    call_site,
    check_arity,
    check_for_workers,
    check_runs,
    describe,
    resolve_outputs,
    vector_outputs,
)
from trident.udf.types import (
    Output,
    Returned,
    annotation_name,
    from_annotation,
    is_known,
    parse_outputs,
    tuple_parts,
    without_optional,
)
from trident.workers.anchors import ANCHORS
from trident.workers.arrow_plan import OwnFunction
from trident.workers.chain import Keep, Peek, Rows, Step
from trident.workers.failures import Label
from trident.workers.tracking import ROW, BeginTrees, EndTrees
from trident.workers.vectors import Call, vector_step

# The nodes of each, map, flat_map, filter, peek and project: each row alone decides what becomes of it.


# --- by a Python function ----------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class PythonNode(OutputsNode):
    """each, map, flat_map, filter or peek with a Python function.

    Attributes:
        many: whether a call gives an iterable of rows; None: told by the result.
    """

    repeatable = False
    calls_user = True
    takes_anchors = True

    kind: str
    function: UserFunction
    inputs: tuple[str, ...]
    many: bool | None = None

    @property
    def passes_anchors(self) -> bool:
        # Of the rows that a function makes of whole columns it is not known which row they come from.
        return not (self.kind == "flat_map" and self.function.vectors)

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return (live - set(self.outputs)) | set(self.inputs)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        earlier = tuple(field for field in self.schema.fields if field.name in live and field.name not in self.outputs)
        keep = names_of(earlier)
        made = tuple(self.schema[name] for name in self.outputs)
        goes_on = ANCHORS in live
        step = self._step((*keep, ROW) if goes_on else keep)
        builder.push_rows(step, (*earlier, *made), (*keep, *self.inputs), goes_on)

    def _step(self, keep: tuple[str, ...]) -> Step:
        function = self.function
        label = Label(self.operation, function.location)
        types = arrow_types(tuple(self.schema[name] for name in self.outputs))
        if function.vectors:
            call = Call(label, function.call, self.inputs, function.vectors, function.table)
            return vector_step(self.kind, call, self.outputs, types, keep)
        if self.kind == "filter":
            return Keep(label, function.call, self.inputs, keep)
        if self.kind == "peek":
            return Peek(label, function.call, self.inputs)
        drop_none = self.kind != "map"
        return Rows(label, function.call, self.inputs, self.outputs, types, self.many, keep, drop_none)


# --- by an expression of Spark -----------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class NativeNode(OutputsNode):
    """each, map, flat_map or filter with an expression of Spark."""

    kind: str
    expression: Expression

    @property
    def passes_anchors(self) -> bool:
        # ``*`` would mean the hidden column too.
        return not self.expression.all_fields

    @property
    def repeatable(self) -> bool:
        return self.expression.deterministic

    @property
    def one_to_one(self) -> bool:
        """Tells whether each row certainly gives one row."""
        found = self.expression.analysis
        return self.kind == "map" or (self.kind == "each" and found is not None and not found.generates)

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return (live - set(self.outputs)) | self.expression.reads

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        if self.expression.all_fields:
            builder.narrow(tuple(self.parents[0].schema.fields))
        if ANCHORS in live and not self.one_to_one:
            # Spark does not say which rows it drops or multiplies: the trees end before it and begin anew behind it.
            label = Label(self.operation, self.location)
            builder.push_unchanged(EndTrees(label))
            builder.push(self._operation(builder, live))
            builder.push_unchanged(BeginTrees(label))
        else:
            builder.push(self._operation(builder, live))

    def _operation(self, builder: SegmentBuilder, live: frozenset[str]) -> Operation:
        if self.kind == "filter":
            return FilterOp(builder.fields, self.expression)
        kept = (*self.schema.fields, ANCHORS_FIELD)
        keep = tuple(field for field in kept if field.name in live and field.name not in self.outputs)
        made = tuple(self.schema[name] for name in self.outputs)
        return SelectOp((*keep, *made), names_of(keep), self.expression)


@dataclass(frozen=True)
class FilterOp(Operation):
    """The rows for which an expression holds."""

    expression: Expression

    @property
    def cheap_to_repeat(self) -> bool:
        return self.expression.deterministic

    def transform(self, frames: SessionFrames) -> Transform:
        self.expression.analysed()
        return frames.where(to_column(self.expression.source))

    @property
    def on_arrow(self) -> PyOp | None:
        own, keep = self.expression.own, names_of(self.fields)
        return None if own is None else arrow_op(self.fields, own.kept(keep), (*keep, *own.inputs))

    def describe(self) -> str:
        return f"filter {self.expression}"


# --- fewer fields ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class ProjectNode(Node):
    """Some of the fields."""

    passes_anchors = True

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return live

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        """Nothing: fields that are not live are dropped anyway."""


# Decides where a built-in function, such as Split(), is an expression of Spark; else it is called row by row.


def native_form(function: Any, inputs: Sequence[str], parent: Node) -> NativeForm | None:
    """The expression to use instead of a function behind a node; None: it is to be called.

    Right behind a Python operation it is called: with that it is one pass.

    Raises:
        OutputTypeError: a field is of a type that the function cannot take.
    """
    form = form_of(function, [parent.schema[name] for name in inputs])
    while isinstance(parent, ProjectNode):
        parent = parent.parents[0]
    return None if isinstance(parent, PythonNode) else form


def as_expression(
    form: NativeForm, inputs: Sequence[str], schema: StructType, outputs: Sequence[StructField], what: str
) -> Expression:
    """The expression of a step; all is known of it, so that no session is asked."""
    found = Analysis(
        fields=(StructField("result", form.type, True),),
        reads=frozenset(inputs),
        deterministic=True,
        generates=form.generates,
        aggregates=False,
    )
    own = None if form.own is None else OwnFunction(form.own, tuple(inputs))
    return Expression(Expr(form.text), schema, tuple(outputs), found, what, own)


def by_function(parent: Node, kind: str, inputs: tuple[str, ...], function: Any, outputs: Any) -> Node:
    """each, map or flat_map with a function; of a built-in one, such as Split(), by Spark where it can."""
    described = _checked(parent, kind, function, inputs)
    what = f"{kind}({described.name})"
    many: bool | None = None
    named = _kept_fields(kind, function, parent.schema) if outputs is None else parse_outputs(outputs)
    if described.vectors:
        fields = vector_outputs(named, described.name, what)
    else:
        fields, many = resolve_outputs(kind, described, named, what)
    base = parent.schema if kind == "each" else StructType([])
    form = native_form(function, inputs, parent)
    if form is not None and [type_ for _, type_ in fields] == [form.type]:
        schema = appended(base, fields, what)
        made = [schema[name] for name, _ in fields]
        return NativeNode(
            parents=(parent,),
            schema=schema,
            operation=what,
            kind=kind,
            expression=as_expression(form, inputs, parent.schema, made, what),
            outputs=(made[0].name,),
        )
    return PythonNode(
        parents=(parent,),
        schema=appended(base, fields, what),
        operation=what,
        kind=kind,
        function=described,
        inputs=inputs,
        outputs=tuple(name for name, _ in fields),
        many=many,
    )


def by_expression(parent: Node, kind: str, source: Any, outputs: Any) -> NativeNode:
    """each, map or flat_map with an expression of Spark."""
    given = parse_outputs(outputs if outputs is not None else "")
    expression = resolve(kind, source, given, parent.schema, kind)
    base = parent.schema if kind == "each" else StructType([])
    return NativeNode(
        parents=(parent,),
        schema=appended(base, [(field.name, field.dataType) for field in expression.outputs], kind),
        operation=f"{kind}({expression})",
        kind=kind,
        expression=expression,
        outputs=tuple(field.name for field in expression.outputs),
    )


def filter_by_function(parent: Node, inputs: Any, function: Any) -> Node:
    """filter with a function; of a built-in one, such as FilterNull(), by Spark where it can."""
    names = field_names(inputs, "filter")
    described = _checked(parent, "filter", function, names)
    check_runs(function, f"the condition of filter({described.name})")
    _check_condition(described)
    form = native_form(function, names, parent)
    what = f"filter({described.name})"
    if form is None:
        return _calling(parent, "filter", described, names)
    return _filter(parent, what, as_expression(form, names, parent.schema, (), what))


def filter_by_expression(parent: Node, condition: Any) -> NativeNode:
    """filter with an expression of Spark."""
    expression = resolve("filter", condition, (), parent.schema, "filter")
    return _filter(parent, f"filter({expression})", expression)


def peek(parent: Node, inputs: tuple[str, ...], function: Any) -> PythonNode:
    """See :meth:`trident.streams.rows.RowOperations.peek`."""
    described = _checked(parent, "peek", function, inputs)
    check_runs(function, f"the function of peek({described.name})")
    return _calling(parent, "peek", described, inputs)


def project(parent: Node, names: tuple[str, ...]) -> ProjectNode:
    """See :meth:`trident.streams.rows.RowOperations.project`."""
    require_fields(names, parent.schema, "project")
    return ProjectNode(
        parents=(parent,),
        schema=picked(parent.schema, names),
        operation=f"project({', '.join(names)})",
    )


def says_bool(function: Any) -> bool:
    """Tells whether a function is annotated ``-> bool``: in ``each`` it is a filter."""
    return callable(function) and describe(function, "each", "").returned is bool


def _check_condition(function: UserFunction) -> None:
    """Raises OutputTypeError where the annotation says a type that is not boolean: each batch would fail."""
    if function.vectors or not is_known(function.returned):
        return
    try:
        kind = from_annotation(function.returned)
    except OutputTypeError:
        return  # of NumPy, or of anything that may be a boolean
    if kind != BooleanType():
        raise OutputTypeError(
            f"the condition of filter({function.name}) gives no boolean",
            found=f"{function.name} is annotated with {annotation_name(function.returned)}",
            expected="a function that returns True or False for each row",
            action="compare its value, as in n > 0, or write bool(…) where Python's truth is meant",
        )


def _kept_fields(kind: str, function: Any, schema: StructType) -> tuple[Output, ...]:
    """The outputs of ``map`` and ``flat_map`` that are not named: the input's, as in Storm.

    A type is the annotation's where that says one for each field, else the input's.
    """
    whole = without_optional(describe(function, kind, call_site()).returned)
    item = whole if kind == "map" else Returned.of(whole).item
    parts = tuple_parts(item) if is_known(item) else None
    if parts is None and len(schema.fields) == 1:
        parts = (item,)
    if parts is None or len(parts) != len(schema.fields):
        return tuple((field.name, field.dataType) for field in schema.fields)
    return tuple((field.name, None if is_known(part) else field.dataType) for field, part in zip(schema.fields, parts))


def _calling(parent: Node, kind: str, function: UserFunction, inputs: tuple[str, ...]) -> PythonNode:
    return PythonNode(
        parents=(parent,),
        schema=parent.schema,
        operation=f"{kind}({function.name})",
        kind=kind,
        function=function,
        inputs=inputs,
    )


def _filter(parent: Node, operation: str, expression: Any) -> NativeNode:
    return NativeNode(
        parents=(parent,),
        schema=parent.schema,
        operation=operation,
        kind="filter",
        expression=expression,
    )


def _checked(parent: Node, kind: str, function: Any, inputs: tuple[str, ...]) -> UserFunction:
    site = call_site()
    require_fields(inputs, parent.schema, kind)
    described = describe(function, kind, site)
    what = f"{kind}({described.name})"
    check_arity(function, 1 if described.table else len(inputs), what)
    if described.vectors and not inputs:
        raise FieldError(f"{what} works on columns and is given none", expected="at least one input field")
    check_for_workers(function, what)
    return described
