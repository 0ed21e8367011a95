"""What is done to a deployment while it runs: one list, from which each suite draws by its weights."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.chaos import measure
from trident.coordinators.embedded import EmbeddedZooKeeper

if TYPE_CHECKING:
    from tests.chaos.deployment import Coordinator, Deployment


class Nemesis:
    """Strikes a deployment; says False where a fault cannot strike just now.

    Args:
        servers: what can be killed besides, by name: each with ``kill`` and ``start``.
        session_secs: of the coordinators.
    """

    def __init__(
        self, deployment: Deployment, rng: random.Random, servers: dict[str, Any], session_secs: float
    ) -> None:
        self._deployment, self._random, self._servers, self._session_secs = deployment, rng, servers, session_secs
        self._asleep: tuple[list[int], float] | None = None

    def strike(self, fault: str) -> bool:
        return FAULTS[fault](self)

    def look_after(self, at_once: bool = False) -> None:
        """Wakes a process that has slept for long enough."""
        if self._asleep and (at_once or time.monotonic() >= self._asleep[1]):
            _send(signal.SIGCONT, self._asleep[0])
            self._asleep = None

    def _victim(self) -> Coordinator | None:
        """The leader, if there is a standby to follow it, or none is meant to be: else there would only be starts."""
        leader, coordinators = self._deployment.leader(), self._deployment.coordinators
        stands_by = any(one.stands_by() for one in coordinators.values() if one is not leader and one.runs)
        return leader if self._asleep is None and (stands_by or len(coordinators) == 1) else None

    def _kill_leader(self) -> bool:
        """Its Python process alone, whose JVM ends by itself a bit later, or all of its processes."""
        one = self._victim()
        if one is not None:
            one.kill(whole=self._random.random() < 0.5)
        return one is not None

    def _kill_starting(self) -> bool:
        """Whichever process runs, also one that is starting."""
        one = self._random.choice(list(self._deployment.coordinators.values()))
        if self._asleep is None:
            one.kill(whole=self._random.random() < 0.5)
        return self._asleep is None

    def _kill_standby(self) -> bool:
        leader = self._deployment.leader()
        some = [one for one in self._deployment.coordinators.values() if one is not leader and one.stands_by()]
        if leader is not None and some and self._asleep is None:
            some[0].kill()
        return leader is not None and bool(some)

    def _kill_worker(self) -> bool:
        return self._kill_one_of(measure.workers)

    def _kill_executor(self) -> bool:
        return self._kill_one_of(measure.executors)

    def _kill_one_of(self, processes: Callable[[int], list[int]]) -> bool:
        leader = self._deployment.leader()
        pids = processes(leader.pid) if leader is not None else []
        if pids:
            _send(signal.SIGKILL, [self._random.choice(pids)])
        return bool(pids)

    def _stop_leader(self) -> bool:
        """SIGSTOP for longer than its session, perhaps of its JVM too: it wakes up deposed."""
        one = self._victim()
        if one is not None:
            pids = [one.pid, *(measure.jvms(one.pid) if self._random.random() < 0.5 else [])]
            _send(signal.SIGSTOP, pids)
            self._asleep = (pids, time.monotonic() + self._session_secs * self._random.uniform(1.3, 2.5))
        return one is not None

    def _kill_zookeeper(self) -> bool:
        return self._kill_embedded("server_pid")

    def _kill_supervisor(self) -> bool:
        return self._kill_embedded("supervisor_pid")

    def _kill_embedded(self, which: str) -> bool:
        endpoint = EmbeddedZooKeeper.status(self._deployment.server_folder)
        if endpoint is not None:
            _send(signal.SIGKILL, [getattr(endpoint, which)])
        return endpoint is not None

    def _kill_broker(self) -> bool:
        return self._restart("broker")

    def _kill_database(self) -> bool:
        return self._restart("database")

    def _restart(self, name: str) -> bool:
        server = self._servers[name]
        server.kill()
        time.sleep(self._random.uniform(0.0, 3.0))
        server.start()
        return True


FAULTS: dict[str, Callable[[Nemesis], bool]] = {
    "leader": Nemesis._kill_leader,
    "coordinator": Nemesis._kill_starting,
    "standby": Nemesis._kill_standby,
    "worker": Nemesis._kill_worker,
    "executor": Nemesis._kill_executor,
    "sleep": Nemesis._stop_leader,
    "zookeeper": Nemesis._kill_zookeeper,
    "supervisor": Nemesis._kill_supervisor,
    "broker": Nemesis._kill_broker,
    "database": Nemesis._kill_database,
}


def _send(number: int, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
