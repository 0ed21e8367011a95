"""Calls into Kafka's client have a watch of ours; none of those that wait goes without one."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from trident.kafka import client as watched
from trident.kafka.client import Watched, is_away

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    *(ROOT / "trident" / "kafka").glob("*.py"),
    *(ROOT / "trident" / "spouts" / "kafka").glob("*.py"),
    *(ROOT / "states" / "outside").glob("kafka_*.py"),
]
# Those of the client that wait for brokers, or for its own thread.
WAIT = set(
    "init_transactions begin_transaction send_offsets_to_transaction commit_transaction abort_transaction flush "
    "list_topics offsets_for_times get_watermark_offsets assign unassign incremental_assign "
    "incremental_unassign".split()
)


class Client:
    def __init__(self) -> None:
        self.never = threading.Event()

    def flush(self, secs: float) -> int:
        self.never.wait()
        return 0

    def list_topics(self, topic: str, secs: float) -> tuple[str, float]:
        return topic, secs


def test_a_client_of_which_a_call_does_not_return_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "WATCH_SECS", 0.05)
    inner = Client()
    client = Watched(inner)
    assert client.within(2.0, "list_topics", "t") == ("t", 2.0)
    with pytest.raises(KafkaException, match="flush") as raised:
        client.within(0.05, "flush")
    assert is_away(raised.value.args[0]) and raised.value.args[0].code() == KafkaError._TIMED_OUT
    with pytest.raises(KafkaException, match="list_topics is not called"):
        client.within(2.0, "list_topics", "t")
    assert client.end() is None
    inner.never.set()


def test_no_call_that_waits_goes_without_a_watch() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.func.attr}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WAIT
    ]
    assert len(FILES) > 10 and not found
