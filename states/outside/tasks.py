"""The calls of an outside state, in whichever process: in the coordinator's, or as a task on an executor.

Imported by Spark's Python workers: keep its imports light.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trident.coordinators.errors import (
    ForeignMarks,
    OutcomeUnknown,
    StaleEpoch,
    StateAway,
    StateLostTransactions,
    TridentError,
)
from trident.states.core import storage
from trident.states.outside.port import OutsideMark, OutsidePart, OutsideRows, OutsideState

ANSWER_SCHEMA = "number int, problem string, text string"
_AWAY, _REFUSED = "away", "refused"
# The gravest first: what stops the topology at once, what is counted, what is waited for.
_KINDS: dict[str, type[TridentError]] = {
    "stale": StaleEpoch,
    "behind": StateLostTransactions,
    "foreign": ForeignMarks,
    _REFUSED: TridentError,
    _AWAY: StateAway,
}


@dataclass(frozen=True)
class Answer:
    """The outcome of one call: an error of the state's is one, and not a failed task, which Spark would run again.

    Attributes:
        problem: "" when it was done.
        text: the result as JSON, or the error's message.
    """

    number: int
    problem: str = ""
    text: str = ""

    def result(self, what: str) -> Any:
        """Returns the value that the call gave.

        Args:
            what: the state, for the message of an error that does not name it.

        Raises:
            StaleEpoch, StateLostTransactions, ForeignMarks, StateAway, TridentError: as the call did.
        """
        if not self.problem:
            return json.loads(self.text)
        is_named = re.match(rf"{re.escape(what)}\b", self.text)  # the state's own errors begin with it
        raise _KINDS[self.problem](self.text if is_named else f"{what}: {self.text}")

    @property
    def gravity(self) -> int:
        """The smaller, the graver: of many answers the gravest is to be raised."""
        return [*_KINDS, ""].index(self.problem)


@dataclass(frozen=True)
class Publish:
    """Publishes parts of a decided transaction.

    Attributes:
        parts: each with its staged files as (full path, rows).
    """

    state: OutsideState
    parts: Sequence[tuple[OutsidePart, Sequence[tuple[storage.AnyPath, int]]]]

    def __call__(self, number: int) -> Any:
        part, files = self.parts[number]
        self.state.publish(part, _batches(files))
        return None


@dataclass(frozen=True)
class CheckStore:
    """Looks whether the store can take the rows."""

    state: OutsideState
    rows: OutsideRows

    def __call__(self, number: int) -> Any:
        self.state.check_store(self.rows)
        return None


@dataclass(frozen=True)
class TakeOver:
    """Closes the store to older coordinators, and gives its marks."""

    state: OutsideState
    topology: str
    incarnation: str
    epoch: int

    def __call__(self, number: int) -> Any:
        found = self.state.take_over(self.topology, self.incarnation, self.epoch)
        return [[part, dataclasses.asdict(mark)] for part, mark in found.items()]


@dataclass(frozen=True)
class Renew:
    """Writes the store's marks again."""

    state: OutsideState
    topology: str
    incarnation: str
    epoch: int

    def __call__(self, number: int) -> Any:
        self.state.renew(self.topology, self.incarnation, self.epoch)
        return None


def marks_of(answer: Any) -> dict[int, OutsideMark]:
    """The marks of a TakeOver, from its result."""
    return {int(part): OutsideMark(**mark) for part, mark in answer}


Call = Callable[[int], Any]


def answer_of(call: Call, number: int) -> Answer:
    """Makes one call of a state's."""
    try:
        return Answer(number, "", json.dumps(call(number)))
    except (StaleEpoch, StateLostTransactions, ForeignMarks) as error:
        (problem,) = (name for name, kind in _KINDS.items() if type(error) is kind)
        return Answer(number, problem, str(error))
    except (StateAway, OutcomeUnknown) as error:
        return Answer(number, _AWAY, str(error))
    except TridentError as error:
        return Answer(number, _REFUSED, str(error))
    except Exception as error:
        return Answer(number, _REFUSED, f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Task:
    """The function for mapInArrow over the numbers of calls."""

    call: Call

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([("number", pa.int32()), ("problem", pa.string()), ("text", pa.string())])
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows: list[Mapping[str, Any]] = [dataclasses.asdict(answer_of(self.call, number))]
                yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _batches(files: Sequence[tuple[storage.AnyPath, int]]) -> Iterator[pa.RecordBatch]:
    """The rows of staged files, in the order of the files."""
    import pyarrow.parquet as pq  # time: 20 ms of each worker

    for path, rows in files:
        file = pq.ParquetFile(io.BytesIO(storage.read(path)))
        if file.metadata.num_rows != rows:
            raise TridentError(f"the staged file {path} has {file.metadata.num_rows} of {rows} rows")
        yield from file.iter_batches()
