"""The topology of the kill tests: a word count over numbers, look-ups of it, a queue, requests. Run as a script.

Its arguments are in the variable ``TEST_JOB``, as JSON. It runs until it is stopped or killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    DirectoryQueueSpout,
    MapGet,
    RedisListSpout,
    SpoutKind,
    TridentTopology,
)
from trident.udf.types import as_schema

ROWS, WORDS = 20, 7


class Numbers:
    """0, 1, 2, …, ``ROWS`` in each batch, up to the number in the file ``end``; without an end while there is none."""

    kind = SpoutKind.TRANSACTIONAL
    output_schema = as_schema("n long", "Numbers")

    def __init__(self, end: str) -> None:
        self._end, self._next = end, 0

    def get_coordinator(self, context: Any) -> Numbers:
        return Numbers(self._end)

    get_emitter = get_coordinator

    def _limit(self) -> float:
        try:
            return int(Path(self._end).read_text())
        except (FileNotFoundError, ValueError):
            return float("inf")

    def resume(self, txid: int, metadata: Any) -> None:
        self._next = metadata["end"]

    def initialize_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> Any:
        if curr_metadata is not None:
            return curr_metadata
        begin = prev_metadata["end"] if prev_metadata else 0
        self._next = begin + ROWS
        return {"begin": begin, "end": self._next}

    def is_ready(self, txid: int) -> bool:
        return self._next < self._limit()

    def emit_batch(self, attempt: Any, metadata: Any) -> list[tuple[int]]:
        return [(number,) for number in range(metadata["begin"], metadata["end"])]

    def success(self, txid: Any) -> None: ...

    def close(self) -> None: ...


def word_of(number: int) -> Iterator[str]:
    yield f"w{number % WORDS}"


def same(word: str) -> Iterator[str]:
    yield word


def topology(end: str, messages: str = "", redis: str = "", key: str = "") -> TridentTopology:
    """The queue is the directory ``messages``, or the list ``key`` of a Redis server."""
    made = TridentTopology("kills")
    numbers = made.new_stream("numbers", Numbers(end))
    words = numbers.each("n", word_of, "word")
    counts = words.group_by("word").persistent_aggregate(
        DeltaMapState("counts", merge_every_txids=10), Count(), "count"
    )
    looked = words.state_query(counts, "word", MapGet(), "before").each("word", same, "again")
    looked.partition_persist(DeltaAppend("looked"))
    spout = (
        RedisListSpout(redis, key, "value string", redeliver_after_secs=600, prefetch=10)
        if redis
        else DirectoryQueueSpout(messages, shared=True)
    )
    queue = made.new_stream("queue", spout)
    queue.each("value", same, "again").partition_persist(DeltaAppend("delivered"))
    asked = made.new_drpc_stream("count", "word string").each("word", same, "key")
    asked.state_query(counts, "key", MapGet(), "count").project("count")
    return made


if __name__ == "__main__":
    topology(**json.loads(os.environ["TEST_JOB"])).run()
