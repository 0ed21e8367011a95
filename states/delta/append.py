"""A Delta table to which each transaction appends its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from trident.coordinators.errors import TopologyError, described
from trident.states.core.binding import StateBinding, TableKind
from trident.states.core.guarantee import GuaranteeRow
from trident.states.core.names import check_flag, check_name
from trident.states.core.tables import PROPERTIES, TableSpec, table_schema
from trident.states.delta.columns import (
    check_columns,
    check_no_field_is,
    check_partition_columns,
    check_txid_column,
)


@dataclass(frozen=True)
class DeltaAppend:
    """A Delta table that every transaction appends its rows to, exactly once.

    The table is ``<warehouse>/<name>``; any Delta reader may read it. Exactly
    once with transactional and opaque spouts (docs/semantics.md 5).

    Args:
        name: the state's name, and the table's folder.
        partition_columns: fields by which the table is partitioned: numbers,
            strings, booleans, dates and timestamps (of the years 1 to 9999). Delta
            keeps them as text, to which an empty string is null: it is read back
            as null, as from any Delta table.
        adopt: take over a table that exists and was not made by this topology.
        txid_column: a further column of the table, of type long, for the number of the transaction that wrote the row,
            as in ``txid_column="_txid"``: by it :func:`trident.explain_row` tells of any row where it is from, also
            after OPTIMIZE has put it into another file. The batch must have no field of that name. It costs next to
            nothing, since all rows of a file have one value. A table gets it when its topology starts with it for the
            first time; rows from before, and those of a table that was taken over, have null there.

    Raises:
        TopologyError: the name cannot be used, or the columns are no names.
        ConfigError: ``adopt`` is neither True nor False, or ``txid_column`` is no name of a column.
    """

    name: str
    partition_columns: Sequence[str] = ()
    adopt: bool = False
    txid_column: str | None = None

    def __post_init__(self) -> None:
        check_name("state", self.name)
        columns = self.partition_columns
        if not isinstance(columns, str) and not isinstance(columns, Iterable):
            raise TopologyError(
                f"partition_columns of state {self.name} are no names",
                found=described(columns),
                expected="a list of field names, or one name",
            )
        check_flag(self.adopt, f"adopt of state {self.name}")
        check_txid_column(self.name, self.txid_column)
        object.__setattr__(self, "partition_columns", (columns,) if isinstance(columns, str) else tuple(columns))


class RowsKind(TableKind):
    """Tables to which each transaction appends its rows as they are."""

    appends = True

    def holds(self, state: object) -> bool:
        return False

    def published_table(self, binding: StateBinding) -> TableSpec:
        state = binding.state
        txid_column = getattr(state, "txid_column", None)
        schema = table_schema(binding.schema, txid_column)
        return TableSpec(binding.name, schema, tuple(state.partition_columns), PROPERTIES, txid_column)


class AppendKind(RowsKind):
    """The kind of DeltaAppend."""

    name = "append"
    example = "DeltaAppend(name)"
    is_described = True
    why_no_new_values = "rows that are appended"
    guarantee_rows = (GuaranteeRow("APPEND", "DeltaAppend"),)

    def holds(self, state: object) -> bool:
        return isinstance(state, DeltaAppend)

    def may_grow(self, binding: StateBinding) -> bool:
        return True

    def check_rows(self, state: Any, schema: "StructType", keys: Sequence[str]) -> None:
        check_columns(state.name, schema)
        check_no_field_is(state.name, state.txid_column, schema)
        check_partition_columns(state.name, tuple(state.partition_columns), schema)

    def check_has_keys(self, state: Any, what: str) -> None:
        raise TopologyError(
            f"{what} needs a state with one value per key",
            found=repr(state),
            expected="DeltaMapState(name)",
            action="use partition_persist to append rows",
        )


APPEND = AppendKind()
