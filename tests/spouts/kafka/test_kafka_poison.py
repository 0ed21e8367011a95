"""Messages that cannot be decoded: an error with topic, partition and offset, or a dead letter; never in the way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

from tests.spouts.kafka.kafka_mock import MockCluster
from trident.kafka.client import KafkaSettings
from trident.spouts.files.tasks import SourceFailure
from trident.spouts.kafka.decoding import Decoder, JsonDecoder, TextDecoder
from trident.spouts.kafka.ranges import OffsetRange
from trident.spouts.kafka.reader import Consumers, Reading
from trident.spouts.kafka.rows import COLUMNS, LETTER
from trident.udf.types import as_schema
from trident.workers.failures import SOURCE, find_report

MS_MAX = (2**63 - 1) // 1000
# Bytes of a value, its time in milliseconds, the key of a header → what the error says of it; "" of one that is good.
MESSAGES: list[tuple[bytes, int, bytes | None, str]] = [
    (b'{"n": 1}', 1_767_225_600_000, b"trace", ""),
    (b'{"n": 2}', MS_MAX + 1, None, "its timestamp is 9223372036854776 ms"),
    (b'{"n": 3}', 1_767_225_600_000_000_000, None, "its timestamp is 1767225600000000000 ms"),
    (b'{"n": 4}', 1, b"\xff\xfe", "its headers cannot be read, whose keys must be UTF-8: 'utf-8' codec"),
    (b'{"n": 5}', MS_MAX, None, ""),
    (b'{"n": 6}', -1, None, ""),
    (b'{"n": 7}', -2, None, ""),
    (b'{"n": 8}\xff', MS_MAX + 1, b"\xff", "its value cannot be parsed"),
    (b'{"n": 9}', 1, None, ""),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[MockCluster]:
    made = MockCluster(1)
    try:
        made.create("t", [1])
        for value, at, header, _ in MESSAGES:
            made.put_any("t", value, at, header)
        yield made
    finally:
        made.close()


def read(
    broker: MockCluster, columns: Any = tuple(COLUMNS), decoder: Decoder | None = None, letters: bool = True, **to: int
) -> list[dict[str, Any]]:
    connection = KafkaSettings(broker.address, {}, {}, "a KafkaSpout").connection()
    reading = Reading(connection, "g", "read_uncommitted", columns, False, 20.0, "the stream 's'", decoder, letters)
    consumers = Consumers()
    try:
        found = consumers.read(reading, [OffsetRange("t", 0, to.get("begin", 0), to.get("end", len(MESSAGES)))])
        # As numbers: Python's own times end with the year 9999.
        return [
            row
            for batch in found
            for row in (
                batch.set_column(
                    batch.schema.get_field_index("timestamp"), "timestamp", batch["timestamp"].cast("int64")
                )
                if "timestamp" in columns
                else batch
            ).to_pylist()
        ]
    finally:
        consumers.close()


JSON = JsonDecoder(as_schema("n long", "test"))


@pytest.mark.parametrize("decoder", [None, TextDecoder(), JSON], ids=["bytes", "text", "json"])
def test_each_becomes_a_dead_letter_with_its_bytes_and_its_place(broker: MockCluster, decoder: Any) -> None:
    columns = ("value", "headers", "offset")
    rows = read(broker, (*columns, "timestamp"), decoder)
    assert [row["offset"] for row in rows] == list(range(len(MESSAGES)))
    for row, (value, at, _, problem) in zip(rows, MESSAGES):
        letter = row[LETTER]
        if not problem:
            assert letter is None and row["timestamp"] == (None if at == -1 else at * 1000), row
            continue
        if decoder is not None or "value" not in problem:
            assert problem in letter["error"]
        assert (letter["topic"], letter["partition"], letter["offset"]) == ("t", 0, row["offset"])
        assert letter["value"] == value and letter["key"] is None
        assert letter["timestamp"] is None or letter["timestamp"] == dt.datetime.fromtimestamp(
            at / 1000, dt.timezone.utc
        )


@pytest.mark.parametrize("number", [n for n, (*_, problem) in enumerate(MESSAGES) if problem])
def test_without_dead_letters_the_error_names_its_place(broker: MockCluster, number: int) -> None:
    with pytest.raises(SourceFailure) as caught:
        read(broker, decoder=JSON, letters=False, begin=number, end=number + 1)
    report = find_report(caught.value, SOURCE)
    assert report is not None and f"cannot be decoded: t[0] at offset {number}" in report["message"]
    assert MESSAGES[number][3] in report["found"] and "dead_letters=" in report["action"]


def test_columns_that_are_not_wanted_fail_nothing(broker: MockCluster) -> None:
    rows = read(broker, ("value", "offset"), letters=False)
    assert [row["value"] for row in rows] == [value for value, *_ in MESSAGES]
