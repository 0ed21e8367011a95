"""For tests of topologies: sources that give what they are told, and fault points.

::

    from trident.testing import FixedBatchSpout, MemoryMapState, faults

    faults.arm("publish.table:do_then_fail")   # what a lost answer does
"""

from __future__ import annotations

from coordinators import faults
from coordinators.faults import InjectedFault
from states.backing_maps import MemoryBackingMap
from states.memory_map import MemoryMapState
from trident.feeder_spouts import FeederBatchSpout, FeederCommitterBatchSpout
from trident.fixed_batch_spout import FixedBatchSpout

__all__ = [
    "FeederBatchSpout", "FeederCommitterBatchSpout", "FixedBatchSpout", "InjectedFault", "MemoryBackingMap",
    "MemoryMapState", "faults",
]  # fmt: skip
