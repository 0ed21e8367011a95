"""Brings the copy of a state on this host to the transaction that a task asks for: on the executors of a cluster.

A copy has the keys of one shard: a host has the copies of the shards whose tasks ran there, each in a folder of its
own. It lets go of those that others of the state have outlived by an hour, and of those of another number of shards.

The Python workers of a host share its copies. One of them at a time, under the lock of the copy's folder, finds the
copy and brings it on by the files of the state's log, or builds it; all others find it as of their transaction and
read. The worker does this in a thread: a task waits for it a moment only, then it fails with a named error, and the
leader reads the tables meanwhile. A worker ends with the task that fails, and its thread too, so it starts a process
that outlives it and brings the copy up, however long that takes: one for each copy, which ends with the executor.

A file on the disk counts by its mark alone, and a mark by the state's log.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from trident.coordinators import faults
from trident.coordinators.errors import TridentError
from trident.states.core import storage
from trident.states.core.copy_rows import RowCodec
from trident.states.core.copyable import arrow_schema
from trident.states.core.imports import import_path
from trident.states.core.local_copy import CopyAsOf, CopyMark, StaleCopy, copies_in, is_whole, look_up
from trident.states.core.place import Place
from trident.states.core.shards import SentCopy
from trident.states.core.storage import LockHeld
from trident.states.keyed.copies import copies_folder, own_folder
from trident.states.keyed.state_copy import LogIsAhead, NotCurrent, StateCopy, digest_of

log = logging.getLogger(__name__)
HOST = faults.register("copy.host", "taking the lock of a state's copies on an executor's host")
REMOVE_UNUSED = faults.register("copy.let_go", "removing the copies of a shard whose tasks run elsewhere now")

# So long a task waits for its copy; the transaction waits for the task.
WAIT_SECS = 1.0
# So long the process waits for a worker that is at it, which ends with its task or has brought the copy up by then.
_WORKER_SECS = 60.0
_CHECK_SECS = 1.0
_READY_SECS = 0.01
_NO_LIMIT = 1 << 62
# A copy that was last used so long before another shard's is let go of.
UNUSED_SECS = 3600.0
_REMOVE_UNUSED_SECS = 60.0
_HOST_LOCK = "host.lock"
_OF = "-of-"
_EXECUTORS = "executors"
_PROCESS = "import sys; sys.path[:] = sys.argv[1:]; from trident.states.keyed.host_copy import main; main()"


class NotReady(StaleCopy):
    """The copy is being brought up on this host: ask again a little later."""

    building = True


def caught_up_copy(sent: SentCopy, host: str, boot: str) -> CopyAsOf:
    """The copy of a shard of a state on this host as of the transaction that the leader names.

    Args:
        host, boot: the machine and its boot; a copy of another boot, or of processes with other pids, is another one.

    Raises:
        NotReady: it is being brought up, by a process that goes on when this one ends.
        StaleCopy: there is none here.
    """
    catch_up = _catch_up_of(sent, host, boot)
    deadline = time.monotonic() + WAIT_SECS
    while (found := catch_up.ready(sent)) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise catch_up.start_process(sent)
        catch_up.start(sent).join(min(left, _READY_SECS))  # its copy is ready before the files of it are merged
        catch_up.check(sent)
    return found


@dataclass(frozen=True)
class _Place:
    """Where the copies of one shard of a state are on this host.

    Attributes:
        anchor: a folder that is there.
        base: the folder of the copies, next to those of the state's other shards.
        host, boot: as :func:`caught_up_copy`.
    """

    anchor: Path
    base: Path
    host: str
    boot: str


class _CatchUp:
    """Catches the copies of one shard of a state up, in one thread at a time."""

    def __init__(self, sent: SentCopy, place: _Place) -> None:
        self.key = sent.state, sent.repair, sent.bytes_max
        self._place, self._base, self._state = place, place.base, sent.state
        self._process_lock, self._failure = self._base / "process.lock", self._base / "process.failed"
        made_for = f"{place.boot} {sent.repair}"
        self._digest = digest_of(sent.state, made_for, sent.shard)
        self._schema = arrow_schema(sent.state.schema)
        self._keys = RowCodec(self._schema, sent.state.keys).keys
        self._copy = StateCopy(
            Place(sent.warehouse), sent.state, self._base, sent.bytes_max, _NO_LIMIT, made_for, sent.shard
        )
        self._what = f"the copy of state {sent.state.name}, shard {sent.shard}, on {place.host}"
        self._remove_unused_at = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: "subprocess.Popen[bytes] | None" = None
        self._error: tuple[SentCopy, BaseException] | None = None

    def ready(self, sent: SentCopy) -> CopyAsOf | None:
        """The copy, where one of this host is as of the transaction already."""
        mark = CopyMark(sent.state.incarnation, sent.txid, self._digest, sent.commit)
        for folder in copies_in(self._base, storage.list_names(self._base)):
            try:
                found = CopyAsOf(folder, mark, self._schema, self._keys, sent.state.ordered_by, sent.shard)
                look_up(found, pa.array([], pa.large_binary()))
            except StaleCopy:
                continue
            return found
        return None

    def start(self, sent: SentCopy) -> threading.Thread:
        """The thread that brings a copy up: the one that does so already, for whichever transaction, or a new one."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                name = f"copy-{sent.state.name}"
                self._thread = threading.Thread(target=self._run, args=(sent,), name=name, daemon=True)
                self._thread.start()
            return self._thread

    def check(self, sent: SentCopy) -> None:
        """Raises why the thread could not bring up this one; what takes long is left to a process."""
        failed, self._error = self._error, None
        if failed is not None and failed[0] == sent:
            raise StaleCopy(f"{self._what} cannot be had", found=failed[1]) from failed[1]

    def start_process(self, sent: SentCopy) -> StaleCopy:
        """Starts a process that builds the copy, unless one runs; returns the error of the waiting task."""
        with self._lock:
            if not self._process_runs():
                self._process = _started(sent, self._place)
        try:
            failure = storage.read(self._failure).decode(errors="replace")
        except OSError:
            return NotReady(f"{self._what} is being brought up")
        return StaleCopy(f"{self._what} could not be brought up, which is tried again", found=failure)

    def continue_in_process(self, sent: SentCopy) -> None:
        """In the process: catches a copy up to the transaction, or to a later one; writes a note where it cannot."""
        with suppress(LockHeld), storage.lock(self._process_lock, self._place.anchor, timeout_secs=0):
            try:
                self._catch_up_to(sent, in_a_process=True)
            except (LockHeld, NotCurrent):
                pass  # another one is at it, or was faster: the next task sees
            except Exception as error:
                with suppress(OSError):
                    storage.write(self._failure, str(error).encode(), durable=False)

    def _process_runs(self) -> bool:
        if self._process is not None and self._process.poll() is None:
            return True
        try:
            with storage.lock(self._process_lock, self._place.anchor, timeout_secs=0):
                return False
        except LockHeld:
            return True

    def _run(self, sent: SentCopy) -> None:
        try:
            self._catch_up_to(sent)
        except Exception as error:
            log.info("the copy of state %s cannot be brought up on this host: %s", self._state.name, error)
            self._error = sent, error

    def _catch_up_to(self, sent: SentCopy, in_a_process: bool = False) -> None:
        with faults.fault_point(HOST):
            held = storage.lock(
                self._base / _HOST_LOCK, self._place.anchor, timeout_secs=_WORKER_SECS if in_a_process else None
            )
        with held:
            if self.ready(sent) is not None:
                return
            self._remove_unused_copies()
            try:
                self._copy.as_of(sent.txid, sent.commit)
            except LogIsAhead:
                if not in_a_process:
                    raise
                self._copy.as_of(None)  # the batches have gone on meanwhile: their next task will be behind that
            finally:
                self._copy.leave()
            storage.try_delete(self._failure)

    def _remove_unused_copies(self) -> None:
        """Removes copies of shards whose tasks ran elsewhere since, of another number of shards, and half copies.

        A half copy is that of a process that was killed: who builds one has the lock of its folder.
        """
        used, count = _last_use(self._base), self._base.name.partition(_OF)[2]
        if time.monotonic() < self._remove_unused_at:
            return
        self._remove_unused_at = time.monotonic() + _REMOVE_UNUSED_SECS
        for other in (self._base.parent / name for name in storage.list_names(self._base.parent)):
            # Measured by this copy's last use, and not by the clock: a topology may have had nothing to do for long.
            is_old = other.name.partition(_OF)[2] != count or _last_use(other) < used - UNUSED_SECS
            if is_old or (other != self._base and _halves(other)):
                with suppress(OSError, TridentError), faults.fault_point(REMOVE_UNUSED):
                    with storage.lock(other / _HOST_LOCK, self._place.anchor, timeout_secs=0):
                        for folder in [other] if is_old else _halves(other):
                            storage.delete(folder)


def _halves(base: Path) -> list[Path]:
    """The copies in a folder that were begun, and are not whole."""
    return [folder for folder in copies_in(base, storage.list_names(base)) if not is_whole(folder)]


def _last_use(base: Path) -> float:
    """The time when a copy in a folder had its last transaction; 0: there is none."""
    times = [0.0]
    with suppress(OSError):
        times += [folder.stat().st_mtime for folder in copies_in(base, storage.list_names(base))]
    return max(times)


def _started(sent: SentCopy, place: _Place) -> "subprocess.Popen[bytes]":
    """The process that brings a copy up; it lives as long as that takes and the parent of this one, Spark's daemon."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROCESS, *import_path()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise StaleCopy(f"no process can be started for the copy of {sent.state.name}", found=error) from error
    assert process.stdin is not None
    with suppress(OSError), process.stdin:  # where it has ended already, the next task has another started
        process.stdin.write(pickle.dumps((sent, place, os.getppid())))
    return process


def main() -> None:
    """The process that brings a copy up: reads from standard input which one."""
    sent, place, daemon = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with, args=(daemon,), daemon=True).start()
    _CatchUp(sent, place).continue_in_process(sent)


def _end_with(process: int) -> None:
    with suppress(OSError):
        while True:
            os.kill(process, 0)  # asks whether it is there
            time.sleep(_CHECK_SECS)
    os._exit(1)  # as a kill would: half a copy has no mark


_catch_ups: dict[Path, _CatchUp] = {}
_lock = threading.Lock()


def _catch_up_of(sent: SentCopy, host: str, boot: str) -> _CatchUp:
    own = own_folder(Place(sent.warehouse))
    if own is None:
        raise StaleCopy(f"there are no copies on {host}: its temporary folder cannot have them")
    base = copies_folder(Place(sent.warehouse), host, boot, own / _EXECUTORS) / sent.state.name / str(sent.shard)
    with _lock:
        known = _catch_ups.get(base)
        if known is None or known.key != (sent.state, sent.repair, sent.bytes_max):
            known = _catch_ups[base] = _CatchUp(sent, _Place(own.parent, base, host, boot))
        return known
