"""The demo: an exactly-once word count whose coordinator is killed three times.

    make demo        (or: python examples/demo.py)

Counts the words of the Python standard library's own sources on this machine
(installed packages' too, when that is less than 10 MB) and, in a second table
of the same batch group, the lines of each package. The coordinator process is
killed with SIGKILL three times: while batches are processed, right after a
decision, and between the publishing of the two tables; each time it is started
again. In the end one plain Spark job counts the same files; the demo exits
with 1 unless everything is identical.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".demo"
INPUT, WAREHOUSE, REPORT = WORK / "input", WORK / "warehouse", WORK / "report.jsonl"
BYTES_AT_LEAST = 10_000_000
FILES = 48
IN_FLIGHT = 4

# The fault point that is armed in each life of the coordinator, and what that means.
LIVES = [
    ("stage.write:do_then_die:14", "while batches are processed (4 in flight)"),
    ("zk.decide:do_then_die:10", "right after a decision, before anything of it is published"),
    ("publish.table:do_then_die:23", "between the publishing of the two tables"),
    ("", ""),
]


def main() -> int:
    print("A word count that survives kill -9\n")
    shutil.rmtree(WORK, ignore_errors=True)
    lines, size = prepare_input()
    started, killed, answer = time.monotonic(), 0, 0.0
    for number, (fault, moment) in enumerate(LIVES, 1):
        print(f"\n[{number}/{len(LIVES)}] the coordinator {'starts' if number == 1 else 'starts again'}", flush=True)
        life = subprocess.run(
            [sys.executable, __file__, "--coordinator"], env={**os.environ, "TRIDENT_FAULTS": fault}, cwd=ROOT
        )
        if fault:
            if life.returncode != -signal.SIGKILL:
                print(f"the coordinator was to be killed {moment} but ended with {life.returncode}")
                return 1
            killed += 1
            print(f"      killed with SIGKILL {moment}", flush=True)
        elif life.returncode:
            return life.returncode
    answer = time.monotonic() - started
    result = json.loads((WORK / "result.json").read_text())
    print("\nThe twenty commonest words:")
    for word, count in result["top"]:
        print(f"  {count:>10,}  {word}")
    transactions, words = result["transactions"], result["words"]
    print(f"\nInput:         {size / 1e6:.1f} MB, {lines:,} lines, {FILES} files")
    print(f"Transactions:  {transactions}, {IN_FLIGHT} in flight; {words:,} words counted")
    print(f"Crashes:       {killed} times SIGKILL, {killed} survived")
    print(
        f"Rate:          {result['rate']:,.0f} words/s while running; {answer:.0f} s in all, "
        f"with {len(LIVES)} starts of Spark"
    )
    print(f"Tables:        {WAREHOUSE / 'word_counts'} and {WAREHOUSE / 'package_lines'}")
    for name, difference in result["differences"].items():
        print(f"Compared:      {name}: " + (difference or "identical to one plain Spark job over the same files"))
    if transactions < 40:
        print(f"there were to be at least 40 transactions, not {transactions}")
        return 1
    return 1 if any(result["differences"].values()) else 0


def prepare_input() -> tuple[int, int]:
    """Sources as text files of "package<TAB>line"; each appears by rename."""
    sources = list(source_files())
    INPUT.mkdir(parents=True)
    parts = [[] for _ in range(FILES)]
    sizes = [0] * FILES
    for path, package in sorted(sources, key=lambda item: -item[0].stat().st_size):
        smallest = sizes.index(min(sizes))
        parts[smallest].append((path, package))
        sizes[smallest] += path.stat().st_size
    lines = 0
    for number, part in enumerate(parts):
        temporary = INPUT / f"_part-{number:02d}.txt"
        with open(temporary, "w", encoding="utf-8") as out:
            for path, package in part:
                for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                    out.write(f"{package}\t{' '.join(line.split())}\n")
                    lines += 1
        temporary.rename(INPUT / f"part-{number:02d}.txt")
    size = sum(path.stat().st_size for path in INPUT.iterdir())
    print(f"input: {len(sources):,} Python files of this machine, {size / 1e6:.1f} MB in {FILES} files")
    return lines, size


def source_files() -> Iterator[tuple[Path, str]]:
    """(file, package) of the standard library, then of installed packages up to the least size."""
    size = 0
    for folder, wanted in (("stdlib", None), ("purelib", BYTES_AT_LEAST)):
        root = Path(sysconfig.get_paths()[folder])
        for path in sorted(root.rglob("*.py")):
            if folder == "stdlib" and "site-packages" in path.parts:
                continue
            if wanted is not None and size >= wanted:
                return
            try:
                size += path.stat().st_size
            except OSError:
                continue
            relative = path.relative_to(root).parts
            yield path, relative[0].removesuffix(".py")


# --- the coordinator's process ---------------------------------------------------------------


def words(text: str) -> Iterator[str]:
    """The words of one line, in lower case: runs of letters, digits and underscores."""
    yield from re.findall(r"\w+", text.partition("\t")[2].lower())


def package(text: str) -> Iterator[str]:
    yield text.partition("\t")[0]


def coordinator() -> int:
    from trident import Count, DeltaMapState, FileSpout, TridentTopology

    rows = sum(1 for path in INPUT.iterdir() for _ in open(path, encoding="utf-8")) // FILES
    topology = TridentTopology("demo")
    # At most a file a transaction: enough of them that the kills meet many in flight.
    lines = topology.new_stream("lines", FileSpout(INPUT, min_rows=rows, max_rows=rows))
    lines.each("value", words, "word").group_by("word").persistent_aggregate(
        DeltaMapState("word_counts"), Count(), "count"
    )
    lines.each("value", package, "package").group_by("package").persistent_aggregate(
        DeltaMapState("package_lines"), Count(), "lines"
    )
    query = topology.start(warehouse=str(WAREHOUSE), max_spout_pending=IN_FLIGHT, progress="plain")
    started = time.monotonic()
    query.process_all_available()
    seconds = time.monotonic() - started
    result = compare(query, seconds)
    query.stop()
    (WORK / "result.json").write_text(json.dumps(result))
    return 0


def compare(query: object, seconds: float) -> dict[str, object]:
    """The tables beside one plain Spark job over the same files."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.active()
    text = spark.read.text(str(INPUT), lineSep="\n")
    name = F.substring_index("value", "\t", 1)
    plain = {
        "word_counts": text.rdd.flatMap(lambda row: words(row.value)).map(lambda word: (word, 1)),
        "package_lines": text.select(name.alias("package")).groupBy("package").count(),
    }
    expected_words = dict(plain["word_counts"].reduceByKey(lambda a, b: a + b).collect())
    expected_lines = {row[0]: row[1] for row in plain["package_lines"].collect()}
    differences, top = {}, []
    for state, expected in (("word_counts", expected_words), ("package_lines", expected_lines)):
        found = {row[0]: row[1] for row in query.snapshot(state).collect()}  # type: ignore[attr-defined]
        wrong = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
        differences[state] = (
            f"{len(wrong)} of {len(expected)} differ, such as {wrong[0]!r}: "
            f"{found.get(wrong[0])}, expected {expected.get(wrong[0])}"
            if wrong
            else ""
        )
        if state == "word_counts":
            top = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:20]
    status = query.status["groups"][0]  # type: ignore[attr-defined]
    progress = query.recent_progress  # type: ignore[attr-defined]
    counted = sum(record["states"].get("package_lines", 0) > 0 for record in progress)
    share = counted / max(1, status["current_txid"] - 1)
    total = sum(expected_words.values())
    return {
        "top": top,
        "transactions": status["current_txid"] - 1,
        "words": total,
        "rate": total * share / seconds,
        "differences": differences,
    }


if __name__ == "__main__":
    sys.exit(coordinator() if sys.argv[1:] == ["--coordinator"] else main())
