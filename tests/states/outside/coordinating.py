"""The parts of a coordinator of one outside state, as a process that tests kill or stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from trident.coordinators.errors import StaleEpoch, StateAway
from trident.states.outside.port import OutsideState

REFUSED = 3  # such a process ends with this where it is refused as a stale coordinator


def taken_over(state: OutsideState, epoch: int) -> int:
    """Takes the state over; returns the transaction to begin with, which some parts may have."""
    marks = waited(lambda: state.take_over("top", "inc", epoch))
    if any(mark.epoch != epoch for mark in marks.values()):
        sys.exit(REFUSED)
    return max([1, *(mark.txid for mark in marks.values())])


def waited(action: Callable[[], Any]) -> Any:
    """The result of an action that is tried for as long as the store is away."""
    while True:
        try:
            return action()
        except StateAway:
            time.sleep(0.05)
        except StaleEpoch:
            sys.exit(REFUSED)
