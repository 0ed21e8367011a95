"""The hour that comes twice at the end of summer time: two instants are never one, wherever Python compares them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tests.streams.stream_helpers import stream_of
from tests.topology_helpers import starter
from trident import DeltaAppend, DeltaMapState, FixedBatchSpout, Max, TridentTopology, read
from trident.states.core.typed_values import python_values
from trident.testing import run_batch

UTC = datetime.timezone.utc
# 02:30 on the clocks of Berlin, before and after they are set back.
EARLIER, LATER = (datetime.datetime(2023, 10, 29, hour, 30, tzinfo=UTC) for hour in (0, 1))
A_BIT_EARLIER = EARLIER + datetime.timedelta(minutes=15)  # 02:45: later than LATER by the clock on the wall
MICROS = [int(at.timestamp()) * 1_000_000 for at in (EARLIER, LATER)]


@pytest.fixture
def berlin(spark) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


class Sum:
    def init(self, n: int) -> int:
        return n

    def combine(self, a: int, b: int) -> int:
        return a + b

    def zero(self) -> int:
        return 0


class Fold:
    def init(self) -> int:
        return 0

    def reduce(self, current: int, n: int) -> int:
        return current + n


def test_values_are_in_utc_also_within_others() -> None:
    at = pa.timestamp("us", "Europe/Berlin")
    assert python_values(pa.array([*MICROS, None], at)) == [EARLIER, LATER, None]
    assert len(set(python_values(pa.chunked_array([pa.array(MICROS, at)])))) == 2
    nested = pa.struct([("one", at), ("list", pa.list_(at)), ("map", pa.map_(at, at))])
    row = {"one": MICROS[0], "list": MICROS, "map": [(MICROS[0], MICROS[1]), (MICROS[1], None)]}
    (found,) = python_values(pa.array([row], nested))
    assert found == {"one": EARLIER, "list": [EARLIER, LATER], "map": {EARLIER: LATER, LATER: None}}
    assert python_values(pa.array(MICROS, pa.timestamp("us"))) == [at.replace(tzinfo=None) for at in (EARLIER, LATER)]


@pytest.mark.parametrize("aggregator", [pytest.param(Sum(), marks=pytest.mark.long), Fold()])
def test_a_group_per_instant(berlin, spark, aggregator) -> None:
    rows = [(EARLIER, 1), (LATER, 2), (EARLIER, 4)]
    counted = stream_of("at timestamp, n long").group_by("at").aggregate("n", aggregator, "n long")
    assert sorted(n for _, n in run_batch(counted, rows, spark=spark, partitions=2)) == [2, 5]


@pytest.mark.long
def test_the_later_one_is_greater(berlin, spark) -> None:
    stream, rows = stream_of("at timestamp, n long"), [(A_BIT_EARLIER, 1), (LATER, 2)]
    for made in (
        stream.partition_aggregate("at", Max(), "most").select(F.unix_timestamp("most")),
        stream.max_by("at").select(F.unix_timestamp("at")),
        stream.max_by("at", scope="batch").select(F.unix_timestamp("at")),
        stream.max_by("at", lambda a, b: (a > b) - (a < b)).select(F.unix_timestamp("at")),
    ):
        assert run_batch(made, rows, spark=spark) == [(int(LATER.timestamp()),)]


@pytest.mark.long
def test_states_keep_a_row_per_instant(berlin, spark, zk_server, zk_root, tmp_path) -> None:
    batches = [[(EARLIER, 1), (LATER, 2)], [(LATER, 4), (EARLIER, 8)]]
    topology = TridentTopology("instants")
    stream = topology.new_stream("s", FixedBatchSpout("at timestamp, n long", batches))
    stream.group_by("at").persistent_aggregate(DeltaMapState("sums"), "n", Sum(), "n long")
    stream.partition_persist(DeltaAppend("rows", partition_columns="at"))
    expected = [(int(EARLIER.timestamp()), 9), (int(LATER.timestamp()), 6)]
    with starter(spark, zk_server, zk_root, tmp_path) as start:
        start.run(topology).stop()  # with the one MERGE, which folds both transactions
    sums = read(spark, tmp_path / "warehouse", "sums").select(F.unix_timestamp("at"), "n")
    assert sorted(map(tuple, sums.collect())) == expected
    rows = read(spark, tmp_path / "warehouse", "rows").groupBy(F.unix_timestamp("at")).agg(F.sum("n"))
    assert sorted(map(tuple, rows.collect())) == expected
