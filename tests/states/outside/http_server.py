"""A real HTTP server for tests, which takes requests of one key once, and answers as a test wants."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "Idempotency-Key"


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def key(self) -> str:
        return self.headers[KEY]

    @property
    def row(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    Attributes:
        taken: whether the server has the rows of it.
        secs: the time until it is given; endless, unless the server is closed.
        dropped: whether the connection ends in place of an answer.
    """

    status: int = 200
    headers: Mapping[str, str] | None = None
    taken: bool | None = None
    secs: float = 0.0
    dropped: bool = False
    body: bytes = b"{}"


TAKES = Answer()
Answers = Callable[[Asked], Answer]


class Server:
    """Attributes: ``asked``, all requests; ``rows``, key → body of those that it has taken."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.rows: dict[str, bytes] = {}
        self.answers: Answers = lambda asked: TAKES
        self.at_once = self.at_once_max = 0
        self._lock, self.closed = threading.Lock(), threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(), bind_and_activate=True)
        self._http.daemon_threads = True
        if context is not None:
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        at = "http://127.0.0.1" if context is None else "https://localhost"
        self.url = f"{at}:{self._http.server_address[1]}/orders"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def bodies(self) -> list[Any]:
        """The rows that it has, in the order in which they were taken."""
        return [json.loads(body) for body in self.rows.values()]

    def close(self) -> None:
        self.closed.set()
        self._http.shutdown()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with server._lock:
                    number = len(server.asked)
                    asked = Asked(number, self.command, self.path, dict(self.headers), body, time.monotonic())
                    server.asked.append(asked)
                    server.at_once += 1
                    server.at_once_max = max(server.at_once, server.at_once_max)
                try:
                    self._answer(asked, server.answers(asked))
                except OSError:  # the client is gone
                    self.close_connection = True
                finally:
                    with server._lock:
                        server.at_once -= 1

            do_PUT = do_POST

            def _answer(self, asked: Asked, answer: Answer) -> None:
                if answer.taken if answer.taken is not None else 200 <= answer.status < 300:
                    with server._lock:
                        server.rows.setdefault(asked.key, asked.body)
                server.closed.wait(answer.secs)
                if answer.dropped:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in (answer.headers or {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(context)
    try:
        yield server
    finally:
        server.close()
