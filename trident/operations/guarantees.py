"""Warnings: of a spout and a state that are not exactly once, of operations within one batch (docs/semantics.md 4, 5).

docs/guarantees.md shows it, a topology is checked against it when it is built, and
the matrix test asserts each of its cells, the bad ones too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trident.planning.nodes import Node, SourceNode, above, sources
from trident.spouts.contracts import SpoutKind
from trident.spouts.executors import spout_kind
from trident.states.core.binding import Guarantee, GuaranteeRow
from trident.states.core.kinds import all_kinds

if TYPE_CHECKING:
    from trident.operations.state_nodes import PersistNode


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


# Warns of operations that count within one batch only, where a reader may expect more (docs/semantics.md 4).
#
# A join and a multi_reduce see the rows of one transaction. Of two spouts each
# cuts its rows into batches as it has them, so which rows meet is chance; of
# branches of one spout it is not. An ``Upsert`` orders the rows of one batch.


class SameBatchOnlyWarning(UserWarning):
    """A join or multi_reduce of streams of independent spouts: rows of two batches never meet, and are not kept.

    A pair of rows is found only if both spouts happen to put them into one
    transaction. To find all pairs, give the join a time bound, by event time:
    ``one.join(other, "id", within="10 minutes")``, both behind ``with_watermark``
    (docs/event-time.md). Without event times merge the streams, ``group_by`` the
    key, and keep what each side said with an aggregator of your own
    (docs/stream-api.md, "Joining over batches").

    Where the batches of the spouts do belong together, as those of two
    FixedBatchSpouts, ``warnings.filterwarnings("ignore", category=SameBatchOnlyWarning)``.
    """


def warn_if_independent(node: Node, what: str) -> None:
    """Warns, at the user's line, when the sides of a join or multi_reduce come from independent spouts."""
    pair = independent_sides(node)
    if pair is None:
        return
    one, other = pair
    text = (
        f"{what} of streams {one} and {other}: only rows of one transaction meet, and these are independent spouts, "
        "so a row whose partner comes in another batch finds none, and is not kept; to find all pairs, put "
        "with_watermark(field, delay) before both and give the join a time bound, as in one.join(other, 'id', "
        "within='10 minutes') (docs/event-time.md); without event times keep both sides in a state: group_by the key, "
        "persistent_aggregate with an Aggregator that has resume, new_values_stream (docs/stream-api.md, "
        "'Joining over batches')"
    )
    warn_at(node.location, text, SameBatchOnlyWarning)


def independent_sides(node: Node) -> tuple[str, str] | None:
    """The streams of the first two sides that have no spout in common; None when all have."""
    sides = [frozenset(source.tx_id for source in sources(above(parent))) for parent in node.parents]
    for number, one in enumerate(sides):
        for other in sides[number + 1 :]:
            if one and other and not one & other:
                return _named(one), _named(other)
    return None


def _named(streams: frozenset[str]) -> str:
    return " and ".join(repr(name) for name in sorted(streams))


def note_if_independent(node: Node) -> Iterator[str]:
    """For ``explain``: that rows of two batches never meet in the node, where its sides are of independent spouts."""
    pair = independent_sides(node)
    if pair is not None:
        yield f"only rows of one transaction meet: streams {pair[0]} and {pair[1]} are independent"
