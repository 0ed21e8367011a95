"""Reads the arguments of ``aggregate`` and ``persistent_aggregate``, and checks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import DataType, StructField, StructType

from trident.coordinators.errors import OutputTypeError, TopologyError
from trident.operations.aggregators import aggregator_kind
from trident.planning.nodes import check_given_type, field_names, require_fields
from trident.udf.signatures import (
    check_arity,
    check_for_workers,
    describe,
    function_location,
    function_name,
    resolve_outputs,
    return_annotation,
)
from trident.udf.types import check_distinct, is_known, parse_outputs


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
