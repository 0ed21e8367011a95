"""Figures, ratios with their goals, and how they are printed and written as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A bound on a ratio or a figure, from the issue's Speed section."""

    at_least: float | None = None
    at_most: float | None = None

    def reached(self, value: float) -> bool:
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


@dataclass(frozen=True)
class Figure:
    """One measured thing: a value per round, and their median."""

    name: str
    unit: str
    rounds: tuple[float, ...]
    goal: Goal | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


@dataclass(frozen=True)
class Ratio:
    """A quotient of two medians of one run."""

    name: str
    value: float
    unit: str = "×"
    goal: Goal | None = None

    @property
    def reached(self) -> bool | None:
        return None if self.goal is None else self.goal.reached(self.value)


@dataclass
class Report:
    """What one benchmark found; filled while it runs, so that a failure keeps what there is."""

    name: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def figure(self, name: str, unit: str, rounds: Sequence[float], goal: Goal | None = None) -> float:
        """Adds a figure and returns its median."""
        if not rounds:
            raise ValueError(f"{self.name}: {name} has no rounds")
        made = Figure(name, unit, tuple(rounds), goal)
        self.figures.append(made)
        return made.median

    def ratio(self, name: str, over: float, under: float, goal: Goal | None = None, unit: str = "×") -> float:
        """Adds over / under and returns it."""
        value = over / under
        self.ratios.append(Ratio(name, value, unit, goal))
        return value

    def note(self, text: str) -> None:
        self.notes.append(text)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "seconds": round(self.seconds, 1),
            "figures": [
                {
                    "name": one.name,
                    "unit": one.unit,
                    "median": round(one.median, 4),
                    "rounds": [round(value, 4) for value in one.rounds],
                    **_goal(one.goal, one.median),
                }
                for one in self.figures
            ],
            "ratios": [
                {"name": one.name, "value": round(one.value, 4), "unit": one.unit, **_goal(one.goal, one.value)}
                for one in self.ratios
            ],
            "notes": self.notes,
        }

    def lines(self) -> list[str]:
        """The report for a reader."""
        width = max((len(one.name) for one in [*self.figures, *self.ratios]), default=0)
        made = [f"== {self.name}: {self.title}  ({self.seconds:.0f} s)"]
        for figure in self.figures:
            spread = ""
            if len(figure.rounds) > 1:
                spread = (
                    f"  ({_number(min(figure.rounds))} … {_number(max(figure.rounds))}, {len(figure.rounds)} rounds)"
                )
            made.append(
                f"   {figure.name:<{width}}  {_number(figure.median):>9} {figure.unit}{spread}"
                + _verdict(figure.goal, figure.median)
            )
        if self.ratios:
            made.append("   ratios:")
        for ratio in self.ratios:
            made.append(
                f"   {ratio.name:<{width}}  {ratio.value:>9.2f} {ratio.unit}{_verdict(ratio.goal, ratio.value)}"
            )
        return made + [f"   note: {text}" for text in self.notes]


def _goal(goal: Goal | None, value: float) -> dict[str, Any]:
    if goal is None:
        return {"goal": None, "reached": None}
    return {"goal": str(goal), "reached": goal.reached(value)}


def _verdict(goal: Goal | None, value: float) -> str:
    return "" if goal is None else f"   goal {goal}: {'reached' if goal.reached(value) else 'NOT reached'}"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
