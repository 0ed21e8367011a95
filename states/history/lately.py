"""The transactions that this process has published of late: what need not be looked for in files."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from trident.coordinators.records import Decision
from trident.states.delta.manifest import Manifest

_KEPT_MAX = 500


@dataclass(frozen=True)
class JustPublished:
    """One transaction that this process has published.

    Attributes:
        versions: table id → the table version that it made.
        published_at: when all tables and states had it; seconds since the epoch.
    """

    decision: Decision
    manifest: Manifest
    versions: Mapping[str, int]
    published_at: float


class PublishedLately:
    """The last few hundred transactions that were published here. May be used by several threads."""

    def __init__(self) -> None:
        self._found: OrderedDict[int, JustPublished] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, decision: Decision, manifest: Manifest, versions: Mapping[str, int]) -> None:
        """A transaction is published, perhaps once more."""
        with self._lock:
            self._found[decision.txid] = JustPublished(decision, manifest, versions, time.time())
            while len(self._found) > _KEPT_MAX:
                self._found.popitem(last=False)

    def of(self, txid: int) -> JustPublished | None:
        """The transaction, where it is remembered."""
        with self._lock:
            return self._found.get(txid)

    def forget_up_to(self, txid: int) -> None:
        """Transactions up to this one are recorded."""
        with self._lock:
            while self._found and next(iter(self._found)) <= txid:
                self._found.popitem(last=False)
