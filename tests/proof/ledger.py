"""The record of the suites' runs, and whether the code that they cover has changed since."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.proof.suites import SUITES, Suite

ROOT = Path(__file__).resolve().parents[2]
LEDGER = Path(__file__).with_name("ledger.json")
PAGE = ROOT / "docs" / "proof.md"
HEAD = """# Proof: the long suites, and when each last ran

Made by `make proof`, which runs the suites below one after the other; a part that has passed on the same content of the
folders that it covers is not run again. `make proof-status` lists the suites whose result is older than those folders.
One part again: `python -m tests.proof SUITE --part P --seed SEED`.

"""


@dataclass(frozen=True)
class Run:
    """One part of a suite as it last ran.

    Attributes:
        content: of the folders that it covers, as a digest.
        commit: of the checkout, to be read by people.
        passed, failed, skipped: tests, where pytest ran them.
        result: "passed", "failed", or "cut" at its budget.
    """

    suite: str
    part: int
    content: str
    commit: str
    date: str
    seed: int
    machine: str
    minutes: float
    passed: int
    failed: int
    skipped: int
    result: str


def content_of(suite: Suite) -> str:
    """A digest of what the suite covers, as it is committed: the same in each clone, whatever was rebased."""
    found = [_git("rev-parse", f"HEAD:{path}") for path in suite.covers]
    return hashlib.sha256(" ".join(found).encode()).hexdigest()[:12]


def commit() -> str:
    return _git("rev-parse", "--short=10", "HEAD")


def committed_at() -> int:
    """When the commit was made: seconds since the epoch."""
    return int(_git("show", "-s", "--format=%ct", "HEAD"))


def changed(suite: Suite) -> bool:
    """Tells whether something that the suite covers is not committed: a result of it could not be recorded."""
    return bool(_git("status", "--porcelain", "--", *suite.covers))


def read() -> dict[tuple[str, int], Run]:
    if not LEDGER.exists():
        return {}
    return {(run.suite, run.part): run for run in (Run(**each) for each in json.loads(LEDGER.read_text()))}


def write(run: Run) -> None:
    """Records a run in place of the one before of this part, and makes the page."""
    runs = read() | {(run.suite, run.part): run}
    there = {(suite.name, part) for suite in SUITES for part in range(1, suite.parts + 1)}
    kept = [asdict(runs[key]) for key in sorted(runs) if key in there]
    LEDGER.write_text("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n")
    PAGE.write_text(page())


def page() -> str:
    runs = read()
    lines = [HEAD, "| suite | part | result | cases | seed | minutes | commit | date | machine |\n", "|---" * 9 + "|\n"]
    for suite in SUITES:
        for part in range(1, suite.parts + 1):
            run = runs.get((suite.name, part))
            cells = [
                suite.name,
                f"{part} of {suite.parts}",
                *(["never run", *[""] * 6] if run is None else _cells(run)),
            ]
            lines.append(f"| {' | '.join(cells)} |\n")
    lines.append("\n| suite | what it shows |\n|---|---|\n")
    lines += [f"| {suite.name} | {suite.shows} |\n" for suite in SUITES]
    return "".join(lines)


def _cells(run: Run) -> list[str]:
    cases = f"{run.passed} passed, {run.failed} failed, {run.skipped} skipped" if run.passed + run.failed else ""
    return [run.result, cases, str(run.seed), f"{run.minutes:.1f}", run.commit, run.date, run.machine]


def stale() -> list[str]:
    """The names of suites that have a part without a pass on what is committed now."""
    runs = read()

    def is_proved(suite: Suite) -> bool:
        content = content_of(suite)
        found = [runs.get((suite.name, part)) for part in range(1, suite.parts + 1)]
        return all(run is not None and run.result == "passed" and run.content == content for run in found)

    return [suite.name for suite in SUITES if not is_proved(suite)]


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
