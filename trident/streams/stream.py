"""The classes that users chain: streams, grouped and windowed ones, chained aggregations, states.

A stream never changes: each operation gives a new one. It checks at once what it
can: fields, types, a function's parameters, whether it can be pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

from trident.coordinators.errors import FieldError, TopologyError
from trident.operations import columns, persisting, timed, window_nodes, windows
from trident.operations.aggregates import aggregate, check_groupable
from trident.operations.aggregators import Count
from trident.operations.chained import AggregationChain
from trident.operations.processes import process
from trident.operations.state_nodes import PersistNode
from trident.operations.state_queries import state_query
from trident.planning.nodes import Names, Node, TopologyGraph
from trident.streams.other_names import GROUPED_NAMES, STREAM_NAMES, snake_case
from trident.streams.rows import NOT_GIVEN, RowOperations, as_columns, flat, shifted
from trident.streams.states import StateHandle, add_sink, queried_state
from trident.streams.ungrouped import StreamOperations
from trident.udf.expressions import is_expression

# The operation of a grouped stream that keeps a state and timers for each key: ``process``.


# The stream without the grouping.
Ungrouped = TypeVar("Ungrouped")


class TimedOperations(RowOperations, Generic[Ungrouped]):
    """Operations of a grouped stream that keep something for each key by time."""

    if TYPE_CHECKING:

        def _ungrouped(self, node: Node) -> Ungrouped: ...

    def process(
        self,
        inputs: Union[Names, None],
        processor: Any,
        outputs: Any,
        state: Any,
        name: Union[str, None] = None,
    ) -> Ungrouped:
        """Calls an object of yours for the rows of each key, and at times that it sets, with a state of the key.

        ::

            class Abandoned:
                \"\"\"Tells which baskets saw nothing for half an hour.\"\"\"

                def on_row(self, context, items, at):
                    context.clear()                                  # the timer of the row before, too
                    context.state = items
                    context.set_timer(at + timedelta(minutes=30))

                def on_time(self, context, time):
                    yield time, context.state
                    context.clear()

            baskets.with_watermark("at", "1 minute").group_by("user").process(
                "items, at", Abandoned(), "since timestamp, items long", state="items long"
            )

        ``on_row(context, *inputs)`` is called for each row in order of arrival, then ``on_time(context, time)``
        for each timer of the key that is due, in order of time. Both return rows as the function of ``each`` does:
        a value (one output) or a tuple (several), several of them, or None. The context is a
        :class:`trident.TimerContext`: the ``key``, its ``state``, ``now``, ``set_timer``, ``clear_timer``, ``clear``.

        Behind ``with_watermark`` time is event time: a timer is due in the first transaction whose watermark has
        reached it, and a row before the watermark of the transaction before, or without a time, is late: among
        :meth:`Stream.late_rows`, and not given to ``on_row``. Without it time is that of the transaction, read once
        in its turn. Either way timers fire in a transaction only: one without rows fires those of processing time.

        Each timer fires exactly once, and each row counts exactly once, over replays, crashes and restarts: state
        and timers are a keyed state of the group. The object's own attributes are not kept, and an attempt that
        fails is called again: what it does elsewhere may happen twice.

        Args:
            inputs: the fields that ``on_row`` is given.
            processor: with ``on_row`` and ``on_time``; and ``prepare`` and ``cleanup``, as other functions may have.
            outputs: the fields behind the keys, with their types.
            state: the fields of a key's state, with their types: ``"n long, last timestamp"``.
            name: of the state; one after the topology's name when left out.

        Raises:
            FieldError: a field does not exist, or cannot be a key.
            OutputTypeError: a type is missing.
            TopologyError: the object lacks a method, or takes other arguments.
        """
        return self._process(inputs, processor, outputs, state, name)

    def _process(self, inputs: Any, processor: Any, outputs: Any, state: Any, name: Any, **clock: Any) -> Ungrouped:
        node = process(self._graph, self._node, self._keys, inputs, processor, outputs, state, name, **clock)
        add_sink(self._graph, node)
        return self._ungrouped(timed.rows_of(node))


class _Ends(RowOperations):
    """The common part of streams and grouped streams, and the end of a grouping."""

    def _ungrouped(self, node: Node) -> "Stream":
        self._graph.add(node)
        return Stream(self._graph, node)

    def _written(self, node: PersistNode) -> "TridentState":
        add_sink(self._graph, node)
        return TridentState(self._graph, node)

    def aggregate(self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN) -> "Stream":
        """One row for the whole batch: ``aggregate("n", Sum(), "total")``, ``aggregate(Count(), "rows")``.

        There is exactly one, also for an empty batch: a combiner's ``zero()``, a
        reducer's ``init()``, what an aggregator's ``complete`` makes of its
        ``init``. The row holds the outputs only. Of a grouped stream: one row per
        group of the batch, the keys, then the outputs; none for an empty batch.

        Args:
            inputs: the fields that the aggregator takes; may be left out.
            aggregator: Count(), Sum(), Min(), Max(), or a Combiner, Reducer or Aggregator.
            outputs: the new fields.
        """
        node = window_nodes.rows_once_more(self._graph, self._node)
        return self._ungrouped(aggregate(node, self._keys, *shifted(inputs, aggregator, outputs)))

    def agg(self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN, *more: Any) -> "Stream":
        """``aggregate``; or, as in PySpark, aggregate Columns: ``agg(F.sum("n").alias("total"))``.

        One row for the whole batch, or per group, either way.
        """
        if not is_expression(inputs):
            return self.aggregate(inputs, aggregator, outputs)
        given = as_columns(inputs, aggregator, outputs, *more)
        return self._ungrouped(columns.column_aggregate(self._node, self._keys, given))

    def chained_agg(self) -> "ChainedAggregation":
        """Several aggregates of the same rows; see :class:`ChainedAggregation`."""
        return ChainedAggregation(self._graph, window_nodes.rows_once_more(self._graph, self._node), self._keys)

    def persistent_aggregate(
        self, state: Any, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN
    ) -> "TridentState":
        """Keeps an aggregate over all batches in a state: ``persistent_aggregate(state, Count(), "n")``.

        Exactly once for the states and spouts of docs/semantics.md 5. An empty batch
        commits the aggregator's ``zero()``, so the state always has its row. Of
        a grouped stream one value per group is kept.

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
        self._graph.check_commits(self._node, "persistent_aggregate")
        arguments = shifted(inputs, aggregator, outputs)
        return self._written(persisting.persistent_aggregate(self._node, self._keys, state, *arguments))

    def state_query(self, state: "TridentState", inputs: Any, query: Any = None, outputs: Any = NOT_GIVEN) -> "Stream":
        """Looks each row up in a state: ``state_query(counts, "word", MapGet(), "count")``.

        The state is read as of the transaction before this one, exactly: neither
        more nor less, whatever is in flight and however often it is replayed.
        That happens in the transaction's turn. A static state is read at any time.

        It ends a grouping, as in Trident, where ``group_by`` only says which rows
        ask together: later operations are over the whole batch or request.

        Args:
            state: what persistent_aggregate, partition_persist or new_static_state gave.
            inputs: the fields that the query takes; may be left out.
            query: MapGet(), SnapshotGet(), TupleCollectionGet(), or a QueryFunction
                of your own for a state of your own.
            outputs: the new fields; their types are known for the built-in queries.

        Raises:
            TopologyError: the state cannot be asked that.
        """
        queried = queried_state(self._graph, state)
        return self._ungrouped(state_query(self._node, queried, *shifted(inputs, query, outputs)))


class Stream(StreamOperations, _Ends):
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

    def __repr__(self) -> str:
        return f"Stream({self.schema.simpleString()})"

    def group_by(self, *fields: Names) -> "GroupedStream":
        """Groups by the named fields. Null is a group of its own."""
        names = flat(fields, "group_by")
        check_groupable(self._node, names, "group_by")
        return GroupedStream(self._graph, self._node, names)

    def partition_persist(
        self,
        state: Any,
        inputs: Union[Names, None] = None,
        updater: Any = None,
        outputs: Any = "",
        partition_by: Union[Names, None] = None,
    ) -> "TridentState":
        """Writes the rows to a state: ``partition_persist(DeltaAppend("words"), "word, n")``.

        - DeltaAppend(name) appends them.
        - With ``Upsert(keys)`` a DeltaMapState, MemoryMapState, opaque(…) or
          transactional(…) keeps the last row of each key.
        - A state of your own (a StateFactory with a ``name``) is given to your
          ``StateUpdater`` on the executors once the batch is decided: one call
          per partition of the state. It may be called again with the same rows
          and txid after a crash.
        - An updater of opaque(…) and transactional(…) is called before the
          decision; the values that it puts are published with it, and it may emit.

        Args:
            state: where to.
            inputs: the fields to write; all when left out.
            updater: as above.
            outputs: of an updater that emits, with their types: ``"word string, n long"``.
            partition_by: for a state of your own in several partitions: rows with
                equal values in these fields always come to the same one.
        """
        self._graph.check_commits(self._node, "partition_persist")
        return self._written(persisting.partition_persist(self._node, state, inputs, updater, outputs, partition_by))

    def tumbling_window(self, length: Union[int, str], name: Union[str, None] = None) -> "WindowedStream":
        """Windows that follow each other: ``tumbling_window(100)``, ``tumbling_window("10 minutes")``.

        Args: as in :meth:`sliding_window`, with a slide that is the length.
        """
        return self._window("tumbling_window", length, length, name)

    def sliding_window(
        self, length: Union[int, str], slide: Union[int, str], name: Union[str, None] = None
    ) -> "WindowedStream":
        """Windows of one length that begin a slide apart: ``sliding_window("10 minutes", "5 minutes")``.

        Of rows: each slide rows, a window of the last length rows, in the order
        in which they arrive. Of time: windows begin at multiples of the slide
        since 1970; event time behind :meth:`with_watermark`, else the time of
        the transaction. When they fire, and what is kept: :class:`WindowedStream`.

        Where rows must be kept (docs/windows.md), all fields are, until their
        windows have fired: ``project`` those that are needed first.

        Args:
            length: rows, or a duration such as "10 minutes" or "1 hour 30 seconds".
            slide: the same, at most the length.
            name: of the state of open windows; one after the topology's name
                when left out. Give one where the topology may get further windows:
                the state, and what is in it, is found by it after a restart.

        Raises:
            TopologyError: there are no such windows.
            FieldError: a field has a name that windows use themselves.
        """
        return self._window("sliding_window", length, slide, name)

    def session_window(self, gap: str, name: Union[str, None] = None) -> "SessionStream":
        """Sessions: windows that last as long as rows follow each other within a gap, as ``F.session_window``.

        ``s.with_watermark("at", "2 minutes").session_window("10 minutes").group_by("user").aggregate(Count(), "n")``

        A session is [its first row's time, its last row's + gap), of each key that
        it is grouped by. A row that comes late, but not too late, may join two open
        sessions. A session fires once the watermark has reached its end; a row at
        that very end still belongs to it. A row is late, as in Spark, when its own
        time + gap was reached by the transaction before; see :meth:`SessionStream.late_rows`.

        Args:
            gap: a duration such as "10 minutes".
            name: of the state with the open sessions, as of :meth:`sliding_window`.

        Raises:
            TopologyError: there is no watermark, the gap is none, or a field is of a type that sessions cannot keep.
            FieldError: a field has a name that windows use themselves.
        """
        name = windows.default_name(self._graph) if name is None else name
        windows.read_gap(gap)
        self._graph.window_names.add(name)
        return SessionStream(self, gap, name)

    def _window(
        self, what: str, length: Any, slide: Any, name: Any, clock: Any = window_nodes.now_us
    ) -> "WindowedStream":
        name = windows.default_name(self._graph) if name is None else name
        node = windows.window(self._graph, self._node, what, length, slide, name, clock)
        add_sink(self._graph, node)
        self._graph.window_names.add(name)
        return WindowedStream(self, node)


class GroupedStream(TimedOperations["Stream"], _Ends):
    """A stream with the fields that its rows are grouped by.

    Operations keep or end the grouping as in Storm's GroupedStream: an aggregate
    and a state query end it, ``each`` and ``partition_aggregate`` keep it.
    """

    _OTHER_NAMES = GROUPED_NAMES

    @property
    def keys(self) -> tuple[str, ...]:
        """The grouping fields."""
        return self._keys

    def __repr__(self) -> str:
        return f"GroupedStream({', '.join(self._keys)} of {self.to_stream()!r})"

    def count(self) -> "Stream":
        """As in PySpark: the keys, then ``count``, the number of rows of each group of the batch."""
        return self.aggregate(Count(), "count")

    def project(self, *fields: Names) -> "GroupedStream":
        """As :meth:`Stream.project`, with the grouping fields among those kept; the grouping stays."""
        names = flat(fields, "project")
        for key in self._keys:
            if key not in names:
                raise FieldError(
                    "project drops a field that the stream is grouped by",
                    found=repr(key),
                    expected=f"{', '.join(self._keys)} among the fields",
                )
        return super().project(*names)

    def to_stream(self) -> "Stream":
        """The same rows without the grouping."""
        return Stream(self._graph, self._node)

    @classmethod
    def _hint(cls, name: str) -> Union[str, None]:
        own = snake_case(name)
        if not hasattr(cls, own) and own not in GROUPED_NAMES and hasattr(Stream, own):
            return f"a grouped stream has none: write to_stream().{own}(…), or aggregate first"
        return super()._hint(name)


class ChainedAggregation:
    """Several aggregates of the same rows: ``chained_agg().aggregate(…).aggregate(…).chain_end()``.

    The result has the keys, if the stream is grouped, and the outputs of all:
    one row where each gives one, else every combination of the rows that they
    give. All links are of one kind: ``aggregate`` or ``partition_aggregate``.
    """

    def __init__(self, graph: TopologyGraph, node: Node, keys: tuple[str, ...]) -> None:
        self._graph, self._chain = graph, AggregationChain(graph, node, keys)

    def __repr__(self) -> str:
        return repr(self._chain)

    def aggregate(self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN) -> "ChainedAggregation":
        """Adds an aggregate over the batch, or per group; the arguments are those of ``Stream.aggregate``."""
        self._chain.add("aggregate", *shifted(inputs, aggregator, outputs))
        return self

    agg = aggregate

    def partition_aggregate(
        self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN
    ) -> "ChainedAggregation":
        """Adds an aggregate per Spark partition; the arguments are those of ``Stream.aggregate``."""
        self._chain.add("partition_aggregate", *shifted(inputs, aggregator, outputs))
        return self

    def chain_end(self) -> "Stream":
        """The stream of the results.

        Raises:
            TopologyError: nothing was added, or it has ended already.
            FieldError: two links give fields of one name.
        """
        node = self._chain.end()
        self._graph.add(node)
        return Stream(self._graph, node)


class WindowedStream:
    """The windows of a stream.

    A transaction fires every window that its watermark has reached the end of.
    The watermark never goes back, and it is:

    - of rows: how many there are so far. A window fires in the transaction that
      brings its last row; the first sliding windows hold fewer rows.
    - of event time: the greatest timestamp so far, less the delay. A row that
      all windows of which were fired by an earlier transaction is late, and so
      is one whose timestamp is null; see :meth:`late_rows`.
    - of processing time: the time of the transaction's turn, which is also the
      position of its rows. It is read once and decided with the batch.

    Windows fire only in a transaction: a source that gives none fires none,
    and what is due then fires in the next one. A window without rows gives nothing.

    Exactly once, over replays and crashes, with transactional and opaque spouts:
    open windows are a keyed state of the group, decided and published like all its
    states. It holds parts of the aggregates behind the windows where these are
    enough, else rows; ``explain()`` says which (docs/windows.md).

    Attributes:
        name: of the state with what open windows hold, which ``query.snapshot`` shows: one row about all
            has the watermark in ``_position``, the number of rows so far in ``_next`` and how many of
            them were late in ``_late``.
    """

    def __init__(self, stream: Stream, node: window_nodes.WindowNode) -> None:
        self._stream, self._windows = stream, node

    @property
    def _node(self) -> window_nodes.WindowNode:
        return self._windows

    @property
    def name(self) -> str:
        return self._node.binding.name

    def __repr__(self) -> str:
        return f"WindowedStream({self._node.spec} of {self._stream!r})"

    def rows(self) -> "Stream":
        """Returns what fired windows hold: ``window``, then the stream's fields; a row once for each of its windows.

        ``window`` is a struct of ``start`` and ``end``, two timestamps, the end
        exclusive; of windows of rows two row numbers, counted from 0.
        """
        return self._stream._next(windows.window_rows(self._node, fired=True))

    def aggregate(self, inputs: Any, *more: Any) -> Stream:
        """One row per fired window: ``window``, then the outputs; Args: as of :meth:`GroupedStream.aggregate`."""
        return self.group_by().aggregate(inputs, *more)

    def agg(self, inputs: Any, *more: Any) -> "Stream":
        """As :meth:`aggregate`; Args: as of :meth:`GroupedStream.agg`."""
        return self.group_by().agg(inputs, *more)

    def chained_agg(self) -> ChainedAggregation:
        """Several aggregates of each fired window side by side, as ``GroupedStream.chained_agg``."""
        return self.group_by().chained_agg()

    def group_by(self, *fields: Names) -> "GroupedStream":
        """Groups by window and the named fields: ``group_by("word").aggregate(Count(), "n")``."""
        return self.rows().group_by(window_nodes.WINDOW, *fields)

    def late_rows(self) -> "Stream":
        """The rows that came too late for all of their windows, in the transaction that they came with.

        Raises:
            TopologyError: the windows are not of event time.
        """
        return self._stream._next(windows.window_rows(self._node, fired=False))


class SessionStream(WindowedStream):
    """The sessions of a stream; the first operation on them says of which keys.

    Otherwise as :class:`WindowedStream`: event time, a state, exactly once. Its
    state has a row for each key with open sessions, and one about all.
    """

    def __init__(self, stream: Stream, gap: str, name: str) -> None:
        self._stream, self._gap, self._name = stream, gap, name
        self._made: Union[window_nodes.WindowNode, None] = None

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"SessionStream({self._gap} of {self._stream!r})"

    @property
    def _node(self) -> window_nodes.WindowNode:
        return self._by(()) if self._made is None else self._made

    def _by(self, keys: tuple[str, ...]) -> window_nodes.WindowNode:
        graph, made = self._stream._graph, self._made
        if made is None:
            made = windows.session_window(graph, self._stream._node, self._gap, self._name, keys)
            add_sink(graph, made)
            self._made = made
        windows.check_session_keys(made, keys)
        return made

    def group_by(self, *fields: Names) -> "GroupedStream":
        """Sessions of each value of the fields: ``group_by("user").aggregate(Count(), "n")``; none: of all rows.

        Raises:
            TopologyError: an earlier operation has made sessions of other keys.
        """
        names = flat(fields, "group_by") if fields else ()
        return self._rows_of(names).group_by(window_nodes.WINDOW, *names)

    def rows(self) -> "Stream":
        """The rows of sessions over all rows, or over the keys of an earlier ``group_by``; see WindowedStream."""
        return self._rows_of(None)

    def _rows_of(self, keys: Union[tuple[str, ...], None]) -> "Stream":
        node = self._node if keys is None else self._by(keys)
        return self._stream._next(windows.window_rows(node, fired=True))

    def late_rows(self) -> "Stream":
        """The rows that came too late for any session.

        Call it on this, not on what ``group_by`` gives, and after ``group_by`` or ``rows`` has said the keys.

        Raises:
            TopologyError: the keys of the sessions are not known yet.
        """
        if self._made is None:
            raise TopologyError(
                "late_rows of sessions come before their keys are known",
                found=repr(self),
                action="write group_by(…).aggregate(…), or rows(), first, and then late_rows()",
            )
        return self._stream._next(windows.window_rows(self._made, fired=False))


class TridentState(StateHandle):
    """A state that a topology writes to, or a static one; ``state_query`` takes it.

    Attributes:
        name: what ``query.snapshot`` takes; "" for a static state.
        binding: what is written to it; None for a static state.
        source: the factory of a static state; else None.
    """

    def new_values_stream(self) -> "Stream":
        """The keys that a transaction changes, with their new values, in the same transaction.

        Of an aggregate: the keys and the value over all transactions so far,
        one row per key that the batch touched. Of an upsert: the rows that are
        kept, not those that are removed. Of an updater: the rows that it emits.

        Rows made of them are decided and published together with the state.

        Raises:
            TopologyError: new values of this state are not known before it is published.
        """
        if self._node is None:
            raise persisting.no_new_values(self.source, "a static state")
        made = persisting.new_values(self._node)
        self._graph.add(made)
        return Stream(self._graph, made)
