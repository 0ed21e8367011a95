"""Keeps the newest look at where a cluster's partitions end; looks again when it is asked for and old."""

from __future__ import annotations

import time
from collections.abc import Sequence

from trident.coordinators.errors import SourceError
from trident.spouts.kafka.cluster import KafkaCluster
from trident.spouts.kafka.ranges import TopicLook


class Looks:
    """The looks of one stream at its cluster. :meth:`newest` waits for brokers: one thread at a time calls it.

    Args:
        topics, pattern: what is looked at, as :meth:`KafkaCluster.look` takes it.
        interval_secs: the age from which a look is old.
    """

    def __init__(self, cluster: KafkaCluster, topics: Sequence[str], pattern: str | None, interval_secs: float) -> None:
        self._cluster, self._topics, self._pattern, self._interval_secs = cluster, topics, pattern, interval_secs
        self._failure: SourceError | None = None
        self._next_look = 0.0
        self._ask_again = False  # set by another thread, perhaps while a look is under way
        self.seen: Sequence[TopicLook] | None = None  # None: there was none yet, or the newest has failed

    def ask_again(self) -> None:
        """The next call of :meth:`newest` looks, however young the newest look is."""
        self._ask_again = True

    def newest(self) -> Sequence[TopicLook]:
        """A look that is not old.

        Raises:
            SourceError: the cluster cannot be asked. It is told again until the next look.
        """
        if time.monotonic() >= self._next_look or self._ask_again:
            self._ask_again = False  # before the look: who asks during it gets another
            try:
                self.seen, self._failure = self._cluster.look(self._topics, self._pattern), None
            except SourceError as error:
                self.seen, self._failure = None, error
            finally:
                self._next_look = time.monotonic() + self._interval_secs
        if self._failure is not None:
            raise self._failure
        assert self.seen is not None
        return self.seen
