"""The periods of a keyed state that keeps the history of its keys, made of its changes when it is read."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from trident.states.core.descriptor import StateDescriptor
from trident.states.core.names import backquoted
from trident.states.core.tables import DELETED_COLUMN

VALID_FROM, VALID_TO = "valid_from", "valid_to"


def periods(state: StateDescriptor, changes: "DataFrame") -> "DataFrame":
    """Keys, values, and from which place of the sequence to which they are valid; deletes are the ends of periods.

    Args:
        changes: all rows of the state.
    """
    by, gone = F.col(backquoted(state.history_by)), F.lit(False)
    if state.history_end:
        gone = F.coalesce(F.col(backquoted(state.history_end)), F.lit(False))
    keys = [F.col(backquoted(name)) for name in state.keys if name != state.history_by]
    values = [F.col(backquoted(name)) for name in state.value_fields if name != state.history_end]
    next_one = F.lead(by).over(Window.partitionBy(*keys).orderBy(by))
    found = changes.select(*keys, *values, by.alias(VALID_FROM), next_one.alias(VALID_TO), gone.alias(DELETED_COLUMN))
    return found.where(~F.col(DELETED_COLUMN)).drop(DELETED_COLUMN)
