"""The operations that a stream has and a grouped stream has not, and that give a stream again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

from trident.coordinators.errors import TopologyError
from trident.operations import columns, repartitioning, row_functions, timed, top_rows, windows
from trident.operations.debezium import debezium
from trident.operations.joins import JoinOutFieldsMode
from trident.operations.timed import drop_duplicates
from trident.planning.nodes import Names, field_names
from trident.streams.rows import Columnar, Function, Outputs, RowOperations, flat, join, joined_within, merge
from trident.streams.states import StateHandle, add_sink
from trident.udf.expressions import is_expression

if TYPE_CHECKING:
    from pyspark.sql.types import StructType
    from typing_extensions import Self


class StreamOperations(RowOperations):
    """Operations on whole rows, on Spark partitions and on several streams."""

    def map(self, function: Union[Function, Columnar], outputs: Union[Outputs, None] = None) -> "Self":
        """Replaces each row by one other: ``map(f, "a long, b string")``.

        The function is called with all fields and returns a value (one output,
        where None is a null value) or a tuple (several). Without outputs the fields
        stay what they are: it returns as many values as there are fields.
        """
        return self._mapped("map", function, outputs)

    def flat_map(self, function: Union[Function, Columnar], outputs: Union[Outputs, None] = None) -> "Self":
        """Replaces each row by any number of others: ``flat_map(F.explode("words"), "word")``.

        The function is called with all fields and returns an iterable of values
        (one output) or tuples (several); None is no row. Without outputs as
        :meth:`map`.
        """
        return self._mapped("flat_map", function, outputs)

    def _mapped(self, kind: str, function: Any, outputs: Any) -> "Self":
        if is_expression(function):
            return self._next(row_functions.by_expression(self._node, kind, function, outputs))
        return self._next(row_functions.by_function(self._node, kind, self.fields, function, outputs))

    def debezium(
        self,
        schema: Union[str, "StructType", None] = None,
        connector: str = "postgresql",
        field: str = "value",
        *,
        times: str | None = None,
        decimals: str | None = None,
        binary: str | None = None,
    ) -> "Self":
        """Rows of a table from Debezium's messages about its changes, for an Upsert.

        ``stream.debezium("id long, name string").partition_persist(DeltaMapState("users"), None,
        Upsert("id", delete_when="deleted", sequence_by="sequence"))``

        Gives the table's columns, ``sequence`` (the place of the change in the database's log) and ``deleted``. Kafka's
        tombstones and messages of the database's users (op "m") are left out. A text that is not one JSON object, a
        column that the message lacks, a value that its column cannot be (nothing is rounded), a TRUNCATE and a delete
        without its row fail the batch, by an error that names the column.

        The schema in a message (``schemas.enable=true``) says what times, decimals and bytes mean. Without it a number
        for a timestamp and a text for a decimal or for bytes are refused, unless the arguments say how the connector
        is set.

        Args:
            schema: the table's columns as Debezium writes them: a StructType or DDL text. For JSON text, with its
                schema in the message or without; of a struct (a KafkaSpout's value="json" or "avro") the type says it.
            connector: "postgresql", "mysql" or "mariadb": how the sequence is found.
            field: the one that has the envelope.
            times: "milliseconds", "microseconds" or "nanoseconds": the unit of numbers for timestamps in messages
                without a schema (``time.precision.mode``: with "adaptive" it depends on the column's precision).
            decimals: "precise" or "string", as ``decimal.handling.mode``; bytes have the scale of the column then.
            binary: "base64" (``binary.handling.mode`` "bytes" too), "base64-url-safe" or "hex"; the latter two also
                for messages with a schema, which calls them texts.

        Raises:
            FieldError: the field does not exist, is no envelope, or the table has a column of those names.
            TopologyError: the connector or a mode is not known, or there is no schema for JSON text.
        """
        modes = {"times": times, "decimals": decimals, "binary": binary}
        return self._next(debezium(self._node, schema, connector, field, modes))

    def select(self, *fields: Any) -> "Self":
        """Fields and Columns side by side: ``select("word", F.upper("word").alias("upper"))``.

        With names alone it is ``project``.

        Raises:
            FieldError: a field does not exist, or two have one name.
            TopologyError: a Column makes many rows, or one of many.
        """
        if not any(is_expression(field) for field in fields):
            return self.project(*fields)
        return self._next(columns.select(self._node, fields))

    def with_columns(self, made: Mapping[str, Columnar]) -> "Self":
        """As ``with_column``, several at once; each sees the fields as they were before."""
        return self._next(columns.with_columns(self._node, made))

    def drop(self, *fields: Names) -> "Self":
        """All fields but the named ones: ``drop("line")``."""
        return self._next(columns.drop(self._node, flat(fields, "drop")))

    def rename(self, names: Mapping[str, str]) -> "Self":
        """Gives fields other names: ``rename({"value": "line"})``; the order stays."""
        return self._next(columns.rename(self._node, names))

    def apply_assembly(self, assembly: Any) -> "Self":
        """A part of a topology that is used in several places: ``apply_assembly(FirstN(3, "n", reverse=True))``.

        Args:
            assembly: an object with ``apply(stream)``, or a function of a stream; it gives a stream.

        Raises:
            TopologyError: it gives something else.
        """
        apply = getattr(assembly, "apply", assembly)
        if not callable(apply):
            raise TopologyError(
                "apply_assembly needs an assembly",
                found=repr(assembly),
                expected="an object with apply(stream), or a function of a stream",
            )
        made = apply(self)
        if not isinstance(made, (RowOperations, StateHandle)):
            raise TopologyError(f"the assembly {assembly!r} gives no stream", found=repr(made), expected="a Stream")
        return made  # type: ignore[return-value]

    transform = apply_assembly

    # --- several streams -----------------------------------------------------------------

    def merge(self, *others: "Self", outputs: Union[Names, None] = None) -> "Self":
        """The rows of this stream and of others, within each batch; see :meth:`TridentTopology.merge`."""
        return self._next(merge(self._graph, [self, *others], outputs))

    union = merge

    def join(
        self,
        other: "Self",
        on: Any,
        how: Any = "inner",
        outputs: Union[Names, None] = None,
        mode: JoinOutFieldsMode = JoinOutFieldsMode.COMPACT,
        within: Any = None,
        name: Union[str, None] = None,
    ) -> "Self":
        """Joins with another stream: ``join(other, "user", "left")``, ``join(other, "user", within="10 minutes")``.

        Without ``within`` the rows of each batch are joined. Rows of two transactions then
        never meet: :meth:`TridentTopology.join` says what that means for streams of independent spouts.

        With ``within`` rows are joined over all batches, by event time: both streams are behind
        :meth:`with_watermark`, and two rows with equal keys are a pair when their times are at most that far apart.
        Each pair goes on exactly once, in the transaction that brings the later of the two, over replays, crashes
        and restarts. Rows wait in a keyed state until no partner can come: until the watermark, the lesser of both
        streams', has passed the bound. An outer row goes on then, with nulls; a stream that gives no rows so holds
        it back. Rows whose time is before the watermark of the transaction before, or null, are late: they are not
        joined, and are among :meth:`late_rows`. A null key is equal to a null key. Behind the join there is no
        watermark: put ``with_watermark`` behind it where one is needed.

        Args:
            other: of the same topology.
            on: the keys: one choice for both, or ``["a", "b"]`` where they have other names in the other stream.
            how: "inner", "left", "right", "full", or as in :meth:`TridentTopology.join`.
            outputs: the keys, then this stream's other fields, then the other's; or as ``mode`` says.
            mode: which fields; as in :meth:`TridentTopology.join`.
            within: a duration; or two, as ``("-5 minutes", "1 hour")``: the other's time less this one's lies
                between them.
            name: of the state that keeps the rows that wait; one after the topology's name when left out.
        """
        if within is not None:
            return self._timed(joined_within(self._graph, [self, other], on, outputs, how, mode, within, name))
        return self._next(join(self._graph, [self, other], on, outputs, how, mode))

    # --- Spark partitions ------------------------------------------------------------------

    def _repartitioned(self, kind: str, operation: str, names: tuple[str, ...] = (), function: Any = None) -> "Self":
        return self._next(repartitioning.repartition(self._node, kind, operation, names, function))

    def shuffle(self) -> "Self":
        """Spreads the rows evenly over the Spark partitions."""
        return self._repartitioned("shuffle", "shuffle")

    def local_or_shuffle(self) -> "Self":
        """As ``shuffle`` where that costs nothing: here the rows stay where they are."""
        return self._next(repartitioning.unchanged(self._node, "local_or_shuffle()"))

    def identity_partition(self) -> "Self":
        """The rows stay where they are."""
        return self._next(repartitioning.unchanged(self._node, "identity_partition()"))

    def broadcast(self) -> "Self":
        """Every row in every Spark partition. Not Spark's hint of that name: the rows are multiplied."""
        return self._repartitioned("broadcast", "broadcast")

    def partition_by(self, *fields: Names) -> "Self":
        """Rows with equal values in the fields come to one Spark partition; null is equal to null."""
        return self._repartitioned("partition_by", "partition_by", flat(fields, "partition_by"))

    def partition(self, inputs: Union[Names, Function], function: Union[Function, None] = None) -> "Self":
        """A function says which Spark partition each row comes to: ``partition("user", lambda user: user % 4)``.

        It returns a number from 0, taken modulo the number of partitions; or
        several, for a row that is to be in several.
        """
        given: Any = inputs if function is None else function
        names = self.fields if function is None else field_names(inputs, "partition")
        return self._repartitioned("partition", "partition", names, given)

    def global_(self) -> "Self":
        """All rows of the batch in one Spark partition."""
        return self._repartitioned("global", "global_")

    batch_global = global_

    # --- the least, the greatest and the first rows ------------------------------------------

    def _extreme(self, what: str, by: tuple[str, ...], greatest: bool, comparator: Any, scope: str) -> "Self":
        return self._next(top_rows.extreme(self._node, what, by, greatest, comparator, scope))

    def min_by(self, field: str, comparator: Union[Function, None] = None, scope: str = "partition") -> "Self":
        """The row with the least value in a field: of each Spark partition, as in Trident, or of the batch.

        Rows where it is null are skipped; of equal ones the later one is kept;
        no row gives no row.

        Args:
            field: that is compared.
            comparator: (a, b) → below 0, 0 or above 0; the values' own order when None.
            scope: "partition" or "batch".
        """
        return self._extreme("min_by", field_names(field, "min_by"), False, comparator, scope)

    def max_by(self, field: str, comparator: Union[Function, None] = None, scope: str = "partition") -> "Self":
        """The row with the greatest value in a field; otherwise as :meth:`min_by`."""
        return self._extreme("max_by", field_names(field, "max_by"), True, comparator, scope)

    def min(self, comparator: Union[Function, None] = None, scope: str = "partition") -> "Self":
        """The least row, by all its fields in their order; a comparator is given tuples of them.

        Otherwise as :meth:`min_by`; a row with a null is skipped.
        """
        return self._extreme("min", self.fields, False, comparator, scope)

    def max(self, comparator: Union[Function, None] = None, scope: str = "partition") -> "Self":
        """The greatest row; otherwise as :meth:`min`."""
        return self._extreme("max", self.fields, True, comparator, scope)

    def first_n(self, n: int, by: Union[str, None] = None, reverse: bool = False) -> "Self":
        """The first n rows of the batch: ``first_n(3, "n", reverse=True)``; see :class:`FirstN`."""
        return self._next(top_rows.FirstN(n, by, reverse).node(self._node))

    def with_watermark(self, field: str, delay: str) -> "Self":
        """Makes a timestamp the event time of windows behind: ``with_watermark("at", "10 minutes")``, as in PySpark.

        The watermark is the greatest timestamp so far, less the delay. Windows
        that it has reached the end of are fired; rows that come for them later
        are late. A timestamp far in the future fires everything up to it.

        Args:
            field: a timestamp; the windows need it still.
            delay: how much later than others rows may come, such as "1 hour 30 seconds".

        Raises:
            FieldError: there is no such field.
            TopologyError: it is no timestamp, or the delay is no duration.
        """
        return self._next(windows.with_watermark(self._node, field, delay))

    # --- over batches, with a time ---------------------------------------------------------

    def drop_duplicates(self, *subset: Names, within: Union[str, None] = None, name: Union[str, None] = None) -> "Self":
        """The first row of each key, over all batches: ``drop_duplicates("id", within="1 day")``.

        Behind :meth:`with_watermark`. A row goes on unless one of its key has gone on whose event time is less than
        ``within`` before its own; so one that is out of order, before the row that has gone on, does not. Rows of a
        batch count in their order. A key is forgotten when the watermark is ``within`` behind the row that has gone
        on; it is the clock's time that plays no part, so a replay gives the same.

        A row whose time is before the watermark of the transaction before, or null, comes too late: it does not go
        on, and is among :meth:`late_rows`. So no two rows of a key go on that are nearer than ``within``, exactly,
        over replays, crashes and restarts.

        Rows that go on keep the watermark.

        Args:
            subset: the fields that are the key; all fields when left out.
            within: a duration such as "1 day" or "1 hour 30 minutes".
            name: of the state that keeps the keys; one after the topology's name when left out.

        Raises:
            FieldError: a field does not exist, or cannot be a key.
            TopologyError: there is no watermark, or no such time.
        """
        keys = flat(subset, "drop_duplicates") if subset else self.fields
        return self._timed(drop_duplicates(self._graph, self._node, keys, within, name))

    def late_rows(self, side: int = 0) -> "Self":
        """The rows that came too late for ``drop_duplicates``, ``process`` or a join within a time, as they came.

        Call it on the stream that the operation gave. A row is late where its event time is before the watermark of
        the transaction before, or null.

        Args:
            side: of a join: 0 for this stream's, 1 for the other's.

        Raises:
            TopologyError: the stream is of another operation, or has no event time.
        """
        return self._next(timed.late_rows_of(self._node, side))

    def _timed(self, node: "timed.TimedNode") -> "Self":
        add_sink(self._graph, node)
        return self._next(timed.rows_of(node))
