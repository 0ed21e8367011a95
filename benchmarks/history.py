"""What the record of transactions costs: a small transaction with and without it."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.report import Report
from benchmarks.with_and_without import compare

TITLE = "a small transaction of a word count, with its manifest kept and recorded, and without"


def run(bench: Bench, report: Report) -> None:
    settings = {"with": {"history_retention_txids": 1000}, "without": {"history_retention_txids": 0}}
    compare(bench, report, "the record", settings)
