"""The spouts of a batch group on the driver, as the coordinator's driver calls them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trident.coordinators import faults
from trident.coordinators.errors import Halted, TableError
from trident.coordinators.identities import TransactionAttempt, same_start
from trident.coordinators.ports import Beginning, Initialized
from trident.coordinators.stored_json import MAY_BE_MISSING, Unreadable, as_record, parse_stored
from trident.spouts.contracts import Emitted, Json
from trident.spouts.executors import BeginContext, SpoutExecutor
from trident.states.core import storage
from trident.states.core.group_context import GroupContext
from trident.states.core.storage import explained_storage_errors

log = logging.getLogger("trident.query")
# How long closing waits for a backlog that is being asked for: the spout is closed all the same.
_BACKLOG_SECS = 2.0


class TridentSpoutHost:
    """Calls the executors of a group's streams.

    A group starts a transaction when any of its streams is ready, as Storm does.

    Args:
        executors: tx_id → the stream's executor.
    """

    def __init__(self, executors: Mapping[str, SpoutExecutor]) -> None:
        self.executors = executors
        self._backlog: dict[str, int] = {}
        self._backlog_errors: dict[str, str] = {}
        self._asking, self._closed = threading.Lock(), threading.Event()

    def is_ready(self, txid: int) -> bool:
        # Every stream is asked: a stream that looks for new data when asked must not starve.
        return any([executor.is_ready(txid) for executor in self.executors.values()])

    def refresh(self) -> None:
        """The next readiness answers take into account what is there now."""
        for executor in self.executors.values() if not self._closed.is_set() else ():
            executor.refresh()

    def initialize(self, beginning: Beginning) -> Initialized:
        """The metadata for each stream.

        Raises:
            SourceError: a coordinator gave something that is not JSON.
        """
        pinned: dict[str, Json] = {}
        unpinned: dict[str, Json] = {}
        txid = beginning.attempt.txid
        for tx_id, executor in self.executors.items():
            of_stream = beginning.pins.get(tx_id, {})
            earlier = [other for other in of_stream if other < txid]
            context = BeginContext(
                beginning.attempt,
                beginning.parent,
                of_stream[max(earlier)] if earlier else None,
                of_stream.get(txid),
                beginning.committed.get(tx_id, {}),
                beginning.shrink,
                beginning.timeout_secs,
            )
            (pinned if executor.pins else unpinned)[tx_id] = executor.initialize(context)
        return Initialized(pinned, unpinned)

    def cancel(self, attempt: TransactionAttempt) -> None:
        for executor in self.executors.values():
            executor.cancel(attempt)

    def cancel_all(self) -> None:
        """Nothing that runs here is wanted any more."""
        for executor in self.executors.values():
            executor.cancel_all()

    def commit(self, attempt: TransactionAttempt, commit_data: Mapping[str, Json]) -> None:
        for tx_id, data in commit_data.items():
            self.executors[tx_id].commit(attempt, data)

    def success(self, attempt: TransactionAttempt) -> None:
        """Tells every spout, also when one of them raises; then raises the first error."""
        errors: list[Exception] = []
        for executor in self.executors.values():
            try:
                executor.success(attempt)
            except Exception as error:  # the others must hear of it all the same
                errors.append(error)
        if errors:
            raise errors[0]

    def messages(self) -> tuple[int, int]:
        """Counts the messages that single-message spouts have handed out so far, and those that are not settled."""
        counts = [executor.counts() for executor in self.executors.values() if hasattr(executor, "counts")]
        return sum(taken for taken, _ in counts), sum(unsettled for _, unsettled in counts)

    def backlog(self) -> dict[str, int]:
        """Rows, bytes and files waiting, over all streams, as :meth:`ask_backlog` found them last.

        A unit that a stream does not know is not there: the others' sum would be too small, and perhaps 0.
        """
        return dict(self._backlog)

    def ask_backlog(self, explain: Callable[[BaseException], BaseException] = lambda error: error) -> list[str]:
        """Asks the spouts how much waits; never raises, and asks none that is closed.

        A spout's ``backlog`` is for show: it may raise or hang, and nothing but the figure may suffer.

        Args:
            explain: says of an error what is behind it, as a full disk.

        Returns:
            what failed and had not failed before, in words.
        """
        found: list[Mapping[str, int]] = []
        failed = {}
        for tx_id, executor in self.executors.items():
            with self._asking:
                if self._closed.is_set():
                    return []
                try:
                    found.append(_counts(executor.backlog()))
                except Exception as raised:
                    found.append({})
                    error = explain(raised)
                    failed[tx_id] = f"the backlog of stream {tx_id!r} is not known: {type(error).__name__}: {error}"
        new = [text for tx_id, text in failed.items() if tx_id not in self._backlog_errors]
        self._backlog, self._backlog_errors = added(found), failed
        return new

    def close(self) -> None:
        """Closes every spout, also when one of them raises; they are asked for nothing afterwards."""
        self._closed.set()
        if self._asking.acquire(timeout=_BACKLOG_SECS):
            self._asking.release()
        close_all(self.executors)


def close_all(executors: Mapping[str, SpoutExecutor]) -> None:
    """Closes the spouts; an exception of one is logged, so that the others are closed too."""
    for tx_id, executor in executors.items():
        try:
            executor.close()
        except Exception as error:
            log.warning("closing the spout of stream %s raised: %s: %s", tx_id, type(error).__name__, error)


def _counts(backlog: Any) -> dict[str, int]:
    """The units that a spout knows, as numbers."""
    if backlog is None:
        return {}
    return {unit: int(count) for unit, count in vars(backlog).items() if count is not None}


def added(backlogs: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The sum of each unit that all of them have: of one that is not known everywhere no sum is known."""
    units = [unit for unit in (backlogs[0] if backlogs else ()) if all(unit in one for one in backlogs)]
    return {unit: sum(one[unit] for one in backlogs) for unit in units}


class RecoverySpouts:
    """The host while a pending decision is finished: nothing is emitted, committer spouts hear of it.

    Args:
        make: makes the executor of a stream; called only for streams that are to hear something.
        finishing: the txid of the decision.
    """

    def __init__(
        self, make: Callable[[str], SpoutExecutor | None], tx_ids: Iterable[str] = (), finishing: int = 0
    ) -> None:
        self._make, self._tx_ids, self._finishing = make, tuple(tx_ids), finishing
        self._executors: dict[str, SpoutExecutor] = {}
        # Commit and success are told by two threads; a spout is made once.
        self._lock = threading.Lock()

    def is_ready(self, txid: int) -> bool:
        return False

    def initialize(self, beginning: Beginning) -> Initialized:
        raise AssertionError("no transaction begins while a decision is finished")

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Nothing runs."""

    def commit(self, attempt: TransactionAttempt, commit_data: Mapping[str, Json]) -> None:
        for tx_id, data in commit_data.items():
            executor = self._executor(tx_id)
            if executor is None:
                raise Halted(
                    f"a decided transaction cannot be finished: it has commit data of stream {tx_id!r}",
                    found="a topology without that stream",
                    expected="the topology that decided it",
                    action="start the topology as it was once, so that its source hears of the transaction",
                )
            executor.commit(attempt, data)

    def success(self, attempt: TransactionAttempt) -> None:
        """Of the transaction before the one that is finished.

        Its coordinator may have died after the next decision and before it told
        this, and once that has advanced no process would. The host tells the
        finished one itself to all spouts, right after.
        """
        if attempt.txid < self._finishing:
            executors = {tx_id: self._executor(tx_id) for tx_id in self._tx_ids}
            TridentSpoutHost({tx_id: made for tx_id, made in executors.items() if made}).success(attempt)

    def _executor(self, tx_id: str) -> SpoutExecutor | None:
        with self._lock:
            if tx_id not in self._executors:
                executor = self._make(tx_id)
                if executor is None:
                    return None
                self._executors[tx_id] = executor
            return self._executors[tx_id]

    def close(self) -> None:
        with self._lock:
            executors = dict(self._executors)
        close_all(executors)


# The batches that a fork is given: for its first transactions the metadata that another topology's streams had.
#
# A fork goes on behind transaction N of its original, and reads the same batches: the metadata of N + 1 … M come from
# the original's kept manifests, and stand in a file of the fork's own. Until M its streams are asked for nothing new;
# they see what a topology sees that has begun these transactions before and starts again: the metadata is there, and
# the batch is emitted from it.
#
# Of a transaction that changed nothing no manifest is kept. The fork commits it empty, too: of the rows that were read
# and left out then it reads none. Streams whose metadata is not pinned (opaque partitions) cut their own batches.


WRITE = faults.register("given.write", "the file of the batches that a fork is given")
_SCHEMA = 1
_FILE = "given-batches.json"


@dataclass(frozen=True)
class GivenBatches:
    """The batches of a batch group's transactions, up to one.

    Attributes:
        incarnation: of the topology that is given them, as it was made; its rollbacks go back to it.
        after: N, the transaction that the topology was forked at.
        until: M; the last transaction that has a batch here.
        stop: whether no transaction begins behind M.
        batches: txid → tx_id → metadata, of streams whose metadata is pinned. Of a txid between N and M that is not
            here the batch is empty.
        may_acknowledge: whether spouts that can change their source may run (``trident fork --accept-acknowledging``).
    """

    incarnation: str
    after: int
    until: int
    stop: bool
    batches: Mapping[int, Mapping[str, Any]]
    may_acknowledge: bool = field(default=False, metadata={MAY_BE_MISSING: True})

    def problem(self) -> str | None:
        """Returns what contradicts itself, or None."""
        if self.after > self.until:
            return "`until` is below `after`"
        if any(not self.after < txid <= self.until for txid in self.batches):
            return "`batches` has a txid that is not greater than `after` and at most `until`"
        return None

    def of(self, tx_id: str) -> dict[int, Any]:
        """txid → metadata of one stream."""
        return {txid: streams[tx_id] for txid, streams in self.batches.items() if tx_id in streams}

    def put_into(self, of: GroupContext) -> int:
        """Writes the file, whole and durable; returns its size in bytes."""
        path = of.folder / _FILE
        batches = {str(txid): dict(streams) for txid, streams in self.batches.items()}
        data = json.dumps({"schema": _SCHEMA, **vars(self), "batches": batches}, sort_keys=True).encode()
        with faults.fault_point(WRITE):
            storage.make_folder(path.parent, of.warehouse)
            storage.write(path, data)
        return len(data)


def load_given(of: GroupContext) -> GivenBatches | None:
    """The batches that a group's first transactions are given; None of a topology that is no fork.

    Raises:
        TableError: the file cannot be read. It is not passed over: the streams would cut other batches.
        StoreProblem: the store refuses, or does not answer.
    """
    path = of.folder / _FILE
    try:
        with explained_storage_errors():
            found = as_record(parse_stored(storage.read(path)), GivenBatches, _SCHEMA)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TableError(f"the batches that {of.topology} is given cannot be read: {path}: {error}") from error
    except Unreadable as error:
        raise TableError(
            f"the batches that {of.topology} is given cannot be read: {path}: {error}",
            found=getattr(error, "found", None),
            expected=f"a JSON object of schema {_SCHEMA}",
            action="bring the file back from a back-up of the warehouse, or make the fork again",
        ) from error
    return found if same_start(found.incarnation, of.incarnation) else None


class GivenBatchesHost(TridentSpoutHost):
    """The spouts of a group whose first transactions are given.

    Args:
        executors: tx_id → the stream's executor.
    """

    def __init__(self, executors: Mapping[str, SpoutExecutor], given: GivenBatches) -> None:
        super().__init__(executors)
        self._given = given

    def is_ready(self, txid: int) -> bool:
        if txid > self._given.until:
            return not self._given.stop and super().is_ready(txid)
        super().is_ready(txid)  # a stream that looks for new data when asked must not starve
        return True

    def initialize(self, beginning: Beginning) -> Initialized:
        if beginning.attempt.txid > self._given.until:
            return super().initialize(beginning)
        # Not smaller after a timeout: the batch would be another one than the original's.
        return super().initialize(replace(beginning, shrink=False))


class GivenExecutor:
    """A stream's executor, where the batches of its first transactions are given.

    Args:
        executor: of a spout whose metadata is pinned.
    """

    pins = True

    def __init__(self, executor: SpoutExecutor, tx_id: str, given: GivenBatches) -> None:
        self._executor, self._given, self._of_stream = executor, given, given.of(tx_id)

    def _is_given(self, txid: int) -> bool:
        return self._given.after < txid <= self._given.until

    def initialize(self, context: BeginContext) -> Json:
        txid = context.attempt.txid
        if not self._is_given(txid):
            return self._executor.initialize(context)
        if txid not in self._of_stream:
            return context.previous  # where the stream stands: it does not move
        return self._executor.initialize(replace(context, current=self._of_stream[txid]))

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        if self._is_given(attempt.txid) and attempt.txid not in self._of_stream:
            return Emitted([])
        return self._executor.emit_batch(attempt, metadata)

    def resume(self, txid: int, metadata: Json) -> None:
        """As after a crash with all of these transactions in flight: the last of them is where the stream goes on."""
        last = max((found for found in self._of_stream if found > txid), default=None)
        if last is None:
            self._executor.resume(txid, metadata)
        else:
            self._executor.resume(last, self._of_stream[last])

    def __getattr__(self, name: str) -> Any:
        """All else is as the stream's own."""
        return getattr(self._executor, name)
