"""Breadth-first search of every reachable state, with traces and a progress check.

A model gives ``initial`` and ``actions(state)``: what can happen next. An
action that breaks a claim raises :class:`Violation`; so does an
``AssertionError`` of the code under test. The search then fails with the
shortest way there.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

DEEP = os.environ.get("TRIDENT_EXPLORE") == "deep"


class Violation(Exception):
    """A claim does not hold; the search adds the way that led there."""


class Action(NamedTuple):
    """One thing that can happen. ``fault``: it need never happen for progress."""

    label: str
    run: Callable[[], Hashable]
    fault: bool = False


class Model(Protocol):
    initial: Any

    def actions(self, state: Any) -> Iterable[Action]: ...

    def finished(self, state: Any) -> bool:
        """Whether it is right that nothing more happens here without a fault."""


@dataclass(frozen=True)
class Explored:
    """What a search has seen.

    Attributes:
        states, edges: distinct states, and actions taken between them.
        ends: states in which nothing more happens without a fault.
    """

    states: int
    edges: int
    ends: int


def explore(model: Model, states_max: int = 3_000_000) -> Explored:
    """Visits every reachable state, then checks that progress is inevitable.

    Progress: leaving out the faults, every way from every reachable state,
    whatever the scheduling, comes to a state that is ``finished``. There is no
    dead end and no cycle in which the coordinator could run for ever.

    Raises:
        Violation: with the steps from the initial state.
        RuntimeError: more than states_max states; the bounds are too wide.
    """
    index: dict[Hashable, int] = {model.initial: 0}
    order: list[Any] = [model.initial]
    came_from: list[tuple[int, str]] = [(-1, "start")]
    sources, targets = array("l"), array("l")  # of the edges without a fault
    edges = 0
    for number, state in enumerate(order):  # grows while it is walked
        for action in model.actions(state):
            try:
                after = action.run()
            except (Violation, AssertionError) as problem:
                steps = [*_story(came_from, number), action.label]
                raise Violation(_told(str(problem) or repr(problem), steps)) from problem
            edges += 1
            target = index.get(after)
            if target is None:
                target = index[after] = len(order)
                order.append(after)
                came_from.append((number, action.label))
                if target >= states_max:
                    raise RuntimeError(f"more than {states_max:,} states")
            if not action.fault:
                sources.append(number)
                targets.append(target)
    ends = _check_progress(model, order, came_from, sources, targets)
    return Explored(len(order), edges, ends)


def _check_progress(
    model: Model, order: list[Any], came_from: list[tuple[int, str]], sources: array, targets: array
) -> int:
    ways_left = array("l", [0]) * len(order)
    before: list[list[int]] = [[] for _ in order]
    for source, target in zip(sources, targets):
        ways_left[source] += 1
        before[target].append(source)
    ends = [number for number in range(len(order)) if ways_left[number] == 0]
    for number in ends:
        if not model.finished(order[number]):
            raise Violation(_told("nothing more can happen, and it is not finished", _story(came_from, number)))
    settled, number_settled = list(ends), len(ends)
    while settled:
        for source in before[settled.pop()]:
            ways_left[source] -= 1
            if ways_left[source] == 0:
                settled.append(source)
                number_settled += 1
    if number_settled < len(order):
        number = next(n for n in range(len(order)) if ways_left[n] > 0)
        raise Violation(_told("from here it can go round for ever without a fault", _story(came_from, number)))
    return len(ends)


def _story(came_from: list[tuple[int, str]], number: int) -> list[str]:
    steps = []
    while number > 0:
        number, label = came_from[number]
        steps.append(label)
    return steps[::-1]


def _told(problem: str, steps: list[str]) -> str:
    return problem + "\n" + "\n".join(f"  {n:3}. {label}" for n, label in enumerate(steps, 1))
