"""The fold of each built-in aggregate gives what Spark gives for the same rows in the same order."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.states.core.test_copy_rows import VALUES, arrow_schema
from trident.states.core.copy_rows import plain_values
from trident.states.core.copyable import is_folded
from trident.states.core.folds import DoesNotFit, folded, onto
from trident.states.core.native import NATIVE

KINDS = [(name, kind) for name in ("min", "max") for kind in VALUES if not kind.startswith("map")]
KINDS += [("sum", "bigint"), ("sum", "double"), ("sum", "decimal(38,2)"), ("count", "bigint")]
GROUPS = 150


def texts(values: pa.Array) -> list[str]:
    """Of values that differ others, also of 0.0 and -0.0."""
    return [repr(value) for value in plain_values(values, values.type)]


@pytest.mark.parametrize(("aggregator", "kind"), KINDS)
def test_spark_is_the_oracle(spark: SparkSession, rng: random.Random, aggregator: str, kind: str) -> None:
    schema = arrow_schema(f"g bigint, v {kind}")
    groups = np.array([*range(GROUPS), *(rng.randrange(GROUPS) for _ in range(3 * GROUPS))])
    values = pa.array([rng.choice([*VALUES[kind], None]) for _ in groups], schema.types[1])
    rows = spark.createDataFrame(pa.table([pa.array(groups), values], schema=schema)).coalesce(1)
    adds = aggregator in ("sum", "count")
    merged = F.expr("try_sum(v)") if adds else NATIVE[aggregator].merge(F.col("v"))  # null where ANSI's sum fails
    found = rows.groupBy("g").agg(merged.alias("v")).orderBy("g").toArrow().column("v").combine_chunks()
    expected, refused = texts(found.cast(values.type)), list[int]()
    for group in range(GROUPS):
        own = values.filter(pa.array(groups == group))
        try:
            alone = folded(aggregator, [], own)[1]
        except DoesNotFit:
            refused.append(group)
            assert expected[group] == "None", own
            continue
        if texts(alone) != [expected[group]]:  # in Spark a sum must fit on its way, too
            assert adds and expected[group] == "None" and alone[0].as_py() == sum(filter(None, own.to_pylist())), own
    kept = ~np.isin(groups, refused)
    numbers = np.unique(groups[kept], return_inverse=True)[1]
    left, count = values.filter(pa.array(kept)), GROUPS - len(refused)
    (names,), together = folded(aggregator, [pa.array(numbers)], left)
    assert names.to_pylist() == list(range(count))
    assert texts(onto(aggregator, left.slice(0, count), left.slice(count), numbers[count:])) == texts(together)


def test_a_fold_of_no_row_is_null_and_the_key_of_a_sum_that_does_not_fit_is_named() -> None:
    assert folded("sum", [], pa.array([], pa.int64()))[1].to_pylist() == [None]
    assert folded("sum", [pa.array([], pa.string())], pa.array([], pa.int64()))[1].to_pylist() == []
    with pytest.raises(DoesNotFit, match="overflow: the sum 9223372036854775808 does not fit bigint") as caught:
        folded("sum", [pa.array(["a", "b", "b"])], pa.array([1, 2**63 - 1, 1]))
    assert caught.value.key == ["b"]


@pytest.mark.parametrize(
    ("aggregator", "kind"),
    [
        ("sum", pa.float32()),
        ("sum", pa.string()),
        ("another", pa.int64()),
        ("min", pa.duration("us")),
        ("max", pa.list_(pa.duration("us"))),
        ("min", pa.month_day_nano_interval()),
    ],
)
def test_these_are_not_folded(aggregator: str, kind: pa.DataType) -> None:
    assert not is_folded(aggregator, kind)


@pytest.mark.parametrize("count", [3, 40, 5000])
def test_sum_of_doubles_without_keys_is_from_the_first_to_the_last(count: int) -> None:
    source = random.Random(1)
    values = [source.uniform(-1e16, 1e16) if at % 2 else source.random() for at in range(count)]
    expected = 0.0
    for value in values:
        expected += value
    rows = pa.chunked_array([values[:2], values[2:]])
    assert folded("sum", [], rows)[1].to_pylist() == [expected]
