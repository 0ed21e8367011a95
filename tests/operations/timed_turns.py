"""Runs the transactions of a group on Spark one after the other, with times in seconds; reads what tables hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.chaos.oracle import Table
from trident.coordinators.identities import TransactionAttempt
from trident.planning.groups import plan
from trident.states.publishing.user_tasks import BatchInfo
from trident.streams.stream import Stream

SECOND = 10**6


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


def plain(value: Any) -> Any:
    """Times in seconds, windows as their two ends."""
    if isinstance(value, dict):
        return plain(value["start"]), plain(value["end"])
    return value.astimezone(timezone.utc).timestamp() if isinstance(value, datetime) else value


def rows_of(folder: Path, name: str) -> Counter[tuple]:
    """The rows of a table without their txid, read without Spark and without the framework."""
    rows = Table.read(folder / "warehouse" / name).rows()
    return Counter(tuple(plain(value) for field, value in row.items() if field != "txid") for row in rows)


class Turns:
    """A group's transactions on Spark; nothing is committed: what each stages is folded here."""

    def __init__(self, spark: SparkSession, stream: Stream) -> None:
        self._spark, self.plan = spark, plan(stream._graph)[0]
        self.states: dict[str, dict[tuple, tuple]] = {binding.name: {} for binding in self.plan.bindings}
        self._txid = 0

    def run(self, rows: Mapping[str, Sequence[tuple]], partitions: int = 1) -> dict[str, list[tuple]]:
        """The rows that a transaction stages for each state.

        Args:
            rows: tx_id → the batch.
        """
        self._txid += 1
        attempt = TransactionAttempt(self._txid, 0)
        inputs = {tx_id: self._batch(tx_id, given, partitions) for tx_id, given in rows.items()}
        early = self.plan.build(inputs, attempt)
        late = self.plan.build_late(early, BatchInfo(attempt), self._stored)
        given = {name: [tuple(row) for row in frame.collect()] for name, frame in late.items()}
        late.release()
        for binding in self.plan.bindings:
            if binding.merging == "last":
                self._fold(given[binding.name], len(binding.keys), self.states[binding.name])
        return given

    def _fold(self, changes: Sequence[tuple], keys: int, state: dict[tuple, tuple]) -> None:
        assert len({row[:keys] for row in changes}) == len(changes), "one row per key and transaction"
        for row in changes:
            state.pop(row[:keys], None)
            if not row[-1]:
                state[row[:keys]] = row[keys:-1]

    def _batch(self, tx_id: str, rows: Sequence[tuple], partitions: int) -> Any:
        schema = self.plan.spouts[tx_id].output_schema
        loose = StructType.fromJson(schema.jsonValue())
        if partitions == 1:
            return self._spark.createDataFrame(list(rows), loose).coalesce(1)
        return self._spark.createDataFrame(self._spark.sparkContext.parallelize(list(rows), partitions), loose)

    def _stored(self, binding: Any, keys: Any) -> Any:
        return self._spark.createDataFrame(
            [key + value for key, value in self.states[binding.name].items()], binding.schema
        )
