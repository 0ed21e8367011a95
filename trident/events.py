"""The events that a :class:`trident.TopologyListener` is told, as frozen dataclasses."""

from trident.watching.events import (
    Advanced,
    Event,
    Failed,
    MessageFailed,
    RoundEnded,
    Started,
    Terminated,
    TookOver,
)

__all__ = ["Advanced", "Event", "Failed", "MessageFailed", "RoundEnded", "Started", "Terminated", "TookOver"]
