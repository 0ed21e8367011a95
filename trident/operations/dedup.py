"""drop_duplicates: the first row of each key goes on, and those that follow within a time do not."""

from __future__ import annotations

from typing import Any

from trident.coordinators.errors import TopologyError
from trident.operations.aggregates import check_groupable
from trident.operations.timed import TimedNode, default_name, timed, watermark_required
from trident.operations.timed_spec import TimedSpec
from trident.operations.window_spec import duration_text, duration_us
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import Node
from trident.workers.timed import FirstOfKey

KIND = "drop_duplicates"


def drop_duplicates(graph: TopologyGraph, parent: Node, keys: tuple[str, ...], within: Any, name: Any) -> TimedNode:
    """See :meth:`trident.streams.stream.Stream.drop_duplicates`."""
    check_groupable(parent, keys, KIND)
    if within is None:
        raise TopologyError(
            f"{KIND} needs a time after which a key is forgotten",
            found="no `within`",
            expected="within='1 day', say",
            action="to keep one row per key for ever, use partition_persist with a DeltaMapState and Upsert(keys)",
        )
    length = duration_us(within, f"within of {KIND}")
    if length <= 0:
        raise TopologyError(f"within of {KIND} cannot be that", found=repr(within), expected="more than nothing")
    watermark = watermark_required(parent, KIND, "it tells when a key can be forgotten")
    text = f"{KIND}({', '.join(keys)} within {duration_text(length)})"
    spec = TimedSpec(
        f"dedup(within {length} us of {watermark.field} delayed by {watermark.delay} us)",
        (watermark.field,),
        (watermark.delay,),
    )
    return timed(
        (parent,),
        KIND,
        text,
        (keys,),
        spec,
        (),
        default_name(graph, KIND) if name is None else name,
        given=parent.schema,
        rule=lambda _: FirstOfKey(length),
        keeps_watermark=True,
    )
