"""The one client of ZooKeeper (kazoo): reads, multis, and errors by what is known of a write.

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
- A request larger than the server's ``jute.maxbuffer`` makes the server hang
  up, which would look like a lost connection for ever. Sizes are checked
  before anything is sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from kazoo import exceptions as kz
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry, RetryFailedError
from kazoo.security import CREATOR_ALL_ACL

from trident.coordinators import faults
from trident.coordinators.errors import CoordinationError, OutcomeUnknown, ZooKeeperRefused, ZooKeeperUnreachable
from trident.coordinators.kazoo_adapter import not_allowed, raise_refusal
from trident.coordinators.znodes import Create, Delete, Op, SetData, Znode, check_multi, check_name
from trident.coordinators.zookeeper_connection import Connection

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


class ZooKeeper(Connection):
    """A client of ZooKeeper, for use by several threads.

    The caller must :meth:`connect` once and :meth:`close` in the end.
    """

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
            action="abandon what is in flight, lead again, and continue from what is there",
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
            with self._timing("read"), faults.fault_point(point):
                return retry(lambda: self._answer(start(), session_number))
        except (*_CONNECTION_ERRORS, InterruptedError, faults.InjectedFault) as problem:
            raise ZooKeeperUnreachable(
                f"znode {path} could not be read",
                found=f"{type(problem).__name__} at {self.config.hosts}",
                expected="an answer within the ZooKeeper session",
            ) from problem
        except (kz.NoAuthError, kz.AuthFailedError, kz.InvalidACLError) as problem:
            raise not_allowed(path, problem, self.config.hosts) from problem

    # -- who may use a znode --------------------------------------------------

    def is_world_writable(self, path: str) -> bool:
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

    def server_time_ms(self) -> int:
        """The clock of the servers' leader, in milliseconds since 1970: of a znode that goes with this session."""
        path = self.path(f"clock-{uuid.uuid4().hex}")
        self.multi([Create(path, ephemeral=True)])
        _, stat = self._read(path, lambda: self._client.get_async(path))
        return int(stat.ctime)

    def ensure_path(self, path: str) -> None:
        """Create a znode and its ancestors, empty, unless they exist.

        Raises:
            ZooKeeperUnreachable: it is not known to exist.
        """
        if self.exists(path) is None:
            self._count(writes=1)
            # Repeating it is harmless, so it may be repeated as a read may.
            self._read(path, lambda: self._client.ensure_path_async(path), ENSURE)

    def multi(self, ops: Sequence[Op], point: str = WRITE, aux_point: str | None = None) -> None:
        """Do all operations or none, durably, at the fault point ``point``, and at ``aux_point`` too.

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
            with (
                self._timing("write"),
                faults.fault_point(aux_point) if aux_point else nullcontext(),
                faults.fault_point(point),
            ):
                results = self._answer(request.commit_async(), session_number)
        except (*_CONNECTION_ERRORS, faults.InjectedFault) as problem:
            raise OutcomeUnknown(
                f"the connection was lost while {ops[0].path} and {len(ops) - 1} more were written",
                found=type(problem).__name__,
            ) from problem
        except (kz.NoAuthError, kz.AuthFailedError) as problem:
            raise not_allowed(ops[0].path, problem, self.config.hosts) from problem
        raise_refusal(ops, results)

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

    @contextmanager
    def _timing(self, operation: str) -> Iterator[None]:
        started, failed = self._threads.monotonic(), True
        try:
            yield
            failed = False
        except kz.NoNodeError:  # an answer like any other
            failed = False
            raise
        finally:
            if self.timed is not None:
                self.timed(operation, self._threads.monotonic() - started, failed)

    def _count(self, multis: int = 0, writes: int = 0, reads: int = 0) -> None:
        with self._lock:
            self.counters.multis += multis
            self.counters.writes += writes
            self.counters.reads += reads


def _znode(stat: Any) -> Znode:
    return Znode(stat.version, stat.ephemeralOwner, stat.numChildren)


# Gives a topology's znodes that every client may change to their creator, once, where the ensemble now authenticates.
#
# New znodes get the creator's ACL from the connection (``default_acl``); ZooKeeper has no inheritance, so that says
# nothing of those that are there.


def keep_for_creator(zk: ZooKeeper, topology: str) -> int:
    """Takes everybody's rights to a topology's znodes away; for the leader, with an authenticated connection.

    The topology's own znode comes last: while that is open, a part of the
    others may be, and the next leader goes through them again. Else only that
    one is looked at.

    Returns:
        how many znodes were open.

    Raises:
        CoordinationError: this identity may not see to them.
        ZooKeeperUnreachable: on the way; the next leader goes on.
    """
    top = zk.path(topology)
    return _close(zk, top) if zk.is_world_writable(top) else 0


def _close(zk: ZooKeeper, path: str) -> int:
    closed = sum(_close(zk, f"{path}/{child}") for child in zk.children(path))
    if not zk.is_world_writable(path):
        return closed
    zk.keep_for_creator(path)
    return closed + 1
