"""Commits offsets to a consumer group of Kafka, for monitors of lag: in the background, never read back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from trident.coordinators.errors import TridentError
from trident.spouts.kafka.cluster import KafkaCluster
from trident.spouts.kafka.ranges import At

log = logging.getLogger(__name__)
# Of transactions that succeed within this time only the last one's offsets are committed.
_PAUSE_SECS = 0.2
_CLOSE_SECS = 5.0


class GroupCommits:
    """Commits the offsets of the newest durable transaction, on a thread of its own.

    A commit that fails is logged once for each kind of failure, and the next one is tried.
    """

    def __init__(self, cluster: KafkaCluster, group: str) -> None:
        self._cluster, self._group = cluster, group
        self._changed = threading.Condition()
        self._newest: tuple[int, Mapping[At, int]] = (0, {})
        self._done = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self._failed = ""

    def commit(self, txid: int, offsets: Mapping[At, int]) -> None:
        """The transaction is durable: its offsets are committed soon. Returns at once."""
        with self._changed:
            if txid <= self._newest[0] or self._closing or not offsets:
                return
            self._newest = (txid, offsets)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trident-kafka-commits", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Commits what is not yet; waits for at most some seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._done < self._newest[0])
                (txid, offsets), closing = self._newest, self._closing
            if self._done < txid:
                self._commit(offsets)
                self._done = txid
            if closing:
                return
            time.sleep(_PAUSE_SECS)

    def _commit(self, offsets: Mapping[At, int]) -> None:
        try:
            self._cluster.commit(self._group, offsets)
            self._failed = ""
        except TridentError as error:
            if error.message != self._failed:
                log.warning(
                    "offsets are not committed to group %s, which nothing here depends on: %s", self._group, error
                )
            self._failed = error.message
