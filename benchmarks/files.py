"""How fast FileSpout's reader turns files into rows, and looks at a folder of 5,000 files; beside another version."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.bench import Bench
    from benchmarks.report import Report

TITLE = "files read as rows, into nothing, and 5,000 files discovered"

_FILES = 5_000
_CASES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "text": ("text", None, {}),
    "csv": ("csv", "k long, v string, d double", {}),
    "csv with quotes": ("csv", "k long, v string, d double", {}),
    "csv with a header": ("csv", "k long, v string, d double", {"header": True}),
    "json": ("json", "k long, v string, d double", {}),
}


def run(bench: Bench, report: Report) -> None:
    """Rows a second of each format, of whole files and of parts; the other version in turn, if there is one."""
    from benchmarks.before import OTHER, answering
    from benchmarks.bench import rounds

    lines = bench.size(200_000, 100)
    folder = bench.fresh("files")
    write(folder, lines, bench.size(_FILES, 20))
    found: dict[str, list[dict[str, float]]] = {"this": [], "other": []}
    warm_up, other = bench.size(3, 1), os.environ.get(OTHER)
    place = [bench.spark.sparkContext.master, str(folder), str(lines)]
    with answering(Path(__file__), place, other or ".") as that:
        asked = {
            "this": lambda: measure(bench.spark, folder, lines),
            **({"other": lambda: that("again")} if other else {}),
        }

        def once(which: str) -> float:
            found[which].append(asked[which]())
            return found[which][-1]["text"]

        contenders = {which: lambda number, which=which: once(which) for which in asked}
        rounds(warm_up + bench.size(10, 2), contenders, bench.said)
    for case in found["this"][0]:
        unit = "s" if case.startswith("5,000") else "rows/s"
        ours = report.figure(case, unit, [one[case] for one in found["this"][warm_up:]])
        if other:
            theirs = report.figure(f"{case}, before", unit, [one[case] for one in found["other"][warm_up:]])
            report.ratio(f"{case}: this / before", ours, theirs)


def write(folder: Path, lines: int, files: int) -> None:
    """A file for each case, and a folder with many small ones."""
    folder.mkdir()
    for case in _CASES:
        with open(folder / case, "w") as file:
            file.write("k,v,d\n" if case == "csv with a header" else "")
            for number in range(lines):
                value = f"some words {number}"
                if case == "json":
                    file.write(f'{{"k": {number}, "v": "{value}", "d": {number / 7}}}\n')
                else:
                    value = f'"{value}, ""quoted"""' if case == "csv with quotes" else value
                    file.write(f"{number},{value},{number / 7}\n")
    (folder / "many").mkdir()
    for number in range(files):
        (folder / "many" / f"{number}.csv").write_text(f"k,v,d\n{number},x,1\n")


def measure(spark: "SparkSession", folder: Path, lines: int) -> dict[str, float]:
    """Rows a second of each case, whole and from its second line on, and the seconds of a look at many files."""
    from trident.spouts.contracts import SpoutContext
    from trident.spouts.files.ledger import FileRange, LedgerEntry
    from trident.spouts.files.reading import FileReader
    from trident.spouts.files.spout import FileSpout

    found = {}
    for case, (format, schema, options) in _CASES.items():
        path = folder / case
        status = path.stat()
        reader = FileReader(spark, FileSpout(path, format, schema, options=options).row_format)
        entry = LedgerEntry(1, str(path), status.st_size, status.st_mtime_ns)
        for name, begin in (("", 0), (", a part", 1)):
            emitted = reader.read([FileRange(entry, begin, status.st_size)])
            # Checkouts of before 2026-11-28 give a pair.
            data, partitions = emitted if isinstance(emitted, tuple) else (emitted.data, emitted.partitions)
            frame = data.frame() if hasattr(data, "frame") else data
            started = time.monotonic()
            frame.coalesce(partitions).write.format("noop").mode("overwrite").save()
            found[case + name] = lines / (time.monotonic() - started)
    spout = FileSpout(folder / "many", "csv", "k long, v string, d double", options={"header": True})
    state = folder / f"state-{time.time_ns()}"
    state.mkdir()
    coordinator = spout.get_coordinator(SpoutContext(None, "t", "files", state, "life", {}))
    started = time.monotonic()
    if not coordinator.is_ready(1):
        raise AssertionError("no files were discovered")
    found["5,000 files with headers discovered"] = time.monotonic() - started
    return found


def main(master: str, folder: str, lines: str) -> None:
    """Measures whenever it is asked to."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(master).config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for _ in sys.stdin:
        print(json.dumps(measure(spark, Path(folder), int(lines))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
