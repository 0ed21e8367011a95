"""Addresses of servers: checked, shown without credentials, and those that only one host can reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from trident.coordinators.errors import ConfigError, TopologyError

# URLs of servers: their check, and how messages show them, without the credentials that they may have.


_SECRET = ("username", "user", "password", "sslpassword")


def check_server_url(url: Any, user: str, schemes: Collection[str], expected: str, several: bool = False) -> None:
    """Raises ConfigError when no server can be named so.

    Args:
        user: whose url it is, for the message: "a RedisMap".
        expected: a url that can be used.
        several: the client takes a list of servers of which it asks one, with commas between.
    """
    try:
        parts, ports = urlsplit(url), [port for _, port in servers_of(url)]
        usable = parts.scheme in schemes and all((port or 1) > 0 for port in ports)
        # A second @, or one behind the first /, is of a password, and shown as a host or a path. Pages may have one.
        in_path = "@" in parts.path and parts.scheme not in ("http", "https")
        usable = usable and parts.netloc.count("@") <= 1 and not in_path
        usable = usable and (several or len(ports) == 1)
    except (ValueError, TypeError, AttributeError):
        usable = False
    if not usable:
        # Not even `found`: a mistyped url may have its password anywhere.
        raise ConfigError(f"the url of {user} cannot be used", expected=expected) from None


def servers_of(url: str) -> list[tuple[str, int | None]]:
    """Host and port of each server that a url names; ("", None): none, so its client has one of its own.

    Raises:
        ValueError: a port is no number.
    """
    parts = [urlsplit(f"//{server}") for server in urlsplit(url).netloc.rpartition("@")[2].split(",")]
    return [(part.hostname or "", part.port) for part in parts]


def authority(servers: Iterable[tuple[str, int | None]]) -> str:
    """Servers as a url has them: "host:port,host:port"."""
    texts = [(f"[{host}]" if ":" in host else host, port) for host, port in servers]
    return ",".join(f"{host}:{port}" if port else host for host, port in texts)


def without_credentials(url: str) -> str:
    """The url without its user, its password and its query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{authority(servers_of(url))}{parts.path}"


def without_secrets(text: str, url: str) -> str:
    """The text with the url's credentials, in either form, struck out."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    secrets = [parts.username, parts.password, *(value for name in _SECRET for value in query.get(name, ()))]
    for secret in sorted((secret for secret in secrets if secret), key=len, reverse=True):
        for form in {secret, unquote(secret)}:
            text = text.replace(form, "***")
    return text


# Detects things that live on one host, and so cannot serve a Spark cluster: local files, this process's memory.
#
# On a cluster each host would have its own: a map's keys would be divided among
# them by chance, without an error. So a thing says that it is bound,
# by an attribute, and is refused where the master is no local one::
#
#     class MyMap:
#         bound_to_one_host = True  # or a text: what to use instead
#
# Anything that a topology is given may say so: a backing map, the function that
# makes one, a StateFactory, a static state, a spout, a bolt. ``False``, or no
# such attribute: it is the same thing on every host, and its maker vouches for that.


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
