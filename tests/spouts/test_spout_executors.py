"""The metadata that each attempt at a partitioned source starts from (docs/semantics.md 3), without emitting jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from trident.coordinators.identities import TransactionAttempt as Attempt
from trident.running.site import make_executor
from trident.spouts.contracts import OpaquePartitionedTridentSpout, PartitionedTridentSpout, SpoutContext
from trident.spouts.executors import BeginContext
from trident.spouts.partitions import Emission
from trident.spouts.tasks import AGAIN, NEW, OPAQUE, Request


class Coordinator:
    def __init__(self) -> None:
        self.partitions = ["a", "b"]

    def get_partitions_for_batch(self) -> list[str]:
        return self.partitions

    def is_ready(self, txid: int) -> bool:
        return True

    def refresh_partitions(self, partitions: Any) -> None: ...

    def success(self, txid: int) -> None: ...

    def close(self) -> None: ...


class Jobs:
    """In the place of the Spark jobs: each request gives three rows, from where its metadata says."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    def run(self, attempt: Attempt, requests: Sequence[Request], timeout_secs: Any = None, in_job: bool = False) -> Any:
        self.asked = list(requests)
        return Emission({one.partition: {"to": (one.metadata or {"to": 0})["to"] + 3} for one in requests})

    def emitted(self, emission: Emission) -> Emission:
        return emission

    def drop_up_to(self, txid: int) -> None: ...

    @property
    def began_at(self) -> dict[str, int]:
        return {one.partition: one.metadata["to"] if one.metadata else 0 for one in self.asked}


@pytest.fixture
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Coordinator, Jobs]:
    coordinator, jobs = Coordinator(), Jobs()
    parts = {
        "output_schema": StructType(),
        "get_coordinator": lambda self, context: coordinator,
        "get_partition_emitter": None,
    }
    spout = type("Spout", (request.param,), parts)()
    executor = make_executor(spout, SpoutContext(None, "t", "s", tmp_path, "inc"))
    executor._emission = jobs
    return executor, coordinator, jobs


opaque = pytest.mark.parametrize("made", [OpaquePartitionedTridentSpout], indirect=True)
transactional = pytest.mark.parametrize("made", [PartitionedTridentSpout], indirect=True)


@opaque
def test_an_opaque_attempt_goes_on_from_its_parent_also_while_that_is_in_flight(made) -> None:
    executor, _, jobs = made
    executor.initialize(BeginContext(Attempt(1, 0), None, committed={}))
    executor.initialize(BeginContext(Attempt(2, 0), Attempt(1, 0), committed={}))
    assert jobs.began_at == {"a": 3, "b": 3}
    # Transaction 1 is begun again; what its dead attempt had is nobody's.
    executor.initialize(BeginContext(Attempt(1, 1), None, committed={}))
    assert jobs.began_at == {"a": 0, "b": 0}
    executor.initialize(BeginContext(Attempt(2, 1), Attempt(1, 1), committed={}))
    assert jobs.began_at == {"a": 3, "b": 3}


@opaque
def test_after_a_restart_it_goes_on_from_what_is_committed(made) -> None:
    executor, _, jobs = made
    executor.initialize(BeginContext(Attempt(8, 0), Attempt(7, 2), committed={"a": {"to": 21}, "b": {"to": 20}}))
    assert jobs.began_at == {"a": 21, "b": 20}


@opaque
def test_an_opaque_partition_that_was_away_goes_on_where_it_was(made) -> None:
    executor, coordinator, jobs = made
    executor.initialize(BeginContext(Attempt(1, 0), None, committed={}))
    coordinator.partitions = ["a"]
    metadata = executor.initialize(BeginContext(Attempt(2, 0), Attempt(1, 0), committed={}))
    assert executor.opaque_metadata(metadata) == {"a": {"to": 6}, "b": {"to": 3}}, "carried along to be committed"
    coordinator.partitions = ["b", "a"]
    executor.initialize(BeginContext(Attempt(3, 0), Attempt(2, 0), committed={}))
    assert jobs.began_at == {"b": 3, "a": 6}
    # The same from what is stored, in another process.
    executor.initialize(BeginContext(Attempt(3, 1), Attempt(2, 7), committed=executor.opaque_metadata(metadata)))
    assert jobs.began_at == {"b": 3, "a": 6}


@transactional
def test_a_transactional_replay_asks_for_exactly_what_is_pinned(made) -> None:
    executor, coordinator, jobs = made
    pinned = executor.initialize(BeginContext(Attempt(1, 0)))
    assert {one.mode for one in jobs.asked} == {NEW}
    executor._held.clear()  # another process, or the first attempt has used its files up
    coordinator.partitions = ["a", "b", "c"]  # the list of that transaction is frozen
    assert executor.initialize(BeginContext(Attempt(1, 1), current=pinned)) == pinned
    executor.emit_batch(Attempt(1, 1), pinned)
    assert [(one.partition, one.mode, one.metadata) for one in jobs.asked] == [
        ("a", AGAIN, {"to": 3}),
        ("b", AGAIN, {"to": 3}),
    ]


@transactional
def test_rows_emitted_for_another_pin_are_not_used(made) -> None:
    executor, _, jobs = made
    executor.initialize(BeginContext(Attempt(1, 0)))
    jobs.asked = []
    another = {"partitions": {"a": {"to": 2}}, "absent": {}, "rows": 2}
    executor.emit_batch(Attempt(1, 0), another)
    assert [(one.partition, one.mode, one.metadata) for one in jobs.asked] == [("a", AGAIN, {"to": 2})]


@transactional
def test_a_transactional_partition_that_was_away_goes_on_where_it_was(made) -> None:
    executor, coordinator, jobs = made
    first = executor.initialize(BeginContext(Attempt(1, 0)))
    coordinator.partitions = ["a"]
    second = executor.initialize(BeginContext(Attempt(2, 0), Attempt(1, 0), previous=first))
    coordinator.partitions = ["a", "b"]
    executor.initialize(BeginContext(Attempt(3, 0), Attempt(2, 0), previous=second))
    assert jobs.began_at == {"a": 6, "b": 3}
    assert OPAQUE not in {one.mode for one in jobs.asked}


def test_an_emitter_may_change_the_metadata_that_it_is_given(tmp_path: Path) -> None:
    class Emitter:
        def emit_batch(self, attempt: Attempt, metadata: Any) -> list[Any]:
            return [(metadata.pop("from"),)]

    parts = {
        "output_schema": StructType(),
        "get_coordinator": lambda self, context: Coordinator(),
        "get_emitter": lambda self, context: Emitter(),
    }
    executor = make_executor(type("Spout", (), parts)(), SpoutContext(None, "t", "s", tmp_path, "inc"))
    metadata = {"from": 3}
    assert executor.emit_batch(Attempt(1, 0), metadata).data == [(3,)]
    assert metadata == {"from": 3}  # it goes into the manifest afterwards
