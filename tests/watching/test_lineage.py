"""OpenLineage events, sent to a real server and by the client's own transports; the events of a topology are made here.

``test_query_listeners.py`` has a topology that runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import event_v2
from openlineage.client.facet_v2 import column_lineage_dataset, schema_dataset

from tests.watching.lineage_fixtures import LineageServer
from trident import Count, DeltaAppend, DeltaMapState, FileSpout, FixedBatchSpout, TridentTopology
from trident.planning.groups import plan
from trident.states.core.place import Place
from trident.watching import lineage
from trident.watching.events import Advanced, LostLead, Terminated, TookOver, Waits
from trident.watching.listeners import Delivery

RUN_ID = "0123456789abcdef0123456789abcdef"
OF_ALL: dict[str, Any] = {"topology": "orders", "incarnation": "i", "run_id": RUN_ID}
WAREHOUSE = "/data/warehouse"


def split(line: str) -> Iterator[str]:
    yield from line.split()


def two_groups(folder: Path) -> TridentTopology:
    topology = TridentTopology("orders")
    lines = topology.new_stream("lines", FileSpout(str(folder / "*.txt")))
    words = lines.each("value", split, "word")
    words.group_by("word").persistent_aggregate(DeltaMapState("order_counts"), Count(), "count")
    sizes = topology.new_stream("sizes", FixedBatchSpout("size long, shop string", [[(1, "a")], [(2, "b")]]))
    sizes.rename({"shop": "store"}).partition_persist(DeltaAppend("order_sizes"))
    return topology


def without_none(facts: dict[str, Any]) -> schema_dataset.SchemaDatasetFacetFields:
    return schema_dataset.SchemaDatasetFacetFields(**{key: value for key, value in facts.items() if value is not None})


def is_valid(event: dict[str, Any]) -> event_v2.RunEvent:
    """The event as the client's own classes have it, which check what they are given."""
    facets = event["outputs"][0]["facets"]
    schema_dataset.SchemaDatasetFacet(fields=[without_none(one) for one in facets["schema"]["fields"]])
    if "columnLineage" in facets:
        column_lineage_dataset.ColumnLineageDatasetFacet(fields=facets["columnLineage"]["fields"])
    return event_v2.RunEvent(
        eventTime=event["eventTime"],
        eventType=event_v2.RunState[event["eventType"]],
        run=event_v2.Run(runId=event["run"]["runId"]),
        job=event_v2.Job(event["job"]["namespace"], event["job"]["name"]),
        producer=event["producer"],
    )


def delivery(folder: Path) -> Delivery:
    found = lineage.lineage_of("orders", plan(two_groups(folder).graph), Place(WAREHOUSE))
    assert found is not None
    return found


def advanced(group: str, txid: int, rows: int, states: dict[str, int], at: float = 1000.0) -> Advanced:
    record = {"num_input_rows": rows, "states": states}
    facts = {"group": group, "txid": txid, "attempt_id": 0, "progress": record, "published": True, "recovered": False}
    return Advanced(**OF_ALL, **facts, at=at)


def told(to: Delivery, *events: Any, secs: float = 30.0) -> None:
    for event in events:
        to(event)
    assert to.close(time.monotonic() + secs)


def test_a_run_is_a_leadership_of_a_batch_group(
    unconfigured: pytest.MonkeyPatch, lineage_server: LineageServer, tmp_path: Path
) -> None:
    unconfigured.setenv("OPENLINEAGE_URL", lineage_server.url)
    unconfigured.setenv("OPENLINEAGE_NAMESPACE", "shop")
    told(
        delivery(tmp_path),
        TookOver(**OF_ALL, epoch=3),
        advanced("lines", 1, 2, {"order_counts": 2}),
        advanced("lines", 2, 3, {"order_counts": 1}, at=1030.0),
        advanced("sizes", 1, 1, {"order_sizes": 1}),
        advanced("lines", 3, 4, {"order_counts": 1}, at=1061.0),
        Terminated(**OF_ALL, error=None),
    )
    sent = lineage_server.events
    assert {event["path"] for event in sent} == {"/api/v1/lineage"}
    for event in sent:
        is_valid(event)
    of_job = {name: [one for one in sent if one["job"]["name"] == name] for name in ("orders.lines", "orders.sizes")}
    kinds = {name: [one["eventType"] for one in found] for name, found in of_job.items()}
    assert kinds == {
        "orders.lines": ["START", "RUNNING", "RUNNING", "COMPLETE"],
        "orders.sizes": ["START", "RUNNING", "COMPLETE"],
    }, "once a minute"
    for found in of_job.values():
        assert len({one["run"]["runId"] for one in found}) == 1
        assert all(one["job"]["namespace"] == "shop" for one in found)
        parent = found[0]["run"]["facets"]["parent"]
        assert parent["run"]["runId"].replace("-", "") == RUN_ID and parent["job"]["name"] == "orders"
        assert found[0]["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    words = of_job["orders.lines"][-1]
    (read,), (written,) = words["inputs"], words["outputs"]
    assert (read["namespace"], read["name"]) == ("file", str(tmp_path))
    assert [(one["name"], one["type"]) for one in read["facets"]["schema"]["fields"]][0] == ("value", "string")
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 9
    assert (written["namespace"], written["name"]) == ("file", f"{WAREHOUSE}/order_counts")
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 4
    columns = written["facets"]["columnLineage"]["fields"]
    (from_value,) = columns["word"]["inputFields"]
    assert (from_value["namespace"], from_value["name"], from_value["field"]) == ("file", read["name"], "value")
    assert from_value["transformations"][0]["subtype"] == "TRANSFORMATION"
    assert columns["count"]["inputFields"][0]["transformations"][0]["type"] == "INDIRECT", "it is grouped by the word"
    sizes = of_job["orders.sizes"][-1]
    assert sizes["inputs"] == [] and sizes["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert [one["name"] for one in sizes["outputs"][0]["facets"]["schema"]["fields"]][:2] == ["size", "store"]


def test_a_lead_that_is_lost_is_aborted_where_another_begins_and_completed_where_it_was_the_last(
    unconfigured: pytest.MonkeyPatch, lineage_server: LineageServer, tmp_path: Path
) -> None:
    unconfigured.setenv("OPENLINEAGE_URL", lineage_server.url)
    told(
        delivery(tmp_path),
        Waits(**OF_ALL, host="other", pid=1),
        TookOver(**OF_ALL, epoch=1),
        LostLead(**OF_ALL),
        Waits(**OF_ALL, host="other", pid=1),
        TookOver(**OF_ALL, epoch=3),
        LostLead(**OF_ALL),
        TookOver(**OF_ALL, epoch=4),
        LostLead(**OF_ALL),
        Terminated(**OF_ALL, error=None),
    )
    lines = [event for event in lineage_server.events if event["job"]["name"] == "orders.lines"]
    assert [event["eventType"] for event in lines] == ["START", "ABORT", "START", "ABORT", "START", "COMPLETE"]
    runs = [event["run"]["runId"] for event in lines]
    assert runs[0::2] == runs[1::2] and len(set(runs)) == 3
    assert {event["job"]["namespace"] for event in lines} == {"trident"}


def test_a_failure_is_sent_with_its_error_by_the_transport_that_a_file_of_settings_names(
    unconfigured: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = f"transport:\n  type: file\n  log_file_path: {tmp_path}/lineage.json\n  append: true\n"
    (tmp_path / "openlineage.yml").write_text(settings)
    try:
        raise ValueError("cannot be split")
    except ValueError as raised:
        told(delivery(tmp_path), TookOver(**OF_ALL, epoch=1), Terminated(**OF_ALL, error=raised))
    sent = [json.loads(line) for line in (tmp_path / "lineage.json").read_text().splitlines()]
    assert [event["eventType"] for event in sent] == ["START", "START", "FAIL", "FAIL"]
    is_valid(sent[-1])
    error = sent[-1]["run"]["facets"]["errorMessage"]
    assert error["message"] == "cannot be split" and error["programmingLanguage"] == "PYTHON"
    assert "in test_a_failure_is_sent" in error["stackTrace"]


@pytest.mark.parametrize("trouble", ["hangs", "refuses", "settings", "console"])
def test_what_cannot_be_sent_keeps_no_teller_waiting_and_is_said(
    unconfigured: pytest.MonkeyPatch,
    lineage_server: LineageServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    trouble: str,
) -> None:
    if trouble == "hangs":
        lineage_server.goes_on.clear()
        unconfigured.setenv("OPENLINEAGE_URL", lineage_server.url)
    elif trouble == "refuses":
        lineage_server.close()
        (tmp_path / "openlineage.yml").write_text(
            f"transport:\n  type: http\n  url: {lineage_server.url}\n  retry: {{total: 0}}\n"
        )
    elif trouble == "settings":
        (tmp_path / "openlineage.yml").write_text("transport:\n  type: pigeon\n")
    else:
        (tmp_path / "openlineage.yml").write_text("tags: {job: {}, run: {}}\n")
    to = delivery(tmp_path)
    began = time.monotonic()
    for event in (TookOver(**OF_ALL, epoch=1), *(advanced("lines", txid, 1, {}) for txid in range(1, 100))):
        to(event)
    to(Terminated(**OF_ALL, error=None))
    assert time.monotonic() - began < 4, "the client alone waits for five seconds"
    ended = to.close(time.monotonic() + (0.2 if trouble == "hangs" else 60))
    assert ended == (trouble != "hangs") and lineage_server.events == []
    says = {"settings": "settings cannot be used", "console": "name no transport", "refuses": "lineage raised at"}
    assert says.get(trouble, "") in caplog.text and "START" not in capsys.readouterr().out


def test_it_is_off_without_settings_and_said_to_be_without_the_package(
    unconfigured: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plans, place = plan(two_groups(tmp_path).graph), Place(WAREHOUSE)
    assert lineage.lineage_of("orders", plans, place) is None
    unconfigured.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    unconfigured.setenv("OPENLINEAGE_DISABLED", "true")
    assert lineage.lineage_of("orders", plans, place) is None
    unconfigured.delenv("OPENLINEAGE_DISABLED")
    assert caplog.text == ""
    unconfigured.setattr(lineage.importlib.util, "find_spec", lambda name: None)
    assert lineage.lineage_of("orders", plans, place) is None
    assert "pip install 'trident-spark[lineage]'" in caplog.text
