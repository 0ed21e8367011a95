"""What metrics cost: a small transaction with them, scraped every second, and without."""

from __future__ import annotations

import statistics
import threading
import time
import urllib.request

from benchmarks import words
from benchmarks.bench import Bench, Recorder, rounds
from benchmarks.report import Goal, Report

TITLE = "a small transaction of a word count, with metrics that are scraped every second, and without"
_LINES = 100


def run(bench: Bench, report: Report) -> None:
    """The time of a transaction, and the CPU time of this process (the JVM's is not in it), in turn."""
    count = bench.size(150, 4)
    cpu: dict[str, list[float]] = {"with": [], "without": []}

    def transactions(name: str, metrics: bool) -> float:
        from trident import DeltaMapState

        files = words.write_files(bench.fresh("lines"), count, _LINES)
        topology = words.topology("words", files, DeltaMapState("counts"), _LINES)
        settings = {"http": "127.0.0.1:0", "metrics": metrics}
        with bench.running(topology, bench.fresh("ours"), 1, **settings) as query, Recorder(query) as recorder:
            assert query.http_address is not None
            with _Scraper(query.http_address) if metrics else _Nothing():
                started = time.process_time()
                query.process_all_available()
                cpu[name].append((time.process_time() - started) * 1000.0 / count)
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
