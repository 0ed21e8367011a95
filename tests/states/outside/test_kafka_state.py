"""KafkaState over a real broker, without Spark: each row once, whatever is interrupted, and in the order of its key."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.sql.types import StructType

from tests.servers.kafka_fixtures import PASSWORD, KafkaBroker
from tests.servers.zk_fixtures import eventually
from tests.states.outside.kafka_reading import committed, values
from trident import KafkaState, OutsideMark, OutsidePart, OutsideRows
from trident.coordinators.errors import (
    EnvironmentProblem,
    SchemaMismatch,
    StaleEpoch,
    StateAway,
    StateLostTransactions,
    TridentError,
)
from trident.kafka.client import Watched
from trident.states.outside import kafka_producer, kafka_state
from trident.states.outside.kafka_producer import PartProducer, PartProducers

ALL = os.environ.get("TRIDENT_KILLS") == "all"  # make kills
ROWS = OutsideRows("top", StructType().add("k", "string").add("v", "string"))


@pytest.fixture(autouse=True)
def own_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_state, "_PRODUCERS", PartProducers())


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has kept is gone, as in another one.

    A producer that is still being made in a thread would fence the other process's at any later moment.
    """
    wait(kafka_state._PRODUCERS._ahead.values())
    monkeypatch.setattr(kafka_state, "_PRODUCERS", PartProducers())


@pytest.fixture
def state(kafka: KafkaBroker, topic: str) -> KafkaState:
    kafka.create(topic, 3)
    return KafkaState(kafka.address, topic, key="k", value="v", name="out")


def part(
    txid: int,
    epoch: int = 1,
    number: int = 0,
    incarnation: str = "inc",
    attempt: int = 0,
    known: tuple[int, int] | None = None,
) -> OutsidePart:
    return OutsidePart("top", "out", number, OutsideMark(incarnation, epoch, txid, attempt), known=known)


def rows(*words: str) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"k": [word[0] for word in words], "v": list(words)})])


# --- once


def test_a_part_is_there_once_however_often_it_is_published(kafka, state, monkeypatch) -> None:
    state.check_store(ROWS)
    assert state.take_over("top", "inc", 1) == {0: OutsideMark("inc", 1, 0, 0)}
    for txid in (1, 2):
        for _ in range(2):
            state.publish(part(txid), rows(f"a{txid}", f"b{txid}"))
    another_process(monkeypatch)
    state.publish(part(2), rows("a2", "b2"))
    task = pickle.loads(pickle.dumps(state))
    task.publish(part(3), rows("a3"))  # fences the producer that the driver has kept
    state.publish(part(3), rows("a3"))
    state.publish(part(4), rows("a4"))
    assert state.take_over("top", "inc", 2) == {0: OutsideMark("inc", 2, 4, 0)}
    assert values(kafka, state.topic) == [b"a1", b"a2", b"a3", b"a4", b"b1", b"b2"]
    of_a = [one for one in committed(kafka, state.topic) if one.key() == b"a"]
    assert len({one.partition() for one in of_a}) == 1 and [one.value() for one in of_a] == [b"a1", b"a2", b"a3", b"a4"]


@pytest.mark.parametrize("kept", [True, False], ids=["by this process", "by another"])
def test_a_commit_whose_answer_is_lost_is_looked_up(kafka, state, monkeypatch, kept: bool) -> None:
    state.take_over("top", "inc", 1)
    write = PartProducer.write

    def lost(self, *arguments: Any) -> None:
        write(self, *arguments)
        raise StateAway("the answer is lost")

    monkeypatch.setattr(PartProducer, "write", lost)
    with pytest.raises(StateAway):
        state.publish(part(1), rows("a1"))
    monkeypatch.setattr(PartProducer, "write", write)
    if not kept:
        another_process(monkeypatch)
        assert state.take_over("top", "inc", 2) == {0: OutsideMark("inc", 2, 1, 0)}
    state.publish(part(1, epoch=1 if kept else 2), rows("a1"))
    assert values(kafka, state.topic) == [b"a1"]


def test_a_transaction_that_a_killed_executor_left_open_is_ended_by_the_next_try(kafka, state, monkeypatch) -> None:
    """Its rows are aborted at once: readers do not wait for the cluster's time-out."""
    state.take_over("top", "inc", 1)
    monkeypatch.setattr(PartProducer, "_abort", lambda self: None)

    def killed() -> Iterator[pa.RecordBatch]:
        yield from rows("x1", "y1")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        state.publish(part(1), killed())
    another_process(monkeypatch)
    state.publish(part(1), rows("a1"))
    assert values(kafka, state.topic) == [b"a1"]


# --- zombies


LONG = [pytest.param(moment, marks=pytest.mark.long) for moment in ("amid its rows", "before its commit")]


@pytest.mark.parametrize("moment", ["before it begins", "behind its mark", *LONG])
def test_a_stale_coordinators_executor_that_wakes_up_is_refused_each_time(kafka, state, monkeypatch, moment):
    """It is stopped at a moment of its transaction; another coordinator takes over, and publishes; it wakes up."""
    rounds = 25 if ALL else 1  # of each of the four moments
    state.take_over("top", "inc", 1)
    wanted, count = [], PartProducer.count
    for number in range(rounds):
        old, new, txid = number * 2 + 1, number * 2 + 2, number * 2 + 1
        state.take_over("top", "inc", old)
        zombies = PartProducers()

        def take_over(new: int = new, txid: int = txid) -> None:
            mine = kafka_state._PRODUCERS
            another_process(monkeypatch)
            assert state.take_over("top", "inc", new)[0].epoch == new
            late = moment in ("behind its mark", "before its commit")
            if (txid % 4 == 1) != late:  # the successor has published already, or only taken over
                published(state, part(txid, new), f"new{txid}")
            monkeypatch.setattr(kafka_state, "_PRODUCERS", mine)

        def interrupted(take_over: Callable[[], None] = take_over) -> Iterator[pa.RecordBatch]:
            if moment == "behind its mark":
                take_over()
            yield from rows("zombie")
            if moment == "amid its rows":
                take_over()
            yield from rows("zombie, too")

        monkeypatch.setattr(kafka_state, "_PRODUCERS", zombies)
        with zombies.of(state._route("top"), 0):
            pass
        if moment == "before it begins":
            take_over()
        elif moment == "before its commit":
            asked = []

            def last(self, asked: list[int] = asked, take_over: Callable[[], None] = take_over) -> int:
                asked.append(1)
                if len(asked) == 2:
                    take_over()
                return count(self)

            monkeypatch.setattr(PartProducer, "count", last)
        with pytest.raises(StaleEpoch, match="later"):
            try:
                state.publish(part(txid, old), interrupted())
            except StateAway:  # it is tried again, as the new one's is
                published(state, part(txid, old), "zombie")
        monkeypatch.setattr(PartProducer, "count", count)
        another_process(monkeypatch)
        # Tried again, as a coordinator does: a producer that the stale one has made ahead fences once more.
        published(state, part(txid, new), f"new{txid}")
        published(state, part(txid + 1, new), f"new{txid + 1}")
        wanted += [f"new{txid}".encode(), f"new{txid + 1}".encode()]
    assert values(kafka, state.topic) == sorted(wanted)


def test_a_part_that_has_no_mark_is_closed_too(state, monkeypatch) -> None:
    """A coordinator of the life before may not put rows into a part that was never written."""
    more = replace(state, partitions=2)
    assert set(more.take_over("top", "inc", 1)) == {0, 1}
    assert replace(more, adopt=True).take_over("top", "next", 2)[1] == OutsideMark("next", 2, 0, 0)
    another_process(monkeypatch)
    with pytest.raises(StaleEpoch):
        more.publish(part(1, number=1), rows("zombie"))


def test_marks_are_written_again_as_they_are_by_their_coordinator_alone(kafka, state, monkeypatch) -> None:
    """Before the cluster forgets them; also those of parts that tasks have written since this process has."""
    more = replace(state, partitions=2)
    more.take_over("top", "inc", 1)
    more.publish(part(1), rows("a1"))
    mine = kafka_state._PRODUCERS
    another_process(monkeypatch)
    more.publish(part(2), rows("a2"))
    wait(kafka_state._PRODUCERS._ahead.values())
    monkeypatch.setattr(kafka_state, "_PRODUCERS", mine)
    written, write = [], PartProducer.write

    def noted(self: PartProducer, stored: Any, *more: Any) -> None:
        written.append(stored.mark)
        write(self, stored, *more)

    monkeypatch.setattr(PartProducer, "write", noted)
    more.renew("top", "inc", 1)
    assert written == [OutsideMark("inc", 1, 2, 0), OutsideMark("inc", 1, 0, 0)]
    more.publish(part(3, known=(2, 0)), rows("a3"))
    for incarnation, epoch in (("inc", 0), ("next", 1)):
        more.renew("top", incarnation, epoch)
    assert len(written) == 3 and values(kafka, state.topic) == [b"a1", b"a2", b"a3"]


# --- SIGKILL


@pytest.mark.long
def test_coordinators_and_the_broker_are_killed_and_each_row_is_there_once(kafka, state, rng: random.Random) -> None:
    """Two parts of each transaction; some coordinators are only stopped, and wake up behind their successors."""
    deaths, txids = (20, 400) if ALL else (2, 30)
    zombies = []
    for epoch in range(1, deaths + 2):
        amid = None if epoch == deaths + 1 else rng.randrange(1, 1 + txids // (2 * deaths))
        child = coordinate(state, epoch, txids)
        assert child.stdout is not None
        for _ in range(amid or 0):
            assert child.stdout.readline(), f"coordinator {epoch} ended with {child.wait()}"
        if amid is None:
            assert child.wait(300) == 0
        elif epoch % 2:
            os.kill(child.pid, signal.SIGSTOP)
            zombies.append(child)
        else:
            child.kill()
            child.wait()
            kafka.kill()
            kafka.start()
    for zombie in zombies:
        os.kill(zombie.pid, signal.SIGCONT)
        assert zombie.wait(120) == 3, "a stale coordinator must be refused"
    found = committed(kafka, state.topic)
    by_key: dict[bytes, list[int]] = {}
    for message in found:
        by_key.setdefault(message.key(), []).append(int(message.value()))
    assert by_key == {b"%d-%d" % (number, key): list(range(1, txids + 1)) for number in (0, 1) for key in range(5)}


def coordinate(state: KafkaState, epoch: int, txids: int) -> subprocess.Popen:
    arguments = [str(epoch), str(txids), "kafka", state.bootstrap, state.topic]
    command = [sys.executable, "-m", "tests.states.outside.coordinating", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# --- the topic


def test_what_a_topic_cannot_take_is_told_before_anything_starts(kafka, state, monkeypatch) -> None:
    with pytest.raises(EnvironmentProblem, match="not there; found: no topic 'never-made'"):
        replace(state, topic="never-made").check_store(ROWS)
    with pytest.raises(SchemaMismatch, match="more parts than its topic has partitions; found: 4; expected: at most 3"):
        replace(state, partitions=4).check_store(ROWS)
    with pytest.raises(SchemaMismatch, match="found: 3; expected: 5"):
        replace(state, topic_partitions=5).check_store(ROWS)
    monkeypatch.setattr(kafka_producer, "QUERY_SECS", 0.3)
    with pytest.raises(StateAway, match="no answer of the brokers at 127.0.0.1:1"):
        replace(state, bootstrap="127.0.0.1:1").check_store(ROWS)


@pytest.mark.long
def test_a_topic_that_has_grown_is_refused_until_its_user_says_so(kafka, state) -> None:
    """Its keys would be in other partitions than before, so that their order is lost."""
    state.take_over("top", "inc", 1)
    state.publish(part(1), rows("a1"))
    kafka.grow(state.topic, 5)
    for call in (lambda: state.publish(part(2), rows("a2")), lambda: state.check_store(ROWS)):
        with pytest.raises(SchemaMismatch, match="found: 5; expected: 3.*give topic_partitions=5"):
            call()
    told = replace(state, topic_partitions=5)
    told.check_store(ROWS)
    assert told.take_over("top", "inc", 2) == {0: OutsideMark("inc", 2, 1, 0)}
    state.check_store(ROWS)  # it was said once
    state.publish(part(2, 2), rows("a2"))
    assert values(kafka, state.topic) == [b"a1", b"a2"]
    kafka.grow(state.topic, 6)
    replace(state, key=None).check_store(ROWS)


def test_a_topic_that_grows_amid_a_transaction_gets_nothing_of_it(kafka, state) -> None:
    state.take_over("top", "inc", 1)

    def growing() -> Iterator[pa.RecordBatch]:
        yield from rows("a1")
        kafka.grow(state.topic, 4)
        yield from rows("b1")

    with pytest.raises(TridentError, match="other partitions"):
        state.publish(part(1), growing())
    assert values(kafka, state.topic) == []


def test_a_topic_that_was_made_anew_has_no_marks(kafka, state) -> None:
    """So a start compares them with ZooKeeper's, and halts."""
    state.take_over("top", "inc", 1)
    state.publish(part(1), rows("a1"))
    kafka.delete(state.topic)
    kafka.create(state.topic, 3)
    assert state.take_over("top", "inc", 2) == {0: OutsideMark("inc", 2, 0, 0)}


# --- transactions that the cluster loses


@pytest.mark.long
def test_a_topic_that_is_made_anew_amid_a_run_gets_nothing_more(kafka, state, monkeypatch) -> None:
    state.take_over("top", "inc", 1)
    state.publish(part(1), rows("a1"))
    state.publish(part(2, known=(1, 0)), rows("a2"))
    with monkeypatch.context() as at_once:
        at_once.setattr(kafka_producer, "_LAG_SECS", 0.0)
        with pytest.raises(StateLostTransactions, match="lacks transaction 2 attempt 1"):
            state.publish(part(3, known=(2, 1)), rows("a3"))
        kafka.delete(state.topic)
        kafka.create(state.topic, 3)
        for txid in (3, 3):
            with pytest.raises(StateLostTransactions, match="lacks .*transaction 2"):
                state.publish(part(txid, known=(2, 0)), rows("a3"))
        assert values(kafka, state.topic) == []
        state.take_over("top", "inc", 2)  # its marks do not say more
        with pytest.raises(StateLostTransactions):
            state.publish(part(3, epoch=2, known=(2, 0)), rows("a3"))
        with pytest.raises(StaleEpoch):  # an older coordinator is told so in the first place
            state.publish(part(3, known=(2, 0)), rows("a3"))
    assert values(kafka, state.topic) == []
    state.publish(part(3, epoch=2), rows("a3"))  # `trident repair --accept-outside`: ZooKeeper has forgotten
    state.publish(part(4, epoch=2, known=(3, 0)), rows("a4"))
    assert values(kafka, state.topic) == [b"a3", b"a4"]


@pytest.mark.long
def test_a_log_that_ends_before_what_it_had_gets_nothing_more(kafka, state, monkeypatch) -> None:
    """A late answer alone is waited for: of marks behind a commit, of ends behind an election."""
    two, told = replace(state, partitions=2), kafka_producer.TopicRoute.ends
    two.take_over("top", "inc", 1)
    for number in (0, 1):
        two.publish(part(1, number=number), rows("a1", "b1", "c1"))
    with two._route("top").consumer() as reader:
        ends = two._route("top").ends(reader, 3)
    longest = ends.index(max(ends))
    cut = (*ends[:longest], ends[longest] - 1, *ends[longest + 1 :])
    late = [cut]
    monkeypatch.setattr(kafka_producer.TopicRoute, "ends", lambda *asked: late.pop() if late else told(*asked))
    two.publish(part(2, known=(1, 0)), rows("a2"))
    assert not late
    monkeypatch.setattr(kafka_producer.TopicRoute, "ends", lambda *_: cut)
    with (
        monkeypatch.context() as soon,
        pytest.raises(StateLostTransactions, match="messages of .*found: partition . ends at"),
    ):
        soon.setattr(kafka_producer, "_LAG_SECS", 0.2)
        two.publish(part(3, known=(2, 0)), rows("a3"))
    monkeypatch.setattr(kafka_producer.TopicRoute, "ends", lambda *_: ends)
    two.publish(part(3), rows("a3"))  # as above: each mark says which ends count
    two.publish(part(4, known=(3, 0)), rows("a4"))
    assert values(kafka, state.topic) == sorted([b"a1", b"b1", b"c1"] * 2 + [b"a2", b"a3", b"a4"])


@pytest.mark.skipif(not ALL, reason="make kills runs it: the broker is started again")
@pytest.mark.parametrize("lost", ["messages", "marks"])
def test_a_cluster_that_comes_back_with_an_older_log_gets_nothing_more(kafka, state, lost: str) -> None:
    """As by an unclean election: the leader that comes back lacks what was acknowledged."""
    state.take_over("top", "inc", 1)
    state.publish(part(1), rows("a1", "b1"))
    kafka.kill()  # what it has written is in its files
    logs = [path for path in (kafka.folder / "data").iterdir() if path.name.startswith(state.topic)]
    logs = logs if lost == "messages" else [kafka.folder / "data" / "__consumer_offsets-0"]
    for log in logs:
        shutil.copytree(log, kafka.folder / "kept" / log.name)
    kafka.start()
    published(state, part(2, known=(1, 0)), "a2", "b2")
    # The brokers end the transaction in each partition after they have said yes: killed before, they would do so in the
    # older log, which is then one record longer ("Not detected" in docs/kafka.md).
    assert eventually(lambda: {b"a2", b"b2"} <= set(values(kafka, state.topic)))
    kafka.kill()
    for log in logs:
        shutil.rmtree(log)
        shutil.move(kafka.folder / "kept" / log.name, log)
    kafka.start()
    with pytest.raises(
        StateLostTransactions, match=f"lacks {'messages of ' if lost == 'messages' else ''}transaction 2"
    ):
        published(state, part(3, known=(2, 0)), "a3", "b3")
    state.take_over("top", "inc", 2)
    with pytest.raises(StateLostTransactions):
        published(state, part(3, epoch=2, known=(2, 0)), "a3", "b3")
    assert b"a3" not in values(kafka, state.topic)


@pytest.mark.parametrize("limit", ["of the client", pytest.param("of the topic", marks=pytest.mark.long)])
def test_a_message_that_is_too_large_is_a_refusal_and_holds_no_reader_up(kafka, topic, limit: str) -> None:
    config = {"message.max.bytes": 3_000_000} if limit == "of the topic" else {}
    kafka.create(topic, 1)
    state = KafkaState(kafka.address, topic, value="v", name="out", config=config)
    state.take_over("top", "inc", 1)
    with pytest.raises(TridentError, match="MSG_SIZE_TOO_LARGE.*Raise max.message.bytes") as raised:
        state.publish(part(1), rows("a1", "x" * 2_000_000))
    assert not isinstance(raised.value, StateAway)
    assert values(kafka, topic) == []
    state.publish(part(1), rows("a1"))
    assert values(kafka, topic) == [b"a1"]


def test_offsets_that_are_no_marks_are_left_alone(kafka, state) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    mine = ConsumerGroupTopicPartitions("billing", [TopicPartition(state.topic, 0, 17)])
    kafka.admin().alter_consumer_group_offsets([mine])["billing"].result(30)
    with pytest.raises(TridentError, match="no marks of this framework"):
        replace(state, group="billing").check_store(ROWS)
    assert kafka.committed("billing", state.topic) == {0: 17}


def test_the_marks_of_another_state_are_refused(kafka, state) -> None:
    """They say nothing of what this one has written: its rows would be taken for written, and lost."""
    mine = replace(state, group="g-" + state.topic)
    mine.take_over("top", "inc", 1)
    mine.publish(part(1), rows("a1"))
    other = replace(mine, name="other")
    for topology, one in (("top", other), ("top two", mine)):
        place = OutsidePart(topology, one.name, 0, part(1).mark)
        calls = (
            lambda one=one, topology=topology: one.check_store(replace(ROWS, topology=topology)),
            lambda one=one, topology=topology: one.take_over(topology, "inc", 1),
            lambda one=one, place=place: one.publish(place, rows("b1")),
        )
        for call in calls:
            with pytest.raises(TridentError, match="marks of another state; found: state out of topology top;"):
                call()
    mine.publish(part(2), rows("a2"))
    assert values(kafka, state.topic) == [b"a1", b"a2"]


@pytest.mark.long
def test_states_of_one_group_and_other_topics_do_not_fence_each_other(kafka, state, monkeypatch) -> None:
    """Two topologies may have one group: their transactional ids are their own."""
    mine = replace(state, group="g-" + state.topic)
    other = replace(mine, topic=kafka.create(f"{state.topic}-b", 1), name="other")
    for topology, one in (("top", mine), ("two", other)):
        one.take_over(topology, "inc", 1)
    asked, of = [], PartProducers.of

    def noted(self: PartProducers, way: Any, number: int, *, anew: bool = False, keep: bool = True) -> Any:
        asked.append(anew)
        return of(self, way, number, anew=anew, keep=keep)

    monkeypatch.setattr(PartProducers, "of", noted)
    for txid in (1, 2):
        mine.publish(part(txid), rows(f"a{txid}"))
        other.publish(OutsidePart("two", "other", 0, part(txid).mark), rows(f"b{txid}"))
    assert values(kafka, mine.topic) == [b"a1", b"a2"] and values(kafka, other.topic) == [b"b1", b"b2"]
    assert asked == [False] * 4, "a producer that was made ahead was fenced"


@pytest.mark.long
@pytest.mark.parametrize("moment", ["it sends more", "its rows fail"])
def test_a_fence_with_messages_still_queued_is_no_refusal(kafka, state, monkeypatch, moment: str) -> None:
    """The client gives thousands up at once, and raises its fatal error meanwhile, out of any of its calls."""
    slow = replace(state, config={"linger.ms": 5000, "batch.size": 10_000_000, "batch.num.messages": 100_000})
    slow.take_over("top", "inc", 1)

    def many() -> Iterator[pa.RecordBatch]:
        yield from rows(*(f"x{number}" for number in range(20_000)))
        mine = kafka_state._PRODUCERS
        another_process(monkeypatch)
        assert slow.take_over("top", "inc", 2)[0].epoch == 2
        monkeypatch.setattr(kafka_state, "_PRODUCERS", mine)
        if moment == "its rows fail":
            raise StateAway("the rows cannot be read")
        while True:  # until the client refuses one
            yield from rows(*(f"y{number}" for number in range(1_000)))

    flushed, flush = [], PartProducer._flush
    monkeypatch.setattr(PartProducer, "_flush", lambda self: flushed.append(self) or flush(self))
    wanted, said = (StaleEpoch, None) if moment == "it sends more" else (StateAway, "cannot be read")
    with pytest.raises(wanted, match=said):
        slow.publish(part(1), many())
    assert values(kafka, state.topic) == []
    assert not flushed, "behind a fatal error the client may keep its messages until they time out"


@pytest.mark.long
def test_a_transaction_that_is_open_for_too_long_says_so(kafka, state) -> None:
    """It is tried again and again: status shows the setting to raise."""
    short = replace(state, config={"transaction.timeout.ms": 1000})  # below the time-out of a message by default
    way = short._route("top")
    short.take_over("top", "inc", 1)

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows("a1")
        with way.consumer(stable=True) as reader:  # answers when the cluster has ended the transaction
            while True:
                try:
                    assert way.marks(reader, [0])[0].mark.txid == 0
                    break
                except StateAway:
                    pass
        yield from rows("b1")

    said = "begins again; found: .*longer than transaction.timeout.ms.*Raise trans"
    with pytest.raises(StateAway, match=said) as raised:
        short.publish(part(1), slow())
    assert "at most 1.0 s" in str(raised.value)
    short.publish(part(1), rows("a1", "b1"))
    assert values(kafka, state.topic) == [b"a1", b"b1"]


@pytest.mark.long
def test_without_a_right_to_write_nothing_starts_and_no_text_has_the_password(kafka, state, monkeypatch) -> None:
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    def rule(operation: str, permission: str) -> Any:
        of = (ResourceType.TOPIC, state.topic, ResourcePatternType.LITERAL, "User:reader", "*")
        return AclBinding(*of, AclOperation[operation], AclPermissionType[permission])

    monkeypatch.setenv("OF_TESTS", PASSWORD)
    config = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "reader"}
    config["ssl.ca.location"] = str(kafka.certificates.ca)
    secrets = {"sasl.password": "env:OF_TESTS"}
    secured = replace(state, bootstrap=kafka.secured, config=config, secrets=secrets)
    secured.check_store(ROWS)
    secured.take_over("top", "inc", 1)
    sent = pickle.dumps(secured)
    monkeypatch.delenv("OF_TESTS")
    pickle.loads(sent).publish(part(1), rows("a1"))  # a task has no such variable
    monkeypatch.setenv("OF_TESTS", PASSWORD)
    rules = [rule("READ", "ALLOW"), rule("DESCRIBE", "ALLOW")]
    for future in kafka.admin().create_acls(rules).values():
        future.result(30)
    with pytest.raises(EnvironmentProblem, match="no right to WRITE"):
        secured.check_store(ROWS)
    with pytest.raises(TridentError, match="Let its user WRITE") as raised:
        secured.publish(part(2), rows("a2"))
    assert PASSWORD not in str(raised.value) and not isinstance(raised.value, StateAway)
    assert values(kafka, state.topic) == [b"a1"]


# --- what a process keeps


@pytest.mark.long
def test_a_process_keeps_one_producer_for_each_part_and_none_once_it_lets_go(kafka, state) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    if not os.path.isdir("/proc/self/task"):
        pytest.skip("NOT TESTED: the threads of the client are counted on Linux alone")
    idle = threads()
    state.take_over("top", "inc", 1)
    most = []
    for txid in range(1, 1001 if ALL else 13):
        state.publish(part(txid, known=(txid - 1, 0) if txid > 1 else None), rows(f"a{txid}"))
        most.append(threads())
    half = len(most) // 2
    assert max(most[half:]) <= max(most[:half]) + 4, most
    assert len(kafka_state._PRODUCERS._ahead) == 1
    state.let_go("top")
    assert kafka_state._PRODUCERS._ahead == {} and eventually(lambda: threads() <= idle + 1), (idle, threads())
    state.publish(part(len(most) + 1), rows("last"))


def test_a_take_over_waits_for_a_producer_that_is_being_made(kafka, state, monkeypatch) -> None:
    """Else that one would fence the one that takes over, in the same process."""
    state.take_over("top", "inc", 1)
    made, may_go_on, init = threading.Event(), threading.Event(), PartProducer.__init__

    def slow(self: PartProducer, *arguments: Any) -> None:
        if threading.current_thread().name == "trident-kafka-ahead":
            made.set()
            assert may_go_on.wait(30)
        init(self, *arguments)

    monkeypatch.setattr(PartProducer, "__init__", slow)
    state.publish(part(1), rows("a1"))
    assert made.wait(30)
    taking = threading.Thread(target=state.take_over, args=("top", "inc", 2))
    taking.start()
    may_go_on.set()
    taking.join(60)
    monkeypatch.setattr(PartProducer, "__init__", init)
    state.publish(part(2, epoch=2, known=(1, 0)), rows("a2"))
    assert values(kafka, state.topic) == [b"a1", b"a2"]


# --- errors


@pytest.mark.long
def test_a_broker_that_falls_silent_is_away(kafka, state, monkeypatch) -> None:
    state.take_over("top", "inc", 1)
    for name in ("_TRANSPORT", "_DESTROY_BROKER", "NOT_ENOUGH_REPLICAS"):

        def silent(*_: Any, name: str = name) -> None:
            raise KafkaException(KafkaError(getattr(KafkaError, name)))

        monkeypatch.setattr(PartProducer, "_produce", lambda self, message, silent=silent: self._way_asked(silent))
        monkeypatch.setattr(PartProducer, "_way_asked", _asked, raising=False)
        with pytest.raises(StateAway, match="no answer of the brokers"):
            state.publish(part(1), rows("a1"))
    monkeypatch.undo()
    state.publish(part(1), rows("a1"))
    assert values(kafka, state.topic) == [b"a1"]


def test_a_group_without_a_coordinator_is_asked_again(state) -> None:
    """A new cluster has none until it was first asked for it: a first start must not fail by it."""
    answers = [KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))] * 2

    class Moved:
        def committed(self, asked: list[Any], timeout: float) -> list[Any]:
            if answers:
                raise answers.pop()
            return asked

    assert state._route("top").marks(Watched(Moved()), range(2)) == {} and not answers


def published(state: KafkaState, one: OutsidePart, *words: str) -> None:
    """As the framework does it: again and again while the brokers are away."""
    while True:
        with suppress(StateAway):
            return state.publish(one, rows(*words))


def _asked(self: PartProducer, action: Callable[[], None]) -> None:
    with self._route.asking("send"):
        action()


def test_json_is_the_default_value(kafka, state) -> None:
    whole = replace(state, value=None)
    whole.publish(part(1), rows("a1"))
    assert [json.loads(value or b"") for value in values(kafka, state.topic)] == [{"k": "a", "v": "a1"}]


class ForgetfulBroker(KafkaBroker):
    def _properties(self) -> dict[str, Any]:
        retention = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 2000}
        return {**super()._properties(), **retention}


@pytest.mark.skipif(not ALL, reason="make kills runs it: a cluster forgets offsets after a minute at the least")
def test_a_cluster_forgets_marks_but_those_that_are_written_again(tmp_path: Path) -> None:
    broker = ForgetfulBroker(tmp_path / "kafka")
    broker.start()
    try:
        states = []
        for name in ("kept", "left"):
            broker.create(name, 1)
            states.append(KafkaState(broker.address, name, key="k", value="v", name="out", group=name))
            states[-1].take_over("top", "inc", 1)
            published(states[-1], part(1), "a1")
        kept, left = states

        def is_forgotten() -> bool:
            kept.renew("top", "inc", 1)
            way = left._route("top")
            with way.consumer() as consumer:
                return not way.marks(consumer, [0])

        assert eventually(is_forgotten, 180)
        published(kept, part(2, known=(1, 0)), "a2")
        with pytest.raises(StateLostTransactions, match="no transaction"):
            published(left, part(2, known=(1, 0)), "a2")
        assert values(broker, "kept") == [b"a1", b"a2"] and values(broker, "left") == [b"a1"]
    finally:
        broker.kill()
