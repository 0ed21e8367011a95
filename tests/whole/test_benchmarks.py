"""The benchmarks run from the command line, and their JSON and their ratios are there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.__main__ import main
from benchmarks.bench import steady_ms
from benchmarks.report import Goal, Report
from benchmarks.table import BEGIN, END
from benchmarks.table import main as write_tables
from tests.programs import python


@pytest.mark.skipif(os.environ.get("TRIDENT_BENCH") != "all", reason="make bench runs it, before the benchmarks")
def test_a_quick_run_prints_ratios_and_writes_json(tmp_path: Path, spark: SparkSession, monkeypatch, capsys) -> None:
    """On the session of the tests: that the command makes and stops one of its own costs a JVM."""
    monkeypatch.setattr("trident.spark.session.make_session", lambda *_: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)
    written = tmp_path / "figures.json"
    code = main(["commit-path", "--quick", "--json", str(written), "--folder", str(tmp_path)])
    ran = capsys.readouterr()
    assert code == 0, ran.err[-4000:]
    found = json.loads(written.read_text())
    assert found["schema"] == 1 and found["quick"] is True
    machine = found["machine"]
    assert {"cores", "memory_gb", "kernel", "python", "java", "spark", "delta"} <= machine.keys()
    assert f"Spark {machine['spark']}, Delta {machine['delta']}" in ran.out
    assert list(found["benchmarks"]) == ["commit-path"]
    for name, benchmark in found["benchmarks"].items():
        assert benchmark["error"] is None and benchmark["figures"], name
        for figure in benchmark["figures"]:
            assert figure.keys() == {"name", "unit", "median", "rounds", "goal", "reached"}
            assert figure["rounds"], figure["name"]
            assert figure["name"] in ran.out
    (ratio,) = found["benchmarks"]["commit-path"]["ratios"]
    assert ratio["value"] > 0 and f"{ratio['name']}" in ran.out and f"{ratio['value']:.2f} ×" in ran.out
    assert list(tmp_path.iterdir()) == [written], "the folder is cleaned up"


def test_a_wrong_name_is_refused_with_those_there_are() -> None:
    ran = python("-m", "benchmarks", "word-cuont")
    assert ran.returncode == 2
    assert "word-cuont" in ran.stderr and "word-count" in ran.stderr


def test_a_ratio_says_whether_its_goal_is_reached() -> None:
    report = Report("some", "title")
    assert report.ratio("peer / ours", 10.0, 4.0, Goal(at_least=2.5)) == 2.5
    report.ratio("ours / limit", 16.0, 10.0, Goal(at_most=1.5))
    report.ratio("shown only", 3.0, 1.0)
    assert [ratio.reached for ratio in report.ratios] == [True, False, None]
    text = "\n".join(report.lines())
    assert "2.50 ×   goal ≥ 2.5: reached" in text and "1.60 ×   goal ≤ 1.5: NOT reached" in text
    assert [one["reached"] for one in report.to_json()["ratios"]] == [True, False, None]


def test_a_figure_is_the_median_of_its_rounds() -> None:
    report = Report("some", "title")
    assert report.figure("time", "ms", [1.0, 100.0, 3.0]) == 3.0
    with pytest.raises(ValueError, match="no rounds"):
        report.figure("nothing", "ms", [])


def test_the_steady_state_leaves_the_warm_up_out() -> None:
    stamps = ["00.000", "08.000", "08.100", "08.300"]
    records = [{"timestamp": f"2026-01-01T00:00:{stamp}Z"} for stamp in stamps]
    assert steady_ms(records, 2) == pytest.approx(150.0)
    with pytest.raises(ValueError, match="too few"):
        steady_ms(records, 4)


def _written(folder: Path, name: str, value: float, quick: bool = False) -> str:
    report = Report("some", "Some | title")
    report.figure("a | b", "ms", [value, value + 2, value + 1])
    report.ratio("ours / limit", value, 10.0, Goal(at_most=1.5))
    facts = "cores cpu memory_gb kernel file_system load_before python spark delta java spark_master driver_memory"
    machine = {fact: "some" for fact in f"{facts} shuffle_partitions codec".split()} | {"commit": name}
    found = {"some": report.to_json() | {"error": None}}
    run = {"schema": 1, "made": "2026-01-01T00:00:00", "quick": quick, "machine": machine, "benchmarks": found}
    (folder / name).write_text(json.dumps(run))
    return str(folder / name)


def test_the_page_of_figures_is_made_from_the_newest_runs(tmp_path: Path, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    old, new = _written(tmp_path, "old", 100.0), _written(tmp_path, "new", 12.0)
    assert write_tables([old, new, "--into", str(page)]) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n### Some | title") and text.endswith(f"{END}\nafter\n")
    assert "| a \\| b | 13.0 ms (12.0 to 14.0, 3 rounds) |  |" in text and "commit new" in text
    assert "| **ours / limit** | **1.20** × | ≤ 1.5: reached |" in text and "old" not in text
    assert write_tables([old]) == 0 and "| **10.00** × | ≤ 1.5: **missed** |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        write_tables([_written(tmp_path, "quick", 1.0, quick=True)])
    with pytest.raises(SystemExit):
        write_tables([new, "--into", new])
