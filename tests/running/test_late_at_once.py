"""Early and late part as one Spark job, for the transaction that commits next: it gives what two jobs give."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.running.test_query import WAIT_SECS, no_faults, start  # noqa: F401
from tests.sweep.oracle import Table
from trident import DeltaAppend, DeltaMapState, FixedBatchSpout, TridentTopology
from trident.coordinators import faults
from trident.running.runner import SparkBatchRunner
from trident.states.keyed.copies import StateCopies

LINES = ["a b a", "c", "", "a b b longword", "c d", "a e e e", "", " ", "b"]


def split(line: str) -> Iterator[str]:
    yield from line.split()


class Longest:
    """A reducer that tells states apart which differ in the order or the number of the values that they have taken."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, word: str) -> str:
        return f"{current}{word[0]}{len(word)}"


def topology() -> TridentTopology:
    made = TridentTopology("at-once")
    lines = made.new_stream("lines", FixedBatchSpout("line string", [[(line,)] if line else [] for line in LINES]))
    lines.partition_persist(DeltaAppend("lines"))
    words = lines.each("line", split, "word").project("word")
    told = words.group_by("word").persistent_aggregate(DeltaMapState("told"), "word", Longest(), "text")
    told.new_values_stream().partition_persist(DeltaAppend("news"))
    return made


def expected() -> dict[str, Counter]:
    running: dict[str, str] = {}
    news = Counter[tuple]()
    for line in LINES:
        for word in line.split():
            running[word] = Longest().reduce(running.get(word, ""), word)
        news.update((word, running[word]) for word in set(line.split()))
    return {"lines": Counter((line,) for line in LINES if line), "told": Counter(running.items()), "news": news}


def found(query: Any, warehouse: Any) -> dict[str, Counter]:
    rows = {"told": Counter((row["word"], row["text"]) for row in query.snapshot("told").collect())}
    for name, columns in (("lines", ("line",)), ("news", ("word", "text"))):
        rows[name] = Counter(tuple(row[column] for column in columns) for row in Table.read(warehouse / name).rows())
    return rows


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The form that the late part of each attempt has taken, in its turn."""
    taken: list[str] = []
    real = SparkBatchRunner.resolve

    def noted(self: SparkBatchRunner, *args: Any) -> Any:
        done = real(self, *args)
        taken.extend(name.removeprefix("resolve_by_") for name in done.duration_ms if "resolve_by_" in name)
        return done

    monkeypatch.setattr(SparkBatchRunner, "resolve", noted)
    return taken


@pytest.mark.parametrize("fault", ["", "resolve.stage:do_then_fail:2", "stage.write:fail_before:3"])
def test_each_transaction_is_one_job_and_gives_what_a_fold_gives(start, tmp_path, forms, fault):  # noqa: F811
    if fault:
        faults.arm(fault)
    query = start(topology(), max_spout_pending=1)
    query.process_all_available(WAIT_SECS)
    assert not faults.unfired()
    assert found(query, tmp_path / "warehouse") == expected()
    # A batch without words has nothing to do in its turn, but its lines are staged by the one job.
    assert Counter(forms) == {"one_job": len(LINES) - 2, "nothing": 2}


def test_of_several_in_flight_only_the_next_one_is(start, tmp_path, forms, monkeypatch):  # noqa: F811
    asked: list[tuple[int, int]] = []
    real = StateCopies.as_of
    monkeypatch.setattr(
        StateCopies, "as_of", lambda self, states, txid: (asked.append((txid, 0)), real(self, states, txid))[1]
    )
    query = start(topology(), max_spout_pending=4)
    query.process_all_available(WAIT_SECS)
    assert found(query, tmp_path / "warehouse") == expected()
    assert set(forms) <= {"one_job", "pass", "nothing"} and forms[0] == "one_job"


def test_where_the_copy_has_gone_the_parts_run_one_behind_the_other(start, tmp_path, forms, monkeypatch):  # noqa: F811
    real, taken = StateCopies.as_of, []

    def taken_away(self: StateCopies, states: Any, txid: int) -> Any:
        copies = real(self, states, txid)
        if copies and txid in (1, 4) and txid not in taken:
            taken.append(txid)
            shutil.rmtree(copies["told"].folder)
        return copies

    monkeypatch.setattr(StateCopies, "as_of", taken_away)
    query = start(topology(), max_spout_pending=1)
    query.process_all_available(WAIT_SECS)
    assert found(query, tmp_path / "warehouse") == expected()
    assert taken == [1, 4] and Counter(forms) == {"one_job": len(LINES) - 4, "pass": 2, "nothing": 2}
