"""Has a standby rehearse the leader's last transactions when a command asks for it, and answers the command.

The rehearsal itself is given: it stands above this package (``trident/time_travel/rehearsal.py``). It runs in a thread
of its own, beside the warm-up and the wait for the lease: a leader that dies meanwhile is succeeded as ever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trident.coordinators.errors import IdentityMismatch, TridentError
from trident.coordinators.handing_over import (
    DIFFERENT,
    EQUAL,
    FAILED,
    REFUSED,
    REHEARSE,
    HandoverAnswer,
    HandoverRequest,
    Handovers,
    quietly,
)
from trident.coordinators.records import GroupRecord, decode
from trident.coordinators.registration import IdentityDict, Registration
from trident.coordinators.zookeeper import ZooKeeper

log = logging.getLogger("trident.query")
# A standby that has just been started is not given the lead before it is warm, for so long.
_WARM_SECS = 60.0


@dataclass(frozen=True)
class Rehearsed:
    """The outcome of a rehearsal.

    Attributes:
        outcome: ``EQUAL``, ``DIFFERENT``, ``NOT_COMPARED`` or ``FAILED`` of ``coordinators/handing_over.py``.
        lines: what a person is to read.
    """

    outcome: str
    lines: tuple[str, ...]


# incarnation, batch group → its last transaction that has advanced, how many of each group, whether it is to end →
# the outcome
Rehearse = Callable[[str, Mapping[str, int], int, Callable[[], bool]], Rehearsed]


class Rehearsals:
    """Answers requests; :meth:`asked` returns at once.

    Args:
        rehearse: runs kept transactions again, and compares.
        wait_warm: waits so many seconds at most until the process is warm, and tells whether it is.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        topology: str,
        identity: IdentityDict,
        rehearse: Rehearse | None,
        event: Callable[[str], None],
        wait_warm: Callable[[float], bool] = lambda secs: True,
    ) -> None:
        self._zk, self._topology, self._identity, self._rehearse = zk, topology, identity, rehearse
        self._event, self._wait_warm = event, wait_warm
        self._handovers = Handovers(zk, topology)
        self._answered = ""
        self._ends = threading.Event()

    def asked(self, request: HandoverRequest) -> None:
        """May be told of a request again: it is rehearsed once."""
        if request.phase == REHEARSE and request.id != self._answered:
            self._ends.set()  # of a command that was killed: its answer would stand in the place of this one's
            self._answered, self._ends = request.id, threading.Event()
            threading.Thread(target=self._answer, args=(request,), name="trident-rehearsal", daemon=True).start()

    def stop(self) -> None:
        """Ends soon; returns at once, since its caller is about to lead."""
        self._ends.set()

    def _answer(self, request: HandoverRequest) -> None:
        self._event(f"rehearses the last {request.last} transactions of each batch group, for a hand-over")
        try:
            found = self._rehearsed(request)
        except IdentityMismatch as error:
            found = Rehearsed(REFUSED, (str(error),))
        except TridentError as error:
            found = Rehearsed(FAILED, (str(error),))
        except Exception as error:  # of Spark, of a user's function: the command is to hear of it
            log.warning("a rehearsal failed", exc_info=True)
            found = Rehearsed(FAILED, (f"{type(error).__name__}: {error}"[:2000],))
        self._event(f"the rehearsal has ended: {found.outcome}")
        if found.outcome in (EQUAL, DIFFERENT) and not self._wait_warm(_WARM_SECS):
            found = Rehearsed(found.outcome, (*found.lines, "it is not warm yet: its first transactions take longer"))
        if request.id != self._answered:
            return
        quietly(lambda: self._handovers.answer(HandoverAnswer(request.id, found.outcome, found.lines)))

    def _rehearsed(self, request: HandoverRequest) -> Rehearsed:
        registration = Registration(self._zk, self._topology)
        registration.check(self._identity)  # again: the leader may have stored another one since this process started
        if self._rehearse is None:
            return Rehearsed(FAILED, ("this process was started without the code that rehearses",))
        return self._rehearse(request.incarnation, self._advanced(request.epochs), request.last, self._ends.is_set)

    def _advanced(self, groups: Mapping[str, int]) -> dict[str, int]:
        """Batch group → its last transaction that has advanced."""
        advanced = {}
        for group in groups:
            path = self._zk.path(self._topology, group, "coordinator")
            found = self._zk.get(path)
            advanced[group] = decode(path, found[0], GroupRecord).current_txid - 1 if found else 0
        return advanced
