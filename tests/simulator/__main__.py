"""``python -m tests.simulator --seeds 10000``: runs seeds on all cores; says which rare states were reached.

``--seed N --trace`` runs one, with everything that happened in it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing import get_context

from tests.simulator.running import report, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--rollbacks", type=int, default=0, help="how often an operator rolls back in each (0)")
    parser.add_argument("--trace", action="store_true", help="print the whole trace")
    parser.add_argument("--keep-going", action="store_true", help="after a violation too")
    given = parser.parse_args()
    if given.seed is not None:
        return _run_one(given.seed, given.rollbacks, given.trace)
    counters: Counter[str] = Counter()
    failed, ran, began = [], 0, time.perf_counter()
    # What is imported stays: the collector need not look at it again with every few seeds.
    gc.collect()
    gc.freeze()
    with get_context("fork").Pool() as processes:
        seeds = range(given.first, given.first + given.seeds)
        for seed, counted, is_right in processes.imap(partial(_counted, rollbacks=given.rollbacks), seeds, 20):
            ran += 1
            counters.update(counted)
            if not is_right:
                failed.append(seed)
                print(run_seed(seed, given.rollbacks).story())
                if not given.keep_going:
                    break
    secs = time.perf_counter() - began
    print(report(ran, secs, counters))
    if failed:
        print(f"{len(failed)} failed: {failed[:20]}")
    return 1 if failed else 0


def _counted(seed: int, rollbacks: int) -> tuple[int, Counter[str], bool]:
    """A seed, what was counted in it, and whether every claim held."""
    result = run_seed(seed, rollbacks)
    return seed, result.counters, result.violation is None


def _run_one(seed: int, rollbacks: int, trace: bool) -> int:
    result = run_seed(seed, rollbacks)
    if trace:
        print(result.story(None))
    elif result.violation is not None:
        print(result.story())
    print(f"seed {seed}: trace {result.trace_hash}")
    return 1 if result.violation is not None else 0


if __name__ == "__main__":
    sys.exit(main())
