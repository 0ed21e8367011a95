"""The built-in aggregates over Arrow: one fold, for the rows of a batch, stored values, local copies and native MERGE.

A fold gives what Spark gives for the same rows in the same order. Nulls are skipped. Doubles are added from the first
to the last. NaN is above every number, and of equal values, such as 0.0 and -0.0, the first is the least and the
greatest. A sum is exact and must fit its type at the end; it never wraps. Imported by workers: keep its imports light.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.states.core.copy_rows import RowCodec, plain_values
from trident.states.core.typed_values import two_values, type_text

_LONG_MAX = (1 << 63) - 1
Columns = Sequence[Any]


class DoesNotFit(ArithmeticError):
    """A sum does not fit its type.

    Attributes:
        key: the values of the group's key columns.
    """

    def __init__(self, value: Any, kind: pa.DataType, key: list[Any]) -> None:
        super().__init__(f"overflow: the sum {value} does not fit {type_text(kind)}")
        self.key = key


def folded(aggregator: str, keys: Columns, values: Any) -> tuple[list[pa.Array], pa.Array]:
    """Groups rows, and folds the values of each group.

    Args:
        keys: columns of types that Arrow can group by; none: all rows are one group, also where there is no row.

    Returns:
        The groups' keys in the order in which they first come, and their values.

    Raises:
        DoesNotFit: a sum does not fit the type of the values.
    """
    if aggregator in ("count", "sum"):
        return _sums(keys, values)
    kind = values.type
    if pa.types.is_nested(kind):
        return _nested_extremes(aggregator, keys, values)
    if not pa.types.is_floating(kind):
        return _grouped(keys, (values, aggregator))
    # Arrow leaves NaN out, and takes any of equal values.
    nan = pc.fill_null(pc.is_nan(values), False)
    zero = pc.if_else(pc.equal(values, 0.0), values, None)
    numbers = pc.if_else(nan, None, values)
    groups, found, has_nan, zero = _grouped(keys, (numbers, aggregator), (nan, "max"), (zero, "first"))
    found = pc.if_else(pc.equal(found, 0.0), zero, found)
    is_nan = has_nan if aggregator == "max" else pc.and_(has_nan, pc.is_null(found))
    return groups, pc.if_else(is_nan, pa.scalar(float("nan"), kind), found)


def onto(aggregator: str, stored: Any, values: Any, at: Any = None) -> pa.Array:
    """Stored values with further values folded onto them, from the first to the last.

    Args:
        stored: null where nothing is stored.
        values: of the same type.
        at: the place of the stored value for each value: numbers of numpy; None: there is one value for each.

    Raises:
        DoesNotFit: a sum does not fit the type; its key is the place alone.
    """
    own = np.arange(len(stored))
    if at is None and aggregator in ("count", "sum") and not pa.types.is_decimal(stored.type):
        try:  # ten times as fast
            return _one(pc.coalesce(pc.add_checked(stored, values), stored, values))
        except pa.ArrowInvalid:
            pass  # what follows finds the key
    places = pa.array(np.append(own, own if at is None else at).astype(np.int64, copy=False))
    chunks = [
        chunk for one in (stored, values) for chunk in (one.chunks if isinstance(one, pa.ChunkedArray) else [one])
    ]
    return folded(aggregator, [places], pa.chunked_array(chunks, stored.type))[1]


def _grouped(keys: Columns, *aggregates: tuple[Any, str]) -> Any:
    """The groups' keys, and each aggregate."""
    names = [f"k{n}" for n in range(len(keys))]
    columns = {f"v{n}": column for n, (column, _) in enumerate(aggregates)}
    rows = pa.table({**dict(zip(names, keys)), **columns})
    # One thread: sums of doubles have an order, and the other cores have tasks of their own.
    found = rows.group_by(names, use_threads=False).aggregate([(f"v{n}", how) for n, (_, how) in enumerate(aggregates)])
    found = found.combine_chunks()
    values = [_one(found.column(f"v{n}_{how}")) for n, (_, how) in enumerate(aggregates)]
    return ([_one(found.column(name)) for name in names], *values)


def _sums(keys: Columns, values: Any) -> tuple[list[pa.Array], pa.Array]:
    kind, wide = values.type, values
    if pa.types.is_decimal(kind):
        wide = values.cast(pa.decimal256(76, kind.scale))
    elif pa.types.is_integer(kind):
        most = max(abs(bound or 0) for bound in pc.min_max(values).as_py().values())
        if most * len(values) > _LONG_MAX:  # Arrow's sum of integers would wrap
            wide = values.cast(pa.decimal128(38))
    elif not keys and len(values):  # without keys Arrow adds doubles in pairs
        return [], _sums([pa.repeat(0, len(values))], values)[1]
    groups, sums = _grouped(keys, (wide, "sum"))
    if sums.type == kind:
        return groups, sums
    try:
        return groups, sums.cast(kind)
    except pa.ArrowInvalid:
        at = next(at for at, one in enumerate(sums) if not _fits(one, kind))
        raise DoesNotFit(sums[at], kind, [column[at].as_py() for column in groups]) from None


def _fits(value: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        value.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _nested_extremes(aggregator: str, keys: Columns, values: Any) -> tuple[list[pa.Array], pa.Array]:
    places = pa.array(np.arange(len(values)))
    groups, rows = _grouped(keys, (places, "list")) if keys else ([], pa.array([places.to_pylist()]))
    plain = plain_values(values, values.type)
    combine = two_values(aggregator)
    best: list[int | None] = []
    for those in rows.to_pylist():
        some = [(plain[at], at) for at in those if plain[at] is not None]
        best.append(reduce(lambda a, b: a if combine(a[0], b[0]) is a[0] else b, some)[1] if some else None)
    return groups, _one(values).take(pa.array(best, pa.int64()))


def numbered(rows: pa.Table, keys: pa.Schema) -> tuple[np.ndarray, np.ndarray]:
    """Numbers groups in the order in which they come: the group of each row, and the first row of each group.

    Args:
        rows: with the key columns, of any types that can be cast to those of ``keys``.
        keys: none: all rows are one group, also where there is no row.
    """
    if not keys.names:
        return np.zeros(rows.num_rows, np.int64), np.zeros(1, np.int64)
    numbers = pc.dictionary_encode(RowCodec(keys, keys.names).key_array(rows)).indices.to_numpy()
    first = np.empty(int(numbers.max(initial=-1)) + 1, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return numbers, first


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
