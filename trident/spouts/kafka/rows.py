"""The columns of Kafka's messages, as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from trident.spouts.files.tasks import SourceFailure
from trident.spouts.kafka.decoding import Decoded, Decoder
from trident.spouts.kafka.ranges import At

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
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


# Beside the columns of a row: the message as it came, where its value does not parse; else null.
LETTER = "_trident_letter"
LETTER_COLUMNS = {**COLUMNS, "error": "string"}


class Rows:
    """Messages that have been read, until they are taken as a batch.

    Args:
        decoder: of values; None: they stay as they are.
        letters: whether LETTER is a column, too; else a value that does not parse is an error.
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

    def add(self, at: At, messages: list[Any], offsets: list[int]) -> None:
        """Messages of one partition, at these offsets."""
        self._messages += messages
        self._offsets += offsets
        self._runs.append((at, len(messages)))
        self.count += len(messages)
        self.bytes += sum(map(len, messages))

    def taken(self) -> pa.RecordBatch:
        """The messages since it was called last.

        Raises:
            SourceFailure: a value does not parse, and there are no letters for it.
        """
        made = {name: _MAKERS[name](self) for name in self._columns if name != "value" or self._decoder is None}
        if self._decoder is not None:
            decoded = self._decoder.decode(
                [message.value() for message in self._messages], [message.topic() for message in self._messages]
            )
            if decoded.problems and not self._letters:
                raise self._malformed(decoded)
            made["value"] = decoded.values
            if self._letters:
                made[LETTER] = self._as_letters(decoded.problems)
        names = [*self._columns, *([LETTER] if LETTER in made else [])]
        batch = pa.RecordBatch.from_arrays([made[name] for name in names], names)
        self._clear()
        return batch

    def _malformed(self, decoded: Decoded) -> SourceFailure:
        number, problem = min(decoded.problems.items())
        message = self._messages[number]
        return SourceFailure(
            f"{self._what}: the value of a message cannot be parsed: {message.topic()}[{message.partition()}] at "
            f"offset {message.offset()}",
            found=f"{problem}; {message.value()[:200]!r}",
            expected="a value of the format and the schema that the spout is given",
            repeats=True,
            action="correct its producer and give the batch up with `trident skip`, or name a table for such messages: "
            "dead_letters='…'",
        )

    def _as_letters(self, problems: Mapping[int, str]) -> pa.Array:
        errors = pa.array([problems.get(number) for number in range(self.count)], pa.string())
        columns = [*(_MAKERS[name](self) for name in COLUMNS), errors]
        return pa.StructArray.from_arrays(columns, [*LETTER_COLUMNS], mask=errors.is_null())

    def keys(self) -> pa.Array:
        return pa.array([message.key() for message in self._messages], pa.binary())

    def values(self) -> pa.Array:
        return pa.array([message.value() for message in self._messages], pa.binary())

    def headers(self) -> pa.Array:
        headers = [message.headers() for message in self._messages]
        return pa.array(headers, _HEADERS) if any(headers) else pa.nulls(len(headers), _HEADERS)

    def timestamps(self) -> pa.Array:
        given = [message.timestamp() for message in self._messages]
        # Kind 0: none; the milliseconds are then -1.
        return pa.array([ms * 1000 if kind else None for kind, ms in given], pa.timestamp("us", tz="UTC"))

    def topics(self) -> pa.Array:
        return self._repeated([at.topic for at, _ in self._runs], pa.string())

    def partitions(self) -> pa.Array:
        return self._repeated([at.partition for at, _ in self._runs], pa.int32())

    def offsets(self) -> pa.Array:
        return pa.array(self._offsets, pa.int64())

    def _repeated(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        counts = (count for _, count in self._runs)
        return pa.concat_arrays([pa.repeat(pa.scalar(value, kind), count) for value, count in zip(values, counts)])


_MAKERS: Mapping[str, Callable[[Rows], pa.Array]] = {
    "key": Rows.keys,
    "value": Rows.values,
    "headers": Rows.headers,
    "timestamp": Rows.timestamps,
    "topic": Rows.topics,
    "partition": Rows.partitions,
    "offset": Rows.offsets,
}
