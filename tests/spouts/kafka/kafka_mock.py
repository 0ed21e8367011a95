"""A Kafka cluster of several brokers inside the test's process: the one that librdkafka tests itself by.

It answers slowly, not at all, or with any error that it is told to, which a real broker does only by chance.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_FUNCTIONS = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_new": (_POINTER, [_INT, _POINTER, ctypes.c_char_p, ctypes.c_size_t]),
    "rd_kafka_conf_set": (_INT, [_POINTER, *[ctypes.c_char_p] * 3, ctypes.c_size_t]),
    "rd_kafka_producev": (_INT, None),  # as many arguments as are given
    "rd_kafka_flush": (_INT, [_POINTER, _INT]),
    "rd_kafka_destroy": (None, [_POINTER]),
    "rd_kafka_mock_cluster_new": (_POINTER, [_POINTER, _INT]),
    "rd_kafka_mock_cluster_destroy": (None, [_POINTER]),
    "rd_kafka_mock_cluster_bootstraps": (ctypes.c_char_p, [_POINTER]),
    "rd_kafka_mock_set_controller_id": (_INT, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_topic_create": (_INT, [_POINTER, ctypes.c_char_p, _INT, _INT]),
    "rd_kafka_mock_partition_set_leader": (_INT, [_POINTER, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_down": (_INT, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_up": (_INT, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_rtt": (_INT, [_POINTER, ctypes.c_int32, _INT]),
    "rd_kafka_mock_set_apiversion": (_INT, [_POINTER, ctypes.c_int16, ctypes.c_int16, ctypes.c_int16]),
    "rd_kafka_mock_push_request_errors_array": (None, [_POINTER, ctypes.c_int16, ctypes.c_size_t, _POINTER]),
}
# Numbers of requests in Kafka's protocol.
METADATA, FIND_COORDINATOR = 3, 10


def _library() -> Any:
    (path,) = Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka*")
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        if arguments is not None:
            function.argtypes = arguments
    return library


class MockCluster:
    """Brokers 1 … count; the first is the controller, which answers what is asked of the cluster as a whole."""

    def __init__(self, count: int = 3) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(512)
        self._client = self._library.rd_kafka_new(0, self._library.rd_kafka_conf_new(), error, 512)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, count)
        self._library.rd_kafka_mock_set_controller_id(self._cluster, 1)
        self.address = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create(self, topic: str, leaders: Sequence[int]) -> None:
        """A topic with a partition for each of these brokers, which leads it."""
        assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), len(leaders), 1) == 0
        for number, broker in enumerate(leaders):
            self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), number, broker)

    def put(self, topic: str, partition: int, count: int) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.address, "log_level": 0})
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=partition)
        assert producer.flush(30) == 0

    def put_any(self, topic: str, value: bytes, timestamp: int = 0, header: bytes | None = None) -> None:
        """A message that Python's producer refuses to make, in partition 0.

        Args:
            timestamp: milliseconds; 0: now.
            header: a key, of a header without a value.
        """
        conf, error = self._library.rd_kafka_conf_new(), ctypes.create_string_buffer(512)
        for key, text in ((b"bootstrap.servers", self.address.encode()), (b"log_level", b"0")):
            assert self._library.rd_kafka_conf_set(_POINTER(conf), key, text, error, 512) == 0, error.value
        producer = _POINTER(self._library.rd_kafka_new(0, conf, error, 512))
        size = ctypes.c_size_t
        # Each argument after its number in rd_kafka_vtype_t.
        given: list[Any] = [_INT(1), ctypes.c_char_p(topic.encode()), _INT(3), ctypes.c_int32(0)]
        given += [_INT(7), _INT(2), _INT(4), ctypes.c_char_p(value), size(len(value))]
        given += [_INT(8), ctypes.c_int64(timestamp)]
        given += [] if header is None else [_INT(9), ctypes.c_char_p(header), _POINTER(None), ctypes.c_ssize_t(0)]
        assert self._library.rd_kafka_producev(producer, *given, _INT(0)) == 0
        assert self._library.rd_kafka_flush(producer, 30_000) == 0
        self._library.rd_kafka_destroy(producer)

    def hang(self, broker: int, milliseconds: int = 60_000) -> None:
        """The broker answers each request so much later."""
        assert self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, milliseconds) == 0

    def down(self, broker: int) -> None:
        """The broker is gone, and its partitions have no leader."""
        assert self._library.rd_kafka_mock_broker_set_down(self._cluster, broker) == 0

    def up(self, broker: int) -> None:
        assert self._library.rd_kafka_mock_broker_set_up(self._cluster, broker) == 0

    def know_at_most(self, request: int, version: int) -> None:
        """The brokers are older ones."""
        assert self._library.rd_kafka_mock_set_apiversion(self._cluster, request, 0, version) == 0

    def answer(self, request: int, *errors: int) -> None:
        """The next requests of a kind are answered by these errors, one after the other."""
        numbers = (_INT * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(errors), numbers)

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)
