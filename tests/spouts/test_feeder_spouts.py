"""The feeders: what is fed comes once, in order, the same rows again where that is promised."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.spouts.committer_harness import Group
from tests.topology_helpers import starter
from trident import DeltaAppend, TridentTopology
from trident.coordinators import faults
from trident.coordinators.errors import SourceError, TopologyError, TridentError
from trident.coordinators.identities import TransactionAttempt
from trident.spouts.contracts import BatchSpout, Commits, CommitterTridentSpout, SpoutContext, SpoutKind
from trident.spouts.fed import FeederBatchSpout, FeederCommitterBatchSpout


def context(folder: Path, incarnation: str = "life") -> SpoutContext:
    return SpoutContext(None, "t", "s", folder, incarnation)


@pytest.fixture
def feeder(tmp_path: Path) -> FeederBatchSpout:
    spout = FeederBatchSpout("word string, n long")
    spout.open(context(tmp_path))
    return spout


def rows(emitted) -> list:
    return list(emitted.data)


def test_a_batch_belongs_to_its_transaction_until_it_is_acknowledged(feeder: FeederBatchSpout) -> None:
    assert isinstance(feeder, BatchSpout) and feeder.kind is SpoutKind.TRANSACTIONAL
    assert not feeder.is_ready(7)
    feeder.feed([("a", 1), ["b", 2]])
    feeder.feed([("c", 3)])
    assert feeder.is_ready(7) and feeder.is_ready(7) and feeder.is_ready(8) and not feeder.is_ready(9)
    feeder.feed([("d", 4)])
    # Threads come in any order, and again.
    for _ in range(2):
        assert rows(feeder.emit_batch(8)) == [("c", 3)]
        assert rows(feeder.emit_batch(7)) == [("a", 1), ("b", 2)]
    feeder.ack(7)
    feeder.ack(7)
    assert rows(feeder.emit_batch(8)) == [("c", 3)]


def test_a_transaction_that_was_emitted_empty_stays_empty(feeder: FeederBatchSpout) -> None:
    assert rows(feeder.emit_batch(1)) == []  # another stream of the group was ready
    feeder.feed([("a", 1)])
    assert feeder.backlog().rows == 1 and not feeder.is_ready(1) and rows(feeder.emit_batch(1)) == []
    assert rows(feeder.emit_batch(3)) == [("a", 1)]
    feeder.feed([("b", 2)])
    assert rows(feeder.emit_batch(2)) == [], "what was fed later is never in an earlier transaction"
    assert rows(feeder.emit_batch(4)) == [("b", 2)]


def test_a_restart_keeps_the_transactions_and_a_reset_gives_their_rows_again(feeder, tmp_path: Path) -> None:
    for n in range(3):
        feeder.feed([("w", n)])
        assert feeder.is_ready(n + 5)
    feeder.ack(5)
    feeder.close()
    feeder.open(context(tmp_path))
    assert rows(feeder.emit_batch(7)) == [("w", 2)]
    feeder.open(context(tmp_path, "another life"))
    assert feeder.is_ready(1) and feeder.is_ready(2) and not feeder.is_ready(3)
    assert [rows(feeder.emit_batch(txid)) for txid in (1, 2)] == [[("w", 1)], [("w", 2)]]


def test_feeding_can_wait_for_success(feeder: FeederBatchSpout) -> None:
    with pytest.raises(TridentError, match="1 of 1 feeds waiting"):
        feeder.feed([("a", 1)], wait=True, timeout_secs=0.01)
    feeder.feed([("b", 2)])
    assert feeder.is_ready(1) and feeder.is_ready(2)
    returned = threading.Event()

    def wait() -> None:
        feeder.wait_for_success(10)
        returned.set()

    thread = threading.Thread(target=wait)
    thread.start()
    feeder.ack(1)
    assert not returned.wait(0.05)
    feeder.ack(2)
    assert returned.wait(10)
    thread.join()
    feeder.wait_for_success(0)


@pytest.mark.parametrize("kind", [FeederBatchSpout, FeederCommitterBatchSpout])
def test_rows_that_do_not_fit_are_refused_and_nothing_is_fed(kind) -> None:
    spout = kind("word string, n long")
    with pytest.raises(TopologyError, match="'a'.*tuple of 2: word, n"):
        spout.feed([("b", 1), ("a",)])
    spout.wait_for_success(0)
    with pytest.raises(TopologyError, match="schema"):
        kind("word")


# --- the committer -----------------------------------------------------------------------------


def committer_parts(folder: Path):
    spout: CommitterTridentSpout = FeederCommitterBatchSpout("n long")
    given = context(folder)
    emitter = spout.get_emitter(given)
    assert isinstance(emitter, Commits) and spout.kind is SpoutKind.OPAQUE
    return spout, spout.get_coordinator(given), emitter


def test_a_replay_holds_what_has_been_fed_since_and_commit_takes_the_rows_off(tmp_path: Path) -> None:
    spout, coordinator, emitter = committer_parts(tmp_path)
    assert not coordinator.is_ready(1)
    spout.feed([(1,), (2,)])
    assert coordinator.is_ready(1) and coordinator.backlog().rows == 2
    coordinator.initialize_transaction(1, None, None)
    assert not coordinator.is_ready(2), "what waits belongs to the transaction that has begun"
    first = emitter.emit_batch(TransactionAttempt(1, 0), {})
    assert rows(first) == [(1,), (2,)]
    spout.feed([(3,)])
    assert coordinator.is_ready(2)
    coordinator.initialize_transaction(2, {}, None)
    assert rows(emitter.emit_batch(TransactionAttempt(2, 0), {})) == [(3,)]
    coordinator.initialize_transaction(1, None, {})
    again = emitter.emit_batch(TransactionAttempt(1, 1), {})
    assert rows(again) == [(1,), (2,), (3,)], "with what the later transaction had, which is dead too"
    coordinator.initialize_transaction(2, {}, {})
    nothing = emitter.emit_batch(TransactionAttempt(2, 1), {})
    assert rows(nothing) == [] and nothing.commit_data is None
    for _ in range(2):
        emitter.commit(TransactionAttempt(1, 1), again.commit_data)
    assert not coordinator.is_ready(3)
    with pytest.raises(TridentError, match="2 of 2 feeds"):
        spout.wait_for_success(0)
    emitter.success(TransactionAttempt(1, 1))
    spout.wait_for_success(0)


def test_commit_data_of_another_process_takes_nothing(tmp_path: Path) -> None:
    spout, coordinator, emitter = committer_parts(tmp_path)
    spout.feed([(1,)])
    emitter.commit(TransactionAttempt(1, 0), {"feeder": "of another process", "feeds": [1]})
    assert coordinator.is_ready(2)
    with pytest.raises(SourceError, match="not the commit data"):
        emitter.commit(TransactionAttempt(1, 0), [1])


@pytest.mark.parametrize("run", range(8))
def test_random_runs_lose_and_double_nothing(tmp_path: Path, rng: random.Random, run: int) -> None:
    spout = FeederCommitterBatchSpout("n long")
    group = Group(lambda: spout, tmp_path, rng, cancels=False)
    fed = []

    def feed() -> bool:
        several = [(len(fed) + n,) for n in range(rng.randrange(1, 4))]
        fed.extend(several)
        spout.feed(several)
        return True

    steps = [group.begin, group.begin, group.emit, group.prepare, group.decide, group.finish] * 3
    steps += [feed, feed, group.commit_only, group.fail, group.late_thread, group.kill, group.stop, group.zombie]
    for _ in range(400):
        rng.choice(steps)()
    group.drain()
    assert Counter(row for _, row in group.table) == Counter(fed)
    spout.wait_for_success(0)


# --- on the whole framework ------------------------------------------------------------------------


@pytest.mark.long
def test_topologies_are_fed_over_failures(spark, zk_server: str, zk_root: str, tmp_path: Path) -> None:
    batches, rows_ = FeederBatchSpout("n long"), FeederCommitterBatchSpout("n long")

    def topologies() -> list[TridentTopology]:
        made = [TridentTopology(name) for name in ("batches", "rows")]
        for topology, spout in zip(made, (batches, rows_)):
            topology.new_stream("fed", spout).partition_persist(DeltaAppend(f"{topology.name}_table"))
        return made

    with starter(spark, zk_server, zk_root, tmp_path) as start:
        faults.arm("stage.write:fail_before:3,zk.decide:do_then_fail,spout.commit:do_then_fail,zk.begin:fail_before:2")
        queries = [start(topology) for topology in topologies()]
        for n in range(3):
            batches.feed([(n,)])
            rows_.feed([(n,)], wait=True)
        batches.wait_for_success()
        assert faults.unfired() == []
        for query in queries:
            assert [row.n for row in query.snapshot(f"{query.name}_table").orderBy("n").collect()] == [0, 1, 2]
