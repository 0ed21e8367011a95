"""The spouts of a tuple topology on the driver, and what is pending of their messages.

Everything here is called by one thread, and knows neither Spark nor rounds:
messages become roots and copies of tuples, reports of bolts become messages to
the ackers, and the spout task that made a root is notified when the ackers
settle it.
"""

from __future__ import annotations

import copy
import logging
import pickle
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trident.coordinators.acker import Ackers, Ended, Verdict
from trident.coordinators.errors import SourceError, TopologyError, TridentError
from trident.spouts.rich import Message, SpoutCollector
from trident.tuples.bolts import Copy, Report, Router, describe_error, pickled
from trident.tuples.plan import PlannedSpout

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
        roots: those that are tracked.
        blocked: a spout task was not asked, or not for all it has.
    """

    copies: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    messages: int = 0
    roots: list[int] = field(default_factory=list)
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
                action="what it has not acknowledged it hands out again at the next start",
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


class Tracker:
    """The pending messages, and the ackers that know when each ends.

    Args:
        tasks: the spout tasks; the ackers know them by their place.
        max_pending: messages of one spout task that may be pending at once.
        clock: seconds.
        failed: is told each of ``errors`` but those of whole rounds.

    Attributes:
        emitted, acked, failed, timed_out: messages so far; ``emitted`` with those that are not tracked.
        errors: the last of them.
    """

    def __init__(
        self,
        tasks: Sequence[SpoutTask],
        ackers: Ackers,
        max_pending: int,
        clock: Callable[[], float] = time.monotonic,
        failed: Callable[[TupleFailure], object] = lambda failure: None,
    ) -> None:
        self.tasks, self.ackers, self._max_pending, self._clock = tasks, ackers, max_pending, clock
        self._tell_failure = failed
        self.emitted = self.acked = self.failed = self.timed_out = 0
        self.errors: deque[TupleFailure] = deque(maxlen=_ERRORS_KEPT)
        self._message_ids: dict[int, Any] = {}
        self._pending = [0] * len(tasks)
        self._first = -1
        self._ended: deque[tuple[Ended, Any]] = deque()

    @property
    def pending(self) -> int:
        """Messages that are not settled."""
        return len(self._message_ids)

    def fetch(self, messages_max: int) -> Fetched:
        """Asks the spouts in turn until they have nothing, may not have more pending, or a round is full.

        Another one is the first each time, and each is asked before the time is
        up: neither a spout that always has something nor a slow one starves the others.
        """
        fetched, numbers = Fetched(), range(len(self.tasks))
        self._first = (self._first + 1) % len(self.tasks)
        ask = [*numbers[self._first :], *numbers[: self._first]]
        until, late = self._clock() + _FETCH_SECS, False
        while ask:
            for number in list(ask):
                if late or fetched.messages >= messages_max or fetched.nbytes >= _FETCH_BYTES:
                    fetched.blocked = True
                    return fetched
                messages = []
                if self._pending[number] < self._max_pending:
                    try:
                        messages = self.tasks[number].next_messages()
                    except SourceError:
                        if not fetched.messages:
                            raise
                        fetched.blocked = True
                        return fetched  # what there is makes a round; the spout is asked again behind it
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
        task = self.tasks[number]
        self.emitted += 1
        fetched.messages += 1
        tracked = message.message_id is not None
        root, value = task.rng.getrandbits(64), 0

        def keep(own: int) -> Mapping[int, int]:
            nonlocal value
            if not (tracked and self.ackers.tracking):
                return {}
            value ^= own
            return {root: own}

        try:
            fetched.add(task.copies_of(message, keep))
        except SourceError as error:  # a value that cannot travel: this message fails, and no other
            self._note(TupleFailure(message.message_id, None, str(error)))
            if tracked:
                self._ended.append((Ended(root, number, Verdict.FAILED), message.message_id))
                self.failed += 1
            return
        if tracked:
            self._message_ids[root] = message.message_id
            self._pending[number] += 1
            fetched.roots.append(root)
            self._settle(self.ackers.init(root, value, number))

    def take(self, report: Report) -> None:
        """Passes a bolt task's report on to the ackers."""
        for root in report.resets:
            self.ackers.reset_timeout(root)
        for root, error in report.failures.items():
            if root in self._message_ids:
                self._note(TupleFailure(self._message_ids[root], report.bolt, error))
                self._settle(self.ackers.fail(root))
        for root, value in report.acks.items():
            # A root that has ended is not told any more: the ackers would keep it for one that may yet begin.
            if root in self._message_ids:
                self._settle(self.ackers.ack(root, value))
        for error in report.untracked:
            self._note(TupleFailure(None, report.bolt, error))

    def _note(self, failure: TupleFailure) -> None:
        self.errors.append(failure)
        self._tell_failure(failure)

    def fail_round(self, roots: Iterable[int], error: str) -> None:
        """The round has failed, and with it what it has not settled."""
        self.errors.append(TupleFailure(None, None, error))
        for root in roots:
            if root in self._message_ids:
                self._settle(self.ackers.fail(root))

    def advance(self) -> None:
        """Messages that were pending for too long fail."""
        for ended in self.ackers.advance(self._clock()):
            if ended.root in self._message_ids:
                error = "timed out: a tuple of its tree was neither acknowledged nor failed"
                self._note(TupleFailure(self._message_ids[ended.root], None, error))
                self._settle(ended)

    def notify_spouts(self) -> int:
        """Calls ack or fail for each message that was settled since the last call; returns how many these are."""
        count = 0
        while self._ended:
            ended, message_id = self._ended[0]
            self.tasks[ended.spout].call("ack" if ended.verdict is Verdict.ACKED else "fail", message_id)
            self._ended.popleft()  # not before: it is called again where the spout raised
            count += 1
        return count

    def _settle(self, ended: Ended | None) -> None:
        if ended is None:
            return
        self._ended.append((ended, self._message_ids.pop(ended.root)))
        self._pending[ended.spout] -= 1
        if ended.verdict is Verdict.ACKED:
            self.acked += 1
        elif ended.verdict is Verdict.FAILED:
            self.failed += 1
        else:
            self.timed_out += 1

    def close(self) -> None:
        """Closes the spouts; an exception of one is logged, so that the others are closed too."""
        for task in self.tasks:
            close = getattr(task.user, "close", None)
            try:
                if callable(close):
                    close()
            except Exception as error:
                log.warning("closing spout %s raised: %s", task.name, error)
