"""A stream of server-sent events to one page: what is new, a few times a second, for as long as the page reads."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Generator
from threading import Event
from typing import Any

log = logging.getLogger("trident.watching")
TICK_SECS = 0.25
# A page that has nothing new to read is told so, which finds out whether it is still there.
QUIET_SECS = 5.0
# A page that does not read is given nothing more; behind this its stream ends, and its connection with it.
UNREAD_SECS = 20.0


class LiveStream:
    """The body of an answer; it ends when the topology has ended, or its page does not read.

    Args:
        look: gives the state of the page behind a sequence number; "seq" in it is the next one. One that raises ends no
            stream, unless it does for ``UNREAD_SECS``.
        ended: set when nothing more comes; a last state is sent then.
        held_bytes: how much was given and waits to be sent: while that is anything, nothing more is given.
        done: is called once, at the end.
    """

    def __init__(
        self,
        look: Callable[[int], dict[str, Any]],
        ended: Event,
        held_bytes: Callable[[], int],
        done: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._ended, self._held_bytes, self._clock = look, ended, held_bytes, clock
        self._done: Callable[[], None] | None = done
        self._pieces = self._run()

    def __iter__(self) -> LiveStream:
        return self

    def __next__(self) -> bytes:
        return next(self._pieces)

    def close(self) -> None:
        """Frees its place, also where it never began."""
        done, self._done = self._done, None
        self._pieces.close()
        if done is not None:
            done()

    def _run(self) -> Generator[bytes, None, None]:
        yield b"retry: 2000\n\n"
        sequence, last, sent_at, read_at = 0, "", self._clock(), self._clock()
        found_at = read_at
        while True:
            ends = self._ended.is_set()
            now = self._clock()
            if not self._held_bytes():
                read_at = now
                state = self._found(sequence)
                if state is not None:
                    found_at = now
                elif now >= found_at + UNREAD_SECS:
                    return  # its page says that the connection is lost, and asks again
                # The time of a look alone is nothing new.
                same = last if state is None else json.dumps({**state, "at": None}, ensure_ascii=True)
                if state is not None and same != last:
                    last, sent_at, sequence = same, now, int(state["seq"])
                    text = json.dumps(state, ensure_ascii=True, allow_nan=False)
                    yield f"event: live\ndata: {text}\n\n".encode()
                elif now >= sent_at + QUIET_SECS:
                    sent_at = now
                    yield b": nothing new\n\n"
            elif now >= read_at + UNREAD_SECS:
                return
            if ends:
                yield b"event: ended\ndata: {}\n\n"
                return
            self._ended.wait(TICK_SECS)

    def _found(self, sequence: int) -> dict[str, Any] | None:
        """None where a look fails: a store does not answer, or another page's look takes long. The next one may not."""
        try:
            return self._look(sequence)
        except Exception as error:
            log.debug("a page is not told what is new: %s", error)
            return None
