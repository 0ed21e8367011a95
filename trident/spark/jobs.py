"""Ends Spark jobs that take too long: the clock runs from a job group's first task (docs/semantics.md 1)."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

log = logging.getLogger("trident.runner")
# How often a job group is looked at; short ones never are.
WATCH_SECS = 0.5


class JobWatch:
    """Watches one job group until it is left, and cancels it when it takes too long.

    Args:
        timeout_secs: from the first task on; None = never.

    Attributes:
        parts: so often it has that time: it does the work of several.
    """

    def __init__(self, context: Any, job_group: str, timeout_secs: float | None) -> None:
        self._context, self.job_group, self._timeout_secs = context, job_group, timeout_secs
        self._left = threading.Event()
        self.timed_out, self.parts = False, 1
        self._began: float | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "JobWatch":
        if self._timeout_secs is not None:
            self._thread = threading.Thread(target=self._watch, name="trident-timeout", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()

    def _watch(self) -> None:
        assert self._timeout_secs is not None
        while not self._left.wait(WATCH_SECS):
            try:
                began = self._began
                if self._renewed() if began is not None else has_tasks(self._context, self.job_group):
                    began = self._began = time.monotonic()
                if began is not None and time.monotonic() - began > self._timeout_secs * self.parts:
                    self.timed_out = True
                    cancel_group(self._context, self.job_group)
                    return
            except Exception as error:  # a session that is being stopped
                log.debug("cannot inspect %s: %s", self.job_group, error)

    def begin_run(self) -> None:
        """The job group runs something again, and has its whole time again."""
        self._began = None

    def _renewed(self) -> bool:
        """Tells whether the job group's whole time begins anew; a subclass may know."""
        return False


def executor_cores(context: Any) -> int:
    """The cores of a cluster's executors: as its settings say, or of those that are there now."""
    conf = context.getConf()
    several = int(conf.get("spark.executor.instances", "0")) * int(conf.get("spark.executor.cores", "1"))
    return int(conf.get("spark.cores.max", "0")) or several or int(context.defaultParallelism)


def has_tasks(context: Any, job_group: str) -> bool:
    """Tells whether any task of the job group has begun."""
    tracker = context.statusTracker()
    for job_id in tracker.getJobIdsForGroup(job_group):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job else ():
            info = tracker.getStageInfo(stage_id)
            if info and (info.numActiveTasks or info.numCompletedTasks or info.numFailedTasks):
                return True
    return False


def cancel_group(context: Any, job_group: str) -> None:
    """Ends the group's jobs, and those that it is about to start."""
    context._jsc.sc().cancelJobGroupAndFutureJobs(job_group)
