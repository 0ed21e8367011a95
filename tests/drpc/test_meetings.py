"""Requests whose rows meet: joins, merges, multi-reducers and first rows of one task, against Spark for each alone."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer

from tests.long_cases import sample
from trident import FirstN, JoinOutFieldsMode, JoinType, Split, TridentTopology
from trident.planning.nodes import RESULT
from trident.planning.requests import DrpcPlan, drpc_plans
from trident.spark.rows import arrow_rows, to_dataframe
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers import cogroups
from trident.workers.requests import ANSWERED, Answers, Outcome, RequestBatch, RequestId

# Two requests of one task: rows that must not meet those of the other, and a third one that has none.
TEXTS = ["a b nan zero minus null a b c", "b b c nan null zero d", ""]
NUMBERS: dict[str, float | None] = {
    "nan": math.nan,
    "zero": 0.0,
    "minus": -0.0,
    "null": None,
    "a": 1.5,
    "b": -2.5,
    "c": 1.5,
    "d": math.inf,
}


def left(word: str) -> tuple[float | None, str | None, int, dt.date]:
    number = NUMBERS[word]
    return number, None if word == "null" else word, len(word), dt.date(2026, 1, len(word))


def right(word: str) -> tuple[float | None, str | None, int]:
    return NUMBERS[word], None if word == "null" else word, ord(word[0])


def some(word: str) -> bool:
    return word not in ("a", "minus")


class Seen:
    """Which streams the rows came from, by key."""

    def init(self, batch_id: Any) -> list[str]:
        return []

    def execute(self, state: list[str], stream: int, *values: Any) -> None:
        state.append(f"{stream}{values}")

    def complete(self, state: list[str]) -> str:
        return " ".join(sorted(state))


def first_side(stream: Any) -> Any:
    return stream.each("word", left, "k double, s string, n long, day date").project("k, s, n, day")


def sides(stream: Any) -> tuple[Any, Any]:
    one = first_side(stream)
    two = stream.filter("word", some).each("word", right, "k double, s string, m long").project("k, s, m")
    return one, two


def joined(keys: str, how: Any, mode: JoinOutFieldsMode = JoinOutFieldsMode.COMPACT) -> Callable[[Any, Any], Any]:
    def make(topology: Any, stream: Any) -> Any:
        one, two = sides(stream)
        rest = ["k", "s"] if keys != "k, s" else []
        outputs = None
        if mode is JoinOutFieldsMode.PRESERVE:
            outputs = "k, s, n, day, k2, s2, m"
        elif rest:
            other = next(name for name in rest if name != keys)
            outputs = f"{keys}, {other}, n, day, {other}2, m"
        return topology.join(one, two, keys=keys, outputs=outputs, type=how, mode=mode)

    return make


def three(topology: Any, stream: Any) -> Any:
    one, two = sides(stream)
    types = JoinType.mixed(JoinType.OUTER, JoinType.INNER, JoinType.OUTER)
    return topology.join(one, two, one, keys="k", outputs="k, s1, n1, d1, s2, m2, s3, n3, d3", type=types)


def all_outer(topology: Any, stream: Any) -> Any:
    one, two = sides(stream)
    few = two.filter("m", odd)
    return topology.join(few, two, one, keys="k", outputs="k, s1, m1, s2, m2, s3, n3, d3", type=JoinType.OUTER)


def odd(number: int) -> bool:
    return number % 2 == 1


def unused_keys(topology: Any, stream: Any) -> Any:
    return joined("k", "full")(topology, stream).project("n, m")


CASES: dict[str, Callable[[Any, Any], Any]] = {
    **{f"{how} by {keys}": joined(keys, how) for how in ("inner", "left", "right", "full") for keys in ("k", "k, s")},
    "preserve": joined("k", "full", JoinOutFieldsMode.PRESERVE),
    "three": three,
    "all outer": all_outer,
    "unused keys": unused_keys,
    "merge": lambda t, s: t.merge(*(side.project("k, s") for side in sides(s))).rename({"k": "key"}),
    "multi reduce": lambda t, s: t.multi_reduce(
        *(side.group_by("s") for side in sides(s)), inputs=["n", "m"], reducer=Seen(), outputs="seen string"
    ),
    "multi reduce of all": lambda t, s: t.multi_reduce(
        *sides(s), inputs=["k, n", "s, m"], reducer=Seen(), outputs="seen string"
    ),
    **{f"first by {by}": lambda t, s, by=by: first_side(s).apply_assembly(FirstN(4, by)) for by in ("k", "s", "day")},
    **{f"last by {by}": lambda t, s, by=by: first_side(s).apply_assembly(FirstN(4, by, True)) for by in ("k", "s")},
    "first": lambda t, s: first_side(s).apply_assembly(FirstN(3)),
    "least": lambda t, s: first_side(s).min_by("k", scope="batch"),
    "greatest": lambda t, s: first_side(s).project("k, n").max(scope="batch"),
}


def planned(case: Callable[[Any, Any], Any]) -> DrpcPlan:
    topology = TridentTopology("meeting")
    case(topology, topology.new_drpc_stream("f").each("args", Split(), "word"))
    (plan,) = drpc_plans(topology.graph).values()
    assert plan.together is not None, plan.reason_alone
    return plan


def outcomes_of(plan: DrpcPlan, texts: list[str]) -> tuple[list[Outcome], list[pa.Table]]:
    pickled = CloudPickleSerializer().dumps(plan.together)  # type: ignore[no-untyped-call]
    rows = arrow_rows([(text,) for text in texts], plan.arguments)
    asked = RequestBatch([f"id {text}" for text in texts], rows, BatchInfo(RequestId("")), {})
    return Answers(pickled, plan.function, RESULT).outcomes(asked)


def together(plan: DrpcPlan, texts: list[str]) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of each request, of one task."""
    outcomes, answers = outcomes_of(plan, texts)
    assert [one.kind for one in outcomes] == [ANSWERED] * len(texts), outcomes
    for answer in answers:
        assert answer.schema == answers[0].schema
        yield list(zip(*(_values(column) for column in answer.columns)))


def _values(column: pa.ChunkedArray) -> list[Any]:
    return column.to_pylist()


def shown(rows: list[Any]) -> list[str]:
    return sorted(repr(tuple(row)) for row in rows)


def by_spark(spark: Any, plan: DrpcPlan, text: str) -> list[Any]:
    asked = to_dataframe(spark, [(text,)], plan.arguments).coalesce(1)
    with plan.build(asked, BatchInfo(RequestId("a")), lambda *args: asked) as built:
        return built[RESULT].collect()


QUICKLY = "full by k, s; left by k; right by k; preserve; three; merge; multi reduce; last by k; greatest".split("; ")


@pytest.mark.parametrize("name", sample(sorted(CASES), *QUICKLY))
def test_rows_meet_as_they_do_by_spark_for_each_request_alone(spark: Any, name: str) -> None:
    plan = planned(CASES[name])
    first, *others = together(plan, TEXTS)
    assert shown(first) == shown(by_spark(spark, plan, TEXTS[0]))
    assert list(map(shown, others)) == [shown(rows) for text in TEXTS[1:] for rows in together(plan, [text])]


@pytest.mark.parametrize("name", ["inner by k", "full by k", "all outer"])
def test_a_join_of_very_many_rows_leaves_in_pieces(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plan = planned(CASES[name])
    (rows,) = together(plan, TEXTS[:1])
    monkeypatch.setattr(cogroups, "_ROWS_AT_ONCE", 2)
    assert [shown(again) for again in together(plan, TEXTS[:1])] == [shown(rows)]
