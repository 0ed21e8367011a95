"""What runs in a coordinator of a deployment: ``trident run`` of a file that calls :func:`prepared`.

The process says what it does in a log of JSON lines, each with ``at`` (the monotonic clock, which all processes of a
machine share), ``pid`` and ``what``:

- ``event``: what the topology says of itself;
- ``advanced``: a transaction has; ``new`` says that this process has begun it;
- ``commit``, ``put``, ``multi``, where writes are watched: a write to Delta, to a map, to ZooKeeper was attempted under
  ``epoch``; ``outcome`` is ``ok`` or the error's name, ``began`` when the write did. They are written around the
  product's own calls and change nothing in them.

A file of commands arms faults in a process that runs, one a line, which is then said as ``armed``.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.workload import Group, key_of, topology_of
from trident import SqliteMap, TopologyListener, TridentTopology, events
from trident.coordinators import faults
from trident.coordinators.znodes import Check
from trident.coordinators.zookeeper import WRITE, ZooKeeper
from trident.states.delta.kernel import KernelEngine

# Of the environment: the file of this process's settings.
VARIABLE = "CHAOS_SETTINGS"


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


def settings_of_this() -> dict[str, Any]:
    return json.loads(Path(os.environ[VARIABLE]).read_text())


def prepared(key: Callable[[str], str] = key_of) -> TridentTopology:
    """The topology of this process, which from now on says what it does.

    Args:
        key: makes the key of a word.
    """
    settings = settings_of_this()
    log = Log(settings["log"])
    logging.getLogger("trident").addHandler(_Handler(log))
    logging.getLogger("trident").setLevel(logging.INFO)
    for where, value in settings["patches"]:
        _patch(where, value)
    threading.Thread(target=_obey, args=(Path(settings["commands"]), log), daemon=True).start()
    map_of: Callable[..., Any] = SqliteMap
    if settings["watched"]:
        threading.Thread(target=_watch_clock, daemon=True).start()
        say_attempts(log, settings["late"])
        map_of = lambda file, table: SaidMap(file, table, log.path, f"{file}.stop")  # noqa: E731
    return topology_of(settings["topology"], [Group(**group) for group in settings["groups"]], key, map_of)


def _patch(where: str, value: Any) -> None:
    """``where`` is module:name or module:Class.name."""
    module, _, path = where.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    setattr(owner, name, value)


def _obey(commands: Path, log: Log) -> None:
    done = 0
    while True:
        lines = commands.read_text().splitlines() if commands.exists() else []
        for fault in lines[done:]:
            faults.arm(fault)
            log("armed", fault=fault)
        done = len(lines)
        time.sleep(0.02)


class _Handler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log("event", logger=record.name, text=record.getMessage()[:400])


class Progress(TopologyListener):
    """Says each transaction that advances."""

    def __init__(self) -> None:
        self._log = Log(settings_of_this()["log"])

    def on_progress(self, event: events.Advanced) -> None:
        new, took = not event.recovered, event.progress["duration_ms"]
        self._log("advanced", txid=event.txid, attempt=event.attempt_id, new=new, duration_ms=dict(took))


LISTENER = f"{Progress.__module__}:{Progress.__qualname__}"


# --- writes that are watched ---------------------------------------------------------------------


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
        with _commit(log, snapshot, txn, control):
            return commit(self, snapshot, actions, txn, control, *rest)

    def said_written(self: Any, snapshot: Any, entry: bytes, txn: Any, control: Mapping[str, str]) -> Any:
        with _commit(log, snapshot, txn, control):
            return written(self, snapshot, entry, txn, control)

    def said_multi(self: Any, ops: Sequence[Any], point: str = WRITE, aux_point: str | None = None) -> None:
        # Passed here, so that who stops at one is stopped before the attempt.
        with faults.fault_point(point), faults.fault_point(aux_point) if aux_point else nullcontext():
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


def _commit(log: Log, snapshot: Any, txn: Any, control: Mapping[str, str]) -> Any:
    epoch = json.loads(next(iter(control.values()), "{}")).get("epoch")
    return log.attempt("commit", table=Path(snapshot.path).name, epoch=epoch, txid=txn[1] if txn else None)


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
