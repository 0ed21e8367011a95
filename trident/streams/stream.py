"""The fluent API: streams, grouped streams, and writes to states.

A stream never changes: each operation gives a new one, so a stream may be
used by several branches. Everything that can be checked is checked at once:
fields, types, the number of a function's parameters, whether it can be sent to
workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from pyspark.sql.types import StructType

from trident.coordinators.errors import FieldError, TopologyError, described
from trident.operations import columns
from trident.operations import joins as meetings
from trident.operations.aggregates import AggregateNode
from trident.operations.aggregation import aggregator_name, read_aggregation
from trident.operations.aggregators import is_groupable
from trident.operations.builtins import as_expression, native_form
from trident.operations.chained import ChainedAggregation, partition_aggregate
from trident.operations.joins import JoinOutFieldsMode
from trident.operations.kept_fields import kept_fields
from trident.operations.persisting import TridentState, partition_persist, persistent_aggregate
from trident.operations.repartitioning import hint, named, repartition, unmoved
from trident.operations.row_nodes import NativeNode, ProjectNode, PythonNode
from trident.operations.state_queries import state_query
from trident.operations.top_rows import FirstN, extreme
from trident.operations.windows import WindowedStream, window, with_watermark
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import Names, Node, appended, field_names, picked, require_fields
from trident.streams.arguments import NOT_GIVEN, Columnar, Function, Outputs, as_columns, flat, shifted
from trident.streams.grouped import GroupedStream
from trident.streams.other_names import STREAM_NAMES, OtherNames
from trident.udf.deferred import expr
from trident.udf.expressions import is_expression, resolve
from trident.udf.signatures import (
    UserFunction,
    call_site,
    check_arity,
    check_lifecycle,
    check_serialisable,
    describe,
    resolve_outputs,
)
from trident.udf.types import parse_outputs
from trident.udf.vectorised import vector_outputs


class Stream(OtherNames):
    """Rows on their way through a topology, a batch at a time (docs/semantics.md 4).

    Streams come from ``TridentTopology.new_stream`` and from other streams.

    Functions are called with one positional argument per input field. Output
    types come from the outputs (``"word string, n long"``) or else from the
    function's return annotation; Python's int is a bigint, float a double.

    A function may be an object with ``__call__`` and ``prepare(context)`` or
    ``cleanup()``: each Spark task has a copy of its own, prepares it before the
    first row and cleans it up behind the last, also after a failure
    (:class:`OperationContext`); so for aggregators. One that works on whole
    columns is marked or annotated: :func:`arrow_function`, :func:`pandas_function`.

    A function that raises fails the attempt: a :class:`UserFunctionError`
    names the operation, the line and the row, and the batch is tried again.
    """

    _OTHER_NAMES = STREAM_NAMES

    def __init__(self, graph: TopologyGraph, node: Node) -> None:
        self._graph, self._node = graph, node

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
        self,
        inputs: Union[Names, Columnar],
        function: Union[Function, Outputs, None] = None,
        outputs: Outputs = "",
    ) -> "Stream":
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
                "each has no outputs",
                expected="the new fields, as in each('line', split, 'word')",
                action="use filter for a condition and peek for a side effect",
            )
        return self._python("each", field_names(inputs, "each"), function, outputs)

    def map(self, function: Union[Function, Columnar], outputs: Union[Outputs, None] = None) -> "Stream":
        """Replaces each row by one other: ``map(f, "a long, b string")``.

        The function is called with all fields and returns a value (one output,
        where None is a null value) or a tuple (several). Without outputs the fields
        stay what they are: it returns as many values as there are fields.
        """
        if is_expression(function):
            return self._native("map", function, outputs)
        return self._python("map", self.fields, function, outputs)

    def flat_map(self, function: Union[Function, Columnar], outputs: Union[Outputs, None] = None) -> "Stream":
        """Replaces each row by any number of others: ``flat_map(F.explode("words"), "word")``.

        The function is called with all fields and returns an iterable of values
        (one output) or tuples (several); None is no row. Without outputs as
        :meth:`map`.
        """
        if is_expression(function):
            return self._native("flat_map", function, outputs)
        return self._python("flat_map", self.fields, function, outputs)

    def filter(self, inputs: Union[Names, Function, Columnar], function: Union[Function, None] = None) -> "Stream":
        """Keeps the rows for which the condition holds.

        ``filter("word", is_long)``, ``filter(function_of_all_fields)``,
        ``filter(F.col("n") > 3)`` or, as SQL text, ``where("n > 3")``. What a
        function returns is taken as true or false.
        """
        if isinstance(inputs, str) and function is None:
            inputs = expr(inputs)
        if is_expression(inputs):
            site = call_site()
            condition: Any = inputs
            expression = resolve("filter", condition, (), self.schema, "filter")
            return self._next(
                NativeNode(
                    parents=(self._node,),
                    schema=self.schema,
                    operation=f"filter({expression})",
                    location=site,
                    kind="filter",
                    expression=expression,
                )
            )
        if function is None:
            return self._python_filter(self.fields, inputs)
        return self._python_filter(inputs, function)

    where = filter

    def project(self, *fields: Names) -> "Stream":
        """Keeps the named fields, in that order: ``project("word", "n")``."""
        names = flat(fields, "project")
        require_fields(names, self.schema, "project")
        return self._next(
            ProjectNode(
                parents=(self._node,),
                schema=picked(self.schema, names),
                operation=f"project({', '.join(names)})",
                location=call_site(),
            )
        )

    def select(self, *fields: Any) -> "Stream":
        """Fields and Columns side by side: ``select("word", F.upper("word").alias("upper"))``.

        With names alone it is ``project``.

        Raises:
            FieldError: a field does not exist, or two have one name.
            TopologyError: a Column makes many rows, or one of many.
        """
        if not any(is_expression(field) for field in fields):
            return self.project(*fields)
        return columns.select(self, fields)

    def with_column(self, name: str, column: Columnar) -> "Stream":
        """Adds a field, or replaces the one of that name: ``with_column("n", F.col("n") + 1)``."""
        if not isinstance(name, str):
            raise FieldError("with_column needs a name", found=described(name), expected="text")
        return columns.with_columns(self, {name: column})

    def with_columns(self, made: Mapping[str, Columnar]) -> "Stream":
        """As ``with_column``, several at once; each sees the fields as they were before."""
        return columns.with_columns(self, made)

    def drop(self, *fields: Names) -> "Stream":
        """All fields but the named ones: ``drop("line")``."""
        return columns.drop(self, flat(fields, "drop"))

    def rename(self, names: Mapping[str, str]) -> "Stream":
        """Gives fields other names: ``rename({"value": "line"})``; the order stays."""
        return columns.rename(self, names)

    def apply_assembly(self, assembly: Any) -> "Stream":
        """A part of a topology that is used in several places: ``apply_assembly(FirstN(3, "n", reverse=True))``.

        Args:
            assembly: an object with ``apply(stream)``, or a function of a stream; it gives a stream.

        Raises:
            TopologyError: it gives something else.
        """
        apply = getattr(assembly, "apply", assembly)
        if not callable(apply):
            raise TopologyError(
                "apply_assembly needs an assembly",
                found=repr(assembly),
                expected="an object with apply(stream), or a function of a stream",
            )
        made = apply(self)
        if not isinstance(made, (Stream, GroupedStream, TridentState)):
            raise TopologyError(f"the assembly {assembly!r} gives no stream", found=repr(made), expected="a Stream")
        return made  # type: ignore[return-value]

    transform = apply_assembly

    # --- several streams -----------------------------------------------------------------

    def merge(self, *others: "Stream", outputs: Union[Names, None] = None) -> "Stream":
        """The rows of this stream and of others, within each batch; see :meth:`TridentTopology.merge`."""
        return meetings.merge(self._graph, [self, *others], outputs)

    union = merge

    def join(
        self,
        other: "Stream",
        on: Any,
        how: Any = "inner",
        outputs: Union[Names, None] = None,
        mode: JoinOutFieldsMode = JoinOutFieldsMode.COMPACT,
    ) -> "Stream":
        """Joins the rows of each batch with those of another stream: ``join(other, "user", "left")``.

        Rows of two transactions never meet: what that means for streams of
        independent spouts is said at :meth:`TridentTopology.join`.

        Args:
            other: of the same topology.
            on: the keys: one choice for both, or ``["a", "b"]`` where they have other names in the other stream.
            how: "inner", "left", "right", "full", or as in :meth:`TridentTopology.join`.
            outputs: the keys, then this stream's other fields, then the other's; or as ``mode`` says.
            mode: which fields; as in :meth:`TridentTopology.join`.
        """
        return meetings.join(self._graph, [self, other], on, outputs, how, mode)

    # --- Spark partitions ------------------------------------------------------------------

    def shuffle(self) -> "Stream":
        """Spreads the rows evenly over the Spark partitions."""
        return repartition(self, "shuffle", "shuffle")

    def local_or_shuffle(self) -> "Stream":
        """As ``shuffle`` where that costs nothing: here the rows stay where they are."""
        return unmoved(self, "local_or_shuffle()")

    def identity_partition(self) -> "Stream":
        """The rows stay where they are."""
        return unmoved(self, "identity_partition()")

    def broadcast(self) -> "Stream":
        """Every row in every Spark partition. Not Spark's hint of that name: the rows are multiplied."""
        return repartition(self, "broadcast", "broadcast")

    def partition_by(self, *fields: Names) -> "Stream":
        """Rows with equal values in the fields come to one Spark partition; null is equal to null."""
        return repartition(self, "partition_by", "partition_by", flat(fields, "partition_by"))

    def partition(self, inputs: Union[Names, Function], function: Union[Function, None] = None) -> "Stream":
        """A function says which Spark partition each row comes to: ``partition("user", lambda user: user % 4)``.

        It returns a number from 0, taken modulo the number of partitions; or
        several, for a row that is to be in several.
        """
        given: Any = inputs if function is None else function
        names = self.fields if function is None else field_names(inputs, "partition")
        return repartition(self, "partition", "partition", names, given)

    def global_(self) -> "Stream":
        """All rows of the batch in one Spark partition."""
        return repartition(self, "global", "global_")

    batch_global = global_

    def parallelism_hint(self, count: int) -> "Stream":
        """So many Spark partitions, up to the repartitioning above, or to the spout.

        Behind a native aggregate or a join it is an upper bound. Of two hints
        for the same rows the greater one counts. Rows that are moved for it, as
        by every repartitioning, are no longer in the batch's order: give
        ``Upsert`` an ``order_by`` then.

        Raises:
            TopologyError: it is no whole number from 1.
        """
        return hint(self, count)

    def name(self, name: str) -> "Stream":
        """Names this place of the stream in ``explain`` and the drawn plan."""
        return named(self, name)

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
                parents=(self._node,),
                schema=self.schema,
                operation=f"peek({described.name})",
                location=call_site(),
                kind="peek",
                function=described,
                inputs=names,
            )
        )

    # --- groups and aggregates -----------------------------------------------------------

    def group_by(self, *fields: Names) -> "GroupedStream":
        """Groups by the named fields. Null is a group of its own."""
        names = flat(fields, "group_by")
        require_fields(names, self.schema, "group_by")
        for name in names:
            if not is_groupable(self.schema[name].dataType):
                raise TopologyError(
                    f"group_by cannot use field {name!r}",
                    found=self.schema[name].dataType.simpleString(),
                    expected="a type that can be compared",
                )
        return GroupedStream(self, names)

    def aggregate(self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN) -> "Stream":
        """One row for the whole batch: ``aggregate("n", Sum(), "total")``, ``aggregate(Count(), "rows")``.

        There is exactly one, also for an empty batch: a combiner's ``zero()``, a
        reducer's ``init()``, what an aggregator's ``complete`` makes of its
        ``init``. The row holds the outputs only.

        Args:
            inputs: the fields that the aggregator takes; may be left out.
            aggregator: Count(), Sum(), Min(), Max(), or a Combiner, Reducer or Aggregator.
            outputs: the new fields.
        """
        return self._aggregate((), *shifted(inputs, aggregator, outputs))

    def agg(self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN, *more: Any) -> "Stream":
        """``aggregate``; or, as in PySpark, aggregate Columns: ``agg(F.sum("n").alias("total"))``.

        One row for the whole batch either way.
        """
        if is_expression(inputs):
            return columns.column_aggregate(self, (), as_columns(inputs, aggregator, outputs, *more))
        return self.aggregate(inputs, aggregator, outputs)

    def partition_aggregate(self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN) -> "Stream":
        """One aggregate per Spark partition, in place of its rows: ``partition_aggregate("n", Sum(), "part")``.

        An empty partition gives the initial value too. How many partitions there
        are says the repartitioning above with its hint; without one, the spout.

        Args: as in :meth:`aggregate`.
        """
        return partition_aggregate(self, (), *shifted(inputs, aggregator, outputs))

    def chained_agg(self) -> ChainedAggregation:
        """Several aggregates of the same rows; see :class:`ChainedAggregation`."""
        return ChainedAggregation(self, ())

    def min_by(self, field: str, comparator: Union[Function, None] = None, scope: str = "partition") -> "Stream":
        """The row with the least value in a field: of each Spark partition, as in Trident, or of the batch.

        Rows where it is null are skipped; of equal ones the later one is kept;
        no row gives no row.

        Args:
            field: that is compared.
            comparator: (a, b) → below 0, 0 or above 0; the values' own order when None.
            scope: "partition" or "batch".
        """
        return extreme(self, "min_by", field_names(field, "min_by"), False, comparator, scope)

    def max_by(self, field: str, comparator: Union[Function, None] = None, scope: str = "partition") -> "Stream":
        """The row with the greatest value in a field; otherwise as :meth:`min_by`."""
        return extreme(self, "max_by", field_names(field, "max_by"), True, comparator, scope)

    def min(self, comparator: Union[Function, None] = None, scope: str = "partition") -> "Stream":
        """The least row, by all its fields in their order; a comparator is given tuples of them.

        Otherwise as :meth:`min_by`; a row with a null is skipped.
        """
        return extreme(self, "min", self.fields, False, comparator, scope)

    def max(self, comparator: Union[Function, None] = None, scope: str = "partition") -> "Stream":
        """The greatest row; otherwise as :meth:`min`."""
        return extreme(self, "max", self.fields, True, comparator, scope)

    def first_n(self, n: int, by: Union[str, None] = None, reverse: bool = False) -> "Stream":
        """The first n rows of the batch: ``first_n(3, "n", reverse=True)``; see :class:`FirstN`."""
        return FirstN(n, by, reverse).apply(self)

    def persistent_aggregate(
        self, state: Any, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN
    ) -> TridentState:
        """Keeps an aggregate over all batches in a state: ``persistent_aggregate(state, Count(), "n")``.

        Exactly once for the states and spouts of docs/semantics.md 5. An empty batch
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
        return persistent_aggregate(self, (), state, *shifted(inputs, aggregator, outputs))

    def partition_persist(
        self,
        state: Any,
        inputs: Union[Names, None] = None,
        updater: Any = None,
        outputs: Any = "",
        partition_by: Union[Names, None] = None,
    ) -> TridentState:
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

    def state_query(self, state: TridentState, inputs: Any, query: Any = None, outputs: Any = NOT_GIVEN) -> "Stream":
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
        return state_query(self, state, *shifted(inputs, query, outputs))

    # --- windows -------------------------------------------------------------------------

    def with_watermark(self, field: str, delay: str) -> "Stream":
        """Makes a timestamp the event time of windows behind: ``with_watermark("at", "10 minutes")``, as in PySpark.

        The watermark is the greatest timestamp so far, less the delay. Windows
        that it has reached the end of are fired; rows that come for them later
        are late. A timestamp far in the future fires everything up to it.

        Args:
            field: a timestamp; the windows need it still.
            delay: how much later than others rows may come, such as "1 hour 30 seconds".

        Raises:
            FieldError: there is no such field.
            TopologyError: it is no timestamp, or the delay is no duration.
        """
        return with_watermark(self, field, delay)

    def tumbling_window(self, length: Union[int, str], name: Union[str, None] = None) -> WindowedStream:
        """Windows that follow each other: ``tumbling_window(100)``, ``tumbling_window("10 minutes")``.

        Args: as in :meth:`sliding_window`, with a slide that is the length.
        """
        return window(self, "tumbling_window", length, length, name)

    def sliding_window(
        self, length: Union[int, str], slide: Union[int, str], name: Union[str, None] = None
    ) -> WindowedStream:
        """Windows of one length that begin a slide apart: ``sliding_window("10 minutes", "5 minutes")``.

        Of rows: each slide rows, a window of the last length rows, in the order
        in which they arrive. Of time: windows begin at multiples of the slide
        since 1970; event time behind :meth:`with_watermark`, else the time of
        the transaction. When they fire, and what is kept: :class:`WindowedStream`.

        All fields are kept until their windows have fired: ``project`` those
        that are needed first.

        Args:
            length: rows, or a duration such as "10 minutes" or "1 hour 30 seconds".
            slide: the same, at most the length.
            name: of the state that keeps the rows; one after the topology's name
                when left out. Give one where the topology may get further windows:
                the state, and what is in it, is found by it after a restart.

        Raises:
            TopologyError: there are no such windows.
            FieldError: a field has a name that windows use themselves.
        """
        return window(self, "sliding_window", length, slide, name)

    # --- behind them ---------------------------------------------------------------------

    def _next(self, node: Node) -> "Stream":
        self._graph.add(node)
        return Stream(self._graph, node)

    def _function(self, kind: str, function: Any, inputs: tuple[str, ...]) -> UserFunction:
        site = call_site()
        require_fields(inputs, self.schema, kind)
        described = describe(function, kind, site)
        what = f"{kind}({described.name})"
        check_arity(function, 1 if described.table else len(inputs), what)
        if described.vectors and not inputs:
            raise FieldError(f"{what} works on columns and is given none", expected="at least one input field")
        check_lifecycle(function, what)
        check_serialisable(function, what)
        return described

    def _python(self, kind: str, inputs: tuple[str, ...], function: Any, outputs: Union[Outputs, None]) -> "Stream":
        described = self._function(kind, function, inputs)
        what = f"{kind}({described.name})"
        many: bool | None = None
        named = kept_fields(kind, function, self.schema) if outputs is None else parse_outputs(outputs)
        if described.vectors:
            fields = vector_outputs(named, described.name, what)
        else:
            fields, many = resolve_outputs(kind, described, named, what)
        base = self.schema if kind == "each" else StructType([])
        form = native_form(function, inputs, self._node)
        if form is not None and [type_ for _, type_ in fields] == [form.type]:
            schema = appended(base, fields, what)
            made = [schema[name] for name, _ in fields]
            return self._next(
                NativeNode(
                    parents=(self._node,),
                    schema=schema,
                    operation=what,
                    location=call_site(),
                    kind=kind,
                    expression=as_expression(form, inputs, self.schema, made, what),
                    outputs=(made[0].name,),
                )
            )
        return self._next(
            PythonNode(
                parents=(self._node,),
                schema=appended(base, fields, what),
                operation=what,
                location=call_site(),
                kind=kind,
                function=described,
                inputs=inputs,
                outputs=tuple(name for name, _ in fields),
                many=many,
            )
        )

    def _python_filter(self, inputs: Any, function: Any) -> "Stream":
        names = field_names(inputs, "filter")
        described = self._function("filter", function, names)
        form = native_form(function, names, self._node)
        if form is not None:
            what = f"filter({described.name})"
            return self._next(
                NativeNode(
                    parents=(self._node,),
                    schema=self.schema,
                    operation=what,
                    location=call_site(),
                    kind="filter",
                    expression=as_expression(form, names, self.schema, (), what),
                )
            )
        return self._next(
            PythonNode(
                parents=(self._node,),
                schema=self.schema,
                operation=f"filter({described.name})",
                location=call_site(),
                kind="filter",
                function=described,
                inputs=names,
            )
        )

    def _native(self, kind: str, source: Any, outputs: Any) -> "Stream":
        given = parse_outputs(outputs if outputs is not None else "")
        expression = resolve(kind, source, given, self.schema, kind)
        base = self.schema if kind == "each" else StructType([])
        schema = appended(base, [(field.name, field.dataType) for field in expression.outputs], kind)
        return self._next(
            NativeNode(
                parents=(self._node,),
                schema=schema,
                operation=f"{kind}({expression})",
                location=call_site(),
                kind=kind,
                expression=expression,
                outputs=tuple(field.name for field in expression.outputs),
            )
        )

    def _aggregate(self, keys: tuple[str, ...], inputs: Any, aggregator: Any, outputs: Any) -> "Stream":
        aggregation = read_aggregation(self.schema, "aggregate", keys, inputs, aggregator, outputs, call_site())
        schema = StructType([*picked(self.schema, keys).fields, *aggregation.outputs])
        return self._next(
            AggregateNode(
                parents=(self._node,),
                schema=schema,
                aggregation=aggregation,
                location=call_site(),
                operation=f"aggregate({aggregator_name(aggregation.aggregator)})",
            )
        )


def _says_bool(function: Any) -> bool:
    return callable(function) and describe(function, "each", "").returned is bool
