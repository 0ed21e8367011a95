"""Warns of operations that count within one batch only, where a reader may expect more (docs/semantics.md 4).

A join and a multi_reduce see the rows of one transaction. Of two spouts each
cuts its rows into batches as it has them, so which rows meet is chance; of
branches of one spout it is not. An ``Upsert`` orders the rows of one batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from trident.operations.guarantees import warn_at
from trident.planning.nodes import Node, above, sources


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
