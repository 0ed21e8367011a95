"""Rows are counted by the numbers of tasks: whatever runs twice counts once, and what did not end is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from trident.spouts.tasks import KeyedCounts, TaskRows


def read(tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As many rows as the task's number says, a batch each."""
    for task in tasks:
        for number in task.column(0).to_pylist():
            for row in range(number):
                yield pa.RecordBatch.from_pydict({"n": [row]})


@pytest.fixture
def counted(spark: Any) -> Any:
    def make() -> tuple[TaskRows, Any]:
        rows = TaskRows(spark, 4)
        return rows, spark.range(0, 4, 1, 4).mapInArrow(rows.counted(read), "n long")

    return make


def test_a_count_that_comes_again_changes_nothing() -> None:
    counts = KeyedCounts()
    value = counts.zero({})
    for one in ({"a": {0: 5}}, {"a": {1: 2}}, {"b": {0: 9}}, {"a": {0: 5}}):
        value = counts.addInPlace(value, one)
    assert value == {"a": {0: 5, 1: 2}, "b": {0: 9}}


def test_rows_that_two_states_are_made_of_count_once_whatever_their_partitions(counted: Any) -> None:
    rows, frame = counted()
    both = frame.union(frame.coalesce(1)).groupBy("n").count()
    assert sum(row["count"] for row in both.collect()) == 12
    assert rows() == 6


def test_what_was_not_read_to_its_end_is_unknown(counted: Any) -> None:
    rows, frame = counted()
    assert frame.where(F.lit(False)).count() == 0 and rows() is None
    rows, frame = counted()
    assert frame.limit(1).count() == 1 and rows() is None
