"""Rolls a topology back in ZooKeeper: an intent first, then each group's record; the intent goes last.

A rollback commits to several tables, and it may be killed between any two of
them. So what it is going to do is stored before the first commit. While it is
there no process leads the topology over tables of two moments, and the same
command, run again, does what is left of exactly that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trident.coordinators import faults
from trident.coordinators.errors import CoordinationError, StaleState
from trident.coordinators.group_store import RECORD
from trident.coordinators.leadership import Lease
from trident.coordinators.records import GroupRecord, Incarnation, TableMark, UnfinishedRollback, decode, encode
from trident.coordinators.repairing import RepairStore
from trident.coordinators.znodes import Create, Delete, Op, SetData
from trident.coordinators.zookeeper import ZooKeeper

INTENT = faults.register("zk.rollback", "the multis that begin and end a rollback")
# With a dot in it: no stream and no batch group can have this name.
_MARK = "rollback.unfinished"


def unfinished_rollback(zk: ZooKeeper, topology: str) -> UnfinishedRollback | None:
    """The rollback of a topology that was begun and has not ended; None when there is none.

    Raises:
        CorruptZnode: its znode cannot be read.
    """
    path = zk.path(topology, _MARK)
    found = zk.get(path)
    return decode(path, found[0], UnfinishedRollback) if found else None


def refuse_unfinished_rollback(zk: ZooKeeper, topology: str) -> None:
    """Refuses to go on with a topology whose rollback has not ended."""
    unfinished = unfinished_rollback(zk, topology)
    if unfinished is not None:
        raise CoordinationError(
            f"a rollback of topology {topology!r} to transaction {unfinished.txid} of batch group "
            f"{unfinished.group!r} was begun and has not ended: some of its tables may be of then, and others of now",
            found=f"the znode {zk.path(topology, _MARK)}",
            expected="a topology whose tables are all of one moment",
            action=f"run `trident rollback {topology} --to {unfinished.txid} --apply` again: it goes on",
        )


def begin_rollback(zk: ZooKeeper, lease: Lease, topology: str, intent: UnfinishedRollback) -> None:
    """Stores the intent, under the fence.

    Raises:
        Deposed: another coordinator leads; nothing was written.
        OutcomeUnknown: the answer was lost; run the command again.
    """
    zk.multi([*_fenced(lease), Create(zk.path(topology, _MARK), encode(intent))], INTENT)


def finish_rollback(zk: ZooKeeper, lease: Lease, topology: str, incarnation: str) -> None:
    """Every table and record is as it was meant to be: the topology may go on.

    Raises: as :func:`begin_rollback`.
    """
    path = zk.path(topology, "incarnation")
    found = zk.get(path)
    if found is None:
        raise StaleState(f"{path} is gone", expected="the topology's incarnation", action="run `trident repair` first")
    ops: list[Op] = [SetData(path, encode(Incarnation(incarnation)), found[1].znode_version)]
    zk.multi([*_fenced(lease), *ops, Delete(zk.path(topology, _MARK))], INTENT)


def _fenced(lease: Lease) -> list[Op]:
    ops: list[Op] = []
    for fence in lease.fences.values():
        fence.check_op(ops)
    return ops


class RollbackStore(RepairStore):
    """A group's state, with what only a rollback may do to it. Call load() first."""

    def take_back(
        self,
        record: GroupRecord,
        pins: Mapping[str, Mapping[int, object]],
        opaque: Mapping[str, Mapping[str, object]],
        opaque_txid: int,
    ) -> None:
        """Replaces the record, its positions and its decision by those of an earlier transaction, in one multi.

        Args:
            pins: tx_id → txid → metadata; of a stream that is left out none is kept.
            opaque: tx_id → partition → metadata, stored under ``opaque_txid``.

        Raises: as every write of :class:`GroupStore`.
        """
        with self._lock:
            self._writable()
            self._replace_all(record, None, [], pins, opaque, opaque_txid)

    def carry(self, incarnation: str, tables: Mapping[str, TableMark]) -> None:
        """Takes a group whose transactions stay into the next incarnation.

        Raises: as every write of :class:`GroupStore`.
        """
        with self._lock:
            self._writable()
            self._write(RECORD, replace(self.record, incarnation=incarnation, tables=tables), [], [])
