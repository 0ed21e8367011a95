"""Starts the embedded ZooKeeper server again when it, and the process that watches it, are gone.

``coordinators/embedded.py`` starts the server for the process that needs it
first. A topology that runs for weeks needs it all the time: a person kills the
supervisor, or a full disk ends it, and no other process would start it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.zookeeper import ZooKeeper
from trident.states.core import storage
from trident.states.core.place import Place

_POLL_SECS = 0.5
# The supervisor has a server that was killed back in less.
_AWAY_SECS = 1.5
_RETRY_SECS = 3.0


class EmbeddedKeeper:
    """A thread that sees to the server of one data folder while it is needed.

    Any number of processes may have one: the server is started under a lock.

    Args:
        zk: the connection; when it is away, the keeper looks.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        folder: Place,
        tell: Callable[[str], None],
        explain: Callable[[BaseException], BaseException],
    ) -> None:
        self._zk, self._folder, self._tell, self._explain = zk, folder, tell, explain
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-zookeeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; the server stays, others may use it."""
        self._closed.set()

    def _run(self) -> None:
        seen_at, told = time.monotonic(), ""
        while not self._closed.wait(_POLL_SECS):
            if self._zk.connected:
                seen_at, told = time.monotonic(), ""
                continue
            if time.monotonic() - seen_at < _AWAY_SECS:
                continue
            if not storage.is_folder(self._folder):
                # Renamed with its warehouse: made anew here it would be another, empty server.
                said = f"the folder of the embedded ZooKeeper server is gone: {self._folder}"
                if said != told:
                    self._tell(said)
                    told = said
                continue
            try:
                self._zk.set_hosts(EmbeddedZooKeeper.ensure(self._folder))
                said = "the embedded ZooKeeper server did not answer and was seen to"
            except Exception as error:  # a full disk, no Java: it is tried again for as long as we run
                said = f"the embedded ZooKeeper server cannot be started: {self._explain(error)}"
                self._closed.wait(_RETRY_SECS)
            if said != told:
                self._tell(said)
                told = said
            seen_at = time.monotonic()
