"""OpenLineage events of a running topology, for a host that has OpenLineage configured.

A batch group is a job, ``TOPOLOGY.GROUP``: its spouts' data are the inputs, its states the outputs. A leadership is a
run of it: START when this process leads, RUNNING with the rows so far (behind the first transaction, then once a
minute where there were others), and at the end COMPLETE, FAIL with the error, or ABORT where another process takes
over. The run's parent is the start of the topology: ``query.run_id``.

The package ``openlineage-python`` (extra ``lineage``) sends them, as its own configuration says, from a thread of its
own; where it fails, the log says so and the topology goes on.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import traceback
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trident.coordinators.causes import text_of
from trident.planning.groups import GroupPlan
from trident.states.core.place import Place
from trident.watching.columns import ColumnOrigins, Way
from trident.watching.datasets import Dataset, inputs_of, outputs_of
from trident.watching.delivery import Delivery
from trident.watching.events import Advanced, Event, LostLead, Terminated, TookOver, Waits

log = logging.getLogger("trident.watching")
PRODUCER = "python://trident-spark"  # a URI that names the package; no host is asked
NAMESPACE, DISABLED = "OPENLINEAGE_NAMESPACE", "OPENLINEAGE_DISABLED"
_FILE = "openlineage.yml"
RUNNING_EVERY_SECS = 60.0
_STACK_MAX = 20_000


def is_configured() -> bool:
    """Tells whether OpenLineage's client finds settings of its own, in the places that it looks at."""
    environment = os.environ
    if environment.get(DISABLED, "").strip().lower() == "true":
        return False
    if environment.get("OPENLINEAGE_URL") or any(name.startswith("OPENLINEAGE__TRANSPORT") for name in environment):
        return True
    named = environment.get("OPENLINEAGE_CONFIG")
    places = [Path(_FILE), Path("~/.openlineage").expanduser() / _FILE, *([Path(named)] if named else [])]
    return any(os.path.isfile(place) for place in places)


def lineage_of(topology: str, plans: Sequence[GroupPlan], warehouse: Place) -> Delivery | None:
    """Sends the topology's events where OpenLineage is configured; None where it is not. Never raises."""
    if not is_configured():
        return None
    if importlib.util.find_spec("openlineage") is None:
        log.warning(
            "%s: OpenLineage is configured, but not its package: pip install 'trident-spark[lineage]'", topology
        )
        return None
    try:
        jobs = [_Job(f"{topology}.{plan.name}", plan, warehouse) for plan in plans]
    except Exception:
        log.warning("%s: its lineage is not known, and not sent", topology, exc_info=True)
        return None
    sender = _Sender(topology, {plan.name: job for plan, job in zip(plans, jobs)})
    return Delivery("lineage", sender.receive, (TookOver, Advanced, LostLead, Waits, Terminated))


class _Job:
    """The data and columns of a batch group, which are known before it runs."""

    def __init__(self, name: str, plan: GroupPlan, warehouse: Place) -> None:
        self.name = name
        self.inputs, self.outputs = inputs_of(plan), outputs_of(plan, warehouse)
        origins = ColumnOrigins()
        of_node: dict[Any, list[Dataset]] = {}
        for one in self.inputs:
            of_node.setdefault(one.node, []).append(one)
        # Output → its column → the inputs' columns, each with the way from there.
        self.columns = {
            (one.namespace, one.name): {
                column: [
                    (source, read, way)
                    for (node, read), way in sorted(
                        origins.of(one.node, column).items(), key=lambda found: (found[0][0].tx_id, found[0][1])
                    )
                    for source in of_node.get(node, ())
                ]
                for column in one.schema.names
                if column in one.node.names
            }
            for one in self.outputs
        }


@dataclass
class _Run:
    """One leadership of a batch group, in numbers."""

    id: str
    read: int | None = 0  # None: not known
    written: dict[str, int] = field(default_factory=dict)
    told_at: float | None = None  # seconds since the epoch, of the last RUNNING


class _Sender:
    """Makes OpenLineage's events of ours; called from one thread."""

    def __init__(self, topology: str, jobs: dict[str, _Job]) -> None:
        self._topology, self._jobs = topology, jobs
        self._namespace = os.environ.get(NAMESPACE) or "trident"
        self._runs: dict[str, _Run] = {}  # of the leadership that goes on, or has just been lost
        self._client: Any = None
        self._is_off = False

    def receive(self, event: Event) -> None:
        if isinstance(event, TookOver):
            self._end("ABORT", event)  # of a leadership that was lost before
            for group in self._jobs:
                self._runs[group] = _Run(str(uuid.uuid5(uuid.UUID(event.run_id), f"{event.epoch}/{group}")))
            self._send("START", event)
        elif isinstance(event, Advanced):
            self._advanced(event)
        elif isinstance(event, Waits):
            self._end("ABORT", event)
        elif isinstance(event, Terminated):
            self._end("COMPLETE" if event.error is None else "FAIL", event, event.error)
            if self._client is not None:
                self._client.close(timeout=1.0)

    def _advanced(self, event: Advanced) -> None:
        run = self._runs.get(event.group)
        if run is None:
            return
        rows = 0 if event.recovered else event.progress.get("num_input_rows")
        run.read = None if rows is None or run.read is None else run.read + rows
        for state, rows in (event.progress.get("states") or {}).items():
            run.written[state] = run.written.get(state, 0) + rows
        if run.told_at is None or event.at - run.told_at >= RUNNING_EVERY_SECS:
            run.told_at = event.at
            self._send("RUNNING", event, only=event.group)

    def _end(self, kind: str, event: Event, error: BaseException | None = None) -> None:
        self._send(kind, event, error)
        self._runs.clear()

    def _send(self, kind: str, event: Event, error: BaseException | None = None, only: str | None = None) -> None:
        if self._is_off or not self._runs:
            return
        try:
            self._connect()
        except Exception:
            self._is_off = True
            log.warning("%s: OpenLineage's settings cannot be used; no lineage is sent", self._topology, exc_info=True)
            return
        for group, run in self._runs.items():
            if only in (None, group) and not self._is_off:
                self._client.emit(self._event(kind, event, self._jobs[group], run, error))

    def _connect(self) -> None:
        """Makes the client; switches lineage off where it would print events, which were asked for by no setting."""
        if self._client is not None:
            return
        from openlineage.client import OpenLineageClient  # an optional dependency, and time

        self._client = OpenLineageClient()
        asked = bool((self._client.config.transport or {}).get("type") or os.environ.get("OPENLINEAGE_URL"))
        if not asked:
            self._is_off = True
            log.warning("%s: OpenLineage's settings name no transport; no lineage is sent", self._topology)

    # --- events -----------------------------------------------------------------------------------

    def _event(self, kind: str, event: Event, job: _Job, run: _Run, error: BaseException | None) -> Any:
        from openlineage.client import event_v2  # an optional dependency

        is_start = kind == "START"
        return event_v2.RunEvent(
            eventTime=datetime.fromtimestamp(event.at, timezone.utc).isoformat(),
            eventType=event_v2.RunState[kind],
            run=event_v2.Run(runId=run.id, facets=self._run_facets(event, error)),
            job=event_v2.Job(namespace=self._namespace, name=job.name, facets=_job_facets()),
            inputs=[_input(one, None if is_start or len(job.inputs) != 1 else run.read) for one in job.inputs],
            outputs=[
                _output(one, job.columns[one.namespace, one.name], None if is_start else run.written.get(one.state, 0))
                for one in job.outputs
            ],
            producer=PRODUCER,
        )

    def _run_facets(self, event: Event, error: BaseException | None) -> dict[str, Any]:
        # An optional dependency.
        from openlineage.client.facet_v2 import error_message_run, parent_run, processing_engine_run

        facets: dict[str, Any] = {
            "parent": parent_run.ParentRunFacet(
                run=parent_run.Run(runId=str(uuid.UUID(event.run_id))),
                job=parent_run.Job(namespace=self._namespace, name=self._topology),
            ),
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                version=version("pyspark"), name="spark"
            ),
        }
        if error is not None:
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                message=text_of(error), programmingLanguage="PYTHON", stackTrace=trace[-_STACK_MAX:]
            )
        return facets


def _job_facets() -> dict[str, Any]:
    from openlineage.client.facet_v2 import job_type_job  # an optional dependency

    facet = job_type_job.JobTypeJobFacet(processingType="STREAMING", integration="TRIDENT", jobType="BATCH_GROUP")
    return {"jobType": facet}


def _schema(dataset: Dataset) -> dict[str, Any]:
    from openlineage.client.facet_v2 import schema_dataset  # an optional dependency

    fields = [
        schema_dataset.SchemaDatasetFacetFields(name=one.name, type=one.dataType.simpleString())
        for one in dataset.schema.fields
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)}


def _input(dataset: Dataset, rows: int | None) -> Any:
    # An optional dependency.
    from openlineage.client import event_v2
    from openlineage.client.facet_v2 import input_statistics_input_dataset as statistics

    counted: Any = {}
    if rows is not None:
        counted["inputStatistics"] = statistics.InputStatisticsInputDatasetFacet(rowCount=rows)
    return event_v2.InputDataset(dataset.namespace, dataset.name, facets=_schema(dataset), inputFacets=counted)


def _output(dataset: Dataset, columns: dict[str, list[tuple[Dataset, str, Way]]], rows: int | None) -> Any:
    # An optional dependency.
    from openlineage.client import event_v2
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    fields = {
        column: lineage.Fields(
            inputFields=[
                lineage.InputField(
                    namespace=source.namespace, name=source.name, field=read, transformations=[_transformation(way)]
                )
                for source, read, way in origins
            ]
        )
        for column, origins in columns.items()
        if origins
    }
    facets = _schema(dataset)
    if fields:
        facets["columnLineage"] = lineage.ColumnLineageDatasetFacet(fields=fields)
    counted: Any = {}
    if rows is not None:
        counted["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(rowCount=rows)
    return event_v2.OutputDataset(dataset.namespace, dataset.name, facets=facets, outputFacets=counted)


def _transformation(way: Way) -> Any:
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage  # an optional dependency

    if way is Way.INDIRECT:
        return lineage.Transformation(type="INDIRECT")
    return lineage.Transformation(type="DIRECT", subtype=way.name)
