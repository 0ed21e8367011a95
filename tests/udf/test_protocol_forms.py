"""Every protocol that a user implements gives the same with and without annotations, returned or yielded.

Without Spark: the steps that a topology is made of are run on one piece of a
batch, as a worker runs them. What must hold is that an annotation says types
and nothing else.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.streams.stream_helpers import ATTEMPT, raised, run_pass, stream_of, topology_of
from trident import Aggregator, DeltaMapState, MultiReducer, StaticMap, TridentTopology, opaque
from trident.coordinators.errors import OutputTypeError
from trident.operations.multi_reduce import MultiReduceNode
from trident.planning.groups import plan
from trident.planning.operation import PyOp
from trident.states.publishing.user_tasks import BatchInfo
from trident.streams.stream import Stream
from trident.testing import MemoryBackingMap
from trident.workers.chain import Frame, Meter
from trident.workers.failures import UserCodeFailed
from trident.workers.groups import Groups
from trident.workers.states import SHOWN, QueryRows, UpdateMap

ROWS = [("a", 1), ("a", 2), ("b", 5)]
SUMS = [("a", 3), ("b", 5)]
numbers = itertools.count()


def steps_of(topology: TridentTopology, kind: type) -> list[Any]:
    found = []
    for group in plan(topology.graph):
        for segment in (*group.lowered.segments, *group.lowered.late_segments):
            found += [op.step for op in segment.ops if isinstance(op, PyOp) and isinstance(op.step, kind)]
    return found


def frame(**columns: list[Any]) -> Frame:
    arrays = {name: pa.array(values) for name, values in columns.items()}
    return Frame(arrays, len(next(iter(columns.values()))), Meter())


def given(step: Any, *frames: Frame) -> list[tuple]:
    """What a step makes of a piece of a batch: rows of the keys and outputs, sorted."""
    rows: list[tuple] = []
    for made in step.run(iter(frames)):
        names = [name for name in (*getattr(step, "keys", ()), *step.outputs)]
        rows += zip(*(made.values(name) for name in names))
    return sorted(rows)


# --- functions ---------------------------------------------------------------------------


def annotated(function: Callable[..., Any], returns: Any) -> Callable[..., Any]:
    """A copy of a function that says what it returns."""
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__annotations__ = {"return": returns}
    return copy


def yielded(n):
    yield n + 1


class Callable_:
    def __call__(self, n):
        return n + 1


# Of n they give n + 1, once: as a value, and as an iterable.
one_value: dict[str, Callable[[Any], Any]] = {"returned": lambda n: n + 1, "object": Callable_()}
one_value["annotated"] = annotated(one_value["returned"], int)
many_values: dict[str, Callable[[Any], Any]] = {"listed": lambda n: [n + 1], "iterated": lambda n: iter([n + 1])}
many_values["listed, annotated"] = annotated(many_values["listed"], list[int])
many_values |= {"yielded": yielded, "yielded, annotated": annotated(yielded, Iterator[int])}


@pytest.mark.parametrize("form", [*one_value, *many_values])
def test_each(form: str) -> None:
    made = stream_of("n long").each("n", (one_value | many_values)[form], "m long")
    assert run_pass(made, [(1,), (2,)]) == [(1, 2), (2, 3)]


@pytest.mark.parametrize("form", one_value)
def test_map(form: str) -> None:
    assert run_pass(stream_of("n long").map(one_value[form], "m long"), [(1,), (2,)]) == [(2,), (3,)]


@pytest.mark.parametrize("form", many_values)
def test_flat_map(form: str) -> None:
    assert run_pass(stream_of("n long").flat_map(many_values[form], "m long"), [(1,), (2,)]) == [(2,), (3,)]


FILTERS = [lambda n: n > 1, annotated(lambda n: n > 1, bool)]


@pytest.mark.parametrize("function", FILTERS, ids=["not", "annotated"])
def test_filter_and_peek(function: Callable[[Any], Any]) -> None:
    assert run_pass(stream_of("n long").filter("n", function).peek("n", function), [(1,), (2,)]) == [(2,)]


# --- what gathers rows -------------------------------------------------------------------


class Combines:
    def init(self, n):
        return n

    def combine(self, a, b):
        return a + b

    def zero(self):
        return 0


class Reduces:
    def init(self):
        return 0

    def reduce(self, current, n):
        return current + n


class Totals:
    """An aggregator, a multi-reducer and a query at once; ``complete`` and ``execute`` come in many forms."""

    def init(self, batch_id):
        return [0]

    def aggregate(self, state, n):
        state[0] += n

    def resume(self, batch_id, total, *more):
        return [total]


def forms(base: type, method: str, *functions: tuple[Callable[..., Any], Any]) -> list[type]:
    """Classes that differ in one method: as it is written, and with what it returns where that is said."""
    made = []
    for function, returns in functions:
        made.append(type(f"{base.__name__}_{function.__name__}", (base,), {method: function}))
        if returns is not None:
            name = f"{base.__name__}_{function.__name__}_annotated"
            made.append(type(name, (base,), {method: annotated(function, returns)}))
    return made


def all_annotated(kind: type, returns: Any) -> type:
    """With each method annotated."""
    methods = {name: annotated(one, returns) for name, one in vars(kind).items() if not name.startswith("__")}
    return type(f"{kind.__name__}_annotated", (kind,), methods)


def one(self, state):
    return state[0]


def listed(self, state):
    return [state[0]]


def yields(self, state):
    yield state[0]


TOTALS = forms(Totals, "complete", (one, int), (listed, list[int]), (yields, Iterator[int]))


def pair(self, state):
    return state[0], -state[0]


def pairs_listed(self, state):
    return [(state[0], -state[0])]


def pairs_yielded(self, state):
    yield state[0], -state[0]


# As many outputs as there are annotations to be left out.
PAIRS = forms(
    Totals, "complete", (pair, tuple[int, int]), (pairs_listed, None), (pairs_yielded, Iterator[tuple[int, int]])
)
ROWS_FRAME = {"k": ["a", "a", "b"], "n": [1, 2, 5]}


def outputs_of(kind: type) -> str:
    return "t long, u long" if kind in PAIRS else "t long"


def expected(kind: type, rows: list[tuple]) -> list[tuple]:
    return [(key, total, -total) for key, total in rows] if kind in PAIRS else rows


def grouped() -> Any:
    return stream_of("k string, n long").group_by("k")


def aggregated(stream: Stream) -> Any:
    from trident import DeltaAppend

    stream.partition_persist(DeltaAppend("out"))
    *_, step = steps_of(topology_of(stream), Groups)
    return step.for_batch(BatchInfo(ATTEMPT))


@pytest.mark.parametrize("kind", [Combines, all_annotated(Combines, int)])
def test_a_combiner_in_a_batch_and_into_a_state(kind: type) -> None:
    step = aggregated(grouped().partition_aggregate("n", kind(), "t long").to_stream())
    assert given(step, frame(**ROWS_FRAME)) == SUMS
    stream = grouped()
    stream.persistent_aggregate(opaque("s", MemoryBackingMap(f"c{next(numbers)}")), "n", kind(), "t long")
    assert committed(topology_of(stream), {"k": ["a", "b"], "t": [3, 5]}, 2) == [("a", 6), ("b", 10)]


@pytest.mark.parametrize("kind", [Reduces, all_annotated(Reduces, int)])
def test_a_reducer_in_a_batch_and_into_a_state(kind: type) -> None:
    step = aggregated(grouped().partition_aggregate("n", kind(), "t long").to_stream())
    assert given(step, frame(**ROWS_FRAME)) == SUMS
    assert resumed(kind()) == [("a", 103), ("b", 5)]
    stream = grouped()
    stream.persistent_aggregate(opaque("s", MemoryBackingMap(f"r{next(numbers)}")), "n", kind(), "t long")
    assert committed(topology_of(stream), ROWS_FRAME, 2) == [("a", 6), ("b", 10)]


@pytest.mark.parametrize("kind", [*TOTALS, *PAIRS])
def test_an_aggregator_in_a_batch(kind: type) -> None:
    assert isinstance(kind(), Aggregator)
    step = aggregated(grouped().partition_aggregate("n", kind(), outputs_of(kind)).to_stream())
    assert given(step, frame(**ROWS_FRAME)) == expected(kind, SUMS)


@pytest.mark.parametrize("kind", [*TOTALS, *PAIRS])
def test_an_aggregator_that_goes_on_from_what_a_delta_table_has(kind: type) -> None:
    assert resumed(kind()) == expected(kind, [("a", 103), ("b", 5)])


@pytest.mark.parametrize("kind", [*TOTALS, *PAIRS])
def test_an_aggregator_that_goes_on_from_what_a_map_has(kind: type) -> None:
    stream = grouped()
    stream.persistent_aggregate(opaque("s", MemoryBackingMap(f"a{next(numbers)}")), "n", kind(), outputs_of(kind))
    found = committed(topology_of(stream), ROWS_FRAME, 2)
    assert found == expected(kind, [("a", 6), ("b", 10)])


def resumed(aggregator: Any) -> list[tuple]:
    """Of a batch, where the state has 100 for the key a."""
    stream = grouped()
    stream.persistent_aggregate(DeltaMapState("s"), "n", aggregator, outputs_of(type(aggregator)))
    (step,) = [one for one in steps_of(topology_of(stream), Groups) if one.found]
    stored = {name: [100, 100, None] for name in step.stored}
    return given(step.for_batch(BatchInfo(ATTEMPT)), frame(**ROWS_FRAME, **stored, **{step.found: [True, True, False]}))


def committed(topology: TridentTopology, columns: dict[str, list[Any]], times: int) -> list[tuple]:
    """The new values that a map's step shows, after so many transactions with the same rows."""
    (step,) = steps_of(topology, UpdateMap)
    rows: list[tuple] = []
    for txid in range(1, times + 1):
        at = type(ATTEMPT)(txid, 0)
        of_step = step.for_batch(BatchInfo(at, "life", 1))
        place = {step.place: [0] * len(next(iter(columns.values())))} if step.place else {}
        frames = list(of_step.run(iter([frame(**columns, **place)])))
        shown = [one for one in frames if one.values(SHOWN)[:1] == [True]]
        rows = sorted(zip(*(one.values(name) for one in shown for name in (*step.keys, *step.outputs))))
        puts = [one for one in frames if one not in shown]
        keys = [tuple(row) for one in puts for row in map(_loads, one.values("__trident_key"))]
        step.state.backing.multi_put(keys, [_loads(text) for one in puts for text in one.values("__trident_stored")])
    return rows


def _loads(text: str) -> Any:
    from trident.states.core.values import loads

    return loads(text)


def no_row(self, state):
    return []


def two_rows(self, state):
    yield state[0]
    yield state[0]


def null(self, state: list) -> int:
    return None  # type: ignore[return-value]


NOT_ONE = list(zip(forms(Totals, "complete", (no_row, None), (two_rows, None), (null, None)), (0, 2, 0)))


@pytest.mark.parametrize(("kind", "count"), NOT_ONE)
def test_a_state_keeps_exactly_one_row_for_each_key_and_says_how_many_there_were(kind: type, count: int) -> None:
    text = f"complete gave {count} rows for a key: a state keeps exactly one for each"
    error = raised(lambda: resumed(kind()))
    assert isinstance(error, UserCodeFailed) and text in str(error), error
    stream = grouped()
    stream.persistent_aggregate(opaque("s", MemoryBackingMap(f"n{next(numbers)}")), "n", kind(), "t long")
    error = raised(lambda: committed(topology_of(stream), ROWS_FRAME, 1))
    assert isinstance(error, UserCodeFailed) and text in str(error), error


# --- several streams, queries, updaters --------------------------------------------------


@pytest.mark.parametrize("kind", [*TOTALS, *PAIRS])
def test_a_multi_reducer(kind: type) -> None:
    class Both(kind):  # type: ignore[misc, valid-type]
        def execute(self, state, stream_index, n):
            state[0] += n

    left = stream_of("k string, n long")
    right = left.map(lambda k, n: (k, 10 * n), "k string, n long")
    made = topology_of(left).multi_reduce(
        left.group_by("k"), right.group_by("k"), reducer=Both(), outputs=outputs_of(kind)
    )
    assert isinstance(Both(), MultiReducer) and isinstance(made._node, MultiReduceNode)
    step = aggregated(made)
    index, *sides = step.inputs
    rows = {"k": ["a", "b"], index: [0, 1], sides[0]: [{"n": 3}, {"n": None}], sides[1]: [{"n": None}, {"n": 50}]}
    assert given(step, frame(**rows)) == expected(kind, [("a", 3), ("b", 50)])


class Asks:
    def batch_retrieve(self, state, args):
        return state.multi_get(args)


def found_one(self, args, found):
    return found


def found_listed(self, args, found):
    return [found]


def found_yielded(self, args, found):
    yield found


ASKS = forms(Asks, "execute", (found_one, int), (found_listed, None), (found_yielded, Iterator[int]))


@pytest.mark.parametrize("kind", ASKS)
@pytest.mark.parametrize("of_requests", [False, True], ids=["batch", "request"])
def test_a_query_function(kind: type, of_requests: bool) -> None:
    from trident import DeltaAppend
    from trident.planning.requests import drpc_plans

    topology = TridentTopology("asks")
    state = topology.new_static_state(StaticMap({("a",): 7}))
    if of_requests:
        topology.new_drpc_stream("ask", "k string").state_query(state, "k", kind(), "v long")
        (request,) = drpc_plans(topology.graph).values()
        segments = (*request.lowered.segments, *request.lowered.late_segments)
        (step,) = [op.step for one in segments for op in one.ops if isinstance(getattr(op, "step", None), QueryRows)]
    else:
        stream = stream_of("k string")
        state = topology_of(stream).new_static_state(StaticMap({("a",): 7}))
        stream.state_query(state, "k", kind(), "v long").partition_persist(DeltaAppend("out"))
        (step,) = steps_of(topology_of(stream), QueryRows)
    assert given(step.for_batch(BatchInfo(ATTEMPT)), frame(k=["a"])) == [(7,)]


class Puts:
    def update_state(self, state, tuples, collector):
        for key, n in tuples:
            state.multi_put([(key,)], [n])
            collector.emit((key, n))


class PutsAnnotated(Puts):
    def update_state(self, state: Any, tuples: list[tuple], collector: Any) -> None:
        super().update_state(state, tuples, collector)


class PutsOne(Puts):
    """Emits a list instead of a tuple."""

    def update_state(self, state, tuples, collector):
        for key, n in tuples:
            collector.emit([key, n])


@pytest.mark.parametrize("kind", [Puts, PutsAnnotated, PutsOne])
def test_a_state_updater(kind: type) -> None:
    stream = stream_of("k string, n long")
    state = opaque("s", MemoryBackingMap(f"u{next(numbers)}"))
    stream.partition_persist(state, "k, n", kind(), "key string, value long")
    assert committed(topology_of(stream), ROWS_FRAME, 1) == ROWS


def test_what_is_not_annotated_must_have_its_types_with_the_outputs() -> None:
    with pytest.raises(OutputTypeError, match="type of output 't'"):
        grouped().aggregate("n", TOTALS[0](), "t")
    assert grouped().aggregate("n", TOTALS[1](), "t").schema["t"].dataType.simpleString() == "bigint"
