"""OpenLineage events of a running topology, for a host that has OpenLineage configured.

A batch group is a job, ``TOPOLOGY.GROUP``: its spouts' data are the inputs, its states the outputs. A leadership is a
run of it: START when this process leads, RUNNING with the rows so far (behind the first transaction, then once a
minute where there were others), and at the end COMPLETE, FAIL with the error, or ABORT where another process takes
over. The run's parent is the start of the topology: ``query.run_id``.

The package ``openlineage-python`` (extra ``lineage``) sends them, as its own configuration says, from a thread of its
own; where it fails, the log says so and the topology goes on.
"""

from __future__ import annotations

import enum
import importlib.util
import logging
import os
import posixpath
import re
import traceback
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyspark.sql.types import StructType

from trident.coordinators.errors import TopologyError, described
from trident.coordinators.tracebacks import text_of
from trident.planning.groups import GroupPlan
from trident.planning.nodes import Node, SourceNode, is_source, sources
from trident.states.core.addresses import authority, servers_of
from trident.states.core.binding import StateBinding
from trident.states.core.place import Place
from trident.watching.events import Advanced, Event, LostLead, Terminated, TookOver, Waits
from trident.watching.listeners import Delivery

# The columns that a state's columns are made of, as far as the nodes of the plan say.


class Derivation(enum.IntEnum):
    """How a column comes from another one: the strongest of the steps in between."""

    IDENTITY = 0
    TRANSFORMATION = 1
    AGGREGATION = 2
    INDIRECT = 3  # it decides which rows there are, or which rows are put together


Origins = Mapping[tuple[SourceNode, str], Derivation]


class ColumnOrigins:
    """Follows columns back to the fields of the spouts. Calls nothing of the user's."""

    def __init__(self) -> None:
        self._known: dict[tuple[Node, str], Origins] = {}

    def of(self, node: Node, field: str) -> Origins:
        """The spouts' fields that a field of the node is made of."""
        if is_source(node):
            return {(node, field): Derivation.IDENTITY}
        key = (node, field)
        if key not in self._known:
            found: dict[tuple[SourceNode, str], Derivation] = {}
            for (parent, read), way in self._step(node, field).items():
                for origin, before in self.of(parent, read).items():
                    found[origin] = min(found.get(origin, Derivation.INDIRECT), max(way, before))
            self._known[key] = found
        return self._known[key]

    def _step(self, node: Node, field: str) -> dict[tuple[Node, str], Derivation]:
        """The parents' fields that one field of the node is made of."""
        keys = _grouping(node)
        found: dict[tuple[Node, str], Derivation] = {}
        for side, parent in enumerate(node.parents):
            reads = [name for name in node.reads(parent, frozenset((field,))) if name in parent.names]
            same = [name for name in reads if node.carried(side, name) == field]
            if same and keys is None and node.writes is not None:
                reads = same  # it writes each of its rows as it is, so no other column decides about this one
            for name in reads:
                if name in same:
                    way = Derivation.IDENTITY
                elif keys is not None:
                    if field in keys and name not in keys:
                        continue  # what is aggregated has no part in the keys
                    way = Derivation.INDIRECT if name in keys else Derivation.AGGREGATION
                else:
                    way = Derivation.INDIRECT if same else Derivation.TRANSFORMATION
                found[parent, name] = min(found.get((parent, name), Derivation.INDIRECT), way)
        return found


def _grouping(node: Node) -> tuple[str, ...] | None:
    """The keys by which a node aggregates; None where it does not."""
    aggregation = getattr(node, "aggregation", None) or getattr(node, "whole", None)
    keys = getattr(aggregation, "keys", None)
    if keys is None and not node.joins and not node.row_by_row:
        keys = getattr(node, "keys", None) if hasattr(node, "keys") and node.drawn_as != "repartition" else None
    return tuple(keys) if isinstance(keys, (tuple, list)) and all(isinstance(key, str) for key in keys) else None


# The data that a topology reads and writes, by the names that OpenLineage gives to it.
#
# The names are those of its page "Naming Conventions": namespace ``file`` for this machine, ``s3://bucket``,
# ``hdfs://host:port``, ``kafka://host:port``, ``postgres://host:port``. A spout or a state that is not known here says
# its data by a method ``lineage_datasets()``, which gives pairs (namespace, name).


_GLOB = re.compile(r"[*?\[{]")
_KAFKA_PORT, _POSTGRES_PORT, _REDIS_PORT = 9092, 5432, 6379


@dataclass(frozen=True)
class Dataset:
    """A table, a folder, a topic.

    Attributes:
        schema: its fields, as the topology reads or writes them.
        node: the node of the plan that reads or writes it.
        state: the state's name; "" of an input.
    """

    namespace: str
    name: str
    schema: StructType
    node: Node
    state: str = ""


Names = Sequence[tuple[str, str]]


def inputs_of(plan: GroupPlan) -> list[Dataset]:
    """The data that a batch group's spouts read, as far as it has names."""
    return [
        Dataset(namespace, name, source.schema, source)
        for source in sources(plan.nodes)
        for namespace, name in _read_by(source.spout)
    ]


def outputs_of(plan: GroupPlan, warehouse: Place) -> list[Dataset]:
    """The data that a batch group's states are, as far as it has names; memory has none."""
    found = []
    for node in plan.nodes:
        binding = node.writes
        if binding is not None:
            names = _written_to(binding, warehouse)
            found += [Dataset(space, name, binding.shown_schema, node, binding.name) for space, name in names]
    return found


def _read_by(spout: Any) -> Names:
    # Time: only a start that has lineage configured pays for these modules.
    from trident.spouts.delta.spout import DeltaSpout
    from trident.spouts.files.spout import FileSpout
    from trident.spouts.kafka.spout import KafkaSpout
    from trident.spouts.queues.directory_queue import DirectoryQueueSpout
    from trident.spouts.queues.redis_queue import RedisListSpout

    own = _own_names(spout)
    if own is not None:
        return own
    if isinstance(spout, FileSpout):
        return [of_place(_folder_of(path)) for path in spout.paths]
    if isinstance(spout, DeltaSpout):
        return [of_place(spout.table)]
    if isinstance(spout, DirectoryQueueSpout):
        return [of_place(spout.folder)]
    if isinstance(spout, KafkaSpout):
        topics = spout.topics or (spout.pattern or "",)
        return [(_kafka(spout.brokers), topic) for topic in topics if topic]
    if isinstance(spout, RedisListSpout):
        return [(_redis(spout.queue.url), spout.queue.key)]
    return []


def _written_to(binding: StateBinding, warehouse: Place) -> Names:
    # Time: as above.
    from trident.states.maps.postgres_store import PostgresMap
    from trident.states.maps.redis_store import RedisMap
    from trident.states.outside.http_state import HttpState
    from trident.states.outside.kafka_state import KafkaState
    from trident.states.outside.postgres_state import PostgresState

    state = binding.state
    own = _own_names(state)
    if own is not None:
        return own
    tables = binding.tables
    if tables:
        return [of_place(warehouse / tables[-1].path)]  # of a keyed state the plain one, which others read
    if isinstance(state, KafkaState):
        return [(_kafka(state.bootstrap.split(",")), state.topic)]
    map_or_store = getattr(state, "backing", state)
    if isinstance(map_or_store, (PostgresState, PostgresMap)):
        return [_postgres(map_or_store.url, map_or_store.table)]
    if isinstance(map_or_store, RedisMap):
        return [(_redis(map_or_store.url), map_or_store.name)]
    if isinstance(state, HttpState):
        url = urlsplit(state.url)
        return [(f"{url.scheme}://{url.netloc}", state.name)]  # not the path: with some servers it is a secret
    return []


def _own_names(holder: Any) -> Names | None:
    """The names that a spout or a state gives by itself; None: it does not say."""
    ask = getattr(holder, "lineage_datasets", None)
    if ask is None:
        return None
    found = ask()
    try:
        names = [(space, name) for space, name in found]
    except (TypeError, ValueError):
        names = [(None, None)]
    if not all(isinstance(part, str) and part for pair in names for part in pair):
        raise TopologyError(
            f"lineage_datasets() of {type(holder).__name__} cannot be used",
            found=described(found),
            expected='pairs of texts (namespace, name), such as [("postgres://db:5432", "shop.public.orders")]',
        )
    return names


def of_place(place: Any) -> tuple[str, str]:
    """Namespace and name of a file or folder: a path, a place of the framework, or a URL."""
    text = str(place)
    if text.startswith("file:"):
        text = urlsplit(text).path
    if "://" not in text:
        return "file", posixpath.normpath(text)
    url = urlsplit(text)
    scheme = "s3" if url.scheme in ("s3a", "s3n") else url.scheme
    path = url.path.rstrip("/")
    # An object's key has no slash at its beginning, a path of HDFS has.
    return f"{scheme}://{url.netloc.rpartition('@')[2]}", (path.lstrip("/") if scheme == "s3" else path) or "/"


def _folder_of(path: str) -> str:
    """The path, of a glob the folder above its first wildcard."""
    parts = path.split("/")
    first = next((place for place, part in enumerate(parts) if _GLOB.search(part)), len(parts))
    return "/".join(parts[:first]) or "/"


def _kafka(brokers: Sequence[str]) -> str:
    first = next((broker for broker in brokers if broker.strip()), "").strip().rpartition("://")[2]
    return f"kafka://{_with_ports(servers_of(f'//{first}'), _KAFKA_PORT)}"


def _redis(url: str) -> str:
    return f"redis://{_with_ports(servers_of(url), _REDIS_PORT)}"


def _with_ports(servers: Sequence[tuple[str, int | None]], port: int) -> str:
    return authority([(host or "localhost", own or port) for host, own in servers])


def _postgres(url: str, table: str) -> tuple[str, str]:
    """All servers that the url names, as OpenLineage's own clients do: which of them leads may change."""
    parts = urlsplit(url)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    servers = servers_of(url)
    if "host" in query or "port" in query:  # as libpq has it, this counts
        hosts = query["host"].split(",") if "host" in query else [host for host, _ in servers]
        own = [port or _POSTGRES_PORT for _, port in servers]
        ports = [int(port or _POSTGRES_PORT) for port in query["port"].split(",")] if "port" in query else own
        # A path is the folder of a socket on this machine.
        hosts = ["localhost" if host.startswith("/") else host for host in hosts]
        servers = list(zip(hosts, ports * len(hosts) if len(ports) == 1 else ports))
    database = query.get("dbname") or unquote(parts.path.strip("/")) or "postgres"
    plain = table.replace('"', "")
    space = f"postgres://{_with_ports(servers, _POSTGRES_PORT)}"
    return space, f"{database}.{plain if '.' in plain else f'public.{plain}'}"


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
    reported_at: float | None = None  # seconds since the epoch, of the last RUNNING


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
        if run.reported_at is None or event.at - run.reported_at >= RUNNING_EVERY_SECS:
            run.reported_at = event.at
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
        has_transport = bool((self._client.config.transport or {}).get("type") or os.environ.get("OPENLINEAGE_URL"))
        if not has_transport:
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


def _output(dataset: Dataset, columns: dict[str, list[tuple[Dataset, str, Derivation]]], rows: int | None) -> Any:
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


def _transformation(way: Derivation) -> Any:
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage  # an optional dependency

    if way is Derivation.INDIRECT:
        return lineage.Transformation(type="INDIRECT")
    return lineage.Transformation(type="DIRECT", subtype=way.name)
