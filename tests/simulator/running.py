"""Runs seeds and tells what came of them."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.simulator.simulation import Simulation

VARIABLE = "TRIDENT_SIM_SEED"
LAST_EVENTS = 80


@dataclass(frozen=True)
class Result:
    """What one seed came to.

    Attributes:
        violation: what did not hold, None if all did.
        trace: (virtual time, process, what…) of every event.
    """

    seed: int
    violation: BaseException | None
    counters: Counter[str]
    trace: list[tuple[Any, ...]]
    trace_hash: str

    def story(self, last: int | None = LAST_EVENTS) -> str:
        """The trace for people: its last events, or all of them."""
        events = self.trace if last is None else self.trace[-last:]
        lines = [f"{when:10.4f} {who:>4}  " + " ".join(map(str, what)) for when, who, *what in events]
        if len(events) < len(self.trace):
            lines.insert(0, f"… {len(self.trace) - len(events)} events before")
        if self.violation is not None:
            lines.append("".join(traceback.format_exception(self.violation)).rstrip())
            lines.append(f"{VARIABLE}={self.seed} runs this seed alone, with its full trace")
        return "\n".join(lines)


def run_seed(seed: int, rollbacks: int = 0) -> Result:
    """One seed. A defect of the simulation itself is a violation too."""
    simulation = Simulation(seed, rollbacks)
    violation = None
    try:
        simulation.run()
    except Exception as error:
        violation = error
    world = simulation.world
    return Result(seed, violation, world.counters, world.trace, simulation.trace_hash())


def report(seeds: int, secs: float, counters: Counter[str]) -> str:
    """Seeds a minute; how often each state was reached."""
    lines = [f"{seeds:,} seeds in {secs:.1f} s: {seeds / secs * 60:,.0f} a minute"]
    lines += [f"{count:9,}  {state}" for state, count in sorted(counters.items())]
    return "\n".join(lines)
