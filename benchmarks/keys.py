"""A spout of keys that gives batches when it is told to: the benchmark decides when, and which keys."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from trident import SpoutContext, SpoutKind, TransactionAttempt

# Odd and no multiple of 5: walks over all keys before it meets one again.
_STRIDE = 1_000_003
# A batch of so few rows is made in the driver, as sources of messages give theirs.
_HELD_ROWS = 10_000


class GatedKeys:
    """Batches of distinct keys: ``(key string, n long)``, spread over all keys.

    Transactional: the metadata is the number of the batch and its size.

    Args:
        rows: keys in a batch.
        keys: how many keys there are.
        load: so many first batches hold every key once instead, together: they fill the state.
    """

    def __init__(self, rows: int, keys: int, load: int = 0) -> None:
        self._rows, self._keys, self._load = rows, keys, load
        self._allowed = self._begun = 0
        self._lock = threading.Lock()

    @property
    def kind(self) -> "SpoutKind":
        from trident import SpoutKind

        return SpoutKind.TRANSACTIONAL

    @property
    def output_schema(self) -> "StructType":
        from pyspark.sql.types import LongType, StringType, StructField, StructType

        return StructType([StructField("key", StringType()), StructField("n", LongType())])

    def allow(self, batches: int) -> None:
        """This many more batches are ready."""
        with self._lock:
            self._allowed += batches

    def close_gate(self) -> None:
        """No batch is ready beyond those that have begun."""
        with self._lock:
            self._allowed = self._begun

    def get_coordinator(self, context: "SpoutContext") -> "GatedKeys":
        return self

    def get_emitter(self, context: "SpoutContext") -> "_Emitter":
        return _Emitter(context)

    # --- the coordinator ------------------------------------------------------------------

    def initialize_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> Any:
        with self._lock:
            self._begun = max(self._begun, txid)
        if curr_metadata is not None:
            return curr_metadata
        if txid <= self._load:
            first, end = (self._keys * number // self._load for number in (txid - 1, txid))
            return {"first": first, "rows": end - first, "keys": self._keys}
        return {"first": txid * self._rows, "rows": self._rows, "keys": self._keys}

    def is_ready(self, txid: int) -> bool:
        with self._lock:
            return txid <= self._allowed

    def success(self, txid: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class _Emitter:
    def __init__(self, context: "SpoutContext") -> None:
        self._spark = context.spark

    def emit_batch(self, attempt: "TransactionAttempt", metadata: Any) -> Any:
        from trident import Emitted

        first, rows = metadata["first"], metadata["rows"]
        if rows <= _HELD_ROWS:
            held = range(first, first + rows)
            return Emitted([(f"k{n * _STRIDE % metadata['keys']:08d}", 1) for n in held], partitions=1)
        # A large batch is worth all cores, a small one runs fastest on one.
        partitions = 1 if rows <= 1_000_000 else 2 * self._spark.sparkContext.defaultParallelism
        ids = self._spark.range(first, first + rows, 1, partitions)
        return Emitted(keyed(ids, metadata["keys"]), partitions=partitions)

    def success(self, attempt: "TransactionAttempt") -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def keyed(ids: "DataFrame", keys: int) -> "DataFrame":
    """Numbers as keys, far apart from each other, with a one to add."""
    from pyspark.sql import functions as F

    key = (F.col("id") * _STRIDE) % keys
    return ids.select(F.format_string("k%08d", key).alias("key"), F.lit(1).cast("long").alias("n"))
