"""The table of what was given up: one row per skipped transaction (SEMANTICS 1).

It is a participant of the skipping transaction itself, so a transaction is
either still to be processed or in this table, never both or neither. Other
transactions do not touch it.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa

from coordinators.transactions import TransactionAttempt
from states.binding import StateBinding
from states.parquet_files import FileTarget, write_partition
from states.staged import StagedFile
from states.staging import attempt_folder, fsync_folders, staged_file

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DEAD_LETTERS = "{topology}__{group}__dead_letters"


def dead_letter_schema() -> "StructType":
    """txid, attempt_id, metadata (JSON by stream), error, skipped_at."""
    from pyspark.sql.types import LongType, StringType, StructType, TimestampType

    return (
        StructType()
        .add("txid", LongType())
        .add("attempt_id", LongType())
        .add("metadata", StringType())
        .add("error", StringType())
        .add("skipped_at", TimestampType())
    )


def dead_letter_binding(topology: str, group: str) -> StateBinding:
    """The dead-letter table of one batch group, as a state of it."""
    name = DEAD_LETTERS.format(topology=topology, group=group)
    state = SimpleNamespace(name=name, partition_columns=(), adopt=False)
    schema = dead_letter_schema()
    return StateBinding(state, "dead_letters", (), schema, tuple(schema.names))


def dead_letter_file(
    root: Path, incarnation: str, attempt: TransactionAttempt, metadata: str, error: str
) -> StagedFile:
    """Stages one dead letter; durable when this returns."""
    folder = attempt_folder(incarnation, attempt)
    row = {
        "txid": attempt.txid,
        "attempt_id": attempt.attempt_id,
        "metadata": metadata,
        "error": error,
        "skipped_at": datetime.datetime.now(datetime.timezone.utc),
    }
    schema = pa.schema(
        [
            ("txid", pa.int64()), ("attempt_id", pa.int64()), ("metadata", pa.string()), ("error", pa.string()),
            ("skipped_at", pa.timestamp("us", tz="UTC")),
        ]
    )  # fmt: skip
    batch = pa.RecordBatch.from_pylist([row], schema=schema)
    report = next(write_partition(FileTarget("dead_letters", str(root), folder), [batch]))
    fsync_folders(root, folder)
    return staged_file(report)
