"""Sources of single messages: Storm's rich spouts (docs/semantics.md 6).

A rich spout hands out messages one by one, each with an id of its own choosing,
and is told of each id how it ended: ``ack`` when everything that was made of
the message is processed, ``fail`` when it is not and must be handed out again.
It lives on the driver. It is the source of a tuple topology
(:mod:`trident.tuples.topology`) or of a Trident stream
(``TridentTopology.new_stream``), where ``ack`` is told when the message's
transaction is durable.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql.types import StructType

from trident.coordinators.errors import SourceError
from trident.spouts.contracts import SpoutContext, SpoutKind
from trident.udf.types import as_schema

DEFAULT_STREAM = "default"
_PLAIN_IDS = (int, str)
# One emit: the id, the tuples, the stream. A tuple of plain values is nothing to the garbage collector.
Given = tuple[Any, tuple[tuple[Any, ...], ...], str]


@dataclass(slots=True)
class Message:
    """The arguments of one ``emit``.

    Attributes:
        message_id: of the spout's choosing; None: it is not tracked.
        rows: the tuples that it was emitted as.
        stream: of the spout.
    """

    message_id: Any
    rows: tuple[tuple[Any, ...], ...]
    stream: str = DEFAULT_STREAM


class SpoutCollector:
    """A rich spout emits to it, from any thread, as that of a broker's client (docs/semantics.md 6).

    Emits of a thread of the spout's own are taken when the spout is asked next.
    Each emit is taken once and none is lost, as long as the spout is not closed.

    Args:
        width: how many values a tuple has, by stream.
    """

    def __init__(self, width: "dict[str, int]") -> None:
        self._width = width
        # A thread may append while it is drained: each of the two is one step that no other thread can split.
        self._emitted: deque[Given] = deque()

    def emit(self, values: Any, message_id: Any = None, stream: str = DEFAULT_STREAM) -> None:
        """Emits one tuple, the root of a tree if it has an id.

        Args:
            values: one per field, in their order; a single value where there is one field.
            message_id: text, a number or a list of these, distinct among the messages that are
                not settled; a message that comes again has the id that it had. None: the spout
                is not told how it ended, and it does not come again.
            stream: of the spout, where it has several.

        Raises:
            SourceError: the tuple has another number of values than the stream has fields, or the id is not one.
        """
        self._give((self._tuple(values, stream),), message_id, stream)

    def emit_many(self, rows: Iterable[Any], message_id: Any = None, stream: str = DEFAULT_STREAM) -> None:
        """Emits one message as several tuples, all of one tree: the id is settled when all of them are.

        No tuple at all is allowed: the message is then acknowledged at once.
        """
        self._give(tuple([self._tuple(values, stream) for values in rows]), message_id, stream)

    def _give(self, rows: tuple[tuple[Any, ...], ...], message_id: Any, stream: str) -> None:
        if message_id is not None and message_id.__class__ not in _PLAIN_IDS:
            message_key(message_id)
        self._emitted.append((message_id, rows, stream))

    def drain(self) -> list[Message]:
        """Returns what was emitted since the last call; for those who drive a spout."""
        return [Message(*given) for given in self.take()]

    def take(self) -> list[Given]:
        """As :meth:`drain`, without an object for each message."""
        # Never the whole at once: an emit that a thread adds meanwhile would go with it.
        return [self._emitted.popleft() for _ in range(len(self._emitted))]

    def put_back(self, messages: Sequence[Given]) -> None:
        """The next to be taken, in this order."""
        self._emitted.extendleft(reversed(messages))

    def __len__(self) -> int:
        return len(self._emitted)

    def _tuple(self, values: Any, stream: str) -> tuple[Any, ...]:
        width = self._width.get(stream)
        if width is None:
            raise SourceError(
                f"there is no stream {stream!r}", found=repr(values)[:200], expected=f"one of {', '.join(self._width)}"
            )
        row = tuple(values) if isinstance(values, (tuple, list)) else (values,)
        if len(row) != width:
            raise SourceError(
                "a spout emitted a tuple with another number of values than there are fields",
                found=repr(values)[:200],
                expected=f"{width} values",
            )
        return row


class RichSpout:
    """The base of a source of single messages. All calls come one at a time; its threads may emit at any time.

    ::

        class Lines(RichSpout):
            fields = "line string"

            def next_tuple(self):
                message = self.source.get()           # None when there is nothing
                if message is not None:
                    self.collector.emit(message.text, message.id)

            def ack(self, message_id):
                self.source.delete(message_id)        # never before it is safe

            def fail(self, message_id):
                self.source.put_back(message_id)      # it is handed out again

    The spout's duty: a message that it has emitted with an id stays with the
    source until ``ack``; it may be emitted again after ``fail``, or by the
    spout of another process after a crash, with the same id.

    A spout with ``ack_many(ids)`` is told so, instead of with ``ack``, where
    several messages end at once, as those of a transaction do. One with
    ``backlog()`` says how many messages it has that it has not emitted
    (``Backlog(rows=n)``), from another thread than the other calls; without it
    the backlog of the stream is unknown.

    Attributes:
        fields: the fields of its tuples, ``"line string, n long"`` or a StructType.
            In a tuple topology types may be left out, and a mapping gives the
            fields of several streams.
        collector, context: set before ``open``.
    """

    kind = SpoutKind.OPAQUE  # a message that fails comes again in another batch
    fields: Any = ""
    collector: SpoutCollector
    context: "SpoutContext"

    @cached_property
    def output_schema(self) -> "StructType":
        """The fields with their types.

        Raises:
            TopologyError: a field has no type.
        """
        return as_schema(self.fields, type(self).__name__)

    def open(self) -> None:
        """Called once, before anything else, on the driver that leads; never in a standby that waits."""

    def next_tuple(self) -> None:
        """Emits one message to ``self.collector``, or nothing when there is none now. Must not wait."""

    def ack(self, message_id: Any) -> None:
        """Everything that was made of the message is processed. Told at least once; must be idempotent."""

    def fail(self, message_id: Any) -> None:
        """The message was not processed and must be emitted again, now or later."""

    def close(self) -> None:
        """Called last. Messages that are neither acknowledged nor failed must stay with the source."""


def message_key(message_id: Any) -> str:
    """The id as text by which two are compared, also after a restart: 1 is not "1".

    Raises:
        SourceError: it is not JSON.
    """
    # As json.dumps has them, in a tenth of the time.
    if message_id.__class__ is int:
        return str(message_id)
    if message_id.__class__ is str:
        return json.encoder.encode_basestring_ascii(message_id)
    try:
        return json.dumps(message_id, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise SourceError(
            "a message id cannot be used",
            found=repr(message_id)[:200],
            expected="text, a number, or a list of these",
        ) from error


def is_rich_spout(spout: Any) -> bool:
    """Tells whether the object is a source of single messages; a class of its own needs no base."""
    return not isinstance(spout, type) and all(
        callable(getattr(spout, method, None)) for method in ("open", "next_tuple", "ack", "fail")
    )
