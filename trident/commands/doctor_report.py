"""Keeps what ``trident doctor`` has seen: lines to be printed, problems, notes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Report:
    """Lines to be printed; ``problems``, with which no topology runs; ``notes``, with which one does."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def say(self, what: str, text: str) -> None:
        self.lines.append(f"{what:<12} {text}")

    def problem(self, what: str, text: str, problem: object) -> None:
        """A line that leads to the problem, which says what to do."""
        self.say(what, f"{text}{': ' if text else ''}see below")
        self.problems.append(str(problem))

    def text(self) -> str:
        told = list(self.lines)
        if self.problems:
            told += ["", "Problems:", *(f"- {one}" for one in dict.fromkeys(self.problems))]
        if self.notes:
            told += ["", "Worth knowing:", *(f"- {one}" for one in dict.fromkeys(self.notes))]
        return "\n".join(told if self.problems else [*told, "", "No problem found."])


def nearest(path: "str | os.PathLike[str]", is_there: Callable[[str], bool] = os.path.lexists) -> str:
    """The path, or the nearest one above it that is there."""
    found = os.fspath(path)
    while not is_there(found) and os.path.dirname(found) != found:
        found = os.path.dirname(found)
    return found


def size(found: int) -> str:
    return f"{found / (1 << 30):.1f} GB"
