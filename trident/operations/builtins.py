"""Decides where a built-in function, such as Split(), is an expression of Spark; else it is called row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import StructField, StructType

from trident.operations.row_nodes import ProjectNode, PythonNode
from trident.planning.nodes import Node
from trident.udf.builtins import NativeForm, form_of
from trident.udf.deferred import Expr
from trident.udf.expressions import Analysis, Expression
from trident.workers.own_steps import OwnFunction


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
