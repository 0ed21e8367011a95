"""The wire of ZooKeeper: frames with their length before them, the kind of each request, its number."""

from __future__ import annotations

import struct

_SIZE, _HEAD = struct.Struct(">i"), struct.Struct(">iii")  # size; then number and kind
_MULTI = 14


class ZooKeeperLanguage:
    """``relay.Language`` of ZooKeeper. The first frame of a connection, which has no kind, is called ``connect``: it
    begins with the protocol's version, 0, and a zxid."""

    def take(self, buffer: bytearray) -> bytes | None:
        if len(buffer) < _SIZE.size:
            return None
        end = _SIZE.size + _SIZE.unpack_from(buffer)[0]
        if len(buffer) < end:
            return None
        message = bytes(buffer[:end])
        del buffer[:end]
        return message

    def request(self, message: bytes) -> tuple[str, int]:
        _, number, kind = _HEAD.unpack_from(message)
        return ("multi" if kind == _MULTI and number > 0 else str(kind) if number else "connect"), number

    def answer(self, message: bytes) -> int:
        return int(_SIZE.unpack_from(message, _SIZE.size)[0])
