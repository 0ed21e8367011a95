"""Listens for requests to DRPC streams over HTTP; ``trident.drpc.application`` answers them."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Sequence
from typing import Any

from waitress import wasyncore

from trident.config_kinds import is_loopback, listen_address
from trident.coordinators.errors import ConfigError, TridentError
from trident.drpc.application import Answers, Application, Route
from trident.drpc.limits import BoundedServer
from trident.drpc.requests import _AT_ONCE

# The threads that requests leave answer the calls that run no function.
_THREADS = _AT_ONCE + 4
_BODY_BYTES_MAX = 1 << 20
_STOP_SECS = 2.0


class HttpServer:
    """Listens from its making on; answers in threads of its own.

    Args:
        routes: further paths; see :class:`trident.drpc.application.Route`.

    Raises:
        ConfigError: the address cannot be listened at, or other machines can
            reach it and there is no token.
        AddressInUse: another process listens there.
    """

    def __init__(self, address: str, token: str | None, front: Answers, routes: Sequence[Route] = ()) -> None:
        self._listener = listen(address)
        host, port = self._listener.getsockname()[:2]
        if not token and not is_loopback(host):
            # "localhost" is whatever this machine's resolver says.
            self._listener.close()
            raise ConfigError(
                f"http={address} would answer other machines, and anybody there, without http_token",
                found=host,
                expected="a loopback address such as 127.0.0.1, or http_token as well",
            )
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._map: dict[int, Any] = {}
        threads = _THREADS + sum(route.threads for route in routes)
        self._server = BoundedServer(
            Application(token, front, routes), self._listener, self._map, threads, _BODY_BYTES_MAX
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="trident-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sends what is answered, then closes; requests that still run are not waited for."""
        self._server.end_tasks(_STOP_SECS)
        self._stopped.set()
        self._server.pull_trigger()
        self._thread.join(_STOP_SECS)

    def _serve(self) -> None:
        try:
            while not self._stopped.is_set():
                # select() cannot take file descriptors over 1,023, and this process may have as many.
                wasyncore.loop(timeout=1.0, use_poll=True, map=self._map, count=1)
            for _ in range(10):  # what has been answered is on its way
                wasyncore.loop(timeout=0.01, use_poll=True, map=self._map, count=1)
        finally:
            wasyncore.close_all(self._map, ignore_all=True)


class AddressInUse(TridentError):
    """Another process listens at the address: this machine's leader, perhaps."""


def listen(address: str) -> socket.socket:
    """A socket that listens; raises as :class:`HttpServer`."""
    host, port = listen_address(address)
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
