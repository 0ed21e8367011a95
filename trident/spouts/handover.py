"""The handover between Spark's streaming thread and a topology: a batch is offered, pinned, advanced. No Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trident.coordinators.errors import SourceError
from trident.spouts.contracts import Json
from trident.spouts.metadata import read_metadata

# An exception with this in its text Spark takes for the interruption that its own stop() causes.
# Without it each stop would be logged as a failure, with a page of stack trace.
_LIKE_AN_INTERRUPTION = "py4j.protocol.Py4JJavaError: An error occurred while calling: java.lang.InterruptedException"


@dataclass(frozen=True)
class Pin:
    """A transaction takes this: Spark's batch, or (``new`` False) nothing; then ``batch`` is the last one before.

    Attributes:
        batch: Spark's batch id; -1: none yet.
        new: whether the transaction holds that batch.
        query: the id of the streaming query, which belongs to the checkpoint; "" before the first batch.
        offsets: a digest of the batch's entry in Spark's offset log.
    """

    batch: int = -1
    new: bool = False
    query: str = ""
    offsets: str = ""

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def read(cls, metadata: Json) -> "Pin":
        return read_metadata(metadata, cls, "a StructuredStreamSpout")

    def problem(self) -> str | None:
        """Returns what contradicts itself in this pin, or None."""
        return None if self.batch >= (0 if self.new else -1) else "`batch` is too small"

    def same_batch(self, other: "Pin") -> bool:
        return (self.batch, self.query, self.offsets) == (other.batch, other.query, other.offsets)


class HandoverClosed(Exception):
    """Raised in the foreachBatch function, so that Spark does not commit the batch."""


class Handover:
    """Where Spark's thread and the topology's meet: one batch is offered at a time. Knows nothing of Spark."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._offer: tuple[Pin, Any] | None = None
        self._advanced: Pin | None = None
        self._closed = False

    def hand_over(self, pin: Pin, frame: Any, given_up: Callable[[], bool] = lambda: False) -> None:
        """In Spark's thread: offers a batch; returns when it has advanced.

        Args:
            pin: which batch it is.
            frame: its rows.
            given_up: whether Spark does not wait any more; asked twice a second.
        """
        with self.changed:
            offer = self._offer = (pin, frame)
            self.changed.notify_all()
            while not self._closed and not self._is_done(pin):
                if not self.changed.wait(0.5) and given_up():
                    break
            if self._offer is offer:
                self._offer = None
                self.changed.notify_all()
            if not self._is_done(pin):
                raise HandoverClosed(f"batch {pin.batch} is given back ({_LIKE_AN_INTERRUPTION})")

    def _is_done(self, pin: Pin) -> bool:
        return self._advanced is not None and self._advanced.same_batch(pin)

    def offered(self) -> tuple[Pin, Any] | None:
        """The batch that waits; not one that has advanced and that Spark is about to commit."""
        with self.changed:
            return None if self._offer is None or self._is_done(self._offer[0]) else self._offer

    def advance(self, pin: Pin) -> None:
        """The batch, and all before it, are in the topology's tables."""
        with self.changed:
            if self._advanced is None or pin.batch > self._advanced.batch:
                self._advanced = pin
                self.changed.notify_all()

    def has_advanced(self, pin: Pin) -> bool:
        with self.changed:
            if self._offer and (self._offer[0].query, self._offer[0].batch) == (pin.query, pin.batch + 1):
                return True  # Spark has committed it, which it does only after its success
            return pin.batch < 0 or (self._advanced is not None and self._advanced.batch >= pin.batch)

    def wait(self, until: Callable[[], Any], secs: float) -> bool:
        """Tells whether the condition, looked at again now and then, became true in time."""
        deadline = time.monotonic() + secs
        with self.changed:
            while not self._closed and not until():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self.changed.wait(min(left, 0.05))
            return not self._closed

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()


def following(before: Pin, offered: Pin) -> Pin:
    """The offered batch, when it is the one that must come next."""
    if offered.batch != before.batch + 1 or before.query not in ("", offered.query):
        raise other_batch(Pin(before.batch + 1, True, before.query), offered, "the next transaction")
    return offered


def other_batch(wanted: Pin, offered: Pin, who: str) -> SourceError:
    """Why another batch than the one that is needed came."""
    query = f" of query {wanted.query}" if wanted.query else ""
    if wanted.query not in ("", offered.query):
        why, action = "the checkpoint is another one", "give the spout the checkpoint that it had"
    elif offered.batch < wanted.batch:
        why, action = (
            "the checkpoint is older than the topology's tables",
            "bring back the checkpoint that belongs to them",
        )
    elif offered.batch > wanted.batch:
        why = "batches of the checkpoint went elsewhere" if wanted.batch else "the checkpoint has been used before"
        action = "use a new checkpoint, or bring back the one that belongs to the tables"
    else:
        why, action = "its offsets are others than those that were pinned", "bring back the checkpoint that it had"
    return SourceError(
        f"Spark gives another batch than the one that {who} takes: {why}",
        found=f"batch {offered.batch} of query {offered.query}",
        expected=f"batch {wanted.batch}{query}",
        action=f"{action}; or begin again with `trident reset NAME` and without the checkpoint",
    )
