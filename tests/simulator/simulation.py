"""One seed: processes that contend for a group, faults, then none, and what must have come of it.

While faults may strike, processes are killed, stopped, cut off, asked to stop
and started again; tables get foreign commits and older copies. At a time that
the seed chooses all that ends (liveness): within :data:`LIVENESS_SECS` of
virtual time every row of the sources must have committed and every success
must have been told. Then everybody is asked to stop, and what is left is
looked at.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tests.simulator.checker import ROOT, Checker, Violation, parsed
from tests.simulator.coordinator_process import CoordinatorProcess, Shared
from tests.simulator.copies import simulated
from tests.simulator.faults import Faults, SimulatedFailure
from tests.simulator.operator import Operator, is_refused_start
from tests.simulator.rollback import simulated as simulated_rollbacks
from tests.simulator.sources import KINDS, Source
from tests.simulator.world import Process, World
from tests.simulator.zookeeper_server import Ensemble
from trident.coordinators import leadership, master, processes
from trident.coordinators.errors import AttemptCapReached, Halted, ZooKeeperUnreachable
from trident.coordinators.handing_over import LEAD, HandoverRequest
from trident.coordinators.master import Limits
from trident.coordinators.records import encode

# Enough for a session to expire, eight back-offs and a restart or two; a run that needs more is stuck.
LIVENESS_SECS = 400.0
STOP_SECS = 200.0
# Longer than any pause, and than any answer on its way.
SETTLE_SECS = 90.0


class Simulation:
    """One seed, from its first process to the last look.

    Args:
        rollbacks: how often an operator goes back to an earlier transaction.

    Raises of :meth:`run`:
        Violation: a claim does not hold.
    """

    def __init__(self, seed: int, rollbacks: int = 0) -> None:
        self.seed = seed
        self.world = world = World(seed)
        rng = world.rng
        self.faults = Faults(world)
        self.faults.on_pause = self._on_pause
        self.faults.on_clock = self._on_clock
        self.faults.on_older_copy = self._put_older_copy
        self.faults.on_expire = lambda process: self._expire(self._processes[str(process)])
        kinds = rng.choice([(kind,) for kind in KINDS] + [KINDS, ("opaque", "queue"), ("transactional", "opaque")])
        if rollbacks:  # of a queue what was acknowledged does not come again
            kinds = tuple(kind for kind in kinds if kind != "queue") or ("opaque",)
        sources = {f"s{index}": Source(f"s{index}", kind, world) for index, kind in enumerate(kinds)}
        limits = Limits(
            max_spout_pending=rng.choice((1, 2, 3, 4)),
            max_attempts=rng.choice((2, 3, 8)),
            batch_emit_interval_secs=rng.choice((0.0, 0.0, 0.5)),
            readiness_poll_secs=0.5,
            backoff_first_secs=0.2,
            backoff_max_secs=rng.choice((1.0, 30.0)),
        )
        self.checker = Checker(world, min(sources), sources, limits.max_spout_pending)
        ensemble = Ensemble(self._on_write)
        self.shared = Shared(world, self.faults, sources, limits, self.checker, ensemble)
        self.checker.on_progress = self._look_whether_done
        self._same_host = rng.random() < 0.4
        self._commands, self._requests = random.Random(f"hand-overs of {seed}"), 0
        self._lives = {name: 0 for name in "ABC"[: rng.choice((1, 2, 2, 3))]}
        self._now: dict[str, CoordinatorProcess] = {}
        self._processes: dict[str, CoordinatorProcess] = {}
        self._ends = False
        self._halted = False
        self.operator = Operator(self, rollbacks)
        self.checker.on_rollback_begun = self.operator.on_intent
        self.shared.warehouse.keeps_manifests = bool(rollbacks)
        self._older_copies = not rollbacks

    # --- the run -------------------------------------------------------------------------------

    def run(self) -> None:
        world = self.world
        with _surroundings(self):
            try:
                for name in self._lives:
                    world.later(world.rng.random() * world.rng.choice((0.01, 2.0)), self._start, name)
                self._strike_soon()
                self.operator.soon()
                if self._commands.random() < 0.3:
                    world.later(self._commands.random() * 3.0, self._hand_over)
                world.run(self.faults.until)
                self._heal()
                if not world.run(world.now + LIVENESS_SECS):
                    raise Violation(f"not everything has committed {LIVENESS_SECS} s after the faults: {self._state()}")
                self.world.finished = False
                self._check_leases()
                self._stop_all()
                self.checker.at_the_end(self.shared.warehouse.tables, self.shared.ensemble.paths())
            finally:
                world.end()

    def trace_hash(self) -> str:
        """Of everything that happened, and when: equal in every run of the seed."""
        return hashlib.sha256(repr(self.world.trace).encode()).hexdigest()

    def _heal(self) -> None:
        self.operator.gives_up_plans()
        self.world.finished = self._is_done()
        self.world.tell("faults stop")
        self.faults.until = min(self.faults.until, self.world.now)
        for table in self.shared.warehouse.tables.values():
            table.repair()
        for current in self._now.values():
            current.supervisor.resume()
        self.shared.ensemble.remove(f"{ROOT}/handover.request")

    def _check_leases(self) -> None:
        """Where a process takes itself for the leader without the live znode, it must find that out."""
        doubtful = [
            (current, current.leases)
            for current in self._now.values()
            if current.supervisor.leading.is_set() and not self._has_lease(current)
        ]
        until = self.world.now + SETTLE_SECS
        while doubtful and self.world.now < until and self.world.run(until):
            self.world.finished = False
        for current, leases in doubtful:
            if current.supervisor.leading.is_set() and current.leases == leases and not current.process.dead:
                raise Violation(f"{current.process} has lost its lease, and serves for {SETTLE_SECS} s without it")

    def _has_lease(self, current: CoordinatorProcess) -> bool:
        session = current.client.session if current.client is not None else None
        owner = self.shared.ensemble.now(f"{ROOT}/live").owner
        return current.process.dead or (session is not None and owner == session.number)

    def _stop_all(self) -> None:
        self.world.finished = False
        self._ends = True
        self.world.tell("everybody is asked to stop")
        for current in self._now.values():
            current.stop()
        self._end_if_all_ended()
        if not self.world.run(self.world.now + STOP_SECS):
            raise Violation(f"a process does not stop: {self._state()}")

    def _end_if_all_ended(self) -> None:
        if self._ends and all(current.ended or current.process.dead for current in self._now.values()):
            # The last sessions end on the way.
            self.world.later(self.shared.session_timeout_secs + 1.0, self._end)

    def _end(self) -> None:
        self.world.finished = True

    def _look_whether_done(self) -> None:
        if not self._ends and self._is_done():
            self.world.finished = True

    def _is_done(self) -> bool:
        return not self.operator.has_plans and self.checker.committed()

    def _state(self) -> str:
        record = self.checker.record
        drivers = [
            f"{current.process}: leading={current.leading} {current.driver.state if current.driver else None}"
            for current in self._now.values()
        ]
        return f"record {record}; " + "; ".join(drivers)

    # --- processes -----------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        if self.operator.lets_start():
            self._launch(name)

    def _launch(self, name: str) -> None:
        there = self._now.get(name)
        runs = there is not None and not there.ended and not there.process.dead
        if self._ends or runs:
            return
        self._lives[name] += 1
        process = Process(self.world, name, self._lives[name])
        self.world.tell("starts", str(process))
        host = "host" if self._same_host else f"host of {name}"
        current = CoordinatorProcess(self.shared, process, host, self._on_end)
        self._now[name] = self._processes[str(process)] = current
        process.on_kill = lambda: self._on_kill(current)

    def stop_for_rollback(self) -> None:
        """The operator asks every process to stop."""
        for current in self._now.values():
            current.stop()

    def kill_all(self) -> None:
        """The operator kills what does not stop."""
        for current in self._now.values():
            self.world.kill(current.process)

    def start_one(self, rng: random.Random) -> None:
        """A service manager starts a process, whatever the operator does."""
        name = rng.choice(sorted(self._lives))
        self._launch(name)

    def start_again(self) -> None:
        """The operator starts what does not run."""
        for name in self._lives:
            self._start(name)
        self._look_whether_done()

    def knows(self, command: Any) -> None:
        """A process of the operator's."""
        self._processes[str(command.process)] = command

    def _start_later(self, name: str) -> None:
        rng = self.world.rng
        self.world.later(rng.choice((0.2, 3.0, 15.0)) * (0.5 + rng.random()), self._start, name)

    def _on_kill(self, current: CoordinatorProcess) -> None:
        self.world.tell("killed", str(current.process))
        if current.client is not None:
            current.client.fall_silent()
        self._count_crash(current)
        self._end_if_all_ended()
        self._start_later(current.process.name)

    def _count_crash(self, current: CoordinatorProcess) -> None:
        if not current.leading or current.driver is None or current.driver.state.mode.ended:
            return
        live = current.driver.state.live
        if not live:
            self.world.reached("crash with nothing live")
            return
        stage, txid = live[0].stage, live[0].attempt.txid
        self.world.reached(f"crash while {stage.name}")
        have = self.checker.tables_with(txid)
        if stage is master.Stage.PUBLISHING and 0 < have < len(self.shared.warehouse.tables):
            self.world.reached("crash between two tables")
        if have == len(self.shared.warehouse.tables):
            self.world.reached("crash between publish and advance")

    def _on_end(self, current: CoordinatorProcess) -> None:
        error, world = current.error, self.world
        world.tell("ends", str(current.process), type(error).__name__)
        if isinstance(error, AttemptCapReached):
            world.reached("attempt cap")
            self.checker.on_gave_up(current.process, error.txid)
        elif isinstance(error, Halted):
            expected = "could not be finished after" in str(error) or self._older_copy
            if not expected:
                world.crash = Violation(f"{current.process} halted without a reason: {error}")
            world.reached("halted")
            self._halted = True
            for table in self.shared.warehouse.tables.values():
                table.repair()
        elif error is not None and is_refused_start(error) and self.operator.has_begun:
            world.reached("a start amid a rollback is refused")
        elif error is not None and not isinstance(error, (ZooKeeperUnreachable, SimulatedFailure)):
            world.crash = Violation(f"{current.process} ended with {type(error).__name__}: {error}")
            world.crash.__cause__ = error
        self._end_if_all_ended()
        if not self._ends:
            self._start_later(current.process.name)

    # --- faults that come by themselves ---------------------------------------------------------

    _older_copy = False

    def _strike_soon(self) -> None:
        rng = self.world.rng
        self._blows = [
            blow
            for blow in (
                self._kill,
                self._pause,
                self._cut,
                self._expire,
                self._optimize,
                self._copy,
                self._restart,
                self._hold,
                self._jump,
                self._delete_live,
            )
            if rng.random() < 0.5
        ]
        if self._blows:
            self.world.later(rng.random() * 3.0, self._strike, rng.choice((0.3, 2.0, 8.0)))

    def _strike(self, every_secs: float) -> None:
        if not self.faults.active or self.world.finished:
            return
        rng = self.world.rng
        current = self._now.get(rng.choice(list(self._lives)))
        if current is not None and not current.ended and not current.process.dead:
            self.faults.left -= 1
            rng.choice(self._blows)(current)
        self.world.later(every_secs * (0.2 + rng.random()), self._strike, every_secs)

    def _kill(self, current: CoordinatorProcess) -> None:
        self.world.kill(current.process)

    def _pause(self, current: CoordinatorProcess) -> None:
        if not current.process.paused:
            self.faults.pause(current.process)

    def _cut(self, current: CoordinatorProcess) -> None:
        if current.client is not None:
            current.client.cut()

    def _expire(self, current: CoordinatorProcess) -> None:
        if current.client is not None:
            current.client.expire()

    def _delete_live(self, current: CoordinatorProcess) -> None:
        """Somebody takes the leader for dead: it is replaced and has its session and its connection all the same."""
        if sum(not other.ended and not other.process.dead for other in self._now.values()) > 1:
            self.world.tell("a person deletes the live znode")
            self.shared.ensemble.remove(f"{ROOT}/live")

    def _optimize(self, current: CoordinatorProcess) -> None:
        self.world.tell("somebody optimizes a table")
        self.world.rng.choice(list(self.shared.warehouse.tables.values())).optimize()

    def _copy(self, current: CoordinatorProcess) -> None:
        self._put_older_copy()

    def _put_older_copy(self) -> None:
        if not self._older_copies:
            return
        table = self.world.rng.choice(list(self.shared.warehouse.tables.values()))
        if table.put_older_copy(self.world.rng.randint(1, 2)):
            self._older_copy = True
            self.world.reached("an older copy of a table is put in its place")

    def _restart(self, current: CoordinatorProcess) -> None:
        self.world.tell("asked to stop:", str(current.process))
        current.stop()

    def _hold(self, current: CoordinatorProcess) -> None:
        if current.driver is not None and current.leading:
            self.world.reached("paused by the user")
            current.supervisor.pause()
            self.world.later(self.world.rng.random() * 10.0, self._resume, current)

    def _resume(self, current: CoordinatorProcess) -> None:
        if not current.process.dead:
            current.supervisor.resume()

    def _hand_over(self) -> None:
        """A command asks the leader to give way to a standby; some time later the command ends, and its request."""
        if self._requests == 6 or self.world.finished:
            return
        rng, ensemble, path = self._commands, self.shared.ensemble, f"{ROOT}/handover.request"
        self.world.later(rng.choice((0.5, 4.0)), self._hand_over)
        leader, incarnation = ensemble.now(f"{ROOT}/{self.shared.group}/leader"), ensemble.now(f"{ROOT}/incarnation")
        known = self.checker.contenders
        waiting = [one for one in self._now.values() if one.waiting and one.supervisor.me.id in known]
        if not waiting or None in (leader.data, incarnation.data) or ensemble.now(path).data is not None:
            return
        current = rng.choice(waiting)
        self._requests += 1
        request = HandoverRequest(
            f"request {ensemble.zxid}",
            current.supervisor.me.id,
            parsed(incarnation.data)["incarnation"],
            {self.shared.group: parsed(leader.data)["epoch"]},
            LEAD,
            0,
            False,
            current.supervisor.me.holder,
        )
        self.world.tell("a command hands over to", str(current.process))
        self.checker.on_request(request.epochs[self.shared.group], current.process, request.to)
        ensemble.put(path, encode(request))
        self.world.later(
            self.world.rng.choice((0.5, 5.0, 40.0)) * (0.5 + self.world.rng.random()), ensemble.remove, path
        )

    def _jump(self, current: CoordinatorProcess) -> None:
        self.checker.clocks_are_right = False
        self.faults.jump(current.process, self.world.rng.choice(("wall clock", "monotonic clock")))

    def _on_pause(self, process: Process, secs: float) -> None:
        current = self._processes[str(process)]
        if current.client is not None:
            current.client.fall_silent()
            self.world.later(secs, self._go_on, current)
        if current.leading:
            self.world.reached("the leader is stopped (SIGSTOP)")
            if self.world.rng.random() < 0.4:
                self.world.later(secs * self.world.rng.random(), self._delete_live, current)
            current.process.leap += self.world.rng.choice((0.0, secs))

    def _go_on(self, current: CoordinatorProcess) -> None:
        if current.process.dead:
            return
        self.world.tell("SIGCONT of", str(current.process))
        if current.leading and not self.checker.leads(current.process):
            self.world.reached("a leader wakes up and another leads")
        current.client.go_on()

    def _on_clock(self, process: Process) -> None:
        current = self._processes[str(process)]
        if current.leading:
            self.world.reached("a clock jumps while its process leads")

    # --- observing -----------------------------------------------------------------------------

    def _on_write(self, writer: Any, zxid: int, changes: Any) -> None:
        leader_before = self.checker.leader
        self.checker.on_write(writer, zxid, changes)
        if self.checker.leader is not leader_before:
            self._on_new_leader(leader_before, writer)
        self._look_whether_done()
        if self._halted and self.checker.advanced_now:
            self._halted = False
            self.world.reached("halted, and finished after a restart")

    def _on_new_leader(self, before: Any, writer: Any) -> None:
        waiting = sum(current.waiting and not current.process.dead for current in self._now.values())
        if waiting == 3:
            self.world.reached("three contend")
        if before is None or before is writer:
            return
        old = self._processes[str(before)]
        if not before.dead and not old.ended and old.leading:
            self.world.reached("another leads while the old leader lives")
        if before.dead and self._same_host:
            self.world.reached("a dead leader on the same host is followed at once")

    def has_ended(self, pid: int, started: str) -> bool:
        """What the operating system says of a process."""
        known = self._processes.get(started)
        return known is None or known.process.dead or known.ended


class _OfProcess(set):
    """A set that each simulated process has for itself, as it is in one process's memory."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def add(self, item: Any) -> None:
        super().add((str(self._world.running), item))

    def __contains__(self, item: Any) -> bool:
        return super().__contains__((str(self._world.running), item))


class _Clock:
    """``time`` for kazoo's retries."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.running.monotonic() if self._world.running else self._world.now


@contextlib.contextmanager
def _surroundings(simulation: Simulation) -> Iterator[None]:
    """What production code takes from the machine it is on."""
    world = simulation.world
    with (
        mock.patch.object(leadership, "_ended_tokens", _OfProcess(world)),
        mock.patch.object(processes, "has_ended", simulation.has_ended),
        mock.patch("kazoo.retry.time", _Clock(world)),
        simulated(world, _Clock(world)),
        simulated_rollbacks(simulation.shared),
        mock.patch("kazoo.retry.random", random.Random(simulation.seed)),
    ):
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


__all__ = ["LIVENESS_SECS", "Simulation", "Violation"]
