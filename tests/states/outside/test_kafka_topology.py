"""KafkaState in whole topologies: beside Delta tables, as a log by tasks and as a changelog by the coordinator."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.servers.kafka_fixtures import KafkaBroker
from tests.states.outside.kafka_reading import committed
from tests.topology_helpers import WAIT_SECS
from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, KafkaState, OutsidePart, TridentTopology, Upsert
from trident.running.status import read_status
from trident.states.publishing import other_stores

ROOT = Path(__file__).resolve().parents[3]
BATCHES = [[("a", 1), ("b", 2)], [("a", 3)], [], [("a", 4), ("c", 5)]]


def topology(kafka: KafkaBroker, topic: str) -> TridentTopology:
    made = TridentTopology("words")
    stream = made.new_stream("words", FixedBatchSpout("word string, n long", BATCHES))
    stream.partition_persist(DeltaAppend("rows"))
    stream.partition_persist(KafkaState(kafka.address, f"{topic}-log", key="word", name="log", partitions=2))
    counts = stream.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    changes = KafkaState(kafka.address, f"{topic}-changes", key="word", name="changes")
    counts.new_values_stream().partition_persist(changes, "word, count", Upsert("word"))
    return made


@pytest.mark.long
def test_tables_a_log_and_a_changelog_have_each_row_once(start, tmp_path: Path, kafka, topic, monkeypatch) -> None:
    """`make kills`: a coordinator loses its session amid a publication, and wakes up behind its successor."""
    monkeypatch.setattr(other_stores, "_DRIVER_ROWS_MAX", 1)  # batches of more rows go by tasks
    here: set[tuple[str, int]] = set()  # published in this process, which is no task's
    publish = KafkaState.publish

    def noted(self: KafkaState, part: OutsidePart, batches: Any) -> None:
        here.add((self.name, part.mark.txid))
        publish(self, part, batches)

    monkeypatch.setattr(KafkaState, "publish", noted)
    kafka.create(f"{topic}-log", 2)
    kafka.create(f"{topic}-changes", 2)
    if os.environ.get("TRIDENT_KILLS") == "all":  # make kills
        start.replace_at("publish.outside", topology(kafka, topic), topology(kafka, topic))
    else:
        start.run(topology(kafka, topic))
    assert {txid for name, txid in here if name == "log"} & {1, 2, 4} == {2}, "batches of two rows go by tasks"
    rows = Counter((word, n) for batch in BATCHES for word, n in batch)
    log = [json.loads(message.value()) for message in committed(kafka, f"{topic}-log")]
    assert Counter((row["word"], row["n"]) for row in log) == rows
    assert [row["n"] for row in log if row["word"] == "a"] == [1, 3, 4], "the order of a key holds over transactions"
    table = deltalake.DeltaTable(str(tmp_path / "warehouse" / "rows")).to_pyarrow_table().to_pylist()
    assert Counter((row["word"], row["n"]) for row in table) == rows
    told = compared(kafka, tmp_path / "warehouse", "words", "log", f"{topic}-log")
    assert "decided 5 rows; the topic has 5 messages, and 0 " in told
    messages = committed(kafka, f"{topic}-changes")
    changes = [(message.key(), json.loads(message.value())["count"]) for message in messages]
    assert [count for key, count in changes if key == b"a"] == [1, 2, 3]
    assert dict(changes) == {b"a": 3, b"b": 1, b"c": 1}


@pytest.mark.long
def test_deleted_keys_are_tombstones_and_the_status_says_how_far_it_is(start, tmp_path: Path, kafka, topic) -> None:
    kafka.create(topic, 1)
    made = TridentTopology("users")
    batches = [[("ann", 30, False), ("bob", 40, False)], [("ann", 30, True)]]
    stream = made.new_stream("users", FixedBatchSpout("name string, age int, gone boolean", batches))
    state = KafkaState(kafka.address, topic, key="name", name="out")
    stream.partition_persist(state, "name, age, gone", Upsert("name", delete_when="gone"))
    start.run(made).stop(WAIT_SECS)
    (shown,) = read_status(tmp_path / "warehouse", "users").groups[0].outside
    assert (shown.state, shown.condition, shown.txid) == ("out", "up to date", 2)
    found = [(message.key(), message.value()) for message in committed(kafka, topic)]
    assert sorted(found[:2]) == [(b"ann", b'{"name":"ann","age":30}'), (b"bob", b'{"name":"bob","age":40}')]
    assert found[2:] == [(b"ann", None)]


def compared(kafka: KafkaBroker, warehouse: Path, name: str, state: str, topic: str) -> str:
    """What the program in docs/kafka.md prints that looks for rows which a topic lacks."""
    page = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    (program,) = [one for one in page.split("```python\n") if 'trident", "history' in one]
    program = program.partition("```")[0]
    for shown, own in (
        ('"trident", "history", "orders"', f'{sys.executable!r}, "-m", "trident.cli", "history", {name!r}'),
        ('"warehouse=trident-warehouse"', repr(f"warehouse={warehouse}")),
        ('"order_log"', repr(state)),
        ('"order-log"', repr(topic)),
        ('"kafka-1:9092"', repr(kafka.address)),
    ):
        assert shown in program, shown
        program = program.replace(shown, own)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, "docs/kafka.md", "exec"), {})
    return printed.getvalue()


def test_the_program_in_the_docs_finds_rows_that_a_topic_lacks(start, tmp_path: Path, kafka, topic, monkeypatch):
    """As versions before lost them: a transaction was committed with its mark and a part of its rows."""
    kafka.create(topic, 2)
    made = TridentTopology("lost")
    stream = made.new_stream("words", FixedBatchSpout("word string, n long", [[("a", 1)] * 4, [("b", 2)] * 3]))
    stream.partition_persist(DeltaAppend("rows"))  # else the history does not know whether the last one was decided
    stream.partition_persist(KafkaState(kafka.address, topic, key="word", name="out"))
    publish = KafkaState.publish

    def some(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(0, 1)

    def torn(self: KafkaState, part: OutsidePart, batches: Any) -> None:
        publish(self, part, some(batches) if part.mark.txid == 1 else batches)

    monkeypatch.setattr(KafkaState, "publish", torn)
    start.run(made)
    told = compared(kafka, tmp_path / "warehouse", "lost", "out", topic)
    assert told == ("transactions 1 to 2 decided 7 rows; the topic has 4 messages, and 0 offsets have expired\n")
