"""Any Spark streaming DataFrame as a transactional spout, through foreachBatch (docs/semantics.md 3).

Spark's streaming engine does the reading: offsets, their log, watermarks, its
own state. Its foreachBatch function hands a batch over and waits::

    Spark: offsets/b written → f(batch b) ────── waits ──────→ returns → commits/b written
    here:                       pin N = b, stage, decide, publish, advance, success(N) ↑

So Spark never commits a batch that the topology has not. After a crash Spark
gives the batch that it had not committed once more, under the same id and with the
same offsets. Then either N is not decided and takes that batch again, or it has
advanced and the function returns at once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike, path
from typing import Any, Union

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType

from trident.coordinators import faults
from trident.coordinators.errors import SourceError, TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.tracebacks import first_line
from trident.spouts.contracts import Emitted, Emitter, Json, SpoutContext, SpoutKind, read_metadata
from trident.states.core.storage import local_path

# An exception with this in its text Spark takes for the interruption that its own stop() causes.
# Without it each stop would be logged as a failure, with a page of stack trace.
_LIKE_AN_INTERRUPTION = "py4j.protocol.Py4JJavaError: An error occurred while calling: java.lang.InterruptedException"


@dataclass(frozen=True)
class Pin:
    """A transaction takes this: Spark's batch, or (``new`` False) nothing; then ``batch`` is the last one before.

    Attributes:
        batch: Spark's batch id; -1: none yet.
        new: whether the transaction holds that batch.
        query: the id of the streaming query, which belongs to the checkpoint; "" before the first batch.
        offsets: a digest of the batch's entry in Spark's offset log.
    """

    batch: int = -1
    new: bool = False
    query: str = ""
    offsets: str = ""

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def read(cls, metadata: Json) -> "Pin":
        return read_metadata(metadata, cls, "a StructuredStreamSpout")

    def problem(self) -> str | None:
        """Returns what contradicts itself in this pin, or None."""
        return None if self.batch >= (0 if self.new else -1) else "`batch` is too small"

    def same_batch(self, other: "Pin") -> bool:
        return (self.batch, self.query, self.offsets) == (other.batch, other.query, other.offsets)


class HandoverClosed(Exception):
    """Raised in the foreachBatch function, so that Spark does not commit the batch."""


class Handover:
    """Where Spark's thread and the topology's meet: one batch is offered at a time. Knows nothing of Spark."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._offer: tuple[Pin, Any] | None = None
        self._advanced: Pin | None = None
        self._closed = False

    def hand_over(self, pin: Pin, frame: Any, given_up: Callable[[], bool] = lambda: False) -> None:
        """In Spark's thread: offers a batch; returns when it has advanced.

        Args:
            pin: which batch it is.
            frame: its rows.
            given_up: whether Spark does not wait any more; asked twice a second.
        """
        with self.changed:
            offer = self._offer = (pin, frame)
            self.changed.notify_all()
            while not self._closed and not self._is_done(pin):
                if not self.changed.wait(0.5) and given_up():
                    break
            if self._offer is offer:
                self._offer = None
                self.changed.notify_all()
            if not self._is_done(pin):
                raise HandoverClosed(f"batch {pin.batch} is given back ({_LIKE_AN_INTERRUPTION})")

    def _is_done(self, pin: Pin) -> bool:
        return self._advanced is not None and self._advanced.same_batch(pin)

    def offered(self) -> tuple[Pin, Any] | None:
        """The batch that waits; not one that has advanced and that Spark is about to commit."""
        with self.changed:
            return None if self._offer is None or self._is_done(self._offer[0]) else self._offer

    def advance(self, pin: Pin) -> None:
        """The batch, and all before it, are in the topology's tables."""
        with self.changed:
            if self._advanced is None or pin.batch > self._advanced.batch:
                self._advanced = pin
                self.changed.notify_all()

    def has_advanced(self, pin: Pin) -> bool:
        with self.changed:
            if self._offer and (self._offer[0].query, self._offer[0].batch) == (pin.query, pin.batch + 1):
                return True  # Spark has committed it, which it does only after its success
            return pin.batch < 0 or (self._advanced is not None and self._advanced.batch >= pin.batch)

    def wait(self, until: Callable[[], Any], secs: float) -> bool:
        """Tells whether the condition, looked at again now and then, became true in time."""
        deadline = time.monotonic() + secs
        with self.changed:
            while not self._closed and not until():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self.changed.wait(min(left, 0.05))
            return not self._closed

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()


def following(before: Pin, offered: Pin) -> Pin:
    """The offered batch, when it is the one that must come next."""
    if offered.batch != before.batch + 1 or before.query not in ("", offered.query):
        raise other_batch(Pin(before.batch + 1, True, before.query), offered, "the next transaction")
    return offered


def other_batch(wanted: Pin, offered: Pin, who: str) -> SourceError:
    """Why another batch than the one that is needed came."""
    query = f" of query {wanted.query}" if wanted.query else ""
    if wanted.query not in ("", offered.query):
        why, action = "the checkpoint is another one", "give the spout the checkpoint that it had"
    elif offered.batch < wanted.batch:
        why, action = (
            "the checkpoint is older than the topology's tables",
            "bring back the checkpoint that belongs to them",
        )
    elif offered.batch > wanted.batch:
        why = "batches of the checkpoint went elsewhere" if wanted.batch else "the checkpoint has been used before"
        action = "use a new checkpoint, or bring back the one that belongs to the tables"
    else:
        why, action = "its offsets are others than those that were pinned", "bring back the checkpoint that it had"
    return SourceError(
        f"Spark gives another batch than the one that {who} takes: {why}",
        found=f"batch {offered.batch} of query {offered.query}",
        expected=f"batch {wanted.batch}{query}",
        action=f"{action}; or begin again with `trident reset NAME` and without the checkpoint",
    )


log = logging.getLogger("trident.stream_spout")

RETURN = faults.register("stream.return", "returning to Spark, which then commits the batch that has advanced")
OUTPUT_MODES = ("append", "update", "complete")
# How long an attempt waits for Spark to give its batch again, after a restart.
_OFFER_SECS = 10.0
# How long readiness may take when all that is available is asked for.
_AVAILABLE_SECS = 5.0
_SUCCESS_SECS = 1.0


class StructuredStreamSpout:
    """The micro-batches of a Spark streaming query, one a transaction.

    Transactional, as far as the stream's own sources are replayable: Spark's
    batch id is the metadata, with a digest of the offsets that Spark has logged
    for it, so that another batch under the same id is found out. One
    transaction is in flight at a time, whatever max_spout_pending says. How
    large batches are, the stream's sources say (``maxFilesPerTrigger`` and the like).

    A failed attempt reads the same DataFrame again, and so the sources again, while Spark waits.
    Spark's own state (aggregations, deduplication, joins) is then written again as it was.

    The query is started when the topology leads, in its process, and stopped
    with it. Nothing else may run on the checkpoint. `trident reset` does not
    touch it: delete it too, to begin again.

    Args:
        stream_df: a streaming DataFrame (``spark.readStream…``) of the session that the topology runs
            on, or of one that shares its context.
        checkpoint: the folder of Spark's checkpoint, on a file system that all processes share.
        output_mode: "append", "update" or "complete", as in Spark.

    Raises:
        TopologyError: an argument cannot be used.
    """

    kind = SpoutKind.TRANSACTIONAL
    acknowledges = True  # to Spark's checkpoint, which has one query
    given_once = "Spark's streaming engine gives each of its batches until it is committed, and not again"

    def __init__(
        self, stream_df: "DataFrame", checkpoint: Union[str, "PathLike[str]"], output_mode: str = "append"
    ) -> None:
        if not getattr(stream_df, "isStreaming", False) or not hasattr(stream_df, "_jdf"):
            raise TopologyError(
                "a StructuredStreamSpout needs a streaming DataFrame",
                found=repr(stream_df)[:200],
                expected="one made with spark.readStream, in a classic session",
            )
        if output_mode not in OUTPUT_MODES:
            raise TopologyError("the output mode is unknown", found=repr(output_mode), expected=", ".join(OUTPUT_MODES))
        folder = local_path(str(checkpoint)) if isinstance(checkpoint, (str, PathLike)) and str(checkpoint) else None
        folder = None if folder is None or "\0" in folder else folder
        if folder is None:
            raise TopologyError(
                "the checkpoint cannot be used", found=repr(checkpoint), expected="the path of a folder"
            )
        self.stream_df, self.checkpoint, self.output_mode = stream_df, path.abspath(folder), output_mode
        self._schema = stream_df.schema
        self._runs: dict[tuple[str, str], StreamingRun] = {}

    @property
    def output_schema(self) -> "StructType":
        return self._schema

    def get_coordinator(self, context: SpoutContext) -> "StreamCoordinator":
        """Raises SourceError when the stream belongs to another SparkContext."""
        if self.stream_df.sparkSession.sparkContext is not context.spark.sparkContext:
            raise SourceError(
                f"the streaming DataFrame of stream {context.tx_id!r} was made with a session that has ended",
                action="make it with the session that the topology is started with",
            )
        key = (context.topology, context.tx_id)
        if key in self._runs:  # a coordinator that was not closed, because another spout could not be made
            self._runs[key].close()
        self._runs[key] = StreamingRun(self)
        return StreamCoordinator(self._runs[key], context.options.get("max_spout_pending") or 3)

    def get_emitter(self, context: SpoutContext) -> "StreamEmitter":
        return StreamEmitter(self._runs.get((context.topology, context.tx_id)) or StreamingRun(self), context.spark)


class _NotGivenBack(logging.Filter):
    """Leaves out py4j's report of a batch that is given back on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HandoverClosed))


_NOT_GIVEN_BACK = _NotGivenBack()


class StreamingRun:
    """The streaming query: started when it is first needed, and again after it has failed."""

    def __init__(self, spout: StructuredStreamSpout) -> None:
        self.handover = Handover()
        self._spout = spout
        self._query: Any = None
        self._closed = False
        self._reported = False  # whether its failure has failed an attempt

    def ensure(self) -> None:
        """Starts the query unless it has been.

        Raises:
            SourceError: Spark refuses.
        """
        if self._query is None and not self._closed:
            self._start()

    def restart(self) -> bool:
        """Starts a query that has ended again, once its failure has failed an attempt; returns whether it did."""
        if not self._reported or self.failure() is None:
            return False
        self._start()
        return True

    def raise_failure(self) -> None:
        """Raises SourceError when the query has ended; the next attempt starts it again."""
        failure = self.failure()
        if failure is not None:
            self._reported = True
            raise failure

    def _start(self) -> None:
        self._query, self._reported = None, False  # the one that has ended must not be asked any more
        logging.getLogger("py4j.clientserver").addFilter(_NOT_GIVEN_BACK)  # once: it is the same object
        writer = self._spout.stream_df.writeStream.outputMode(self._spout.output_mode)
        writer = writer.option("checkpointLocation", self._spout.checkpoint).foreachBatch(self._take)
        try:
            self._query = writer.start()
        except Exception as error:  # PySpark's, and py4j's where PySpark does not know the Java exception
            raise SourceError(f"the streaming query cannot be started: {first_line(error)}") from error

    def _take(self, frame: "DataFrame", batch_id: int) -> None:
        """The foreachBatch function, in Spark's thread."""
        pin = Pin(batch_id, True, self._id(), self._digest(batch_id))
        self.handover.hand_over(pin, frame, lambda: self.failure() is not None)
        with faults.fault_point(RETURN):
            pass

    def _id(self) -> str:
        with open(path.join(self._spout.checkpoint, "metadata"), encoding="utf-8") as file:
            return str(json.load(file)["id"])

    def _digest(self, batch_id: int) -> str:
        with open(path.join(self._spout.checkpoint, "offsets", str(batch_id)), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()[:32]

    def failure(self) -> SourceError | None:
        """Why the query does not run, if it does not."""
        query = self._query
        if query is None or query.isActive:
            return None
        error = query.exception()
        return SourceError(
            "the streaming query has ended" + (f": {_cause(error)}" if error else ""),
            found=None if error else "it was stopped from outside, or another run took over its checkpoint",
            expected=None if error else "a query that runs as long as the topology",
            action=f"nothing is lost: it continues from its checkpoint {self._spout.checkpoint}",
        )

    def process_available(self) -> None:
        """Blocks until the query has nothing left, or has ended."""
        try:
            self._query.processAllAvailable()
        except Exception as error:  # failure() tells
            log.debug("processAllAvailable: %s", error)

    def close(self) -> None:
        self._closed = True
        query, self._query = self._query, None
        if query is None:
            self.handover.close()
            return
        # stop() marks the query as ended and then waits for its thread: only now may the function
        # that it waits in raise, or Spark would report a failure.
        stop = threading.Thread(target=_stop, args=(query,), name="trident-stop-stream", daemon=True)
        stop.start()
        try:
            deadline = time.monotonic() + 5
            while query.isActive and time.monotonic() < deadline:
                time.sleep(0.005)
        except Exception as error:  # the JVM is gone
            log.debug("asking a streaming query: %s", error)
        finally:
            self.handover.close()
        stop.join(30)


class StreamCoordinator:
    """Pins Spark's batch ids. Metadata: as :class:`Pin`."""

    def __init__(self, run: StreamingRun, window: int) -> None:
        self._run, self._handover, self._window = run, run.handover, window
        self._pins: dict[int, Pin] = {}
        self._begun = False  # whether a transaction has begun in this process
        self._polls_requested = self._polls_done = 0  # polls for all that is available
        self._polling = False

    def resume(self, txid: int, metadata: Json) -> None:
        """Told, if at all, before the first question: the greatest txid that has metadata."""
        self._remember(txid, Pin.read(metadata))

    # --- readiness ----------------------------------------------------------------------------

    def refresh(self) -> None:
        """The next answer waits until Spark has looked at its sources."""
        with self._handover.changed:
            self._polls_requested += 1

    def is_ready(self, txid: int) -> bool:
        try:
            self._run.ensure()
        except SourceError:
            return True  # it is raised again when the transaction begins, where it counts
        requested = self._polls_requested
        if self._polls_done < requested:
            # The success of the last transaction may be on its way.
            self._handover.wait(lambda: not self._in_flight(), _SUCCESS_SECS)
        if self._in_flight():
            return False
        if self._polls_done < requested and not self._anything():
            # Not known in time: an empty transaction is better than "nothing is left".
            if not self._wait_for_anything(requested, _AVAILABLE_SECS):
                return True
        return self._anything()

    def _anything(self) -> bool:
        """Tells whether a transaction has something to take, or to fail with."""
        return self._handover.offered() is not None or self._run.failure() is not None

    def _in_flight(self) -> bool:
        return bool(self._pins) and not self._handover.has_advanced(self._last())

    def _last(self) -> Pin:
        return self._pins[max(self._pins)]

    def _wait_for_anything(self, requested: int, secs: float) -> bool:
        """Until there is something, or Spark has looked and there is nothing; False: not known in time."""
        self._poll()
        return self._handover.wait(lambda: self._anything() or self._polls_done >= requested, secs)

    def _poll(self) -> None:
        """Has Spark poll its sources, in a thread: it waits for batches that this one must begin."""
        with self._handover.changed:
            if self._polling:
                return
            self._polling = True

        def poll() -> None:
            while self._polling:
                target = self._polls_requested
                self._run.process_available()
                with self._handover.changed:
                    self._polls_done, self._polling = target, self._polls_requested > target
                    self._handover.changed.notify_all()

        threading.Thread(target=poll, name="trident-poll-stream", daemon=True).start()

    # --- transactions -------------------------------------------------------------------------

    def initialize_transaction(self, txid: int, prev_metadata: Json, curr_metadata: Json) -> Json:
        before = Pin() if prev_metadata is None else Pin.read(prev_metadata)
        if not self._begun:
            # The first to begin in a process is the current one: all before it have advanced.
            self._begun = True
            self._handover.advance(before)
        # So has what is below the window. Its success may not have been told: another stream's may have raised.
        for known in [known for known in self._pins if known <= txid - self._window]:
            self._handover.advance(self._pins[known])
        self._run.ensure()
        restarted = self._run.restart()
        if curr_metadata is not None:
            return self._remember(txid, Pin.read(curr_metadata))
        if restarted:
            self.refresh()
            self._wait_for_anything(self._polls_requested, _OFFER_SECS)
        offered = self._handover.offered() if self._handover.has_advanced(before) else None
        if offered is None:
            self._run.raise_failure()
            # Another stream of the group has begun this transaction.
            return self._remember(txid, Pin(before.batch, False, before.query, before.offsets))
        return self._remember(txid, following(before, offered[0]))

    def _remember(self, txid: int, pin: Pin) -> Json:
        self._pins[txid] = pin
        for known in [known for known in self._pins if known < txid - 100]:
            del self._pins[known]
        return pin.to_json()

    def success(self, txid: int) -> None:
        pin = self._pins.get(txid)
        if pin is not None:
            self._handover.advance(pin)

    def close(self) -> None:
        self._run.close()


class StreamEmitter(Emitter):
    """Gives the DataFrame that waits."""

    def __init__(self, run: StreamingRun, spark: Any) -> None:
        self._run, self._handover, self._spark = run, run.handover, spark

    def emit_batch(self, attempt: TransactionAttempt, metadata: Json) -> Emitted:
        """The rows of the pinned batch."""
        pin = Pin.read(metadata)
        if not pin.new:
            return Emitted([], partitions=1)
        self._handover.wait(lambda: self._handover.offered() or self._run.failure(), _OFFER_SECS)
        offered = self._handover.offered()
        if offered is None:
            self._run.raise_failure()
            raise SourceError(
                f"Spark has not given batch {pin.batch} of the stream again",
                found=f"nothing within {_OFFER_SECS:g} s",
                action="it is tried again up to max_attempts",
            )
        if not pin.same_batch(offered[0]):
            raise other_batch(pin, offered[0], f"attempt {attempt}")
        return Emitted(self._in_our_session(offered[1]))

    def _in_our_session(self, frame: Any) -> "DataFrame":
        """The same plan in the topology's session: Spark gives it in a clone, with settings of its own."""
        datasets = self._spark._jvm.org.apache.spark.sql.classic.Dataset
        return ClassicDataFrame(
            datasets.ofRows(self._spark._jsparkSession, frame._jdf.queryExecution().logical()), self._spark
        )


def _stop(query: Any) -> None:
    try:
        query.stop()
    except Exception as error:  # the query's own failure, or the JVM is gone
        log.debug("stopping a streaming query: %s", error)


def _cause(error: BaseException) -> str:
    """Returns what a failed query says: its first line, and what a Python traceback in it ends with."""
    _, traceback, rest = str(error).partition("Traceback (most recent call last):\n")
    ends = [line for line in rest.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return first_line(error) + (f" … {ends[0][:500]}" if traceback and ends else "")
