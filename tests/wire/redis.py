"""The wire of Redis (RESP): arrays of texts as requests, answers of any kind, one after the other."""

from __future__ import annotations

_LINES, _TEXTS, _LISTS, _PAIRS = b"+-:_#,(", b"$=!", b"*~>", b"%|"


class RedisLanguage:
    """``relay.Language`` of Redis, for clients that wait for an answer before they ask for more."""

    def take(self, buffer: bytearray) -> bytes | None:
        end = _end(buffer, 0)
        if end is None:
            return None
        message = bytes(buffer[:end])
        del buffer[:end]
        return message

    def request(self, message: bytes) -> tuple[str, int]:
        return message.split(b"\r\n")[2].decode().upper(), 0

    def answer(self, message: bytes) -> int:
        return 0


def _end(buffer: bytearray, at: int) -> int | None:
    """Where the value ends that begins there; None: not all of it has come."""
    line = buffer.find(b"\r\n", at)
    if line < 0:
        return None
    kind, text, end = buffer[at], bytes(buffer[at + 1 : line]), line + 2
    if kind in _LINES:
        return end
    if kind in _TEXTS:
        end += int(text) + 2 if int(text) >= 0 else 0
        return end if end <= len(buffer) else None
    assert kind in _LISTS + _PAIRS, f"no kind of Redis: {chr(kind)}"
    for _ in range(int(text) * (2 if kind in _PAIRS else 1)):
        found = _end(buffer, end)
        if found is None:
            return None
        end = found
    return end
