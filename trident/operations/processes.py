"""process: calls an object of the user's for the rows of each key, and at times that it sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.types import ArrayType, DataType, LongType, StructField, StructType

from trident.coordinators.errors import OutputTypeError, TopologyError
from trident.operations.timed import TimedNode, TimedSpec, default_name, timed
from trident.operations.window_nodes import now_us
from trident.operations.windows import watermark_of
from trident.planning.nodes import Node, TopologyGraph, field_names, require_fields
from trident.planning.operation import arrow_type, arrow_types, names_of
from trident.states.core.binding import aggregator_name
from trident.udf.signatures import call_site, check_arity, check_for_workers, function_location, function_name
from trident.udf.types import check_distinct, parse_outputs
from trident.workers.failures import Label
from trident.workers.timers import TIMERS, VALUE, Process

KIND = "process"


def process(
    graph: TopologyGraph,
    parent: Node,
    keys: tuple[str, ...],
    inputs: Any,
    processor: Any,
    outputs: Any,
    state: Any,
    name: Any,
    clock: Callable[[], int] = now_us,
) -> TimedNode:
    """See :meth:`trident.streams.stream.GroupedStream.process`.

    Args:
        clock: of processing time; microseconds since 1970.
    """
    if isinstance(processor, type):
        raise TopologyError(
            f"{KIND} needs an object, not its class", found=processor.__name__, expected=f"{processor.__name__}()"
        )
    for method in ("on_row", "on_time"):
        if not callable(getattr(processor, method, None)):
            raise TopologyError(
                f"{KIND} needs an object with on_row and on_time",
                found=f"{processor!r} without {method}",
                expected="on_row(context, *inputs) and on_time(context, time)",
            )
    given = field_names(inputs, KIND) if inputs else ()
    require_fields(given, parent.schema, KIND)
    what = f"{KIND}({function_name(type(processor))})"
    check_arity(processor.on_row, len(given), f"on_row of {what}", ("the context",))
    check_arity(processor.on_time, 0, f"on_time of {what}", ("the context", "the time"))
    check_for_workers(processor, what)
    made, kept = _typed(outputs, f"the outputs of {what}"), _typed(state, f"the state of {what}")
    check_distinct([*keys, *made.names], f"the keys and outputs of {what}")
    watermark = watermark_of(parent)
    times = "processing time" if watermark is None else f"{watermark.field} delayed by {watermark.delay} us"
    spec = TimedSpec(
        f"process({aggregator_name(processor)} by {times})",
        (None if watermark is None else watermark.field,),
        (0 if watermark is None else watermark.delay,),
    )
    location = function_location(processor.on_row) or call_site()
    values = [StructField(VALUE, kept, True), StructField(TIMERS, ArrayType(LongType(), True), True)]
    return timed(
        (parent,),
        KIND,
        f"{KIND}({function_name(type(processor))} by {', '.join(keys)})",
        (keys,),
        spec,
        values,
        default_name(graph, KIND) if name is None else name,
        given=StructType([*(StructField(key, parent.schema[key].dataType, True) for key in keys), *made.fields]),
        rule=lambda node: Process(
            Label(node.operation, location),
            processor,
            node.keys,
            tuple((parent.names.index(field), field) for field in given),
            _pairs(kept),
            arrow_type(kept),
            _pairs(made),
            arrow_type(node.given),
        ),
        clock=clock,
        user_code=True,
    )


def _typed(given: Any, what: str) -> StructType:
    """Fields with their types.

    Raises:
        OutputTypeError: a type is missing, or there is no field.
    """
    if not given:
        raise OutputTypeError(f"{what} are not given", expected="fields with types, as in 'n long, at timestamp'")
    fields = []
    for name, kind in parse_outputs(given):
        if not isinstance(kind, DataType):
            raise OutputTypeError(
                f"{what} need types", found=repr(name), expected=f"a type after it, as in '{name} long'"
            )
        fields.append(StructField(name, kind, True))
    return StructType(fields)


def _pairs(schema: StructType) -> tuple[tuple[str, Any], ...]:
    fields = tuple(schema.fields)
    return tuple(zip(names_of(fields), arrow_types(fields)))
