"""The batches that a fork is given: for its first transactions the metadata that another topology's streams had.

A fork goes on behind transaction N of its original, and reads the same batches: the metadata of N + 1 … M come from
the original's kept manifests, and stand in a file of the fork's own. Until M its streams are asked for nothing new;
they see what a topology sees that has begun these transactions before and starts again: the metadata is there, and
the batch is emitted from it.

Of a transaction that changed nothing no manifest is kept. The fork commits it empty, too: of the rows that were read
and left out then it reads none. Streams whose metadata is not pinned (opaque partitions) cut their own batches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trident.coordinators import faults
from trident.coordinators.errors import TableError
from trident.coordinators.incarnation_ids import same_start
from trident.coordinators.ports import Beginning, Initialized
from trident.coordinators.stored_json import MAY_BE_MISSING, Unreadable, as_record, parse_stored
from trident.coordinators.transactions import TransactionAttempt
from trident.spouts.contracts import Emitted, Json
from trident.spouts.executors import BeginContext, SpoutExecutor
from trident.spouts.host import TridentSpoutHost
from trident.states.core import storage
from trident.states.core.group_context import GroupContext
from trident.states.core.store_problems import stores_told

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
            return "`batches` has a txid that is not behind `after` and up to `until`"
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
        with stores_told():
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
