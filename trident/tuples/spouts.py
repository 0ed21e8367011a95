"""The spouts of a tuple topology on the driver, and what is pending of their messages.

Everything here is called by one thread, and does not know Spark: messages become
roots and copies of tuples, reports of bolts are added to the round's ledger, and
the spout task that made a root is notified when its tree is complete, has
failed or has timed out.
"""

from __future__ import annotations

import copy
import logging
import math
import pickle
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trident.coordinators.errors import SourceError, TopologyError, TridentError
from trident.spouts.rich import Message, SpoutCollector
from trident.tuples.bolts import Copy, Report, Router, describe_error, pickled
from trident.tuples.plan import PlannedSpout
from trident.workers.anchors import Ledger

log = logging.getLogger("trident.tuples")
_ERRORS_KEPT = 100
# A round is sent at this size or time, however much more the spouts have.
_FETCH_BYTES, _FETCH_SECS = 32 << 20, 0.5


@dataclass(frozen=True)
class TupleFailure:
    """Why a message failed, of ``TupleQuery.last_errors``.

    Attributes:
        message_id: as its spout chose it; None: of a tuple that is not tracked, or of a whole round.
        bolt: that failed the tuple; None: it timed out, or the round failed.
        error: as text.
    """

    message_id: Any
    bolt: str | None
    error: str


@dataclass
class Fetched:
    """The messages that the spouts gave to one round.

    Attributes:
        copies: level → tuples, as (slot, content).
        roots: of those that are tracked: root → the XOR of the ids of its tuples.
        blocked: a spout task was not asked, or not for all it has.
    """

    copies: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    messages: int = 0
    roots: dict[int, int] = field(default_factory=dict)
    blocked: bool = False
    nbytes: int = 0

    def add(self, copies: Iterable[Copy]) -> None:
        for level, slot, content in copies:
            self.copies.setdefault(level, []).append((slot, content))
            self.nbytes += len(content)


class SpoutTask:
    """One spout task: the user's spout, and where its tuples go.

    Args:
        user: the spout, or its copy for this task.
        context: given to it.
    """

    def __init__(self, planned: PlannedSpout, user: Any, context: Any) -> None:
        self.name, self.user, self.outputs = planned.name, user, planned.outputs
        self.rng = random.Random()
        self.router = Router(planned.outputs, self.rng)
        self.collector = SpoutCollector({stream: len(output.fields) for stream, output in planned.outputs.items()})
        user.collector, user.context = self.collector, context

    def call(self, method: str, *args: Any) -> None:
        try:
            getattr(self.user, method)(*args)
        except TridentError:
            raise
        except Exception as error:
            raise SourceError(
                f"{method} of spout {self.name!r} raised",
                found=describe_error(error),
                expected="a spout that waits its troubles out",
                action="what it has not acknowledged it delivers again at the next start",
            ) from error

    def next_messages(self) -> list[Message]:
        """Returns what it has emitted since it was last asked, by itself or in ``next_tuple``."""
        if not len(self.collector):
            self.call("next_tuple")
        return self.collector.drain()

    def copies_of(self, message: Message, tracked: Callable[[int], Mapping[int, int]]) -> list[Copy]:
        """The message's tuples, each with an id of its own that ``tracked`` is told."""
        output = self.outputs[message.stream]
        copies = []
        for row in message.rows:
            chosen = self.router.choose(message.stream, row)
            payload = self._pickled(row) if chosen else b""
            for level, slot in chosen:
                ids = tracked(self.rng.getrandbits(64))
                copies.append((level, slot, pickle.dumps((output.origin, payload, ids), 5)))
        return copies

    def _pickled(self, row: tuple[Any, ...]) -> bytes:
        try:
            return pickled(row)
        except Exception as error:  # pickling runs the object's own code: anything can come
            raise SourceError(
                f"spout {self.name!r} emitted a value that cannot be sent to the workers",
                found=describe_error(error),
                expected="values that can be pickled",
            ) from error


def make_tasks(spouts: Sequence[PlannedSpout], context: Callable[[str, int, int], Any]) -> list[SpoutTask]:
    """The spout tasks of a topology.

    Args:
        context: (spout, task, tasks) → what the task's ``context`` is.

    Raises:
        TopologyError: a spout of several tasks cannot be copied.
    """
    tasks = []
    for planned in spouts:
        for task in range(planned.tasks):
            user = planned.user if planned.tasks == 1 else _copied(planned)
            tasks.append(SpoutTask(planned, user, context(planned.name, task, planned.tasks)))
    return tasks


def _copied(planned: PlannedSpout) -> Any:
    try:
        return copy.deepcopy(planned.user)
    except Exception as error:  # copying runs the object's own code
        raise TopologyError(
            f"spout {planned.name!r} cannot be copied for its {planned.tasks} tasks",
            found=describe_error(error),
            expected="an object for copy.deepcopy",
            action="open files and connections in open(), or use one task",
        ) from error


@dataclass(slots=True)
class _Pending:
    """A message that is not settled: which spout task emitted it, its id, and when it times out."""

    task: int
    message_id: Any
    until: float


# Of a pending message, beside its id and its place in a dict.
_PENDING_BYTES = sum(map(sys.getsizeof, (_Pending(0, 0, 0.0), 1 << 63, 0.0)))


class Tracker:
    """The pending messages, in rounds, one at a time: ``fetch``, ``take`` of each report, ``end_round``.

    All tuples of a message are of the round that it was fetched for. So what is not complete when the round ends
    never will be, and fails when its time is up.

    Args:
        tasks: the spout tasks.
        max_pending: messages of one spout task that may be pending at once.
        timeout_secs: after which a message fails that is neither complete nor has failed.
        tracking: False: a message is acknowledged when it is emitted.
        clock: seconds.
        failed: is told each of ``errors`` but those of whole rounds.

    Attributes:
        emitted: messages so far, with those that are not tracked.
        settled: how many of them were "acked", "failed" and "timed_out".
        errors: the last of them.
    """

    def __init__(
        self,
        tasks: Sequence[SpoutTask],
        max_pending: int,
        timeout_secs: float = math.inf,
        tracking: bool = True,
        clock: Callable[[], float] = time.monotonic,
        failed: Callable[[TupleFailure], object] = lambda failure: None,
    ) -> None:
        self.tasks, self._max_pending, self._timeout_secs = tasks, max_pending, timeout_secs
        self._tracking, self._clock, self._notify_failure = tracking, clock, failed
        self.emitted, self.settled = 0, Counter(dict.fromkeys(("acked", "failed", "timed_out"), 0))
        self.errors: deque[TupleFailure] = deque(maxlen=_ERRORS_KEPT)
        self._pending: dict[int, _Pending] = {}  # by root, the first to time out first
        self._pending_of = [0] * len(tasks)
        self._ledger = Ledger()
        self._first = -1
        self._ended: deque[tuple[int, str, Any]] = deque()  # task, "ack" or "fail", message id

    @property
    def pending(self) -> int:
        """Messages that are not settled."""
        return len(self._pending)

    @property
    def nbytes(self) -> int:
        """About how much memory the pending messages take, without their ids."""
        return sys.getsizeof(self._pending) + _PENDING_BYTES * len(self._pending)

    def fetch(self, messages_max: int) -> Fetched:
        """Asks the spouts in turn until they have nothing, may not have more pending, or a round is full.

        Another one is the first each time, and each is asked before the time is
        up: neither a spout that always has something nor a slow one starves the others.
        """
        fetched, numbers = Fetched(), range(len(self.tasks))
        self._ledger = Ledger()
        self._first = (self._first + 1) % len(self.tasks)
        ask = [*numbers[self._first :], *numbers[: self._first]]
        until, late = self._clock() + _FETCH_SECS, False
        while ask:
            for number in list(ask):
                if late or fetched.messages >= messages_max or fetched.nbytes >= _FETCH_BYTES:
                    fetched.blocked = True
                    return fetched
                messages = []
                if self._pending_of[number] < self._max_pending:
                    try:
                        messages = self.tasks[number].next_messages()
                    except SourceError:
                        if not fetched.messages:
                            raise
                        fetched.blocked = True
                        return fetched  # what there is makes a round; the spout is asked again after it
                else:
                    fetched.blocked = True
                for message in messages:
                    self._begin(number, message, fetched)
                if not messages:
                    ask.remove(number)
            late = self._clock() >= until
        return fetched

    def _begin(self, number: int, message: Message, fetched: Fetched) -> None:
        """A message becomes a root and copies."""
        task, message_id = self.tasks[number], message.message_id
        self.emitted += 1
        fetched.messages += 1
        root, value = task.rng.getrandbits(64), 0

        def keep(own: int) -> Mapping[int, int]:
            nonlocal value
            if message_id is None or not self._tracking:
                return {}
            value ^= own
            return {root: own}

        end = "" if self._tracking else "acked"
        try:
            fetched.add(task.copies_of(message, keep))
        except SourceError as error:  # a value that cannot travel: this message fails, and no other
            self._note(TupleFailure(message_id, None, str(error)))
            end = "failed"
        if message_id is None:
            return
        self._pending[root] = _Pending(number, message_id, self._clock() + self._timeout_secs)
        self._pending_of[number] += 1
        if end:
            self._settle(root, end)
        else:
            fetched.roots[root] = value

    def take(self, report: Report) -> None:
        """Adds a bolt task's report to the round's ledger; what it says has failed is settled at once."""
        for root in report.resets:
            if (one := self._pending.pop(root, None)) is not None:
                one.until = self._clock() + self._timeout_secs
                self._pending[root] = one
        for root, error in report.failures.items():
            if (one := self._pending.get(root)) is not None:
                self._note(TupleFailure(one.message_id, report.bolt, error))
                self._settle(root, "failed")
        self._ledger.add([*report.acks], [*report.acks.values()])
        for error in report.untracked:
            self._note(TupleFailure(None, report.bolt, error))

    def _note(self, failure: TupleFailure) -> None:
        self.errors.append(failure)
        self._notify_failure(failure)

    def end_round(self, roots: Mapping[int, int], error: str = "") -> None:
        """Acknowledges the messages whose trees are complete; where the round failed the others have failed."""
        if error:
            self.errors.append(TupleFailure(None, None, error))
        self._ledger.add([*roots], [*roots.values()])
        incomplete = set(self._ledger.incomplete()[0].tolist())
        for root in roots:
            if root in self._pending and (error or root not in incomplete):
                self._settle(root, "failed" if root in incomplete else "acked")

    def advance(self) -> None:
        """Messages that were pending for too long fail."""
        now = self._clock()
        for root, one in list(self._pending.items()):
            if one.until > now:
                return
            text = "timed out: a tuple of its tree was neither acknowledged nor failed"
            self._note(TupleFailure(one.message_id, None, text))
            self._settle(root, "timed_out")

    def notify_spouts(self) -> int:
        """Calls ack or fail for each message that was settled since the last call; returns how many these are."""
        count = 0
        while self._ended:
            task, call, message_id = self._ended[0]
            self.tasks[task].call(call, message_id)
            self._ended.popleft()  # not before: it is called again where the spout raised
            count += 1
        return count

    def _settle(self, root: int, end: str) -> None:
        one = self._pending.pop(root)
        self._pending_of[one.task] -= 1
        self.settled[end] += 1
        self._ended.append((one.task, "ack" if end == "acked" else "fail", one.message_id))

    def close(self) -> None:
        """Closes the spouts; an exception of one is logged, so that the others are closed too."""
        for task in self.tasks:
            close = getattr(task.user, "close", None)
            try:
                if callable(close):
                    close()
            except Exception as error:
                log.warning("closing spout %s raised: %s", task.name, error)
