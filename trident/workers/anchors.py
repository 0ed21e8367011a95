"""Anchors: which messages a row of a tracked stream belongs to, and its ids in their trees (docs/semantics.md 6).

A row carries them in a hidden column: a list of (root, id). The ids of a root's
live rows, XORed, are always what its message began with: a row that is made of
another one takes its ids over, several share them out so that their XOR is the
parent's. So an operation has nothing to tell the ledger as long as no row ends;
a row that ends tells its ids, and the tree is complete when the sum is zero.

The ids of children follow from the parent's: a Spark task that runs again
gives the same ones. Imported by every worker: keep its imports light.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

ANCHORS = "__trident_anchors"
PAIR = pa.struct([("root", pa.int64()), ("id", pa.int64())])
ANCHORS_TYPE = pa.list_(PAIR)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(values: np.ndarray) -> np.ndarray:
    """The values scattered over all of 64 bits, each to one of its own (SplitMix64)."""
    values = values.astype(np.uint64, copy=True)
    values += _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _M1
    values = (values ^ (values >> np.uint64(27))) * _M2
    return values ^ (values >> np.uint64(31))


def ids_of(roots: np.ndarray, numbers: np.ndarray, salt: int) -> np.ndarray:
    """The ids of tuples as a spout emits them.

    Args:
        roots, numbers: of each tuple its message's root, and its number among the message's tuples.
        salt: 64 random bits: without them no id can be foreseen.
    """
    return mixed(roots ^ mixed(numbers.astype(np.uint64) ^ np.uint64(salt)))


def make_anchors(counts: np.ndarray, roots: np.ndarray, ids: np.ndarray) -> pa.Array:
    """Rows with this many pairs each, from all the pairs in order."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    pairs = pa.StructArray.from_arrays(
        [pa.array(roots.view(np.int64), pa.int64()), pa.array(ids.view(np.int64), pa.int64())], fields=list(PAIR)
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs).cast(ANCHORS_TYPE)


def read_anchors(array: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(pairs of each row, roots, ids), the latter two of all rows in order; null is as no pair."""
    counts = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = array.flatten()
    roots = flat.field(0).to_numpy(zero_copy_only=False).view(np.uint64)
    return counts, roots, flat.field(1).to_numpy(zero_copy_only=False).view(np.uint64)


def children_of(anchors: Any, index: np.ndarray) -> pa.Array:
    """The anchors of rows that are made of others.

    Args:
        index: of each child its parent; the children of a parent stand together.

    Returns:
        the children's: for each parent that has any, their ids XOR to its own.
    """
    counts, roots, ids = read_anchors(anchors)
    starts = np.cumsum(counts) - counts
    of_child = counts[index]
    # The place of each of the children's pairs among the parents'.
    ends = np.cumsum(of_child)
    total = int(ends[-1]) if len(ends) else 0
    origin = np.arange(total) - np.repeat(ends - of_child, of_child) + np.repeat(starts[index], of_child)
    kept_ids = ids[origin]
    first = np.ones(len(index), bool)
    first[1:] = index[1:] != index[:-1]
    last = np.ones(len(index), bool)
    last[:-1] = first[1:]
    if total and not first.all():
        number = np.arange(len(index)) - np.maximum.accumulate(np.where(first, np.arange(len(index)), 0))
        kept_ids = _shared_out(kept_ids, origin, np.repeat(number, of_child), np.repeat(last, of_child))
    return make_anchors(of_child, roots[origin], kept_ids)


def _shared_out(ids: np.ndarray, origin: np.ndarray, number: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Ids of children from their parents': each but the last has one of its own, the last what closes the sum."""
    own = np.where(last, np.uint64(0), mixed(ids ^ mixed(number.astype(np.uint64))))
    order = np.argsort(origin, kind="stable")
    begins = np.flatnonzero(np.concatenate(([True], np.diff(origin[order]) != 0)))
    sums = np.bitwise_xor.reduceat(own[order], begins)
    of_pair = np.empty(len(ids), np.uint64)
    of_pair[order] = np.repeat(sums, np.diff(np.append(begins, len(ids))))
    return np.where(last, ids ^ of_pair, own)


def sums_by_root(roots: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The XOR of the values of each root."""
    if not len(roots):
        return roots, values
    if (roots[1:] < roots[:-1]).any():
        order = np.argsort(roots, kind="stable")
        roots, values = roots[order], values[order]
    begins = np.flatnonzero(np.concatenate(([True], roots[1:] != roots[:-1])))
    if len(begins) == len(roots):
        return roots, values
    return roots[begins], np.bitwise_xor.reduceat(values, begins)
