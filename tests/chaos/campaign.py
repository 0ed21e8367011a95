"""One topology through one fault after the other; after each everything that is stored is compared with the source.

A coordinator that is to die is *abandoned*: its ZooKeeper session ends while
its thread waits at the fault point, and another coordinator takes over in this
process. One that hangs is *replaced*: it keeps its session, another bumps its
fence and leads. Once that one has gone on, both are let go: they wake up as
zombies, and the one that hung does the I/O that it was stopped at, with a
connection that is as good as any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.chaos.cases import BIRTH, HANG, RECOVERY, STOP, Case
from tests.chaos.checker import Books
from tests.chaos.outside_stores import OutsideStores
from tests.chaos.workload import Group, topology_of
from tests.servers.zk_fixtures import eventually
from trident import TridentTopology
from trident.coordinators import faults
from trident.coordinators.errors import ZooKeeperUnreachable
from trident.running.query import TopologyQuery

TOPOLOGY = "swept"
WAIT_SECS = 90.0
PER_CASE = 2  # transactions
# A decided transaction whose coordinator is gone: what a recovery has most to do with. Another is behind it.
BEFORE_A_RECOVERY = "publish.table:do_then_hang"

Start = Callable[[TridentTopology], TopologyQuery]


class Campaign:
    """Cases of one kind over one warehouse.

    Args:
        kind: of the topology.
        folder: of this campaign alone.
        warehouse: of this campaign alone, a path or URL.
        start: starts a topology over it.
        znodes: () → every path under the campaign's root.
        depose: has the next contender take whoever leads for gone, though its session lives.
        merging: whether a table is merged all the time, where the kind has one that is merged.
        outside: the stores outside of the warehouse, of a kind that has some.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        warehouse: str,
        start: Start,
        znodes: Callable[[], list[str]],
        depose: Callable[[], None],
        merging: bool,
        outside: OutsideStores | None = None,
    ) -> None:
        self._start, self._depose = start, depose
        self.books = Books(TOPOLOGY, Group(kind, str(folder)), warehouse, znodes, outside)
        self._merging = merging
        self._query: TopologyQuery | None = None
        self._abandoned: list[TopologyQuery] = []
        self._starting: list[threading.Thread] = []
        self._handing_over = threading.Lock()
        self._give_up_starting: Callable[[], None] = lambda: None

    # --- one case -----------------------------------------------------------------------------

    def run(self, *cases: Case) -> None:
        """One fault, or one after the other; then everything must be as if there had been none."""
        first = cases[0]
        if first.time not in (BIRTH, RECOVERY) and self._query is None:
            self._begin()
        if first.time == RECOVERY:
            self._recover_into(first)
        elif first.time == STOP:
            self._stop_into(first)
        else:
            faults.arm(">".join(case.fault for case in cases))
            self.books.feed(PER_CASE)
            if self._query is None:
                self._start_in_background()
            for left, case in zip(range(len(cases) - 1, -1, -1), cases):
                self._until_fired(case, left)
                if case.abandons:
                    self._abandon(case)
                if left:
                    self.books.feed(PER_CASE)
        if self._query is None and not any(case.abandons for case in cases):
            self._starting[-1].join(WAIT_SECS)  # a start that has met its fault may lead after all
        if self._query is None:
            self._begin()
        self._drain()
        assert not faults.unfired(), f"never happened: {faults.unfired()}"
        self._wake_the_abandoned()
        zombies = any(case.outcome == HANG for case in cases)
        if zombies:
            # The successor works on beside the zombie, and after it. After one that died, the next case does.
            self._one_more()
        else:
            self._until_ended()
        self.books.check()
        for _ in range(3):
            # What a task has written after its attempt was cancelled and cleaned up after goes with one of the next.
            if zombies or self.books.cleaned(within_secs=1.0):
                break
            self._one_more()
        self.books.check_cleaned(files=not zombies)

    def merge(self, merging: bool) -> None:
        """From here on a table is merged all the time, or only now and then."""
        if merging != self._merging and self._query is not None:
            self._query.stop(WAIT_SECS, compact=False)
            self._query = None
        self._merging = merging

    def goes_on(self) -> None:
        """Behind the last case: whoever leads can make one transaction more."""
        self._one_more()
        self.books.check()

    def _one_more(self) -> None:
        self.books.feed(1)
        self._drain()

    def _recover_into(self, case: Case) -> None:
        """A coordinator is lost with a decided transaction; its successor meets the fault."""
        if self._query is None:
            self._begin()
        faults.arm(BEFORE_A_RECOVERY)
        self.books.feed(PER_CASE)
        self._until_fired(case)
        faults.arm(case.fault)
        self._abandon(None, succeeded=False)
        self._start_in_background()
        self._until_fired(case)
        if case.abandons:
            self._abandon(case)

    def _stop_into(self, case: Case) -> None:
        self.books.feed(PER_CASE)
        self._drain()
        faults.arm(case.fault)
        query, self._query = self._query, None
        assert query is not None
        stopping = threading.Thread(target=query.stop, args=(WAIT_SECS,), daemon=True)
        stopping.start()
        self._starting.append(stopping)
        self._until_fired(case)
        self._abandoned.append(query)
        if case.abandons:
            query._zk.close()  # type: ignore[union-attr]

    # --- coordinators ---------------------------------------------------------------------------

    def _topology(self) -> TridentTopology:
        """Made anew, as another process would."""
        merged = {"again": 2 if self._merging else 10} if self.books.group.kind == "two tables" else None
        return topology_of(TOPOLOGY, [replace(self.books.group, merged=merged)])

    def _begin(self) -> None:
        self._query = self._start(self._topology())

    def _start_in_background(self) -> None:
        """A start that may hang: in a thread, whose query is taken once it is there."""
        begun = threading.Event()

        def start() -> None:
            try:
                query = self._start(self._topology())
            except ZooKeeperUnreachable:  # refused by the fault, as its caller would be told
                return
            with self._handing_over:
                if not begun.is_set():
                    self._query = query
                    return
            # Came too late: another is to lead, also where this one hangs already.
            self._abandoned.append(query)
            query._supervisor.stop_requested.set()
            query._zk.close()  # type: ignore[union-attr]

        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        self._starting.append(thread)
        self._give_up_starting = begun.set

    def _until_fired(self, case: Case, left: int = 0) -> None:
        """Until all that is armed has happened but so many, which are to come behind this case's."""
        deadline = time.monotonic() + WAIT_SECS
        while len(faults.unfired()) > left:
            query = self._query
            assert query is None or query.is_active or query.exception() is None, query.exception()
            assert time.monotonic() < deadline, f"{case} was never reached"
            time.sleep(0.01)

    def _abandon(self, case: Case | None, succeeded: bool = True) -> None:
        with self._handing_over:
            self._give_up_starting()
            query, self._query = self._query, None
        if query is not None:
            self._abandoned.append(query)
            assert query._zk is not None
            if case is not None and case.outcome == HANG:
                query._supervisor.stop_requested.set()  # it must not contend again: its successor is to lead
                self._depose()
            else:
                query._zk.close()
        if succeeded:
            self._begin()

    def _wake_the_abandoned(self) -> None:
        faults.disarm()
        for query in self._abandoned:
            query._supervisor.stop_requested.set()

    def _until_ended(self) -> None:
        """Until the abandoned do nothing more to what is compared: their session is lost, so they cannot lead again."""
        for query in self._abandoned:
            assert eventually(lambda query=query: not query._supervisor.groups, WAIT_SECS), (
                "an abandoned coordinator goes on"
            )

    def close(self) -> None:
        """Ends every coordinator; the zombies too."""
        self._wake_the_abandoned()
        for query in [*self._abandoned, *([self._query] if self._query else [])]:
            query.stop(60, compact=False)

    def _drain(self) -> None:
        deadline = time.monotonic() + WAIT_SECS
        while self._query is None:
            assert time.monotonic() < deadline, "the coordinator never started"
            time.sleep(0.01)
        self._query.process_all_available(WAIT_SECS)
