"""The table of guarantees: the effect of a source's row on a state, whatever fails; kinds of states write its lines."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Guarantee(enum.Enum):
    """The effect of a row of the source on a state, whatever fails."""

    EXACTLY_ONCE = "exactly once"
    UNLESS_WOKEN = "exactly once unless an old coordinator wakes up"
    AT_LEAST_ONCE = "at least once"
    AT_MOST_ONCE = "at most once"
    NEITHER = "not exactly once"


@dataclass(frozen=True)
class GuaranteeRow:
    """A line of the table of guarantees (docs/semantics.md 5).

    Attributes:
        name: short, for tests.
        state: as docs/guarantees.md shows it.
        guarantee: with a transactional or an opaque spout.
        better: how its user has exactly once with this kind of state, if that is possible.
    """

    name: str
    state: str
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    better: str = ""
