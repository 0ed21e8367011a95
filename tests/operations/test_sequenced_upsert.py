"""A topology with ``Upsert(sequence_by=…)``: late changes, a null sequence, another sequence at the next start."""

from __future__ import annotations

from typing import Any

import pytest

import trident
from tests.running.test_query import WAIT_SECS
from trident import DeltaMapState, FixedBatchSpout, MapGet, TridentTopology, Upsert
from trident.coordinators.errors import AttemptCapReached, FieldError, IdentityMismatch, TableError, TopologyError

FIELDS = "id string, name string, lsn long, gone boolean"
BATCHES: list[list[tuple]] = [
    [("a", "old", 1, False), ("a", "newer", 3, False), ("b", "b", 5, False)],
    [("a", "late", 2, False), ("b", "ignored", 9, True), ("c", "c", 1, None)],
    [("b", "after its delete", 8, False), ("a", "the same place", 3, False)],
]
EXPECTED = {("a", "the same place", 3), ("c", "c", 1)}


def topology(
    batches: list[list[tuple]], sequence_by: str | None = "lsn", retention: int | None = None
) -> TridentTopology:
    made = TridentTopology("changes")
    rows = made.new_stream("rows", FixedBatchSpout(FIELDS, batches))
    upsert = Upsert("id", delete_when="gone", sequence_by=sequence_by, deleted_retention_txids=retention)
    users = rows.partition_persist(DeltaMapState("users"), None, upsert)
    made.new_drpc_stream("user", "id string").state_query(users, "id", MapGet(), "name, lsn")
    return made


def processed(start: Any, made: TridentTopology) -> Any:
    query = start.run(made)
    return query


@pytest.mark.long
def test_late_changes_do_not_count_before_and_behind_a_merge_and_the_sequence_stays(start) -> None:
    query = processed(start, topology(BATCHES[:2]))
    query.stop()  # merges
    query = processed(start, topology(BATCHES, retention=100))  # it may be given later
    assert {tuple(row) for row in query.snapshot("users").collect()} == EXPECTED
    assert query.get("users", [("a",), ("b",)]) == [{"name": "the same place", "lsn": 3}, None]
    assert [query.execute("user", key) for key in "abc"] == [
        [("a", "the same place", 3)],
        [("b", None, None)],
        [("c", "c", 1)],
    ]
    query.stop()
    for other in (None, "name"):
        with pytest.raises(IdentityMismatch, match="(?s)upsert by lsn"):
            start(topology(BATCHES, other))


def test_a_retention_without_a_sequence_or_deletes_and_an_impossible_one_are_refused() -> None:
    without: Any
    for without in ({"delete_when": "gone"}, {"sequence_by": "lsn"}):
        with pytest.raises(FieldError, match="(?s)only with a sequence and deletes.*sequence_by and delete_when"):
            Upsert("id", deleted_retention_txids=10, **without)
    impossible: Any
    for impossible in (0, -1, 1.5, True, "10"):
        with pytest.raises(FieldError, match="deleted_retention_txids of Upsert is impossible"):
            Upsert("id", delete_when="gone", sequence_by="lsn", deleted_retention_txids=impossible)


def with_history(batches: list[list[tuple]] = BATCHES, fields: str = FIELDS) -> tuple[TridentTopology, Any]:
    made = TridentTopology("periods")
    rows = made.new_stream("rows", FixedBatchSpout(fields, batches))
    upsert = Upsert("id", delete_when="gone", sequence_by="lsn", history=True)
    return made, rows.partition_persist(DeltaMapState("users"), None, upsert)


@pytest.mark.long
def test_a_history_has_the_periods_of_late_changes_and_deletes(start, spark, tmp_path) -> None:
    query = processed(start, with_history()[0])
    expected = {
        ("a", "old", 1, 2),
        ("a", "late", 2, 3),
        ("a", "the same place", 3, None),
        ("b", "b", 5, 8),
        ("b", "after its delete", 8, 9),
        ("c", "c", 1, None),
    }
    assert query.snapshot("users").columns == ["id", "name", "valid_from", "valid_to"]
    assert {tuple(row) for row in query.snapshot("users").collect()} == expected
    with pytest.raises(TableError, match="has periods of its keys"):
        query.get("users", [("a", 1)])
    query.stop()  # merges
    assert {tuple(row) for row in trident.read(spark, tmp_path / "warehouse", "users").collect()} == expected
    query = start(with_history([*BATCHES, [("a", "x", None, False)]])[0], max_attempts=2)
    with pytest.raises(AttemptCapReached, match="(?s)'lsn' of sequence_by is null"):
        query.process_all_available(WAIT_SECS)


def test_a_history_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(FieldError, match="gives readers a field 'valid_to' of its own"):
        with_history(fields=f"{FIELDS}, valid_to int", batches=[])
    with pytest.raises(FieldError, match="keeps the history of keys by a sequence, and for good"):
        Upsert("id", history=True)
    made, users = with_history()
    with pytest.raises(TopologyError, match="cannot be looked up: it has periods"):
        made.new_drpc_stream("user", "id string, lsn long").state_query(users, "id, lsn", MapGet(), "name")
    with pytest.raises(TopologyError, match="(?s)no stream of new values.*an Upsert with history"):
        users.new_values_stream()


@pytest.mark.long
def test_a_batch_with_a_null_sequence_fails_and_says_so(start) -> None:
    query = start(topology([[("a", "x", None, False)]]), max_attempts=2)
    with pytest.raises(AttemptCapReached, match="(?s)'lsn' of sequence_by is null"):
        query.process_all_available(WAIT_SECS)
