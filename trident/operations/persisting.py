"""``partition_persist`` and ``persistent_aggregate``: checks of the state, the nodes that write to it, ``Upsert``.

A state's new values are found where the facts that they need are known. A
combiner's partial values and the last rows of an upsert are written as they are,
by any attempt, side by side. A reducer needs the earlier value: it is found in
the transaction's turn, before its decision (docs/semantics.md 9.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from trident.coordinators.errors import FieldError, OutputTypeError, TopologyError
from trident.operations.aggregates import AggregateNode, aggregator_class, read_aggregation
from trident.operations.state_nodes import NewValuesNode, PersistNode
from trident.planning.nodes import Names, Node, field_names, picked, require_fields
from trident.planning.operation import Fields, Operation, SegmentBuilder
from trident.planning.session_frames import SessionFrames, Transform, column, column_list, composed
from trident.states.core.binding import LAST, SEQUENCED, StateBinding, StateKind
from trident.states.core.kinds import kind_of_state
from trident.states.core.names import backquoted, check_name, folded
from trident.states.core.tables import DELETED_COLUMN, HIDDEN_COLUMNS
from trident.states.keyed.delta_map import VALID_FROM, VALID_TO
from trident.udf.signatures import call_site, check_serialisable
from trident.udf.types import parse_outputs

# Checks a state before a stream writes to it, whatever its kind.


_COLLATED = re.compile(r"\bstring collate \w")
_SEQUENCES = (DateType, DecimalType, IntegralType, TimestampNTZType, TimestampType)


def check_named(state: Any) -> str:
    """The state's name.

    Raises:
        TopologyError: a StateFactory has none, or one that cannot be used.
    """
    name = getattr(state, "name", None)
    if name is None:
        raise TopologyError(
            "a state needs a name: decided rows are published under it, also after a restart",
            found=f"{type(state).__name__} without the attribute `name`",
            action="give the factory a name",
        )
    return check_name("state", name)


def check_upsert(state: Any, kind: StateKind, schema: StructType, upsert: Any) -> None:
    """Raises TopologyError or FieldError when rows cannot be upserted into the state."""
    if not kind.takes_upserts(state):
        raise TopologyError(
            "Upsert needs a state with one value per key that survives a replay",
            found=repr(state),
            expected="DeltaMapState(name), or opaque(name, map) or transactional(name, map)",
        )
    named = filter(None, (upsert.delete_when, upsert.order_by, upsert.sequence_by))
    require_fields([*upsert.keys, *named], schema, "Upsert")
    if upsert.sequence_by is not None:
        _check_sequence(state, kind, schema, upsert)
        if upsert.history:
            _check_history(schema)
    if upsert.delete_when is not None and not isinstance(schema[upsert.delete_when].dataType, BooleanType):
        raise FieldError(
            f"Upsert deletes by field {upsert.delete_when!r}",
            found=schema[upsert.delete_when].dataType.simpleString(),
            expected="boolean",
        )
    place = upsert.sequence_by if upsert.history else None
    if not [name for name in schema.names if name not in (*upsert.keys, upsert.delete_when, place)]:
        raise FieldError("Upsert has nothing to store but the keys", expected="at least one other field")


def _check_history(schema: StructType) -> None:
    taken = [name for name in schema.names if folded(name) in (VALID_FROM, VALID_TO)]
    if taken:
        raise FieldError(
            f"Upsert with history gives readers a field {taken[0]!r} of its own", expected="another name for yours"
        )


def _check_sequence(state: Any, kind: StateKind, schema: StructType, upsert: Any) -> None:
    if not kind.has_log:
        raise TopologyError(
            "Upsert with sequence_by needs a state that keeps the rows of deleted keys",
            found=repr(state),
            expected="DeltaMapState(name)",
            action="for a map of your own give an updater of your own, which compares with the stored value",
        )
    field = schema[upsert.sequence_by]
    if upsert.sequence_by in (*upsert.keys, upsert.delete_when):
        raise FieldError(
            f"Upsert cannot take {field.name!r} for the sequence of changes",
            found="a key, or the field of delete_when",
            expected="another field",
        )
    text = isinstance(field.dataType, StringType) and field.dataType.collation == "UTF8_BINARY"
    if not (text or isinstance(field.dataType, _SEQUENCES)):
        raise FieldError(
            f"Upsert orders changes by field {field.name!r}",
            found=field.dataType.simpleString(),
            expected="an integer, decimal, date, timestamp or text: of these every two values have an order",
        )


def check_fields(state: Any, kind: StateKind, schema: StructType, keys: Sequence[str]) -> None:
    """Raises FieldError or TopologyError when the state cannot keep values of these fields, by these keys."""
    kind.check_rows(state, schema, keys)
    for name in keys:
        kind_of_key = schema[name].dataType.simpleString()
        if _COLLATED.search(kind_of_key):
            raise FieldError(
                f"field {name!r} cannot be a key of state {state.name}",
                found=kind_of_key,
                expected="text without a collation: the state's tables tell keys apart by their bytes",
                action="make the key a field that is the same text where yours is equal, such as lower(…)",
            )
    for name in schema.names:
        if folded(name) in HIDDEN_COLUMNS or folded(name).startswith("__trident"):
            raise FieldError(
                f"field {name!r} cannot be written to state {state.name}",
                expected=f"a name other than {', '.join(HIDDEN_COLUMNS)}, which the state's tables use",
            )


# Keeps the last row of each key in a state: insert, update and delete.


_ROW, _PLACE = "__trident_row", "__trident_place"
_NULL_ADVICE = "filter such rows out before, or give them a value: without one their place is not known"


@dataclass(frozen=True)
class Upsert:
    """The updater for ``partition_persist`` that keeps one row per key, the last one.

    ``stream.partition_persist(DeltaMapState("users"), "id, name, gone", Upsert("id", delete_when="gone"))``

    Exactly once like every state of its kind (docs/semantics.md 5). A topology may be
    started again with more fields behind the earlier ones: they are null in
    rows that were written before.

    Args:
        keys: the fields that name a row; ``"id"``, ``"country, id"`` or a list. Null is a key like any other.
        delete_when: a boolean field: where it is true the row is removed. It is not stored itself.
        order_by: a field: of the rows of one key in a batch the one with the
            greatest value is the last; nulls come first. None takes the order in
            which the batch has them: that of the source, as long as nothing in
            between moves rows among Spark partitions.
        sequence_by: a field: of all changes of a key, in whichever transactions they come, the one with the greatest
            value counts; of equal values that of the later transaction. A deleted key stays deleted against older
            changes that come later. Integers, a decimal, date, timestamp or text (by its bytes), never null: a batch
            with a null there fails. It is stored with the other values. For a DeltaMapState (docs/cdc.md).
        deleted_retention_txids: with ``sequence_by``: a deleted key holds against older changes of so many
            transactions behind its delete. It is forgotten before twice as many: then any change of it counts.
            None: for good. It may be changed at each start, and counts from that start's first transaction on.
        history: with ``sequence_by``: the state keeps each change, and a read gives each key's periods (SCD type 2):
            the values from ``valid_from``, the sequence of their change, to ``valid_to``, that of the next one or of
            the delete; null: they are valid now. Whole reads only, ``query.snapshot`` and ``trident.read``.

    WARNING: ``order_by`` orders within a batch only. Between batches the later
    transaction always wins, whatever the value in that field: an older change
    that arrives in a later batch replaces a newer one. Where the source does not keep
    the changes of a key in order over its batches, use ``sequence_by``, which is
    ``MERGE … WHEN MATCHED AND s.ts >= t.ts``, with deletes.
    """

    keys: Union[str, Sequence[str]]
    delete_when: str | None = None
    order_by: str | None = None
    sequence_by: str | None = None
    deleted_retention_txids: int | None = None
    history: bool = False

    @property
    def native_name(self) -> str:
        """The stored name: with another sequence the state's values would be others."""
        if self.sequence_by is None:
            return "upsert"
        return f"upsert {'history ' if self.history else ''}by {self.sequence_by}"

    def __post_init__(self) -> None:
        keys = self.keys
        given = keys.split(",") if isinstance(keys, str) else keys if isinstance(keys, (list, tuple)) else ()
        names = tuple(name.strip() if isinstance(name, str) else name for name in given)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise FieldError("Upsert needs the fields that name a row", found=repr(keys), expected="'id' or ['a', 'b']")
        object.__setattr__(self, "keys", names)
        if self.sequence_by is not None and self.order_by is not None:
            raise FieldError(
                "Upsert takes one order",
                found=f"order_by={self.order_by!r} and sequence_by={self.sequence_by!r}",
                expected="sequence_by, which orders within a batch too; or order_by, which orders nothing else",
            )
        self._check_retention()

    def _check_retention(self) -> None:
        kept = self.deleted_retention_txids
        if self.history and (self.sequence_by is None or kept is not None):
            raise FieldError(
                "Upsert keeps the history of keys by a sequence, and for good",
                found=f"sequence_by={self.sequence_by!r} and deleted_retention_txids={kept!r}",
                expected="sequence_by, and no deleted_retention_txids",
            )
        if kept is None:
            return
        if self.sequence_by is None or self.delete_when is None:
            raise FieldError(
                "Upsert keeps deleted keys only with a sequence and deletes",
                found=f"deleted_retention_txids={kept!r}",
                expected="sequence_by and delete_when besides",
            )
        if isinstance(kept, bool) or not isinstance(kept, int) or kept < 1:
            raise FieldError(
                "deleted_retention_txids of Upsert is impossible", found=repr(kept), expected="a number, at least 1"
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class LastNode(Node):
    """One row per key of the batch: the last one. Its fields: keys, values, and whether the key is deleted.

    Attributes:
        delete_when: a boolean field; where it is true the key is to be removed.
        order_by: the field whose greatest value is the last; None: the batch's own order.
        sequenced: whether that field, which is never null, orders over all batches.
        history: whether it is one of the keys, and deletes are rows with ``delete_when`` as a value.
    """

    row_by_row = False

    keys: tuple[str, ...]
    values: tuple[str, ...]
    delete_when: str | None = None
    order_by: str | None = None
    sequenced: bool = False
    history: bool = False

    def reads(self, parent: Node, live: frozenset[str]) -> frozenset[str]:
        return frozenset((*self.keys, *self.values, *filter(None, (self.delete_when, self.order_by))))

    def lower(self, builder: SegmentBuilder, live: frozenset[str]) -> None:
        fields = tuple(self.schema.fields)
        builder.push(
            LastOp(fields, self.keys, self.values, self.delete_when, self.order_by, self.sequenced, self.history)
        )

    def notes(self) -> Iterator[str]:
        if self.order_by and not self.sequenced:
            wins = "between batches the later transaction wins, whatever its value"
            yield f"ordered by {self.order_by} within a batch only: {wins}"


@dataclass(frozen=True)
class LastOp(Operation):
    """One row per key: the last; see LastNode."""

    shuffles = True
    needs_order = True  # of equal values the later row counts

    keys: tuple[str, ...]
    values: tuple[str, ...]
    delete_when: str | None
    order_by: str | None
    sequenced: bool = False
    history: bool = False

    @property
    def spreads_rows(self) -> bool:
        return bool(self.keys)

    def transform(self, frames: SessionFrames) -> Transform:
        gone = F.coalesce(column(self.delete_when), F.lit(False)) if self.delete_when else F.lit(False)
        place = F.monotonically_increasing_id()
        order, kept = place, column_list(self.values)
        if self.order_by and not self.sequenced:
            order = F.struct(column(self.order_by), place)
        if self.order_by and self.sequenced:
            order = F.struct(_never_null(self.order_by), place)
            # A deleted key's row stays in the table: without its values.
            used_fields = (self.order_by, self.delete_when)
            kept = [F.when(~gone, column(name)).alias(name) for name in self.values if name not in used_fields]
            if not self.history:
                kept.append(column(self.order_by))
            elif self.delete_when:
                kept.append(gone.alias(self.delete_when))
        row = F.struct(*kept, (F.lit(False) if self.history else gone).alias(DELETED_COLUMN))
        keys = column_list(self.keys)
        # Positions are given before the rows move.
        placed = frames.select([*keys, row.alias(_ROW), order.alias(_PLACE)])
        last = frames.aggregate(self.keys, F.max_by(_ROW, _PLACE).alias(_ROW))
        values = [F.col(f"{_ROW}.{backquoted(name)}").alias(name) for name in self.values]
        return composed(placed, last, frames.select([*keys, *values, F.col(f"{_ROW}.{DELETED_COLUMN}")]))

    def describe(self) -> str:
        by = f", by {self.order_by} over all transactions" if self.sequenced else ""
        return f"the last row of each {', '.join(self.keys)}{by}"


def _never_null(name: str) -> Any:
    error = F.raise_error(F.lit(f"Upsert: the field {name!r} of sequence_by is null; {_NULL_ADVICE}"))
    return F.when(column(name).isNotNull(), column(name)).otherwise(error)


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
            f"{what} keeps what complete() gives, and this aggregator cannot continue from it",
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
