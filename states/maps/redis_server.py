"""One Redis server as this process uses it: its client, its required settings, and texts without secrets."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trident.coordinators.errors import ConfigError, EnvironmentProblem, OutcomeUnknown, TridentError
from trident.states.core.optional_clients import client_module
from trident.states.core.urls import check_server_url, without_credentials, without_secrets

CONNECT_TIMEOUT_SECS = 10.0
ANSWER_TIMEOUT_SECS = 30.0
SCHEMES = ("redis", "rediss", "unix")
# The advice for a url that each host takes for a server of its own.
REDIS_OF_ALL = "write the name or the address that every host knows the Redis server by"
# The settings that a server must have, so that it never loses what it acknowledged.
_DURABLE: dict[str, Callable[[str], bool]] = {
    "appendonly": lambda value: value == "yes",
    "appendfsync": lambda value: value == "always",
    "maxmemory-policy": lambda value: not value.startswith("allkeys"),
}
_clients: dict[tuple[int, str, bool], Any] = {}
_durable: set[tuple[int, str]] = set()
_lock = threading.Lock()


def check_url(url: Any, user: str) -> None:
    """Raises ConfigError when no Redis server can be named so."""
    check_server_url(url, user, SCHEMES, expected=f"{SCHEMES[0]}://host:port/db")


def redis_module(user: str, name: str = "redis") -> Any:
    """The client package, or a module of it.

    Args:
        user: who needs it, for the message: "a RedisMap".
    """
    return client_module(name, user, "the Redis client", "redis", "redis")


def client_of(url: str, user: str, what: str, retries: bool = True) -> Any:
    """This process's client of that server: a pool of connections, safe for threads.

    Args:
        user: as of :func:`redis_module`.
        what: whose url it is, for the message: "the Redis map m".
        retries: False: a command is sent once, whatever the url says.
    """
    at = (os.getpid(), url, retries)
    redis = redis_module(user)
    with _lock:
        if at not in _clients:
            once = (
                {}
                if retries
                else {
                    "retry": redis_module(user, "redis.retry").Retry(redis_module(user, "redis.backoff").NoBackoff(), 0)
                }
            )
            try:
                client = redis.Redis.from_url(
                    url, socket_connect_timeout=CONNECT_TIMEOUT_SECS, socket_timeout=ANSWER_TIMEOUT_SECS, **once
                )
                # Made and not connected: this is where the client looks at the settings.
                client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
                _clients[at] = client
            except (ValueError, TypeError):
                raise ConfigError(
                    f"the url of {what} has a setting that the client does not take",
                    expected="a query of settings of redis.Redis.from_url",
                ) from None
        return _clients[at]


def check_durable(client: Any, url: str, user: str, kept: str, parameter: str) -> None:
    """Once per process and server: does it keep what it acknowledges?

    Args:
        kept: what it could forget, for the message.
        parameter: how its user takes the risk.
    """
    at = (os.getpid(), url)
    if at in _durable:
        return
    redis = redis_module(user)
    try:
        found = {setting: client.config_get(setting).get(setting) for setting in _DURABLE}
    except redis.ResponseError:
        # Hosted servers forbid CONFIG: their promises are between them and the user.
        found = {}
    wrong = {setting: value for setting, value in found.items() if value and not _DURABLE[setting](as_text(value))}
    if wrong:
        raise EnvironmentProblem(
            f"the Redis server could forget {kept} that it has acknowledged",
            found=", ".join(f"{setting} {as_text(value)}" for setting, value in wrong.items()),
            expected="appendonly yes, appendfsync always, maxmemory-policy noeviction",
            action=f"set these in redis.conf, or take the risk with {parameter}",
        )
    _durable.add(at)


@contextmanager
def redis_errors(
    user: str, url: str, failure: str, kind: type[TridentError], outcome_open: bool = False
) -> Iterator[None]:
    """Raises the client's errors as the framework's own.

    Args:
        user: as of :func:`redis_module`.
        failure: for the message: "the Redis map m cannot be read".
        kind: of the error.
        outcome_open: where the connection was lost, it is not known whether the call was carried out.
    """
    redis = redis_module(user)
    try:
        yield
    except redis.RedisError as problem:
        lost = isinstance(problem, (redis.ConnectionError, redis.TimeoutError))
        refused = isinstance(problem, redis.AuthenticationError)  # a ConnectionError to this client
        # Without its cause, which may quote the url.
        raise (OutcomeUnknown if outcome_open and lost and not refused else kind)(
            failure,
            found=without_secrets(f"{type(problem).__name__}: {problem}", url),
            expected=f"a Redis server that answers at {without_credentials(url)}",
        ) from None


def as_text(value: Any) -> str:
    """An ASCII answer, whether the client gives bytes or text."""
    return value.decode("ascii") if isinstance(value, bytes) else value
