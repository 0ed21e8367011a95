"""Makes the nodes of ``partition_persist`` and ``persistent_aggregate``, which write to states.

A state's new values are found where the facts that they need are known. A
combiner's partial values and the last rows of an upsert are written as they are,
by any attempt, side by side. A reducer needs the earlier value: it is found in
the transaction's turn, before its decision (docs/semantics.md 9.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Union

from pyspark.sql.types import BooleanType, StructField, StructType

from trident.coordinators.errors import OutputTypeError, TopologyError
from trident.operations.aggregates import AggregateNode
from trident.operations.aggregation import aggregator_class, read_aggregation
from trident.operations.state_checks import check_fields, check_named, check_upsert
from trident.operations.state_writes import NewValuesNode, PersistNode
from trident.operations.upsert import LastNode, Upsert
from trident.planning.nodes import Names, Node, field_names, picked, require_fields
from trident.planning.operation import Fields
from trident.states.core.binding import LAST, SEQUENCED, StateBinding, StateKind
from trident.states.core.kinds import kind_of_state
from trident.states.core.tables import DELETED_COLUMN
from trident.udf.signatures import call_site, check_serialisable
from trident.udf.types import parse_outputs


@dataclass(frozen=True, eq=False, kw_only=True)
class _UpdaterNode(PersistNode):
    """A PersistNode with an updater of the user; ``new_values`` is what it emits."""

    new_values: StructType

    @property
    def shown_fields(self) -> Fields:
        return tuple(self.new_values.fields)

    def _map_fields(self) -> tuple[tuple[str, ...], tuple[str, ...], Fields]:
        return (), self.binding.value_fields, self.shown_fields


def new_values(node: PersistNode) -> NewValuesNode:
    """The keys that a transaction changes in a state, with their new values.

    Raises:
        TopologyError: they are not known before the state is published, or there are none.
    """
    name, why_not = node.binding.name, node.binding.state_kind.why_no_new_values
    if node.binding.merging == SEQUENCED:
        why_not = "an Upsert with sequence_by: its log decides later which changes count"
    if node.binding.history_by:
        why_not = "an Upsert with history: the end of a period is known when it is read"
    if why_not is not None:
        raise no_new_values(name, why_not)
    schema = node.new_values if isinstance(node, _UpdaterNode) else _values_schema(node)
    if not schema.names:
        raise TopologyError(f"the updater of state {name} emits nothing", expected="outputs given to partition_persist")
    return NewValuesNode(parents=(node,), schema=schema, operation=f"new_values_stream({name})")


def _values_schema(node: PersistNode) -> StructType:
    """The fields of a state's new values; those of an upsert that begin with ``_deleted`` are not among them.

    So it has been from the first version on: a topology that is started again must find the same fields behind it.
    """
    if node.aggregation is not None:
        return node.schema
    return picked(node.schema, [name for name in node.schema.names if not name.startswith(DELETED_COLUMN)])


def no_new_values(state: Any, found: str) -> TopologyError:
    """The error for a state whose new values are not known before it is published."""
    return TopologyError(
        f"state {state!r} has no stream of new values",
        found=found,
        expected="a persistent aggregate, an upsert, or an updater of opaque(…) or transactional(…)",
    )


# --- partition_persist -------------------------------------------------------------------


def partition_persist(
    parent: Node, state: Any, inputs: Union[Names, None], updater: Any, outputs: Any, partition_by: Any
) -> PersistNode:
    """See :meth:`trident.streams.stream.Stream.partition_persist`."""
    kind = kind_of_state(state)
    names = parent.names if inputs is None else field_names(inputs, "partition_persist")
    require_fields(names, parent.schema, "partition_persist")
    schema = picked(parent.schema, names)
    if isinstance(updater, Upsert):
        check_upsert(state, kind, schema, updater)
        return _upsert(parent, state, kind, schema, updater)
    if kind.appends:
        if updater is not None or outputs:
            raise TopologyError(
                f"{type(state).__name__} takes no updater", found=repr(updater), expected="the rows as they are"
            )
        kind.check_rows(state, schema, ())
        binding = StateBinding(state, kind, (), schema, names)
        return _sink(binding, PersistNode, parents=(parent,))
    if updater is None:
        raise TopologyError(
            "partition_persist appends rows",
            found=repr(state),
            expected="DeltaAppend(name)",
            action="use persistent_aggregate for a state with one value per key; or give an updater: "
            "Upsert(keys) keeps the last row of each key, a StateUpdater of your own does what it likes",
        )
    by = field_names(partition_by, "partition_by") if partition_by else ()
    require_fields(by, schema, "partition_by of partition_persist")
    return _updater(parent, state, kind, schema, updater, outputs, by)


def _updater(
    parent: Node, state: Any, kind: StateKind, schema: StructType, updater: Any, outputs: Any, by: tuple[str, ...]
) -> PersistNode:
    if not callable(getattr(updater, "update_state", None)) or isinstance(updater, type):
        raise TopologyError(
            "partition_persist needs an updater",
            found=repr(updater),
            expected="Upsert(keys), or an object with update_state(state, tuples, collector)",
        )
    if not kind.users_code:
        raise TopologyError(
            f"{type(state).__name__} is written by Spark, which calls no updater",
            found=repr(updater),
            expected="Upsert(keys)",
            action="use opaque(name, map) for a state that is updated by your own code, or persistent_aggregate",
        )
    check_named(state)
    check_serialisable(updater, "partition_persist")
    check_serialisable(state, "partition_persist")
    if outputs and kind.updated_when_published:
        raise TopologyError(
            f"the updater of state {state.name} cannot emit",
            found=repr(outputs),
            expected="no outputs: such a state is updated while it is published, after the decision",
            action="use a map: the updates of opaque(name, map) and transactional(name, map) are found before it",
        )
    partitions = getattr(state, "partitions", 1)
    if partitions != 1 and not by:
        raise TopologyError(
            f"state {state.name} has {partitions} partitions: which rows belong to which is not known",
            found="no partition_by",
            expected="partition_by, the fields whose equal values stay together",
        )
    binding = StateBinding(state, kind, by, schema, tuple(schema.names), updater)
    return _sink(
        binding,
        _UpdaterNode,
        parents=(parent,),
        mode="update" if kind.updated_before_decision else None,
        new_values=_emitted(outputs),
    )


def _emitted(outputs: Any) -> StructType:
    """The fields that an updater emits; their types are written with them."""
    fields = StructType()
    for name, type_ in parse_outputs(outputs) if outputs else ():
        if type_ is None:
            raise OutputTypeError(
                f"the type of output {name!r} of an updater is not known", expected=f"a type, as in '{name} long'"
            )
        fields.add(name, type_, True)
    return fields


def _upsert(parent: Node, state: Any, kind: StateKind, schema: StructType, upsert: Upsert) -> PersistNode:
    keys, end = tuple(upsert.keys), upsert.delete_when
    by, history = upsert.sequence_by or "", upsert.history
    if history:
        keys = (*keys, by)
    values = tuple(name for name in schema.names if name not in (*keys, end))
    if history and end:
        values = (end, *values)  # further fields come behind the others
    stored = picked(schema, (*keys, *values))
    check_fields(state, kind, stored, keys)
    last = LastNode(
        parents=(parent,),
        schema=StructType([*stored.fields, StructField(DELETED_COLUMN, BooleanType(), True)]),
        operation=f"last({', '.join(keys)})",
        keys=keys,
        values=values,
        delete_when=upsert.delete_when,
        order_by=upsert.sequence_by or upsert.order_by,
        sequenced=bool(by),
        history=history,
    )
    binding = StateBinding(state, kind, keys, stored, values, upsert, SEQUENCED if by and not history else LAST)
    if history:
        binding = replace(binding, history_by=by, history_end=end or "")
    else:
        binding = replace(binding, sequence=by, deleted_retention_txids=upsert.deleted_retention_txids or 0)
    return _sink(
        binding,
        PersistNode,
        parents=(last,),
        mode="put" if kind.updated_before_decision else None,
        takes=tuple(last.schema.names),
    )


# --- persistent_aggregate ----------------------------------------------------------------


def persistent_aggregate(
    parent: Node, keys: tuple[str, ...], state: Any, inputs: Any, aggregator: Any, outputs: Any
) -> PersistNode:
    """See :meth:`trident.streams.stream.Stream.persistent_aggregate`."""
    what = "persistent_aggregate"
    kind = kind_of_state(state)
    kind.check_has_keys(state, what)
    aggregation = read_aggregation(parent.schema, what, keys, inputs, aggregator, outputs, call_site())
    combines = aggregation.kind in ("native", "combiner")
    if aggregation.kind == "aggregator" and not callable(getattr(aggregator, "resume", None)):
        raise TopologyError(
            f"{what} keeps what complete() gives, and this aggregator cannot go on from it",
            found=f"{aggregator_class(aggregator)} without resume(batch_id, *stored)",
            expected="resume(batch_id, *stored) -> the state that aggregate() takes, with one argument per output",
            action="add it; or write a combiner or a reducer",
        )
    schema = StructType([*picked(parent.schema, keys).fields, *aggregation.outputs])
    check_fields(state, kind, schema, keys)
    values = tuple(field.name for field in aggregation.outputs)
    name = f"{state.name}, {aggregator_class(aggregator)}"
    if kind.users_code and combines:
        # A map takes one value per key: the batch's own, which is found before the transaction's turn.
        of_batch = AggregateNode(
            parents=(parent,),
            schema=schema,
            aggregation=aggregation,
            operation=f"aggregate({aggregator_class(aggregator)})",
        )
        binding = StateBinding(state, kind, keys, schema, values, aggregator)
        mode = "merge" if kind.updated_before_decision else None
        return _sink(binding, PersistNode, parents=(of_batch,), mode=mode, label=name)
    if combines:
        binding = StateBinding(state, kind, keys, schema, values, aggregator)
        return _sink(binding, PersistNode, parents=(parent,), aggregation=aggregation, label=name)
    if kind.updated_when_published:
        raise TopologyError(
            f"state {state.name} cannot keep a {aggregation.kind}: it is updated while it is published",
            found=repr(aggregator),
            expected="a combiner, or a state with opaque(…) or transactional(…) values",
        )
    binding = StateBinding(
        state, kind, keys, schema, values, aggregator, merging="combine" if kind.users_code else "last"
    )
    mode = "reduce" if aggregation.kind == "reducer" else "aggregate"
    return _sink(binding, PersistNode, parents=(parent,), aggregation=aggregation, mode=mode, label=name)


def _sink(
    binding: StateBinding, cls: type[PersistNode], *, parents: tuple[Node, ...], label: str = "", **more: Any
) -> PersistNode:
    operation = f"{'persistent_aggregate' if label else 'partition_persist'}({label or binding.name})"
    return cls(parents=parents, schema=binding.schema, operation=operation, binding=binding, **more)
