"""What kazoo's client is to ``trident.coordinators.zookeeper``: the same calls, errors and states, over the ensemble.

Followed from kazoo 2.11: ``connected`` turns false first, then what waits for
an answer fails, then listeners are told, in a thread of their own; requests
made without a connection wait for the next one, and fail when it turns out
that the session has expired; watches are told when the connection drops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent
from kazoo import exceptions as kz
from kazoo.client import KazooState

from tests.simulator.faults import Faults
from tests.simulator.world import Process
from tests.simulator.zookeeper_requests import Connection, Pending, Transaction, kind_of
from tests.simulator.zookeeper_server import Ensemble, Op, Session


class SimKazooClient:
    """The client of one process."""

    def __init__(self, ensemble: Ensemble, process: Process, faults: Faults, *, timeout: float, **ignored: Any) -> None:
        self._ensemble, self._process, self._faults, self._timeout_secs = ensemble, process, faults, timeout
        self._world = process.world
        self.session: Session | None = None
        self._connection: Connection | None = None
        self._network_down_until = 0.0
        self._stopped = False
        self._silent = False
        self._queue: deque[Pending] = deque()  # made without a connection
        self._sent: deque[Pending] = deque()
        self._seen = 0  # of what was answered; the next server has applied that at least
        self._watches: list[Callable[..., None]] = []
        self._listeners: list[Callable[[str], None]] = []
        self._news: deque[str] = deque()
        self._telling = False
        self.on_session_lost: Callable[[], None] = lambda: None

    hosts = (("simulated", 2181),)

    # --- kazoo's interface ---------------------------------------------------------------------

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return (self.session.number, b"") if self.session else None

    def start_async(self) -> Any:
        self._world.later(self._faults.delay(), self._connect)
        return self

    def wait(self, timeout: float) -> bool:
        end = self._world.now + timeout
        while not self.connected and self._world.now < end:
            self._world.sleep(0.3)
        return self.connected

    def stop(self) -> None:
        self._stopped = True
        if self._connection is not None and self.session is not None:
            self._world.later(self._faults.delay(), self._close_session, self._connection, self.session)
        self._drop(kz.ConnectionClosedError())

    def close(self) -> None:
        pass

    def get_async(self, path: str, watch: Callable[..., None] | None = None) -> Pending:
        def run() -> Any:
            zxid = self._view()
            entry = self._ensemble.at(path, zxid)
            if entry.data is None:
                raise kz.NoNodeError
            self._set_watch(path, watch)
            return entry.data, self._ensemble.stat(path, entry, zxid)

        return self._request("get", run)

    def exists_async(self, path: str, watch: Callable[..., None] | None = None) -> Pending:
        def run() -> Any:
            zxid = self._view()
            entry = self._ensemble.at(path, zxid)
            self._set_watch(path, watch)
            return None if entry.data is None else self._ensemble.stat(path, entry, zxid)

        return self._request("exists", run)

    def get_children_async(self, path: str) -> Pending:
        def run() -> Any:
            zxid = self._view()
            if self._ensemble.at(path, zxid).data is None:
                raise kz.NoNodeError
            return self._ensemble.names(path, zxid)

        return self._request("children", run)

    def sync_async(self, path: str) -> Pending:
        return self._request("sync", self._catch_up)

    def ensure_path_async(self, path: str) -> Pending:
        def run() -> None:
            self._ensemble.ensure(self._process, path)
            self._catch_up()

        return self._request("ensure", run)

    def transaction(self) -> Transaction:
        return Transaction(self.multi)

    def multi(self, ops: list[Op]) -> Pending:
        name = kind_of(ops, self._ensemble)

        def run() -> list[Any]:
            assert self.session is not None
            results = self._ensemble.multi(self._process, self.session, ops)
            self._catch_up()
            self._report(name, ops, results)
            return results

        pending = Pending(self._world, name, run)
        self._strike(pending)
        self._send_or_queue(pending)
        return pending

    # --- requests ------------------------------------------------------------------------------

    def _request(self, name: str, run: Callable[[], Any]) -> Pending:
        pending = Pending(self._world, name, run)
        self._send_or_queue(pending)
        return pending

    def _send_or_queue(self, pending: Pending) -> None:
        if self._stopped:
            pending.set(error=kz.ConnectionClosedError("closed"))
        elif self._connection is None:
            self._queue.append(pending)
        else:
            self._send(self._connection, pending)

    def _send(self, connection: Connection, pending: Pending) -> None:
        self._sent.append(pending)
        connection.last_arrival = max(connection.last_arrival, self._world.now + self._faults.delay())
        self._world.later(connection.last_arrival - self._world.now, self._arrive, connection, pending)

    def _arrive(self, connection: Connection, pending: Pending) -> None:
        """At the server, in the order in which this client sent them."""
        if connection.cut or connection is not self._connection or not self.session.alive:
            return
        error, value = None, None
        try:
            value = pending.run()
        except kz.KazooException as problem:
            error = problem
        pending.happened = True
        if pending.after is not None:
            pending.after()
        connection.last_answer = max(connection.last_answer, self._world.now + self._faults.delay())
        delay = connection.last_answer - self._world.now
        self._world.later(delay, self._answer, connection, pending, value, error, connection.seen)

    def _answer(self, connection: Connection, pending: Pending, value: Any, error: Exception | None, seen: int) -> None:
        if connection.cut or self._process.dead or connection is not self._connection:
            return
        self._seen = max(self._seen, seen)
        while self._sent and self._sent[0] is not pending:
            self._sent.popleft()
        if self._sent:
            self._sent.popleft()
        pending.set(value, error)

    def _view(self) -> int:
        """The zxid that this client's server has applied."""
        newest, connection = self._ensemble.zxid, self._connection
        assert connection is not None
        if newest > connection.seen:
            if self._faults.stale():
                connection.seen = self._world.rng.randint(connection.seen, newest - 1)
                self._world.counters["read from a server that lags"] += 1
            else:
                connection.seen = newest
        return connection.seen

    def _catch_up(self) -> None:
        """A server answers a write or a sync once it has applied it."""
        assert self._connection is not None
        self._connection.seen = self._ensemble.zxid

    def _set_watch(self, path: str, watch: Callable[..., None] | None) -> None:
        """A server that lags has the change still before it: it fires the watch once it has applied that."""
        if watch is None:
            return
        assert self._connection is not None
        self._watches.append(watch)
        if self._ensemble.now(path) is not self._ensemble.at(path, self._connection.seen):
            self._fire_later(watch)
        else:
            self._ensemble.watch(path, lambda: self._fire_later(watch))

    def _fire_later(self, watch: Callable[..., None]) -> None:
        self._world.later(self._faults.delay(), self._fire, watch, self._ensemble.zxid)

    def _fire(self, watch: Callable[..., None], zxid: int) -> None:
        """The client hears of a change before it can read anything older from the same server."""
        connection = self._connection
        if watch in self._watches and connection is not None and not connection.cut:
            connection.seen = max(connection.seen, zxid)
            self._watches.remove(watch)
            self._process.spawn(watch, None)

    def _report(self, name: str, ops: list[Op], results: list[Any]) -> None:
        failed = [type(result).__name__ for result in results if isinstance(result, Exception)]
        refused = [reason for reason in failed if reason not in ("RolledBackError", "RuntimeInconsistency")]
        self._world.running = self._process
        self._world.tell("zk", name, refused[0] if refused else "done")
        if refused and ops[0][0] == "check" and isinstance(results[0], (kz.BadVersionError, kz.NoNodeError)):
            self._world.reached(f"{name} of a deposed coordinator refused by the fence")
            if name not in ("release", "acquire", "other"):
                self._world.reached("a write of a deposed coordinator refused by the fence")
        elif refused and name == "acquire":
            self._world.reached("two contenders: one acquires, the other is refused")
        self._world.running = None

    # --- faults --------------------------------------------------------------------------------

    def _strike(self, pending: Pending) -> None:
        fault = self._faults.draw("zk", pending.name)
        if fault is None:
            return
        world, process, name = self._world, self._process, pending.name
        world.tell("fault", fault, "at", name)
        if fault == "crash before":
            world.reached(f"crash before {name}")
            world.kill(process)
        elif fault == "crash after":
            pending.after = lambda: (world.reached(f"crash after {name}"), world.kill(process))
        elif fault == "pause before":
            self._faults.pause(process)
            world.wake(getcurrent())
            world.block()
        elif fault == "pause after":
            pending.after = lambda: self._faults.pause(process)
        elif fault == "cut before":
            self.cut()
        elif fault == "cut after":
            pending.after = self.cut
        elif fault == "expire":
            pending.after = self.expire
        else:
            self._faults.jump(process, fault)

    def cut(self) -> None:
        """The network takes nothing in either direction; noticed a little, or much, later."""
        connection = self._connection
        if connection is None or connection.cut:
            return
        outage_secs = self._faults.outage_secs()
        self._world.tell("cut of", str(self._process), round(outage_secs, 3))
        connection.cut = True
        self._network_down_until = self._world.now + outage_secs
        self.fall_silent()
        notice_secs = self._world.rng.choice((0.0, 0.0, 1.0, self._timeout_secs * 2 / 3)) * self._world.rng.random()
        self._world.later(notice_secs, self._notice, connection)

    def expire(self) -> None:
        """The ensemble forgets the session before its time."""
        if self.session is not None and self._connection is not None:
            self._world.tell("session of", str(self._process), "expires early")
            self._connection.cut = True
            self._ensemble.expire(self.session)
            self._world.later(self._world.rng.random() * 0.2, self._notice, self._connection)

    def fall_silent(self) -> None:
        """The ensemble hears nothing any more: the session has as long as it has."""
        session = self.session
        if session is None or self._silent:
            return
        self._silent = True
        session.unheard += 1
        last_heard_secs = self._world.rng.random() * session.timeout_secs / 3
        self._world.later(session.timeout_secs - last_heard_secs, self._expire_silent, session, session.unheard)

    def _expire_silent(self, session: Session, unheard: int) -> None:
        if session.unheard == unheard and session.alive:
            self._ensemble.expire(session)
            if session is self.session and self._connection is not None:
                self._connection.cut = True  # the server has closed it

    def go_on(self) -> None:
        """After SIGCONT."""
        if self._connection is None:
            return
        if self._connection.cut:
            self._world.later(self._world.rng.random() * 0.3, self._notice, self._connection)
        else:
            self._heard()

    def _heard(self) -> None:
        self._silent = False
        if self.session is not None:
            self.session.unheard += 1

    # --- the connection's life -----------------------------------------------------------------

    def _connect(self) -> None:
        world = self._world
        if self._stopped or self._process.dead or self._connection is not None:
            return
        if self._process.paused or self._network_down_until > world.now:
            wait_secs = max(self._process.paused_until, self._network_down_until) - world.now
            world.later(wait_secs + world.rng.random() * 0.2, self._connect)
            return
        if self.session is not None and not self.session.alive:
            self._lose_session()
            return
        if self.session is None:
            self.session = self._ensemble.open(self._timeout_secs)
        self._heard()
        connection = self._connection = Connection(self._seen)
        queue, self._queue = self._queue, deque()
        for pending in queue:
            self._send(connection, pending)
        self._announce(KazooState.CONNECTED)

    def _lose_session(self) -> None:
        self.on_session_lost()
        self.session, self._silent, self._seen = None, False, 0
        queue, self._queue = self._queue, deque()
        for pending in queue:
            pending.set(error=kz.SessionExpiredError())
        self._reset_watches()
        self._announce(KazooState.LOST)
        self._world.later(self._faults.delay(), self._connect)

    def _notice(self, connection: Connection) -> None:
        """The client finds its connection dead."""
        if connection is not self._connection or self._stopped or self._process.dead:
            return
        if self._process.paused:
            self._world.later(self._process.paused_until - self._world.now + 0.001, self._notice, connection)
            return
        self._drop(kz.ConnectionLoss())
        self._announce(KazooState.SUSPENDED)
        self._reset_watches()
        self._world.later(self._faults.delay() * 10, self._connect)

    def _drop(self, error: Exception) -> None:
        self._connection = None
        sent, self._sent = self._sent, deque()
        for pending in sent:
            if pending.name not in ("get", "exists", "children", "sync", "ensure"):
                what = "had happened" if pending.happened else "had not happened"
                self._world.reached(f"lost answer of {pending.name} that {what}")
            else:
                self._world.counters["read repeated after a lost connection"] += 1
            pending.set(error=error)

    def _close_session(self, connection: Connection, session: Session) -> None:
        if not connection.cut:
            self._ensemble.expire(session)

    def _reset_watches(self) -> None:
        watches, self._watches = self._watches, []
        for watch in watches:
            self._process.spawn(watch, None)

    def _announce(self, state: str) -> None:
        self._world.tell("connection of", str(self._process), state)
        self._news.append(state)
        if not self._telling:
            self._telling = True
            self._process.spawn(self._tell_listeners)

    def _tell_listeners(self) -> None:
        while self._news:
            state = self._news.popleft()
            for listener in list(self._listeners):
                listener(state)
        self._telling = False
