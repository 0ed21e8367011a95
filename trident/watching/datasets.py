"""The data that a topology reads and writes, by the names that OpenLineage gives to it.

The names are those of its page "Naming Conventions": namespace ``file`` for this machine, ``s3://bucket``,
``hdfs://host:port``, ``kafka://host:port``, ``postgres://host:port``. A spout or a state that is not known here says
its data by a method ``lineage_datasets()``, which gives pairs (namespace, name).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyspark.sql.types import StructType

from trident.coordinators.errors import TopologyError, described
from trident.planning.groups import GroupPlan
from trident.planning.nodes import Node, sources
from trident.states.core.binding import StateBinding
from trident.states.core.place import Place
from trident.states.core.urls import authority, servers_of

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
    from trident.spouts.queues.directory_spout import DirectoryQueueSpout
    from trident.spouts.queues.redis_spout import RedisListSpout

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
    from trident.states.maps.postgres_map import PostgresMap
    from trident.states.maps.redis_map import RedisMap
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
