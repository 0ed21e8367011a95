"""Listens for requests over HTTP: uvicorn, in a thread with a loop of its own. ``trident.drpc.application`` answers.

A client needs no token to connect, so connections alone must not take the places, the memory and the file descriptors
of the process that coordinates the transactions:

- When all places are taken, a new connection gets that of the one that was used least recently and runs no request. So
  ``/health`` is answered however many idle connections there are.
- A client that keeps the server waiting loses its connection: its request must be complete some seconds after the
  first byte, its answer must be read, and a connection that is kept open must be used again.
- Without a free file descriptor nothing is accepted for a moment.

A request that runs is never closed for any of this.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import math
import resource
import socket
import sys
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import h11
from starlette.routing import Route
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import Server

from trident.config_kinds import is_loopback, listen_address
from trident.coordinators.errors import ConfigError, TridentError
from trident.drpc.application import HEADER_BYTES_MAX, HEADERS_TOO_LARGE, LET_IN, Answers, Application

log = logging.getLogger("trident.http")
_THREAD = "trident-http"
# The application logs what fails; requests that are none are not logged. Servers of the user's own log as ever.
logging.getLogger("uvicorn.error").addFilter(lambda record: record.threadName != _THREAD)
# Callers keep their connections open, so there are many more than requests.
CONNECTIONS_MAX = 256
# The other descriptors of the process are Spark's, ZooKeeper's and the warehouse's.
_PART_OF_DESCRIPTORS = 4
HEADER_SECS = 10.0
BODY_SECS = 30.0
UNREAD_SECS = 10.0
# Longer than the 60 s that many load balancers keep one for: a connection that is closed while they send is an error.
IDLE_SECS = 75.0
# One whose last request was not let in by a token (``/health`` asks for none): nothing that it does is worth a place.
UNKNOWN_IDLE_SECS = 10.0
# How long what a refused client still sends is read away: closed at once, its answer would be lost (RFC 9112 9.6).
_DRAIN_SECS = 2.0
# The kernel takes so much of an answer that is not read; with more, a client that reads slowly would seem not to read.
_KERNEL_BYTES = 1 << 18
_STOP_SECS = 2.0
_WARN_SECS = 60.0


class HttpServer:
    """Listens from its making on; answers in threads of its own.

    Args:
        routes: further paths.

    Raises:
        ConfigError: the address cannot be listened at, or other machines can
            reach it and there is no token.
        AddressInUse: another process listens there.
    """

    def __init__(self, address: str, token: str | None, front: Answers, routes: Sequence[Route] = ()) -> None:
        listener = listen(address)
        host, port = listener.getsockname()[:2]
        if not token and not is_loopback(host):
            # "localhost" is whatever this machine's resolver says.
            listener.close()
            raise ConfigError(
                f"http={address} would answer other machines, and anybody there, without http_token",
                found=host,
                expected="a loopback address such as 127.0.0.1, or http_token as well",
            )
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._application = Application(token, front, routes)
        self._server = Server(
            Config(
                self._application,
                interface="asgi3",
                http=_Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                headers=[("Cache-Control", "no-store")],
                backlog=128,
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
                timeout_keep_alive=math.ceil(IDLE_SECS),
                callback_notify=self._close_late_ones,
                timeout_notify=0,  # once a second
            )
        )
        self._warn_again_at = 0.0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listener)), name=_THREAD, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sends what is answered, then closes; requests that still run are not waited for."""
        self._server.should_exit = True
        self._thread.join(_STOP_SECS)
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._drop)
            self._thread.join(_STOP_SECS)
        self._application.close()

    @property
    def connections(self) -> list[_Connection]:
        """Those that are open."""
        found: list[Any] = list(self._server.server_state.connections)
        return [one for one in found if not one.transport.is_closing()]

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._warn)
        with listener:  # uvicorn closes it, too, unless it is stopped before it has begun
            await self._server.serve([listener])

    def _drop(self) -> None:
        self._server.force_exit = True
        for one in self.connections:
            one.transport.abort()

    async def _close_late_ones(self) -> None:
        for one in self.connections:
            one.close_if_late()

    def _warn(self, loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        """Logs a problem of the loop: above all, that no descriptor was free to accept a connection."""
        now = time.monotonic()
        if now >= self._warn_again_at:  # no client fills the log by connecting
            self._warn_again_at = now + _WARN_SECS
            log.warning("%s: %s", about["message"], about.get("exception"))


class _Connection(H11Protocol):
    """uvicorn's connection, which knows for what it waits, and gives its place away."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.access_log = False
        self.used_at = self._waits_since = self.loop.time()
        self._waits: object = None
        self._is_refused = False
        super().connection_made(transport)
        found: Any = self.connections
        there = [one for one in found if not one.transport.is_closing()]
        if len(there) > _connections_max():
            min((one for one in there if not one.runs), key=lambda one: one.used_at).transport.abort()

    def data_received(self, data: bytes) -> None:
        self.used_at = self.loop.time()
        if not self._is_refused:
            super().data_received(data)

    @property
    def runs(self) -> bool:
        """Tells whether a request that is complete has no answer yet."""
        return self.cycle is not None and not self.cycle.response_complete and self.conn.their_state != h11.SEND_BODY

    def close_if_late(self) -> None:
        """Closes it where it has waited too long for its client."""
        secs, waits = self._waiting()
        if waits != self._waits:
            self._waits, self._waits_since = waits, self.loop.time()
        elif self.loop.time() > self._waits_since + secs:
            self.transport.abort()

    def _waiting(self) -> tuple[float, object]:
        """How long it may wait for its client now, and what is another one once the client has moved."""
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            return UNREAD_SECS, unsent
        if self._is_refused:
            return _DRAIN_SECS, "refused"
        if self.runs:
            return math.inf, None
        if self.conn.their_state == h11.SEND_BODY:
            return BODY_SECS, self.cycle
        if self.cycle is None or self.conn.trailing_data[0]:
            return HEADER_SECS, ("header", self.cycle)
        return IDLE_SECS if self.scope.get(LET_IN) else UNKNOWN_IDLE_SECS, ("idle", self.cycle)

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP, in the form of every other refusal."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()
            return
        problem = sys.exc_info()[1]
        status = HTTPStatus(getattr(problem, "error_status_hint", 400))
        text = f"{status.phrase}; found: {problem or msg}"
        if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            text = HEADERS_TOO_LARGE
        body = json.dumps({"error": text}).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        self._is_refused = True
        self.transport.write(head.encode() + body)
        self.transport.write_eof()

    def eof_received(self) -> None:
        if self._is_refused:
            self.transport.close()


class AddressInUse(TridentError):
    """Another process listens at the address: this machine's leader, perhaps."""


def listen(address: str) -> socket.socket:
    """A socket that listens; raises as :class:`HttpServer`."""
    host, port = listen_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)  # of TCP by name, the loop lets no answer wait for more of it
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        try:
            listener.bind(place)
            # Two may bind with that option; only one may listen.
            listener.listen(1024)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError) as problem:
        if getattr(problem, "errno", None) == errno.EADDRINUSE:
            raise AddressInUse(f"http={address}: another process listens there") from problem
        raise ConfigError(
            f"http={address} cannot be listened at", found=str(problem), expected="an address of this machine"
        ) from problem
    return listener


def _connections_max() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(4, min(CONNECTIONS_MAX, descriptors // _PART_OF_DESCRIPTORS))
