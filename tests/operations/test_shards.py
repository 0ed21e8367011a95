"""A late part that is cut into shards: the tasks of all shards together give what one task gives, batch after batch."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.operations.test_late_forms import shown
from tests.streams.stream_helpers import RowsSpout
from trident.coordinators.identities import TransactionAttempt
from trident.operations.aggregators import Count, Max, Sum
from trident.operations.persisting import Upsert
from trident.planning.groups import GroupPlan, plan
from trident.states.core.binding import StateBinding
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.local_copy import CopyAsOf, CopyMark, LocalCopy, new_folder
from trident.states.core.place import Place
from trident.states.core.shards import WHOLE, Shard
from trident.states.core.values import MapGet
from trident.states.delta.append import DeltaAppend
from trident.states.keyed.delta_map import DeltaMapState
from trident.states.keyed.state_copy import StateCopy
from trident.states.publishing.user_tasks import BatchInfo
from trident.topology import TridentTopology
from trident.workers import open_windows
from trident.workers.late_pass import LatePass

BATCHES, STRUCT = 5, "struct<a: float, b: decimal(9, 2)>"
# Type of a key → some keys, of which several are one.
KEYS: Mapping[str, Sequence[Any]] = {
    "string": [None, *"abcdefgh"],
    "double": [None, 0.0, -0.0, math.nan, math.inf, *map(float, range(1, 6))],
    STRUCT: [None, *itertools.product([None, 0.0, -0.0, math.nan, 1.5], [None, Decimal(1)])],
}
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


def group_of(made: Callable[[Any, Any], None], key: str) -> GroupPlan:
    topology = TridentTopology("cut")
    rows = topology.new_stream("rows", RowsSpout(f"k {key}, v bigint, at timestamp")).with_watermark("at", "4 seconds")
    others = topology.new_stream("others", RowsSpout(f"k {key}, w bigint, at timestamp"))
    made(rows, others.with_watermark("at", "4 seconds") if made is timed else None)
    if made is not timed:
        others.partition_persist(DeltaAppend("others"))
    return next(group for group in plan(topology.graph) if group.is_late)


class Copies:
    """Local copies of a group's states, of all keys or of one shard's, which follow what is given for these."""

    def __init__(self, folder: Path, group: GroupPlan, shard: Shard = WHOLE) -> None:
        bindings = [one for one in group.bindings if one.name in group.copied_states]
        self._states = {one.name: self._made(folder, one, shard) for one in bindings}
        self._txid = 0

    def _made(self, folder: Path, state: StateBinding, shard: Shard) -> tuple[StateCopy, LocalCopy, CopyAsOf]:
        schema = to_arrow_schema(state.schema, timezone="UTC")
        found = CopyAsOf(new_folder(folder), self._mark(0), schema, tuple(state.keys), state.ordered_by, shard)
        copy = LocalCopy(found.folder, 1 << 26, found.values)
        copy.apply([], None, self._mark(0))
        told = state.name, state.state_kind.name, "cut", "rows", "inc", found.keys, tuple(state.value_fields)
        described = StateDescriptor(*told, state.schema.json(), merging=state.merging, ordered_by=state.ordered_by)
        return StateCopy(Place(folder), described, folder, 1 << 26, 0, "boot", shard), copy, found

    def _mark(self, txid: int) -> CopyMark:
        return CopyMark("inc", txid, "digest", str(txid))

    def now(self) -> dict[str, CopyAsOf]:
        return {name: replace(found, mark=self._mark(self._txid)) for name, (_, _, found) in self._states.items()}

    def follow(self, given: Mapping[str, pa.Table]) -> None:
        before, self._txid = self._mark(self._txid), self._txid + 1
        for name, (state, copy, _) in self._states.items():
            encoded = [state._encoded(batch) for batch in given[name].to_batches()]
            copy.apply(encoded, before, self._mark(self._txid), sums if name == "sums" else None)


def sums(stored: pa.Table, parts: pa.Table, of: Any) -> tuple[pa.Table, None]:
    """Null is no part of a sum; here a key has one part in a batch, or several."""
    made = stored.column(0).to_pylist()
    for part, key in zip(parts.column(0).to_pylist(), of.tolist()):
        if part is not None:
            made[key] = part + (made[key] or 0)
    return pa.table({stored.column_names[0]: pa.array(made, stored.schema.types[0])}), None


def batch(rng: random.Random, number: int, keys: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows of a few keys, out of order, some late, some without a time or a key."""
    rows = []
    for _ in range(rng.randrange(0, 25)):
        at = START + dt.timedelta(seconds=10 * number + rng.randrange(-12, 10))
        key = rng.choice([*keys, keys[-1 - number]])
        rows.append((key, rng.choice([None, *range(9)]), rng.choice([None, *[at] * 20])))
    return rows if number < BATCHES else [*rows, (keys[1], 1, START)]  # late for certain


@pytest.mark.parametrize(
    ("made", "key"),
    [
        *((made, "string") for made in (reduced_and_asked, new_values, windows, timed)),
        *((made, "double") for made in (reduced_and_asked, windows)),
        *((made, STRUCT) for made in (new_values, timed)),
    ],
)
def test_all_shards_together_give_what_one_task_gives(spark, tmp_path, rng, monkeypatch, made, key):
    group = group_of(made, key)
    assert group.late_on_arrow is not None and group.shard_keys is not None
    fields = {one.name: StructType(list(one.fields)) for one in group.lowered.boundaries.values()}
    schemas = {name: to_arrow_schema(kind, timezone="UTC") for name, kind in fields.items()}
    copies, followed, seen = Copies(tmp_path, group), list[dict[str, pa.Table]](), set[str]()
    for number in range(1, BATCHES + 1):
        info = BatchInfo(TransactionAttempt(number, 0))
        frames = {
            tx_id: spark.createDataFrame(batch(rng, number, KEYS[key]), spout.output_schema).coalesce(1)
            for tx_id, spout in group.spouts.items()
        }
        with group.build(frames, info.attempt) as early:
            inputs = {name: early[name].toArrow().cast(schema) for name, schema in schemas.items()}
            own = {name: early[name].toArrow() for name in group.copied_states if name in early}
        whole = group.late_on_arrow.run(inputs, info, copies.now())
        count = rng.randrange(2, 8)
        stores = [Copies(tmp_path, group, shard) for shard in WHOLE.parts(count)]  # each of a host of its own
        for store in stores:
            for before in followed:
                store.follow(before)
        monkeypatch.setattr(open_windows, "_DUE_AT_ONCE", 1)  # in parts of each shard
        late = LatePass(group.late_on_arrow, schemas, (), group.shard_keys, count)
        on_one_host, on_several = [], []
        for shard, store in zip(WHOLE.parts(count), stores):
            mine = {}
            for name, rows in inputs.items():
                kept = late._in_shard(name, schemas[name], shard)
                mine[name] = rows if kept is None else kept(rows)
            on_one_host.append(group.late_on_arrow.run(mine, info, copies.now(), shard))
            on_several.append(group.late_on_arrow.run(mine, info, store.now(), shard))
        monkeypatch.undo()
        for where, parts in (("one host", on_one_host), ("a store each", on_several)):
            together = {name: pa.concat_tables([part[name] for part in parts]) for name in whole}
            assert shown(together) == shown(whole), f"batch {number}, {count} shards, {where}"
        seen |= {name for name, rows in whole.items() if rows.num_rows}
        followed.append({**own, **whole})
        copies.follow(followed[-1])
    assert seen == set(group.late_on_arrow.outputs), "each output had rows, else nothing is shown"
