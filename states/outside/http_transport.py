"""Bounds the time of a whole HTTP request, whatever arrives meanwhile: httpx bounds each read alone."""

from __future__ import annotations

import threading
import time
from typing import Any

from trident.states.core.optional_clients import client_module

_PIECE_BYTES = 65_536


class Deadline(threading.local):
    """The end of the request of this thread; it begins with the first thing that the network does for it."""

    secs = 0.0
    until: float | None = None

    def begin(self, secs: float) -> None:
        self.secs, self.until = secs, None

    def left(self, secs: float | None) -> float:
        """The seconds that a step may take; 0 or less: none."""
        now = time.monotonic()
        if self.until is None:
            self.until = now + self.secs
        left = self.until - now
        return left if secs is None else min(secs, left)


DEADLINE = Deadline()


def bound(transport: Any) -> Any:
    """Has the connections of an httpx.HTTPTransport keep the thread's DEADLINE.

    httpx hands no network backend on to httpcore, which has one for this, so that it is put into its pool.
    """
    pool = transport._pool
    pool._network_backend = _Backend(pool._network_backend)
    return transport


class _Backend:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connect_tcp(self, *args: Any, timeout: float | None = None, **more: Any) -> Any:
        return _Stream(self._inner.connect_tcp(*args, timeout=_left(timeout, "ConnectTimeout"), **more))


class _Stream:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        return self._inner.read(max_bytes, timeout=_left(timeout, "ReadTimeout"))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for at in range(0, len(buffer), _PIECE_BYTES):
            self._inner.write(buffer[at : at + _PIECE_BYTES], timeout=_left(timeout, "WriteTimeout"))

    def start_tls(self, *args: Any, timeout: float | None = None, **more: Any) -> Any:
        return _Stream(self._inner.start_tls(*args, timeout=_left(timeout, "ConnectTimeout"), **more))


def _left(timeout: float | None, error: str) -> float:
    left = DEADLINE.left(timeout)
    if left <= 0:
        raise getattr(client_module("httpcore", "an HttpState", "the HTTP client", "httpx", "http"), error)(
            "no whole answer in time"
        )
    return left
