"""Runs a kept transaction again, without writing anything: its input, its streams, its states before and after."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from html import escape
from typing import Any, NoReturn, Union

from pyspark.sql import DataFrame, SparkSession

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import TopologyError, described
from trident.coordinators.identities import TransactionAttempt
from trident.planning.groups import GroupPlan, build_whole, plan_of_stream, states_read
from trident.planning.nodes import RESULT, Built, Node, is_source
from trident.planning.session_frames import compute_once, free
from trident.running.cluster_checks import folders_of_tasks, prepare_cluster, stores_of_sources
from trident.spark.cluster_files import renew_workers
from trident.spark.session import check_session, make_session, spark_settings
from trident.spark.stores import configure_by, configure_by_session, spark_defaults
from trident.states.core.binding import StateBinding, TablelessKind
from trident.states.publishing.user_tasks import BatchInfo
from trident.streams.stream import Stream
from trident.time_travel.differences import Difference, differences
from trident.time_travel.replay_inputs import KeptBatch, ReplayInputs, SourceRows, WarehouseInputs, find_kept
from trident.udf.expressions import current_session
from trident.udf.signatures import translate_failure

# A replay in a notebook: a table for each stream, and for what it does to each state.


ROWS_MAX = 20
_VALUE_LENGTH = 100


def as_html(caption: str, streams: Mapping[str, "DataFrame"], changes: Mapping[str, "DataFrame"]) -> str:
    """A table of rows for each stream, then one for each state; every text is escaped."""
    parts = [f"<b>{escape(caption)}</b>"]
    parts += [_table(f"stream {name}", streams[name]) for name in streams]
    parts += [_table(f"changes of {name}", rows) for name, rows in changes.items()]
    return "".join(parts)


def _table(caption: str, frame: "DataFrame") -> str:
    rows = frame.limit(ROWS_MAX + 1).collect()
    more = f"; the first {ROWS_MAX} rows" if len(rows) > ROWS_MAX else ""
    head = "".join(f"<th>{escape(name)}</th>" for name in frame.columns)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows[:ROWS_MAX])
    none = "" if rows else f"<tr><td colspan='{max(1, len(frame.columns))}'>no row</td></tr>"
    return f"<table><caption>{escape(caption)}{more}</caption><tr>{head}</tr>{body}{none}</table>"


def _cell(value: Any) -> str:
    text = "null" if value is None else str(value)
    shown = text if len(text) <= _VALUE_LENGTH else text[:_VALUE_LENGTH] + "…"
    return f"<td style='text-align:left'>{escape(shown)}</td>"


def replay(
    topology: Built,
    warehouse: Union[str, "os.PathLike[str]"],
    txid: int,
    *,
    group: str | None = None,
    spark: "SparkSession | None" = None,
    config: TridentConfig | None = None,
) -> Replay:
    """Runs a kept transaction of a topology again, and writes nothing.

    ::

        with trident.replay(topology, "warehouse", 8123) as replay:
            replay.inputs["orders"].show()
            replay.states["totals"].before.show()
            assert replay.differences() == []  # the same rows as were committed

    The rows come from the spouts, by the metadata that was pinned for the transaction; states are read as of the
    transaction before. The code is that of ``topology``: the code that ran, or one that has changed behind the spouts.
    No ZooKeeper is asked, the topology may run meanwhile, and neither a table nor a spout's position changes. Functions
    of the user's are called as in the transaction, those of ``peek`` too, and a stream's rows are computed when they
    are asked for.

    Args:
        topology: a ``TridentTopology``, as the code at hand builds it.
        warehouse: its folder or URL.
        txid: the transaction; ``trident history NAME`` lists those that are kept.
        group: its batch group, where the topology has several.
        spark: a session made with ``trident.configure_spark``; None takes the active one, or makes one.
        config: the topology's settings; ``batch_partitions`` and those of its store matter.

    Raises:
        TransactionNotKept: the transaction never was, changed nothing, or is no longer kept.
        SourceError: a source does not give its rows again, and no table has kept them.
        TopologyError: the warehouse has nothing of this topology; or the code has other spouts, or reads a state that
            is not kept as of an earlier transaction.
        SnapshotUnavailable: a state is no longer kept as of the transaction before.
        TableError: a file is gone.
        UserFunctionError, FailedException: a function of the topology raised.
    """
    session, kept, config = open_kept(topology, warehouse, txid, group, spark, as_config(config))
    return Replay(session, topology.name, kept.plan, WarehouseInputs(session, kept, config))


def open_kept(
    topology: Built,
    warehouse: Union[str, "os.PathLike[str]"],
    txid: int,
    group: str | None,
    spark: "SparkSession | None",
    config: TridentConfig,
) -> "tuple[SparkSession, KeptBatch, TridentConfig]":
    """A session for a kept transaction, the transaction, and the settings.

    Raises: as :func:`replay`, what is known before anything is run.
    """
    config = config.replace(warehouse=os.fspath(warehouse))
    place = config.warehouse_place()
    session = spark or current_session()
    if session is None:  # a wrong txid is told before a JVM is started
        configure_by(place, {**spark_defaults(), **dict(config.spark_conf)})
    else:
        configure_by_session(place, session)
    kept = find_kept(topology, place, txid, group)
    require_readable(kept.plan)
    session = session or make_session(
        f"trident replay {topology.name}", spark_settings(config, stores_of_sources(topology.graph))
    )
    check_session(session)
    configure_by_session(place, session)
    renew_workers(session.sparkContext)
    prepare_cluster(session, None, config.python_archive, folders_of_tasks(topology.graph, place))
    return session, kept, config


def require_readable(plan: GroupPlan) -> None:
    """Raises TopologyError where a batch reads a state that is not kept as of an earlier transaction."""
    for binding, node in states_read(plan.nodes).values():
        if isinstance(binding.state_kind, TablelessKind):
            raise TopologyError(
                f"a transaction that reads state {binding.name!r} cannot be replayed: it is kept as it is now only",
                found=f"{binding.state!r}, read by {node.operation} at {node.location}",
                expected="states in Delta tables of the warehouse, such as DeltaMapState",
                action="test what is in front of it with run_batch(stream, rows)",
            )


class Replay:
    """A transaction that was run again.

    Its rows are kept in the session until :meth:`release`, or the end of a ``with`` block.

    Attributes:
        topology, group: the names of the topology and of its batch group.
        attempt: the attempt that was decided; aggregators and users' states are told it again.
        inputs: tx_id → the rows that the stream's spout had for the transaction.
        streams: name → the rows of each stream: that of its spout under its tx_id, others by the operation that made
            them, with a number where there are several. Computed when they are asked for.
        states: name → what the transaction does to each state.
    """

    def __init__(self, spark: "SparkSession", topology: str, plan: GroupPlan, given_inputs: ReplayInputs) -> None:
        self.topology, self.group, self.attempt = topology, plan.name, given_inputs.attempt
        self._plan, self._replay_inputs = plan, given_inputs
        facts = {"topology": topology, "group": plan.name, "spark_master": spark.sparkContext.master}
        self._info = BatchInfo(given_inputs.attempt, given_inputs.incarnation, config=facts)
        self._kept: list[DataFrame] = []
        try:
            given: SourceRows = given_inputs.sources(plan)
            self._kept += given.checkpoints
            self.inputs: Mapping[str, DataFrame] = given.rows
            rows = {**self._build(plan), **given.tables}
            self.states: Mapping[str, ReplayedState] = {
                binding.name: ReplayedState(binding, given_inputs, self._once(rows[binding.name]))
                for binding in plan.bindings
                if binding.name in rows
            }
        except BaseException:
            self.release()
            raise
        self.streams: Mapping[str, DataFrame] = Streams(self, named_streams(plan))

    @property
    def txid(self) -> int:
        return self.attempt.txid

    def rows_of(self, stream: Stream) -> "DataFrame":
        """The rows of a stream of the topology, late ones too.

        Raises:
            TopologyError: it is no stream of the batch group.
        """
        node = stream._node if isinstance(stream, Stream) else None
        if node not in self._plan.nodes or not node.is_stream:
            raise TopologyError(
                f"transaction {self.attempt} has no rows of this stream",
                found=described(stream),
                expected=f"a stream of batch group {self.group} of the topology that was given to replay",
            )
        return self._rows_of(node)

    def differences(self) -> list[Difference]:
        """The rows that the replay and the committed transaction do not share; none for a deterministic topology.

        It compares the rows that were staged for each state: of a keyed one the changes of the transaction.
        Floating-point numbers are compared to the bit: sums of them may differ where rows were added up in another
        order.

        Raises:
            TableError: committed rows are no longer there; the message says of which state.
        """
        found = [one for state in self.states.values() for one in state.differences()]
        for name, rows in self._replay_inputs.others(self._plan).items():
            found += [Difference(name, {}, row, None) for row in rows]
        return found

    def release(self) -> None:
        """Frees what is kept in the session; no frame of this replay can be used afterwards. May be called again."""
        free(self._kept)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Replay of {self.topology}/{self.group} {self.attempt}: states {', '.join(self.states) or 'none'}>"

    def _repr_html_(self) -> str:
        return as_html(f"{self.topology}/{self.group} {self.attempt}", self.streams, self._changes)

    @cached_property
    def _changes(self) -> Mapping[str, "DataFrame"]:
        return {name: state.rows for name, state in self.states.items()}

    def _rows_of(self, node: Node) -> "DataFrame":
        if is_source(node):
            return self.inputs[node.tx_id]
        return self._once(self._build(plan_of_stream(self.group, node, self._plan.nodes))[RESULT])

    def _build(self, plan: GroupPlan) -> Mapping[str, "DataFrame"]:
        sources = {tx_id: self.inputs[tx_id] for tx_id in plan.spouts}
        try:
            built = build_whole(plan, sources, self._info, self._replay_inputs.stored)
        except Exception as error:
            raise_explained(error, self.attempt)
        self._kept += built.checkpoints
        return built

    def _once(self, rows: "DataFrame") -> "DataFrame":
        try:
            return compute_once(rows, self._kept)
        except Exception as error:
            raise_explained(error, self.attempt)


def raise_explained(error: Exception, attempt: TransactionAttempt) -> NoReturn:
    """Raises an error of a Spark job as what it was: one of the user's function, of a source."""
    translated = translate_failure(error, attempt)
    if translated is error:
        raise error
    raise translated from translated.__cause__


class ReplayedState:
    """One state in a replayed transaction.

    Attributes:
        name: the state's.
        rows: the rows that it has for the state, with the columns that are staged: of an append table its rows; of a
            keyed state a row for each key that changes, ``_deleted`` where the state keeps whole values.
    """

    def __init__(self, binding: StateBinding, given_inputs: ReplayInputs, rows: "DataFrame") -> None:
        self.name, self.rows = binding.name, rows
        self._binding, self._replay_inputs = binding, given_inputs

    @cached_property
    def before(self) -> "DataFrame":
        """The state as of the transaction before; empty where it has begun later, or is new in the code.

        Raises:
            TableError: it is not kept as of that transaction; or it has no table in the warehouse.
        """
        return self._replay_inputs.before(self._binding)

    @cached_property
    def after(self) -> "DataFrame":
        """The state with the rows of the replay on top: as the code at hand would have left it.

        Raises:
            TableError: as ``before``.
        """
        return self._replay_inputs.after(self._binding, self.rows)

    def differences(self) -> list[Difference]:
        """The rows that the replay and the committed transaction do not share, for this state.

        Raises:
            TableError: committed rows are no longer there.
        """
        table = self._binding.published_table
        hidden = [table.txid_column] if table is not None and table.txid_column else []
        columns = () if table is None else tuple(table.partition_columns)
        keys = self._binding.keys
        return differences(
            self.name, keys, self._replay_inputs.committed(self._binding), self.rows.toArrow(), hidden, columns
        )

    def __repr__(self) -> str:
        return f"<ReplayedState {self.name}>"


class Streams(Mapping[str, Any]):
    """The rows of each stream by its name, computed when they are asked for, once."""

    def __init__(self, of: Replay, nodes: Mapping[str, Node]) -> None:
        self._of, self._nodes, self._known = of, nodes, dict[str, "DataFrame"]()

    def __getitem__(self, name: str) -> "DataFrame":
        if name not in self._known:
            self._known[name] = self._of._rows_of(self._nodes[name])
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"<streams {', '.join(self._nodes)}>"


def named_streams(plan: GroupPlan) -> dict[str, Node]:
    """The nodes of a plan that are users' streams: a spout's by its tx_id, others by their operation."""
    found: dict[str, Node] = {}
    for node in plan.nodes:
        if node.is_stream:
            name = node.tx_id if is_source(node) else node.operation
            number, first = 1, name
            while name in found:
                number += 1
                name = f"{first} {number}"
            found[name] = node
    return found
