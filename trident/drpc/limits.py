"""Limits the cost of connections to the HTTP server: waitress' server and channel, with limits of their own.

A client needs no token to connect, so connections alone must not shut others
out, nor take the memory and the file descriptors of the process that coordinates
the transactions:

- When all places are taken, a newcomer gets that of a connection which runs no
  request: of the address that has the most of them, the one that has been idle
  longest. So ``/health`` is answered however many idle connections there are.
- A request must be complete some seconds after its first byte (and a new
  connection has as long for its first), an answer must be read, and a
  connection that is kept open must be used again: soon where its client has
  not been let in.
- Requests and answers that wait in memory have a common limit: where it is
  reached, the address that holds most loses the connection that moved least.
- ``/health`` and ``/metrics`` have threads of their own.
- Without a free file descriptor nothing is accepted for a moment, instead of
  asking the system again without end.

A request that runs is never closed for any of this. One whose answer goes on
(a stream of events) asks ``environ["trident.held_bytes"]`` before it sends more,
and ends by itself where its client does not read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import resource
import socket
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from waitress.adjustments import Adjustments
from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask

log = logging.getLogger("trident.http")
# Callers keep their connections open, so there are many more than requests.
CONNECTIONS_MAX = 256
# The other descriptors of the process are Spark's, ZooKeeper's and the warehouse's.
_PART_OF_DESCRIPTORS = 4
HELD_BYTES_MAX = 64 << 20
HEADER_SECS = 10.0
BODY_SECS = 30.0
UNREAD_SECS = 10.0
# Longer than the 60 s that many load balancers keep one for: a connection that is closed while they send is an error.
IDLE_SECS = 75.0
# One whose last request was not let in by a token (``/health`` asks for none): nothing that it does is worth a place.
UNKNOWN_IDLE_SECS = 10.0
# In a request's environment: set to True where its client was let in.
LET_IN = "trident.let_in"
# Those who watch are answered by threads of their own, however many requests of other kinds run or hang.
RESERVED = ("/health", "/metrics")
_RESERVED_THREADS = 2
# In the environment of a request: a function that tells the bytes of its answer that are not sent yet.
HELD_BYTES = "trident.held_bytes"
# How long what a refused client still sends is read away: closed at once, its answer would be lost (RFC 9112 9.6).
_DRAIN_SECS = 2.0
_DRAIN_BYTES = 1 << 16
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_AGAIN_SECS = 0.5
_WARN_SECS = 60.0
_IN_MEMORY = 1 << 40


class _Task(WSGITask):
    """A request, which tells its connection whether its client was let in, and can ask how much of its answer waits."""

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ[HELD_BYTES] = lambda: int(self.channel.total_outbufs_len)
        return environ

    def execute(self) -> None:
        super().execute()
        self.channel.is_known = bool(self.environ and self.environ.get(LET_IN))


class _JsonErrorTask(ErrorTask):
    """Refusals of waitress' own, in the form of every other refusal."""

    def execute(self) -> None:
        error = self.request.error
        text = f"{error.reason}; found: {error.body}"
        if error.code == 413:
            limit = self.channel.adj.max_request_body_size - 1
            text = f"the body is too large; expected: at most {limit} bytes, with its framing if it is sent in chunks"
        elif error.code == 431:
            text = f"the headers are too large; expected: less than {self.channel.adj.max_request_header_size} bytes"
        body = json.dumps({"error": text}).encode() + b"\n"
        self.status = f"{error.code} {error.reason}"
        self.response_headers += [("Content-Type", "application/json; charset=utf-8"), ("Cache-Control", "no-store")]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.channel.drains = True
        self.write(body)


class _Channel(HTTPChannel):
    """A connection that knows since when it keeps a client waiting."""

    task_class = _Task
    error_task_class = _JsonErrorTask
    is_known = False
    close_when_flushed: bool  # the class above has it, without a type
    drains = False
    _drains_until: float | None = None

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        # Since when a request is incomplete; None between two requests.
        self._began: float | None = self.creation_time
        self._in_kernel, self._read_at = 0, self.creation_time

    @property
    def held_bytes(self) -> int:
        """Of a request that is incomplete or waits, and of answers that are not sent."""
        request = self.request
        waiting = 0 if request is None else len(request.header_plus) + request.body_bytes_received
        return waiting + sum(one.body_bytes_received for one in list(self.requests)) + self.total_outbufs_len

    def is_over(self, now: float) -> bool:
        """Tells whether its time is up."""
        if self.requests:
            return False
        if self._drains_until is not None:
            return now > self._drains_until
        if self.total_outbufs_len:
            return now > max(self.last_activity, self._last_read(now)) + UNREAD_SECS
        if self._began is None:
            return now > self.last_activity + (IDLE_SECS if self.is_known else UNKNOWN_IDLE_SECS)
        request = self.request
        in_body = request is not None and request.headers_finished
        return now > self._began + (BODY_SECS if in_body else HEADER_SECS)

    def _last_read(self, now: float) -> float:
        """When the client was last seen to have read anything.

        A socket takes more only when a third of what it holds is gone: a slow client may read for long before.
        """
        try:
            found = fcntl.ioctl(self._fileno, termios.TIOCOUTQ, b"\0" * 4)
        except OSError:  # closed, or a system that does not tell
            return self._read_at
        waiting = int.from_bytes(found, sys.byteorder)
        if waiting != self._in_kernel:
            self._in_kernel, self._read_at = waiting, now
        return self._read_at

    def received(self, data: bytes) -> bool:
        taken = super().received(data)
        # A client that begins the next request at once has its time from here.
        self._began = None if self.request is None else self._began or time.time()
        self.server.bound_held()
        return taken

    def write_soon(self, data: Any) -> int:
        if self.will_close:
            raise ClientDisconnected
        written = super().write_soon(data)
        self.server.bound_held()
        return written

    # --- a refused request, whose client may still send ---------------------------------------------

    def readable(self) -> bool:
        return not self.will_close if self._drains_until is not None else bool(super().readable())

    def writable(self) -> bool:
        if self._fileno is None:
            return False  # closed in this look; its number may be that of the next connection
        return self.will_close if self._drains_until is not None else bool(super().writable())

    def handle_read(self) -> None:
        if self._drains_until is None:
            super().handle_read()
            return
        try:
            self.recv(_DRAIN_BYTES)  # closes this channel at the end of what was sent
        except OSError:
            self.handle_close()

    def handle_write(self) -> None:
        if not (self.drains and self.close_when_flushed) or self.will_close:
            super().handle_write()
            return
        self._flush_exception(self._flush_some)
        if self._fileno is None:
            return  # its client has gone
        if self.will_close:
            self.handle_close()
        elif not self.total_outbufs_len and self.connected:
            self.close_when_flushed = False
            self._drains_until = time.time() + _DRAIN_SECS
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.handle_close()


class BoundedServer(TcpWSGIServer):
    """A server on a socket that listens already."""

    channel_class = _Channel
    next_channel_cleanup: float

    def __init__(
        self,
        application: Callable[..., Any],
        listener: socket.socket,
        map: dict[int, Any],
        threads: int,
        body_bytes_max: int,
    ) -> None:
        adjustments = Adjustments(
            sockets=[listener],
            threads=threads,
            ident=None,
            clear_untrusted_proxy_headers=True,
            cleanup_interval=1,
            # It refuses a body that has as many bytes as this.
            max_request_body_size=body_bytes_max + 1,
            # Counted here: an answer never waits in a thread, and nothing becomes a file, which needs a descriptor.
            connection_limit=_IN_MEMORY,
            outbuf_high_watermark=_IN_MEMORY,
            outbuf_overflow=_IN_MEMORY,
            inbuf_overflow=_IN_MEMORY,
            log_socket_errors=False,
        )
        self.connections_max = _connections_max()
        self._accept_again_at = self._warn_again_at = 0.0
        dispatcher = ThreadedTaskDispatcher()
        dispatcher.set_thread_count(threads)
        self._reserve = ThreadedTaskDispatcher()
        self._reserve.set_thread_count(_RESERVED_THREADS)
        info = (listener.family, listener.type, listener.proto, listener.getsockname())
        super().__init__(
            application, map, True, listener, dispatcher=dispatcher, adj=adjustments, bind_socket=False, sockinfo=info
        )

    def add_task(self, task: _Channel) -> None:
        requests = task.requests
        # One that is refused before its first line is read has no path.
        reserved = bool(requests) and getattr(requests[0], "path", "") in RESERVED
        (self._reserve if reserved else self.task_dispatcher).add_task(task)

    def end_tasks(self, timeout_secs: float) -> None:
        """Waits so long for requests that run; those that have not begun are dropped."""
        self._reserve.shutdown(timeout=timeout_secs)
        self.task_dispatcher.shutdown(timeout=timeout_secs)

    def readable(self) -> bool:
        now = time.time()
        if now >= self.next_channel_cleanup:
            self.next_channel_cleanup = now + self.adj.cleanup_interval
            self.maintenance(now)
        for channel in list(self.active_channels.values()):
            # Not when its socket can be written to, as waitress would: that of a client that does not read never can.
            if channel.will_close:
                channel.handle_close()
        # A clock that was set back must not close the door.
        return bool(self.accepting and not now < self._accept_again_at <= now + _ACCEPT_AGAIN_SECS)

    def maintenance(self, now: float) -> None:
        for channel in list(self.active_channels.values()):
            if channel.is_over(now):
                channel.will_close = True

    def handle_accept(self) -> None:
        if len(self.active_channels) >= self.connections_max:
            # It is closed before the next look at this socket; a client that waits there is accepted then.
            if not self._evict():
                self._wait_a_moment()
            return
        try:
            accepted = self.accept()
            if accepted is None:
                return
            connection, address = accepted
        except OSError as problem:
            if problem.errno in _NO_DESCRIPTOR:
                self._warn(f"cannot accept a connection, trying again in {_ACCEPT_AGAIN_SECS:g} s: {problem}")
                self._evict()
                self._wait_a_moment()
            return
        try:
            self.set_socket_options(connection)
        except OSError:  # it has gone already
            connection.close()
            return
        self.channel_class(self, connection, self.fix_addr(address), self.adj, map=self._map)

    def bound_held(self) -> None:
        """Closes connections until what waits in memory is within its limit. From any thread."""
        held = [(one, one.held_bytes) for one in list(self.active_channels.values()) if not one.will_close]
        total = sum(size for _, size in held)
        while total > HELD_BYTES_MAX:
            by_address: Counter[Any] = Counter()
            for one, size in held:
                by_address[one.addr[0]] += size
            most = max(size for one, size in held if by_address[one.addr[0]] == max(by_address.values()))
            # Of those that hold about as much the one that moved least.
            victim = min((pair for pair in held if pair[1] * 2 >= most), key=lambda pair: pair[0].last_activity)
            held.remove(victim)
            total -= victim[1]
            self._warn(f"{HELD_BYTES_MAX >> 20} MiB wait to be read: a connection of {victim[0].addr[0]} is closed")
            victim[0].will_close = True
            self.pull_trigger()

    def _evict(self) -> bool:
        """Gives the place of a connection that runs nothing away; tells whether one is, or is about to be, free."""
        channels = list(self.active_channels.values())
        if any(one.will_close for one in channels):
            return True
        victim = _least_wanted([one for one in channels if not one.requests])
        if victim is None:
            return False
        self._warn(f"all {self.connections_max} connections are in use: idle ones are closed for new ones")
        victim.will_close = True
        return True

    def _wait_a_moment(self) -> None:
        self._accept_again_at = time.time() + _ACCEPT_AGAIN_SECS

    def _warn(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._warn_again_at:  # no client fills the log by connecting
            self._warn_again_at = now + _WARN_SECS
            log.warning("%s", text)


def _least_wanted(idle: Sequence[_Channel]) -> _Channel | None:
    by_address = Counter(one.addr[0] for one in idle)
    most = max(by_address.values(), default=0)
    crowd = [one for one in idle if by_address[one.addr[0]] == most]
    return min(crowd, key=lambda one: one.last_activity, default=None)


def _connections_max() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(4, min(CONNECTIONS_MAX, descriptors // _PART_OF_DESCRIPTORS))
