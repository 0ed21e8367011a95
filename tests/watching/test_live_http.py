"""The live page over HTTP, on the server of requests: tokens, other sites, few streams, pages that do not read."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest

from tests.servers.zk_fixtures import eventually
from tests.watching.page_stub import StubFront, StubSource
from tests.watching.test_live_feed import advanced
from trident.drpc import http as http_limits
from trident.drpc.http import HttpServer
from trident.messages.dead_letters import DeadLetter
from trident.watching.live_page import HEADER, LETTERS, STREAMS, LivePage

TOKEN = "a-token-of-the-tests"
OPEN = "/ /ui /page/page.js /page/page.css /page/plan.js /page/panels.js /page/words.js /page/feed.js".split()
CLOSED = "/events /state.json /plan.json /states.json /dead-letters.json /take-overs.json /state/a?key=b".split()


@contextmanager
def served(source: StubSource, token: str | None = None) -> Iterator[str]:
    server = HttpServer("127.0.0.1:0", token, StubFront(), LivePage(source).routes())
    try:
        yield server.address
    finally:
        source.held.set()
        source.ended.set()
        server.stop()


@pytest.fixture
def source() -> StubSource:
    return StubSource()


def ask(
    address: str, path: str, method: str = "GET", body: Any = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(address, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, named | ({} if body is None else {"Content-Type": "application/json"}))
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def letter(stream: str, txid: int, given_up_at: float) -> DeadLetter:
    at = datetime.fromtimestamp(given_up_at, timezone.utc)
    return DeadLetter(txid, stream, str(txid), "[]", 4, None, None, "no", None, None, at)


def streaming(address: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/events")
    return connection, connection.getresponse()


def test_the_shell_needs_no_token_and_all_data_does(source: StubSource) -> None:
    with served(source, TOKEN) as address:
        for path in OPEN:
            status, headers, body = ask(address, path)
            assert status == 200 and b"stub" not in body, path
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        for path in CLOSED:
            assert ask(address, path)[0] == 401, path
        assert ask(address, "/dead-letters/replay", "POST", {}, **{HEADER: "1"})[0] == 401
        status, _, body = ask(address, "/state.json", Authorization=f"Bearer {TOKEN}")
        assert status == 200 and json.loads(body)["topology"] == "stub"
        assert ask(address, "/page/../page.js")[0] in (401, 404)
        assert ask(address, "/page/__init__.py")[0] == 404


def test_the_page_has_nothing_of_other_hosts_and_nothing_inline(source: StubSource) -> None:
    with served(source) as address:
        for path in OPEN:
            text = ask(address, path)[2].decode()
            words = text.replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in words and "https://" not in words and "@import" not in words, path
            assert "innerHTML" not in text and "style=" not in text and "onclick" not in text, path


def test_a_state_is_told_from_a_number_on(source: StubSource) -> None:
    with served(source) as address:
        source.feed(advanced(1, time.time()))
        first = json.loads(ask(address, "/state.json")[2])
        assert [one["txid"] for one in first["transactions"]] == [1]
        source.feed(advanced(2, time.time()))
        more = json.loads(ask(address, f"/state.json?since={first['seq']}")[2])
        assert [one["txid"] for one in more["transactions"]] == [2]
        status, _, body = ask(address, "/state.json?since=-1")
        assert status == 400 and b"since cannot be used" in body


def test_what_a_page_has_already_is_not_sent_again(source: StubSource) -> None:
    with served(source, TOKEN) as address:
        known = {"Authorization": f"Bearer {TOKEN}"}
        for path in ("/plan.json", "/states.json", "/dead-letters.json", "/take-overs.json"):
            status, headers, body = ask(address, path, **known)
            assert (status, json.loads(body) is not None) == (200, True), path
            mark = headers["etag"]
            assert ask(address, path, If_None_Match=mark)[0] == 401, "nor is it told that it is the same"
            assert ask(address, path, If_None_Match=mark, **known)[::2] == (304, b"")
        source.found_letters = [letter("s", 1, 5.0)]
        ask(address, "/dead-letters/replay", "POST", {"stream": "s"}, **{HEADER: "1"}, **known)
        status, headers, body = ask(address, "/dead-letters.json", If_None_Match=mark, **known)
        assert (status, json.loads(body)["count"]) == (200, 1) and headers["etag"] != mark


def test_the_newest_letters_are_the_newest_of_all_batch_groups(source: StubSource) -> None:
    """Whose transactions have numbers of their own: of a group that is slow they are small."""
    source.found_letters = [letter("slow", 1, 500.0), *(letter("fast", 1000 + n, float(n)) for n in range(LETTERS))]
    with served(source) as address:
        source.refused = [{"given_up_at": "2026-01-01", "answer": "no", "body": "x" * 10**6}]
        told = json.loads(ask(address, "/dead-letters.json")[2])
        assert len(told["refused"][0]["body"]) < 20_000 and "its file has all" in told["refused"][0]["body"]
        assert (told["letters"][0]["stream"], len(told["letters"]), told["count"]) == ("slow", LETTERS, LETTERS + 1)


def test_a_stream_tells_what_happens_while_it_lasts_and_says_that_it_ends(source: StubSource) -> None:
    with served(source) as address:
        connection, response = streaming(address)
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = iter(response.readline, b"")
        assert json.loads(next(line for line in lines if line.startswith(b"data: "))[6:])["topology"] == "stub"
        source.feed(advanced(5, time.time()))
        assert any(b'"txid": 5' in line for line in lines)
        source.ended.set()
        assert b"event: ended\n" in lines
        connection.close()


def test_streams_are_few(source: StubSource) -> None:
    with served(source) as address:
        open_ = [streaming(address) for _ in range(STREAMS)]
        status, _, body = ask(address, "/events")
        assert status == 503 and b"Ask /state.json instead" in body
        assert ask(address, "/health")[0] == 200 and ask(address, "/state.json")[0] == 200
        for one in open_[0]:
            one.close()
        again: list[Any] = []

        def taken() -> bool:
            again.append(streaming(address))
            return again[-1][1].status == 200

        assert eventually(taken, 60.0), "the place of a page that has gone is free again"
        for connection, _ in open_ + again:
            connection.close()


def test_streams_that_are_asked_for_together_are_few_too(source: StubSource) -> None:
    page, let_go = LivePage(source), threading.Event()
    server = HttpServer("127.0.0.1:0", None, StubFront(), page.routes())
    host, port = server.address.split(":")
    with ExitStack() as opened:
        opened.callback(server.stop)
        opened.callback(source.ended.set)
        pages = [opened.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(3 * STREAMS)]
        assert eventually(lambda: len(server.connections) == len(pages))
        server._loop.call_soon_threadsafe(let_go.wait, 60)  # so that it finds all of them when it looks again
        for one in pages:
            one.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        let_go.set()
        assert sorted(one.recv(12) for one in pages) == [b"HTTP/1.1 200"] * STREAMS + [b"HTTP/1.1 503"] * 2 * STREAMS


def test_a_page_that_does_not_read_holds_no_memory_and_loses_its_stream(
    source: StubSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_limits, "UNREAD_SECS", 1.0)
    source.padding = "x" * 300_000
    page = LivePage(source)
    server = HttpServer("127.0.0.1:0", None, StubFront(), page.routes())
    try:
        host, port = server.address.split(":")
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect((host, int(port)))
            deaf.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert eventually(lambda: page._streams == 1, 60.0)
            most = 0
            while server.connections:
                most = max([most, *(one.transport.get_write_buffer_size() for one in server.connections)])
            assert most < 2 * len(source.padding), "what it does not read is not made again and again"
            assert eventually(lambda: page._streams == 0), "its place is free again"
    finally:
        source.ended.set()
        server.stop()


def test_a_look_that_hangs_keeps_neither_health_nor_the_other_parts(source: StubSource) -> None:
    with served(source) as address:
        source.held.clear()
        hanging = [http.client.HTTPConnection(address, timeout=60) for _ in range(6)]
        for connection in hanging:
            connection.request("GET", "/states.json")
        for path in ("/health", "/plan.json", "/state.json"):
            assert ask(address, path)[0] == 200
        status, _, body = ask(address, "/states.json")
        assert status == 503 and b"still being looked for" in body
        source.held.set()
        assert sorted(one.getresponse().status for one in hanging)[0] == 200
        for connection in hanging:
            connection.close()


def test_what_a_person_may_know_of_an_error_is_said(source: StubSource) -> None:
    with served(source) as address:
        status, _, body = ask(address, "/state/none?key=a")
        assert status == 400 and "there is no state 'none'" in json.loads(body)["error"]
        found = json.loads(ask(address, "/state/counts?key=a%20b&key=3")[2])
        assert found["key"] == ["a b", "3"] and found["value"] == {"n": 1}


def test_a_replay_is_asked_by_the_page_itself_alone(source: StubSource) -> None:
    wanted = {"stream": "lines", "messages": ["3"], "again": False}
    path = "/dead-letters/replay"
    with served(source) as address:
        assert ask(address, path, "POST", wanted)[0] == 403, "a form of another site cannot send the header"
        refused = [
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": "null"},
            {"Origin": "http://evil.example"},
            {"Origin": f"http://{address}", "Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example", "Origin": "http://evil.example"},
        ]
        for headers in refused:
            status = ask(address, path, "POST", wanted, **{HEADER: "1", **headers})[0]
            assert status in (400, 403), headers
        assert source.replayed == []
        own = {HEADER: "1", "Origin": f"http://{address}", "Sec-Fetch-Site": "same-origin"}
        for bad in ([], {"messages": "3"}, {"stream": 3}, {"messages": [3]}):
            assert ask(address, path, "POST", bad, **own)[0] == 400, bad
        status, _, body = ask(address, path, "POST", wanted, **own)
        assert status == 200 and json.loads(body)["done"] == ["lines: 1 to be tried again"]
        assert ask(address, path, "POST", wanted, **{HEADER: "1"})[0] == 200, "a program has no Origin"
        assert source.replayed == [("lines", ["3"], False)] * 2
        source.read_only = "it only reads"
        status, _, body = ask(address, path, "POST", wanted, **own)
        assert status == 403 and b"it only reads" in body
        assert len(source.replayed) == 2
