"""Tells the listeners of a tuple topology what it does, as events of ``trident/watching/events.py``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from trident.coordinators.errors import TridentError
from trident.tuples.spouts import TupleFailure
from trident.watching.events import Event, MessageFailed, RoundEnded, Started, Terminated, Watchers
from trident.watching.listeners import Listeners, TopologyListener


class Telling:
    """The events of one query. :meth:`terminated` may be called from any thread, the others from that of its rounds.

    Attributes:
        listeners: are told each event, in threads of their own.
    """

    def __init__(self, topology: str, run_id: str, listeners: Iterable[TopologyListener]) -> None:
        self._topology, self._run_id = topology, run_id
        self._watchers = Watchers()
        self.listeners = Listeners(self._watchers)
        for listener in listeners:
            self.listeners.add(listener)
        self._lock, self._has_ended = threading.Lock(), False

    def _tell(self, kind: type[Event], **facts: Any) -> None:
        self._watchers.tell(kind(topology=self._topology, incarnation="", run_id=self._run_id, **facts))

    def started(self) -> None:
        self._tell(Started)

    def round_ended(self, number: int, messages: int, secs: float, status: Mapping[str, int]) -> None:
        """A round was worked off."""
        progress = {"num_input_rows": messages, "duration_ms": {"total": round(secs * 1000, 1)}, **status}
        of_all = {"group": "", "attempt_id": 0, "published": False, "recovered": False}
        self._tell(RoundEnded, txid=number, progress=progress, **of_all)

    def message_failed(self, number: int, failure: TupleFailure) -> None:
        """A message, or a tuple that is not tracked, has failed."""
        error, message_id, bolt = TridentError(failure.error), failure.message_id, failure.bolt
        self._failed(number, "message", error, message_id=message_id, bolt=bolt)

    def round_failed(self, number: int, error: BaseException) -> None:
        self._failed(number, "round", error)

    def spout_failed(self, number: int, error: BaseException) -> None:
        self._failed(number, "spout", error)

    def _failed(self, number: int, part: str, error: BaseException, **more: Any) -> None:
        self._tell(MessageFailed, group="", txid=number, attempt_id=None, part=part, error=error, **more)

    def terminated(self, error: BaseException | None) -> None:
        """The last event; waits for those that are told it, for a few seconds. Only the first call does anything."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self._tell(Terminated, error=error)
        self.listeners.close()
