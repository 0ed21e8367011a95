"""Refuses, before anything runs, parts of a topology that live on one host and so cannot serve a Spark cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from trident.config import TridentConfig
from trident.coordinators.errors import TopologyError
from trident.operations.state_queries import StateQueryNode
from trident.operations.state_writes import PersistNode
from trident.planning.graph import TopologyGraph
from trident.planning.nodes import SourceNode
from trident.spark.session import spark_settings
from trident.states.core.host_bound import check_hosts, is_bound, is_local_master
from trident.udf.expressions import current_session


def master_of(spark: SparkSession | None, config: TridentConfig) -> str:
    """The Spark master that a topology will run on: that of a session that there is, else what the settings say."""
    spark = spark or current_session()
    return spark_settings(config)["spark.master"] if spark is None else str(spark.sparkContext.master)


def check_topology(graph: TopologyGraph, config: "TridentConfig", master: str) -> None:
    """Raises TopologyError, with the name of what lives on one host, if the master is a cluster's.

    Args:
        config: its settings; the embedded ZooKeeper is one of them.
    """
    for thing, what in _things(graph):
        check_hosts(thing, what, master)
    if config.zookeeper == "embedded" and not is_local_master(master):
        raise TopologyError(
            "the embedded ZooKeeper serves one machine, and Spark runs on a cluster",
            found=f"zookeeper=embedded ({config.origin('zookeeper')}) with the Spark master {master}",
            expected="an ensemble that every host reaches, or a local master: local[…]",
            action="set zookeeper=host:port,host:port (TRIDENT_ZOOKEEPER, or --set zookeeper=…)",
        )


def _things(graph: TopologyGraph) -> Iterator[tuple[Any, str]]:
    for node in graph.nodes:
        if isinstance(node, SourceNode):
            queue = getattr(node.spout, "queue", None)
            if is_bound(queue):
                yield queue, f"the queue of stream {node.tx_id!r}"
            else:
                yield node.spout, f"the spout of stream {node.tx_id!r}"
        elif isinstance(node, PersistNode):
            yield _store(node.binding.state), f"state {node.binding.name!r} ({node.location})"
        elif isinstance(node, StateQueryNode) and node.writer is None:
            yield _store(node.state), f"the static state of the query at {node.location}"


def _store(state: Any) -> Any:
    """Returns what keeps a state's data: of a map state its backing map, or the function that makes one."""
    return getattr(state, "backing", state)
