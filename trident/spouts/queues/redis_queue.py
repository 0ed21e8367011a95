"""A reliable queue over a Redis list, which outlives the processes that use it, and the spout that takes from it."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from trident.coordinators.errors import ConfigError, SourceError, TopologyError
from trident.spouts import contracts as spout_arguments
from trident.spouts.contracts import Backlog
from trident.spouts.rich import RichSpout
from trident.states.core.addresses import is_this_host, without_credentials
from trident.states.maps.redis_store import REDIS_OF_ALL, check_durable, check_url, client_of, redis_errors

# A reliable queue over a Redis list: messages that outlive the processes that put and take them.
#
# Producers LPUSH to one list. A message that is taken leaves the list and stays
# in the server under its id, with the time at which it comes again, until it is
# acknowledged. This is Redis' reliable queue pattern (redis.io/docs, LMOVE), but
# each move is a script, which Redis runs without anything in between and whole
# or not at all, and a message is known by its id: a processing list, whose
# elements are found by their text (LREM), cannot tell two equal ones apart.
#
# Keys of the queue ``orders``, all of one slot of a Redis Cluster::
#
#     orders            list     what was never taken; producers push on its left
#     {orders}:taken    hash     id -> the text of a message that was taken and is not acknowledged
#     {orders}:due      sorted   id -> when it may be handed out again, in microseconds of the server's clock
#     {orders}:owners   hash     id -> process/consumer that has it; not of one that failed
#     {orders}:takes    hash     id -> how often it was taken


REDELIVER_AFTER_SECS = 120.0
# Lua's `unpack` takes some 8,000 arguments.
_IDS_PER_CALL = 1_000
_MICROSECONDS = 1_000_000
_USER = "a Redis queue"
T = TypeVar("T")

# KEYS of all scripts: the list, taken, due, owners, takes.
# Every key is touched before anything is moved: one that holds something else stops the script here. Removals,
# though of nothing: a server that is full lets a script go on whose first write is one, so that it can be emptied.
_BEGIN = """
redis.call('LLEN', KEYS[1])
redis.call('HDEL', KEYS[2], '') redis.call('ZREM', KEYS[3], '')
redis.call('HDEL', KEYS[4], '') redis.call('HDEL', KEYS[5], '')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function micros(number) return string.format('%.0f', number) end
"""
# ARGV: owner, microseconds until they come again, how many, a text that makes new ids. Gives id, text, takes of each.
_TAKE = (
    _BEGIN
    + """
local most, given = tonumber(ARGV[3]), {}
local function give(id, text)
  -- one microsecond apart: they come again in this order
  redis.call('ZADD', KEYS[3], micros(now + ARGV[2] + #given), id)
  redis.call('HSET', KEYS[4], id, ARGV[1])
  given[#given + 1] = {id, text, redis.call('HINCRBY', KEYS[5], id, 1)}
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', micros(now), 'LIMIT', 0, most)) do
  give(id, redis.call('HGET', KEYS[2], id))
end
while #given < most do
  local text = redis.call('LINDEX', KEYS[1], -1)
  if not text then break end
  local id
  local read, found = pcall(cjson.decode, text)
  if read and type(found) == 'table' and type(found.id) == 'string' and found.id ~= '' and found.value ~= nil then
    local members = 0
    for _ in pairs(found) do members = members + 1 end
    if members == 2 then id = found.id end
  end
  -- an id that another message has now would make one of the two
  if not id or redis.call('HEXISTS', KEYS[2], id) == 1 then id = ARGV[4] .. '-' .. #given end
  redis.call('HSET', KEYS[2], id, text)
  give(id, text)
  redis.call('RPOP', KEYS[1])
end
return given
"""
)
# ARGV: ids.
_ACKNOWLEDGE = """
redis.call('ZREM', KEYS[3], unpack(ARGV))
for key = 2, 5 do if key ~= 3 then redis.call('HDEL', KEYS[key], unpack(ARGV)) end end
"""
# ARGV: owner, microseconds until it comes again, id.
_GIVE_BACK = (
    _BEGIN
    + """
if redis.call('HGET', KEYS[4], ARGV[3]) == ARGV[1] then
  redis.call('ZADD', KEYS[3], micros(now + ARGV[2]), ARGV[3])
  redis.call('HDEL', KEYS[4], ARGV[3])
end
"""
)
# ARGV: consumer, process or "" (all of its processes), ids that are kept. An owner is 32 digits, a slash, the consumer.
_RELEASE = (
    _BEGIN
    + """
local keep, released = {}, 0
for i = 3, #ARGV do keep[ARGV[i]] = true end
local owners = redis.call('HGETALL', KEYS[4])
for i = 1, #owners, 2 do
  local id, owner = owners[i], owners[i + 1]
  local process, consumer = string.sub(owner, 1, 32), string.sub(owner, 34)
  if consumer == ARGV[1] and (ARGV[2] == '' or process == ARGV[2]) and not keep[id] then
    -- thirty years ago: before all else, in the order in which they were taken
    redis.call('ZINCRBY', KEYS[3], '-1000000000000000', id)
    redis.call('HDEL', KEYS[4], id)
    released = released + 1
  end
end
return released
"""
)


class Taken(NamedTuple):
    """A message that was taken from a :class:`RedisListQueue`.

    Attributes:
        id: the same at each delivery.
        body: as it was pushed; see :meth:`RedisListQueue.value`.
        takes: how often it was taken, this time included.
    """

    id: str
    body: bytes
    takes: int


@dataclass(frozen=True, repr=False)
class RedisListQueue:
    """A queue in a Redis server; for any number of threads, processes and machines.

    A message is the JSON object ``{"id": text, "value": any}``, exactly these
    two, as :meth:`put` makes it; any other text that a producer pushes
    (``redis-cli LPUSH orders 'a text'``) is the value itself, and is given a
    random id when it is first taken, which it keeps. So equal texts are two
    messages. An id that another message has which was taken and is not
    acknowledged is replaced by a random one in the same way: nothing is lost.

    Messages are taken in the order in which they were pushed, before them
    those that come again.

    Picklable: it travels as its url. Needs the client
    (``pip install redis`` (the extra ``redis``)). Its keys fit a Redis Cluster, but
    the client talks to the one server that the url names; tested with Redis 7.0. A
    failover to a replica loses what had not reached it.

    Args:
        url: ``redis://[user:password@]host:port/db``, ``rediss://…`` (TLS) or
            ``unix://…``; further settings of the client as its query. Neither
            user nor password appears in a message or a repr.
        key: of the list. Braces only as the hash tag of a Redis Cluster, ``{shop}:orders``.
        durable: refuse a server that could forget what it acknowledged, where it
            lets itself be asked; False takes it as it is: at least once until the server dies.

    Raises:
        ConfigError: the url or the key cannot be used.
    """

    url: str = field(repr=False)
    key: str
    durable: bool = True

    def __post_init__(self) -> None:
        check_url(self.url, _USER)
        if not isinstance(self.key, str) or not self.key or _keys(self.key) is None:
            raise ConfigError(
                "the key of a Redis queue cannot be used",
                found=repr(self.key)[:200],
                expected="text without braces, or with a hash tag as in '{shop}:orders'",
            )

    def __repr__(self) -> str:
        return f"RedisListQueue({without_credentials(self.url)!r}, {self.key!r})"

    def put(self, value: Any, message_id: str | None = None) -> str:
        """Adds a message; returns its id.

        Args:
            value: JSON; a tuple or list has one value per field of the spout.
            message_id: text that is used for one message only; None makes a random one.

        Raises:
            ConfigError: the value is not JSON, or the id not a text.
            OutcomeUnknown: it may have been put. Put again, it may be there twice.
            SourceError: the server refuses; nothing was put.
            EnvironmentProblem: the client is missing, or the server could forget the message.
        """
        return self._push([(uuid.uuid4().hex if message_id is None else message_id, value)])[0]

    def put_many(self, values: Iterable[Any]) -> list[str]:
        """As :meth:`put`, all or none; returns their ids, in order."""
        return self._push([(uuid.uuid4().hex, value) for value in values])

    def take(self, owner: str, n: int = 1, redeliver_after_secs: float = REDELIVER_AFTER_SECS) -> list[Taken]:
        """Up to n messages that no consumer has, hidden from now on until their time is up.

        Args:
            owner: of :func:`new_owner`.
            n: how many at most.
            redeliver_after_secs: unless acknowledged, they are handed out again after this time.

        Raises:
            SourceError: the server does not answer or refuses. They may have been taken: see :meth:`release`.
            EnvironmentProblem: the client is missing, or the server could forget messages.
        """
        arguments = [owner, round(redeliver_after_secs * _MICROSECONDS), n, uuid.uuid4().hex]
        found = self._call("read", lambda client: self._script(client, _TAKE, arguments))
        return [Taken(_id_text(id), body, takes) for id, body, takes in found]

    def acknowledge(self, ids: Iterable[str]) -> None:
        """Removes messages for good, from every consumer, also while they wait to come again.

        Nothing happens with an id that was acknowledged before, is not known or
        was never taken. Also the way to throw a message away that cannot be read.

        Raises:
            SourceError: the server does not answer or refuses; it may have happened, and may be done again.
        """
        given = [_id_bytes(id) for id in ids]
        for start in range(0, len(given), _IDS_PER_CALL):
            some = given[start : start + _IDS_PER_CALL]
            self._call("written", lambda client, some=some: self._script(client, _ACKNOWLEDGE, some))

    def give_back(self, owner: str, id: str, after_secs: float = 0.0) -> None:
        """Makes a message due again; nothing happens if the owner does not have it (any more).

        Raises:
            SourceError: as of acknowledge.
        """
        arguments = [owner, round(after_secs * _MICROSECONDS), _id_bytes(id)]
        self._call("written", lambda client: self._script(client, _GIVE_BACK, arguments))

    def release(self, consumer: str, process: str = "", keep: Iterable[str] = ()) -> int:
        """Makes due at once what is taken under a consumer's name; returns how many.

        Args:
            consumer: its name.
            process: the first 32 digits of an owner: only what that one has taken.
            keep: ids that stay taken.

        Raises:
            SourceError: as of acknowledge.
        """
        arguments = [consumer, process, *map(_id_bytes, keep)]
        return int(self._call("written", lambda client: self._script(client, _RELEASE, arguments)))

    @staticmethod
    def value(body: bytes) -> Any:
        """The value of a message: that of its JSON object, or its whole text.

        Raises:
            UnicodeDecodeError: it is not UTF-8.
        """
        text = body.decode("utf-8")
        try:
            # Not a file of ours: other producers wrote it, perhaps in Python, whose json writes NaN.
            found = json.loads(text)
        except (ValueError, RecursionError):
            return text
        ours = isinstance(found, dict) and found.keys() == {"id", "value"}
        return found["value"] if ours and isinstance(found["id"], str) and found["id"] else text

    def takes(self, id: str) -> int:
        """How often a message was taken; 0 of one that was never taken or is acknowledged."""
        return int(self._call("read", lambda client: client.hget(self._keys[4], _id_bytes(id))) or 0)

    @property
    def pending(self) -> int:
        """Messages that a consumer took and neither acknowledged nor gave back, also if their time is up."""
        return int(self._call("read", lambda client: client.hlen(self._keys[3])))

    def __len__(self) -> int:
        """Messages that are not acknowledged, taken or not."""
        count = "return redis.call('LLEN', KEYS[1]) + redis.call('HLEN', KEYS[2])"
        return int(self._call("read", lambda client: self._script(client, count, [])))

    def __bool__(self) -> bool:
        return True  # an empty queue is a queue, and asks no server

    def clear(self) -> None:
        """Removes every message; only while no consumer takes."""
        self._call("written", lambda client: client.unlink(*self._keys))

    # --- the server ------------------------------------------------------------------------------

    @property
    def _keys(self) -> list[str]:
        return _keys(self.key) or []

    def _push(self, messages: Sequence[tuple[str, Any]]) -> list[str]:
        bodies = [_body(id, value) for id, value in messages]
        if bodies:
            self._call("put into", lambda client: client.lpush(self.key, *bodies))
        return [id for id, _ in messages]

    def _script(self, client: Any, text: str, arguments: Sequence[Any]) -> Any:
        return client.register_script(text)(keys=self._keys, args=arguments)

    def _call(self, doing: str, call: Callable[..., T]) -> T:
        failure = f"the Redis queue {self.key} cannot be {doing}"
        with redis_errors(_USER, self.url, failure, SourceError, outcome_open=doing == "put into"):
            # No retries: a take that is sent twice takes twice, and a put puts twice.
            client = client_of(self.url, _USER, f"the Redis queue {self.key}", retries=False)
            if self.durable:
                check_durable(client, self.url, _USER, "messages", "durable=False")
            return call(client)


def new_owner(consumer: str) -> str:
    """One process's part in a consumer: 32 random digits, a slash, the consumer's name."""
    return f"{uuid.uuid4().hex}/{consumer}"


# --- helpers -------------------------------------------------------------------------------------


def _keys(key: str) -> list[str] | None:
    """The keys of a queue; None if they could not all be of one slot (redis.io/docs, cluster specification)."""
    tag, closed, _ = key.partition("{")[2].partition("}")
    if tag and closed and key != f"{{{tag}}}":
        base = key
    elif "{" in key or "}" in key:
        return None
    else:
        base = f"{{{key}}}"
    return [key, *(f"{base}:{part}" for part in ("taken", "due", "owners", "takes"))]


def _body(id: str, value: Any) -> bytes:
    if not isinstance(id, str) or not id:
        raise ConfigError("the id of a message cannot be used", found=repr(id)[:200], expected="text, not empty")
    try:
        return json.dumps({"id": id, "value": value}, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as problem:
        raise ConfigError(
            "a message cannot be put into a Redis queue", found=f"{repr(value)[:200]}: {problem}", expected="JSON"
        ) from problem


# A foreign producer's id may be no UTF-8; as text it must still be that id.
def _id_text(id: bytes) -> str:
    return id.decode("utf-8", "surrogateescape")


def _id_bytes(id: str) -> bytes:
    if not isinstance(id, str):
        raise SourceError("this is no id of a message of a Redis queue", found=repr(id)[:200], expected="text")
    return id.encode("utf-8", "surrogateescape")


# The spout that takes from a reliable queue over a Redis list.
#
# Messages stay in the server until their transaction is durable, so they outlive
# this process; the rule of succession, at the class, says what becomes of those
# that it had taken when it ended.


class RedisListSpout(RichSpout):
    """Emits the messages of a Redis list; every message at least once, whatever process dies.

    A message stays in the server until ``ack`` has returned. It comes again
    after ``fail``; when it was emitted and not settled for
    ``redeliver_after_secs``; and when the next process of the same consumer opens.

    *The rule of succession*: ``open`` takes over its consumer's name. Messages
    that processes of that name had taken and not acknowledged are handed out
    again at once. So processes that run at the same time need consumers of
    different names; they share the list. A process that was taken over and
    still runs does no harm: its ``ack`` counts, its ``fail`` does not.

    ``ack`` acknowledges the message wherever it is, also if it was handed out
    again meanwhile, to this process or another, and may be told any number of
    times: nothing acknowledged is taken again, though another process that had taken it
    by then still emits it. A fail of what this process does not have any more does nothing.

    When the server does not answer, each method raises and may be called
    again; after it is back, it hands out again at once the messages that it had
    given out and this process has not received.

    A message that cannot be decoded, or does not fit the fields, raises at
    ``next_tuple`` and comes again when its time is up; the next call goes on with the next message.

    Args:
        url: as of :class:`RedisListQueue`.
        key: of the list that producers LPUSH to, best with :meth:`RedisListQueue.put`.
        fields: one per value of a message, all of one stream.
        decode: called with a message's value (that of its JSON object, or its
            text) for a value or a tuple of one per field; None takes it as it is, a list as a tuple.
        consumer: None takes the names of the topology and the stream.
        redeliver_after_secs: longer than the topology's message timeout, or messages come
            again that are still being processed. By the server's clock.
        retry_after_secs: how long after ``fail`` a message comes again.
        prefetch: how many messages one round trip may take; those that are not emitted
            yet are taken too. With more than one, what was emitted last may
            come again a quarter later than said.
        durable: as of :class:`RedisListQueue`.

    Raises:
        ConfigError: an argument cannot be used.
        TopologyError: fields of several streams.
    """

    def __init__(
        self,
        url: str,
        key: str,
        fields: Any = "message string",
        decode: Callable[[Any], Any] | None = None,
        consumer: str | None = None,
        redeliver_after_secs: float = REDELIVER_AFTER_SECS,
        retry_after_secs: float = 0.0,
        prefetch: int = 100,
        durable: bool = True,
    ) -> None:
        self.queue = RedisListQueue(url, key, durable)
        if isinstance(fields, Mapping):
            raise TopologyError("a RedisListSpout has one stream", found=repr(fields)[:200], expected="its fields")
        redeliver_after_secs = spout_arguments.seconds(
            "redeliver_after_secs of a RedisListSpout", redeliver_after_secs, zero=False, error=ConfigError
        )
        retry_after_secs = spout_arguments.seconds(
            "retry_after_secs of a RedisListSpout", retry_after_secs, error=ConfigError
        )
        spout_arguments.flag("durable of a RedisListSpout", durable, ConfigError)
        _check(prefetch, isinstance(prefetch, int) and prefetch >= 1, "prefetch", "a number, from 1")
        _check(consumer, consumer is None or (isinstance(consumer, str) and consumer != ""), "consumer", "a name")
        self.fields, self._decode, self._consumer = fields, decode, consumer
        self._redeliver_after_secs, self._retry_after_secs = float(redeliver_after_secs), float(retry_after_secs)
        self._prefetch = prefetch
        self._waiting_secs = self._redeliver_after_secs / 4 if prefetch > 1 else 0.0
        self._owner = ""
        self._fetched: OrderedDict[str, Taken] = OrderedDict()  # taken and not emitted, by id
        self._fetched_until = 0.0
        self._emitted: set[str] = set()  # … and neither acknowledged nor failed
        self._may_have_unknown = False  # the server may have given us messages that we do not know of

    @property
    def consumer(self) -> str:
        """The name under which messages are taken.

        Raises:
            ConfigError: none was given and there is no topology to take it from.
        """
        context: Any = getattr(self, "context", None)
        if self._consumer is None and context is None:
            raise ConfigError("a RedisListSpout has no consumer name", action="give it one: consumer='…'")
        return self._consumer or f"{context.topology}/{context.tx_id}"

    @property
    def bound_to_one_host(self) -> "str | bool":
        """A standby on another host would take from another server."""
        return REDIS_OF_ALL if is_this_host(self.queue.url) else False

    def open(self) -> None:
        """Takes over what earlier processes of this consumer had taken.

        Raises:
            SourceError: the server does not answer or refuses.
            EnvironmentProblem: the client is missing, or the server could forget messages.
        """
        self.queue.release(self.consumer)
        self._owner = new_owner(self.consumer)
        self._fetched.clear()
        self._emitted.clear()
        self._may_have_unknown = False

    def next_tuple(self) -> None:
        """Emits one message, or nothing; at most two round trips, seldom more than one in ``prefetch`` messages.

        Raises:
            SourceError: the server does not answer or refuses; or a message cannot be emitted.
        """
        if self._fetched and time.monotonic() > self._fetched_until:
            # They may soon come again elsewhere, and would have too little time left here.
            self._may_have_unknown = True
        if self._may_have_unknown:
            self._fetched.clear()
            self._release_unknown()
        if not self._fetched:
            self._fetch()
        if self._fetched:
            self._emit(self._fetched.popitem(last=False)[1])

    def backlog(self) -> Backlog:
        """Messages that no consumer has taken, and those taken here that are not emitted yet; asks the server.

        Raises:
            SourceError: the server does not answer or refuses.
        """
        return Backlog(rows=len(self.queue) - self.queue.pending + len(self._fetched))

    def ack(self, message_id: str) -> None:
        """Removes the message from the server.

        Raises:
            SourceError: the server does not answer; it may have happened. Tell it again.
        """
        self.ack_many([message_id])

    def ack_many(self, message_ids: Collection[str]) -> None:
        """As ``ack`` of each, in one round trip; up to 1,000 are removed as one.

        Much faster than one by one where the server makes each write durable (appendfsync always).
        """
        self.queue.acknowledge(message_ids)
        for message_id in message_ids:
            self._settled(message_id)

    def fail(self, message_id: str) -> None:
        """Hands the message out again after ``retry_after_secs``.

        Raises:
            SourceError: the server does not answer. Unless it is told again, the message comes when its time is up.
        """
        self.queue.give_back(self._owner, message_id, self._retry_after_secs)
        self._settled(message_id)

    def close(self) -> None:
        """Gives back what was not emitted; the rest waits for the next process, or its time."""
        if self._fetched or self._may_have_unknown:
            self._fetched.clear()
            try:
                self._release_unknown()
            except SourceError:
                pass  # The server is gone: they come again when their time is up.

    def _fetch(self) -> None:
        until = time.monotonic() + self._waiting_secs
        self._may_have_unknown = True  # until the answer is here
        hidden_secs = self._redeliver_after_secs + self._waiting_secs
        for message in self.queue.take(self._owner, self._prefetch, hidden_secs):
            self._fetched[message.id] = message
        self._fetched_until = until if self._prefetch > 1 else math.inf
        self._may_have_unknown = False

    def _settled(self, message_id: str) -> None:
        self._emitted.discard(message_id)
        # Its time was up, and it was fetched again before this was told.
        self._fetched.pop(message_id, None)

    def _release_unknown(self) -> None:
        self.queue.release(self.consumer, self._owner[:32], self._emitted)
        self._may_have_unknown = False

    def _emit(self, message: Taken) -> None:
        try:
            value = self.queue.value(message.body)
            self.collector.emit(value if self._decode is None else self._decode(value), message.id)
        except Exception as problem:
            raise SourceError(
                f"a message of the Redis queue {self.queue.key} cannot be emitted",
                found=f"id {message.id!r}: {type(problem).__name__}: {problem}",
                expected="a value per field",
                action=f"change decode, or throw it away: RedisListQueue(…).acknowledge([{message.id!r}])",
            ) from problem
        self._emitted.add(message.id)


def _check(value: Any, usable: bool, name: str, expected: str) -> None:
    if not usable or isinstance(value, bool):
        raise ConfigError(f"{name} of a RedisListSpout is impossible", found=repr(value)[:200], expected=expected)
