"""What goes wrong, how often and where: drawn anew for every seed, so that seeds differ in kind.

A seed draws which faults it has at all, and how many (a *swarm*: with every
fault in every seed, the common ones would hide what the rare ones do alone).
After ``until`` nothing goes wrong any more: what is cut heals, what is
stopped goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulator.world import Process, World


class SimulatedFailure(OSError):
    """An ordinary error of a simulated source, job or table: one that may pass."""


# What may go wrong at one piece of I/O. "after": it was done, and nobody hears of it.
KINDS = (
    "fail before, fail after, crash before, crash after, pause before, pause after, hang, cut before, cut after, "
    "expire, wall clock, monotonic clock, older copy".split(", ")
)
ZOOKEEPER_ONLY = ("cut before", "cut after")
# A ZooKeeper that answers "no" without a reason does not exist: a failure is a lost connection.
NOT_OF_ZOOKEEPER = ("fail before", "fail after", "hang", "older copy")
RATES = (0.0, 0.0, 0.02, 0.05, 0.15)
FAULTS_MAX = 14
# A seed may have an eye on one piece of I/O: most of its faults strike there.
FOCUS = [
    *(3 * [""] + 2 * ["decide", "advance", "publish"]),
    *"begin, publish of lines, acquire, commit of the spout, success, load, staging, write of the manifest".split(", "),
]
_FOCUS_FACTOR = 8.0
# Taking over is most of the I/O of a run with many faults, and not where most can go wrong.
OF_TAKING_OVER = ("acquire", "release", "other", "record", "load")


class Faults:
    """The faults of one seed.

    Attributes:
        until: the virtual time at which they stop.
    """

    def __init__(self, world: World) -> None:
        rng = world.rng
        self.world, self._rng = world, rng
        self.until = rng.choice((4.0, 12.0, 25.0, 40.0))
        self.rates = {kind: rng.choice(RATES) for kind in KINDS}
        self.total = {
            where: [kind for kind in KINDS if kind not in barred and self.rates[kind]]
            for where, barred in (("zk", NOT_OF_ZOOKEEPER), ("io", ZOOKEEPER_ONLY))
        }
        self._odds = {where: sum(self.rates[kind] for kind in kinds) for where, kinds in self.total.items()}
        self.left = rng.choice((0, 6, 10, FAULTS_MAX, FAULTS_MAX))
        self._focus = rng.choice(FOCUS)
        self.stale_odds = rng.choice((0.0, 0.1, 0.5))
        self.slow_odds = rng.choice((0.0, 0.02, 0.1))
        self.user_failure_odds = rng.choice((0.0, 0.0, 0.05, 0.2))
        self.slow_job_odds = rng.choice((0.0, 0.0, 0.2, 0.6))
        self.on_pause: Callable[[Process, float], None] = lambda process, secs: None
        self.on_clock: Callable[[Process], None] = lambda process: None
        self.on_older_copy: Callable[[], None] = lambda: None
        self.on_expire: Callable[[Process], None] = lambda process: None

    @property
    def active(self) -> bool:
        return self.left > 0 and self.world.now < self.until

    @property
    def over(self) -> bool:
        return self.world.now >= self.until

    def draw(self, where: str, name: str) -> str | None:
        """The fault that strikes at this piece of I/O, mostly none. ``where``: "zk" or "io"."""
        odds = self._odds[where]
        if not odds or not self.active:
            return None
        if self._focus:
            odds *= _FOCUS_FACTOR if name.startswith(self._focus) else 1.0 / _FOCUS_FACTOR
        elif name.startswith(OF_TAKING_OVER):
            odds *= 0.2
        if self._rng.random() >= odds:
            return None
        self.left -= 1
        kinds = self.total[where]
        return self._rng.choices(kinds, [self.rates[kind] for kind in kinds])[0]

    def delay(self) -> float:
        """A message's way, in seconds."""
        chance = self._rng.random()
        if chance < self.slow_odds and self.world.now < self.until:
            return 0.001 + self._rng.random() ** 3 * 8.0
        return 0.0002 + chance * 0.004

    def stale(self) -> bool:
        return bool(self.stale_odds) and self._rng.random() < self.stale_odds

    def chance(self, odds: float) -> bool:
        """Whether user code or a job fails on its own account."""
        return bool(odds) and self._rng.random() < odds and self.world.now < self.until

    def outage_secs(self) -> float:
        secs = self._rng.choice((0.05, 0.5, 3.0, 15.0)) * (0.5 + self._rng.random())
        return min(secs, max(0.1, self.until - self.world.now))

    # --- strikes -------------------------------------------------------------------------------

    def pause(self, process: Process) -> None:
        """SIGSTOP, and SIGCONT some seconds later."""
        secs = self._rng.choice((0.3, 4.0, 12.0, 25.0)) * (0.5 + self._rng.random())
        self.world.tell("SIGSTOP of", str(process), round(secs, 3))
        process.paused_until = self.world.now + secs
        self.on_pause(process, secs)

    def jump(self, process: Process, kind: str) -> None:
        if kind == "wall clock":
            process.wall += self._rng.choice((-86400.0, -60.0, 60.0, 86400.0))
        else:
            process.leap += self._rng.choice((1.0, 30.0, 3600.0))
        self.world.tell(kind, "of", str(process), "jumps")
        self.on_clock(process)

    def io(self, process: Process, name: str, effect: Callable[[], Any], failure: Callable[[str], Exception]) -> Any:
        """One blocking piece of I/O of the running task: its way there, the effect, the way back."""
        kind, fault = name.partition(" of ")[0], self.draw("io", name)
        process.working += 1
        try:
            return self._io(process, name, kind, fault, effect, failure)
        finally:
            process.working -= 1

    def _io(
        self,
        process: Process,
        name: str,
        kind: str,
        fault: str | None,
        effect: Callable[[], Any],
        failure: Callable[[str], Exception],
    ) -> Any:
        world = self.world
        if fault:
            world.tell("fault", fault, "at", name)
        if fault == "crash before":
            world.reached(f"crash before {kind}")
            world.kill(process)
        elif fault == "pause before":
            self.pause(process)
        elif fault in ("wall clock", "monotonic clock"):
            self.jump(process, fault)
        elif fault == "expire":
            self.on_expire(process)
            world.sleep(self._rng.random() * 0.5)  # it is heard of meanwhile
        elif fault == "older copy":
            self.on_older_copy()
        elif fault == "hang":
            world.reached(f"hang at {kind}")
            world.sleep(min(self._rng.random() * 60.0, max(0.0, self.until - world.now)))
        world.sleep(self.delay())
        if fault == "fail before":
            raise failure("before")
        result = effect()
        if fault == "crash after":
            world.reached(f"crash after {kind}")
            world.kill(process)
        elif fault == "pause after":
            self.pause(process)
        elif fault == "fail after":
            world.reached(f"failed after {kind}")
            raise failure("after")
        if self._rng.random() < 0.3:
            world.sleep(self.delay())
        return result
