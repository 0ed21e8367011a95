"""For tests of topologies: one batch of a stream, sources that give what they are told, and fault points.

::

    from trident.testing import FixedBatchSpout, MemoryMapState, faults, run_batch

    assert run_batch(words, [("a b",)]) == [("a",), ("b",)]
    faults.arm("publish.table:do_then_fail")   # what a lost answer does
"""

from __future__ import annotations

from trident.coordinators import faults
from trident.coordinators.faults import InjectedFault
from trident.feeder_spouts import FeederBatchSpout, FeederCommitterBatchSpout
from trident.fixed_batch_spout import FixedBatchSpout
from trident.run_batch import run_batch
from trident.states.backing_maps import MemoryBackingMap
from trident.states.memory_map import MemoryMapState

__all__ = [
    "FeederBatchSpout", "FeederCommitterBatchSpout", "FixedBatchSpout", "InjectedFault", "MemoryBackingMap",
    "MemoryMapState", "faults", "run_batch",
]  # fmt: skip
