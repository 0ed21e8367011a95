"""Slots: the rows of a batch as a local property of its Spark job names them, so that one plan reads every batch.

A local property belongs to one job, goes to the executors with each of its tasks, and never changes. So a task that is
tried again, runs twice or runs on another executor reads the rows of its own attempt, and attempts share nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType

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
        of: names the kind of files, and all that ``read`` and ``behind`` depend on.
        read: gives a frame of paths that has these files as its only source.
        behind: makes the rows of what ``read`` gives.
    """

    of: Hashable
    files: Sequence[tuple[str, int, int]]
    read: Callable[[Sequence[str]], "DataFrame"]
    behind: Callable[["DataFrame"], "DataFrame"]

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
        return self.behind(slot)

    def frame(self) -> "DataFrame":
        return self.behind(self.read([path for path, _, _ in self.files]))


@dataclass(frozen=True)
class TaskSlot(NamedRows):
    """Rows that a task makes of what it is sent: the property holds that.

    Attributes:
        sent: what the task is sent, as rows.
        of: names all that ``behind`` depends on.
        behind: makes the rows of a frame of what is sent.
        whole: gives a frame of the rows without a kept plan.
    """

    sent: RowsSlot
    of: Hashable
    behind: Callable[["DataFrame"], "DataFrame"]
    whole: Callable[[], "DataFrame"]

    @property
    def shape(self) -> Hashable:
        return "task", self.of

    @property
    def rows(self) -> str:
        return self.sent.rows

    def over(self, kept: Any, property: str) -> "DataFrame":
        return self.behind(self.sent.over(kept, property))

    def frame(self) -> "DataFrame":
        return self.whole()


def _in_its_store(path: str) -> str:
    scheme, colon, rest = path.partition("://")
    return f"/{rest.partition('/')[2]}" if colon and "/" not in scheme else path
