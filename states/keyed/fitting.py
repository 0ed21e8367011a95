"""Finds combined values that would not fit their state, before the batch that makes them is decided.

A combiner's partial values go to a state's log as they are, and are combined when the log is merged or read. A sum
that does not fit then would leave the state without any value: no read of it and no MERGE could succeed. So the sums of
a batch's keys are looked up before its decision, where one may not fit. That is seldom: as long as the greatest value
of the state and all that was added to it since stay within the type together, each key does.

A user's combiner is not looked up: a Spark job for each batch takes many times what the batch takes. One that fails is
corrected, and combines the same parts again.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from trident.coordinators.errors import TableError, ValueDoesNotFit
from trident.states.core import storage
from trident.states.core.binding import COMBINE, StateBinding
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.core.tables import TXID_COLUMN, StagedFile
from trident.states.delta.delta_log import LogTables
from trident.states.delta.kernel import KernelEngine, TableMissing
from trident.states.keyed.log_merge import log_rows, unfit, wide_type
from trident.states.keyed.reading import parts_of
from trident.states.keyed.tables import greatest_txid, merged_upto, own_control

log = logging.getLogger(__name__)
# So many keys are named in an error.
_SHOWN = 5
_FOOTERS_MAX = 100_000
# Statistics of decimals are doubles, which are right to some sixteen digits.
_SLACK = 1 + 2.0**-40


class Fitting:
    """Looks whether the values of the keyed states of a batch group fit, under one lease."""

    def __init__(self, engine: KernelEngine, of: GroupContext) -> None:
        self._engine, self._of, self._warehouse = engine, of, of.warehouse
        self._logs = LogTables()
        # State → value field → no value of it is further from 0 than that; none: it is not known.
        self._bounds: dict[str, dict[str, float]] = {}
        self._footers: dict[tuple[str, str], float] = {}
        self._states: dict[str, tuple[StateDescriptor, dict[str, float]]] = {}

    def check(self, binding: StateBinding, files: Sequence[StagedFile], txid: int) -> None:
        """Checks the staged rows of one state; call it in the transaction's turn, before the decision.

        Raises:
            ValueDoesNotFit: a value would not fit.
            TableError: the state's tables cannot be read.
        """
        if not files or not binding.state_kind.has_log or binding.merging != COMBINE:
            return
        state, limits = self._sums_of(binding)
        if limits and not self._totals_fit(state, limits, files):
            self._look_up(binding, files, txid)

    def stuck_keys(self, state: StateDescriptor, txid: int) -> list[tuple[str, str]]:
        """The keys of a state that have no value: sums that do not fit, which versions before this one let in.

        Args:
            txid: as of which transaction; one that is published.

        Returns:
            (key, reason) of each, as text. Of a Python combiner none: what it cannot combine only its code knows.
        """
        limits = _limits(state)
        if not limits or all(known < limits[name] for name, known in self._in_tables(state, limits).items()):
            return []
        stored, base, rows = parts_of(self._engine.spark, self._warehouse, state.name, None, txid)
        found = None if rows is None else unfit(stored.state, base, rows)
        return [] if found is None else [(row.key, row.reason) for row in found.collect()]

    # --- bounds ---------------------------------------------------------------------------------

    def _sums_of(self, binding: StateBinding) -> tuple[StateDescriptor, dict[str, float]]:
        """The state, and its value fields that are sums which may not fit, with what they must stay below."""
        if binding.name not in self._states:
            state = StateDescriptor.of(binding, self._of.topology, self._of.group, self._of.incarnation, 1)
            self._states[binding.name] = state, _limits(state)
        return self._states[binding.name]

    def _totals_fit(self, state: StateDescriptor, limits: Mapping[str, float], files: Sequence[StagedFile]) -> bool:
        """Tells whether no key can have a value that does not fit, by what is known without looking it up."""
        root = self._warehouse / state.published_path
        added = {name: sum(self._added(root, file, json.loads(file.stats), name) for file in files) for name in limits}
        known = self._bounds.get(state.name)
        if known is None or any(known[name] + added[name] >= limit for name, limit in limits.items()):
            try:
                known = self._in_tables(state, limits)
            except TableError as error:  # a log that only Delta's Kernel can follow
                log.debug("the files of state %s say nothing: %s", state.name, error)
                known = dict.fromkeys(limits, math.inf)
        self._bounds[state.name] = {name: known[name] + added[name] for name in limits}
        return all(self._bounds[state.name][name] < limit for name, limit in limits.items())

    def _in_tables(self, state: StateDescriptor, names: Mapping[str, float]) -> dict[str, float]:
        """A bound of the values by the statistics of the files of both tables."""
        root, plain_root = self._warehouse / state.published_path, self._warehouse / state.plain_path
        # The log first: of rows that are merged meanwhile both tables know, and the bound is too high.
        waits = self._logs.load(str(root))
        control = own_control(state, waits)
        try:
            plain = self._logs.load(str(plain_root))
        except TableMissing:
            plain = None
        merged = control.starts_at - 1 if plain is None else merged_upto(state, plain, control.starts_at)
        waiting = [file for file in waits.files.values() if greatest_txid(file) > merged]
        found = {}
        for name in names:
            files = [] if plain is None else list(plain.files.values())
            base = max((self._greatest(plain_root, file, file.stats, name) for file in files), default=0.0)
            found[name] = base + sum(self._added(root, file, file.stats, name) for file in waiting)
        return found

    def _added(self, root: Place, file: Any, stats: Mapping[str, Any] | None, name: str) -> float:
        """By how much the rows of a file may change a key: of a count a key may have several."""
        greatest = self._greatest(root, file, stats, name)
        return greatest * (file.num_records or 0) if greatest else 0.0

    def _greatest(self, root: Place, file: Any, stats: Mapping[str, Any] | None, name: str) -> float:
        """No value of a column of a file is further from 0; infinite where that is not known."""
        stats = stats or {}
        if file.num_records is not None and stats.get("nullCount", {}).get(name) == file.num_records:
            return 0.0
        ends = [stats.get(part, {}).get(name) for part in ("minValues", "maxValues")]
        if all(isinstance(end, (int, float)) for end in ends) and file.num_records is not None:
            return max(abs(end) for end in ends) * _SLACK
        path = f"{root}/{file.path}"
        if storage.local_path(path) is None or file.num_records is None:
            return math.inf
        if (path, name) not in self._footers:
            if len(self._footers) >= _FOOTERS_MAX:
                self._footers.clear()
            self._footers[path, name] = _by_footer(path, name)
        return self._footers[path, name]

    # --- values ---------------------------------------------------------------------------------

    def _look_up(self, binding: StateBinding, files: Sequence[StagedFile], txid: int) -> None:
        spark, root = self._engine.spark, self._warehouse / binding.state_kind.published_path(binding.name)
        schema = StructType([*binding.log_schema.fields, StructField(TXID_COLUMN, LongType(), True)])
        # A path is a path, whatever characters are in it.
        reader = spark.read.schema(schema).option("__globPaths__", "false")
        staged = reader.parquet(*[f"{root}/{file.path}" for file in files])
        few = sum(file.num_records for file in files) <= 1_000_000
        keys = staged.hint("broadcast") if few else staged
        stored, base, rows = parts_of(
            spark, self._warehouse, binding.name, keys if binding.keys else None, txid - 1, self._logs
        )
        new = log_rows(stored.state, staged, txid - 1, txid)
        found = unfit(stored.state, base, new if rows is None else rows.unionByName(new))
        first = [] if found is None else found.limit(_SHOWN).collect()
        if first:
            raise _does_not_fit(stored.state, [(row.key, row.reason) for row in first])


def _does_not_fit(state: StateDescriptor, found: Sequence[tuple[str, str]]) -> ValueDoesNotFit:
    (key, reason), *others = found
    more = "" if not others else f"; and of keys {', '.join(key for key, _ in others)}"
    return ValueDoesNotFit(
        f"the batch would give a key of state {state.name} a value that it cannot hold; key: {key}; {reason}{more}",
        state=state.name,
        key=key,
        action="nothing is decided, and the state is as it was; correct the rows at their source, give the state a "
        "wider type under another name, or give the batch up",
    )


def _limits(state: StateDescriptor) -> dict[str, float]:
    """The value fields that are sums which may not fit, with what they must stay below."""
    return {name: _limit(state, name) for name in state.value_fields if wide_type(state, name) is not None}


def _limit(state: StateDescriptor, name: str) -> float:
    kind = state.schema[name].dataType
    return 10.0 ** (kind.precision - kind.scale) if isinstance(kind, DecimalType) else 2.0**63


def _by_footer(path: str, name: str) -> float:
    try:
        with storage.input(path) as file:
            metadata = pq.read_metadata(file)
    except (OSError, ValueError) as error:
        raise TableError(f"the file {path} cannot be read", found=error) from error
    greatest = 0.0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            if column.path_in_schema != name:
                continue
            stats = column.statistics
            if stats is None or not stats.has_null_count:
                return math.inf
            if stats.null_count == group.num_rows:
                continue
            ends = (stats.min, stats.max) if stats.has_min_max else (None, None)
            if not all(isinstance(end, (int, Decimal)) for end in ends):
                return math.inf
            greatest = max(greatest, *(abs(float(end)) for end in ends if end is not None))
    return greatest * _SLACK
