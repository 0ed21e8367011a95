"""A stream with the fields that its rows are grouped by.

What keeps the grouping and what ends it is as in Storm's GroupedStream: an
aggregate and a state query end it, ``each`` and ``partition_aggregate`` keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from pyspark.sql.types import StructType

from trident.coordinators.errors import FieldError
from trident.operations import columns
from trident.operations.aggregators import Count
from trident.operations.chained import ChainedAggregation, partition_aggregate
from trident.operations.persisting import TridentState, persistent_aggregate
from trident.planning.nodes import Names
from trident.streams.arguments import NOT_GIVEN, Columnar, Function, Outputs, as_columns, flat, shifted
from trident.streams.other_names import GROUPED_NAMES, OtherNames, snake_case
from trident.udf.expressions import is_expression

if TYPE_CHECKING:
    from trident.streams.stream import Stream


class GroupedStream(OtherNames):
    """A stream with the fields that its rows are grouped by."""

    _OTHER_NAMES = GROUPED_NAMES

    def __init__(self, stream: "Stream", keys: tuple[str, ...]) -> None:
        self._stream, self._keys = stream, keys

    @property
    def schema(self) -> StructType:
        """The fields and their types."""
        return self._stream.schema

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self._stream.fields

    @property
    def keys(self) -> tuple[str, ...]:
        """The grouping fields."""
        return self._keys

    def __repr__(self) -> str:
        return f"GroupedStream({', '.join(self._keys)} of {self._stream!r})"

    def aggregate(self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN) -> "Stream":
        """One row per group of the batch: the keys, then the outputs. None for an empty batch.

        Args: as in :meth:`Stream.aggregate`.
        """
        return self._stream._aggregate(self._keys, *shifted(inputs, aggregator, outputs))

    def count(self) -> "Stream":
        """As in PySpark: the keys, then ``count``, the number of rows of each group of the batch."""
        return self.aggregate(Count(), "count")

    def agg(self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN, *more: Any) -> "Stream":
        """``aggregate``; or, as in PySpark, aggregate Columns: ``agg(F.sum("n").alias("total"))``."""
        if is_expression(inputs):
            return columns.column_aggregate(self._stream, self._keys, as_columns(inputs, aggregator, outputs, *more))
        return self.aggregate(inputs, aggregator, outputs)

    def partition_aggregate(self, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN) -> "GroupedStream":
        """One row per group of each Spark partition: the keys, then the outputs; the grouping stays.

        Args: as in :meth:`Stream.aggregate`.
        """
        return self._still(partition_aggregate(self._stream, self._keys, *shifted(inputs, aggregator, outputs)))

    def chained_agg(self) -> ChainedAggregation:
        """Several aggregates per group; see :class:`ChainedAggregation`."""
        return ChainedAggregation(self._stream, self._keys)

    # --- operations on rows: the grouping stays --------------------------------------------

    def each(
        self, inputs: Union[Names, Columnar], function: Union[Function, Outputs, None] = None, outputs: Outputs = ""
    ) -> "GroupedStream":
        """As :meth:`Stream.each`; the grouping stays."""
        return self._still(self._stream.each(inputs, function, outputs))

    def filter(
        self, inputs: Union[Names, Function, Columnar], function: Union[Function, None] = None
    ) -> "GroupedStream":
        """As :meth:`Stream.filter`; the grouping stays."""
        return self._still(self._stream.filter(inputs, function))

    where = filter

    def peek(self, inputs: Union[Names, Function], function: Union[Function, None] = None) -> "GroupedStream":
        """As :meth:`Stream.peek`; the grouping stays."""
        return self._still(self._stream.peek(inputs, function))

    def with_column(self, name: str, column: Columnar) -> "GroupedStream":
        """As :meth:`Stream.with_column`; the grouping stays."""
        return self._still(self._stream.with_column(name, column))

    def project(self, *fields: Names) -> "GroupedStream":
        """As :meth:`Stream.project`, with the grouping fields among those kept; the grouping stays."""
        names = flat(fields, "project")
        for key in self._keys:
            if key not in names:
                raise FieldError(
                    "project drops a field that the stream is grouped by",
                    found=repr(key),
                    expected=f"{', '.join(self._keys)} among the fields",
                )
        return self._still(self._stream.project(*names))

    def state_query(self, state: TridentState, inputs: Any, query: Any = None, outputs: Any = NOT_GIVEN) -> "Stream":
        """As :meth:`Stream.state_query`, and ends the grouping: what follows is over the whole batch or request.

        As in Trident, where ``group_by`` here only says which rows ask together.
        ``group_by`` behind it begins another grouping.
        """
        return self._stream.state_query(state, inputs, query, outputs)

    def name(self, name: str) -> "GroupedStream":
        """As :meth:`Stream.name`."""
        return self._still(self._stream.name(name))

    def parallelism_hint(self, count: int) -> "GroupedStream":
        """As :meth:`Stream.parallelism_hint`."""
        return self._still(self._stream.parallelism_hint(count))

    def to_stream(self) -> "Stream":
        """The same rows without the grouping."""
        return self._stream

    @classmethod
    def _hint(cls, name: str) -> Union[str, None]:
        from trident.streams.stream import Stream

        own = snake_case(name)
        if not hasattr(cls, own) and own not in GROUPED_NAMES and hasattr(Stream, own):
            return f"a grouped stream has none: write to_stream().{own}(…), or aggregate first"
        return super()._hint(name)

    def _still(self, stream: "Stream") -> "GroupedStream":
        return GroupedStream(stream, self._keys)

    def persistent_aggregate(
        self, state: Any, inputs: Any, aggregator: Any = None, outputs: Any = NOT_GIVEN
    ) -> TridentState:
        """Keeps one value per group over all batches: ``persistent_aggregate(state, Count(), "n")``.

        Args: as in :meth:`Stream.persistent_aggregate`.
        """
        return persistent_aggregate(self._stream, self._keys, state, *shifted(inputs, aggregator, outputs))
