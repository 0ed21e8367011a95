"""Consumers of a Kafka cluster that read ranges of offsets."""

from __future__ import annotations

from trident.kafka.settings import Connection, kafka_module
from trident.kafka.watched import Watched

# As long as a partition's log is asked for more at its end: behind the last message there may be holes.
_FETCH_WAIT_MS = 20
# Read ahead: what comes behind a range is thrown away.
_AHEAD_MESSAGES, _AHEAD_KB = 20_000, 16 << 10
# How long the client fetches nothing once so much is there: by default a second, in which a fast reader stands still.
_QUEUE_BACKOFF_MS = 10
SOCKET_TIMEOUT_MS = 30_000


def consumer_of(connection: Connection, group: str, isolation: str, problems: list[str]) -> Watched:
    """A consumer that is told which offsets to read, and neither commits nor moves by itself.

    Args:
        group: its name towards the cluster's rights; it joins no group.
        problems: gets the latest problem of the connection, as text.
    """
    settings = {
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
        "queued.min.messages": _AHEAD_MESSAGES,
        "queued.max.messages.kbytes": _AHEAD_KB,
        "fetch.queue.backoff.ms": _QUEUE_BACKOFF_MS,
        "reconnect.backoff.max.ms": 2_000,
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        "group.id": group,
        "check.crcs": True,
        "log_level": 0,
        **connection.config,
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "error_cb": lambda error: problems.__setitem__(slice(None), [connection.clean(error.str())]),
    }
    return Watched(kafka_module().Consumer(settings))
