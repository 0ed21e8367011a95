"""The messages of a tracked stream: the ledger of a batch, and those settled before (docs/semantics.md 6).

Each task has written one number per root, however many rows were made of it. The driver adds them up: a million
messages of eight tasks take half a second.
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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from trident.coordinators import faults
from trident.coordinators.errors import TableError
from trident.spouts.contracts import SpoutContext
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.spark_jobs import local_properties
from trident.states.delta.append import MESSAGES
from trident.states.delta.data_files import rows_of
from trident.states.delta.delta_log import DeltaLog, has_log
from trident.states.delta.kernel_files import LiveFile
from trident.workers.anchors import LEDGER_PROPERTY, LEDGER_SCHEMA, Ledger

LEDGER = faults.register("ledger.sum", "adding up the ledger of a tracked batch")
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
    """

    def __init__(self, folder: Place) -> None:
        self._begun = Ledger()
        self._folder = folder / uuid.uuid4().hex
        storage.make_folder(self._folder, storage.anchor_of(folder))

    def given_to_tasks(self, spark: "SparkSession") -> AbstractContextManager[None]:
        """Jobs that this thread starts meanwhile write to this ledger."""
        return local_properties(spark.sparkContext, {LEDGER_PROPERTY: str(self._folder)})

    def init(self, roots: np.ndarray, values: np.ndarray) -> None:
        """Begins the ledger with the messages of the batch: each row's root and id."""
        self._begun.add(roots, values)

    def failures(self) -> dict[int, Failure]:
        """Root → why it failed; of several failures one.

        Raises:
            TableError: a file is not what was written.
        """
        ledger = Ledger([*self._begun.roots], [*self._begun.values])
        found: dict[int, Failure] = {}
        with faults.fault_point(LEDGER):
            names = sorted(name for name in storage.list_names(self._folder) if name[0] not in "_.")  # else a draft
            # Of several tries of a task the sums of the last one count, and the failures of all: one that was given up
            # for lost may still end, and a function may fail in one try and not in the other.
            last = {name.split("@", 1)[0]: name for name in names}
            for name in names:
                table = _read(self._folder / name)
                if last[name.split("@", 1)[0]] == name:
                    ledger.add(*(table.column(column).to_numpy().view(np.uint64) for column in ("root", "value")))
                for row in table.filter(table.column("failed")).to_pylist():
                    found[row["root"] & _ALL] = Failure(**{name: row[name] for name in LEDGER_SCHEMA.names[3:]})
        lost = Failure("the ledger", "its sum", _LOST)
        return {**dict.fromkeys(ledger.incomplete()[0].tolist(), lost), **found}

    def drop(self) -> None:
        """Removes the folder; leftovers cost space, nothing else."""
        storage.try_delete(self._folder)


def _read(path: Place) -> pa.Table:
    try:
        return pq.read_table(io.BytesIO(storage.read(path)), schema=LEDGER_SCHEMA)
    except pa.ArrowException as error:
        raise TableError(
            f"a file of the ledger of a tracked batch is not what was written: {path}",
            found=str(error),
            expected="a Parquet file",
            action="the batch is tried again; check the disk",
        ) from error


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
