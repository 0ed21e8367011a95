"""Runs the long suites, and records what they have shown: see tests/proof/__init__.py."""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from datetime import date

from tests.proof import ledger
from tests.proof.suites import SUITES, Suite

_CLOSING = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="only these")
    parser.add_argument("--part", type=int, help="only this part of each")
    parser.add_argument("--seed", type=int, help="of the random choices; without one it is drawn")
    parser.add_argument("--again", action="store_true", help="also what has passed on this content")
    parser.add_argument("--minutes", type=float, help="begin no part that would not fit into so many minutes")
    parser.add_argument(
        "--rotate",
        action="store_true",
        help="only parts whose last run passed, also on this content; those that follow the parts of the last landing",
    )
    parser.add_argument("--status", action="store_true", help="only list the suites whose result is old")
    given = parser.parse_args()
    unknown = set(given.suites) - {suite.name for suite in SUITES}
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(suite.name for suite in SUITES)}")
    if given.status:
        print(status_line())
        return 0
    return _run_all(given)


def status_line() -> str:
    stale = ledger.stale()
    proved = len(SUITES) - len(stale)
    old = f"; older than the code that they cover, or never run: {', '.join(stale)}" if stale else ""
    return f"proof: {proved} of {len(SUITES)} long suites have passed on this code{old} (docs/proof.md)"


def _run_all(given: argparse.Namespace) -> int:
    chosen = [suite for suite in SUITES if not given.suites or suite.name in given.suites]
    parts = [(suite, part) for suite in chosen for part in range(1, suite.parts + 1) if given.part in (None, part)]
    runs = ledger.read()
    if given.rotate:
        parts = _rotated([one for one in parts if (run := runs.get((one[0].name, one[1]))) and run.result == "passed"])
    began, failed = time.monotonic(), []
    for suite, part in parts:
        known = runs.get((suite.name, part))
        is_proved = known and known.result == "passed" and known.content == ledger.content_of(suite)
        if is_proved and not given.again and not given.rotate:
            print(f"== {suite.name} {part}/{suite.parts}: passed on this content on {known.date}", flush=True)
            continue
        left = None if given.minutes is None else given.minutes - (time.monotonic() - began) / 60
        if left is not None and left < (1.5 * known.minutes if known else suite.minutes):
            continue
        run = _run(suite, part, given.seed)
        print(
            f"== {suite.name} {part}/{suite.parts}: {run.result} in {run.minutes:.1f} min, seed {run.seed}", flush=True
        )
        if run.result != "passed":
            failed.append(f"python -m tests.proof {suite.name} --part {part} --seed {run.seed}")
        if ledger.changed(suite):
            print(f"== not recorded: what {suite.name} covers has changes that are not committed", flush=True)
        else:
            ledger.write(run)
    print("\n".join([status_line(), *(f"FAILED; again: {command}" for command in failed)]), flush=True)
    return 1 if failed else 0


def _rotated(parts: list[tuple[Suite, int]]) -> list[tuple[Suite, int]]:
    """Begins at another part for each landing: four further on for each three hours between their commits.

    A landing knows nothing of the ones before it but when they were made; about four parts fit into one.
    """
    begin = ledger.committed_at() // (3 * 3600) * 4 % len(parts) if parts else 0
    return parts[begin:] + parts[:begin]


def _run(suite: Suite, part: int, seed: int | None) -> ledger.Run:
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    share = [f"PYTEST_ARGS=--share {part}/{suite.parts}"] if suite.parts > 1 else []
    seeded = [f"{suite.seeded}={seed}"] if suite.seeded else []
    command = ["make", "--no-print-directory", *suite.make, *share, *seeded]
    print(
        f"== {suite.name} {part}/{suite.parts}, at most {suite.minutes} min: TRIDENT_SEED={seed} {' '.join(command)}",
        flush=True,
    )
    began, content, counts, cut = time.monotonic(), ledger.content_of(suite), dict[str, int](), False
    process = subprocess.Popen(
        command,
        cwd=ledger.ROOT,
        env={**os.environ, "TRIDENT_SEED": str(seed)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    alarm = signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
    signal.alarm(suite.minutes * 60)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if re.search(r" in \d+\.\d+s", line):
                for number, kind in _CLOSING.findall(line):
                    kind = "failed" if kind.startswith("error") else kind
                    counts[kind] = counts.get(kind, 0) + int(number)
        code = process.wait()
    finally:
        cut = signal.alarm(0) == 0
        signal.signal(signal.SIGALRM, alarm)
    return ledger.Run(
        suite=suite.name,
        part=part,
        content=content,
        commit=ledger.commit(),
        date=date.today().isoformat(),
        seed=seed,
        machine=f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        minutes=round((time.monotonic() - began) / 60, 1),
        passed=counts.get("passed", 0),
        failed=counts.get("failed", 0),
        skipped=counts.get("skipped", 0),
        result="cut" if cut else "passed" if code == 0 else "failed",
    )


if __name__ == "__main__":
    sys.exit(main())
