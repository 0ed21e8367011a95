"""A keyed aggregate in Delta whose commit cost does not grow with the table (docs/semantics.md 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from trident.coordinators.errors import ConfigError
from trident.states.core.binding import WHOLE_VALUES, GuaranteeRow, StateBinding, TableKind, kept_schema
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.names import backquoted, check_flag, check_name
from trident.states.core.tables import (
    DELETED_COLUMN,
    PROPERTIES,
    TXID_COLUMN,
    UPTO_COLUMN,
    TableSpec,
    plain_properties,
    table_schema,
)
from trident.states.delta.append import check_columns


@dataclass(frozen=True)
class DeltaMapState:
    """A log-structured keyed state: one row per key, updated exactly once per transaction.

    Each transaction appends its partial aggregates to the log
    ``<warehouse>/<name>__log``; in the background one MERGE at a time brings the
    table ``<warehouse>/<name>`` up to date. The table is for any Delta reader
    and lags: the two settings below say when a MERGE begins; ``query.snapshot(name)`` and
    ``trident.read`` combine both and are exact as of one transaction.

    Exactly once with transactional and opaque spouts (docs/semantics.md 5).

    Args:
        name: the state's name, and the table's folder.
        merge_every_txids: MERGE once this many transactions wait for it. 1 keeps
            the table as current as a MERGE a transaction can.
        merge_interval_secs: MERGE at the latest this long after the one before,
            if anything waits; seconds. Of both: while the table is large beside
            what waits, up to four times as much.
        snapshot_retention_txids: this many transactions back a snapshot can be read.
        adopt: take over a Delta table that another program's MERGEs have written, as the state's table. Its rows are
            the values before the first transaction, and none is written again. It must have the state's keys and
            values as its columns, and one row of each key (docs/migrate.md). Once it is the state's, this says
            nothing more.
        change_feed: the table has Delta's change data feed: MERGEs write down each row that they change, before and
            after, for ``DeltaSpout(…, changes=True)`` and other readers (docs/cdc.md). A table that was made without
            it gets it at the next start, and keeps it.

    Raises:
        TopologyError: the name cannot be used.
        ConfigError: a setting is impossible.
    """

    name: str
    merge_every_txids: int = 50
    merge_interval_secs: float = 30.0
    snapshot_retention_txids: int = 1000
    adopt: bool = False
    change_feed: bool = False

    def __post_init__(self) -> None:
        check_name("state", self.name)
        _require(self, "merge_every_txids", int, 1)
        _require(self, "merge_interval_secs", (int, float), 0)
        _require(self, "snapshot_retention_txids", int, 0)
        check_flag(self.adopt, f"adopt of state {self.name}")
        check_flag(self.change_feed, f"change_feed of state {self.name}")


def _require(state: DeltaMapState, setting: str, kind: type[int] | tuple[type[int], type[float]], least: int) -> None:
    value = getattr(state, setting)
    # Written so that NaN fails too.
    if not isinstance(value, kind) or isinstance(value, bool) or not value >= least:
        raise ConfigError(
            f"{setting} of state {state.name} is impossible", found=repr(value), expected=f"a number, at least {least}"
        )


class KeyedKind(TableKind):
    """The kind of DeltaMapState: decided rows are committed to a log, which a compactor merges into the plain table."""

    name = "keyed"
    example = "DeltaMapState(name)"
    is_described = True
    has_log = True
    values_by_key = True
    guarantee_rows = (GuaranteeRow("KEYED", "DeltaMapState"),)

    def holds(self, state: object) -> bool:
        return isinstance(state, DeltaMapState)

    def check_rows(self, state: Any, schema: "StructType", keys: Sequence[str]) -> None:
        check_columns(state.name, schema)

    def published_table(self, binding: StateBinding) -> TableSpec:
        schema = table_schema(binding.log_schema, TXID_COLUMN)
        path, keys = self.published_path(binding.name), tuple(binding.keys)
        return TableSpec(path, schema, (), PROPERTIES, TXID_COLUMN, keys, is_log=True)

    def plain_table(self, binding: StateBinding) -> TableSpec:
        schema = table_schema(kept_schema(binding.schema, binding.merging), UPTO_COLUMN)
        return TableSpec(binding.name, schema, (), plain_properties(binding.state.change_feed, binding.keys))

    def published_path(self, name: str) -> str:
        return f"{name}__log"

    def may_grow(self, binding: StateBinding) -> bool:
        return binding.merging in WHOLE_VALUES and (binding.aggregator_name or "").partition(" ")[0] == "upsert"


KEYED = KeyedKind()


# The periods of a keyed state that keeps the history of its keys, made of its changes when it is read.


VALID_FROM, VALID_TO = "valid_from", "valid_to"


def periods(state: StateDescriptor, changes: "DataFrame") -> "DataFrame":
    """Keys, values, and from which place of the sequence to which they are valid; deletes are the ends of periods.

    Args:
        changes: all rows of the state.
    """
    by, gone = F.col(backquoted(state.history_by)), F.lit(False)
    if state.history_end:
        gone = F.coalesce(F.col(backquoted(state.history_end)), F.lit(False))
    keys = [F.col(backquoted(name)) for name in state.keys if name != state.history_by]
    values = [F.col(backquoted(name)) for name in state.value_fields if name != state.history_end]
    next_one = F.lead(by).over(Window.partitionBy(*keys).orderBy(by))
    found = changes.select(*keys, *values, by.alias(VALID_FROM), next_one.alias(VALID_TO), gone.alias(DELETED_COLUMN))
    return found.where(~F.col(DELETED_COLUMN)).drop(DELETED_COLUMN)
