"""The tasks on executors for users' own states: open, update and publish.

Imported by Spark's Python workers: keep its imports light.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from trident.states.core import storage
from trident.states.core.typed_values import Row, frozen, python_values
from trident.states.core.values import loads
from trident.states.maps.map_states import CachedMap

# Columns of a map's staged updates: the key and the stored value as text, null to remove the key; and the
# partition of the state, which rows for a user's updater have too.
KEY, STORED, PARTITION = "__trident_key", "__trident_stored", "__trident_partition"
PUBLISHED_SCHEMA = "file int, rows long"


@dataclass(frozen=True)
class BatchInfo:
    """The facts of a batch that user code and users' states are given.

    Attributes:
        config: what make_state and make_backing are given.
        as_of: of a request, which is no transaction: state name → the transaction that it reads that state as of.
    """

    attempt: Any
    incarnation: str = ""
    epoch: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    as_of: Mapping[str, int] | None = None

    @property
    def fence(self) -> int | None:
        """Returns what fenced maps are given as epoch: it grows with every coordinator, and with every transaction.

        So a task that was given up for lost, and still runs when its
        transaction is long published by another try, is refused too. Below
        2**53 for two million coordinators and four billion transactions.
        """
        return None if self.epoch is None else (self.epoch << 32) + self.attempt.txid

    def of_state(self, name: str) -> dict[str, Any]:
        """The config that a user's state is made with."""
        return {**self.config, "state": name, "incarnation": self.incarnation}


_caches: dict[tuple[str, str, int], CachedMap] = {}


def open_backing(state: Any, info: BatchInfo, partition: int) -> Any:
    """The backing map of one partition of a BackedMapState; a cache lives as long as this worker does.

    The cache itself sees whether this worker wrote the transaction before: else it forgets all.
    """
    config = info.of_state(state.name)
    if state.cache_size and info.as_of is not None:
        # A cache follows one sequence of transactions, and a request is not in it.
        state = replace(state, cache_size=0)
    if not state.cache_size:
        return state.make_backing(config, partition, state.partitions)
    place = (info.incarnation, state.name, partition)
    if place not in _caches:
        _caches[place] = state.make_backing(config, partition, state.partitions)
    return _caches[place]


def plain_key(key: Sequence[Any]) -> Row:
    """A key as every path must write it: the same for the same instant, whatever the session's time zone."""
    return tuple(_plain(value) for value in key)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc)
    if isinstance(value, float):
        return 0.0 if value == 0.0 else frozen(value)  # minus zero is the same key, and so is every NaN
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


class Collector:
    """An updater emits with it. Rows of a state that is updated after the decision go nowhere."""

    def __init__(self) -> None:
        self.emitted: list[Row] = []

    def emit(self, values: Sequence[Any]) -> None:
        self.emitted.append(tuple(values) if isinstance(values, (tuple, list)) else (values,))


def call_updater(
    updater: Any,
    state: Any,
    tuples: Sequence[Row],
    collector: Collector,
    config: Mapping[str, Any],
    index: int,
    count: int,
) -> None:
    """prepare, update_state, cleanup."""
    if callable(getattr(updater, "prepare", None)):
        updater.prepare(config, index, count)
    try:
        updater.update_state(state, tuples, collector)
    finally:
        if callable(getattr(updater, "cleanup", None)):
            updater.cleanup()


@dataclass(frozen=True)
class PublishTask:
    """The function for mapInArrow over the numbers of a decided batch's files: one call for each.

    Attributes:
        aggregator: of a non-transactional map's aggregate; or the updater; None for new values of a map.
        files: full paths.
    """

    state: Any
    aggregator: Any
    keys: tuple[str, ...]
    values: tuple[str, ...]
    files: tuple[storage.AnyPath, ...]
    info: BatchInfo

    def __call__(self, batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        schema = pa.schema([("file", pa.int32()), ("rows", pa.int64())])
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = self.publish(self.files[number])
                yield pa.RecordBatch.from_pylist([{"file": number, "rows": rows}], schema=schema)

    def publish(self, path: storage.AnyPath) -> int:
        """Publishes one file and returns how many rows it had."""
        import pyarrow.parquet as pq  # time: 20 ms of each worker that looks values up

        if getattr(self.state, "skip_replays", False) and _is_retry():
            return pq.read_metadata(
                io.BytesIO(storage.read(path))
            ).num_rows  # the task was lost, perhaps behind its write: at most once
        table = pq.read_table(io.BytesIO(storage.read(path)))
        partition = table.column(PARTITION)[0].as_py()
        if self.aggregator is None:
            self._put(table, partition)
        elif hasattr(self.aggregator, "update_state"):
            self._update(table, partition)
        else:
            self._combine(table, partition)
        return table.num_rows

    def _put(self, table: "pa.Table", partition: int) -> None:
        backing = open_backing(self.state, self.info, partition)
        keys = [loads(text) for text in table.column(KEY).to_pylist()]
        values = [None if text is None else loads(text) for text in table.column(STORED).to_pylist()]
        follows = isinstance(backing, CachedMap)
        if follows:
            backing.transaction_begins(self.info.attempt.txid, self.info.epoch, self.info.incarnation)
        backing.multi_put(keys, values, self.info.fence)
        if follows:
            backing.transaction_committed(self.info.attempt.txid)

    def _rows(self, table: "pa.Table", names: Sequence[str]) -> list[Row]:
        columns = [python_values(table.column(name)) for name in names]
        return list(zip(*columns)) if columns else [()] * table.num_rows

    def _update(self, table: "pa.Table", partition: int) -> None:
        name, txid = self.state.name, self.info.attempt.txid
        config, count = self.info.of_state(name), getattr(self.state, "partitions", 1)
        if hasattr(self.state, "make_backing"):
            backing = self.state.make_backing(config, partition, count)
            state = self.state.map_over(backing, epoch=self.info.fence, incarnation=self.info.incarnation)
        else:
            state = self.state.make_state(config, partition, count)
        state.begin_commit(txid)
        call_updater(self.aggregator, state, self._rows(table, self.values), Collector(), config, partition, count)
        state.commit(txid)

    def _combine(self, table: "pa.Table", partition: int) -> None:
        config, combine = self.info.of_state(self.state.name), self.aggregator.combine
        backing = self.state.make_backing(config, partition, self.state.partitions)
        state = self.state.map_over(backing, epoch=self.info.fence, incarnation=self.info.incarnation)
        keys = [plain_key(key) for key in self._rows(table, self.keys)]
        values = self._rows(table, self.values)
        single = len(self.values) == 1

        def adder(row: Row) -> Any:
            new = row[0] if single else row
            return lambda old: new if old is None else combine(old, new)

        state.begin_commit(self.info.attempt.txid)
        state.multi_update(keys, [adder(row) for row in values])
        state.commit(self.info.attempt.txid)


def _is_retry() -> bool:
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0
