"""What tracking messages costs: the same topology with and without, and adding up its ledgers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks import words
from benchmarks.bench import Bench, Recorder, advanced_at, rounds
from benchmarks.report import Goal, Report
from trident import RichSpout

if TYPE_CHECKING:
    from trident import TridentTopology

_TASKS = 8
TITLE = "messages of one line of 10 words into exactly-once counts, tracked and not"


class _Lines(RichSpout):
    """This many messages; it keeps them until they are acknowledged, in a dict."""

    fields = "value string"

    def __init__(self, count: int) -> None:
        pick = random.Random(1).randrange
        lines = [" ".join(f"w{pick(words.VOCABULARY):05d}" for _ in range(words.WORDS_PER_LINE)) for _ in range(5_000)]
        self._lines, self._count, self._next = lines, count, 0
        self._pending: dict[int, str] = {}

    def next_tuple(self) -> None:
        if self._next < self._count:
            line = self._lines[self._next % len(self._lines)]
            self._pending[self._next] = line
            self.collector.emit((line,), self._next)
            self._next += 1

    def ack(self, message_id: int) -> None:
        self._pending.pop(message_id, None)

    def fail(self, message_id: int) -> None:
        raise AssertionError("nothing fails here")


def once(count: int) -> int:
    return count


def _topology(count: int, behind: bool) -> "TridentTopology":
    """A word count; with a function behind a count of the batch, so that anchors go through a group-by."""
    from trident import Count, DeltaMapState, Sum, TridentTopology

    topology = TridentTopology("tracking")
    grouped = topology.new_stream("lines", _Lines(count)).each("value", words.split, "word").group_by("word")
    if behind:
        counted = grouped.aggregate(Count(), "n").each("n", once, "m").group_by("word")
        counted.persistent_aggregate(DeltaMapState("counts"), "m", Sum(), "count")
    else:
        grouped.persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    return topology


def run(bench: Bench, report: Report) -> None:
    """Small and large batches, one and several in flight; then ledgers alone."""
    small, large = bench.size(5_000, 50), bench.size(100_000, 100)
    for messages, batches in ((small, bench.size(24, 4)), (large, bench.size(6, 3))):
        for in_flight in (1, 4) if not bench.quick else (4,):
            _compare(bench, report, messages, batches, in_flight, False, Goal(at_most=1.2))
    _compare(bench, report, small, bench.size(16, 3), 1, True, None)
    for messages in (small, bench.size(1_000_000, 1_000)):
        _ledger(bench, report, messages)


def _compare(
    bench: Bench, report: Report, messages: int, batches: int, in_flight: int, behind: bool, goal: Goal | None
) -> None:
    contenders: dict[str, Callable[[int], float]] = {
        "tracked": lambda _: _run(bench, messages, batches, in_flight, behind, 1),
        "not tracked": lambda _: _run(bench, messages, batches, in_flight, behind, 0),
    }
    found = rounds(1 if bench.quick else 3, contenders, bench.said, warm_up=not bench.quick)
    what = f"{messages:,} messages, {in_flight} in flight{', a function behind an aggregate' if behind else ''}"
    figures = {who: report.figure(f"{what}: {who}", "ms", values) for who, values in found.items()}
    report.ratio(f"{what}: tracked / not tracked", figures["tracked"], figures["not tracked"], goal)


def _run(bench: Bench, messages: int, batches: int, in_flight: int, behind: bool, ackers: int) -> float:
    """Milliseconds for this many messages."""
    settings: dict[str, Any] = {"ackers": ackers, "max_pending_messages": messages * (in_flight + 1)}
    topology = _topology(messages * batches, behind)
    with bench.running(topology, bench.fresh("tracking"), in_flight, **settings) as query:
        with Recorder(query) as recorder:
            query.process_all_available()
        counted = query.snapshot("counts").groupBy().sum("count").first()[0]
    if counted != messages * batches * words.WORDS_PER_LINE:
        raise AssertionError(f"{counted} words were counted")
    records, warm = recorder.records, max(1, len(recorder.records) // 6)
    span = advanced_at(records[-1]) - advanced_at(records[warm - 1])
    return span / sum(record["num_input_rows"] for record in records[warm:]) * messages * 1000


def _ledger(bench: Bench, report: Report, messages: int) -> None:
    """A ledger of this many messages, each with rows in half of eight tasks, added up on the driver."""
    import numpy as np

    from trident.messages.ledger import BatchLedger
    from trident.workers.anchors import Ledger

    ledger, pick = BatchLedger(bench.fresh("ledgers")), np.random.default_rng(1)
    roots = np.arange(1, messages + 1, dtype=np.uint64)
    ids = pick.integers(0, 1 << 64, messages, dtype=np.uint64)
    ledger.init(roots, ids)
    for task in range(_TASKS):
        ended, own = Ledger(), pick.random(messages) < (0.5 if task < _TASKS - 1 else 1)
        values = pick.integers(0, 1 << 64, messages, dtype=np.uint64) if task < _TASKS - 1 else ids
        ended.add(roots[own], values[own])
        ids = np.where(own, ids ^ values, ids)
        ended.write(str(ledger._folder), f"pass1-{task}@1")
    times = []
    for _ in range(2 if bench.quick else 12):
        started = time.perf_counter()
        assert ledger.failures() == {}
        times.append((time.perf_counter() - started) * 1000)
    report.figure(f"a ledger of {messages:,} messages and {_TASKS} tasks, added up", "ms", times[1:])
    ledger.drop()
