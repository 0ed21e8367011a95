"""Counts the rows in lines of text, CSV or JSON, as `reading.py` makes them; workers import it, so it is small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.spouts.files.tasks import Piece, SourceFailure, blocks_of, lines_of

if TYPE_CHECKING:
    import pyarrow


_NEWLINE = 10
_BLANKS = bytes(range(33))  # those of `parsing.py`


@dataclass(frozen=True)
class LineRows:
    """The number of rows in lines.

    Attributes:
        all_lines: whether each line is a row, as those of text are; else blank lines and comments are none, as
            `parsing.py` has them.
        comment: what a line that is none begins with; empty: there are no comments.
    """

    all_lines: bool
    comment: bytes = b""

    def __call__(self, batch: "pyarrow.RecordBatch") -> int:
        """Of a batch whose first column is lines, as bytes."""
        if self.all_lines:
            return int(batch.num_rows)
        lines = batch.column(0)
        # Few lines begin as one that may be none; only these are looked at one by one.
        firsts = pa.array([b"", *(bytes([one]) for one in self._firsts)], pa.binary())
        some = lines.filter(pc.is_in(pc.binary_slice(lines, 0, 1), value_set=firsts)).to_pylist()
        return int(batch.num_rows - sum(map(self._is_none, some)))

    def of_pieces(self, pieces: Sequence[Piece]) -> int | None:
        """Of parts of files, which are read here; None: one has changed, or cannot be read."""
        try:
            return sum(self._of_block(block) for piece in pieces for block in blocks_of(piece))
        except SourceFailure:
            return None

    def _of_block(self, block: bytes) -> int:
        data = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        if self.all_lines:
            return len(ends)
        # Nearly always no line begins as one that may be none.
        firsts = np.concatenate([data[:1], data[ends[:-1] + 1]])
        some = np.isin(firsts, np.frombuffer(self._firsts, np.uint8)).any()
        return self(lines_of(block)) if some else len(ends)

    @property
    def _firsts(self) -> bytes:
        return _BLANKS + self.comment[:1]

    def _is_none(self, line: bytes) -> bool:
        return not line.strip(_BLANKS) or (self.comment != b"" and line.startswith(self.comment))
