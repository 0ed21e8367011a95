"""Publishes decided batches to users' own states: a Spark job, one task per staged file (docs/semantics.md 9.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from trident.coordinators import faults
from trident.coordinators.errors import Halted, TridentError
from trident.coordinators.transactions import TransactionAttempt
from trident.states.core.binding import DecidedRows, StateBinding
from trident.states.core.group_context import LeaderContext
from trident.states.publishing.outside_publish import OutsidePublisher
from trident.states.publishing.user_tasks import PUBLISHED_SCHEMA, BatchInfo, PublishTask

PUBLISH_USER = faults.register("publish.user", "giving a decided batch to a state of the user's")


class UserStatePublisher:
    """Gives decided rows to users' states.

    A map's new values were found before the decision: they are put as they are,
    and putting them again changes nothing. A user's updater, and a
    non-transactional map, change their state now: once, or again when it is
    not known whether they did.
    """

    def __init__(self, spark: "SparkSession", of: LeaderContext, outside: OutsidePublisher) -> None:
        self._spark, self._of, self._outside = spark, of, outside
        self._config = {"topology": of.topology, "group": of.group, "spark_master": spark.sparkContext.master}
        self._tried: set[tuple[str, TransactionAttempt]] = set()

    def publish(self, binding: StateBinding, rows: DecidedRows) -> None:
        """One state's part of a decided batch.

        Raises:
            Deposed: another coordinator leads.
            Halted: the state has seen a newer coordinator, and there is none.
        """
        attempt, tried = rows.attempt, (binding.name, rows.attempt)
        again = not rows.first or tried in self._tried
        self._tried = {other for other in self._tried if other[1].txid == attempt.txid} | {tried}
        if again and getattr(binding.state, "skip_replays", False):
            return
        files = tuple(rows.root / file.path for file in rows.files)
        if not files:
            return
        info = BatchInfo(attempt, self._of.incarnation, self._of.epoch, self._config)
        # New values that were found before the decision are put as they are.
        aggregator = binding.aggregator if binding.state_kind.updated_when_published else None
        task = PublishTask(binding.state, aggregator, binding.keys, binding.value_fields, files, info)
        try:
            with faults.fault_point(PUBLISH_USER):
                done = self._run(task, len(files))
        except Exception as error:
            self._of.check_fence()
            if "StaleEpoch" in str(error):
                raise Halted(
                    f"state {binding.name} has been written by a later coordinator or transaction, and there is none",
                    found=_own_words(error),
                    expected=f"nothing later than transaction {attempt.txid} of coordinator {self._of.epoch}",
                    action="ZooKeeper is the older side, wiped or restored from an older copy, or another installation "
                    "writes to the same map: bring both from the same moment, or clear the map; "
                    f"`trident repair {self._of.topology}` says what the tables of the group say",
                ) from error
            raise
        wanted = sum(file.num_records for file in rows.files)
        if done != wanted:
            raise TridentError(f"state {binding.name} was given {done} of {wanted} rows of transaction {attempt.txid}")

    def publish_outside(self, binding: StateBinding, rows: DecidedRows) -> None:
        """As :meth:`publish`, for a state outside of the warehouse."""
        self._outside.publish(binding, rows)

    def _run(self, task: PublishTask, files: int) -> int:
        frame = self._spark.range(0, files, 1, files).mapInArrow(task, PUBLISHED_SCHEMA)
        reports: dict[int, int] = {row.file: row.rows for row in frame.collect()}
        return sum(reports.values())


def _own_words(error: Any) -> str:
    lines: Sequence[str] = str(error).splitlines()
    return next((line for line in lines if "StaleEpoch" in line), lines[0] if lines else "")[:500]
