"""The Spark jobs of an attempt: their group, their pool, and whether they were given up."""

from __future__ import annotations

from typing import Any

from trident.spark.jobs import JobWatch


class AttemptJobs(JobWatch):
    """The jobs of an attempt, or of its part in the transaction's turn.

    Args:
        text: describes them.
        pool: of Spark's scheduler.
    """

    cancelled = False

    def __init__(self, context: Any, job_group: str, timeout_secs: float | None, text: str, pool: str) -> None:
        super().__init__(context, job_group, timeout_secs)
        self._text, self._pool = text, pool

    def begin_jobs(self) -> None:
        """From here on jobs of the calling thread are in its group. It takes two calls to the JVM, so not for none."""
        self._context.setJobGroup(self.job_group, self._text)
        self._context.setLocalProperty("spark.scheduler.pool", self._pool)

    @property
    def given_up(self) -> bool:
        return self.cancelled or self.timed_out
