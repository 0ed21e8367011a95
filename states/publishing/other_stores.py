"""Publishes decided batches to states that are no Delta tables: outside stores, and users' own states."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from trident.coordinators import faults
from trident.coordinators.errors import ForeignMarks, Halted, StaleEpoch, StateLostTransactions, TridentError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.records import GroupRecord, TableMark, outside_id
from trident.states.core.binding import LAST, DecidedRows, StateBinding
from trident.states.core.group_context import LeaderContext
from trident.states.core.place import Place
from trident.states.delta import halts
from trident.states.outside.health import OutsideProgress
from trident.states.outside.outbox import OutboxLog, outbox_folder
from trident.states.outside.port import OutsideMark, OutsidePart, OutsideState, is_frameworks, rows_of
from trident.states.outside.tasks import (
    ANSWER_SCHEMA,
    Answer,
    Call,
    CheckStore,
    Publish,
    Renew,
    TakeOver,
    Task,
    answer_of,
    marks_of,
)
from trident.states.publishing.user_tasks import PUBLISHED_SCHEMA, BatchInfo, PublishTask

# Publishes decided batches to states outside of the warehouse, and knows how far each of them is.


log = logging.getLogger(__name__)

PUBLISH_OUTSIDE = faults.register("publish.outside", "giving a decided batch to a state outside of the warehouse")
OPEN_OUTSIDE = faults.register("open.outside", "looking at a state outside of the warehouse, and taking it over")
RENEW_OUTSIDE = faults.register("renew.outside", "writing the marks of a state outside of the warehouse again")
# How often marks are written again that their store would forget: Kafka does so after a week, unless it is told to.
_RENEWED_SECS = 6 * 3600.0
# A transaction of at most this size is published from the coordinator's process; a larger one by tasks.
_DRIVER_ROWS_MAX = 10_000
_DRIVER_BYTES_MAX = 2_000_000


class OutsidePublisher:
    """The outside states of one batch group under one lease."""

    def __init__(self, spark: "SparkSession", of: LeaderContext, progress: OutsideProgress) -> None:
        self._spark, self._of, self._progress = spark, of, progress
        self._opened: dict[str, float] = {}  # state → when all of its marks were written last

    def open(self, bindings: Iterable[StateBinding], record: GroupRecord) -> None:
        """Looks at each store, closes it to older coordinators, and compares its mark with ZooKeeper's record.

        Raises:
            StateAway: a store does not answer.
            SchemaMismatch, TridentError: one cannot take the rows.
            Halted: one is of another moment than ZooKeeper.
        """
        for binding in bindings:
            if isinstance(binding.state, OutsideState):
                self._open(binding, record.tables.get(outside_id(binding.name)), record.current_txid, None)

    def _open(
        self, binding: StateBinding, known: TableMark | None, current: int, decided: TransactionAttempt | None
    ) -> None:
        """Takes a store over.

        Args:
            known: what ZooKeeper says of it.
            current: the transaction that commits next.
            decided: the attempt that is to be published: the store may have it already.
        """
        name = binding.name
        marks = self._tried(name, decided.txid if decided else None, partial(self._take_over, binding))
        last = max((mark for mark in marks if mark.txid), key=lambda mark: mark.txid, default=None)
        found = (last.txid, last.attempt_id) if last else None
        if decided is None or found != (decided.txid, decided.attempt_id):
            if last is not None and last.txid >= current:
                self._of.check_fence()
                raise halts.outside_is_ahead(self._of.topology, name, last.text, current - 1)
            begun = self._begun(binding)
            if begun[0] >= current and (decided is None or begun != (decided.txid, decided.attempt_id)):
                self._of.check_fence()
                text = f"{halts.attempt_text(*begun)}, of which rows are sent"
                raise halts.outside_is_ahead(self._of.topology, name, text, current - 1)
            if known is not None and found != (known.txid, known.attempt_id):
                self._of.check_fence()
                raise halts.outside_state_lags(self._of.topology, name, last.text if last else "no transaction", known)
        self._opened[name] = time.monotonic()
        if decided is None:
            self._progress.has(name, last.txid if last else 0, self._dead_letters(binding))

    def _begun(self, binding: StateBinding) -> tuple[int, int]:
        """(txid, attempt id) of the transaction that an outbox has begun to send, if it is one; or (0, 0)."""
        if not is_frameworks(binding.state):
            return 0, 0
        return OutboxLog(self._outbox(binding)).read().begun_of(self._of.incarnation)

    def _state(self, binding: StateBinding) -> OutsideState:
        return binding.state.kept_in(self._outbox(binding))

    def _outbox(self, binding: StateBinding) -> Place:
        return outbox_folder(self._of.warehouse, self._of.topology, binding.name)

    def _dead_letters(self, binding: StateBinding) -> int:
        return self._state(binding).count_dead_letters() if is_frameworks(binding.state) else 0

    def _take_over(self, binding: StateBinding) -> Sequence[OutsideMark]:
        name, state = binding.name, self._state(binding)
        check_store(self._spark, self._of.topology, binding)
        call = TakeOver(state, self._of.topology, self._of.incarnation, self._of.epoch)
        (answer,) = _answers(self._spark, self._of.topology, state, call, 1, True, OPEN_OUTSIDE)
        try:
            marks = list(marks_of(answer.result(f"state {name}")).values())
        except ForeignMarks as error:
            self._of.check_fence()
            raise halts.outside_is_foreign(self._of.topology, name, error) from error
        later = [mark for mark in marks if (mark.epoch, mark.incarnation) != (self._of.epoch, self._of.incarnation)]
        if later:
            self._of.check_fence()
            raise halts.outside_is_later(self._of.topology, name, later[0].text, self._of.epoch)
        return marks

    def publish(self, binding: StateBinding, rows: DecidedRows) -> None:
        """One state's part of a decided batch.

        Raises:
            Deposed: another coordinator leads.
            StateAway: its store does not answer: to be called again, for as long as it takes.
            Halted: the store has seen a newer coordinator, and there is none; or it has lost transactions.
        """
        if rows.files:
            if binding.name not in self._opened:  # a recovery finishes what is decided before it opens anything
                self._open(binding, rows.known, rows.attempt.txid, rows.attempt)
            self._tried(binding.name, rows.attempt.txid, lambda: self._publish(binding, rows))
            self._progress.has(binding.name, rows.attempt.txid, self._dead_letters(binding))

    def _publish(self, binding: StateBinding, rows: DecidedRows) -> None:
        attempt, state = rows.attempt, self._state(binding)
        mark = OutsideMark(self._of.incarnation, self._of.epoch, attempt.txid, attempt.attempt_id)
        files = [(rows.root / file.path, file.num_records) for file in rows.files]
        count = max(1, min(int(rows.details["partitions"]), len(files)))
        known = (rows.known.txid, rows.known.attempt_id) if rows.known else None
        upserts, keys = rows.details["merging"] == LAST, tuple(rows.details["keys"])
        settings = rows.details.get("settings", {})  # of versions before: none
        parts = [
            OutsidePart(self._of.topology, binding.name, number, mark, keys, upserts, known, settings)
            for number in range(count)
        ]
        few = (
            sum(file.num_records for file in rows.files) <= _DRIVER_ROWS_MAX
            and sum(file.size for file in rows.files) <= _DRIVER_BYTES_MAX
        )
        call = Publish(state, [(part, files[part.number :: count]) for part in parts])
        answers = _answers(self._spark, self._of.topology, state, call, count, few, PUBLISH_OUTSIDE)
        if sorted(answer.number for answer in answers) != list(range(count)):
            raise TridentError(f"not all {count} parts of transaction {attempt.txid} for state {binding.name} answered")
        for answer in sorted(answers, key=lambda answer: answer.gravity):
            try:
                answer.result(f"state {binding.name}")
            except StaleEpoch as error:
                self._of.check_fence()
                raise halts.outside_refuses(self._of.topology, attempt.txid, self._of.epoch, error) from error
            except StateLostTransactions as error:
                if rows.known is None:  # of a user's store, without a reason
                    raise
                self._of.check_fence()
                raise halts.outside_state_lags(self._of.topology, binding.name, error.message, rows.known) from error

    def renew(self, bindings: Iterable[StateBinding]) -> None:
        """Has marks written again that are old, in stores that forget them; between transactions.

        An error is logged: marks that are not renewed are missed only where the store has forgotten them.

        Raises:
            Deposed: another coordinator leads, whose marks they are.
        """
        for binding in bindings:
            name, state = binding.name, binding.state
            if not isinstance(state, OutsideState) or not state.forgets_marks or name not in self._opened:
                continue
            if time.monotonic() - self._opened[name] < _RENEWED_SECS:
                continue
            self._of.check_fence()
            self._opened[name] = time.monotonic()
            call = Renew(self._state(binding), self._of.topology, self._of.incarnation, self._of.epoch)
            try:
                (answer,) = _answers(self._spark, self._of.topology, state, call, 1, True, RENEW_OUTSIDE)
                answer.result(f"state {name}")
            except Exception as error:  # Spark's, too
                log.warning("the marks of state %s were not written again: %s", name, error)

    def close(self, bindings: Iterable[StateBinding]) -> None:
        """Lets go of the connections of this process; called once, after the last transaction."""
        for binding in bindings:
            if isinstance(binding.state, OutsideState) and is_frameworks(binding.state):
                try:
                    binding.state.let_go(self._of.topology)
                except TridentError as error:  # a secret that has gone, for one
                    log.warning("the connections of state %s are not closed: %s", binding.name, error)

    def _tried(self, state: str, txid: int | None, action: Callable[[], Any]) -> Any:
        self._progress.begins(state, txid)
        try:
            return action()
        except Exception as error:
            self._progress.failed(state, error)
            if not isinstance(error, Halted):
                self._of.check_fence()
            raise


def check_store(spark: "SparkSession", topology: str, binding: StateBinding) -> None:
    """Looks whether the store of an outside state can take the rows.

    Raises:
        StateAway: it does not answer.
        TridentError: it cannot.
    """
    state: OutsideState = binding.state
    rows = rows_of(topology, binding)
    if is_frameworks(state):
        state.check_store(rows)  # in this process, so that its error comes as it is
        return
    (answer,) = _answers(spark, topology, state, CheckStore(state, rows), 1, False, OPEN_OUTSIDE)
    answer.result(f"state {binding.name}")


def _answers(
    spark: "SparkSession", topology: str, state: OutsideState, call: Call, count: int, few: bool, point: str
) -> list[Answer]:
    """Makes ``count`` calls: in this process where they are the framework's own and few, else by a task for each."""
    with faults.fault_point(point):
        if few and is_frameworks(state):
            return [answer_of(call, number) for number in range(count)]
        if is_frameworks(state):
            state.let_go(topology)
        frame = spark.range(0, count, 1, count).mapInArrow(Task(call), ANSWER_SCHEMA)
        return [Answer(row.number, row.problem, row.text) for row in frame.collect()]


# Publishes decided batches to users' own states: a Spark job, one task per staged file (docs/semantics.md 9.5).


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
