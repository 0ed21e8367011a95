"""A topology: streams from spouts through operations to states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from coordinators.errors import TopologyError
from states.names import check_name
from trident.functions import call_site
from trident.nodes import Node, PersistNode, SourceNode, nullable
from trident.stream import Stream
from trident.types import check_distinct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trident.config import TridentConfig
    from trident.query import TopologyQuery
    from trident.spouts import TridentSpout


class TridentTopology:
    """Describes a topology; nothing runs before :meth:`start`.

    Args:
        name: what ZooKeeper and ``trident status`` know it by: a letter, then
            letters, digits, ``_`` or ``-``. Two that run under one name are one
            topology: the second is a standby of the first.

    Raises:
        TopologyError: the name cannot be used.
    """

    def __init__(self, name: str) -> None:
        self.name = check_name("topology", name)
        self._nodes: list[Node] = []
        self._sources: dict[str, SourceNode] = {}
        self._sinks: dict[str, PersistNode] = {}

    def __repr__(self) -> str:
        return f"TridentTopology({self.name!r})"

    def new_stream(self, tx_id: str, spout: "TridentSpout") -> Stream:
        """A stream of what a spout emits.

        Args:
            tx_id: the stream's name, distinct within the topology. What the
                spout has read is stored under it: keep it between runs.
            spout: where the rows come from.

        Raises:
            TopologyError: the name is taken or cannot be used, or it is no spout.
            FieldError: the spout names a field twice.
        """
        check_name("stream", tx_id)
        if tx_id in self._sources:
            raise TopologyError(f"the topology has a stream {tx_id!r} already", action="choose another tx_id")
        schema = getattr(spout, "output_schema", None)
        if isinstance(spout, type) or not isinstance(schema, StructType) or not hasattr(spout, "get_emitter"):
            raise TopologyError(
                f"stream {tx_id!r} has no spout",
                found=repr(spout),
                expected="an object with output_schema (a StructType), get_coordinator and get_emitter",
            )
        if not schema.names:
            raise TopologyError(f"the spout of stream {tx_id!r} has no fields", found=repr(spout))
        check_distinct(schema.names, f"the fields of stream {tx_id!r}")
        node = SourceNode(
            parents=(), schema=nullable(schema), operation=f"stream {tx_id}", location=call_site(),
            tx_id=tx_id, spout=spout,
        )  # fmt: skip
        self._sources[tx_id] = node
        self._add(node)
        return Stream(self, node)

    def identity(self) -> dict[str, Any]:
        """What may not change between two runs of the topology (DESIGN 3); JSON."""
        from trident.planner import group_members

        return {
            "streams": {tx_id: type(node.spout).__qualname__ for tx_id, node in sorted(self._sources.items())},
            "states": {name: sink.binding.identity() for name, sink in sorted(self._sinks.items())},
            "groups": {name: members for name, members in group_members(self).items()},
        }

    def explain(self) -> str:
        """The batch groups, their operations, and the passes over the data that they become."""
        from trident.explain import explain

        return explain(self)

    def start(
        self, spark: "SparkSession | None" = None, config: "TridentConfig | None" = None, **overrides: Any
    ) -> "TopologyQuery":
        """Starts the topology and returns at once.

        Args:
            spark: the session to run on; one is made when None.
            config: settings.
            overrides: single settings by name; they win over config.

        Raises:
            TopologyError: the topology has nothing to do.
        """
        from trident.query import start_topology

        return start_topology(self, spark, config, **overrides)

    def run(
        self, spark: "SparkSession | None" = None, config: "TridentConfig | None" = None, **overrides: Any
    ) -> "TopologyQuery":
        """Starts the topology and waits until it stops; SIGINT and SIGTERM stop it, a second one at once.

        Returns:
            the query, which has ended.
        """
        from trident.query import run_topology

        return run_topology(self, spark, config, **overrides)

    # --- called by streams ---------------------------------------------------------------

    def _add(self, node: Node) -> None:
        self._nodes.append(node)

    def _add_sink(self, sink: PersistNode) -> None:
        other = self._sinks.get(sink.binding.name)
        if other is not None:
            raise TopologyError(
                f"state {sink.binding.name!r} is written twice",
                found=f"{other.operation} at {other.location} and {sink.operation} at {sink.location}",
                expected="one operation that writes to a state",
                action="give one of them another state",
            )
        self._sinks[sink.binding.name] = sink
        self._add(sink)
