"""The cells: spouts × states × faults, what each is expected to do, and how one is run.

The checker folds the rows of the source; it knows nothing of transactions. A
cell whose pair is not exactly once must show its error in the fault that can
bring it about, and no other error.
"""

from __future__ import annotations

import enum
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.checker import Books, is_ghost
from tests.chaos.outside_stores import APPENDED, COUNTED, OutsideStores
from tests.chaos.sources import PER_BATCH
from tests.chaos.workload import OUTSIDE, SPOUTS, Group, topology_of
from trident import TridentTopology
from trident.coordinators import faults
from trident.operations.guarantees import Guarantee, NotExactlyOnceWarning, guarantee
from trident.running.query import TopologyQuery
from trident.spouts.executors import spout_kind

TOPOLOGY = "matrix"
WAIT_SECS = 120.0
TRANSACTIONS = 3  # one ahead of the one that meets the fault, and one behind it

# A group's rows in each partition of its source: three transactions.
COUNT = TRANSACTIONS * PER_BATCH
IN_PARTITIONS = ("partitioned", "opaque partitioned")
MAY_CHANGE = ("committer", "opaque", "opaque partitioned")
STATES = ("non-transactional", "transactional", "opaque", "Delta keyed", "Delta append", "snapshottable")
# In the matrix alone: what needs a broker and a database.
OUTSIDE_STATES = (*APPENDED, *COUNTED)


class Fault(enum.Enum):
    NONE = "no fault"
    FAILED = "failed attempt"
    CHANGED = "replay with other tuples"
    PARTITIONS = "partition added and removed"
    BEFORE_DECISION = "crash before the decision"
    AFTER_DECISION = "crash after the decision"
    BETWEEN_TABLES = "crash between two tables"
    AFTER_PUBLISH = "crash after publish"


class Outcome(enum.Enum):
    """What a state holds in the end, compared with the source."""

    EXACT = "every row once"
    LOST = "rows are missing"
    DOUBLED = "rows count twice"
    BOTH = "rows are missing and others count twice"


CRASHES = {
    # In the second transaction: it has one before it and others in flight behind it. Each publishes two tables
    # at least: the appended log of rows that every cell has, and others.
    Fault.BEFORE_DECISION: "zk.decide:hang:2",
    Fault.AFTER_DECISION: "publish.table:hang:{second}",
    Fault.BETWEEN_TABLES: "publish.table:hang:{between}",
    Fault.AFTER_PUBLISH: "zk.advance:hang:2",
}


# What tests/whole/test_sweep.py does in every run, over the same kinds of spouts.
IN_THE_SWEEP = {Fault.BEFORE_DECISION, Fault.AFTER_DECISION}


def applies(spout: str, fault: Fault) -> bool:
    """Whether the fault means anything to the spout."""
    if fault is Fault.PARTITIONS:
        return spout in IN_PARTITIONS
    return fault is not Fault.CHANGED or spout in MAY_CHANGE


def expected(spout: str, state: str, fault: Fault) -> Outcome:
    """What the table of guarantees (docs/semantics.md 5) comes to under one fault.

    A batch spout loses what was in flight when an attempt fails or a
    coordinator dies: nobody asks it for that again. A non-transactional map is
    updated again where a crash leaves open whether it was.
    """
    lost = spout == "batch" and fault not in (Fault.NONE, Fault.PARTITIONS)
    doubled = state == "non-transactional" and fault is Fault.AFTER_PUBLISH
    if lost and doubled:
        return Outcome.BOTH
    return Outcome.LOST if lost else Outcome.DOUBLED if doubled else Outcome.EXACT


@dataclass(frozen=True)
class Cell:
    spout: str
    states: tuple[str, ...]
    fault: Fault

    def __str__(self) -> str:
        states = self.states[0] if len(self.states) == 1 else "all states"
        return f"{self.spout} × {states} × {self.fault.value}"


def cells(states: Iterable[tuple[str, ...]], spouts: Iterable[str] = tuple(SPOUTS)) -> list[Cell]:
    groups = list(states)
    return [
        Cell(spout, group, fault) for spout in spouts for group in groups for fault in Fault if applies(spout, fault)
    ]


def whole() -> list[Cell]:
    """Every cell: all states at once, and each by itself."""
    states = (*STATES, *OUTSIDE_STATES)
    return cells([states, *[(state,) for state in states]], (*SPOUTS, *OUTSIDE))


# Where nothing fails is part of each run, and partitions that come and go are in the tests of the spouts too; replays
# with other rows are in the sweep's sample.
ONLY_IN_THE_MATRIX = {Fault.NONE, Fault.PARTITIONS, Fault.CHANGED}


def sample() -> list[Cell]:
    """A covering sample: all states in each run, every fault once but those above, most spouts once."""
    chosen: list[Cell] = []
    faults = [fault for fault in Fault if fault not in IN_THE_SWEEP | ONLY_IN_THE_MATRIX]
    for fault in sorted(faults, key=lambda fault: sum(applies(spout, fault) for spout in SPOUTS)):
        times = {spout: sum(cell.spout == spout for cell in chosen) for spout in SPOUTS if applies(spout, fault)}
        chosen.append(Cell(min(times, key=times.__getitem__), STATES, fault))
    return chosen


class Run:
    """One cell: its source, its topology in one process after the other, and what comes out.

    Args:
        cell: which.
        folder: of this run alone; its warehouse is there, too.
        start: (topology) → a started query; over one warehouse and one ZooKeeper root.
        outside: the stores outside of the warehouse, for a cell that needs them.
    """

    def __init__(
        self,
        cell: Cell,
        folder: Path,
        start: Callable[[TridentTopology], TopologyQuery],
        outside: OutsideStores | None = None,
    ) -> None:
        self.cell, self._start = cell, start
        changes = cell.fault is Fault.CHANGED
        group = Group(cell.spout, str(folder), only=cell.states, changes=changes, count=COUNT)
        self.books = Books(TOPOLOGY, group, str(folder / "warehouse"), outside=outside)
        self.source = group.source
        self._partitions = ["p0", "p1"] if cell.spout in IN_PARTITIONS else ["p0"]
        self.source.write("partitions", self._partitions)

    # --- the topology -----------------------------------------------------------------------

    def topology(self) -> tuple[TridentTopology, list[str]]:
        """The topology, made anew as another process would; and the warnings of building it."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", NotExactlyOnceWarning)
            topology = topology_of(TOPOLOGY, [self.books.group])
        return topology, [str(one.message) for one in caught if one.category is NotExactlyOnceWarning]

    def check_warnings(self) -> None:
        """Building it warns exactly where the table says that the pair is not exactly once."""
        topology, found = self.topology()
        (source,) = topology.graph.sources.values()
        for name, sink in topology.graph.sinks.items():
            row = sink.binding.state_kind.guarantee_row(sink.binding.state)
            wanted = guarantee(spout_kind(source.spout), row) is not Guarantee.EXACTLY_ONCE
            assert any(f"state {name!r}" in text for text in found) == wanted, (name, found)

    # --- running it -------------------------------------------------------------------------

    def go(self) -> dict[str, Outcome]:
        """Runs the cell to its end; state → what came out."""
        self.check_warnings()
        fault = self.cell.fault
        if fault in (Fault.FAILED, Fault.CHANGED):
            # The first two attempts: with others in flight, which are replayed too.
            faults.arm("manifest.write:fail_before:1,manifest.write:do_then_fail:3")
        elif fault in CRASHES:
            faults.arm(self._crash_point(fault))
        query = self._start(self.topology()[0])
        if fault is Fault.PARTITIONS:
            self._change_partitions(query)
        else:
            self.books.feed(TRANSACTIONS)
        if fault in CRASHES:
            self._crash(query)
            query = self._start(self.topology()[0])
        if self.source.changes or fault is Fault.PARTITIONS:
            self.books.feed(TRANSACTIONS)  # what is left
        query.process_all_available(WAIT_SECS)
        assert not faults.unfired(), faults.unfired()
        return self._outcomes()

    def _crash_point(self, fault: Fault) -> str:
        tables = 1 + sum(state.startswith("Delta") for state in self.cell.states)
        own = [state for state in self.cell.states if not state.startswith("Delta")]
        if fault is Fault.BETWEEN_TABLES and set(own) == set(self.cell.states) <= set(APPENDED):
            return "publish.outside:hang:2"
        if fault is Fault.BETWEEN_TABLES and tables == 1:
            # Between the table of all cells and the state of the user's: that one is published second.
            return f"publish.user:hang:{1 + len(own)}"
        return CRASHES[fault].format(second=tables + 1, between=tables + 2)

    def _crash(self, query: TopologyQuery) -> None:
        """Abandons the coordinator where it hangs: its ZooKeeper session ends, as when its process dies."""
        deadline = time.monotonic() + WAIT_SECS
        while faults.unfired():
            assert query.is_active, query.exception()
            assert time.monotonic() < deadline, f"never reached {faults.unfired()}"
            time.sleep(0.01)
        # The transaction behind it is in flight too: a batch spout has given its rows away, and will not again.
        while self.cell.spout == "batch" and self.source.read("popped", 0) < COUNT:
            assert time.monotonic() < deadline, "the transaction behind the one that hangs was never emitted"
            time.sleep(0.01)
        assert query._zk is not None
        query._zk.close()

    def _change_partitions(self, query: TopologyQuery) -> None:
        self.books.feed(1)
        query.process_all_available(WAIT_SECS)
        self._partitions.append("p2")
        self.source.write("partitions", ["p0", "p2"])  # p1 goes, p2 comes
        self.books.feed(TRANSACTIONS - 1)
        query.process_all_available(WAIT_SECS)
        assert self.source.read("refreshed") == ["p0", "p2"]
        self.source.write("partitions", self._partitions)  # p1 returns and goes on where it was

    # --- what came out ----------------------------------------------------------------------

    def _outcomes(self) -> dict[str, Outcome]:
        words = [word for partition in self._partitions for word in self.source.rows(partition)]
        if self.source.changes:
            # A committed first attempt's rows are real: what the committed attempts held is what counts. The attempts
            # that failed were the first ones of transactions 1 and 2.
            audit = [word for words in self.books.stored.audit().values() for word in words]
            ghosts = [word for word in audit if is_ghost(word)]
            assert not {"ghost-1", "ghost-2"} & set(ghosts), ghosts
            words += ghosts
        return {state: self._outcome(state, words) for state in self.cell.states}

    def _outcome(self, state: str, words: list[str]) -> Outcome:
        oracle, found = self.books.wanted(state, words), self.books.found(state)
        missing, extra = oracle - found, found - oracle
        if missing and extra:
            return Outcome.BOTH
        if missing:
            return Outcome.LOST
        return Outcome.DOUBLED if extra else Outcome.EXACT
