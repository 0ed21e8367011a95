"""Sources of single messages: what is not acknowledged comes again, what is acknowledged does not, whatever dies."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.long_cases import sample
from tests.servers.redis_fixtures import PASSWORD
from trident.coordinators.errors import (
    ConfigError,
    EnvironmentProblem,
    OutcomeUnknown,
    SourceError,
    TopologyError,
    TridentError,
)
from trident.spouts.queues.in_process import InProcessQueue, InProcessQueueSpout
from trident.spouts.queues.redis_queue import RedisListQueue, RedisListSpout, new_owner
from trident.spouts.rich import SpoutCollector, is_rich_spout

ROOT = Path(__file__).resolve().parents[3]
WAIT_SECS = 20.0
_numbers = itertools.count()


def opened(spout, width=1):
    """A spout as a topology drives it."""
    spout.collector, spout.context = SpoutCollector({"default": width}), None
    spout.open()
    return spout


def emitted(spout, most=10_000):
    """(id, tuple) of what it emits until it has no more, or of so many."""
    found = []
    while len(found) < most:
        spout.next_tuple()
        messages = spout.collector.drain()
        assert len(messages) <= 1
        if not messages:
            break
        found += [(message.message_id, message.rows[0]) for message in messages]
    return found


def ids(found):
    return [id for id, _ in found]


def texts(found):
    return [row[0] for _, row in found]


def eventually(spout, n, within_secs=WAIT_SECS):
    """The n messages that it emits, waiting for them."""
    found, end = [], time.monotonic() + within_secs
    while len(found) < n:
        found += emitted(spout, n - len(found))
        assert time.monotonic() < end, f"{len(found)} of {n} within {within_secs} s"
        time.sleep(0.002)
    return found


# -- in the process -------------------------------------------------------------------------------


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


def test_what_fails_comes_again_before_what_is_new_with_its_id():
    queue = InProcessQueue()
    made = queue.put("a")
    assert [queue.put("b", "of mine"), queue.put("b", ["x", 1]), queue.put("c", 7)] == ["of mine", ["x", 1], 7]
    spout = opened(InProcessQueueSpout(queue))
    assert is_rich_spout(spout) and spout.output_schema.fieldNames() == ["message"]
    assert emitted(spout, 3) == [(made, ("a",)), ("of mine", ("b",)), (["x", 1], ("b",))]
    assert (len(queue), queue.pending, queue.deliveries(made), queue.deliveries(7)) == (4, 3, 1, 0)
    assert spout.backlog().rows == 1
    spout.fail(["x", 1])
    spout.fail(made)
    spout.fail(made)
    spout.ack("of mine")
    assert (len(queue), queue.pending) == (3, 0)
    assert emitted(spout) == [(["x", 1], ("b",)), (made, ("a",)), (7, ("c",))]
    assert (queue.deliveries(made), queue.deliveries(["x", 1]), queue.deliveries("of mine")) == (2, 2, 0)
    # 7 is not "7", and neither what was acknowledged nor what nobody knows does anything.
    for other in ("7", "of mine", "unknown"):
        spout.ack(other)
        spout.fail(other)
    assert emitted(spout) == [] and (len(queue), queue.pending) == (3, 3)


def test_an_ack_counts_while_the_message_waits_to_come_again():
    queue, spout = InProcessQueue(), None
    spout = opened(InProcessQueueSpout(queue))
    for id in ("a", "b"):
        queue.put(id, id)
    assert ids(emitted(spout)) == ["a", "b"]
    spout.fail("a")
    spout.ack("a")
    queue.put("another", "a")
    assert emitted(spout) == [("a", ("another",))] and len(queue) == 2
    # Never handed out: an ack that comes late is of another message.
    queue.put("new", "n")
    spout.ack("n")
    assert ids(emitted(spout)) == ["n"]


def test_what_is_not_settled_in_its_time_comes_again():
    clock = Clock()
    queue = InProcessQueue(redeliver_after_secs=10, clock=clock)
    spout = opened(InProcessQueueSpout(queue, "n long, word string"), width=2)
    for n in range(3):
        queue.put((n, f"w{n}"), n)
    assert ids(emitted(spout, 2)) == [0, 1]
    clock.now += 5
    assert ids(emitted(spout)) == [2]
    clock.now += 4.9
    assert emitted(spout) == [] and queue.pending == 3
    clock.now += 0.1
    assert queue.pending == 1
    spout.fail(0)  # too late: it comes again anyway, once
    assert emitted(spout) == [(0, (0, "w0")), (1, (1, "w1"))]
    spout.ack(0)  # of whichever delivery
    clock.now += 100
    assert ids(emitted(spout)) == [2, 1] and queue.deliveries(1) == 3
    assert InProcessQueue(clock=clock).take() is None


def test_a_spout_is_given_what_the_one_before_it_had_not_settled():
    queue = InProcessQueue()
    for n in range(6):
        queue.put("text", n)
    first = opened(InProcessQueueSpout(queue))
    assert ids(emitted(first, 4)) == [0, 1, 2, 3]
    first.fail(3)
    first.ack(1)
    first.close()
    assert ids(emitted(opened(InProcessQueueSpout(queue)))) == [0, 2, 3, 4, 5]


def test_wait_empty_returns_at_the_last_ack_or_says_what_is_left():
    queue = InProcessQueue()
    queue.wait_empty(0)
    queue.put("a", 1), queue.put("b", 2)
    spout = opened(InProcessQueueSpout(queue))
    assert queue and ids(emitted(spout, 1)) == [1]
    with pytest.raises(TridentError, match="within 0.05 s; found: 2 left, 1 of them delivered"):
        queue.wait_empty(0.05)
    done = threading.Event()
    waiter = threading.Thread(target=lambda: (queue.wait_empty(WAIT_SECS), done.set()))
    waiter.start()
    spout.ack(1)
    assert not done.wait(0.05)
    assert ids(emitted(spout)) == [2]
    spout.ack(2)
    assert done.wait(WAIT_SECS / 4)
    waiter.join()


def test_messages_from_many_threads_are_taken_once_each():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # between any two lines
    try:
        check_many_threads()
    finally:
        sys.setswitchinterval(before)


def check_many_threads():
    queue, taken, of_threads, over = InProcessQueue(), [], 400, threading.Event()

    def produce(thread):
        for n in range(of_threads):
            queue.put((thread, n))

    def consume():
        while not over.is_set():
            delivery = queue.take()
            if delivery is None:
                time.sleep(0.0005)
            elif delivery.deliveries == 1 and delivery.value[1] % 3 == 0:
                queue.fail(delivery.id)
            else:
                taken.append(delivery.value)
                queue.acknowledge(delivery.id)

    with ThreadPoolExecutor(7) as pool:
        consumers = [pool.submit(consume) for _ in range(3)]
        try:
            for producer in [pool.submit(produce, n) for n in range(4)]:
                producer.result(WAIT_SECS)
            queue.wait_empty(WAIT_SECS)
        finally:
            over.set()
        for consumer in consumers:
            consumer.result(WAIT_SECS)
    assert sorted(taken) == [(thread, n) for thread in range(4) for n in range(of_threads)]


def test_what_cannot_be_a_message_is_refused():
    queue = InProcessQueue()
    queue.put("a", "id")
    with pytest.raises(SourceError, match="two messages have the same id; found: 'id'"):
        queue.put("b", "id")
    with pytest.raises(SourceError, match="message id cannot be used"):
        queue.put("b", object())
    for secs in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="redelivery time"):
            InProcessQueue(redeliver_after_secs=secs)
    with pytest.raises(ConfigError, match="given no queue"):
        InProcessQueueSpout([])
    spout = opened(InProcessQueueSpout(queue, "a string, b string"), width=2)
    with pytest.raises(SourceError, match="expected: 2 values"):
        spout.next_tuple()
    assert len(queue) == queue.pending == 1


# -- in Redis -------------------------------------------------------------------------------------


@pytest.fixture
def list_key():
    return f"messages{next(_numbers)}"


@pytest.fixture
def queue(redis_server, list_key):
    return RedisListQueue(redis_server.url, list_key)


def client_of(queue):
    import redis

    return redis.Redis.from_url(queue.url)


def spout_on(queue, consumer="c", width=1, fields="message string", **settings):
    return opened(RedisListSpout(queue.url, queue.key, fields, consumer=consumer, **settings), width)


def test_equal_texts_are_messages_of_their_own(queue):
    client = client_of(queue)
    client.lpush(queue.key, "same", "same", b'{"id": "a", "value": "same"}', '{"id": "b", "value": "same"}')
    spout = spout_on(queue)
    found = emitted(spout)
    assert texts(found) == ["same"] * 4 and len(set(ids(found))) == 4 and ids(found)[2:] == ["a", "b"]
    first, second = ids(found)[:2]
    assert is_rich_spout(spout) and (len(queue), queue.pending) == (4, 4)
    spout.ack(second)
    spout.ack("b")
    assert len(queue) == 2
    for id in (first, "a"):
        spout.fail(id)
    assert emitted(spout) == [(first, ("same",)), ("a", ("same",))] and queue.takes(first) == 2
    spout.ack_many([first, "a", "b", "unknown"])
    # What is acknowledged leaves nothing behind.
    assert emitted(spout) == [] and len(queue) == 0 and list(client.scan_iter(f"*{queue.key}*")) == []


def test_an_id_that_another_unsettled_message_has_is_replaced(queue):
    for value in ("one", "two"):
        assert queue.put(value, "mine") == "mine"
    spout = spout_on(queue)
    (one, other) = emitted(spout)
    assert one == ("mine", ("one",)) and other[0] != "mine" and texts([other]) == ["two"]
    spout.ack("mine")
    assert len(queue) == 1
    spout.fail(other[0])
    assert emitted(spout) == [other]
    queue.put("three", "mine")
    assert emitted(spout) == [("mine", ("three",))]


def test_what_pythons_json_reads_in_another_producers_message_is_its_value():
    """Our own files are read strictly; a producer is not ours, and ``json.dumps`` writes NaN."""
    assert RedisListQueue.value(b'{"id": "a", "value": [1, Infinity]}') == [1, float("inf")]
    assert RedisListQueue.value(b'{"id": "a", "value": {"x": 1, "x": 2}}') == {"x": 2}


def test_values_travel_as_json_and_other_texts_as_they_are(queue):
    values = ["ä\u4e2d\0'", (1, 2.5), {"a": [None]}, None, [[1]], 2**70, ""]
    made = queue.put_many(values)
    assert len(set(made)) == len(values) and queue.put_many([]) == []
    others = [
        "",
        "{",
        "12",
        "null",
        "{" * 2_000,
        '["id", "value"]',
        '{"id": NaN',
        '{"id": "x"}',
        '{"id": "", "value": 1}',
    ]
    others += ['{"id": 1, "value": 2}', '{"id": "x", "value": 2, "more": 3}', '{"id": {"id": "x"}, "value": 1}']
    client_of(queue).lpush(queue.key, *others)
    # Lua and Python need not agree on what is JSON: the value is Python's, and each has an id.
    client_of(queue).lpush(queue.key, '{"id": "\\ud800", "value": "lone"}', '{"id": "hex", "value": 0x10}')
    client_of(queue).lpush(queue.key, b'{"id": "\xff", "value": "' + b'not"}')
    spout = spout_on(queue, decode=lambda value: (value,))
    found = emitted(spout, len(values) + len(others) + 2)
    assert found[: len(values)] == [(id, (list(v) if isinstance(v, tuple) else v,)) for id, v in zip(made, values)]
    assert texts(found[len(values) :]) == [*others, "lone", '{"id": "hex", "value": 0x10}']
    with pytest.raises(SourceError, match=r"id '\\udcff': UnicodeDecodeError"):
        spout.next_tuple()
    assert len(set(ids(found))) == len(found) and "x" not in ids(found)
    spout.ack_many([*ids(found), "\udcff"])
    assert len(queue) == 0
    queue.put((1, "two"))
    assert emitted(spout_on(queue, fields="n long, word string", width=2))[0][1] == (1, "two")
    for bad in (object(), float("nan"), "\ud800"):
        with pytest.raises(ConfigError, match="cannot be put"):
            queue.put(bad)
    for id in ("", 5):
        with pytest.raises(ConfigError, match="id of a message"):
            queue.put("x", id)


def test_what_is_not_settled_in_its_time_goes_to_whoever_asks(queue):
    made = queue.put_many(["a", "b", "c"])
    first = spout_on(queue, "first", redeliver_after_secs=0.4, prefetch=1)
    began = time.monotonic()
    assert ids(emitted(first)) == made
    second = spout_on(queue, "second", redeliver_after_secs=60)
    found = emitted(second)
    assert found == [] or time.monotonic() - began >= 0.4
    found += eventually(second, 3 - len(found))
    assert ids(found) == made and time.monotonic() - began >= 0.4
    # The first is too late to fail it, and not too late to acknowledge it.
    first.fail(made[0])
    first.ack(made[1])
    assert emitted(first) == [] and emitted(second) == [] and len(queue) == 2
    second.fail(made[1])
    second.ack(made[1])
    second.fail(made[2])
    assert ids(emitted(first)) == [made[2]] and queue.takes(made[2]) == 3
    second.ack(made[2])
    second.ack(made[0])
    assert len(queue) == 0
    time.sleep(0.45)
    assert emitted(first) == emitted(second) == []


def test_what_is_acknowledged_while_it_waits_here_a_second_time_is_not_emitted(queue):
    made = queue.put_many(["a", "b", "c"])
    spout = spout_on(queue, redeliver_after_secs=0.4, prefetch=10)
    assert ids(emitted(spout)) == made
    time.sleep(0.55)
    assert ids(emitted(spout, 1)) == made[:1]  # and the two others are fetched
    spout.ack(made[2])
    spout.fail(made[1])
    assert ids(emitted(spout)) == [made[1]] and queue.takes(made[1]) == 3


def test_what_was_fetched_and_not_emitted_is_not_emitted_when_its_time_is_over(queue):
    made = queue.put_many(range(10))
    slow = spout_on(queue, "slow", redeliver_after_secs=0.4, prefetch=10)
    assert ids(emitted(slow, 1)) == made[:1] and queue.pending == 10 and slow.backlog().rows == 9
    other = spout_on(queue, "other", prefetch=4)
    assert emitted(other) == []
    time.sleep(0.55)
    assert ids(emitted(other, 4)) == made[:4]
    # Six are left, not nine; and each has its whole time from now on.
    assert ids(emitted(slow)) == made[4:] and emitted(other) == []
    other.ack_many(made[:4])
    slow.ack_many(made[4:])
    assert len(queue) == 0


def test_a_message_that_fails_waits_as_long_as_it_is_told_to(queue):
    made = queue.put_many(["a", "b"])
    spout = spout_on(queue, retry_after_secs=0.3, prefetch=1)
    assert ids(emitted(spout, 1)) == made[:1]
    began = time.monotonic()
    spout.fail(made[0])
    assert ids(emitted(spout, 1)) == made[1:]
    assert ids(eventually(spout, 1)) == made[:1] and time.monotonic() - began >= 0.3


def test_the_names_of_the_topology_are_the_consumer(queue):
    spout = RedisListSpout(queue.url, queue.key)
    with pytest.raises(ConfigError, match="consumer='…'"):
        opened(spout)
    spout.context = SimpleNamespace(topology="shop", tx_id="orders")
    assert spout.consumer == "shop/orders"
    spout.open()
    made = queue.put("a")
    assert ids(emitted(spout)) == [made]
    assert ids(emitted(spout_on(queue, "orders"))) == ids(emitted(spout_on(queue, "shop"))) == []
    assert ids(emitted(spout_on(queue, "shop/orders"))) == [made]


def test_close_gives_back_what_was_not_emitted_and_keeps_the_rest(queue):
    made = queue.put_many(range(5))
    spout = spout_on(queue)
    assert ids(emitted(spout, 2)) == made[:2]
    spout.close()
    assert queue.pending == 2
    other = spout_on(queue, "other")
    assert ids(emitted(other)) == made[2:]
    spout.open()
    assert ids(emitted(spout)) == made[:2]


CHILD = """
import pickle, sys, time
from types import SimpleNamespace
from trident.spouts.queues.redis_queue import RedisListSpout
from trident.spouts.rich import SpoutCollector
queue, secs = pickle.loads(bytes.fromhex(sys.argv[1]))
spout = RedisListSpout(queue.url, queue.key, consumer="c", redeliver_after_secs=secs, prefetch=8)
spout.collector, spout.context = SpoutCollector({"default": 1}), None
spout.open()
for _ in range(5):
    spout.next_tuple()
held = [message.message_id for message in spout.collector.drain()]
spout.ack(held[1])
spout.fail(held[3])
print(*held, flush=True)
time.sleep(60)
"""


def killed_holding(queue, secs):
    """The ids that a process had been given when it was killed: 8 taken, 5 emitted, [1] acknowledged, [3] failed."""
    arguments = [sys.executable, "-c", CHILD, pickle.dumps((queue, secs)).hex()]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        held = child.stdout.readline().split()
        child.kill()
    return held


def test_a_successor_is_given_at_once_what_a_killed_process_had(queue):
    made = queue.put_many(range(10))
    assert killed_holding(queue, 600) == made[:5]
    # Another consumer: only what nobody has.
    other = spout_on(queue, "c2")
    assert ids(emitted(other, 3)) == [made[3], *made[8:]] and emitted(other) == []
    successor = spout_on(queue, "c")
    assert ids(emitted(successor)) == [made[0], made[2], *made[4:8]]
    successor.ack_many([made[0], made[2], *made[4:8]])
    assert ids(emitted(spout_on(queue, "c2"))) == [made[3], *made[8:]]


def test_what_a_killed_process_had_goes_to_others_when_its_time_is_up(queue):
    made = queue.put_many(range(8))
    assert killed_holding(queue, 0.6) == made[:5]
    found = eventually(spout_on(queue, "other"), 7)
    assert sorted(ids(found)) == sorted(made[:1] + made[2:]) and len(queue) == 7


def test_a_process_that_was_taken_over_does_no_harm(queue):
    made = queue.put_many(range(4))
    old = spout_on(queue)
    assert ids(emitted(old)) == made
    new = spout_on(queue)
    assert ids(emitted(new)) == made
    old.fail(made[0])
    old.ack(made[1])
    for id in ("later", "last"):
        queue.put(id, id)
    assert ids(emitted(old, 1)) == ["later"]
    assert emitted(new) == [] and len(queue) == 5
    old.close()  # and gives back what it had fetched, not what its successor has
    assert ids(emitted(new)) == ["last"] and queue.pending == 5


@pytest.mark.long
def test_a_killed_server_has_lost_nothing_and_gives_nothing_acknowledged_again(own_redis, rng):
    """Killed at random moments in the middle of the work, three times."""
    queue = RedisListQueue(own_redis.url, "work")
    made = [id for n in range(0, 1_500, 500) for id in queue.put_many([str(n % 7) for n in range(n, n + 500)])]
    spout = spout_on(queue, prefetch=10, redeliver_after_secs=600)
    acknowledged, again, to_tell, errors = set(), [], [], []

    def work():
        while len(acknowledged) < len(made):
            try:
                spout.next_tuple()
                for message in spout.collector.drain():
                    if message.message_id in acknowledged:
                        again.append(message.message_id)
                    to_tell.append((rng.random() < 0.2, message.message_id))
                # What raised is told again.
                while to_tell:
                    failed, id = to_tell[0]
                    if failed:
                        spout.fail(id)
                    else:
                        spout.ack(id)
                        acknowledged.add(id)
                    del to_tell[0]
            except SourceError as problem:
                errors.append(str(problem))
                time.sleep(0.005)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    for _ in range(3):
        enough = len(acknowledged) + rng.randrange(50, 350)
        while len(acknowledged) < min(enough, len(made)):
            time.sleep(0.001)
        before = len(errors)
        own_redis.kill()
        while len(errors) == before and len(acknowledged) < len(made):
            time.sleep(0.001)
        own_redis.start()
    worker.join(WAIT_SECS)
    # None had to wait for its ten minutes: also what was lost on the way was handed out again.
    assert acknowledged == set(made) and again == [] and len(queue) == 0
    assert len(errors) >= 3 and all("the Redis queue work cannot be" in error for error in errors), errors[:3]
    assert any("127.0.0.1" in error for error in errors) and not any("s3cret" in error for error in errors)


class LosesAnswers:
    """Stands between a client and a real server; cuts the connection when the next answer comes, if told to."""

    def __init__(self, port):
        self._server_port, self.cut = port, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            server = socket.create_connection(("127.0.0.1", self._server_port))
            threading.Thread(target=self._forward, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()

    def _forward(self, source, target, answers):
        try:
            while data := source.recv(65536):
                if answers and self.cut.is_set():
                    self.cut.clear()
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other direction was faster

    def close(self):
        self._listener.close()


@pytest.fixture
def losing(redis_server):
    between = LosesAnswers(redis_server.port)
    yield between
    between.close()


def test_what_was_taken_by_a_lost_answer_comes_at_once_and_nothing_is_done_twice(queue, losing, redis_server):
    made = queue.put_many(range(12))
    url = queue.url.replace(str(redis_server.port), str(losing.port))
    far = RedisListQueue(f"{url}?retry_on_timeout=true", queue.key)  # it must not
    spout = spout_on(far, prefetch=3, redeliver_after_secs=600)
    assert ids(emitted(spout, 3)) == made[:3]
    spout.fail(made[0])
    losing.cut.set()
    with pytest.raises(SourceError, match=f"{queue.key} cannot be read; found: ConnectionError"):
        spout.next_tuple()
    assert not losing.cut.is_set() and queue.pending == 5, "the script was to take once, for nobody"
    # The two that it still has stay: only what it does not know of comes.
    assert sorted(ids(emitted(spout, 10))) == sorted([made[0], *made[3:]]) and emitted(spout) == []
    spout.ack("unknown")  # the server knows the script from now on
    losing.cut.set()
    with pytest.raises(SourceError, match="cannot be written"):
        spout.ack(made[0])
    assert len(queue) == 11
    spout.ack(made[0])
    losing.cut.set()
    with pytest.raises(OutcomeUnknown, match="cannot be put into"):
        far.put("x", "x")
    assert ids(emitted(spout)) == ["x"] and len(queue) == 12


def test_when_the_server_is_away_each_call_says_so_and_goes_on_afterwards(own_redis):
    queue = RedisListQueue(own_redis.url, "work")
    made = queue.put_many(["a", "b"])
    spout = spout_on(queue, prefetch=1)
    assert ids(emitted(spout, 1)) == made[:1]
    own_redis.kill()
    for call in (spout.next_tuple, lambda: spout.ack(made[0]), lambda: spout.fail(made[0]), spout.open):
        with pytest.raises(SourceError, match=r"the Redis queue work cannot be .*expected: a Redis server.*127\.0\.0"):
            call()
    spout.close()
    own_redis.start()
    spout.ack(made[0])
    assert ids(emitted(spout)) == made[1:]


def test_a_server_that_is_full_is_emptied(own_redis):
    queue, client = RedisListQueue(own_redis.url, "work"), client_of(RedisListQueue(own_redis.url, "work"))
    made = queue.put_many(range(20))
    spout = spout_on(queue, prefetch=5)
    client.config_set("maxmemory", 1)
    with pytest.raises(SourceError, match="maxmemory"):
        queue.put("one more")
    found = ids(emitted(spout, 7))
    spout.fail(found[0])
    assert set(ids(emitted(spout))) | set(found) == set(made)
    spout.ack_many(made)
    assert len(queue) == 0


def test_a_key_that_holds_something_else_loses_nothing(queue):
    made, client = queue.put("a"), client_of(queue)
    spout = spout_on(queue)
    for part in ("taken", "due", "owners", "takes"):
        client.set(f"{{{queue.key}}}:{part}", "text")
        with pytest.raises(SourceError, match="WRONGTYPE"):
            spout.next_tuple()
        client.delete(f"{{{queue.key}}}:{part}")
        assert client.llen(queue.key) == 1
    assert ids(emitted(spout)) == [made]
    client.set("a text", "x")
    with pytest.raises(SourceError, match="WRONGTYPE"):
        spout_on(RedisListQueue(queue.url, "a text")).next_tuple()


def test_a_message_that_cannot_be_decoded_does_not_hold_up_the_others(queue):
    made = queue.put_many(["1", "x", (1, 2), "2"])
    spout = spout_on(queue, decode=lambda value: value if isinstance(value, list) else int(value))
    assert texts(emitted(spout, 1)) == [1]
    with pytest.raises(SourceError, match=f"{queue.key} cannot be emitted; found: id '{made[1]}': ValueError.*throw"):
        spout.next_tuple()
    with pytest.raises(SourceError, match=f"id '{made[2]}': SourceError.*another number of values"):
        spout.next_tuple()
    assert texts(emitted(spout)) == [2] and len(queue) == 4
    queue.acknowledge(made)
    assert len(queue) == 0


def test_the_keys_of_a_queue_are_of_one_slot_of_a_cluster(queue):
    from redis.crc import key_slot

    for key in ("orders", "{shop}:orders", "a{b}c{d}", "x y:z"):
        tagged = RedisListQueue(queue.url, key)
        keys = tagged._keys
        assert keys[0] == key and len(set(keys)) == 5 and len({key_slot(each.encode()) for each in keys}) == 1, keys
    for key in ("", "a}b", "{orders", "{}x", "{orders}", 5, None):
        with pytest.raises(ConfigError, match="key of a Redis queue"):
            RedisListQueue(queue.url, key)


def test_a_queue_travels_and_is_used_after_a_fork(queue):
    made = queue.put("parent")
    again = pickle.loads(pickle.dumps(queue))
    assert again == queue and len(again) == 1
    child = os.fork()
    if child == 0:
        try:
            again.put("child", "of the child")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    taken = queue.take(new_owner("c"), 5)
    assert [message.id for message in taken] == [made, "of the child"] and taken[0].takes == 1
    queue.clear()
    assert len(queue) == 0 and queue


def test_a_server_that_could_forget_is_refused(own_redis):
    client = client_of(RedisListQueue(own_redis.url, "work"))
    client.config_set("appendfsync", "everysec")
    spout = RedisListSpout(own_redis.url, "work", consumer="c")
    with pytest.raises(EnvironmentProblem, match="appendfsync everysec; expected: appendonly yes.*durable=False"):
        opened(spout)
    assert emitted(spout_on(RedisListQueue(own_redis.url, "work"), durable=False)) == []
    client.config_set("appendfsync", "always")
    assert emitted(opened(spout)) == []


def test_no_credential_is_shown_and_a_missing_client_is_named(redis_server, monkeypatch):
    port = redis_server.port
    for url in (
        f"redis://someone:wr0ng@127.0.0.1:{port}/0",
        "redis://someone:wr0ng@127.0.0.1:1/0",
        "http://someone:wr0ng@host",
        "redis://someone:wr0ng@127.0.0.1:wr0ng/0",
        "redis://someone:wr0ng@127.0.0.1/0?socket_timeout=wr0ng",
        None,
    ):
        with pytest.raises(TridentError) as caught:
            queue = RedisListQueue(url, "work")
            assert "wr0ng" not in repr(queue) + str(queue)
            queue.put("x")
        told = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
        assert "wr0ng" not in told and "someone" not in told, url
    assert repr(RedisListQueue(redis_server.url, "a")) == f"RedisListQueue('redis://127.0.0.1:{port}/0', 'a')"
    assert PASSWORD not in repr(RedisListSpout(redis_server.url, "a").queue)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(EnvironmentProblem, match="pip install redis"):
        opened(RedisListSpout(redis_server.url, "a", consumer="c"))


def test_a_message_has_one_stream():
    with pytest.raises(TopologyError, match="one stream"):
        RedisListSpout("redis://127.0.0.1/0", "a", fields={"a": "x string"})


# -- both: nothing is lost, and nothing acknowledged comes again -----------------------------------


class InProcess:
    """A source for the random test, and how its time passes."""

    spouts = 1

    def __init__(self):
        self._clock = Clock()
        self.queue = InProcessQueue(redeliver_after_secs=10, clock=self._clock)

    def put(self, value, rng):
        self.queue.put(value)

    def spout(self, n):
        return opened(InProcessQueueSpout(self.queue))

    def pass_time(self, rng):
        self._clock.now += rng.choice([3, 11])


class InRedis:
    def __init__(self, queue, prefetch):
        # With one that fetches ahead a second would emit what was acknowledged meanwhile.
        self.queue, self._prefetch, self.spouts = queue, prefetch, 2 if prefetch == 1 else 1
        self._client = client_of(queue)

    def put(self, value, rng):
        if rng.random() < 0.5:
            self._client.lpush(self.queue.key, value)
        else:
            self.queue.put(value)

    def spout(self, n):
        return spout_on(self.queue, f"c{n}", prefetch=self._prefetch, redeliver_after_secs=0.04)

    def pass_time(self, rng):
        time.sleep(rng.choice([0.01, 0.06]))


@pytest.mark.parametrize(
    "kind", sample(["process", "redis, one at a time", "redis, fetched ahead"], "process", "redis, fetched ahead")
)
def test_random_histories_lose_nothing_and_repeat_nothing_acknowledged(kind, rng, request):
    for _ in range(15 if kind == "process" else 2):
        if kind == "process":
            source = InProcess()
        else:
            fresh = RedisListQueue(request.getfixturevalue("redis_server").url, f"random{next(_numbers)}")
            source = InRedis(fresh, 1 if "one" in kind else rng.randrange(2, 9))
        check_random_history(source, rng)


def check_random_history(source, rng, steps=250):
    put, value_of, held, acknowledged = Counter(), {}, set(), set()
    spouts = [source.spout(n) for n in range(source.spouts)]

    def take(spout):
        for id, row in emitted(spout, 1):
            assert id not in acknowledged, "what was acknowledged came again"
            assert value_of.setdefault(id, row) == row, "an id stood for two messages"
            held.add(id)

    def ack(spout, id):
        spout.ack(id)
        held.discard(id)
        acknowledged.add(id)

    actions = ["put"] * 5 + ["take"] * 8 + ["ack"] * 4 + ["fail"] * 3 + ["late"] * 2 + ["time", "restart"]
    for _ in range(steps):
        action, n = rng.choice(actions), rng.randrange(source.spouts)
        if action == "put":
            value = rng.choice(["a", "b"])
            source.put(value, rng)
            put[value] += 1
        elif action == "take":
            take(spouts[n])
        elif action == "ack" and held:
            ack(spouts[n], rng.choice(sorted(held)))
        elif action == "fail" and held:
            # Not `held` any more for the model, but an ack may still come: of whichever delivery.
            spouts[n].fail(rng.choice(sorted(held)))
        elif action == "late" and acknowledged:
            id = rng.choice(sorted(acknowledged))
            spouts[n].ack(id) if rng.random() < 0.5 else spouts[n].fail(id)
        elif action == "time":
            source.pass_time(rng)
        elif action == "restart":
            # As of a process that died: nothing was closed.
            spouts[n] = source.spout(n)
        assert len(source.queue) == put.total() - len(acknowledged)
    end = time.monotonic() + WAIT_SECS
    while len(source.queue):
        for spout in spouts:
            take(spout)
            for id in sorted(held):
                ack(spout, id)
        assert time.monotonic() < end, f"{len(source.queue)} messages do not come again"
    assert Counter(value_of[id][0] for id in acknowledged) == put
