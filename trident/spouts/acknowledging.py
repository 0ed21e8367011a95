"""Which spouts can change their source when they are told that a transaction has succeeded: a fork must not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trident.coordinators.errors import Halted

# The methods by which a spout of any kind is told, or makes what is told.
_MAKERS = ("get_coordinator", "get_emitter", "get_partition_emitter", "open", "emit_batch", "ack")


def acknowledges(spout: Any) -> bool | None:
    """Returns what a spout says of itself (``trident.spouts.contracts.Acknowledges``); None where it does not say.

    A class that makes another coordinator or emitter than the class that says it has not said it of these.

    Raises:
        SourceError: a Python data source cannot make a reader.
    """
    classes = type(spout).__mro__
    says = _first(classes, ("acknowledges",))
    if "acknowledges" not in vars(spout) and (says is None or says > (_first(classes, _MAKERS) or 0)):
        return None
    said = spout.acknowledges
    return said if isinstance(said, bool) else None


def _first(classes: Iterable[type], names: Iterable[str]) -> int | None:
    """The place of the first class that has one of some names itself."""
    return next((place for place, each in enumerate(classes) if any(name in vars(each) for name in names)), None)


def check_reads_only(topology: str, spouts: Mapping[str, Any]) -> None:
    """Refuses to start a fork that would change its original's sources.

    Raises:
        Halted: a stream's spout acknowledges, or does not say; with their names.
        SourceError: a Python data source cannot make a reader.
    """
    found = []
    for tx_id, spout in sorted(spouts.items()):
        said = acknowledges(spout)
        if said is None or said:
            word = "does not say whether it acknowledges" if said is None else "acknowledges"
            found.append(f"{tx_id}: {type(spout).__name__} {word}")
    if found:
        raise Halted(
            f"{topology} is a fork, and could change the sources that its original reads",
            found="; ".join(found),
            expected="spouts that only read; a KafkaSpout without commit_group; a spout of your own with "
            "`acknowledges = False`, when it only reads",
            action="if its source may be told of the fork's transactions (a copy of the data, a group of its own), run "
            "the same `trident fork` command again with --accept-acknowledging; nothing was read",
        )
