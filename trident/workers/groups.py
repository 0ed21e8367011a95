"""Grouping and folding in Python on a worker: one dict of groups per Spark partition.

Steps of a :class:`trident.workers.chain.Chain` that see a whole partition before
they give anything. Imported by every worker: keep its imports light.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product, repeat
from typing import Any

import pyarrow as pa

from trident.states.core.typed_values import Row, frozen
from trident.workers.calls import Several, not_one_row
from trident.workers.chain import FieldsStep, Frame, Made, Meter
from trident.workers.failures import Label, Values, fail

_GROUPS_PER_BATCH = 50_000
_NOTHING: Any = object()
# How an aggregator of a kind folds rows.
MODES = {"native": "combine", "combiner": "combine", "reducer": "reduce", "aggregator": "aggregate"}

Fold = Callable[[Any, Row], Any]


class Folds:
    """How one row goes into the value of its group, by the aggregator's contract."""

    def __init__(self, aggregator: Any, mode: str, batch_id: Any = None) -> None:
        self._aggregator, self._mode, self._batch_id = aggregator, mode, batch_id

    def initial(self) -> Any:
        """The value of a group that had no row."""
        if self._mode in ("combine", "merge"):
            return self._aggregator.zero()
        return self._aggregator.init(self._batch_id) if self._mode == "aggregate" else self._aggregator.init()

    def resumed(self, stored: Row) -> Any:
        """The value from which to go on where a state has one."""
        if self._mode == "aggregate":
            return self._aggregator.resume(self._batch_id, *stored)
        return stored[0]

    def fold(self) -> Fold:
        """(value so far or _NOTHING, the row's input values) → value."""
        aggregator, batch_id = self._aggregator, self._batch_id
        if self._mode == "combine":
            init, combine = aggregator.init, aggregator.combine
            return lambda old, row: init(*row) if old is _NOTHING else combine(old, init(*row))
        if self._mode == "merge":
            merge = aggregator.combine
            return lambda old, row: row[0] if old is _NOTHING else merge(old, row[0])
        if self._mode == "reduce":
            begin, reduce_ = aggregator.init, aggregator.reduce
            return lambda old, row: reduce_(begin() if old is _NOTHING else old, *row)
        start, aggregate = aggregator.init, aggregator.aggregate

        def into(old: Any, row: Row) -> Any:
            state = start(batch_id) if old is _NOTHING else old
            new = aggregate(state, *row)
            return state if new is None else new

        return into


@dataclass
class Held:
    """The groups of a Spark partition so far.

    Attributes:
        fold: of ``folds``.
        groups: key → value.
        originals: the keys as they were, of those that had to be changed to be hashed.
        anchors: of tracked rows: key → root → XOR of the ids of its rows.
        key_types: of the grouping fields; empty before the first row.
    """

    folds: Folds
    fold: Fold
    groups: dict[Any, Any] = field(default_factory=dict)
    originals: dict[Any, Row] = field(default_factory=dict)
    anchors: dict[Any, dict[int, int]] = field(default_factory=dict)
    key_types: list[pa.DataType] = field(default_factory=list)


@dataclass(frozen=True)
class Groups(FieldsStep):
    """Folds the rows of a partition by key; gives one result per group, or those of ``complete``.

    Attributes:
        mode: "combine" (rows to partial values), "merge" (partial values), "reduce" or "aggregate".
        keys: the grouping fields; none: the whole partition is one group.
        many: of an aggregator's ``complete``: as in Rows.
        always: without keys: give a result even when there was no row.
        stored: the fields that hold what a state has for the key, to go on from;
            none: every group begins anew.
        found: the field that says whether the state has the key.
        marker: the field that marks a row which is none and only brings ``stored``.
        batch_id: what an aggregator's ``init`` is given.
    """

    label: Label
    aggregator: Any
    mode: str
    keys: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    many: bool | None = False
    always: bool = False
    stored: tuple[str, ...] = ()
    found: str = ""
    marker: str = ""
    batch_id: Any = None

    @property
    def text(self) -> str:
        return f"{self.label.operation}: {self.mode}{' by ' if self.keys else ''}{', '.join(self.keys)}"

    @property
    def user(self) -> Any:
        return self.aggregator

    def for_batch(self, info: Any) -> "Groups":
        return replace(self, batch_id=info.attempt)

    def run(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        folds = Folds(self.aggregator, self.mode, self.batch_id)
        held = Held(folds, folds.fold())
        for frame in frames:
            if frame.length:
                held.key_types = held.key_types or [frame.array(name).type for name in self.keys]
                self._take(frame, held)
        if self.always and not held.groups:
            try:
                held.groups[()] = folds.initial()
            except (Exception, SystemExit) as error:
                fail(self.label, error, {})
        yield from self._results(held)

    def _take(self, frame: Frame, held: Held) -> None:
        """Folds the rows of a frame into their groups."""
        if self.found:
            self._go_on(frame, held)
            return
        groups, fold, get = held.groups, held.fold, held.groups.get
        at = 0  # after a failure: the row that it was
        try:
            for at, (key, row) in enumerate(zip(self._group_keys(frame, held), frame.rows(self.inputs))):  # noqa: B007
                groups[key] = fold(get(key, _NOTHING), row)
        except (Exception, SystemExit) as error:
            fail(self.label, error, frame.row((*self.keys, *self.inputs), at))

    def _go_on(self, frame: Frame, held: Held) -> None:
        """As ``_take``, from the value that the state has."""
        groups, fold = held.groups, held.fold
        stored, marks = frame.rows(self.stored), frame.values(self.marker) if self.marker else repeat(0)
        keys, rows = self._group_keys(frame, held), frame.rows(self.inputs)
        at = 0
        try:
            for at, (key, row, old, has, marked) in enumerate(  # noqa: B007
                zip(keys, rows, stored, frame.values(self.found), marks)
            ):
                value = groups.get(key, _NOTHING)
                if value is _NOTHING and has:
                    value = groups[key] = held.folds.resumed(old)
                if not marked:
                    groups[key] = fold(value, row)
        except (Exception, SystemExit) as error:
            fail(self.label, error, frame.row((*self.keys, *self.inputs), at))

    def _group_keys(self, frame: Frame, held: Held) -> Values:
        """A hashable key per row, always a tuple."""
        if not self.keys:
            return [()] * frame.length
        hashable, changed = [], False
        for name in self.keys:
            values, kind = frame.values(name), frame.array(name).type
            if pa.types.is_floating(kind):
                values = [frozen(value) for value in values]
            elif pa.types.is_nested(kind):
                values, changed = [frozen(value) for value in values], True
            hashable.append(values)
        keys = list(zip(*hashable))
        if changed:
            for key, original in zip(keys, frame.rows(self.keys)):
                held.originals.setdefault(key, original)
        return keys

    def _results(self, held: Held) -> Iterator[Frame]:
        meter = Meter()
        names = iter(held.groups)
        while chunk := list(islice(names, _GROUPS_PER_BATCH)):
            results, arrays, values = self._completed(chunk, held)
            if self.found and not results.one_each():
                ends = list(results.ends)
                at = next(row for row, (start, end) in enumerate(zip([0, *ends], ends)) if end - start != 1)
                key = held.originals.get(chunk[at], chunk[at])
                fail(self.label, not_one_row(ends[at] - (ends[at - 1] if at else 0)), dict(zip(self.keys, key)))
            yield Frame(arrays, len(results.rows), meter, values)

    def _completed(self, groups: list[Any], held: Held) -> Made:
        """The results of some groups, with columns of their keys."""
        keys = [held.originals.get(group, group) for group in groups]
        completes = self.mode == "aggregate"
        complete = self.aggregator.complete if completes else _itself
        # many=False with drop_none=False: one result per group, and None is a null value.
        results, arrays, values = self.made(
            complete,
            [[held.groups[group] for group in groups]],
            ("state",),
            len(groups),
            self.many,
            completes,
            lambda group: dict(zip(self.keys, keys[group])),
        )
        index = results.index()
        arrays |= key_arrays(keys if index is None else [keys[at] for at in index], self.keys, held.key_types)
        return results, arrays, values


def key_arrays(keys: Sequence[Row], names: Sequence[str], types: Sequence[pa.DataType]) -> dict[str, pa.Array]:
    """Keys as columns."""
    return {
        name: pa.array([key[position] for key in keys], kind) for position, (name, kind) in enumerate(zip(names, types))
    }


class Folded:
    """Combines a list of partial values, each in a struct so that a null one is not lost."""

    def __init__(self, aggregator: Any) -> None:
        self._aggregator = aggregator

    @property
    def __wrapped__(self) -> Any:
        return self._aggregator

    def __call__(self, partials: list[dict[str, Any]]) -> Any:
        value = _NOTHING
        for partial in partials:
            value = partial["value"] if value is _NOTHING else self._aggregator.combine(value, partial["value"])
        return self._aggregator.zero() if value is _NOTHING else value


def _itself(state: Any) -> Any:
    return state


# Objects of the user's in the form that a step needs: several side by side, or by another contract.
#
# Imported by workers: keep its imports light.


class _Links(Several):
    """The links with the places of their inputs among those of the chain."""

    def __init__(self, links: Sequence[Any], inputs: Sequence[str]) -> None:
        self.users = self._aggregators = [link.aggregator for link in links]
        self._places = [tuple(inputs.index(name) for name in link.inputs) for link in links]


class CombinerChain(_Links):
    """Combiners side by side; the value is a dict, as Spark's structs are in Python."""

    def init(self, *values: Any) -> dict[str, Any]:
        pairs = zip(self._aggregators, self._places)
        return _struct(aggregator.init(*[values[place] for place in places]) for aggregator, places in pairs)

    def combine(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        parts = zip(self._aggregators, a.values(), b.values())
        return _struct(aggregator.combine(one, other) for aggregator, one, other in parts)

    def zero(self) -> dict[str, Any]:
        return _struct(aggregator.zero() for aggregator in self._aggregators)


def _struct(values: Iterable[Any]) -> dict[str, Any]:
    return {f"f{place}": value for place, value in enumerate(values)}


class FirstValue:
    """A combiner as a function of a row: its value of that row alone."""

    def __init__(self, combiner: Any) -> None:
        self.__wrapped__ = combiner  # its prepare and cleanup are called

    def __call__(self, *values: Any) -> Any:
        return self.__wrapped__.init(*values)


class AnyChain(_Links):
    """Aggregates of any kind side by side; their rows are combined in every way."""

    def __init__(self, links: Sequence[Any], inputs: Sequence[str]) -> None:
        super().__init__(links, inputs)
        self._modes = [MODES[link.kind] for link in links]
        self._several = [len(link.outputs) > 1 for link in links]
        self._many = [link.many for link in links]
        self._wide = sum(len(link.outputs) for link in links) > 1
        self._at: Any = None

    def init(self, batch_id: Any) -> list[Any]:
        # One batch at a time: the folds that its first group makes serve the others.
        if self._at is None or self._at[0] is not batch_id:
            folds = [Folds(*one, batch_id) for one in zip(self._aggregators, self._modes)]
            self._at = (batch_id, folds, [one.fold() for one in folds])
        return [_NOTHING] * len(self._aggregators)

    def aggregate(self, state: list[Any], *values: Any) -> None:
        for number, (fold, places) in enumerate(zip(self._at[2], self._places)):
            state[number] = fold(state[number], tuple(values[place] for place in places))

    def complete(self, state: list[Any]) -> Iterator[Any]:
        results = [self._rows(number, value) for number, value in enumerate(state)]
        for rows in product(*results):
            values = tuple(value for row in rows for value in row)
            yield values if self._wide else values[0]

    def _rows(self, number: int, value: Any) -> list[tuple[Any, ...]]:
        if value is _NOTHING:
            value = self._at[1][number].initial()
        several = self._several[number]
        if self._modes[number] != "aggregate":
            return [(value,)]
        found, many = self._aggregators[number].complete(value), self._many[number]
        if found is None:
            return []
        one = many is False or isinstance(found, (str, bytes, dict)) or not hasattr(found, "__iter__")
        if many is None and several and isinstance(found, tuple):
            one = True
        rows = [found] if one else list(found)
        return [tuple(row) if several else (row,) for row in rows]


class AsAggregator:
    """A MultiReducer over rows that hold the values of one of the streams."""

    def __init__(self, reducer: Any, names: Sequence[Sequence[str]]) -> None:
        self._reducer, self._names = reducer, [tuple(side) for side in names]
        for hook in ("prepare", "cleanup"):
            if callable(getattr(reducer, hook, None)):
                setattr(self, hook, getattr(reducer, hook))

    def init(self, batch_id: Any) -> Any:
        return self._reducer.init(batch_id)

    def aggregate(self, state: Any, index: int, *sides: Any) -> Any:
        values = sides[index]
        return self._reducer.execute(state, index, *[values[name] for name in self._names[index]])

    def complete(self, state: Any) -> Any:
        return self._reducer.complete(state)


class Targets:
    """Returns the results of a function of ``partition``, as whole numbers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = self.__wrapped__ = function  # its prepare and cleanup are called

    def __call__(self, *values: Any) -> list[int]:
        found = self._function(*values)
        several = found if isinstance(found, (list, tuple, set, frozenset, range, Iterator)) else [found]
        targets = [operator.index(one) for one in several]
        if not targets or min(targets) < 0:
            raise ValueError(f"a partition is a number from 0, and every row needs one; found {found!r}")
        return targets
