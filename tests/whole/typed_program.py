"""A user's program with types, for test_wheel.py: mypy --strict finds what its ``# wrong:`` lines name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from trident import (
    BackingMap,
    BatchSpout,
    Combiner,
    Count,
    DeltaAppend,
    DeltaMapState,
    FailedException,
    FilterNull,
    MapGet,
    QueueSpout,
    SpoutContext,
    SqliteQueue,
    StaticMap,
    Sum,
    TopologyQuery,
    TridentConfig,
    TridentTopology,
    errors,
    transactional,
)


class Sentences:
    """A spout by its protocol; no base class."""

    output_schema = "sentence string"

    def open(self, context: SpoutContext) -> None:
        self._name = context.tx_id

    def emit_batch(self, txid: int) -> Iterable[tuple[str]]:
        return [(f"sentence {txid} of {self._name}",)]

    def ack(self, txid: int) -> None: ...

    def close(self) -> None: ...


class Longest:
    """A combiner by its protocol."""

    def init(self, word: str) -> str:
        return word

    def combine(self, one: str, other: str) -> str:
        return max(one, other, key=len)

    def zero(self) -> str:
        return ""


class Rows:
    """A backing map by its protocol."""

    fenced = False

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], Any] = {}

    def multi_get(self, keys: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [self._rows.get(key) for key in keys]

    def multi_put(self, keys: Sequence[tuple[Any, ...]], values: Sequence[Any], epoch: int | None = None) -> None:
        self._rows.update(zip(keys, values))


def split(sentence: str) -> Iterator[str]:
    if not sentence:
        raise FailedException("an empty sentence")
    yield from sentence.split()


def decode(payload: str) -> tuple[str, int]:
    order = json.loads(payload)
    return str(order["country"]), int(order["count"])


spout: BatchSpout = Sentences()
combiner: Combiner = Longest()
backing: BackingMap = Rows()

topology = TridentTopology("typed")
words = topology.new_stream("sentences", spout).each("sentence", split, "word string").filter("word", FilterNull())
counts = words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
words.group_by("word").persistent_aggregate(transactional("longest", backing), "word", combiner, "longest")
words.with_column("upper", F.upper("word")).project("upper").partition_persist(DeltaAppend("words"))
orders = topology.new_stream("orders", QueueSpout(SqliteQueue("q.db"), 4, schema="c string, n long", decode=decode))
orders.group_by("c").persistent_aggregate(DeltaMapState("orders"), "n", Sum(), "n")
names = topology.new_static_state(StaticMap({("a",): "Anna"}))
topology.new_drpc_stream("count", "word string").state_query(counts, "word", MapGet(), "count long").state_query(
    names, "word", MapGet(), "name string"
)

TridentTopology(7)  # wrong: arg-type
topology.new_stream("s", spout).eech("sentence", split, "word")  # wrong: attr-defined
MapGet("count")  # wrong: call-arg


def main(warehouse: Path) -> None:
    config = TridentConfig(warehouse=str(warehouse), max_spout_pending=2)
    try:
        with topology.start(config=config) as query:
            report(query)
    except errors.TridentError as error:
        print(error.action)


def report(query: TopologyQuery) -> None:
    query.process_all_available()
    frame: DataFrame = query.snapshot("counts")
    progress: dict[str, Any] | None = query.last_progress
    answers: list[Any] = query.execute("count", "a")
    print(frame.count(), progress, answers)
    query.stop(timeout="soon")  # wrong: call-arg
