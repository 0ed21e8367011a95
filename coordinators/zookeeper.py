"""The one client of ZooKeeper (kazoo): sessions, reads, multis, and errors by what is known of a write.

It takes care of these:

- ``transaction().commit()`` returns its failures in a list and does not
  raise. :meth:`ZooKeeper.multi` raises: :class:`Deposed` when the check of a
  fence failed, :class:`MultiRefused` for any other operation; in both cases
  nothing of the multi happened.
- A lost connection, an expired session or a timeout during a write is
  :class:`OutcomeUnknown`, never a failure. :meth:`ZooKeeper.recover` leads
  back to a state that can be read.
- KazooRetry takes an expired session for a lost connection unless
  ``ignore_expire=False``. Here a read is repeated on the same ZooKeeper
  session only.
- kazoo learns that its session has expired only from a server that it can
  reach. Here a connection that has been away for the session timeout counts
  as lost: whatever was led with it is led by another by then.
- kazoo waits for an answer to a new connection as long as for the session.
  Here a third of that is enough: the server may be one that never answers.
- kazoo gives up for good when a server refuses its identity, also when the
  connection is only cut while it authenticates. A connection that was usable
  before is made again, at intervals.
- A request larger than the server's ``jute.maxbuffer`` makes the server hang
  up, which would look like a lost connection for ever. Sizes are checked
  before anything is sent.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, Union

from kazoo import exceptions as kz
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry, RetryFailedError
from kazoo.security import CREATOR_ALL_ACL

from trident.coordinators import faults
from trident.coordinators.errors import (
    ConfigError,
    CoordinationError,
    Deposed,
    OutcomeUnknown,
    ValueTooLarge,
    ZooKeeperRefused,
    ZooKeeperUnreachable,
)
from trident.coordinators.kazoo_errors import HarmlessLog, Problems, refused, require_sasl_package
from trident.coordinators.kazoo_tls import Handler, TlsFiles
from trident.coordinators.threads import THREADS, Threads

VALUE_BYTES_MAX = 512 * 1024
# The servers' default jute.maxbuffer is 1,048,575 bytes for a whole request.
MULTI_BYTES_MAX = 1_000_000
_OP_OVERHEAD_BYTES = 96
_OPS_AT_ONCE = 2_000
_CLOSE_SECS_MAX = 3.0
_REVIVE_SECS_MIN, _REVIVE_SECS_MAX = 0.5, 30.0

KAZOO_OPTIONS = frozenset(
    "auth_data default_acl sasl_options use_ssl ca certfile keyfile keyfile_password"
    " verify_certs check_hostname randomize_hosts".split()
)
_CONNECTION_ERRORS = (
    kz.ConnectionLoss,
    kz.OperationTimeoutError,
    kz.SessionExpiredError,
    kz.ConnectionClosedError,
    kz.ConnectionDropped,
    kz.SessionMovedError,
    RetryFailedError,
)

# Each request passes one of these; a multi may be given a name of its own.
READ = faults.register("zk.read", "reading a znode, or the names of its children")
SYNC = faults.register("zk.sync", "having the server catch up")
ENSURE = faults.register("zk.ensure", "creating the znodes above others, unless they exist")
WRITE = faults.register("zk.write", "a multi without a name of its own")

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
        hosts: "host:port,host:port", with an optional chroot at its end.
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
        for part in self.root.strip("/").split("/"):
            check_name(part, "a part of the ZooKeeper root")
        for name in ("session_timeout_secs", "connect_timeout_secs"):
            if not getattr(self, name) > 0:
                raise ConfigError(name, found=getattr(self, name), expected="a number of seconds above 0")


class Znode(NamedTuple):
    """A znode's facts beside its data; ``znode_version`` counts its writes from 0."""

    znode_version: int
    ephemeral_owner: int
    children_count: int


@dataclass(frozen=True)
class Create:
    """Creates a znode; its parent must exist. ``owner`` is named when the value is too large."""

    path: str
    value: bytes = b""
    ephemeral: bool = False
    owner: str = ""


@dataclass(frozen=True)
class SetData:
    """Replaces a znode's data if its znode version is the one given."""

    path: str
    value: bytes
    znode_version: int
    owner: str = ""


@dataclass(frozen=True)
class Delete:
    """Deletes a znode without children if its znode version is the one given (−1: any)."""

    path: str
    znode_version: int = -1


@dataclass(frozen=True)
class Check:
    """Refuses the multi unless the znode version is the one given; ``fence``: then as Deposed."""

    path: str
    znode_version: int
    fence: bool = False


Op = Union[Create, SetData, Delete, Check]


class MultiRefused(CoordinationError):
    """A multi was refused because of one of its operations; nothing of it happened.

    Attributes:
        reason: kazoo's name of the error, such as ``"BadVersionError"``.
    """

    def __init__(self, op: Op, reason: str) -> None:
        super().__init__(
            f"ZooKeeper refused {type(op).__name__} of znode {op.path}",
            found=reason,
            expected=f"znode version {op.znode_version}" if hasattr(op, "znode_version") else "no such znode",
        )
        self.op, self.reason = op, reason


@dataclass
class Counters:
    """Requests sent since the connection was made; ``writes`` includes the multis."""

    multis: int = 0
    writes: int = 0
    reads: int = 0


# The characters that ZooKeeper refuses in a path (all that UTF-16 writes as surrogates, too), and those that no screen
# shows: marks of direction, joiners, blanks without width.
_NOT_IN_NAMES = re.compile(
    "[/\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\uf8ff\ufeff\ufff0-\uffff\U00010000-\U0010ffff]"
)
NAME_BYTES_MAX = 1024


def check_name(name: str, what: str) -> str:
    """A name that can be one part of a znode's path.

    Raises:
        ConfigError: it cannot.
    """
    good = isinstance(name, str) and name not in ("", ".", "..") and not _NOT_IN_NAMES.search(name)
    if not good or len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigError(
            f"{what} cannot be the name of a znode",
            found=repr(name)[:200],
            expected=f'text of at most {NAME_BYTES_MAX} bytes, not "." or "..", without "/", control characters,'
            " surrogates and characters for private use",
        )
    return name


class ZooKeeper:
    """A connection to ZooKeeper, for use by several threads.

    The caller must :meth:`connect` once and :meth:`close` in the end.
    """

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
        self._root = "/" + config.root.strip("/")
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
                hosts=config.hosts,
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
                "the ZooKeeper configuration", found=f"{config.hosts!r} ({problem})", expected="host:port,host:port"
            ) from problem

    # -- connection ---------------------------------------------------------

    def connect(self) -> None:
        """Connect and see to it that the root exists.

        Raises:
            ZooKeeperUnreachable: no server answered within
                ``connect_timeout_secs``.
            ZooKeeperRefused: a certificate, an identity or a password is not
                accepted; told as soon as every server has said so.
            CoordinationError: this identity may not use the root.
        """
        try:
            self._wait_first()
            self.ensure_path(self._root)
            self._was_usable = True
            self._problems.clear()
        except CoordinationError as problem:
            # kazoo says that it is connected before it authenticates.
            refusal = self._refusal()
            self.close()
            if refusal and not isinstance(problem, ZooKeeperRefused):
                raise refusal from problem
            raise

    def _refusal(self) -> ZooKeeperRefused | None:
        return self._problems.refusal(self.config.hosts, {host.strip() for host, _ in self._client.hosts})

    def _wait_first(self) -> None:
        timeout = self.config.connect_timeout_secs
        deadline = self._threads.monotonic() + timeout
        connected = self._client.start_async()
        while not connected.wait(0.05):
            refusal = self._refusal()
            if refusal:
                raise refusal
            if self._threads.monotonic() >= deadline:
                said = self._problems.described()
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

    def recover(self, session_number: int, path: str) -> None:
        """After an unknown outcome: from now on reads see what became of the write.

        Raises:
            OutcomeUnknown: the ZooKeeper session in which it was written is
                lost; the caller must abandon what it does.
        """
        try:
            if self.wait_connected(session_number):
                self.sync(path)
                if session_number == self._session_number:
                    return
        except ZooKeeperUnreachable:
            pass
        raise OutcomeUnknown(
            f"the ZooKeeper session was lost while {path} was written",
            action="abandon what is in flight, lead again, and go on from what is there",
        )

    # -- names --------------------------------------------------------------

    def path(self, *names: str) -> str:
        """The znode's path under the root.

        Raises:
            ConfigError: a name cannot be part of a path.
        """
        return "/".join([self._root, *(check_name(name, "this name") for name in names)])

    # -- reads --------------------------------------------------------------

    def get(self, path: str, watch: Callable[..., None] | None = None) -> tuple[bytes, Znode] | None:
        """Data and state of a znode, None if it does not exist (then no watch is set).

        Raises:
            ZooKeeperUnreachable: not on this ZooKeeper session.
        """
        try:
            data, stat = self._read(path, lambda: self._client.get_async(path, watch))
        except kz.NoNodeError:
            return None
        return data, _znode(stat)

    def exists(self, path: str, watch: Callable[..., None] | None = None) -> Znode | None:
        """A znode's state, None if it does not exist; errors as in :meth:`get`."""
        stat = self._read(path, lambda: self._client.exists_async(path, watch))
        return None if stat is None else _znode(stat)

    def children(self, path: str) -> list[str]:
        """The names of a znode's children, sorted; none if it does not exist; errors as in :meth:`get`."""
        try:
            return sorted(self._read(path, lambda: self._client.get_children_async(path)))
        except kz.NoNodeError:
            return []

    def sync(self, path: str) -> None:
        """Have this connection's server catch up, so that a read sees every write finished before."""
        self._read(path, lambda: self._client.sync_async(path), SYNC)

    def _read(self, path: str, start: Callable[[], Any], point: str = READ) -> Any:
        session_number = self._session_number
        retry = KazooRetry(
            max_tries=-1,
            delay=0.05,
            max_delay=1.0,
            deadline=self.config.session_timeout_secs,
            ignore_expire=False,
            sleep_func=self._threads.sleep,
            interrupt=lambda: self._closed or session_number != self._session_number,
        )
        self._count(reads=1)
        try:
            with faults.fault_point(point):
                return retry(lambda: self._answer(start(), session_number))
        except (*_CONNECTION_ERRORS, InterruptedError, faults.InjectedFault) as problem:
            raise ZooKeeperUnreachable(
                f"znode {path} could not be read",
                found=f"{type(problem).__name__} at {self.config.hosts}",
                expected="an answer within the ZooKeeper session",
            ) from problem
        except (kz.NoAuthError, kz.AuthFailedError, kz.InvalidACLError) as problem:
            raise _not_allowed(path, problem, self.config.hosts) from problem

    # -- who may use a znode --------------------------------------------------

    def everybody_may(self, path: str) -> bool:
        """Tells whether unauthenticated clients may change the znode or its children; errors as :meth:`get`."""
        try:
            acls, _ = self._read(path, lambda: self._client.get_acls_async(path))
        except kz.NoNodeError:
            return False
        return any(acl.id.scheme in ("world", "ip") and acl.perms & ~1 for acl in acls)

    def keep_for_creator(self, path: str) -> None:
        """Leave a znode to the identity of this connection alone; nothing if it is gone; errors as in :meth:`get`."""
        self._count(writes=1)
        try:
            # Repeating it is harmless, so it may be repeated as a read may.
            self._read(path, lambda: self._client.set_acls_async(path, CREATOR_ALL_ACL))
        except kz.NoNodeError:
            pass

    # -- writes -------------------------------------------------------------

    def ensure_path(self, path: str) -> None:
        """Create a znode and its ancestors, empty, unless they exist.

        Raises:
            ZooKeeperUnreachable: it is not known to exist.
        """
        if self.exists(path) is None:
            self._count(writes=1)
            # Repeating it is harmless, so it may be repeated as a read may.
            self._read(path, lambda: self._client.ensure_path_async(path), ENSURE)

    def multi(self, ops: Sequence[Op], point: str = WRITE) -> None:
        """Do all operations or none, durably, at the fault point ``point``.

        Raises:
            Deposed: the check of a fence failed; nothing happened.
            MultiRefused: another operation was refused; nothing happened.
            ValueTooLarge: nothing was sent.
            OutcomeUnknown: everything or nothing happened.
        """
        check_multi(ops)
        request = self._client.transaction()
        for op in ops:
            if isinstance(op, Create):
                request.create(op.path, op.value, ephemeral=op.ephemeral)
            elif isinstance(op, SetData):
                request.set_data(op.path, op.value, op.znode_version)
            elif isinstance(op, Delete):
                request.delete(op.path, op.znode_version)
            else:
                request.check(op.path, op.znode_version)
        session_number = self._session_number
        self._count(multis=1, writes=1)
        try:
            with faults.fault_point(point):
                results = self._answer(request.commit_async(), session_number)
        except (*_CONNECTION_ERRORS, faults.InjectedFault) as problem:
            raise OutcomeUnknown(
                f"the connection was lost while {ops[0].path} and {len(ops) - 1} more were written",
                found=type(problem).__name__,
            ) from problem
        except (kz.NoAuthError, kz.AuthFailedError) as problem:
            raise _not_allowed(ops[0].path, problem, self.config.hosts) from problem
        _raise_refusal(ops, results)

    def _answer(self, pending: Any, session_number: int) -> Any:
        deadline = self._threads.monotonic() + self.config.session_timeout_secs
        while True:
            try:
                return pending.get(timeout=0.2)
            except KazooTimeoutError:
                # While the connection is away requests wait in kazoo's queue
                # without end; ours end with the ZooKeeper session, or as soon
                # when it was lost already.
                away_too_long = not self.connected and self._threads.monotonic() > deadline
                if self._closed or session_number != self._session_number or away_too_long:
                    raise kz.SessionExpiredError() from None

    def _count(self, multis: int = 0, writes: int = 0, reads: int = 0) -> None:
        with self._lock:
            self.counters.multis += multis
            self.counters.writes += writes
            self.counters.reads += reads

    # -- connection state ---------------------------------------------------

    def _on_kazoo_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._cancel_loss_timer()
            self._tell(ConnectionState.CONNECTED)
        elif state == KazooState.SUSPENDED:
            self._start_loss_timer()
            self._tell(ConnectionState.SUSPENDED)
        else:
            self._cancel_loss_timer()
            self._lose(self._session_number)
            # An expired session kazoo replaces by itself; now it has given up.
            if self._was_usable and self._problems.final:
                self._revive()

    def _revive(self) -> None:
        with self._lock:
            if self._closed or self._reviving:
                return
            self._reviving = True
        self._threads.thread(self._make_again, "zookeeper-revive").start()

    def _make_again(self) -> None:
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
        timer = self._threads.timer(self.config.session_timeout_secs, self._lose, self._session_number)
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

    def _lose(self, session_number: int) -> None:
        with self._changed:
            # Told twice when kazoo learns later that what counted as lost
            # here has indeed expired: nothing more is lost by that.
            if session_number != self._session_number or self._state is ConnectionState.LOST:
                return
            self._session_number += 1
        # A server that was wiped, or restored from an older copy, refuses for ever a client that has seen more than
        # it has. Nothing of the lost session is gone on from: a process that goes on leads again, syncs and reads.
        self._client.last_zxid = 0
        self._tell(ConnectionState.LOST)

    def _tell(self, state: ConnectionState) -> None:
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


def _znode(stat: Any) -> Znode:
    return Znode(stat.version, stat.ephemeralOwner, stat.numChildren)


def _raise_refusal(ops: Sequence[Op], results: Sequence[Any]) -> None:
    # Every operation of a refused multi has an error; the one at fault is the
    # only one that does not merely say that the others were undone.
    undone = (kz.RolledBackError, kz.RuntimeInconsistency)
    for op, result in zip(ops, results):
        if isinstance(result, Exception) and not isinstance(result, undone):
            if isinstance(op, Check) and op.fence:
                raise Deposed(
                    "another coordinator leads now",
                    found=f"{type(result).__name__} at {op.path}",
                    expected=f"znode version {op.znode_version}",
                    action="stop writing; this process is no longer the leader",
                )
            if isinstance(result, (kz.NoAuthError, kz.InvalidACLError)):
                raise _not_allowed(op.path, result)
            raise MultiRefused(op, type(result).__name__)
    failed = [result for result in results if isinstance(result, Exception)]
    if failed:
        raise OutcomeUnknown(f"ZooKeeper gave no reason for refusing {ops[0].path}", found=repr(failed[0]))


def _not_allowed(path: str, problem: Exception, hosts: str = "ZooKeeper") -> CoordinationError:
    if isinstance(problem, kz.AuthFailedError):
        return refused(problem, hosts)
    if isinstance(problem, kz.InvalidACLError):
        return CoordinationError(
            f"ZooKeeper does not know who this client is, so {path} cannot be kept for its creator",
            found="InvalidACLError",
            expected="a connection that is authenticated (zookeeper_acl=creator)",
            action="set zookeeper_auth or SASL; for a TLS certificate the server needs ssl.clientAuth=need; or set"
            " zookeeper_acl=open",
        )
    return CoordinationError(
        f"ZooKeeper does not allow this client to use {path}",
        found=type(problem).__name__,
        expected="the identity that created it, or one that its ACL names",
        action="check zookeeper_auth, or the SASL user and password, or the TLS certificate; `getAcl` in zkCli.sh shows"
        " whom the znode belongs to",
    )


def check_multi(ops: Sequence[Op], what: str = "", reserve: int = 0) -> None:
    """Checks that writes that belong together fit into one request, and each value into its znode.

    Args:
        what: what they do, for the message.
        reserve: bytes that must be left, for what is not known yet.

    Raises:
        ValueTooLarge: they do not; with whose they are.
    """
    for op in ops:
        value = op.value if isinstance(op, (Create, SetData)) else b""
        if len(value) > VALUE_BYTES_MAX:
            raise ValueTooLarge(
                f"the value of {getattr(op, 'owner', '') or 'a znode'} is too large for ZooKeeper (znode {op.path})",
                found=f"{len(value):,} bytes",
                expected=f"at most {VALUE_BYTES_MAX:,} bytes",
                action="keep the data elsewhere and only a reference to it in the metadata",
            )
    total, by_owner = 0, dict[str, int]()
    for op in ops:
        size = multi_bytes([op])
        total += size
        owner = getattr(op, "owner", "") or "coordination"
        by_owner[owner] = by_owner.get(owner, 0) + size
    if total > MULTI_BYTES_MAX - reserve:
        most = sorted(by_owner.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{owner} {size:,}" for owner, size in most[:5])
        raise ValueTooLarge(
            f"{len(ops)} writes that belong together{what} are too large for ZooKeeper",
            found=f"{total:,} bytes: {shown}" + (", …" if len(most) > 5 else ""),
            expected=f"at most {MULTI_BYTES_MAX - reserve:,} bytes over all streams of a batch group",
            action="keep positions in the metadata, not data; have fewer partitions in a batch; or keep streams that"
            " need not meet in batch groups, or topologies, of their own",
        )


def multi_bytes(ops: Sequence[Op]) -> int:
    """About how many bytes operations take in a request; never fewer than they do."""
    return sum(
        len(op.path.encode()) + (len(op.value) if isinstance(op, (Create, SetData)) else 0) + _OP_OVERHEAD_BYTES
        for op in ops
    )


def parts_of(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Runs of writes that need not happen together, each of which fits into one request."""
    part: list[Op] = []
    size = 0
    for op in ops:
        more = multi_bytes([op])
        if part and (size + more > MULTI_BYTES_MAX // 2 or len(part) >= _OPS_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(op)
        size += more
    if part:
        yield part
