"""A coordinator that the failover tests kill, stop and cut off; it says all that it does in a log of JSON lines.

Run as ``python tests/failover_child.py '{"warehouse": …}'``. One batch group over a generated source: counts by word
(Delta, keyed), the numbers themselves (Delta, appended), and a fenced map in SQLite. It runs until it is killed.

The lines, each with ``at`` (the monotonic clock, which all processes of a machine share) and ``what``:

- ``event``: what the topology says of itself;
- ``advanced``: a transaction has; ``new`` says that this process has begun it;
- ``commit``, ``put``, ``multi``: a write to Delta, to the map, to ZooKeeper was attempted under ``epoch``; ``outcome``
  is ``ok`` or the error's name, ``began`` when the write did. They are written around the product's own calls and
  change nothing in them.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.jvm_options import cold_options
from trident import Count, DeltaAppend, DeltaMapState, SpoutKind, SqliteMap, TridentTopology, opaque
from trident.coordinators import faults
from trident.coordinators.znodes import Check
from trident.coordinators.zookeeper import WRITE, ZooKeeper
from trident.spark.session import make_session
from trident.states.delta.kernel import KernelEngine
from trident.udf.schemas import as_schema

TOPOLOGY, STREAM, WORDS = "failover", "numbers", 7


def word_of(number: int) -> str:
    return f"w{number % WORDS}"


class Log:
    """Appends lines; several processes write to one file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, what: str, **details: Any) -> None:
        line = json.dumps({"at": time.monotonic(), "what": what, "pid": os.getpid(), **details}) + "\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())

    @contextmanager
    def attempt(self, what: str, **details: Any) -> Iterator[dict[str, Any]]:
        more: dict[str, Any] = {"began": time.monotonic()}
        try:
            yield more
        except BaseException as error:
            self(what, outcome=type(error).__name__, **details, **more)
            raise
        self(what, outcome="ok", **details, **more)


# --- the source ----------------------------------------------------------------------------------


class Numbers:
    """0, 1, 2, …, some in each batch, up to what the file ``end`` says, or without an end."""

    kind = SpoutKind.TRANSACTIONAL
    output_schema = as_schema("n long", "Numbers")

    def __init__(self, end: str, rows: int) -> None:
        self._end, self._rows, self._next = Path(end), rows, 0

    def get_coordinator(self, context: Any) -> Numbers:
        return Numbers(str(self._end), self._rows)

    get_emitter = get_coordinator

    def _limit(self) -> float:
        try:
            return int(self._end.read_text())
        except (FileNotFoundError, ValueError):
            return float("inf")

    def resume(self, txid: int, metadata: Any) -> None:
        self._next = metadata["end"]

    def initialize_transaction(self, txid: int, prev_metadata: Any, curr_metadata: Any) -> Any:
        if curr_metadata is not None:
            return curr_metadata
        begin = prev_metadata["end"] if prev_metadata else 0
        self._next = int(min(begin + self._rows, self._limit()))
        return {"begin": begin, "end": self._next}

    def is_ready(self, txid: int) -> bool:
        return self._next < self._limit()

    def emit_batch(self, attempt: Any, metadata: Any) -> list[tuple[int]]:
        return [(number,) for number in range(metadata["begin"], metadata["end"])]

    def success(self, txid: Any) -> None: ...

    def close(self) -> None: ...


# --- what is written, and said -------------------------------------------------------------------


@dataclass(frozen=True)
class SaidMap(SqliteMap):
    """A SqliteMap that says each put; and stops its worker before one, when it finds a file that asks for it."""

    log: str = field(default="", compare=False)
    stop_file: str = field(default="", compare=False)

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any], epoch: int | None = None) -> None:
        said = Log(self.log)
        if os.path.exists(self.stop_file):
            os.replace(self.stop_file, self.stop_file + ".done")
            said("worker stops", worker=os.getpid())
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            said("worker goes on")
        with said.attempt("put", epoch=epoch >> 32 if epoch is not None else None, txid=(epoch or 0) & 0xFFFFFFFF):
            super().multi_put(keys, values, epoch)


def say_attempts(log: Log, late: bool) -> None:
    """Wraps the calls in which this process writes for good: to Delta by Kernel or by Python's entry, to ZooKeeper.

    Args:
        log: where they are said.
        late: a multi that is attempted while the ZooKeeper session is lost waits for the next one: as if its thread
            had been paused for longer than the others. Then ZooKeeper itself must refuse it.
    """
    commit, written, multi = KernelEngine._commit, KernelEngine._written, ZooKeeper.multi

    def said_commit(self: Any, snapshot: Any, actions: Any, txn: Any, control: Mapping[str, str], *rest: Any) -> Any:
        record = json.loads(next(iter(control.values()), "{}"))
        table = Path(snapshot.path).name
        with log.attempt("commit", table=table, epoch=record.get("epoch"), txid=txn[1] if txn else None):
            return commit(self, snapshot, actions, txn, control, *rest)

    def said_written(self: Any, snapshot: Any, entry: bytes, txn: Any, control: Mapping[str, str]) -> Any:
        record = json.loads(next(iter(control.values()), "{}"))
        table = Path(snapshot.path).name
        with log.attempt("commit", table=table, epoch=record.get("epoch"), txid=txn[1] if txn else None):
            return written(self, snapshot, entry, txn, control)

    def said_multi(self: Any, ops: Sequence[Any], point: str = WRITE, beside: str | None = None) -> None:
        # Passed here, so that who stops at one is stopped before the attempt.
        with faults.fault_point(point), faults.fault_point(beside) if beside else nullcontext():
            attempt_multi(self, ops)

    def attempt_multi(self: Any, ops: Sequence[Any]) -> None:
        fences = [op.znode_version for op in ops if isinstance(op, Check) and op.fence]
        # The znode version of a leader znode counts its leaders from 0, the epoch from 1.
        epoch = fences[0] + 1 if fences else None
        session = self.session_number
        with log.attempt("multi", epoch=epoch, paths=[op.path for op in ops][:3]) as more:
            if late and fences and _stopped_for_long():
                deadline = time.monotonic() + 8
                while self.session_number == session and time.monotonic() < deadline:
                    time.sleep(0.01)
                self.wait_connected(timeout_secs=8)
                more["new_session"] = self.session_number != session
            multi(self, ops, "(passed)")

    KernelEngine._commit, KernelEngine._written = said_commit, said_written  # type: ignore[method-assign]
    ZooKeeper.multi = said_multi  # type: ignore[method-assign]


_clock: list[float] = [time.monotonic(), 0.0]


def _watch_clock() -> None:
    """Notes when this process has stood still, as a paused process cannot by itself."""
    while True:
        time.sleep(0.05)
        now = time.monotonic()
        if now - _clock[0] > 3.0:
            _clock[1] = now
        _clock[0] = now


def _stopped_for_long() -> bool:
    """Once for each time that it has."""
    now = time.monotonic()
    stopped = now - _clock[0] > 3.0 or now - _clock[1] < 1.0
    if stopped:
        _clock[:] = [now, 0.0]
    return stopped


class _Handler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log("event", logger=record.name, text=record.getMessage()[:400])


def topology(settings: Mapping[str, Any]) -> TridentTopology:
    def words(number: int) -> Iterator[str]:
        yield word_of(number)

    made = TridentTopology(TOPOLOGY)
    stream = made.new_stream(STREAM, Numbers(settings["end"], settings["rows"]))
    keyed = stream.each("n", words, "word string")
    keyed.group_by("word").persistent_aggregate(
        DeltaMapState("counts", merge_every_txids=settings.get("merge_every_txids", 50)), Count(), "count"
    )
    stream.partition_persist(DeltaAppend("seen"))
    if settings.get("map"):
        backing = SaidMap(settings["map"], "totals", settings["log"], settings["map"] + ".stop")
        keyed.group_by("word").persistent_aggregate(opaque("totals", backing), Count(), "total")
    return made


def main(settings: Mapping[str, Any]) -> None:
    log = Log(settings["log"])
    logging.getLogger("trident").addHandler(_Handler(log))
    logging.getLogger("trident").setLevel(logging.INFO)
    threading.Thread(target=_watch_clock, daemon=True).start()
    say_attempts(log, bool(settings.get("late")))
    spark = make_session(
        "failover",
        {
            "spark.master": settings.get("master", "local[2]"),
            "spark.driver.memory": "700m",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.extraJavaOptions": cold_options(),
            **settings.get("spark", {}),
        },
    )
    log("has a session")
    while "wait_for" in settings and not os.path.exists(settings["wait_for"]):
        time.sleep(0.02)
    query = topology(settings).start(
        spark,
        warehouse=settings["warehouse"],
        zookeeper=settings["zookeeper"],
        zookeeper_root=settings["zookeeper_root"],
        max_spout_pending=settings.get("max_spout_pending", 3),
        zookeeper_session_timeout_secs=settings.get("session_secs", 4),
        zookeeper_connect_timeout_secs=60,
        message_timeout_secs=120,
        max_attempts=1000,
        batch_emit_interval_secs=settings.get("interval_secs", 0.3),
    )
    log("started")
    _say_progress(query, log)


def _say_progress(query: Any, log: Log) -> None:
    said: set[tuple[int, int]] = set()
    wait: Callable[[float], bool] = threading.Event().wait
    while query.is_active:
        for one in query.recent_progress:
            key = (one["batch_id"], one["attempt"])
            if key not in said:
                said.add(key)
                # A decided transaction of the leader before is finished without being processed.
                new = "process" in one["duration_ms"]
                log("advanced", txid=key[0], attempt=key[1], new=new, duration_ms=one["duration_ms"])
        wait(0.01)
    log("ended", error=repr(query.exception()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
