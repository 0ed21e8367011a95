"""A running topology, as its user holds it: its status, its results, its end."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from trident.config import TridentConfig
from trident.coordinators.errors import CoordinationError, SourceError, TridentError
from trident.coordinators.ports import Site
from trident.coordinators.registration import IdentityDict, Registration
from trident.coordinators.supervisor import Supervisor
from trident.coordinators.threads import working_on
from trident.coordinators.zookeeper import ZooKeeper
from trident.drpc.requests import TIMEOUT_SECS, Answer
from trident.planning.groups import GroupPlan
from trident.running.ending import Ending
from trident.running.query_base import QueryBase
from trident.running.reading import get_running, read_running
from trident.running.reporting import Reporter
from trident.running.shown import ShownProgress, ShownProgresses, ShownStatus, query_facts
from trident.streams.shown import Facts

# Waits until all that a topology's sources have now is committed: behind ``TopologyQuery.process_all_available``.


# How long a standby waits beyond the session timeout, and how long a source may fail to say whether it has data.
_TAKE_OVER_SECS, _UNREADY_SECS = 10.0, 30.0


def process_all_available(
    name: str, supervisor: Supervisor, site: Site, session_timeout_secs: float, timeout_secs: float | None
) -> None:
    """See ``TopologyQuery.process_all_available``.

    Args:
        session_timeout_secs: how long a leader that has died may still count as alive.
    """
    began = time.monotonic()
    deadline = None if timeout_secs is None else began + timeout_secs

    def check() -> None:
        _check_can_process(name, supervisor, site)

    while True:
        _wait_for_turn(name, supervisor, began, session_timeout_secs, timeout_secs)
        check()
        with supervisor.changed:
            groups = list(supervisor.groups)
        for group in groups:
            group.parts.spouts.refresh()
        # A spout that has handed out as much as it may, or waits before a replay, says no although there is more:
        # then messages are open, or others come meanwhile.
        before = [group.parts.spouts.messages() for group in groups]
        idle = (group.driver.wait_idle(deadline, check) for group in groups)
        if (groups or not supervisor.topology.groups) and all(idle):
            messages = [group.parts.spouts.messages() for group in groups]
            if before == messages and not any(unsettled for _, unsettled in before):
                return
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{name} did not process all available data within {timeout_secs} s")
        supervisor.ended.wait(0.01)


def _wait_for_turn(
    name: str, supervisor: Supervisor, began: float, session_timeout_secs: float, timeout_secs: float | None
) -> None:
    """Until this process leads."""
    patience = session_timeout_secs + _TAKE_OVER_SECS if timeout_secs is None else timeout_secs
    with supervisor.changed:
        while not supervisor.leading.is_set() and not supervisor.ended.is_set():
            who = supervisor.standby_of
            left = began + patience - time.monotonic()
            if left > 0 or (timeout_secs is None and not who):  # a recovery takes as long as it takes
                supervisor.changed.wait(min(max(left, 0.05), 0.5))
                continue
            if timeout_secs is not None:
                reason = f": {who}" if who else ""
                raise TimeoutError(f"{name} did not lead within {timeout_secs} s{reason}")
            raise CoordinationError(
                f"{name} is a standby here and processes nothing",
                found=who,
                expected="this process to lead",
                action="ask the process that leads, or stop it; with timeout_secs this waits for longer",
            )


def _check_can_process(name: str, supervisor: Supervisor, site: Site) -> None:
    """Raises where waiting would never end."""
    if supervisor.ended.is_set():
        if supervisor.error is not None:
            raise supervisor.error
        raise TridentError(f"{name} was stopped before all available data was processed")
    if supervisor.paused:
        raise TridentError(f"{name} is paused, and begins no transactions", action="call resume() first")
    for group in list(supervisor.groups):
        unready = group.driver.unready
        if unready is not None and time.monotonic() - unready[0] > _UNREADY_SECS:
            raise SourceError(
                f"whether the sources of {group.name} have data cannot be queried",
                found=site.explain(unready[1]),
                expected="an answer within half a minute",
                action="fix the source and try again; the topology keeps querying",
            ) from unready[1]


log = logging.getLogger("trident.query")


class TopologyQuery(QueryBase):
    """A topology that runs in this process; the counterpart of PySpark's StreamingQuery.

    Made by ``TridentTopology.start``. All methods may be called from any thread. As a context manager it is stopped
    at the end of its block; an exception of the block goes on, and otherwise one that has ended the topology.
    """

    def __init__(self, plans: list[GroupPlan], config: TridentConfig, reporter: Reporter, zk: ZooKeeper) -> None:
        self._plans, self._config, self._reporter, self._zk = plans, config, reporter, zk
        self._supervisor, self._site = reporter.supervisor, reporter.site
        progress = reporter.progress
        super().__init__(progress.name, progress.run_id, reporter.listeners, self._supervisor.ended)

    def _start(self, ending: Ending) -> None:
        self._thread = threading.Thread(
            target=working_on(ending.run, topology=self.name), name=f"trident-{self.name}", daemon=True
        )
        self._thread.start()
        # Each of its own: a spout's backlog may hang, and so may the disk with the status; a stop ends all the same.
        works = {
            "status": self._reporter.refresh_status,
            "backlog": self._reporter.ask_backlogs,
            "stop": ending.time_the_stop,
        }
        for name, work in works.items():
            threading.Thread(target=working_on(work, topology=self.name), name=f"trident-{name}", daemon=True).start()

    def _facts(self) -> Facts:
        return query_facts(self.status)

    def _end_error(self) -> BaseException | None:
        return self._supervisor.error

    @property
    def id(self) -> str:
        """The incarnation: the same over restarts, another after `trident reset`."""
        return self._supervisor.term.incarnation

    @property
    def is_leader(self) -> bool:
        """Tells whether this process coordinates now; False for a standby."""
        return self._supervisor.leading.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """Returns what it does now: the same as ``trident status`` shows, as a dict."""
        return ShownStatus(replace(self._reporter.status(), written_at=round(time.time(), 3)).to_json())

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The last advanced transaction, PySpark's keys in snake_case (docs/semantics.md 15); None before the first."""
        last = self._reporter.progress.last_progress
        return None if last is None else ShownProgress(last)

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last 100 of them, the oldest first."""
        return ShownProgresses(map(ShownProgress, self._reporter.progress.recent_progress))

    def process_all_available(self, timeout_secs: float | None = None) -> None:
        """Blocks until all that the sources have now is committed.

        A standby first waits for its turn: for timeout_secs, or, without it, for as long as a leader that has died
        may still count as alive (the session timeout, and ten seconds more).

        Raises:
            TridentError: the topology ended with it, or was stopped; or it is paused.
            CoordinationError: another process leads; with timeout_secs that is a TimeoutError.
            SourceError: for half a minute every question whether there is data has failed.
            TimeoutError: timeout_secs went by.
        """
        session_timeout_secs = self._config.zookeeper_session_timeout_secs
        process_all_available(self.name, self._supervisor, self._site, session_timeout_secs, timeout_secs)

    def pause(self) -> None:
        """No new transactions; those that have begun are committed."""
        self._supervisor.pause()

    def resume(self) -> None:
        self._supervisor.resume()

    def stop(self, timeout_secs: float | None = None, compact: bool = True) -> None:
        """Finishes what is decided, brings the plain tables up to date, and ends.

        Transactions that are not decided are processed again at the next start. It always ends: work that is not done
        within ``stop_timeout_secs``, and a call of a spout or a state that does not return by then, are left behind,
        which a line in the log says; the last MERGE has ``merge_at_stop_secs``. Nothing is lost by that: the next
        start goes on from it, as after a kill.

        Args:
            timeout_secs: how long this call waits; then it returns, a line says so, and the end goes on
                (``is_active``). None: until the end.
            compact: False leaves the plain tables of keyed states as far behind as they are: quicker, and a
                restart does not mind.
        """
        self.request_stop(compact)
        if not self._supervisor.ended.wait(timeout_secs):
            log.warning("%s is still ending after %g s; is_active says when it has", self.name, timeout_secs)

    def request_stop(self, compact: bool = True) -> None:
        """Stops as :meth:`stop` does, without waiting."""
        self._supervisor.request_stop(compact)

    def _check_follower(self, identity: IdentityDict) -> None:
        """Looks if a topology can go on from this one; asked before this query is stopped for it.

        Raises:
            IdentityMismatch: it cannot, with the difference.
            CoordinationError: a reset or a rollback has not ended, or ZooKeeper cannot be reached.
        """
        Registration(self._zk, self.name).check(identity)

    @property
    def spark(self) -> "SparkSession":
        """The session that the batches run on."""
        return self._site.spark

    def snapshot(self, state: str, txid: int | None = None) -> "DataFrame":
        """The state as of one transaction, the same for all states of its batch group.

        Args:
            state: the state's name.
            txid: as of which transaction; None = the last advanced one.

        Raises:
            TopologyError: no state has that name.
            TableError: that transaction is no longer kept (the message says which is the oldest).
        """
        return read_running(self._site, self._plans, self._advanced(), self.id, state, txid)

    def get(self, state: str, keys: Any = ()) -> Any:
        """The values of some keys of a state, as of the last transaction that has advanced.

        ::

            query.get("counts", "storm")  # {"count": 3}, or None
            query.get("counts", ["storm", "trident"])  # [{"count": 3}, None]

        In the process that leads a state that the batches look up is read from its local copy, in less than a
        millisecond a key. Other states of the warehouse are read from their tables, as ``trident.get`` does; what
        only Spark can read, and maps outside of the warehouse, by a job of Spark over the whole state.

        Args:
            state: the state's name.
            keys: as for ``trident.get``: one key, or a list of keys; nothing for a state without keys.

        Returns:
            of one key a dict of its values by their names, or None; of a list of keys a list of such, in its order.

        Raises:
            TopologyError: no state has that name.
            TableError: the state has no keys, or a file of its tables is gone or not whole.
            FieldError: a key has other columns or types than the state's.
        """
        return get_running(self._site, self._plans, self._advanced(), self.id, state, keys)

    def _advanced(self) -> dict[str, int]:
        """Batch group → its last advanced txid, of the groups that run here."""
        return {group.name: group.driver.last_advanced for group in self._supervisor.groups}

    @property
    def drpc_functions(self) -> dict[str, str]:
        """Function → its arguments with their types, as they were given to ``new_drpc_stream``."""
        return {
            name: ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in plan_.arguments.fields)
            for name, plan_ in self._reporter.front.plans.items()
        }

    @property
    def http_address(self) -> str | None:
        """Where requests are answered over HTTP, "host:port"; None when they are not, or not yet."""
        return self._reporter.front.http_address

    def execute(self, function: str, /, *args: Any, timeout_secs: float = TIMEOUT_SECS, **named: Any) -> Answer:
        """Asks a DRPC stream: ``query.execute("reach", "a.com")``.

        The request runs beside the batches and beside other requests, in Spark's
        pool ``trident-drpc``. It reads the states of one batch group as of one
        transaction, the last advanced one when it began:

        - Delta states and memory maps exactly;
        - opaque(…) and transactional(…) maps exactly, or not at all: they keep one
          or two transactions, so where batches are faster than the request it
          begins again with a newer one, at most ten times, and then fails;
        - non_transactional(…) and states of your own as they are when they are
          asked, perhaps with transactions that have not advanced yet.

        The caller's duty: side effects of its functions may happen twice, as in a batch.

        Args:
            function: the name given to ``new_drpc_stream``.
            args: its arguments by position.
            timeout_secs: how long it may take; its Spark jobs are cancelled then.
            named: its arguments by name.

        Returns:
            the rows, in no promised order: a list, whose ``as_of`` says as of
            which transaction of each batch group it holds.

        Raises:
            UnknownFunction: there is no such function; with those there are.
            WrongArguments: the arguments do not fit its fields.
            NotLeading: another process leads the topology, or this one has stopped.
            DrpcTimeout: it took too long.
            UserFunctionError, FailedException: a function of yours raised.
            DrpcError: the states change faster than they can be read.
        """
        return self._reporter.front.execute(function, args, named, timeout_secs)
