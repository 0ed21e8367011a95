"""States as DataFrames: as of the transaction before, for what a batch looks up; and as users ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from trident.coordinators.errors import TableError
from trident.states.core.binding import StateBinding, TablelessKind
from trident.states.core.place import Place
from trident.states.delta.log_tables import LogTables
from trident.states.keyed.asked_keys import key_rows, plain_rows
from trident.states.keyed.copy_combine import arrow_schema
from trident.states.keyed.key_reads import as_python
from trident.states.keyed.log_merge import quoted, same_key
from trident.states.keyed.reading import base_of

_ASKED = "__trident_asked"


class StoredFrames:
    """Gives a group's states, as of exact transactions, to the batch that looks them up, or to requests side by side.

    Each of the two has its own: a batch never waits for a request.
    """

    def __init__(self, spark: "SparkSession", warehouse: Place) -> None:
        self._spark, self._warehouse = spark, warehouse
        self._tables = LogTables()
        self._memory: dict[str, tuple[Any, "DataFrame"]] = {}

    def __call__(
        self,
        binding: StateBinding,
        keys: "DataFrame | None",
        txid: int,
        entries: Mapping[tuple[Any, ...], Any] | None = None,
    ) -> "DataFrame":
        """Keys and values of the state as of txid, of the keys asked at least.

        Args:
            entries: of a memory map, as of txid; None: as it is now.

        Raises:
            SnapshotUnavailable: that transaction is no longer kept.
        """
        if entries is not None:
            return self._of_memory(binding, entries)
        if isinstance(kind := binding.state_kind, TablelessKind):
            return self._spark.createDataFrame(kind.rows_now(binding, ""), binding.schema)
        return base_of(self._spark, self._warehouse, binding.name, keys, txid, binding.aggregator, self._tables)

    def _of_memory(self, binding: StateBinding, entries: Mapping[tuple[Any, ...], Any]) -> "DataFrame":
        """A frame of the entries; the last one is kept, since a map that has not changed gives the same."""
        known, frame = self._memory.get(binding.name, (None, None))
        if frame is None or known is not entries:
            rows = [key + value for key, (_, value) in entries.items()]
            frame = self._spark.createDataFrame(rows, binding.schema)
            self._memory[binding.name] = entries, frame
        return frame


def own_snapshot(
    spark: "SparkSession", kind: TablelessKind, binding: StateBinding, txid: int | None, incarnation: str
) -> "DataFrame":
    """Returns what a state that is not a Delta table holds now.

    Raises:
        TableError: an earlier transaction was asked for, which it does not keep.
        TopologyError: the state cannot be listed.
    """
    if txid is not None:
        raise TableError(f"state {binding.name} keeps no earlier transactions", found=f"txid={txid}", expected="None")
    return spark.createDataFrame(kind.rows_now(binding, incarnation), binding.schema)


def values_by_spark(
    frame: "DataFrame", name: str, keys: Sequence[str], asked: Sequence[Any]
) -> list[dict[str, Any] | None]:
    """The values of some keys of a frame with a keyed state's rows, as ``key_reads`` gives them, by a job of Spark.

    Raises:
        FieldError: a key does not fit.
    """
    columns = [StructField(key, frame.schema[key].dataType) for key in keys]
    arrow = arrow_schema(StructType(columns))
    rows = plain_rows(key_rows(name, arrow, keys, asked), arrow)
    schema = StructType([StructField(_ASKED, LongType()), *columns])
    sent = frame.sparkSession.createDataFrame([(at, *row) for at, row in enumerate(rows)], schema)
    found = frame.alias("t").join(F.broadcast(sent).alias("s"), same_key(keys, "t", "s"))
    values = [field for field in frame.columns if field not in keys]
    table = found.select(quoted(_ASKED, "s"), *(quoted(field, "t") for field in values)).toArrow()
    answers = dict(zip(table.column(_ASKED).to_pylist(), as_python(name, values, table), strict=True))
    return [answers.get(at) for at in range(len(asked))]
