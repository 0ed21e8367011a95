"""Simulated sources of the three contracts, the executors of their spouts, and the runner of batches.

- ``transactional``: a log; the batch of a txid is the range of offsets that is pinned for it.
- ``opaque``: two partitions; every attempt takes as many rows as it likes, from where its parent stopped.
  Some offsets have no row, so a batch may be empty and move a position all the same.
- ``queue``: messages; taken by an attempt, gone once ``commit`` was told (a committer spout).

A row is (stream, partition, offset): the checker asks for each exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.simulator.checker import Checker
from tests.simulator.copies import ProcessCopies
from tests.simulator.faults import Faults, SimulatedFailure
from tests.simulator.threads import SimThreads
from tests.simulator.world import Process, World
from trident.coordinators.errors import BatchTimeout
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.ports import ProcessedBatch
from trident.spouts.executors import BeginContext

KINDS = ("transactional", "opaque", "queue")
Row = tuple[str, str, int]


class Source:
    """One stream's data, which survives every process."""

    def __init__(self, name: str, kind: str, world: World) -> None:
        self.name, self.kind, self.world = name, kind, world
        partitions = ("p0", "p1") if kind == "opaque" else ("p0",)
        least = 3 if kind == "transactional" else 1
        self.end = {partition: world.rng.randint(least, least + 4) for partition in partitions}
        # The first rows are there at once, the others come later.
        spread = world.rng.choice((0.0, 5.0, 20.0))
        self.comes_at = {
            partition: sorted(world.rng.random() * spread for _ in range(end)) for partition, end in self.end.items()
        }
        self.holes = {
            (partition, offset)
            for partition, end in self.end.items()
            for offset in range(end)
            if kind == "opaque" and world.rng.random() < 0.3
        }
        self.acknowledged: set[int] = set()  # of a queue

    def there(self, partition: str) -> int:
        """How many offsets can be read now."""
        now = self.world.now
        return sum(1 for when in self.comes_at[partition] if when <= now)

    def rows(self, partition: str, start: int, end: int) -> list[Row]:
        return [(self.name, partition, offset) for offset in range(start, end) if (partition, offset) not in self.holes]

    def all_rows(self) -> list[Row]:
        return [row for partition, end in self.end.items() for row in self.rows(partition, 0, end)]


class SimExecutor:
    """``trident.spouts.executors.SpoutExecutor`` of one stream, in one life of one process."""

    def __init__(self, process: Process, faults: Faults, source: Source, checker: Checker) -> None:
        self._process, self._faults, self._source, self._checker = process, faults, source, checker
        self._world = process.world
        self.pins = source.kind == "transactional"
        self._next: dict[str, int] = {}  # partition -> the first offset that no attempt known here has taken
        self._positions: dict[TransactionAttempt, dict[str, int]] = {}
        self._taken: dict[TransactionAttempt, set[int]] = {}

    def _io(self, name: str, effect: Any) -> Any:
        return self._faults.io(self._process, name, effect, lambda when: SimulatedFailure(f"{name} failed {when}"))

    def resume(self, txid: int, metadata: Any) -> None:
        """What is stored of the greatest transaction: only to know whether there is more."""
        if self._source.kind == "transactional":
            self._next = {"p0": metadata[1]}
        else:
            self._next = {partition: stored["next"] for partition, stored in metadata.items()}

    def is_ready(self, txid: int) -> bool:
        if self._faults.chance(self._faults.user_failure_odds / 4):
            raise SimulatedFailure("is_ready failed")
        source = self._source
        if source.kind == "queue":
            return bool(self._free())
        return any(source.there(partition) > self._next.get(partition, 0) for partition in source.end)

    def _free(self) -> list[int]:
        taken = {offset for ids in self._taken.values() for offset in ids} | self._source.acknowledged
        return [offset for offset in range(self._source.there("p0")) if offset not in taken]

    def initialize(self, context: BeginContext) -> Any:
        if self._faults.chance(self._faults.user_failure_odds / 2):
            raise SimulatedFailure("initialize failed")
        make = {"queue": self._take, "opaque": self._read_on, "transactional": self._pin}[self._source.kind]
        return self._io(f"initialize of {self._source.kind}", lambda: make(context))

    def _take(self, context: BeginContext) -> list[int]:
        """A begin of N says that every earlier attempt at N and at what follows is dead."""
        for attempt in [attempt for attempt in self._taken if attempt.txid >= context.attempt.txid]:
            del self._taken[attempt]
        free = self._free()[: self._world.rng.randint(0, 3)]
        self._taken[context.attempt] = set(free)
        return free

    def _pin(self, context: BeginContext) -> list[int]:
        if context.current is not None:
            start, end = context.current
            if not context.shrink and self._world.rng.random() < 0.3:
                # As of a source in partitions, which emits before it learns what is pinned.
                self._world.reached("emitted anew although it is pinned")
                self._next = {"p0": end}
                return [start, start + self._world.rng.randint(0, 3)]
            if not (context.shrink and end - start > 1):
                self._world.reached("pin used again by a replay")
                self._next = {"p0": end}
                return [start, end]
            end = start + (end - start) // 2
        else:
            start = context.previous[1] if context.previous else 0
            end = max(start, min(start + self._world.rng.choice((0, 2, 3, 4)), self._source.there("p0")))
        self._next = {"p0": end}
        return [start, end]

    def _read_on(self, context: BeginContext) -> dict[str, list[int]]:
        """[start, end] of every partition; one that is away stays where it is."""
        base = self._positions.get(context.parent) if context.parent is not None else None
        if base is None:
            base = {partition: stored["next"] for partition, stored in context.committed.items()}
        ranges = {}
        for partition in self._source.end:
            start = base.get(partition, 0)
            away = self._faults.chance(0.05)
            end = start if away else min(start + self._world.rng.randint(0, 3), self._source.there(partition))
            ranges[partition] = [start, max(start, end)]
        self._positions[context.attempt] = self._next = {partition: end for partition, (_, end) in ranges.items()}
        return ranges

    def commit(self, attempt: TransactionAttempt, commit_data: Any) -> None:
        def effect() -> None:
            self._checker.on_spout_commit(attempt, self._source.name, commit_data)
            self._source.acknowledged.update(commit_data)

        self._io("commit of the spout", effect)

    def success(self, attempt: TransactionAttempt) -> None:
        def effect() -> None:
            self._checker.on_success(self._process, self._source.name, attempt)

        if self._faults.chance(self._faults.slow_job_odds / 2):
            self._world.reached("a spout is slow to hear of success")
            self._world.sleep(self._world.rng.random() * 8.0)
        try:
            self._io("success", effect)
        except SimulatedFailure:
            # The spout was asked and raised: more cannot be promised.
            effect()
            raise

    def cancel(self, attempt: TransactionAttempt) -> None:
        """What it had taken is free when the transaction begins again."""

    def cancel_all(self) -> None:
        pass

    def close(self) -> None:
        pass


class SimRunner:
    """``trident.coordinators.ports.BatchRunner``: emits what the metadata says, after some time."""

    def __init__(
        self,
        process: Process,
        threads: SimThreads,
        faults: Faults,
        sources: dict[str, Source],
        checker: Checker,
        copies: ProcessCopies | None = None,
    ) -> None:
        self._process, self._threads, self._faults, self._sources = process, threads, faults, sources
        self._copies = copies
        self._checker, self._world = checker, process.world
        self._running: dict[TransactionAttempt, Any] = {}
        self._closed = False
        self.is_live: Any = lambda attempt: True

    def process(
        self, attempt: TransactionAttempt, metadata: Mapping[str, Any], timeout_secs: float | None
    ) -> ProcessedBatch:
        rng, cancelled = self._world.rng, self._threads.event()
        self._running[attempt] = cancelled
        self._process.working += 1
        if self._closed:
            cancelled.set()
        try:
            secs = rng.random() * 0.3
            if self._faults.chance(self._faults.slow_job_odds):
                secs += rng.random() * 12.0
            heeds = rng.random() < 0.7
            if timeout_secs is not None and secs > timeout_secs:
                if not cancelled.wait(timeout_secs):
                    self._world.reached("batch timeout")
                    raise BatchTimeout(f"{attempt} took longer than {timeout_secs} s")
            elif heeds:
                cancelled.wait(secs)
            else:
                self._threads.sleep(secs)
            if cancelled.is_set() and heeds:
                raise SimulatedFailure("cancelled")
            if self._faults.chance(self._faults.user_failure_odds):
                raise SimulatedFailure("a function of the user failed")
            rows = self._faults.io(
                self._process,
                "staging",
                lambda: self._emit(attempt, metadata),
                lambda when: SimulatedFailure(f"staging failed {when}"),
            )
            if not self.is_live(attempt):
                self._world.reached("late report on an attempt that does not live any more")
            return ProcessedBatch(rows, self._spouts(metadata), len(rows))
        finally:
            self._process.working -= 1
            if self._running.get(attempt) is cancelled:
                del self._running[attempt]

    def _emit(self, attempt: TransactionAttempt, metadata: Mapping[str, Any]) -> list[Row]:
        emitted: dict[str, list[Row]] = {}
        for name, source in self._sources.items():
            given = metadata[name]
            if source.kind == "transactional":
                emitted[name] = source.rows("p0", *given)
            elif source.kind == "queue":
                emitted[name] = [(name, "p0", offset) for offset in given]
            else:
                emitted[name] = [
                    row for partition, (start, end) in given.items() for row in source.rows(partition, start, end)
                ]
        self._checker.on_emit(self._process, attempt, emitted)
        return [row for rows in emitted.values() for row in rows]

    def _spouts(self, metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name, source in self._sources.items():
            entry = {"spout": name, "kind": source.kind, "metadata": metadata[name], "commit_data": None}
            if source.kind == "queue" and metadata[name]:
                entry["commit_data"] = metadata[name]
            elif source.kind == "opaque":
                entry["opaque"] = {partition: {"next": end} for partition, (_, end) in metadata[name].items()}
            found[name] = entry
        return found

    def resolve(
        self, attempt: TransactionAttempt, processed: ProcessedBatch, timeout_secs: float | None
    ) -> ProcessedBatch:
        if self._faults.chance(self._faults.user_failure_odds / 4):
            raise SimulatedFailure("resolving failed")
        if self._copies is not None:
            found = self._copies.read(attempt)
            if found is not None:
                self._checker.on_look_up(attempt, found)
        return processed

    def cancel(self, attempt: TransactionAttempt) -> None:
        running = self._running.get(attempt)
        if running is not None:
            running.set()

    def close(self) -> None:
        self._closed = True
        if self._copies is not None:
            self._copies.close()
        for running in list(self._running.values()):
            running.set()
