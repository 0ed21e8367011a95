"""Checks that a running topology's warehouse is still where it was when the topology started."""

from __future__ import annotations

import time

from trident.coordinators.errors import Halted
from trident.states.core import storage
from trident.states.core.place import Place

_LOOK_SECS = 0.5
_LOOK_AT_STORE_SECS = 10.0  # each look costs requests


class WarehousePlace:
    """Looks for the topology's own folder in the warehouse, which is there from the start."""

    def __init__(self, warehouse: Place, topology: str) -> None:
        self._warehouse, self._topology = warehouse, topology
        self._folder = warehouse / "_trident"
        self._look_secs = _LOOK_SECS if warehouse.is_local else _LOOK_AT_STORE_SECS
        self._looked_at = -self._look_secs
        self._missed = False

    def is_gone(self, sure: bool = False) -> bool:
        """Tells whether it is gone: seen twice, half a second apart, or at once when ``sure`` asks for it.

        A file system that does not answer is not one that is gone.
        """
        now = time.monotonic()
        if not sure and now - self._looked_at < self._look_secs:
            return False
        self._looked_at = now
        missed_before, self._missed = self._missed, not self._is_there()
        return self._missed and (sure or missed_before)

    def _is_there(self) -> bool:
        try:
            return storage.is_folder(self._folder)
        except OSError:
            return True

    def halted(self) -> Halted:
        """Why the topology stops."""
        return Halted(
            f"the warehouse {self._warehouse} was moved or deleted while topology {self._topology!r} runs; nothing is "
            "written at the old place, and no transaction is lost",
            found=f"no folder {self._folder}",
            expected="the warehouse where it was when the topology started",
            action="start the topology with the new place (--warehouse FOLDER, or warehouse=…): it goes on where it "
            "was; or put the warehouse back. A disk that is not mounted looks the same",
        )
