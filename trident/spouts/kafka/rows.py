"""The columns of Kafka's messages, as Arrow."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from trident.coordinators.tracebacks import causes, first_line
from trident.spouts.files.tasks import SourceFailure
from trident.spouts.kafka.decoding import Decoder
from trident.spouts.kafka.ranges import At

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Python checks the result of a call that is made so. For a key that is not UTF-8 the client gives a list with holes
# and sets an exception. ``message.headers()`` takes that list, once the interpreter has specialised it: Arrow crashes.
_headers_of = operator.methodcaller("headers")
# Microseconds that Spark's timestamps can be.
_LEAST, _MOST = -(2**63), 2**63 - 1
# Name → Spark's type.
COLUMNS = {
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key: string, value: binary>>",
    "timestamp": "timestamp",
    "topic": "string",
    "partition": "int",
    "offset": "long",
}


# A further column of a row: the message as it came, where it cannot be a row; else null.
LETTER = "_trident_letter"
LETTER_COLUMNS = {**COLUMNS, "error": "string"}


class Rows:
    """Messages that have been read, until they are taken as a batch.

    Args:
        decoder: of values; None: they stay as they are.
        letters: whether LETTER is a column, too; else a message that cannot be a row is an error.
        what: the source, for messages.

    Attributes:
        count: messages.
        bytes: of their values.
    """

    def __init__(
        self, columns: Sequence[str], decoder: Decoder | None = None, letters: bool = False, what: str = ""
    ) -> None:
        self._columns, self._decoder, self._letters, self._what = columns, decoder, letters, what
        self._clear()

    def _clear(self) -> None:
        self.count = self.bytes = 0
        self._messages: list[Any] = []
        self._offsets: list[int] = []
        self._runs: list[tuple[At, int]] = []
        self._problems: dict[int, str] = {}

    def add(self, at: At, messages: list[Any], offsets: list[int]) -> None:
        """Messages of one partition, at these offsets."""
        self._messages += messages
        self._offsets += offsets
        self._runs.append((at, len(messages)))
        self.count += len(messages)
        self.bytes += sum(map(len, messages))

    def add_unreadable(self, at: At, begin: int, end: int, reason: str) -> None:
        """Offsets of one partition whose messages the client cannot read: together one row, without content."""
        self._problems[self.count] = (
            f"the messages at offsets {begin} to {end - 1} cannot be read; their record batch is damaged: {reason}"
        )
        self.add(at, [_Unreadable(at, begin)], [begin])

    def taken(self) -> pa.RecordBatch:
        """The messages since it was called last.

        Raises:
            SourceFailure: a message cannot be a row, and there are no letters for it.
        """
        # Of all columns where there are letters. Each is made once: the client gives headers that it cannot decode
        # as an error at the first call, and as none at the second.
        wanted = [name for name in COLUMNS if self._letters or name in self._columns]
        raw = {name: _MAKERS[name](self) for name in wanted if name != "value" or not self._is_decoded}
        made = dict(raw)
        if self._is_decoded:
            assert self._decoder is not None
            values = [message.value() for message in self._messages]
            decoded = self._decoder.decode(values, [message.topic() for message in self._messages])
            made["value"] = decoded.values
            for number, problem in decoded.problems.items():
                self._blame(number, f"its value cannot be parsed: {problem}")
        if self._problems and not self._letters:
            raise self._failure()
        if self._letters:
            raw.setdefault("value", self.values() if self._problems else pa.nulls(self.count, pa.binary()))
            made[LETTER] = self._as_letters(raw)
        names = [*self._columns, *([LETTER] if LETTER in made else [])]
        batch = pa.RecordBatch.from_arrays([made[name] for name in names], names)
        self._clear()
        return batch

    @property
    def _is_decoded(self) -> bool:
        return self._decoder is not None and "value" in self._columns

    def _blame(self, number: int, problem: str) -> None:
        """Says why a message cannot be a row."""
        known = self._problems.get(number)
        self._problems[number] = problem if known is None else f"{known}; {problem}"

    def _failure(self) -> SourceFailure:
        number, problem = min(self._problems.items())
        message = self._messages[number]
        is_lost = isinstance(message, _Unreadable)
        return SourceFailure(
            f"{self._what}: a message cannot be decoded: {message.topic()}[{message.partition()}] at offset "
            f"{message.offset()}",
            found=problem if is_lost else f"{problem}; its value begins with {(message.value() or b'')[:200]!r}",
            expected="a message of the format and the schema that the spout is given",
            repeats=True,
            action=("let a broker lead whose copy is sound; or" if is_lost else "correct its producer and")
            + " give the batch up with `trident skip`, or name a table for such messages: dead_letters='…'",
        )

    def _as_letters(self, raw: Mapping[str, pa.Array]) -> pa.Array:
        errors = pa.array([self._problems.get(number) for number in range(self.count)], pa.string())
        columns = [*(raw[name] for name in COLUMNS), errors]
        return pa.StructArray.from_arrays(columns, [*LETTER_COLUMNS], mask=errors.is_null())

    def keys(self) -> pa.Array:
        return pa.array([message.key() for message in self._messages], pa.binary())

    def values(self) -> pa.Array:
        return pa.array([message.value() for message in self._messages], pa.binary())

    def headers(self) -> pa.Array:
        headers: list[Any] = []
        for number, message in enumerate(self._messages):
            try:
                headers.append(_headers_of(message))
            except (SystemError, UnicodeError) as error:  # the client's, which then has them no more
                headers.append(None)
                reason = next((one for one in causes(error) if isinstance(one, UnicodeError)), error)
                self._blame(number, f"its headers cannot be read, whose keys must be UTF-8: {first_line(reason)}")
        return pa.array(headers, _HEADERS) if any(headers) else pa.nulls(len(headers), _HEADERS)

    def timestamps(self) -> pa.Array:
        given = [message.timestamp() for message in self._messages]
        # Kind 0: the broker is too old for one. -1: the producer gave none.
        found = [ms * 1000 if kind and ms != -1 else None for kind, ms in given]
        for number, one in enumerate(found):
            if one is not None and not _LEAST <= one <= _MOST:
                found[number] = None
                self._blame(
                    number,
                    f"its timestamp is {given[number][1]} ms since 1970, which no timestamp of Spark can be (expected: "
                    "milliseconds; nanoseconds are a million times as many)",
                )
        return pa.array(found, pa.timestamp("us", tz="UTC"))

    def topics(self) -> pa.Array:
        return self._repeated([at.topic for at, _ in self._runs], pa.string())

    def partitions(self) -> pa.Array:
        return self._repeated([at.partition for at, _ in self._runs], pa.int32())

    def offsets(self) -> pa.Array:
        return pa.array(self._offsets, pa.int64())

    def _repeated(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        counts = (count for _, count in self._runs)
        return pa.concat_arrays([pa.repeat(pa.scalar(value, kind), count) for value, count in zip(values, counts)])


class _Unreadable:
    """A message as the client gives it, of which nothing is known but its place."""

    def __init__(self, at: At, offset: int) -> None:
        self._at, self._offset = at, offset

    def __len__(self) -> int:
        return 0

    def topic(self) -> str:
        return self._at.topic

    def partition(self) -> int:
        return self._at.partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 0, -1

    def key(self) -> None:
        return None

    value = headers = key


_MAKERS: Mapping[str, Callable[[Rows], pa.Array]] = {
    "key": Rows.keys,
    "value": Rows.values,
    "headers": Rows.headers,
    "timestamp": Rows.timestamps,
    "topic": Rows.topics,
    "partition": Rows.partitions,
    "offset": Rows.offsets,
}
