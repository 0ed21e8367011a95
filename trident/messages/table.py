"""Reads the settled messages of a stream from its table after a restart (docs/semantics.md 6)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

from pyspark.sql import functions as F

from trident.spouts.contracts import SpoutContext
from trident.states.core.place import Place
from trident.states.delta.beside import MESSAGES
from trident.states.delta.log_entries import has_log
from trident.states.delta.whole_files import require_whole_log


class Settled:
    """The keys of messages that were settled not long ago.

    Args:
        remember_secs: how long a key is kept.
    """

    def __init__(self, remember_secs: float) -> None:
        self._remember_secs = remember_secs
        self._keys: set[str] = set()
        self._order: deque[tuple[float, list[str]]] = deque()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, ago_secs: float = 0.0) -> None:
        """Added in the order in which they were settled."""
        self.add_all([key], ago_secs)

    def add_all(self, keys: Collection[str], ago_secs: float = 0.0) -> None:
        """Several that were settled together."""
        now = time.monotonic()
        fresh = [key for key in keys if key not in self._keys]
        self._keys.update(fresh)
        self._order.append((now - ago_secs, fresh))
        while self._order and self._order[0][0] < now - self._remember_secs:
            self._keys.difference_update(self._order.popleft()[1])

    def knows(self, key: str) -> bool:
        return key in self._keys


def settled_messages(
    context: SpoutContext, remember_secs: float, requests: Collection[str]
) -> tuple[Settled, dict[str, int]]:
    """Reads from the stream's table which of its last messages are settled, and how often others have failed.

    Args:
        remember_secs: the window, counted back from the last message that was settled.
        requests: replay requests that are not finished: their messages are wanted however old they are.
    """
    path = Place(context.options["warehouse"]) / MESSAGES.table_name(context.topology, context.tx_id)
    settled = Settled(remember_secs)
    attempts: dict[str, int] = {}
    if not has_log(path):
        return settled, attempts
    require_whole_log(str(path))
    rows = context.spark.read.format("delta").load(str(path))
    newest = rows.agg(F.max(F.unix_micros("settled_at"))).head()[0]
    if newest is None:
        return settled, attempts
    wanted = F.unix_micros("settled_at") >= newest - int(remember_secs * 1e6)
    for request in requests:
        wanted = wanted | F.col("message").startswith(f"replay {request} ")
    micros = F.unix_micros("settled_at").alias("micros")
    found = rows.where(wanted).select("message", "outcome", "attempts", micros).orderBy("micros").collect()
    for row in found:
        if row.outcome == "failed":
            attempts[row.message] = row.attempts
        else:
            attempts.pop(row.message, None)
            # The whole window begins anew: the time in which the topology did not run does not count.
            settled.add(row.message)
    return settled, attempts
