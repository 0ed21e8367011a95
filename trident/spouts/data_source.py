"""Any PySpark Python data source with a streaming reader, as a transactional spout (docs/semantics.md 3).

The protocol is PySpark's (``pyspark.sql.datasource``): offsets are JSON dicts. A
batch is what lies between two of them, so they are its metadata; how it is read
a second time is the source's duty: ``partitions(start, end)`` of a
DataSourceStreamReader, ``readBetweenOffsets(start, end)`` of a simple one.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import logging
import threading
from collections.abc import Mapping
from typing import Any, Union

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.spouts import contracts as spout_arguments
from trident.spouts.contracts import Emitted, Emitter, Json, SpoutContext, SpoutKind, foreign_metadata
from trident.spouts.ranged import AdaptiveBatchSize, RangedCoordinator
from trident.spouts.tasks import TaskRows, arrow_batches, read_partitions
from trident.udf.types import as_schema


class ReadLimits:
    """The read limit that a reader is given, smaller after a timeout."""

    def __init__(self, spout: "DataSourceSpout", reader: Any, in_flight: int) -> None:
        self.taken = not spout.simple and bool(inspect.signature(reader.latestOffset).parameters)
        if spout.read_limit is not None and not self.taken:
            raise TopologyError(
                f"the data source {spout.name!r} takes no read limit", found=repr(spout.read_limit), expected="none"
            )
        self._limit: Any = None
        if self.taken:
            self._limit = spout.read_limit or spout.call(reader.getDefaultReadLimit)
        self._field = ""
        # Of a limit that can be halved.
        self.sizes: AdaptiveBatchSize | None = None
        if type(self._limit).__name__ in ("ReadMaxRows", "ReadMaxFiles", "ReadMaxBytes"):
            self._field = dataclasses.fields(self._limit)[0].name
            most = max(1, int(getattr(self._limit, self._field)))
            self.sizes = AdaptiveBatchSize(1, most, in_flight)
            self._plenty = most * in_flight  # how much waits is not known
            self.current()  # begins at the limit, not at the least size

    def current(self) -> Any:
        if self.sizes is None:
            return self._limit
        return dataclasses.replace(self._limit, **{self._field: self.sizes.next_size(self._plenty)})


def as_source(source: Any, options: Mapping[str, Any] | None) -> "DataSource":
    if isinstance(source, DataSource):
        if options is not None:
            raise TopologyError(
                "a data source's instance has its options already", found=repr(dict(options)), expected="its class"
            )
        return source
    if not (isinstance(source, type) and issubclass(source, DataSource)):
        raise TopologyError(
            "a DataSourceSpout needs a Python data source",
            found=repr(source)[:200],
            expected="a subclass of pyspark.sql.datasource.DataSource, or an instance of one",
        )
    # Spark hands options over as text.
    return source(CaseInsensitiveDict({name: _text(value) for name, value in (options or {}).items()}))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def schema_of(source: "DataSource", schema: Union[str, "StructType", None]) -> "StructType":
    name = source.name()
    if schema is None:
        try:
            schema = source.schema()
        except PySparkNotImplementedError:
            raise TopologyError(f"the data source {name!r} has no schema of its own", expected="schema=...") from None
        except Exception as error:
            raise TopologyError(f"schema of the data source {name!r} raised {type(error).__name__}: {error}") from error
    return as_schema(schema, f"the data source {name!r}")


def overrides(source: "DataSource", method: str) -> bool:
    return getattr(type(source), method) is not getattr(DataSource, method)


def copy_of(spout: "DataSourceSpout", reader: Any) -> Any:
    """A copy of a reader as tasks get it.

    Raises:
        SourceError: it cannot be pickled.
    """
    try:
        return cloudpickle.loads(cloudpickle.dumps(reader))
    except Exception as error:
        raise SourceError(
            f"the stream reader of the data source {spout.name!r} cannot be sent to Spark's tasks",
            found=f"{type(error).__name__}: {error}",
            expected="a reader that can be pickled right after it was made",
            action="open connections in read(), not in __init__",
        ) from error


log = logging.getLogger("trident.data_source_spout")

Offsets = tuple[dict[str, Any], dict[str, Any]]  # the start and the end of a batch


class DataSourceSpout:
    """The rows of a Python data source's streaming reader.

    Transactional, provided that the source keeps PySpark's contract: between
    the same two offsets there are always the same rows.

    A ``DataSourceStreamReader`` is asked on the driver for offsets and
    partitions, and its ``read`` runs in Spark tasks, on a copy of a reader that
    was just made; it must be possible to pickle it. A
    ``SimpleDataSourceStreamReader`` reads on the driver. ``commit(end)`` is called only once
    the transaction that ends there has succeeded; after a crash perhaps not for that
    offset but for a later one. Of a source with both readers the first is taken, as Spark does.
    ``initialOffset`` counts as it is at the first start, also where that is "now": the first batch, perhaps empty,
    keeps it.

    Where the reader takes a read limit (``latestOffset(start, limit)``) it is given its own
    default one, or ``read_limit``; of ReadMaxRows, ReadMaxFiles and ReadMaxBytes
    half after a batch that timed out.

    Args:
        source: a subclass of DataSource, or an instance.
        options: for the class, as ``spark.readStream.options`` takes them; an instance has its own.
        schema: a StructType or DDL text; None asks the source.
        read_limit: instead of the reader's default.
        poll_interval_secs: least time between two questions for new data.

    Raises:
        TopologyError: an argument cannot be used, or the source has no streaming reader.
    """

    kind = SpoutKind.TRANSACTIONAL

    def __init__(
        self,
        source: Union["type[DataSource]", "DataSource"],
        options: Mapping[str, Any] | None = None,
        schema: Union[str, "StructType", None] = None,
        read_limit: "ReadLimit | None" = None,
        poll_interval_secs: float = 0.5,
    ) -> None:
        self.source = as_source(
            source, None if options is None else spout_arguments.options("a DataSourceSpout", options)
        )
        self.name = self.source.name()
        self._schema = schema_of(self.source, schema)
        self.simple = not overrides(self.source, "streamReader")
        if self.simple and not overrides(self.source, "simpleStreamReader"):
            raise TopologyError(
                f"the data source {self.name!r} cannot be read as a stream",
                found="neither streamReader nor simpleStreamReader",
                expected="one of them",
            )
        poll_interval_secs = spout_arguments.seconds("poll_interval_secs", poll_interval_secs)
        self.read_limit, self.poll_interval_secs = read_limit, poll_interval_secs
        self._prefetched: dict[tuple[str, str], Prefetched] = {}

    @property
    def output_schema(self) -> "StructType":
        return self._schema

    @property
    def acknowledges(self) -> bool:
        """Tells whether the source's reader has a ``commit`` of its own, which may drop rows.

        Raises:
            SourceError: the source cannot make a reader.
        """
        reader = self.new_reader()
        try:
            return getattr(reader.commit, "__func__", None) not in _NO_COMMIT
        finally:
            _stop(reader)

    def get_coordinator(self, context: SpoutContext) -> "DataSourceCoordinator":
        """Raises SourceError when the source cannot make a reader."""
        rows = self._prefetched[context.topology, context.tx_id] = Prefetched()
        return DataSourceCoordinator(self, rows, context.options.get("max_spout_pending") or 3)

    def get_emitter(self, context: SpoutContext) -> "DataSourceEmitter":
        """Raises SourceError when the source's reader cannot be made or pickled."""
        rows = self._prefetched.get((context.topology, context.tx_id)) or Prefetched()
        return DataSourceEmitter(self, rows, context)

    def new_reader(self) -> Any:
        """A reader; the caller stops it."""
        make = self.source.simpleStreamReader if self.simple else self.source.streamReader
        return self.call(make, self._schema)

    def call(self, method: Any, *arguments: Any) -> Any:
        """Returns what a method of the user's returns.

        Raises:
            SourceError: it raised.
        """
        try:
            return method(*arguments)
        except Exception as error:
            name = getattr(method, "__name__", "a method")
            raise SourceError(
                f"{name} of the data source {self.name!r} raised {type(error).__name__}: {error}",
                action="the batch is tried again up to max_attempts",
            ) from error

    def offset(self, value: Any, method: str) -> dict[str, Any]:
        """An offset as it comes back from ZooKeeper.

        Raises:
            SourceError: it is not a JSON dict.
        """
        try:
            if isinstance(value, dict):
                return json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            pass
        raise SourceError(
            f"{method} of the data source {self.name!r} gave no offset", found=repr(value)[:200], expected="a JSON dict"
        )


_NO_COMMIT = (DataSourceStreamReader.commit, SimpleDataSourceStreamReader.commit)


class Prefetched:
    """Rows that a simple reader gave together with the end offset, until the batch is first emitted."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {}
        self._lock = threading.Lock()

    def put(self, start: dict[str, Any], end: dict[str, Any], rows: list[Any]) -> None:
        with self._lock:
            self._rows[_key(start, end)] = rows

    def take(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any] | None:
        with self._lock:
            return self._rows.pop(_key(start, end), None)

    def clear(self) -> None:
        with self._lock:
            self._rows.clear()


class DataSourceCoordinator(RangedCoordinator[Offsets]):
    """Asks the reader how far there is data. Metadata: {"start": offset, "end": offset}.

    Readiness, beginnings and successes come from different threads; the reader is used from one at a time.
    """

    def __init__(self, spout: DataSourceSpout, prefetched: Prefetched, in_flight: int) -> None:
        self._spout, self._prefetched = spout, prefetched
        self._reader = spout.new_reader()
        self._limits = ReadLimits(spout, self._reader, in_flight)
        super().__init__(self._limits.sizes, spout.poll_interval_secs)
        self._seen: Offsets | None = None  # the last answer

    # --- looking for data ---------------------------------------------------------------------

    @property
    def start_is_fixed(self) -> bool:
        return False  # the source may say "now", and later be elsewhere

    def start(self) -> Offsets:
        first = self._spout.offset(self._spout.call(self._reader.initialOffset), "initialOffset")
        return first, first

    def poll(self) -> None:
        # An offset that was found stays: a simple reader has given the rows with it.
        if self._seen is not None and self._seen[0] == self._seen[1]:
            self._seen = None

    def waits(self, empty: Offsets) -> bool:
        return self._between(empty[1])[1] != empty[1]

    def _between(self, start: dict[str, Any]) -> Offsets:
        """From there to the offset up to which there is data now."""
        if self._seen is None or self._seen[0] != start:
            self._seen = (start, self._read(start) if self._spout.simple else self._latest(start))
        return self._seen

    def _latest(self, start: dict[str, Any]) -> dict[str, Any]:
        latest = self._reader.latestOffset
        found = (
            self._spout.call(latest, start, self._limits.current()) if self._limits.taken else self._spout.call(latest)
        )
        return self._spout.offset(found, "latestOffset")

    def _read(self, start: dict[str, Any]) -> dict[str, Any]:
        """A simple reader says where a batch ends by reading it."""

        def read() -> tuple[list[Any], Any]:
            rows, end = self._reader.read(start)
            return list(rows), end

        read.__name__ = "read"
        rows, found = self._spout.call(read)
        end = self._spout.offset(found, "read")
        if end != start:
            self._prefetched.put(start, end, rows)
        elif rows:
            raise SourceError(
                f"read of the data source {self._spout.name!r} gave rows but no further offset: they would come again",
                found=f"{len(rows)} rows, end {end}",
                expected="an end offset after the start",
            )
        return end

    # --- planning -----------------------------------------------------------------------------

    def read(self, metadata: Json) -> Offsets:
        return _range(metadata)

    def stored(self, planned: Offsets) -> Json:
        return {"start": planned[0], "end": planned[1]}

    def after(self, before: Offsets) -> Offsets:
        return before[1], before[1]

    def cut(self, empty: Offsets, txid: int) -> Offsets:
        return self._between(empty[1])

    def initialize_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        if prev_metadata is not None:
            self._remember(txid - 1, self.read(prev_metadata))  # for a success that is told again
        return super().initialize_transaction(txid, prev_metadata, curr_metadata)

    def size(self, planned: Offsets) -> int:
        return self._limits.sizes.size if self._limits.sizes is not None else 1

    def shrunk(self, found: Offsets, size: int, txid: int) -> Offsets:
        """Read by a limit that is a half; where the reader takes none that can be halved the range stays as it is."""
        self._seen = None
        shorter = self._between(found[0])
        return found if shorter[0] == shorter[1] else shorter  # not empty: nothing would be left to try

    # --- afterwards ---------------------------------------------------------------------------

    def success(self, txid: int) -> None:
        """Raises SourceError when commit raises; a later commit covers this one."""
        super().success(txid)
        with self._asking:
            planned = self._planned.get(txid)
            if planned is not None:
                self._spout.call(self._reader.commit, planned[1])

    def close(self) -> None:
        with self._asking:
            self._prefetched.clear()
            _stop(self._reader)


class DataSourceEmitter(Emitter):
    """Reads between two offsets."""

    def __init__(self, spout: DataSourceSpout, prefetched: Prefetched, context: SpoutContext) -> None:
        self._spout, self._spark, self._prefetched = spout, context.spark, prefetched
        self._what = f"the data source {spout.name!r} of stream {context.tx_id!r}"
        self._lock = threading.Lock()  # the reader is used from one thread at a time
        self._reader = spout.new_reader()
        # A method of a copy that was never called, as Spark's tasks get one, too.
        self._read: Any = None if spout.simple else copy_of(spout, self._reader).read

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        """The rows between two offsets.

        Raises:
            SourceError: the source raised, or its rows do not fit the schema.
        """
        start, end = _range(metadata)
        if start == end:
            return Emitted([], partitions=1)
        return self._simple(start, end) if self._spout.simple else self._partitioned(start, end)

    def _simple(self, start: dict[str, Any], end: dict[str, Any]) -> Emitted:
        rows = self._prefetched.take(start, end)
        with self._lock:
            make = (lambda: self._reader.readBetweenOffsets(start, end)) if rows is None else (lambda: rows)
            batches = list(arrow_batches(make, self._spout.output_schema, self._what))
        return Emitted(pa.Table.from_batches(batches) if batches else [], partitions=1)

    def _partitioned(self, start: dict[str, Any], end: dict[str, Any]) -> Emitted:
        with self._lock:
            partitions = list(self._spout.call(self._reader.partitions, start, end))
        wrong = [one for one in partitions if not isinstance(one, InputPartition)]
        if wrong:
            raise SourceError(
                f"partitions of {self._what} gave something else", found=repr(wrong[0])[:200], expected="InputPartition"
            )
        if not partitions:
            return Emitted([], partitions=1)
        pickled = [self._spout.call(cloudpickle.dumps, one) for one in partitions]
        schema, count = self._spout.output_schema, len(partitions)
        task = functools.partial(read_partitions, self._read, pickled, schema, self._what)
        rows = TaskRows(self._spark, count)
        return Emitted(self._spark.range(0, count, 1, count).mapInArrow(rows.counted(task), schema), rows=rows)

    def close(self) -> None:
        with self._lock:
            _stop(self._reader)


def _stop(reader: Any) -> None:
    try:
        getattr(reader, "stop", lambda: None)()  # a simple reader has none
    except Exception as error:
        log.warning("stop of a data source's reader raised: %s", error)


def _key(start: dict[str, Any], end: dict[str, Any]) -> str:
    return json.dumps([start, end], sort_keys=True)


def _range(metadata: Json) -> Offsets:
    if isinstance(metadata, dict) and isinstance(metadata.get("start"), dict) and isinstance(metadata.get("end"), dict):
        return metadata["start"], metadata["end"]
    raise foreign_metadata(metadata, "a DataSourceSpout", '{"start": offset, "end": offset}')
