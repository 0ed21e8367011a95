"""A standby process: keeps itself and its copies warm, and rehearses transactions when a command asks for it."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from trident.coordinators import faults
from trident.coordinators.errors import IdentityMismatch, TridentError
from trident.coordinators.handing_over import (
    DIFFERENT,
    EQUAL,
    FAILED,
    REFUSED,
    REHEARSE,
    HandoverAnswer,
    HandoverRequest,
    Handovers,
    best_effort,
)
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.records import GroupRecord, decode
from trident.coordinators.registration import IdentityDict, Registration
from trident.coordinators.zookeeper import ZooKeeper
from trident.operations.repartitioning import keep_empty_partitions
from trident.planning.groups import GroupPlan
from trident.planning.operation import ANCHORS_FIELD
from trident.spark.jobs import cancel_group
from trident.spark.rows import parquet_reader, to_dataframe
from trident.states.core import storage
from trident.states.core.binding import StateBinding
from trident.states.core.control import DOMAIN, decode_control
from trident.states.core.place import Place
from trident.states.core.tables import PROPERTIES
from trident.states.delta.delta_log import has_log
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.staging import StagingTarget, stage
from trident.states.keyed.copies import StateCopies
from trident.states.keyed.reading import StoredFrames
from trident.states.publishing.user_tasks import BatchInfo
from trident.udf.types import spout_schema

# Keeps a standby's local copies warm: they follow the states' logs while another process leads.
#
# Only what is published is read, and nothing but the copies is written. When this process leads, its copies are those
# of
# the last transaction but for a few, and the first batch builds none.


copies_log = logging.getLogger("trident.standby_copies")
_COPIES_EVERY_SECS = 0.5


class StandbyCopies:
    """Follows in a thread of its own, from :meth:`start` to :meth:`stop`.

    Args:
        copies: of each group.
    """

    def __init__(self, copies: Sequence[StateCopies]) -> None:
        self._copies = copies
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-standby-copies", daemon=True)

    def start(self) -> None:
        """Begins."""
        for one in self._copies:
            one.open()
        self._thread.start()

    def stop(self) -> None:
        """Ends soon; returns at once, since its caller is about to lead. The copies stay open for the leader."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for one in self._copies:
                try:
                    one.follow()
                except Exception as error:  # it costs warmth, nothing else
                    copies_log.info("a standby's local copies cannot follow: %s", error)
            self._stopped.wait(_COPIES_EVERY_SECS)


# Keeps a standby warm: it rehearses a transaction, so that its first real one takes no longer than any other.
#
# A process that has never run a batch needs many seconds for its first one: classes are loaded, plans analysed, Python
# workers started, modules imported in them. A standby has the time to do all this before it leads. It runs, again and
# again,
#
# - the topology's own plan on a batch without rows, early part and late part, into a folder that is thrown away;
# - what a batch with rows needs besides: rows that come from Python, files that are staged, read back and committed to
#   a Delta table in that folder;
# - and it opens the group's tables, read-only.
#
# A rehearsal leaves no trace: it makes no spout, writes no znode, commits to no table of the topology and opens no
# state
# of the user's. It calls only those functions of users that an empty batch calls too (docs/semantics.md 4): an
# aggregate's initial value, with txid 0.
#
# A rehearsal that fails costs the warmth, nothing else.


log = logging.getLogger("trident.warm_up")
_FOLDER = ".warm-up"
STAGE = faults.register("standby.stage", "what a standby's rehearsal stages")

# At first several times: the JVM compiles what it has done often. Then within the minute for which Spark keeps a
# Python worker that has nothing to do.
_ROUNDS_AT_FIRST = 8
_EVERY_SECS = 20.0
_LEFT_OVER_SECS = 3600.0
_REHEARSED = TransactionAttempt(0, 0)
_SAMPLE = StructType([StructField("number", LongType()), StructField("text", StringType())])


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


class WarmUp:
    """Rehearses in a thread of its own, from :meth:`start` to :meth:`stop`.

    Args:
        on_warm: told once, after the first rounds, how many seconds they took.
    """

    def __init__(
        self,
        spark: SparkSession,
        engine: "KernelEngine",
        warehouse: Place,
        topology: str,
        plans: Sequence[GroupPlan],
        on_warm: Callable[[float], None],
    ) -> None:
        self._given, self._engine, self._warehouse, self._plans = spark, engine, warehouse, plans
        self._on_warm = on_warm
        self._job_group = f"trident-{topology}-warm-up-{uuid.uuid4().hex[:8]}"
        self._folder = warehouse / "_trident" / f"{_FOLDER}-{self._job_group}"
        self._codec = spark.conf.get("spark.sql.parquet.compression.codec", None) or "snappy"
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @cached_property
    def _spark(self) -> SparkSession:
        """The session with all that is set on it, and one thing more.

        Spark, which sees behind a shuffle that there are no rows, would otherwise leave out the rest of the plan; its
        code would then be generated and compiled in the first real transaction.
        """
        given = self._given
        own = SparkSession(given.sparkContext, given._jsparkSession.cloneSession())
        keep_empty_partitions(own)
        return own

    def start(self) -> None:
        """Begins, if it has not."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trident-warm-up", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends soon; returns at once, since its caller is about to lead."""
        self._stopped.set()
        if self._thread is not None and self._thread.is_alive():
            with suppress(Exception):  # a session that is being stopped
                cancel_group(self._given.sparkContext, self._job_group)

    def _run(self) -> None:
        started, rounds = time.monotonic(), 0
        try:
            self._drop_left_over()
            while not self._stopped.is_set():
                began = time.monotonic()
                self._rehearse()
                self._clean()  # else each round would have more to read than the one before
                rounds += 1
                log.info("rehearsal %d took %.2f s", rounds, time.monotonic() - began)
                if rounds == _ROUNDS_AT_FIRST:
                    self._on_warm(time.monotonic() - started)
                if rounds >= _ROUNDS_AT_FIRST:
                    self._stopped.wait(_EVERY_SECS)
        finally:
            self._clean()

    def _clean(self) -> None:
        storage.try_delete(self._folder)

    def _drop_left_over(self) -> None:
        """Folders of standbys that were killed."""
        for name in storage.list_names(self._folder.parent):
            if name.startswith(_FOLDER):
                folder = self._folder.parent / name
                with suppress(OSError):
                    found = storage.stat(folder)
                    if found is not None and time.time() - found.mtime_ns / 1e9 > _LEFT_OVER_SECS:
                        storage.try_delete(folder)

    def _rehearse(self) -> None:
        context = self._given.sparkContext
        context.setJobGroup(self._job_group, "a standby keeps warm")
        for part in self._parts():
            if self._stopped.is_set():
                return
            try:
                part()
            except Exception as error:  # a table that is being made or merged, a function that minds empty batches
                level = logging.DEBUG if self._stopped.is_set() else logging.INFO
                log.log(level, "a part of the rehearsal failed, which costs warmth only: %s", error)

    def _parts(self) -> Iterator[Callable[[], None]]:
        for plan in self._plans:
            yield partial(self._early, plan)
            if plan.is_late:
                yield partial(self._late, plan)
            for binding in plan.bindings:
                yield partial(self._open, binding)
        yield self._store

    # --- the topology's own plan, on nothing ------------------------------------------------------

    def _early(self, plan: GroupPlan) -> None:
        inputs = {}
        for tx_id, spout in plan.spouts.items():
            fields = list(spout_schema(spout).fields)
            inputs[tx_id] = self._nothing(StructType([*fields, ANCHORS_FIELD] if tx_id in plan.anchored else fields))
        with plan.build(inputs, _REHEARSED, BatchInfo(_REHEARSED)) as frames:
            own = {table.name for table in plan.spout_tables.values()}
            names = [
                binding
                for binding in plan.bindings
                if binding.name not in (*plan.late_states, *own) and not binding.state_kind.only_with_rows
            ]
            boundaries = [StagingTarget(name, self._folder, durable=False) for name in plan.lowered.staged_boundaries]
            stage(frames, [*map(self._target, names), *boundaries], "early", _REHEARSED, self._codec, STAGE)

    def _late(self, plan: GroupPlan) -> None:
        boundaries = plan.lowered.boundaries.values()
        inputs = {one.name: self._nothing_staged(StructType(list(one.fields))) for one in boundaries}
        stored = StoredFrames(self._spark, self._warehouse)

        def as_of_now(binding: StateBinding, keys: "DataFrame | None") -> "DataFrame":
            return stored(binding, keys, self._published(binding))

        with plan.build_late(inputs, BatchInfo(_REHEARSED), as_of_now) as frames:
            late = [binding for binding in plan.bindings if binding.name in plan.late_states]
            stage(frames, [self._target(binding) for binding in late], "late", _REHEARSED, self._codec, STAGE)

    def _target(self, binding: StateBinding) -> StagingTarget:
        table = binding.published_table
        if table is None:
            return StagingTarget(binding.name, self._folder)
        return StagingTarget(binding.name, self._folder, table.partition_columns, table.txid_column, table.sorted_by)

    def _nothing(self, schema: StructType) -> "DataFrame":
        """No rows, of which Spark cannot know beforehand: it would leave out whatever works on none."""
        columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
        # As many tasks as can run at once, each of which keeps Python workers for the real ones.
        count = self._spark.sparkContext.defaultParallelism
        # Not rand(), whose range Spark knows. Behind the checkpoint nothing is known of the columns either.
        rows = self._spark.range(0, count, 1, count).where(F.spark_partition_id() < 0).select(*columns)
        with faults.fault_point(STAGE):
            return rows.localCheckpoint(eager=False)

    def _nothing_staged(self, schema: StructType) -> "DataFrame":
        """A staged file without rows: it is read as one with rows is."""
        path = self._folder / f"{uuid.uuid4().hex}.parquet"
        with faults.fault_point(STAGE):
            storage.make_folder(self._folder, storage.anchor_of(self._folder))
            with storage.output(path) as file:
                parquet.write_table(to_arrow_schema(schema, timezone="UTC").empty_table(), file)
        return parquet_reader(self._spark, schema).parquet(str(path)).coalesce(1)

    # --- tables ----------------------------------------------------------------------------------

    def _open(self, binding: StateBinding) -> None:
        for table in binding.tables:
            if has_log(self._warehouse / table.path):
                self._engine.load(str(self._warehouse / table.path)).control(DOMAIN)

    def _published(self, binding: StateBinding) -> int:
        """The transaction that a keyed state's log holds last."""
        table = binding.published_table
        if table is None:
            return 0
        path = self._warehouse / table.path
        return decode_control(path, self._engine.load(str(path)).control(DOMAIN)).txid

    def _store(self) -> None:
        """Rows from Python, staged, read back, committed."""
        self._spark.range(0, 1, 1, 1).mapInArrow(_unchanged, "id long").collect()
        rows = to_dataframe(self._spark, [(number, str(number)) for number in range(10)], _SAMPLE)
        path = self._folder / "table"
        table = [StagingTarget("table", path)]
        (staged,) = stage({"table": rows}, table, "store", _REHEARSED, self._codec, STAGE).values()
        files = [str(path / file.path) for file in staged]
        parquet_reader(self._spark, _SAMPLE).parquet(*files).coalesce(1).collect()
        control = {DOMAIN: "{}"}
        if not has_log(path):
            self._engine.create_table(str(path), _SAMPLE.json(), (), PROPERTIES, control, "trident/warm-up")
        snapshot = self._engine.load(str(path))
        for _ in range(2):
            txn: Any = ("warm-up", snapshot.version + 1)
            snapshot = self._engine.commit_files(snapshot, staged, txn, control, "trident/warm-up")


# Has a standby rehearse the leader's last transactions when a command asks for it, and answers the command.
#
# The rehearsal itself is given (``trident/time_travel/rehearsal.py``). It runs in a thread
# of its own, during the warm-up and the wait for the lease: a leader that dies meanwhile is succeeded as ever.


query_log = logging.getLogger("trident.query")
# A standby that has just been started is not given the lead before it is warm, for so long.
_WARM_SECS = 60.0
# An answer is one znode, of at most 512 KB: how long a line may be, and how long all of them as JSON.
_LINE_CHARS, _ANSWER_CHARS = 4_000, 300_000


@dataclass(frozen=True)
class Rehearsed:
    """The outcome of a rehearsal.

    Attributes:
        outcome: ``EQUAL``, ``DIFFERENT``, ``NOT_COMPARED`` or ``FAILED`` of ``coordinators/handing_over.py``.
        lines: what a person is to read.
        all_compared: whether nothing was left out that hinders a hand-over; also beside ``DIFFERENT``.
    """

    outcome: str
    lines: tuple[str, ...]
    all_compared: bool = True


# incarnation, batch group → its last transaction that has advanced, how many of each group, whether it is to end →
# the outcome
Rehearse = Callable[[str, Mapping[str, int], int, Callable[[], bool]], Rehearsed]


class Rehearsals:
    """Answers requests; :meth:`handover_requested` returns at once.

    Args:
        rehearse: runs kept transactions again, and compares.
        wait_warm: waits so many seconds at most until the process is warm, and tells whether it is.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        topology: str,
        identity: IdentityDict,
        rehearse: Rehearse,
        event: Callable[[str], None],
        wait_warm: Callable[[float], bool] = lambda secs: True,
    ) -> None:
        self._zk, self._topology, self._identity, self._rehearse = zk, topology, identity, rehearse
        self._event, self._wait_warm = event, wait_warm
        self._handovers = Handovers(zk, topology)
        self._answered = ""
        self._answer_given: HandoverAnswer | None = None
        self._ends = threading.Event()

    def handover_requested(self, request: HandoverRequest) -> None:
        """May be told of a request again: it is rehearsed once, and answered until the answer is there."""
        if request.phase != REHEARSE:
            return
        if request.id != self._answered:
            self._ends.set()  # of a command that was killed: its answer would stand in the place of this one's
            self._answered, self._answer_given, self._ends = request.id, None, threading.Event()
            threading.Thread(
                target=self._answer, args=(request, self._ends), name="trident-rehearsal", daemon=True
            ).start()
            return
        given = self._answer_given
        if given is not None and given.request == request.id:
            best_effort(lambda: self._say(given))  # it went with the ZooKeeper session in which it was stored

    def _say(self, answer: HandoverAnswer) -> None:
        """Unless it is there; or the command is gone: no other would delete it, or it would replace a later one's."""
        asked = self._handovers.request()
        wanted = asked is not None and asked.id == answer.request
        if wanted and self._handovers.answered(answer.request) is None:
            self._handovers.answer(answer)

    def stop(self) -> None:
        """Ends soon; returns at once, since its caller is about to lead."""
        self._ends.set()

    def _answer(self, request: HandoverRequest, ends: threading.Event) -> None:
        rehearses = f"rehearses the last {request.last} transactions of each batch group"
        self._event(f"{rehearses if request.last else 'looks whether its code fits'}, for a hand-over")
        try:
            found = self._rehearsed(request, ends)
        except IdentityMismatch as error:
            found = Rehearsed(REFUSED, (str(error),))
        except TridentError as error:
            found = Rehearsed(FAILED, (str(error),))
        except Exception as error:  # of Spark, of a user's function: the command is to hear of it
            query_log.warning("a rehearsal failed", exc_info=True)
            found = Rehearsed(FAILED, (f"{type(error).__name__}: {error}"[:2000],))
        if request.last:
            self._event(f"the rehearsal has ended: {found.outcome}")
        if request.last and found.outcome in (EQUAL, DIFFERENT) and not self._wait_warm(_WARM_SECS):
            found = replace(found, lines=(*found.lines, "it is not warm yet: its first transactions take longer"))
        if request.id != self._answered:
            return
        answer = HandoverAnswer(request.id, found.outcome, shortened(found.lines), found.all_compared)
        self._answer_given = answer
        best_effort(lambda: self._say(answer))

    def _rehearsed(self, request: HandoverRequest, ends: threading.Event) -> Rehearsed:
        registration = Registration(self._zk, self._topology)
        registration.check(self._identity)  # again: the leader may have stored another one since this process started
        if not request.last:
            return Rehearsed(EQUAL, ())
        return self._rehearse(request.incarnation, self._advanced(request.epochs), request.last, ends.is_set)

    def _advanced(self, groups: Mapping[str, int]) -> dict[str, int]:
        """Batch group → its last transaction that has advanced."""
        advanced = {}
        for group in groups:
            path = self._zk.path(self._topology, group, "coordinator")
            found = self._zk.get(path)
            advanced[group] = decode(path, found[0], GroupRecord).current_txid - 1 if found else 0
        return advanced


def shortened(lines: Sequence[str]) -> tuple[str, ...]:
    """The lines as they fit into one znode: long ones cut, and the last ones left out, which is said."""
    kept: list[str] = []
    room = _ANSWER_CHARS
    for place, line in enumerate(lines):
        cut = line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}…"
        room -= len(json.dumps(cut))
        if room < 0:
            return (*kept, f"and {len(lines) - place} more lines, which do not fit into an answer")
        kept.append(cut)
    return tuple(kept)
