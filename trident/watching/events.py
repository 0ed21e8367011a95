"""Events of a running topology, and the watchers that are told them.

The reporter (``trident/running/reporting.py``) makes an event of each call that it gets and tells every watcher, on
the thread where it happened: some of these threads carry transactions. So a watcher is quick, keeps what it needs, and
does the rest elsewhere. One that raises is left out from then on; nothing that watches can end what it watches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("trident.watching")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Any event.

    Attributes:
        topology: its name.
        incarnation: "" before this process has led.
        run_id: of this start of the topology; see ``TopologyQuery.run_id``.
        at: when it happened, seconds since the epoch.
    """

    topology: str
    incarnation: str
    run_id: str
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The topology was started in this process; it does not lead yet."""


@dataclass(frozen=True, kw_only=True)
class Waits(Event):
    """Another process leads; this one is its standby.

    Attributes:
        host, pid: of the process that leads.
    """

    host: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class TookOver(Event):
    """This process leads from here on.

    Attributes:
        epoch: of this leadership; greater than that of any leader before.
    """

    epoch: int


@dataclass(frozen=True, kw_only=True)
class Began(Event):
    """An attempt has begun: its begin is stored.

    Attributes:
        group: the batch group.
        txid, attempt_id: the attempt.
    """

    group: str
    txid: int
    attempt_id: int


@dataclass(frozen=True, kw_only=True)
class Advanced(Event):
    """A transaction has advanced: it is decided, published, and never processed again.

    Attributes:
        group: the batch group.
        txid, attempt_id: the attempt that counts.
        progress: the record of ``query.last_progress``; its keys are those of PySpark's StreamingQueryProgress in
            snake_case, its times milliseconds.
        published: False where the transaction changed nothing.
        recovered: it was decided by an earlier leader and finished by this one: its rows were not read here.
        written_bytes: state → bytes of the files that were staged for it.
    """

    group: str
    txid: int
    attempt_id: int
    progress: Mapping[str, Any]
    published: bool
    recovered: bool
    written_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """Work on a transaction failed, and is tried again.

    Attributes:
        group: the batch group.
        txid: the transaction.
        attempt_id: the attempt that failed; None where a spout could not say whether it has something.
        part: "processing" before the decision: the attempt is given up, and the batch replayed. "ready" where a spout
            was asked. Behind the decision the part that is tried again: "decide", "publish", "spout_commit", "advance".
        error: what was raised.
    """

    group: str
    txid: int
    attempt_id: int | None
    part: str
    error: BaseException


@dataclass(frozen=True, kw_only=True)
class RoundEnded(Advanced):
    """A round of a tuple topology was worked off. At least once: nothing is decided or published by it.

    Attributes:
        group: "": there are no batch groups.
        txid: the number of the round, in this process from 1 on; ``attempt_id`` is 0.
        progress: ``num_input_rows``, messages that the spouts handed out for it; ``duration_ms``; and the numbers of
            ``query.status``.
        published, recovered: False.
    """


@dataclass(frozen=True, kw_only=True)
class MessageFailed(Failed):
    """A message of a tuple topology failed, and its spout is told; or several did, with a round or a spout.

    Attributes:
        group: "": there are no batch groups.
        txid: the last round that began; ``attempt_id`` is None.
        part: "message"; "round": all of its messages that were not settled; "spout": a call of one raised.
        error: what was raised; of a bolt that runs on a worker its text.
        message_id: as its spout chose it; None: of a tuple that is not tracked, of a round, of a spout.
        bolt: that failed the tuple; None: it timed out, or the round or a spout failed.
    """

    message_id: Any = None
    bolt: str | None = None


@dataclass(frozen=True, kw_only=True)
class LostLead(Event):
    """This process leads no more: the lease was lost or given back."""


@dataclass(frozen=True, kw_only=True)
class Terminated(Event):
    """The topology has ended in this process.

    Attributes:
        error: what ended it; None where it was stopped.
    """

    error: BaseException | None


Watcher = Callable[[Event], None]


class Watchers:
    """Those who are told of one query's events. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: tuple[Watcher, ...] = ()

    def add(self, watcher: Watcher) -> None:
        """Tells it every event from here on, on the thread where it happens: it must be quick and must not block."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)

    def remove(self, watcher: Watcher) -> None:
        """Tells it nothing more; a watcher that is not there is no error."""
        with self._lock:
            self._watchers = tuple(one for one in self._watchers if one != watcher)

    def notify(self, event: Event) -> None:
        """Notifies all; one that raises is removed, with a warning."""
        for watcher in self._watchers:
            try:
                watcher(event)
            except Exception:
                self.remove(watcher)
                log.warning("%s raised at %s, and gets no more events", watcher, type(event).__name__, exc_info=True)
