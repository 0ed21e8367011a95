"""What a topology writes to one state: the rows, their keys and how they combine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


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
    """

    state: Any
    kind: str
    keys: tuple[str, ...]
    schema: "StructType"
    value_fields: tuple[str, ...]
    aggregator: Any = None

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def aggregator_name(self) -> str | None:
        """A stable name of the aggregator: part of the topology's identity."""
        if self.aggregator is None:
            return None
        native = getattr(self.aggregator, "native_name", None)
        kind = type(self.aggregator)
        return native or f"python:{_module_name(kind.__module__)}.{kind.__qualname__}"

    def identity(self) -> dict[str, Any]:
        """What may not change between runs (DESIGN 3); JSON."""
        return {
            "keys": list(self.keys),
            "value_schema": self.schema.simpleString(),
            "aggregator": self.aggregator_name or "append",
        }


def _module_name(module: str) -> str:
    """The module's own name, also when it is run as a script: the same class has one identity."""
    if module != "__main__":
        return module.rpartition(".")[2]
    path = getattr(sys.modules["__main__"], "__file__", None)
    return os.path.splitext(os.path.basename(path))[0] if path else module
