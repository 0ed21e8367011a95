"""Kafka's client: its settings, its errors without secrets, and a time limit for each of its calls."""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trident.coordinators.errors import ConfigError, EnvironmentProblem, TopologyError, described
from trident.coordinators.threads import NoAnswer, bounded

# A Kafka cluster as a process of this framework reaches it: its client, its settings, and texts without secrets.


KAFKA_OF_ALL = "write the names or the addresses that every host knows the brokers by"
# Given elsewhere, by all.
_OURS = {"bootstrap.servers": "it is the first argument", "metadata.broker.list": "brokers are the first argument"}
_SECRET = re.compile(r"password|secret|token|jaas|\.pem$|sasl\.username|user\.info|passphrase|oauthbearer\.config")
# Of "name=value name=value"; shorter ones are in any text.
_VALUE = re.compile(r"""=\s*["']?([^\s;,"']{3,})""")
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_KEPT_IN = re.compile(r"(env|file):(.+)", re.DOTALL)


def kafka_module(name: str = "confluent_kafka") -> Any:
    """The client package, or a module of it.

    Raises:
        EnvironmentProblem: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        extra = "kafka" if name in ("confluent_kafka", "confluent_kafka.admin") else "kafka-registry"
        raise EnvironmentProblem(
            "the Kafka client is missing: each machine that reads or writes topics needs it",
            found=str(problem),
            action=f"install it: pip install 'trident-spark[{extra}]'",
        ) from problem


def check_topic(name: str, what: str) -> None:
    """Raises TopologyError where Kafka can have no topic of that name."""
    if not _TOPIC.fullmatch(name):
        raise TopologyError(
            f"{what} cannot be used",
            found=described(name),
            expected="a name of at most 249 letters, digits, '.', '_' and '-', as Kafka's topics have",
        )


@dataclass(frozen=True, repr=False)
class Connection:
    """The settings of a client, with its secrets: it goes to tasks, and into no text."""

    config: Mapping[str, Any] = field(repr=False)
    secrets: tuple[str, ...] = field(
        default=(), repr=False
    )  # settings that were given as secrets, whatever their names

    def __repr__(self) -> str:
        return f"Connection({self.config['bootstrap.servers']!r})"

    def clean(self, text: str) -> str:
        """The text with each secret struck out."""
        secrets = {str(value) for key, value in self.config.items() if is_secret(key) or key in self.secrets}
        secrets |= {secret.partition(":")[2] for secret in secrets}  # user:password
        # The client quotes parts of what it cannot read.
        secrets |= {part for secret in secrets for part in _VALUE.findall(secret)}
        secrets.discard("")
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def is_secret(setting: str) -> bool:
    """Tells whether a setting of the client holds a credential."""
    return _SECRET.search(setting.lower()) is not None


class KafkaSettings:
    """The way to a cluster, as its user gives it.

    Args:
        bootstrap: ``host:port,host:port``.
        config: settings of librdkafka.
        secrets: further ones by where they are kept: ``env:VARIABLE`` or ``file:/path``, read when a topology starts.
        user: the thing that is given them, for messages.
        ours: settings that it decides itself → why, so that no message is lost, or there twice.

    Attributes:
        brokers: each one's ``host:port``.

    Raises:
        TopologyError: one of them cannot be used.
    """

    def __init__(
        self, bootstrap: Any, config: Any, secrets: Any, user: str, ours: Mapping[str, str] | None = None
    ) -> None:
        if not isinstance(bootstrap, str) or not bootstrap.strip() or "@" in bootstrap:
            # Not `found`: it may hold a password by mistake.
            raise TopologyError(
                f"the brokers of {user} cannot be used", expected="'host:port' or 'host:port,host:port'"
            )
        self.brokers = tuple(part.strip() for part in bootstrap.split(","))
        self.bootstrap = ",".join(self.brokers)
        self.config = _names(config, f"the config of {user}")
        self.secrets = _names(secrets, f"the secrets of {user}")
        decided = {**_OURS, **(ours or {})}
        for setting in (*self.config, *self.secrets):
            if setting.lower() in decided:
                raise TopologyError(
                    f"{user} cannot be given the setting {setting}", expected=f"none: {decided[setting.lower()]}"
                )
        for setting, place in self.secrets.items():
            if not isinstance(place, str) or not _KEPT_IN.fullmatch(place):
                # Not `found`: it may be the secret itself.
                raise TopologyError(
                    f"the secret {setting} of {user} cannot be used", expected="'env:VARIABLE' or 'file:/path'"
                )

    def connection(self) -> Connection:
        """The settings with their secrets.

        Raises:
            ConfigError: a secret is not where it is said to be.
        """
        found = {setting: _read_secret(setting, place) for setting, place in self.secrets.items()}
        return Connection({**self.config, **found, "bootstrap.servers": self.bootstrap}, tuple(self.secrets))


def _names(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TopologyError(
            f"{what} cannot be used", found=type(value).__name__, expected="settings of librdkafka by name"
        )
    for key, one in value.items():
        if not isinstance(one, (str, int, float, bool)):
            raise TopologyError(
                f"{what} cannot be used", found=f"{key}: {type(one).__name__}", expected="texts, numbers, True or False"
            )
    return dict(value)


def _read_secret(setting: str, place: str) -> str:
    kind, _, name = place.partition(":")
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise ConfigError(
                f"the Kafka setting {setting} is kept in an environment variable that is not set", expected=name
            )
        return value
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"the Kafka setting {setting} is kept in a file that cannot be read",
            found=described(problem),
            expected=name,
        ) from None


# The errors of Kafka's client: their words without secrets, and which of them may pass by themselves.


_AWAY = (
    "_TRANSPORT",
    # A client closes its connection to a bootstrap address once it knows the broker, with questions that are under way.
    "_DESTROY_BROKER",
    "_TIMED_OUT",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "UNKNOWN_TOPIC_OR_PART",
    "BROKER_NOT_AVAILABLE",
    "REQUEST_TIMED_OUT",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "UNSTABLE_OFFSET_COMMIT",
    # During and after an election.
    "OFFSET_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "KAFKA_STORAGE_ERROR",
    "_NOENT",
    # Of producers: a message was not acknowledged in time, or was given up with the others of its transaction.
    "_MSG_TIMED_OUT",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
    "_INCONSISTENT",
    "_STATE",
    "CONCURRENT_TRANSACTIONS",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
)
# Another producer of the transactional id has begun, or the cluster has ended or forgotten this one's transaction.
_FENCED = (
    "_FENCED",
    "_FATAL",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "UNKNOWN_PRODUCER_ID",
    "INVALID_TXN_STATE",
)


def is_away(error: Any) -> bool:
    """Tells whether a KafkaError says that brokers, or the leader of a partition, are away: they do not refuse."""
    kafka = kafka_module().KafkaError
    return bool(error.retriable()) or error.code() in {getattr(kafka, name) for name in _AWAY if hasattr(kafka, name)}


def is_fenced(error: Any) -> bool:
    """Tells whether a KafkaError says that a transactional producer may write no more, and that a new one may."""
    kafka = kafka_module().KafkaError
    return error.code() in {getattr(kafka, name) for name in _FENCED if hasattr(kafka, name)}


def error_text(connection: Connection, error: BaseException) -> str:
    """An error of the client in a line, without secrets."""
    inner = error.args[0] if error.args else error
    text = inner.str() if hasattr(inner, "str") else str(error)
    return connection.clean(text.strip() or type(error).__name__)[:500]


def settings_refused(connection: Connection, what: str, error: BaseException) -> ConfigError:
    """The error for a client that does not take its settings.

    Args:
        what: whose settings they are, for the message.
    """
    return ConfigError(
        f"the Kafka client refuses the settings of {what}",
        found=error_text(connection, error),
        expected="settings of librdkafka in config=",
    )


# Clients of librdkafka with a watch around each call that waits: the library may ignore its own time-out.
#
# A connection that is cut at the answer of a TxnOffsetCommit, for one, lets ``send_offsets_to_transaction`` wait for
# ever
# (librdkafka #5456, #5511).


# Over the call's own time-out: a call that has not returned by then is taken to hang.
WATCH_SECS = 5.0


class Watched:
    """A producer, consumer or admin client: :meth:`within` for calls that wait for brokers, the others go through.

    A client of which a call has hung is given up: each later call by :meth:`within` raises at once, and its threads and
    connections stay until the library lets go of them by itself.
    """

    def __init__(self, client: Any) -> None:
        self._client, self.has_hung = client, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def within(self, secs: float, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls ``client.method(*arguments, secs, **named)``: the time-out is the last argument by position.

        Raises:
            KafkaException: as the client does; with ``_TIMED_OUT`` where it has not returned ``WATCH_SECS`` after its
                time-out.
        """
        return self.watched(secs, method, *arguments, secs, **named)

    def watched(self, secs: float, method: str, *arguments: Any, **named: Any) -> Any:
        """As :meth:`within`, for a method that takes no time-out."""
        if self.has_hung:
            raise timed_out(f"{method} is not called: an earlier call of this client has not returned")
        who, call = f"Kafka's client ({method})", getattr(self._client, method)
        try:
            return bounded(secs + WATCH_SECS, who, call, *arguments, **named)
        except NoAnswer as error:
            self.has_hung = True
            raise timed_out(str(error.strerror)) from None

    def end(self) -> threading.Thread | None:
        """Closes the client in a thread: its connections and threads go once it has done what it is at.

        Returns:
            the thread; None where there is nothing to close.
        """
        held, self._client = [self._client], None
        if held[0] is None or self.has_hung:
            return None
        thread = threading.Thread(target=_closed, args=(held,), name="trident-kafka-close", daemon=True)
        thread.start()
        return thread


def timed_out(text: str) -> Exception:
    """The client's own error for a call that has taken too long, as a :class:`Watched` raises it."""
    kafka = kafka_module()
    error: Exception = kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT, text))
    return error


def _closed(held: list[Any]) -> None:
    """Closes a consumer, or lets go of a producer: its last reference is the one that this thread has."""
    client = held.pop()
    if hasattr(client, "close") and not hasattr(client, "produce"):
        with suppress(Exception):
            client.close()
