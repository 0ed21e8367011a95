"""Record batches that Kafka's client cannot read: where they end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from trident.kafka.settings import kafka_module
from trident.kafka.watched import Watched
from trident.spouts.files.tasks import SourceFailure
from trident.spouts.kafka.ranges import OffsetRange

_POLL_SECS = 0.25
_ASK_SECS = 10.0


class Clients(NamedTuple):
    """How a range is read by other clients.

    Attributes:
        make: a consumer that reads nothing yet.
        what: the source, for messages.
        patience_secs: without an answer for so long the read fails.
    """

    make: Callable[[], Watched]
    what: str
    patience_secs: float


def is_damaged(code: int) -> bool:
    """Tells whether an error says that a record batch, which the broker has sent, cannot be read.

    Its checksum is another one, it cannot be decompressed, or its codec or format is not known.
    """
    errors = kafka_module().KafkaError
    return code in (errors._BAD_MSG, errors._BAD_COMPRESSION, errors._NOT_IMPLEMENTED)


def end_of_damage(clients: Clients, wanted: OffsetRange, base: int, check: Callable[[], None]) -> int:
    """The first offset of a range after the record batch at offset ``base``, which cannot be read.

    The client does not say where it ends. So other clients read from one offset after the other, each halving what is
    left: other ones, since a client goes on anywhere after such an error. If the first can read the range's first
    offset, that is returned: the network had damaged the record batch.

    Args:
        check: called again and again; raises if the messages are not wanted any more.

    Raises:
        SourceFailure: no broker answers.
    """
    low, middle, high = wanted.begin - 1, wanted.begin, wanted.end
    while high - low > 1:
        if _is_in_damage(clients, wanted._replace(begin=middle), base, check):
            low = middle
        else:
            high = middle
        middle = (low + high) // 2
    return high


def _is_in_damage(clients: Clients, at: OffsetRange, base: int, check: Callable[[], None]) -> bool:
    """Tells whether what comes first at an offset is the error of the record batch at ``base``."""
    client = clients.make()
    deadline = time.monotonic() + clients.patience_secs
    try:
        client.watched(_ASK_SECS, "assign", [kafka_module().TopicPartition(at.topic, at.partition, at.begin)])
        while time.monotonic() < deadline:
            check()
            message = client.poll(_POLL_SECS)
            if message is not None and message.topic() is not None:
                error = message.error()
                return error is not None and is_damaged(error.code()) and message.offset() == base
    finally:
        client.end()
    raise SourceFailure(
        f"{clients.what} cannot be read, at {at.at} from offset {at.begin} on",
        found=f"no answer for {clients.patience_secs:g} s",
        expected="the leader of the partition",
        action="the batch is tried again; it waits for the brokers",
    )
