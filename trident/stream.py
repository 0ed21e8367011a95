"""The fluent API: streams, grouped streams, and what is written to states.

A stream never changes: each operation gives a new one, so a stream may be
used by several branches. Everything that can be checked is checked at once:
fields, types, the number of a function's parameters, whether it can be sent to
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Union

from pyspark.sql.types import StructType

from coordinators.errors import FieldError, TopologyError
from trident.aggregation import aggregator_name, read_aggregation
from trident.aggregators import is_groupable
from trident.expressions import is_expression, resolve
from trident.functions import (
    Expr,
    UserFunction,
    call_site,
    check_arity,
    check_serialisable,
    describe,
    resolve_outputs,
)
from trident.nodes import (
    AggregateNode,
    Aggregation,
    Names,
    NativeNode,
    Node,
    ProjectNode,
    PythonNode,
    appended,
    field_names,
    picked,
    require_fields,
)
from trident.persisting import TridentState, partition_persist, persistent_aggregate
from trident.querying import state_query
from trident.types import check_distinct, parse_outputs

if TYPE_CHECKING:
    from pyspark.sql import Column

    from trident.topology import TridentTopology

Function = Callable[..., Any]
Outputs = Union[str, Iterable[str], StructType]
Columnar = Union["Column", Expr]
_NOT_GIVEN: Any = object()


class Stream:
    """Rows on their way through a topology, a batch at a time (SEMANTICS 4).

    Streams come from ``TridentTopology.new_stream`` and from other streams.

    Functions are called with one positional argument per input field. Output
    types come from the outputs (``"word string, n long"``) or else from the
    function's return annotation; Python's int is a bigint, float a double.

    A function that raises fails the attempt: a :class:`UserFunctionError`
    names the operation, the line and the row, and the batch is tried again.
    """

    def __init__(self, topology: "TridentTopology", node: Node) -> None:
        self._topology, self._node = topology, node

    @property
    def schema(self) -> StructType:
        """The fields and their types."""
        return self._node.schema

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self._node.names

    def __repr__(self) -> str:
        return f"Stream({self._node.schema.simpleString()})"

    # --- operations on rows --------------------------------------------------------------

    def each(
        self, inputs: Union[Names, Columnar], function: Union[Function, Outputs, None] = None, outputs: Outputs = "",
    ) -> "Stream":  # fmt: skip
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
            return self._native("each", inputs, outputs or function)
        if not outputs:
            if function is not None and _says_bool(function):
                return self._python_filter(inputs, function)
            raise FieldError(
                "each has no outputs", expected="the new fields, as in each('line', split, 'word')",
                action="use filter for a condition and peek for a side effect",
            )  # fmt: skip
        return self._python("each", field_names(inputs, "each"), function, outputs)

    def map(self, function: Union[Function, Columnar], outputs: Outputs) -> "Stream":
        """Replaces each row by one other: ``map(f, "a long, b string")``.

        The function is called with all fields and returns a value (one output,
        where None is a null value) or a tuple (several).
        """
        if is_expression(function):
            return self._native("map", function, outputs)
        return self._python("map", self.fields, function, outputs)

    def flat_map(self, function: Union[Function, Columnar], outputs: Outputs) -> "Stream":
        """Replaces each row by any number of others: ``flat_map(F.explode("words"), "word")``.

        The function is called with all fields and returns an iterable of values
        (one output) or tuples (several); None is no row.
        """
        if is_expression(function):
            return self._native("flat_map", function, outputs)
        return self._python("flat_map", self.fields, function, outputs)

    def filter(self, inputs: Union[Names, Function, Columnar], function: Union[Function, None] = None) -> "Stream":
        """Keeps the rows for which the condition holds.

        ``filter("word", is_long)``, ``filter(function_of_all_fields)`` or
        ``filter(F.col("n") > 3)``. What a function returns is taken as true or false.
        """
        if is_expression(inputs):
            site = call_site()
            condition: Any = inputs
            expression = resolve("filter", condition, (), self.schema, "filter")
            return self._next(
                NativeNode(
                    parents=(self._node,), schema=self.schema, operation=f"filter({expression})", location=site,
                    kind="filter", expression=expression,
                )  # fmt: skip
            )
        if function is None:
            return self._python_filter(self.fields, inputs)
        return self._python_filter(inputs, function)

    where = filter

    def project(self, *fields: Names) -> "Stream":
        """Keeps the named fields, in that order: ``project("word", "n")``."""
        names = _flat(fields, "project")
        require_fields(names, self.schema, "project")
        return self._next(
            ProjectNode(
                parents=(self._node,), schema=picked(self.schema, names),
                operation=f"project({', '.join(names)})", location=call_site(),
            )  # fmt: skip
        )

    select = project

    def peek(self, inputs: Union[Names, Function], function: Union[Function, None] = None) -> "Stream":
        """Calls a function with each row's values, for its side effect, on the executors.

        ``peek(print)`` takes all fields, ``peek("word", f)`` some. It is called
        again when a batch or a Spark task is tried again.
        """
        given: Any = inputs if function is None else function
        names = self.fields if function is None else field_names(inputs, "peek")
        described = self._function("peek", given, names)
        return self._next(
            PythonNode(
                parents=(self._node,), schema=self.schema, operation=f"peek({described.name})", location=call_site(),
                kind="peek", function=described, inputs=names,
            )  # fmt: skip
        )

    # --- groups and aggregates -----------------------------------------------------------

    def group_by(self, *fields: Names) -> "GroupedStream":
        """Groups by the named fields. Null is a group of its own."""
        names = _flat(fields, "group_by")
        require_fields(names, self.schema, "group_by")
        for name in names:
            if not is_groupable(self.schema[name].dataType):
                raise TopologyError(
                    f"group_by cannot use field {name!r}",
                    found=self.schema[name].dataType.simpleString(), expected="a type that can be compared",
                )  # fmt: skip
        return GroupedStream(self, names)

    def aggregate(self, inputs: Any, aggregator: Any = None, outputs: Any = _NOT_GIVEN) -> "Stream":
        """One row for the whole batch: ``aggregate("n", Sum(), "total")``, ``aggregate(Count(), "rows")``.

        There is exactly one, also for an empty batch: a combiner's ``zero()``, a
        reducer's ``init()``, what an aggregator's ``complete`` makes of its
        ``init``. The row holds the outputs only.

        Args:
            inputs: the fields that the aggregator takes; may be left out.
            aggregator: Count(), Sum(), Min(), Max(), or a Combiner, Reducer or Aggregator.
            outputs: the new fields.
        """
        return self._aggregate((), *_shifted(inputs, aggregator, outputs))

    agg = aggregate

    def persistent_aggregate(
        self, state: Any, inputs: Any, aggregator: Any = None, outputs: Any = _NOT_GIVEN
    ) -> TridentState:
        """Keeps an aggregate over all batches in a state: ``persistent_aggregate(state, Count(), "n")``.

        Exactly once for the states and spouts of SEMANTICS 5. An empty batch
        commits the aggregator's ``zero()``, so the state always has its row.

        A combiner's value is made of the batch before the transaction's turn and
        added; a reducer and an aggregator go on from the stored value, which is
        read as of the transaction before, in the transaction's turn: that costs a
        read of the state. An aggregator stores what its ``complete`` gives (one
        row) and goes on from it with ``resume(batch_id, *stored)``.

        Args:
            state: DeltaMapState(name), MemoryMapState(name), or a map of your own:
                opaque(name, map), transactional(name, map), non_transactional(name, map).
            inputs: the fields that the aggregator takes; may be left out.
            aggregator: Count(), Sum(), Min(), Max(), or a Combiner, Reducer or Aggregator.
            outputs: the field of the value; several for an Aggregator.
        """
        return persistent_aggregate(self, (), state, *_shifted(inputs, aggregator, outputs))

    def partition_persist(
        self, state: Any, inputs: Union[Names, None] = None, updater: Any = None, outputs: Any = "",
        partition_by: Union[Names, None] = None,
    ) -> TridentState:  # fmt: skip
        """Writes the rows to a state: ``partition_persist(DeltaAppend("words"), "word, n")``.

        - DeltaAppend(name) appends them.
        - With ``Upsert(keys)`` a DeltaMapState, MemoryMapState, opaque(…) or
          transactional(…) keeps the last row of each key.
        - A state of your own (a StateFactory with a ``name``) is given to your
          ``StateUpdater`` on the executors once the batch is decided: one call
          per partition of the state. It may be called again with the same rows
          and txid after a crash.
        - An updater of opaque(…) and transactional(…) is called before the
          decision; what it puts is published with it, and it may emit.

        Args:
            state: where to.
            inputs: the fields to write; all when left out.
            updater: as above.
            outputs: of an updater that emits, with their types: ``"word string, n long"``.
            partition_by: for a state of your own in several partitions: rows with
                equal values in these fields always come to the same one.
        """
        return partition_persist(self, state, inputs, updater, outputs, partition_by)

    def state_query(
        self, state: TridentState, inputs: Any, query: Any = None, outputs: Any = _NOT_GIVEN
    ) -> "Stream":
        """Looks each row up in a state: ``state_query(counts, "word", MapGet(), "count")``.

        The state is read as of the transaction before this one, exactly: neither
        more nor less, whatever is in flight and however often it is replayed.
        That happens in the transaction's turn. A static state is read at any time.

        Args:
            state: what persistent_aggregate, partition_persist or new_static_state gave.
            inputs: the fields that the query takes; may be left out.
            query: MapGet(), SnapshotGet(), TupleCollectionGet(), or a QueryFunction
                of your own for a state of your own.
            outputs: the new fields; their types are known for the built-in queries.

        Raises:
            TopologyError: the state cannot be asked that.
        """
        return state_query(self, state, *_shifted(inputs, query, outputs))

    # --- behind them ---------------------------------------------------------------------

    def _next(self, node: Node) -> "Stream":
        self._topology._add(node)
        return Stream(self._topology, node)

    def _function(self, kind: str, function: Any, inputs: tuple[str, ...]) -> UserFunction:
        site = call_site()
        require_fields(inputs, self.schema, kind)
        described = describe(function, kind, site)
        check_arity(function, len(inputs), f"{kind}({described.name})")
        check_serialisable(function, f"{kind}({described.name})")
        return described

    def _python(self, kind: str, inputs: tuple[str, ...], function: Any, outputs: Outputs) -> "Stream":
        described = self._function(kind, function, inputs)
        what = f"{kind}({described.name})"
        fields, many = resolve_outputs(kind, described, parse_outputs(outputs), what)
        base = self.schema if kind == "each" else StructType([])
        return self._next(
            PythonNode(
                parents=(self._node,), schema=appended(base, fields, what), operation=what, location=call_site(),
                kind=kind, function=described, inputs=inputs, outputs=tuple(name for name, _ in fields), many=many,
            )  # fmt: skip
        )

    def _python_filter(self, inputs: Any, function: Any) -> "Stream":
        names = field_names(inputs, "filter")
        described = self._function("filter", function, names)
        return self._next(
            PythonNode(
                parents=(self._node,), schema=self.schema, operation=f"filter({described.name})",
                location=call_site(), kind="filter", function=described, inputs=names,
            )  # fmt: skip
        )

    def _native(self, kind: str, source: Any, outputs: Any) -> "Stream":
        given = parse_outputs(outputs if outputs is not None else "")
        expression = resolve(kind, source, given, self.schema, kind)
        base = self.schema if kind == "each" else StructType([])
        schema = appended(base, [(field.name, field.dataType) for field in expression.outputs], kind)
        return self._next(
            NativeNode(
                parents=(self._node,), schema=schema, operation=f"{kind}({expression})", location=call_site(),
                kind=kind, expression=expression, outputs=tuple(field.name for field in expression.outputs),
            )  # fmt: skip
        )

    def _aggregate(self, keys: tuple[str, ...], inputs: Any, aggregator: Any, outputs: Any) -> "Stream":
        aggregation = read_aggregation(self.schema, "aggregate", keys, inputs, aggregator, outputs, call_site())
        schema = StructType([*picked(self.schema, keys).fields, *aggregation.outputs])
        return self._next(
            AggregateNode(
                parents=(self._node,), schema=schema, aggregation=aggregation, location=call_site(),
                operation=f"aggregate({aggregator_name(aggregation.aggregator)})",
            )  # fmt: skip
        )


class GroupedStream:
    """A stream with the fields that its rows are grouped by."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self._stream, self._keys = stream, keys

    @property
    def keys(self) -> tuple[str, ...]:
        """The grouping fields."""
        return self._keys

    def __repr__(self) -> str:
        return f"GroupedStream({', '.join(self._keys)} of {self._stream!r})"

    def aggregate(self, inputs: Any, aggregator: Any = None, outputs: Any = _NOT_GIVEN) -> Stream:
        """One row per group of the batch: the keys, then the outputs. None for an empty batch.

        Args: as in :meth:`Stream.aggregate`.
        """
        return self._stream._aggregate(self._keys, *_shifted(inputs, aggregator, outputs))

    agg = aggregate

    def persistent_aggregate(
        self, state: Any, inputs: Any, aggregator: Any = None, outputs: Any = _NOT_GIVEN
    ) -> TridentState:
        """Keeps one value per group over all batches: ``persistent_aggregate(state, Count(), "n")``.

        Args: as in :meth:`Stream.persistent_aggregate`.
        """
        return persistent_aggregate(self._stream, self._keys, state, *_shifted(inputs, aggregator, outputs))


# --- reading arguments -------------------------------------------------------------------


def _shifted(inputs: Any, aggregator: Any, outputs: Any) -> tuple[Any, Any, Any]:
    """(inputs, aggregator, outputs), where inputs may have been left out."""
    if outputs is _NOT_GIVEN:
        inputs, aggregator, outputs = (), inputs, aggregator
    if outputs is None:
        raise FieldError("the aggregate has no output field", expected="a name behind the aggregator")
    return inputs, aggregator, outputs


def _flat(fields: tuple[Names, ...], what: str) -> tuple[str, ...]:
    names = [name for given in fields for name in field_names(given, what)]
    if not names:
        raise FieldError(f"{what} has no fields", expected="at least one field name")
    check_distinct(names, f"the fields of {what}")
    return tuple(names)


def _says_bool(function: Any) -> bool:
    return callable(function) and describe(function, "each", "").returned is bool
