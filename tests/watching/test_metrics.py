"""Metrics: their table, instruments that events fill, values that facts give, and OpenTelemetry's form of them."""

from __future__ import annotations

import asyncio
import http.server
import json
import math
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from tests.servers.zk_fixtures import eventually
from tests.watching.metric_helpers import NAMED, advanced, began, failed
from trident.cli import main
from trident.coordinators.errors import ConfigError
from trident.running.status import AttemptStatus, CopyStatus, GroupStatus, TopologyStatus
from trident.states.core.place import Place
from trident.states.delta.append import DEAD_LETTERS
from trident.states.outside.health import OutsideHealth
from trident.watching import metrics as collecting
from trident.watching import otel
from trident.watching.events import LostLead, Started, Terminated, TookOver, Watchers
from trident.watching.metric_facts import (
    ADVANCES_KEPT,
    DiskFacts,
    Facts,
    GroupFigures,
    MemoryFacts,
    MergeFacts,
    TableSize,
)
from trident.watching.metric_table import ALERTS, DASHBOARD, METRICS, monitoring_file
from trident.watching.metrics import Collecting, Instruments, Metrics


def values(text: str) -> dict[tuple[str, ...], float]:
    """Sample name and label values (in the order of the labels' names) → value."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def seen(instruments: Instruments) -> dict[tuple[str, ...], float]:
    return values(generate_latest(instruments).decode())


# --- the table ------------------------------------------------------------------------------------


def test_names_and_units_are_as_prometheus_would_have_them() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names) > 40
    for metric in METRICS:
        assert re.fullmatch(r"trident(_[a-z]+)+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        stem = metric.name.removesuffix("_total")
        assert metric.unit == "" or stem.endswith(f"_{metric.unit}"), metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert metric.kind in ("counter", "gauge", "histogram")
        assert metric.read is not None or metric.kind != "gauge", f"{metric.name}: nothing gives it a value"
        assert metric.about.endswith(".") and not {"le", "topology", "job", "instance"} & set(metric.labels)


@pytest.mark.parametrize("name", [ALERTS, DASHBOARD])
def test_alerts_and_dashboard_name_metrics_and_labels_that_there_are(name: str) -> None:
    text = monitoring_file(name)
    known = {metric.name: metric for metric in METRICS}
    found = set(re.findall(r"\btrident_[a-z_]+[a-z](?=[{\[)\s])", text))
    assert len(found) > 10
    for one in found:
        assert one in known or known[re.sub(r"_(bucket|sum|count)$", "", one)].kind == "histogram"
    labels = {label for metric in METRICS for label in metric.labels} | {"topology", "le", "instance"}
    for by in re.findall(r"(?:by|on) \(([^)]*)\)", text):
        assert set(by.split(", ")) <= labels, by


def test_the_dashboard_shows_every_metric_that_changes() -> None:
    panels = json.loads(monitoring_file(DASHBOARD))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    shown = " ".join(target["expr"] for panel in panels for target in panel.get("targets", ()))
    not_shown = {metric.name for metric in METRICS if metric.name not in shown}
    assert not_shown == {
        *("trident_info", "trident_takeovers_total", "trident_lost_leads_total", "trident_zookeeper_connected"),
        *("trident_zookeeper_failures_total", "trident_attempts_total", "trident_last_advance_timestamp_seconds"),
        *("trident_merge_seconds_total", "trident_local_copy_following", "trident_local_copy_builds"),
        *("trident_outside_lag_transactions", "trident_outside_tries", "trident_jvm_heap_max_bytes"),
        *("trident_warehouse_size_bytes", "trident_collected_timestamp_seconds"),
    }


def test_the_command_prints_either_file() -> None:
    run = CliRunner().invoke
    assert run(main, ["metrics", "--alerts"]).output == monitoring_file(ALERTS)
    assert json.loads(run(main, ["metrics", "--dashboard"]).output)["title"] == "Trident on Spark"
    for wrong in ([], ["--alerts", "--dashboard"]):
        assert run(main, ["metrics", *wrong]).exit_code == 2


# --- events ---------------------------------------------------------------------------------------


def test_events_fill_counters_and_histograms() -> None:
    instruments = Instruments("t", Facts)
    for event in (
        TookOver(**NAMED, epoch=1),
        began(1),
        failed(1, ValueError("bad")),
        began(1, 1),
        advanced(1),
        began(2),
        advanced(2, published=False),
        failed(3, OSError(), "publish"),
        advanced(3, recovered=True),
        LostLead(**NAMED),
    ):
        instruments.watch(event)
    instruments.zookeeper("read", 0.003, False)
    instruments.zookeeper("write", 0.3, True)
    found = seen(instruments)
    assert found["trident_takeovers_total", "t"] == found["trident_lost_leads_total", "t"] == 1
    assert found["trident_attempts_total", "g", "t"] == 3 and found["trident_replays_total", "g", "t"] == 1
    assert found["trident_failures_total", "g", "ValueError", "processing", "t"] == 1
    assert found["trident_failures_total", "g", "OSError", "publish", "t"] == 1
    outcomes = {key[2]: value for key, value in found.items() if key[0] == "trident_transactions_total"}
    assert outcomes == {"published": 1, "empty": 1, "recovered": 1}
    assert found["trident_input_rows_total", "g", "t"] == 20, "an earlier process has read those of the third"
    assert found["trident_state_rows_total", "g", "counts", "t"] == 12
    assert found["trident_state_written_bytes_total", "g", "counts", "t"] == 2100
    assert found["trident_phase_duration_seconds_count", "g", "total", "t"] == 3
    assert found["trident_phase_duration_seconds_sum", "g", "process", "t"] == pytest.approx(0.06)
    phases = {key[2] for key in found if key[0] == "trident_phase_duration_seconds_count"}
    assert phases == {"begin", "process", "total"}, "no label for what is no phase"
    assert found["trident_zookeeper_request_duration_seconds_count", "read", "t"] == 1
    assert found["trident_zookeeper_failures_total", "write", "t"] == 1
    assert not [key for key in found if "_created" in key[0]]


def test_a_new_leadership_has_begun_nothing_before() -> None:
    instruments = Instruments("t", Facts)
    for event in (began(7), TookOver(**NAMED, epoch=2), began(7, 1), began(7, 2)):
        instruments.watch(event)
    assert seen(instruments)["trident_replays_total", "g", "t"] == 1


def test_a_program_that_makes_error_classes_up_does_not_fill_the_memory() -> None:
    instruments = Instruments("t", Facts)
    for number in range(200):
        instruments.watch(failed(1, type(f"Made{number}", (Exception,), {})()))
    found = {key[2]: value for key, value in seen(instruments).items() if key[0] == "trident_failures_total"}
    assert len(found) == 51 and found["other"] == 150


def test_topologies_of_one_process_do_not_meet() -> None:
    one, other = Instruments("t", Facts), Instruments("t", Facts)
    one.watch(began(1))
    assert seen(one)["trident_attempts_total", "g", "t"] == 1
    assert ("trident_attempts_total", "g", "t") not in seen(other)


# --- facts ----------------------------------------------------------------------------------------


def group_facts(**more: Any) -> GroupFigures:
    status = GroupStatus(
        "g",
        11,
        attempts=(AttemptStatus(11, 0, "COMMITTING", 990.0, 2), AttemptStatus(12, 0, "PROCESSING", 995.0)),
        backlog={"rows": 40, "files": 2},
        copies=(CopyStatus("counts", "following", 10, 4096, 1 << 30, 2), CopyStatus("far", "off", on_executors=True)),
        outside=(OutsideHealth("mail", "away", 10, 11, 900.0, 3), OutsideHealth("ok", txid=10, dead_letters=1)),
        view_txid=8,
    )
    given: dict[str, Any] = {
        "merges": {"counts": MergeFacts(7, 3, 1.5, 1), "new": MergeFacts()},
        "failures": 2,
        "failing_secs": 5.0,
        "advances": tuple((txid, 900.0 + 10 * txid) for txid in range(1, 11)),
        "led_from": 900.0,
        "backlog_since": 400.0,
    }
    return GroupFigures(status, **{**given, **more})


def test_facts_give_the_other_values() -> None:
    facts = Facts(
        now=1010.0,
        version="1",
        run_id="r",
        role="leader",
        epoch=4,
        zookeeper_connected=True,
        groups=(group_facts(),),
        tables=(TableSize("g", "counts", "log", 3, 999, None), TableSize("g", "", "dead_letters", 1, 5, 2)),
        disk=DiskFacts(10, 100),
        memory=MemoryFacts(1, 2, 3, 4),
        collected={"status": 1009.0},
    )
    found = seen(Instruments("t", lambda: facts))
    expected = {
        ("trident_info", "r", "t", "1"): 1,
        ("trident_role", "leader", "t"): 1,
        ("trident_role", "standby", "t"): 0,
        ("trident_epoch", "t"): 4,
        ("trident_zookeeper_connected", "t"): 1,
        ("trident_current_txid", "g", "t"): 11,
        ("trident_last_advance_timestamp_seconds", "g", "t"): 1000,
        ("trident_in_flight", "g", "processing", "t"): 1,
        ("trident_in_flight", "g", "processed", "t"): 0,
        ("trident_in_flight", "g", "committing", "t"): 1,
        ("trident_oldest_attempt_age_seconds", "g", "t"): 20,
        ("trident_transaction_failures", "g", "t"): 2,
        ("trident_group_mode", "g", "running", "t"): 1,
        ("trident_group_mode", "g", "halted", "t"): 0,
        ("trident_backlog_rows", "g", "t"): 40,
        ("trident_backlog_files", "g", "t"): 2,
        ("trident_backlog_age_seconds", "g", "t"): 610,
        ("trident_source_failing_seconds", "g", "t"): 5,
        ("trident_dead_letters", "g", "t"): 2,
        ("trident_merge_lag_transactions", "g", "counts", "t"): 3,
        ("trident_merge_lag_seconds", "g", "counts", "t"): 30,
        ("trident_merges_total", "g", "counts", "t"): 3,
        ("trident_merge_seconds_total", "g", "counts", "t"): 1.5,
        ("trident_merge_failures_total", "g", "counts", "t"): 1,
        ("trident_view_lag_transactions", "g", "t"): 2,
        ("trident_view_lag_seconds", "g", "t"): 20,
        ("trident_table_bytes", "g", "counts", "log", "t"): 999,
        ("trident_table_files", "g", "counts", "log", "t"): 3,
        ("trident_local_copy_following", "g", "counts", "t"): 1,
        ("trident_local_copy_bytes", "g", "counts", "t"): 4096,
        ("trident_local_copy_builds", "g", "counts", "t"): 2,
        ("trident_outside_lag_transactions", "g", "mail", "t"): 1,
        ("trident_outside_waiting_seconds", "g", "mail", "t"): 110,
        ("trident_outside_waiting_seconds", "g", "ok", "t"): 0,
        ("trident_outside_tries", "g", "mail", "t"): 3,
        ("trident_outside_dead_letters", "g", "ok", "t"): 1,
        ("trident_process_memory_bytes", "python", "t"): 1,
        ("trident_process_memory_bytes", "jvm", "t"): 2,
        ("trident_jvm_heap_used_bytes", "t"): 3,
        ("trident_jvm_heap_max_bytes", "t"): 4,
        ("trident_warehouse_free_bytes", "t"): 10,
        ("trident_warehouse_size_bytes", "t"): 100,
        ("trident_collected_timestamp_seconds", "t", "status"): 1009,
    }
    assert {key: found.get(key) for key in expected} == expected
    read = {metric.name for metric in METRICS if metric.read is not None}
    assert read - {key[0] for key in expected} == {"trident_backlog_bytes"}, "each has been looked at here"
    absent = [("trident_merge_lag_seconds", "g", "new", "t"), ("trident_backlog_bytes", "g", "t")]
    absent += [("trident_local_copy_following", "g", "far", "t")]
    assert not [key for key in absent if key in found], "no figure where none is known"


@pytest.mark.parametrize(
    ("advances", "led_from", "upto", "secs"),
    [
        (((9, 990.0), (10, 1000.0)), 980.0, 10, 0.0),
        (((9, 990.0), (10, 1000.0)), 980.0, 8, 20.0),
        (((9, 990.0), (10, 1000.0)), 980.0, 3, 30.0),  # the oldest advanced before this leadership
        ((), 980.0, 3, 30.0),  # nothing has advanced since the take-over
        # More lag than are known: at least since the oldest of them, and not since a leadership of days.
        (tuple((txid, 900.0 + txid / 100) for txid in range(9000, 9000 + ADVANCES_KEPT)), 1.0, 3, 20.0),
    ],
)
def test_a_lag_is_as_old_as_its_oldest_transaction(
    advances: tuple[tuple[int, float], ...], led_from: float, upto: int, secs: float
) -> None:
    group = group_facts(advances=advances, led_from=led_from, merges={"counts": MergeFacts(upto)})
    found = seen(Instruments("t", lambda: Facts(now=1010.0, groups=(group,))))
    assert found["trident_merge_lag_seconds", "g", "counts", "t"] == secs


# --- collecting -----------------------------------------------------------------------------------


class Hangs:
    """A topology whose disk, or whose JVM, does not answer."""

    warehouse = Place("/nowhere")

    def __init__(self, role: str = "leader", **hanging: bool) -> None:
        self.role, self._hanging, self.free = role, hanging, threading.Event()

    def _may_hang(self, what: str) -> None:
        if self._hanging.get(what):
            self.free.wait(60)

    def status(self) -> TopologyStatus:
        self._may_hang("status")
        group = GroupStatus("g", 5, backlog={"rows": 3})
        return TopologyStatus("t", "i", "r", 2, self.role, groups=(group,))

    def merges(self) -> dict[str, dict[str, MergeFacts]]:
        return {}

    def failures(self) -> dict[str, tuple[int, float]]:
        return {}

    def zookeeper_connected(self) -> bool:
        return True

    def states(self) -> list[tuple[str, str]]:
        self._may_hang("tables")
        return [("g", "counts")]

    def jvm(self) -> None:
        self._may_hang("jvm")


def made_table(table: Path, entry: str) -> None:
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / f"{0:020d}.json").write_text(entry)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A warehouse with an empty table ``counts``."""
    said = {"metaData": {"schemaString": "{}"}, "protocol": {"minReaderVersion": 1}}
    made_table(tmp_path / "counts", json.dumps(said))
    return tmp_path


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "STATUS_SECS", 0.02)
    monkeypatch.setattr(collecting, "PROCESS_SECS", 0.02)


@contextmanager
def collects(observed: Hangs, every_secs: float, *events: Any) -> Iterator[Collecting]:
    made = Collecting("t", observed, every_secs)
    for event in events:
        made.watch(event)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("what", ["status", "jvm", "tables"])
def test_a_scrape_waits_for_nothing_that_hangs(what: str, at_once: None) -> None:
    observed = Hangs(**{what: True})
    metrics = Metrics("t", observed, 0.02)
    metrics.watch(Started(**NAMED))
    others = {"status": "process", "jvm": "status", "tables": "status"}
    try:
        known = ("trident_collected_timestamp_seconds", "t", others[what])
        assert eventually(lambda: known in seen(metrics.instruments), 30)
        first = seen(metrics.instruments)[known]
        assert eventually(lambda: seen(metrics.instruments)[known] > first, 30), "the others go on"
        hung = {"jvm": "process"}.get(what, what)
        assert ("trident_collected_timestamp_seconds", "t", hung) not in seen(metrics.instruments)
    finally:
        metrics.watch(Terminated(**NAMED, error=None))
        observed.free.set()


def test_a_standby_has_its_role_epoch_and_memory_only(at_once: None) -> None:
    with collects(Hangs("standby"), 0.02) as made:
        assert eventually(lambda: len(made.facts().collected) == 3, 30)
        found = seen(Instruments("t", made.facts))
        assert found["trident_role", "standby", "t"] == 1 and found["trident_process_memory_bytes", "python", "t"] > 1e6
        assert {key[0] for key, value in found.items() if "g" in key[1:]} == set()
        assert {key[0] for key in found} == {
            *("trident_info", "trident_role", "trident_epoch", "trident_zookeeper_connected"),
            *("trident_process_memory_bytes", "trident_collected_timestamp_seconds"),
        }


def test_a_backlog_is_as_old_as_the_time_since_it_was_empty(at_once: None) -> None:
    began_at = time.time()
    with collects(Hangs(), 60, TookOver(**NAMED, at=100.0, epoch=1), advanced(4, at=200.0)) as made:
        assert eventually(lambda: made.facts().groups, 30)
        (group,) = made.facts().groups
        assert group.backlog_since is not None and group.backlog_since >= began_at
        assert group.advances == ((4, 200.0),) and group.led_from == 100.0
        assert eventually(lambda: made.facts().collected["status"] > group.backlog_since, 30)
        assert made.facts().groups[0].backlog_since == group.backlog_since


def test_another_leadership_has_a_backlog_of_its_own(at_once: None) -> None:
    observed = Hangs()
    with collects(observed, 60) as made:
        assert eventually(lambda: made.facts().groups, 30)
        first = made.facts().groups[0].backlog_since
        observed.role = "standby"
        assert eventually(lambda: made.facts().role == "standby", 30)
        observed.role = "leader"
        assert eventually(lambda: made.facts().groups, 30)
        assert made.facts().groups[0].backlog_since > first


def test_a_process_that_leads_no_more_has_no_tables_and_one_that_leads_has_them_soon(at_once: None, log: Path) -> None:
    observed = Hangs("standby")
    observed.warehouse = Place(str(log))
    with collects(observed, 3600) as made:
        assert eventually(lambda: len(made.facts().collected) == 3, 30)
        observed.role = "leader"
        letters = TableSize("g", "", "dead_letters", 0, 0, 0)
        assert eventually(lambda: TableSize("g", "counts", "plain", 0, 0, 0) in made.facts().tables, 30)
        assert letters in made.facts().tables and made.facts().disk is not None
        observed.role = "standby"
        assert eventually(lambda: made.facts().role == "standby", 30)
        assert (made.facts().tables, made.facts().disk) == ((), None)


def test_a_look_that_fails_does_not_say_that_dead_letters_have_gone(tmp_path: Path, at_once: None) -> None:
    made_table(tmp_path / DEAD_LETTERS.table_name("t", "g"), "{")
    observed = Hangs()
    observed.warehouse = Place(str(tmp_path))
    with collects(observed, 60) as made:
        assert eventually(lambda: len(made.facts().collected) == 3, 30)
        assert made.facts().tables == ()


def test_what_ends_is_exported_as_ended(at_once: None) -> None:
    metrics = Metrics("t", Hangs(), 60)
    metrics.watch(Started(**NAMED))
    assert eventually(lambda: seen(metrics.instruments)["trident_role", "leader", "t"] == 1, 30)
    metrics.watch(Terminated(**NAMED, error=ValueError()))
    found = seen(metrics.instruments)
    assert (found["trident_role", "leader", "t"], found["trident_role", "failed", "t"]) == (0, 1)
    assert ("trident_current_txid", "g", "t") not in found


def test_a_spout_that_counts_less_than_nothing_and_an_event_that_cannot_be_counted_end_no_metrics(
    at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(threading.enumerate())
    metrics, watchers = Metrics("t", Hangs(), 60), Watchers()
    watchers.add(metrics.watch)
    watchers.notify(Started(**NAMED))
    odd = advanced(1)
    watchers.notify(replace(odd, progress={**odd.progress, "num_input_rows": -1}))
    watchers.notify(replace(odd, progress={}))
    assert "Advanced is not in its metrics" in caplog.text
    watchers.notify(advanced(2))
    assert ("trident_input_rows_total", "g", "t") not in seen(metrics.instruments), "a sum without one part is wrong"
    assert seen(metrics.instruments)["trident_transactions_total", "g", "published", "t"] == 3
    watchers.notify(Terminated(**NAMED, error=None))
    assert eventually(lambda: not set(threading.enumerate()) - before, 30), "its threads end with the topology"


def test_the_answer_has_the_form_that_is_asked_for() -> None:
    metrics = Metrics("t", Hangs(), 60)
    metrics.watch(began(1))
    plain = asked(metrics)
    assert plain.headers["Content-Type"].startswith("text/plain") and b"trident_attempts_total" in plain.body
    other = asked(metrics, (b"accept", b"application/openmetrics-text; version=1.0.0"))
    assert other.headers["Content-Type"].startswith("application/openmetrics-text")
    assert other.body.endswith(b"# EOF\n")


def asked(metrics: Metrics, *headers: tuple[bytes, bytes]) -> Any:
    return asyncio.run(metrics.route.endpoint(Request({"type": "http", "headers": list(headers)})))


# --- OpenTelemetry --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "exporters"),
    [
        ({}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"}, ["otlp"]),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, ["otlp"]),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "x"}, []),
        ({"OTEL_METRICS_EXPORTER": " Console , prometheus"}, ["console"]),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, []),
    ],
)
def test_an_exporter_is_asked_for_as_opentelemetry_says(environment: dict[str, str], exporters: list[str]) -> None:
    assert otel.configured_exporters(environment) == exporters


def test_an_unknown_exporter_and_interval_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="otpl"):
        otel.configured_exporters({"OTEL_METRICS_EXPORTER": "otpl"})
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "soon")
    with pytest.raises(ConfigError, match="soon"):
        Metrics("t", Hangs(), 60)


def test_without_the_extra_a_warning_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    assert otel.make_exporters("t", Instruments("t", Facts)) == []
    assert "pip install 'trident-spark[otel]'" in caplog.text


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP collector: its address, and the bodies that it was sent."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_collector_gets_the_same_values(
    collector: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    metrics_service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    address, bodies = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    metrics = Metrics("words", Hangs(), 60)
    metrics.watch(Started(**NAMED))
    for event in (began(1), advanced(1), began(2), advanced(2)):
        metrics.watch(event)
    assert eventually(lambda: len(bodies) > 1, 30), "it comes again and again"
    metrics.watch(Terminated(**NAMED, error=None))
    assert eventually(lambda: not metrics._exporting[0]._thread.is_alive(), 30)
    request = metrics_service.ExportMetricsServiceRequest.FromString(bodies[-1])
    (resource,) = request.resource_metrics
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "words"
    found = {one.name: one for one in resource.scope_metrics[0].metrics}
    (attempts,) = found["trident_attempts"].sum.data_points
    assert attempts.as_double == 2 and found["trident_attempts"].sum.is_monotonic
    assert {one.key: one.value.string_value for one in attempts.attributes} == {"topology": "words", "group": "g"}
    phases = {
        next(a.value.string_value for a in point.attributes if a.key == "phase"): point
        for point in found["trident_phase_duration_seconds"].histogram.data_points
    }
    total = phases["total"]
    assert total.count == 2 and total.sum == pytest.approx(0.06) and sum(total.bucket_counts) == 2
    assert len(total.bucket_counts) == len(total.explicit_bounds) + 1
    assert total.bucket_counts[list(total.explicit_bounds).index(0.05)] == 2
    assert found["trident_phase_duration_seconds"].unit == "s"
    named = {family.name for family in metrics.instruments.collect() if family.samples}
    assert set(found) == named, "all that Prometheus is given, under the same names"
    assert not any(math.isnan(point.as_double) for point in found["trident_role"].gauge.data_points)
