"""``trident.coordinators.threads.Threads`` on virtual time: what the production code waits with, for one process."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from tests.simulator.world import Process, Task, World
from trident.coordinators.threads import Threads


class SimThreads(Threads):
    """The threads and clocks of one simulated process."""

    def __init__(self, process: Process) -> None:
        self.process, self.world = process, process.world

    def monotonic(self) -> float:
        return self.process.monotonic()

    def wall_time(self) -> float:
        return self.process.wall_time()

    def sleep(self, secs: float) -> None:
        self.world.block(secs)

    def lock(self) -> Any:
        return _Lock(self.world)

    def condition(self, lock: Any = None) -> Any:
        return _Condition(self.world, lock or _Lock(self.world))

    def event(self) -> Any:
        return _Event(self.world)

    def inbox(self) -> Any:
        return _Inbox(self.world)

    def pool(self, size: int, name: str) -> Any:
        return _Pool(self.process, size)

    def thread(self, target: Callable[[], None], name: str) -> Any:
        return _Thread(self.process, target)

    def timer(self, delay_secs: float, action: Callable[..., None], *args: Any) -> Any:
        return _Timer(self.process, delay_secs, action, args)

    def wait_done(self, future: Any, timeout_secs: float) -> bool:
        return future.ended.wait(timeout_secs)

    def interpreter_ends(self) -> bool:
        return False


class _Lock:
    """Re-entrant. Who waits gets it in a random order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owner: Any = None
        self._depth = 0
        self._waiting: list[Task] = []

    def acquire(self) -> bool:
        me = getcurrent()
        while self._owner is not None and self._owner is not me:
            self._waiting.append(me)
            self._world.block()
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            if self._waiting:
                waiting, self._waiting = self._waiting, []
                for task in waiting:
                    self._world.wake(task)

    __enter__ = acquire

    def __exit__(self, *error: object) -> None:
        self.release()

    def let_go(self) -> int:
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_back(self, depth: int) -> None:
        self.acquire()
        self._depth = depth


class _Condition:
    def __init__(self, world: World, lock: _Lock) -> None:
        self._world, self._lock = world, lock
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        me = getcurrent()
        self._waiting.append(me)
        depth = self._lock.let_go()
        try:
            woken = self._world.block(timeout)
        finally:
            self._lock.take_back(depth)
        if not woken and me in self._waiting:
            self._waiting.remove(me)
        return woken

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._world.wake(task)


class _Event:
    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for task in waiting:
                self._world.wake(task)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            me = getcurrent()
            self._waiting.append(me)
            if not self._world.block(timeout) and me in self._waiting:
                self._waiting.remove(me)
        return self._is_set


class _Inbox:
    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._waiting: Task | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting is not None:
            self._world.wake(self._waiting)
        self._world.give_way()

    def get(self, timeout: float | None = None) -> Any:
        if not self._items:
            self._waiting = getcurrent()
            self._world.block(timeout)
            self._waiting = None
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


class _Future:
    def __init__(self, world: World) -> None:
        self.ended = _Event(world)
        self.error: Exception | None = None

    def done(self) -> bool:
        return self.ended.is_set()


class _Pool:
    """Work is taken in the order in which it was submitted; no thread waits for work."""

    def __init__(self, process: Process, size: int) -> None:
        self._process, self._size, self._busy = process, size, 0
        self._work: deque[tuple[_Future, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._closed = False
        self._idle = _Event(process.world)
        self._idle.set()

    def submit(self, function: Callable[..., Any], *args: Any) -> _Future:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = _Future(self._process.world)
        self._work.append((future, function, args))
        self._idle.clear()
        if self._busy < self._size:
            self._busy += 1
            self._process.spawn(self._run)
        return future

    def _run(self) -> None:
        while self._work:
            future, function, args = self._work.popleft()
            try:
                function(*args)
            except Exception as error:  # kept in the future, as by ThreadPoolExecutor
                future.error = error
            future.ended.set()
        self._busy -= 1
        if not self._busy:
            self._idle.set()

    def shutdown(self, wait: bool = True) -> None:
        self._closed = True
        if wait:
            self._idle.wait()


class _Thread:
    def __init__(self, process: Process, target: Callable[[], None]) -> None:
        self._process, self._target = process, target
        self._ended = _Event(process.world)

    def start(self) -> None:
        self._process.spawn(self._run)

    def _run(self) -> None:
        self._target()
        self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._ended.is_set()


class _Timer:
    daemon = True

    def __init__(self, process: Process, delay_secs: float, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._process, self._delay_secs, self._action, self._args = process, delay_secs, action, args
        self._cancelled = False

    def start(self) -> None:
        self._process.world.later(self._delay_secs / self._process.rate, self._fire)

    def _fire(self) -> None:
        if not self._cancelled and not self._process.dead:
            self._process.spawn(self._action, *self._args)

    def cancel(self) -> None:
        self._cancelled = True
