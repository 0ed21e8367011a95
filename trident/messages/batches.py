"""Runs a batch of tracked messages until those that fail have left it (docs/semantics.md 6).

A batch is run; its ledger says which messages have failed; without these it is
run again, until none fails. Where the rows cannot tell (a worker that dies, a
function behind a join or in the transaction's turn), parts of the batch are run:
the shortest beginning that fails is searched for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from trident.coordinators.errors import FailedException, UserFunctionError
from trident.coordinators.identities import TransactionAttempt
from trident.messages.executor import MessageSpoutExecutor
from trident.messages.ledger import BatchLedger, Failure, drop_old
from trident.spark.rows import Slot
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.delta.staging import StagingTarget
from trident.states.publishing.dead_letters import stage_ends, stage_letters
from trident.udf.signatures import translate_failure
from trident.workers.anchors import ANCHORS, read_anchors
from trident.workers.failures import find_report

log = logging.getLogger("trident.messages")
# This many messages are looked for by running parts of a batch, then the attempt fails: a service that is down fails
# all.
_BLAMED_MAX = 100
Staged = dict[str, list[Any]]
# The batch of each stream, as a frame or as a kept plan reads it.
Inputs = Mapping[str, "DataFrame | Slot"]
# The batches by stream → what was staged.
Run = Callable[[Inputs], Staged]


class Watch(Protocol):
    """Looks after an attempt that runs."""

    @property
    def given_up(self) -> bool:
        """Tells whether the coordinator no longer waits for it, or it is over its time."""

    def begin_run(self) -> None:
        """It has its whole time again."""


class TrackedBatches:
    """The tracked streams of a batch group.

    Args:
        anchored: those whose rows need anchors: a function behind them may fail for a row.
        to_input: what an executor emitted, with or without anchors, as the runner takes it.
        targets: where results are staged; the streams' tables among them.
        tables: stream → the name of its table of messages; "" → that of the dead letters.
    """

    def __init__(
        self,
        spark: "SparkSession",
        executors: Mapping[str, MessageSpoutExecutor],
        anchored: Collection[str],
        to_input: Callable[[str, Any, bool], "DataFrame | Slot"],
        targets: Sequence[StagingTarget],
        tables: Mapping[str, str],
        folder: Place,
        incarnation: str,
    ) -> None:
        self._spark, self._executors, self._anchored, self._to_input = spark, executors, anchored, to_input
        self._roots = {target.name: target.root for target in targets}
        self._tables, self._incarnation = tables, incarnation
        self._ledgers = folder / "ledgers"
        drop_old(self._ledgers)

    def process(self, attempt: TransactionAttempt, inputs: Inputs, run: Run, watch: Watch) -> Staged:
        """Runs the attempt until no message fails; the rows staged then are without those that did.

        Args:
            inputs: of the streams that are not tracked.

        Raises:
            Exception: the batch fails, and not because of some of its messages.
        """
        failures, blamed = self._suspects(attempt), 0
        while True:
            try:
                staged, found = self._once(attempt, inputs, failures, run, watch)
            except Exception as error:
                if blamed == _BLAMED_MAX:
                    raise
                found = self._blame(attempt, inputs, failures, run, error, watch)
                blamed += 1
            else:
                if not found:
                    break
                self._discard(staged)
            failures.update(found)
            # When the time is up before all are found, the next attempt need not find these again.
            self._suspect(attempt, found)
            log.info(
                "%d messages of attempt %s failed, the batch is run without them: %s",
                len(found),
                attempt,
                next(iter(found.values())),
            )
        return {**staged, **self._ends(attempt, failures)}

    def blame_late(self, attempt: TransactionAttempt, run: Run, error: Exception, watch: Watch) -> None:
        """Finds the messages for which the attempt failed in its transaction's turn; the next one is without them.

        Raises:
            Exception: the error: there are none.
        """
        failures, known = self._suspects(attempt), 0
        while True:
            try:
                found = self._blame(attempt, {}, failures, run, error, watch)
            except Exception:
                if known:
                    return  # without those that were found it passes, or the time is up
                raise
            failures.update(found)
            known += 1
            if known == _BLAMED_MAX:
                return
            self._suspect(attempt, found)
            log.info("a message failed attempt %s in its turn: %s", attempt, next(iter(found.values())))

    # --- one run -------------------------------------------------------------------------------

    def _once(
        self,
        attempt: TransactionAttempt,
        inputs: Inputs,
        without: Collection[int],
        run: Run,
        watch: Watch,
    ) -> tuple[Staged, dict[int, Failure]]:
        """Returns what was staged without some messages, and which others have failed."""
        watch.begin_run()
        ledger = BatchLedger(self._ledgers)
        try:
            batches = {**inputs, **self._batches(attempt, frozenset(without), ledger)}
            with ledger.given_to_tasks(self._spark):
                staged = run(batches)
            return staged, ledger.failures() if self._anchored else {}
        finally:
            ledger.drop()

    def _batches(
        self, attempt: TransactionAttempt, without: frozenset[int], ledger: BatchLedger
    ) -> "dict[str, DataFrame | Slot]":
        batches = {}
        for tx_id, executor in self._executors.items():
            anchors = tx_id in self._anchored
            emitted = executor.emit(attempt, without, anchors)
            if anchors:
                rows: Any = emitted.data
                _, roots, ids = read_anchors(rows.column(ANCHORS).combine_chunks())
                ledger.init(roots, ids)
            batches[tx_id] = self._to_input(tx_id, emitted, anchors)
        return batches

    def _suspects(self, attempt: TransactionAttempt) -> dict[int, Failure]:
        found: dict[int, Failure] = {}
        for executor in self._executors.values():
            found.update(executor.suspects(attempt))
        return found

    def _suspect(self, attempt: TransactionAttempt, found: Mapping[int, Failure]) -> None:
        for executor in self._executors.values():
            executor.suspect(attempt, found)

    # --- whose fault it is ---------------------------------------------------------------------

    def _blame(
        self,
        attempt: TransactionAttempt,
        inputs: Inputs,
        failures: Mapping[int, Failure],
        run: Run,
        error: Exception,
        watch: Watch,
    ) -> dict[int, Failure]:
        """One message with which the batch fails, and without which those before it do not.

        The shortest beginning of the batch that fails ends with it, so a message is found too that only fails
        beside another one, as in a join.

        Raises:
            Exception: the error itself: no row can be the reason, or the batch fails without any too.
        """
        everything = [
            one.root
            for executor in self._executors.values()
            for one in executor.messages(attempt)
            if one.key and one.root not in failures
        ]

        def fails(count: int) -> Exception | None:
            """Why the first this many messages fail."""
            if watch.given_up:
                raise error
            try:
                self._discard(self._once(attempt, inputs, {*failures, *everything[count:]}, run, watch)[0])
            except Exception as found:
                return found
            return None

        if not everything or watch.given_up or not _may_be_of_a_row(error, attempt):
            raise error
        # The whole batch is run once more: no message is to blame for what fails only now and then.
        passing, failing, reason = -1, len(everything), fails(len(everything))
        while reason is not None and failing - passing > 1:
            middle = (passing + failing) // 2
            found = fails(middle)
            if found is None:
                passing = middle
            else:
                failing, reason = middle, found
        # Once more: a service that comes and goes leads the search anywhere.
        if reason is None or failing == 0 or not _may_be_of_a_row(reason, attempt) or fails(failing) is None:
            raise error
        return {everything[failing - 1]: _failure_of(reason, attempt)}

    # --- how it ends -----------------------------------------------------------------------------

    def _ends(self, attempt: TransactionAttempt, failures: Mapping[int, Failure]) -> Staged:
        staged: Staged = {}
        letters: list[dict[str, Any]] = []
        for tx_id, executor in self._executors.items():
            outcome = executor.outcome(attempt, failures)
            name = self._tables[tx_id]
            staged[name] = stage_ends(self._roots[name], self._incarnation, attempt, outcome.ends)
            letters += outcome.letters
        name = self._tables[""]
        staged[name] = stage_letters(self._roots[name], self._incarnation, attempt, letters)
        return staged

    def _discard(self, staged: Staged) -> None:
        """Files of a run that does not count; a file that stays goes with the attempt's folder."""
        for name, files in staged.items():
            for file in files:
                storage.delete(self._roots[name] / file.path)


def _may_be_of_a_row(error: Exception, attempt: TransactionAttempt) -> bool:
    """Tells whether a row may be the reason: a function raised for one, and not to fail the batch, or a worker died."""
    if isinstance(translate_failure(error, attempt), FailedException):
        return False
    report = find_report(error)
    if report is not None:
        return report["place"] not in ("in prepare", "in cleanup")
    # SQLSTATE 22: a value that an expression of Spark cannot take.
    return any(known in str(error) for known in ("Python worker exited", "ExecutorLostFailure", "SQLSTATE: 22"))


def _failure_of(error: Exception, attempt: TransactionAttempt) -> Failure:
    translated = translate_failure(error, attempt)
    if isinstance(translated, UserFunctionError):
        first = str(translated).splitlines()[0]
        return Failure(translated.operation or "", translated.location or "", first)
    lines = [line for line in str(translated).splitlines() if line.strip()] or [type(error).__name__]
    died = next((line.strip() for line in lines if "Python worker exited" in line or "crashed" in line), lines[0])
    return Failure("", "", died[:2_000], str(translated)[:8_000])
