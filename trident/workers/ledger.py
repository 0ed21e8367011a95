"""The ledger of one Spark task of a tracked stream: the ids of rows that ended, and the rows that failed.

It is written, one XOR per root, into a file when the task is done; the driver adds
the files up (:mod:`trident.messages.ledger`). Imported by every worker: keep its
imports light.
"""

from __future__ import annotations

import io
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from trident.states.core import storage
from trident.workers.anchors import read_anchors, sums_by_root
from trident.workers.failures import UserCodeFailed
from trident.workers.reports import find_report

LEDGER_FIELDS = [
    ("root", pa.int64()),
    ("value", pa.int64()),
    ("failed", pa.bool_()),
    ("operation", pa.string()),
    ("location", pa.string()),
    ("error", pa.string()),
    ("traceback", pa.string()),
    ("place", pa.string()),
]
LEDGER_SCHEMA = pa.schema(LEDGER_FIELDS)
_TRACEBACK_CHARS = 8_000


# The local property of Spark under which tasks are told where their ledger is: so a pass is the same for every batch,
# and need not be pickled anew.
LEDGER_PROPERTY = "trident.ledger"


def ledger_place(passed: str) -> tuple[str, str]:
    """Where this task's ledger is to be written: the folder and the file's name.

    The name says the pass and the partition, and behind an ``@`` the try, of which the later has the greater number.
    """
    context = TaskContext.get()
    folder = context.getLocalProperty(LEDGER_PROPERTY) if context is not None else None
    if context is None or not folder:
        raise AssertionError("a tracked batch runs without a ledger")
    return folder, f"{passed}-{context.partitionId()}@{context.taskAttemptId():020d}"


@dataclass
class Ledger:
    """A task's account of the trees: ids of rows that ended, and rows that failed."""

    roots: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def ack(self, anchors: Any) -> None:
        """These rows have ended."""
        _, roots, ids = read_anchors(anchors)
        self.ack_pairs(roots, ids)

    def ack_pairs(self, roots: np.ndarray, ids: np.ndarray) -> None:
        if len(roots):
            self.roots.append(roots)
            self.values.append(ids)

    def fail(self, roots: Sequence[int], error: UserCodeFailed) -> None:
        """A row of these roots has failed. No spout would replay a row without any: it fails the batch."""
        report = report_of(error)
        # FailedException says that the batch is to fail: a service is down, and no row is to blame.
        if not len(roots) or report.pop("kind") == "failed":
            raise error
        self.failures += [{"root": int(root), "value": 0, "failed": True, **report} for root in dict.fromkeys(roots)]

    def table(self) -> pa.Table:
        """A row per root whose sum is not zero, and one per failure."""
        tables = []
        if self.roots:
            roots, sums = sums_by_root(np.concatenate(self.roots), np.concatenate(self.values))
            told = sums != 0
            tables.append(sums_table(roots[told], sums[told]))
        if self.failures:
            tables.append(pa.Table.from_pylist(self.failures, schema=LEDGER_SCHEMA))
        return pa.concat_tables(tables) if tables else LEDGER_SCHEMA.empty_table()

    def write(self, folder: str, name: str) -> None:
        """Writes what there is to tell: also nothing, since a task that ran before may have told something."""
        write_table(self.table(), storage.join(folder, f"{name}.parquet"))


def sums_table(roots: np.ndarray, sums: np.ndarray) -> pa.Table:
    """Sums of roots as a ledger's file has them, without a failure."""
    columns: list[Any] = [pa.array(roots.view(np.int64)), pa.array(sums.view(np.int64))]
    columns.append(pa.repeat(pa.scalar(False), len(roots)))
    columns += [pa.nulls(len(roots), kind) for _, kind in LEDGER_FIELDS[3:]]
    return pa.table(columns, schema=LEDGER_SCHEMA)


def write_table(table: pa.Table, path: storage.AnyPath) -> None:
    """A ledger's file: whole, and not durable, since a batch whose ledger is lost is tried again."""
    import pyarrow.parquet as pq  # 20 ms that only the workers of tracked streams need

    data = io.BytesIO()
    # Roots and sums are all different: dictionaries and bounds of them would only cost.
    pq.write_table(table, data, compression="none", use_dictionary=False, write_statistics=False)
    storage.write(path, data.getvalue(), durable=False)


def report_of(error: UserCodeFailed) -> dict[str, str]:
    """Returns what is known of a failure: the operation, its line, the error, the traceback, the row."""
    report = find_report(error) or {}
    cause = error.__cause__ or error.__context__
    lines = traceback.format_exception(cause) if cause is not None else []
    return {
        "kind": report.get("kind", ""),
        "operation": report.get("operation", ""),
        "location": report.get("location", ""),
        "error": report.get("error", str(error)),
        "traceback": "".join(lines)[-_TRACEBACK_CHARS:],
        "place": report.get("place", ""),
    }
