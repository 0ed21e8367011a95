"""Reads states: of a running topology, or from any process without one and without ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.coordinators.errors import TopologyError
from trident.running.site import SparkSite
from trident.spark.session import check_session
from trident.states.core.binding import TablelessKind
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed.frames import own_snapshot
from trident.states.keyed.reading import read_state

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession

    from trident.planning.groups import GroupPlan


def read(
    spark: "SparkSession",
    warehouse: "str | os.PathLike[str]",
    state: str,
    txid: int | None = None,
    aggregator: Any = None,
) -> "DataFrame":
    """A state as of one transaction, exactly: never a half-published one.

    All states of a batch group read with the same txid belong together: they
    were committed as one. Reading does not disturb a topology that is running.

    Args:
        spark: a session made with ``trident.configure_spark``.
        warehouse: the topology's warehouse folder.
        state: the state's name.
        txid: as of which transaction; None = the last that all tables of the group have.
        aggregator: the state's aggregator when that is Python code of the
            topology; not needed for the built-in ones.

    Returns:
        keys and values of a keyed state (one row a key), the rows of an append.

    Raises:
        TableError: there is no such state, or that transaction is not kept any more.
        SparkSessionProblem: the session lacks what is needed.
    """
    check_session(spark)
    return read_state(spark, KernelEngine(spark), Path(warehouse).resolve(), state, txid=txid, aggregator=aggregator)


def read_running(
    site: SparkSite,
    plans: Sequence[GroupPlan],
    advanced: Mapping[str, int],
    incarnation: str,
    state: str,
    txid: int | None,
) -> DataFrame:
    """See ``TopologyQuery.snapshot``.

    Args:
        advanced: batch group → its last advanced txid, of the groups that run here.
    """
    bindings = {binding.name: (plan, binding) for plan in plans for binding in plan.bindings}
    if state not in bindings:
        raise TopologyError(f"there is no state {state!r}", expected=f"one of {sorted(bindings)}")
    plan, binding = bindings[state]
    if isinstance(kind := binding.state_kind, TablelessKind):
        return own_snapshot(site.spark, kind, binding, txid, incarnation)
    return read_state(
        site.spark,
        site.engine,
        site.warehouse,
        state,
        txid=txid,
        aggregator=binding.aggregator,
        advanced_txid=advanced.get(plan.name),
    )
