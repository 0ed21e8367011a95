"""A topology: streams from spouts through operations to states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from trident.coordinators.errors import TopologyError
from trident.operations.joins import JoinOutFieldsMode, JoinType
from trident.operations.state_nodes import SpoutTableNode
from trident.planning.nodes import SourceNode, TopologyGraph, drpc_node
from trident.spark.jvm_start import run_during_jvm_start
from trident.spouts.contracts import OwnsTable, PartitionedTridentSpout, SpoutKind
from trident.spouts.executors import is_batch_spout, spout_kind
from trident.spouts.rich import is_rich_spout
from trident.states.core.binding import StateBinding
from trident.states.core.kinds import kind_of_state
from trident.states.core.names import check_name, check_streams_apart
from trident.streams.other_names import TOPOLOGY_NAMES, OtherNames
from trident.streams.rows import join, merge, reduce_several
from trident.streams.shown import TopologyPlan, as_html, as_line, topology_facts
from trident.streams.states import add_sink
from trident.streams.stream import Stream, TridentState
from trident.udf.signatures import check_serialisable
from trident.udf.types import check_distinct, nullable, spout_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trident.config import TridentConfig
    from trident.running.query import TopologyQuery
    from trident.running.standby import Rehearse, Rehearsed
    from trident.spouts.contracts import BatchSpout, TridentSpout
    from trident.spouts.rich import RichSpout
    from trident.states.core.place import Place
    from trident.watching.listeners import TopologyListener


class TridentTopology(OtherNames):
    """Describes a topology; nothing runs before :meth:`start`.

    Args:
        name: what ZooKeeper and ``trident status`` know it by: a letter, then
            letters, digits, ``_`` or ``-``. Two that run under one name are one
            topology: the second is a standby of the first.

    Raises:
        TopologyError: the name cannot be used.
    """

    _OTHER_NAMES = TOPOLOGY_NAMES

    def __init__(self, name: str) -> None:
        self.name = check_name("topology", name)
        self.graph = TopologyGraph(name)  # for the framework: planner and runner read it

    def __repr__(self) -> str:
        return as_line("TridentTopology", self.name, topology_facts(self.graph))

    def _repr_html_(self) -> str:
        return as_html("TridentTopology", self.name, topology_facts(self.graph))

    def new_stream(
        self, tx_id: str, spout: "TridentSpout | PartitionedTridentSpout | BatchSpout | RichSpout"
    ) -> Stream:
        """A stream of what a spout emits.

        Args:
            tx_id: the stream's name, distinct within the topology. The spout's
                position is stored under it: keep it between runs.
            spout: where the rows come from.

        Raises:
            TopologyError: the name is taken or cannot be used, or it is no spout.
            FieldError: the spout names a field twice.
        """
        check_name("stream", tx_id)
        if tx_id in self.graph.sources:
            raise TopologyError(f"the topology has a stream {tx_id!r} already", action="choose another tx_id")
        check_streams_apart([*self.graph.sources, tx_id])
        schema = None if isinstance(spout, type) else getattr(spout, "output_schema", None)
        if isinstance(schema, str) and _is_spout(spout):
            schema = spout_schema(spout)
        if not isinstance(schema, StructType) or not _is_spout(spout):
            raise TopologyError(
                f"stream {tx_id!r} has no spout",
                found=repr(spout),
                expected="an object with output_schema (StructType or text), get_coordinator and get_emitter; or "
                "with get_partition_emitter, for one in partitions; or a BatchSpout (open, emit_batch, ack, close); "
                "or a RichSpout (open, next_tuple, ack, fail)",
            )
        kind = spout_kind(spout)
        if not isinstance(kind, SpoutKind):
            raise TopologyError(f"the spout of stream {tx_id!r} says no kind", found=repr(kind), expected="a SpoutKind")
        if not schema.names:
            raise TopologyError(f"the spout of stream {tx_id!r} has no fields", found=repr(spout))
        check_distinct(schema.names, f"the fields of stream {tx_id!r}")
        node = SourceNode(
            parents=(),
            schema=nullable(schema),
            operation=f"stream {tx_id}",
            tx_id=tx_id,
            spout=spout,
        )
        self.graph.add_source(node)
        if isinstance(spout, OwnsTable) and spout.table is not None:
            self._add_spout_table(node, spout)
        return Stream(self.graph, node)

    def _add_spout_table(self, source: SourceNode, spout: OwnsTable) -> None:
        state, schema = spout.table, nullable(spout.table_schema)
        kind = kind_of_state(state)
        if not kind.appends:
            raise TopologyError(
                f"the table of stream {source.tx_id!r}'s spout cannot be used",
                found=repr(state),
                expected="DeltaAppend(name)",
            )
        kind.check_rows(state, schema, ())
        node = SpoutTableNode(
            parents=(source,),
            schema=schema,
            operation=f"table of spout {source.tx_id}",
            binding=StateBinding(state, kind, (), schema, tuple(schema.names)),
            tx_id=source.tx_id,
        )
        add_sink(self.graph, node)

    def new_static_state(self, source: Any) -> TridentState:
        """A state that no stream of this topology writes: for ``state_query``.

        Args:
            source: a StateFactory; or a state that can be pickled, such as ``StaticMap({key: value})``.

        Raises:
            TopologyError: it is neither, or cannot be sent to executors.
        """
        methods = ("make_state", "multi_get", "get", "get_tuples")
        asks = any(callable(getattr(source, method, None)) for method in methods)
        if isinstance(source, type) or not asks:
            raise TopologyError(
                "this is not a static state",
                found=repr(source),
                expected="a StateFactory (make_state), or a state with multi_get or get, such as StaticMap({…})",
            )
        check_serialisable(source, "new_static_state")
        return TridentState(self.graph, None, source)

    def new_drpc_stream(self, function: str, fields: Any = "args string") -> Stream:
        """A stream of requests, each answered at once: ``query.execute(function, *args)``.

        A request is a batch of one row with a request id instead of a txid. It is
        no transaction: nothing is written to ZooKeeper or to a state, it waits for
        no batch and no batch waits for it. It reads every state as of the last
        advanced transaction of the batch group that writes it, the same one for
        all states of a group; ``TopologyQuery.execute`` says what that means for a
        map of your own.

        Every operation may follow that changes no state, ``state_query`` of any
        state of this topology above all. The rows at the end of the stream are the
        answer, in no promised order; it has one end.

        Args:
            function: the name that requests call, distinct within the topology.
            fields: its arguments with their types, ``"word string, n long"``.

        Raises:
            TopologyError: the name is taken or cannot be used.
            FieldError: an argument is named twice.
            OutputTypeError: an argument has no type.
        """
        node = drpc_node(function, fields, self.graph.functions)
        self.graph.add_source(node)
        return Stream(self.graph, node)

    def merge(self, *streams: Any, outputs: Any = None) -> Stream:
        """The rows of several streams, within each batch: ``merge(a, b)`` or ``merge([a, b])``.

        All have the same fields with the same types, in any order. With outputs
        fields go by their position, and have the outputs' names.

        Raises:
            FieldError: the fields differ.
            TopologyError: a stream is of another topology.
        """
        return Stream(self.graph, merge(self.graph, _several(streams), outputs))

    def join(
        self,
        *streams: Any,
        keys: Any,
        outputs: Any = None,
        type: Any = JoinType.INNER,
        mode: JoinOutFieldsMode = JoinOutFieldsMode.COMPACT,
    ) -> Stream:
        """Joins the rows of each batch: ``join(a, b, keys="user")``, ``join([a, b, c], keys=["id", "id", "of"])``.

        The fields are the keys, then the sides' other fields in order. A row is
        made of every combination of the sides' rows with equal keys; null is
        equal to null, as in a group (filter before, where that is not wanted).
        Rows of two transactions never meet, and none is kept for a later one: of
        streams of independent spouts a pair is found only if both rows happen to be
        in one transaction. That warns (:class:`SameBatchOnlyWarning`). To find all
        pairs by event time write ``a.join(b, "user", within="10 minutes")``
        (:meth:`trident.streams.stream.Stream.join`); without times keep both sides in a state:
        docs/stream-api.md, "Joining over batches".

        Args:
            streams: two or more, of this topology; one may be there twice.
            keys: the fields that are compared: one choice for all, or a list with one for each.
            outputs: the names of all fields; needed where two would have one name.
            type: JoinType.INNER or JoinType.OUTER, for all or ``JoinType.mixed(…)`` per side: an INNER
                side drops keys that it has no row for, an OUTER one gives nulls. Of two streams also
                "inner", "left", "right", "full".
            mode: which fields there are: JoinOutFieldsMode.COMPACT, the keys once and then the sides'
                other fields; or PRESERVE, all fields of each side in their order, its keys among them, which
                are null where an OUTER side has no row. Their names are then given as outputs.

        Raises:
            FieldError: a key does not exist, keys have other types, or names clash.
            TopologyError: a stream is of another topology, or the type is not known.
        """
        return Stream(self.graph, join(self.graph, _several(streams), keys, outputs, type, mode))

    def multi_reduce(self, *streams: Any, reducer: Any, outputs: Any, inputs: Any = None) -> Stream:
        """One reducer over the rows of several streams: ``multi_reduce(a, b, reducer=r, outputs="n long")``.

        Grouped streams give the results of each group behind its keys (those of
        the first stream); others one result over the whole batch, also an empty
        one. (In Trident it would be per task: chance decides which rows meet.) Of
        streams of independent spouts it warns, as :meth:`join` does.

        Args:
            streams: all grouped or none.
            reducer: a MultiReducer.
            outputs: what ``complete`` gives, with types where its annotation does not say them.
            inputs: the fields that ``execute`` is given, a choice per stream; all but the keys when None.
        """
        return Stream(self.graph, reduce_several(self.graph, _several(streams), inputs, reducer, outputs))

    def identity(self) -> dict[str, Any]:
        """Returns what may not change between two runs of the topology (docs/semantics.md 10); JSON."""
        from trident.planning.groups import group_members  # workers: see explain

        return {
            "streams": {tx_id: type(node.spout).__qualname__ for tx_id, node in sorted(self.graph.sources.items())},
            "states": {name: sink.writes.identity() for name, sink in sorted(self.graph.sinks.items())},
            "groups": group_members(self.graph),
        }

    def explain(self) -> str:
        """The batch groups, their operations, and the passes over the data that they become."""
        # A user's module is imported on the hosts of a cluster too, and they have no msgspec, which plans need.
        from trident.planning.explain import explain

        return explain(self.graph)

    def plan(self) -> TopologyPlan:
        """The same as :meth:`explain`, as an object that a notebook draws; printed, it is the text."""
        # workers: see explain
        from trident.planning.explain import plan_graph
        from trident.planning.groups import plan

        return TopologyPlan(self.explain(), plan_graph(self.graph, plan(self.graph)))

    def start(
        self,
        spark: "SparkSession | None" = None,
        config: "TridentConfig | None" = None,
        *,
        replace: bool | None = None,
        standby: bool = False,
        listeners: "Iterable[TopologyListener]" = (),
        **overrides: Any,
    ) -> "TopologyQuery":
        """Starts the topology and returns at once.

        ``with topology.start() as query: …`` stops it at the end of the block. It shows no progress unless
        ``progress="plain"`` (or ``"terminal"``) is given: ``query``, at the end of a notebook's cell, shows how far
        it is.

        Args:
            spark: the session to run on; one is made when None.
            config: settings.
            replace: a query of this topology that runs in this process is stopped first, which a line says. None:
                so in a notebook, where a cell is started again; elsewhere it is an error that one runs.
            standby: it waits for its turn behind the query that runs in this process; in other processes it always
                does.
            listeners: are told what it does; see :class:`trident.TopologyListener`. The setting ``listener_classes``
                adds others.
            overrides: single settings by name; they win over config.

        Raises:
            TopologyError: the topology has nothing to do.
            TridentError: it runs in this process already; and as ``trident.running.starting.start_topology``.
        """
        return _start_topology()(
            self, spark, config, replace=replace, standby=standby, listeners=listeners, **overrides
        )

    def run(
        self,
        spark: "SparkSession | None" = None,
        config: "TridentConfig | None" = None,
        *,
        listeners: "Iterable[TopologyListener]" = (),
        **overrides: Any,
    ) -> "TopologyQuery":
        """Starts the topology and waits until it stops; SIGINT and SIGTERM stop it, a second one at once.

        The arguments are those of :meth:`start`.

        Returns:
            the query, which has ended.
        """
        from trident.running.starting import run_topology  # time: 300 ms that only a start needs

        return run_topology(self, spark, config, listeners=listeners, **overrides)

    def _rehearsal(self, spark: "SparkSession", warehouse: "Place", config: "TridentConfig") -> "Rehearse":
        """Runs kept transactions again with this topology's code, for a standby that is to take over."""

        def rehearse(
            incarnation: str, advanced: "Mapping[str, int]", last: int, ends: "Callable[[], bool]"
        ) -> "Rehearsed":
            from trident.time_travel.rehearsal import Rehearsal  # time: only a standby that is to take over needs it

            return Rehearsal(spark, self.name, self.graph, warehouse, config)(incarnation, advanced, last, ends)

        return rehearse


def _start_topology() -> "Callable[..., TopologyQuery]":
    from trident.running.starting import start_topology  # time: 300 ms that only a start needs

    return start_topology


# A program that makes its session before it starts a topology has the time then.
run_during_jvm_start(_start_topology)


def _several(streams: Sequence[Any]) -> list[Any]:
    if len(streams) == 1 and isinstance(streams[0], (list, tuple)):
        return list(streams[0])
    return list(streams)


def _is_spout(spout: Any) -> bool:
    whole = hasattr(spout, "get_emitter") and hasattr(spout, "get_coordinator")
    return whole or isinstance(spout, PartitionedTridentSpout) or is_batch_spout(spout) or is_rich_spout(spout)
