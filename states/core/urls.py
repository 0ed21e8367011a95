"""URLs of servers: their check, and how messages show them, without the credentials that they may have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from trident.coordinators.errors import ConfigError

_SECRET = ("username", "user", "password", "sslpassword")


def check_server_url(url: Any, user: str, schemes: Collection[str], expected: str) -> None:
    """Raises ConfigError when no server can be named so.

    Args:
        user: whose url it is, for the message: "a RedisMap".
        expected: a url that can be used.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in schemes and (parts.port or 1) > 0
    except (ValueError, TypeError, AttributeError):
        usable = False
    if not usable:
        # Not even `found`: a mistyped url may have its password anywhere.
        raise ConfigError(f"the url of {user} cannot be used", expected=expected) from None


def without_credentials(url: str) -> str:
    """The url without its user, its password and its query."""
    parts = urlsplit(url)
    host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    return f"{parts.scheme}://{host}{parts.path}"


def without_secrets(text: str, url: str) -> str:
    """The text with the url's credentials, in either form, struck out."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    secrets = [parts.username, parts.password, *(value for name in _SECRET for value in query.get(name, ()))]
    for secret in sorted((secret for secret in secrets if secret), key=len, reverse=True):
        for form in {secret, unquote(secret)}:
            text = text.replace(form, "***")
    return text
