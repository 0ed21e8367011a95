"""What metrics cost: a small transaction with them, scraped every second, and without."""

from __future__ import annotations

import contextlib
import functools
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import words
from benchmarks.bench import Bench, Recorder, rounds
from benchmarks.report import Goal, Report

TITLE = "a small transaction of a word count, with metrics that are scraped every second, and without"
_LINES = 100


def run(bench: Bench, report: Report) -> None:
    """The time of a transaction, and the CPU time of this process (the JVM's is not in it), in turn.

    Two percent of either are less than the noise of a machine; the CPU time of the metrics' own calls has none.
    """
    count = bench.size(150, 4)
    cpu: dict[str, list[float]] = {"with": [], "without": []}
    own: list[float] = []

    def transactions(name: str, metrics: bool) -> float:
        from trident import DeltaMapState

        files = words.write_files(bench.fresh("lines"), count, _LINES)
        topology = words.topology("words", files, DeltaMapState("counts"), _LINES)
        settings = {"http": "127.0.0.1:0", "metrics": metrics}
        with (
            _own_cpu() as spent,
            bench.running(topology, bench.fresh("ours"), 1, **settings) as query,
            Recorder(query) as recorder,
        ):
            assert query.http_address is not None
            with _Scraper(query.http_address) if metrics else _Nothing():
                spent.clear()
                started = time.process_time()
                query.process_all_available()
                cpu[name].append((time.process_time() - started) * 1000.0 / count)
                if metrics:
                    own.append(sum(spent) * 1000.0 / count)
        steady = recorder.records[len(recorder.records) // 5 :]
        return statistics.median(one["duration_ms"]["total"] for one in steady)

    found = rounds(
        bench.size(6, 1),
        {"with": lambda _: transactions("with", True), "without": lambda _: transactions("without", False)},
        bench.said,
        warm_up=not bench.quick,
    )
    skipped = 0 if bench.quick else 1  # the warm-up's
    for name, values in found.items():
        report.figure(f"a transaction {name} metrics", "ms", values)
        report.figure(f"CPU time of this process for a transaction {name} them", "ms", cpu[name][skipped:])
    goal = None if bench.quick else Goal(at_most=1.02)
    report.ratio("with / without, the time of a transaction", *map(statistics.median, found.values()), goal)
    used = (statistics.median(cpu[name][skipped:]) for name in ("with", "without"))
    report.ratio("with / without, CPU time of this process", *used)
    mine = report.figure("CPU time of the metrics' own calls for a transaction", "ms", own[skipped:])
    goal = None if bench.quick else Goal(at_most=0.02)
    report.ratio("the metrics' own calls / the time of a transaction", mine, statistics.median(found["without"]), goal)


@contextlib.contextmanager
def _own_cpu() -> Iterator[list[float]]:
    """Within it, each call of the metrics' own puts the seconds of CPU time that it took into the list."""
    from trident.watching import collecting, instruments, metrics

    spent: list[float] = []

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def run(*given: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*given)
            finally:
                spent.append(time.thread_time() - started)

        return run

    looks = ("_look_at_status", "_look_at_process", "_look_at_tables")
    calls: list[tuple[Any, str]] = [(metrics.Metrics, "watch"), (metrics.Metrics, "_answer")]
    calls += [(instruments.Instruments, "zookeeper"), *((collecting.Collecting, look) for look in looks)]
    with contextlib.ExitStack() as stack:
        for owner, name in calls:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, timed(getattr(owner, name)))
        yield spent


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class _Scraper:
    """Reads the metrics every second, as a Prometheus server would at its busiest."""

    def __init__(self, address: str) -> None:
        self._url, self._done = f"http://{address}/metrics", threading.Event()
        self._thread = threading.Thread(target=self._scrape, name="bench-scraper", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _scrape(self) -> None:
        while True:
            with urllib.request.urlopen(self._url, timeout=10) as answer:
                answer.read()
            if self._done.wait(1.0):
                return
