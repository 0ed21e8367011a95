"""A port of the loopback interface that is kept for one server, also while that server is away."""

from __future__ import annotations

import random
import socket
import sys

_HOST = "127.0.0.1"
_OUTGOING = "/proc/sys/net/ipv4/ip_local_port_range"
_OUTGOING_ELSEWHERE = (49152, 65535)
_CHOICE_LEAST, _TRIES = 1000, 50


class LoopbackPort:
    """A port on which a server of this machine listens, or soon listens again.

    On Linux it is reserved until :meth:`close`: a socket is bound to it that never listens. The system then gives it
    to no outgoing connection and to no process that asks for any free port, and a client is refused while the server
    is away. A server that binds with SO_REUSEADDR can listen at it; so can another process that names this port and
    has that option, which :attr:`is_free` tells. A second LoopbackPort of the same number is refused, also while
    neither of the servers listens: of two that start at once, the clients of one would find the other's. Elsewhere
    such sockets would be in the server's own way, or cannot be made.
    """

    def __init__(self, number: int = 0) -> None:
        """Args:
        number: the port; 0 chooses one. The choice is outside the range of outgoing connections, if that leaves
            enough: the port is then likely to be free whenever a server wants it back.

        Raises:
            OSError: the port given is not free, or another LoopbackPort has it.
        """
        self._holder, self._claim = _claimed(_bound(number, reuse=True)) if number else _chosen()
        self.number: int = self._holder.getsockname()[1]
        if sys.platform != "linux":
            self._holder.close()

    def close(self) -> None:
        """Ends the reservation; a server that listens goes on."""
        self._holder.close()
        self._claim.close()

    @property
    def is_free(self) -> bool:
        """Tells whether a server could listen at the port now."""
        try:
            _bound(self.number, reuse=True).close()
        except OSError:
            return False
        return True


def _bound(number: int, reuse: bool) -> socket.socket:
    made = socket.socket()
    try:
        # As the server does it: the remains of old connections do not matter then.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        made.bind((_HOST, number))
    except BaseException:
        made.close()
        raise
    return made


def _claimed(holder: socket.socket) -> tuple[socket.socket, socket.socket]:
    """The holder, and a socket that only one LoopbackPort of this number can have: its name is no file's."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":
            claim.bind(f"\0trident-port-{holder.getsockname()[1]}")
    except BaseException:
        claim.close()
        holder.close()
        raise
    return holder, claim


def _chosen() -> tuple[socket.socket, socket.socket]:
    # Without SO_REUSEADDR: two processes that choose at once must not choose the same.
    candidates = _not_outgoing()
    for number in [*random.sample(candidates, min(_TRIES, len(candidates))), 0]:
        try:
            holder, claim = _claimed(_bound(number, reuse=False))
        except OSError:
            if not number:
                raise
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return holder, claim
    raise AssertionError("the last one is returned or raised")


def _not_outgoing() -> range:
    low, high = outgoing_ports()
    above = range(high + 1, 65536)
    # Registered services have their ports far below; those just below the range are rarely any.
    return above if len(above) >= _CHOICE_LEAST else range(max(1024, low - 10 * _CHOICE_LEAST), low)


def outgoing_ports() -> tuple[int, int]:
    """The first and the last port that this machine gives to outgoing connections."""
    try:
        with open(_OUTGOING, encoding="ascii") as file:
            low, high = map(int, file.read().split())
    except (OSError, ValueError):
        return _OUTGOING_ELSEWHERE
    return low, high
