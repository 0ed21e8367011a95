"""How Spark merges partial values of a state: one native merge for each aggregator's stored name.

A reader in another process has no topology: from the name in a state's
descriptor it must know how log rows and the table's values make one value.
Everything here is associative and commutative, so neither the order of the log
nor how much of it was merged already can show in a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F


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


def _add(a: "Column", b: "Column") -> "Column":
    return F.coalesce(a + b, a, b)


NATIVE: Mapping[str, NativeMerge] = {
    "count": NativeMerge(F.sum, _add),
    "sum": NativeMerge(F.sum, _add),
    "min": NativeMerge(F.min, F.least),
    "max": NativeMerge(F.max, F.greatest),
}
