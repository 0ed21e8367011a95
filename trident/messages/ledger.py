"""The messages of a tracked stream: the ledger of a batch, those handed out, and those settled (docs/semantics.md 6).

Each task has written one number per root, however many rows were made of it;
Spark adds them up by root, and only roots whose sum is not zero, or of which a
row failed, come to the driver. A ledger of a few megabytes is added up right
here: planning and running a Spark job for it takes 50 times as long.
"""

from __future__ import annotations

import datetime
import io
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from trident.coordinators import faults
from trident.coordinators.errors import TableError
from trident.spark.rows import parquet_reader
from trident.spouts.contracts import SpoutContext
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.spark_jobs import local_properties
from trident.states.delta.append import MESSAGES
from trident.states.delta.data_files import rows_of
from trident.states.delta.delta_log import DeltaLog, has_log
from trident.states.delta.kernel_files import LiveFile
from trident.workers.anchors import LEDGER_FIELDS, LEDGER_PROPERTY, LEDGER_SCHEMA, sums_by_root, sums_table, write_table

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


# Reads the settled messages of a stream from its table after a restart (docs/semantics.md 6).
#
# The table's log and its Parquet files are read here, by pyarrow: a Spark query for them took two seconds of the
# processor, most of it in the JIT compiler, before a stream took its first message. Files whose bounds say that all of
# their messages are older than the window are not read.
#
# The window is counted back from the last transaction, not from the greatest time: a host whose clock was ahead may
# have
# settled messages before it, and those of its successor would seem to be old.


ACKED, FAILED, DEAD = "acked", "failed", "dead"
_ENDS = pa.schema(
    [
        ("message", pa.string()),
        ("outcome", pa.string()),
        ("attempts", pa.int32()),
        ("txid", pa.int64()),
        ("settled_at", pa.timestamp("us", tz="UTC")),
    ]
)
# Bounds in a log are of whole milliseconds; of other writers perhaps rounded down.
_SLACK = datetime.timedelta(seconds=1)


class Settled:
    """The keys of messages that were settled not long ago.

    Args:
        remember_secs: how long a key is kept.
    """

    def __init__(self, remember_secs: float) -> None:
        self._remember_secs = remember_secs
        self._keys: set[str] = set()
        self._order: deque[tuple[float, Collection[str]]] = deque()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, ago_secs: float = 0.0) -> None:
        """Added in the order in which they were settled."""
        self.add_all([key], ago_secs)

    def add_all(self, keys: Collection[str], ago_secs: float = 0.0) -> None:
        """Several that were settled together."""
        now = time.monotonic()
        fresh = keys if self._keys.isdisjoint(keys) else [key for key in keys if key not in self._keys]
        self._keys.update(fresh)
        self._order.append((now - ago_secs, fresh))
        while self._order and self._order[0][0] < now - self._remember_secs:
            self._keys.difference_update(self._order.popleft()[1])

    def knows(self, key: str) -> bool:
        return key in self._keys

    def knows_none_of(self, keys: Collection[str]) -> bool:
        return self._keys.isdisjoint(keys)


def settled_messages(
    context: SpoutContext, remember_secs: float, requests: Collection[str]
) -> tuple[Settled, dict[str, int]]:
    """Reads from the stream's table which of its last messages are settled, and how often others have failed.

    Args:
        remember_secs: the window, counted back from the last transaction that settled messages.
        requests: replay requests that are not finished: their messages are wanted however old they are.

    Raises:
        TableError: a file is gone, or is not what was written.
    """
    path = Place(context.options["warehouse"]) / MESSAGES.table_name(context.topology, context.tx_id)
    settled = Settled(remember_secs)
    if not has_log(path):
        return settled, {}
    table = DeltaLog(path).at()
    window = datetime.timedelta(seconds=remember_secs)
    if table.why_not_rows is None:
        rows = _rows(str(path), list(table.files.values()), window, bool(requests))
    else:  # another writer has made deletion vectors, say: Spark knows of them
        frame = context.spark.read.format("delta").load(str(path)).select(*_ENDS.names)
        rows = pa.Table.from_batches(frame.toArrow().cast(_ENDS).to_batches(), _ENDS)
    newest = _newest(rows)
    if newest is None:
        return settled, {}
    wanted = pc.greater_equal(rows.column("settled_at"), pa.scalar(newest - window, _ENDS.field("settled_at").type))
    for request in requests:
        wanted = pc.or_(wanted, pc.starts_with(rows.column("message"), f"replay {request} "))
    rows = rows.filter(wanted)
    attempts = _failed_so_far(rows)
    last = rows.filter(pc.not_equal(rows.column("outcome"), FAILED))
    # The whole window begins anew: the time in which the topology did not run does not count.
    settled.add_all(last.column("message").to_pylist())
    return settled, attempts


def _failed_so_far(rows: pa.Table) -> dict[str, int]:
    """Message → how often it has failed, of those that have not been settled since."""
    failed = rows.filter(pc.equal(rows.column("outcome"), FAILED)).column("message")
    ends = rows.filter(pc.is_in(rows.column("message"), value_set=failed.unique()))
    attempts: dict[str, int] = {}
    for end in ends.sort_by([("txid", "ascending"), ("settled_at", "ascending")]).to_pylist():
        if end["outcome"] == FAILED:
            attempts[end["message"]] = end["attempts"]
        else:
            attempts.pop(end["message"], None)
    return attempts


def _newest(rows: pa.Table) -> datetime.datetime | None:
    """When the last transaction of some rows settled its messages."""
    last = pc.max(rows.column("txid"))
    if last.is_valid:
        rows = rows.filter(pc.equal(rows.column("txid"), last))
    found: datetime.datetime | None = pc.max(rows.column("settled_at")).as_py()
    return found


def _rows(root: str, files: Sequence[LiveFile], window: datetime.timedelta, whole: bool) -> pa.Table:
    """The rows of the files that may have some of the window; of all files where ``whole``."""
    txids = {file.path: None if whole else _txid_of(file) for file in files}
    last = max((txid for txid in txids.values() if txid is not None), default=None)
    # Those that may have the last transaction: they say when the window ends.
    first = [file for file in files if txids[file.path] in (None, last)]
    rows = pa.Table.from_batches(list(rows_of(root, first, _ENDS)), _ENDS)
    newest = _newest(rows)
    others = [file for file in files if txids[file.path] not in (None, last)]
    if newest is not None:
        since = newest - window - _SLACK
        others = [file for file in others if (end := greatest_time(file, "settled_at")) is None or end >= since]
    return pa.concat_tables([rows, pa.Table.from_batches(list(rows_of(root, others, _ENDS)), _ENDS)])


def _highest(file: LiveFile, column: str) -> object:
    """The column's greatest value in the file, or one above it; None where the log does not say."""
    high = (file.stats or {}).get("maxValues")
    return high.get(column) if isinstance(high, Mapping) else None


def _txid_of(file: LiveFile) -> int | None:
    """The last transaction of the file's messages; None where the log does not say."""
    txid = _highest(file, "txid")
    return txid if isinstance(txid, int) else None


def greatest_time(file: LiveFile, column: str) -> datetime.datetime | None:
    """A time that none of the column's in the file is a second behind; None where the log does not say."""
    bound = _highest(file, column)
    try:
        found_at = datetime.datetime.fromisoformat(bound.replace("Z", "+00:00")) if isinstance(bound, str) else None
    except ValueError:
        return None
    return found_at if found_at is not None and found_at.tzinfo else None
