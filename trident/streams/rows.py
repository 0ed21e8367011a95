"""The operations on rows, which streams and grouped streams have alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Union

from pyspark.sql import Column
from pyspark.sql.types import StructType

from trident.coordinators.errors import FieldError, TopologyError, described
from trident.operations import columns, joins, merging, multi_reduce, repartitioning, row_functions
from trident.operations.chained import partition_aggregate
from trident.operations.guarantees import warn_if_independent
from trident.operations.joins import JoinOutFieldsMode, join_within
from trident.operations.timed import TimedNode
from trident.planning.nodes import Names, Node, TopologyGraph, field_names
from trident.streams.other_names import OtherNames
from trident.udf.deferred import DeferredColumn, expr
from trident.udf.expressions import is_expression
from trident.udf.types import check_distinct

if TYPE_CHECKING:
    from typing_extensions import Self


# The arguments of a stream's operations, as users may write them.


Function = Callable[..., Any]
Outputs = Union[str, Iterable[str], StructType]
Columnar = Union["Column", DeferredColumn]
NOT_GIVEN: Any = object()


def shifted(inputs: Any, aggregator: Any, outputs: Any) -> tuple[Any, Any, Any]:
    """(inputs, aggregator, outputs), where inputs may have been left out."""
    if outputs is NOT_GIVEN:
        inputs, aggregator, outputs = (), inputs, aggregator
    if outputs is None:
        raise FieldError("the aggregate has no output field", expected="a name after the aggregator")
    return inputs, aggregator, outputs


def as_columns(*given: Any) -> list[Any]:
    """The Columns of ``agg``, which stand where the other form has its arguments."""
    return [one for one in given if one is not None and one is not NOT_GIVEN]


def flat(fields: tuple[Names, ...], what: str) -> tuple[str, ...]:
    """The names in ``("a", "b, c")``, at least one and each once."""
    names = [name for given in fields for name in field_names(given, what)]
    if not names:
        raise FieldError(f"{what} has no fields", expected="at least one field name")
    check_distinct(names, f"the fields of {what}")
    return tuple(names)


class RowOperations(OtherNames):
    """A place in a topology's graph, and what may follow it; a grouping, where there is one, stays."""

    def __init__(self, graph: TopologyGraph, node: Node, keys: tuple[str, ...] = ()) -> None:
        self._graph, self._node, self._keys = graph, node, keys

    @property
    def schema(self) -> StructType:
        """The fields and their types."""
        return self._node.schema

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self._node.names

    def _next(self, node: Node) -> "Self":
        self._graph.add(node)
        return type(self)(self._graph, node, self._keys)

    def each(
        self,
        inputs: Union[Names, Columnar],
        function: Union[Function, Outputs, None] = None,
        outputs: Outputs = "",
    ) -> "Self":
        """Appends fields: ``each("line", split, "word")`` or ``each(F.upper("word"), "upper")``.

        The function returns an iterable of values (one output) or of tuples
        (several outputs): each makes one row, none drops the row. A function
        annotated with a single value (``-> int``) makes one row, and None drops
        it. Without an annotation, text and whatever is not iterable is one
        value, and so is a tuple when there are several outputs.

        Without outputs, a function annotated ``-> bool`` is a filter, as in Trident.

        Args:
            inputs: the fields that the function is called with; or an expression.
            function: yours; with an expression: its outputs.
            outputs: names, with types where the annotation does not say them.

        Raises:
            FieldError: an input does not exist, or an output does already.
            OutputTypeError: an output's type is not known.
            TopologyError: the function takes another number of values, or cannot be pickled.
        """
        if is_expression(inputs):
            return self._next(row_functions.by_expression(self._node, "each", inputs, outputs or function))
        if outputs:
            names = field_names(inputs, "each")
            return self._next(row_functions.by_function(self._node, "each", names, function, outputs))
        if function is not None and row_functions.says_bool(function):
            return self._next(row_functions.filter_by_function(self._node, inputs, function))
        raise FieldError(
            "each has no outputs",
            expected="the new fields, as in each('line', split, 'word')",
            action="use filter for a condition and peek for a side effect",
        )

    def filter(self, inputs: Union[Names, Function, Columnar], function: Union[Function, None] = None) -> "Self":
        """Keeps the rows for which the condition holds.

        ``filter("word", is_long)``, ``filter(function_of_all_fields)``,
        ``filter(F.col("n") > 3)`` or, as SQL text, ``where("n > 3")``. A
        function returns True or False, of NumPy or Arrow too; None counts as
        False. Any other result fails the batch: Python takes the text "False"
        for true, and a generator. Write ``bool(…)`` where that is meant.
        """
        if isinstance(inputs, str) and function is None:
            inputs = expr(inputs)
        if is_expression(inputs):
            return self._next(row_functions.filter_by_expression(self._node, inputs))
        names, given = (self.fields, inputs) if function is None else (inputs, function)
        return self._next(row_functions.filter_by_function(self._node, names, given))

    where = filter

    def peek(self, inputs: Union[Names, Function], function: Union[Function, None] = None) -> "Self":
        """Calls a function with each row's values, for its side effect, on the executors.

        ``peek(print)`` takes all fields, ``peek("word", f)`` some. It is called
        again when a batch or a Spark task is tried again.
        """
        given: Any = inputs if function is None else function
        names = self.fields if function is None else field_names(inputs, "peek")
        return self._next(row_functions.peek(self._node, names, given))

    def project(self, *fields: Names) -> "Self":
        """Keeps the named fields, in that order: ``project("word", "n")``."""
        return self._next(row_functions.project(self._node, flat(fields, "project")))

    def with_column(self, name: str, column: Columnar) -> "Self":
        """Adds a field, or replaces the one of that name: ``with_column("n", F.col("n") + 1)``."""
        if not isinstance(name, str):
            raise FieldError("with_column needs a name", found=described(name), expected="text")
        return self._next(columns.with_columns(self._node, {name: column}))

    def partition_aggregate(self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN) -> "Self":
        """One aggregate per Spark partition, in place of its rows: ``partition_aggregate("n", Sum(), "part")``.

        An empty partition gives the initial value too. How many partitions there
        are says the repartitioning above with its hint; without one, the spout.
        Of a grouped stream: one row per group of each Spark partition, the keys,
        then the outputs.

        Args: as in :meth:`Stream.aggregate`.
        """
        return self._next(partition_aggregate(self._node, self._keys, *shifted(inputs, aggregator, outputs)))

    def parallelism_hint(self, count: int) -> "Self":
        """Sets the number of Spark partitions, up to the repartitioning above, or to the spout.

        Behind a native aggregate or a join it is an upper bound. Of two hints
        for the same rows the greater one counts. Rows that are moved for it, as
        by every repartitioning, are no longer in the batch's order: give
        ``Upsert`` an ``order_by`` then.

        Raises:
            TopologyError: it is no whole number from 1.
        """
        return self._next(repartitioning.parallelism_hint(self._node, count))

    def name(self, name: str) -> "Self":
        """Names this place of the stream in ``explain`` and the drawn plan."""
        return self._next(repartitioning.named(self._node, name))


# merge, join and multi_reduce of streams: all of one topology, and a warning where only rows of one batch meet.


def merge(graph: TopologyGraph, streams: Sequence[Any], outputs: Any) -> Node:
    """The node of :meth:`TridentTopology.merge`, in the graph."""
    _check(graph, streams, "merge")
    node = merging.merge([stream._node for stream in streams], outputs)
    graph.add(node)
    return node


def join(
    graph: TopologyGraph, streams: Sequence[Any], keys: Any, outputs: Any, type: Any, mode: JoinOutFieldsMode
) -> Node:
    """The node of :meth:`TridentTopology.join`, in the graph."""
    _check(graph, streams, "join")
    node = joins.join([stream._node for stream in streams], keys, outputs, type, mode)
    graph.add(node)
    warn_if_independent(node, node.operation)
    if not node.hidden:
        return node
    given = row_functions.project(node, node.names[node.hidden :])
    graph.add(given)
    return given


def joined_within(
    graph: TopologyGraph,
    streams: Sequence[Any],
    keys: Any,
    outputs: Any,
    how: Any,
    mode: JoinOutFieldsMode,
    within: Any,
    name: Any,
) -> TimedNode:
    """The node of a join with a time bound; the caller adds it to the graph."""
    _check(graph, streams, "join")
    return join_within(graph, [stream._node for stream in streams], keys, how, outputs, mode, within, name)


def reduce_several(graph: TopologyGraph, streams: Sequence[Any], inputs: Any, reducer: Any, outputs: Any) -> Node:
    """The node of :meth:`TridentTopology.multi_reduce`, in the graph."""
    what = "multi_reduce"
    keys = tuple(stream._keys if isinstance(stream, RowOperations) else () for stream in streams)
    if any(keys) and not all(keys):
        raise TopologyError(f"{what}: some of the streams are grouped and others not", expected="all of them, or none")
    _check(graph, streams, what, grouped=any(keys))
    node = multi_reduce.multi_reduce([stream._node for stream in streams], keys, inputs, reducer, outputs)
    graph.add(node)
    warn_if_independent(node, node.operation)
    return node


def _check(graph: TopologyGraph, streams: Sequence[Any], what: str, grouped: bool = False) -> None:
    if not streams:
        raise TopologyError(f"{what} has no streams", expected="at least one")
    for stream in streams:
        if not isinstance(stream, RowOperations) or bool(stream._keys) is not grouped:
            raise TopologyError(f"{what} takes streams", found=repr(stream), expected="a Stream of this topology")
        if stream._graph is not graph:
            raise TopologyError(
                f"{what}: the streams are of two topologies",
                found=f"one of {stream._graph.name!r} and one of {graph.name!r}",
                expected="streams of one topology: they meet within a transaction",
                action="read the other topology's table with a DeltaSpout",
            )
