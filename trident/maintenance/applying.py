"""Carries out what repair or rollback has decided, under the topology's lease: one step after the other.

Each step is one commit to one table, or one multi, or may be done twice. So killed anywhere, the same command is run
again: it takes a step that was done for what it is, and does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql import SparkSession

from trident.config import TridentConfig
from trident.coordinators import faults
from trident.coordinators.errors import CoordinationError
from trident.coordinators.leadership import Lease
from trident.coordinators.zookeeper import ZooKeeper
from trident.spark.session import make_session, spark_settings
from trident.spark.stores import configure_by_session
from trident.states.core.place import Place
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed.copies import forget_copies

STEP = faults.register("apply.step", "one step of a repair or a rollback: a commit to a table, a multi, a file")


def carry_out(zk: ZooKeeper, lease: Lease, warehouse: Place, steps: Iterable[Callable[[], str]]) -> list[str]:
    """Does steps in their order; returns what was done, a text each.

    Raises:
        CoordinationError: the lease was lost; what was done until then stays.
    """
    done = []
    for step in steps:
        check_leads(zk, lease)
        with faults.fault_point(STEP):
            forget_copies(warehouse)
            done.append(step())
    return done


def check_leads(zk: ZooKeeper, lease: Lease) -> None:
    """Raises CoordinationError where this process leads no longer."""
    if lease.lost.is_set():
        raise CoordinationError("the lease was lost meanwhile", action="run the command again: it continues")
    for fence in lease.fences.values():
        fence.verify(zk)


def engine_for(
    command: str, config: TridentConfig, warehouse: Place, spark: "SparkSession | None" = None
) -> KernelEngine:
    """Delta's Kernel, in the session that was given, or in one that is made for a command."""
    spark = spark or make_session(f"trident {command}", spark_settings(config))
    configure_by_session(warehouse, spark)
    return KernelEngine(spark)
