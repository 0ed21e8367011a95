"""Rounds of a tuple topology on Spark: one job for each level of bolts.

A level's tuples are put into one Spark partition per task of its bolts; the
bolts' own tuples stay in Spark, and only their reports come to the driver. A
local checkpoint keeps a level's tuples: ids are random, so a tuple that were
computed twice would be two tuples. Should a kept block be lost with its
executor, the round fails; should Spark keep a block of one attempt at a task
and take the report of another (speculation), the trees of that task never come
to zero and time out. Neither loses a message.
"""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from pyspark.util import PythonEvalType

from trident.coordinators.errors import BatchError, BatchTimeout, TridentError
from trident.spark.jobs import JobWatch, cancel_group
from trident.states.core import storage
from trident.states.core.place import Place
from trident.tuples.bolts import Report
from trident.tuples.plan import TuplePlan
from trident.tuples.tasks import ADDRESSED, REPORTS, LevelTask
from trident.udf.signatures import translate_failure

# However often bolts reset it, a round takes no longer than this many times message_timeout_secs.
EXTENSIONS_MAX = 10
_SLOT, _CONTENT = StructField("slot", IntegerType(), False), StructField("content", BinaryType(), False)
_ADDRESSED = StructType([_SLOT, _CONTENT])
_SENT = StructType([StructField("level", IntegerType(), False), _SLOT, _CONTENT])


class RoundStopped(TridentError):
    """The round was cancelled because the topology is to stop."""

    def __init__(self) -> None:
        super().__init__("the round was cancelled: the topology stops")


class RoundWatch(JobWatch):
    """A JobWatch whose time begins anew whenever a bolt of the round resets it, up to a bound.

    Files of the tasks are counted (:class:`trident.tuples.tasks.ResetSender`), so clocks are not compared.

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


class RoundRunner:
    """Runs the rounds of one topology, one at a time.

    Args:
        timeout_secs: how long a round may take, from its first Spark task or its last ``reset_timeout`` on;
            None: for ever.
        resets: a folder that the executors share with the driver: in it are the files of ``reset_timeout``.
    """

    def __init__(self, spark: "SparkSession", plan: TuplePlan, timeout_secs: float | None, resets: Place) -> None:
        self._plan, self._timeout_secs, self._context = plan, timeout_secs, spark.sparkContext
        # A session of its own for one setting: plans that are planned again while they run have nothing to gain
        # where every partition is given, and cost a small round a tenth of its time.
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.adaptive.enabled", "false")
        self._run_id = uuid.uuid4().hex[:6]
        self._resets = resets
        if timeout_secs is not None:
            storage.make_folder(resets, storage.anchor_of(resets))
        sent_to = resets if timeout_secs is not None else None
        self._bodies = {
            level: _in_arrow(LevelTask(plan.topology, bolts, plan.origins, sent_to))
            for level, bolts in plan.levels.items()
        }
        self._lock = threading.Lock()
        self._job_group = ""
        self._stopped = False

    def run(self, number: int, given: Mapping[int, Sequence[tuple[int, bytes]]]) -> Iterator[Report]:
        """Runs one round; the reports of a level come when it is done.

        Args:
            given: level → (slot, content) of the tuples that the spouts sent there.

        Raises:
            BatchTimeout: the round took too long.
            UserFunctionError, FailedException: prepare or cleanup of a bolt raised.
            RoundStopped: ``stop`` was called.
            Exception: what Spark raised when a task had failed too often.
        """
        self._enter(number)
        kept: dict[int, tuple[Any, set[int]]] = {}  # level → its result, and the levels that it sent tuples to
        try:
            with self._watched() as watch:
                try:
                    for level in self._plan.levels:
                        if watch.timed_out:  # just between two jobs, when there was none to cancel
                            raise TimeoutError
                        yield from self._level(level, given.get(level, ()), kept)
                except Exception as error:
                    meaning = self._meaning(error, number, watch)
                    raise meaning from meaning.__cause__ if isinstance(meaning, BatchError) else error
        finally:
            for frame, _ in kept.values():
                frame._jdf.queryExecution().analyzed().rdd().unpersist(False)

    def _watched(self) -> JobWatch:
        if self._timeout_secs is None:
            return JobWatch(self._context, self._job_group, None)
        return RoundWatch(self._context, self._job_group, self._timeout_secs, self._resets)

    def stop(self) -> None:
        """Cancels the round that runs; there are no more."""
        with self._lock:
            self._stopped = True
            job_group = self._job_group
        if job_group:
            cancel_group(self._context, job_group)

    def _enter(self, number: int) -> None:
        with self._lock:
            if self._stopped:
                raise RoundStopped
            self._job_group = f"trident-{self._plan.topology}-{self._run_id}-{number}"
        self._context.setJobGroup(self._job_group, f"{self._plan.topology} round {number}")
        self._context.setLocalProperty("spark.scheduler.pool", f"trident-{self._plan.topology}")

    def _level(
        self, level: int, given: Sequence[tuple[int, bytes]], kept: dict[int, tuple[Any, set[int]]]
    ) -> list[Report]:
        inputs = [
            frame.where(F.col("level") == level).select("slot", "content")
            for frame, sent in kept.values()
            if level in sent
        ]
        if given:
            inputs.append(self._frame(given))
        if not inputs:
            return []
        slots = self._plan.slots(level)
        together: Any = reduce(lambda one, other: one.union(other), inputs)
        together = together.coalesce(1) if slots == 1 else together.repartitionById(slots, F.col("slot"))
        body = self._bodies[level]
        result: Any = ClassicDataFrame(together._jdf.mapInArrow(body._jc, False, None), self._spark)
        result = result.localCheckpoint(eager=False)
        sent: set[int] = set()
        # Known before it is computed: so the blocks that a failure leaves behind are freed too.
        kept[level] = (result, sent)
        # The one action on it: it computes the level and keeps it.
        rows = result.where(F.col("level") == REPORTS).select("content").collect()
        reports = [pickle.loads(row.content) for row in rows]
        for report in reports:
            sent.update(report.sent)
        return reports

    def _frame(self, given: Sequence[tuple[int, bytes]]) -> "DataFrame":
        columns = [pa.array(column, kind.type) for column, kind in zip(zip(*given), ADDRESSED)]
        return self._spark.createDataFrame(pa.Table.from_arrays(columns, schema=ADDRESSED), _ADDRESSED)

    def _meaning(self, error: Exception, number: int, watch: JobWatch) -> Exception:
        """Returns what the failure of a round's job means."""
        if self._stopped:
            return RoundStopped()
        if watch.timed_out:
            since = "its first Spark task"
            if isinstance(watch, RoundWatch) and watch.extended:
                since = f"the last reset_timeout that counts ({EXTENSIONS_MAX} times the setting are the most)"
            return BatchTimeout(
                f"round {number} took longer than message_timeout_secs",
                found=f"more than {self._timeout_secs:g} s since {since}",
                expected=f"at most {self._timeout_secs:g} s",
                action="its messages come again in smaller rounds; raise message_timeout_secs if one takes longer",
            )
        translated = translate_failure(error, f"round {number}")
        return translated if isinstance(translated, Exception) else error


def _in_arrow(task: LevelTask) -> Any:
    """Returns what ``DataFrame.mapInArrow`` makes anew, and pickles, at every call."""
    make: Any = pandas_udf
    udf = make(task, returnType=_SENT, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    return udf(F.col("slot"), F.col("content"))
