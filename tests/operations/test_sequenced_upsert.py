"""A topology with ``Upsert(sequence_by=…)``: late changes, a null sequence, another sequence at the next start."""

from __future__ import annotations

from typing import Any

import pytest

from tests.running.test_query import WAIT_SECS, no_faults, start  # noqa: F401
from trident import DeltaMapState, FixedBatchSpout, MapGet, TridentTopology, Upsert
from trident.coordinators.errors import AttemptCapReached, FieldError, IdentityMismatch

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


def processed(start: Any, made: TridentTopology) -> Any:  # noqa: F811
    query = start(made)
    query.process_all_available(WAIT_SECS)
    return query


def test_late_changes_do_not_count_before_and_behind_a_merge_and_the_sequence_stays(start) -> None:  # noqa: F811
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


def test_a_batch_with_a_null_sequence_fails_and_says_so(start) -> None:  # noqa: F811
    query = start(topology([[("a", "x", None, False)]]), max_attempts=2)
    with pytest.raises(AttemptCapReached, match="(?s)'lsn' of sequence_by is null"):
        query.process_all_available(WAIT_SECS)
