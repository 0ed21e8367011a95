"""Objects for ``process`` as users write them; module-level, so that workers can load them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from trident import TimerContext


class Baskets:
    """Counts the rows of a key; sets a timer ten seconds behind each row but each third one, and goes on from timers.

    ``tests.operations.timed_oracle.baskets`` says the same without timers.
    """

    def on_row(self, context: TimerContext, at: datetime | None) -> tuple[str, int]:
        count = 1 + (context.state[0] if context.state else 0)
        time = at or context.now
        assert time is not None
        context.state = (count, time)
        context.set_timer(time + timedelta(seconds=10))
        if count == 3:
            context.clear_timer(time + timedelta(seconds=10))
        return "row", count

    def on_time(self, context: TimerContext, time: datetime) -> Iterator[tuple[str, int]]:
        assert context.now is not None and time <= context.now
        yield "time", int(time.timestamp())
        count, last = context.state or (0, None)
        if count > 1:
            context.state = (count - 1, last)
            context.set_timer(time + timedelta(seconds=4))
        else:
            context.clear()


class Wrong:
    """Does one wrong thing."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_row(self, context: TimerContext, at: Any) -> Any:
        if self.what == "a time without a zone":
            context.set_timer(datetime(2020, 1, 1))
        if self.what == "a state of another type":
            context.state = "many"
        if self.what == "a timer for itself":
            context.set_timer(at)
        if self.what == "an output of another type":
            return "many"
        raise_in = {"a row": ValueError("of no use")}.get(self.what)
        if raise_in:
            raise raise_in
        return 1

    def on_time(self, context: TimerContext, time: datetime) -> None:
        context.set_timer(time)
