"""Where a replay has its rows from: its input, states as of the transaction before, and what was committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from trident.config import TridentConfig
from trident.coordinators.errors import TableError
from trident.coordinators.transactions import TransactionAttempt
from trident.planning.groups import GroupPlan
from trident.states.core.binding import StateBinding
from trident.states.core.descriptor import load_descriptor
from trident.states.core.plain_values import python_values
from trident.states.keyed.frames import StoredFrames
from trident.states.keyed.reading import read_state, read_with
from trident.time_travel.kept_batch import KeptBatch
from trident.time_travel.source_rows import SourceRows, source_rows
from trident.time_travel.staged_rows import staged_table

_SPOUT_SETTINGS = ("max_spout_pending", "ackers")


class Ground(ABC):
    """The rows around one transaction."""

    attempt: TransactionAttempt
    incarnation: str

    @abstractmethod
    def sources(self, plan: GroupPlan) -> SourceRows:
        """The input rows of the streams of a plan."""

    @abstractmethod
    def stored(self, binding: StateBinding, keys: "DataFrame | None") -> "DataFrame":
        """Keys and values of a state as of the transaction before, of the keys at least."""

    @abstractmethod
    def before(self, binding: StateBinding) -> "DataFrame":
        """A state as of the transaction before, as readers have it."""

    @abstractmethod
    def after(self, binding: StateBinding, rows: "DataFrame") -> "DataFrame":
        """The same with the rows that were staged for it on top."""

    @abstractmethod
    def committed(self, binding: StateBinding) -> pa.Table | None:
        """The rows that were staged for a state in the transaction that was committed; None: there were none."""

    @abstractmethod
    def others(self, plan: GroupPlan) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """State → the rows that were committed to it, of states that the plan has not."""


class WarehouseGround(Ground):
    """The rows around a kept transaction, from its sources and from the warehouse."""

    def __init__(self, spark: "SparkSession", kept: KeptBatch, config: TridentConfig) -> None:
        self._spark, self._kept, self._config = spark, kept, config
        self.attempt, self.incarnation = kept.manifest.attempt, kept.manifest.incarnation
        self._frames = StoredFrames(spark, kept.warehouse)
        self._parts = {table.state: table for table in kept.manifest.tables}

    @property
    def _before(self) -> int:
        return self.attempt.txid - 1

    def sources(self, plan: GroupPlan) -> SourceRows:
        kept, config = self._kept, self._config
        options = {"warehouse": str(kept.warehouse), **{name: getattr(config, name) for name in _SPOUT_SETTINGS}}
        return source_rows(self._spark, plan, kept.manifest, kept.warehouse, config.batch_partitions, options)

    def stored(self, binding: StateBinding, keys: "DataFrame | None") -> "DataFrame":
        if not self._is_there(binding):
            return self._spark.createDataFrame([], binding.schema)
        return self._frames(binding, keys, self._before)

    def before(self, binding: StateBinding) -> "DataFrame":
        self._require_table(binding)
        if not self._is_there(binding):
            return self._spark.createDataFrame([], binding.schema)
        return read_state(
            self._spark,
            self._kept.warehouse,
            binding.name,
            self._before,
            binding.aggregator,
            advanced_txid=self._before,
            here=True,
        )

    def after(self, binding: StateBinding, rows: "DataFrame") -> "DataFrame":
        self._require_table(binding)
        if not self._is_there(binding):
            raise TableError(
                f"state {binding.name} is new in the code: the warehouse has no table of it",
                action="its rows are in `rows`",
            )
        return read_with(self._spark, self._kept.warehouse, binding.name, self._before, rows, binding.aggregator)

    def committed(self, binding: StateBinding) -> pa.Table | None:
        part = self._parts.get(binding.name)
        return None if part is None else staged_table(self._kept.warehouse / part.path, part.files)

    def others(self, plan: GroupPlan) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        known = {binding.name for binding in plan.bindings}
        found: dict[str, list[Mapping[str, Any]]] = {}
        for name, part in self._parts.items():
            if name not in known and part.files and part.state_kind.is_described:
                table = staged_table(self._kept.warehouse / part.path, part.files)
                assert table is not None
                values = [python_values(column) for column in table.columns]
                found[name] = [dict(zip(table.column_names, row)) for row in zip(*values)]
        return found

    @cached_property
    def _there(self) -> dict[str, bool]:
        return {}

    def _is_there(self, binding: StateBinding) -> bool:
        """Tells whether the warehouse has the state, of this topology."""
        if binding.name not in self._there:
            self._there[binding.name] = self._described(binding)
        return self._there[binding.name]

    def _described(self, binding: StateBinding) -> bool:
        try:
            state = load_descriptor(self._kept.warehouse, binding.name)
        except FileNotFoundError:
            return False
        owner = (self._kept.manifest.topology, self._kept.manifest.group)
        if (state.topology, state.group) != owner:
            raise TableError(
                f"state {binding.name} belongs to another topology or batch group",
                found=f"{state.topology}/{state.group}",
                expected="/".join(owner),
                action="give the code the names that it had when the transaction ran",
            )
        return True

    def _require_table(self, binding: StateBinding) -> None:
        if not binding.state_kind.is_described:
            raise TableError(
                f"state {binding.name} has no table that tells of earlier transactions",
                found=f"a state of kind {binding.kind!r}",
                expected="a state in Delta tables of the warehouse",
                action="its rows in the transaction are in `rows`",
            )
