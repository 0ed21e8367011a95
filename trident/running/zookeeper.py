"""A topology's ZooKeeper: connected to, checked to be its own, and kept running where it is the embedded one."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trident.config import TridentConfig
from trident.config_kinds import is_loopback
from trident.coordinators import processes
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.errors import ConfigError, CoordinationError, CorruptZnode, TridentError
from trident.coordinators.leadership import Leadership, Lease
from trident.coordinators.registration import (
    Registration,
    refuse_unfinished_reset,
    refuse_unfinished_rollback,
    unfinished_reset,
    unfinished_rollback,
)
from trident.coordinators.repairing import greatest_epoch
from trident.coordinators.zookeeper import ZooKeeper
from trident.coordinators.zookeeper_connection import ZooKeeperConfig
from trident.running.status import TopologyStatus, read_status, status_path
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.publishing.incarnations import incarnations_in

# Warns once when every client that reaches the ensemble could change a topology's znodes.
#
# A client that can write there can make a topology commit twice, or never again.
# On loopback, where the embedded server is, those are the accounts of this
# machine: no warning.


log = logging.getLogger("trident.zookeeper")
_GUIDE = "docs/security.md has the whole of it"
_warned: set[tuple[str, str, str]] = set()


def warn_if_open(config: TridentConfig, zk: ZooKeeper) -> None:
    """Says once in this process that an ensemble, its root and the settings leave the znodes open, and what to do."""
    if config.zookeeper == "embedded" or all(is_loopback(host) for host in hosts_of(config.zookeeper)):
        return
    reason = _why_open(config, zk)
    key = (config.zookeeper, config.zookeeper_root, reason)
    if reason and key not in _warned:
        _warned.add(key)
        log.warning("ZooKeeper at %s is open: %s (%s)", config.zookeeper, reason, _GUIDE)


def hosts_of(zookeeper: str) -> list[str]:
    """The hosts of a "host:port,[address]:port/chroot" text, without ports and brackets."""
    hosts = []
    for one in zookeeper.partition("/")[0].split(","):
        bracketed = re.fullmatch(r"\[(.*)\](?::\d+)?", one.strip())
        hosts.append(bracketed[1] if bracketed else one.strip().partition(":")[0])
    return hosts


def _why_open(config: TridentConfig, zk: ZooKeeper) -> str:
    if not config.authenticates:
        return (
            "this connection presents no identity, so everybody who reaches a server can change or delete the"
            " transactions of every topology. Set zookeeper_sasl_mechanism, _username and _password, or a TLS"
            " certificate, or zookeeper_auth; new znodes are then their creator's, older ones become so"
        )
    if not config.keeps_for_creator:
        return (
            "zookeeper_acl=open leaves the znodes to everybody, though this connection has an identity. Leave"
            " zookeeper_acl at `auto`"
        )
    try:
        root_is_open = zk.is_world_writable(zk.path())
    except CoordinationError:
        return ""  # not even its ACL may be read
    if root_is_open:
        return (
            f"the root znode {config.zookeeper_root} was made without an ACL, so everybody can take the name of a"
            f" topology that does not exist yet. Give it one in zkCli.sh: setAcl {config.zookeeper_root}"
            " auth::cdrwa, or name another zookeeper_root"
        )
    return ""


# Connects a topology to its ZooKeeper: an ensemble, or the embedded server of its warehouse.


def open_zookeeper(config: TridentConfig, warehouse: Place) -> ZooKeeper:
    """Connects to ZooKeeper as the settings say; starts the embedded server when it is to be.

    Raises:
        ZooKeeperUnreachable: no server answered within the connect timeout.
        ZooKeeperRefused: a certificate, an identity or a password is not accepted.
        JavaProblem: the embedded server needs a Java that is not here.
    """
    hosts = config.zookeeper
    if hosts == "embedded":
        hosts = EmbeddedZooKeeper.ensure(server_folder(warehouse))
    zk = ZooKeeper(
        ZooKeeperConfig(
            hosts=hosts,
            root=config.zookeeper_root,
            session_timeout_secs=config.zookeeper_session_timeout_secs,
            connect_timeout_secs=config.zookeeper_connect_timeout_secs,
            options=config.kazoo_options(),
        )
    )
    zk.connect()
    warn_if_open(config, zk)
    return zk


def server_folder(warehouse: Place) -> Place:
    """The data folder of a warehouse's embedded ZooKeeper server.

    Raises:
        ConfigError: the warehouse is in a store, and the server's data must be on a disk.
    """
    if not warehouse.is_local:
        raise ConfigError(
            f"the warehouse {warehouse} is in a store, and the embedded ZooKeeper server is bound to "
            "one machine's disk",
            found="zookeeper=embedded",
            expected="an ensemble that outlives this machine",
            action="set zookeeper to its hosts: HOST:PORT,HOST:PORT",
        )
    return warehouse / "_trident" / "zookeeper"


# Starts the embedded ZooKeeper server again when it, and the process that watches it, are gone.
#
# ``coordinators/embedded.py`` starts the server for the process that needs it
# first. A topology that runs for weeks needs it all the time: a person kills the
# supervisor, or a full disk ends it, and no other process would start it again.


_POLL_SECS = 0.5
# The supervisor has a server that was killed back in less.
_AWAY_SECS = 1.5
_RETRY_SECS = 3.0


class ServerWatchdog:
    """A thread that keeps the server of one data folder running while it is needed.

    Any number of processes may have one: the server is started under a lock.

    Args:
        zk: the connection; when it is away, the keeper looks.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        folder: Place,
        report: Callable[[str], None],
        explain: Callable[[BaseException], BaseException],
    ) -> None:
        self._zk, self._folder, self._report, self._explain = zk, folder, report, explain
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-zookeeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; the server stays, others may use it."""
        self._closed.set()

    def _run(self) -> None:
        seen_at, reported = time.monotonic(), ""
        while not self._closed.wait(_POLL_SECS):
            if self._zk.connected:
                seen_at, reported = time.monotonic(), ""
                continue
            if time.monotonic() - seen_at < _AWAY_SECS:
                continue
            if not storage.is_folder(self._folder):
                # Renamed with its warehouse: made anew here it would be another, empty server.
                said = f"the folder of the embedded ZooKeeper server is gone: {self._folder}"
                if said != reported:
                    self._report(said)
                    reported = said
                continue
            try:
                self._zk.set_hosts(EmbeddedZooKeeper.ensure(self._folder))
                said = "the embedded ZooKeeper server did not answer and was seen to"
            except Exception as error:  # a full disk, no Java: it is tried again for as long as we run
                said = f"the embedded ZooKeeper server cannot be started: {self._explain(error)}"
                self._closed.wait(_RETRY_SECS)
            if said != reported:
                self._report(said)
                reported = said
            seen_at = time.monotonic()


# Checks that the named ZooKeeper is the topology's own: one guard for all commands that change something.
#
# A shell without TRIDENT_ZOOKEEPER names another ZooKeeper than the service, by
# default the warehouse's own, which is empty. There no process leads and no
# transaction is known, so nothing that is asked of ZooKeeper keeps a command from
# deleting the tables of a topology that runs. Two things in the warehouse can:
#
# - its status file, which names a leader. That is a help, never a proof;
# - its tables and manifests, which name the incarnation that they are of.


_FRESH_SECS = 10.0
_TAKE_SECS = 5.0


def other_leader(status: TopologyStatus, epoch: int, now: float, incarnation: str | None = None) -> str:
    """The leader on another host or ZooKeeper, as text; "" when none is seen.

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
        return "" if processes.has_ended(status.pid, status.process_started) else who
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


def refuse_other_leader(zk: ZooKeeper, config: TridentConfig, warehouse: Place, name: str, command: str) -> None:
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
        leader = other_leader(status, known.epoch, time.time(), known.incarnation)
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
