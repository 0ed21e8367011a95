"""The table of guarantees: which spout and which state are exactly once together (docs/semantics.md 5).

docs/guarantees.md shows it, a topology is checked against it when it is built, and
the matrix test asserts each of its cells, the bad ones too.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from trident.planning.nodes import SourceNode, above, sources
from trident.spouts.contracts import SpoutKind
from trident.spouts.executors import spout_kind
from trident.states.core.guarantee import Guarantee, GuaranteeRow
from trident.states.core.kinds import all_kinds

if TYPE_CHECKING:
    from trident.operations.state_writes import PersistNode


class NotExactlyOnceWarning(UserWarning):
    """A topology has a spout and a state that cannot give exactly-once together."""


def guarantee(spout: SpoutKind, row: GuaranteeRow) -> Guarantee:
    """The cell of the table.

    A state is given rows that were staged and decided, so it does not matter to it
    whether a replay of the spout would have held the same rows: transactional
    and opaque spouts have one row here, unlike in Trident.
    """
    return Guarantee.NEITHER if spout is SpoutKind.NON_TRANSACTIONAL else row.guarantee


def guarantee_rows() -> list[GuaranteeRow]:
    """The lines of the table, from the least to the most that a state does for exactly-once."""
    return [row for kind in reversed(all_kinds()) for row in kind.guarantee_rows]


def table() -> list[tuple[str, ...]]:
    """The table: a header, then a line per state with a cell per spout kind."""
    kinds = (SpoutKind.NON_TRANSACTIONAL, SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE)
    lines = [("state \\ spout", *(kind.value for kind in kinds))]
    lines += [(row.state, *(guarantee(kind, row).value for kind in kinds)) for row in guarantee_rows()]
    return lines


def warn_if_not_exactly_once(node: "PersistNode", topology: str) -> None:
    """Warns, at the user's line, when a stream's spout and a state cannot give exactly-once together."""
    row = node.binding.state_kind.guarantee_row(node.binding.state)
    for source in sources(above(node)):
        found = guarantee(spout_kind(source.spout), row)
        if found is not Guarantee.EXACTLY_ONCE:
            warn_at(node.location, _text(topology, source, node, row, found), NotExactlyOnceWarning)


def _text(topology: str, source: SourceNode, node: "PersistNode", row: GuaranteeRow, found: Guarantee) -> str:
    kind = spout_kind(source.spout)
    pair = f"stream {source.tx_id!r} ({type(source.spout).__name__}, {kind.value}) and state {node.binding.name!r}"
    if kind is SpoutKind.NON_TRANSACTIONAL:
        better = (
            "a transactional or an opaque spout, such as FileSpout, with any of DeltaMapState, DeltaAppend or opaque(…)"
        )
    elif found is Guarantee.UNLESS_WOKEN:
        better = "a map whose multi_put refuses an older epoch (fenced = True), such as SqliteMap, or DeltaMapState"
    elif row.better:
        better = f"{row.better}; or the same spout with DeltaAppend or DeltaMapState"
    else:
        better = f"the same spout with opaque(…) over a fenced map, or with DeltaMapState (found: {row.state})"
    return f"topology {topology!r}: {pair} together are {found.value}; exactly once would be {better}"


def warn_at(location: str, text: str, category: type[Warning]) -> None:
    """Warns at the user's line, "file:line", however deep in here it is found."""
    file, _, line = location.rpartition(":")
    warnings.warn_explicit(text, category, file or "topology", int(line) if line.isdigit() else 1)
