"""The local copies of a group's states: all as of the transaction before, or none, and then the tables are read."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from trident.coordinators.errors import TridentError
from trident.states.core import storage
from trident.states.core.descriptor import StateDescriptor, load_descriptor
from trident.states.core.local_copy import CopyAsOf, StaleCopy
from trident.states.core.place import Place
from trident.states.core.shards import SentCopy
from trident.states.delta.table_files import TableFiles
from trident.states.keyed.state_copy import CopyHealth, LogIsAhead, StateCopy, commit_of
from trident.states.keyed.tables import check_own

log = logging.getLogger(__name__)

# Files of a table in this many bytes are copied while the transaction waits; larger ones beside the transactions.
_INLINE_BYTES = 16 << 20
_FAILURES_MAX = 3
COPIES = ".copies"
_REPAIRS = ".copies-repair"
_REPAIRING = "repairing "
_SHARDS = ".state-shards"


class StateCopies:
    """The copies that one process keeps of a group's states.

    Nothing depends on them: whatever fails here, the tables are read instead.

    Args:
        warehouse: of the topology, on a local disk.
        bytes_max: the greatest size of one copy.
        host, boot: the machine and its boot.
        states: all that may be asked for.
        base: the folder of the copies, on a disk of this host; None: in the warehouse, which is on one.
    """

    def __init__(
        self,
        warehouse: Place,
        bytes_max: int,
        host: str,
        boot: str,
        states: Collection[str] = (),
        base: Path | None = None,
    ) -> None:
        self._warehouse, self._bytes_max, self._boot = warehouse, bytes_max, boot
        self._folder = copies_folder(warehouse, host, boot, base)
        self._copies: dict[str, StateCopy] = {}
        self._repair = last_repair(warehouse)
        self._states = sorted(states)
        self._failures: dict[str, int] = {}
        self._reasons: dict[str, str] = {}
        self._lock = threading.Lock()
        self._repair_lock = threading.Lock()
        self._closed = False

    def as_of(self, states: Collection[str], txid: int) -> dict[str, CopyAsOf] | None:
        """The copies of some states as of a transaction that has advanced; None where one of them has none."""
        try:
            return self.as_of_unless_ahead(states, txid)
        except LogIsAhead as error:
            log.debug("states are read from their tables: %s", error)
        return None

    def as_of_unless_ahead(self, states: Collection[str], txid: int) -> dict[str, CopyAsOf] | None:
        """As :meth:`as_of`, for those who can wait.

        Raises:
            LogIsAhead: a state's log has a later transaction already, which is about to advance.
        """
        try:
            return {state: self._copy(state).as_of(txid) for state in states}
        except LogIsAhead:
            raise
        except StaleCopy as error:
            log.debug("states are read from their tables: %s", error)
        except Exception as error:  # a text that is not UTF-8 among them, which Spark can read
            self._failed(states, error)
        return None

    def promised(self, states: Collection[str], txid: int) -> dict[str, CopyAsOf] | None:
        """The copies as they will be after :meth:`catch_up`, for readers that wait for it; None: ask :meth:`as_of`."""
        found: dict[str, CopyAsOf] = {}
        for state in states:
            with self._lock:
                copy = None if self._closed else self._copies.get(state)
            promised = None if copy is None else copy.promised(txid)
            if promised is None:
                return None
            found[state] = promised
        return found

    def catch_up(self, states: Collection[str], txid: int) -> None:
        """Catches the copies of some states up to a transaction that has advanced.

        A failure is only logged: the batch that reads the copy finds it again, or does not.
        """
        for state in states:
            try:
                self._copy(state).catch_up(txid)
            except Exception as error:
                log.debug("the local copy of %s cannot catch up: %s", state, error)

    def open(self) -> None:
        """Lets copies be asked for again behind a :meth:`close`: threads that were late then have found none."""
        with self._lock:
            self._closed = False

    def follow(self) -> None:
        """Brings all copies to the last transactions that the states' logs have: for a process that waits to lead.

        It may be called at any moment: tables that are being made, merged or reset are not there for it.
        """
        with self._repair_lock:  # a leader may begin here meanwhile: its look at the repairs is the later one
            self._repair_seen(last_repair(self._warehouse))
        for state in self._states:
            try:
                self._copy(state).as_of(None)
            except Exception as error:
                log.debug("the local copy of %s cannot follow now: %s", state, error)
                self.renew([state])

    def leads(self) -> None:
        """Keeps what followed while this process waited, as far as it is still true. No repair is running now."""
        self.open()
        with self._repair_lock:
            self._repair_seen(settled_repair(self._warehouse))
        self.renew()

    def _repair_seen(self, repair: str) -> None:
        """Lets go of all copies from before a repair."""
        with self._lock:
            copies = list(self._copies.values()) if repair != self._repair else []
            self._copies = {} if repair != self._repair else self._copies
            self._repair = repair
        for copy in copies:
            copy.close()

    def renew(self, states: Collection[str] | None = None) -> None:
        """Lets go of copies whose state is another one by now: reset, or with other columns.

        Args:
            states: only these; None: all.
        """
        with self._lock:
            known = dict(self._copies)
        for state, copy in known.items():
            if states is not None and state not in states:
                continue
            try:
                if load_descriptor(self._warehouse, state) == copy.state:
                    continue
            except (OSError, TridentError) as error:
                log.debug("there is no state %s now: %s", state, error)
            with self._lock:
                if self._copies.get(state) is copy:
                    del self._copies[state]
            copy.close()

    def held(self, state: str, txid: int) -> CopyAsOf | None:
        """The copy of one state as of an advanced transaction or a later one; None where batches have not made it.

        Raises:
            TableError: a file of the state's tables is gone or not whole.
        """
        with self._lock:
            copy = self._copies.get(state)
        try:
            return None if copy is None else copy.held(txid)
        except TridentError:
            raise
        except Exception as error:
            self._failed([state], error)
            return None

    def failed(self, state: str, reason: str) -> None:
        """Tells that a worker could not use a copy, and why: it is built again, a few times."""
        with self._lock:
            copy = self._copies.pop(state, None)
        if copy is not None:
            copy.drop()
        self._failed([state], reason)

    def damaged(self, state: str, copy: CopyAsOf, reason: str) -> None:
        """Tells that a copy could not be used, which may have gone on since; one that has not is built again."""
        with self._lock:
            kept = self._copies.get(state)
        if kept is not None and kept.is_still(copy):
            self.failed(state, reason)

    def served(self, states: Collection[str]) -> None:
        """Tells that a batch was computed with the copies of some states: failures before it do not count any more."""
        with self._lock:
            for state in states:
                self._failures.pop(state, None)
                self._reasons.pop(state, None)

    def health(self) -> tuple[CopyHealth, ...]:
        """How the copies of all states do, by name; waits for no build."""
        with self._lock:
            copies, failures, reasons = dict(self._copies), dict(self._failures), dict(self._reasons)
        found = []
        for state in self._states:
            health = copies[state].health() if state in copies else CopyHealth(state, "waiting")
            if failures.get(state, 0) > _FAILURES_MAX:
                health = CopyHealth(state, "off", reason=reasons[state])
            found.append(health)
        return tuple(found)

    def close(self) -> None:
        """Leaves the copies to the next process on this host; see :meth:`open`."""
        with self._lock:
            self._closed = True
            copies, self._copies = self._copies, {}
        for copy in copies.values():
            copy.close()

    def _copy(self, state: str) -> StateCopy:
        with self._lock:
            if self._closed:
                raise StaleCopy(f"the copy of state {state} was left to the next process")
            if self._failures.get(state, 0) > _FAILURES_MAX:
                raise StaleCopy(f"the copy of state {state} has failed too often")
            if state not in self._copies:
                descriptor = load_descriptor(self._warehouse, state)
                self._copies[state] = StateCopy(
                    self._warehouse,
                    descriptor,
                    self._folder / state,
                    self._bytes_max,
                    _INLINE_BYTES,
                    f"{self._boot} {self._repair}",
                )
            return self._copies[state]

    def _failed(self, states: Collection[str], reason: object) -> None:
        with self._lock:
            for state in states:
                self._failures[state] = self._failures.get(state, 0) + 1
                self._reasons[state] = str(reason)
        log.warning("the local copies of %s cannot be used, so their tables are read: %s", ", ".join(states), reason)


def forget_copies(warehouse: Place) -> None:
    """Removes the copies of a warehouse's states, on all hosts: a repair changes tables without a transaction.

    Those that a standby builds meanwhile will not be used either: the next leader sees that a repair had begun.

    Raises:
        OSError: one could not be removed.
    """
    storage.write(warehouse / "_trident" / _REPAIRS, f"{_REPAIRING}{uuid.uuid4().hex}".encode())
    storage.delete(warehouse / "_trident" / COPIES)


def last_repair(warehouse: Place) -> str:
    """Names the last repair of a warehouse, or the moment when a leader saw that it had ended; "" where none was."""
    try:
        return storage.read(warehouse / "_trident" / _REPAIRS).decode(errors="replace")
    except FileNotFoundError:
        return ""


def settled_repair(warehouse: Place) -> str:
    """As :func:`last_repair`, for a leader: none is running now."""
    repair = last_repair(warehouse)
    if repair.startswith(_REPAIRING):  # copies may have been built in the middle of it, by others too
        repair = uuid.uuid4().hex
        storage.write(warehouse / "_trident" / _REPAIRS, repair.encode())
    return repair


def settled_shards(warehouse: Place, cores: int) -> int:
    """The number of shards of a warehouse's states on a cluster: that of the first leader, which had so many cores.

    It is kept, so that a leader that starts before its executors does not have all copies built again.
    """
    with suppress(FileNotFoundError, ValueError):
        kept = int(storage.read(warehouse / "_trident" / _SHARDS))
        if kept > 0:
            return kept
    storage.write(warehouse / "_trident" / _SHARDS, str(cores).encode())
    return cores


def own_folder(warehouse: Place) -> Path | None:
    """A folder for copies of a warehouse that other hosts share: this user's alone, on a disk of this host.

    None where the folder is not this user's: another one could put values there.
    """
    digest = sha256(str(warehouse).encode()).hexdigest()[:16]
    above = Path(tempfile.gettempdir()) / f"trident-copies-{os.getuid()}"
    try:
        above.mkdir(mode=0o700, exist_ok=True)
        found = above.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            # Deleted in use, it was made again with the folders in it: others could read, and put nothing there.
            above.chmod(0o700)
            found = above.lstat()
    except OSError as error:
        log.warning("there are no local copies: %s", error)
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        log.warning("there are no local copies: %s is not a folder that only this user can change", above)
        return None
    return above / digest


def copies_folder(warehouse: Place, host: str, boot: str, base: Path | None = None) -> Path:
    """The folder of this host's copies of a warehouse's states; those of its earlier boots are removed.

    Its name can be no topology's, whose folder is beside it and goes with a reset.
    """
    name, this_boot = (sha256(text.encode()).hexdigest()[:12] for text in (host, boot))
    base = Path(warehouse / "_trident" / COPIES) if base is None else base
    for other in storage.list_names(base):
        if other.startswith(f"{name}-") and other != f"{name}-{this_boot}":
            storage.try_delete(base / other)
    return base / f"{name}-{this_boot}"


# The local copies that executors have on their hosts, as the leader tells tasks of them: of whose state, as of when.
#
# Each host brings up its own (``host_copy.py``). The leader follows no more than the log of each state, to know the
# last
# commit up to a transaction, and lets some time go by after a task that had no copy.


_OFF_SECS_MAX = 60.0


@dataclass
class _Followed:
    """A state whose copies tasks are told of, and how it went."""

    state: StateDescriptor
    log: TableFiles
    txid: int | None = None
    failures: int = 0
    off_until: float = 0.0
    building: bool = False
    reason: str | None = None


class HostCopies:
    """Tells tasks which copies of a group's states they need. Keep one for as long as a coordinator leads.

    Args:
        warehouse: of the topology, shared by all hosts.
        bytes_max: the greatest size of one copy on a host.
        states: all that may be asked for.
        repair: the last repair of the warehouse; none is running now.
        shards: into how many copies are cut; each task takes those of its shard.

    Attributes:
        shards: as given.
    """

    def __init__(self, warehouse: Place, bytes_max: int, states: Collection[str], repair: str, shards: int = 1) -> None:
        self.shards = shards
        self._warehouse, self._bytes_max, self._repair = warehouse, bytes_max, repair
        self._states = sorted(states)
        self._followed: dict[str, _Followed] = {}
        self._lock = threading.Lock()

    def as_of(self, states: Collection[str], txid: int) -> dict[str, SentCopy] | None:
        """The copies of some states as of a transaction that has advanced; None where the tables are to be read."""
        try:
            with self._lock:
                followed = {state: self._follow(state) for state in states}
        except (OSError, TridentError) as error:
            log.info("states are read from their tables: %s", error)
            return None
        now = time.monotonic()
        if any(one.log.control.txid > txid or now < one.off_until for one in followed.values()):
            return None
        return {
            state: SentCopy(one.state, self._warehouse, txid, commit_of(one.log.control), self._repair, self._bytes_max)
            for state, one in followed.items()
        }

    def served(self, copies: Mapping[str, SentCopy]) -> None:
        """Takes note that a task has used copies."""
        with self._lock:
            for state, copy in copies.items():
                one = self._followed[state]
                one.txid, one.failures, one.building, one.reason = copy.txid, 0, False, None

    def failed(self, state: str, reason: str, building: bool = False) -> None:
        """Tells that a task had no copy, and why: the tables are read for a while, the longer the more often.

        Args:
            building: whether its host is bringing it up.
        """
        with self._lock:
            one = self._followed[state]
            one.failures += 1
            one.off_until = time.monotonic() + min(_OFF_SECS_MAX, 2.0 ** (one.failures - 1))
            one.building, one.reason = building, reason
        log.log(
            logging.INFO if building else logging.WARNING,
            "a task could not use the local copy of %s on its host, so the tables are read: %s",
            state,
            reason,
        )

    def health(self) -> tuple[CopyHealth, ...]:
        """How the copies of all states do on the hosts whose tasks were last told of them, by name."""
        with self._lock:
            followed, now = dict(self._followed), time.monotonic()
        found = []
        for state in self._states:
            one = followed.get(state)
            if one is None or one.txid is None and not one.failures:
                found.append(CopyHealth(state, "waiting"))
                continue
            condition = "building" if one.building else "off" if now < one.off_until else "following"
            txid = one.txid if condition == "following" else None
            found.append(CopyHealth(state, condition, txid, 0, self._bytes_max, 0, one.reason, on_executors=True))
        return tuple(found)

    def _follow(self, name: str) -> _Followed:
        """The state with its log as it is now."""
        known = self._followed.get(name)
        if known is None or not known.log.refresh():
            state = load_descriptor(self._warehouse, name)
            path = str(self._warehouse / state.published_path)
            logged = TableFiles(path)
            known = self._followed[name] = _Followed(state, logged)
        check_own(known.state, known.log.path, known.log.control)
        known.log.files = {}  # the hosts read them
        return known
