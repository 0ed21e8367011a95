"""The warehouse on a disk, on HDFS and on S3, with 20 ms added to each request too, beside foreachBatch there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import words
from benchmarks.bench import Bench
from benchmarks.machine import cpu_ms
from benchmarks.report import Goal, Report
from benchmarks.sustained import environment_of_a_user

if TYPE_CHECKING:
    from tests.servers.store_servers import Proxy

TITLE = "transactions of 50,000 and 500,000 words into two tables, by where the warehouse is"

_ROOT = Path(__file__).resolve().parent.parent
_CHILD_SECS_MAX = 1800.0
_DELAY_SECS = 0.02
_LARGE = 10
_DISK, _HDFS, _S3, _FAR = "disk", "HDFS", "S3 (moto)", "S3 (moto), 20 ms added to each request"
ONE, FOUR, THEIRS, BEGINS, ENDS = "1 in flight", "4 in flight", "foreachBatch + append", "begins", "ends"
CATCH_UP, ONE_JOB = "catch-up of all that waits, 4 in flight", "one Spark job into Delta"
LIVE_READ, PLAIN_READ = "live read of all rows before a MERGE", "read of the plain table behind it"
OWN_CPU, SERVERS_CPU = "CPU of the topology's processes, 4 in flight", "CPU of the store's servers, 4 in flight"
MERGE, THEIR_MERGE = "our MERGE of the catch-up's counts", "Delta's MERGE of the same counts, added up"


def run(bench: Bench, report: Report) -> None:
    """Each store in a process of its own, one after the other: the sides of a store's ratios ran in turn."""
    small = _measured(bench, bench.size(words.LINES, 200), bench.size(16, 6), True)
    for store, figures in small.items():
        for name in (ONE, FOUR, THEIRS):
            report.figure(f"{store}: {name}", "ms/transaction", figures[name])
        report.figure(f"{store}: {ONE}: prepare to advance, two tables", "ms", figures["commit"])
        for method, count in sorted(figures.get("requests", {}).items()):
            report.figure(f"{store}: {method} requests a transaction", "", [count])
        for name in (OWN_CPU, SERVERS_CPU):
            report.figure(f"{store}: {name}", "ms/transaction", figures[name])
        for name in (CATCH_UP, ONE_JOB):
            report.figure(f"{store}: {name}", "M words/s", figures[name])
        for name in (LIVE_READ, PLAIN_READ, MERGE, THEIR_MERGE):
            report.figure(f"{store}: {name}", "ms", figures[name])
        for name, beside in ((ONE, THEIRS), (FOUR, THEIRS), (CATCH_UP, ONE_JOB), (LIVE_READ, PLAIN_READ)):
            report.ratio(f"{store}: {name} / {beside}", _median(figures[name]), _median(figures[beside]))
        report.ratio(f"{store}: {MERGE} / {THEIR_MERGE}", _median(figures[MERGE]), _median(figures[THEIR_MERGE]))
    _beside_the_disk(report, small, "50,000 words")
    large = small if bench.quick else _measured(bench, _LARGE * words.LINES, 8, False)
    for store, figures in large.items():
        for name in (ONE, FOUR, THEIRS, OWN_CPU, SERVERS_CPU):
            report.figure(f"{store}, 500,000 words: {name}", "ms/transaction", figures[name])
    _beside_the_disk(report, large, "500,000 words")
    report.ratio(f"{_FAR}: prepare to advance", _median(small[_FAR]["commit"]), 1.0, Goal(at_most=300.0), unit="ms")
    report.note("each run was read afterwards: it counts every word once")
    report.note("servers of the stores are processes of the same machine and use its two cores: moto is one of Python")
    report.note("the proxy that counts requests to S3 runs in the benchmark's process: its CPU is among the servers'")


def _measured(bench: Bench, lines: int, transactions: int, with_backlog: bool) -> dict[str, dict[str, Any]]:
    files = words.write_files(bench.fresh("lines"), transactions, lines)
    found: dict[str, dict[str, Any]] = {}
    for store in (_DISK, _HDFS, _S3, _FAR):
        bench.said(f"   {store}, {lines * words.WORDS_PER_LINE:,} words")
        with _place(bench, store) as (place, options, environment, proxy):
            found[store] = child(bench, files, lines, place, options, environment, proxy, with_backlog)
    return found


def _beside_the_disk(report: Report, found: dict[str, dict[str, Any]], what: str) -> None:
    for store, figures in found.items():
        if store != _DISK:
            throughput = _median(found[_DISK][FOUR]) / _median(figures[FOUR])
            report.ratio(f"{store} / {_DISK}: {what} a transaction, {FOUR}", throughput, 1.0, Goal(at_least=0.8))
            own = _median(found[_DISK][OWN_CPU]) / max(_median(figures[OWN_CPU]), 0.001)
            report.ratio(f"{_DISK} / {store}: {what} a transaction, CPU of the topology's processes", own, 1.0)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@contextmanager
def _place(bench: Bench, store: str) -> Iterator[tuple[str, dict[str, str], dict[str, str], Proxy | None]]:
    """A URL for warehouses, Spark's settings, the environment with credentials, and what counts the requests."""
    if store == _DISK:
        yield str(bench.fresh("warehouses")), {}, {}, None
        return
    from tests.servers.store_servers import Proxy, running, s3_endpoint

    name = f"{bench.fresh('store').name}-{os.getpid()}"
    if store == _HDFS:
        yield f"{running('hdfs')}/{name}", {}, {}, None
        return
    proxy = Proxy(s3_endpoint())
    proxy.delay_secs = _DELAY_SECS if store == _FAR else 0.0
    options = {
        "spark.trident.store": "s3a",
        "spark.hadoop.fs.s3a.endpoint": proxy.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    try:
        yield f"s3a://lake/{name}", options, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, proxy
    finally:
        proxy.end()


def child(
    bench: Bench,
    files: Path,
    lines: int,
    place: str,
    options: dict[str, str],
    environment: dict[str, str],
    proxy: Proxy | None,
    with_backlog: bool = False,
    count: int = 3,
) -> dict[str, Any]:
    """What ``stores_child`` measures with one warehouse.

    Args:
        count: rounds.
        with_backlog: a catch-up, live reads and MERGEs, too.
    """
    arguments = [bench.zookeeper, place, str(files), str(lines), json.dumps(options), str(bench.size(count, 1))]
    arguments += ["backlog"] if with_backlog else []
    command = [sys.executable, "-m", "benchmarks.stores_child", *arguments]
    complaints = bench.fresh("child").with_suffix(".log")
    found: dict[str, Any] = {}
    counted: list[dict[str, float]] = []
    spent: dict[str, list[float]] = {OWN_CPU: [], SERVERS_CPU: []}
    began, before = 0, (0.0, 0.0)
    with complaints.open("w") as stderr:
        child = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**environment_of_a_user(bench), **environment},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        deadline = time.monotonic() + _CHILD_SECS_MAX
        assert child.stdout is not None
        for line in child.stdout:
            told = json.loads(line)
            if told["step"] == BEGINS:
                began, before = len(proxy.requests) if proxy is not None else 0, _cpu_ms(child.pid)
            elif told["step"] == ENDS:
                if told["in_flight"] == 4:
                    for name, now, then in zip(spent, _cpu_ms(child.pid), before):
                        spent[name].append((now - then) / told["transactions"])
                if proxy is not None:
                    asked = [method for method, _ in proxy.requests[began:]]
                    counted.append({name: asked.count(name) / told["transactions"] for name in set(asked)})
            elif told["step"] == "found":
                found = told["figures"]
            if time.monotonic() > deadline:
                child.kill()
        if child.wait():
            raise RuntimeError(
                f"the process for {place} ended with {child.returncode}\n{complaints.read_text()[-3000:]}"
            )
    # The first is the warm-up.
    found |= {name: values[1:] for name, values in spent.items()}
    return found | ({"requests": counted[-1]} if counted else {})


def _cpu_ms(child: int) -> tuple[float, float]:
    """CPU time so far of the child and its processes, and of all others below this one: the store's servers."""
    own = cpu_ms(child)
    return own, cpu_ms() - own
