"""Checks a state before a stream writes to it, whatever its kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from trident.coordinators.errors import FieldError, TopologyError
from trident.planning.nodes import require_fields
from trident.states.core.binding import StateKind
from trident.states.core.names import check_name, folded
from trident.states.core.tables import HIDDEN_COLUMNS
from trident.states.keyed.history_rows import VALID_FROM, VALID_TO

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
        raise FieldError("Upsert has nothing to store beside the keys", expected="at least one other field")


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
