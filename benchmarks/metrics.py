"""What metrics cost: a small transaction with them, scraped every second, and without."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench
from benchmarks.report import Report
from benchmarks.with_and_without import compare

if TYPE_CHECKING:
    from trident import TopologyQuery

TITLE = "a small transaction of a word count, with metrics that are scraped every second, and without"


def run(bench: Bench, report: Report) -> None:
    served = {"http": "127.0.0.1:0"}
    settings = {"with": {**served, "metrics": True}, "without": {**served, "metrics": False}}
    compare(bench, report, "metrics", settings, _scraped, _own_cpu)


def _scraped(name: str, query: "TopologyQuery") -> AbstractContextManager[Any]:
    assert query.http_address is not None
    return _Scraper(query.http_address) if name == "with" else nullcontext()


@contextlib.contextmanager
def _own_cpu() -> Iterator[list[float]]:
    """Within it, each call of the metrics' own puts the seconds of CPU time that it took into the list."""
    from trident.watching import metrics

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

    looks = ("_collect_status", "_collect_process", "_collect_tables")
    calls: list[tuple[Any, str]] = [(metrics.Metrics, "watch"), (metrics.Metrics, "_answer")]
    calls += [(metrics.Instruments, "zookeeper"), *((metrics.Collecting, look) for look in looks)]
    with contextlib.ExitStack() as stack:
        for owner, name in calls:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, timed(getattr(owner, name)))
        yield spent


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
