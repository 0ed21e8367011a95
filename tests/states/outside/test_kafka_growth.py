"""A thousand transactions of a KafkaState leave no growing list of threads, connections or ids at the broker."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.kafka.record_batches import record_batches
from tests.servers.kafka_fixtures import KafkaBroker
from tests.servers.zk_fixtures import eventually
from tests.states.outside.kafka_reading import messages
from tests.states.outside.test_kafka_state import own_producers, part  # noqa: F401
from trident import KafkaState

ROWS, COUNTS = 10, (100, 500, 1_000)


@pytest.mark.long  # a minute and more
@pytest.mark.skipif(sys.platform != "linux", reason="what a process has is counted in /proc")
def test_a_thousand_transactions_leave_nothing_that_grows(kafka: KafkaBroker, topic: str) -> None:
    """One after the other without a pause, which is harder than a second apart: clients are closed in threads."""
    kafka.create(topic)
    state, seen = KafkaState(kafka.address, topic, value="v", name="out"), []
    state.take_over("top", "inc", 1)
    for txid in range(1, COUNTS[-1] + 1):
        state.publish(part(txid, known=(txid - 1, 0) if txid > 1 else None), lines(txid))
        if txid in COUNTS:
            seen.append(counted(kafka, topic))
            print(f"after {txid} transactions: {seen[-1]}", flush=True)
    state.let_go("top")
    print(f"after the end: {counted(kafka, topic)}")
    assert sum(1 for _ in messages(kafka, topic)) == ROWS * COUNTS[-1]
    for name, most in seen[0].items():
        assert max(one[name] for one in seen) <= most + (0 if name.startswith("ids") else 4), f"{name}: {seen}"


def lines(txid: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"v": [f"{txid}-{row}" for row in range(ROWS)]})])


def counted(kafka: KafkaBroker, topic: str) -> dict[str, int]:
    """What there is once clients that are being made or closed have been."""

    def busy() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name in ("trident-kafka-ahead", "trident-kafka-close")]

    assert eventually(lambda: not busy(), 60), busy()
    open_files = [os.path.realpath(one.path) for one in os.scandir("/proc/self/fd")]
    keys = {message.key() for message in messages(kafka, "__transaction_state")}
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "sockets": sum("socket:" in one for one in open_files),
        "ids of transactions": sum(b"trident/top/out/" in key for key in keys),
        "ids of producers in the topic": len({one.producer for one in record_batches(kafka, topic)}),
    }
