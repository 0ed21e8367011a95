"""Checks that the named ZooKeeper is the topology's own: one guard for all commands that change something.

A shell without TRIDENT_ZOOKEEPER names another ZooKeeper than the service, by
default the warehouse's own, which is empty. There no process leads and no
transaction is known, so nothing that is asked of ZooKeeper keeps a command from
deleting the tables of a topology that runs. Two things in the warehouse can:

- its status file, which names a leader. That is a help, never a proof;
- its tables and manifests, which name the incarnation that they are of.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trident.config import TridentConfig
from trident.coordinators import processes
from trident.coordinators.errors import CoordinationError, CorruptZnode, TridentError
from trident.coordinators.leadership import Leadership, Lease
from trident.coordinators.registration import Registration
from trident.coordinators.repairing import greatest_epoch
from trident.coordinators.unfinished import (
    refuse_unfinished_reset,
    refuse_unfinished_rollback,
    unfinished_reset,
    unfinished_rollback,
)
from trident.coordinators.zookeeper import ZooKeeper
from trident.running.connecting import open_zookeeper, server_folder
from trident.running.status import TopologyStatus, read_status, status_path
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.delta.incarnations import incarnations_in

_FRESH_SECS = 10.0
_TAKE_SECS = 5.0


def leads_elsewhere(status: TopologyStatus, epoch: int, now: float, incarnation: str | None = None) -> str:
    """The leader elsewhere, as text; "" when none is seen.

    Args:
        epoch: the greatest that the named ZooKeeper knows: of that it has heard, and the lease decides.
        now: seconds since the epoch.
        incarnation: of the topology, as the named ZooKeeper knows it; None when it knows none.
    """
    heard_of = status.epoch <= epoch and (incarnation is None or status.id in ("", incarnation))
    if status.role != "leader" or heard_of:
        return ""
    who = f"{status.host} pid {status.pid}, epoch {status.epoch}"
    if (status.host, status.boot_id) == (processes.host_name(), processes.boot_id()):
        return "" if processes.is_gone(status.pid, status.process_started) else who
    age = now - status.written_at
    return f"{who}, {age:.0f} s ago" if age < _FRESH_SECS else ""


@contextmanager
def own_zookeeper(
    config: TridentConfig, warehouse: Place, name: str, command: str, force: bool = False
) -> Iterator[ZooKeeper]:
    """A connection to ZooKeeper, for a command that changes something of a topology.

    The embedded server is not started to be told that it knows nothing.

    Args:
        command: as it is to be named, "reset".
        force: ask nothing of all this.

    Raises:
        CoordinationError: the topology is another ZooKeeper's, or a reset or a rollback of it has not ended.
        CorruptZnode: a znode of the topology cannot be read.
        ZooKeeperUnreachable: as open_zookeeper.
    """
    guard = _Guard(config, warehouse, name, command)
    if not force and config.zookeeper == "embedded" and not storage.is_folder(server_folder(warehouse)):
        guard.check(_Known(None, 0))
    zk = open_zookeeper(config, warehouse)
    try:
        if not force:
            guard.check(guard.known(zk))
        if command != "reset":
            refuse_unfinished_reset(zk, name)
        if command not in ("reset", "rollback"):  # a reset forgets what a rollback has left half done
            refuse_unfinished_rollback(zk, name)
        yield zk
    finally:
        zk.close()


def refuse_leader_elsewhere(zk: ZooKeeper, config: TridentConfig, warehouse: Place, name: str, command: str) -> None:
    """The half of the guard that holds for a command too that mends what ZooKeeper has forgotten.

    Raises:
        CoordinationError: the status names a living leader of which this ZooKeeper has not heard.
    """
    guard = _Guard(config, warehouse, name, command)
    guard.check_leader(guard.known(zk))


@dataclass(frozen=True)
class _Known:
    """A ZooKeeper's knowledge of a topology.

    Attributes:
        forgotten: incarnations that a reset which has not ended forgets, or that a rollback which has not ended begins.
        damaged: whether a znode cannot be read, so that there is a topology of which nothing is known.
    """

    incarnation: str | None
    epoch: int
    forgotten: tuple[str, ...] = ()
    damaged: bool = False


@dataclass(frozen=True)
class _Guard:
    config: TridentConfig
    warehouse: Place
    name: str
    command: str

    def known(self, zk: ZooKeeper) -> _Known:
        try:
            registered = Registration(zk, self.name).read()
            unfinished = unfinished_reset(zk, self.name)
            forgotten = unfinished.incarnations if unfinished else ()
            rollback = unfinished_rollback(zk, self.name)
            forgotten = (*forgotten, *([rollback.incarnation] if rollback else ()))
            return _Known(registered[0] if registered else None, greatest_epoch(zk, self.name), forgotten)
        except CorruptZnode:
            if self.command != "reset":
                raise
            return _Known(None, 0, damaged=True)  # a reset is what clears it

    def check(self, known: _Known) -> None:
        self.check_leader(known)
        if known.damaged:
            return
        strange = [
            one
            for one in incarnations_in(self.warehouse, self.name)
            if one.incarnation not in (known.incarnation, *known.forgotten)
        ]
        if not strange:
            return
        knows = f"incarnation {known.incarnation}" if known.incarnation else "no topology of this name"
        raise CoordinationError(
            f"{self.name} has transactions that this ZooKeeper knows nothing of; nothing was changed",
            found=f"in {self.warehouse}: {'; '.join(one.text for one in strange[:3])}; "
            f"in ZooKeeper ({self._named()}): {knows}",
            expected="the ZooKeeper that the topology uses",
            action=f"{self._name_it()}; if its ZooKeeper was wiped, `trident repair {self.name}` rebuilds it from the "
            f"tables; `trident {self.command}` with --force asks none of this",
        )

    def check_leader(self, known: _Known) -> None:
        try:
            status = read_status(self.warehouse, self.name)
        except TridentError:
            return  # there is none, or it cannot be read: it is a help only
        leader = leads_elsewhere(status, known.epoch, time.time(), known.incarnation)
        if leader:
            raise CoordinationError(
                f"{self.name} seems to be led by way of another ZooKeeper than the one that was named "
                f"({self._named()}); nothing was changed",
                found=f"{leader}, by {status_path(self.warehouse, self.name)}",
                expected=f"none, or a leader that this ZooKeeper knows (up to epoch {known.epoch})",
                action=f"{self._name_it()}, or stop it first; a leader on another host that was killed is "
                "forgotten after ten seconds",
            )

    def _named(self) -> str:
        return f"zookeeper={self.config.zookeeper}, {self.config.origin('zookeeper')}"

    def _name_it(self) -> str:
        return "name the topology's own ZooKeeper (--zookeeper HOSTS or TRIDENT_ZOOKEEPER, and its zookeeper_root)"


@contextmanager
def leading(zk: ZooKeeper, name: str, groups: list[str]) -> Iterator[Lease]:
    """Leads a topology for a command that writes to it.

    Raises:
        CoordinationError: another process leads.
    """
    give_up = threading.Event()
    waits_for: list[str] = []

    def waiting(holder: Any) -> None:
        waits_for.append(f"{holder.host} pid {holder.pid}")
        if time.monotonic() > deadline:
            give_up.set()

    deadline = time.monotonic() + _TAKE_SECS
    timer = threading.Timer(_TAKE_SECS, give_up.set)
    timer.start()
    try:
        lease = Leadership(zk, name, groups).acquire(give_up, on_waiting=waiting)
    finally:
        timer.cancel()
    if lease is None:
        raise CoordinationError(
            f"{name} is running", found=waits_for[-1] if waits_for else "no lease", action="stop it first"
        )
    try:
        yield lease
    finally:
        lease.release()
