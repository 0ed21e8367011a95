"""Topologies that stay up, and let transactions go when told to: each is measured warm, right behind the base."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from benchmarks.bench import Bench, steady_ms
from benchmarks.keys import GatedKeys

if TYPE_CHECKING:
    from trident import Stream, TopologyQuery, TridentTopology

_WAIT_SECS = 900.0
_COUNT, _WARM_UP = 20, 30


class Running:
    """A topology over batches of distinct keys; its first batch had all keys, its local copies are there.

    Args:
        query: it has just been started.
        spout: of the topology, with no batch allowed yet; its first one fills the state.
        has_copies: whether the topology looks states up, of which there are local copies then.
    """

    def __init__(self, bench: Bench, query: "TopologyQuery", spout: GatedKeys, has_copies: bool) -> None:
        self._query, self._spout, self._done = query, spout, 0
        self._count = bench.size(_COUNT, 3)
        self.let_go(1)
        self.let_go(2)
        if has_copies:
            self._wait_for_copies()
        for _ in range(bench.size(_WARM_UP, 3) // self._count + 1):
            self.let_go(self._count)

    def ms(self) -> float:
        """Milliseconds a transaction of the next ones."""
        self.let_go(self._count)
        end = time.monotonic() + _WAIT_SECS
        while not (found := self._query.recent_progress) or found[-1]["batch_id"] < self._done:
            if time.monotonic() > end:
                raise AssertionError(f"no progress of transaction {self._done}")
            time.sleep(0.01)
        return steady_ms(found[-self._count :], 1)

    @property
    def spent(self) -> str:
        """Where the last transaction's time went."""
        parts = self._query.recent_progress[-1]["duration_ms"]
        return ", ".join(f"{part} {ms:.1f}" for part, ms in parts.items())

    def let_go(self, batches: int) -> None:
        """This many more transactions, until they are through."""
        self._done += batches
        self._spout.allow(batches)
        self._query.process_all_available()

    def _wait_for_copies(self) -> None:
        """A copy of a large state is made beside the transactions."""
        end = time.monotonic() + _WAIT_SECS
        while True:
            copies = [copy for group in self._query.status["groups"] for copy in group["copies"]]
            if copies and all(copy["condition"] == "following" for copy in copies):
                return
            if time.monotonic() > end:
                raise AssertionError(f"there is no local copy: {copies}")
            time.sleep(0.1)
            self.let_go(1)


@contextlib.contextmanager
def running(
    bench: Bench, name: str, stream: Callable[["Stream"], object], rows: int, keys: int, has_copies: bool = True
) -> Iterator[Running]:
    """Starts a topology with this stream over the keys and warms it up; stops it in the end."""
    from trident import TridentTopology

    spout = GatedKeys(rows, keys, load=True)
    topology: TridentTopology = TridentTopology(name)
    stream(topology.new_stream("keys", spout))
    with bench.running(topology, bench.fresh(name), 1, message_timeout_secs=None) as query:
        yield Running(bench, query, spout, has_copies)


def in_turn(
    bench: Bench, base: Running, contenders: Mapping[str, Running], rounds: int
) -> dict[str, list[list[float]]]:
    """Measures each contender right behind the base, in rounds.

    Returns:
        name → for each round [milliseconds of the base, milliseconds of the contender].
    """
    found: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            pair = [base.ms(), contender.ms()]
            found[name].append(pair)
            bench.said(f"   round {number + 1}/{rounds} {name}: {pair[1]:,.1f} beside {pair[0]:,.1f}")
    return found
