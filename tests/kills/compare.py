"""Compares what Kafka, PostgreSQL and the Delta tables hold with the source, without the framework's code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.kafka_fixtures import KafkaBroker
from tests.kills.topology import APPENDED, BY_KEY, TABLES, TOPICS, TOPOLOGY, Half
from tests.postgres_fixtures import PostgresServer
from tests.states.outside.http_server import Server
from tests.states.outside.kafka_reading import messages
from tests.sweep.oracle import Table

KEYS = 500


def key_of(number: int) -> str:
    return f"k{number % KEYS}"


def appended(what: str, rows: Mapping[str, Any], count: int) -> list[str]:
    """Compares rows with the numbers from 0 on, each of which must be there once, under its key.

    Args:
        rows: arrays "number" and "key"; the key as its number.
    """
    numbers, keys = np.asarray(rows["number"], dtype=np.int64), np.asarray(rows["key"], dtype=np.int64)
    times = np.bincount(numbers, minlength=count) if len(numbers) else np.zeros(count, dtype=np.int64)
    lost, doubled = int((times[:count] == 0).sum()), int((times[:count] > 1).sum())
    foreign = int(times[count:].sum()) + int((keys != numbers % KEYS).sum())
    if not (lost or doubled or foreign):
        return []
    some = np.flatnonzero(times[:count] != 1)[:5].tolist()
    return [f"{what}: {lost} lost, {doubled} doubled, {foreign} that never were, such as {some}"]


def by_key(what: str, found: Mapping[str, int], count: int) -> list[str]:
    """Compares a count for each key with the source's."""
    wanted = {key_of(number): len(range(number, count, KEYS)) for number in range(min(KEYS, count))}
    wrong = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
    if not wrong:
        return []
    key = wrong[0]
    return [f"{what}: {len(wrong)} keys differ, such as {key}: {found.get(key)} in place of {wanted.get(key)}"]


def in_order(what: str, numbers: Iterable[tuple[str, int]]) -> list[str]:
    """Looks whether the numbers of each key grow."""
    last: dict[str, int] = {}
    for key, number in numbers:
        if last.get(key, -1) >= number:
            return [f"{what}: {key} has {number} behind {last[key]}"]
        last[key] = number
    return []


@dataclass
class Stores:
    """The stores of one run.

    Attributes:
        warehouse: on this disk.
    """

    broker: KafkaBroker
    server: PostgresServer
    http: Server
    warehouse: Path

    def problems(self, half: Half, count: int) -> list[str]:
        """All that differs from ``count`` messages, each once; none: nothing is lost or doubled."""
        found = appended(half.source, self._numbers(half.source), count)
        found += appended(half.named("log"), self._table(half.named("log")), count)
        found += appended(half.named("rows"), self._rows(half.named("rows")), count)
        found += appended(half.named("posted"), self._posted(half), count)
        copied = list(self._values(half.named("copied")))
        keys = [int(key[1:]) for key, _ in copied]
        found += appended(half.named("copied"), {"number": [number for _, number in copied], "key": keys}, count)
        found += in_order(half.named("copied"), copied)
        changes = list(self._values(half.named("changes")))
        found += by_key(half.named("changes"), dict(changes), count) + in_order(half.named("changes"), changes)
        found += by_key(half.named("totals"), self._totals(half.named("totals")), count)
        found += by_key(half.named("counted"), {key: n for key, n, _ in self._map(half)}, count)
        found += by_key(half.named("counts"), self._counts(half.named("counts")), count)
        return found

    def txids(self, half: Half) -> dict[str, int]:
        """State → the last transaction that it has."""
        found = {name: self._last(self.warehouse / name) for name in (half.named("log"), half.named("counts__log"))}
        found |= {half.named(name): self._kafka_mark(half.named(name)) for name in TOPICS}
        found |= {half.named(name): self._postgres_mark(half.named(name)) for name in TABLES}
        found[half.named("posted")] = self._outbox_mark(half.named("posted"))
        found[half.named("counted")] = max((txid for _, _, txid in self._map(half)), default=0)
        assert {half.named(name) for name in (*APPENDED, *BY_KEY)} <= found.keys()
        return found

    # --- Kafka

    def _numbers(self, topic: str) -> dict[str, list[int]]:
        found = list(self._values(topic))
        return {"number": [number for _, number in found], "key": [int(key[1:]) for key, _ in found]}

    def _values(self, topic: str) -> Iterator[tuple[str, int]]:
        for message in messages(self.broker, topic):
            value = json.loads(message.value())
            yield message.key().decode(), value if isinstance(value, int) else value["n"]

    def _kafka_mark(self, state: str) -> int:
        from confluent_kafka import ConsumerGroupTopicPartitions

        group = f"trident/{TOPOLOGY}/{state}"
        asked = [ConsumerGroupTopicPartitions(group)]
        found = self.broker.admin().list_consumer_group_offsets(asked)[group].result(30).topic_partitions
        return max((one.offset for one in found), default=0)

    # --- PostgreSQL

    def _rows(self, table: str) -> dict[str, list[int]]:
        found = self.server.execute(f"SELECT number, substr(key, 2)::bigint FROM {table}")
        return {"number": [number for number, _ in found], "key": [key for _, key in found]}

    def _totals(self, table: str) -> dict[str, int]:
        return dict(self.server.execute(f"SELECT key, n FROM {table}"))  # type: ignore[arg-type]

    def _map(self, half: Half) -> list[tuple[str, int, int]]:
        """Key, value and transaction of each value of the opaque map."""
        found = []
        for key, value in self.server.execute(f"SELECT key, value FROM {half.named('counted')}"):
            txid, current = json.loads(value)["opaque"][:2]
            found.append((json.loads(key)["tuple"][0], current, txid))
        return found

    def _postgres_mark(self, state: str) -> int:
        query = "SELECT max(txid) FROM trident_marks WHERE state = %s AND part >= 0"
        return int(self.server.execute(query, state)[0][0] or 0)

    # --- HTTP

    def _posted(self, half: Half) -> dict[str, list[int]]:
        """The rows that the server has taken, a request of each key once; its path says of which half."""
        paths = {asked.key: asked.path for asked in self.http.asked}
        bodies = (body for key, body in self.http.rows.items() if paths[key].endswith(f"/{half.prefix}"))
        rows = [row for body in bodies for row in json.loads(body)]
        return {"number": [row["number"] for row in rows], "key": [int(row["key"][1:]) for row in rows]}

    def _outbox_mark(self, state: str) -> int:
        newest = max((self.warehouse / f"{TOPOLOGY}__{state}__outbox" / "log").glob("[0-9]*.json"))
        return max(part["mark"][2] for part in json.loads(newest.read_text())["record"]["parts"].values())

    # --- Delta

    def _last(self, folder: Path) -> int:
        table = Table.read(folder)
        return max((version for app, version in table.txns.items() if app.startswith("trident/")), default=0)

    def _files(self, folder: Path) -> pa.Table:
        return pa.concat_tables([pq.read_table(folder / file, partitioning=None) for file in Table.read(folder).files])

    def _table(self, name: str) -> dict[str, Any]:
        rows = self._files(self.warehouse / name)
        return {"number": rows["number"].to_numpy(), "key": [int(key[1:]) for key in rows["key"].to_pylist()]}

    def _counts(self, name: str) -> dict[str, int]:
        """The plain table: the drain has merged everything."""
        rows = self._files(self.warehouse / name)
        return dict(zip(rows["key"].to_pylist(), rows["n"].to_pylist()))
