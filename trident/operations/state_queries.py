"""The nodes of ``state_query``, and the queries that each state answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.types import DataType, StructType

from trident.coordinators.errors import OutputTypeError, TopologyError
from trident.operations.state_nodes import JoinStateOp, PersistNode
from trident.planning.nodes import Node, OutputsNode, appended, check_given_type, field_names, require_fields
from trident.planning.operation import Fields, SegmentBuilder, SelectOp, arrow_types, names_of
from trident.states.core.binding import StateBinding
from trident.states.core.values import MapGet, SnapshotGet, TupleCollectionGet
from trident.states.publishing.user_tasks import PARTITION
from trident.udf.signatures import call_site, check_serialisable, describe, resolve_outputs
from trident.udf.types import parse_outputs
from trident.workers.failures import Label
from trident.workers.states import QueryRows

BUILT_IN = (MapGet, SnapshotGet, TupleCollectionGet)


@dataclass(frozen=True, eq=False, kw_only=True)
class StateQueryNode(OutputsNode):
    """state_query: looks rows up in a state, as of the transaction before.

    Attributes:
        state: a StateBinding, or the factory of a static state.
        writer: the node that writes the state; None for a static one.
        query: MapGet, SnapshotGet, TupleCollectionGet or a QueryFunction of the user.
        many: as in PythonNode, of a user's ``execute``.
    """

    repeatable = False
    is_called_through = False
    drawn_as = "state"

    state: Any
    writer: PersistNode | None
    query: Any
    inputs: tuple[str, ...]
    many: bool | None = None

    @property
    def links(self) -> tuple[Node, ...]:
        return () if self.writer is None else (self.writer,)

    @property
    def queried_state(self) -> "StateBinding | None":
        return None if self.writer is None else self.writer.binding

    @property
    def late(self) -> bool:
        return self.writer is not None

    @property
    def row_by_row(self) -> bool:
        return self.writer is None

    @property
    def together(self) -> tuple[str, ...] | None:
        return (self.inputs or None) if self.late else ()

    @property
    def calls_user(self) -> bool:
        return hasattr(self.query, "execute")

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return (live - set(self.outputs)) | set(self.inputs)

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        binding = self.queried_state
        if binding is None:
            self._look_up_on_workers(builder, live)
            return
        # A field that a project dropped may be made again, so it must be gone.
        builder.narrow(builder.narrowed(self.reads(self.parents[0], live)))
        if binding.state_kind.users_code:
            # The row goes where its key is, so that one partition of the state answers.
            builder.into_partitions(self.inputs, getattr(binding.state, "partitions", 1))
            self._look_up_on_workers(builder, live, PARTITION)
        else:
            self._look_up_by_spark(builder, live, binding)

    def _look_up_by_spark(self, builder: SegmentBuilder, live: frozenset[str], binding: StateBinding) -> None:
        every = isinstance(self.query, TupleCollectionGet)
        stored = (*binding.keys, *binding.value_fields) if every else binding.value_fields
        columns = tuple(zip(stored, self.outputs))
        fields = (*builder.fields, *self._made)
        builder.push(JoinStateOp(fields, binding, self.inputs, columns, None, every, builder.computed))
        kept = tuple(field for field in self.schema.fields if field.name in live or field.name in self.outputs)
        builder.push(SelectOp(kept, names_of(kept)))

    def _look_up_on_workers(self, builder: SegmentBuilder, live: frozenset[str], place: str = "") -> None:
        earlier = tuple(field for field in self.schema.fields if field.name in live and field.name not in self.outputs)
        keep, label, types = names_of(earlier), Label(self.operation, self.location), arrow_types(self._made)
        # The aggregator has no part in it, and that of an upsert would load the planner on the workers.
        state = self.state if self.queried_state is None else replace(self.queried_state, aggregator=None)
        step = QueryRows(label, state, self.query, self.inputs, self.outputs, types, self.many, keep, place)
        takes = (*keep, *self.inputs, *filter(None, (place,)))
        builder.push_python(step, (*earlier, *self._made), takes, batch_id=True)

    @property
    def _made(self) -> Fields:
        return tuple(self.schema[name] for name in self.outputs)


@dataclass(frozen=True)
class QueriedState:
    """A state that is asked.

    Attributes:
        writer: the node that writes it; None for a static one.
        source: the factory of a static one; else None.
    """

    writer: PersistNode | None
    source: Any = None

    @property
    def binding(self) -> StateBinding | None:
        return None if self.writer is None else self.writer.binding

    @property
    def name(self) -> str:
        return "" if self.writer is None else self.writer.binding.name


def state_query(parent: Node, state: QueriedState, inputs: Any, query: Any, outputs: Any) -> StateQueryNode:
    """See :meth:`trident.streams.stream.Stream.state_query`."""
    what = "state_query"
    names = field_names(inputs, what) if inputs else ()
    require_fields(names, parent.schema, what)
    if isinstance(query, type):
        raise TopologyError(
            f"{what} needs a query, not its class", found=query.__name__, expected=f"{query.__name__}()"
        )
    if state.binding is not None and state.binding.history_by:
        raise TopologyError(
            f"state {state.name} cannot be looked up: it has periods of its keys",
            found="an Upsert with history",
            expected="a state with one value per key",
            action="read it with query.snapshot, or keep an Upsert without history as well",
        )
    many: bool | None = None
    if isinstance(query, BUILT_IN):
        fields = _built_in(parent.schema, state, names, query, parse_outputs(outputs))
    else:
        fields, many = _own(parent.schema, state, names, query, parse_outputs(outputs))
    made = tuple(name for name, _ in fields)
    return StateQueryNode(
        parents=(parent,),
        schema=appended(parent.schema, fields, what),
        operation=f"{what}({state.name or 'static'}, {type(query).__name__})",
        state=state.binding or state.source,
        writer=state.writer,
        query=query,
        inputs=names,
        outputs=made,
        many=many,
    )


def _built_in(
    schema: StructType, state: QueriedState, inputs: tuple[str, ...], query: Any, outputs: Any
) -> list[tuple[str, DataType]]:
    binding = state.binding
    if binding is None or not binding.state_kind.values_by_key:
        own = binding is None or binding.state_kind.users_code
        if own and isinstance(query, TupleCollectionGet):
            _check_collection(state, inputs, query)
        if own and isinstance(query, (TupleCollectionGet, MapGet)):
            return _typed(outputs, f"{query!r} of a state of your own")
        raise TopologyError(
            f"{query!r} cannot ask this state",
            found=repr(state.name or state.source),
            expected="a state with one value per key",
        )
    _check_inputs(schema, binding, inputs, query)
    given = list(binding.keys) if isinstance(query, TupleCollectionGet) else []
    stored = [binding.schema[name] for name in (*given, *binding.value_fields)]
    if isinstance(query, TupleCollectionGet) and binding.state_kind.users_code:
        _check_collection(state, inputs, query)
    if len(outputs) != len(stored):
        raise OutputTypeError(
            f"{query!r} of state {binding.name} gives {len(stored)} fields",
            found=f"{len(outputs)} outputs",
            expected=", ".join(f"a name for {field.name}" for field in stored),
        )
    for (name, type_), field in zip(outputs, stored):
        check_given_type(name, type_, field.dataType, repr(query))
    return [(name, field.dataType) for (name, _), field in zip(outputs, stored)]


def _check_collection(state: QueriedState, inputs: tuple[str, ...], query: Any) -> None:
    """Raises TopologyError unless a state of one's own can give all its entries at one place."""
    setting = state.binding.state if state.binding is not None else state.source
    if inputs:
        raise TopologyError(f"{query!r} takes no inputs", found=", ".join(inputs), expected="state, query, outputs")
    if getattr(setting, "partitions", 1) != 1:
        raise TopologyError(
            f"{query!r} cannot ask a state in several partitions",
            found=repr(state.name),
            expected="a state with partitions=1",
            action="use MapGet, or a QueryFunction",
        )
    made_there = callable(getattr(setting, "make_state", None)) or callable(getattr(setting, "get_tuples", None))
    backing = getattr(setting, "backing", None)
    if not made_there and backing is not None and hasattr(backing, "multi_get") and not hasattr(backing, "items"):
        raise TopologyError(
            f"{query!r} cannot ask state {state.name}: its map cannot list what it has",
            found=f"{type(backing).__name__} without items()",
            expected="items(), which gives every (key, stored value)",
        )
    if not made_there and backing is None:
        raise TopologyError(
            f"{query!r} cannot ask this state",
            found=repr(setting)[:200],
            expected="a state with get_tuples(), which gives a tuple for each entry",
        )


def _check_inputs(schema: StructType, binding: StateBinding, inputs: tuple[str, ...], query: Any) -> None:
    wanted = binding.keys if isinstance(query, MapGet) else ()
    if isinstance(query, MapGet) and not binding.keys:
        raise TopologyError(f"state {binding.name} has no keys", found="MapGet()", expected="SnapshotGet()")
    if isinstance(query, SnapshotGet) and binding.keys:
        raise TopologyError(f"state {binding.name} has keys", found="SnapshotGet()", expected="MapGet()")
    if len(inputs) != len(wanted):
        raise TopologyError(
            f"{query!r} of state {binding.name} takes {len(wanted)} fields",
            found=", ".join(inputs) or "none",
            expected=", ".join(wanted) or "no inputs",
        )
    for name, key in zip(inputs, wanted):
        if schema[name].dataType != binding.schema[key].dataType:
            raise TopologyError(
                f"field {name!r} cannot be looked up in state {binding.name}",
                found=schema[name].dataType.simpleString(),
                expected=f"{binding.schema[key].dataType.simpleString()}, as its key {key!r}",
            )


def _own(
    schema: StructType, state: QueriedState, inputs: tuple[str, ...], query: Any, outputs: Any
) -> tuple[Any, bool | None]:
    for method in ("batch_retrieve", "execute"):
        if not callable(getattr(query, method, None)):
            raise TopologyError(
                "state_query needs a query",
                found=repr(query),
                expected="MapGet(), SnapshotGet(), TupleCollectionGet(), or an object with batch_retrieve and execute",
            )
    binding = state.binding
    if binding is not None and not binding.state_kind.users_code:
        raise TopologyError(
            f"state {binding.name} is read by Spark, which calls no query of yours",
            found=repr(query),
            expected="MapGet(), SnapshotGet() or TupleCollectionGet()",
            action="follow it with each(...) for what execute would do",
        )
    if binding is not None and getattr(binding.state, "partitions", 1) > 1:
        if [schema[name].dataType for name in inputs] != [binding.schema[key].dataType for key in binding.keys]:
            raise TopologyError(
                f"state {binding.name} has several partitions: which one has a row's answer is not known",
                found=f"inputs {', '.join(inputs) or 'none'}",
                expected=f"its keys, {', '.join(binding.keys)}, in their order and types",
            )
    check_serialisable(query, "state_query")
    described = describe(query.execute, "state_query", call_site())
    return resolve_outputs("each", described, outputs, "state_query")


def _typed(outputs: Any, what: str) -> list[tuple[str, DataType]]:
    for name, type_ in outputs:
        if type_ is None:
            raise OutputTypeError(f"the type of output {name!r} of {what} is not known", expected=f"'{name} long', say")
    return list(outputs)
