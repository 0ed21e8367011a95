"""Reads the settled messages of a stream from its table after a restart (docs/semantics.md 6).

The table's log and its Parquet files are read here, by pyarrow: a Spark query for them took two seconds of the
processor, most of it in the JIT compiler, before a stream took its first message. Files whose bounds say that all of
their messages are older than the window are not read.

The window is counted back from the last transaction, not from the greatest time: a host whose clock was ahead may have
settled messages before it, and those of its successor would seem to be old.
"""

from __future__ import annotations

import datetime
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from trident.spouts.contracts import SpoutContext
from trident.states.core.place import Place
from trident.states.delta.beside import MESSAGES
from trident.states.delta.delta_log import DeltaLog, has_log
from trident.states.delta.file_rows import rows_of
from trident.states.delta.kernel_files import LiveFile

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
