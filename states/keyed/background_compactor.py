"""The thread that keeps the keyed states of a batch group merged, beside its batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pyspark import InheritableThread

from trident.coordinators.errors import CommitConflict, Deposed, Halted
from trident.coordinators.retries import backoff_secs
from trident.states.keyed.compaction import MergePoints
from trident.states.keyed.compactor import Compactor, MergeReport

log = logging.getLogger("trident.compactor")

# The name under which the record of the tables' versions fails; no state has it: with a blank.
VIEWS = "the views"
_BACKOFF_SECS_MIN = 0.5
_BACKOFF_SECS_MAX = 60.0
# How often a stop looks whether it is to give up, and how long a MERGE that is cancelled may take to end.
_CHECK_SECS, _CANCEL_SECS = 0.1, 10.0


@dataclass
class MergeTotals:
    """The MERGEs of one state by one compactor, for metrics.

    Attributes:
        count, seconds: those that were done, and the time that they took.
        failures: those that raised; one that another compactor was quicker at is none.
    """

    count: int = 0
    seconds: float = 0.0
    failures: int = 0


class BackgroundCompactor:
    """Merges and drops the logs of a group's keyed states, one state at a time.

    A failure never fails a batch: it is reported and tried again with back-off,
    for the rows are in the log. ``Halted`` and ``Deposed`` end the thread.

    Args:
        compactors: one per keyed state; used by this thread only from start to stop.
        on_error: told of each error with the state's name; must not raise.
        on_merge: told of each MERGE with the state's name; must not raise.
        record: called at first and after MERGEs, to record the versions that all tables have of one transaction;
            where it fails it is told to ``on_error`` under the name VIEWS, and tried again.
    """

    def __init__(
        self,
        compactors: Sequence[Compactor],
        on_error: Callable[[str, BaseException], None] | None = None,
        on_merge: Callable[[str, MergeReport], None] | None = None,
        poll_secs: float = 1.0,
        record: Callable[[], object] | None = None,
    ) -> None:
        self._compactors = list(compactors)
        self._points = MergePoints(compactor.state.name for compactor in self._compactors)
        self._record = record
        self._unrecorded = record is not None
        self._on_error = on_error or (lambda name, error: log.warning("compacting %s: %s", name, error))
        self._on_merge = on_merge or (lambda name, report: log.debug("merged %s: %s", name, report))
        self._poll_secs = poll_secs
        self._wake = threading.Condition()
        self._advanced = 0
        self._stopping = self._final = False
        self._fatal: BaseException | None = None
        names = [VIEWS, *(compactor.state.name for compactor in self._compactors)]
        self._failures, self._not_before = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
        self._thread: threading.Thread | None = None
        self._totals = {compactor.state.name: MergeTotals() for compactor in self._compactors}

    @property
    def merged(self) -> dict[str, tuple[int | None, MergeTotals]]:
        """State → the last transaction known to be in its plain table, and its MERGEs; from memory, from any thread."""
        return {one.state.name: (one.known_merged, self._totals[one.state.name]) for one in self._compactors}

    def start(self, advanced: int = 0) -> None:
        """Starts the thread; ``advanced`` is the last advanced txid."""
        if self._thread is not None:
            raise RuntimeError("a BackgroundCompactor is started once")
        self._advanced = max(self._advanced, advanced)
        self._thread = InheritableThread(target=self._run, name="trident-compactor", daemon=True)
        self._thread.start()

    def advanced(self, txid: int) -> None:
        """Tells that txid is advanced; returns at once."""
        with self._wake:
            if txid > self._advanced:
                self._advanced = txid
                self._wake.notify_all()

    def stop(
        self, compact: bool = True, timeout_secs: float = 60.0, give_up: Callable[[], bool] = lambda: False
    ) -> bool:
        """Ends the thread; with ``compact`` every table is first merged up to the last advanced txid.

        Args:
            timeout_secs: how long the merging may take.
            give_up: asked meanwhile; True ends the merging before its time.

        Returns:
            True if that was done within the time. If not, the running MERGE is
            cancelled: it happens as a whole or not at all, and the rows stay in the log.
        """
        with self._wake:
            self._stopping, self._final = True, compact
            self._wake.notify_all()
        thread = self._thread
        if thread is None:
            return not compact
        deadline = time.monotonic() + timeout_secs
        while compact and thread.is_alive() and time.monotonic() < deadline and not give_up():
            thread.join(_CHECK_SECS)
        in_time = not thread.is_alive() or not compact
        self._final = self._final and in_time
        deadline = time.monotonic() + _CANCEL_SECS
        while thread.is_alive() and time.monotonic() < deadline:
            # A MERGE is several jobs, and what is cancelled is those that run just now: again, until none comes.
            for compactor in self._compactors:
                compactor.cancel()
            thread.join(0.2)
        if thread.is_alive():
            return False
        merged = not any(count for name, count in self._failures.items() if name != VIEWS)
        return not compact or (in_time and self._fatal is None and merged)

    def lagging_tables(self, topology: str) -> list[str]:
        """Names the plain tables that lack advanced transactions, and the remedy, a line for each; never raises."""
        texts = []
        for compactor in self._compactors:
            with suppress(Exception):  # for people only
                lacking = self._advanced - compactor.merged_upto()
                if lacking > 0:
                    texts.append(
                        f"the plain table {compactor.state.name} lacks {lacking} transaction{'s' * (lacking != 1)};"
                        f" run `trident compact {topology}`"
                    )
        return texts

    def _run(self) -> None:
        seen = -1
        while True:
            with self._wake:
                # A txid that was told while a MERGE ran must not wait for the next poll.
                if not self._stopping and self._advanced == seen:
                    self._wake.wait(self._poll_secs)
                stopping, advanced = self._stopping, self._advanced
                seen = advanced
            if stopping:
                if self._final:
                    self._finish(advanced)
                return
            for compactor in self._compactors:
                if self._stopping:
                    break
                if self._is_time(compactor.state.name):
                    self._merge(compactor, advanced, force=False)
            if self._unrecorded and self._fatal is None and not self._stopping and self._is_time(VIEWS):
                self._record_views()
            if self._fatal is not None:
                return

    def _is_time(self, name: str) -> bool:
        return time.monotonic() >= self._not_before[name]

    def _finish(self, advanced: int) -> None:
        works: list[Callable[[], bool]] = [partial(self._merge, one, advanced, True) for one in self._compactors]
        for work in (*works, self._record_views):
            for _ in range(3):
                if self._fatal is not None or not self._final:
                    return
                if work():
                    break
                time.sleep(_BACKOFF_SECS_MIN)

    def _merge(self, compactor: Compactor, advanced: int, force: bool) -> bool:
        name = compactor.state.name

        def merge() -> None:
            upto = advanced if force else self._points.upto(name, compactor.known_merged or 0, advanced)
            report = compactor.merge_once(advanced, force, upto)
            if report is not None:
                self._points.merged(name, report.p_new)
                self._unrecorded = self._record is not None
                self._totals[name].count += 1
                self._totals[name].seconds += report.seconds
                self._on_merge(name, report)
                compactor.drop_once(advanced)

        return self._done(name, merge)

    def _record_views(self) -> bool:
        def record() -> None:
            if self._record is not None and self._unrecorded:
                self._record()
                self._unrecorded = False

        return self._done(VIEWS, record)

    def _done(self, name: str, work: Callable[[], None]) -> bool:
        """Does a piece of work, or reports why not and has it tried later."""
        try:
            work()
        except CommitConflict as error:
            # Another compactor was quicker: its work counts as well as ours.
            log.debug("compacting %s: %s", name, error)
            self._later(name)
            return False
        except (Halted, Deposed) as error:
            self._fatal = error
            self._note_failure(name)
            self._on_error(name, error)
            return False
        except Exception as error:
            if self._stopping and not self._final:
                return False  # cancelled by stop()
            self._later(name)
            self._note_failure(name)
            self._on_error(name, error)
            return False
        self._failures[name], self._not_before[name] = 0, 0.0
        return True

    def _note_failure(self, name: str) -> None:
        if name in self._totals:  # not of the views
            self._totals[name].failures += 1

    def _later(self, name: str) -> None:
        self._failures[name] += 1
        delay = backoff_secs(self._failures[name], _BACKOFF_SECS_MIN, _BACKOFF_SECS_MAX)
        self._not_before[name] = time.monotonic() + delay
