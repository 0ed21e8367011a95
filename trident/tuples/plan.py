"""Plans a tuple topology: its declarations become streams, edges, and levels of bolts.

The level of a bolt is the length of the longest way from a spout to it. A round
executes level after level, so that a bolt has all its input of the round, from
near and far, before its one instance begins. Nothing here needs Spark.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark import cloudpickle

from trident.coordinators.errors import FieldError, TopologyError
from trident.spouts.rich import DEFAULT_STREAM
from trident.tuples.bolts import BasicBolt, Grouping, Output, Route
from trident.tuples.tasks import BoltCode, Origin
from trident.udf.types import parse_outputs

Streams = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Edge:
    """A grouping of a bolt's."""

    source: str
    stream: str
    grouping: Grouping


@dataclass
class Declared:
    """A spout or a bolt as it was declared.

    Attributes:
        name, user, tasks: the object, and how many tasks it has.
        streams: stream → fields.
        edges: where a bolt's tuples come from; empty for a spout.
        location: "file:line" of the declaration.
    """

    name: str
    user: Any
    tasks: int
    streams: Streams
    location: str
    edges: list[Edge] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedSpout:
    """A spout with its streams and who takes them."""

    name: str
    user: Any
    tasks: int
    outputs: Mapping[str, Output]


@dataclass(frozen=True)
class TuplePlan:
    """A tuple topology, checked and in levels, ready to run.

    Attributes:
        spouts: in the order of their declaration.
        levels: level → its bolts; levels begin at 1.
        origins: all streams, by number.
    """

    topology: str
    spouts: Sequence[PlannedSpout]
    levels: Mapping[int, Sequence[BoltCode]]
    origins: Sequence[Origin]

    def slots(self, level: int) -> int:
        """Counts how many tasks a level has."""
        return sum(code.tasks for code in self.levels[level])


def plan_tuples(topology: str, spouts: Mapping[str, Declared], bolts: Mapping[str, Declared]) -> TuplePlan:
    """Checks the declarations as a whole and lays them out.

    Raises:
        TopologyError: nothing to do; a bolt without input; an unknown source or stream; a cycle.
        FieldError: a fields grouping names a field that is not there.
    """
    if not spouts or not bolts:
        raise TopologyError(
            f"topology {topology!r} has nothing to do",
            found=f"{len(spouts)} spouts, {len(bolts)} bolts",
            expected="at least one of each",
        )
    known = {**spouts, **bolts}
    for bolt in bolts.values():
        _check_input(bolt, known)
    levels = _levels(spouts, bolts)
    places = _places(bolts, levels)
    origins = [Origin(one.name, stream, fields) for one in known.values() for stream, fields in one.streams.items()]
    numbers = {(origin.source, origin.stream): number for number, origin in enumerate(origins)}
    outputs: dict[str, dict[str, Output]] = {name: {} for name in known}
    for origin in origins:
        routes = tuple(
            Route(
                bolt.name,
                *places[bolt.name],
                bolt.tasks,
                edge.grouping,
                tuple(origin.fields.index(name) for name in edge.grouping.fields),
            )
            for bolt in bolts.values()
            for edge in bolt.edges
            if (edge.source, edge.stream) == (origin.source, origin.stream)
        )
        number = numbers[origin.source, origin.stream]
        outputs[origin.source][origin.stream] = Output(number, origin.fields, routes)
    planned: dict[int, list[BoltCode]] = {level: [] for level in range(1, max(levels.values()) + 1)}
    for bolt in bolts.values():
        level, slot = places[bolt.name]
        pickled = cloudpickle.dumps(bolt.user)
        planned[level].append(
            BoltCode(bolt.name, bolt.tasks, slot, pickled, is_basic(bolt.user), outputs[bolt.name], bolt.location)
        )
    return TuplePlan(
        topology,
        [PlannedSpout(one.name, one.user, one.tasks, outputs[one.name]) for one in spouts.values()],
        planned,
        origins,
    )


def _check_input(bolt: Declared, known: Mapping[str, Declared]) -> None:
    if not bolt.edges:
        raise TopologyError(
            f"bolt {bolt.name!r} ({bolt.location}) has no input",
            action='say where its tuples come from, as in .shuffle_grouping("lines")',
        )
    for edge in bolt.edges:
        source = known.get(edge.source)
        if source is None:
            raise TopologyError(
                f"bolt {bolt.name!r} takes tuples of {edge.source!r}, which is not there",
                expected=f"one of {', '.join(known)}",
            )
        if edge.stream not in source.streams:
            raise TopologyError(
                f"bolt {bolt.name!r} takes stream {edge.stream!r} of {edge.source!r}, which is not there",
                expected=f"one of {', '.join(source.streams)}" if source.streams else f"fields of {edge.source!r}",
            )
        fields = source.streams[edge.stream]
        missing = [name for name in edge.grouping.fields if name not in fields]
        if missing:
            raise FieldError(
                f"bolt {bolt.name!r} groups by a field that {edge.source!r} does not emit",
                found=", ".join(missing),
                expected=f"some of {', '.join(fields)}",
            )


def _levels(spouts: Mapping[str, Declared], bolts: Mapping[str, Declared]) -> dict[str, int]:
    levels: dict[str, int] = dict.fromkeys(spouts, 0)
    below = {name: {edge.source for edge in bolt.edges} for name, bolt in bolts.items()}
    while below:
        ready = [name for name, sources in below.items() if sources <= levels.keys()]
        if not ready:
            raise TopologyError(
                f"the topology has a cycle: {_cycle(below)}",
                expected="tuples that flow one way, from spouts to bolts",
                action="let the last bolt write to where a spout reads, if tuples are to go round",
            )
        for name in ready:
            levels[name] = 1 + max(levels[source] for source in below.pop(name))
    return {name: level for name, level in levels.items() if name in bolts}


def _cycle(below: Mapping[str, set[str]]) -> str:
    way = [min(below)]
    while way.count(way[-1]) < 2:
        way.append(min(source for source in below[way[-1]] if source in below))
    return " ← ".join(way[way.index(way[-1]) :])


def _places(bolts: Mapping[str, Declared], levels: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Bolt → (level, slot of its first task)."""
    taken: dict[int, int] = {}
    places = {}
    for name, bolt in bolts.items():
        level = levels[name]
        slot = taken.get(level, 0)
        places[name], taken[level] = (level, slot), slot + bolt.tasks
    return places


def streams_of(fields: Any, what: str) -> dict[str, tuple[str, ...]]:
    """Stream → names of its fields, of the ``fields`` of a spout or bolt.

    Raises:
        FieldError: a field is named twice.
        TopologyError: the fields cannot be read.
    """
    if isinstance(fields, Mapping):
        streams = {}
        for stream, own in fields.items():
            if not isinstance(stream, str) or not stream:
                raise TopologyError(f"a stream of {what} has no name", found=repr(stream), expected="a text")
            streams[stream] = tuple(name for name, _ in parse_outputs(own))
        return streams
    if fields is None or isinstance(fields, (str, list, tuple)) and not fields:
        return {}
    return {DEFAULT_STREAM: tuple(name for name, _ in parse_outputs(fields))}


def is_basic(bolt: Any) -> bool:
    """Tells whether ``execute`` takes a collector; a class of its own needs no base."""
    if isinstance(bolt, BasicBolt):
        return True
    signature = inspect.signature(bolt.execute)
    for arguments in (1, 2):
        try:
            signature.bind(*[None] * arguments)
        except TypeError:
            continue
        return arguments == 2
    raise TopologyError(
        f"execute of {type(bolt).__name__} cannot be called",
        found=f"execute{signature}",
        expected="execute(tuple), or execute(tuple, collector) as in a BasicBolt",
    )
