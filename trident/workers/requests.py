"""Answers requests to a function on a worker: one Spark task for many of them, and each for itself.

A request's rows never meet those of another: the plan is run once for each, over its arguments alone. They have in
common what rows of a batch have: the task, the objects of the user's, ``prepare`` and ``cleanup``. Where a request
fails, the objects are thrown away, and made anew for the next one.

Imported by workers: keep its imports light.
"""

from __future__ import annotations

import base64
import json
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from trident.states.publishing.user_tasks import BatchInfo
from trident.workers.arrow_plan import ArrowPlan
from trident.workers.failures import STALE, UserCodeFailed, find_report

if TYPE_CHECKING:
    from trident.states.core.local_copy import CopyAsOf

# The answers of one task; one that is larger alone is computed alone.
ANSWERS_BYTES_MAX = 4 << 20
# No further request is begun in a task that has taken so long.
TASK_SECS_MAX = 0.5
# The kinds of outcome.
ANSWERED, FAILED, MOVED, ALONE, LATER = "answered", "failed", "moved", "alone", "later"


@dataclass(frozen=True)
class RequestId:
    """Stands for a request where a batch has its transaction attempt; aggregators get it as their batch id."""

    request_id: str

    def __str__(self) -> str:
        return self.request_id


@dataclass(frozen=True)
class RequestBatch:
    """Requests as their task is given them.

    Attributes:
        ids: of the requests.
        arguments: a row for each, in the same order.
        info: of all of them; its attempt is put in for each.
        copies: state → its local copy, of each state that is looked up.
    """

    ids: Sequence[str]
    arguments: pa.Table
    info: BatchInfo
    copies: Mapping[str, CopyAsOf]

    def pickled(self) -> bytes:
        return pickle.dumps(self)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request in its task.

    Attributes:
        kind: ANSWERED, FAILED (a function of the user's raised), MOVED (a local copy is not as of its mark any more),
            ALONE (only Spark, or a job of its own, can tell) or LATER (the task had no more time).
        rows: of its answer.
        error: the text of a failure, with its report.
        secs: that it took.
    """

    kind: str
    rows: int = 0
    error: str = ""
    secs: float = 0.0


@dataclass(frozen=True)
class Answers:
    """Called by ``mapInArrow`` with pickles of ``RequestBatch``; gives one text of outcomes and one of rows for each.

    Attributes:
        pickled: the function's ArrowPlan.
        function: the name of its input.
        result: the name of its output.
    """

    pickled: bytes
    function: str
    result: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for one in batch.column(0):
                yield as_batch(*self.outcomes(pickle.loads(one.as_py())))

    def outcomes(self, batch: RequestBatch) -> tuple[list[Outcome], list[pa.Table]]:
        """The outcome of each request, and the rows of those that were answered."""
        outcomes: list[Outcome] = []
        answers: list[pa.Table] = []
        began, size, count = time.perf_counter(), 0, len(batch.ids)
        while len(outcomes) < count:
            with ExitStack() as stack:
                plan = pickle.loads(self.pickled).for_copies(batch.copies)
                stack.enter_context(plan.prepared())
                fresh = True
                while len(outcomes) < count:
                    started = time.perf_counter()
                    if outcomes and (started - began > TASK_SECS_MAX or size > ANSWERS_BYTES_MAX):
                        outcomes += [Outcome(LATER)] * (count - len(outcomes))
                        break
                    outcome, rows = self._one(plan, batch, len(outcomes))
                    if outcome.kind == FAILED and not fresh:
                        break  # an earlier request may have left something in an object: once more, with new ones
                    outcomes.append(replace(outcome, secs=time.perf_counter() - started))
                    if rows is None:
                        break
                    fresh = False
                    size += rows.nbytes
                    answers.append(rows)
        return outcomes, answers

    def _one(self, plan: ArrowPlan, batch: RequestBatch, at: int) -> tuple[Outcome, pa.Table | None]:
        info = replace(batch.info, attempt=RequestId(batch.ids[at]))
        try:
            rows = plan.run_prepared({self.function: batch.arguments.slice(at, 1)}, info)[self.result]
        except UserCodeFailed as error:
            return Outcome(FAILED, error=str(error)), None
        except Exception as error:  # a value of which only Spark knows what becomes of it, say: a job of its own tells
            return Outcome(ALONE if find_report(error, STALE) is None else MOVED, error=str(error)), None
        if rows.nbytes > ANSWERS_BYTES_MAX:
            return Outcome(ALONE), None
        return Outcome(ANSWERED, rows.num_rows), rows


# --- the result of a task ----------------------------------------------------------------


ANSWERS_SCHEMA = pa.schema([("outcomes", pa.string()), ("rows", pa.string())])


def as_batch(outcomes: Sequence[Outcome], answers: Sequence[pa.Table]) -> pa.RecordBatch:
    """Outcomes and rows as one row of texts, which a kept plan returns in one call."""
    sink = pa.BufferOutputStream()
    if answers:
        table = pa.concat_tables(answers)
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    listed = [[one.kind, one.rows, one.error, one.secs] for one in outcomes]
    texts = json.dumps(listed), base64.b64encode(sink.getvalue()).decode("ascii")
    return pa.RecordBatch.from_arrays([pa.array([text]) for text in texts], schema=ANSWERS_SCHEMA)


def read_answers(outcomes: str, rows: str) -> tuple[list[Outcome], pa.Table | None]:
    """Outcomes, and the rows of all answers one behind the other; None where none was answered."""
    data = base64.b64decode(rows)
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all() if data else None
    return [Outcome(*one) for one in json.loads(outcomes)], table
