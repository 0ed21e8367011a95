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
from urllib.parse import urlsplit

from pyspark.sql.types import StructType

from trident.coordinators.errors import TopologyError, described
from trident.planning.groups import GroupPlan
from trident.planning.nodes import Node, sources
from trident.states.core.binding import StateBinding
from trident.states.core.place import Place

_GLOB = re.compile(r"[*?\[{]")
_POSTGRES_PORT = 5432
_REDIS_PORT = 6379


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
        return [(_server("redis", spout.queue.url, _REDIS_PORT), spout.queue.key)]
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
        return [(_server("redis", map_or_store.url, _REDIS_PORT), map_or_store.name)]
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
    first = brokers[0].strip().rpartition("://")[2]
    return f"kafka://{first if ':' in first else f'{first}:9092'}"


def _server(scheme: str, url: str, port: int) -> str:
    """Scheme, host and port of a URL, without its user and password."""
    found = urlsplit(url)
    return f"{scheme}://{found.hostname or 'localhost'}:{found.port or port}"


def _postgres(url: str, table: str) -> tuple[str, str]:
    space, database = _server("postgres", url, _POSTGRES_PORT), urlsplit(url).path.strip("/") or "postgres"
    plain = table.replace('"', "")
    return space, f"{database}.{plain if '.' in plain else f'public.{plain}'}"
