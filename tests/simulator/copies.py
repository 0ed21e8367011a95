"""Simulated disks of hosts with local copies of a state, and the production decisions over them.

Which copy is taken, gone on with, brought on, built, refused or thrown away is production code: ``StateCopy``, and
``HostCopies`` where executors have the copies. A copy's files and the tables' are simulated: a copy is a mark and the
transactions that it has; a host may see a table's log as it was a while ago.

In every second seed a process has copies on its own host; in every fourth its executors have them on theirs.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from pyspark.sql.types import StructType

from tests.simulator.faults import Faults, SimulatedFailure
from tests.simulator.tables import Version, Warehouse
from tests.simulator.world import Process, World
from trident.coordinators.identities import TransactionAttempt
from trident.states.core.binding import LAST
from trident.states.core.control import decode_control
from trident.states.core.local_copy import CopyMark, StaleCopy
from trident.states.core.tables import TXID_COLUMN
from trident.states.delta.log_commit import TableMissing
from trident.states.keyed import copies as host_copies
from trident.states.keyed import state_copy
from trident.states.keyed.copies import HostCopies
from trident.states.keyed.state_copy import StateCopy

Content = tuple[tuple[int, tuple[Any, ...]], ...]
STATE = "counts"
_LAG_ODDS, _DELETED_ODDS, _FULL_ODDS = 0.3, 0.03, 0.03
_FOREVER = 1 << 60


class Stored:
    """A copy on a disk. ``owner``: the process that has it open for writing."""

    def __init__(self) -> None:
        self.mark: CopyMark | None = None
        self.content: Content = ()
        self.owner: Process | None = None


class Disk:
    """Of one host, below one warehouse: what is on it outlives every process."""

    def __init__(self, name: str) -> None:
        self.name, self.copies, self.made = name, dict[str, Stored](), 0
        self.locked_by: Process | None = None

    def free(self) -> bool:
        return self.locked_by is None or self.locked_by.dead


class Lens:
    """The tables as one host sees them; ``lags``: perhaps as they were a while ago, never further back than then."""

    def __init__(self, shared: Any, lags: bool) -> None:
        self._warehouse: Warehouse = shared.warehouse
        self._lags, self._rng, self._seen = lags, shared.copies.rng, 0

    def look(self, path: str) -> list[Version]:
        versions = self._warehouse.tables[path.rpartition("/")[2]].versions
        if not self._lags:
            return versions
        if self._rng.random() >= _LAG_ODDS:
            self._seen = len(versions)
        self._seen = max(1, min(self._seen, len(versions)))
        return versions[: self._seen]


class SimTableFiles:
    """``trident.states.delta.table_files.TableFiles`` of a table without a plain one beside it."""

    def __init__(self, engine: Lens, path: str, app: str | None = None) -> None:
        if app is not None:
            raise TableMissing(f"there is no table at {path}: no MERGE has made it")
        self._engine, self.path, self.merged = engine, path, None
        self.files: dict[str, Any] = {}
        versions = engine.look(path)
        if not versions:
            raise TableMissing(f"there is no table at {path}")
        self._see(versions, len(versions) - 1)
        self._take(None, versions)

    def _see(self, versions: list[Version], number: int) -> None:
        self.version, self._entry = number, versions[number]
        self.control = decode_control(self.path, self._entry.control)

    def _take(self, before: Version | None, versions: list[Version]) -> None:
        known = {txid for txid, _ in before.content} if before is not None else set()
        for txid, rows in versions[-1].content:
            if txid not in known:
                stats = {"maxValues": {TXID_COLUMN: txid}}
                self.files[f"{txid}"] = SimpleNamespace(path=f"{txid}", size=1, stats=stats, txid=txid, rows=rows)

    def refresh(self) -> bool:
        versions = self._engine.look(self.path)
        if len(versions) <= self.version or versions[self.version] is not self._entry:
            return False
        if versions[-1].content[: len(self._entry.content)] != self._entry.content:
            return False  # files were removed: a rollback
        self._take(self._entry, versions)
        self._see(versions, len(versions) - 1)
        return True


def _version_as_of(versions: list[Version], txid: int) -> int | None:
    found = [n for n, one in enumerate(versions) if decode_control("", one.control).txid <= txid]
    return found[-1] if found else None


class Base:
    """The folder of a host's copies of the state, as a process has its name."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk, self.process = disk, process


class Folder:
    """The folder of a copy."""

    def __init__(self, base: Base, name: str) -> None:
        self.base, self.name = base, name


class SimLocalCopy:
    """``trident.states.core.local_copy.LocalCopy``: values and mark change at once, or are those of before."""

    def __init__(self, folder: Folder, bytes_max: int, values: Any) -> None:
        self.folder, self._process = folder, folder.base.process
        self._copies = folder.base.disk.copies
        stored = self._copies.setdefault(folder.name, Stored())
        if stored.owner is not None and not stored.owner.dead and stored.owner is not self._process:
            raise StaleCopy(f"another process writes {folder.name}")
        self._stored, stored.owner = stored, self._process

    @property
    def mark(self) -> CopyMark | None:
        return self._stored.mark

    def apply(self, rows: Any, before: CopyMark | None, after: CopyMark, _combining: Any = None) -> None:
        content = (*self._stored.content, *rows)

        def change() -> None:
            if self._stored.mark != before:
                raise StaleCopy("it holds something else")
            self._stored.content, self._stored.mark = content, after

        self._io("bringing of a copy", change)

    def wait_for_merge(self) -> None:
        """Nothing of a mark changes by it."""

    def _io(self, name: str, effect: Any) -> None:
        of = self._process.copies_of
        of.faults.io(self._process, name, effect, lambda when: StaleCopy(f"the disk failed {when} it was done"))
        if of.faults.active and of.rng.random() < _FULL_ODDS:
            raise StaleCopy("the disk is full")

    def close(self) -> None:
        if not self._process.dead and self._stored.owner is self._process:
            self._stored.owner = None

    def delete(self) -> None:
        if not self._process.dead:
            self._copies.pop(self.folder.name, None)
            self.close()


class SimStateCopy(StateCopy):
    """The production one, with rows that are tuples."""

    def _logged_rows(self, path: str, files: Any, above: int, upto: int) -> Iterator[Any]:
        for file in sorted(files, key=lambda one: one.txid):
            if above < file.txid <= upto:
                yield file.txid, file.rows

    def _apply(self, copy: Any, path: str, files: Any, held: CopyMark, mark: CopyMark) -> None:
        copy.apply(self._logged_rows(path, files, held.txid, mark.txid), held, mark)


class Copies:
    """Of all processes of a run: the disks of the hosts.

    Attributes:
        rng: of its own, so that seeds without copies stay as they are.
    """

    def __init__(self, world: World, faults: Faults) -> None:
        self.world, self.faults, self.rng = world, faults, random.Random(f"copies {world.seed}")
        self.are_used = world.seed % 2 == 1
        self.on_executors = world.seed % 4 == 3
        self._disks: dict[str, Disk] = {}

    def disk(self, host: str) -> Disk:
        return self._disks.setdefault(host, Disk(host))


class ProcessCopies:
    """The copies as one leader has its batches read them, under one lease."""

    def __init__(self, shared: Any, process: Process, host: str, names: tuple[str, str, str], lock: Any) -> None:
        self._of: Copies = shared.copies
        self._warehouse, self._process, self._host = shared.warehouse, process, host
        process.copies_of, process.lens = self._of, Lens(shared, lags=False)
        self._shared, self._lock = shared, lock
        topology, group, incarnation = names
        self._state = SimpleNamespace(
            name=STATE,
            topology=topology,
            group=group,
            incarnation=incarnation,
            keys=(),
            schema=StructType([]),
            schema_json="{}",
            aggregator=None,
            merging=LAST,
            ordered_by="",
            starts_at=1,
            merge_app="merge",
            published_path=STATE,
            plain_path=f"plain-{STATE}",
        )
        process.described = self._state
        self._here: dict[str, SimStateCopy] = {}
        self._lenses: dict[str, Lens] = {}
        self._told = HostCopies(Path("/w"), _FOREVER, [STATE], "") if self._of.on_executors else None

    def read(self, attempt: TransactionAttempt) -> Content | None:
        """The state as the attempt's look-ups see it; None where its tables are read."""
        try:
            return self._read_on_executor(attempt.txid - 1) if self._told else self._read_here(attempt.txid - 1)
        except (StaleCopy, SimulatedFailure):
            self._of.world.reached("a copy is refused")
        except Exception as error:  # as StateCopies and a task have it
            self._of.world.tell("no copy:", type(error).__name__)
        return None

    def _copy(self, host: str) -> SimStateCopy:
        if host not in self._here:
            base: Any = Base(self._of.disk(host), self._process)
            made = SimStateCopy(Path("/w"), self._state, base, _FOREVER, _FOREVER, "boot")  # type: ignore[arg-type]
            made._lock = self._lock()  # of a simulated thread
            self._here[host] = made
        return self._here[host]

    def _read_here(self, txid: int) -> Content:
        self._process.lens = Lens(self._shared, lags=False)
        given = self._copy(self._host).as_of(txid)
        return self._look_up(given)

    def _read_on_executor(self, txid: int) -> Content | None:
        assert self._told is not None
        sent = self._told.as_of([STATE], txid)
        if sent is None:
            return None
        host = self._of.rng.choice(("executor 1", "executor 2"))
        lens = self._lenses.setdefault(host, Lens(self._shared, lags=True))
        disk, world = self._of.disk(host), self._of.world
        for _ in range(20):
            if disk.free():
                break
            world.sleep(0.05)
        else:
            raise StaleCopy("another worker of the host brings it up")
        disk.locked_by, before, self._process.lens = self._process, self._process.lens, lens
        copy = self._copy(host)
        try:
            given = copy.as_of(txid, sent[STATE].commit)
        finally:
            if not self._process.dead:
                copy.leave()
                disk.locked_by, self._process.lens = None, before
        found = self._look_up(given)
        world.reached("an executor reads its host's copy")
        return found

    def _look_up(self, given: Any) -> Content:
        """Later, after the copy may have been brought on, built again, or deleted."""
        world, disk = self._of.world, given.folder.base.disk
        world.sleep(self._of.rng.random() * 0.01)
        if self._of.rng.random() < _DELETED_ODDS and self._of.faults.active:
            world.reached("a copy is deleted in use")
            disk.copies.pop(given.folder.name, None)
        stored = disk.copies.get(given.folder.name)
        if stored is None or stored.mark != given.mark:
            raise StaleCopy("it holds something else")
        if stored.content and given.mark.txid > 1:
            world.reached("a batch looks up in a copy")
        return stored.content

    def close(self) -> None:
        for copy in self._here.values():
            if not self._process.dead:
                copy.close()


@contextlib.contextmanager
def simulated(world: World, clock: Any) -> Iterator[None]:
    """Production code finds the simulated disks and tables."""

    def lens() -> Lens:
        return world.running.lens  # type: ignore[union-attr]

    def files_of(path: str, app: str | None = None) -> SimTableFiles:
        return SimTableFiles(lens(), path, app)

    def find_version_by_control(path: str, domain: str, txid: int) -> int | None:
        return _version_as_of(lens().look(path), txid)

    def log_of(path: str) -> Any:
        return SimpleNamespace(
            commit=lambda at: SimpleNamespace(domains={state_copy.DOMAIN: lens().look(path)[at].control})
        )

    copies = {
        "LocalCopy": SimLocalCopy,
        "TableFiles": files_of,
        "copies_in": lambda base, names: [Folder(base, name) for name in names],
        "new_folder": _new_folder,
        "storage": SimpleNamespace(list_names=lambda base: list(base.disk.copies)),
        "history": SimpleNamespace(find_version_by_control=find_version_by_control),
        "DeltaLog": log_of,
        "time": clock,
    }
    told = {
        "TableFiles": files_of,
        "time": clock,
        "load_descriptor": lambda warehouse, name: world.running.described,  # type: ignore[union-attr]
    }
    with mock.patch.multiple(state_copy, **copies), mock.patch.multiple(host_copies, **told):
        yield


def _new_folder(base: Base) -> Folder:
    base.disk.made += 1
    return Folder(base, f"copy {base.disk.made}")
