"""The topology that the tests of the live page look at: messages of which one is poison, and orders that fail once.

Both functions ask whether a file is there, which the tests make and remove: they run in Spark's workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.messages.message_helpers import Messages
from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, Sum, TridentTopology

POISON = "poison"
ITEMS = ("lamp", "chair", "desk", "shelf", "mug")
ORDERS = [[(ITEMS[(batch + n) % 5], n % 3 + 1) for n in range(2 + 5 * batch)] for batch in range(4)]


def split_unless(folder: Path) -> Any:
    """A function that raises at the word poison until a file "cured" is there."""
    cured = folder / "cured"

    def split(line: str) -> Iterator[str]:
        for word in line.split():
            if word == POISON and not cured.exists():
                raise ValueError("this word is poison")
            yield word

    return split


def priced_unless(folder: Path) -> Any:
    """A function that raises while a file "down" is there."""
    down = folder / "down"

    def priced(item: str, amount: int) -> int:
        if down.exists():
            raise ConnectionError("the price list does not answer")
        return amount * (1 + len(item))

    return priced


def page_topology(folder: Path, messages: Messages) -> TridentTopology:
    """Two batch groups: lines, whose words are counted, and orders without end, whose prices are added up."""
    topology = TridentTopology("shop")
    words = topology.new_stream("lines", messages).each("line", split_unless(folder), "word string")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts", merge_every_txids=3), Count(), "count")
    spout = FixedBatchSpout("item string, amount long", ORDERS, cycle=True)
    priced = topology.new_stream("orders", spout).each(("item", "amount"), priced_unless(folder), "price long")
    priced.partition_persist(DeltaAppend("sales"), ("item", "price"))
    priced.group_by("item").persistent_aggregate(DeltaMapState("revenue"), "price", Sum(), "total")
    return topology
