"""The anchors of rows through every operation: exactly the messages that fail are found (docs/semantics.md 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.long_cases import sample
from tests.messages.message_helpers import Messages
from trident import Aggregator, Combiner, Count, Reducer, Stream, Sum, TridentTopology, expr, pandas_function
from trident.coordinators.identities import TransactionAttempt
from trident.messages.ledger import BatchLedger
from trident.planning.groups import GroupPlan, nodes_above
from trident.planning.lowering import lower
from trident.planning.nodes import RESULT, SourceNode, result_of
from trident.workers.anchors import ANCHORS, Ledger, children_of, make_anchors, read_anchors, sums_by_root

ATTEMPT = TransactionAttempt(1, 0)


# --- ids -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12), st.integers(0, 2**32), st.booleans())
def test_the_ids_of_children_add_up_to_those_of_their_parents(rows: list, seed: int, sliced: bool) -> None:
    """rows: (pairs of the row, children of it)."""
    rng = np.random.default_rng(seed)
    counts = np.array([pairs for pairs, _ in rows], np.int64)
    roots = rng.integers(0, 5, int(counts.sum()), dtype=np.uint64)
    ids = rng.integers(0, 2**64, int(counts.sum()), dtype=np.uint64)
    anchors = make_anchors(counts, roots, ids)
    index = np.repeat(np.arange(len(rows)), [children for _, children in rows])
    if sliced and len(rows) > 1:
        anchors, index = anchors.slice(1), index[index > 0] - 1
        rows, ids, roots = rows[1:], ids[counts[0] :], roots[counts[0] :]
        counts = counts[1:]
    found = children_of(anchors, index)
    assert found.equals(children_of(anchors, index)), "a task that runs again gives the same ids"
    child_counts, child_roots, child_ids = read_anchors(found)
    assert child_counts.tolist() == counts[index].tolist()
    of_parents = np.repeat([children > 0 for _, children in rows], counts) if len(rows) else np.array([], bool)
    expected = sums_by_root(roots[of_parents], ids[of_parents])
    assert [one.tolist() for one in sums_by_root(child_roots, child_ids)] == [one.tolist() for one in expected]
    wide = [children for _, children in rows if children > 1]
    if wide and len(set(ids.tolist())) == len(ids):
        assert len(set(child_ids.tolist())) == len(child_ids), "siblings have ids of their own"


# --- operations ------------------------------------------------------------------------------


class Batch:
    """What one batch of messages gives, computed as the runner would."""

    def __init__(
        self, spark: SparkSession, folder: Path, stream: Stream, messages: dict[int, str], lose: int = 0
    ) -> None:
        result = result_of(stream._node)
        nodes = [*nodes_above([stream._node], stream._graph.nodes), result]
        sources = [node for node in nodes if isinstance(node, SourceNode)]
        lowered = lower(nodes, [result], sources)
        plan = GroupPlan(name="g", nodes=nodes, lowered=lowered)
        ledger = BatchLedger(folder)
        roots = np.array([1000 + number for number in messages], np.uint64)
        ids = np.random.default_rng(7).integers(0, 2**64, len(roots), dtype=np.uint64)
        texts = pa.array(list(messages.values()), pa.string())
        self.anchored = bool(lowered.anchored)
        columns: dict[str, Any] = {"text": texts}
        if self.anchored:
            ledger.init(roots, ids)
            columns[ANCHORS] = make_anchors(np.ones(len(roots), np.int64), roots, ids)
        frame = spark.createDataFrame(pa.table(columns)).repartition(2).limit(len(roots) - lose)
        built = None
        try:
            with ledger.given_to_tasks(spark):
                built = plan.build({node.tx_id: frame for node in sources}, ATTEMPT)
                self.rows = sorted(tuple(row) for row in built[RESULT].collect())
            self.failures = ledger.failures() if self.anchored else {}
        finally:
            if built is not None:
                built.release()
            ledger.drop()
        self.failed = {root - 1000 for root in self.failures}


def fragile(text: str) -> str:
    if "!" in text:
        raise ValueError(f"cannot take {text}")
    return text.upper()


def words(text: str) -> Iterator[str]:
    for word in text.split():
        yield fragile(word)


def calm(text: str) -> bool:
    return "q" not in fragile(text).lower()


@pandas_function
def upper(text: pd.Series) -> pd.Series:
    if text.str.contains("!").any():
        raise ValueError("a piece cannot be taken")
    return text.str.upper()


class Joined(Combiner):
    """Texts in order of the alphabet; breaks where a text has an exclamation mark."""

    def init(self, text: str) -> str:
        return fragile(text)

    def combine(self, a: str, b: str) -> str:
        return "".join(sorted(a + b))

    def zero(self) -> str:
        return ""


class Longest(Reducer):
    def init(self) -> int:
        return 0

    def reduce(self, longest: int, text: str) -> int:
        return max(longest, len(fragile(text)))


class Few(Aggregator):
    """Counts, and breaks where a group has more than two rows."""

    def init(self, batch_id: Any) -> list:
        return [0]

    def aggregate(self, state: list, text: str) -> None:
        state[0] += 1

    def complete(self, state: list) -> int:
        if state[0] > 2:
            raise ValueError("too many")
        return state[0]


def few(n: int) -> int:
    if n > 2:
        raise ValueError(f"{n} are too many")
    return n


MESSAGES = {0: "a b c", 1: "b!", 2: "", 3: "c q", 4: "d e!", 5: "a", 6: "f", 7: "aa bb"}
BAD = {1, 4}


def by_first_letter(stream: Stream) -> Any:
    return stream.each("text", lambda text: text[:1], "k string").group_by("k")


def words_by_first_letter(stream: Stream) -> Any:
    return stream.flat_map(str.split, "w string").each("w", lambda word: word[0], "k string").group_by("k")


def with_a_filter_by_spark_between(stream: Stream) -> Stream:
    return stream.each("text", lambda t: t, "t string").filter(F.length("t") > 1).each("t", fragile, "up")


def branches_that_meet(stream: Stream) -> Stream:
    return (w := stream.flat_map(str.split, "w string")).filter("w", calm).merge(w.map(fragile, "w"))


def merged_with_itself(stream: Stream) -> Stream:
    return (w := stream.flat_map(str.split, "w string")).merge(w, w).each("w", fragile, "u")


OPERATIONS: dict[str, Callable[[Stream], Stream]] = {
    "each": lambda s: s.each("text", fragile, "up"),
    "map": lambda s: s.map(fragile, "up"),
    "flat_map": lambda s: s.flat_map(words, "word"),
    "filter": lambda s: s.filter("text", calm),
    "peek": lambda s: s.peek("text", fragile),
    "two in a row": lambda s: s.flat_map(words, "word").each("word", fragile, "again"),
    "pandas": lambda s: s.each("text", upper, "up string"),
    "a filter by Spark between": with_a_filter_by_spark_between,
    "a filter by Spark that drops a bad one": lambda s: s.filter(F.col("text") != "b!").each("text", fragile, "up"),
    "explode": lambda s: s.flat_map(F.explode(F.split("text", " ")), "word").each("word", fragile, "up"),
    "an expression without a session": lambda s: s.each(expr("reverse(text)"), "b string").each("b", fragile, "up"),
    "select": lambda s: s.with_column("n", F.length("text")).select("text").each("text", fragile, "up"),
    "project": lambda s: s.each("text", len, "n int").project("text").each("text", fragile, "up"),
    "shuffle": lambda s: s.each("text", str.strip, "t string").shuffle().each("t", fragile, "up"),
    "partition_by": lambda s: s.flat_map(str.split, "w string").partition_by("w").each("w", fragile, "u"),
    "global": lambda s: s.flat_map(str.split, "w string").global_().each("w", fragile, "u"),
    "a count that is too great": lambda s: words_by_first_letter(s).aggregate(Count(), "n").each("n", few, "m"),
    "a global sum that is too great": lambda s: (
        s.each("text", len, "n long").aggregate("n", Sum(), "n").each("n", few, "m")
    ),
    "a combiner": lambda s: by_first_letter(s).aggregate("text", Joined(), "all string"),
    "a global combiner": lambda s: s.aggregate("text", Joined(), "all string"),
    "a reducer": lambda s: s.aggregate("text", Longest(), "n long"),
    "a reducer by key": lambda s: by_first_letter(s).aggregate("text", Longest(), "n long"),
    "complete": lambda s: words_by_first_letter(s).aggregate("w", Few(), "n long"),
    "behind an aggregator": lambda s: by_first_letter(s).aggregate("text", Longest(), "n long").each("n", few, "m"),
    "branches that meet": branches_that_meet,
    "a stream merged with itself": merged_with_itself,
    "the spout merged with itself": lambda s: s.merge(s).each("text", fragile, "u"),
}
# Of all others those that have an exclamation mark.
FAILING = {
    "a filter by Spark that drops a bad one": {4},
    "a count that is too great": {0, 1, 5, 7},
    "a global sum that is too great": set(range(8)),
    "complete": {0, 1, 5, 7},
    "behind an aggregator": {0, 1, 3, 4, 5, 7},
}


# What these give without the bad messages, the others show too.
ALIKE = {
    *["each", "filter", "peek", "select", "project", "shuffle", "partition_by", "global", "a reducer"],
    *["a filter by Spark that drops a bad one", "an expression without a session", "the spout merged with itself"],
    "a reducer by key",
}


def stream_of(operation: Callable[[Stream], Stream]) -> Stream:
    return operation(TridentTopology("t").new_stream("s", Messages("text string")))


OFTEN = ("each", "flat_map", "branches that meet")


@pytest.mark.parametrize("name", sample(OPERATIONS, *OFTEN))
def test_exactly_the_messages_that_fail_are_found(spark: SparkSession, tmp_path: Path, name: str) -> None:
    bad, stream = FAILING.get(name, BAD), stream_of(OPERATIONS[name])
    first = Batch(spark, tmp_path, stream, MESSAGES)
    assert first.anchored and first.failed == bad, first.failures
    good = {number: text for number, text in MESSAGES.items() if number not in bad}
    if not good or name in ALIKE:
        return
    again = Batch(spark, tmp_path, stream, good)
    assert again.failed == set(), again.failures
    # Without anchors: what the same operations give of the same rows.
    assert again.rows == plain(spark, stream, good)


def plain(spark: SparkSession, stream: Stream, messages: dict[int, str]) -> list[tuple]:
    from trident.streams.run_batch import run_batch

    return sorted(run_batch(stream, [(text,) for text in messages.values()], spark=spark))


@pytest.mark.parametrize(
    "name", sample(["flat_map", "a stream merged with itself", "a combiner", "a count that is too great"], "a combiner")
)
def test_a_row_that_is_lost_on_its_way_fails_its_message(spark: SparkSession, tmp_path: Path, name: str) -> None:
    good = {number: f"{'abcdefgh'[number]}{number}" for number in range(8)}
    batch = Batch(spark, tmp_path, stream_of(OPERATIONS[name]), good, lose=1)
    assert len(batch.failed) == 1
    (failure,) = batch.failures.values()
    assert "lost or doubled" in str(failure)


def test_nothing_is_tracked_where_nothing_can_fail(spark: SparkSession, tmp_path: Path) -> None:
    stream = stream_of(
        lambda s: s.filter(F.length("text") > 1).each(F.upper("text"), "up").group_by("up").aggregate(Count(), "n")
    )
    batch = Batch(spark, tmp_path, stream, MESSAGES)
    assert not batch.anchored and batch.rows == plain(spark, stream, MESSAGES)


# --- the ledger ------------------------------------------------------------------------------


def told(ledger: BatchLedger, name: str, sums: dict[int, int], failed: tuple[int, ...] = ()) -> None:
    own = Ledger()
    own.add(np.array(list(sums), np.uint64), np.array(list(sums.values()), np.uint64))
    row = {"value": 0, "failed": True, "operation": "each(f)", "location": "f:1", "error": "E"}
    own.failures = [{"root": root, **row} for root in failed]
    own.write(str(ledger._folder), name)


def test_of_several_tries_of_a_task_the_last_counts_and_the_failures_of_all(tmp_path: Path) -> None:
    """A try that was given up for lost may end late, and a flaky function fails in one of them only."""
    ledger = BatchLedger(tmp_path)
    ledger.init(np.array([1, 2, 3, 3], np.uint64), np.array([10, 20, 30, 5], np.uint64))
    told(ledger, "pass1-0@00000000000000000007", {1: 10, 2: 99}, failed=(3,))
    told(ledger, "pass1-0@00000000000000000012", {1: 10, 2: 20, 3: 30})
    told(ledger, "pass1-1@00000000000000000008", {3: 5})
    found = ledger.failures()
    assert found.keys() == {3} and found[3].operation == "each(f)"
    told(ledger, "pass1-1@00000000000000000013", {})  # run again, it has nothing to tell
    told(ledger, "pass2-0@00000000000000000014", {1: 4})
    assert ledger.failures().keys() == {1, 3}
    ledger.drop()
    assert not list(tmp_path.iterdir())
