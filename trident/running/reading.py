"""Reads states from any process, without a running topology and without ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trident.spark.session import check_session
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed.reading import read_state

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession


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
