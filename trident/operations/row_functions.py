"""each, map, flat_map, filter, peek and project: checks what the user gives, and makes the nodes."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import BooleanType, StructType

from trident.coordinators.errors import FieldError, OutputTypeError
from trident.operations.builtins import as_expression, native_form
from trident.operations.row_nodes import NativeNode, ProjectNode, PythonNode
from trident.planning.nodes import Node, appended, field_names, picked, require_fields
from trident.udf.expressions import resolve
from trident.udf.signatures import (
    UserFunction,
    call_site,
    check_arity,
    check_for_workers,
    check_runs,
    describe,
    resolve_outputs,
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
from trident.udf.vectorised import vector_outputs


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
