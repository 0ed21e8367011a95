"""Answers requests in the leader's process from the local copies of states: no Spark job, no code of the user's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from trident.planning.requests import DrpcPlan
from trident.planning.results import RESULT
from trident.spark.rows import arrow_rows
from trident.states.core.local_copy import CopyAsOf, StaleCopy
from trident.states.keyed.copies import StateCopies
from trident.states.keyed.state_copy import LogIsPast
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.reports import STALE, LeftToSpark, find_report

# Longer arguments may become more rows than this process should work on beside its threads.
_ARGUMENT_CHARS_MAX = 64 << 10
# So long a transaction that is published and not advanced yet is waited for.
_ADVANCES_SECS = 0.05
_TRIES = 10


def is_long(values: Sequence[Any]) -> bool:
    """Tells whether a request's arguments may become more rows than should be held beside those of others."""
    return length(values) > _ARGUMENT_CHARS_MAX


def length(values: Sequence[Any]) -> int:
    """The characters and bytes of a request's arguments."""
    return sum(len(value) for value in values if isinstance(value, (str, bytes)))


class StatesAsOf:
    """The local copies of the states that functions ask, as of the last advanced transactions.

    Args:
        copies: batch group → the copies of its states; None: it has none here.
        advanced: batch group → a function that gives its last advanced txid.
        workers_are_here: Spark's tasks run on this host, and so find the copies.
    """

    def __init__(
        self,
        copies: Callable[[str], StateCopies | None],
        advanced: Mapping[str, Callable[[], int]],
        workers_are_here: bool = True,
    ) -> None:
        self._copies, self._advanced, self.workers_are_here = copies, advanced, workers_are_here
        self._known: dict[tuple[str, frozenset[str]], tuple[int, dict[str, CopyAsOf]]] = {}
        self._locks = {group: threading.Lock() for group in advanced}

    def pinned(self, plan: DrpcPlan) -> dict[str, int]:
        """The last advanced transaction of each group that a function asks."""
        return {group: self._advanced[group]() for group in plan.groups}

    def get(self, plan: DrpcPlan, as_of: Mapping[str, int]) -> dict[str, CopyAsOf] | None:
        """The copies of the states of a function as of these transactions; None where one of them has none.

        Raises:
            LogIsPast: a state's log has a later transaction already, which is about to advance.
        """
        found: dict[str, CopyAsOf] = {}
        for group, txid in as_of.items():
            copied = plan.lowered.copied_states
            states = frozenset(name for name, (_, of) in plan.states.items() if of == group and name in copied)
            if not states:
                continue
            with self._locks[group]:  # one thread brings them on; the others find them
                known = self._known.get((group, states))
                if known is None or known[0] != txid:
                    copies = self._copies(group)
                    made = None if copies is None else copies.as_of_or_past(states, txid)
                    if made is None:
                        return None
                    known = self._known[group, states] = (txid, made)
            found |= known[1]
        return found

    def for_tasks(self, plan: DrpcPlan, as_of: Mapping[str, int]) -> dict[str, CopyAsOf] | None:
        """As ``get``, for Spark's tasks; None also where they do not find the copies."""
        return self.get(plan, as_of) if self.workers_are_here else None

    def moved(self, plan: DrpcPlan, as_of: Mapping[str, int], deadline: float) -> bool:
        """Waits for a transaction that is published and will advance; False where none does."""
        end = min(deadline, time.monotonic() + _ADVANCES_SECS)
        while time.monotonic() < end:
            if self.pinned(plan) != as_of:
                return True
            time.sleep(0.001)
        return False

    def could_not_use(self, plan: DrpcPlan, used: Mapping[str, CopyAsOf], error: BaseException) -> None:
        """A copy was not what its mark says: the next request asks for it anew.

        Most often it has gone on since. One that has not is damaged, and is built again.
        """
        for group in plan.groups:
            with self._locks[group]:
                for key in [key for key in self._known if key[0] == group]:
                    del self._known[key]
        report = find_report(error, STALE)
        if report is not None and report["state"] in used:
            copies = self._copies(plan.states[report["state"]][1])
            if copies is not None:
                copies.damaged(report["state"], used[report["state"]], report["error"])


class AnswersHere:
    """Answers the requests of functions all of whose steps are the framework's own.

    Args:
        binary_as_bytes: the session's setting for rows that are collected.
    """

    def __init__(self, states: StatesAsOf, binary_as_bytes: bool) -> None:
        self._states, self._binary_as_bytes = states, binary_as_bytes

    def answer(
        self, plan: DrpcPlan, values: tuple[Any, ...], info: BatchInfo, deadline: float
    ) -> tuple[list[Row], dict[str, int]] | None:
        """The rows of an answer and the transactions that it is as of; None: Spark is to answer.

        Each state that it reads is as of the same transaction of its group: a look-up asks for the copy's mark.
        """
        if plan.in_driver is None or is_long(values):
            return None
        inputs = {plan.function: arrow_rows([values], plan.arguments)}
        for _ in range(_TRIES):
            as_of = self._states.pinned(plan)
            try:
                copies = self._states.get(plan, as_of)
            except LogIsPast:
                if not self._states.moved(plan, as_of, deadline):
                    return None
                continue
            if copies is None:
                return None
            try:
                return self.rows(plan.in_driver.run(inputs, info, copies)[RESULT], plan.result), as_of
            except StaleCopy as error:
                self._states.could_not_use(plan, copies, error)
            except (LeftToSpark, PySparkException, pa.ArrowException, ArithmeticError, TypeError, ValueError):
                return None  # Spark says what becomes of it
        return None

    def rows(self, table: pa.Table, schema: StructType) -> list[Row]:
        """Rows as Spark's ``collect`` gives them."""
        times = [at for at, field in enumerate(schema) if isinstance(field.dataType, TimestampType)]
        fields = list(schema)
        for at in times:  # PySpark's way from Arrow loses which one of an hour that comes twice it is
            table = table.set_column(at, fields[at].name, table.column(at).cast(pa.int64()))
            fields[at] = StructField(fields[at].name, LongType())
        whole = StructType(fields)
        rows = ArrowTableToRowsConversion.convert(table, whole, binary_as_bytes=self._binary_as_bytes)
        found = [row for row in rows if isinstance(row, Row)]
        return [_with_times(row, times) for row in found] if times else found


def _with_times(row: Row, times: Sequence[int]) -> Row:
    values = list(row)
    for at in times:
        values[at] = None if values[at] is None else TimestampType().fromInternal(values[at])
    return Row(**dict(zip(row.__fields__, values, strict=True)))
