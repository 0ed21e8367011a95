"""A coordinator that publishes transactions to a KafkaState, as a process of its own that tests kill or stop.

    python -m tests.states.outside.kafka_process BROKERS TOPIC EPOCH TXIDS

Prints each transaction behind its publication. Ends with 3 when it is refused as a stale coordinator.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from tests.states.outside.coordinating import taken_over, waited
from trident import KafkaState, OutsideMark, OutsidePart

PARTS, KEYS = 2, 5


def main(brokers: str, topic: str, epoch: int, txids: int) -> None:
    state = KafkaState(brokers, topic, key="k", value="v", name="out", partitions=PARTS)
    for txid in range(taken_over(state, epoch), txids + 1):
        for number in range(PARTS):
            part = OutsidePart("top", "out", number, OutsideMark("inc", epoch, txid, 0))
            rows = {"k": [f"{number}-{key}" for key in range(KEYS)], "v": [str(txid)] * KEYS}
            waited(lambda part=part, rows=rows: state.publish(part, iter([pa.record_batch(rows)])))
        print(txid, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
