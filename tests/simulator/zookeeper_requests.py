"""The requests of the simulated ZooKeeper client: connections, answers that are waited for, transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import getcurrent
from kazoo.handlers.threading import KazooTimeoutError

from tests.simulator.checker import parsed
from tests.simulator.world import World
from tests.simulator.zookeeper_server import Ensemble, Op


class Connection:
    """One TCP connection; once ``cut`` nothing comes through, and nobody has noticed yet.

    ``seen``: what its server has applied at least, by zxid.
    """

    def __init__(self, seen: int) -> None:
        self.cut = False
        self.seen = seen
        self.last_arrival = self.last_answer = 0.0


class Pending:
    """kazoo's IAsyncResult."""

    def __init__(self, world: World, name: str, run: Callable[[], Any]) -> None:
        self._world, self.name, self.run = world, name, run
        self.happened = False
        self.after: Callable[[], None] | None = None  # a fault that strikes once it has happened
        self._done = False
        self._value: Any = None
        self._error: Exception | None = None
        self._waiting: Any = None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._done:
            self._waiting = getcurrent()
            self._world.block(timeout)
            self._waiting = None
        if not self._done:
            raise KazooTimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def set(self, value: Any = None, error: Exception | None = None) -> None:
        if self._done:
            return
        self._done, self._value, self._error = True, value, error
        if self._waiting is not None:
            self._world.schedule(self._waiting, 0.0, False)


class Transaction:
    """kazoo's TransactionRequest."""

    def __init__(self, send: Callable[[list[Op]], Pending]) -> None:
        self._send = send
        self._ops: list[Op] = []

    def create(self, path: str, value: bytes, ephemeral: bool = False) -> None:
        self._ops.append(("create", path, value, int(ephemeral)))

    def set_data(self, path: str, value: bytes, version: int) -> None:
        self._ops.append(("set", path, value, version))

    def delete(self, path: str, version: int) -> None:
        self._ops.append(("delete", path, None, version))

    def check(self, path: str, version: int) -> None:
        self._ops.append(("check", path, None, version))

    def commit_async(self) -> Pending:
        return self._send(self._ops)


def kind_of(ops: list[Op], ensemble: Ensemble) -> str:
    """What a multi is for, for faults, trace and counters; told from its paths and values alone."""
    for kind, path, _, _ in reversed(ops):
        if path.endswith("/decided"):
            return "decide" if kind == "create" else "advance"
        if path.endswith("/live"):
            return "acquire" if kind == "create" else "release"
    for kind, path, value, _ in ops:
        if path.endswith("/coordinator") and kind in ("create", "set"):
            before = ensemble.now(path).data
            if before:
                old, new = parsed(before), parsed(value)
                if new["current_txid"] != old["current_txid"]:
                    return "advance of an empty batch"
                if new["attempts"] != old["attempts"]:
                    return "begin"
            return "record"
    return "other"
