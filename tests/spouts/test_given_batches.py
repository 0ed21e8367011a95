"""The batches that a fork is given: which metadata a stream's spout sees, and when a transaction may begin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trident.coordinators.errors import TableError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import Beginning
from trident.spouts.contracts import SpoutContext
from trident.spouts.executors import TridentSpoutExecutor
from trident.spouts.host import GivenBatches, GivenBatchesHost, GivenExecutor, load_given
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place

# Forked at 5; transaction 7 changed nothing.
GIVEN = GivenBatches("life", 5, 8, False, {6: {"s": [6]}, 8: {"s": [8]}})


class Numbers:
    """A spout whose batches are the next number; it says what it was asked."""

    kind = None
    output_schema = "n long"

    def __init__(self) -> None:
        self.said: list[Any] = []

    def get_coordinator(self, context: SpoutContext) -> Numbers:
        return self

    get_emitter = get_coordinator

    def resume(self, txid: int, metadata: Any) -> None:
        self.said.append(("resume", txid, metadata))

    def initialize_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> Any:
        self.said.append((txid, prev_metadata, curr_metadata))
        return [prev_metadata[0] + 1] if curr_metadata is None else curr_metadata

    def shrink_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> Any:
        return ["smaller"]

    def is_ready(self, txid: int) -> bool:
        return False

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any) -> Any:
        return [(each,) for each in metadata]

    def success(self, txid: Any) -> None: ...

    def close(self) -> None: ...


def host(given: GivenBatches = GIVEN) -> tuple[Numbers, GivenBatchesHost]:
    spout = Numbers()
    executor = TridentSpoutExecutor(spout, SpoutContext(None, "t", "s", Path("/"), "life"))
    return spout, GivenBatchesHost({"s": GivenExecutor(executor, "s", given)}, given)


def begun(made: GivenBatchesHost, txid: int, pins: dict[int, Any], shrink: bool = False) -> Any:
    beginning = Beginning(TransactionAttempt(txid, 0), None, {"s": pins}, {}, shrink)
    return made.initialize(beginning).pinned["s"]


def test_a_given_transaction_has_the_metadata_of_the_original_and_its_rows() -> None:
    spout, made = host()
    made.executors["s"].resume(5, [5])
    assert begun(made, 6, {5: [5]}) == [6]
    assert begun(made, 8, {7: [6]}) == [8]
    assert begun(made, 9, {8: [8]}) == [9], "behind the last one the spout cuts its own"
    assert spout.said == [("resume", 8, [8]), (6, [5], [6]), (8, [6], [8]), (9, [8], None)]
    assert made.executors["s"].emit_batch(TransactionAttempt(6, 0), [6]).data == [(6,)]


def test_a_transaction_that_changed_nothing_is_empty_and_moves_no_stream() -> None:
    spout, made = host()
    assert begun(made, 7, {6: [6]}) == [6]
    assert made.executors["s"].emit_batch(TransactionAttempt(7, 0), [6]).data == []
    assert spout.said == []
    assert made.executors["s"].emit_batch(TransactionAttempt(9, 0), [6]).data == [(6,)]


def test_given_transactions_wait_for_no_source_and_one_that_stops_begins_no_more() -> None:
    _, made = host()
    assert [made.is_ready(txid) for txid in (6, 7, 8, 9)] == [True, True, True, False]
    spout, stops = host(GivenBatches("life", 5, 8, True, GIVEN.batches))
    spout.is_ready = lambda txid: True  # type: ignore[method-assign]
    assert [stops.is_ready(txid) for txid in (6, 8, 9)] == [True, True, False]
    _, goes_on = host()
    goes_on.executors["s"].is_ready = lambda txid: True  # type: ignore[method-assign]
    assert goes_on.is_ready(9)


def test_a_given_batch_is_not_made_smaller_after_a_timeout() -> None:
    _, made = host()
    assert begun(made, 6, {5: [5], 6: [6]}, shrink=True) == [6]
    assert begun(made, 9, {8: [8], 9: [9]}, shrink=True) == ["smaller"]


def test_a_restart_amid_the_given_batches_goes_on_behind_them() -> None:
    spout, made = host()
    made.executors["s"].resume(8, [8])
    assert spout.said == [("resume", 8, [8])]
    spout, made = host()
    made.executors["s"].resume(11, [11])
    assert spout.said == [("resume", 11, [11])]


def test_the_file_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    warehouse = Place(tmp_path)
    assert load_given(GroupContext(warehouse, "t", "g", "life")) is None
    GIVEN.put_into(GroupContext(warehouse, "t", "g", ""))
    assert load_given(GroupContext(warehouse, "t", "g", "life")) == GIVEN
    assert load_given(GroupContext(warehouse, "t", "g", "life-r1")) == GIVEN, "after a rollback"
    assert load_given(GroupContext(warehouse, "t", "g", "another")) is None, "after a reset"
    path = tmp_path / "_trident" / "t" / "g" / "given-batches.json"
    whole = json.loads(path.read_text())
    for damaged in ({**whole, "until": 4}, {**whole, "batches": {"9": {}}}, {**whole, "more": 1}, {}):
        path.write_text(json.dumps(damaged))
        with pytest.raises(TableError, match="cannot be read"):
            load_given(GroupContext(warehouse, "t", "g", "life"))
