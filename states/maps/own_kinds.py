"""The state kinds whose values the user's code keeps: maps over a backing map, and states of a StateFactory."""

from __future__ import annotations

from typing import Any

from trident.coordinators.errors import TopologyError
from trident.states.core.binding import DecidedRows, StateBinding, TablelessKind
from trident.states.core.guarantee import Guarantee, GuaranteeRow
from trident.states.core.plain_values import Row
from trident.states.core.values import Semantics, visible
from trident.states.maps.backed_map import BackedMapState

_UNFENCED = GuaranteeRow("UNFENCED", "transactional(map), opaque(map) over an unfenced map", Guarantee.UNLESS_WOKEN)
_TRANSACTIONAL = GuaranteeRow("TRANSACTIONAL", "transactional(map), fenced")
_OPAQUE = GuaranteeRow("OPAQUE", "opaque(map), fenced")
_USER = GuaranteeRow("USER", "a StateFactory of your own", Guarantee.AT_LEAST_ONCE)
_NON_TRANSACTIONAL = GuaranteeRow("NON_TRANSACTIONAL", "non_transactional(map)", Guarantee.AT_LEAST_ONCE)
_SKIPPING = GuaranteeRow(
    "NON_TRANSACTIONAL_SKIPPING", "non_transactional(map, skip_replays=True)", Guarantee.AT_MOST_ONCE
)


class OwnKind(TablelessKind):
    """States that the warehouse has nothing of: decided rows are given to them on the executors."""

    users_code = True

    def publish(self, binding: StateBinding, rows: DecidedRows) -> None:
        rows.user_code.publish(binding, rows)

    def rows_now(self, binding: StateBinding, incarnation: str) -> list[Row]:
        items = getattr(getattr(binding.state, "backing", None), "items", None)
        if not callable(items) or hasattr(binding.aggregator, "update_state"):
            raise TopologyError(
                f"state {binding.name} cannot be shown",
                found=repr(binding.state),
                expected="a map whose backing map has items(), under persistent_aggregate or Upsert",
                action="ask the store itself",
            )
        semantics = binding.state.semantics
        rows = [(key, visible(semantics, stored, incarnation)) for key, stored in items()]
        several = len(binding.value_fields) > 1
        # None: the key was removed, and the row is kept for a replay.
        return [(*key, *(value if several else (value,))) for key, value in rows if value is not None]


class MapKind(OwnKind):
    """Maps whose new values are found before the decision: transactional(…) and opaque(…)."""

    name = "map"
    example = "opaque(name, map), transactional(name, map)"
    values_by_key = True
    guarantee_rows = (_UNFENCED, _TRANSACTIONAL, _OPAQUE)

    def holds(self, state: object) -> bool:
        return isinstance(state, BackedMapState) and state.semantics is not Semantics.NON_TRANSACTIONAL

    def guarantee_row(self, state: Any) -> GuaranteeRow:
        if not state.fenced:
            return _UNFENCED
        return _OPAQUE if state.semantics is Semantics.OPAQUE else _TRANSACTIONAL


class UserKind(OwnKind):
    """States that change while they are published: those of a StateFactory, and non_transactional(…)."""

    name = "user"
    example = "a StateFactory"
    updated_when_published = True
    why_no_new_values = "a state whose updates are made while it is published, after the decision"
    guarantee_rows = (_USER, _NON_TRANSACTIONAL, _SKIPPING)

    def holds(self, state: object) -> bool:
        return isinstance(state, BackedMapState) or callable(getattr(state, "make_state", None))

    def guarantee_row(self, state: Any) -> GuaranteeRow:
        if not isinstance(state, BackedMapState):
            return _USER
        return _SKIPPING if state.skip_replays else _NON_TRANSACTIONAL

    def check_has_keys(self, state: Any, what: str) -> None:
        if not isinstance(state, BackedMapState):
            raise TopologyError(
                f"{what} needs a state with one value per key",
                found=repr(state),
                expected="DeltaMapState(name), or opaque(name, map) over a map of your own",
                action="use partition_persist with an updater to write a state of your own",
            )


MAP = MapKind()
USER = UserKind()
