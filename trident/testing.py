"""Helpers for tests: one batch of a stream, a captured transaction, sources that give what they are told, fault points.

::

    from trident.testing import FixedBatchSpout, MemoryMapState, faults, run_batch

    assert run_batch(words, [("a b",)]) == [("a",), ("b",)]
    faults.arm("publish.table:do_then_fail")   # what a lost answer does
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from trident.coordinators import faults
from trident.coordinators.faults import InjectedFault
from trident.spouts.fed import FeederBatchSpout, FeederCommitterBatchSpout, FixedBatchSpout
from trident.states.maps.backing_maps import MemoryBackingMap
from trident.states.maps.memory_map import MemoryMapState
from trident.streams.run_batch import run_batch

if TYPE_CHECKING:
    import os

    from trident.time_travel.captures import Capture

__all__ = [
    "FeederBatchSpout",
    "FeederCommitterBatchSpout",
    "FixedBatchSpout",
    "InjectedFault",
    "MemoryBackingMap",
    "MemoryMapState",
    "faults",
    "load_capture",
    "run_batch",
]


def load_capture(folder: Union[str, "os.PathLike[str]"]) -> "Capture":
    """The transaction that ``trident capture`` has written into a folder.

    ::

        def test_the_batch_that_went_wrong():
            capture = load_capture("tests/captures/orders-8123")
            assert capture.differences(build_topology()) == []
            assert run_batch(totals, capture.inputs, states=capture.states) == [("ada", 12.5)]

    Raises:
        TableError: there is none, or it is not as it was written.
    """
    from trident.time_travel.captures import load_capture as load  # workers, which import users' modules, need it not

    return load(folder)
