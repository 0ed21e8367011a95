"""Runs segments over Arrow in one process: on a worker, or in the driver where all steps are the framework's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trident.workers.chain import Chain, Step


@dataclass(frozen=True)
class ArrowSegment:
    """The rows under one name become those under another.

    Attributes:
        chain: its schema is that of the rows that it gives.
    """

    begins: str
    ends: str
    chain: Chain


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
            batches = chain(iter(rows[segment.begins].to_batches()))
            rows[segment.ends] = pa.Table.from_batches(batches, schema=chain.schema)
        return {output: rows[name] for output, name in self.outputs.items()}

    @property
    def in_driver(self) -> OwnPlan | None:
        """The plan for the coordinator's process; None where it calls code of the user's."""
        return OwnPlan(self.segments, self.outputs) if self.is_own else None

    @property
    def is_own(self) -> bool:
        """Tells whether each step says that it is the framework's own."""
        return all(isinstance(step, Step) and step.own for one in self.segments for step in one.chain.steps)


@dataclass(frozen=True)
class OwnPlan(ArrowPlan):
    """A plan of the framework's own steps alone: the only kind that runs in the coordinator's process."""

    def __post_init__(self) -> None:
        if not self.is_own:
            raise AssertionError("code of the user's never runs in the coordinator's process")
