"""Adds up the ledger of a tracked batch: which of its messages have not ended as they should (SEMANTICS 6).

Spark does the adding: however many rows were made of a message, and however
many files tasks have written, only roots whose sum is not zero, or of which a
row failed, come to the driver.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coordinators import faults
from trident.anchors import sums_by_root
from trident.arrow_tracking import LEDGER_FIELDS, LEDGER_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEDGER = faults.register("ledger.sum", "the Spark job that adds up the ledger of a tracked batch")
_DDL = (
    "root long, value long, failed boolean, operation string, location string, error string, traceback string,"
    " place string"
)
_LOST = "some of its rows were lost or doubled between two Spark stages, as when a task that gives other rows each time is tried again"


@dataclass(frozen=True)
class Failure:
    """Why a message has failed.

    Attributes:
        operation, location: of the topology: where.
        error: what was raised, in one line.
        traceback: of it; "" where there is none.
        place: "for the row {…}", or "".
    """

    operation: str
    location: str
    error: str
    traceback: str = ""
    place: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.operation} at {self.location}", self.place))) + f": {self.error}"


class BatchLedger:
    """The ledger of one run of one attempt: a folder that tasks write to and that is gone afterwards.

    Args:
        spark: the session.
        folder: of all ledgers of the group; shared with the executors, as the tables are.
        ackers: Spark tasks that add it up.
    """

    def __init__(self, spark: "SparkSession", folder: Path, ackers: int) -> None:
        self._spark, self._ackers = spark, ackers
        self._folder = folder / uuid.uuid4().hex
        self._folder.mkdir(parents=True)

    @property
    def path(self) -> str:
        """What the tasks are told."""
        return str(self._folder)

    def init(self, roots: np.ndarray, values: np.ndarray) -> None:
        """What the messages of the batch begin with: of each row its root and its id."""
        roots, sums = sums_by_root(roots, values)
        columns: list[Any] = [pa.array(roots.view(np.int64)), pa.array(sums.view(np.int64))]
        columns.append(pa.repeat(pa.scalar(False), len(roots)))
        columns += [pa.nulls(len(roots), kind) for _, kind in LEDGER_FIELDS[3:]]
        table = pa.table(columns, schema=LEDGER_SCHEMA)
        pq.write_table(table, self._folder / f"init-{uuid.uuid4().hex}.parquet", compression="none")

    def failures(self) -> dict[int, Failure]:
        """Root → why it failed; of several failures one."""
        from pyspark.sql import functions as F

        reader = self._spark.read.schema(_DDL).option("__globPaths__", "false")
        told = F.struct("operation", "location", "error", "traceback", "place")
        rows = reader.parquet(str(self._folder))
        rows = rows.coalesce(1) if self._ackers == 1 else rows.repartition(self._ackers, "root")
        sums = rows.groupBy("root").agg(
            F.bit_xor("value").alias("value"), F.max("failed").alias("failed"), F.max_by(told, "failed").alias("told")
        )
        with faults.fault_point(LEDGER):
            found = sums.where("failed or value != 0").collect()
        return {row.root & (1 << 64) - 1: _failure(row) for row in found}

    def drop(self) -> None:
        """Removes the folder; leftovers cost space, nothing else."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _failure(row: Any) -> Failure:
    return Failure(**row.told.asDict()) if row.failed else Failure("the ledger", "its sum", _LOST)


def drop_old(folder: Path, kept: Iterable[str] = ()) -> None:
    """Removes ledgers that a process which is gone has left."""
    for entry in folder.glob("*"):
        if str(entry) not in kept:
            shutil.rmtree(entry, ignore_errors=True)
