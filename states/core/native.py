"""How Spark merges partial values of a state: one native merge for each aggregator's stored name.

A reader in another process has no topology: from the name in a state's
descriptor it must know how log rows and the table's values make one value.
Everything here is associative and commutative, so neither the order of the log
nor how much of it was merged already can show in a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class NativeMerge:
    """One native aggregator's merging.

    Attributes:
        merge: an aggregate expression over a column of partial values.
        combine_columns: two partial values of one row into one. Null stands for
            "no value yet", as in SQL's aggregates, and gives the other side.
    """

    merge: Callable[["Column"], "Column"]
    combine_columns: Callable[["Column", "Column"], "Column"]


def _sum(partials: "Column") -> "Column":
    return F.sum(partials)


def _add(a: "Column", b: "Column") -> "Column":
    return F.coalesce(a + b, a, b)


def _min(partials: "Column") -> "Column":
    return F.min(partials)


def _least(a: "Column", b: "Column") -> "Column":
    return F.least(a, b)


def _max(partials: "Column") -> "Column":
    return F.max(partials)


def _greatest(a: "Column", b: "Column") -> "Column":
    return F.greatest(a, b)


NATIVE: Mapping[str, NativeMerge] = {
    "count": NativeMerge(_sum, _add),
    "sum": NativeMerge(_sum, _add),
    "min": NativeMerge(_min, _least),
    "max": NativeMerge(_max, _greatest),
}
