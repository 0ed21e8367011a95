"""URLs of servers: their check, and how messages show them, without the credentials that they may have."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from trident.coordinators.errors import ConfigError

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
