"""Which states a stream can write to, and what each of them accepts.

======  =========================================  ==============================================
kind    state                                      written
======  =========================================  ==============================================
append  DeltaAppend                                rows, published by one commit
keyed   DeltaMapState                              one value per key, published by one commit
memory  MemoryMapState                             the same, in this process
map     transactional(…), opaque(…)                new values, put into the user's map
user    a StateFactory, non_transactional(…)       rows, given to an updater on the executors
======  =========================================  ==============================================
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql.types import (
    AnsiIntervalType,
    ArrayType,
    BooleanType,
    CalendarIntervalType,
    MapType,
    NullType,
    StructType,
)

from trident.coordinators.errors import FieldError, TopologyError
from trident.states.delta.partition_values import can_partition
from trident.states.delta.tables import TXID_COLUMN, UPTO_COLUMN

_KINDS = (
    ("trident.states.delta.append", "DeltaAppend", "append"),
    ("trident.states.keyed.delta_map", "DeltaMapState", "keyed"),
    ("trident.states.maps.memory_map", "MemoryMapState", "memory"),
    ("trident.states.maps.backed_map", "BackedMapState", "map"),
)
# Columns that the framework adds to the tables of keyed states.
_RESERVED = (TXID_COLUMN, UPTO_COLUMN, "_deleted")
_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")
_KEYED = ("keyed", "memory", "map")


def state_kind(state: object) -> str:
    """The kind of a state, as in the table above.

    Raises:
        TopologyError: it is no state.
    """
    for module, name, kind in _KINDS:
        # An object of a class exists only once its module is loaded.
        cls = getattr(sys.modules.get(module), name, None)
        if cls is not None and isinstance(state, cls):
            return "user" if kind == "map" and not _reads_before(state) else kind
    if not isinstance(state, type) and callable(getattr(state, "make_state", None)):
        return "user"
    hint = "()" if isinstance(state, type) else ""
    names = (
        "DeltaAppend(name)",
        "DeltaMapState(name)",
        "MemoryMapState(name)",
        "opaque(name, map)",
        "transactional(name, map)",
        "a StateFactory",
    )
    raise TopologyError(
        "this is not a state",
        found=f"{state.__name__}, the class" if isinstance(state, type) else repr(state),
        expected=f"{', '.join(names)}{' (an instance)' if hint else ''}",
    )


def is_backed_map(state: object) -> bool:
    """Whether it is a map over a BackingMap, of any semantics."""
    cls = getattr(sys.modules.get("trident.states.maps.backed_map"), "BackedMapState", None)
    return cls is not None and isinstance(state, cls)


def _reads_before(state: Any) -> bool:
    """Whether new values are found before the decision: by all but non-transactional maps."""
    return state.semantics.value != "non-transactional"


def check_named(state: Any) -> str:
    """The state's name.

    Raises:
        TopologyError: a StateFactory has none, or one that cannot be used.
    """
    from trident.states.core.names import check_name

    name = getattr(state, "name", None)
    if name is None:
        raise TopologyError(
            "a state needs a name: what is decided is published under it, also after a restart",
            found=f"{type(state).__name__} without the attribute `name`",
            action="give the factory a name",
        )
    return check_name("state", name)


def check_append(state: Any, schema: StructType) -> None:
    """Raises FieldError when Delta cannot hold the fields, or the state is partitioned by some that do not fit."""
    check_columns(state, schema)
    columns = tuple(state.partition_columns)
    for column in columns:
        if column not in schema.names:
            raise FieldError(
                f"state {state.name} is partitioned by a field that is not written to it",
                found=repr(column),
                expected=f"one of {', '.join(schema.names)}",
            )
        if not can_partition(schema[column].dataType):
            raise FieldError(
                f"state {state.name} cannot be partitioned by field {column!r}",
                found=schema[column].dataType.simpleString(),
                expected="a number, string, boolean, date or timestamp: values of other types do not come back exactly "
                "from the text that a Delta log has of them",
                action="partition by another field, as in with_column('part', F.hex('key'))",
            )
    if columns and len(columns) == len(schema.names):
        raise FieldError(
            f"state {state.name} is partitioned by every field written to it", expected="at least one other field"
        )


def check_keyed(state: Any, what: str) -> None:
    """Raises TopologyError when the state does not hold one value per key."""
    kind = state_kind(state)
    if kind == "append":
        raise TopologyError(
            f"{what} needs a state with one value per key",
            found=repr(state),
            expected="DeltaMapState(name)",
            action="use partition_persist to append rows",
        )
    if kind == "user" and not is_backed_map(state):
        raise TopologyError(
            f"{what} needs a state with one value per key",
            found=repr(state),
            expected="DeltaMapState(name), or opaque(name, map) over a map of your own",
            action="use partition_persist with an updater to write a state of your own",
        )


def check_upsert(state: Any, schema: StructType, upsert: Any) -> None:
    """Raises TopologyError or FieldError when rows cannot be upserted into the state."""
    if state_kind(state) not in _KEYED:
        raise TopologyError(
            "Upsert needs a state with one value per key that survives a replay",
            found=repr(state),
            expected="DeltaMapState(name), or opaque(name, map) or transactional(name, map)",
        )
    from trident.planning.nodes import require_fields

    require_fields([*upsert.keys, *filter(None, (upsert.delete_when, upsert.order_by))], schema, "Upsert")
    if upsert.delete_when is not None and not isinstance(schema[upsert.delete_when].dataType, BooleanType):
        raise FieldError(
            f"Upsert deletes by field {upsert.delete_when!r}",
            found=schema[upsert.delete_when].dataType.simpleString(),
            expected="boolean",
        )
    if not [name for name in schema.names if name not in (*upsert.keys, upsert.delete_when)]:
        raise FieldError("Upsert has nothing to store beside the keys", expected="at least one other field")


def check_memory_keys(state: Any, schema: StructType, keys: tuple[str, ...]) -> None:
    """Raises TopologyError for keys that a dict cannot hold, in a MemoryMapState."""
    from trident.operations.aggregators import is_plain

    nested = [name for name in keys if not is_plain(schema[name].dataType)]
    if nested and state_kind(state) == "memory":
        raise TopologyError(
            f"field {nested[0]!r} cannot be a key of a MemoryMapState",
            found=schema[nested[0]].dataType.simpleString(),
            expected="a type without parts",
            action="use DeltaMapState, or a key made of its parts",
        )


def check_columns(state: Any, schema: StructType) -> None:
    """Raises FieldError when a Delta table cannot have the fields as columns."""
    for path, kind in _columns(schema, ""):
        found = sorted(set(path) & _NOT_IN_NAMES)
        if found:
            raise FieldError(
                f"field {path!r} cannot be a column of state {state.name}",
                found=" ".join(map(repr, found)),
                expected="a name without any of ,;{}()=, blanks, tabs and line ends, as Delta asks",
                action="give it another name, as in F.sum('n').alias('total') or rename",
            )
        if isinstance(kind, (NullType, AnsiIntervalType, CalendarIntervalType)):
            raise FieldError(
                f"field {path!r} cannot be a column of state {state.name}",
                found=kind.simpleString(),
                expected="a type that Delta has",
                action="cast it, as in F.lit(None).cast('string')",
            )


def _columns(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each field and the parts of its type, with the way to it."""
    if isinstance(kind, StructType):
        for one in kind.fields:
            place = f"{path}.{one.name}" if path else one.name
            yield place, one.dataType
            yield from _columns(one.dataType, place)
    parts = [kind.elementType] if isinstance(kind, ArrayType) else []
    parts += [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []
    for part in parts:
        yield path, part
        yield from _columns(part, path)


def check_reserved(state: Any, schema: StructType) -> None:
    """Raises FieldError when a field has a name that keyed states use themselves, or that Delta cannot have."""
    if state_kind(state) == "keyed":
        check_columns(state, schema)
    for name in schema.names:
        if name.lower() in _RESERVED or name.lower().startswith("__trident"):
            raise FieldError(
                f"field {name!r} cannot be written to state {state.name}",
                expected=f"a name other than {', '.join(_RESERVED)}, which the state's tables use",
            )
