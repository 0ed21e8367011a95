"""Upserts with history: the periods of each key are those of its changes in order, however they came."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.states.keyed.test_sequenced import Change, cut, histories
from tests.states.keyed_helpers import Group, Native, by_delta, compactor_of, keyed
from trident.coordinators.errors import TableError
from trident.states.core.place import Place
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN, UPTO_COLUMN
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed.key_reads import KeyReader
from trident.states.keyed.merge_rows import RowMerge
from trident.states.keyed.reading import read_state

# Longer: TRIDENT_HISTORIES=5000.
HISTORIES = int(os.environ.get("TRIDENT_HISTORIES", "50"))
Periods = set[tuple[Any, str, int, int | None]]


def model(changes: Sequence[Change]) -> Periods:
    """(key, value, from, to) of changes in the order of transactions; of one key and sequence the later counts."""
    found: dict[Any, dict[int, Change]] = {}
    for change in changes:
        found.setdefault(change.key, {})[change.sequence] = change
    periods: Periods = set()
    for key, of_key in found.items():
        places = sorted(of_key)
        for place, end in zip(places, [*places[1:], None]):
            if not of_key[place].deleted:
                periods.add((key, str(of_key[place].value), place, end))
    return periods


# --- rows alone ---------------------------------------------------------------------------------------------

MERGE = RowMerge(
    pa.schema([("k", pa.string()), ("s", pa.int64()), ("gone", pa.bool_()), ("v", pa.string())]), ("k", "s"), None
)


def stored(batches: Sequence[Sequence[Change]], merges: Sequence[int]) -> list[Change]:
    """The rows of the table behind batches, which are transactions 1, 2, …, when MERGEs end with the given ones."""
    base, after = MERGE.table_schema.empty_table(), 0
    for upto in sorted({*merges, len(batches)} - {0}):
        rows = [
            {"k": key, "s": place, "gone": one.deleted, "v": one.value, TXID_COLUMN: txid, DELETED_COLUMN: None}
            for txid in range(after + 1, upto + 1)
            for (key, place), one in {(one.key, one.sequence): one for one in batches[txid - 1]}.items()
        ]
        new = MERGE.reduced(pa.Table.from_pylist(rows, schema=MERGE.log_schema))
        base, after = MERGE.overlaid(base, new, after, upto), upto
    rows = base.drop_columns([UPTO_COLUMN]).to_pylist()
    return [Change(row["k"], row["s"], row["v"], row["gone"]) for row in rows]


@settings(max_examples=HISTORIES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_permutation_over_any_cuts_and_merges_gives_the_same_changes(data: st.DataObject) -> None:
    changes = data.draw(histories(ties=False))
    found = []
    for _ in range(2):
        batches = cut(data.draw, data.draw(st.permutations(changes)))
        found.append(stored(batches, data.draw(st.lists(st.integers(0, len(batches)), max_size=4))))
        assert len({(one.key, one.sequence) for one in found[-1]}) == len(found[-1])
    assert set(found[0]) == set(found[1]) == set(changes) and model(found[0]) == model(changes)


# --- real tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["by files", pytest.param("by Spark", marks=pytest.mark.long)])
def test_the_periods_of_many_histories_as_spark_reads_them_before_and_behind_merges(spark, tmp_path, rng, way):
    engine = KernelEngine(spark)
    schema = "k string, `s.eq` bigint, gone boolean, v string"
    name = Native("upsert history by s.eq")
    group = Group(spark, engine, tmp_path, keyed("s", schema, ("k", "s.eq"), name, "last", history=("s.eq", "gone")))
    changes = []
    for key in [None, *map(str, range(2 * HISTORIES))]:
        for number in range(rng.randrange(1, 7)):
            deleted = rng.random() < 0.3
            changes.append(Change(key, rng.randrange(5), None if deleted else f"{key}/{number}", deleted))
    rng.shuffle(changes)
    cuts = [0, *sorted(rng.sample(range(1, len(changes)), 3)), len(changes)]
    compactor = compactor_of(group, "s") if way == "by files" else by_delta(compactor_of(group, "s"))
    for txid, (low, high) in enumerate(zip(cuts, cuts[1:]), 1):
        rows = {(one.key, one.sequence): (one.key, one.sequence, one.deleted, one.value) for one in changes[low:high]}
        group.publish(txid, {"s": [(*row, False) for row in rows.values()]})
        if txid % 2 == 0:
            for merged in (False, True) if txid == 4 else (True,):
                if merged:
                    compactor.merge_once(txid, force=True)
                frame = read_state(spark, tmp_path, "s", txid)
                assert frame.columns == ["k", "v", "valid_from", "valid_to"]
                assert_same([tuple(row) for row in frame.collect()], model(changes[:high]))
    # As docs/cdc.md tells any other reader.
    told = "`s.eq` AS valid_from, lead(`s.eq`) OVER (PARTITION BY k ORDER BY `s.eq`) AS valid_to"
    asked = f"SELECT k, v, valid_from, valid_to FROM (SELECT *, {told} FROM delta.`{tmp_path}/s`) WHERE NOT gone"
    assert_same([tuple(row) for row in spark.sql(asked).collect()], model(changes))
    with pytest.raises(TableError, match="has periods of its keys"):
        KeyReader(Place(tmp_path)).requested("s", [("1", 1)])


def assert_same(found: list[tuple[Any, ...]], expected: Periods) -> None:
    assert len(found) == len(set(found)) and set(found) == expected
