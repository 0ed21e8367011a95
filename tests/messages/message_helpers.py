"""A source of messages for tests of tracked streams: keeps each until it is acknowledged, and notes what it hears."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from trident import Backlog, RichSpout


class Messages(RichSpout):
    """Hands out messages ``(id, rows)``; one that fails comes again behind the others.

    Attributes:
        acked, failed: ids in the order in which they were told.
        kept: id → rows of what is not acknowledged: what a successor would hand out again.
    """

    def __init__(self, fields: str, messages: Iterable[tuple[Any, Any]] = ()) -> None:
        self.fields = fields
        self.kept: dict[Any, list] = {}
        self.acked: list[Any] = []
        self.failed: list[Any] = []
        self.unread = False
        self._waiting: deque[Any] = deque()
        self._lock = threading.Lock()
        for message_id, rows in messages:
            self.put(message_id, rows)

    def put(self, message_id: Any, rows: Any) -> None:
        with self._lock:
            self.kept[message_id] = rows if isinstance(rows, list) else [rows]
            self._waiting.append(message_id)

    def open(self) -> None:
        """A new reader is given everything that is not acknowledged, as by a broker."""
        with self._lock:
            self._waiting = deque(self.kept)

    def next_tuple(self) -> None:
        with self._lock:
            if self._waiting:
                message_id = self._waiting.popleft()
                self.collector.emit_many(self.kept[message_id], message_id)

    def backlog(self) -> Backlog:
        return Backlog(rows=sum(len(self.kept[message_id]) for message_id in self._waiting))

    def ack(self, message_id: Any) -> None:
        if self.unread:
            raise ConnectionError("the broker cannot be reached")
        with self._lock:
            self.acked.append(message_id)
            self.kept.pop(message_id, None)

    def fail(self, message_id: Any) -> None:
        with self._lock:
            self.failed.append(message_id)
            self._waiting.append(message_id)
