"""A batch's data as a DataFrame; and slots, by which one plan reads the rows of every batch."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union

import pyarrow
import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StructField, StructType

from trident.coordinators.errors import SourceError
from trident.states.core.names import backquoted
from trident.states.core.typed_values import WrongValue, fitted, table_of

# Slots: the rows of a batch as a local property of its Spark job names them, so that one plan reads every batch.
#
# A local property belongs to one job, goes to the executors with each of its tasks, and never changes. So a task that
# is
# tried again, runs twice or runs on another executor reads the rows of its own attempt, and attempts share nothing.


# The rows of a larger batch are not put into a property: it is kept with the job, and sent to each Python worker.
ROWS_BYTES_MAX = 1 << 20


class Slot(Protocol):
    """The input of one attempt, in one Spark partition."""

    @property
    def shape(self) -> Hashable:
        """One plan reads all inputs of the same shape."""

    @property
    def rows(self) -> str:
        """The local property, which names the rows."""

    def over(self, kept: Any, property: str) -> "DataFrame":
        """A frame of the rows that a local property will name.

        Args:
            kept: the Java class KeptPlan.
        """

    def frame(self) -> "DataFrame":
        """A frame of these rows alone."""


@dataclass(frozen=True)
class RowsSlot:
    """Rows that the driver holds, at least one: the property holds them."""

    spark: "SparkSession"
    table: pa.Table
    schema: "StructType"

    @property
    def shape(self) -> Hashable:
        return "rows", self.schema.json()

    @property
    def rows(self) -> str:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as stream:
            stream.write(self.table)
        return base64.b64encode(sink.getvalue()).decode("ascii")

    def over(self, kept: Any, property: str) -> "DataFrame":
        spark: Any = self.spark
        return ClassicDataFrame(kept.rows(spark._jsparkSession, property, self.schema.json()), spark)

    def frame(self) -> "DataFrame":
        return self.spark.createDataFrame(self.table, self.schema)


_NUMBER = StructType([StructField("shard", IntegerType(), False)])


@dataclass(frozen=True)
class ShardsSlot:
    """A row, in a Spark partition of its own, for each of so many shards: its number. Each prefers one executor."""

    spark: "SparkSession"
    count: int

    @property
    def shape(self) -> Hashable:
        return "shards", self.count

    @property
    def rows(self) -> str:
        return ""

    def over(self, kept: Any, property: str) -> "DataFrame":
        spark: Any = self.spark
        return ClassicDataFrame(kept.shards(spark._jsparkSession, self.count, _NUMBER.json()), spark)

    def frame(self) -> "DataFrame":
        return self.spark.range(0, self.count, 1, self.count).selectExpr("cast(id as int) shard")


class NamedRows:
    """A slot that a spout gives as data: its rows are named, not held.

    A spout of the user's that wraps one of the framework's is given it as data: it has the methods of its DataFrame.
    """

    def frame(self) -> "DataFrame":
        """A frame of these rows alone."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pickle and copy ask for these
            raise AttributeError(name)
        return getattr(self.frame(), name)


@dataclass(frozen=True)
class FilesSlot(NamedRows):
    """Rows of whole files: the property lists these as [path, bytes, time of modification in ms].

    Attributes:
        of: names the kind of files, and all that ``read`` and ``build`` depend on.
        read: gives a frame of paths that has these files as its only source.
        build: makes the rows of what ``read`` gives.
    """

    of: Hashable
    files: Sequence[tuple[str, int, int]]
    read: Callable[[Sequence[str]], "DataFrame"]
    build: Callable[["DataFrame"], "DataFrame"]

    @property
    def shape(self) -> Hashable:
        return "files", self.of

    @property
    def rows(self) -> str:
        # In Spark's own order, so that the rows are as without a kept plan; Spark itself cuts files above some 4 MB.
        # The slot knows the store: it is that of the file which the plan was made with.
        return json.dumps(
            [[_in_its_store(path), *rest] for path, *rest in sorted(self.files, key=lambda file: -file[1])]
        )

    def over(self, kept: Any, property: str) -> "DataFrame":
        read: Any = self.read([self.files[0][0]])
        slot = ClassicDataFrame(kept.files(read._jdf, property, read.schema.json()), read.sparkSession)
        return self.build(slot)

    def frame(self) -> "DataFrame":
        return self.build(self.read([path for path, _, _ in self.files]))


@dataclass(frozen=True)
class TaskSlot(NamedRows):
    """Rows that a task makes of what it is sent: the property holds that.

    Attributes:
        sent: what the task is sent, as rows.
        of: names all that ``build`` depends on.
        build: makes the rows of a frame of what is sent.
        whole: gives a frame of the rows without a kept plan.
    """

    sent: RowsSlot
    of: Hashable
    build: Callable[["DataFrame"], "DataFrame"]
    whole: Callable[[], "DataFrame"]

    @property
    def shape(self) -> Hashable:
        return "task", self.of

    @property
    def rows(self) -> str:
        return self.sent.rows

    def over(self, kept: Any, property: str) -> "DataFrame":
        return self.build(self.sent.over(kept, property))

    def frame(self) -> "DataFrame":
        return self.whole()


def _in_its_store(path: str) -> str:
    scheme, colon, rest = path.partition("://")
    return f"/{rest.partition('/')[2]}" if colon and "/" not in scheme else path


# The rows of a batch as a spout may give them; tuples in the order of the schema. The framework's own spouts also name
# rows of files: a kept plan then reads them without a DataFrame for each batch.
Data = Union["DataFrame", "pyarrow.Table", Iterable[tuple[Any, ...]], NamedRows]


def to_dataframe(spark: "SparkSession", data: "Data", schema: "StructType") -> "DataFrame":
    """The data with exactly the fields of a schema, in its order.

    Args:
        data: a DataFrame or an Arrow table with fields of these names, in any
            order; or tuples in the schema's order.

    Raises:
        SourceError: the data does not fit; the message names the field or the row.
    """
    if isinstance(data, NamedRows):
        data = data.frame()
    if isinstance(data, DataFrame):
        return _from_dataframe(data, schema)

    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return _from_arrow(spark, data, schema)
    if data is None or isinstance(data, (str, bytes, dict)) or not isinstance(data, Iterable):
        raise SourceError(
            "a spout's batch cannot be used",
            found=f"{type(data).__name__} {repr(data)[:100]}",
            expected="a DataFrame, an Arrow table or an iterable of tuples",
        )
    return _from_rows(spark, data, schema)


def held_rows(data: "Data", schema: "StructType") -> "pyarrow.Table | None":
    """Rows that the driver holds, as a table with exactly the fields of a schema; None: a DataFrame, or nested values.

    Raises:
        SourceError: as :func:`to_dataframe`.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return _fitted(data, schema)
    if not isinstance(data, (list, tuple)) or _is_nested(schema):
        return None
    return arrow_rows(_checked(data, schema), schema)


def parquet_reader(spark: "SparkSession", schema: "StructType | str") -> "DataFrameReader":
    """A reader of Parquet files to which a path is a path, whatever characters are in it."""
    return spark.read.schema(schema).option("__globPaths__", "false")


def _from_dataframe(frame: "DataFrame", schema: "StructType") -> "DataFrame":
    given = frame.schema
    if _same(given, schema):
        return frame
    names = [field.name for field in schema.fields]
    _check_names([field.name for field in given.fields], names)
    for field in schema.fields:
        found = given[field.name].dataType
        if not _same(found, field.dataType):
            raise SourceError(
                f"the field {field.name!r} of a spout's batch has another type",
                found=found.simpleString(),
                expected=field.dataType.simpleString(),
                action="cast it in the spout, or correct its output_schema",
            )
    return frame.select([frame[backquoted(name)] for name in names])


def _check_names(given: list[str], expected: list[str]) -> None:
    if sorted(given) != sorted(expected):
        raise SourceError(
            "the fields of a spout's batch are not those of its output_schema",
            found=", ".join(given) or "no field",
            expected=", ".join(expected),
        )


def _same(one: "DataType", other: "DataType") -> bool:
    """Tells whether two types are equal but for nullability."""
    return one == other or one.simpleString() == other.simpleString()


def _from_arrow(spark: "SparkSession", table: "pyarrow.Table", schema: "StructType") -> "DataFrame":
    return _create(spark, _fitted(table, schema), schema)


def _fitted(table: "pyarrow.Table", schema: "StructType") -> "pyarrow.Table":
    _check_names(table.column_names, [field.name for field in schema.fields])
    try:
        return fitted(table, to_arrow_schema(schema, timezone="UTC"))
    except WrongValue as wrong:
        raise SourceError(
            f"the field {wrong.path!r} of a spout's batch does not fit its type: {wrong}",
            found=wrong.details["found"],
            expected=wrong.details["expected"],
        ) from None


def arrow_rows(rows: "Sequence[tuple[Any, ...]]", schema: "StructType") -> "pyarrow.Table":
    """Rows that were checked to have a value per field, as a table.

    Raises:
        SourceError: a value does not fit its field.
    """
    target = to_arrow_schema(schema, timezone="UTC")
    other = next((row for row in rows if len(row) != len(target)), None)
    if other is not None:
        raise SourceError(
            "a row of a spout's batch cannot be used",
            found=repr(other)[:200],
            expected=f"a tuple of {len(target)}: {', '.join(target.names)}",
        )
    try:
        return table_of(rows, target)
    except WrongValue as wrong:
        raise SourceError(
            f"the field {wrong.path!r} of row {wrong.position} of a spout's batch does not fit its type",
            found=wrong.value,
            expected=wrong.details["expected"],
        ) from None


def _create(spark: "SparkSession", table: "pyarrow.Table", schema: "StructType") -> "DataFrame":
    return spark.createDataFrame(table if table.num_rows else [], schema)


def _from_rows(spark: "SparkSession", data: Iterable[Any], schema: "StructType") -> "DataFrame":
    rows = _checked(data, schema)
    if not rows:
        return spark.createDataFrame([], schema)
    return _create(spark, arrow_rows(rows, schema), schema)


def _checked(data: Iterable[Any], schema: "StructType") -> list[tuple[Any, ...]]:
    width = len(schema.fields)
    rows: list[tuple[Any, ...]] = []
    for number, row in enumerate(data):
        if not isinstance(row, (tuple, list)) or len(row) != width:
            raise SourceError(
                f"row {number} of a spout's batch cannot be used",
                found=repr(row)[:200],
                expected=f"a tuple of {width}: {', '.join(field.name for field in schema.fields)}",
            )
        rows.append(tuple(row))
    return rows


def _is_nested(schema: "StructType") -> bool:
    return any(isinstance(field.dataType, (ArrayType, MapType, StructType)) for field in schema.fields)
