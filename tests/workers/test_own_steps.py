"""Steps that may run in the coordinator's process: each says so itself, and all of them stand here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import trident.workers
from tests.streams.stream_helpers import RowsSpout, topology_of
from trident import Count, DeltaAppend, MapGet, Split, SqliteMap, Sum, TridentTopology, Upsert, opaque
from trident.planning.groups import plan
from trident.planning.operation import PyOp
from trident.states.core.copy_rows import RowCodec
from trident.states.core.local_copy import CopyAsOf, CopyMark, LocalCopy
from trident.streams.stream import Stream
from trident.workers.arrow_plan import Aggregate, Aggregated, ArrowPlan, ArrowSegment, Columns, SplitText
from trident.workers.best_row import BestOfBatch
from trident.workers.chain import Chain, Frame, Keep, Meter, Step
from trident.workers.cogroups import FirstRows
from trident.workers.failures import Label
from trident.workers.look_up import LookUp

# Read each line of a step before you add it: it calls no function, state or map of the user's.
OWN = {
    *["Aggregated", "Unchanged", "Columns", "CombineStored", "CountRows", "Expanded", "GatherFromCopy", "Gathered"],
    *["Given", "KeepTrue", "KeepWhere", "LookUp", "NewRows", "OpenWindows", "Renamed", "SplitText", "Tagged"],
    *["TimedStep", "WithCondition", "WithConstant", "WithMarker", "WithoutMarker"],
}

# The types of fields that are data, or name an object of the framework's in their own module.
DATA = {"str", "int", "bool", "tuple", "None", "pa.DataType", "pa.Schema", "pa.StructType", "Typed"} | {
    *["Aggregate", "Condition", "CopyAsOf", "Label", "Part", "Shard"]
}
# Other fields of own steps. See that the planner puts a value or an object of the framework's there.
OBJECTS = {"NewRows.clock", "OpenWindows.rules", "TimedStep.rule", "WithConstant.value"}


def steps() -> Iterator[type[Step]]:
    for module in pkgutil.iter_modules(trident.workers.__path__, "trident.workers."):
        for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(found, Step) and found.__module__ == module.name:
                yield found


def test_the_framework_s_own_steps_are_these() -> None:
    assert {step.__name__ for step in steps() if step.own} == OWN
    assert not Step.own  # a step that says nothing is the user's


def test_no_own_step_has_an_object_of_the_user_s() -> None:
    found = set()
    for step in (step for step in steps() if step.own):
        assert not hasattr(step, "user")
        for one in fields(step) if is_dataclass(step) else ():
            if set(re.findall(r"[A-Za-z_][\w.]*", str(one.type))) - DATA:
                found.add(f"{step.__name__}.{one.name}")
    assert found == OBJECTS


def test_a_plan_with_a_step_of_the_user_s_is_not_the_framework_s_own() -> None:
    schema = pa.schema([("n", pa.int64())])
    own, users = Columns(("n",)), Keep(Label("filter", "here:1"), bool, ("n",), ("n",))

    def segments(*steps: Step) -> tuple[ArrowSegment, ...]:
        return (ArrowSegment(("in",), "out", Chain(steps, schema)),)

    assert not ArrowPlan(segments(own, users), {}).is_own
    plan = ArrowPlan(segments(own), {"rows": "out"})
    assert plan.is_own
    assert plan.run({"in": pa.table({"n": [1], "m": [2]})}, None, None)["rows"].to_pylist() == [{"n": 1}]


def test_a_text_of_very_many_words_leaves_in_pieces() -> None:
    step = SplitText("text", "word", "ab", ("n",))
    texts = pa.array(["1ab2", None, "3" + 200_000 * "ab3"], pa.string())
    frames = list(step.run(iter([Frame({"text": texts, "n": pa.array(range(3))}, 3, Meter())])))
    assert [one.length for one in frames] == [100_000, 100_000, 3]
    words = [word for one in frames for word in one.array("word").to_pylist()]
    assert words == ["1", "2", *["3"] * 200_001]


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (FirstRows(pa.schema([("day", pa.date32())]), 1, "day", False), 0),
        (BestOfBatch(Label("max", ""), ("day",), True, ("day",)), 2_932_897),
    ],
    ids=["first rows", "best row"],
)
def test_dates_beyond_those_of_python_are_compared(step: Step, found: int) -> None:
    days = pa.RecordBatch.from_arrays([pa.array([0, 2_932_897], pa.int32()).cast(pa.date32())], names=["day"])
    (row,) = Chain((step,), days.schema, "")(iter([days]))
    assert row.column("day").cast(pa.int32()).to_pylist() == [found]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.bool_(), pa.binary(), pa.int64(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])]
)
@pytest.mark.parametrize("aggregator", ["min", "max"])
def test_no_row_has_no_extreme(kind: pa.DataType, aggregator: str) -> None:
    step = Aggregated((), (Aggregate("v", ("m", kind), aggregator, False),), ("m",))
    assert [frame.array("m").to_pylist() for frame in step.run(iter([]))] == [[None]]


def test_a_text_that_is_not_utf_8_is_looked_up(tmp_path: Path) -> None:
    schema = pa.schema([("word", pa.string()), ("line", pa.string())])
    text = pa.array([b"good", b"tw\xffo"], pa.binary()).cast(pa.string(), safe=False)
    rows = pa.RecordBatch.from_arrays([text, text], schema=schema)
    codec, mark = RowCodec(schema, ["word"]), CopyMark("inc", 1, "digest", "commit")
    copy = LocalCopy(tmp_path / "copy", 1 << 24, schema.remove(0))
    copy.apply([codec.rows(rows)], None, mark)
    step = LookUp("best", ("word",), ("word",), (("line", "before"),), None, ("word",))
    given = pa.schema([("word", pa.string()), ("before", pa.string())])
    chain = Chain((step,), given).with_copies({"best": CopyAsOf(copy.folder, mark, schema, ("word",))})
    asked = rows.select(["word"])
    (found,) = chain(iter([asked]))
    assert [column.cast(pa.binary()) for column in found.columns] == [text.cast(pa.binary())] * 2
    again = codec.decode_keys(codec.encode_keys(asked)).column("word")
    assert again.cast(pa.binary()).to_pylist() == [b"good", b"tw\xffo"]
    copy.close()


# --- what workers load -----------------------------------------------------------------------------------
# Steps that workers are sent load nothing of the planner there: each worker would pay with time and memory.


class Longest:
    def init(self, batch_id: Any) -> list[str]:
        return [""]

    def aggregate(self, state: list[str], *words: str) -> None:
        state[0] = max(state[0], *words, key=len)

    def execute(self, state: list[str], stream_index: int, word: str) -> None:
        self.aggregate(state, word)

    def complete(self, state: list[str]) -> str:
        return state[0]


def upserted_and_asked(words: Stream) -> Stream:
    users = words.partition_persist(opaque("users", SqliteMap("maps.db", "users")), None, Upsert("word"))
    return words.state_query(users, "word", MapGet(), "found")


STREAMS: dict[str, Callable[[Stream], Stream]] = {
    "built-in": lambda words: words.each("word", str.upper, "upper string").each("upper", Split(), "part"),
    "chain": lambda words: (
        words.chained_agg().aggregate(Count(), "count").aggregate("word", Longest(), "longest").chain_end()
    ),
    "parts": lambda words: (
        words.chained_agg().partition_aggregate(Count(), "count").partition_aggregate("n", Sum(), "sum").chain_end()
    ),
    "several streams": lambda words: topology_of(words).multi_reduce(
        words, words, reducer=Longest(), outputs="longest", inputs=["word", "word"]
    ),
    "partition": lambda words: words.partition("word", len),
    "best row": lambda words: words.max_by("word", lambda one, other: len(one) - len(other)),
    "map": upserted_and_asked,
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_worker_loads_nothing_of_the_planner(name: str) -> None:
    words = TridentTopology("light").new_stream("rows", RowsSpout("word string, n long, key string"))
    end = STREAMS[name](words.project("word", "n") if name == "map" else words)
    end.partition_persist(DeltaAppend("end"))
    (group,) = plan(topology_of(words).graph)
    segments = (*group.lowered.segments, *group.lowered.late_segments)
    steps = [op.step for segment in segments for op in segment.ops if isinstance(op, PyOp)]
    assert steps
    read = (
        "import pickle, sys; pickle.loads(sys.stdin.buffer.read()); "
        "print(*(name for name in sys.modules if name.startswith(('trident.planning', 'trident.streams'))))"
    )
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)  # as a user's own script: this module imports the planner
    try:
        given = cloudpickle.dumps(steps)
    finally:
        cloudpickle.unregister_pickle_by_value(here)
    loaded = subprocess.run([sys.executable, "-c", read], input=given, capture_output=True, check=True).stdout
    assert loaded.split() == []
