"""A queue with receipts and the committer spout over it: each message once, whatever dies when."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.programs import python
from tests.servers.zk_fixtures import eventually
from tests.spouts.committer_harness import Group
from tests.topology_helpers import starter
from trident import Count, DeltaAppend, DeltaMapState, TridentTopology
from trident.coordinators import faults
from trident.coordinators.errors import ConfigError, Deposed, ForeignTable, SourceError, TopologyError
from trident.coordinators.faults import InjectedFault
from trident.coordinators.identities import TransactionAttempt
from trident.spouts.contracts import CommitterTridentSpout, SpoutContext, SpoutKind
from trident.spouts.queues import sqlite as sqlite_queue
from trident.spouts.queues.receipts import QueueSpout
from trident.spouts.queues.sqlite import SqliteQueue

ROOT = Path(__file__).resolve().parents[3]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(tmp_path: Path, clock: Clock) -> SqliteQueue:
    return SqliteQueue(tmp_path / "q.db", lease_secs=10, clock=clock)


def payloads(messages) -> list[str]:
    return [message.payload for message in messages]


# --- the queue ---------------------------------------------------------------------------------


class QueueMachine(RuleBasedStateMachine):
    """The queue does what a dict of messages with leases does, reopened or not."""

    @initialize()
    def make(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.queue = SqliteQueue(f"{self.folder.name}/q.db", lease_secs=10, clock=self.clock)
        # id -> [payload, visible at, receipt]
        self.model: dict[str, list] = {}
        self.receipts: list[str] = []
        self.used: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()
            self.folder.cleanup()

    @rule(texts=st.lists(st.text(max_size=5), max_size=4))
    def put(self, texts: list[str]) -> None:
        ids = self.queue.put(texts)
        assert not self.used & set(ids) and len(set(ids)) == len(texts)
        self.used |= set(ids)
        self.model.update({id: [text, 0.0, None] for id, text in zip(ids, texts)})

    @rule(n=st.integers(0, 5))
    def take(self, n: int) -> None:
        visible = [id for id, (_, at, _) in self.model.items() if at <= self.clock.now]
        assert self.queue.ready(3) == min(3, len(visible))
        taken = self.queue.take(n)
        assert [(m.id, m.payload) for m in taken] == [(id, self.model[id][0]) for id in visible[:n]]
        for message in taken:
            self.model[message.id][1:] = [self.clock.now + 10, message.receipt]
            assert message.receipt not in self.receipts
            self.receipts.append(message.receipt)

    @rule(data=st.data(), by_receipt=st.booleans())
    def acknowledge(self, data: st.DataObject, by_receipt: bool) -> None:
        if by_receipt and self.receipts:
            chosen = data.draw(st.lists(st.sampled_from(self.receipts), max_size=3))
            gone = [id for id, (_, _, receipt) in self.model.items() if receipt in chosen]
        else:
            chosen = data.draw(st.lists(st.sampled_from(sorted(self.used)), max_size=3)) if self.used else []
            gone = [id for id in chosen if id in self.model]
        self.queue.acknowledge(chosen)
        for id in set(gone):
            del self.model[id]

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.receipts:
            chosen = data.draw(st.lists(st.sampled_from(self.receipts), max_size=3))
            self.queue.give_back(chosen)
            for entry in self.model.values():
                if entry[2] in chosen:
                    entry[1:] = [0.0, None]

    @rule(secs=st.sampled_from([1.0, 5.0, 10.0]))
    def wait(self, secs: float) -> None:
        self.clock.now += secs

    @rule()
    def reopen(self) -> None:
        self.queue.close()
        self.queue = SqliteQueue(self.queue.path, lease_secs=10, clock=self.clock)

    @invariant()
    def as_many(self) -> None:
        if hasattr(self, "model"):
            assert len(self.queue) == len(self.model)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_threads_and_processes_share_the_queue_and_each_message_goes_to_one(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    queue = SqliteQueue(path)
    queue.put([str(n) for n in range(300)])
    program = (
        "import sys; from trident.spouts.queues.sqlite import SqliteQueue\n"
        "q = SqliteQueue(sys.argv[1])\n"
        "while m := q.take(7):\n"
        "    print(*[x.payload for x in m], flush=True)\n"
        "    q.acknowledge(x.receipt for x in m)\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    other = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    seen: list[str] = []

    def consume() -> None:
        mine = SqliteQueue(path)
        while messages := mine.take(3):
            seen.extend(payloads(messages))
            queue.acknowledge(message.id for message in messages)  # an object may be shared by threads

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    out, _ = other.communicate(timeout=60)
    assert sorted(map(int, seen + out.split())) == list(range(300))
    assert len(queue) == 0 and SqliteQueue(path).take(1) == []


def test_a_consumer_takes_over_from_its_predecessor_and_refuses_it(queue: SqliteQueue) -> None:
    queue.put("abcd")
    old = queue.consumer("c", "life", 1)
    with pytest.raises(SourceError, match="was not started"):
        old.take(1)
    old.start()
    held, taken = old.take(1), old.take(1)
    old.hold(message.receipt for message in held)
    assert payloads(queue.take(1)) == ["c"]
    new = queue.consumer("c", "life", 2)
    new.start()
    assert payloads(new.take(9)) == ["a", "b", "d"], "all of the old one's, and nothing that others have"
    old.give_back([held[0].receipt, taken[0].receipt])
    assert queue.take(9) == []
    for refused in (old.start, lambda: old.take(1), lambda: old.hold([taken[0].receipt])):
        with pytest.raises(Deposed, match="epoch 2"):
            refused()
    reset = queue.consumer("c", "another life", 1)
    reset.start()
    for refused in (new.start, lambda: new.take(1), queue.consumer("c", "life", 9).start):
        with pytest.raises(SourceError, match="another process now.*'another life'"):
            refused()


def test_what_is_held_outlives_its_lease_and_what_was_taken_again_cannot_be_held(queue: SqliteQueue, clock) -> None:
    queue.put("ab")
    consumer = queue.consumer("c", "life", 1)
    consumer.start()
    first, second = consumer.take(1), consumer.take(1)
    consumer.hold([first[0].receipt])
    clock.now += 11
    assert payloads(queue.take(9)) == ["b"]
    with pytest.raises(SourceError, match="1 messages .* were taken by another consumer.*lease"):
        consumer.hold([first[0].receipt, second[0].receipt])
    consumer.give_back([first[0].receipt])
    assert payloads(queue.take(9)) == ["a"]
    consumer.start()
    consumer.take(9)
    clock.now += 11
    consumer.hold([message.receipt for message in consumer.take(9)])
    queue.release("c")
    assert len(queue.take(9)) == 2


def test_a_queue_cannot_be_made_of_anything_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="path"):
        SqliteQueue("file:x")
    with pytest.raises(ConfigError, match="7"):
        SqliteQueue(tmp_path / "q").put(["a", 7])
    with pytest.raises(SourceError, match="no id and no receipt.*'x'"):
        SqliteQueue(tmp_path / "q").acknowledge(["x"])
    with pytest.raises(SourceError, match="cannot be used"):
        SqliteQueue(tmp_path / "no" / "q").take(1)
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE t (a)")
    with pytest.raises(ForeignTable, match="tables t"):
        SqliteQueue(tmp_path / "other").take(1)


# --- the spout ---------------------------------------------------------------------------------


def contents(queue: SqliteQueue) -> list[str]:
    connection = sqlite3.connect(queue.path)
    try:
        return [payload for (payload,) in connection.execute("SELECT payload FROM messages ORDER BY id")]
    finally:
        connection.close()


class Parts:
    """The two parts of a spout in one process."""

    def __init__(self, queue: SqliteQueue, folder: Path, epoch: int = 1, **arguments) -> None:
        self.spout = QueueSpout(queue, **arguments)
        context = SpoutContext(None, "t", "s", folder, "life", {"epoch": epoch})
        self.coordinator, self.emitter = self.spout.get_coordinator(context), self.spout.get_emitter(context)

    def begin(self, txid: int, current=None):
        return self.coordinator.initialize_transaction(txid, None, current)

    def emit(self, txid: int, attempt_id: int = 0, most: int = 10):
        return self.emitter.emit_batch(TransactionAttempt(txid, attempt_id), {"max_messages": most})


def rows(emitted) -> list[str]:
    return [payload for _, payload in emitted.data]


@pytest.mark.parametrize("run", range(12))
def test_random_runs_lose_and_double_nothing(tmp_path: Path, rng: random.Random, run: int, monkeypatch) -> None:
    """Failures, cancelled threads, kills, zombies, lost answers, leases that run out, and a second consumer."""
    monkeypatch.setattr(sqlite_queue, "SYNCHRONOUS", "OFF")  # a loss of power is not among them
    clock, put = Clock(), []
    queue = SqliteQueue(tmp_path / "q.db", lease_secs=10, clock=clock)

    def spout() -> QueueSpout:
        return QueueSpout(SqliteQueue(queue.path, lease_secs=10, clock=clock), max_messages=rng.choice([1, 2, 5]))

    group = Group(spout, tmp_path, rng, cancels=rng.random() < 0.5, rows_of=lambda data: [p for _, p in data])
    elsewhere: list[str] = []  # acknowledged by the second consumer

    def produce() -> bool:
        texts = [f"m{len(put) + n}" for n in range(rng.randrange(1, 6))]
        put.extend(texts)
        queue.put(texts)
        return True

    def another_consumer() -> bool:
        messages = queue.take(rng.randrange(1, 4))
        match rng.randrange(3):
            case 0:
                queue.give_back(message.receipt for message in messages)
            case 1:
                elsewhere.extend(payloads(messages))
                queue.acknowledge(message.receipt for message in messages)
        return bool(messages)

    def pass_time() -> bool:
        clock.now += rng.choice([3.0, 11.0])
        return True

    def others() -> None:
        for _ in range(rng.randrange(4)):
            rng.choice([group.zombie, another_consumer, another_consumer, pass_time, produce])()

    group.meanwhile = others
    steps = [group.begin, group.begin, group.emit, group.prepare, group.decide, group.finish] * 3
    steps += [group.commit_only, group.fail, group.fail, group.kill, group.stop, pass_time, pass_time]
    steps += [group.late_thread, group.zombie, another_consumer, produce] * 3
    for _ in range(400):
        rng.choice(steps)()
        live = [id for taken in group.life.emitter._intake._live.all() for id in taken.receipts]
        assert len(live) == len(set(live)), "a message in two live attempts"
    clock.now += 11
    group.drain()
    committed = [payload for _, payload in group.table]
    assert Counter(committed + elsewhere) == Counter(put)
    assert contents(queue) == []


def test_the_spout_is_a_committer_with_its_own_rows_and_table(queue: SqliteQueue, tmp_path: Path) -> None:
    spout: CommitterTridentSpout = QueueSpout(queue)
    assert spout.kind is SpoutKind.OPAQUE and spout.table is None
    assert spout.output_schema.simpleString() == "struct<id:string,payload:string>"
    queue.put(["1", "x", "3"])

    def decode(text: str):
        return (int(text),) if text.isdecimal() else None

    parts = Parts(queue, tmp_path, schema="n long", decode=decode, table="receipts")
    assert parts.spout.table.name == "receipts"
    parts.begin(4)
    emitted = parts.emit(4)
    assert emitted.data == [(1,), (3,)] and emitted.commit_data["ids"] == ["1", "2", "3"]
    assert emitted.table_rows == [("1", 4), ("2", 4), ("3", 4)]
    with pytest.raises(TopologyError, match="both or neither"):
        QueueSpout(queue, schema="n long")
    with pytest.raises(TopologyError, match="max_messages"):
        QueueSpout(queue, max_messages=0)
    queue.put(["4"])
    parts = Parts(queue, tmp_path, epoch=2, schema="n long", decode=lambda text: 1 // 0)
    parts.begin(5)
    with pytest.raises(SourceError, match="message 1 cannot be decoded: ZeroDivisionError"):
        parts.emit(5)


def test_a_failed_transaction_gives_its_messages_back_before_it_takes_again(queue: SqliteQueue, tmp_path: Path) -> None:
    queue.put("abcd")
    parts = Parts(queue, tmp_path)
    for txid in (1, 2):
        parts.begin(txid)
    assert rows(parts.emit(2, most=2)) == ["a", "b"] and rows(parts.emit(1, most=2)) == ["c", "d"]
    # 1 failed, so 2 did; both begin again, and their threads come in the other order.
    parts.begin(1)
    parts.begin(2)
    second = parts.emit(2, 1, most=3)
    first = parts.emit(1, 1, most=3)
    assert rows(second) == ["a", "b", "c"] and rows(first) == ["d"], "the new attempt at 2 keeps what it has"
    for late in (lambda: parts.emit(2, 0), lambda: parts.emitter.prepare(TransactionAttempt(2, 0))):
        with pytest.raises(SourceError, match="2:0 was given up"):
            late()
    parts.emitter.prepare(TransactionAttempt(1, 1))
    parts.emitter.cancel(TransactionAttempt(2, 1))
    assert payloads(queue.take(9)) == ["a", "b", "c"]
    parts.emitter.close()
    assert queue.take(9) == [], "what is held may have been decided: it stays for the successor"
    assert rows_of_successor(queue, tmp_path) == ["d"]


def rows_of_successor(queue: SqliteQueue, folder: Path) -> list[str]:
    parts = Parts(queue, folder, epoch=2)
    assert parts.coordinator.is_ready(1)
    parts.begin(1)
    return rows(parts.emit(1, 7))


def test_a_message_that_comes_again_while_its_attempt_lives_is_not_emitted_again(queue, clock, tmp_path: Path) -> None:
    queue.put("ab")
    parts = Parts(queue, tmp_path)
    parts.begin(1)
    data = parts.emit(1, most=1).commit_data
    clock.now += 11
    parts.begin(2)
    assert rows(parts.emit(2)) == ["b"]
    parts.emitter.prepare(TransactionAttempt(1, 0))  # with the receipt of the second delivery
    parts.emitter.commit(TransactionAttempt(1, 0), data)
    parts.emitter.commit(TransactionAttempt(1, 0), data)
    assert contents(queue) == ["b"]
    parts.emitter.success(TransactionAttempt(1, 0))
    with pytest.raises(SourceError, match="1:5 was given up"):
        parts.emit(1, 5)


def test_readiness_counts_what_transactions_that_have_begun_will_take(queue: SqliteQueue, tmp_path: Path) -> None:
    parts = Parts(queue, tmp_path, max_messages=2)
    assert not parts.coordinator.is_ready(1) and parts.coordinator.backlog().rows == 0
    queue.put("abc")
    assert parts.coordinator.is_ready(1)
    parts.begin(1)
    assert parts.coordinator.is_ready(2), "one is left for it"
    parts.begin(2)
    assert not parts.coordinator.is_ready(3)
    assert rows(parts.emit(1, most=2)) == ["a", "b"] and parts.coordinator.backlog().rows == 1
    assert rows(parts.emit(2)) == ["c"]


def test_a_batch_that_timed_out_gets_smaller_and_then_grows_again(queue: SqliteQueue, tmp_path: Path) -> None:
    coordinator = Parts(queue, tmp_path, max_messages=100).coordinator
    first = coordinator.initialize_transaction(1, None, None)
    assert first == {"max_messages": 100} == coordinator.initialize_transaction(1, None, first)
    smaller = coordinator.shrink_transaction(1, None, first)
    assert smaller == {"max_messages": 50}
    assert coordinator.initialize_transaction(2, {"max_messages": 1}, None) == {"max_messages": 2}
    assert coordinator.shrink_transaction(2, None, {"max_messages": 1}) == {"max_messages": 1}
    assert coordinator.initialize_transaction(2, smaller, None) == {"max_messages": 100}
    with pytest.raises(SourceError, match="max_messages"):
        coordinator.initialize_transaction(2, {"batch": 1}, None)


def test_a_decision_over_another_queue_acknowledges_nothing(queue: SqliteQueue, tmp_path: Path) -> None:
    queue.put("ab")
    emitter = Parts(queue, tmp_path).emitter
    with pytest.raises(SourceError, match="are of another queue"):
        emitter.commit(TransactionAttempt(1, 0), {"queue": "elsewhere", "ids": ["1"]})
    with pytest.raises(SourceError, match="not the commit data"):
        emitter.commit(TransactionAttempt(1, 0), {"batch": 1})
    assert contents(queue) == ["a", "b"]


@pytest.mark.parametrize("outcome", ["fail_before", "do_then_fail"])
@pytest.mark.parametrize("point", ["take", "hold", "give_back", "take_over", "acknowledge"])
def test_an_operation_whose_answer_is_lost_is_made_good_by_the_next(queue, clock, tmp_path, point, outcome) -> None:
    queue.put("abc")
    faults.arm(f"queue.{point}:{outcome}")
    parts = Parts(queue, tmp_path)
    committed: list[str] = []
    for attempt_id in range(4):
        attempt = TransactionAttempt(1, attempt_id)
        try:
            parts.begin(1)
            if point == "give_back" and attempt_id == 0:
                parts.emit(1, 0)
                continue  # it failed; the next begin gives back
            emitted = parts.emit(1, attempt_id)
            parts.emitter.prepare(attempt)
        except InjectedFault:
            clock.now += 11  # what nobody knows of is hidden for one lease
            continue
        committed += rows(emitted)
        while len(queue):
            try:
                parts.emitter.commit(attempt, emitted.commit_data)
            except InjectedFault:
                parts.emitter.commit(attempt, emitted.commit_data)
        break
    assert faults.unfired() == [] and committed == ["a", "b", "c"] and contents(queue) == []


@pytest.mark.parametrize(("fault", "there"), [("queue.put:fail_before", ""), ("queue.put:do_then_fail", "abc")])
def test_messages_are_put_all_or_none(queue, fault, there) -> None:
    len(queue)  # makes the file, which is a write too
    faults.arm(fault)
    with pytest.raises(InjectedFault):
        queue.put("abc")
    assert contents(queue) == list(there) and faults.unfired() == []


# --- on the whole framework ---------------------------------------------------------------------

FAULTS = (
    "queue.hold:fail_before:2,zk.decide:do_then_fail:2,publish.table:do_then_fail:5,spout.commit:do_then_fail:2,"
    "spout.commit:fail_before:4,queue.acknowledge:do_then_fail:5"
)


def word_count(queue: SqliteQueue) -> TridentTopology:
    topology = TridentTopology("queued")
    messages = topology.new_stream("messages", QueueSpout(queue, max_messages=4, table="receipts"))
    messages.partition_persist(DeltaAppend("messages"))
    words = messages.each("payload", lambda text: text.split(), "word string")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    return topology


@pytest.mark.long
def test_a_topology_counts_each_message_once_over_faults_and_a_replaced_coordinator(
    spark, zk_server: str, zk_root: str, tmp_path: Path
) -> None:
    put = [f"m{n} w{n % 3}" for n in range(20)]
    queue = SqliteQueue(tmp_path / "q.db")
    queue.put(put)
    with starter(spark, zk_server, zk_root, tmp_path) as start:
        faults.arm(FAULTS)
        start.run(word_count(queue)).stop(compact=False)
        assert faults.unfired() == [] and contents(queue) == []
        more = [f"n{n} w9" for n in range(8)]
        queue.put(more)
        # The first one has published, has told nobody, and tells the queue when it has long been replaced.
        query = start.replace_at("spout.commit", word_count(queue), word_count(queue))
        messages = {row.id: row.payload for row in query.snapshot("messages").collect()}
        assert sorted(messages.values()) == sorted(put + more) and contents(queue) == []
        assert query.snapshot("messages").count() == len(messages)
        assert sorted(row.id for row in query.snapshot("receipts").collect()) == sorted(messages)
        expected = Counter(word for text in put + more for word in text.split())
        assert {row.word: row["count"] for row in query.snapshot("counts").collect()} == expected


def test_nothing_is_acknowledged_before_its_tables_are_published(
    spark, zk_server: str, zk_root: str, tmp_path: Path
) -> None:
    """Whoever counts the queue and the tables together must find a message in one of them at any moment."""
    queue = SqliteQueue(tmp_path / "q.db")
    queue.put(["m1 w1", "m2 w2"])
    with starter(spark, zk_server, zk_root, tmp_path) as start:
        faults.arm("publish.table:hang:1")
        query = start(word_count(queue))
        assert eventually(lambda: not faults.unfired(), 90)
        # It is decided, and no table has it yet. Were it acknowledged first, that would have happened by now.
        assert len(queue) == 2
        faults.disarm()
        query.process_all_available(90)
        assert query.snapshot("messages").count() == 2 and len(queue) == 0


# --- processes that are killed -----------------------------------------------------------------

# A process that runs transactions over the queue; its table and its decision are in an SQLite file of their own.
PROGRAM = """
import json, sqlite3, sys
from pathlib import Path
from trident.coordinators.identities import TransactionAttempt
from trident.spouts.queues.receipts import QueueSpout
from trident.spouts.contracts import SpoutContext
from trident.spouts.queues.sqlite import SqliteQueue

folder, epoch = Path(sys.argv[1]), int(sys.argv[2])
spout = QueueSpout(SqliteQueue(folder / "q.db", lease_secs=3600), max_messages=4)
store = sqlite3.connect(folder / "table.db", isolation_level=None)
store.execute("CREATE TABLE IF NOT EXISTS decided (txid INTEGER, attempt INTEGER, data TEXT, done INTEGER)")
store.execute("CREATE TABLE IF NOT EXISTS rows (txid INTEGER, payload TEXT)")

def parts():
    context = SpoutContext(None, "t", "s", folder, "life", {"epoch": epoch})
    return spout.get_coordinator(context), spout.get_emitter(context)

def commit(emitter, txid, attempt, data):
    emitter.commit(TransactionAttempt(txid, attempt), json.loads(data))
    store.execute("UPDATE decided SET done = 1 WHERE txid = ?", (txid,))

for txid, attempt, data in store.execute("SELECT txid, attempt, data FROM decided WHERE NOT done").fetchall():
    _, emitter = parts()
    commit(emitter, txid, attempt, data)
    emitter.close()
coordinator, emitter = parts()
txid = store.execute("SELECT coalesce(max(txid), 0) + 1 FROM decided").fetchone()[0]
while coordinator.is_ready(txid):
    metadata = coordinator.initialize_transaction(txid, None, None)
    attempt = TransactionAttempt(txid, epoch)
    emitted = emitter.emit_batch(attempt, metadata)
    emitter.prepare(attempt)
    data = json.dumps(emitted.commit_data)
    store.execute("BEGIN")  # decided and published in one
    store.executemany("INSERT INTO rows VALUES (?, ?)", [(txid, payload) for _, payload in emitted.data])
    store.execute("INSERT INTO decided VALUES (?, ?, ?, 0)", (txid, epoch, data))
    store.execute("COMMIT")
    commit(emitter, txid, epoch, data)
    txid += 1
"""


DEATHS = ["queue.hold:do_then_die:2", "queue.acknowledge:do_then_die:2"]
OTHER_DEATHS = ["queue.take_over:do_then_die", "queue.take:do_then_die:2", "queue.acknowledge:do_then_die"]


@pytest.mark.parametrize("deaths", [DEATHS, pytest.param(OTHER_DEATHS, marks=pytest.mark.long)], ids=["few", "others"])
def test_a_process_killed_at_any_operation_of_the_queue_loses_and_doubles_nothing(
    tmp_path: Path, deaths: list[str]
) -> None:
    queue = SqliteQueue(tmp_path / "q.db")
    put = [f"m{number}" for number in range(40)]
    queue.put(put)
    (tmp_path / "program.py").write_text(PROGRAM)
    for epoch, fault in enumerate([*deaths, ""], 1):
        life = python(tmp_path / "program.py", tmp_path, epoch, TRIDENT_FAULTS=fault)
        assert life.returncode == (-signal.SIGKILL if fault else 0), f"{fault}: {life.stderr[-2000:]}"
    table = sqlite3.connect(tmp_path / "table.db")
    assert [payload for (payload,) in table.execute("SELECT payload FROM rows ORDER BY txid, rowid")] == put
    assert len(queue) == 0


def test_a_transaction_that_begins_again_ends_every_later_attempt_too() -> None:
    """They were built on what failed: their messages must be free before the new attempt takes."""
    from trident.spouts.live_attempts import LiveAttempts

    live: LiveAttempts = LiveAttempts()
    for attempt in (TransactionAttempt(1, 0), TransactionAttempt(2, 0), TransactionAttempt(3, 0)):
        live.enter(attempt)
        live.keep(attempt, str(attempt.txid))
    assert sorted(live.begin(2)) == ["2", "3"]
    assert live.get(TransactionAttempt(1, 0)) == "1"


def test_a_queue_has_acknowledged_before_the_spout_forgets_what_it_took() -> None:
    """Until then a message that is redelivered is known to be decided, and not taken again."""
    from types import SimpleNamespace

    from trident.spouts.queues.receipts import QueueEmitter

    done: list[str] = []
    queue = SimpleNamespace(id="q", acknowledge=lambda ids: done.append("acknowledged"))
    intake = SimpleNamespace(committed=lambda attempt: done.append("forgotten"))
    emitter = QueueEmitter(SimpleNamespace(queue=queue), intake)  # type: ignore[arg-type]
    emitter.commit(TransactionAttempt(1, 0), {"queue": "q", "ids": ["a"]})
    assert done == ["acknowledged", "forgotten"]
