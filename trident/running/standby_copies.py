"""Keeps a standby's local copies warm: they follow the states' logs while another process leads.

Only what is published is read, and nothing but the copies is written. When this process leads, its copies are those of
the last transaction but for a few, and the first batch builds none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from trident.states.keyed.copies import StateCopies

log = logging.getLogger("trident.standby_copies")
_EVERY_SECS = 0.5


class StandbyCopies:
    """Follows in a thread of its own, from :meth:`start` to :meth:`stop`.

    Args:
        copies: of each group.
    """

    def __init__(self, copies: Sequence[StateCopies]) -> None:
        self._copies = copies
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-standby-copies", daemon=True)

    def start(self) -> None:
        """Begins."""
        for one in self._copies:
            one.open()
        self._thread.start()

    def stop(self) -> None:
        """Ends soon; returns at once, since its caller is about to lead. The copies stay open for the leader."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for one in self._copies:
                try:
                    one.follow()
                except Exception as error:  # it costs warmth, nothing else
                    log.info("a standby's local copies cannot follow: %s", error)
            self._stopped.wait(_EVERY_SECS)
