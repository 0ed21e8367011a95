"""Virtual time: one thread of control, greenlets for the production code's threads, a seed for every choice.

A task is a greenlet that belongs to a simulated operating system process. It
runs until it waits for something (an answer, a lock, a time); then the next
entry of the agenda is due. Every delay comes from the seed, and with it every
order: two runs of a seed are the same, event by event.

A process can be stopped (SIGSTOP: its tasks' wake-ups are kept until it goes
on) and killed (SIGKILL: its tasks never run again but to be unwound, and
nothing that they do then has an effect).
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

# A thread that is ready runs within this time, seldom much later (the scheduler, garbage collection, a page fault).
_WAKE_SECS = 0.0005
_HICCUP_ODDS = 0.004
_HICCUP_SECS = 1.5


class Killed(GreenletExit):
    """Unwinds a task of a process that was killed."""


class Task(greenlet):
    """A thread of a simulated process."""

    process: Process
    ticket: int = 0  # of the wait it is in: a wake-up with an older one is late
    timed_out: bool = False


class Process:
    """A simulated operating system process, from its start to its end, with clocks of its own.

    Attributes:
        name: "A"; ``life``: counts its starts.
        rate: how fast its monotonic clock runs; leap, wall: what was added to its clocks.
    """

    def __init__(self, world: World, name: str, life: int) -> None:
        self.world, self.name, self.life = world, name, life
        self.label = f"{name}{life}"
        self.dead = False
        self.paused_until = 0.0
        self.working = 0  # jobs and pieces of I/O that are under way
        self.tasks: dict[Task, None] = {}
        self.rate = world.rng.choice((1.0, 1.0, 0.9, 1.1))
        self.leap = world.rng.uniform(0.0, 1e6)
        self.wall = 1.6e9
        self.on_kill: Callable[[], None] = lambda: None
        world.processes.append(self)

    def __str__(self) -> str:
        return self.label

    def monotonic(self) -> float:
        return self.world.now * self.rate + self.leap

    def wall_time(self) -> float:
        return self.world.now + self.wall

    def spawn(self, target: Callable[..., Any], *args: Any) -> Task:
        task = Task(target, self.world.hub)
        task.process = self
        self.tasks[task] = None
        self.world.schedule(task, self.world.rng.random() * _WAKE_SECS, args)
        return task

    @property
    def paused(self) -> bool:
        return self.paused_until > self.world.now


class World:
    """The agenda, the seed's random numbers, the trace and the counters of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.counters: Counter[str] = Counter()
        self.trace: list[tuple[Any, ...]] = []
        self.finished = False
        self.running: Process | None = None
        self.crash: BaseException | None = None  # raised by a task: a defect of the simulation, or found by it
        self.hub = getcurrent()
        self.processes: list[Process] = []
        self._agenda: list[tuple[float, int, Any, int, Any]] = []
        self._count = 0

    # --- telling -------------------------------------------------------------------------------

    def tell(self, *what: Any) -> None:
        """A line of the trace: only plain values, so that it is the same in every run."""
        self.trace.append((self.now, self.running.label if self.running else "-", *what))

    def reached(self, state: str) -> None:
        """A rare state was reached."""
        self.counters[state] += 1
        self.trace.append((self.now, self.running.label if self.running else "-", "reached:", state))

    # --- the agenda ----------------------------------------------------------------------------

    def later(self, delay_secs: float, action: Callable[..., None], *args: Any) -> None:
        """Have something happen outside of every process."""
        self._count += 1
        heapq.heappush(self._agenda, (self.now + delay_secs, self._count, action, -1, args))

    def schedule(self, task: Task, delay_secs: float, value: Any) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self.now + delay_secs, self._count, task, task.ticket, value))

    def wake(self, task: Task) -> None:
        """A task may go on: at once, but others may be faster."""
        delay = self.rng.random() * _WAKE_SECS
        if self.rng.random() < _HICCUP_ODDS:
            delay += self.rng.random() * _HICCUP_SECS
        self.schedule(task, delay, False)

    def block(self, timeout_secs: float | None = None) -> bool:
        """The running task waits to be woken; False after the timeout, in seconds of its process."""
        task = getcurrent()
        process = task.process
        if process.dead:
            raise Killed
        if timeout_secs is not None:
            self.schedule(task, max(timeout_secs, 0.0) / process.rate, True)
        timed_out = self.hub.switch()
        if process.dead:
            raise Killed
        return not timed_out

    def give_way(self) -> None:
        """Another task may run in between, as threads may at any moment."""
        task = getcurrent()
        if isinstance(task, Task) and self.rng.random() < 0.1:
            self.wake(task)
            self.block()

    def sleep(self, secs: float) -> None:
        """The running task waits, in seconds of the world."""
        task = getcurrent()
        self.schedule(task, secs, False)
        self.block()

    def run(self, until: float) -> bool:
        """Lets everything happen up to a time; True if it ended before, since ``finished`` was set."""
        agenda = self._agenda
        while agenda and not self.finished:
            if agenda[0][0] > until:
                break
            when, _, target, ticket, value = heapq.heappop(agenda)
            if when > self.now:
                self.now = when
            if ticket < 0:
                self.running = None
                target(*value)
            else:
                self._go_on(target, ticket, value)
            if self.crash is not None:
                raise self.crash
        self.running = None
        return self.finished

    def _go_on(self, task: Task, ticket: int, value: Any) -> None:
        process = task.process
        if task.ticket != ticket or process.dead:
            return
        if process.paused_until > self.now:
            delay = process.paused_until - self.now + self.rng.random() * _WAKE_SECS
            self.schedule(task, delay, value)
            return
        task.ticket += 1
        self.running = process
        try:
            if isinstance(value, tuple):
                task.switch(*value)
            else:
                task.switch(value)
        except Exception as problem:
            self.crash = problem
        if task.dead:
            process.tasks.pop(task, None)

    # --- processes -----------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """SIGKILL. From its own task it takes effect at once: the caller does not return."""
        if process.dead:
            return
        process.dead = True
        process.on_kill()
        self.later(0.0, self._bury, process)
        task = getcurrent()
        if isinstance(task, Task) and task.process is process:
            raise Killed

    def _bury(self, process: Process) -> None:
        for task in list(process.tasks):
            task.ticket += 1
            self.running = process
            while not task.dead:
                task.throw(Killed)
        process.tasks.clear()

    def end(self) -> None:
        """Unwinds what still runs: a task must not end in the garbage collector, in another run's time."""
        self.crash = None
        for process in self.processes:
            process.dead = True
            self._bury(process)
        self._agenda.clear()
