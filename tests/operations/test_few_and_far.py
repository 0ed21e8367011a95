"""Windows and times at their bounds: more due entries than the leader's process should take, times far away."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.operations.test_late_forms import by_spark, copied, early, on_arrow, shown
from tests.streams.stream_helpers import RowsSpout
from trident import Count, DeltaAppend, Max, TridentTopology, expr
from trident.planning.groups import GroupPlan, plan
from trident.streams.stream import Stream
from trident.workers.open_windows import AT, LATE_ROWS, NEWEST, NEXT, PANE, POSITION, ROWS
from trident.workers.timed import DUE, PART
from trident.workers.timers import TimerContext

SECOND, LAST = 10**6, 2**63 - 1
UTC = dt.timezone.utc


def group_of(stream: Stream) -> GroupPlan:
    (group,) = plan(stream._graph)
    return group


def marked(fields: str = "k string, at timestamp", delay: str = "0 seconds") -> Stream:
    made = TridentTopology("bounds")
    return made.new_stream("rows", RowsSpout(fields)).with_watermark("at", delay)


def rows_like(fields: StructType, rows: list[Mapping[str, Any]]) -> pa.Table:
    schema = to_arrow_schema(fields, timezone="UTC")
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


def panes(stream: Stream) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """Windows with three panes that are due: the stream of them, the state's rows, and a batch's boundary row."""
    fired = stream.sliding_window("20 seconds", "10 seconds", "open").group_by("k").aggregate(Count(), "n")
    held: list[dict[str, Any]] = [{PANE: 10 * n * SECOND, "k": "a", "_part0": 1} for n in range(3)]
    held.append({PANE: None, POSITION: 5 * SECOND, NEXT: 3, LATE_ROWS: 0})
    return fired, held, {AT: 900 * SECOND, "k": "b", "_part0": 1, ROWS: 1, NEWEST: 900 * SECOND}


def sessions(stream: Stream) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    fired = stream.session_window("10 seconds", "open").group_by("k").aggregate(Count(), "n")
    held: list[dict[str, Any]] = []
    for n, key in enumerate("xyz"):
        open_ = [{"start": n * SECOND, "end": (n + 10) * SECOND, "_part0": 1}]
        held.append({PANE: 0, "k": key, "_due": (n + 10) * SECOND, "_sessions": open_})
    held.append({PANE: None, POSITION: 5 * SECOND, NEXT: 3, LATE_ROWS: 0})
    return fired, held, {AT: 900 * SECOND, "k": "b", "_part0": 1, ROWS: 1, NEWEST: 900 * SECOND}


def keys_seen(stream: Stream) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    fired = stream.drop_duplicates("k", within="10 seconds", name="open")
    held: list[dict[str, Any]] = [{PART: 0, "k": key, DUE: 10 * SECOND} for key in "xyz"]
    held.append({PART: 1, DUE: 5 * SECOND})
    return fired, held, {"k": "b", "at": dt.datetime.fromtimestamp(900, UTC)}


@pytest.mark.parametrize("kind", [panes, sessions, keys_seen])
def test_what_is_due_in_masses_is_worked_on_in_pieces(kind, tmp_path, monkeypatch):
    fired, held, row = kind(marked())
    fired.partition_persist(DeltaAppend("out"))
    group = group_of(fired)
    (binding,) = [one for one in group.bindings if one.name == "open"]
    (boundary,) = group.lowered.boundaries.values()
    inputs = {boundary.name: rows_like(StructType(list(boundary.fields)), [row])}
    with copied(tmp_path, group, {"open": rows_like(binding.schema, held)}) as copies:
        found = shown(on_arrow(group, inputs, copies))
        assert len(found["out"]) == {panes: 4, sessions: 3, keys_seen: 1}[kind]
        for at_once in (1, 2):
            monkeypatch.setattr("trident.workers.open_windows._DUE_AT_ONCE", at_once)
            monkeypatch.setattr("trident.states.core.local_copy._STEP_ROWS", at_once)
            assert shown(on_arrow(group, inputs, copies)) == found


@pytest.mark.long
def test_times_at_the_ends_of_64_bits_are_right_or_as_far_as_positions_go(spark: SparkSession, tmp_path: Path) -> None:
    """In each form; no sum of a time and a length, a gap or a delay wraps or fails."""
    made = TridentTopology("bounds").new_stream("rows", RowsSpout("k string, n long"))
    stream = made.select("k", "n", expr("timestamp_micros(n) as at")).with_watermark("at", "1 minute")
    small = stream.sliding_window("1 hour", "40 minutes", "panes").group_by("k").aggregate(Count(), "c")
    small.project("k", "c").partition_persist(DeltaAppend("counts"))
    stream.session_window("1 hour", "visits").group_by("k").aggregate("n", Max(), "s").project(
        "k", "s"
    ).partition_persist(DeltaAppend("sums"))
    stream.drop_duplicates("k", within="1 hour", name="seen").project("k").partition_persist(DeltaAppend("first"))
    group = group_of(stream)
    rows = [("low", -LAST - 1), ("low", -LAST), ("zero", 0), ("high", LAST - 5 * SECOND), ("high", LAST)]
    inputs = early(spark, group, rows)
    stored = {one.name: rows_like(one.schema, []) for one in group.bindings if one.name in group.copied_states}
    with copied(tmp_path, group, stored) as copies:
        here = shown(on_arrow(group, inputs, copies))
    assert shown(by_spark(spark, group, inputs, stored)) == here
    # -2^62 and 0 are in two windows each, or one; the watermark has passed them, and not the last hour.
    assert {text for text in here["counts"] if "zero" in text} == {"{'k': 'zero', 'c': 1}"}
    assert {text for text in here["counts"] if "low" in text} == {"{'k': 'low', 'c': 2}"}
    assert not any("high" in text for text in (*here["counts"], *here["sums"]))
    assert here["first"] == ["{'k': 'high'}", "{'k': 'low'}", "{'k': 'zero'}"]


@pytest.mark.long
def test_windows_that_keep_rows_take_times_at_the_ends_of_64_bits(spark: SparkSession) -> None:
    made = TridentTopology("bounds").new_stream("rows", RowsSpout("k string, n long"))
    stream = made.select("k", "n", expr("timestamp_micros(n) as at")).with_watermark("at", "1 minute")
    windowed = stream.sliding_window("1 hour", "40 minutes", "open").rows().project("k")
    windowed.partition_persist(DeltaAppend("out"))
    group = group_of(stream)
    inputs = early(spark, group, [("low", -LAST - 1), ("zero", 0), ("high", LAST)])
    (binding,) = [one for one in group.bindings if one.name == "open"]
    found = by_spark(spark, group, inputs, {"open": rows_like(binding.schema, [])})["out"]
    assert set(found.column("k").to_pylist()) == {"low", "zero"}


def test_a_moment_outside_of_pythons_years_is_the_nearest_inside() -> None:
    for micros, year in ((-LAST, 1), (LAST, 9999), (0, 1970)):
        context = TimerContext("a", None, [micros], micros)
        assert context.now is not None and context.now.year == year and context.timers == [context.now]
