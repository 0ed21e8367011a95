"""Delta's MERGE command of a keyed state's log into its plain table: where the native MERGE is not possible.

The rows that it writes are made by the fold that reads are made by (``log_merge.changed``), of the table's version in
the plan; the statement only puts them into the table.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from trident.coordinators.errors import CommitConflict, TableError
from trident.states.core import spark_jobs
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.names import backquoted
from trident.states.core.spark_jobs import local_properties
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN, UPTO_COLUMN
from trident.states.delta.delta_log import DeltaLog, LogSnapshot
from trident.states.delta.kernel import TableSnapshot
from trident.states.delta.log_commit import java_causes
from trident.states.keyed.compaction import MergePlan, guard_condition
from trident.states.keyed.log_merge import (
    changed,
    deleted,
    is_sequenced,
    keeps_last,
    log_rows,
    quoted,
    same_key,
    table_rows,
)
from trident.states.keyed.snapshot import log_frame, plain_frame
from trident.states.keyed.tables import adopted_version

# The compressed data of one task of a MERGE; adaptive execution joins small ones.
_BYTES_PER_TASK = 32 << 20

# Two compactors that both read P and want (P, a] and (P, b], a < b, may both merge, one after the other: Delta's
# SetTransaction is monotone, not a compare-and-set. A row that the first one wrote carries its _upto, and stops the
# second. A row that the first one *deleted* is gone and stops none. That is no harm where rows can be deleted: there
# a log row is a whole value, and the second MERGE sets each key of (P, a] again, since b > a, to its newest value of
# (P, b], which is its value as of b whatever the table holds: a key deleted and never written again has no row and gets
# none, one written again after a is inserted as what it is. (With partial values it would be an error, and there
# nothing is deleted.) The other order, b before a, Delta passes over; and of two that overlap in time Delta rejects
# one, since both write the same SetTransaction.
_GUARD = "trident: another compactor merged this row"


class SparkMerge:
    """The MERGEs of one state by Spark; used by one thread at a time, but for :meth:`cancel`.

    Args:
        plain: the root of its plain table.
        combiner: the state's Python combiner, if it has one.
    """

    def __init__(self, spark: "SparkSession", plain: str, state: StateDescriptor, combiner: Any) -> None:
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
            clamps: as of ``log_merge.merged``.

        Raises:
            CommitConflict: another compactor merged meanwhile; nothing was changed.
            TableError: it failed; nothing was changed.
        """
        table, waiting = (DeltaLog(each.path).at(each.version) for each in (plain, log_snapshot))
        session = self._session(state, plan, table, marker)
        rows = log_rows(state, log_frame(session, waiting, plan.after)[0], plan.after, plan.upto)
        # The guard also proves that no row changed since this version was read.
        base = table_rows(state, plain_frame(session, table)[0])
        source = changed(state, base, rows, self._combiner, (plan.after, plan.upto), clamps)
        adopted = adopted_version(plain.schema_json) is not None
        with self._jobs(f"MERGE of {state.name}, transactions {plan.after + 1} to {plan.upto}"):
            _merge_into(session, self._plain, state, plan, source, adopted)

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
            "spark.scheduler.pool": spark_jobs.UPKEEP,
        }
        return local_properties(self._spark.sparkContext, values)

    def cancel(self) -> None:
        """Ends the jobs of a running MERGE; it then fails as a whole."""
        # With those that it has not begun yet: a MERGE is several jobs, and a coordinator that was deposed in the
        # middle of one would be no standby before its end.
        self._spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(self._job_group)


def _merge_into(
    session: "SparkSession", path: str, state: StateDescriptor, plan: MergePlan, source: "DataFrame", adopted: bool
) -> None:
    """Puts one row per key into the plain table at ``path``; its Delta settings are the session's.

    Args:
        adopted: whether the table has rows that no MERGE of ours has written, from before the first transaction.
    """
    upto = F.lit(plan.upto).cast("bigint")
    hidden = (DELETED_COLUMN, TXID_COLUMN) if is_sequenced(state) else ()
    values: "dict[str, str | Column]" = {backquoted(name): quoted(name, "s") for name in (*state.value_fields, *hidden)}
    added = {**{backquoted(key): quoted(key, "s") for key in state.keys}, **values, backquoted(UPTO_COLUMN): upto}
    raises = F.raise_error(F.lit(_GUARD)).cast("bigint")
    values[backquoted(UPTO_COLUMN)] = F.when(_passes(plan, adopted), upto).otherwise(raises)
    if is_sequenced(state):
        # A row of the table that is later in the sequence stays, and so does a deleted one: it holds the key deleted.
        source = source.where(quoted(TXID_COLUMN) > plan.after)
    merge = DeltaTable.forPath(session, path).alias("t").merge(source.alias("s"), same_key(state.keys, "t", "s"))
    if keeps_last(state) and not is_sequenced(state):
        # Delta computes conditions for rows without a match too, so that nothing may raise here: a deleted row
        # that does not pass is left to the update, which raises.
        merge = merge.whenMatchedDelete(deleted("s") & _passes(plan, adopted)).whenMatchedUpdate(set=values)
        merge = merge.whenNotMatchedInsert(~deleted("s"), added)
    else:
        merge = merge.whenMatchedUpdate(set=values).whenNotMatchedInsert(values=added)
    bound = state.retention.below(plan.upto)
    if is_sequenced(state) and bound > state.retention.below(plan.after):
        forgotten = deleted("t") & F.coalesce(quoted(TXID_COLUMN, "t") < bound, F.lit(False))
        merge = merge.whenNotMatchedBySourceDelete(forgotten)
    try:
        merge.execute()
    except Exception as error:
        raise _meaning(error, path, plan) from error


def _passes(plan: MergePlan, adopted: bool) -> "Column":
    """True of a matched row that holds nothing of this MERGE; null of one that we did not write, nor adopt."""
    upto = f"t.{UPTO_COLUMN}"
    return ~F.expr(guard_condition(plan, f"coalesce({upto}, 0)" if adopted else upto))


_CONFLICTS = (
    "ConcurrentAppend",
    "ConcurrentDelete",
    "ConcurrentTransaction",
    "ConcurrentWrite",
    "DELTA_CONCURRENT_",
    "MetadataChanged",
    "DELTA_METADATA_CHANGED",
)


def _meaning(error: Exception, path: str, plan: MergePlan) -> Exception:
    """Returns what an exception of a MERGE says, as one of ours."""
    causes = _causes(error)
    if any(word in cause for cause in causes for word in (_GUARD, *_CONFLICTS)):
        return CommitConflict(
            f"another compactor merged into {path} meanwhile",
            found=_first_line(causes[-1]),
            expected=f"a table merged up to {plan.after}",
            action="nothing was changed; the MERGE is planned anew",
        )
    return merge_failed(path, plan, _first_line(causes[-1]))


def merge_failed(path: str, plan: MergePlan, found: str) -> TableError:
    """The error of a MERGE that has changed nothing."""
    return TableError(
        f"the MERGE of transactions {plan.after + 1} to {plan.upto} into {path} failed",
        found=found,
        action="nothing is lost: the log has the rows, and the MERGE is tried again",
    )


def _causes(error: Exception) -> list[str]:
    """Returns what an exception and its causes in the JVM say; the last is where it began."""
    java = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    return [str(error), *(str(one.toString()) for one in java_causes(java))]


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    # Of an error in a Python worker the first line only says that there is one.
    raised = [line for line in lines if line.startswith(("trident.", "coordinators.", "states."))]
    return [*raised, *lines, "no message"][0][:500]
