"""Bolts as users write them, their tuples and collectors, and the groupings that choose a bolt's tasks.

A bolt of Storm, with one difference that matters: an instance lives for one
*round*, not for the life of the topology. A round is what the spouts had ready;
its tuples go through each bolt in one Spark job, in which each task of the bolt
has an instance of its own (:mod:`trident.tuples.topology`). Data that must
outlive a round belongs to a store or to Trident's states, never to ``self``.

Imported by every worker: keep its imports light.
"""

from __future__ import annotations

import datetime
import enum
import numbers
import operator
import pickle
import random
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from pyspark import cloudpickle

from trident.coordinators.errors import FieldError, TopologyError
from trident.spouts.rich import DEFAULT_STREAM

# Storm's groupings: they choose the tasks of a bolt that a tuple goes to (docs/semantics.md 6).
#
# The emitter chooses, on the driver for a spout and on a worker for a bolt; both
# with what is in here. Imported by every worker: keep its imports light.


_MASK = (1 << 64) - 1
_NOTHING, _NOT_A_NUMBER = 0x9E3779B9, 0x7F4A7C15


@dataclass(frozen=True)
class Grouping:
    """How an edge chooses tasks.

    Attributes:
        kind: "shuffle", "fields", "all", "global" or "custom".
    """

    kind: str
    fields: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.fields)})" if self.fields else self.kind


@dataclass(frozen=True)
class Route:
    """An edge as its source sees it.

    Attributes:
        bolt: that takes the tuples.
        level: the bolt's.
        slot: of the bolt's first task, among the tasks of its level.
        tasks: how many it has.
        grouping: chooses among them.
        positions: of the fields of a fields grouping within the tuple.
    """

    bolt: str
    level: int
    slot: int
    tasks: int
    grouping: Grouping
    positions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Output:
    """One stream of a spout or bolt.

    Attributes:
        origin: its number in the plan.
        routes: who takes them.
    """

    origin: int
    fields: tuple[str, ...]
    routes: tuple[Route, ...] = ()


class Router:
    """Chooses for one task of a spout or bolt. Not for several threads at once.

    Args:
        outputs: by stream.
        rng: where turns begin.
    """

    def __init__(self, outputs: Mapping[str, Output], rng: random.Random) -> None:
        self._outputs = outputs
        # Each emitter begins with another task, or few tuples of each would all go to the first.
        self._turns = {stream: [rng.randrange(route.tasks) for route in out.routes] for stream, out in outputs.items()}

    def choose(self, stream: str, values: Sequence[Any]) -> list[tuple[int, int]]:
        """(level, slot) of every copy of the tuple.

        Raises:
            FieldError: a value cannot be grouped by.
            TopologyError: a custom grouping gave something else than tasks.
        """
        turns = self._turns[stream]
        chosen = []
        for number, route in enumerate(self._outputs[stream].routes):
            turns[number] = (turns[number] + 1) % route.tasks
            chosen += [(route.level, route.slot + task) for task in _tasks(route, values, turns[number])]
        return chosen


def _tasks(route: Route, values: Sequence[Any], turn: int) -> Iterable[int]:
    kind = route.grouping.kind
    if kind == "fields":
        return (stable_hash([values[position] for position in route.positions]) % route.tasks,)
    if kind == "shuffle":
        return (turn,)
    if kind == "all":
        return range(route.tasks)
    return (0,) if kind == "global" else _custom(route, values)


def _custom(route: Route, values: Sequence[Any]) -> list[int]:
    assert route.grouping.function is not None
    found = route.grouping.function(tuple(values), range(route.tasks))
    try:
        tasks = [operator.index(one) for one in (found if isinstance(found, Iterable) else [found])]
    except TypeError:
        tasks = [-1]
    if any(not 0 <= task < route.tasks for task in tasks):
        raise TopologyError(
            f"the custom grouping of bolt {route.bolt!r} gave something else than tasks",
            found=repr(found)[:200],
            expected=f"a list of numbers from 0 to {route.tasks - 1}",
        )
    return tasks


def stable_hash(value: Any) -> int:
    """A hash that is the same in every process; of equal values it is equal.

    Python's own hash of text is another one in each process.

    Raises:
        FieldError: the value is of a type that is not known to have one.
    """
    if value is None:
        return _NOTHING
    if isinstance(value, str):
        return zlib.crc32(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray)):
        return zlib.crc32(value)
    if isinstance(value, enum.Enum) and not isinstance(value, numbers.Number):
        return zlib.crc32(f"{type(value).__qualname__}.{value.name}".encode())
    if isinstance(value, (numbers.Number, uuid.UUID)):
        # 1, 1.0 and True are equal. "Not a number" equals nothing, itself included; it still needs a task.
        return hash(value) & _MASK if value == value else _NOT_A_NUMBER
    if isinstance(value, datetime.timedelta):
        return hash(value // datetime.timedelta(microseconds=1)) & _MASK
    if isinstance(value, (datetime.date, datetime.time)):
        return zlib.crc32(_moment(value).encode())
    if isinstance(value, (tuple, list)):
        folded = len(value)
        for item in value:
            folded = (folded * 1000003 ^ stable_hash(item)) & _MASK
        return folded
    raise FieldError(
        "a value cannot be grouped by",
        found=f"{type(value).__module__}.{type(value).__qualname__}",
        expected="text, bytes, a number, a date or time, a UUID, an Enum, None, or a tuple of these",
        action="emit such a value as a field of its own, or use a custom grouping",
    )


def _moment(value: datetime.date | datetime.time) -> str:
    if isinstance(value, datetime.datetime) and value.utcoffset() is not None:
        return value.astimezone(datetime.timezone.utc).isoformat()  # one instant, whatever its zone
    if isinstance(value, datetime.time) and value.utcoffset() is not None:
        offset = value.utcoffset()
        midnight = datetime.timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
        return f"{midnight - (offset or datetime.timedelta())} {value.microsecond}"
    return value.isoformat()


# Tuples as bolts are given them, and the collectors that bolts emit and acknowledge with.
#
# Imported by every worker: keep its imports light.


_OPEN, _ACKED, _FAILED = 0, 1, 2

# Of the failures that a task reports this many carry their text; the others are only counted.
_ERRORS_MAX, _ERROR_CHARS_MAX = 100, 500


class Tuple:
    """A tuple that a bolt is given.

    ``tuple["word"]`` or ``tuple[0]`` is a value. It must not be kept for longer
    than the instance of the bolt lives.

    Attributes:
        values: in the order of the fields.
        fields: their names.
        source: the spout or bolt that emitted it.
        stream: of that source.
    """

    __slots__ = ("values", "fields", "source", "stream", "_ids", "_made", "_state")

    def __init__(
        self,
        values: tuple[Any, ...],
        fields: tuple[str, ...],
        source: str,
        stream: str = DEFAULT_STREAM,
        ids: Mapping[int, int] | None = None,
    ) -> None:
        self.values, self.fields, self.source, self.stream = values, fields, source, stream
        # Root → the id that the tuple has in its tree; and the XOR of the edges to what was anchored to it.
        self._ids, self._made, self._state = ids or {}, 0, _OPEN

    def __getitem__(self, name: Union[str, int]) -> Any:
        """The value of a field, by name or position.

        Raises:
            FieldError: there is no such field; with those there are.
        """
        if isinstance(name, str):
            return self.values[self._position(name)]
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field; ``default`` when there is no such field."""
        return self.values[self.fields.index(name)] if name in self.fields else default

    def __contains__(self, name: object) -> bool:
        return name in self.fields

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self.fields, self.values))
        return f"Tuple({shown} from {self.source}.{self.stream})"

    def _position(self, name: str) -> int:
        try:
            return self.fields.index(name)
        except ValueError:
            raise FieldError(
                f"a tuple of {self.source!r} has no field {name!r}", expected=f"one of {', '.join(self.fields)}"
            ) from None


@dataclass
class Report:
    """One task's report to the ackers at the end of a round.

    Attributes:
        bolt, task: whose.
        acks: root → XOR of what it acknowledged: the ids of tuples and of those that were anchored to them.
        failures: roots that have failed → the first error as text.
        resets: roots whose time begins anew.
        untracked: errors of tuples without a root.
        sent: level → how many tuples it sent there.
    """

    bolt: str
    task: int
    acks: dict[int, int] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    resets: set[int] = field(default_factory=set)
    untracked: list[str] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)


Anchors = Union[Tuple, Sequence[Tuple], None]

# Level, slot and content of a tuple on its way.
Copy = tuple[int, int, bytes]


class OutputCollector:
    """A RichBolt emits and acknowledges with it. May be used from several threads.

    Made by the framework, as ``self.collector`` of the bolt. Nothing is sent when
    a bolt emits: a child's ids are kept with the tuples that it is anchored to,
    and go to the acker with their acknowledgement (docs/semantics.md 6).

    Args:
        report: what is told in the end.
        outputs: the bolt's streams.
        rng: of ids; a generator of its own, that no user's ``random.seed`` reaches.
        send_reset: called when the time of the round that is running is to begin anew.

    Attributes:
        report: as given.
        waiting_bytes: of what was emitted since the last ``drain``.
    """

    def __init__(
        self,
        report: Report,
        outputs: Mapping[str, Output],
        rng: random.Random | None = None,
        send_reset: Callable[[], None] = lambda: None,
    ) -> None:
        self.report, self._outputs, self._send_reset = report, outputs, send_reset
        self._reset_failed = False
        self._rng = rng or random.Random()
        self._router = Router(outputs, self._rng)
        self._copies: list[Copy] = []
        self.waiting_bytes = 0
        self._lock = threading.RLock()
        self._closed = False

    def emit(self, values: Any, anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> None:
        """Emits a tuple.

        Args:
            values: one per field of the stream; a single value where there is one field.
            anchors: the tuples that it was made of: when it fails, or is lost, the messages
                that they come from come again. None: no spout is told what becomes of it.
            stream: of the bolt, where it has several.

        Raises:
            FieldError: another number of values than the stream has fields.
            TopologyError: no such stream; an anchor that is acknowledged already; or the bolt's round is over.
        """
        parents = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors or ())
        row = self._row(values, stream)
        origin = self._outputs[stream].origin
        with self._lock:
            self._check_open()
            for parent in parents:
                if parent._state == _ACKED:
                    # Its account is closed: the child could never complete the tree.
                    raise TopologyError(
                        "a tuple was anchored to one that is acknowledged already",
                        found=repr(parent),
                        action="emit first, acknowledge then",
                    )
            chosen = self._router.choose(stream, row)
            payload = pickled(row) if chosen else b""
            for level, slot in chosen:
                content = pickle.dumps((origin, payload, self._anchor(parents)), 5)
                self._copies.append((level, slot, content))
                self.waiting_bytes += len(content)
                self.report.sent[level] = self.report.sent.get(level, 0) + 1

    def _anchor(self, parents: Sequence[Tuple]) -> dict[int, int]:
        """The ids of a child: one edge per anchor, XORed into the anchor's account and into each root's id."""
        ids: dict[int, int] = {}
        for parent in parents:
            if parent._ids:
                edge = self._rng.getrandbits(64)
                parent._made ^= edge
                for root in parent._ids:
                    ids[root] = ids.get(root, 0) ^ edge
        return ids

    def ack(self, tuple: Tuple) -> None:
        """The tuple is processed. Once more, or after ``fail``, it changes nothing."""
        with self._lock:
            self._check_open()
            if tuple._state != _OPEN:
                return
            tuple._state = _ACKED
            acks = self.report.acks
            for root, own in tuple._ids.items():
                acks[root] = acks.get(root, 0) ^ own ^ tuple._made

    def fail(self, tuple: Tuple, error: Any = None) -> None:
        """The tuple was not processed: the messages that it comes from come again.

        Also after ``ack``, as long as the round lasts.

        Args:
            error: an exception or a text, for ``TupleQuery.last_errors``.
        """
        with self._lock:
            self._check_open()
            if tuple._state == _FAILED:
                return
            tuple._state = _FAILED
            report, text = self.report, describe_error(error)
            if not tuple._ids and len(report.untracked) < _ERRORS_MAX:
                report.untracked.append(text)
            for root in tuple._ids:
                report.failures.setdefault(root, text if len(report.failures) < _ERRORS_MAX else "")

    def reset_timeout(self, tuple: Tuple) -> None:
        """The messages that the tuple comes from are given their whole time again, and so is the round that runs.

        For a bolt that works long on one tuple: called more often than every
        ``message_timeout_secs``, it keeps the round from being cancelled, up to ten
        times that setting in all. The workers must reach the warehouse for it;
        where they do not, ``TupleQuery.last_errors`` says so.
        """
        with self._lock:
            self._check_open()
            self.report.resets.update(tuple._ids)
        try:
            self._send_reset()
        except OSError as error:
            with self._lock:
                if not self._reset_failed and not self._closed:
                    self._reset_failed = True
                    self.report.untracked.append(f"reset_timeout could not extend the round: {describe_error(error)}")

    @property
    def waiting(self) -> int:
        """Counts how many tuples were emitted since the last ``drain``."""
        return len(self._copies)

    def drain(self) -> list[Copy]:
        """Returns what was emitted since the last call; for the framework."""
        with self._lock:
            copies, self._copies, self.waiting_bytes = self._copies, [], 0
            return copies

    def close(self) -> Report:
        """The report; nothing can be said after it."""
        with self._lock:
            self._closed = True
            return self.report

    def _check_open(self) -> None:
        if self._closed:
            raise TopologyError(
                f"bolt {self.report.bolt!r} used its collector after its round had ended",
                action="wait for threads of your own in cleanup()",
            )

    def _row(self, values: Any, stream: str) -> tuple[Any, ...]:
        output = self._outputs.get(stream)
        if output is None:
            raise TopologyError(
                f"bolt {self.report.bolt!r} has no stream {stream!r}",
                found=repr(values)[:200],
                expected=f"one of {', '.join(self._outputs)}" if self._outputs else "a bolt that has fields",
            )
        row = tuple(values) if isinstance(values, (tuple, list)) else (values,)
        if len(row) != len(output.fields):
            raise FieldError(
                f"bolt {self.report.bolt!r} emitted another number of values than stream {stream!r} has fields",
                found=repr(values)[:200],
                expected=f"{len(output.fields)} values: {', '.join(output.fields)}",
            )
        return row


class BasicOutputCollector:
    """A BasicBolt emits with it: everything is anchored to its input."""

    def __init__(self, collector: OutputCollector, anchor: Tuple) -> None:
        self._collector, self._anchor = collector, anchor

    def emit(self, values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emits a tuple that was made of the input; see :meth:`OutputCollector.emit`."""
        self._collector.emit(values, self._anchor, stream)

    def reset_timeout(self) -> None:
        """The input is given its whole time again; see :meth:`OutputCollector.reset_timeout`."""
        self._collector.reset_timeout(self._anchor)


def pickled(values: tuple[Any, ...]) -> bytes:
    """The values of a tuple, also where a class of theirs lives in a script that workers cannot import."""
    if all(type(value) in _PLAIN for value in values):
        return pickle.dumps(values, 5)

    return cloudpickle.dumps(values)


_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def describe_error(error: Any) -> str:
    """An error as one short text: its type, what it says, and the user's line."""
    if not isinstance(error, BaseException):
        return "" if error is None else str(error)[:_ERROR_CHARS_MAX]
    try:
        said = str(error)
    except Exception as broken:  # a user's exception class
        said = f"(its text raised {type(broken).__name__})"
    place = _users_line(error)
    return f"{type(error).__name__}: {said}"[: _ERROR_CHARS_MAX - len(place)] + place


def _users_line(error: BaseException) -> str:
    """The innermost line in the file of the bolt: not in a library that it called."""
    trace, own, line = error.__traceback__, None, 0
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if own is None and not trace.tb_frame.f_globals.get("__name__", "").startswith("trident."):
            own = file
        if file == own:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" ({own}:{line})" if own else ""


@dataclass(frozen=True)
class BoltContext:
    """A bolt's ``prepare`` is given it.

    Attributes:
        topology, bolt: names.
        task: the number of this task of the bolt, from 0; the same when Spark tries it again.
        tasks: how many the bolt has.
    """

    topology: str
    bolt: str
    task: int
    tasks: int


class RichBolt:
    """The base of a bolt that anchors and acknowledges for itself.

    ::

        class Split(RichBolt):
            fields = "word"

            def execute(self, tuple):
                for word in tuple["line"].split():
                    self.collector.emit(word, anchors=tuple)
                self.collector.ack(tuple)

    The bolt's duty: every tuple is acknowledged or failed, in ``cleanup`` at the
    latest; one that is neither stays pending, and its message comes again
    after the message timeout. A tuple may be executed more than once, also the
    same one, when Spark tries a task again: the bolt's side effects must bear
    that. When ``execute`` raises, its tuple fails (in Storm the worker dies).

    An instance sees its tasks' tuples of one round, in no promised order, and no
    other round.

    Attributes:
        fields: of what it emits: ``"word, n"``, a list of names, or a mapping
            from streams to these; ``""``: it emits nothing.
        collector, context: set before ``prepare``.
    """

    fields: Any = ""
    collector: OutputCollector
    context: BoltContext

    def prepare(self, context: BoltContext) -> None:
        """Called on the worker before the first tuple of a round; not for a round without tuples."""

    def execute(self, tuple: Tuple) -> None:
        """Processes one tuple."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    def cleanup(self) -> None:
        """Called behind the last tuple of a round: the last moment to emit and to acknowledge.

        An exception of its fails every message of the round. Not called when the worker dies.
        """


class BasicBolt:
    """The base of a bolt whose tuples are anchored and acknowledged for it.

    Tuples that ``execute`` emits are anchored to its input; the input is
    acknowledged when it returns, and fails when it raises. For the rest see :class:`RichBolt`.

    ::

        class Split(BasicBolt):
            fields = "word"

            def execute(self, tuple, collector):
                for word in tuple["line"].split():
                    collector.emit(word)
    """

    fields: Any = ""
    context: BoltContext

    def prepare(self, context: BoltContext) -> None:
        """See :meth:`RichBolt.prepare`."""

    def execute(self, tuple: Tuple, collector: BasicOutputCollector) -> None:
        """Processes one tuple."""
        raise NotImplementedError(f"{type(self).__name__}.execute")

    def cleanup(self) -> None:
        """See :meth:`RichBolt.cleanup`; nothing can be emitted here, since there is no input to anchor to."""
