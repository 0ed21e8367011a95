"""The errors of Kafka's client: their words without secrets, and which of them may pass by themselves."""

from __future__ import annotations

from typing import Any

from trident.coordinators.errors import ConfigError
from trident.kafka.settings import Connection, kafka_module

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
