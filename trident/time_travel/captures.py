"""One transaction in a small folder, which a test takes as a fixture: without the warehouse and its sources."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from trident.config import TridentConfig, as_config
from trident.coordinators import faults
from trident.coordinators.errors import TableError, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.stored_json import Unreadable, parse_stored
from trident.operations.windows import SEQ
from trident.planning.groups import GroupPlan, ReadState, plan, states_read
from trident.planning.nodes import Built, sources
from trident.planning.session_frames import free, is_single
from trident.spark.rows import to_dataframe
from trident.spark.session import make_session
from trident.states.core import storage
from trident.states.core.binding import StateBinding
from trident.states.core.place import Place, named_place
from trident.states.core.tables import TXID_COLUMN
from trident.states.core.typed_values import frozen, python_values
from trident.time_travel.differences import Difference
from trident.time_travel.replay import Replay, open_kept, require_readable
from trident.time_travel.replay_inputs import (
    KeptBatch,
    ReplayInputs,
    SourceRows,
    WarehouseInputs,
    group_of,
    staged_table,
)
from trident.udf.expressions import current_session

SCHEMA = 1
FACTS = "capture.json"
# In a folder from the first file to the last: such a folder may be written anew.
_BEGUN = "capture.begun"
INPUTS, STATES, EXPECTED = "inputs", "states", "expected"

CAPTURE = faults.register("capture.write", "a file of a capture: what it was begun with, rows, and its facts last")


@dataclass(frozen=True)
class Capture:
    """One transaction of a topology: its input, the states that it read, the rows that it committed.

    Attributes:
        topology, group: the names of the topology and of its batch group.
        attempt: the attempt that was decided.
        inputs: tx_id → the rows of each stream's spout, as Arrow: ``run_batch`` takes them.
        states: name → keys and values as of the transaction before, of each state that the transaction reads:
            ``run_batch`` takes them as ``states``. Of a large state these are the keys that were asked.
        expected: name → the rows that were staged for each state and committed, as Arrow.
        facts: all of ``capture.json``: the spouts' pinned metadata among it.
    """

    topology: str
    group: str
    attempt: TransactionAttempt
    inputs: Mapping[str, pa.Table]
    states: Mapping[str, pa.Table]
    expected: Mapping[str, pa.Table]
    facts: Mapping[str, Any]

    @property
    def txid(self) -> int:
        return self.attempt.txid

    def replay(self, topology: Built, spark: "SparkSession | None" = None) -> Replay:
        """Runs the transaction again with the code of a topology, on what was captured; it writes nothing.

        ``before`` and ``after`` of a state are there for states that were captured whole.

        Raises:
            TopologyError: the code has other streams than the capture, or reads a state that the capture lacks.
            UserFunctionError, FailedException: a function of the topology raised.
        """
        tables = {**self.states, **self.expected}
        topology.graph.kept_rows |= {name for name, rows in tables.items() if SEQ in rows.column_names}
        chosen = group_of(plan(topology.graph, tracking=False), topology.name, self.group)
        if set(chosen.spouts) != set(self.inputs):
            raise TopologyError(
                f"the capture of transaction {self.txid} of {self.topology}/{self.group} is of other streams",
                found=", ".join(sorted(chosen.spouts)),
                expected=", ".join(sorted(self.inputs)),
                action="give it the topology that was captured",
            )
        require_readable(chosen)
        session = spark or current_session() or make_session(f"capture of {self.topology}")
        return Replay(session, topology.name, chosen, CapturedInputs(session, self))

    def differences(self, topology: Built, spark: "SparkSession | None" = None) -> list[Difference]:
        """The rows that the code of a topology makes of the capture and that were not committed, and the other way.

        Raises: as :meth:`replay`.
        """
        with self.replay(topology, spark) as replayed:
            return replayed.differences()


class CapturedInputs(ReplayInputs):
    """The inputs of a captured transaction."""

    def __init__(self, spark: "SparkSession", capture: Capture) -> None:
        self._spark, self._capture = spark, capture
        self.attempt, self.incarnation = capture.attempt, str(capture.facts.get("incarnation", ""))

    def sources(self, plan: GroupPlan) -> SourceRows:
        found = SourceRows({}, {}, [])
        singles = self._capture.facts["single"]
        for node in sources(plan.nodes):
            rows = to_dataframe(self._spark, self._capture.inputs[node.tx_id], node.schema)
            found.rows[node.tx_id] = rows.coalesce(1) if node.tx_id in singles else rows
        for binding in plan.spout_tables.values():
            table = self._capture.expected.get(binding.name, [])
            found.tables[binding.name] = to_dataframe(self._spark, table, binding.schema)
        return found

    def stored(self, binding: StateBinding, keys: "DataFrame | None") -> "DataFrame":
        rows = self._capture.states.get(binding.name)
        if rows is None:
            raise TopologyError(
                f"the code reads state {binding.name!r}, which the captured transaction did not",
                found=f"a capture of {', '.join(self._capture.states) or 'no state'}",
                action="capture the transaction again, with this code",
            )
        if keys is None and binding.name not in self._capture.facts["whole"]:
            raise self._is_part(binding)
        return to_dataframe(self._spark, rows, binding.schema)

    def before(self, binding: StateBinding) -> "DataFrame":
        if binding.name not in self._capture.facts["whole"]:
            raise self._is_part(binding)
        return self.stored(binding, None)

    def after(self, binding: StateBinding, rows: "DataFrame") -> "DataFrame":
        raise TableError(
            f"a capture does not say what state {binding.name!r} holds after the transaction",
            expected="a replay of the transaction from its warehouse",
            action="`rows` has what the transaction changes in it",
        )

    def _is_part(self, binding: StateBinding) -> TableError:
        return TableError(
            f"the capture does not have all rows of state {binding.name!r}",
            found="those of the keys that were requested" if binding.name in self._capture.states else "none",
            action="capture the transaction again with more --state-rows",
        )

    def committed(self, binding: StateBinding) -> pa.Table | None:
        return self._capture.expected.get(binding.name)

    def others(self, plan: GroupPlan) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        known = {binding.name for binding in plan.bindings}
        return {name: rows_of(table) for name, table in self._capture.expected.items() if name not in known}


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table by their names."""
    values = [python_values(column) for column in table.columns]
    return [dict(zip(table.column_names, row)) for row in zip(*values)]


# --- its folder ------------------------------------------------------------------------------------


def load_capture(folder: Union[str, "os.PathLike[str]"]) -> Capture:
    """The capture that ``trident capture`` has written into a folder.

    ::

        def test_the_batch_that_went_wrong():
            capture = load_capture("tests/captures/orders-8123")
            assert capture.differences(build_topology()) == []

    Raises:
        TableError: there is none, or it is not as it was written.
    """
    place = named_place(folder)
    try:
        facts = parse_stored(storage.read(place / FACTS))
        if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
            raise Unreadable("another schema")
        attempt = TransactionAttempt(int(facts["txid"]), int(facts["attempt_id"]))
        inputs, states, expected = (dict(_tables(place, facts, kind)) for kind in (INPUTS, STATES, EXPECTED))
        return Capture(str(facts["topology"]), str(facts["group"]), attempt, inputs, states, expected, facts)
    except FileNotFoundError as error:
        raise TableError(
            f"the folder {folder} holds no whole capture",
            found=f"no file {error.filename or FACTS}",
            expected="what `trident capture` has written, all of it",
            action="capture the transaction again, or bring the file back",
        ) from error
    except (Unreadable, KeyError, TypeError, ValueError, OSError, pa.ArrowException) as error:
        raise TableError(
            f"the capture in {folder} cannot be read: {error}",
            expected=f"what `trident capture` has written, schema {SCHEMA}",
            action="capture the transaction again",
        ) from error


def _tables(place: Place, facts: Mapping[str, Any], kind: str) -> Iterator[tuple[str, pa.Table]]:
    for name, rows in facts[kind].items():
        with storage.input(place / kind / f"{name}.parquet") as file:
            table = pq.ParquetFile(file).read()
        if table.num_rows != rows:
            raise ValueError(f"{kind} {name} has {table.num_rows} rows instead of {rows}")
        yield name, table


def check_folder(folder: Place) -> bool:
    """Tells whether a folder that a capture may be written into has half of one, by a command that was killed.

    Raises:
        TopologyError: it has other content, or a whole capture.
    """
    names = set(storage.list_names(folder))
    if names and (_BEGUN not in names or FACTS in names):
        raise TopologyError(
            f"the folder {folder} is not empty",
            found="a whole capture" if FACTS in names else ", ".join(sorted(names)[:5]),
            expected="a new folder for the capture",
            action="name another one with --to, or delete it",
        )
    return bool(names)


def write_capture(capture: Capture, folder: Place) -> None:
    """Writes a capture into a folder that is new or empty: its facts last, so that half a capture is none.

    Half a capture, of a command that was killed, is written anew.

    Raises:
        TopologyError: the folder has other content.
    """
    if check_folder(folder):
        for kind in (INPUTS, STATES, EXPECTED):
            storage.delete(folder / kind)
    parts = {INPUTS: capture.inputs, STATES: capture.states, EXPECTED: capture.expected}
    facts = {**capture.facts, "schema": SCHEMA, "topology": capture.topology, "group": capture.group}
    facts |= {"txid": capture.attempt.txid, "attempt_id": capture.attempt.attempt_id}
    storage.make_folder(folder, "/" if folder.is_local else folder.root)
    with faults.fault_point(CAPTURE):
        storage.write(folder / _BEGUN, b"a capture that is being written; without capture.json it is none\n")
    for kind, tables in parts.items():
        facts[kind] = {name: table.num_rows for name, table in tables.items()}
        for name, table in tables.items():
            path = folder / kind / f"{name}.parquet"
            storage.make_folder(path.parent, "/" if path.is_local else path.root)
            with faults.fault_point(CAPTURE), storage.output(path) as file:
                pq.write_table(table, file)
    with faults.fault_point(CAPTURE):
        storage.write(folder / FACTS, json.dumps(facts, indent=1, sort_keys=True).encode() + b"\n")
    storage.delete(folder / _BEGUN)


# Captures a kept transaction: its input rows, the rows of states that it reads, the rows that it committed.


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
    given_inputs = WarehouseInputs(session, kept, config)
    given = given_inputs.sources(kept.plan)
    try:
        inputs = {tx_id: rows.toArrow() for tx_id, rows in given.rows.items()}
        single = sorted(tx_id for tx_id, rows in given.rows.items() if is_single(rows))
        states, whole = _states(session, topology.name, kept.plan, given_inputs, given, state_rows)
    finally:
        free(given.checkpoints)
    facts = {
        "incarnation": kept.manifest.incarnation,
        "spouts": {tx_id: dict(spout) for tx_id, spout in kept.manifest.spouts.items()},
        "single": single,
        "whole": sorted(whole),
    }
    return Capture(topology.name, kept.plan.name, given_inputs.attempt, inputs, states, _expected(kept), facts)


def _states(
    spark: "SparkSession", topology: str, plan: GroupPlan, given_inputs: ReplayInputs, given: SourceRows, rows_max: int
) -> tuple[dict[str, pa.Table], set[str]]:
    """The rows of the states that a batch reads; and the names of those of which all rows are there."""
    states: dict[str, pa.Table] = {}
    large: dict[str, ReadState] = {}
    for name, read in states_read(plan.nodes).items():
        rows = given_inputs.stored(read.binding, None).limit(rows_max + 1).toArrow()
        if rows.num_rows > rows_max:
            large[name] = read
        else:
            states[name] = rows
    whole = set(states)
    if large:
        recording = Recording(given_inputs, given)
        with Replay(spark, topology, plan, recording):
            for name, read in large.items():
                states[name] = recording.requested_rows_of(read, rows_max)
    return states, whole


class Recording(ReplayInputs):
    """A ground that keeps what is looked up."""

    def __init__(self, given_inputs: ReplayInputs, given: SourceRows) -> None:
        self._replay_inputs, self._given = given_inputs, given
        self.attempt, self.incarnation = given_inputs.attempt, given_inputs.incarnation
        self._looked_up: dict[str, list[DataFrame]] = defaultdict(list)
        self._all: set[str] = set()

    def sources(self, plan: GroupPlan) -> SourceRows:
        return SourceRows(self._given.rows, self._given.tables, [])

    def stored(self, binding: StateBinding, keys: "DataFrame | None") -> "DataFrame":
        found = self._replay_inputs.stored(binding, keys)
        self._looked_up[binding.name].append(found)
        if keys is None or not binding.keys:
            self._all.add(binding.name)
        return found

    def requested_rows_of(self, read: ReadState, rows_max: int) -> pa.Table:
        """The rows of a large state whose keys were requested, each once.

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
        rows = pa.concat_tables(tables) if tables else self._replay_inputs.stored(read.binding, None).limit(0).toArrow()
        seen: dict[Any, int] = {}
        columns = [python_values(rows.column(key)) for key in keys]
        for at, key in enumerate(zip(*columns)):
            seen.setdefault(frozen(key), at)
        return rows.take(list(seen.values())) if seen else rows.slice(0, 0)

    def before(self, binding: StateBinding) -> "DataFrame":
        return self._replay_inputs.before(binding)

    def after(self, binding: StateBinding, rows: "DataFrame") -> "DataFrame":
        return self._replay_inputs.after(binding, rows)

    def committed(self, binding: StateBinding) -> pa.Table | None:
        return self._replay_inputs.committed(binding)

    def others(self, plan: GroupPlan) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return self._replay_inputs.others(plan)


def _expected(kept: KeptBatch) -> dict[str, pa.Table]:
    """The rows that were committed to each state that has some, without the column of txids that the framework adds."""
    found = {}
    for part in kept.manifest.tables:
        rows = staged_table(kept.warehouse / part.path, part.files) if part.state_kind.is_described else None
        if rows is not None:
            hidden = [TXID_COLUMN] if part.state_kind.has_log else []
            found[part.state] = rows.drop_columns([name for name in hidden if name in rows.column_names])
    return found
