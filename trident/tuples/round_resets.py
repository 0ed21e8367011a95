"""Moves the time limit of the running round when a bolt calls ``reset_timeout``.

A task tells Spark's driver nothing before it ends, so a worker says "begin the
time anew" through a file of the warehouse, in the round's own folder, which is named after
its Spark job group. The driver's watch counts them, so clocks are not compared. A worker that cannot reach
the warehouse says so in ``TupleQuery.last_errors``; then the round has its plain time.

Workers import this: keep its imports light.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

from pyspark import TaskContext

from trident.spark.jobs import JobWatch
from trident.states.core import storage
from trident.states.core.place import Place

# However often it is told, a round takes no longer than this many times message_timeout_secs.
EXTENSIONS_MAX = 10
# A worker tells at most so often: a bolt may reset for every tuple.
_EVERY_SECS = 0.25


class ResetTeller:
    """A worker's side: tells the driver that the round's time is to begin anew. For any number of threads.

    Args:
        folder: made by the driver; None: rounds have no time limit, so nothing is told.
    """

    def __init__(self, folder: Place | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._told_at: float | None = None

    def tell(self) -> None:
        """Puts a file into the folder of the round that this task belongs to.

        Raises:
            OSError: the worker cannot write there.
        """
        now = time.monotonic()
        with self._lock:
            if self._folder is None or (self._told_at is not None and now - self._told_at < _EVERY_SECS):
                return
            self._told_at = now
            # The driver makes the folder, so a task of a round that is over leaves nothing behind.
            storage.write(storage.join(self._folder, _round_of_task(), uuid.uuid4().hex), b"", durable=False)


def _round_of_task() -> str:
    context = TaskContext.get()
    name = context.getLocalProperty("spark.jobGroup.id") if context is not None else None
    if not name:
        raise OSError("this is no Spark task of a round")
    return str(name)


class RoundResets:
    """The driver's side: a folder for the round that is running.

    Args:
        folder: of the topology, in the warehouse; made here.
    """

    def __init__(self, folder: Place) -> None:
        self.folder = folder
        storage.make_folder(folder, storage.anchor_of(folder))

    def begin(self, job_group: str) -> Place:
        """A round begins; its folder, which is empty."""
        path = self.folder / job_group
        storage.make_folder(path, self.folder)
        return path

    def end(self, path: Place) -> None:
        """The round is over."""
        storage.try_delete(path)


class RoundWatch(JobWatch):
    """A JobWatch whose time begins anew whenever a bolt of the round resets it, up to a bound.

    Args:
        context, job_group, timeout_secs: as of a JobWatch.
        path: the round's folder.

    Attributes:
        extended: whether the time was begun anew at least once.
    """

    def __init__(self, context: Any, job_group: str, timeout_secs: float, path: Place) -> None:
        super().__init__(context, job_group, timeout_secs)
        self._path, self._told = path, 0
        self._until: float | None = None
        self.extended = False

    def _renewed(self) -> bool:
        assert self._timeout_secs is not None
        now = time.monotonic()
        if self._until is None:  # the round's first task has just begun; the last renewal still has its whole time
            self._until = now + (EXTENSIONS_MAX - 1) * self._timeout_secs
        told = sum(name[0] != "." for name in storage.list_names(self._path))
        if told == self._told or now > self._until:
            return False
        self._told = told
        self.extended = True
        return True
