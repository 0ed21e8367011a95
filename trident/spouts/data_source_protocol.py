"""PySpark's protocol of Python data sources, as its reader must follow it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Union

from pyspark import cloudpickle
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource

from trident.coordinators.errors import SourceError, TopologyError
from trident.spouts.batch_size import AdaptiveBatchSize
from trident.udf.schemas import as_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class SourceCalls(Protocol):
    """The part of a DataSourceSpout that calls the user's source."""

    name: str
    simple: bool
    read_limit: Any

    def call(self, method: Any, *arguments: Any) -> Any:
        """The method's result; SourceError where it raises."""


class ReadLimits:
    """The read limit that a reader is given, smaller after a timeout."""

    def __init__(self, spout: SourceCalls, reader: Any, in_flight: int) -> None:
        self.taken = not spout.simple and bool(inspect.signature(reader.latestOffset).parameters)
        if spout.read_limit is not None and not self.taken:
            raise TopologyError(
                f"the data source {spout.name!r} takes no read limit", found=repr(spout.read_limit), expected="none"
            )
        self._limit: Any = None
        if self.taken:
            self._limit = spout.read_limit or spout.call(reader.getDefaultReadLimit)
        self._field = None
        if type(self._limit).__name__ in ("ReadMaxRows", "ReadMaxFiles", "ReadMaxBytes"):
            self._field = dataclasses.fields(self._limit)[0].name
            self._most = max(1, int(getattr(self._limit, self._field)))
            self._adaptive = AdaptiveBatchSize(1, self._most, in_flight)
            self._in_flight = in_flight
            self.current()  # begins at the limit, not at the least size

    def current(self) -> Any:
        if self._field is None:
            return self._limit
        # How much waits is not known: as if it were plenty.
        size = self._adaptive.next_size(self._most * self._in_flight)
        return dataclasses.replace(self._limit, **{self._field: size})

    def halve(self) -> bool:
        """False when it cannot be made smaller."""
        if self._field is None or self._adaptive.size <= 1:
            return False
        self._adaptive.timed_out(self._adaptive.size)
        return True

    def succeeded(self, secs: float) -> None:
        if self._field is not None:
            self._adaptive.succeeded(secs)


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


def copy_of(spout: SourceCalls, reader: Any) -> Any:
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
