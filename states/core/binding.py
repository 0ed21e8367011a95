"""What a topology writes to one state: the rows, their keys and how they combine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


COMBINE = "combine"
LAST = "last"
DELETED_COLUMN = "_deleted"


@dataclass(frozen=True)
class StateBinding:
    """A state with what the plan delivers to it.

    Attributes:
        state: the user's setting object (DeltaAppend, DeltaMapState, MemoryMapState).
        kind: "append", "keyed" or "memory".
        keys: the grouping fields; empty for a global aggregate or an append.
        schema: of the rows to be staged: for append the rows themselves, else
            the keys followed by the partial value fields.
        value_fields: the names in schema that are not keys.
        aggregator: how partial values combine; None for append.
        merging: "combine": a keyed row is a part of its key's value, and the
            aggregator combines them; "last": it is the whole new value, or says
            that the key is deleted (at most one row per key and transaction).
    """

    state: Any
    kind: str
    keys: tuple[str, ...]
    schema: "StructType"
    value_fields: tuple[str, ...]
    aggregator: Any = None
    merging: str = COMBINE

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def aggregator_name(self) -> str | None:
        """A stable name of the aggregator: part of the topology's identity."""
        return None if self.aggregator is None else aggregator_name(self.aggregator)

    @property
    def log_schema(self) -> "StructType":
        """The columns of the rows to be staged: the schema, with "last" merging also ``_deleted``.

        True in ``_deleted`` deletes the key; the values of that row are not
        looked at. Null is as false.
        """
        if self.merging != LAST:
            return self.schema
        from pyspark.sql.types import BooleanType, StructField, StructType

        return StructType([*self.schema.fields, StructField(DELETED_COLUMN, BooleanType(), True)])

    def identity(self) -> dict[str, Any]:
        """What may not change between runs (docs/semantics.md 10); JSON."""
        how = self.aggregator_name or "append"
        if self.kind not in ("append", "keyed"):
            # What is kept, and where: another kind of state would begin empty, or meet rows that it cannot read.
            semantics = getattr(self.state, "semantics", None)
            how = f"{self.kind}{f'/{semantics.value}' if semantics is not None else ''} {how}"
        return {"keys": list(self.keys), "value_schema": self.schema.simpleString(), "aggregator": how}


def aggregator_name(aggregator: Any) -> str:
    """A stable name of an aggregator: a native one's own, else where its class is."""
    native = getattr(aggregator, "native_name", None)
    kind = type(aggregator)
    return native or f"python:{_module_name(kind.__module__)}.{kind.__qualname__}"


def _module_name(module: str) -> str:
    """The module's own name, also when it is run as a script: the same class has one identity."""
    if module != "__main__":
        return module.rpartition(".")[2]
    path = getattr(sys.modules["__main__"], "__file__", None)
    return os.path.splitext(os.path.basename(path))[0] if path else module
