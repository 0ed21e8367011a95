"""Redis: one server as this process uses it, and a fenced backing map in it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from trident.coordinators.errors import ConfigError, EnvironmentProblem, OutcomeUnknown, TridentError
from trident.states.core.addresses import check_server_url, is_this_host, without_credentials, without_secrets
from trident.states.core.imports import client_module
from trident.states.core.names import check_flag, check_name
from trident.states.core.values import dumps, loads
from trident.states.maps.backing_maps import stale_epoch
from trident.states.maps.map_states import Key, key_text

# One Redis server as this process uses it: its client, its required settings, and texts without secrets.


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


# A fenced backing map in a Redis server: one hash per map, and its epoch beside it.
#
# Redis runs a script without anything else in between, so the script that
# compares the epoch and writes is one step: an old coordinator comes before its
# successor's first write or is refused. A large put is several such steps.
#
# Redis acknowledges writes that it has not yet made durable unless it is told
# otherwise, and a state that forgets its last transactions counts too little
# ever after. So a server is refused, where it lets itself be asked, if it would
# lose acknowledged writes or evict rows. Not seen here: a failover to a replica
# loses what had not reached it (asynchronous replication).


# A script holds up every other client of the server; 10,000 rows take some 10 ms.
_KEYS_PER_CALL = 10_000
# Lua's numbers are doubles.
_EPOCH_MAX = 2**53

# KEYS: rows, epoch. ARGV: the epoch or "", then key, value or "" (remove), … Gives -1, or the epoch that refuses.
_PUT = """
if ARGV[1] ~= '' then
  local newest = tonumber(redis.call('GET', KEYS[2]) or '0')
  if tonumber(ARGV[1]) < newest then return newest end
  if tonumber(ARGV[1]) > newest then redis.call('SET', KEYS[2], ARGV[1]) end
end
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[1], ARGV[i])
  else redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
return -1
"""
_USER = "a RedisMap"
T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class RedisMap:
    """A map in a Redis server, under the keys ``trident:{name}:rows`` and ``trident:{name}:epoch``.

    Picklable: it travels as its url; each process connects at its first use.
    Needs the client: ``pip install redis`` (the extra ``redis``).

    Args:
        url: ``redis://[user:password@]host:port/db``, ``rediss://…`` (TLS) or
            ``unix://…``; further settings of the client as its query. Neither
            user nor password appears in a message or a repr.
        name: the map's name in that database.
        durable: refuse a server that could forget an acknowledged write; False
            takes it as it is: exactly once until the server dies.

    Raises:
        TopologyError: the name cannot be used.
        ConfigError: the url cannot be used.
    """

    url: str = field(repr=False)
    name: str
    durable: bool = True
    fenced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_name("state", self.name)
        check_flag(self.durable, f"durable of the RedisMap {self.name!r}")
        check_url(self.url, _USER)

    @property
    def bound_to_one_host(self) -> "str | bool":
        """A url with a loopback address names another server on each host of a cluster."""
        return REDIS_OF_ALL if is_this_host(self.url) else False

    def __repr__(self) -> str:
        return f"RedisMap({without_credentials(self.url)!r}, {self.name!r})"

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The stored values; None where absent.

        Raises:
            EnvironmentProblem: the client is not installed.
            TridentError: the server cannot be reached, or refuses.
        """
        texts = [key_text(key) for key in keys]
        found: list[Any] = []
        for start in range(0, len(texts), _KEYS_PER_CALL):
            some = texts[start : start + _KEYS_PER_CALL]
            found += self._call("read", lambda client, some: client.hmget(self._rows, some), some)
        return [None if text is None else loads(as_text(text)) for text in found]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any], epoch: int | None = None) -> None:
        """Writes in steps of 10,000 keys, each of them atomic with its fence.

        Raises:
            StaleEpoch: a newer coordinator has written to this map; nothing more was written.
            OutcomeUnknown: the answer was lost; the write may have happened.
            EnvironmentProblem: the client is not installed, or the server could forget writes.
            TridentError: the server refuses.
        """
        if epoch is not None and not 0 <= epoch < _EPOCH_MAX:
            raise ConfigError("an epoch is impossible", found=repr(epoch), expected=f"0 … {_EPOCH_MAX - 1}")
        arguments = []
        for key, value in zip(keys, values):
            arguments += [key_text(key), "" if value is None else dumps(value)]
        step = 2 * _KEYS_PER_CALL
        for start in range(0, max(len(arguments), 1), step):
            some = ["" if epoch is None else str(epoch), *arguments[start : start + step]]
            # Sent again where the answer is lost, by the url's settings or the next try: the same rows, the same fence.
            newest = self._call("write", self._put, some)
            if newest >= 0:
                raise stale_epoch(f"the Redis map {self.name}", epoch or 0, newest)

    def items(self) -> Iterator[tuple[Key, Any]]:
        """Every (key, stored value); of rows that are written meanwhile the old or the new one."""
        rows = self._call("read", lambda client: list(client.hscan_iter(self._rows, count=1000)))
        # A scan may give a row twice.
        return ((loads(as_text(key)), loads(as_text(value))) for key, value in dict(rows).items())

    def clear(self) -> None:
        """Removes every row and forgets the epoch; only while no topology writes to it."""
        self._call("write", lambda client: client.unlink(self._rows, self._epoch))

    # The braces make both keys one slot of a Redis Cluster.
    @property
    def _rows(self) -> str:
        return f"trident:{{{self.name}}}:rows"

    @property
    def _epoch(self) -> str:
        return f"trident:{{{self.name}}}:epoch"

    def _put(self, client: Any, arguments: list[str]) -> int:
        if self.durable:
            check_durable(client, self.url, _USER, "writes", "RedisMap(…, durable=False)")
        return int(client.register_script(_PUT)(keys=[self._rows, self._epoch], args=arguments))

    def _call(self, doing: str, call: Callable[..., T], *arguments: Any) -> T:
        failure = f"the Redis map {self.name} cannot be {'read' if doing == 'read' else 'written'}"
        with redis_errors(_USER, self.url, failure, TridentError, outcome_open=doing == "write"):
            return call(client_of(self.url, _USER, f"the Redis map {self.name}"), *arguments)
