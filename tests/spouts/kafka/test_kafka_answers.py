"""Answers of several brokers that are late, missing or refused, and what a coordinator makes of them."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.long_cases import sample
from tests.spouts.kafka.kafka_mock import METADATA, MockCluster
from trident import KafkaSpout, OpaqueKafkaSpout
from trident.coordinators.errors import BrokersAway, SourceError, TopicGone
from trident.coordinators.identities import TransactionAttempt
from trident.kafka.client import KafkaSettings, Watched
from trident.spouts.contracts import SpoutContext
from trident.spouts.kafka import cluster
from trident.spouts.kafka.cluster import NO_MESSAGE, KafkaCluster, Starts
from trident.spouts.kafka.coordinator import KafkaCoordinator
from trident.spouts.kafka.emitter import KafkaEmitter
from trident.spouts.kafka.ranges import At, Batch, TopicRanges, TopicState


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    """Three, of which each leads a partition of "t" with ten messages."""
    monkeypatch.setattr(cluster, "REQUEST_SECS", 0.5)
    made = MockCluster(3)
    made.create("t", [1, 2, 3])
    for number in range(3):
        made.put("t", number, 10)
    yield made
    made.close()


@pytest.fixture
def coordinate(brokers: MockCluster, tmp_path: Path) -> Iterator[Any]:
    made: list[KafkaCoordinator] = []

    def make(kind: type[KafkaSpout] = KafkaSpout, **settings: Any) -> KafkaCoordinator:
        spout = kind(brokers.address, "t", poll_interval_secs=0, **settings)
        made.append(spout.get_coordinator(SpoutContext(None, "t", "s", tmp_path, "i")))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ends(metadata: Any) -> list[int]:
    return list(Batch.read(metadata).ends.values())


def test_nothing_waits_is_an_answer_of_all_leaders_where_all_there_is_was_asked_for(brokers, coordinate) -> None:
    """Behind `process_all_available`: a partition whose leader is being elected may have rows."""
    stream = coordinate()
    stream.initialize_transaction(1, None, None)
    brokers.hang(2)
    assert not stream.is_ready(2)
    stream.refresh()
    for _ in range(2):
        with pytest.raises(BrokersAway, match=r"whether messages wait in t\[1\]"):
            stream.is_ready(2)
    brokers.hang(2, 0)
    assert not stream.is_ready(2)
    brokers.hang(2)
    assert not stream.is_ready(2)


@pytest.mark.parametrize("kind", sample([KafkaSpout, OpaqueKafkaSpout], KafkaSpout))
def test_a_leader_that_does_not_answer_leaves_its_partition_where_it_is(brokers, coordinate, kind) -> None:
    stream = coordinate(kind)
    one = stream.initialize_transaction(1, None, None)
    stream.success(1)
    brokers.put("t", 0, 5)
    brokers.hang(2)
    assert stream.is_ready(2)
    two = stream.initialize_transaction(2, one, None)
    assert ends(two) == [15, 10, 10]
    brokers.hang(2, 0)
    brokers.put("t", 1, 5)
    later = coordinate(kind)
    later.resume(2, two)
    assert ends(later.initialize_transaction(3, two, None)) == [15, 15, 10]


@pytest.mark.parametrize(
    ("gone", "start"),
    [
        (MockCluster.down, "latest"),
        pytest.param(MockCluster.hang, {"t": {0: 10, 1: 10, 2: 10}}, marks=pytest.mark.long),
    ],
)
def test_no_stream_begins_while_a_leader_is_away(brokers, coordinate, gone, start) -> None:
    stream = coordinate(start=start)
    gone(brokers, 2)
    with pytest.raises(SourceError, match=r"cannot begin: it is not known where t\[1\] begins"):
        stream.is_ready(1)
    with pytest.raises(SourceError, match="cannot begin"):
        stream.initialize_transaction(1, None, None)
    brokers.up(2)
    brokers.hang(2, 0)
    assert ends(coordinate(start=start).initialize_transaction(1, None, None)) == [10, 10, 10]


class Told:
    """A cluster that answers as it is told."""

    def __init__(self, *ends: int | None) -> None:
        self.end: Sequence[int | None] = ends
        self.times: dict[At, int] = {}

    def describe_topics(self, topics: Sequence[str], pattern: str | None) -> list[TopicState]:
        return [TopicState("t", "id", list(self.end))]

    def begins(self, ats: Sequence[At]) -> dict[At, int]:
        return {at: 0 for at in ats}

    def ends(self, ats: Sequence[At]) -> dict[At, int]:
        return {at: end for at in ats if (end := self.end[at.partition]) is not None}

    def at_time(self, ats: Sequence[At], milliseconds: int) -> dict[At, int]:
        self.since = milliseconds
        return self.times


def told(found: Told, kind: type[KafkaSpout] = KafkaSpout, **settings: Any) -> KafkaCoordinator:
    spout = kind("h:1", "t", poll_interval_secs=0, **settings)
    return KafkaCoordinator(spout, found, Starts(found, spout.start, None, "w"), "w", 3, None)


def test_a_partition_without_an_answer_for_a_time_does_not_begin_at_its_end() -> None:
    found = Told(10, 10, 10)
    found.times = {At("t", 0): 4, At("t", 2): NO_MESSAGE}
    start = datetime.datetime.now(datetime.timezone.utc)
    with pytest.raises(SourceError, match=r"it is not known where t\[1\] begins"):
        told(found, start=start).initialize_transaction(1, None, None)
    found.times[At("t", 1)] = 7
    assert ends(told(found, start=start, max_rows=1, min_rows=1).initialize_transaction(1, None, None)) == [4, 8, 10]


@pytest.mark.parametrize(("micros", "since"), [(0, 1000), (500, 1001), (1000, 1001)])
def test_no_message_before_the_start_is_taken(micros: int, since: int) -> None:
    found = Told(10)
    found.times = {At("t", 0): 4}
    start = datetime.datetime(1970, 1, 1, 0, 0, 1, micros, datetime.timezone.utc)
    told(found, start=start).initialize_transaction(1, None, None)
    assert found.since == since


@pytest.mark.parametrize(
    ("code", "error"),
    [(KafkaError.UNSTABLE_OFFSET_COMMIT, BrokersAway), (KafkaError.TOPIC_AUTHORIZATION_FAILED, SourceError)],
)
def test_a_committed_offset_that_is_not_told_is_an_error(code: int, error: type[SourceError]) -> None:
    asked = KafkaCluster(KafkaSettings("127.0.0.1:1", {}, {}, "u").connection(), "read_committed", "w")
    known, refused = TopicPartition("t", 0, 5), SimpleNamespace(topic="t", partition=1, offset=-1001)
    known_alone, both = ([known], [known, refused])
    refused.error = KafkaError(code)
    stable = []

    def answer(groups: Any, require_stable: bool = False, **_: Any) -> dict[str, Future]:
        stable.append(require_stable)
        future: Future = Future()
        future.set_result(SimpleNamespace(topic_partitions=known_alone if len(stable) == 1 else both))
        return {"g": future}

    asked._client = Watched(SimpleNamespace(list_consumer_group_offsets=answer, poll=lambda secs: 0))
    assert asked.committed("g", [At("t", 0), At("t", 1)]) == {At("t", 0): 5}
    with pytest.raises(error):
        asked.committed("g", [At("t", 0), At("t", 1)])
    assert all(stable), "offsets of transactions that are not decided must not count"


@pytest.mark.parametrize(
    "code", ["OFFSET_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "KAFKA_STORAGE_ERROR", "_NOENT"]
)
def test_an_error_of_an_election_is_waited_for(code: str) -> None:
    asked = KafkaCluster(KafkaSettings("127.0.0.1:1", {}, {}, "u").connection(), "read_committed", "w")
    problem = asked._problem(KafkaException(KafkaError(getattr(KafkaError, code))), "its offsets")
    assert isinstance(problem, BrokersAway)


def test_a_log_that_was_seen_to_end_earlier_is_gone_back_to_also_when_it_has_grown_again() -> None:
    found = Told(8)
    stream = told(found, OpaqueKafkaSpout)
    one = stream.initialize_transaction(1, None, None)
    stream.success(1)
    found.end = [5]  # an unclean election
    assert stream.is_ready(2), "so that where it goes on is written down"
    found.end = [10]
    two = stream.initialize_transaction(2, one, None)
    assert [(each.begin, each.end) for each in Batch.read(two).ranges] == [(5, 10)]
    stream.success(2)
    assert not stream.is_ready(3)
    successor = told(Told(4), OpaqueKafkaSpout)
    successor.resume(2, two)
    assert successor.is_ready(3) and ends(successor.initialize_transaction(3, two, None)) == [4]


def test_a_stream_goes_back_only_when_no_batch_in_flight_can_read_what_it_goes_back_to() -> None:
    found = Told(8, 8)
    stream = told(found, OpaqueKafkaSpout)
    one = stream.initialize_transaction(1, None, None)
    found.end = [5, 8]
    assert not stream.is_ready(2)
    found.end = [5, 9]
    two = stream.initialize_transaction(2, one, None)  # another partition has messages
    found.end = [10, 9]
    three = stream.initialize_transaction(3, two, None)
    read = [(each.partition, each.begin, each.end) for each in Batch.read(three).ranges]
    assert (ends(two), read) == ([8, 9], [(0, 8, 10)]), "1 may yet read 5 … 8"
    stream.success(3)
    found.end = [7, 9]
    assert stream.is_ready(4) and ends(stream.initialize_transaction(4, three, None)) == [7, 9]


def test_a_client_that_does_not_answer_is_a_cluster_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "REQUEST_SECS", 0.01)
    asked = KafkaCluster(KafkaSettings("127.0.0.1:1", {}, {}, "u").connection(), "read_committed", "w")
    questions = ("describe_topics", "list_offsets", "list_consumer_group_offsets", "alter_consumer_group_offsets")
    never = {name: lambda _, **__: {"t": Future()} for name in questions}
    never["list_offsets"] = lambda _, **__: {TopicPartition("t", 0): Future()}
    asked._client = Watched(SimpleNamespace(poll=lambda secs: 0, **never))
    for question in (
        lambda: asked.ids(["t"]),
        lambda: asked.ends([At("t", 0)]),
        lambda: asked.committed("g", [At("t", 0)]),
        lambda: asked.commit("g", {At("t", 0): 1}),
    ):
        with pytest.raises(BrokersAway):
            question()


def test_an_attempt_waits_with_its_rows_staged_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does before it reads: nothing of it is wrong."""
    answers: list[Any] = [BrokersAway("away"), {"t": "another"}]

    def ids(topics: Any, led: Any = ()) -> dict[str, str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    context = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    reading = SimpleNamespace(what="w")
    emitter = KafkaEmitter(context, SimpleNamespace(ids=ids), reading, (None, None), (), True)
    attempt = TransactionAttempt(1, 0)
    emitter._emitted[attempt] = Batch((TopicRanges("t", "id", (0,), (5,)),))
    with pytest.raises(TopicGone, match="is another one"):
        emitter.prepare(attempt)
    assert not answers


def test_closed_coordinators_leave_no_clients_behind(brokers: MockCluster, coordinate) -> None:
    stream = coordinate()
    assert stream.is_ready(1)
    held = len(os.listdir("/proc/self/task"))
    stream.close()
    assert len(os.listdir("/proc/self/task")) < held


def test_brokers_that_give_topics_no_ids_are_refused(brokers: MockCluster, coordinate) -> None:
    brokers.know_at_most(METADATA, 9)
    with pytest.raises(SourceError, match="found: brokers that give topics no ids"):
        coordinate().is_ready(1)


def test_a_batch_that_could_not_be_read_again_is_not_written_down() -> None:
    stream = told(Told(5))
    with pytest.raises(SourceError, match="a range ends before it begins"):
        stream._remember(1, Batch((TopicRanges("t", "id", (-1001,), (-1001,)),)))


def test_the_backlog_is_asked_for_and_unknown_where_an_answer_is_missing() -> None:
    found = Told(8, 8)
    stream = told(found)
    assert stream.backlog().rows is None, "it is not known where the stream begins"
    stream.initialize_transaction(1, None, None)
    found.end = [12, 10]
    assert stream.backlog().rows == 6, "is_ready was not called"
    found.end = [20, None]
    assert stream.backlog().rows is None, "a leader is away"
    found.end = [20, 10, 5]
    assert stream.backlog().rows is None, "where a new partition begins is not known"
