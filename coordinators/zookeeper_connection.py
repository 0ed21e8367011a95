"""The connection to ZooKeeper (kazoo): made, watched, told to listeners, and made again where kazoo gives up.

- kazoo learns that its session has expired only from a server that it can
  reach. Here a connection that has been away for the session timeout counts
  as lost: whatever was led with it is led by another by then.
- kazoo waits for an answer to a new connection as long as for the session.
  Here a third of that is enough: the server may be one that never answers.
- kazoo gives up for good when a server refuses its identity, also when the
  connection is only cut while it authenticates. A connection that was usable
  before is made again, at intervals.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from kazoo import exceptions as kz
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError

from trident.coordinators.errors import ConfigError, ZooKeeperRefused, ZooKeeperUnreachable
from trident.coordinators.kazoo_adapter import Handler, HarmlessLog, Problems, TlsFiles, refused, require_sasl_package
from trident.coordinators.threads import THREADS, Threads
from trident.coordinators.znodes import check_name

_CLOSE_SECS_MAX = 3.0
_REVIVE_SECS_MIN, _REVIVE_SECS_MAX = 0.5, 30.0
# A first connection that takes longer is told in a line.
_SILENT_SECS = 1.5

KAZOO_OPTIONS = frozenset(
    "auth_data default_acl sasl_options use_ssl ca certfile keyfile keyfile_password"
    " verify_certs check_hostname randomize_hosts".split()
)
_log = logging.getLogger("trident.coordinators.zookeeper")
# kazoo tells every failed attempt at connecting as a warning; the state of
# the connection is reported through listeners instead.
_kazoo_log = logging.getLogger("trident.coordinators.zookeeper.kazoo")
_kazoo_log.addHandler(logging.NullHandler())
_kazoo_log.propagate = False


class ConnectionState(str, Enum):
    """The state of a connection, as listeners are told it."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True)
class ZooKeeperConfig:
    """Where ZooKeeper is and how long to wait for it.

    Attributes:
        hosts: "host:port,host:port", with an optional chroot after the last host; the chroot is part of every path,
            and made where it is missing.
        root: the znode under which every topology has its own.
        session_timeout_secs: how long a dead leader is still believed in
            (the server may bound it by its own least and greatest).
        connect_timeout_secs: bounds :meth:`ZooKeeper.connect`.
        options: passed on to ``KazooClient``; TLS (``use_ssl``, ``ca``,
            ``certfile``, ``keyfile``, ``keyfile_password``, ``verify_certs``,
            ``check_hostname``), ``sasl_options``, ``auth_data``,
            ``default_acl`` and ``randomize_hosts``. They hold passwords.
    """

    hosts: str
    root: str = "/trident"
    session_timeout_secs: float = 20.0
    connect_timeout_secs: float = 15.0
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        unknown = sorted(self.options.keys() - KAZOO_OPTIONS)
        if unknown:
            raise ConfigError(
                "an option for ZooKeeper is unknown", found=unknown[0], expected=", ".join(sorted(KAZOO_OPTIONS))
            )
        if not self.root.startswith("/") or self.root.rstrip("/") == "":
            raise ConfigError("the ZooKeeper root", found=repr(self.root), expected='a path such as "/trident"')
        for part in self.path.strip("/").split("/"):
            check_name(part, "a part of the ZooKeeper root")
        for name in ("session_timeout_secs", "connect_timeout_secs"):
            if not getattr(self, name) > 0:
                raise ConfigError(name, found=getattr(self, name), expected="a number of seconds above 0")

    @property
    def servers(self) -> str:
        """The hosts without a chroot: kazoo makes a chroot of one level only, and no parent of one."""
        return self.hosts.partition("/")[0]

    @property
    def path(self) -> str:
        """The root's path from the servers' own root, the chroot in front."""
        chroot = self.hosts.partition("/")[2].strip("/")
        return (f"/{chroot}" if chroot else "") + "/" + self.root.strip("/")


@dataclass
class Counters:
    """Requests sent since the connection was made; ``writes`` includes the multis."""

    multis: int = 0
    writes: int = 0
    reads: int = 0


class Connection:
    """One connection; :class:`~trident.coordinators.zookeeper.ZooKeeper` sends its requests over it."""

    def __init__(
        self, config: ZooKeeperConfig, threads: Threads = THREADS, make_client: Callable[..., KazooClient] = KazooClient
    ) -> None:
        """Args:
        config: where ZooKeeper is.
        threads: where its threads and its clock come from.
        make_client: kazoo's client, or what a simulation has in its place.
        """
        self.config = config
        self._threads, self._kazoo = threads, make_client
        self.counters = Counters()
        # Told of each request when it has ended: "read" or "write", seconds, and whether it raised. Must be quick.
        self.timed: Callable[[str, float, bool], None] | None = None
        self._root = config.path
        self._lock = threads.lock()
        self._changed = threads.condition(self._lock)
        self._state = ConnectionState.LOST
        self._session_number = 0
        self._closed = False
        self._listeners: list[Callable[[ConnectionState], None]] = []
        self._loss_timer: threading.Timer | None = None
        self._problems = Problems()
        self._was_usable = self._reviving = False
        tls = TlsFiles.of(config.options)
        if tls:
            tls.context()  # a wrong file is told here, not by kazoo's thread at every try
        if config.options.get("sasl_options"):
            require_sasl_package()
        self._client = self._make_client()
        self._client.add_listener(self._on_kazoo_state)

    def _make_client(self) -> KazooClient:
        config = self.config
        try:
            return self._kazoo(
                hosts=config.servers,
                timeout=config.session_timeout_secs,
                handler=Handler(TlsFiles.of(config.options), self._problems, config.session_timeout_secs),
                logger=HarmlessLog(_kazoo_log, self._problems),
                # kazoo's own delay doubles up to a minute, and the ZooKeeper
                # session would expire between two tries.
                connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
                **config.options,
            )
        except (ValueError, TypeError, kz.ConfigurationError) as problem:
            raise ConfigError(
                "the ZooKeeper configuration",
                found=f"{config.hosts!r} ({problem})",
                expected="host:port,host:port/chroot",
            ) from problem

    # -- connection ---------------------------------------------------------

    def _refusal(self) -> ZooKeeperRefused | None:
        return self._problems.refusal(self.config.hosts, {host.strip() for host, _ in self._client.hosts})

    def _wait_first(self) -> None:
        timeout = self.config.connect_timeout_secs
        began, said_so = self._threads.monotonic(), False
        deadline = began + timeout
        connected = self._client.start_async()
        while not connected.wait(0.05):
            refusal = self._refusal()
            if refusal:
                raise refusal
            now, said = self._threads.monotonic(), self._problems.described()
            if not said_so and began + _SILENT_SECS <= now < deadline:
                said_so = True
                _log.warning(
                    "no ZooKeeper server answers at %s yet%s; trying for up to %g s (the settings zookeeper and"
                    " zookeeper_connect_timeout_secs)",
                    self.config.hosts,
                    f" ({said})" if said else "",
                    timeout,
                )
            if now >= deadline:
                raise ZooKeeperUnreachable(
                    f"no ZooKeeper server answered within {timeout:g} s",
                    found=f"no answer from {self.config.hosts}" + (f" ({said})" if said else ""),
                    expected="a ZooKeeper 3.5 or later that accepts this client",
                    action="check that it runs, and that host list and port are right; TLS (zookeeper_tls) has a port"
                    " of its own",
                )

    def close(self) -> None:
        """End the ZooKeeper session (its ephemeral znodes go) within a few seconds, whatever happens."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        # kazoo waits for its threads for up to the session timeout and
        # forever for a callback that hangs: not in this thread.
        client = self._client
        closer = self._threads.thread(lambda: _stop(client), "zookeeper-close")
        closer.start()
        closer.join(_CLOSE_SECS_MAX)
        self._cancel_loss_timer()

    @property
    def connected(self) -> bool:
        """Tells whether a request sent now would reach a server at once."""
        # kazoo clears this before it fails the pending requests, and calls
        # the listeners only afterwards: our own state is too late here.
        return self._client.connected and not self._closed

    @property
    def session_number(self) -> int:
        """Grows whenever a ZooKeeper session is lost, so that "the same session" can be asked."""
        return self._session_number

    @property
    def session_id(self) -> int | None:
        """The ZooKeeper session's id, the ``ephemeral_owner`` of its ephemeral znodes."""
        identity = self._client.client_id
        return identity[0] if identity else None

    def add_listener(self, listener: Callable[[ConnectionState], None]) -> None:
        """Have every change of state told; the listener must not block nor call ZooKeeper."""
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[ConnectionState], None]) -> None:
        """Undo :meth:`add_listener`."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def set_hosts(self, hosts: str) -> None:
        """Where the servers are from now on; of use while there is no connection."""
        if hosts != self.config.hosts:
            self.config = replace(self.config, hosts=hosts)
            self._client.set_hosts(hosts)

    def wait_connected(self, session_number: int | None = None, timeout_secs: float | None = None) -> bool:
        """Wait for a connection; False when the session given was lost, on close and after the timeout."""
        deadline = None if timeout_secs is None else self._threads.monotonic() + timeout_secs
        with self._changed:
            while True:
                if self._closed or session_number not in (None, self._session_number):
                    return False
                if self.connected:
                    return True
                if deadline is not None and self._threads.monotonic() >= deadline:
                    return False
                # `connected` turns true slightly before the listeners are told.
                self._changed.wait(0.05)

    # -- connection state ---------------------------------------------------

    def _on_kazoo_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._cancel_loss_timer()
            self._notify(ConnectionState.CONNECTED)
        elif state == KazooState.SUSPENDED:
            self._start_loss_timer()
            self._notify(ConnectionState.SUSPENDED)
        else:
            self._cancel_loss_timer()
            self._session_lost(self._session_number)
            # An expired session kazoo replaces by itself; now it has given up.
            if self._was_usable and self._problems.final:
                self._revive()

    def _revive(self) -> None:
        with self._lock:
            if self._closed or self._reviving:
                return
            self._reviving = True
        self._threads.thread(self._recreate_client, "zookeeper-revive").start()

    def _recreate_client(self) -> None:
        """Until a server accepts this client again: passwords may be changed, or servers restarted, meanwhile."""
        _log.warning("%s (tried again until that changes)", refused(self._problems.final, self.config.hosts))
        pause_secs = _REVIVE_SECS_MIN
        while not self._closed and not self._try_again():
            with self._changed:
                self._changed.wait_for(lambda: self._closed, pause_secs)
            pause_secs = min(2 * pause_secs, _REVIVE_SECS_MAX)
        with self._lock:
            self._reviving = False
        if self._problems.final:  # refused again before this was over: no other thread would see to it
            self._revive()

    def _try_again(self) -> bool:
        # A client that has given up would send what it has queued since then.
        client, timeout = self._make_client(), self.config.session_timeout_secs
        try:
            client.start_async().wait(timeout)
            # kazoo says that it is connected before it authenticates: only an answer tells.
            client.exists_async(self._root).get(timeout=timeout)
        except (kz.KazooException, KazooTimeoutError, OSError) as problem:
            _log.debug("ZooKeeper still refuses this client: %r", problem)
            _stop(client)
            return False
        self._problems.clear()
        client.add_listener(self._on_kazoo_state)
        with self._lock:
            self._client, old = client, self._client
        self._on_kazoo_state(client.state)
        _stop(client if self._closed else old)
        return True

    def _start_loss_timer(self) -> None:
        timer = self._threads.timer(self.config.session_timeout_secs, self._session_lost, self._session_number)
        with self._lock:
            if self._closed:
                return
            self._loss_timer, old = timer, self._loss_timer
        if old:
            old.cancel()
        timer.start()

    def _cancel_loss_timer(self) -> None:
        with self._lock:
            timer, self._loss_timer = self._loss_timer, None
        if timer:
            timer.cancel()

    def _session_lost(self, session_number: int) -> None:
        with self._changed:
            # Told twice when kazoo learns later that what counted as lost
            # here has indeed expired: nothing more is lost by that.
            if session_number != self._session_number or self._state is ConnectionState.LOST:
                return
            self._session_number += 1
        # A server that was wiped, or restored from an older copy, refuses for ever a client that has seen more than
        # it has. Nothing of the lost session is gone on from: a process that goes on leads again, syncs and reads.
        self._client.last_zxid = 0
        self._notify(ConnectionState.LOST)

    def _notify(self, state: ConnectionState) -> None:
        with self._changed:
            if state is self._state:
                return
            self._state = state
            listeners = list(self._listeners)
            self._changed.notify_all()
        for listener in listeners:
            try:
                listener(state)
            except Exception:  # a listener's defect must not end kazoo's thread
                _log.exception("a listener of the ZooKeeper connection failed")


def _stop(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except Exception as problem:  # a half-open connection: nothing is left to be done about it
        _log.debug("closing the connection to ZooKeeper: %r", problem)
