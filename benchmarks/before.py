"""Whole transactions of this version and of another checkout, in turn: what a change of the engine costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.report import Report

TITLE = "transactions of 20,000 rows, beside another checkout (TRIDENT_BENCH_OTHER)"

# The root of another checkout, which is then measured in turn with this one.
OTHER = "TRIDENT_BENCH_OTHER"
_GOALS = {"words counted in Python": 1.05, "nested rows from Python": 1.1}
Line = Callable[[int], str]
Make = Callable[[Any], None]


def run(bench: "Bench", report: "Report") -> None:
    """Each case in rounds; a round is one topology with its transactions, without the first ones."""
    from benchmarks.bench import rounds
    from benchmarks.report import Goal

    files, lines = bench.size(14, 6), bench.size(20_000, 100)
    place = [bench.spark.sparkContext.master, str(bench.folder), bench.zookeeper, str(files), str(lines)]
    other = os.environ.get(OTHER)
    with answering(Path(__file__), place, ".") as this:
        with answering(Path(__file__), place, other or ".") as that:
            asked = {"this": this, **({"before": that} if other else {})}
            for name in _CASES:
                contenders = {
                    which: lambda number, answer=answer, name=name: answer(name) for which, answer in asked.items()
                }
                found = rounds(bench.size(5, 1), contenders, bench.said, warm_up=not bench.quick)
                ours = report.figure(f"{name}", "ms", found["this"])
                if other:
                    theirs = report.figure(f"{name}, before", "ms", found["before"])
                    goal = Goal(at_most=_GOALS[name]) if name in _GOALS else None
                    report.ratio(f"{name}: this / before", ours, theirs, goal)
    report.note(f"{lines:,} rows a transaction, one in flight; median of the transactions of a round")


@contextmanager
def answering(script: Path, arguments: list[str], root: str) -> Iterator[Callable[[str], Any]]:
    """Another process, with the code of another checkout, that runs ``script`` and answers each line with JSON."""
    child = subprocess.Popen(
        [sys.executable, str(script.resolve()), *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(root).resolve())},
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    asked, answers = child.stdin, child.stdout

    def answer(line: str) -> Any:
        asked.write(line + "\n")
        asked.flush()
        return json.loads(answers.readline())

    try:
        yield answer
    finally:
        asked.close()
        child.wait()


# --- in the child: nothing but the standard library and the version that is measured ------------------------------


def _words(number: int) -> str:
    return f"w{number * 7919 % 20_000:05d}"


def _pair(number: int) -> str:
    return f"{number % 5_000},{number}"


def _json(number: int) -> str:
    return f'{{"k": {number}, "v": "some words {number}", "d": {number / 7}}}'


def _change(number: int) -> str:
    row = {"id": number, "name": f"name {number}"}
    source = {"lsn": number + 1, "ts_ms": 1}
    return json.dumps({"before": None, "after": row, "op": "c", "source": source, "ts_ms": 1})


def _split(value: str) -> Iterator[str]:
    yield from value.split()


def _nested(value: str) -> Any:
    number = int(value[1:])
    return {"id": number, "tags": [value, "x"]}, [{"at": number, "price": number / 3}] * 3, {value: float(number)}


_NESTED = "one struct<id:long,tags:array<string>>, many array<struct<at:long,price:double>>, named map<string,double>"


def _counted(rows: Any) -> None:
    from trident import Count, DeltaMapState

    rows.each("value", _split, "word").group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")


def _nested_rows(rows: Any) -> None:
    from trident import DeltaAppend

    rows.map(_nested, _NESTED).partition_persist(DeltaAppend("rows"))


def _summed(rows: Any) -> None:
    from trident import DeltaMapState, Sum

    rows.group_by("k").persistent_aggregate(DeltaMapState("sums"), "v", Sum(), "total")


def _appended(rows: Any) -> None:
    from trident import DeltaAppend

    rows.partition_persist(DeltaAppend("rows"))


def _changed(rows: Any) -> None:
    from trident import DeltaAppend

    rows.debezium("id long, name string").partition_persist(DeltaAppend("rows"))


_CASES: dict[str, tuple[Line, str, str | None, Make]] = {
    "words counted in Python": (_words, "text", None, _counted),
    "nested rows from Python": (_words, "text", None, _nested_rows),
    "sums of a key": (_pair, "csv", "k long, v long", _summed),
    "CSV appended": (_pair, "csv", "k long, v long", _appended),
    "JSON appended": (_json, "json", "k long, v string, d double", _appended),
    "Debezium's JSON appended": (_change, "text", None, _changed),
}


def main(master: str, folder: str, zookeeper: str, files: str, lines: str) -> None:
    """Measures a case whenever one is named."""
    from trident.spark.session import make_session

    spark = make_session("before", {"spark.master": master, "spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    for name in sys.stdin:
        print(json.dumps(_measure(spark, name.strip(), Path(folder), zookeeper, int(files), int(lines))), flush=True)


def _measure(spark: Any, name: str, folder: Path, zookeeper: str, files: int, lines: int) -> float:
    from trident import FileSpout, TridentTopology

    line, format, schema, make = _CASES[name]
    source = folder / f"of {name}"
    if not source.exists():
        making = Path(tempfile.mkdtemp(dir=folder))
        for number in range(files):
            text = "".join(line(number * lines + row) + "\n" for row in range(lines))
            (making / f"{number:03d}.{format}").write_text(text)
        making.rename(source)
    place = Path(tempfile.mkdtemp(prefix="lake-", dir=folder))
    topology = TridentTopology("before")
    make(topology.new_stream("rows", FileSpout(source, format, schema, min_rows=lines, max_rows=lines)))
    query = topology.start(
        spark,
        warehouse=str(place),
        zookeeper=zookeeper,
        zookeeper_root=f"/{place.name}",
        max_spout_pending=1,
        progress="none",
    )
    query.process_all_available()
    ends = [record["timestamp"] for record in query.recent_progress]
    query.stop()
    return _median_between(ends)


def _median_between(ends: list[str]) -> float:
    from datetime import datetime
    from statistics import median

    times = [datetime.fromisoformat(end.replace("Z", "+00:00")).timestamp() * 1000 for end in ends]
    return median(after - before for before, after in zip(times[2:], times[3:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
