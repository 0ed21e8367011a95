"""Upserts by a sequence: of a key the change with the greatest (sequence, txid) counts, in any order."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.states.group_helpers import Group as OpenedGroup
from tests.states.keyed_helpers import Group, Native, as_map, keyed
from trident.coordinators.errors import TableError
from trident.coordinators.records import GroupRecord
from trident.states.core.descriptor import StateDescriptor, load_descriptor
from trident.states.core.place import Place
from trident.states.core.retention import Retention
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN, UPTO_COLUMN
from trident.states.delta.delta_log import LogTables
from trident.states.keyed import log_merge, snapshot
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.file_merge import CannotMerge, FileMerge
from trident.states.keyed.key_reads import KeyReader
from trident.states.keyed.merge_rows import RowMerge
from trident.states.keyed.reading import base_of, read_state

# Longer: TRIDENT_SEQUENCES=20000.
HISTORIES = int(os.environ.get("TRIDENT_SEQUENCES", "150"))


@dataclass(frozen=True)
class Change:
    """One change of a key: its value since then, or that it is deleted."""

    key: str | None
    sequence: int
    value: str | None
    deleted: bool = False


# --- the model: no code under test takes part in it ---------------------------------------------------------


def model(changes: Sequence[Change]) -> dict[Any, tuple[int, str | None]]:
    """Key → (sequence, value) after changes in any order, of which no two of a key share a sequence but equal ones."""
    found: dict[Any, Change] = {}
    for change in changes:
        old = found.get(change.key)
        if old is None or change.sequence > old.sequence:
            found[change.key] = change
    return {key: (one.sequence, one.value) for key, one in found.items() if not one.deleted}


def model_of_ties(batches: Sequence[Sequence[Change]]) -> dict[Any, tuple[int, str | None]]:
    """The same of changes that may share a sequence and differ: then the later transaction counts."""
    found: dict[Any, tuple[int, int, Change]] = {}
    for txid, batch in enumerate(batches, 1):
        for change in batch:
            place = (change.sequence, txid)
            if change.key not in found or place >= found[change.key][:2]:
                found[change.key] = (*place, change)
    return {key: (one.sequence, one.value) for key, (_, _, one) in found.items() if not one.deleted}


def model_that_forgets(
    batches: Sequence[Sequence[Change]], kept: int, changed: Mapping[int, int] | None = None
) -> dict[Any, tuple[int, str | None]]:
    """The same where a deleted key is forgotten at the end of the part of so many transactions behind its own.

    Args:
        changed: transaction → how many from there on; 0: deleted keys are kept for good.
    """
    found: dict[Any, tuple[int, Change]] = {}
    for txid, batch in enumerate(batches, 1):
        kept = (changed or {}).get(txid, kept)
        for key, (gone, one) in list(found.items()):
            if one.deleted and kept and txid // kept - gone // kept >= 2:
                del found[key]
        for change in batch:
            if change.key not in found or change.sequence >= found[change.key][1].sequence:
                found[change.key] = (txid, change)
    return {key: (one.sequence, one.value) for key, (_, one) in found.items() if not one.deleted}


def of_each_key(batch: Sequence[Change]) -> list[Change]:
    """The change of each key of a batch that is staged: with the greatest sequence, of equal ones the last."""
    found: dict[Any, Change] = {}
    for change in batch:
        if change.key not in found or change.sequence >= found[change.key].sequence:
            found[change.key] = change
    return list(found.values())


# --- rows alone: reduced and laid over each other -------------------------------------------------------------

SCHEMA = pa.schema([("k", pa.string()), ("s", pa.int64()), ("v", pa.string())])
MERGE = RowMerge(SCHEMA, ("k",), None, "s")


def log_rows(batches: Mapping[int, Sequence[Change]]) -> pa.Table:
    rows = [
        {"k": one.key, "s": one.sequence, "v": one.value, TXID_COLUMN: txid, DELETED_COLUMN: one.deleted or None}
        for txid, batch in batches.items()
        for one in batch
    ]
    return pa.Table.from_pylist(rows, schema=MERGE.log_schema)


def folded(
    batches: Sequence[Sequence[Change]], merges: Sequence[int], merge: RowMerge = MERGE
) -> dict[Any, tuple[int, str | None]]:
    """The state behind batches, which are transactions 1, 2, …, when MERGEs end with the given ones and the last."""
    base, done = merge.table_schema.empty_table(), 0
    for wanted in sorted({*merges, len(batches)} - {0}):
        for after, upto in merge.retention.stretches(done, wanted):
            waiting = {txid: of_each_key(batches[txid - 1]) for txid in range(after + 1, upto + 1)}
            base = merge.overlaid(base, merge.reduced(log_rows(waiting)), after, upto)
            assert base.schema == merge.table_schema
        done = wanted
    rows = MERGE.shown(base).to_pylist()
    assert len({row["k"] for row in rows}) == len(rows)
    return {row["k"]: (row["s"], row["v"]) for row in rows}


KEYS = st.sampled_from(["a", "b", "c", None])


@st.composite
def histories(draw: st.DrawFn, ties: bool) -> list[Change]:
    """Changes of few keys; without ties that differ, those of one key and sequence are the same change, sent again."""
    places = draw(st.lists(st.tuples(KEYS, st.integers(0, 6)), max_size=24))
    changes: dict[Any, Change] = {}
    made = []
    for number, (key, sequence) in enumerate(places):
        deleted = draw(st.booleans())
        change = Change(key, sequence, None if deleted else f"v{number}", deleted)
        made.append(change if ties else changes.setdefault((key, sequence), change))
    return made


def cut(draw: st.DrawFn, changes: Sequence[Change]) -> list[list[Change]]:
    places = sorted(draw(st.lists(st.integers(0, len(changes)), max_size=6)))
    return [list(changes[low:high]) for low, high in zip([0, *places], [*places, len(changes)], strict=True)]


@settings(max_examples=HISTORIES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_permutation_of_a_history_over_any_cuts_and_merges_gives_one_state(data: st.DataObject) -> None:
    changes = data.draw(histories(ties=False))
    batches = cut(data.draw, data.draw(st.permutations(changes)))
    merges = data.draw(st.lists(st.integers(0, len(batches)), max_size=4))
    assert folded(batches, merges) == model(changes)


@settings(max_examples=HISTORIES // 4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_of_changes_with_the_same_sequence_the_later_transactions_counts(data: st.DataObject) -> None:
    batches = cut(data.draw, data.draw(histories(ties=True)))
    merges = data.draw(st.lists(st.integers(0, len(batches)), max_size=4))
    assert folded(batches, merges) == model_of_ties(batches)


@settings(max_examples=HISTORIES // 4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), kept=st.integers(1, 4))
def test_a_deleted_key_holds_for_its_retention_and_is_forgotten_behind_it(data: st.DataObject, kept: int) -> None:
    batches = cut(data.draw, data.draw(histories(ties=True)))
    expected = model_that_forgets(batches, kept)
    merge = replace(MERGE, retention=Retention(kept))
    for merges in data.draw(st.lists(st.lists(st.integers(0, len(batches)), max_size=4), min_size=2, max_size=2)):
        assert folded(batches, merges, merge) == expected


@settings(max_examples=HISTORIES // 4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), kept=st.integers(0, 4))
def test_another_retention_counts_from_its_start_on_whatever_was_merged(data: st.DataObject, kept: int) -> None:
    """A key that was forgotten stays so when the retention is raised, also before a MERGE has dropped its row."""
    batches = cut(data.draw, data.draw(histories(ties=True)))
    changed = data.draw(st.dictionaries(st.integers(1, len(batches)), st.integers(0, 4), max_size=3))
    retention = Retention(kept)
    for first, txids in sorted(changed.items()):
        retention = retention.changed(txids, first)
    merge = replace(MERGE, retention=retention)
    expected = model_that_forgets(batches, kept, changed)
    for merges in data.draw(st.lists(st.lists(st.integers(0, len(batches)), max_size=4), min_size=2, max_size=2)):
        assert folded(batches, merges, merge) == expected


def test_a_retention_with_which_no_transaction_began_leaves_no_trace() -> None:
    """Starts one behind the other; and one at an earlier transaction, for ZooKeeper was put back."""
    raised = Retention(2).changed(5, 7)
    assert raised == Retention(5, ((6, 2),)) and raised.changed(5, 9) == raised
    assert raised.changed(2, 7) == Retention(2) and raised.changed(9, 7) == Retention(9, ((6, 2),))
    assert raised.changed(9, 4) == Retention(9, ((3, 2),)) and Retention(2).changed(5, 1) == Retention(5)
    assert [raised.below(txid) for txid in (5, 6, 7, 14, 15)] == [2, 4, 4, 5, 10]
    assert Retention(2).changed(0, 7).forgets and not Retention().changed(0, 7).forgets


@given(after=st.integers(0, 60), length=st.integers(1, 60), kept=st.integers(1, 20))
def test_no_late_change_within_the_retention_meets_a_forgotten_key(after: int, length: int, kept: int) -> None:
    parts = Retention(kept).stretches(after, after + length)
    assert [txid for low, high in parts for txid in range(low + 1, high + 1)] == [*range(after + 1, after + length + 1)]
    for low, high in parts:
        bounds = {Retention(kept).below(txid) for txid in range(low + 1, high + 1)}
        assert len(bounds) == 1, "one part, one answer"
        assert kept <= min(txid - bound for txid in range(low + 1, high + 1) for bound in bounds), "kept long enough"
        assert high - bounds.pop() < 2 * kept, "and forgotten before twice as long"


# --- real tables ---------------------------------------------------------------------------------------------


def binding_of(key: str, kept: int = 0):
    return keyed(
        "s",
        f"k {key}, `s.eq` bigint, v string",
        ("k",),
        Native("upsert by s.eq"),
        "sequenced",
        sequence="s.eq",
        deleted_retention_txids=kept,
    )


def a_history(rng: random.Random, keys: Sequence[Any]) -> list[Change]:
    changes = []
    for key in keys:
        for sequence in range(rng.randrange(1, 6)):
            deleted = rng.random() < 0.4
            changes.append(Change(key, sequence, None if deleted else f"{key}/{sequence}", deleted))
    rng.shuffle(changes)
    return changes + rng.sample(changes, 3)


def publish(group: Group, txid: int, batch: Sequence[Change]) -> None:
    group.publish(txid, {"s": [(one.key, one.sequence, one.value, one.deleted) for one in of_each_key(batch)]})


def as_values(found: Mapping[tuple, tuple]) -> dict[Any, tuple]:
    return {key: value for (key,), value in found.items()}


def everywhere(group: Group, txid: int, keys: Sequence[Any], tables: LogTables) -> list[dict[Any, tuple]]:
    """The state as of a transaction, as each reader gives it."""
    binding, place = group.bindings["s"], Place(group.warehouse)
    asked = group.spark.createDataFrame([(key,) for key in keys], type(binding.schema)([binding.schema["k"]]))
    frames = [
        read_state(group.spark, group.warehouse, "s", txid),
        base_of(group.spark, group.warehouse, "s", asked.coalesce(1), txid, None, tables),
        base_of(group.spark, group.warehouse, "s", None, txid, None, tables),
    ]
    found = [as_values(as_map(binding, frame)) for frame in frames]
    reader = KeyReader(place)
    one_by_one = reader.get("s", reader.requested("s", list(keys)), txid)
    return [*found, {key: tuple(row.values()) for key, row in zip(keys, one_by_one, strict=True) if row is not None}]


def only_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        raise CannotMerge("this test wants Spark's")

    monkeypatch.setattr(FileMerge, "merge", refused)
    monkeypatch.setattr(FileMerge, "bytes_to_move", refused)
    monkeypatch.setattr(snapshot, "SMALL_BYTES", 0)


@pytest.mark.parametrize("way", ["by files", pytest.param("by Spark", marks=pytest.mark.long)])
def test_every_reader_and_both_merges_decide_by_sequence_and_transaction(
    spark, engine, tmp_path, rng, monkeypatch, way
):
    keys = ["a", "b", "c", "d", "e", None]
    group = Group(spark, engine, tmp_path, binding_of("string"))
    # And one that is deleted before any other change of it, of which an earlier one comes last.
    history = [Change("held", 9, None, True), *a_history(rng, keys), Change("held", 1, "late")]
    keys.append("held")
    cuts = sorted(rng.sample(range(1, len(history)), 3))
    batches = [history[low:high] for low, high in zip([0, *cuts], [*cuts, len(history)], strict=True)]
    tables, compactor = LogTables(), Compactor(spark, engine, tmp_path, group.descriptor("s"))
    if way == "by Spark":
        only_spark(monkeypatch)
    for txid, batch in enumerate(batches, 1):
        publish(group, txid, batch)
        expected = model([one for some in batches[:txid] for one in some])
        if txid % 2 == 0:
            if way == "by Spark" and txid == 4:
                monkeypatch.setattr(log_merge, "_BROADCAST_BYTES_MAX", -1)
            assert everywhere(group, txid, keys, tables) == [expected] * 4, "the log on top of the table"
            compactor.merge_once(txid, force=True)
            assert compactor.merged_upto() == txid
            assert everywhere(group, txid, keys, tables) == [expected] * 4, "the table alone"
    table = deltalake.DeltaTable(str(tmp_path / "s")).to_pyarrow_table().to_pylist()
    assert set(table[0]) == {"k", "s.eq", "v", DELETED_COLUMN, TXID_COLUMN, UPTO_COLUMN}
    assert {row["k"]: (row["s.eq"], row["v"]) for row in table if not row[DELETED_COLUMN]} == model(history)
    assert {row["k"] for row in table} == set(keys), "the rows of deleted keys hold them deleted"


@pytest.mark.long
@pytest.mark.parametrize("way", ["by files", "by Spark"])
def test_every_reader_and_both_merges_forget_a_deleted_key_at_the_same_transaction(
    spark, engine, tmp_path, rng, monkeypatch, way
):
    keys, kept, changed = ["a", "b", "c", "d", None], 2, {5: 3}
    group = Group(spark, engine, tmp_path, binding_of("string", kept))
    if way == "by Spark":
        only_spark(monkeypatch)
    batches = [[Change(key, rng.randrange(9), f"{key}{txid}", rng.random() < 0.5) for key in keys] for txid in range(9)]
    batches = [rng.sample(batch, 3) for batch in batches]
    # One that is deleted at once, has late changes to its end, and comes back; and one that no change meets again.
    batches[0] += [Change("late", 9, None, True), Change("gone", 1, None, True)]
    for batch in batches[1:]:
        batch.append(Change("late", 3, "late"))
    keys += ["late", "gone"]
    tables, compactor = LogTables(), Compactor(spark, engine, tmp_path, group.descriptor("s"))
    for txid, batch in enumerate(batches, 1):
        if txid in changed:
            raised = replace(group.descriptor("s"), deleted_retention_txids=changed[txid]).going_on(tmp_path, txid)
            raised.save(tmp_path)
            compactor = Compactor(spark, engine, tmp_path, raised)
        publish(group, txid, batch)
        if txid in ((7, 9) if way == "by Spark" else (9,)):
            expected = model_that_forgets(batches[:txid], kept, changed)
            assert everywhere(group, txid, keys, tables) == [expected] * 4, "the log on top of the table"
        if txid in (2, 6, 9):
            compactor.merge_once(txid, force=True)
            assert compactor.merged_upto() == txid
    assert everywhere(group, 9, keys, tables) == [expected] * 4, "the table alone"
    assert expected["late"] == (3, "late")
    table = deltalake.DeltaTable(str(tmp_path / "s")).to_pyarrow_table().to_pylist()
    assert "gone" not in {row["k"] for row in table}, "MERGEs drop the rows of forgotten keys"


def test_a_start_with_another_retention_keeps_those_before_it(engine, tmp_path) -> None:
    def start(kept: int, epoch: int, record: GroupRecord | None) -> GroupRecord:
        return OpenedGroup(engine, tmp_path, [binding_of("string", kept)], epoch, record).open().record

    record = start(2, 1, None)
    assert load_descriptor(tmp_path, "s").retention == Retention(2)
    fifth = replace(record, current_txid=5)
    start(4, 2, fifth)
    assert load_descriptor(tmp_path, "s").retention == Retention(4, ((4, 2),))
    start(4, 3, replace(record, current_txid=8))
    start(0, 4, replace(record, current_txid=9))
    assert load_descriptor(tmp_path, "s").retention == Retention(0, ((4, 2), (8, 4)))
    path = tmp_path / "_trident/states/s.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "earlier_retentions": [[4, 2], [3, 4]]}))
    with pytest.raises(TableError, match="ascending order"):
        load_descriptor(tmp_path, "s")


def test_a_descriptor_says_the_sequence_and_one_that_does_not_fit_is_refused(spark, engine, tmp_path):
    Group(spark, engine, tmp_path, binding_of("string"))
    assert load_descriptor(tmp_path, "s").sequence == "s.eq"
    fields: dict[str, Any] = dict(name="s", kind="keyed", topology="t", group="g", incarnation="i", keys=("k",))
    for merging, sequence in [("sequenced", ""), ("sequenced", "k"), ("last", "v"), ("other", "")]:
        with pytest.raises(TableError, match="cannot be described"):
            StateDescriptor(
                **fields, value_fields=("v",), schema_json="{}", aggregator="x", merging=merging, sequence=sequence
            )
