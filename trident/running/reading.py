"""Reads states: of a running topology, or from any process without one and without ZooKeeper."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from trident.config import TridentConfig
from trident.coordinators.errors import TableError, TopologyError
from trident.planning.groups import GroupPlan
from trident.running.site import SparkSite
from trident.spark.session import check_session
from trident.spark.stores import configure_by_session
from trident.states.core.binding import StateBinding, TablelessKind
from trident.states.core.names import checked_txid
from trident.states.core.place import Place, warehouse_place
from trident.states.core.storage import explained_storage_errors
from trident.states.keyed.key_reads import KeyReader, NotByKey, Values, held_values
from trident.states.keyed.reading import own_snapshot, read_state, values_by_spark


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
        ConfigError: txid is no transaction's number.
        SparkSessionProblem: the session lacks what is needed.
    """
    check_session(spark)
    txid = None if txid is None else checked_txid(txid)
    place = warehouse_place(warehouse)
    configure_by_session(place, spark)
    return read_state(spark, place, state, txid=txid, aggregator=aggregator)


def get(
    warehouse: "str | os.PathLike[str]",
    state: str,
    keys: Any = (),
    *,
    txid: int | None = None,
    aggregator: Any = None,
) -> Any:
    """The values of some keys of a keyed state, exactly as of one transaction: without a topology, Spark or ZooKeeper.

    ::

        trident.get("warehouse", "counts", "storm")  # {"count": 3}, or None
        trident.get("warehouse", "counts", ["storm", "trident"])  # [{"count": 3}, None]
        trident.get("warehouse", "visits", ("Ada", date(2026, 11, 23)))  # a key of two columns
        trident.get("warehouse", "total")  # a state without keys

    Reads the state's table and the part of its log that is not merged, and of their files only what may have the keys:
    milliseconds, also of a table with millions. A process that asks again finds what it knows of them. Reading does not
    disturb a topology that is running.

    Args:
        warehouse: the topology's warehouse folder.
        state: the state's name.
        keys: one key, or a list of keys. A key of one column is its value; of several a tuple in the order of the
            state's keys, or a dict by their names. None is a key like any other, NaN one key, 0.0 and -0.0 one.
            Instants have a time zone. A key that is itself an array is given as a tuple of one.
        txid: as of which transaction; None = the last that all tables of the group have.
        aggregator: the state's aggregator when that is Python code of the topology.

    Returns:
        of one key a dict of its values by their names, or None where the state does not have it; of a list of keys a
        list of such, in the same order. Instants are in UTC.

    Raises:
        TableError: there is no such state, it has no keys, or that transaction is not kept any more; also where only
            Spark can read it (text with a collation; a table with deletion vectors): the message says so, and
            ``trident.read`` reads it.
        FieldError: a key has other columns or types than the state's.
        ConfigError: a Python combiner is needed and was not given; or txid is no transaction's number.
        StoreProblem: the warehouse's store refuses, or cannot be reached.
    """
    txid = None if txid is None else checked_txid(txid)
    reader = _reader(str(TridentConfig(warehouse=os.fspath(warehouse)).warehouse_place()))

    def values(requested: list[Any]) -> list[Values | None]:
        return reader.get(state, reader.requested(state, requested), txid, aggregator)

    with explained_storage_errors():
        return _one_or_all(values, keys)


@lru_cache(maxsize=16)
def _reader(warehouse: str) -> KeyReader:
    return KeyReader(Place(warehouse))


def _one_or_all(values: Callable[[list[Any]], list[Values | None]], keys: Any) -> Any:
    """The values of a list of keys, or those of one key."""
    return values(keys) if isinstance(keys, list) else values([keys])[0]


def get_running(
    site: SparkSite,
    plans: Sequence[GroupPlan],
    advanced: Mapping[str, int],
    incarnation: str,
    state: str,
    keys: Any,
) -> Any:
    """See ``TopologyQuery.get``.

    Args: as for :func:`read_running`.
    """
    plan, binding = _binding(plans, state)

    def values(requested: list[Any]) -> list[Values | None]:
        if isinstance(binding.state_kind, TablelessKind) or not binding.state_kind.has_log:
            return by_spark(requested)
        reader = _reader(str(site.warehouse))
        try:
            lookup_keys = reader.requested(state, requested)
            copies = site.copies(plan.name)
            if copies is not None and plan.name in advanced:
                found = held_values(copies, state, lookup_keys, advanced[plan.name])
                if found is not None:
                    return found
            return reader.get(state, lookup_keys, aggregator=binding.aggregator, advanced_txid=advanced.get(plan.name))
        except NotByKey:
            return by_spark(requested)

    def by_spark(requested: list[Any]) -> list[Values | None]:
        if not binding.state_kind.values_by_key:
            raise TableError(
                f"state {state} has no keys to be read by",
                found=f"a state of kind {binding.state_kind.name!r}",
                expected="a keyed state",
                action=f"read its rows with query.snapshot({state!r})",
            )
        frame = read_running(site, plans, advanced, incarnation, state, None)
        return values_by_spark(frame, state, binding.keys, requested)

    return _one_or_all(values, keys)


def _binding(plans: Sequence[GroupPlan], state: str) -> tuple[GroupPlan, StateBinding]:
    bindings = {binding.name: (plan, binding) for plan in plans for binding in plan.bindings}
    if state not in bindings:
        raise TopologyError(f"there is no state {state!r}", expected=f"one of {sorted(bindings)}")
    return bindings[state]


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
    plan, binding = _binding(plans, state)
    txid = None if txid is None else checked_txid(txid)
    if isinstance(kind := binding.state_kind, TablelessKind):
        return own_snapshot(site.spark, kind, binding, txid, incarnation)
    return read_state(
        site.spark,
        site.warehouse,
        state,
        txid=txid,
        aggregator=binding.aggregator,
        advanced_txid=advanced.get(plan.name),
    )
