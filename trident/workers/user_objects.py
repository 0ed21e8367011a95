"""Objects of the user's in the form that a step needs: several side by side, or by another contract.

Imported by workers: keep its imports light.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from trident.workers.groups import _NOTHING, MODES, Folds
from trident.workers.lifecycle import Several


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
