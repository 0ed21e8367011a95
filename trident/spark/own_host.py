"""The name of this machine, which Spark asks for at its start, with any master."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

_VARIABLE = "SPARK_LOCAL_IP"
_LOOPBACK = "127.0.0.1"


def own_host_problem() -> str | None:
    """Says that this machine does not know the address of its own name, and what to do; None if it knows it."""
    name = socket.gethostname()
    try:
        socket.gethostbyname(name)
    except OSError as error:
        return (
            f"this machine does not know its own name; found: {name}: {error.strerror or error}; expected: an address, "
            f"which Spark asks for at its start. Add a line to /etc/hosts ({_LOOPBACK} {name}), or set {_VARIABLE} to "
            "an address of this machine"
        )
    return None


def spare_own_host(environment: MutableMapping[str, str] = os.environ) -> None:
    """Has a JVM that is started with this environment take the loopback address where this machine's name has none.

    Small images have no line for it in /etc/hosts, and Spark would end with an UnknownHostException. Only for a JVM
    that no other machine talks to. An address that the user has set stays.
    """
    if _VARIABLE not in environment and own_host_problem():
        environment[_VARIABLE] = _LOOPBACK
