"""The process that `memory` starts for each size of state; reports peaks and seconds on standard output, as JSON.

python -m benchmarks.memory_child ZOOKEEPER WAREHOUSE KEYS ROWS TRANSACTIONS fill|measure
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path

DRIVER, JVM, WORKERS, MERGES = "the driver's Python", "the JVM", "Python workers", "the process that merges"
_LOOK_SECS = 0.2


class Peaks(threading.Thread):
    """Looks at this process and all below it."""

    def __init__(self) -> None:
        super().__init__(name="bench-memory", daemon=True)
        self._ended = threading.Event()
        self.mb: dict[str, float] = {}

    def run(self) -> None:
        while not self._ended.wait(_LOOK_SECS):
            for who, kb in _now().items():
                self.mb[who] = max(self.mb.get(who, 0.0), kb / 1024)

    def end(self) -> None:
        self._ended.set()
        self.join()


def _now() -> Counter[str]:
    """Whose → kB of memory of its own."""
    from trident.states.keyed.file_merge import MERGE_PROCESS

    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended
    found: Counter[str] = Counter()
    for pid in parents:
        above = pid
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        if not above:
            continue
        try:
            program = (Path("/proc") / str(pid) / "cmdline").read_bytes()
            told = (Path("/proc") / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue
        kb = next((int(line.split()[1]) for line in told.splitlines() if line.startswith("Anonymous:")), 0)
        if pid == os.getpid():
            found[DRIVER] += kb
        elif pid == MERGE_PROCESS.pid:
            found[MERGES] += kb
        elif program.split(b"\0")[0].endswith(b"java"):  # its arguments name the workers' daemon
            found[JVM] += kb
        elif b"workers.daemon" in program or b"pyspark.daemon" in program:
            found[WORKERS] += kb
    return found


class _Total:
    """A reducer of the user's."""

    def init(self) -> int:
        return 0

    def reduce(self, current: int, n: int) -> int:
        return current + n


def main(zookeeper: str, warehouse: Path, keys: int, rows: int, transactions: int, measures: bool) -> None:
    began, secs = time.monotonic(), dict[str, float]()
    from benchmarks.beside import Running
    from benchmarks.keys import GatedKeys
    from trident import DeltaAppend, DeltaMapState, MapGet, TridentTopology
    from trident.spark.session import make_session

    class Sized:
        """What ``Running`` asks a benchmark for."""

        @staticmethod
        def size(full: int, quick: int) -> int:
            return quick

    # A batch of a million keys needs more than what is measured.
    memory = {"spark.driver.memory": "1g"} if measures else {}
    spark = make_session("memory", {"spark.trident.classArchive": "false", **memory})
    loads = max(1, keys // 1_000_000)
    spout = GatedKeys(rows, keys, load=loads)
    topology = TridentTopology("memory")
    totals = DeltaMapState("totals", merge_every_txids=transactions // 2, merge_interval_secs=1e9)
    stream = topology.new_stream("keys", spout)
    made = stream.group_by("key").persistent_aggregate(totals, "n", _Total(), "total long")
    stream.state_query(made, "key", MapGet(), "before").partition_persist(DeltaAppend("out"))
    query = topology.start(
        spark,
        warehouse=str(warehouse),
        zookeeper=zookeeper,
        zookeeper_root=f"/{warehouse.parent.name}-{warehouse.name}",
        max_spout_pending=1,
        message_timeout_secs=None,
        progress="none",
    )
    peaks = Peaks()
    try:
        spout.allow(loads + measures)  # one more, where the state is there
        query.process_all_available()
        if measures:
            secs["a restart, to its first transaction"] = time.monotonic() - began
            running = Running(Sized(), query, spout, has_copies=True)  # type: ignore[arg-type]
            secs["a restart, until the local copy follows"] = time.monotonic() - began
            peaks.start()
            try:
                for number in range(transactions):
                    running.let_go(1)
                    query.get("totals", [f"k{number:08d}", f"k{number + keys // 2:08d}"])
            finally:
                peaks.end()
    finally:
        query.stop(compact=not measures)
    if (error := query.exception()) is not None:
        raise error
    if not measures:
        secs["filling the state, with its merges"] = time.monotonic() - began
    print(json.dumps({"mb": peaks.mb, "secs": secs}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *(int(each) for each in sys.argv[3:6]), measures=sys.argv[6] == "measure")
