"""Delta's MERGE command of a keyed state's log into its plain table: where the native MERGE is not possible."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from pyspark.sql import SparkSession

from trident.states.core import pools
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.local_properties import local_properties
from trident.states.delta.delta_log import DeltaLog, LogSnapshot
from trident.states.delta.kernel import TableSnapshot
from trident.states.keyed.compaction import MergePlan
from trident.states.keyed.log_merge import (
    folded,
    keeps_last,
    log_rows,
    merged_log,
    native_merge,
    newest_log,
    table_rows,
)
from trident.states.keyed.merge_statement import merge_into
from trident.states.keyed.snapshot import log_frame, plain_frame
from trident.states.keyed.tables import adopted_version

# The compressed data of one task of a MERGE; adaptive execution joins small ones.
_BYTES_PER_TASK = 32 << 20


class SparkMerge:
    """The MERGEs of one state by Spark; used by one thread at a time, but for :meth:`cancel`.

    Args:
        plain: the root of its plain table.
        combiner: the state's Python combiner, if it has one.
    """

    def __init__(self, spark: "SparkSession", plain: str, state: StateDescriptor, combiner: Any) -> None:
        self._native = native_merge(state)
        self._combiner = combiner
        self._spark, self._plain = spark, plain
        # Its own: a cancelled group is cancelled for good, and must not reach a later compactor of the state.
        self._job_group = f"trident-compact-{state.topology}-{state.name}-{uuid.uuid4().hex[:8]}"
        self._merge_session: "SparkSession | None" = None

    def merge(
        self,
        state: StateDescriptor,
        plan: MergePlan,
        plain: TableSnapshot,
        log_snapshot: TableSnapshot,
        marker: Mapping[str, object],
        clamps: bool = False,
    ) -> None:
        """Carries out a plan; the guard makes that safe however old the plan is.

        Args:
            clamps: as of ``log_merge.fitted``.

        Raises:
            CommitConflict, TableError: as ``merge_into``.
        """
        table, waiting = (DeltaLog(each.path).at(each.version) for each in (plain, log_snapshot))
        session = self._session(state, plan, table, marker)
        rows = log_rows(state, log_frame(session, waiting, plan.after)[0], plan.after, plan.upto)
        with self._jobs(f"MERGE of {state.name}, transactions {plan.after + 1} to {plan.upto}"):
            if keeps_last(state):
                source = newest_log(state, rows)
            elif self._native is not None:
                source = merged_log(state, rows, self._native, is_part=True)
            else:
                # The guard also proves that no row changed since this version was read.
                source = folded(state, table_rows(state, plain_frame(session, table)[0]), rows, self._combiner)
            adopted = adopted_version(plain.schema_json) is not None
            merge_into(session, self._plain, state, plan, source, self._native, adopted, clamps)

    def _session(
        self, state: StateDescriptor, plan: MergePlan, plain: LogSnapshot, marker: Mapping[str, object]
    ) -> "SparkSession":
        """This state's own session, set for one MERGE: Delta takes txn ids from the session."""
        if self._merge_session is None:
            self._merge_session = self._spark.newSession()
        conf = self._merge_session.conf
        size = sum(file.size for file in plain.files.values())
        tasks = max(math.ceil(size / _BYTES_PER_TASK), self._spark.sparkContext.defaultParallelism)
        settings = {
            "spark.databricks.delta.write.txnAppId": state.merge_app,
            "spark.databricks.delta.write.txnVersion": plan.upto,
            "spark.databricks.delta.commitInfo.userMetadata": json.dumps({"trident": dict(marker)}),
            # The source is read twice, and combining the log twice costs more than keeping the result.
            "spark.databricks.delta.merge.materializeSource": "all",
            "spark.sql.shuffle.partitions": min(tasks, 2000),
            # A MERGE joins the whole table; hashing the small side takes half the time of sorting both.
            "spark.sql.join.preferSortMergeJoin": "false",
            # A sum that no longer fits its column is an error, never null.
            "spark.sql.ansi.enabled": "true",
            # Else the sum of two decimals of 38 digits has one digit less behind the point.
            "spark.sql.decimalOperations.allowPrecisionLoss": "false",
        }
        for key, value in settings.items():
            conf.set(key, str(value))
        return self._merge_session

    def _jobs(self, description: str) -> AbstractContextManager[None]:
        values = {
            "spark.jobGroup.id": self._job_group,
            "spark.job.description": description,
            "spark.job.interruptOnCancel": "false",
            "spark.scheduler.pool": pools.UPKEEP,
        }
        return local_properties(self._spark.sparkContext, values)

    def cancel(self) -> None:
        """Ends the jobs of a running MERGE; it then fails as a whole."""
        # With those that it has not begun yet: a MERGE is several jobs, and a coordinator that was deposed in the
        # middle of one would be no standby before its end.
        self._spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(self._job_group)
