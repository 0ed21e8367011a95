"""Has a standby rehearse the leader's last transactions when a command asks for it, and answers the command.

The rehearsal itself is given (``trident/time_travel/rehearsal.py``). It runs in a thread
of its own, during the warm-up and the wait for the lease: a leader that dies meanwhile is succeeded as ever.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
# An answer is one znode, of at most 512 KB: how long a line may be, and how long all of them as JSON.
_LINE_CHARS, _ANSWER_CHARS = 4_000, 300_000


@dataclass(frozen=True)
class Rehearsed:
    """The outcome of a rehearsal.

    Attributes:
        outcome: ``EQUAL``, ``DIFFERENT``, ``NOT_COMPARED`` or ``FAILED`` of ``coordinators/handing_over.py``.
        lines: what a person is to read.
        all_compared: whether nothing was left out that hinders a hand-over; also beside ``DIFFERENT``.
    """

    outcome: str
    lines: tuple[str, ...]
    all_compared: bool = True


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
        rehearse: Rehearse,
        event: Callable[[str], None],
        wait_warm: Callable[[float], bool] = lambda secs: True,
    ) -> None:
        self._zk, self._topology, self._identity, self._rehearse = zk, topology, identity, rehearse
        self._event, self._wait_warm = event, wait_warm
        self._handovers = Handovers(zk, topology)
        self._answered = ""
        self._answer_given: HandoverAnswer | None = None
        self._ends = threading.Event()

    def asked(self, request: HandoverRequest) -> None:
        """May be told of a request again: it is rehearsed once, and answered until the answer is there."""
        if request.phase != REHEARSE:
            return
        if request.id != self._answered:
            self._ends.set()  # of a command that was killed: its answer would stand in the place of this one's
            self._answered, self._answer_given, self._ends = request.id, None, threading.Event()
            threading.Thread(
                target=self._answer, args=(request, self._ends), name="trident-rehearsal", daemon=True
            ).start()
            return
        given = self._answer_given
        if given is not None and given.request == request.id:
            quietly(lambda: self._say_again(given))  # it went with the ZooKeeper session in which it was stored

    def _say_again(self, answer: HandoverAnswer) -> None:
        if self._handovers.answered(answer.request) is None:
            self._handovers.answer(answer)

    def stop(self) -> None:
        """Ends soon; returns at once, since its caller is about to lead."""
        self._ends.set()

    def _answer(self, request: HandoverRequest, ends: threading.Event) -> None:
        rehearses = f"rehearses the last {request.last} transactions of each batch group"
        self._event(f"{rehearses if request.last else 'looks whether its code fits'}, for a hand-over")
        try:
            found = self._rehearsed(request, ends)
        except IdentityMismatch as error:
            found = Rehearsed(REFUSED, (str(error),))
        except TridentError as error:
            found = Rehearsed(FAILED, (str(error),))
        except Exception as error:  # of Spark, of a user's function: the command is to hear of it
            log.warning("a rehearsal failed", exc_info=True)
            found = Rehearsed(FAILED, (f"{type(error).__name__}: {error}"[:2000],))
        if request.last:
            self._event(f"the rehearsal has ended: {found.outcome}")
        if request.last and found.outcome in (EQUAL, DIFFERENT) and not self._wait_warm(_WARM_SECS):
            found = replace(found, lines=(*found.lines, "it is not warm yet: its first transactions take longer"))
        if request.id != self._answered:
            return
        answer = HandoverAnswer(request.id, found.outcome, shortened(found.lines), found.all_compared)
        self._answer_given = answer
        quietly(lambda: self._handovers.answer(answer))

    def _rehearsed(self, request: HandoverRequest, ends: threading.Event) -> Rehearsed:
        registration = Registration(self._zk, self._topology)
        registration.check(self._identity)  # again: the leader may have stored another one since this process started
        if not request.last:
            return Rehearsed(EQUAL, ())
        return self._rehearse(request.incarnation, self._advanced(request.epochs), request.last, ends.is_set)

    def _advanced(self, groups: Mapping[str, int]) -> dict[str, int]:
        """Batch group → its last transaction that has advanced."""
        advanced = {}
        for group in groups:
            path = self._zk.path(self._topology, group, "coordinator")
            found = self._zk.get(path)
            advanced[group] = decode(path, found[0], GroupRecord).current_txid - 1 if found else 0
        return advanced


def shortened(lines: Sequence[str]) -> tuple[str, ...]:
    """The lines as they fit into one znode: long ones cut, and the last ones left out, which is said."""
    kept: list[str] = []
    room = _ANSWER_CHARS
    for place, line in enumerate(lines):
        cut = line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}…"
        room -= len(json.dumps(cut))
        if room < 0:
            return (*kept, f"and {len(lines) - place} more lines, which do not fit into an answer")
        kept.append(cut)
    return tuple(kept)
