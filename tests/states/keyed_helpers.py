"""Publishes transactions to the tables of a batch group by hand, and says what they must hold.

Files are written with pyarrow and committed with Kernel, as publishing does.
What a state must hold is computed here in plain Python, from the rows alone:
no code under test takes part in it.
"""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, TimestampType

from trident.states.core.binding import StateBinding
from trident.states.core.control import DOMAIN, ControlRecord
from trident.states.core.copy_rows import RowCodec
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.local_copy import CopyAsOf, look_up
from trident.states.core.place import Place
from trident.states.core.tables import StagedFile
from trident.states.delta.append import APPEND, DeltaAppend
from trident.states.delta.kernel import KernelEngine, TableSnapshot
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.delta_map import KEYED, DeltaMapState

COUNT_SCHEMA = "word string, count bigint"


class Native:
    """As much of a native aggregator as states/ looks at."""

    def __init__(self, name: str) -> None:
        self.native_name = name


class Longest:
    """A Python combiner: the longer text, of equals the later."""

    def combine(self, a: str, b: str) -> str:
        return b if len(b) >= len(a) else a


class Concat:
    """A Python combiner that is not commutative: shows the order of transactions."""

    def combine(self, a: str, b: str) -> str:
        return a + b


def keyed(
    name: str = "counts",
    schema: str = COUNT_SCHEMA,
    keys: Sequence[str] = ("word",),
    aggregator: Any = None,
    merging: str = "combine",
    ordered_by: str = "",
    sequence: str = "",
    deleted_retention_txids: int = 0,
    history: tuple[str, str] = ("", ""),
    **settings: Any,
) -> StateBinding:
    """The binding of a keyed state; counts words unless told.

    With merging "last" or "sequenced" a published row has, after keys and values, whether its key is deleted.
    """
    struct = StructType.fromDDL(schema)
    values = tuple(field.name for field in struct.fields if field.name not in keys)
    state, combined = DeltaMapState(name, **settings), aggregator or Native("count")
    kept = deleted_retention_txids
    more = (ordered_by, sequence, kept, *history)
    return StateBinding(state, KEYED, tuple(keys), struct, values, combined, merging, *more)


def append(name: str = "lines", schema: str = "line string", partition_columns: Sequence[str] = ()) -> StateBinding:
    """The binding of an append table."""
    struct = StructType.fromDDL(schema)
    return StateBinding(DeltaAppend(name, partition_columns), APPEND, (), struct, tuple(struct.fieldNames()))


class Group:
    """The states of one batch group, published to by hand.

    Args:
        starts_at: the first txid of its states.
    """

    def __init__(
        self,
        spark: SparkSession,
        engine: KernelEngine,
        warehouse: Path | str,
        *bindings: StateBinding,
        topology: str = "top",
        group: str = "g",
        incarnation: str = "inc1",
        starts_at: int = 1,
    ) -> None:
        self.spark, self.engine = spark, engine
        self.warehouse: Any = Place(warehouse) if "://" in str(warehouse) else Path(warehouse)
        self.topology, self.group, self.incarnation = topology, group, incarnation
        self.bindings: dict[str, StateBinding] = {}
        self.snapshots: dict[str, TableSnapshot] = {}
        self.rows: dict[str, list[tuple[int, tuple]]] = {}
        self.attempt_id = 0
        for binding in bindings:
            self.add(binding, starts_at)

    def add(self, binding: StateBinding, starts_at: int = 1) -> StateDescriptor:
        """Makes a state's tables and descriptor, as at its topology's start."""
        name = binding.name
        control = ControlRecord(
            self.topology, self.group, self.incarnation, starts_at - 1, -1, "", 1, starts_at, starts_at - 1
        )
        for spec in binding.tables:
            made = self.engine.create_table(
                str(self.warehouse / spec.path),
                spec.schema_json,
                spec.partition_columns,
                spec.properties,
                {DOMAIN: control.encode()},
                f"trident/{self.incarnation}",
            )
            self.snapshots.setdefault(name, made)
        self.bindings[name], self.rows[name] = binding, []
        descriptor = StateDescriptor.of(binding, self.topology, self.group, self.incarnation, starts_at)
        descriptor.save(self.warehouse)
        return descriptor

    def descriptor(self, name: str) -> StateDescriptor:
        binding = self.bindings[name]
        control = json.loads(self.snapshots[name].control(DOMAIN) or "{}")
        return StateDescriptor.of(binding, self.topology, self.group, self.incarnation, control["starts_at"])

    def publish(self, txid: int, states: Mapping[str, Sequence[tuple]], only: Sequence[str] | None = None) -> None:
        """One transaction: a row per key and state, or no rows; in every state, or in some to show it half done."""
        for name in only or self.bindings:
            rows = states.get(name, [])
            self._publish(name, txid, rows)
            self.rows[name] += [(txid, tuple(row)) for row in rows]

    def _publish(self, name: str, txid: int, rows: Sequence[tuple]) -> None:
        snapshot = self.engine.load(self.snapshots[name].path)
        control = json.loads(snapshot.control(DOMAIN) or "{}")
        control.update(txid=txid, attempt_id=self.attempt_id, digest=f"d{txid}")
        self.snapshots[name] = self.engine.commit_files(
            snapshot,
            self.write(name, txid, rows),
            (f"trident/{self.topology}/{self.group}", txid),
            {DOMAIN: json.dumps(control)},
            f"trident/{self.incarnation}",
        )

    def write(self, name: str, txid: int, rows: Sequence[tuple]) -> list[StagedFile]:
        """Stages rows in one file, none for no rows."""
        binding = self.bindings[name]
        spec = binding.published_table
        assert spec is not None
        schema = to_arrow_schema(binding.log_schema, timezone="UTC")
        columns = list(zip(*rows)) if rows else [[] for _ in schema]
        batch = pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema)], schema=schema)
        target = FileTarget(
            name,
            str(self.warehouse / spec.path),
            f"data/{self.incarnation}/{txid}-0-x",
            spec.partition_columns,
            {spec.txid_column: txid} if spec.txid_column else {},
            sorted_by=spec.sorted_by,
        )
        return [
            StagedFile(**{**report, "partition_values": json.loads(report["partition_values"])})
            for report in ({k: v for k, v in r.items() if k != "target"} for r in write_partition(target, [batch]))
        ]

    def expected(self, name: str, txid: int, combine: Callable[[Any, Any], Any] | None = None) -> dict[tuple, tuple]:
        """Key → values as of txid, by folding the rows of each transaction in order.

        With merging "last" the newest row stands for itself.
        """
        binding = self.bindings[name]
        fold = combine or (lambda a, b: a + b)
        width, found = len(binding.keys), {}
        kinds = [field.dataType for field in binding.schema.fields]
        for row_txid, row in sorted(self.rows[name], key=lambda pair: pair[0]):
            if row_txid > txid:
                continue
            plain = tuple(comparable(kind, value) for kind, value in zip(kinds, row))
            key, value = plain[:width], plain[width:]
            if binding.merging == "last":
                found.pop(key, None)
                found.update({} if row[-1] else {key: value})
            else:
                old = found.get(key)
                found[key] = value if old is None else tuple(fold(a, b) for a, b in zip(old, value))
        return found

    def copied_to(self, warehouse: Path) -> Group:
        """The same group over a copy of its tables: a MERGE costs more than anything else here."""
        shutil.copytree(self.warehouse, warehouse)
        copied = Group(
            self.spark, self.engine, warehouse, topology=self.topology, group=self.group, incarnation=self.incarnation
        )
        copied.bindings = dict(self.bindings)
        copied.rows = {name: list(rows) for name, rows in self.rows.items()}
        for name, snapshot in self.snapshots.items():
            relative = Path(snapshot.path).relative_to(self.warehouse)
            copied.snapshots[name] = self.engine.load(str(copied.warehouse / relative))
        return copied


def compactor_of(group: Group, name: str = "counts", session: SparkSession | None = None, **settings: Any) -> Compactor:
    """The compactor of a state, with the settings that its binding has, or with these."""
    binding = group.bindings[name]
    state = type(binding.state)(name, **settings) if settings else binding.state
    descriptor, spark = group.descriptor(name), session or group.spark
    return Compactor(spark, group.engine, group.warehouse, descriptor, state, binding.aggregator)


def by_delta(compactor: Compactor) -> Compactor:
    """The same one, which leaves every MERGE to Delta."""
    compactor._by_files._why_not = lambda *_: "the test says so"  # type: ignore[method-assign]
    return compactor


def table(group: Group, name: str = "counts") -> deltalake.DeltaTable:
    """A state's plain table as delta-rs reads it: a reader that shares no code with Spark and Kernel."""
    return deltalake.DeltaTable(str(group.warehouse / name))


def plain(group: Group, name: str = "counts") -> dict[tuple, tuple]:
    """Key → values of the plain table; fails when a key has two rows."""
    names, rows = group.bindings[name].schema.names, table(group, name).to_pyarrow_table().to_pylist()
    return map_of(group.bindings[name], [tuple(row[column] for column in names) for row in rows])


def by_whom(group: Group, name: str = "counts") -> str:
    """Who has made the newest version of the plain table."""
    return "native" if table(group, name).history(1)[0]["engineInfo"].startswith("Trident/") else "delta"


def as_map(binding: StateBinding, frame: Any) -> dict[tuple, tuple]:
    """Key → values of a frame; fails when a key has two rows."""
    assert frame.columns == binding.schema.fieldNames()
    return map_of(binding, [tuple(row) for row in frame.collect()])


def map_of(binding: StateBinding, rows: Sequence[tuple]) -> dict[tuple, tuple]:
    """Key → values of rows in the order of the schema; fails when a key has two rows."""
    width, kinds = len(binding.keys), [field.dataType for field in binding.schema.fields]
    plain = [tuple(comparable(kind, value) for kind, value in zip(kinds, row)) for row in rows]
    found = {row[:width]: row[width:] for row in plain}
    assert len(found) == len(rows), "a key has more than one row"
    return found


def comparable(kind: DataType, value: Any) -> Any:
    """A value in one form, whoever read it: Spark, pyarrow or nobody."""
    if value is None:
        return None
    if isinstance(kind, ArrayType):
        return tuple(comparable(kind.elementType, each) for each in value)
    if isinstance(kind, MapType):
        pairs = value.items() if isinstance(value, dict) else value
        return frozenset((comparable(kind.keyType, k), comparable(kind.valueType, v)) for k, v in pairs)
    if isinstance(kind, StructType):
        values = [value[name] for name in kind.names] if isinstance(value, dict) else value
        return tuple(comparable(field.dataType, each) for field, each in zip(kind.fields, values))
    if isinstance(kind, TimestampType):
        return value.astimezone(datetime.timezone.utc)  # Spark gives the time of the machine
    return bytes(value) if isinstance(kind, BinaryType) else value


def publish_words(group: Group, *txids: int) -> None:
    """Transactions of the states counts, which is combined, and last, which keeps a key's last value."""
    for txid in txids:
        counts = [("the", 2), (f"w{txid}", 1), (None, txid)]
        last = [("the", float(txid), False), (f"w{txid}", -0.0, False), (f"w{txid - 2}", None, True)]
        group.publish(txid, {"counts": counts, "last": last})


def all_words(group: Group, name: str = "counts") -> list[str | None]:
    """All keys that there ever were."""
    return sorted({row[0] for _, row in group.rows[name]}, key=str)


def values_in(copy: CopyAsOf, words: Sequence[str | None]) -> dict[tuple, tuple]:
    """Key → values of those words that a local copy has."""
    codec = RowCodec(copy.schema, copy.keys)
    rows, there = look_up(copy, codec.key_array(pa.table({"word": pa.array(words, pa.string())})))
    return {(word,): tuple(one.values()) for word, is_there, one in zip(words, there, rows.to_pylist()) if is_there}
