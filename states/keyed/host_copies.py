"""The local copies that executors have on their hosts, as the leader tells tasks of them: of whose state, as of when.

Each host brings up its own (``host_copy.py``). The leader follows no more than the log of each state, to know the last
commit up to a transaction, and lets some time go by after a task that had no copy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trident.coordinators.errors import TridentError
from trident.states.core.descriptor import StateDescriptor, load_descriptor
from trident.states.core.place import Place
from trident.states.delta.table_files import TableFiles
from trident.states.keyed.sent_copy import SentCopy
from trident.states.keyed.state_copy import CopyHealth, commit_of
from trident.states.keyed.tables import check_own

log = logging.getLogger(__name__)

_OFF_SECS_MAX = 60.0


@dataclass
class _Followed:
    """A state whose copies tasks are told of, and how it went."""

    state: StateDescriptor
    log: TableFiles
    txid: int | None = None
    failures: int = 0
    off_until: float = 0.0
    building: bool = False
    reason: str | None = None


class HostCopies:
    """Tells tasks which copies of a group's states they need. Keep one for as long as a coordinator leads.

    Args:
        warehouse: of the topology, shared by all hosts.
        bytes_max: the greatest size of one copy on a host.
        states: all that may be asked for.
        repair: the last repair of the warehouse; none is running now.
    """

    def __init__(self, warehouse: Place, bytes_max: int, states: Collection[str], repair: str) -> None:
        self._warehouse, self._bytes_max, self._repair = warehouse, bytes_max, repair
        self._states = sorted(states)
        self._followed: dict[str, _Followed] = {}
        self._lock = threading.Lock()

    def as_of(self, states: Collection[str], txid: int) -> dict[str, SentCopy] | None:
        """The copies of some states as of a transaction that has advanced; None where the tables are to be read."""
        try:
            with self._lock:
                followed = {state: self._follow(state) for state in states}
        except (OSError, TridentError) as error:
            log.info("states are read from their tables: %s", error)
            return None
        now = time.monotonic()
        if any(one.log.control.txid > txid or now < one.off_until for one in followed.values()):
            return None
        return {
            state: SentCopy(one.state, self._warehouse, txid, commit_of(one.log.control), self._repair, self._bytes_max)
            for state, one in followed.items()
        }

    def served(self, copies: Mapping[str, SentCopy]) -> None:
        """Takes note that a task has used copies."""
        with self._lock:
            for state, copy in copies.items():
                one = self._followed[state]
                one.txid, one.failures, one.building, one.reason = copy.txid, 0, False, None

    def failed(self, state: str, reason: str, building: bool = False) -> None:
        """Tells that a task had no copy, and why: the tables are read for a while, the longer the more often.

        Args:
            building: whether its host is bringing it up.
        """
        with self._lock:
            one = self._followed[state]
            one.failures += 1
            one.off_until = time.monotonic() + min(_OFF_SECS_MAX, 2.0 ** (one.failures - 1))
            one.building, one.reason = building, reason
        log.log(
            logging.INFO if building else logging.WARNING,
            "a task could not use the local copy of %s on its host, so the tables are read: %s",
            state,
            reason,
        )

    def health(self) -> tuple[CopyHealth, ...]:
        """How the copies of all states do on the hosts whose tasks were last told of them, by name."""
        with self._lock:
            followed, now = dict(self._followed), time.monotonic()
        found = []
        for state in self._states:
            one = followed.get(state)
            if one is None or one.txid is None and not one.failures:
                found.append(CopyHealth(state, "waiting"))
                continue
            condition = "building" if one.building else "off" if now < one.off_until else "following"
            txid = one.txid if condition == "following" else None
            found.append(CopyHealth(state, condition, txid, 0, self._bytes_max, 0, one.reason, on_executors=True))
        return tuple(found)

    def _follow(self, name: str) -> _Followed:
        """The state with its log as it is now."""
        known = self._followed.get(name)
        if known is None or not known.log.refresh():
            state = load_descriptor(self._warehouse, name)
            path = str(self._warehouse / state.published_path)
            logged = TableFiles(path)
            known = self._followed[name] = _Followed(state, logged)
        check_own(known.state, known.log.path, known.log.control)
        known.log.files = {}  # the hosts read them
        return known
