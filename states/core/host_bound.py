"""Detects things that live on one host, and so cannot serve a Spark cluster: local files, this process's memory.

On a cluster each host would have its own: a map's keys would be divided among
them by chance, without an error. So a thing says that it is bound,
by an attribute, and is refused where the master is no local one::

    class MyMap:
        bound_to_one_host = True  # or a text: what to use instead

Anything that a topology is given may say so: a backing map, the function that
makes one, a StateFactory, a static state, a spout, a bolt. ``False``, or no
such attribute: it is the same thing on every host, and its maker vouches for that.
"""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from trident.coordinators.errors import TopologyError
from trident.states.core.urls import servers_of

ATTRIBUTE = "bound_to_one_host"
SHARED_STORE = "use a store that all hosts reach, such as RedisMap or DeltaMapState"


def is_local_master(master: str | None) -> bool:
    """Tells whether the driver and all executors are one process: ``local``, ``local[4]``, not ``local-cluster[…]``."""
    return master is not None and (master == "local" or master.startswith("local["))


def is_bound(thing: Any) -> bool:
    """Tells whether the thing says that it lives on one host."""
    return bool(getattr(thing, ATTRIBUTE, False))


def check_hosts(thing: Any, what: str, master: str) -> None:
    """Raises TopologyError for a thing that lives on one host, where the master is a cluster's.

    Args:
        what: it is, for the message: "the map of state 'counts'".
    """
    if is_local_master(master) or not is_bound(thing):
        return
    says = getattr(thing, ATTRIBUTE)
    advice = says if isinstance(says, str) else SHARED_STORE
    raise TopologyError(
        f"{what} lives on one host, and Spark runs on a cluster: each host would have its own",
        found=f"{type(thing).__qualname__} with the Spark master {master}",
        expected="something that is the same on every host, or a local master: local[…]",
        action=advice,
    )


def is_this_host(url: str) -> bool:
    """Tells whether a server that a url names is the host that asks: a loopback address, or a socket file."""
    try:
        servers = servers_of(url)
    except ValueError:  # a port that is no number: its own client says so
        return False
    return urlsplit(url).scheme == "unix" or any(_is_this_host(host) for host, _ in servers)


def _is_this_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost") or host.endswith(".localhost")
