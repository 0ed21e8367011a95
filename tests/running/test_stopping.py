"""stop() always ends, whatever a spout does; what waits for a query that will not go on says so."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.servers.zk_fixtures import eventually
from tests.topology_helpers import WAIT_SECS, Starter
from trident import (
    BasicBolt,
    Count,
    DeltaAppend,
    DeltaMapState,
    FixedBatchSpout,
    RichSpout,
    TridentTopology,
    TupleTopology,
)
from trident.coordinators import faults
from trident.coordinators.errors import (
    AttemptCapReached,
    CoordinationError,
    IdentityMismatch,
    SourceError,
    TridentError,
)
from trident.coordinators.threads import DaemonPool
from trident.running import interrupts as running
from trident.running.status import read_status
from trident.spouts.contracts import Backlog, SpoutKind
from trident.states.core import storage
from trident.udf.types import as_schema

EVERY_HOOK = os.environ.get("TRIDENT_KILLS") == "all"  # make kills


class Moody:
    """A spout of one batch, its own coordinator and emitter, in whose hooks a test says what happens."""

    output_schema = as_schema("n long", "Moody")
    kind = SpoutKind.TRANSACTIONAL

    def __init__(self, **hooks: Callable[[], Any]) -> None:
        self._hooks, self.calls, self.closed = hooks, [], False

    def _call(self, name: str) -> Any:
        self.calls.append((name, self.closed))
        return self._hooks.get(name, lambda: None)()

    def get_coordinator(self, context: Any) -> Moody:
        return self

    get_emitter = get_coordinator

    def is_ready(self, txid: int) -> bool:
        self._call("is_ready")
        return txid == 1

    def initialize_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> dict:
        return {}

    def emit_batch(self, attempt: Any, metadata: Any) -> list:
        self._call("emit_batch")
        return [(1,)]

    def success(self, txid: Any) -> None:
        self._call("success")

    def backlog(self) -> Backlog:
        if self.closed:
            raise OSError("the connection is closed")
        self._call("backlog")
        return Backlog(rows=7)

    def close(self) -> None:
        self.closed = True
        self._call("close")


def topology(*spouts: Moody) -> TridentTopology:
    made = TridentTopology("moody")
    for number, spout in enumerate(spouts):
        made.new_stream(f"s{number}", spout).partition_persist(DeltaAppend(f"rows{number}"))
    return made


@pytest.fixture
def hang() -> Iterator[Callable[[], None]]:
    """Does not return before the test is over."""
    over = threading.Event()

    def never_returns() -> None:
        over.wait(120)

    yield never_returns
    over.set()


def stopped(query: Any, secs: float) -> bool:
    query.stop(secs)
    return not query.is_active


def raises() -> None:
    raise ValueError("a hook's own error")


def test_a_backlog_that_fails_is_said_once_and_is_not_asked_after_close(start: Starter, tmp_path: Path) -> None:
    failing, other = Moody(backlog=raises, close=raises), Moody()
    query = start.run(topology(failing, other))
    said = "the backlog of stream 's0' is not known: ValueError: a hook's own error"
    assert eventually(lambda: any(g["last_error"] == said for g in query.status["groups"]))
    assert eventually(lambda: any(g["backlog"] == {"rows": 7} for g in query.status["groups"])), "the other's is shown"
    query._reporter.errors.clear()
    asked = len(failing.calls)
    assert eventually(lambda: len(failing.calls) > asked + 2) and not query._reporter.errors, (
        "the same again is not said again"
    )
    assert query.status["written_at"] == pytest.approx(time.time(), abs=60)
    assert stopped(query, WAIT_SECS) and query.exception() is None
    assert read_status(tmp_path / "warehouse", "moody").role == "stopped"
    for spout in (failing, other):
        assert spout.closed and ("backlog", True) not in spout.calls and ("is_ready", True) not in spout.calls


@pytest.mark.parametrize("hook", ["close", *(["backlog", "success", "is_ready"] if EVERY_HOOK else [])])
def test_a_stop_leaves_behind_a_hook_that_does_not_return(start, hang, hook, caplog):
    caplog.set_level(logging.WARNING, "trident")
    spout = Moody(**{hook: hang})
    query = start(topology(spout), stop_timeout_secs=10 if hook == "backlog" else 1)
    reached = "success" if hook == "close" else hook
    assert eventually(lambda: any(name == reached for name, _ in spout.calls), WAIT_SECS)
    assert stopped(query, 30), "it ends"
    assert not query.is_active and query.exception() is None
    said = [one.getMessage() for one in caplog.records if "its stop continues without" in one.getMessage()]
    if hook == "backlog":
        assert not said, "nobody waits for a figure"
    else:
        assert len(said) == 1 and f"{hook}, at test_stopping.py:" in said[0]
    again = start.run(topology(Moody()))
    assert [row.n for row in again.snapshot("rows0").collect()] == [1], "the next one leads, and nothing is lost"


@pytest.mark.long
def test_a_stop_ends_when_the_status_cannot_be_written_either(start, hang, monkeypatch):
    """A disk that does not answer keeps whoever writes to it: nobody else may wait for that thread."""
    monkeypatch.setattr("trident.running.ending._END_SECS", 0.5)
    write = storage.write

    def never_answers(path: Path, data: bytes, durable: bool = True) -> None:
        if path.name == "status.json":
            asked.append(path)
            hang()
        write(path, data, durable)

    asked: list[Path] = []
    monkeypatch.setattr(storage, "write", never_answers)
    query = start(topology(spout := Moody(close=hang)), stop_timeout_secs=1)
    assert eventually(lambda: asked and any(name == "success" for name, _ in spout.calls), WAIT_SECS)
    assert stopped(query, 30)
    assert not storage.exists(asked[0])


@pytest.mark.long
def test_waiting_for_a_query_that_will_not_go_on_ends_with_what_to_do(start: Starter, monkeypatch: Any) -> None:
    monkeypatch.setattr("trident.running.query._TAKE_OVER_SECS", -3.0)
    monkeypatch.setattr("trident.running.query._UNREADY_SECS", 0.5)
    spout = Moody(is_ready=lambda: broken and raises())
    broken = False
    leader = start.run(topology(spout))
    standby = start(topology(Moody()))
    with pytest.raises(CoordinationError, match="is a standby here.*this process: another query of it.* leads"):
        standby.process_all_available()
    with pytest.raises(TimeoutError, match="did not lead within 0.1 s: .* leads"):
        standby.process_all_available(0.1)
    standby.stop(WAIT_SECS)
    broken = True
    with pytest.raises(SourceError, match="have data cannot be queried.*a hook's own error"):
        leader.process_all_available()
    leader.pause()
    with pytest.raises(TridentError, match="paused.*resume"):
        leader.process_all_available()
    leader.stop(WAIT_SECS)
    for query in (leader, standby):
        with pytest.raises(TridentError, match="was stopped"):
            query.process_all_available()


def test_the_pool_runs_in_order_and_leaves_a_thread_behind() -> None:
    pool, done, go_on = DaemonPool(2, "pool"), [], threading.Event()
    stuck = pool.submit(go_on.wait, 60)
    results = [pool.submit(lambda n=number: done.append(n) or n) for number in range(5)]
    failed = pool.submit(raises)
    assert [one.result(10) for one in results] == done == list(range(5))
    assert isinstance(failed.exception(10), ValueError)
    assert not pool.shutdown(timeout_secs=0.1) and not stuck.done()
    assert pool.submit(done.append, 5).cancelled()
    go_on.set()
    assert pool.shutdown(timeout_secs=10) and stuck.done()


# --- the last MERGE, and who may lead meanwhile ---------------------------------------------------


def counted(batches: int = 2) -> TridentTopology:
    made = TridentTopology("counted")
    stream = made.new_stream("words", FixedBatchSpout("word string", [[("a",), ("b",)]] * batches))
    stream.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    return made


def counts(query: Any) -> dict[str, int]:
    return {row.word: row.n for row in query.snapshot("counts").collect()}


@pytest.fixture
def gives_up_soon(monkeypatch: Any) -> None:
    """A MERGE that hangs in a fault point is not ended by cancelling Spark's jobs: it is not waited for."""
    monkeypatch.setattr("trident.states.keyed.background_compactor._CANCEL_SECS", 0.3)


@pytest.mark.usefixtures("gives_up_soon")
def test_a_hand_over_does_not_wait_for_the_last_merge(start: Starter, armed: Any, tmp_path: Path) -> None:
    armed("compact.merge:hang")
    first = start.run(counted())
    first.request_stop()
    assert eventually(lambda: not faults.unfired(), WAIT_SECS)
    began = time.monotonic()
    standby = start(counted(3))
    standby.process_all_available(WAIT_SECS)
    assert time.monotonic() - began < 40, "the MERGE alone would have taken a minute"
    assert counts(standby) == {"a": 3, "b": 3}
    assert stopped(first, WAIT_SECS), "the MERGE is given up: the successor merges"
    warehouse = tmp_path / "warehouse"
    assert eventually(lambda: read_status(warehouse, "counted").run_id == standby.run_id), "the leader's, not ours"
    faults.disarm()
    assert stopped(standby, WAIT_SECS)
    assert plain(tmp_path) == {"a": 3, "b": 3}


def plain(folder: Path) -> dict[str, int]:
    table = deltalake.DeltaTable(str(folder / "warehouse" / "counts")).to_pyarrow_table()
    return dict(zip(table["word"].to_pylist(), table["n"].to_pylist()))


@pytest.mark.long
@pytest.mark.usefixtures("gives_up_soon")
def test_a_table_that_stays_behind_is_said_in_a_line(start: Starter, armed: Any, caplog: Any) -> None:
    armed("compact.merge:hang")
    query = start.run(counted(), merge_at_stop_secs=0.5)
    assert stopped(query, 30)
    said = [one.getMessage() for one in caplog.records if "lacks" in one.getMessage()]
    assert said == ["counted: the plain table counts lacks 2 transactions; run `trident compact counted`"]


# --- one query of a topology in a process ----------------------------------------------------------


def test_a_second_start_in_one_process_names_the_query_that_runs(start: Starter, caplog: Any) -> None:
    first = start.run(counted())
    said = r"counted runs in this process.*<TopologyQuery counted: leader.*replace=True"
    with pytest.raises(TridentError, match=said):
        start(counted(), standby=False)
    assert first.is_leader, "it is left alone"
    second = start.run(counted(3), standby=False, replace=True)
    said = [one.getMessage() for one in caplog.records if "stopped and replaced" in one.getMessage()]
    assert len(said) == 1 and first.run_id[:8] in said[0] and not first.is_active
    assert counts(second) == {"a": 3, "b": 3}


def test_no_query_is_stopped_for_a_topology_that_cannot_go_on_from_it(start: Starter) -> None:
    first = start.run(counted())
    other = TridentTopology("counted")
    other.new_stream("others", FixedBatchSpout("word string", [[("a",)]])).partition_persist(DeltaAppend("all"))
    with pytest.raises(IdentityMismatch, match="stream 'words' is gone"):
        start(other, standby=False, replace=True)
    assert first.is_leader and not first._supervisor.stop_requested.is_set()


def test_queries_that_have_ended_are_forgotten(monkeypatch: Any) -> None:
    class Ended:
        name, run_id, is_active = "n", "r", True

    monkeypatch.setattr(running, "_queries", {})
    one, other = Ended(), Ended()
    running.add(("tuples", "of", "one"), one)
    one.is_active = False
    running.add(("tuples", "of", "other"), other)
    assert running._queries == {("tuples", "of", "other"): [other]} and running.all_running() == [other]


@pytest.mark.long
def test_a_with_block_stops_the_query_and_lets_exceptions_through(start: Starter) -> None:
    with pytest.raises(KeyError), start(counted(1)) as query:
        query.process_all_available(WAIT_SECS)
        raise KeyError("mine")
    assert not query.is_active and "<TopologyQuery counted: stopped, current txid 2" in repr(query)
    with pytest.raises(AttemptCapReached), start(topology(Moody(emit_batch=raises)), max_attempts=1) as query:
        query._supervisor.ended.wait(WAIT_SECS)


def test_what_a_query_and_a_topology_show_of_themselves(start: Starter) -> None:
    made = counted()
    assert repr(TridentTopology("empty")) == "<TridentTopology empty: nothing in it yet>"
    assert repr(made) == "<TridentTopology counted: streams words (FixedBatchSpout), states counts (keyed)>"
    assert "<th style='text-align:left'>states</th>" in made._repr_html_()
    query = start.run(made)
    assert repr(query).startswith("<TopologyQuery counted: leader, mode running, current txid 3")
    query._reporter.errors["words"] = ("<script>", 1.0)
    assert "last error <script>" in repr(query) and "&lt;script&gt;" in query._repr_html_()


# --- topologies of spouts and bolts ------------------------------------------------------------------


class Texts(RichSpout):
    """Emits one message, and then does what a test says in one of its hooks."""

    fields = "text"

    def __init__(self, **hooks: Callable[[], Any]) -> None:
        self._hooks, self.called = hooks, []

    def _call(self, name: str) -> None:
        self.called.append(name)
        self._hooks.get(name, lambda: None)()

    def next_tuple(self) -> None:
        if "next_tuple" not in self.called:
            self.collector.emit(("a",), message_id=1)
        self._call("next_tuple")

    def ack(self, message_id: Any) -> None:
        self._call("ack")

    def close(self) -> None:
        self._call("close")


class Sink(BasicBolt):
    def execute(self, tuple: Any, collector: Any) -> None: ...


def tuples(spout: Texts) -> TupleTopology:
    made = TupleTopology("tuples")
    made.set_spout("texts", spout)
    made.set_bolt("sink", Sink()).shuffle_grouping("texts")
    return made


@pytest.mark.parametrize("hook", ["ack", *(["close"] if EVERY_HOOK else [])])
@pytest.mark.long
def test_a_tuple_topology_leaves_behind_a_hook_that_does_not_return(spark, hang, hook, caplog, tmp_path, monkeypatch):
    monkeypatch.setattr("trident.tuples.query._GRACE_SECS", 0.2)
    spout = Texts(**{hook: hang})
    query = tuples(spout).start(spark, warehouse=str(tmp_path), stop_timeout_secs=0.5)
    assert eventually(lambda: "ack" in spout.called, WAIT_SECS)
    assert stopped(query, 30)
    assert f"{hook}, at test_stopping.py:" in caplog.text
    with pytest.raises(TridentError, match="was stopped"):
        query.process_all_available()


@pytest.mark.long
def test_a_tuple_query_is_a_context_manager_and_shows_itself(spark: Any, tmp_path: Path) -> None:
    spout = Texts()
    with tuples(spout).start(spark, warehouse=str(tmp_path)) as query:
        query.process_all_available(WAIT_SECS)
        assert repr(query).startswith("<TupleQuery tuples: running, pending 0, acked 1, failed 0")
        assert "<td style='text-align:left'>running</td>" in query._repr_html_()
    assert not query.is_active and spout.called[-1] == "close"
    with pytest.raises(KeyError), tuples(Texts()).start(spark, warehouse=str(tmp_path)) as query:
        raise KeyError("mine")
    assert not query.is_active
