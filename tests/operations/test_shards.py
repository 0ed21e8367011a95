"""A late part that is cut into shards: the tasks of all shards together give what one task gives, batch after batch."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.operations.test_late_forms import shown
from tests.streams.stream_helpers import RowsSpout
from trident.coordinators.identities import TransactionAttempt
from trident.operations.aggregators import Count, Max, Sum
from trident.operations.persisting import Upsert
from trident.planning.groups import GroupPlan, plan
from trident.states.core.binding import StateBinding
from trident.states.core.copy_rows import RowCodec
from trident.states.core.local_copy import CopyAsOf, CopyMark, LocalCopy, new_folder
from trident.states.core.shards import Shard
from trident.states.core.tables import DELETED_COLUMN
from trident.states.core.values import MapGet
from trident.states.delta.append import DeltaAppend
from trident.states.keyed.delta_map import DeltaMapState
from trident.states.publishing.user_tasks import BatchInfo
from trident.topology import TridentTopology
from trident.workers import open_windows
from trident.workers.late_pass import LatePass

BATCHES, FIELDS = 5, "k string, v bigint, at timestamp"
START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


class Longest:
    def init(self) -> int:
        return 0

    def reduce(self, longest: int, v: Any) -> int:
        return max(longest, len(repr(v)))


def reduced_and_asked(rows: Any, _: Any) -> None:
    rows.group_by("k").persistent_aggregate(DeltaMapState("longest"), "v", Longest(), "n long")
    last = rows.project("k", "v").partition_persist(DeltaMapState("last"), None, Upsert("k"))
    asked = rows.state_query(last, "k", MapGet(), "old")
    asked.each("old", repr, "text string").partition_persist(DeltaAppend("asked"))
    asked.group_by("k").aggregate("old", Max(), "m").partition_persist(DeltaAppend("most"))


def new_values(rows: Any, _: Any) -> None:
    sums = rows.group_by("k").persistent_aggregate(DeltaMapState("sums"), "v", Sum(), "total")
    sums.new_values_stream().partition_persist(DeltaAppend("news"))


def windows(rows: Any, _: Any) -> None:
    slid = rows.sliding_window("20 seconds", "15 seconds", "slid")
    slid.group_by("k").aggregate("v", Sum(), "s").partition_persist(DeltaAppend("fired"))
    slid.late_rows().partition_persist(DeltaAppend("late"))
    met = rows.session_window("5 seconds", "met").group_by("k").chained_agg()
    met.aggregate(Count(), "n").aggregate("v", Max(), "m").chain_end().partition_persist(DeltaAppend("sessions"))


def timed(rows: Any, others: Any) -> None:
    first = rows.drop_duplicates("k", within="20 seconds", name="seen")
    first.partition_persist(DeltaAppend("first"))
    first.late_rows().partition_persist(DeltaAppend("late"))
    pairs = rows.join(others, "k", "left", "k, v, at, w, its_at", within="9 seconds", name="waiting")
    pairs.partition_persist(DeltaAppend("pairs"))


def group_of(made: Callable[[Any, Any], None]) -> GroupPlan:
    topology = TridentTopology("cut")
    rows = topology.new_stream("rows", RowsSpout(FIELDS)).with_watermark("at", "4 seconds")
    others = topology.new_stream("others", RowsSpout("k string, w bigint, at timestamp"))
    made(rows, others.with_watermark("at", "4 seconds") if made is timed else None)
    if made is not timed:
        others.partition_persist(DeltaAppend("others"))
    return next(group for group in plan(topology.graph) if group.is_late)


class Copies:
    """Local copies of a group's states, which follow what is given for these."""

    def __init__(self, folder: Path, group: GroupPlan) -> None:
        self._bindings = {one.name: one for one in group.bindings if one.name in group.copied_states}
        self._copies = {name: self._made(folder, one) for name, one in self._bindings.items()}
        self._txid = 0

    def _made(self, folder: Path, state: StateBinding) -> tuple[LocalCopy, CopyAsOf]:
        schema = to_arrow_schema(state.schema, timezone="UTC")
        found = CopyAsOf(new_folder(folder), self._mark(0), schema, tuple(state.keys), state.ordered_by)
        copy = LocalCopy(found.folder, 1 << 26, found.values)
        copy.apply([], None, self._mark(0))
        return copy, found

    def _mark(self, txid: int) -> CopyMark:
        return CopyMark("inc", txid, "digest", str(txid))

    def now(self) -> dict[str, CopyAsOf]:
        kinds = ((name, found) for name, (_, found) in self._copies.items())
        return {
            name: CopyAsOf(one.folder, self._mark(self._txid), one.schema, one.keys, one.ordered_by)
            for name, one in kinds
        }

    def follow(self, given: Mapping[str, pa.Table]) -> None:
        before, self._txid = self._mark(self._txid), self._txid + 1
        for name, (copy, found) in self._copies.items():
            rows, state = given[name].combine_chunks(), self._bindings[name]
            gone = rows.column(DELETED_COLUMN).combine_chunks() if DELETED_COLUMN in rows.column_names else None
            encoded = RowCodec(found.schema, state.keys).rows(rows, state.ordered_by, gone)
            combine = sums if name == "sums" else None
            copy.apply([encoded], before, self._mark(self._txid), combine)


def sums(stored: pa.Table, parts: pa.Table, of: Any) -> tuple[pa.Table, None]:
    """Null is no part of a sum; here a key has one part in a batch, or several."""
    made = stored.column(0).to_pylist()
    for part, key in zip(parts.column(0).to_pylist(), of.tolist()):
        if part is not None:
            made[key] = part + (made[key] or 0)
    return pa.table({stored.column_names[0]: pa.array(made, stored.schema.types[0])}), None


def batch(rng: random.Random, number: int) -> list[tuple[Any, ...]]:
    """Rows of a few keys, out of order, some late, some without a time or a key."""
    rows = []
    for _ in range(rng.randrange(0, 25)):
        at = START + dt.timedelta(seconds=10 * number + rng.randrange(-12, 10))
        key = rng.choice([None, *"abcdefgh", f"once {number}"])
        rows.append((key, rng.choice([None, *range(9)]), rng.choice([None, *[at] * 20])))
    return rows if number < BATCHES else [*rows, ("a", 1, START)]  # late for certain


@pytest.mark.parametrize("made", [reduced_and_asked, new_values, windows, timed])
def test_all_shards_together_give_what_one_task_gives(
    spark: SparkSession,
    tmp_path: Path,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[Any, Any], None],
) -> None:
    group = group_of(made)
    assert group.late_on_arrow is not None and group.shard_keys is not None
    fields = {one.name: StructType(list(one.fields)) for one in group.lowered.boundaries.values()}
    schemas = {name: to_arrow_schema(kind, timezone="UTC") for name, kind in fields.items()}
    copies, seen = Copies(tmp_path, group), set[str]()
    for number in range(1, BATCHES + 1):
        info = BatchInfo(TransactionAttempt(number, 0))
        frames = {
            tx_id: spark.createDataFrame(batch(rng, number), spout.output_schema).coalesce(1)
            for tx_id, spout in group.spouts.items()
        }
        with group.build(frames, info.attempt) as early:
            inputs = {name: early[name].toArrow().cast(schema) for name, schema in schemas.items()}
            own = {name: early[name].toArrow() for name in group.copied_states if name in early}
        whole = group.late_on_arrow.run(inputs, info, copies.now())
        count = rng.randrange(2, 8)
        monkeypatch.setattr(open_windows, "_DUE_AT_ONCE", 1)  # in parts of each shard
        late = LatePass(group.late_on_arrow, schemas, (), group.shard_keys, count)
        parts = []
        for shard in (Shard(at, count) for at in range(count)):
            mine = {}
            for name, rows in inputs.items():
                kept = late._in_shard(name, schemas[name], shard)
                mine[name] = rows if kept is None else kept(rows)
            parts.append(group.late_on_arrow.run(mine, info, copies.now(), shard))
        together = {name: pa.concat_tables([part[name] for part in parts]) for name in whole}
        monkeypatch.undo()
        assert shown(together) == shown(whole), f"batch {number}, {count} shards"
        seen |= {name for name, rows in whole.items() if rows.num_rows}
        copies.follow({**own, **whole})
    assert seen == set(group.late_on_arrow.outputs), "each output had rows, else nothing is shown"
