"""A Kafka cluster as a process of this framework reaches it: its client, its settings, and texts without secrets."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trident.coordinators.errors import ConfigError, EnvironmentProblem, TopologyError, described

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
