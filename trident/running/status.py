"""The status of a topology and of its standbys: small files that ``trident status`` reads.

``<warehouse>/_trident/<topology>/status.json`` is replaced as a whole, at most
once a second and only on change (docs/semantics.md 10). It is never read for correctness:
what counts is in ZooKeeper and in the tables. So a status that cannot be
written is a warning in the log, never a failure of the topology.

Moments are seconds since the epoch and not ages: an age would change at every
look, and the reader can work it out.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from trident.coordinators import processes
from trident.coordinators.errors import TridentError
from trident.coordinators.identities import same_start
from trident.coordinators.leadership import current_holder, holder_has_ended
from trident.coordinators.records import Holder
from trident.coordinators.stored_json import MAY_BE_MISSING, Unreadable, as_record, parse_stored
from trident.running.progress import describe_backlog
from trident.states.core import storage
from trident.states.core.place import AnyPath, Place, warehouse_place
from trident.states.outside.health import OutsideHealth

STATUS_SCHEMA = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttemptStatus:
    """An attempt in flight.

    Attributes:
        phase: PROCESSING, PROCESSED or COMMITTING.
        since: when it began (seconds since the epoch).
        failures: of this txid since the coordinator started.
    """

    txid: int
    attempt_id: int
    phase: str
    since: float
    failures: int = 0


@dataclass(frozen=True)
class CopyStatus:
    """The local copy of a state that batches look up.

    Attributes:
        condition: "following" the transactions; "building", beside them; "waiting" until a batch asks for it; "off"
            for a while, or for good. While it does not follow, the state is read from its tables.
        txid: the transaction as of which it is.
        bytes, bytes_max: its size on the disk, and the greatest that it may have (``local_copy_bytes_max``).
        builds: how often this process has built it from the tables.
        reason: why there is none.
        on_executors: whether it is on the hosts of a cluster's executors, each of which has its own.
    """

    state: str
    condition: str
    txid: int | None = None
    bytes: int = 0
    bytes_max: int = 0
    builds: int = 0
    reason: str | None = None
    on_executors: bool = field(default=False, metadata={MAY_BE_MISSING: True})


@dataclass(frozen=True)
class GroupStatus:
    """One batch group.

    Attributes:
        current_txid: the transaction to be committed next.
        mode: what its coordinator does: "running", "stopping", "stopped",
            "gave up", "deposed", "halted", "paused" or "suspended"; "recovering"
            while a recovery waits for what ``last_error`` says.
        attempts: in flight, in txid order.
        rows_per_second, txids_per_second: over the last transactions.
        backlog: what waits at the source: "rows", "bytes", "files"; empty when unknown.
        halted_by: why a person must look; None unless halted.
        copies: the local copies of the states that its batches look up.
        outside: the states outside of the warehouse: how far each is.
        view_txid: the transaction of the newest view, which readers of plain tables have; None: there is none.
    """

    name: str
    current_txid: int
    mode: str = "running"
    attempts: tuple[AttemptStatus, ...] = ()
    rows_per_second: float | None = None
    txids_per_second: float | None = None
    backlog: dict[str, int] = field(default_factory=dict)
    last_error: str | None = None
    last_error_at: float | None = None
    halted_by: str | None = None
    copies: tuple[CopyStatus, ...] = field(default=(), metadata={MAY_BE_MISSING: True})
    outside: tuple[OutsideHealth, ...] = field(default=(), metadata={MAY_BE_MISSING: True})
    view_txid: int | None = field(default=None, metadata={MAY_BE_MISSING: True})


@dataclass(frozen=True)
class TopologyStatus:
    """A topology as its leader saw it at ``written_at``.

    ``boot_id``, ``pid`` and ``process_started`` together name a process (see
    ``coordinators/processes.py``): a pid alone is given to another process
    later. Leave them out and the writer's own are taken.

    Attributes:
        role: "starting" before it contends for the lease; "leader" or "standby"; "merging" while a leader that was
            stopped brings the plain tables up to date, and at the end "stopped", "failed" or "halted".
        error: what ended the topology; None while it runs and when it was stopped.
    """

    name: str
    id: str
    run_id: str
    epoch: int
    role: str = "leader"
    error: str | None = None
    groups: tuple[GroupStatus, ...] = ()
    host: str = field(default_factory=processes.host_name)
    boot_id: str = field(default_factory=processes.boot_id)
    pid: int = field(default_factory=os.getpid)
    process_started: str = field(default_factory=lambda: processes.started(os.getpid()) or processes.UNKNOWN)
    written_at: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"schema": STATUS_SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, value: object) -> TopologyStatus:
        """Reads what :meth:`to_json` gave; ValueError says what does not fit."""
        return as_record(value, cls, STATUS_SCHEMA)

    def process_is_alive(self) -> bool | None:
        """Tells whether the writing process still runs; None when this process cannot see it."""
        if self.host != processes.host_name():
            return None
        if self.boot_id != processes.boot_id():
            # Another boot of this host, when the pid namespace is the same; else another container.
            same_namespace = self.boot_id.partition(" ")[2] == processes.boot_id().partition(" ")[2]
            return False if same_namespace else None
        return not processes.has_ended(self.pid, self.process_started)


# --- the file -----------------------------------------------------------------------------


def status_path(warehouse: AnyPath, topology: str) -> Place:
    return warehouse_place(warehouse) / "_trident" / topology / "status.json"


class StatusWriter:
    """Writes the status of one topology; only its leader may have one.

    ``update`` is cheap and may be called at every event and from any thread.
    A change is on disk at the first ``update`` or ``flush`` that is ``interval_secs`` behind the
    writing before, the last one at ``close``.

    Args:
        interval_secs: least time between two writings.
        clock: seconds since the epoch.
    """

    def __init__(self, path: Place, interval_secs: float = 1.0, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._interval, self._clock = path, interval_secs, clock
        self._lock = threading.Lock()
        self._wanted: TopologyStatus | None = None
        self._on_disk: TopologyStatus | None = None
        self._last_written: float | None = None
        self._warned = self._swept = False
        self._closed = False

    def update(self, status: TopologyStatus) -> None:
        """Takes the new status, and writes it if it is due; ``written_at`` in it is not looked at."""
        with self._lock:
            if not self._closed:
                self._wanted = status
        self.flush()

    def flush(self) -> None:
        """Writes what waits, if it is due: without it the last change before a quiet time would never be shown."""
        with self._lock:
            waited = float("inf") if self._last_written is None else time.monotonic() - self._last_written
            if not self._closed and not self._same() and waited >= self._interval:
                self._write()

    def forget(self) -> None:
        """Drops what waits: another process leads by now, and the file is its own."""
        with self._lock:
            self._wanted = None

    def close(self) -> None:
        """Writes what is not yet written; later updates are ignored. May be called twice."""
        with self._lock:
            self._closed = True
            if not self._same():
                self._write()

    def discard(self) -> None:
        """As :meth:`close`, without writing: the file is another process's by now."""
        with self._lock:
            self._closed = True

    def _same(self) -> bool:
        return self._wanted is None or self._wanted == self._on_disk

    def _write(self) -> None:
        assert self._wanted is not None
        self._last_written = time.monotonic()
        if self._is_successors(self._wanted):
            return
        text = json.dumps({**self._wanted.to_json(), "written_at": round(self._clock(), 3)}, indent=1)
        try:
            if self._on_disk is None:
                storage.make_folder(self._path.parent, self._path.parents[2])
            self._sweep()
            storage.write(self._path, text.encode(), durable=False)
        except OSError as error:  # a full or read-only disk: the topology goes on without a status
            if not self._warned:
                _log.warning("the status cannot be written to %s: %s", self._path, error)
            self._warned = True
            return
        self._on_disk = self._wanted

    def _is_successors(self, wanted: TopologyStatus) -> bool:
        """Tells whether the file is a later leader's: it may not change for hours, and would not be written again."""
        try:
            found = TopologyStatus.from_json(parse_stored(storage.read(self._path)))
        except (OSError, ValueError):  # none, or one that cannot be read
            return False
        # Of another first start the epochs may be lower: its ZooKeeper may be a new one.
        return found.run_id != wanted.run_id and found.epoch > wanted.epoch and same_start(found.id, wanted.id)

    def _sweep(self) -> None:
        """Drafts of processes that were killed while they wrote."""
        if self._swept:
            return
        self._swept = True
        folder, prefix = self._path.parent, f".{self._path.name}."
        for draft in storage.list_names(folder):
            pid = draft.removeprefix(prefix).partition(".")[0]
            if draft.startswith(prefix) and pid.isdigit() and processes.started(int(pid)) is None:
                storage.delete(folder / draft)


def read_status(warehouse: AnyPath, topology: str) -> TopologyStatus:
    """The last status that was written.

    Raises:
        TridentError: there is none (the message names those that exist), or it
            cannot be read.
    """
    path = status_path(warehouse, topology)
    try:
        return TopologyStatus.from_json(parse_stored(storage.read(path)))
    except (FileNotFoundError, NotADirectoryError):
        known = topologies_with_status(warehouse)
        raise TridentError(
            f"topology {topology!r} has no status in this warehouse",
            found=("the topologies " + ", ".join(known)) if known else "no topology",
            expected=str(path),
            action="has it been started, and with this warehouse (--set warehouse=…)?",
        ) from None
    except ValueError as error:
        raise TridentError(
            f"the status {path} cannot be read: {error}",
            found=getattr(error, "found", None),
            expected=f"a status of schema {STATUS_SCHEMA}, as a running topology writes it",
            action="the topology's next change replaces a file; delete what is there if the topology is gone, or if it "
            "is no file",
        ) from None


def topologies_with_status(warehouse: AnyPath) -> list[str]:
    """The names of the topologies of a warehouse that have ever written a status."""
    names = storage.list_names(warehouse_place(warehouse) / "_trident")
    return sorted(name for name in names if storage.exists(status_path(warehouse, name)))


# --- for people ----------------------------------------------------------------------------


def format_status(status: TopologyStatus, *, now: float | None = None) -> str:
    """The status as lines for a terminal, with how old it is and whether its writer lives."""
    now = time.time() if now is None else now
    lines = [f"{status.name}: {_health(status)}"]
    lines.append(f"  last change written {_age(now - status.written_at)} ago by {_writer(status)}")
    lines.append(f"  id {status.id}, run {status.run_id}, epoch {status.epoch}")
    if status.error:
        lines.append(f"  ended by: {status.error}")
    mode = "was {}" if condition(status) == "gone" else "{}"
    # A batch of a process that has gone is not processed any longer than it was.
    until = status.written_at if status.process_is_alive() is False else now
    for group in status.groups:
        shown = replace(group, mode=mode.format(group.mode))
        lines += [f"  {line}" for line in _group_lines(shown, now, until)]
    return "\n".join(lines)


def condition(status: TopologyStatus) -> str:
    """Returns what became of the topology, in one word, as its last status says.

    Returns:
        "halted", "failed" (it gave up, or ended with another error), "stopped" (asked to), "gone" (its process
        ended without a word), "starting", or "running": also where its process cannot be seen from here.
    """
    if status.role == "starting":
        return "gone" if status.process_is_alive() is False else "starting"
    modes = {group.mode for group in status.groups}
    if "halted" in modes or status.role == "halted":
        return "halted"
    if "gave up" in modes or (status.role in ("stopped", "failed") and status.error is not None):
        return "failed"
    if status.role in ("stopped", "failed") or modes == {"stopped"}:
        return "stopped" if status.error is None else "failed"
    return "gone" if status.process_is_alive() is False else "running"


def _health(status: TopologyStatus) -> str:
    modes, ended = {group.mode for group in status.groups}, condition(status)
    if ended == "halted":
        return "HALTED: a person must look"
    alive = status.process_is_alive()
    if ended == "starting":
        return "starting" + (", as far as known: its process cannot be seen from here" if alive is None else "")
    if "gave up" in modes:
        return "stopped: a batch failed again and again"
    if status.role == "merging" and alive is not False:
        return "stopped, and brings the plain tables up to date"
    if ended in ("stopped", "failed"):
        return ended
    if alive is False:
        return "NOT RUNNING: its process is gone; it wrote this last"
    doing = ", ".join(sorted(modes)) or "starting"
    if alive is None:
        return f"{doing}, as far as known: its process cannot be seen from here"
    return f"{doing} ({status.role})"


def _writer(status: TopologyStatus) -> str:
    alive = {True: "is alive", False: "is no longer running", None: "cannot be seen from here"}
    return f"process {status.pid} on {status.host}, which {alive[status.process_is_alive()]}"


def _group_lines(group: GroupStatus, now: float, until: float) -> list[str]:
    lines = [f"group {group.name}: current txid {group.current_txid}, {group.mode}"]
    rows, txids = _number(group.rows_per_second), _number(group.txids_per_second)
    lines.append(f"  rates    {rows} rows/s, {txids} transactions/s")
    lines.append(f"  backlog  {describe_backlog(group.backlog) or 'unknown'}")
    lines.append(f"  in flight {len(group.attempts)}")
    for attempt in group.attempts:
        failures = f", {attempt.failures} failed before" if attempt.failures else ""
        lines.append(
            f"    {attempt.txid}:{attempt.attempt_id}  {attempt.phase:<10}  for {_age(until - attempt.since)}{failures}"
        )
    if group.view_txid is not None:
        lag_txids = max(group.current_txid - 1 - group.view_txid, 0)
        lag = f"lags by {lag_txids}" if lag_txids else "up to date"
        lines.append(f"  view     transaction {group.view_txid}, {lag} (the newest that all plain tables have)")
    lines += _copy_lines(group.copies)
    lines += [f"  {line}" for one in group.outside for line in _outside_lines(one, until)]
    if group.halted_by:
        lines.append(f"  HALTED BY  {group.halted_by}")
    if group.last_error:
        when = f" ({_age(now - group.last_error_at)} ago)" if group.last_error_at else ""
        lines.append(f"  last error{when}: {group.last_error}")
    return lines


def _copy_lines(copies: tuple[CopyStatus, ...]) -> list[str]:
    if not copies:
        return []
    following = sum(copy.condition == "following" for copy in copies)
    total = _bytes(sum(copy.bytes for copy in copies))
    lines = [f"  local copies {following} of {len(copies)} follow, {total} on this host's disk"]
    for copy in copies:
        text = f"    {copy.state}: {copy.condition}"
        if copy.on_executors:
            text += f" transaction {copy.txid}" if copy.txid is not None else ""
            text += ", on the executors' hosts"
        elif copy.txid is not None:
            text += f" transaction {copy.txid}, {_bytes(copy.bytes)} of at most {_bytes(copy.bytes_max)}"
        if copy.builds:
            text += f", built {copy.builds} times" if copy.builds > 1 else ", built once"
        lines.append(text + (f": {copy.reason}" if copy.reason else ""))
    return lines


def _outside_lines(one: OutsideHealth, now: float) -> Iterator[str]:
    has = f"has transaction {one.txid}" if one.txid else "has no transaction yet"
    has += f", {one.dead_letters} dead letters" if one.dead_letters else ""
    if one.since is None:
        yield f"outside  {one.state}: {has}"
        return
    doing = {"away": "IS AWAY", "refuses": "REFUSES IT"}.get(one.condition, "is being written")
    waits = "" if one.waits is None else f", transaction {one.waits} waits"
    tries = f", {one.tries} tries" if one.tries > 1 else ""
    yield f"outside  {one.state}: {has}{waits}: {doing}, for {_age(now - one.since)}{tries}"
    if one.error:
        yield f"  {one.error}"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def _age(secs: float) -> str:
    secs = max(0.0, secs)
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if secs < limit:
            return f"{secs / size:.1f} {unit}" if secs < 10 * size else f"{secs / size:.0f} {unit}"
    return f"{secs / 86400:.1f} days"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) < 100 and value != int(value) else f"{value:,.0f}"


# The status of a process that starts: written before ZooKeeper and Spark are there, unless another process runs.


_WRITE_SECS = 1.0


class FirstStatus:
    """Writes ``starting``, and how a start has ended that came to nothing.

    A status of a process that runs, or that cannot be seen from here, is left as it is: this process may become that
    one's standby. The groups of a topology that ran before stay in it, as they were. It has a writer of its own: the
    query's writes its first status at once.
    """

    def __init__(self, warehouse: Place, name: str, run_id: str) -> None:
        self._writer = StatusWriter(status_path(warehouse, name), 0.0)
        self._status = _starting(warehouse, name, run_id)
        if self._status is not None:
            self._write(self._status)

    def failed(self, error: BaseException) -> None:
        """The start has ended with this error, or was interrupted."""
        if self._status is not None:
            said = str(error) or type(error).__name__ if isinstance(error, Exception) else None
            self._write(replace(self._status, role="stopped" if said is None else "failed", error=said))

    def _write(self, status: TopologyStatus) -> None:
        """In a thread: a start does not wait for a disk that does not answer, only to show that it starts."""
        writing = threading.Thread(target=self._writer.update, args=(status,), name="trident-status", daemon=True)
        writing.start()
        writing.join(_WRITE_SECS)


def _starting(warehouse: Place, name: str, run_id: str) -> TopologyStatus | None:
    try:
        before = read_status(warehouse, name)
    except TridentError:  # none, or one that cannot be read
        return TopologyStatus(name, "", run_id, 0, "starting")
    if condition(before) in ("running", "starting"):
        return None
    groups = tuple(
        replace(group, attempts=(), rows_per_second=None, txids_per_second=None, backlog={}) for group in before.groups
    )
    return TopologyStatus(name, before.id, run_id, before.epoch, "starting", groups=groups)


# Notes of the processes that wait as standbys: a small file each, beside the topology's status.
#
# ``<warehouse>/_trident/<topology>/standby-<host>-<pid>.json`` is written while its process waits, again every ten
# seconds, and deleted when it leads or ends. It is never read for correctness: what makes a process wait is ZooKeeper's
# znode ``live``. A note that was not written for half a minute is that of a process that has gone.


log = logging.getLogger("trident.query")
AGAIN_SECS = 10.0
GONE_SECS = 30.0
_SWEEP_SECS = 24 * 3600.0
_NOTE = re.compile(r"standby-.+\.json")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.-]")


class StandbyNote:
    """This process's own note. Methods may be called from any thread, and never raise.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, warehouse: Place, topology: str, clock: Callable[[], float] = time.time) -> None:
        self._me, self._clock = current_holder(), clock
        host = _NOT_IN_NAMES.sub("_", self._me.host)[:100]
        self._path = warehouse / "_trident" / topology / f"standby-{host}-{self._me.pid}.json"
        self._since: float | None = None
        self._written_at = 0.0
        self._is_there = False

    def became_standby(self) -> None:
        """This process waits from here on. Returns at once: no take-over waits for a disk or a store."""
        if self._since is None:
            self._since, self._written_at = self._clock(), 0.0

    def left_standby(self) -> None:
        """This process leads, or ends. Returns at once."""
        self._since = None

    def renew(self) -> None:
        """Writes the note where it is due, or deletes it; call it now and then, and at the end."""
        now, since = self._clock(), self._since
        if since is None:
            self._delete()
            return
        if now < self._written_at + AGAIN_SECS:
            return
        if not self._is_there:
            self._sweep(now)
        self._written_at, self._is_there = now, True
        me = self._me
        process = {"host": me.host, "boot_id": me.boot_id, "pid": me.pid, "started": me.started}
        note = json.dumps({**process, "since": since, "written_at": now})
        try:
            storage.write(self._path, note.encode(), durable=False)
        except OSError as problem:  # a full or read-only disk: it waits all the same
            log.debug("the note of this standby cannot be written: %s", problem)
        if self._since is None:  # it leads since, and another thread may have deleted the note before this one wrote it
            self._is_there = True
            self._delete()

    def _sweep(self, now: float) -> None:
        """Deletes notes of processes that were killed long ago: on hosts that come and go they would grow for ever."""
        folder = self._path.parent
        try:
            for name in storage.list_names(folder):
                note = _read(folder / name) if _NOTE.fullmatch(name) else None
                if note is not None and now > note.written_at + _SWEEP_SECS:
                    storage.delete(folder / name)
        except OSError as problem:
            log.debug("the notes of earlier standbys cannot be deleted: %s", problem)

    def _delete(self) -> None:
        if not self._is_there:
            return
        self._is_there = False
        try:
            storage.delete(self._path)
        except OSError as problem:
            log.debug("the note of this standby cannot be deleted: %s", problem)


def waiting_standbys(warehouse: Place, topology: str, now: float) -> list[dict[str, Any]]:
    """The processes that wait, in the order of their coming: ``host``, ``pid``, ``since`` (seconds since the epoch).

    Raises:
        OSError: the folder cannot be listed.
    """
    folder, me = warehouse / "_trident" / topology, current_holder()
    found = []
    for name in storage.list_names(folder):
        if not _NOTE.fullmatch(name):
            continue
        note = _read(folder / name)
        if note is not None and now < note.written_at + GONE_SECS and not holder_has_ended(note.holder, me):
            found.append({"host": note.holder.host, "pid": note.holder.pid, "since": note.since})
    return sorted(found, key=lambda one: one["since"])


class _Note(NamedTuple):
    holder: Holder
    since: float
    written_at: float


def _read(path: Place) -> _Note | None:
    """None where it was deleted meanwhile, or is no note of ours."""
    try:
        note: Any = parse_stored(storage.read(path))
        holder = Holder(note["host"], note["boot_id"], note["pid"], note["started"], "note")
        return _Note(holder, float(note["since"]), float(note["written_at"]))
    except (FileNotFoundError, Unreadable, KeyError, TypeError, ValueError):
        return None
