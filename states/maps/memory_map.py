"""A map in this process's memory with the value semantics of a transactional state: for tests."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from trident.coordinators import faults
from trident.coordinators.errors import ConfigError, TopologyError
from trident.states.core import storage
from trident.states.core.binding import LAST, DecidedRows, GuaranteeRow, InProcessKind, StateBinding
from trident.states.core.names import check_name
from trident.states.core.place import Place
from trident.states.core.tables import DELETED_COLUMN
from trident.states.core.typed_values import Row, frozen, python_values

# Types without parts that Spark, Arrow and Python all can group by.
_KEY_TYPES = (StringType, BinaryType, BooleanType, NumericType, DateType, TimestampType, TimestampNTZType)
PUBLISH = faults.register("publish.memory", "updating a memory map with a decided batch")


@dataclass(frozen=True)
class MemoryMapState:
    """A keyed state that lives as long as this process (docs/semantics.md 5: memory map).

    Within one process it survives a stop and a start of the topology, so a
    test can compare it; it is gone with the process, so it is for tests only.

    Args:
        name: the state's name; two states of one name in one process are one.
    """

    name: str

    def __post_init__(self) -> None:
        check_name("state", self.name)

    def values(self) -> dict[Row, Row]:
        """A copy: keys to value tuples."""
        return memory_map(self.name).values()

    def clear(self) -> None:
        memory_map(self.name).clear()


@dataclass(frozen=True)
class LRUMemoryMapState(MemoryMapState):
    """A MemoryMapState that forgets: only the keys that were written last are kept, so it is for tests and demos.

    A dropped key is gone: when it comes again, it begins anew.

    Args:
        name: as of a MemoryMapState.
        max_size: this many keys are kept.

    Raises:
        ConfigError: max_size is not a whole number from 1.
    """

    max_size: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.max_size) is not int or self.max_size < 1:
            raise ConfigError(
                f"max_size of state {self.name} is impossible",
                found=repr(self.max_size),
                expected="a whole number from 1",
            )
        memory_map(self.name).max_size = self.max_size


class MemoryMap:
    """key → (txid, value); an update whose txid is not newer is skipped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Row, tuple[int, Row]] = {}
        self._txid = 0
        # Its contents before that transaction, and since which one; shares its values.
        self._before: tuple[int, dict[Row, tuple[int, Row]]] = (0, {})
        self._incarnation = ""
        self.max_size: int | None = None

    def update(
        self,
        txid: int,
        rows: Iterable[tuple[Row, Row]],
        combine: Callable[[Any, Any], Any],
        incarnation: str = "",
    ) -> None:
        """Combines the partial values of one transaction in; again for the same txid: nothing.

        The first transaction of another incarnation, a topology that began anew, begins with an empty map.
        """
        with self._lock:
            entries = self._begin(txid, incarnation)
            if entries is None:
                return
            for key, partial in rows:
                old = entries.get(key)
                value = partial if old is None else tuple(combine(a, b) for a, b in zip(old[1], partial))
                entries[key] = (txid, value)
            self._replace(entries, txid)

    def put(self, txid: int, rows: Iterable[tuple[Row, Row | None]], incarnation: str = "") -> None:
        """Sets whole new values of one transaction, None removes a key; again for the same txid: nothing."""
        with self._lock:
            entries = self._begin(txid, incarnation)
            if entries is None:
                return
            for key, value in rows:
                if value is None:
                    entries.pop(key, None)
                else:
                    entries[key] = (txid, value)
            self._replace(entries, txid)

    def _replace(self, entries: dict[Row, tuple[int, Row]], txid: int) -> None:
        if self.max_size is not None and len(entries) > self.max_size:
            newest = sorted(entries.items(), key=lambda entry: entry[1][0])[-self.max_size :]
            entries = dict(newest)
        self._before = (self._txid, self._entries)
        self._entries, self._txid = entries, txid

    def _begin(self, txid: int, incarnation: str) -> dict[Row, tuple[int, Row]] | None:
        """A copy to change, so that a failure leaves nothing half done; None when the txid is in the map."""
        if incarnation != self._incarnation:
            self._entries, self._txid, self._incarnation, self._before = {}, 0, incarnation, (0, {})
        return None if txid <= self._txid else dict(self._entries)

    def values(self) -> dict[Row, Row]:
        with self._lock:
            return {key: value for key, (_, value) in self._entries.items()}

    def as_of(self, txid: int, incarnation: str = "") -> Mapping[Row, tuple[int, Row]] | None:
        """Keys to (txid, value) as of one transaction, never changed afterwards; None: two later ones are in already.

        Of a map that another incarnation has filled: nothing.
        """
        with self._lock:
            if incarnation != self._incarnation:
                return {}
            if self._txid <= txid:
                return self._entries
            since, before = self._before
            return before if since <= txid else None

    def clear(self) -> None:
        with self._lock:
            self._entries = {}
            self._txid = 0
            self._before = (0, {})


_maps: dict[str, MemoryMap] = {}


def memory_map(name: str) -> MemoryMap:
    return _maps.setdefault(name, MemoryMap())


def staged_rows(path: Place, keys: Sequence[str], values: Sequence[str]) -> Iterator[tuple[Row, Row | None]]:
    """The (key, values) of a staged file, in order; None for a key that is deleted."""
    table = pq.read_table(io.BytesIO(storage.read(path)))
    gone = table.column(DELETED_COLUMN).to_pylist() if DELETED_COLUMN in table.column_names else [None] * len(table)
    columns = {name: python_values(table.column(name)) for name in (*keys, *values)}
    for at, deleted in enumerate(gone):
        key = frozen(tuple(columns[name][at] for name in keys))
        yield key, None if deleted else tuple(columns[name][at] for name in values)


class MemoryKind(InProcessKind):
    """The kind of MemoryMapState: one value per key in this process's memory, gone with it."""

    name = "memory"
    example = "MemoryMapState(name)"
    values_by_key = True
    guarantee_rows = (GuaranteeRow("MEMORY", "MemoryMapState, as long as its process lives"),)

    def holds(self, state: object) -> bool:
        return isinstance(state, MemoryMapState)

    def check_rows(self, state: Any, schema: "StructType", keys: Sequence[str]) -> None:
        nested = [name for name in keys if not isinstance(schema[name].dataType, _KEY_TYPES)]
        if nested:
            raise TopologyError(
                f"field {nested[0]!r} cannot be a key of a MemoryMapState",
                found=schema[nested[0]].dataType.simpleString(),
                expected="a type without parts",
                action="use DeltaMapState, or a key made of its parts",
            )

    def publish(self, binding: StateBinding, rows: DecidedRows) -> None:
        keys, values = rows.details["keys"], rows.details["values"]
        read = [row for file in rows.files for row in staged_rows(rows.root / file.path, keys, values)]
        with faults.fault_point(PUBLISH):
            if rows.details["merging"] == LAST:
                memory_map(binding.name).put(rows.attempt.txid, read, rows.incarnation)
            else:
                parts = [(key, part) for key, part in read if part is not None]
                memory_map(binding.name).update(rows.attempt.txid, parts, binding.aggregator.combine, rows.incarnation)

    def rows_now(self, binding: StateBinding, incarnation: str) -> list[Row]:
        return [key + value for key, value in binding.state.values().items()]

    def entries_as_of(self, binding: StateBinding, txid: int, incarnation: str) -> Mapping[Row, Any] | None:
        return memory_map(binding.name).as_of(txid, incarnation)


MEMORY = MemoryKind()
