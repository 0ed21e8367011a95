"""An operator who rolls back while everything else goes wrong: stops the processes, runs the command until it is done.

Some of the processes are started again meanwhile, as a service manager does: they must not lead.
"""

from __future__ import annotations

import random
from typing import Any

from tests.simulator.checker import Violation
from tests.simulator.rollback import RollbackProcess
from tests.simulator.world import Process
from trident.coordinators.errors import CoordinationError

_NAME = "R"
_STARTED_ALL_THE_SAME_ODDS = 0.3
# Amid a rollback, which takes so long where nothing goes wrong.
_KILLED_ODDS, _STARTED_AMID_ODDS, _AMID_SECS = 0.5, 0.5, 0.06
_PROCESSES_KILLED_ODDS = 0.4
_LOOKS, _LOOK_SECS = 500, 0.003


class Operator:
    """Of one run.

    Attributes:
        left: how many rollbacks are still to come.
        at_work: from the first stop to the last start.
        has_begun: whether one has; a process that met it may end long behind it.
        current: the run of the command that is under way.
    """

    def __init__(self, simulation: Any, rollbacks: int) -> None:
        self._simulation, self.world, self.left = simulation, simulation.world, rollbacks
        # Of its own: seeds without rollbacks stay as they were.
        self._rng = random.Random(f"rollback {simulation.seed}")
        self.at_work = self.has_begun = False
        self.current: RollbackProcess | None = None
        self._life, self._txid = 0, 0

    def soon(self) -> None:
        if self.left:
            self.world.later(self._rng.uniform(0.5, 10.0), self._ask)

    def lets_start(self) -> bool:
        return not self.at_work or self._rng.random() < _STARTED_ALL_THE_SAME_ODDS

    @property
    def has_plans(self) -> bool:
        return self.at_work or self.left > 0

    def gives_up_plans(self) -> None:
        """The faults are over: what is under way is finished, nothing new is begun."""
        self.left = 1 if self.at_work else 0

    def _ask(self) -> None:
        record = self._simulation.checker.record
        if not self.left or self.world.finished:
            return
        if record is None or record["current_txid"] < 3:
            self.world.later(1.0, self._ask)
            return
        kills = self._rng.random() < _PROCESSES_KILLED_ODDS
        self._go_back(kills, _LOOKS if kills else 0)

    def _go_back(self, kills: bool, looks: int) -> None:
        """The processes are killed while a decision is pending, where one comes."""
        record = self._simulation.checker.record
        if self.world.finished or not self.left:
            return
        if looks and self._simulation.checker.decided is None:
            self.world.later(_LOOK_SECS, self._go_back, kills, looks - 1)
            return
        # Sometimes to the last one, where there is nothing to do unless another is decided.
        self._txid = self._rng.randint(1, record["current_txid"] - self._rng.choice((1, 2, 2)))
        self.world.tell("the operator goes back to", self._txid)
        self.at_work = True
        if kills:
            self._simulation.kill_all()
        self.world.later(self._rng.random() * 2.0, self._run)

    def _run(self) -> None:
        if self._simulation.checker.intent is None:
            self._simulation.stop_for_rollback()
        self._life += 1
        process = Process(self.world, _NAME, self._life)
        self.world.tell("starts", str(process))
        shared = self._simulation.shared
        current = self.current = RollbackProcess(shared, process, "host of R", self._txid, self._on_end)
        self._simulation.knows(current)
        process.on_kill = lambda: self._on_kill(current)

    def on_intent(self) -> None:
        """A rollback has begun: what may happen amid it."""
        self.has_begun = True
        if self._rng.random() < _KILLED_ODDS:
            self.world.later(self._rng.random() * _AMID_SECS, self._kill, self.current)
        if self._rng.random() < _STARTED_AMID_ODDS:
            self.world.later(self._rng.random() * _AMID_SECS, self._simulation.start_one, self._rng)

    def _kill(self, current: RollbackProcess) -> None:
        if self._simulation.checker.intent is not None and not current.ended and not current.process.dead:
            self.world.kill(current.process)

    def _on_kill(self, current: RollbackProcess) -> None:
        self.world.tell("killed", str(current.process))
        if self._simulation.checker.intent is not None:
            self.world.reached("a rollback is killed amid its work")
        if current.client is not None:
            current.client.fall_silent()
        self._again()

    def _on_end(self, current: RollbackProcess) -> None:
        self.world.tell("ends", str(current.process), type(current.error).__name__, current.refused)
        if current.error is not None:
            self._again()
            return
        if self._simulation.checker.intent is not None:
            self.world.crash = Violation(f"{current.process} is done, and its intent is there")
        self.world.reached("a rollback is refused" if current.refused else "a rollback is done")
        self.at_work, self.current = False, None
        self.left -= 1
        self._simulation.start_again()
        self.soon()

    def _again(self) -> None:
        if self._simulation.checker.intent is not None and self._rng.random() < _STARTED_AMID_ODDS:
            self.world.later(0.05, self._simulation.start_one, self._rng)
        self.world.later(self._rng.choice((0.2, 3.0)) * (0.5 + self._rng.random()), self._run)


def is_refused_start(error: BaseException) -> bool:
    """Tells whether a process ended since it met a rollback that had not ended."""
    return isinstance(error, CoordinationError) and "was begun and has not ended" in str(error)
