"""Which life of a topology a dead letter is of: behind a ``trident reset`` that keeps tables txids begin at 1 again.

A staged file lies in a folder of its incarnation, so of its rows the life is known, and within a life txids tell what
came first. Of a file that an OPTIMIZE has written it is not: there the times tell, which are those of the
hosts that led.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from trident.coordinators.incarnation_ids import first_id
from trident.states.delta.kernel_files import LiveFile

_STAGED = re.compile(r"data/([^/]+)/\d+-\d+-[^/]+/")


class LetterRow(NamedTuple):
    """A row of a table of dead letters.

    Attributes:
        life: the first start that its transaction goes back to; None: not known.
        row: its columns.
    """

    life: str | None
    row: dict[str, Any]


class ReplayEnd(NamedTuple):
    """The end of a replay, or that one was asked for.

    Attributes:
        life: that of the stream's table of messages. A reset deletes the table: all its rows are of one life.
        txid: in which the replay ended; infinite where it has not.
        at: when; None where it has not.
        outcome: "asked for", "acked", "failed" or "dead".
    """

    life: str
    txid: float
    at: datetime | None
    outcome: str

    def is_behind(self, letter: LetterRow) -> bool:
        """Tells whether a letter was there before: then the replay may be its own."""
        if self.at is None:
            return True
        if letter.life is None:
            return bool(self.at > letter.row["given_up_at"])
        return letter.life != self.life or self.txid > letter.row["txid"]


ASKED = ReplayEnd("", math.inf, None, "asked for")


def life_of(file: LiveFile) -> str | None:
    """The life of a file's rows; None: not known."""
    staged = _STAGED.match(file.path)
    return first_id(staged[1]) if staged else None


def in_order(rows: Iterable[LetterRow]) -> list[LetterRow]:
    """The oldest first: by time, but within a life by txid, whatever the clocks of its hosts said."""
    by_time = sorted(rows, key=lambda one: (one.row["given_up_at"], one.row["txid"]))
    by_txid: dict[str, list[LetterRow]] = {}
    for one in by_time:
        if one.life is not None:
            by_txid.setdefault(one.life, []).append(one)
    of_life = {life: iter(sorted(some, key=lambda one: one.row["txid"])) for life, some in by_txid.items()}
    return [one if one.life is None else next(of_life[one.life]) for one in by_time]
