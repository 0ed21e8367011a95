"""Moves the time limit of the running round when a bolt calls ``reset_timeout``.

A task sends Spark's driver nothing before it ends, so a worker asks for the round's
whole time again by a file of the warehouse, in the round's own folder, which is named after
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

# However often bolts reset it, a round takes no longer than this many times message_timeout_secs.
EXTENSIONS_MAX = 10
# The least time between two files of a worker: a bolt may reset for every tuple.
_EVERY_SECS = 0.25


class ResetSender:
    """A worker's side: has the round's time begin anew. For any number of threads.

    Args:
        folder: made by the driver; None: rounds have no time limit, so nothing is sent.
    """

    def __init__(self, folder: Place | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sent_at: float | None = None

    def send(self) -> None:
        """Puts a file into the folder of the round that this task belongs to.

        Raises:
            OSError: the worker cannot write there.
        """
        now = time.monotonic()
        with self._lock:
            if self._folder is None or (self._sent_at is not None and now - self._sent_at < _EVERY_SECS):
                return
            self._sent_at = now
            # The driver makes the folder, so a task of a round that is over leaves nothing behind.
            storage.write(storage.join(self._folder, _round_of_task(), uuid.uuid4().hex), b"", durable=False)


def _round_of_task() -> str:
    context = TaskContext.get()
    name = context.getLocalProperty("spark.jobGroup.id") if context is not None else None
    if not name:
        raise OSError("this is no Spark task of a round")
    return str(name)


class RoundWatch(JobWatch):
    """A JobWatch whose time begins anew whenever a bolt of the round resets it, up to a bound.

    Args:
        context, job_group, timeout_secs: as of a JobWatch.
        folder: of the topology; the round has one of its own in it while it is watched.

    Attributes:
        path: the round's folder.
        extended: whether the time was begun anew at least once.
    """

    def __init__(self, context: Any, job_group: str, timeout_secs: float, folder: Place) -> None:
        super().__init__(context, job_group, timeout_secs)
        self.path, self._seen = folder / job_group, 0
        self._until: float | None = None
        self.extended = False

    def __enter__(self) -> "RoundWatch":
        storage.make_folder(self.path, self.path.parent)
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        storage.try_delete(self.path)

    def _renewed(self) -> bool:
        assert self._timeout_secs is not None
        now = time.monotonic()
        if self._until is None:  # the round's first task has just begun; the last renewal still has its whole time
            self._until = now + (EXTENSIONS_MAX - 1) * self._timeout_secs
        resets = sum(name[0] != "." for name in storage.list_names(self.path))
        if resets == self._seen or now > self._until:
            return False
        self._seen = resets
        self.extended = True
        return True
