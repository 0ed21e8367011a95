"""Hands a topology from its leader to one standby: the znodes by which a command, the leader and the standby agree.

Three kinds of them, all ephemeral, so that each goes with the process that made it:

- ``/<topology>/handover.processes/<id>``: a process of the topology says who it is, and which code it has;
- ``/<topology>/handover.request``: a command asks. First for a rehearsal; then the leader ends what has begun and
  gives its lease back, and every other contender leaves it to the chosen one;
- ``/<topology>/handover.answer``: the chosen one says how its rehearsal ended, and later that it serves.

Nothing of this is needed for correctness: the lease and the fences are what they always are. A request is bound to
the incarnation and to the epochs that it was made for. When another process leads, by this request or for any other
reason, it means nothing any more.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated

from msgspec import Meta

from trident.coordinators import faults
from trident.coordinators.errors import TridentError, ZooKeeperRefused, ZooKeeperUnreachable
from trident.coordinators.records import Count, Holder, Incarnation, Name, decode, encode
from trident.coordinators.znodes import Create, Delete, MultiRefused, Op, SetData
from trident.coordinators.zookeeper import ZooKeeper

log = logging.getLogger("trident.query")

ENLIST = faults.register("handover.enlist", "a process of a topology says who it is and which code it has")
REQUEST = faults.register("handover.request", "a command asks for a hand-over, or takes that back")
ANSWER = faults.register("handover.answer", "a standby says how its rehearsal ended, or that it serves")

# With a dot in them: no stream and no batch group can have these names.
_PROCESSES, _REQUEST, _ANSWER = "handover.processes", "handover.request", "handover.answer"

# How long a leader that gives way waits for what it has begun; then it finishes only what is decided.
_DRAIN_SECS = 30.0
_TRIES = 5  # to replace an answer that changes meanwhile

# The phases of a request.
REHEARSE, LEAD = "rehearse", "lead"
# The outcomes of an answer.
EQUAL, DIFFERENT, NOT_COMPARED, FAILED, REFUSED, SERVES = (
    "equal",
    "different",
    "not compared",
    "failed",
    "refused",
    "serves",
)


@dataclass(frozen=True)
class Contender:
    """A process of a topology, which leads or waits for its turn.

    Attributes:
        code_ids: batch group → the hash of its code.
    """

    id: Name
    holder: Holder
    code_ids: Mapping[Name, Name] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return f"{self.holder.host} pid {self.holder.pid}"


def contender(holder: Holder, code_ids: Mapping[str, str]) -> Contender:
    """A process as hand-overs find it: by an id of its own, also beside another query of the same process."""
    known = (holder.host, holder.boot_id, str(holder.pid), holder.started, holder.token)
    return Contender(hashlib.sha256("\0".join(known).encode()).hexdigest()[:16], holder, code_ids)


@dataclass(frozen=True)
class HandoverRequest:
    """The request of one command.

    Attributes:
        to: the id of the contender that is to lead.
        epochs: batch group → the epoch of the leader that is to give way.
        phase: ``REHEARSE`` or ``LEAD``.
        last: how many transactions of each group are rehearsed; 0: the standby only looks whether its code fits.
        stop_old: whether the process that gives way ends, too.
        by: the process of the command.
    """

    id: Name
    to: Name
    incarnation: Name
    epochs: Mapping[Name, Annotated[int, Meta(ge=1)]]
    phase: Name
    last: Count
    stop_old: bool
    by: Holder

    def problem(self) -> str | None:
        """Returns what contradicts itself in this record, or None."""
        return None if self.phase in (REHEARSE, LEAD) else f"`phase` must be {REHEARSE!r} or {LEAD!r}"


@dataclass(frozen=True)
class HandoverAnswer:
    """The answer of the chosen standby.

    Attributes:
        request: the id of the request that it answers.
        outcome: one of the constants of this module.
        lines: what a person is to read.
        all_compared: whether nothing was left out that hinders a hand-over; also beside ``DIFFERENT``.
    """

    request: Name
    outcome: Name
    lines: tuple[str, ...] = ()
    all_compared: bool = True


def is_for(request: HandoverRequest, epochs: Mapping[str, int], incarnation: str | None) -> bool:
    """Tells whether a request is to the leader of these epochs.

    It does not outlive the leader that it was made for, nor a reset or a rollback.
    """
    return dict(request.epochs) == dict(epochs) and request.incarnation == incarnation


class Step(Enum):
    """A leader does this for a hand-over."""

    PAUSE = "begin no new transaction"
    RESUME = "begin transactions again"
    STOP = "finish what is decided, and end"


@dataclass(frozen=True)
class PendingHandover:
    """A hand-over for which the leader drains its transactions.

    Attributes:
        until: when it waits no longer for what has begun (monotonic seconds).
        stops: whether the lease is to be given back: the hand-over cannot be taken back any more.
    """

    id: str
    until: float
    stops: bool = False


def give_way(
    giving: PendingHandover | None, requested: str | None, drained: bool, now: float
) -> tuple[PendingHandover | None, Step | None]:
    """Decides what a leader does next for a hand-over; called repeatedly while it leads. Pure.

    Until the last transaction has ended a hand-over that is taken back changes nothing.

    Args:
        giving: what it has done for it so far.
        requested: the id of the request for which it is to give its lease back, if there is one.
        drained: it begins no transaction, and none is in flight.
    """
    if giving is None:
        return (PendingHandover(requested, now + _DRAIN_SECS), Step.PAUSE) if requested is not None else (None, None)
    if giving.stops:
        return giving, None
    if requested != giving.id:
        return None, Step.RESUME
    if drained or now > giving.until:
        return replace(giving, stops=True), Step.STOP
    return giving, None


class Handovers:
    """The znodes of one topology's hand-overs.

    Every method raises ZooKeeperUnreachable where ZooKeeper is not to be reached, and OutcomeUnknown where a write may
    have happened or not.
    """

    def __init__(self, zk: ZooKeeper, topology: str) -> None:
        self._zk = zk
        self._root = zk.path(topology)
        self._processes, self._request = zk.path(topology, _PROCESSES), zk.path(topology, _REQUEST)
        self._answer = zk.path(topology, _ANSWER)
        self._incarnation = zk.path(topology, "incarnation")
        self._changed: Callable[[], None] = lambda: None

    # --- the processes of a topology ----------------------------------------------------------------

    def enlist(self, me: Contender) -> None:
        """Says who this process is, unless that is known; called again once its ZooKeeper session was lost."""
        path = f"{self._processes}/{me.id}"
        found = self._zk.exists(path)
        if found is not None and found.ephemeral_owner == self._zk.session_id:
            return
        self._zk.ensure_path(self._processes)
        # That of a session that was lost here goes once the servers notice, and would not come again.
        lost: list[Op] = [Delete(path, found.znode_version)] if found is not None else []
        try:
            self._zk.multi([*lost, Create(path, encode(me), ephemeral=True)], ENLIST)
        except MultiRefused:
            log.debug("the znode of this process changed meanwhile")  # the next call looks again

    def contenders(self) -> list[Contender]:
        """All that live, as far as ZooKeeper knows.

        Raises:
            CorruptZnode: one cannot be read.
        """
        return [one for name in self._zk.children(self._processes) if (one := self._contender(name)) is not None]

    def contender(self, id: str) -> Contender | None:
        """The one of that id; None where it is gone, or cannot be read."""
        try:
            return self._contender(id)
        except TridentError as error:
            if isinstance(error, ZooKeeperUnreachable) and not isinstance(error, ZooKeeperRefused):
                raise
            log.warning("%s", error)
            return None

    def _contender(self, id: str) -> Contender | None:
        path = f"{self._processes}/{id}"
        found = self._zk.get(path)
        return decode(path, found[0], Contender) if found else None

    # --- the request --------------------------------------------------------------------------------

    def pending_request(self, epochs: Mapping[str, int], changed: Callable[[], None]) -> HandoverRequest | None:
        """The request to a leader of these epochs, for its contenders and for itself; None: there is none.

        One that cannot be read is none: it must not end a process that has other work.

        Args:
            changed: called once when the request comes, changes or goes; in place of that of an earlier call.
        """
        self._changed = changed
        if self._zk.exists(self._request, self._notify_changed) is None:
            return None
        try:
            found = self.request()
            return found if found is not None and self._is_for(found, epochs) else None
        except TridentError as error:
            if isinstance(error, ZooKeeperUnreachable) and not isinstance(error, ZooKeeperRefused):
                raise
            log.warning("%s", error)
            return None

    def _notify_changed(self, *_: object) -> None:
        # One watch for all leases of a process: most never see a request, which alone would clear their watches away.
        self._changed()

    def _is_for(self, request: HandoverRequest, epochs: Mapping[str, int]) -> bool:
        if not is_for(request, epochs, request.incarnation):
            return False  # of another leader, whatever the incarnation is
        stored = self._zk.get(self._incarnation)
        known = decode(self._incarnation, stored[0], Incarnation).incarnation if stored else None
        return is_for(request, epochs, known)

    def request(self) -> HandoverRequest | None:
        """The request that there is, whomever it is for.

        Raises:
            CorruptZnode: it cannot be read.
        """
        found = self._zk.get(self._request)
        return decode(self._request, found[0], HandoverRequest) if found else None

    def ask(self, request: HandoverRequest) -> bool:
        """Stores a request; False where there is another one."""
        return self._create(self._request, encode(request), REQUEST)

    def change(self, request: HandoverRequest) -> bool:
        """Stores the next phase of a request; False where it is not there any more."""
        found = self._zk.get(self._request)
        if found is None or decode(self._request, found[0], HandoverRequest).id != request.id:
            return False
        try:
            self._zk.multi([SetData(self._request, encode(request), found[1].znode_version)], REQUEST)
        except MultiRefused:
            return False
        return True

    def withdraw(self, id: str) -> None:
        """Takes a request back, if it is there, and its answer, which has rows of tables."""
        found = self._zk.get(self._request)
        if found is not None and decode(self._request, found[0], HandoverRequest).id == id:
            self._delete(self._request, found[1].znode_version, REQUEST)
        found = self._zk.get(self._answer)
        if found is not None and decode(self._answer, found[0], HandoverAnswer).request == id:
            self._delete(self._answer, found[1].znode_version, ANSWER)

    # --- the answer ---------------------------------------------------------------------------------

    def answer(self, answer: HandoverAnswer) -> None:
        """Stores an answer in place of the one before, which may be another process's."""
        for _ in range(_TRIES):
            found = self._zk.get(self._answer)
            ops = [Delete(self._answer, found[1].znode_version)] if found else []
            try:
                self._zk.multi([*ops, Create(self._answer, encode(answer), ephemeral=True)], ANSWER)
                return
            except MultiRefused:
                log.info("a hand-over is answered twice at once")

    def answered(self, request: str) -> HandoverAnswer | None:
        """The answer to a request; None: not yet.

        Raises:
            CorruptZnode: it cannot be read.
        """
        found = self._zk.get(self._answer)
        answer = decode(self._answer, found[0], HandoverAnswer) if found else None
        return answer if answer is not None and answer.request == request else None

    def _delete(self, path: str, znode_version: int, point: str) -> None:
        try:
            self._zk.multi([Delete(path, znode_version)], point)
        except MultiRefused:
            pass  # it went by itself, or another one is in its place

    def _create(self, path: str, data: bytes, point: str) -> bool:
        try:
            self._zk.multi([Create(path, data, ephemeral=True)], point)
        except MultiRefused:
            return False
        return True


def best_effort(part: Callable[[], None]) -> bool:
    """Calls a part of a hand-over that is optional: without ZooKeeper it is skipped; tells whether it is done."""
    try:
        part()
    except TridentError as error:
        log.debug("a hand-over is not reported: %s", error)
        return False
    return True
