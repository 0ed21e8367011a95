"""Deletes the data files of a keyed state's log some time after the log has dropped them.

A log drop removes files from the Delta table; on disk they would stay until
a person runs VACUUM on a table that is internal, one folder for each
transaction for ever. No snapshot can be asked for below the floor; a reader
that had pinned an older table version before the drop has an hour to end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from trident.coordinators.incarnation_ids import up_to
from trident.states.core import storage
from trident.states.core.place import Place

GRACE_SECS = 3600.0


class LogSweeper:
    """The sweeper of one log; used by one thread. A new process gives the whole grace again.

    Args:
        incarnation: of the topology; files of others are not touched but those from before a rollback of it.
    """

    def __init__(self, root: Place, incarnation: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folders, self._clock = [root / "data" / each for each in up_to(incarnation)], clock
        self._drops: deque[tuple[float, int]] = deque()  # when a floor was first seen

    def dropped(self, floor: int) -> None:
        """The log's control record says that transactions up to this one are dropped."""
        if not self._drops or floor > self._drops[-1][1]:
            self._drops.append((self._clock(), floor))

    def sweep(self) -> int:
        """Deletes what was dropped long enough ago; returns how many folders that were.

        Raises:
            OSError: the folder cannot be listed.
        """
        floor = None
        while self._drops and self._clock() - self._drops[0][0] >= GRACE_SECS:
            floor = self._drops.popleft()[1]
        if floor is None:
            return 0
        doomed = [at / name for at in self._folders for name in storage.list_names(at) if _txid(name) <= floor]
        for folder in doomed:
            storage.try_delete(folder)
        return len(doomed)


def _txid(folder: str) -> float:
    """Of an attempt's folder, ``<txid>-<attempt>-<nonce>``."""
    number = folder.partition("-")[0]
    return int(number) if number.isdigit() else float("inf")
