"""A combined value that does not fit its state fails the batch before its decision, naming state and key."""

from __future__ import annotations

import random
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.states.group_helpers import Group
from trident import get
from trident.coordinators.errors import ValueDoesNotFit
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import ProcessedBatch
from trident.operations.aggregators import Sum
from trident.operations.state_nodes import FOUND, CombineStoredOp
from trident.planning.session_frames import Batch, SessionFrames
from trident.states.core.binding import StateBinding
from trident.states.core.descriptor import load_descriptor
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.delta.staging import attempt_folder, staged_file
from trident.states.keyed import fitting
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.delta_map import KEYED, DeltaMapState
from trident.states.keyed.reading import read_state
from trident.states.publishing.user_tasks import BatchInfo

MOST = 2**63 - 1


class Picky:
    """A combiner of the user's that has no value for everything, until it is corrected."""

    refuses = 13

    def init(self, value: int) -> int:
        return value

    def combine(self, a: int, b: int) -> int:
        if b == self.refuses:
            raise ValueError("not thirteen")
        return a + b

    def zero(self) -> int:
        return 0


class Sums(Group):
    """A group with one state, which is given rows of its log."""

    def __init__(self, engine: KernelEngine, warehouse: Path, kind: str = "bigint", aggregator: Any = None) -> None:
        self.schema = StructType.fromDDL(f"word string, total {kind}")
        state = DeltaMapState("totals")
        binding = StateBinding(state, KEYED, ("word",), self.schema, ("total",), aggregator or Sum())
        super().__init__(engine, warehouse, [binding])
        self.engine = engine
        self.open()

    def prepared(self, txid: int, rows: dict[str, Any]) -> Any:
        """The decision of a batch with these partial values, in files of three rows at most."""
        attempt = TransactionAttempt(txid, 0)
        (target,) = self.committer.staging_targets
        schema, found = to_arrow_schema(self.schema), []
        pairs = list(rows.items())
        for start in range(0, len(pairs), 3):
            words, totals = zip(*pairs[start : start + 3])
            table = pa.table([pa.array(words), pa.array(totals, schema.field("total").type)], schema=schema)
            file = FileTarget(
                target.name, str(target.root), attempt_folder("inc", attempt), constants={target.txid_column: txid}
            )
            found += [staged_file(report) for report in write_partition(file, table.to_batches())]
        return self.committer.prepare(attempt, None, ProcessedBatch({"totals": found}), self.record).decision

    def add(self, txid: int, rows: dict[str, Any]) -> None:
        decision = self.prepared(txid, rows)
        self.advance(decision, self.committer.publish(decision, self.record))

    def merge(self, upto: int) -> None:
        (binding,), state = self.bindings, load_descriptor(self.warehouse, "totals")
        Compactor(self.engine.spark, self.engine, self.warehouse, state, None, binding.aggregator).merge_once(
            upto, force=True
        )

    def read(self, spark: SparkSession) -> dict[str, Any]:
        frame = read_state(spark, self.warehouse, "totals", aggregator=self.bindings[0].aggregator)
        return {row.word: row.total for row in frame.collect()}


def test_a_sum_that_does_not_fit_fails_the_batch_and_names_state_and_key(spark, engine, tmp_path) -> None:
    group = Sums(engine, tmp_path)
    group.add(1, {"a": MOST - 5, "b": 1})
    group.merge(1)
    group.add(2, {"a": 5, "b": 1})  # just fits
    with pytest.raises(ValueDoesNotFit, match=r"state totals .*\"word\":\"a\".*found: 9223372036854775808") as caught:
        group.prepared(3, {"a": 1, "c": 1})
    assert (caught.value.state, caught.value.key) == ("totals", '{"word":"a"}')
    group.add(3, {"c": 1, "a": -10})  # the source has corrected it
    assert group.read(spark) == {"a": MOST - 10, "b": 2, "c": 1}


@pytest.mark.long
@pytest.mark.usefixtures("native_or_spark")
def test_a_total_that_fits_is_found_however_its_parts_are_added(spark, engine, tmp_path) -> None:
    """Neither the sum of the log alone nor that of some of its rows needs to fit."""
    group = Sums(engine, tmp_path)
    for txid, total in enumerate((-MOST, MOST, MOST), start=1):
        group.add(txid, {"a": total, "b": 0})
        if txid == 1:
            group.merge(1)
    assert group.read(spark) == {"a": MOST, "b": 0}
    group.merge(3)
    group.add(4, {"a": -7})
    group.add(5, {"a": 7})
    group.merge(5)
    table = deltalake.DeltaTable(str(tmp_path / "totals")).to_pyarrow_table().to_pylist()
    assert {row["word"]: row["total"] for row in table} == {"a": MOST, "b": 0}


def test_what_waits_in_the_log_counts_beside_what_is_merged(engine, tmp_path) -> None:
    group = Sums(engine, tmp_path)
    group.add(1, {"a": 1 << 62})
    group.merge(1)
    group.add(2, {"a": (1 << 62) - 1})
    with pytest.raises(ValueDoesNotFit):
        group.prepared(3, {"a": 1})


@pytest.fixture(params=["native", "spark"])
def native_or_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges by files, and Delta's MERGE."""
    if request.param == "spark":
        monkeypatch.setattr("trident.states.keyed.file_merge.LOG_BYTES_MAX", -1)


@pytest.mark.long
def test_a_decimal_with_more_digits_than_its_type_fails_the_batch(spark, engine, tmp_path) -> None:
    for name, kind, first, most in (
        ("short", "decimal(12,2)", Decimal("9999999998.99"), Decimal("9999999999.99")),
        ("long", "decimal(38,10)", Decimal("9" * 27 + "8." + "9" * 10), Decimal("9" * 28 + "." + "9" * 10)),
    ):
        group = Sums(engine, tmp_path / name, kind)
        group.add(1, {"a": first, "b": Decimal(0)})
        with pytest.raises(ValueDoesNotFit, match='"word":"a"'):
            group.prepared(2, {"a": Decimal("1.01"), "b": Decimal(1)})
        group.add(2, {"a": Decimal(1), "b": None})
        assert group.read(spark) == {"a": most, "b": Decimal(0)}
        group.merge(2)
        assert group.read(spark) == {"a": most, "b": Decimal(0)}


@pytest.mark.long
def test_a_combiner_that_has_no_value_is_named_and_a_corrected_one_goes_on(spark, engine, tmp_path) -> None:
    picky = Picky()
    group = Sums(engine, tmp_path, aggregator=picky)
    group.add(1, {"a": 1, "b": 1})
    group.add(2, {"a": 1, "b": 13})
    for stuck in (lambda: group.read(spark), lambda: group.merge(2)):
        with pytest.raises(Exception, match=r"(?s)state totals.*not thirteen.*'b'.*correct the combiner"):
            stuck()
    picky.refuses = 0
    assert group.read(spark) == {"a": 2, "b": 14}
    group.merge(2)
    assert group.read(spark) == {"a": 2, "b": 14}


@pytest.mark.long
@pytest.mark.parametrize("wrong", [1.5, True, Decimal("2.5"), "7"])
def test_a_combined_value_of_another_type_is_refused_and_never_converted(spark, engine, tmp_path, wrong) -> None:
    """Arrow alone would make 1 of 1.5."""
    picky = Picky()
    picky.combine = lambda a, b: wrong  # type: ignore[method-assign]
    group = Sums(engine, tmp_path, aggregator=picky)
    group.add(1, {"a": 1, "b": 1})
    group.add(2, {"b": 1})
    of_key = partial(get, tmp_path, "totals", aggregator=picky)
    for stuck in (lambda: group.read(spark), lambda: group.merge(2), lambda: of_key("b")):
        with pytest.raises(Exception, match=r"(?s)state totals.*'total'.*'b'.*correct the combiner"):
            stuck()
    assert of_key("a") == {"total": 1}, "other keys are read one by one"
    picky.combine = lambda a, b: a + b  # type: ignore[method-assign]
    assert group.read(spark) == {"a": 1, "b": 2}
    group.merge(2)
    assert group.read(spark) == {"a": 1, "b": 2}


def test_each_batch_is_taken_exactly_if_all_its_totals_fit(spark, engine, tmp_path, rng: random.Random) -> None:
    group, totals = Sums(engine, tmp_path), dict.fromkeys("abcde", 0)
    for txid in range(1, 6):
        size = rng.choice((1, 1 << 40, 1 << 61, 1 << 63))
        rows = {word: rng.randrange(-size, size) for word in rng.sample("abcde", 4)}
        after = {**totals, **{word: totals[word] + value for word, value in rows.items()}}
        if all(-MOST - 1 <= value <= MOST for value in after.values()):
            group.add(txid, rows)
            totals = after
        else:
            with pytest.raises(ValueDoesNotFit):
                group.prepared(txid, rows)
            group.add(txid, {"a": 0})
        if txid == 2:
            group.merge(txid)
    found = group.read(spark)
    assert {word: value for word, value in totals.items() if word in found} == found


def test_small_sums_are_not_looked_up(engine, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting.Fitting, "_look_up", lambda *_: pytest.fail("looked up"))
    for name, kind, value in (
        ("n", "bigint", 1 << 40),
        ("d", "decimal(38,18)", Decimal("123456789.123456789123456789")),
    ):
        group = Sums(engine, tmp_path / name, kind)
        for txid in (1, 2, 3):
            group.add(txid, {"a": value, "b": -value, "c": None})


@pytest.mark.long
def test_a_state_that_was_left_without_a_value_names_the_key_and_can_be_repaired(spark, engine, tmp_path, monkeypatch):
    """As versions before the look have left it."""
    group = Sums(engine, tmp_path)
    monkeypatch.setattr(fitting.Fitting, "check", lambda *_: None)
    group.add(1, {"a": MOST, "b": 1, "c": -MOST})
    group.merge(1)
    group.add(2, {"a": 1, "b": 1, "c": -5})
    for stuck in (lambda: group.merge(2), lambda: group.read(spark)):
        with pytest.raises(Exception, match=r"state totals .*\"word\":\"(a|c)\".*`trident repair top`"):
            stuck()
    state = load_descriptor(tmp_path, "totals")
    found = dict(fitting.Fitting(engine, GroupContext(Place(tmp_path), "top", "g", "inc")).stuck_keys(state, 2))
    assert set(found) == {'{"word":"a"}', '{"word":"c"}'} and str(MOST + 1) in found['{"word":"a"}']
    compactor = Compactor(spark, engine, tmp_path, state)
    planned = compactor.plan(2)
    assert planned is not None
    compactor.merge(*planned, clamps=True)
    assert group.read(spark) == {"a": MOST, "b": 2, "c": -MOST - 1}
    assert fitting.Fitting(engine, GroupContext(Place(tmp_path), "top", "g", "inc")).stuck_keys(state, 2) == []


@pytest.mark.parametrize("scale", [2, 10])
def test_the_new_values_of_decimals_of_38_digits_are_exact(spark, scale: int) -> None:
    """Spark's own sum of two such decimals with ten digits behind the point has nine; one alone is as it was."""
    fields = tuple(StructType.fromDDL(f"word string, total decimal(38,{scale})").fields)
    schema = f"word string, total decimal(38,{scale}), stored decimal(38,{scale}), {FOUND} boolean"
    least, most, last = (Decimal(f"{digits}e-{scale}") for digits in (1, "9" * 38, "9" * 37 + "8"))
    stored, more = (Decimal(f"{'123456789' * 4}{digit}e-{scale}") for digit in (2, 3))
    rows = [("a", least, stored, True), ("b", most, None, False), ("c", None, most, True), ("d", most, None, True)]
    if scale == 2:
        rows.append(("e", -least, most, True))
    op = CombineStoredOp(fields, ("word",), "total", "stored", Sum())

    def combined(*given: tuple[Any, ...]) -> dict[str, Any]:
        frame = spark.createDataFrame(given, schema)
        batch = Batch(BatchInfo(TransactionAttempt(1, 0)))
        return {row.word: row.total for row in op.transform(SessionFrames(spark))(frame, batch).collect()}

    found = combined(*rows)
    assert found.pop("e", last) == last and found == {"a": more, "b": most, "c": most, "d": most}
    with pytest.raises(Exception, match="no exact sum of 38 digits"):
        combined(("f", least, most, True))
