"""The local copy of a state as a task on another host is told of it: whose it is, as of when, where its tables are.

Imported by executors that may have no msgspec: keep its imports light.
"""

from __future__ import annotations

from dataclasses import dataclass

from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place


@dataclass(frozen=True)
class SentCopy:
    """A copy that each host has for itself: ``host_copy.bring`` finds it there.

    Attributes:
        state: its descriptor: the incarnation, and the form of keys and values.
        warehouse: the folder that all hosts share.
        txid: as of which the copy is read.
        commit: the last commit of the state's log up to that transaction, as the leader has seen it.
        repair: the last repair of the warehouse: copies from before it are others.
        bytes_max: the greatest size of a copy's file.
    """

    state: StateDescriptor
    warehouse: Place
    txid: int
    commit: str
    repair: str
    bytes_max: int
