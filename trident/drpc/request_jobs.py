"""The Spark jobs of requests that are answered together: one for many, by a plan that is kept from job to job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from trident.drpc.in_driver import AnswersHere, StatesAsOf
from trident.drpc.together import Found, Job, Moved
from trident.planning.requests import DrpcPlan
from trident.planning.results import RESULT
from trident.planning.session_frames import Batch, SessionFrames
from trident.spark.kept_plan import KeptPlan, NotKept
from trident.spark.kept_plans_jar import kept_plan_class
from trident.spark.rows import arrow_rows
from trident.spark.slots import RowsSlot
from trident.states.core import pools
from trident.states.keyed.state_copy import LogIsPast
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.requests import MOVED, Answers, Asked, Outcome, RequestId, read_told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ASKED = StructType([StructField("asked", BinaryType(), False)])
_TOLD = StructType([StructField(name, StringType(), False) for name in ("outcomes", "rows")])
_PROPERTY = "trident.requests"
_NONE = BatchInfo(RequestId(""))


class SharedJobs:
    """Answers the requests of a job, all as of the same transactions. May be called from several threads at once.

    Args:
        info: state → the transaction as of which it is read, to what the requests of a job are told of it.
    """

    def __init__(
        self,
        spark: "SparkSession",
        topology: str,
        states: StatesAsOf,
        here: AnswersHere,
        info: Callable[[Mapping[str, int]], BatchInfo],
    ) -> None:
        self._spark, self._topology, self._states, self._here, self._info = spark, topology, states, here, info
        self._jobs: dict[str, RequestJobs] = {}
        self._lock = threading.Lock()

    def __call__(self, plan: DrpcPlan, job: Job) -> Found | None:
        """The result of a job; None: there are no local copies for it.

        Raises:
            Moved: a state has gone on from the transactions that were pinned.
            Exception: Spark's, where the job failed: none of the requests is answered.
        """
        with self._lock:
            if plan.function not in self._jobs:
                self._jobs[plan.function] = RequestJobs(self._spark, plan)
            jobs = self._jobs[plan.function]
        as_of, copies = self._states.pinned(plan), {}
        if plan.lowered.copied_states:
            try:
                found = self._states.for_tasks(plan, as_of)
            except LogIsPast as error:
                if not self._states.moved(plan, as_of, max(one.deadline for one in job.waiting)):
                    return None
                raise Moved from error
            if found is None:
                return None
            copies = found
        context = self._spark.sparkContext
        count = f"{len(job.waiting)} requests" if len(job.waiting) > 1 else job.waiting[0].request_id
        context.setJobGroup(job.name, f"{self._topology} {plan.function} {count}")
        context.setLocalProperty("spark.scheduler.pool", pools.REQUESTS)
        ids = [one.request_id for one in job.waiting]
        rows = arrow_rows([one.values for one in job.waiting], plan.arguments)
        info = self._info({name: as_of[group] for name, (_, group) in plan.states.items()})
        outcomes, table = jobs.run(Asked(ids, rows, info, copies))
        for outcome in outcomes:
            if outcome.kind == MOVED:
                self._states.could_not_use(plan, copies, RuntimeError(outcome.error))
                break
        return Found(outcomes, [] if table is None else self._here.rows(table, plan.result), as_of)


class RequestJobs:
    """Answers requests to one function by Spark jobs of one task each. May be called from several threads at once."""

    def __init__(self, spark: "SparkSession", plan: DrpcPlan) -> None:
        self._spark = spark
        serializer: Any = CloudPickleSerializer()
        pickled = serializer.dumps(plan.together)
        frames: Any = SessionFrames(spark)
        self._pass = frames.map_in_arrow(Answers(pickled, plan.function, RESULT), _ASKED.names, _TOLD, False)
        self._kept = KeptPlan(spark, kept_plan_class(spark.sparkContext), f"function {plan.function}")

    def run(self, asked: Asked) -> tuple[list[Outcome], pa.Table | None]:
        """The outcome of each request, and the rows of those that were answered, in one job of the thread's group.

        Raises:
            Exception: Spark's, where the job failed: none of the requests is answered.
        """
        table = pa.table([pa.array([asked.pickled()], pa.binary())], names=_ASKED.names)
        slot = RowsSlot(self._spark, table, _ASKED)
        try:
            (answer,) = self._kept.rows(
                {_PROPERTY: slot.rows}, lambda kept: nullcontext(self._frame(slot.over(kept, _PROPERTY).coalesce(1)))
            )
            return read_told(answer["outcomes"], answer["rows"])
        except NotKept:
            ((outcomes, rows),) = self._frame(slot.frame().coalesce(1)).collect()
            return read_told(outcomes, rows)

    def _frame(self, asked: "DataFrame") -> "DataFrame":
        return self._pass(asked, Batch(_NONE))
