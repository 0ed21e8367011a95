"""Which states a stream can write to, and what each of them accepts."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.types import StructType

from coordinators.errors import FieldError, TopologyError

_KINDS = (
    ("states.delta_append", "DeltaAppend", "append"),
    ("states.delta_map", "DeltaMapState", "keyed"),
    ("states.memory_map", "MemoryMapState", "memory"),
)
# Columns that the framework adds to the tables of keyed states.
_RESERVED = ("_txid", "_upto")


def state_kind(state: object) -> str:
    """ "append", "keyed" or "memory".

    Raises:
        TopologyError: it is no state.
    """
    for module, name, kind in _KINDS:
        # An object of a class exists only once its module is loaded.
        cls = getattr(sys.modules.get(module), name, None)
        if cls is not None and isinstance(state, cls):
            return kind
    hint = "()" if isinstance(state, type) else ""
    raise TopologyError(
        "this is not a state",
        found=f"{state.__name__}, the class" if isinstance(state, type) else repr(state),
        expected=f"{', '.join(name + '(name)' for _, name, _ in _KINDS)}{' (an instance)' if hint else ''}",
    )


def check_append(state: Any, schema: StructType) -> None:
    """Raises TopologyError when rows cannot be appended to the state, FieldError for its partition columns."""
    if state_kind(state) != "append":
        raise TopologyError(
            "partition_persist appends rows", found=repr(state), expected="DeltaAppend(name)",
            action="use persistent_aggregate for a state with one value per key",
        )  # fmt: skip
    columns = tuple(state.partition_columns)
    for column in columns:
        if column not in schema.names:
            raise FieldError(
                f"state {state.name} is partitioned by a field that is not written to it",
                found=repr(column), expected=f"one of {', '.join(schema.names)}",
            )  # fmt: skip
    if len(columns) == len(schema.names):
        raise FieldError(
            f"state {state.name} is partitioned by every field written to it", expected="at least one other field"
        )


def check_keyed(state: Any, what: str) -> None:
    """Raises TopologyError when the state does not hold one value per key."""
    if state_kind(state) == "append":
        raise TopologyError(
            f"{what} needs a state with one value per key", found=repr(state), expected="DeltaMapState(name)",
            action="use partition_persist to append rows",
        )  # fmt: skip


def check_reserved(state: Any, schema: StructType) -> None:
    """Raises FieldError when a field has a name that keyed states use themselves."""
    for name in schema.names:
        if name.lower() in _RESERVED:
            raise FieldError(
                f"field {name!r} cannot be written to state {state.name}",
                expected=f"a name other than {' and '.join(_RESERVED)}, which the state's tables use",
            )
