"""Kafka's record batches as a broker has them on its disk: which there are, and damage to them.

A running broker sends the bytes of its files as they are, and compares no checksum.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from tests.servers.kafka_fixtures import KafkaBroker

# Base offset, length of all that follows, leader epoch, magic, CRC-32C of all that follows, attributes, last offset
# delta, base and greatest timestamp, producer id, epoch and sequence, count (https://kafka.apache.org/documentation).
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH, _CRC, _ATTRIBUTES, _TIMES, _RECORDS = 12, 17, 21, 27, _HEADER.size
_CASTAGNOLI = 0x82F63B78


class RecordBatch(NamedTuple):
    """Messages at the offsets ``base`` to ``last``, at a position of a file."""

    path: Path
    position: int
    size: int
    base: int
    last: int
    producer: int

    def damage(self) -> None:
        """The middle byte of its records becomes another one: the checksum is not theirs any more."""
        data = self._read()
        data[(_RECORDS + self.size) // 2] ^= 0xFF
        self._write(data)

    def damage_before_sending(self) -> None:
        """As by a producer that has sent it so: with the checksum of the damaged records."""
        self.damage()
        self._seal(self._read())

    def name_codec(self, codec: int) -> None:
        data = self._read()
        data[_ATTRIBUTES + 1] = data[_ATTRIBUTES + 1] & ~7 | codec
        self._seal(data)

    def stamp(self, ms: int) -> None:
        """Of the record batch's first message, and so of the only one."""
        data = self._read()
        struct.pack_into(">qq", data, _TIMES, ms, ms)
        self._seal(data)

    def _read(self) -> bytearray:
        with self.path.open("rb") as file:
            file.seek(self.position)
            return bytearray(file.read(self.size))

    def _seal(self, data: bytearray) -> None:
        struct.pack_into(">I", data, _CRC, _crc32c(data[_ATTRIBUTES:]))
        self._write(data)

    def _write(self, data: bytearray) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.position)
            file.write(data)


def record_batches(kafka: KafkaBroker, topic: str, partition: int = 0) -> list[RecordBatch]:
    """All of a partition, in their order."""
    found = []
    for path in sorted((kafka.folder / "data" / f"{topic}-{partition}").glob("*.log")):
        data, position = path.read_bytes(), 0
        while len(data) - position >= _HEADER.size:
            base, length, _, _, _, _, delta, _, _, producer, *_ = _HEADER.unpack_from(data, position)
            found.append(RecordBatch(path, position, _LENGTH + length, base, base + delta, producer))
            position += _LENGTH + length
    return found


def _crc32c(data: bytes | bytearray) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ _CASTAGNOLI if crc & 1 else crc >> 1
    return crc ^ 0xFFFFFFFF
