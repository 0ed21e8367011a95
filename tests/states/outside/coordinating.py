"""A coordinator of one outside state, as a process of its own that tests kill or stop.

    python -m tests.states.outside.coordinating EPOCH TXIDS http URL FOLDER ROWS
    python -m tests.states.outside.coordinating EPOCH TXIDS kafka BROKERS TOPIC

Prints each transaction behind its publication. Ends with 3 when it is refused as a stale coordinator.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from trident import HttpState, KafkaState, OutsideMark, OutsidePart
from trident.coordinators.errors import StaleEpoch, StateAway
from trident.states.core.place import Place
from trident.states.outside.port import OutsideState

REFUSED = 3  # such a process ends with this where it is refused as a stale coordinator
PARTS, KEYS = 2, 5  # of a KafkaState
Parts = Callable[[OutsideMark], Iterator[tuple[OutsidePart, dict[str, list[Any]]]]]


def http(url: str, folder: str, rows: str) -> tuple[OutsideState, Parts]:
    def parts(mark: OutsideMark) -> Iterator[tuple[OutsidePart, dict[str, list[Any]]]]:
        known = (mark.txid - 1, 0) if mark.txid > 1 else None
        part = OutsidePart("top", "out", 0, mark, known=known, settings={"decision": "d"})
        yield part, {"txid": [mark.txid] * int(rows), "n": list(range(int(rows)))}

    return HttpState(url, "out", dead_letters=True, timeout_secs=5.0).kept_in(Place(folder)), parts


def kafka(brokers: str, topic: str) -> tuple[OutsideState, Parts]:
    def parts(mark: OutsideMark) -> Iterator[tuple[OutsidePart, dict[str, list[Any]]]]:
        for number in range(PARTS):
            rows = {"k": [f"{number}-{key}" for key in range(KEYS)], "v": [str(mark.txid)] * KEYS}
            yield OutsidePart("top", "out", number, mark), rows

    return KafkaState(brokers, topic, key="k", value="v", name="out", partitions=PARTS), parts


def main(epoch: int, txids: int, state: OutsideState, parts: Parts) -> None:
    for txid in range(taken_over(state, epoch), txids + 1):
        for part, rows in parts(OutsideMark("inc", epoch, txid, 0)):
            waited(lambda part=part, rows=rows: state.publish(part, iter([pa.record_batch(rows)])))
        print(txid, flush=True)


def taken_over(state: OutsideState, epoch: int) -> int:
    """Takes the state over; returns the transaction to begin with, which some parts may have."""
    marks = waited(lambda: state.take_over("top", "inc", epoch))
    if any(mark.epoch != epoch for mark in marks.values()):
        sys.exit(REFUSED)
    return max([1, *(mark.txid for mark in marks.values())])


def waited(action: Callable[[], Any]) -> Any:
    """The result of an action that is tried for as long as the store is away."""
    while True:
        try:
            return action()
        except StateAway:
            time.sleep(0.05)
        except StaleEpoch:
            sys.exit(REFUSED)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *{"http": http, "kafka": kafka}[sys.argv[3]](*sys.argv[4:]))
