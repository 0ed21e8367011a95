"""Storm's groupings: they choose the tasks of a bolt that a tuple goes to (docs/semantics.md 6).

The emitter chooses, on the driver for a spout and on a worker for a bolt; both
with what is in here. Imported by every worker: keep its imports light.
"""

from __future__ import annotations

import datetime
import enum
import numbers
import operator
import random
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trident.coordinators.errors import FieldError, TopologyError

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
