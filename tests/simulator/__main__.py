"""``python -m tests.simulator --seeds 10000``: runs seeds, says how many a minute and which rare states were reached.

``--seed N --trace`` runs one, with everything that happened in it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter

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
    seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    counters: Counter[str] = Counter()
    failed, ran, began, began_cpu = [], 0, time.perf_counter(), time.process_time()
    # What is imported stays: the collector need not look at it again with every few seeds.
    gc.collect()
    gc.freeze()
    for seed in seeds:
        result = run_seed(seed, given.rollbacks)
        ran += 1
        counters.update(result.counters)
        if given.trace:
            print(result.story(None))
        if result.violation is not None:
            failed.append(seed)
            if not given.trace:
                print(result.story())
            if not given.keep_going:
                break
    secs = time.perf_counter() - began
    print(report(ran, secs, time.process_time() - began_cpu, counters))
    if failed:
        print(f"{len(failed)} failed: {failed[:20]}")
    elif given.seed is not None:
        print(f"seed {given.seed}: trace {result.trace_hash}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
