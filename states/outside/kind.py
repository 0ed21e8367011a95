"""The state kind of all states outside of the warehouse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import StructType

from trident.coordinators.errors import ConfigError, TopologyError, described
from trident.states.core.binding import LAST, DecidedRows, StateBinding, TablelessKind
from trident.states.core.guarantee import Guarantee, GuaranteeRow
from trident.states.core.names import check_flag
from trident.states.core.plain_values import Row
from trident.states.outside.port import OutsideRows, OutsideState


class OutsideKind(TablelessKind):
    """States whose rows are published to a store of the user's, with a mark that the store keeps."""

    name = "outside"
    example = "PostgresState(url, table)"
    appends = True
    keeps_marks = True
    why_no_new_values = "rows that are published outside of the warehouse"
    guarantee_rows = (
        GuaranteeRow(
            "REPEATING",
            "HttpState",
            Guarantee.AT_LEAST_ONCE,
            better="HttpState(…, honours_keys=True), where its server takes requests of one Idempotency-Key once",
        ),
        GuaranteeRow("OUTSIDE", "KafkaState, PostgresState, HttpState(…, honours_keys=True), an OutsideState"),
    )

    def holds(self, state: object) -> bool:
        return isinstance(state, OutsideState)

    def guarantee_row(self, state: Any) -> GuaranteeRow:
        return self.guarantee_rows[1 if state.exactly_once else 0]

    def takes_upserts(self, state: Any) -> bool:
        return bool(state.takes_upserts)

    def check_rows(self, state: Any, schema: "StructType", keys: Sequence[str]) -> None:
        if type(state.partitions) is not int or state.partitions < 1:
            raise ConfigError(f"partitions of state {state.name} is impossible", found=described(state.partitions))
        check_flag(state.adopt, f"adopt of state {state.name}")
        state.check_rows(OutsideRows("", schema, tuple(keys), bool(keys)))

    def check_beside(self, state: Any, others: Sequence[Any]) -> None:
        state.check_beside(others)

    def check_has_keys(self, state: Any, what: str) -> None:
        raise TopologyError(
            f"{what} needs a state with one value per key",
            found=repr(state),
            expected="DeltaMapState(name), or opaque(name, map) over a map of that store",
            action="use partition_persist to write rows, or new_values_stream() of another state and Upsert",
        )

    def publish(self, binding: StateBinding, rows: DecidedRows) -> None:
        rows.user_code.publish_outside(binding, rows)

    def staging_details(self, binding: StateBinding) -> dict[str, Any]:
        """Fixed with the decision: were it not, a part that is published could stand for other rows after a restart."""
        return {"partitions": binding.state.partitions, "settings": dict(binding.state.decided_with())}

    def rows_now(self, binding: StateBinding, incarnation: str) -> list[Row]:
        raise TopologyError(
            f"state {binding.name} cannot be shown: its rows are outside of the warehouse",
            found=repr(binding.state),
            action="ask the store itself",
        )


def rows_of(topology: str, binding: StateBinding) -> OutsideRows:
    """The rows that a topology writes to the state."""
    return OutsideRows(topology, binding.schema, binding.keys, binding.merging == LAST)


OUTSIDE = OutsideKind()
