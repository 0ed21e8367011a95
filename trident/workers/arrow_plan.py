"""Runs segments over Arrow in one process: on a worker, or in the driver where all steps are the framework's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from trident.workers.chain import Chain, Step
from trident.workers.lifecycle import prepared

SIDE = "__trident_side"


@dataclass(frozen=True)
class ArrowSegment:
    """The rows under one name, or several, become those under another.

    Attributes:
        begins: where they are several, SIDE says of each row which.
        chain: its schema is that of the rows that it gives.
    """

    begins: tuple[str, ...]
    ends: str
    chain: Chain

    def batches(self, rows: Mapping[str, pa.Table]) -> Iterator[pa.RecordBatch]:
        """The rows that it begins with."""
        for side, name in enumerate(self.begins):
            for batch in rows[name].to_batches():
                if len(self.begins) > 1:
                    batch = batch.append_column(SIDE, pa.repeat(pa.scalar(side, pa.int32()), batch.num_rows))
                yield batch


@dataclass(frozen=True)
class ArrowPlan:
    """Segments that run one behind the other.

    Attributes:
        outputs: name of an output → the name of its rows.
    """

    segments: tuple[ArrowSegment, ...]
    outputs: Mapping[str, str]

    def run(self, inputs: Mapping[str, pa.Table], info: Any, copies: Any) -> dict[str, pa.Table]:
        """The outputs' rows.

        Args:
            inputs: the rows that segments begin with, by name.
            info: a BatchInfo.
            copies: state → its local copy, of each state that is looked up.

        Raises:
            StaleCopy: a copy is not that of its mark.
            LeftToSpark: only Spark knows what becomes of a value.
        """
        rows = dict(inputs)
        for segment in self.segments:
            chain = segment.chain.for_batch(info, copies)
            batches = chain(segment.batches(rows))
            rows[segment.ends] = pa.Table.from_batches(batches, schema=chain.schema)
        return {output: rows[name] for output, name in self.outputs.items()}

    # --- several times, with objects of the user's that are prepared once --------------------

    def for_copies(self, copies: Any) -> ArrowPlan:
        """The plan with local copies of states, for ``run_prepared``."""
        segments = tuple(replace(one, chain=one.chain.with_copies(copies)) for one in self.segments)
        return replace(self, segments=segments)

    def prepared(self) -> AbstractContextManager[None]:
        """Prepares the objects of all steps, and cleans them up behind."""
        return prepared([step for segment in self.segments for step in segment.chain.steps])

    def run_prepared(self, inputs: Mapping[str, pa.Table], info: Any) -> dict[str, pa.Table]:
        """As ``run``, with the copies of ``for_copies``, within ``prepared``; once for each input."""
        rows = dict(inputs)
        for segment in self.segments:
            chain = segment.chain.with_info(info)
            rows[segment.ends] = pa.Table.from_batches(chain.pass_over(segment.batches(rows)), schema=chain.schema)
        return {output: rows[name] for output, name in self.outputs.items()}

    @property
    def in_driver(self) -> OwnPlan | None:
        """The plan for the coordinator's process; None where it calls code of the user's."""
        return OwnPlan(self.segments, self.outputs) if self.is_own else None

    def has_times(self, schemas: Iterable[pa.Schema]) -> bool:
        """Tells whether there are times in the rows that it begins with, or around a segment with code of the user's.

        Args:
            schemas: of the rows that it begins with.
        """
        users = [one for one in self.segments if not _is_own(one)]
        around = {name for one in users for name in (*one.begins, one.ends)}
        between = [*schemas, *(segment.chain.schema for segment in self.segments if segment.ends in around)]
        return any("timestamp" in str(field.type) for schema in between for field in schema)

    @property
    def is_own(self) -> bool:
        """Tells whether each step says that it is the framework's own."""
        return all(map(_is_own, self.segments))


def _is_own(segment: ArrowSegment) -> bool:
    return all(isinstance(step, Step) and step.own for step in segment.chain.steps)


@dataclass(frozen=True)
class OwnPlan(ArrowPlan):
    """A plan of the framework's own steps alone: the only kind that runs in the coordinator's process."""

    def __post_init__(self) -> None:
        if not self.is_own:
            raise AssertionError("code of the user's never runs in the coordinator's process")
