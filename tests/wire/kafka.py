"""The wire of Kafka: messages with their length before them, the name of each request, its correlation id."""

from __future__ import annotations

import struct

from tests.wire.relay import Sized

# https://kafka.apache.org/protocol: those that a state or a spout sends.
NAMES = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    9: "OffsetFetch",
    10: "FindCoordinator",
    18: "ApiVersions",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
}
_REQUEST = struct.Struct(">ihhi")  # size, API key, its version, correlation id
_ANSWER = struct.Struct(">ii")  # size, correlation id


class KafkaLanguage(Sized):
    """``relay.Language`` of Kafka."""

    def request(self, message: bytes) -> tuple[str, int]:
        _, key, _, correlation = _REQUEST.unpack_from(message)
        return NAMES.get(key, str(key)), correlation

    def answer(self, message: bytes) -> int:
        return int(_ANSWER.unpack_from(message)[1])
