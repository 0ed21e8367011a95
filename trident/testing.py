"""Helpers for tests of topologies: one batch of a stream, sources that give what they are told, fault points.

::

    from trident.testing import FixedBatchSpout, MemoryMapState, faults, run_batch

    assert run_batch(words, [("a b",)]) == [("a",), ("b",)]
    faults.arm("publish.table:do_then_fail")   # what a lost answer does
"""

from __future__ import annotations

from trident.coordinators import faults
from trident.coordinators.faults import InjectedFault
from trident.spouts.feeders import FeederBatchSpout, FeederCommitterBatchSpout
from trident.spouts.fixed import FixedBatchSpout
from trident.states.maps.backing_maps import MemoryBackingMap
from trident.states.maps.memory_map import MemoryMapState
from trident.streams.run_batch import run_batch

__all__ = [
    "FeederBatchSpout",
    "FeederCommitterBatchSpout",
    "FixedBatchSpout",
    "InjectedFault",
    "MemoryBackingMap",
    "MemoryMapState",
    "faults",
    "run_batch",
]
