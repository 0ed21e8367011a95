"""The topology that the kills run: two groups of Kafka in, each state outside of the warehouse, Delta tables beside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    HttpState,
    KafkaSpout,
    KafkaState,
    OpaqueKafkaSpout,
    PostgresMap,
    PostgresState,
    TridentTopology,
    Upsert,
    opaque,
)
from trident import functions as F

TOPOLOGY = "kills"
ROWS, COUNTS = "key string, number long", "key string, n long"
IN_PARTITIONS, OUT_PARTITIONS = 4, 3


@dataclass(frozen=True)
class Half:
    """One batch group of the topology, with a topic of its own.

    Attributes:
        prefix: of the names of its topic, its states, and what they write.
        spout: a KafkaSpout, or an OpaqueKafkaSpout.
    """

    prefix: str
    spout: type[KafkaSpout]

    @property
    def source(self) -> str:
        return f"{self.prefix}_in"

    def named(self, what: str) -> str:
        return f"{self.prefix}_{what}"


HALVES = (Half("exact", KafkaSpout), Half("opaque", OpaqueKafkaSpout))
# Of each half: what it has besides the Delta tables "log" (appended) and "counts" (by key). A further state outside of
# the warehouse is added here and in compare.py.
APPENDED = ("copied", "rows", "posted")  # KafkaState, PostgresState, HttpState: each row once
BY_KEY = ("changes", "totals", "counted")  # KafkaState and PostgresState with Upsert, PostgresMap: a row for a key
TOPICS, TABLES = ("copied", "changes"), ("rows", "totals")


def topology(brokers: str, database: str, http: str, max_rows: int) -> TridentTopology:
    made = TridentTopology(TOPOLOGY)
    for half in HALVES:
        spout = half.spout(brokers, half.source, columns=("key", "value"), max_rows=max_rows, poll_interval_secs=0.2)
        stream: Any = made.new_stream(half.source, spout)
        key, number = F.col("key").cast("string"), F.col("value").cast("string").cast("long")
        stream = stream.select(key.alias("key"), number.alias("number"))
        stream.partition_persist(DeltaAppend(half.named("log")))
        copied = KafkaState(brokers, half.named("copied"), key="key", value="number", partitions=2)
        stream.partition_by("key").partition_persist(copied)
        stream.partition_persist(PostgresState(database, half.named("rows"), partitions=2))
        posted = HttpState(f"{http}/{half.prefix}", half.named("posted"), honours_keys=True, rows_per_request=200)
        stream.partition_persist(posted)
        counted = opaque(half.named("counted"), PostgresMap(database, half.named("counted")))
        stream.group_by("key").persistent_aggregate(counted, Count(), "n")
        counts = DeltaMapState(half.named("counts"), merge_every_txids=20, merge_interval_secs=5)
        values = stream.group_by("key").persistent_aggregate(counts, Count(), "n").new_values_stream()
        changes = KafkaState(brokers, half.named("changes"), key="key", value="n")
        values.partition_persist(changes, "key, n", Upsert("key"))
        values.partition_persist(PostgresState(database, half.named("totals")), "key, n", Upsert("key"))
    return made


def tables() -> list[str]:
    """Statements that make the tables of PostgreSQL that the states write to."""
    made = []
    for half in HALVES:
        made.append(f"CREATE TABLE {half.named('rows')} (key text, number bigint)")
        made.append(f"CREATE TABLE {half.named('totals')} (key text PRIMARY KEY, n bigint)")
    return made
