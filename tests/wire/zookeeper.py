"""The wire of ZooKeeper: frames with their length before them, the kind of each request, its number."""

from __future__ import annotations

import struct

from tests.wire.relay import Sized

_HEAD, _ANSWER = struct.Struct(">iii"), struct.Struct(">ii")  # size, number, kind; size, number
_MULTI = 14


class ZooKeeperLanguage(Sized):
    """``relay.Language`` of ZooKeeper. The first frame of a connection, which has no kind, is called ``connect``: it
    begins with the protocol's version, 0, and a zxid."""

    def request(self, message: bytes) -> tuple[str, int]:
        _, number, kind = _HEAD.unpack_from(message)
        return ("multi" if kind == _MULTI and number > 0 else str(kind) if number else "connect"), number

    def answer(self, message: bytes) -> int:
        return int(_ANSWER.unpack_from(message)[1])
