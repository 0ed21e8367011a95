"""Resets and rollbacks of a topology in ZooKeeper: a mark of each is written first, and goes last.

A reset deletes files, a rollback commits to several tables, and either may be
killed anywhere. While its mark is there no process leads the topology over
what is left half done, and the same command, run again, does the rest: a reset
knows by it that it may go on, though nothing else says any more that this is
the topology's own ZooKeeper; a rollback does exactly what its intent says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trident.coordinators import faults
from trident.coordinators.errors import CoordinationError, CorruptZnode, Deposed, StaleState
from trident.coordinators.leadership import Lease, current_holder, holder_is_gone
from trident.coordinators.records import RESERVED_NAMES, Holder, Incarnation, UnfinishedRollback, decode, encode
from trident.coordinators.znodes import Create, Delete, MultiRefused, Op, SetData, parts_of
from trident.coordinators.zookeeper import ZooKeeper

RESET = faults.register("zk.reset", "the multis that forget a topology")
INTENT = faults.register("zk.rollback", "the multis that begin and end a rollback")
# With a dot in them: no stream and no batch group can have these names.
_RESET_MARK, _ROLLBACK_MARK = "reset.unfinished", "rollback.unfinished"


@dataclass(frozen=True)
class UnfinishedReset:
    """The znode that a reset leaves until it has done everything.

    Attributes:
        incarnations: those of the topology that it forgets.
    """

    incarnations: tuple[str, ...]


def unfinished_reset(zk: ZooKeeper, topology: str) -> UnfinishedReset | None:
    """The reset of a topology that was begun and has not ended; None when there is none.

    Raises:
        CorruptZnode: its mark cannot be read.
    """
    path = zk.path(topology, _RESET_MARK)
    found = zk.get(path)
    return decode(path, found[0], UnfinishedReset) if found else None


def refuse_unfinished_reset(zk: ZooKeeper, topology: str) -> None:
    """Refuses to go on with a topology whose reset has not ended."""
    if unfinished_reset(zk, topology) is not None:
        raise CoordinationError(
            f"a reset of topology {topology!r} was begun and has not ended: its transactions are forgotten, and some "
            "of its tables and files may be gone",
            found=f"the znode {zk.path(topology, _RESET_MARK)}",
            expected="a topology that is whole, or none",
            action=f"run `trident reset {topology}` again, with the options that it had (--drop-tables): it goes on",
        )


def delete_topology(zk: ZooKeeper, topology: str, unfinished: Iterable[str] | None = None) -> bool:
    """Forget a topology, for ``trident reset``; the leader znodes stay, bumped.

    They are never deleted: a coordinator that was paused before the reset
    would find a new one with the znode version that it knows. Those below a
    name that the framework has taken are: no coordinator has led by them.

    Args:
        unfinished: the incarnations of it that are forgotten, when there is more to
            be deleted than znodes; the caller calls :func:`finish_reset` then.

    Returns:
        False if there was nothing to forget.

    Raises:
        Deposed: a coordinator of it is alive, or started meanwhile.
        OutcomeUnknown: the connection was lost; do it again.
        CorruptZnode: a process holds the live znode, and it cannot be read who.
    """
    root, mark = zk.path(topology), zk.path(topology, _RESET_MARK)
    zk.sync(root)
    bumps: list[Op] = []
    doomed: list[str] = []
    if zk.exists(root) is not None:
        _collect(zk, root, root, bumps, doomed)
    if mark in doomed or unfinished is not None:
        doomed = [path for path in doomed if path not in (mark, root)]
    if not doomed and unfinished is None:
        return False
    first = [path for path in doomed if _is_at_or_below(path, [f"{root}/identity", f"{root}/incarnation"])]
    live = [path for path in doomed if _is_at_or_below(path, [f"{root}/live"])]
    rest = [path for path in doomed if path not in (*first, *live)]
    # Without identity and incarnation the topology is gone: if this process
    # dies before the rest is deleted, the rest belongs to an incarnation that
    # is no more.
    ops: list[Op] = [*bumps, *_nobody_leads(zk, f"{root}/live", live), *map(Delete, first)]
    if unfinished is not None:
        zk.ensure_path(root)
        ops.append(_mark(zk, mark, unfinished))
    try:
        zk.multi(ops, RESET)
        for part in parts_of([*map(Delete, rest)]):
            zk.multi(part, RESET)
    except MultiRefused as refusal:
        raise Deposed(
            f"topology {topology!r} is running, or was started meanwhile",
            found=f"{refusal.reason} at {refusal.op.path}",
            expected="no live coordinator",
            action="stop it first",
        ) from refusal
    return bool(doomed)


def finish_reset(zk: ZooKeeper, topology: str) -> None:
    """Everything is deleted that was to be: the topology may begin again.

    Raises:
        OutcomeUnknown: the connection was lost; do the reset again.
    """
    root, mark = zk.path(topology), zk.path(topology, _RESET_MARK)
    if zk.exists(mark) is None:
        return
    ops: list[Op] = [Delete(mark)]
    if zk.children(root) == [_RESET_MARK]:
        ops.append(Delete(root))
    try:
        zk.multi(ops, RESET)
    except MultiRefused:
        # A process has come to contend meanwhile, or has finished the same reset: the root may stay.
        if zk.exists(mark) is not None:
            zk.multi([Delete(mark)], RESET)


def _mark(zk: ZooKeeper, path: str, incarnations: Iterable[str]) -> Op:
    found = zk.get(path)
    if found is None:
        return Create(path, encode(UnfinishedReset(tuple(sorted(set(incarnations))))))
    known = decode(path, found[0], UnfinishedReset).incarnations
    return SetData(path, encode(UnfinishedReset(tuple(sorted({*known, *incarnations})))), found[1].znode_version)


def _nobody_leads(zk: ZooKeeper, path: str, doomed: list[str]) -> list[Op]:
    """Fails while a process holds the live znode; deletes what stands in its place."""
    found = zk.get(path)
    if found is None:
        return [Create(path), Delete(path)]
    below: list[Op] = [Delete(one) for one in doomed if one != path]
    if not found[1].ephemeral_owner:
        # No session holds it: it was made for a stream or a batch group of this name.
        return [*below, Delete(path, found[1].znode_version)]
    try:
        gone = holder_is_gone(decode(path, found[0], Holder), current_holder())
    except CorruptZnode:
        gone = False
    return [Delete(path, found[1].znode_version)] if gone else [Create(path), Delete(path)]


def _is_at_or_below(path: str, tops: list[str]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def _collect(zk: ZooKeeper, root: str, path: str, bumps: list[Op], doomed: list[str]) -> bool:
    """Fills both lists, children first; True if a leader znode keeps this znode."""
    kept = False
    for name in zk.children(path):
        child = f"{path}/{name}"
        # Of /<topology>/<group>/leader, but for a group that has the name of a znode of the framework's.
        if name == "leader" and path.rpartition("/")[0] == root and path.rpartition("/")[2] not in RESERVED_NAMES:
            kept = True
            found = zk.get(child)
            if found:
                bumps.append(SetData(child, found[0], found[1].znode_version))
        elif _collect(zk, root, child, bumps, doomed):
            kept = True
    if not kept:
        doomed.append(path)
    return kept


# --- rollbacks ----------------------------------------------------------------------------------------


def unfinished_rollback(zk: ZooKeeper, topology: str) -> UnfinishedRollback | None:
    """The rollback of a topology that was begun and has not ended; None when there is none.

    Raises:
        CorruptZnode: its znode cannot be read.
    """
    path = zk.path(topology, _ROLLBACK_MARK)
    found = zk.get(path)
    return decode(path, found[0], UnfinishedRollback) if found else None


def refuse_unfinished_rollback(zk: ZooKeeper, topology: str) -> None:
    """Refuses to go on with a topology whose rollback has not ended."""
    unfinished = unfinished_rollback(zk, topology)
    if unfinished is not None:
        raise CoordinationError(
            f"a rollback of topology {topology!r} to transaction {unfinished.txid} of batch group "
            f"{unfinished.group!r} was begun and has not ended: some of its tables may be of then, and others of now",
            found=f"the znode {zk.path(topology, _ROLLBACK_MARK)}",
            expected="a topology whose tables are all of one moment",
            action=f"run `trident rollback {topology} --to {unfinished.txid} --apply` again: it goes on",
        )


def begin_rollback(zk: ZooKeeper, lease: Lease, topology: str, intent: UnfinishedRollback) -> None:
    """Stores the intent, under the fence.

    Raises:
        Deposed: another coordinator leads; nothing was written.
        OutcomeUnknown: the answer was lost; run the command again.
    """
    zk.multi([*_fenced(lease), Create(zk.path(topology, _ROLLBACK_MARK), encode(intent))], INTENT)


def finish_rollback(zk: ZooKeeper, lease: Lease, topology: str, incarnation: str) -> None:
    """Every table and record is as it was meant to be: the topology may go on.

    Raises: as :func:`begin_rollback`.
    """
    path = zk.path(topology, "incarnation")
    found = zk.get(path)
    if found is None:
        raise StaleState(f"{path} is gone", expected="the topology's incarnation", action="run `trident repair` first")
    ops: list[Op] = [SetData(path, encode(Incarnation(incarnation)), found[1].znode_version)]
    zk.multi([*_fenced(lease), *ops, Delete(zk.path(topology, _ROLLBACK_MARK))], INTENT)


def _fenced(lease: Lease) -> list[Op]:
    ops: list[Op] = []
    for fence in lease.fences.values():
        fence.check_op(ops)
    return ops


def refuse_unfinished(zk: ZooKeeper, topology: str) -> None:
    """Refuses to go on with a topology of which a reset or a rollback has not ended."""
    refuse_unfinished_reset(zk, topology)
    refuse_unfinished_rollback(zk, topology)
