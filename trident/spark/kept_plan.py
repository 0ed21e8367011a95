"""One plan of Spark that is kept from job to job, by the small jar; what the jobs differ in are local properties."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from trident.states.core import spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("trident.runner")
NO_FIT = "the jar of kept plans does not fit this session's Spark"
NO_JAR = "this session has not the jar of kept plans"
# A plan that could not be made so often in a row is not tried again.
_FAILURES_MAX = 3
# (the Java class KeptPlan) → the frame to plan.
Make = Callable[[Any], AbstractContextManager["DataFrame"]]


class NotKept(Exception):
    """There is no plan to be kept, and no job has run."""


class KeptPlan:
    """May be used from several threads at once.

    Args:
        kept: the Java class KeptPlan; None: this session has none.
        what: names the plan in the log.

    Attributes:
        plan: of the Java class; None: there is none now.
        refusal: why none is made; None: it was not refused.
    """

    def __init__(self, spark: "SparkSession", kept: Any | None, what: str) -> None:
        self._spark, self._kept, self._what = spark, kept, what
        self.plan: Any = None
        self.refusal: str | None = NO_JAR if kept is None else None
        self._fields: Sequence[str] = ()
        self._failures = 0
        self._lock = threading.Lock()

    def is_made(self, make: Make) -> bool:
        """Tells whether there is a plan; where there is none, it is made first if that can be."""
        return self._made(make) is not None

    def rows(self, properties: Mapping[str, str], make: Make) -> list[dict[str, Any]]:
        """The rows of one job with these local properties.

        Raises:
            NotKept: there is no plan.
        """
        while (made := self._made(make)) is not None:
            plan, fields = made
            try:
                found = plan.run(json.dumps(dict(properties)))
            except Exception as error:
                if not spark_jobs.does_not_fit(self._spark.sparkContext, error):
                    raise
                with self._lock:
                    self.plan, self.refusal = None, NO_FIT
                break
            if found is not None:
                return [dict(zip(fields, row)) for partition in json.loads(found) for row in partition]
            with self._lock:  # the session is in another state than when it was planned
                if self.plan is plan:
                    self.plan = None
        raise NotKept(self.refusal)

    def _made(self, make: Make) -> tuple[Any, Sequence[str]] | None:
        with self._lock:
            if self.plan is None and self.refusal is None:
                self._make(make)
            return None if self.plan is None else (self.plan, self._fields)

    def _make(self, make: Make) -> None:
        """Plans, or finds out why the plan cannot be kept."""
        spark: Any = self._spark
        kept: Any = self._kept
        try:
            state = kept.stateOf(spark._jsparkSession)  # before anything is planned
            with make(kept) as frame:
                given: Any = frame
                plan = kept.of(given._jdf, state)
            refusal, self._fields = plan.refusal(), given.columns
        except Exception as error:  # what is planned for one job says it better, or runs
            if spark_jobs.does_not_fit(spark.sparkContext, error):
                self.refusal = NO_FIT
                return
            self._failures += 1
            log.warning("the plan of %s could not be made to be kept: %s", self._what, error)
            if self._failures >= _FAILURES_MAX:
                self.refusal = f"it could not be planned {self._failures} times in a row: {error}"
                log.warning("the plan of %s is made anew for each batch from now on", self._what)
            return
        self._failures = 0
        if refusal is None:
            self.plan = plan
            log.info("the plan of %s is kept from batch to batch", self._what)
        else:
            self.refusal = refusal
            log.info("the plan of %s is made anew for each batch: %s", self._what, refusal)
