"""The tasks of Spark's Python workers for one level of bolts, each with an instance of its own.

Spark carries three columns and looks into none of them but the address: level
and slot say which task a tuple goes to, ``content`` is the pickled tuple. A row
of level 0 is a report, what a task tells the ackers; it is the last row of its
task, so a task that dies has told nothing. Both travel in memory, within one
round. Imported by every worker: keep its imports light.
"""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from trident.states.core import storage
from trident.states.core.place import Place
from trident.tuples.bolts import BasicOutputCollector, BoltContext, Copy, Output, OutputCollector, Report, Tuple
from trident.workers.failures import Label, fail

REPORTS = 0
ADDRESSED = pa.schema([("slot", pa.int32()), ("content", pa.binary())])
_SENT = pa.schema([("level", pa.int32()), ("slot", pa.int32()), ("content", pa.binary())])
# Emitted tuples leave the worker in pieces of this many tuples or bytes: its memory stays small.
_PIECE_TUPLES, _PIECE_BYTES = 1_000, 4 << 20
# The least time between two files by which a worker extends its round: a bolt may reset for every tuple.
_RESETS_APART_SECS = 0.25


@dataclass(frozen=True)
class Origin:
    """A stream of a spout or bolt, as tuples name it by a number."""

    source: str
    stream: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class BoltCode:
    """A bolt on its way to the workers.

    Attributes:
        pickled: the bolt; each task unpickles an instance of its own.
        basic: whether its tuples are acknowledged for it.
        outputs: by stream.
    """

    name: str
    tasks: int
    slot: int
    pickled: bytes
    basic: bool
    outputs: Mapping[str, Output]
    location: str = ""


class ResetSender:
    """Has the time of the round that is running begin anew when a bolt calls ``reset_timeout``. For any threads.

    A task sends Spark's driver nothing before it ends, so it writes a file into the round's own folder in the
    warehouse, which is named after the Spark job group. A worker that cannot reach the warehouse says so in
    ``TupleQuery.last_errors``; then the round has its plain time.

    Args:
        folder: made by the driver; None: rounds have no time limit, so nothing is sent.
    """

    def __init__(self, folder: Place | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sent_at: float | None = None

    def send(self) -> None:
        """Puts a file into the folder of the round that this task belongs to.

        Raises:
            OSError: the worker cannot write there.
        """
        now = time.monotonic()
        with self._lock:
            if self._folder is None or (self._sent_at is not None and now - self._sent_at < _RESETS_APART_SECS):
                return
            self._sent_at = now
            # The driver makes the folder, so a task of a round that is over leaves nothing behind.
            storage.write(storage.join(self._folder, _round_of_task(), uuid.uuid4().hex), b"", durable=False)


def _round_of_task() -> str:
    context = TaskContext.get()
    name = context.getLocalProperty("spark.jobGroup.id") if context is not None else None
    if not name:
        raise OSError("this is no Spark task of a round")
    return str(name)


class BoltRun:
    """One instance of a bolt, from prepare to its report."""

    def __init__(self, topology: str, code: BoltCode, task: int, resets: Place | None = None) -> None:
        self._code, self._label = code, Label(f"bolt {code.name}", code.location)
        self.collector = OutputCollector(Report(code.name, task), code.outputs, send_reset=ResetSender(resets).send)
        self._bolt = pickle.loads(code.pickled)
        self._bolt.context = context = BoltContext(topology, code.name, task, code.tasks)
        if not code.basic:
            self._bolt.collector = self.collector
        self._call("prepare", context)

    def execute(self, tuple: Tuple) -> None:
        """Executes one tuple; an exception of the bolt fails the tuple and is not raised here."""
        try:
            if self._code.basic:
                self._bolt.execute(tuple, BasicOutputCollector(self.collector, tuple))
            else:
                self._bolt.execute(tuple)
        except (Exception, SystemExit) as error:
            self.collector.fail(tuple, error)
            return
        if self._code.basic:
            self.collector.ack(tuple)

    def finish(self) -> Report:
        """Cleans up and tells what became of the tuples."""
        self._call("cleanup")
        return self.collector.close()

    def abandon(self) -> None:
        """Cleans up after a failure, which must be told: an exception of cleanup's is dropped."""
        try:
            self._call("cleanup")
        except Exception:
            pass
        self.collector.close()

    def _call(self, method: str, *args: Any) -> None:
        call = getattr(self._bolt, method, None)
        if not callable(call):
            return
        try:
            call(*args)
        except (Exception, SystemExit) as error:
            fail(self._label, error, {}, place=f"in {method}")


@dataclass(frozen=True)
class LevelTask:
    """The function for mapInArrow: the bolts of one level.

    Attributes:
        resets: where the driver is told of ``reset_timeout``; None: it is not told.
    """

    topology: str
    bolts: Sequence[BoltCode]
    origins: Sequence[Origin]
    resets: Place | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # One Spark partition is one task; were it several, each would still have its own instance.
        runs: dict[int, BoltRun] = {}
        try:
            for batch in batches:
                for slot, content in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist()):
                    run = runs.get(slot)
                    if run is None:
                        run = runs[slot] = self._start(slot)
                    run.execute(self._tuple(content))
                    if run.collector.waiting >= _PIECE_TUPLES or run.collector.waiting_bytes >= _PIECE_BYTES:
                        yield _batch(run.collector.drain())
            while runs:
                slot, run = runs.popitem()
                report = run.finish()
                yield _batch([*run.collector.drain(), (REPORTS, slot, pickle.dumps(report, 5))])
        except BaseException:  # a task that is stopped early, too
            for run in runs.values():
                run.abandon()
            raise

    def _start(self, slot: int) -> BoltRun:
        code = next(code for code in self.bolts if code.slot <= slot < code.slot + code.tasks)
        return BoltRun(self.topology, code, slot - code.slot, self.resets)

    def _tuple(self, content: bytes) -> Tuple:
        number, payload, ids = pickle.loads(content)
        origin = self.origins[number]
        return Tuple(pickle.loads(payload), origin.fields, origin.source, origin.stream, ids)


def _batch(copies: Sequence[Copy]) -> pa.RecordBatch:
    columns = zip(*copies) if copies else ((), (), ())
    return pa.RecordBatch.from_arrays([pa.array(c, kind.type) for c, kind in zip(columns, _SENT)], schema=_SENT)
