"""Captures a kept transaction: its input rows, the rows of states that it reads, the rows that it committed."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Union

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import TopologyError
from trident.planning.graph import Built
from trident.planning.groups import GroupPlan
from trident.planning.session_frames import free, is_single
from trident.planning.whole_batch import ReadState, states_read
from trident.states.core.binding import StateBinding
from trident.states.core.plain_values import frozen, python_values
from trident.states.core.tables import TXID_COLUMN
from trident.time_travel.captures import Capture
from trident.time_travel.grounds import Ground, WarehouseGround
from trident.time_travel.kept_batch import KeptBatch
from trident.time_travel.replay import Replay, open_kept
from trident.time_travel.source_rows import SourceRows
from trident.time_travel.staged_rows import staged_table

STATE_ROWS = 10_000


def capture(
    topology: Built,
    warehouse: Union[str, "os.PathLike[str]"],
    txid: int,
    *,
    group: str | None = None,
    spark: "SparkSession | None" = None,
    config: TridentConfig | None = None,
    state_rows: int = STATE_ROWS,
) -> Capture:
    """A kept transaction, in this process's memory; ``write_capture`` puts it into a folder. Nothing else is written.

    The code of the topology is run only where a state has more than ``state_rows`` rows: to see which keys it asks.

    Raises:
        TopologyError: the transaction needs all rows of a state that has more than ``state_rows``.
        TridentError: as ``trident.replay``.
    """
    session, kept, config = open_kept(topology, warehouse, txid, group, spark, as_config(config))
    ground = WarehouseGround(session, kept, config)
    given = ground.sources(kept.plan)
    try:
        inputs = {tx_id: rows.toArrow() for tx_id, rows in given.rows.items()}
        single = sorted(tx_id for tx_id, rows in given.rows.items() if is_single(rows))
        states, whole = _states(session, topology.name, kept.plan, ground, given, state_rows)
    finally:
        free(given.checkpoints)
    facts = {
        "incarnation": kept.manifest.incarnation,
        "spouts": {tx_id: dict(spout) for tx_id, spout in kept.manifest.spouts.items()},
        "single": single,
        "whole": sorted(whole),
    }
    return Capture(topology.name, kept.plan.name, ground.attempt, inputs, states, _expected(kept), facts)


def _states(
    spark: "SparkSession", topology: str, plan: GroupPlan, ground: Ground, given: SourceRows, rows_max: int
) -> tuple[dict[str, pa.Table], set[str]]:
    """The rows of the states that a batch reads; and the names of those of which all rows are there."""
    states: dict[str, pa.Table] = {}
    large: dict[str, ReadState] = {}
    for name, read in states_read(plan.nodes).items():
        rows = ground.stored(read.binding, None).limit(rows_max + 1).toArrow()
        if rows.num_rows > rows_max:
            large[name] = read
        else:
            states[name] = rows
    whole = set(states)
    if large:
        recording = Recording(ground, given)
        with Replay(spark, topology, plan, recording):
            for name, read in large.items():
                states[name] = recording.asked_of(read, rows_max)
    return states, whole


class Recording(Ground):
    """A ground that keeps what is looked up."""

    def __init__(self, ground: Ground, given: SourceRows) -> None:
        self._ground, self._given = ground, given
        self.attempt, self.incarnation = ground.attempt, ground.incarnation
        self._looked_up: dict[str, list[DataFrame]] = defaultdict(list)
        self._all: set[str] = set()

    def sources(self, plan: GroupPlan) -> SourceRows:
        return SourceRows(self._given.rows, self._given.tables, [])

    def stored(self, binding: StateBinding, keys: "DataFrame | None") -> "DataFrame":
        found = self._ground.stored(binding, keys)
        self._looked_up[binding.name].append(found)
        if keys is None or not binding.keys:
            self._all.add(binding.name)
        return found

    def asked_of(self, read: ReadState, rows_max: int) -> pa.Table:
        """The rows of a large state whose keys were asked, each once.

        Raises:
            TopologyError: all of its rows were.
        """
        name, keys = read.binding.name, read.binding.keys
        if name in self._all:
            raise TopologyError(
                f"the transaction reads all of state {name!r}, which is too large for a capture",
                found=f"more than {rows_max:,} rows, read by {read.node.operation} at {read.node.location}",
                action="allow more with --state-rows, or replay the transaction where its warehouse is",
            )
        tables = [frame.toArrow() for frame in self._looked_up[name]]
        rows = pa.concat_tables(tables) if tables else self._ground.stored(read.binding, None).limit(0).toArrow()
        seen: dict[Any, int] = {}
        columns = [python_values(rows.column(key)) for key in keys]
        for at, key in enumerate(zip(*columns)):
            seen.setdefault(frozen(key), at)
        return rows.take(list(seen.values())) if seen else rows.slice(0, 0)

    def before(self, binding: StateBinding) -> "DataFrame":
        return self._ground.before(binding)

    def after(self, binding: StateBinding, rows: "DataFrame") -> "DataFrame":
        return self._ground.after(binding, rows)

    def committed(self, binding: StateBinding) -> pa.Table | None:
        return self._ground.committed(binding)

    def others(self, plan: GroupPlan) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return self._ground.others(plan)


def _expected(kept: KeptBatch) -> dict[str, pa.Table]:
    """The rows that were committed to each state that has some, without the column of txids that the framework adds."""
    found = {}
    for part in kept.manifest.tables:
        rows = staged_table(kept.warehouse / part.path, part.files) if part.state_kind.is_described else None
        if rows is not None:
            hidden = [TXID_COLUMN] if part.state_kind.has_log else []
            found[part.state] = rows.drop_columns([name for name in hidden if name in rows.column_names])
    return found
