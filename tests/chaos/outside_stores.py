"""Stores outside of the warehouse for the matrix and the sweep: a topic in, and each state of the kind outside.

A further outside state is added to ``Addresses.append`` or ``Addresses.change``, and to ``OutsideStores.found``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.kafka_fixtures import KafkaBroker
from tests.servers.postgres_fixtures import PostgresServer
from tests.states.outside.http_server import Server
from tests.states.outside.kafka_reading import messages
from trident import HttpState, KafkaSpout, KafkaState, OpaqueKafkaSpout, PostgresMap, PostgresState, Upsert, opaque
from trident import functions as F

SPOUTS = {"Kafka": KafkaSpout, "opaque Kafka": OpaqueKafkaSpout}
APPENDED = ("KafkaState", "PostgresState", "HttpState")
COUNTED = ("PostgresMap",)
CHANGED = ("KafkaState with Upsert", "PostgresState with Upsert")
# Of those that keep marks in the store.
MARKED = 4


@dataclass(frozen=True)
class Addresses:
    """Names the stores of one topology; another process reads it from a file.

    Attributes:
        suffix: of the names of topics, tables and states: those of this topology alone.
        per_batch: messages of a transaction; at most, where it need not be full.
        full: whether each transaction has so many.
    """

    brokers: str
    database: str
    http: str
    suffix: str
    per_batch: int
    full: bool = True

    def keep(self, path: Path) -> None:
        path.write_text(json.dumps([self.brokers, self.database, self.http, self.suffix, self.per_batch, self.full]))

    @classmethod
    def read(cls, path: Path) -> Addresses:
        return cls(*json.loads(path.read_text()))

    def named(self, what: str) -> str:
        return f"{what}_{self.suffix}"

    def stream(self, topology: Any, name: str, spout: str) -> Any:
        """A stream of the words of the topic in."""
        made = SPOUTS[spout](
            self.brokers,
            self.named("in"),
            columns=("value",),
            min_rows=self.per_batch if self.full else 1,
            max_rows=self.per_batch,
            poll_interval_secs=0.1,
        )
        return topology.new_stream(name, made).select(F.col("value").cast("string").alias("word"))

    def append(self, words: Any, state: str, key: str | None = None) -> None:
        """Persists the words of a stream by one of ``APPENDED``.

        Args:
            key: a field; the words of one key stay in their order in the topic.
        """
        if state == "KafkaState":
            kept: Any = KafkaState(self.brokers, self.named("copied"), key=key, value="word", partitions=2)
            words = words if key is None else words.partition_by(key)
        elif state == "HttpState":
            several = 1 if self.full else 200
            kept = HttpState(self.http, self.named("posted"), honours_keys=True, partitions=2, rows_per_request=several)
        else:
            kept = PostgresState(self.database, self.named("rows"), partitions=2)
        words.partition_persist(kept, "word" if key is None or state != "KafkaState" else f"{key}, word")

    def counted(self) -> Any:
        """The state of ``COUNTED``, for counts."""
        return opaque(self.named("counted"), PostgresMap(self.database, self.named("counted")))

    def change(self, values: Any, key: str, state: str) -> None:
        """Persists new values ``n`` of a key by one of ``CHANGED``."""
        if state.startswith("KafkaState"):
            kept: Any = KafkaState(self.brokers, self.named("changes"), key=key, value="n")
        else:
            kept = PostgresState(self.database, self.named("totals"))
        values.partition_persist(kept, f"{key}, n", Upsert(key))


class OutsideStores:
    """Topics, tables and an HTTP server, made and read without the framework's code.

    Args:
        suffix, per_batch, full: of the addresses.
        topology: its name.
        key: the field that upserts are by.
        partitions: of the topic in.
    """

    def __init__(
        self,
        broker: KafkaBroker,
        server: PostgresServer,
        suffix: str,
        per_batch: int,
        topology: str,
        key: str,
        full: bool = True,
        partitions: int = 1,
    ) -> None:
        self._broker, self._server, self._topology = broker, server, topology
        self._http = Server()  # takes requests of one key once
        self.addresses = Addresses(broker.address, server.url, self._http.url, suffix, per_batch, full)
        named = self.addresses.named
        for topic, count in (("in", partitions), ("copied", 2), ("changes", 2)):
            broker.create(named(topic), count)
        server.execute(f"CREATE TABLE {named('rows')} (word text)")
        server.execute(f"CREATE TABLE {named('totals')} ({key} text PRIMARY KEY, n bigint)")
        self._producer = broker.producer(**{"linger.ms": 5_000, "enable.idempotence": True})
        self._key = key

    def close(self) -> None:
        self._http.close()

    def put(self, words: Sequence[str]) -> None:
        """Appends to the topic in, in one step: a reader sees all of them or none."""
        for word in words:
            # Those of one key are in one partition.
            self._producer.produce(self.addresses.named("in"), word, word.partition("-")[0])
        assert self._producer.flush(60) == 0

    def found(self, state: str) -> Counter:
        """Word, or key, → how often it is there, or its count."""
        named, execute = self.addresses.named, self._server.execute
        if state == "KafkaState":
            return Counter(word for _, word in self.copied())
        if state == "PostgresState":
            return Counter(word for (word,) in execute(f"SELECT word FROM {named('rows')}"))
        if state == "HttpState":
            bodies = [body if isinstance(body, list) else [body] for body in self._http.bodies]
            return Counter(row["word"] for rows in bodies for row in rows)
        if state == "PostgresMap":
            found = execute(f"SELECT key, value FROM {named('counted')}")
            return Counter({json.loads(key)["tuple"][0]: json.loads(value)["opaque"][1] for key, value in found})
        if state == "PostgresState with Upsert":
            return Counter(dict(execute(f"SELECT {self._key}, n FROM {named('totals')}")))  # type: ignore[arg-type]
        return self._changes()

    def copied(self) -> list[tuple[str | None, str]]:
        """Key and word of each message, those of a partition in their order."""
        found = messages(self._broker, self.addresses.named("copied"))
        return [(message.key() and message.key().decode(), message.value().decode()) for message in found]

    def _changes(self) -> Counter:
        """The last value of each key; each value of a key must be greater than the one before."""
        last: Counter = Counter()
        for message in messages(self._broker, self.addresses.named("changes")):
            key, n = message.key().decode(), json.loads(message.value())
            assert n > last[key], f"{key}: {n} behind {last[key]}"
            last[key] = n
        return last

    def txids(self) -> dict[str, int]:
        """State → its last transaction, of all that keep marks."""
        marks = "SELECT state, max(txid) FROM trident_marks WHERE part >= 0 AND state LIKE %s GROUP BY state"
        found = dict(self._server.execute(marks, f"%{self.addresses.suffix}"))
        for state in ("copied", "changes"):
            name = self.addresses.named(state)
            found[name] = max(self._broker.committed(f"trident/{self._topology}/{name}", name, 2).values())
        return found  # type: ignore[return-value]
