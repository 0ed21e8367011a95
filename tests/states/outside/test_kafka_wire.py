"""KafkaState over a wire that bends single requests: each row once and in its order, and no call that never returns.

``make kills`` runs every case, ``TRIDENT_WIRE=100`` as many of them; ``TRIDENT_SEED`` runs one sample again.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from tests.servers.kafka_fixtures import KafkaBroker
from tests.states.outside.kafka_reading import messages
from tests.states.outside.test_kafka_state import ALL, another_process, own_producers, part  # noqa: F401
from tests.wire.relay import Act, Fault, Relay
from trident import KafkaState
from trident.coordinators.errors import StateAway
from trident.kafka import client
from trident.states.outside import kafka_producer, kafka_state
from trident.states.outside.kafka_producer import PartProducers

# The requests of a transaction, with those by which the next producer is made; and of a take-over. "name+" is the
# second of its name.
TRANSACTION = (
    *["Metadata", "OffsetFetch", "ListOffsets", "AddOffsetsToTxn", "TxnOffsetCommit", "AddPartitionsToTxn", "Produce"],
    *["AddOffsetsToTxn+", "TxnOffsetCommit+", "EndTxn", "FindCoordinator", "InitProducerId"],
)
TAKE_OVER = (
    *["Metadata", "FindCoordinator", "OffsetFetch", "InitProducerId", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"],
)
# When a request arrives that was held, or its copy: before the next transaction, after its mark, just before its first
# row, amid its rows, just before its end, after it; and before a transaction of the next coordinator, or amid it.
MOMENTS = ("before", "begun", "first", "amid", "filled", "after", "taken over", "taken over, amid")
# The request of the next transaction that the server gets right after the late one.
NEXT_REQUEST = {"first": "Produce", "filled": "EndTxn"}
NO_ERROR = b"\0\0"
LATER = (Act.LATE, Act.STALLED, Act.DOUBLED)
ONCE = tuple(act for act in Act if act not in LATER)


@dataclass(frozen=True)
class Case:
    """One fault: which request gets it, in the take-over or in the first transaction; and when it arrives after all."""

    request: str
    in_take_over: bool
    act: Act
    moment: str

    def __str__(self) -> str:
        return f"{self.request} {'of a take-over ' if self.in_take_over else ''}{self.act.name}, {self.moment}"


REQUESTS = [*((name, False) for name in TRANSACTION), *((name, True) for name in TAKE_OVER)]
CASES = [
    *(Case(*of, act, moment) for of, act, moment in product(REQUESTS, LATER, MOMENTS)),
    *(Case(*of, act, moment) for of, act, moment in product(REQUESTS, ONCE, ("goes on", "taken over"))),
]


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what waits for time-outs. Not for the cases in which none is due: a slow machine would have one all the same.

    The transaction is then tried again, by another producer, which no late request of the first can reach.
    """
    monkeypatch.setattr(kafka_producer, "_MESSAGE_MS", 4_000)
    for module, name, secs in (
        (kafka_producer, "QUERY_SECS", 2.0),
        (kafka_producer, "INIT_SECS", 4.0),
        (kafka_producer, "COMMIT_SECS", 4.0),
        (client, "WATCH_SECS", 1.0),
        (kafka_producer, "WATCH_SECS", 1.0),
    ):
        monkeypatch.setattr(module, name, secs)


COUNT = len(CASES) if ALL else int(os.environ.get("TRIDENT_WIRE", "0"))


def state_of(kafka: KafkaBroker, topic: str) -> KafkaState:
    kafka.create(topic, 1)
    return KafkaState(kafka.wired, topic, value="v", name="out", config={"reconnect.backoff.max.ms": 200})


def lines(txid: int, amid: Callable[[int], None] = lambda _: None) -> Iterator[pa.RecordBatch]:
    """Ten rows of a transaction; ``amid`` is called before the first and before the sixth."""
    for begin in (0, 5):
        amid(begin)
        yield pa.record_batch({"v": [f"{txid}-{row}" for row in range(begin, begin + 5)]})


def wanted(*txids: int) -> list[bytes]:
    return [f"{txid}-{row}".encode() for txid in txids for row in range(10)]


def tried(action: Callable[[], Any]) -> Any:
    """As the framework does it: again and again while the brokers are away."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return action()
        except StateAway:
            assert time.monotonic() < deadline


class Run:
    """Three transactions of ten rows with one fault."""

    def __init__(self, kafka: KafkaBroker, wire: Relay, topic: str, case: Case, monkeypatch: Any) -> None:
        self.kafka, self.wire, self.case, self.monkeypatch = kafka, wire, case, monkeypatch
        self.state, self.epoch = state_of(kafka, topic), 1
        self.fault: Fault | None = None
        self.processes: list[PartProducers] = []
        self.late: list[bytes] = []

    def arm(self, in_take_over: bool) -> None:
        if self.case.in_take_over is in_take_over:
            name = self.case.request.rstrip("+")
            self.fault = self.wire.arm(name, self.case.act, skip=int(self.case.request.endswith("+")))

    def take_over(self) -> None:
        another_process(self.monkeypatch)
        self.processes.append(kafka_state._PRODUCERS)
        tried(lambda: self.state.take_over("top", "inc", self.epoch))

    def publish(self, txid: int, amid: Callable[[int], None] = lambda _: None) -> None:
        known = (txid - 1, 0) if txid > 1 else None
        self.state.publish(part(txid, self.epoch, known=known), lines(txid, amid))

    def succeed(self) -> None:
        """Another coordinator leads, in another process."""
        self.epoch += 1
        self.take_over()

    def deliver(self) -> None:
        assert self.fault is not None
        name, topic = self.fault.name, self.state.topic
        before = self.kafka.ends(topic)
        if (answer := self.fault.deliver()) is None:
            return
        self.late.append(answer)
        # The broker answers before it has ended the transaction: rows that it gets until then are of it, and not lost.
        if name == "EndTxn" and answer.endswith(NO_ERROR) and self.case.moment in ("first", "amid"):
            self.kafka._until(lambda: self.kafka.ends(topic) != before)

    def run(self) -> None:
        moment = self.case.moment
        self.arm(True)
        self.take_over()
        self.arm(False)
        try:
            self.publish(1)
        except StateAway:
            if moment.startswith("taken over"):
                self.succeed()
            tried(lambda: self.publish(1))
        else:
            if moment.startswith("taken over"):
                self.succeed()
        if moment in ("before", "taken over") and self.case.act in LATER:
            self.deliver()
        if moment in NEXT_REQUEST:
            self.wire.before(NEXT_REQUEST[moment], self.deliver)
        if moment == "begun":
            tried(lambda: self.publish(2, lambda row: None if row else self.deliver()))
        elif moment.endswith("amid"):
            tried(lambda: self.publish(2, self.when_some_are_there(self.wire.answered("Produce"))))
        else:
            tried(lambda: self.publish(2))
        if moment == "after":
            self.deliver()
        tried(lambda: self.publish(3))
        assert self.fault is not None and self.fault.met.is_set(), "the request was never sent"
        assert self.late or self.case.act not in LATER, "the late request has never arrived"
        found = [message.value() for message in messages(self.kafka, self.state.topic)]
        assert found == wanted(1, 2, 3), f"{len(found)} rows"
        self.epoch += 1
        assert tried(lambda: self.state.take_over("top", "inc", self.epoch))[0].txid == 3
        for process in self.processes:
            process.let_go(("top", "out"))

    def when_some_are_there(self, before: int) -> Callable[[int], None]:
        def amid(row: int) -> None:
            if row:
                self.wire.wait_answered("Produce", before)
                self.deliver()

        return amid


def run_all(kafka: KafkaBroker, topic: str, cases: list[Case], seed: object) -> None:
    failed = {}
    for number, case in enumerate(cases):
        wire = kafka.wire()
        try:
            with pytest.MonkeyPatch.context() as monkeypatch:
                Run(kafka, wire, f"{topic}-{number}", case, monkeypatch).run()
        except Exception as error:
            failed[str(case)] = f"{type(error).__name__}: {error}"
            print(f"{case}: {failed[str(case)]}", flush=True)
        finally:
            wire.close()
        if len(cases) > 5:
            print(f"{number + 1}. {case}", flush=True)
    print(f"{len(cases)} cases, {len(failed)} failed, seed {seed}")
    assert not failed, f"{len(failed)} of {len(cases)} cases failed, seed {seed}:\n" + "\n".join(
        f"{case}: {error}" for case, error in failed.items()
    )


# As they were found: a request of one transaction committed another's rows, or put its mark back. Each of them fails
# where a producer is used for two transactions.
FOUND = [
    Case("EndTxn", False, Act.DOUBLED, "first"),
    Case("EndTxn", True, Act.DOUBLED, "amid"),
    Case("TxnOffsetCommit+", False, Act.DOUBLED, "filled"),
]


@pytest.mark.parametrize("case", [FOUND[0], *(pytest.param(one, marks=pytest.mark.long) for one in FOUND[1:])], ids=str)
def test_a_late_request_of_one_transaction_ends_no_other(kafka, topic, case: Case) -> None:
    run_all(kafka, topic, [case], None)


@pytest.mark.long
@pytest.mark.usefixtures("short_times")
def test_a_call_that_the_client_never_returns_from_is_given_up(kafka, topic, wire, monkeypatch) -> None:
    """The connection is cut before the first message: to put the mark after that, the client waits for ever."""
    state = state_of(kafka, topic)
    another_process(monkeypatch)
    state.take_over("top", "inc", 1)
    fault = wire.arm("Produce", Act.LOST)
    outcome: list[Any] = []

    def publish() -> None:
        try:
            outcome.append(tried(lambda: state.publish(part(1), lines(1))))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    thread.join(60)
    assert outcome == [None] and fault.met.is_set(), outcome or "it hangs"
    assert [message.value() for message in messages(kafka, topic)] == wanted(1)


@pytest.mark.long
@pytest.mark.usefixtures("short_times")
def test_bent_requests_lose_and_double_no_row(kafka, topic, rng: random.Random) -> None:
    few = [case for case in CASES if case.act in (Act.LATE, Act.DOUBLED)]  # the others wait for time-outs
    run_all(kafka, topic, rng.sample(CASES, COUNT) if COUNT else rng.sample(few, 2), "above")
