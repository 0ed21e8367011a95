"""How large the files of a keyed state's plain table are, and which a native MERGE rewrites together: pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How large files are made.

    A file has about one in ``files`` of the table's rows, within two bounds: small files cost readers time, large
    ones are rewritten for few rows.

    Attributes:
        rows_min, rows_max: the bounds.
        bytes_at_once: rows of the table that are about so large in memory are there at once, twice or three times while
            they are put together; a file has half of it at the most.
    """

    rows_min: int = 250_000
    rows_max: int = 1_000_000
    files: int = 32
    bytes_at_once: int = 256 << 20

    def rows_a_file(self, rows: int) -> int:
        return min(max(rows // self.files, self.rows_min), self.rows_max)

    def rows_of_each(self, rows: int, all_rows: int) -> int:
        """How many rows each file gets when some of the table's rows are written: up to half more than it should."""
        wanted = self.rows_a_file(all_rows)
        return rows if rows <= wanted * 1.5 else math.ceil(rows / round(rows / wanted))

    def is_small(self, rows: int, all_rows: int) -> bool:
        """Tells whether a file is joined to one beside it that is rewritten."""
        return rows < self.rows_a_file(all_rows) / 4


def runs(changed: Sequence[bool], small: Sequence[bool]) -> list[list[int]]:
    """Which of a table's files are rewritten together, given in the order of their keys.

    Args:
        changed: whether keys of the file's range have changed.
        small: whether the file is joined to one beside it that is rewritten.

    Returns:
        the places of files that lie side by side, a list for each run.
    """
    taken = list(changed)
    for places in (range(1, len(taken)), range(len(taken) - 2, -1, -1)):
        for at in places:
            beside = at - 1 if places.step > 0 else at + 1
            taken[at] = taken[at] or (small[at] and taken[beside])
    found: list[list[int]] = []
    for at, chosen in enumerate(taken):
        if chosen and at and taken[at - 1]:
            found[-1].append(at)
        elif chosen:
            found.append([at])
    return found
