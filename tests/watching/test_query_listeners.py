"""Listeners, lineage and the log's context, of topologies that run: with one session, and few topologies."""

from __future__ import annotations

import json
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.zk_fixtures import eventually
from tests.topology_helpers import Starter
from tests.watching.lineage_fixtures import LineageServer
from tests.watching.test_listeners import Hears
from trident import Count, DeltaMapState, FixedBatchSpout, TridentTopology
from trident.coordinators import faults
from trident.errors import AttemptCapReached, ConfigError, UserFunctionError
from trident.watching.json_logs import JsonFormatter

WAIT_SECS = 120.0


def split(line: str) -> Iterator[str]:
    if line == "poison":
        raise ValueError("cannot be split")
    yield from line.split()


def word_count(name: str, batches: list[Any]) -> TridentTopology:
    topology = TridentTopology(name)
    words = topology.new_stream("lines", FixedBatchSpout("line string", batches)).each("line", split, "word")
    words.group_by("word").persistent_aggregate(DeltaMapState(f"{name}_counts"), Count(), "count")
    return topology


def test_a_listener_hears_of_start_takeover_progress_and_end(start: Starter) -> None:
    """Of a second one from the moment on at which it was added; of a stop before ``stop()`` returns."""
    listener, later = Hears(), Hears()
    query = start(word_count("heard", [[("a b",)], [("b",)]]), listeners=[listener], http="127.0.0.1:0")
    query.process_all_available(WAIT_SECS)

    def scraped() -> str:
        with urllib.request.urlopen(f"http://{query.http_address}/metrics", timeout=20) as answer:
            return answer.read().decode()

    assert eventually(lambda: re.search(r'\ntrident_transactions_total{.*outcome="published".*} 2', scraped()))
    query.add_listener(later)
    query.stop(compact=False)
    assert listener.calls == ["started", "takeover", "progress", "progress", "terminated"]
    started, takeover, first, second, terminated = (event for _, event in listener.heard)
    assert {event.run_id for _, event in listener.heard} == {query.run_id} and query.dropped_events == 0
    assert (started.topology, started.incarnation, takeover.incarnation) == ("heard", "", query.id)
    assert (first.txid, second.txid, first.group, first.recovered) == (1, 2, "lines", False)
    assert first.progress["states"] == {"heard_counts": 2} and first.published
    assert takeover.epoch == query.status["epoch"] and terminated.error is None
    assert later.calls == ["terminated"]
    with pytest.raises(ConfigError, match="a listener cannot be used.*Make one: Hears"):
        start(word_count("heard", [[("a b",)]]), listeners=[Hears])


@pytest.mark.long
def test_a_listener_hears_of_failures_and_of_the_error_that_ends_it(start: Starter) -> None:
    """And the records in the log of a failed attempt name it."""
    lines: list[dict[str, Any]] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    listener, handler = Hears(), Keeps()
    logging.getLogger("trident").addHandler(handler)
    try:
        settings = {"max_attempts": 2, "http": "127.0.0.1:0", "metrics": False}
        query = start(word_count("failing", [[("poison",)]]), listeners=[listener], **settings)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{query.http_address}/metrics", timeout=20)
        with pytest.raises(AttemptCapReached):
            query.process_all_available(WAIT_SECS)
        query.stop()
    finally:
        logging.getLogger("trident").removeHandler(handler)
    # The second ends the topology: its error is raised.
    (failed,) = [line for line in lines if "attempt" in line and line["message"].startswith("attempt 1")]
    assert (failed["topology"], failed["group"], failed["txid"]) == ("failing", "lines", 1)
    assert failed["level"] == "WARNING" and failed["attempt"] >= 0
    assert failed["error"].startswith("UserFunctionError: ") and "cannot be split" in failed["error"]
    assert failed["traceback"].startswith("Your function") and "in split" in failed["traceback"]
    assert [call for call in listener.calls if call != "takeover"] == ["started", "failure", "failure", "terminated"]
    failures = [event for call, event in listener.heard if call == "failure"]
    assert [(one.txid, one.part) for one in failures] == [(1, "processing")] * 2
    assert failures[0].attempt_id < failures[1].attempt_id and isinstance(failures[0].error, UserFunctionError)
    assert isinstance(listener.heard[-1][1].error, AttemptCapReached)


@pytest.mark.long
def test_a_transaction_that_recovery_finished_is_told_as_recovered(start: Starter) -> None:
    """The first process decides and never publishes; its successor, here another query, publishes."""
    faults.arm(",".join(f"publish.table:fail_before:{time}" for time in range(1, 12)))  # with back-off, for minutes
    first, second = Hears(), Hears()
    query = start(word_count("recovered", [[("a b",)]]), listeners=[first], stop_timeout_secs=2)
    assert eventually(lambda: "failure" in first.calls, WAIT_SECS), "it is decided, and cannot be published"
    told = next(event for call, event in first.heard if call == "failure")
    assert (told.txid, told.part) == (1, "publish")
    query.stop(WAIT_SECS, compact=False)
    faults.disarm()
    again = start(word_count("recovered", [[("a b",)]]), listeners=[second])
    again.process_all_available(WAIT_SECS)
    again.stop(compact=False)
    assert [(event.txid, event.recovered) for call, event in second.heard if call == "progress"] == [(1, True)]
    assert "progress" not in first.calls


@pytest.mark.long
def test_a_listener_that_hangs_delays_no_transaction(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trident.watching.listeners.END_SECS", 0.5)
    listener = Hears()
    listener.goes_on.clear()
    query = start(word_count("hanging", [[("a",)], [("b",)], [("c",)]]), listeners=[listener])
    query.process_all_available(WAIT_SECS)
    assert query.last_progress is not None and query.last_progress["batch_id"] == 3 and listener.calls == []
    query.stop(compact=False)
    assert not query.is_active
    listener.goes_on.set()


# --- lineage -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_lineage_of_a_topology_that_runs_is_sent(
    start: Starter, unconfigured: pytest.MonkeyPatch, lineage_server: LineageServer, tmp_path: Path
) -> None:
    """Before ``stop()`` returns."""
    unconfigured.setenv("OPENLINEAGE_URL", lineage_server.url)
    query = start(word_count("sent", [[("a b",)], [("b",)]]))
    query.process_all_available(WAIT_SECS)
    query.stop(compact=False)
    assert [event["eventType"] for event in lineage_server.events] == ["START", "RUNNING", "COMPLETE"]
    (written,) = lineage_server.events[-1]["outputs"]
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 3, "rows of the state's log"
    assert (Path(written["name"]) / "_delta_log").is_dir() and written["name"].startswith(str(tmp_path))
