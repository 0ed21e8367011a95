"""Checks of the arguments of an HttpState, which show none that may hold a secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from trident.coordinators.errors import ConfigError, described
from trident.states.core.urls import check_server_url

_URL = "https://host/path"
_PROXY = "http://host:port, perhaps with user:password@ before the host"


def check_url(url: Any, user: str) -> None:
    """Raises ConfigError for a url that no request can be sent to."""
    check_server_url(url, user, ("http", "https"), expected=_URL)
    parts = urlsplit(url)
    if not parts.hostname or parts.username or parts.password or not url.isascii():
        raise ConfigError(  # not `found`: it may be the password
            f"the url of {user} cannot be used",
            expected=f"{_URL}; credentials as secrets={{'Authorization': 'Basic env:VARIABLE'}}",
        )
    if not url.isprintable() or " " in url:
        raise ConfigError(
            f"the url of {user} cannot be used", found="a space in it", expected=f"{_URL}, %20 for a space"
        )
    if "#" in url:
        raise ConfigError(
            f"the url of {user} cannot be used", found="a #fragment, which no server is sent", expected=_URL
        )


def check_proxy(proxy: Any, user: str) -> None:
    """Raises ConfigError for a proxy that cannot be used."""
    whose = f"the proxy of {user}"
    check_server_url(proxy, whose, ("http", "https"), expected=_PROXY)
    parts = urlsplit(proxy)
    whole = parts.path in ("", "/") and not parts.query and "#" not in proxy
    if not (parts.hostname and whole and proxy.isascii() and proxy.isprintable() and " " not in proxy):
        # Not `found`: it may have its password anywhere.
        raise ConfigError(f"the url of {whose} cannot be used", expected=_PROXY)


def check_kinds(state: Any, user: str) -> None:
    """Raises ConfigError for an argument of another type than the documented one."""
    for name in ("headers", "secrets"):
        given = getattr(state, name)
        if not isinstance(given, Mapping):  # its type alone: it may be a secret
            raise ConfigError(
                f"{name} of {user} cannot be used",
                found=f"a value of type {type(given).__name__}",
                expected="a dict: the name of each header with its value, or the place of its value",
            )
    accepts = state.accepts
    if isinstance(accepts, (str, bytes, Mapping)) or not _is_iterable(accepts):
        raise ConfigError(
            f"accepts of {user} cannot be used", found=described(accepts), expected="several statuses, such as (409,)"
        )
    ordered_by = state.ordered_by
    if ordered_by is not None and (isinstance(ordered_by, (bytes, Mapping)) or not _is_iterable(ordered_by)):
        raise ConfigError(
            f"ordered_by of {user} cannot be used", found=described(ordered_by), expected="a field, or several"
        )
    for name in ("ca", "certificate", "private_key"):
        given = getattr(state, name)
        if given is not None and not (isinstance(given, str) and given):
            raise ConfigError(f"{name} of {user} cannot be used", found=described(given), expected="the path of a file")


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True
