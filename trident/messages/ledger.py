"""Adds up the ledger of a tracked batch, and finds the messages that failed (docs/semantics.md 6).

Each task has written one number per root, however many rows were made of it;
Spark adds them up by root, and only roots whose sum is not zero, or of which a
row failed, come to the driver. A ledger of a few megabytes is added up right
here: planning and running a Spark job for it takes 50 times as long.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from trident.coordinators import faults
from trident.coordinators.errors import TableError
from trident.spark.rows import parquet_reader
from trident.states.core import storage
from trident.states.core.local_properties import local_properties
from trident.states.core.place import Place
from trident.workers.anchors import sums_by_root
from trident.workers.ledger import LEDGER_FIELDS, LEDGER_PROPERTY, LEDGER_SCHEMA, sums_table, write_table

LEDGER = faults.register("ledger.sum", "adding up the ledger of a tracked batch")
_DDL = (
    "root long, value long, failed boolean, operation string, location string, error string, traceback string,"
    " place string"
)
# Some million numbers of tasks: below that a Spark job costs more than it saves.
SMALL_BYTES = 16 << 20
# Where Spark adds up: the file of the messages that the batch began with.
_BEGUN = "begun.parquet"
_ALL = (1 << 64) - 1
_LOST = (
    "some of its rows were lost or doubled between two Spark stages, as when a task is tried again that gives other"
    " rows each time"
)


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
        folder: of all ledgers of the group; shared with the executors, as the tables are.
        ackers: Spark tasks that add it up.
    """

    def __init__(self, spark: "SparkSession", folder: Place, ackers: int) -> None:
        self._spark, self._ackers = spark, ackers
        self._begun: list[tuple[np.ndarray, np.ndarray]] = []  # the roots of the batch, and their ids
        self._folder = folder / uuid.uuid4().hex
        storage.make_folder(self._folder, storage.anchor_of(folder))

    def given_to_tasks(self) -> AbstractContextManager[None]:
        """Jobs that this thread starts meanwhile write to this ledger."""
        return local_properties(self._spark.sparkContext, {LEDGER_PROPERTY: str(self._folder)})

    def init(self, roots: np.ndarray, values: np.ndarray) -> None:
        """Begins the ledger with the messages of the batch: each row's root and id."""
        self._begun.append((roots, values))

    def failures(self, small_bytes: int = SMALL_BYTES) -> dict[int, Failure]:
        """Root → why it failed; of several failures one.

        Args:
            small_bytes: files up to this size are added up without Spark.
        """
        newest, others = self._files()
        with faults.fault_point(LEDGER):
            size = sum(_size(path) for path in [*newest, *others])
            if size + sum(16 * len(roots) for roots, _ in self._begun) <= small_bytes:
                return _added_up(self._begun, newest, others)
            if self._begun:
                begun = sums_table(*sums_by_root(*_joined(self._begun)))
                newest.append(self._folder / _BEGUN)
                write_table(begun, newest[-1])
            return self._by_spark(newest, others)

    def _files(self) -> tuple[list[Place], list[Place]]:
        """The files that count, and those of tries that a later one has replaced: only their failures do.

        A try that was given up for lost may still end, and a function may fail in one try and not in the
        other: whatever counted, a row that failed in any of them has failed.
        """
        newest: dict[str, Place] = {}
        others = []
        for name in sorted(storage.list_names(self._folder)):
            if name != _BEGUN and name[0] not in "_.":  # a draft
                place = name.split("@", 1)[0]
                others += [newest[place]] if place in newest else []
                newest[place] = self._folder / name
        return list(newest.values()), others

    def _by_spark(self, newest: Sequence[Place], others: Sequence[Place]) -> dict[int, Failure]:
        for path in [*newest, *others]:
            if not _size(path):  # Spark would leave it out, and acknowledge what it tells
                raise TableError(
                    f"a file of the ledger of a tracked batch is not what was written: {path}",
                    found="no file with anything in it",
                    expected="a Parquet file",
                    action="the batch is tried again; check the disk",
                )
        reader = parquet_reader(self._spark, _DDL)
        why = F.struct("operation", "location", "error", "traceback", "place")
        rows = reader.parquet(*map(str, newest))
        if others:
            rows = rows.union(reader.parquet(*map(str, others)).where("failed"))
        rows = rows.coalesce(1) if self._ackers == 1 else rows.repartition(self._ackers, "root")
        sums = rows.groupBy("root").agg(
            F.bit_xor("value").alias("value"),
            F.max("failed").alias("failed"),
            F.max_by(why, "failed").alias("why"),
        )
        found = sums.where("failed or value != 0").collect()
        return {row.root & _ALL: _failure(row.why.asDict() if row.failed else None) for row in found}

    def drop(self) -> None:
        """Removes the folder; leftovers cost space, nothing else."""
        storage.try_delete(self._folder)


def _size(path: Place) -> int:
    found = storage.stat(path)
    return found.size if found is not None and found.is_file else 0


def _read(path: Place) -> pa.Table:
    return pq.read_table(io.BytesIO(storage.read(path)), schema=LEDGER_SCHEMA)


def _joined(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([roots for roots, _ in pairs]), np.concatenate([values for _, values in pairs])


def _added_up(
    begun: Sequence[tuple[np.ndarray, np.ndarray]], newest: Sequence[Place], others: Sequence[Place]
) -> dict[int, Failure]:
    pairs, found = list(begun), {}
    failed: list[dict[str, Any]] = []
    for number, path in enumerate([*newest, *others]):
        table = _read(path)
        if number < len(newest):
            roots, values = (table.column(name).to_numpy().view(np.uint64) for name in ("root", "value"))
            pairs.append((roots, values))
        failed += table.filter(table.column("failed")).to_pylist()
    if pairs:
        roots, sums = sums_by_root(*_joined(pairs))
        found = {int(root): _failure(None) for root in roots[sums != 0]}
    fields = [name for name, _ in LEDGER_FIELDS[3:]]
    for row in failed:
        found[row["root"] & _ALL] = _failure({name: row[name] for name in fields})
    return found


def _failure(fields: Mapping[str, Any] | None) -> Failure:
    return Failure("the ledger", "its sum", _LOST) if fields is None else Failure(**fields)


def drop_old(folder: Place) -> None:
    """Removes ledgers that a process which is gone has left."""
    for name in storage.list_names(folder):
        storage.try_delete(folder / name)
