"""Brings the copy of a state on this host to the transaction that a task asks for: on the executors of a cluster.

The Python workers of a host share its copies. One of them at a time, under the lock of the copy's folder, finds the
copy and brings it on by the files of the state's log, or builds it; all others find it as of their transaction and
read. The worker does this in a thread: a task waits for it a moment only, then it fails with a named error, and the
leader reads the tables meanwhile. A file on the disk counts by its mark alone, and a mark by the state's log.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from trident.coordinators import faults
from trident.states.core import storage
from trident.states.core.copy_rows import RowCodec
from trident.states.core.local_copy import CopyAsOf, CopyMark, StaleCopy, copies_in, look_up
from trident.states.delta.log_tables import LogTables
from trident.states.keyed.copies import copies_folder, own_folder
from trident.states.keyed.copy_combine import arrow_schema
from trident.states.keyed.sent_copy import SentCopy
from trident.states.keyed.state_copy import StateCopy, digest_of

log = logging.getLogger(__name__)
HOST = faults.register("copy.host", "taking the lock of a state's copies on an executor's host")

# So long a task waits for its copy; the transaction waits for the task.
WAIT_SECS = 1.0
_NO_LIMIT = 1 << 62
_EXECUTORS = "executors"


class NotReady(StaleCopy):
    """The copy is being brought up on this host: ask again a little later."""

    building = True


def bring(sent: SentCopy, host: str, boot: str) -> CopyAsOf:
    """The copy of a state on this host as of the transaction that the leader names.

    Args:
        host, boot: the machine and its boot; a copy of another boot, or of processes with other pids, is another one.

    Raises:
        NotReady: it is being brought up.
        StaleCopy: there is none here.
    """
    bringer = _bringer(sent, host, boot)
    deadline = time.monotonic() + WAIT_SECS
    while (found := bringer.ready(sent)) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise NotReady(f"the copy of state {sent.state.name} on {host} is being brought up")
        bringer.start(sent).join(left)
        bringer.check(sent)
    return found


class _Bringer:
    """Brings the copies of one state on, in a thread at a time."""

    def __init__(self, sent: SentCopy, anchor: Path, base: Path, host: str, boot: str) -> None:
        self.key = sent.state, sent.repair, sent.bytes_max
        self._anchor, self._base, self._host, self._state = anchor, base, host, sent.state
        made_for = f"{boot} {sent.repair}"
        self._digest = digest_of(sent.state, made_for)
        self._schema = arrow_schema(sent.state.schema)
        self._keys = RowCodec(self._schema, sent.state.keys).keys
        self._copy = StateCopy(LogTables(), Path(sent.warehouse), sent.state, base, sent.bytes_max, _NO_LIMIT, made_for)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: tuple[SentCopy, BaseException] | None = None

    def ready(self, sent: SentCopy) -> CopyAsOf | None:
        """The copy, where one of this host is as of the transaction already."""
        mark = CopyMark(sent.state.incarnation, sent.txid, self._digest, sent.commit)
        for folder in copies_in(self._base, storage.list_names(self._base)):
            try:
                look_up(folder, [], mark)
            except StaleCopy:
                continue
            return CopyAsOf(folder, mark, self._schema, self._keys, sent.state.ordered_by)
        return None

    def start(self, sent: SentCopy) -> threading.Thread:
        """The thread that brings a copy up: the one that does so already, for whichever transaction, or a new one."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                name = f"copy-{sent.state.name}"
                self._thread = threading.Thread(target=self._bring, args=(sent,), name=name, daemon=True)
                self._thread.start()
            return self._thread

    def check(self, sent: SentCopy) -> None:
        """Raises why the thread could not bring up this one."""
        failed, self._error = self._error, None
        if failed is not None and failed[0] == sent:
            raise StaleCopy(f"there is no copy of {sent.state.name} on {self._host}", found=failed[1]) from failed[1]

    def _bring(self, sent: SentCopy) -> None:
        try:
            with faults.fault_point(HOST):
                held = storage.lock(self._base / "host.lock", self._anchor)
            with held:
                if self.ready(sent) is None:
                    try:
                        self._copy.as_of(sent.txid, sent.commit)
                    finally:
                        self._copy.leave()
        except Exception as error:
            log.info("the copy of state %s cannot be brought up on this host: %s", self._state.name, error)
            self._error = sent, error


_bringers: dict[Path, _Bringer] = {}
_lock = threading.Lock()


def _bringer(sent: SentCopy, host: str, boot: str) -> _Bringer:
    own = own_folder(Path(sent.warehouse))
    if own is None:
        raise StaleCopy(f"there are no copies on {host}: its temporary folder cannot have them")
    base = copies_folder(Path(sent.warehouse), host, boot, own / _EXECUTORS) / sent.state.name
    with _lock:
        known = _bringers.get(base)
        if known is None or known.key != (sent.state, sent.repair, sent.bytes_max):
            known = _bringers[base] = _Bringer(sent, own.parent, base, host, boot)
        return known
