"""The order of dead letters and replays: after a ``trident reset`` that keeps tables txids begin at 1 again.

A staged file is in a folder of its incarnation, which names the first start that it goes back to; among rows of one
first start txids say which came first. A file that an OPTIMIZE has written does not say it: there the times count, by
the clocks of the hosts that led.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from trident.coordinators.identities import first_id
from trident.states.delta.kernel_files import LiveFile

_STAGED = re.compile(r"data/([^/]+)/\d+-\d+-[^/]+/")


class LetterRow(NamedTuple):
    """A row of a table of dead letters.

    Attributes:
        first_start: the first start that its transaction goes back to; None: not known.
        row: its columns.
    """

    first_start: str | None
    row: dict[str, Any]


class ReplayEnd(NamedTuple):
    """The end of a replay, or that one was asked for.

    Attributes:
        first_start: that of the stream's table of messages. A reset deletes the table: all its rows have one.
        txid: in which the replay ended; infinite where it has not.
        at: when; None where it has not.
        outcome: "asked for", "acked", "failed" or "dead".
    """

    first_start: str
    txid: float
    at: datetime | None
    outcome: str

    def is_after(self, letter: LetterRow) -> bool:
        """Tells whether the letter was there first: then the replay may be its own."""
        if self.at is None:
            return True
        if letter.first_start is None:
            return bool(self.at > letter.row["given_up_at"])
        return letter.first_start != self.first_start or self.txid > letter.row["txid"]


ASKED = ReplayEnd("", math.inf, None, "asked for")


def first_start_of(file: LiveFile) -> str | None:
    """The first start that a file's rows go back to; None: not known."""
    staged = _STAGED.match(file.path)
    return first_id(staged[1]) if staged else None


def in_order(rows: Iterable[LetterRow]) -> list[LetterRow]:
    """The oldest first: by time, but by txid where the first start is the same, as clocks of hosts differ."""
    by_time = sorted(rows, key=lambda one: (one.row["given_up_at"], one.row["txid"]))
    by_txid: dict[str, list[LetterRow]] = {}
    for one in by_time:
        if one.first_start is not None:
            by_txid.setdefault(one.first_start, []).append(one)
    of_start = {
        first_start: iter(sorted(some, key=lambda one: one.row["txid"])) for first_start, some in by_txid.items()
    }
    return [one if one.first_start is None else next(of_start[one.first_start]) for one in by_time]
