"""Ends a running topology: in order, or without the calls that do not return in time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from trident.coordinators.errors import Halted
from trident.coordinators.supervisor import Supervisor
from trident.running.interrupts import stuck_calls

log = logging.getLogger("trident.query")
_POLL_SECS = 0.5
# How long the last writes and the connection's end may take; and how long a thread that cancels is waited for.
_END_SECS, _CANCEL_SECS = 15.0, 5.0


class Ending:
    """Ends a query once; no call of a user's and no disk keeps it from having ended.

    Args:
        last_parts: called one after the other at the end.
        stop_timeout_secs: how long a stop may take before it goes on without what still runs.
        is_ours: says of a thread's name whether it runs users' code for this query.
    """

    def __init__(
        self,
        name: str,
        supervisor: Supervisor,
        last_parts: Sequence[Callable[[], Any]],
        stop_timeout_secs: float,
        is_ours: Callable[[str], bool],
    ) -> None:
        self._name, self._supervisor, self._last_parts = name, supervisor, list(last_parts)
        self._stop_timeout_secs, self._is_ours = stop_timeout_secs, is_ours
        self._begins = threading.Lock()  # taken by the first that ends it, and never given back

    def run(self) -> None:
        """The supervisor's thread, from the start of the query to its end."""
        try:
            self._supervisor.run()
        finally:
            self.end()

    def end(self) -> None:
        """The last of everything, once; a second call returns at once."""
        if not self._begins.acquire(blocking=False):
            return
        supervisor, error = self._supervisor, self._supervisor.error
        supervisor.mode = "halted" if isinstance(error, Halted) else "failed" if error else "stopped"
        ending = threading.Thread(
            target=supervisor.call_each, args=(self._last_parts,), name="trident-ending", daemon=True
        )
        try:
            ending.start()
            ending.join(_END_SECS)
        finally:
            supervisor.end()

    def time_the_stop(self) -> None:
        """A thread: a stop that takes too long goes on without what still runs."""
        supervisor = self._supervisor
        while not supervisor.ended.wait(_POLL_SECS):
            if supervisor.stop_requested.is_set():
                if supervisor.leave_at is None:
                    supervisor.leave_at = time.monotonic() + self._stop_timeout_secs
                elif time.monotonic() > supervisor.leave_at:
                    self._abandon()
                    return

    def _abandon(self) -> None:
        """Ends it without what still runs: a write that does not return, a hook of the user's that hangs."""
        calls = stuck_calls(self._is_ours)
        log.warning(
            "%s: after %g s its stop continues without %s; the next start continues from there, as after a kill",
            self._name,
            self._stop_timeout_secs,
            " and ".join(calls) + (" (of yours), which does not return" if calls else "what still runs"),
        )
        groups = list(self._supervisor.groups)
        parts = [part for group in groups for part in (group.driver.abandon, group.parts.runner.close)]
        # A JVM that does not answer keeps the thread that cancels something there.
        cancelling = threading.Thread(
            target=self._supervisor.call_each, args=(parts,), name="trident-ending", daemon=True
        )
        cancelling.start()
        cancelling.join(_CANCEL_SECS)
        self.end()
