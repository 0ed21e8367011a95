"""The command: runs benchmarks on one session, prints their reports, writes JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks import machine
from benchmarks.bench import Bench
from benchmarks.report import Report

# The order in which all of them run: what needs a young JVM first, the large table last.
NAMES = (
    "word-count",
    "commit-path",
    "history",
    "metrics",
    "python-pass",
    "kept-plans",
    "files",
    "catch-up",
    "zookeeper",
    "restart",
    "kinds",
    "event-time",
    "stream-api",
    "tracking",
    "local-copies",
    "merges",
    "sustained",
    "windows",
    "state-reads",
    "get",
    "drpc",
    "kafka",
    "latency",
    "kafka-out",
    "postgres-out",
    "cdc",
    "fork",
    "rollback",
    "replay",
    "state-size",
    "memory",
)
# Half an hour each, and processes of their own: only when they are asked for.
WHEN_NAMED = ("before", "failover", "handover", "stores", "cluster", "state-scale")
JSON_SCHEMA = 1
# The server of a run waits as long for the next benchmark that uses it.
_IDLE_SECS = 6 * 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    names = [name for name in (*NAMES, *WHEN_NAMED) if name in given.names] if given.names else list(NAMES)
    folder = Path(tempfile.mkdtemp(prefix="trident-bench-", dir=given.folder)).resolve()
    try:
        return _run(names, given, folder)
    finally:
        if given.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    about = f"which ones; when none is given {', '.join(NAMES)}; besides {', '.join(WHEN_NAMED)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=about)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and ratios to FILE")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything, says nothing about speed")
    parser.add_argument("--master", default="local[*]", help="Spark master (local[*])")
    parser.add_argument("--driver-memory", default="4g", help="heap of the session's JVM (4g)")
    parser.add_argument("--folder", type=Path, help="where tables and inputs are written (the temporary folder)")
    parser.add_argument("--keep", action="store_true", help="keep them afterwards")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in (*NAMES, *WHEN_NAMED)]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join((*NAMES, *WHEN_NAMED))}")
    return given


def _run(names: list[str], given: argparse.Namespace, folder: Path) -> int:
    from trident.coordinators.embedded import EmbeddedZooKeeper
    from trident.spark.session import make_session

    spark = make_session(
        "trident benchmarks",
        {
            "spark.master": given.master,
            "spark.driver.memory": given.driver_memory,
            "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
            "spark.local.dir": str(folder / "spark-local"),
            # No archive of classes is made beside what is measured.
            "spark.trident.classArchive": "false",
        },
    )
    failed = []
    try:
        found = machine.describe(spark, folder)
        for line in machine.lines(found):
            print(line)
        if given.quick:
            print("--quick: tiny sizes, whatever the titles say; the figures say nothing about speed")
        bench = Bench(
            spark, folder, EmbeddedZooKeeper.ensure(folder / "zookeeper", idle_secs=_IDLE_SECS), given.quick, _say
        )
        results: dict[str, object] = {}
        for name in names:
            report, error = _measure(name, bench)
            print("\n" + "\n".join(report.lines()), flush=True)
            results[name] = report.to_json() | {"error": error}
            if error:
                failed.append(name)
            if given.json:
                _write(given.json, found, given.quick, results)
    finally:
        EmbeddedZooKeeper.stop(folder / "zookeeper")
        spark.stop()
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _measure(name: str, bench: Bench) -> tuple[Report, str | None]:
    module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
    report = Report(name, module.TITLE)
    started, error = time.monotonic(), None
    _say(f"-- {name}")
    try:
        module.run(bench, report)
    except Exception as raised:  # the others are still worth running
        error = f"{type(raised).__name__}: {raised}"
        report.note(f"FAILED: {error}")
        import traceback

        traceback.print_exc()
    report.seconds = time.monotonic() - started
    return report, error


def _write(path: Path, found: dict[str, object], quick: bool, results: dict[str, object]) -> None:
    made = datetime.now(timezone.utc).isoformat(timespec="seconds")
    content = {"schema": JSON_SCHEMA, "made": made, "quick": quick, "machine": found, "benchmarks": results}
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
