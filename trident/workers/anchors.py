"""Anchors of a tracked stream's rows, and the ledger of one Spark task: ids that ended, rows that failed.

A row carries them in a hidden column: a list of (root, id). The ids of a root's
live rows, XORed, are always what its message began with: a row that is made of
another one takes its ids over, several share them out so that their XOR is the
parent's. So an operation has nothing to tell the ledger as long as no row ends;
a row that ends tells its ids, and the tree is complete when the sum is zero.

The ids of children follow from the parent's: a Spark task that runs again
gives the same ones. Imported by every worker: keep its imports light.
"""

from __future__ import annotations

import io
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from trident.states.core import storage
from trident.workers.failures import UserCodeFailed, find_report

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


# The ledger of one Spark task of a tracked stream: the ids of rows that ended, and the rows that failed.
#
# It is written, one XOR per root, into a file when the task is done; the driver adds
# the files up (:mod:`trident.messages.ledger`). Imported by every worker: keep its
# imports light.


_REPORT = [(name, pa.string()) for name in ("operation", "location", "error", "traceback", "place")]
LEDGER_SCHEMA = pa.schema([("root", pa.int64()), ("value", pa.int64()), ("failed", pa.bool_()), *_REPORT])
_TRACEBACK_CHARS = 8_000
# So many are added before they are summed by root.
_ADDED_AT_ONCE = 1 << 20


# The local property of Spark under which tasks are told where their ledger is: so a pass is the same for every batch,
# and need not be pickled anew.
LEDGER_PROPERTY = "trident.ledger"


def ledger_place(passed: str) -> tuple[str, str]:
    """Where this task's ledger is to be written: the folder and the file's name.

    The name says the pass and the partition, and behind an ``@`` the try, of which the later has the greater number.
    """
    context = TaskContext.get()
    folder = context.getLocalProperty(LEDGER_PROPERTY) if context is not None else None
    if context is None or not folder:
        raise AssertionError("a tracked batch runs without a ledger")
    return folder, f"{passed}-{context.partitionId()}@{context.taskAttemptId():020d}"


@dataclass
class Ledger:
    """The acker: adds up the ids of trees by root, and keeps what is known of rows that failed.

    Each id is added twice, once when its tuple is made and once when it ends. So the XOR of a root's ids is zero when
    its tree is complete, however large the tree is and in whatever order they came; by chance it is zero earlier
    with a probability of about 2⁻⁶⁴. Source: Storm's "Guaranteeing message processing".
    """

    roots: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    _added: int = 0

    def ack(self, anchors: Any) -> None:
        """These rows have ended."""
        _, roots, ids = read_anchors(anchors)
        self.add(roots, ids)

    def add(self, roots: Any, values: Any) -> None:
        """Adds to each root a value: an id, or the XOR of several."""
        if not len(roots):
            return
        self.roots.append(np.asarray(roots, np.uint64))
        self.values.append(np.asarray(values, np.uint64))
        self._added += len(roots)
        # So memory is that of the roots, not of all that was added. The first array has one number a root already.
        if self._added >= max(_ADDED_AT_ONCE, 2 * len(self.roots[0])):
            self._fold()

    def incomplete(self) -> tuple[np.ndarray, np.ndarray]:
        """The roots whose sum is not zero, and the sums."""
        if not self.roots:
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        self._fold()
        open_ = self.values[0] != 0
        return self.roots[0][open_], self.values[0][open_]

    def _fold(self) -> None:
        roots, sums = sums_by_root(np.concatenate(self.roots), np.concatenate(self.values))
        self.roots, self.values, self._added = [roots], [sums], 0

    def fail(self, roots: Sequence[int], error: UserCodeFailed) -> None:
        """A row of these roots has failed. No spout would replay a row without any: it fails the batch."""
        report = report_of(error)
        # FailedException says that the batch is to fail: a service is down, and no row is to blame.
        if not len(roots) or report.pop("kind") == "failed":
            raise error
        self.failures += [{"root": int(root), "value": 0, "failed": True, **report} for root in dict.fromkeys(roots)]

    def table(self) -> pa.Table:
        """A row per root whose sum is not zero, and one per failure."""
        roots, sums = self.incomplete()
        columns: list[Any] = [pa.array(roots.view(np.int64)), pa.array(sums.view(np.int64))]
        columns += [pa.repeat(pa.scalar(False), len(roots)), *(pa.nulls(len(roots), kind) for _, kind in _REPORT)]
        return pa.concat_tables(
            [pa.table(columns, schema=LEDGER_SCHEMA), pa.Table.from_pylist(self.failures, schema=LEDGER_SCHEMA)]
        )

    def write(self, folder: str, name: str) -> None:
        """Writes its table into a file, also an empty one, which replaces that of an earlier try of the task.

        The file is whole, and not durable, since a batch whose ledger is lost is tried again.
        """
        import pyarrow.parquet as pq  # 20 ms that only the workers of tracked streams need

        data = io.BytesIO()
        # Roots and sums are all different: dictionaries and bounds of them would only cost.
        pq.write_table(self.table(), data, compression="none", use_dictionary=False, write_statistics=False)
        storage.write(storage.join(folder, f"{name}.parquet"), data.getvalue(), durable=False)


def report_of(error: UserCodeFailed) -> dict[str, str]:
    """Returns what is known of a failure: the operation, its line, the error, the traceback, the row."""
    report = find_report(error) or {}
    cause = error.__cause__ or error.__context__
    lines = traceback.format_exception(cause) if cause is not None else []
    return {
        "kind": report.get("kind", ""),
        "operation": report.get("operation", ""),
        "location": report.get("location", ""),
        "error": report.get("error", str(error)),
        "traceback": "".join(lines)[-_TRACEBACK_CHARS:],
        "place": report.get("place", ""),
    }
