"""What anybody who can connect may cost: places, memory, descriptors and the processor; and refusals as documented.

Real sockets; a server in a process of its own where its memory, its descriptors or its processor time are looked at.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from prometheus_client import generate_latest
from pyspark.sql.types import StringType, StructField, StructType
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.long_cases import sample
from tests.servers.zk_fixtures import eventually
from tests.watching.metric_helpers import advanced, began
from trident.coordinators.errors import WrongArguments
from trident.drpc import application
from trident.drpc import http as http_limits
from trident.drpc.http import HttpServer
from trident.drpc.requests import Answer
from trident.drpc.values import arguments, read_json
from trident.udf.types import parse_type
from trident.watching.metric_facts import Facts
from trident.watching.metrics import Instruments

RESULT = StructType([StructField("text", StringType())])
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Plan:
    arguments = result = RESULT


class Front:
    """Answers ``sized`` with as many bytes as its argument says, ``echo`` with the length of it."""

    name, plans, is_leader, role = "top", {"sized": Plan(), "echo": Plan()}, True, "leader"

    def answer(self, function: str, args: Any, named: Any, timeout_secs: float) -> Answer:
        if function == "echo":
            return Answer([(str(len(args[0])),)], function, "id", {})
        # In rows of a quarter of a MiB.
        left, rows = int(args[0]), []
        while left > 0:
            rows.append(("x" * min(left, 1 << 18),))
            left -= 1 << 18
        return Answer(rows, function, "id", {})


def metrics_route() -> Route:
    """``/metrics`` as a topology has it that ran some transactions."""
    instruments = Instruments("top", Facts)
    for txid in range(1, 20):
        instruments.watch(began(txid))
        instruments.watch(advanced(txid))

    async def answer(request: Any) -> Response:
        return Response(generate_latest(instruments), media_type="text/plain")

    return Route("/metrics", answer)


@pytest.fixture
def server() -> Iterator[HttpServer]:
    made = HttpServer("127.0.0.1:0", None, Front())
    yield made
    made.stop()


def connect(address: str, sent: bytes = b"") -> socket.socket:
    host, _, port = address.rpartition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)  # what is not read waits at the server
    one.settimeout(20)
    one.connect((host, int(port)))
    one.sendall(sent)
    return one


def sized(size: int) -> bytes:
    return b"GET /drpc/sized/%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % size


def health(address: str, timeout_secs: float = 10) -> int:
    with urllib.request.urlopen(f"http://{address}/health", timeout=timeout_secs) as answer:
        return answer.status


def watched(address: str) -> float:
    """Asks for ``/health`` and ``/metrics``; returns the seconds of the slower one."""
    slowest = 0.0
    for path in ("health", "metrics"):
        started = time.monotonic()
        with urllib.request.urlopen(f"http://{address}/{path}", timeout=10) as answer:
            assert answer.status == 200 and len(answer.read()) > 10
        slowest = max(slowest, time.monotonic() - started)
    return slowest


def gets_all(address: str, size: int) -> bool:
    """Tells whether a client that reads is answered; others may have taken the memory for a moment."""
    try:
        with urllib.request.urlopen(f"http://{address}/drpc/sized/{size}", timeout=20) as answer:
            return sum(len(row["text"]) for row in json.load(answer)["rows"]) == size
    except urllib.error.HTTPError as refusal:
        assert refusal.code == 503 and "too much waits to be read" in refusal.read().decode()
        return False


def read_all(one: socket.socket) -> bytes:
    """What comes until the connection ends, in whatever way."""
    parts = []
    with suppress(ConnectionError):
        while part := one.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def is_closed(one: socket.socket, secs: float = 10) -> bool:
    one.settimeout(secs)
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


# --- in a process of its own ----------------------------------------------------------------------


CHILD = """
import os, resource, sys
descriptors = int(sys.argv[1])
if descriptors:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from tests.drpc.test_http_limits import Front, metrics_route
from trident.drpc.http import HttpServer
server = HttpServer("127.0.0.1:0", None, Front(), [metrics_route()])
print(server.address, flush=True)
hogs = []
for line in sys.stdin:
    if line == "hog\\n":  # as if Spark and ZooKeeper had taken them
        try:
            while True:
                hogs.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            os.close(hogs.pop())
            os.close(hogs.pop())
    elif line == "free\\n":
        while hogs:
            os.close(hogs.pop())
    print("done", flush=True)
"""


class Child:
    def __init__(self, descriptors: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(descriptors)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self.process.stdout.readline().strip()

    def tell(self, word: str) -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def rss_mb(self) -> float:
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 1e6

    def cpu_secs(self) -> float:
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.long
def test_six_hundred_idle_connections_and_eighty_that_do_not_read_shut_nobody_out(many_files: None) -> None:
    child = Child()
    with ExitStack() as opened:
        opened.callback(child.end)
        assert health(child.address) == 200
        files, memory = child.descriptors(), child.rss_mb()
        for _ in range(600):
            opened.enter_context(connect(child.address, b"GET /drpc/w"))
        took = [watched(child.address)]
        assert child.descriptors() <= files + http_limits.CONNECTIONS_MAX
        for _ in range(20):
            four = [opened.enter_context(connect(child.address, sized(7_000_000))) for _ in range(4)]
            assert all(one.recv(1) for one in four), "each is answered, and nobody reads on"
            took.append(watched(child.address))
        # A busy machine may be slow at any single moment.
        assert statistics.median(took) < 1
        # What waits is looked at below, exactly; what the threads' allocators keep does not grow with the clients.
        assert child.rss_mb() < memory + 700
        assert eventually(lambda: gets_all(child.address, 5_000_000), 60), "when those that do not read are gone"


def test_without_a_free_descriptor_nothing_burns_and_nobody_is_lost() -> None:
    child = Child(descriptors=80)
    with ExitStack() as opened:
        opened.callback(child.end)
        assert health(child.address) == 200
        child.tell("hog")
        for _ in range(40):
            opened.enter_context(connect(child.address))
        before = child.cpu_secs()
        time.sleep(1.5)
        assert child.cpu_secs() - before < 0.5, "the accept loop asks again and again"
        child.tell("free")
        assert health(child.address) == 200
        # Of 80 descriptors the connections take a quarter at most.
        assert child.descriptors() < 60


# --- limits one by one ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "sent", "limit"),
    sample(
        [
            ("a-token-of-the-tests", "", "UNKNOWN_IDLE_SECS"),
            ("a-token-of-the-tests", "Authorization: Bearer another-token-of-tests\r\n", "UNKNOWN_IDLE_SECS"),
            ("a-token-of-the-tests", "Authorization: Bearer a-token-of-the-tests\r\n", "IDLE_SECS"),
            (None, "", "IDLE_SECS"),
        ],
        ("a-token-of-the-tests", "Authorization: Bearer another-token-of-tests\r\n", "UNKNOWN_IDLE_SECS"),
        ("a-token-of-the-tests", "Authorization: Bearer a-token-of-the-tests\r\n", "IDLE_SECS"),
    ),
)
def test_a_connection_that_no_token_let_in_is_closed_sooner(
    monkeypatch: pytest.MonkeyPatch, token: str | None, sent: str, limit: str
) -> None:
    """Of an idle connection the one limit counts, or the other: each is tried where the other would be an hour."""
    for name in ("IDLE_SECS", "UNKNOWN_IDLE_SECS"):
        monkeypatch.setattr(http_limits, name, 0.2 if name == limit else 3600.0)
    server = HttpServer("127.0.0.1:0", token, Front())
    try:
        for path in ("/drpc", "/health") if limit == "UNKNOWN_IDLE_SECS" else ("/drpc",):
            with connect(server.address, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{sent}\r\n".encode()) as one:
                one.settimeout(30)
                assert read_all(one).startswith(b"HTTP/1.1 "), "it is answered, and then closed"
    finally:
        server.stop()


def test_health_and_metrics_are_answered_whatever_hangs() -> None:
    hangs, running = threading.Event(), threading.Semaphore(0)

    def slow(request: Any) -> Response:
        running.release()
        return Response(str(hangs.wait(60)))

    server = HttpServer("127.0.0.1:0", None, Front(), [metrics_route(), Route("/slow", slow)])
    try:
        with ExitStack() as opened:
            for _ in range(60):
                opened.enter_context(connect(server.address, b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            for _ in range(40):
                assert running.acquire(timeout=30), "all threads are taken"
            assert watched(server.address) < 10
    finally:
        hangs.set()
        server.stop()


def test_a_newcomer_gets_the_place_of_the_connection_that_was_used_least_lately(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_limits, "_connections_max", lambda: 4)
    with ExitStack() as opened:
        regular = opened.enter_context(connect(server.address))
        asks(regular)
        others = [opened.enter_context(connect(server.address)) for _ in range(3)]
        assert eventually(lambda: len(server.connections) == 4)
        asks(regular)  # used since
        assert health(server.address) == 200
        assert is_closed(others[0]), "the one that was idle longest"
        asks(regular)


def test_the_threads_of_functions_end_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that run a function when it stops, as soon as that returns."""
    let_go, running, before = threading.Event(), threading.Semaphore(0), set(threading.enumerate())

    class Waits(Front):
        def answer(self, function: str, args: Any, named: Any, timeout_secs: float) -> Answer:
            running.release()
            let_go.wait(60)
            return super().answer(function, args, named, timeout_secs)

    def left() -> list[str]:
        return sorted(one.name for one in set(threading.enumerate()) - before)

    monkeypatch.setattr(http_limits, "_STOP_SECS", 0.5)
    server = HttpServer("127.0.0.1:0", None, Waits())
    try:
        with ExitStack() as opened:
            for _ in range(16):
                opened.enter_context(connect(server.address, sized(1)))
            for _ in range(16):
                assert running.acquire(timeout=30), "all run at once"
            server.stop()
    finally:
        let_go.set()
        server.stop()
    assert eventually(lambda: not left()), left()


def test_a_server_that_is_stopped_at_once_gives_its_port_back() -> None:
    for _ in range(5):  # with the oldest uvicorn that is allowed it did not, about every other time
        made = HttpServer("127.0.0.1:0", None, Front())
        made.stop()
        HttpServer(made.address, None, Front()).stop()


def asks(one: socket.socket) -> None:
    one.sendall(HEALTH)
    answered = b""
    while b'"role": "leader"}\n' not in answered:
        assert (part := one.recv(1000)), "closed"
        answered += part


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b"", "HEADER_SECS"),  # a connection for nothing
        (b"GET / HT", "HEADER_SECS"),
        (b"POST /drpc/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nab", "BODY_SECS"),
        (HEALTH, "IDLE_SECS"),
        pytest.param(sized(7_000_000), "UNREAD_SECS", marks=pytest.mark.long),
    ],
)
def test_time_is_up(server: HttpServer, monkeypatch: pytest.MonkeyPatch, sent: bytes, limit: str) -> None:
    monkeypatch.setattr(http_limits, limit, 0.2)
    with connect(server.address, sent) as late, connect(server.address) as other:
        if limit == "HEADER_SECS":
            assert is_closed(late) and is_closed(other)
        else:
            assert eventually(lambda: len(server.connections) == 2)
            assert eventually(lambda: len(server.connections) == 1)
    assert health(server.address) == 200


def test_a_slow_client_that_reads_all_the_time_gets_all(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "UNREAD_SECS", 0.5)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        host, _, port = server.address.rpartition(":")
        slow.connect((host, int(port)))
        slow.sendall(sized(7_000_000))
        got = 0
        while got < 7_000_000:
            part = slow.recv(20_000)
            assert part, f"cut after {got} bytes"
            got += len(part)
            time.sleep(len(part) / 2_500_000)  # slower than the looks for those that do not read


def test_a_request_byte_by_byte_has_no_more_time_than_another(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_limits, "HEADER_SECS", 0.5)
    with connect(server.address) as slow:
        with pytest.raises(ConnectionError):
            for byte in HEALTH * 10:
                slow.sendall(bytes([byte]))
                time.sleep(0.05)


def test_what_waits_to_be_read_has_a_limit(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "HELD_BYTES_MAX", 12 << 20)
    with ExitStack() as opened:
        deaf = [opened.enter_context(connect(server.address, sized(6_000_000))) for _ in range(4)]
        assert sorted(one.recv(12) for one in deaf) == [b"HTTP/1.1 200"] * 2 + [b"HTTP/1.1 503"] * 2
        assert health(server.address) == 200
        monkeypatch.setattr(http_limits, "UNREAD_SECS", 0.2)
        assert eventually(lambda: gets_all(server.address, 6_000_000)), "those that do not read are gone"
    # One client that asks for everything at once, and reads nothing, has no more.
    with connect(server.address, sized(6_000_000) * 20) as greedy:
        with suppress(ConnectionError):
            greedy.recv(1)  # accepted, and answered
        assert eventually(lambda: not server.connections)
        assert len(read_all(greedy)) < 6 << 20
    assert health(server.address) == 200


def test_an_answer_that_is_too_large_is_told_so(server: HttpServer) -> None:
    with connect(server.address, b"GET /drpc/sized/30000000 HTTP/1.0\r\nHost: localhost\r\n\r\n") as one:
        head, _, body = read_all(one).partition(b"\r\n\r\n")
    assert b" 500 " in head
    assert "too large for HTTP" in (told := json.loads(body)["error"]) and "8388608 bytes" in told


# --- refusals -------------------------------------------------------------------------------------


def post(address: str, body: bytes, headers: bytes = b"") -> tuple[int, Any]:
    with connect(address) as one:
        head = b"POST /drpc/echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: text/plain\r\n"
        one.sendall(head + headers + b"Content-Length: %d\r\n\r\n" % len(body))
        one.sendall(body)
        answered, _, text = read_all(one).partition(b"\r\n\r\n")
        assert b"application/json" in answered
        return int(answered.split()[1]), json.loads(text)


def test_a_body_of_a_mebibyte_is_taken_and_a_larger_one_refused_in_json(server: HttpServer) -> None:
    status, answer = post(server.address, b"x" * (1 << 20))
    assert (status, answer["rows"]) == (200, [{"text": str(1 << 20)}])
    for size in ((1 << 20) + 1, 6 << 20):  # also to a client that sends all of it before it reads
        status, answer = post(server.address, b"x" * size)
        assert status == 413 and "at most 1048576 bytes" in answer["error"]


def test_headers_that_are_too_large_and_what_is_no_http_are_refused_in_json(server: HttpServer) -> None:
    status, answer = post(server.address, b"x", b"X-Much: " + b"y" * 300_000 + b"\r\n")
    assert status == 431 and "headers are too large" in answer["error"]
    with connect(server.address, b"nonsense\r\n\r\n") as one:
        head, _, body = read_all(one).partition(b"\r\n\r\n")
    assert b" 400 " in head and "Bad Request" in json.loads(body)["error"]
    assert eventually(lambda: not server.connections), "a refused client is let go"


def test_a_request_that_breaks_off_in_the_middle_of_its_answer_loses_its_connection() -> None:
    """A refusal between two pieces would be taken for a part of the answer."""

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"piece"
            await asyncio.sleep(0.01)

    async def endless(request: Any) -> Response:
        return StreamingResponse(pieces())

    made = HttpServer("127.0.0.1:0", None, Front(), [Route("/endless", endless, methods=["POST"])])
    head = b"POST /endless HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    try:
        with connect(made.address, head) as one:
            answered = b""
            while b"piece" not in answered:
                answered += one.recv(1 << 16)
            assert answered.startswith(b"HTTP/1.1 200")
            one.sendall(b"no length of a chunk\r\n")
            assert b"HTTP/1.1 400" not in read_all(one)
        assert eventually(lambda: not made.connections)
    finally:
        made.stop()


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        ("timestamp", "2024-01-01T00:00:00", "no offset"),
        ("timestamp", "0001-01-01T00:00:00", "no offset"),
        ("timestamp", "0001-01-01T00:00:00Z", "before January 2 of the year 1"),
        ("timestamp", "0001-01-01T00:00:00+14:00", "of the year 1"),
        ("timestamp", "9999-12-31T23:59:59-01:00", "after the year 9999"),
        ("timestamp_ntz", "2024-01-01T00:00:00Z", "has an offset"),
        ("map<int,int>", {"1": 1, "01": 2}, "keys are the same"),
        ("map<double,int>", {"0.0": 1, "-0.0": 2}, "keys are the same"),
        ("array<map<int,int>>", [{"1": 1, " 1": 2}], "keys are the same"),
        ("float", 1e39, "too large"),
        ("float", "-1e39", "too large"),
        ("float", 10**40, "too large"),
        ("double", "1e999", "too large"),
        ("double", 10**400, None),
        ("date", "0000-01-01", None),
        ("date", "10000-01-01", None),
    ],
)
def test_what_cannot_arrive_as_it_is_is_the_callers_mistake(kind: str, given: Any, told: str | None) -> None:
    schema = StructType([StructField("a", parse_type(kind))])
    with pytest.raises(WrongArguments) as refused:
        arguments("f", schema, [given], {})
    assert (told or "") in str(refused.value)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 1}}]', "[1e999]", "-1e400"])
def test_json_in_which_something_would_be_lost_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)
    assert read_json('{"a": [1e3, {"a": 2}]}') == {"a": [1000.0, {"a": 2}]}
