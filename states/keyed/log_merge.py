"""Makes values of the rows of a keyed state's log, as Spark plans.

Used by the background MERGE and by live reads alike, so both give the same
value for the same transactions. Native aggregators stay in Spark; a Python
combiner folds rows that Spark has sorted, in txid order, in constant memory.
Where the log has whole values (merging "last") the newest row of a key counts,
null values and all, and no code of the topology is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from trident.coordinators.errors import ConfigError, TableError
from trident.states.core.binding import COMBINE, SEQUENCED, WHOLE_VALUES, aggregator_name, kept_schema
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.names import backquoted
from trident.states.core.native import NATIVE, NativeMerge
from trident.states.core.retention import Retention, Span
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN
from trident.states.core.typed_values import WrongValue, frozen, in_one_line, python_values, to_arrow

# Log rows in this many bytes of Parquet are sent to every task; they take some ten times as much there.
_BROADCAST_BYTES_MAX = 8 << 20
_DIGITS_MAX = 38  # of a decimal of Spark
# So many halves of a bigint have a sum that is a bigint.
_HALF_BITS = 32


def keeps_last(state: StateDescriptor) -> bool:
    """Tells whether the log's rows are whole values: neither a native merging nor a combiner is asked then."""
    return state.merging in WHOLE_VALUES


def is_sequenced(state: StateDescriptor) -> bool:
    """Tells whether of whole values the one with the greatest (sequence, txid) counts, not just the newest."""
    return state.merging == SEQUENCED


def native_merge(state: StateDescriptor) -> NativeMerge | None:
    """The native merging of a state, None when its aggregator is a Python combiner or it keeps the last value."""
    return None if keeps_last(state) else NATIVE.get(state.aggregator or "")


def combiner_of(state: StateDescriptor, aggregator: Any) -> Any:
    """The Python combiner, when the state has one; None when Spark alone merges it.

    Raises:
        ConfigError: one is needed, and none was given, or one that is not the state's.
    """
    if keeps_last(state) or native_merge(state) is not None:
        return None
    return require_combiner(state, aggregator)


def require_combiner(state: StateDescriptor, aggregator: Any) -> Any:
    """The Python combiner of a state."""
    if aggregator is None or not callable(getattr(aggregator, "combine", None)):
        raise ConfigError(
            f"state {state.name} is combined by Python code, which its tables do not hold",
            found="no aggregator" if aggregator is None else repr(aggregator),
            expected=f"the aggregator {state.aggregator}",
            action="pass aggregator=..., the object that the topology gives to persistent_aggregate; "
            "or read the table itself, as of its last MERGE",
        )
    name = aggregator_name(aggregator)
    if name != state.aggregator:
        raise ConfigError(
            f"state {state.name} is combined by another aggregator",
            found=name,
            expected=state.aggregator,
            action="pass the aggregator of the topology",
        )
    return aggregator


def quoted(name: str, side: str | None = None) -> "Column":
    """A column by its exact name, whatever characters are in it."""
    text = backquoted(name)
    return F.col(f"{side}.{text}" if side else text)


def same_key(keys: Sequence[str], left: str, right: str) -> "Column":
    """Tells whether two sides have the same key: null is a key like any other; without keys always true."""
    equal = [quoted(key, left).eqNullSafe(quoted(key, right)) for key in keys]
    return reduce(lambda a, b: a & b, equal) if equal else F.lit(True)


def log_rows(state: StateDescriptor, log: "DataFrame", after: int, upto: int) -> "DataFrame":
    """A log's rows of the transactions ``after < txid <= upto``, with the hidden columns that merging needs."""
    hidden = (DELETED_COLUMN, TXID_COLUMN) if keeps_last(state) else (TXID_COLUMN,)
    chosen = log.where((quoted(TXID_COLUMN) > after) & (quoted(TXID_COLUMN) <= upto))
    return chosen.select(*_fields(state, log), *[quoted(name) for name in hidden])


def table_rows(state: StateDescriptor, table: "DataFrame") -> "DataFrame":
    """Keys and values of a table; null in a column that this version of it does not have yet.

    Of a sequenced state also ``_deleted`` and ``_txid``, with the rows of deleted keys: :func:`shown` leaves them out.
    """
    hidden = (DELETED_COLUMN, TXID_COLUMN) if is_sequenced(state) else ()
    return table.select(*_fields(state, table), *[quoted(name) for name in hidden])


def no_rows(spark: "SparkSession", state: StateDescriptor) -> "DataFrame":
    """The rows of a table that was not made yet, as :func:`table_rows` gives them."""
    return spark.createDataFrame([], kept_schema(state.schema, state.merging))


def shown(state: StateDescriptor, rows: "DataFrame") -> "DataFrame":
    """Keys and values of the keys that are there, of rows as :func:`table_rows` or :func:`merged` give them."""
    if DELETED_COLUMN not in rows.columns:
        return rows
    return rows.where(~deleted()).select(*[quoted(field.name) for field in state.schema.fields])


def _fields(state: StateDescriptor, frame: "DataFrame") -> list["Column"]:
    there = set(frame.columns)
    return [
        quoted(field.name) if field.name in there else F.lit(None).cast(field.dataType).alias(field.name)
        for field in state.schema.fields
    ]


def live(
    state: StateDescriptor, base: "DataFrame", rows: "DataFrame", aggregator: Any, span: tuple[int, int]
) -> "DataFrame":
    """The table's rows with the log rows on top: a state as of the last of the log rows' transactions.

    While few log rows wait the table is read twice and not moved, but for the rows that have their keys.

    Args and Raises: as for :func:`merged`.
    """
    moves_all = _size_bytes(rows) > _BROADCAST_BYTES_MAX and not _replaces(state)
    if not state.keys or moves_all:
        return shown(state, merged(state, base, rows, aggregator, span))
    kept = base.alias("t").join(_keys_of(state, rows).alias("s"), same_key(state.keys, "t", "s"), "left_anti")
    return shown(state, kept).unionByName(shown(state, changed(state, base, rows, aggregator, span)))


def changed(
    state: StateDescriptor,
    base: "DataFrame",
    rows: "DataFrame",
    aggregator: Any,
    span: tuple[int, int],
    clamps: bool = False,
) -> "DataFrame":
    """The rows of :func:`merged` whose keys the log has.

    Args and Raises: as for :func:`merged`.
    """
    if _replaces(state):
        return newest_log(state, rows)
    if state.keys:
        on = same_key(state.keys, "t", "s")
        base = base.alias("t").join(_keys_of(state, rows).alias("s"), on, "left_semi")
    return merged(state, base, rows, aggregator, span, clamps)


def merged(
    state: StateDescriptor,
    base: "DataFrame",
    rows: "DataFrame",
    aggregator: Any,
    span: tuple[int, int],
    clamps: bool = False,
) -> "DataFrame":
    """One row for each key of table and log, also for deleted ones: every value that Spark computes comes from here.

    Args:
        base: as :func:`table_rows` gives it.
        rows: as :func:`log_rows` gives it.
        aggregator: the state's, when that is a Python combiner.
        span: the transactions of the log rows: after the first, up to the second.
        clamps: as of :func:`_fitted`.

    Returns:
        keys and values; with ``_deleted`` where the log has whole values, and ``_txid`` where these have a sequence.

    Raises:
        ConfigError: a Python combiner is needed and was not given.
    """
    combiner, native = combiner_of(state, aggregator), native_merge(state)
    if keeps_last(state):
        return _newest_of_both(state, base, rows, span)
    if native is None:
        return _folded(state, base, rows, combiner)
    return _combined(state, base, rows, native, clamps)


def _replaces(state: StateDescriptor) -> bool:
    """Tells whether a row of the log stands for its key whatever the table has."""
    return keeps_last(state) and not is_sequenced(state)


def _keys_of(state: StateDescriptor, rows: "DataFrame") -> "DataFrame":
    keys = rows.select(*[quoted(key) for key in state.keys]).distinct()
    return F.broadcast(keys) if _size_bytes(rows) <= _BROADCAST_BYTES_MAX else keys


def _size_bytes(frame: "DataFrame") -> int:
    """Of the files that the frame reads, after skipping by statistics; runs no job."""
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


# --- the last value --------------------------------------------------------------------------


def newest_log(state: StateDescriptor, rows: "DataFrame") -> "DataFrame":
    """The log row of each key that counts, with ``_deleted``. No rows give none, also without keys.

    It is the newest; of a sequenced state that with the greatest (sequence, txid), which is given with its ``_txid``.
    """
    names, order = [*state.value_fields, DELETED_COLUMN], quoted(TXID_COLUMN)
    if is_sequenced(state):
        names, order = [*names, TXID_COLUMN], F.struct(quoted(state.sequence), quoted(TXID_COLUMN))
    newest = F.max_by(F.struct(*[quoted(name) for name in names]), order).alias(TXID_COLUMN)
    keys = [quoted(key) for key in state.keys]
    # Without keys there is a row also for no rows, with null in the place of the newest.
    found = rows.groupBy(*keys).agg(newest).where(quoted(TXID_COLUMN).isNotNull())
    return found.select(*keys, *[quoted(name, TXID_COLUMN).alias(name) for name in names])


def deleted(side: str | None = None) -> "Column":
    """Tells whether a log row deletes its key."""
    return F.coalesce(quoted(DELETED_COLUMN, side), F.lit(False))


def _newest_of_both(state: StateDescriptor, base: "DataFrame", rows: "DataFrame", span: tuple[int, int]) -> "DataFrame":
    fields = [quoted(field.name) for field in state.schema.fields]
    if is_sequenced(state):
        old = base.select(*fields, quoted(DELETED_COLUMN), quoted(TXID_COLUMN))
    else:
        # The table has no transaction; it is older than each that waits in the log.
        old = base.select(*fields, F.lit(False).alias(DELETED_COLUMN), F.lit(0).cast("bigint").alias(TXID_COLUMN))
    retention = state.retention
    many = len(retention.stretches(*span)) > 1
    if retention.forgets and not many:
        old = old.where(~(deleted() & (quoted(TXID_COLUMN) < retention.below(span[1]))))
    both = old.unionByName(rows.select(*fields, quoted(DELETED_COLUMN), quoted(TXID_COLUMN)))
    return _winning_rows(state, both) if many else newest_log(state, both)


def _below(retention: Retention, txid: "Column") -> "Column":
    """``retention.below`` of a column."""
    *earlier, now = retention.spans()
    found = _below_in(now, txid)
    for span in reversed(earlier):
        found = F.when(txid <= F.lit(span.last), _below_in(span, txid)).otherwise(found)
    return found


def _below_in(span: Span, txid: "Column") -> "Column":
    floor = F.lit(span.floor).cast("bigint")
    return F.greatest(floor, txid - txid % span.txids - span.txids) if span.txids else floor


def _winning_rows(state: StateDescriptor, rows: "DataFrame") -> "DataFrame":
    """The row of each key that counts, where keys that were deleted long before some of the rows are forgotten."""
    named = {name: f"c{at}" for at, name in enumerate([*state.value_fields, DELETED_COLUMN, TXID_COLUMN])}
    sequence, gone, txid = (named[name] for name in (state.sequence, DELETED_COLUMN, TXID_COLUMN))
    keys, row = [quoted(key) for key in state.keys], [quoted(name).alias(new) for name, new in named.items()]
    all_rows = F.array_sort(F.collect_list(F.struct(*row)), lambda a, b: F.sign(a[txid] - b[txid]).cast("int"))
    found = rows.groupBy(*keys).agg(all_rows.alias(TXID_COLUMN)).where(F.size(TXID_COLUMN) > 0)

    def later(a: "Column", b: "Column") -> "Column":
        forgotten = F.coalesce(a[gone], F.lit(False)) & (a[txid] < _below(state.retention, b[txid]))
        is_later = F.struct(b[sequence], b[txid]) > F.struct(a[sequence], a[txid])
        return F.when(forgotten | is_later, b).otherwise(a)

    others = F.slice(TXID_COLUMN, F.lit(2), F.size(TXID_COLUMN))
    last = found.select(*keys, F.aggregate(others, F.element_at(TXID_COLUMN, 1), later).alias(TXID_COLUMN))
    return last.select(*keys, *[quoted(new, TXID_COLUMN).alias(name) for name, new in named.items()])


# --- native aggregators ------------------------------------------------------------------------


def _combined(
    state: StateDescriptor, base: "DataFrame", rows: "DataFrame", native: NativeMerge, clamps: bool
) -> "DataFrame":
    """The combination of both by a native aggregator. No rows give none, also without keys."""
    fields = [quoted(field.name) for field in state.schema.fields]
    both = base.select(*fields).unionByName(rows.select(*fields))
    values = [_combined_values(state, name, native, clamps).alias(name) for name in state.value_fields]
    if state.keys:
        return both.groupBy(*[quoted(key) for key in state.keys]).agg(*values)
    # A global aggregate gives one row also for none, and a state without a transaction has none.
    return both.agg(*values, F.count(F.lit(1)).alias(TXID_COLUMN)).where(quoted(TXID_COLUMN) > 0).drop(TXID_COLUMN)


def wide_type(state: StateDescriptor, name: str) -> "DecimalType | None":
    """The type in which sums of a value field are added up; None where each combination of two values has the type.

    Spark raises where a sum does not fit on the way, in whatever order the rows come, and without naming the key.
    """
    kind = state.schema[name].dataType
    if state.merging != COMBINE or state.aggregator not in ("count", "sum"):
        return None
    if isinstance(kind, DecimalType):
        return DecimalType(_DIGITS_MAX, kind.scale)
    return DecimalType(_DIGITS_MAX, 0) if isinstance(kind, LongType) else None


def _combined_values(state: StateDescriptor, name: str, native: NativeMerge, clamps: bool) -> "Column":
    """The combination of a group's values of a field, as an aggregate of a native aggregator."""
    kind, wide = state.schema[name].dataType, wide_type(state, name)
    if wide is None:
        return native.merge(quoted(name)).cast(kind)
    total = _wide_sum(quoted(name), wide, isinstance(kind, LongType))
    return _fitted(state, name, total, F.count(quoted(name)) > 0, clamps)


def _wide_sum(values: "Column", wide: "DecimalType", are_integers: bool) -> "Column":
    """The sum of a group's values, exact whatever their order; null where there is none, or more than 38 digits."""
    if not are_integers:
        return F.try_sum(values).cast(wide)
    # Of integers the sums of both halves, neither of which can overflow: adding up decimals takes far longer.
    high, low = F.shiftright(values, _HALF_BITS), values.bitwiseAND(F.lit((1 << _HALF_BITS) - 1))
    return F.sum(high).cast(wide) * F.lit(1 << _HALF_BITS).cast("decimal(10,0)") + F.sum(low).cast(wide)


def _fitted(state: StateDescriptor, name: str, total: "Column", is_there: "Column", clamps: bool) -> "Column":
    """A sum in the type of its column; an error that names state and key where it does not fit.

    Args:
        is_there: tells whether there is a sum, also where ``total`` is null.
        clamps: whether the greatest, or least, value of the type takes the place of one that does not fit.
    """
    kind = state.schema[name].dataType
    value = total.try_cast(kind)
    if clamps:
        low, high = (F.lit(end).cast(kind) for end in _ends_of(kind))
        value = F.coalesce(value, F.when(total > 0, high).when(total < 0, low))
    error = F.raise_error(
        F.concat(
            F.lit(f"a value of state {state.name} does not fit its type {kind.simpleString()}: overflow; key: "),
            _key_text(state.keys),
            F.lit("; found: "),
            F.coalesce(total.cast("string"), F.lit("more than 38 digits")),
            F.lit(f". `trident repair {state.topology}` names each such key and what can be done"),
        )
    )
    return F.when(value.isNull() & is_there, error.cast(kind)).otherwise(value)


def _ends_of(kind: Any) -> tuple[str, str]:
    """The least and the greatest value of a type of sums, as text."""
    if isinstance(kind, LongType):
        return str(-(1 << 63)), str((1 << 63) - 1)
    most = "9" * (kind.precision - kind.scale) + ("." + "9" * kind.scale if kind.scale else "")
    return f"-{most}", most


def _key_text(keys: Sequence[str]) -> "Column":
    """A key as errors show it, as JSON."""
    if not keys:
        return F.lit("{}")
    return F.to_json(F.struct(*[quoted(key).alias(key) for key in keys]), {"ignoreNullFields": "false"})


# --- Python combiners --------------------------------------------------------------------------


def _folded(state: StateDescriptor, base: "DataFrame", rows: "DataFrame", aggregator: Any) -> "DataFrame":
    """The values of all keys of either."""
    names = [field.name for field in state.schema.fields]
    fold = fold_of(aggregator.combine, state.keys, state.value_fields, names, state.name)
    return _in_order(state, base, rows).mapInArrow(fold, _nullable(state.schema))


def _in_order(state: StateDescriptor, base: "DataFrame", rows: "DataFrame") -> "DataFrame":
    """The rows of both, those of a key one behind the other, in the order of their transactions."""
    names = [field.name for field in state.schema.fields]
    old = base.select(*[quoted(name) for name in names], F.lit(0).cast("bigint").alias(TXID_COLUMN))
    union = old.unionByName(rows.select(*[quoted(name) for name in names], quoted(TXID_COLUMN)))
    keys = [quoted(key) for key in state.keys]
    spread = union.repartition(*keys) if keys else union.repartition(1)
    return spread.sortWithinPartitions(*keys, quoted(TXID_COLUMN))


def unfit(state: StateDescriptor, base: "DataFrame", rows: "DataFrame") -> "DataFrame | None":
    """The keys without a sum that fits the state, as (key, reason): both text, the key as errors show it.

    Args:
        base, rows: as for :func:`live`, of the keys that are looked at; no value of the state is needed for it.

    Returns:
        None where the state has no sums that may not fit.
    """
    wide = {name: kind for name in state.value_fields if (kind := wide_type(state, name)) is not None}
    if not wide:
        return None
    fields = [quoted(field.name) for field in state.schema.fields]
    both = base.select(*fields).unionByName(rows.select(*fields))
    reasons = []
    for name, kind in wide.items():
        own = state.schema[name].dataType
        total, count = _wide_sum(quoted(name), kind, isinstance(own, LongType)), F.count(quoted(name))
        text = F.concat(
            F.lit("found: "),
            F.coalesce(total.cast("string"), F.lit("more than 38 digits")),
            F.lit(f"; expected: a value of {name!r} that fits {own.simpleString()}"),
        )
        reasons.append(F.when(total.try_cast(own).isNull() & (count > 0), text))
    keys = [quoted(key) for key in state.keys]
    reason = F.coalesce(*reasons).alias(TXID_COLUMN)  # a name that no key has
    grouped = both.groupBy(*keys).agg(reason) if keys else both.agg(reason)
    bad = grouped.where(quoted(TXID_COLUMN).isNotNull())
    return bad.select(_key_text(state.keys).alias("key"), quoted(TXID_COLUMN).alias("reason"))


def _nullable(schema: "StructType") -> "StructType":
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


def fold_of(
    combine: Any, keys: Sequence[str], values: Sequence[str], names: Sequence[str], state_name: str = ""
) -> Any:
    """The function for mapInArrow: rows sorted by key and txid in, one row per key out."""

    def fold(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        current: tuple[Any, ...] | None = None
        same: tuple[Any, ...] | None = None  # the current key, as it is compared
        value: tuple[Any, ...] = ()
        schema = None
        for batch in batches:
            schema = pa.schema([batch.schema.field(name) for name in names])
            done: list[tuple[Any, ...]] = []
            key_columns = [python_values(batch.column(name)) for name in keys]
            value_columns = [python_values(batch.column(name)) for name in values]
            row_keys = zip(*key_columns) if keys else iter([()] * batch.num_rows)
            txids = batch.column(TXID_COLUMN).to_pylist()
            for key, partial, txid in zip(row_keys, zip(*value_columns), txids):
                compared = frozen(key)
                if current is not None and same == compared:
                    if txid == 0:
                        raise doubled(state_name, dict(zip(keys, key)))
                    try:
                        value = tuple(combine(a, b) for a, b in zip(value, partial))
                    except Exception as error:
                        raise not_combined(state_name, dict(zip(keys, key)), error) from error
                    continue
                if current is not None:
                    done.append((current, value))
                current, same, value = key, compared, partial
            if done:
                yield _batch(done, schema, keys, values, state_name)
        if current is not None:
            yield _batch([(current, value)], schema, keys, values, state_name)

    return fold


def not_combined(state_name: str, key: object, error: Exception) -> TableError:
    return TableError(
        f"the values of a key of state {state_name} cannot be combined",
        found=f"{type(error).__name__}: {error}; key: {key!r}",
        expected="a value of the state's type",
        action="the log has what was to be combined, and nothing is lost: correct the combiner (its code may change "
        "from start to start) so that it has a value for them, and start the topology again",
    )


def doubled(state_name: str, key: object) -> TableError:
    # A MERGE would write the sum of both rows into each of them, and the next one would count it twice.
    return TableError(
        f"the table of state {state_name} has a key twice, so no value of it is certain",
        found=f"two rows of {key!r}",
        expected="one row per key",
        action="stop the topology, and move the table's folder away: while its log still has every transaction, the "
        "next start makes the table anew from it; if that start says that the log has not, give the state another "
        "name, and it begins anew",
    )


def _batch(
    rows: list[tuple[Any, ...]], schema: "pa.Schema", keys: Sequence[str], values: Sequence[str], state_name: str
) -> "pa.RecordBatch":
    """Keys are as they were; what a combiner gives is exactly of the state's type, as a function's result is."""
    columns = {name: [key[index] for key, _ in rows] for index, name in enumerate(keys)}
    combined = {name: [value[index] for _, value in rows] for index, name in enumerate(values)}
    arrays = []
    for field in schema:
        try:
            arrays.append(
                to_arrow(combined[field.name], field.type, field.name)[0]
                if field.name in combined
                else pa.array(columns[field.name], field.type)
            )
        except WrongValue as error:
            key, _ = rows[error.position]
            raise not_combined(state_name, dict(zip(keys, key)), TypeError(in_one_line(error))) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
