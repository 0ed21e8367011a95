"""Notes of the processes that wait as standbys: a small file each, beside the topology's status.

``<warehouse>/_trident/<topology>/standby-<host>-<pid>.json`` is written while its process waits, again every ten
seconds, and deleted when it leads or ends. It is never read for correctness: what makes a process wait is ZooKeeper's
znode ``live``. A note that was not written for half a minute is that of a process that has gone.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from trident.coordinators.leadership import current_holder, holder_is_gone
from trident.coordinators.records import Holder
from trident.coordinators.stored_json import Unreadable, parse_stored
from trident.states.core import storage
from trident.states.core.place import Place

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

    def waits(self) -> None:
        """This process waits from here on. Returns at once: no take-over waits for a disk or a store."""
        if self._since is None:
            self._since, self._written_at = self._clock(), 0.0

    def waits_no_more(self) -> None:
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
        if note is not None and now < note.written_at + GONE_SECS and not holder_is_gone(note.holder, me):
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
