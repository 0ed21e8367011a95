"""A batch group without a topology: real tables, a hand-made batch."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from trident.coordinators.errors import Deposed
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import ProcessedBatch
from trident.coordinators.records import GroupRecord, Marker
from trident.states.core.binding import StateBinding
from trident.states.core.group_context import LeaderContext
from trident.states.core.place import Place
from trident.states.core.tables import StagedFile
from trident.states.delta.append import APPEND, DeltaAppend
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.manifest import NONE_KEPT, Retention
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.delta.staging import attempt_folder, staged_file
from trident.states.keyed.delta_map import KEYED, DeltaMapState
from trident.states.publishing.committer import DeltaCommitter

ROWS = StructType().add("word", "string").add("n", "long")
COUNTS = StructType().add("word", "string").add("count", "long")


def append_binding(name: str = "rows", **state: object) -> StateBinding:
    return StateBinding(DeltaAppend(name, **state), APPEND, (), ROWS, ("word", "n"))  # type: ignore[arg-type]


def map_binding(name: str = "counts", **settings: Any) -> StateBinding:
    count = SimpleNamespace(native_name="count")
    return StateBinding(DeltaMapState(name, **settings), KEYED, ("word",), COUNTS, ("count",), count)


def deposed() -> None:
    """The fence of a coordinator that was replaced."""
    raise Deposed("another coordinator leads now")


def foreign_row(table: Path, row: pa.Table | None = None) -> None:
    """A commit of another writer, as Delta's append leaves it: a row, or the rows of a file of the table once more."""
    log = table / "_delta_log"
    version = len(list(log.glob("*.json")))
    file = table / f"foreign-{version}.parquet"
    if row is None:
        shutil.copy(next(path for path in table.rglob("*.parquet") if log not in path.parents), file)
    else:
        pq.write_table(row, file)
    info = {"timestamp": 1, "operation": "WRITE", "operationParameters": {"mode": "Append"}, "engineInfo": "Spark"}
    added = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size}
    entry = [{"commitInfo": info}, {"add": {**added, "modificationTime": 1, "dataChange": True}}]
    (log / f"{version:020d}.json").write_text("".join(json.dumps(one) + "\n" for one in entry))


class Group:
    """One coordinator of topology "top", group "g"; several over one warehouse are its successive lives."""

    def __init__(
        self,
        engine: KernelEngine,
        warehouse: Path,
        bindings: list[StateBinding] | None = None,
        epoch: int = 1,
        record: GroupRecord | None = None,
        fence=lambda: None,
        incarnation: str = "inc",
        topology: str = "top",
        retention: Retention = NONE_KEPT,
    ) -> None:
        self.warehouse, self.incarnation = warehouse, incarnation
        self.record = record or GroupRecord(incarnation, 1)
        self.bindings = [append_binding(), map_binding()] if bindings is None else bindings
        self.topology = topology
        self.of = LeaderContext(Place(warehouse), topology, "g", incarnation, epoch, fence)
        self.committer = DeltaCommitter(engine, self.of, self.bindings, None, retention, "code")

    def open(self) -> Group:
        self.committer.open(self.record)
        return self

    def staged(self, attempt: TransactionAttempt, words: list[str]) -> dict[str, list[StagedFile]]:
        files: dict[str, list[StagedFile]] = {}
        for target in self.committer.staging_targets:
            column = "count" if target.txid_column else "n"
            table = pa.table({"word": words, column: pa.array([1] * len(words), pa.int64())})
            constants = {target.txid_column: attempt.txid} if target.txid_column else {}
            folder = attempt_folder(self.incarnation, attempt)
            file_target = FileTarget(target.name, str(target.root), folder, constants=constants)
            files[target.name] = [staged_file(report) for report in write_partition(file_target, table.to_batches())]
        return files

    def prepare(self, attempt: TransactionAttempt, words: list[str]):
        """The decision of a batch with these words."""
        return self.committer.prepare(attempt, None, ProcessedBatch(self.staged(attempt, words)), self.record).decision

    def advance(self, decision, marks) -> None:
        marker = Marker(decision.txid, decision.attempt_id, decision.sha256)
        self.record = replace(
            self.record,
            current_txid=decision.txid + 1,
            last=marker,
            last_published=marker,
            tables={**self.record.tables, **marks.marks},
        )

    def commit(self, txid: int, words: list[str], attempt_id: int = 0):
        decision = self.prepare(TransactionAttempt(txid, attempt_id), words)
        self.advance(decision, self.committer.publish(decision, self.record))
        return decision
