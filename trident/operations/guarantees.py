"""Which spout and which state are exactly once together (docs/semantics.md 5), as one table.

The README shows it, a topology is checked against it when it is built, and
the matrix test asserts each of its cells, the bad ones too.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trident.spouts.contracts import SpoutKind
from trident.spouts.executors import kind_of

if TYPE_CHECKING:
    from trident.operations.state_writes import PersistNode
    from trident.planning.nodes import Node


class NotExactlyOnceWarning(UserWarning):
    """A topology has a spout and a state that cannot give exactly-once together."""


class Guarantee(enum.Enum):
    """What a row of the source does to a state, whatever fails."""

    EXACTLY_ONCE = "exactly once"
    UNLESS_WOKEN = "exactly once unless an old coordinator wakes up"
    AT_LEAST_ONCE = "at least once"
    AT_MOST_ONCE = "at most once"
    NEITHER = "not exactly once"


class StateKind(enum.Enum):
    """The states of the table."""

    USER = "a StateFactory of your own"
    NON_TRANSACTIONAL = "non_transactional(map)"
    NON_TRANSACTIONAL_SKIPPING = "non_transactional(map, skip_replays=True)"
    UNFENCED = "transactional(map), opaque(map) over an unfenced map"
    TRANSACTIONAL = "transactional(map), fenced"
    OPAQUE = "opaque(map), fenced"
    MEMORY = "MemoryMapState, as long as its process lives"
    KEYED = "DeltaMapState"
    APPEND = "DeltaAppend"


_ONCE = (StateKind.TRANSACTIONAL, StateKind.OPAQUE, StateKind.MEMORY, StateKind.KEYED, StateKind.APPEND)


def guarantee(spout: SpoutKind, state: StateKind) -> Guarantee:
    """The cell of the table.

    What a state is given was staged and decided, so it makes no difference to it
    whether a replay of the spout would have held the same rows: transactional
    and opaque spouts have one row here, unlike in Trident.
    """
    if spout is SpoutKind.NON_TRANSACTIONAL:
        return Guarantee.NEITHER
    if state is StateKind.UNFENCED:
        return Guarantee.UNLESS_WOKEN
    if state in _ONCE:
        return Guarantee.EXACTLY_ONCE
    return Guarantee.AT_MOST_ONCE if state is StateKind.NON_TRANSACTIONAL_SKIPPING else Guarantee.AT_LEAST_ONCE


def state_kind_of(state: Any) -> StateKind:
    """Where a state stands in the table."""
    from trident.operations.state_kinds import is_backed_map, state_kind

    kind = state_kind(state)
    if kind == "user":
        if not is_backed_map(state):
            return StateKind.USER
        return StateKind.NON_TRANSACTIONAL_SKIPPING if state.skip_replays else StateKind.NON_TRANSACTIONAL
    if kind == "map":
        if not state.fenced:
            return StateKind.UNFENCED
        return StateKind.OPAQUE if state.semantics.value == "opaque" else StateKind.TRANSACTIONAL
    return {"memory": StateKind.MEMORY, "keyed": StateKind.KEYED, "append": StateKind.APPEND}[kind]


def table() -> list[tuple[str, ...]]:
    """The table: a header, then a line per state with a cell per spout kind."""
    kinds = (SpoutKind.NON_TRANSACTIONAL, SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE)
    lines = [("state \\ spout", *(kind.value for kind in kinds))]
    lines += [(state.value, *(guarantee(kind, state).value for kind in kinds)) for state in StateKind]
    return lines


def warn_if_not_exactly_once(node: "PersistNode", topology: str) -> None:
    """Warns, at the user's line, when a stream's spout and a state cannot give exactly-once together."""
    state = state_kind_of(node.binding.state)
    for source in sources_of(node):
        found = guarantee(kind_of(source.spout), state)
        if found is not Guarantee.EXACTLY_ONCE:
            file, _, line = node.location.rpartition(":")
            text = _text(topology, source, node, state, found)
            # At the user's line, however deep in here it is found.
            warnings.warn_explicit(text, NotExactlyOnceWarning, file or "topology", int(line) if line.isdigit() else 1)


def _text(topology: str, source: Any, node: "PersistNode", state: StateKind, found: Guarantee) -> str:
    kind = kind_of(source.spout)
    pair = f"stream {source.tx_id!r} ({type(source.spout).__name__}, {kind.value}) and state {node.binding.name!r}"
    if kind is SpoutKind.NON_TRANSACTIONAL:
        better = (
            "a transactional or an opaque spout, such as FileSpout, with any of DeltaMapState, DeltaAppend or opaque(…)"
        )
    elif found is Guarantee.UNLESS_WOKEN:
        better = "a map whose multi_put refuses an older epoch (fenced = True), such as SqliteMap, or DeltaMapState"
    else:
        better = f"the same spout with opaque(…) over a fenced map, or with DeltaMapState (found: {state.value})"
    return f"topology {topology!r}: {pair} together are {found.value}; exactly once would be {better}"


def sources_of(node: "Node") -> Iterator[Any]:
    """The SourceNodes above a node."""
    from trident.planning.nodes import SourceNode

    seen: set[Any] = set()
    waiting: list[Any] = [node]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        if isinstance(current, SourceNode):
            yield current
        waiting.extend(current.parents)
