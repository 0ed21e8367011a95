"""Registers a topology in ZooKeeper, refuses another one under its name, and marks unfinished resets and rollbacks.

``/<topology>/incarnation`` is a random id made at the first start; it is also
in every table's control record. ``/<topology>/identity`` holds the streams,
states and batch groups. Functions and operations may change between runs;
what may not change is in :func:`identity_conflicts`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from trident.coordinators import faults
from trident.coordinators.errors import (
    CoordinationError,
    CorruptZnode,
    Deposed,
    IdentityMismatch,
    OutcomeUnknown,
    StaleState,
)
from trident.coordinators.leadership import Fence, Lease, current_holder, holder_has_ended
from trident.coordinators.records import (
    RESERVED_NAMES,
    Holder,
    Identity,
    Incarnation,
    UnfinishedRollback,
    decode,
    encode,
)
from trident.coordinators.znodes import Create, Delete, MultiRefused, Op, SetData, parts_of
from trident.coordinators.zookeeper import ZooKeeper

# Resets and rollbacks of a topology in ZooKeeper: a mark of each is written first, and goes last.
#
# A reset deletes files, a rollback commits to several tables, and either may be
# killed anywhere. While its mark is there no process leads the topology over
# what is left half done, and the same command, run again, does the rest: a reset
# knows by it that it may go on, though nothing else says any more that this is
# the topology's own ZooKeeper; a rollback does exactly what its intent says.


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
            action=f"run `trident reset {topology}` again, with the options that it had (--drop-tables): it continues",
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
    to_delete: list[str] = []
    if zk.exists(root) is not None:
        _collect(zk, root, root, bumps, to_delete)
    if mark in to_delete or unfinished is not None:
        to_delete = [path for path in to_delete if path not in (mark, root)]
    if not to_delete and unfinished is None:
        return False
    first = [path for path in to_delete if _is_at_or_below(path, [f"{root}/identity", f"{root}/incarnation"])]
    live = [path for path in to_delete if _is_at_or_below(path, [f"{root}/live"])]
    rest = [path for path in to_delete if path not in (*first, *live)]
    # Without identity and incarnation the topology is gone: if this process
    # dies before the rest is deleted, the rest belongs to an incarnation that
    # is no more.
    ops: list[Op] = [*bumps, *_without_leader(zk, f"{root}/live", live), *map(Delete, first)]
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
    return bool(to_delete)


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


def _without_leader(zk: ZooKeeper, path: str, to_delete: list[str]) -> list[Op]:
    """Fails while a process holds the live znode; deletes what stands in its place."""
    found = zk.get(path)
    if found is None:
        return [Create(path), Delete(path)]
    below: list[Op] = [Delete(one) for one in to_delete if one != path]
    if not found[1].ephemeral_owner:
        # No session holds it: it was made for a stream or a batch group of this name.
        return [*below, Delete(path, found[1].znode_version)]
    try:
        gone = holder_has_ended(decode(path, found[0], Holder), current_holder())
    except CorruptZnode:
        gone = False
    return [Delete(path, found[1].znode_version)] if gone else [Create(path), Delete(path)]


def _is_at_or_below(path: str, tops: list[str]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


def _collect(zk: ZooKeeper, root: str, path: str, bumps: list[Op], to_delete: list[str]) -> bool:
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
        elif _collect(zk, root, child, bumps, to_delete):
            kept = True
    if not kept:
        to_delete.append(path)
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
            action=f"run `trident rollback {topology} --to {unfinished.txid} --apply` again: it continues",
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


REGISTER = faults.register("zk.register", "the multi that stores a topology's identity and incarnation")

# Rows and whole values stay what they are when a column is added, or is null from now on; parts of an aggregate
# would not.
_EVOLVING = ("append", "upsert")

# The advice for each kind of difference: the mildest that works.
_STREAM = "bring the stream back with its earlier name and spout: its position is known under them"
_STATE = "give the state another name (it begins anew, and the earlier one stays as it is), or bring its code back"
_GROUP = "join or merge the same streams as before"
_ELSE = "else give the topology another name, or begin again with `trident reset {}`"

IdentityDict = Mapping[str, Any]
"""{"streams": {tx_id: spout class}, "states": {name: {"keys": […], "value_schema": …,
"aggregator": …}}, "groups": {group: [tx_id, …]}}"""


def identity_difference(stored: IdentityDict, given: IdentityDict) -> list[str]:
    """Every difference between two identities, one line each; empty if there is none."""
    return [line for _, line, _ in _differences(stored, given)]


def identity_conflicts(stored: IdentityDict, given: IdentityDict) -> list[str]:
    """The differences that a running topology's data does not survive.

    Allowed: a new state, a state that is gone (kept, detached), a new stream
    that leaves the existing streams in their groups; of an append or of the
    last values by key (``Upsert``) further columns behind the others, or some
    columns fewer, as after a roll-back of the code: they stay in the table, and
    are null in what is written from then on. Refused: a
    stream that is gone or has another spout class, since its position would be
    lost; any other change of a state's keys, value schema or aggregator; merged
    or split groups.
    """
    return [line for allowed, line, _ in _differences(stored, given) if not allowed]


def _advice(topology: str, stored: IdentityDict, given: IdentityDict) -> str:
    """Returns what to do about the differences that are not allowed."""
    actions = list(dict.fromkeys(action for allowed, _, action in _differences(stored, given) if not allowed))
    if actions == [_STATE]:
        return _STATE
    return "; ".join([*actions, _ELSE.format(topology)])


def _differences(stored: IdentityDict, given: IdentityDict) -> Iterator[tuple[bool, str, str]]:
    """(whether it is allowed, what it is, what to do if it is not)."""
    before, after = stored["streams"], given["streams"]
    for tx_id in sorted(before.keys() | after.keys()):
        if tx_id not in after:
            yield False, f"stream {tx_id!r} is gone (was {before[tx_id]})", _STREAM
        elif tx_id not in before:
            yield True, f"stream {tx_id!r} is new ({after[tx_id]})", ""
        elif before[tx_id] != after[tx_id]:
            yield False, f"the spout of stream {tx_id!r} was {before[tx_id]}, now {after[tx_id]}", _STREAM
    before, after = stored["states"], given["states"]
    for name in sorted(before.keys() | after.keys()):
        if name not in after or name not in before:
            yield True, f"state {name!r} is {'new' if name in after else 'gone'}", ""
            continue
        for key in ("keys", "value_schema", "aggregator"):
            one, other = _shown(before[name][key]), _shown(after[name][key])
            if one != other:
                allowed = _only_columns_differ(before[name], after[name], key)
                yield allowed, f"{key} of state {name!r} was {one}, now {other}", _STATE
    before, after = _group_of(stored), _group_of(given)
    for tx_id in sorted(before.keys() & after.keys()):
        if before[tx_id] != after[tx_id]:
            yield False, f"stream {tx_id!r} was in batch group {before[tx_id]!r}, now in {after[tx_id]!r}", _GROUP


class Registration:
    """The identity and the incarnation of one topology in ZooKeeper."""

    def __init__(self, zk: ZooKeeper, topology: str) -> None:
        self._zk, self._topology = zk, topology
        self._identity_path = zk.path(topology, "identity")
        self._incarnation_path = zk.path(topology, "incarnation")

    def read(self) -> tuple[str, IdentityDict] | None:
        """(incarnation, stored identity), None before the first start.

        Raises:
            CorruptZnode: one of the two cannot be read or is missing.
        """
        found = self._read()
        return found and (found[0], found[1])

    def check(self, identity: IdentityDict) -> None:
        """Refuse another topology of this name; writes nothing, needs no leadership.

        Raises:
            IdentityMismatch: with the difference.
            CoordinationError: a reset or a rollback of the topology has not ended.
        """
        refuse_unfinished_rollback(self._zk, self._topology)
        found = self._read()
        if found:
            self._refuse_unless_compatible(found[1], identity)
        else:
            refuse_unfinished_reset(self._zk, self._topology)

    def ensure(self, identity: IdentityDict, *, fences: Iterable[Fence] = (), incarnation: str | None = None) -> str:
        """Register the topology at its first start, else compare and store what changed.

        Args:
            fences: of the lease; the leader's, so that only it changes what is stored.
            incarnation: of a first start; None makes one.

        Returns:
            the incarnation.

        Raises:
            IdentityMismatch: another topology has this name; with the difference.
            CoordinationError: a reset or a rollback of the topology has not ended.
            Deposed: a fence is not the newest.
            CorruptZnode: what is stored cannot be read.
            OutcomeUnknown: the ZooKeeper session was lost.
        """
        data, wanted = encode(_typed(identity)), incarnation or uuid.uuid4().hex
        self._zk.ensure_path(self._zk.path(self._topology))
        guard: list[Op] = []
        for fence in fences:
            fence.check_op(guard)
        while True:
            session_number = self._zk.session_number
            refuse_unfinished_rollback(self._zk, self._topology)
            found = self._read()
            if found:
                incarnation, stored, znode_version = found
                self._refuse_unless_compatible(stored, identity)
                differs = bool(identity_difference(stored, identity))
                ops: list[Op] = [SetData(self._identity_path, data, znode_version)] if differs else []
            else:
                refuse_unfinished_reset(self._zk, self._topology)
                incarnation = wanted
                ops = [
                    Create(self._identity_path, data),
                    Create(self._incarnation_path, encode(Incarnation(incarnation))),
                ]
            try:
                if ops:
                    self._zk.multi([*guard, *ops], REGISTER)
                return incarnation
            except MultiRefused as refusal:
                if found:
                    raise StaleState(
                        f"another writer wrote {refusal.op.path}", found=refusal.reason, expected="one leader"
                    ) from refusal
                # Another first start was faster: compare with what it stored.
            except OutcomeUnknown:
                # The next look finds ours, or another's.
                self._zk.recover(session_number, self._identity_path)

    def _refuse_unless_compatible(self, stored: IdentityDict, given: IdentityDict) -> None:
        difference = identity_conflicts(stored, given)
        if not difference:
            return
        raise IdentityMismatch(
            f"topology {self._topology!r} is stored with another identity",
            found="; ".join(difference),
            expected="the streams, states and batch groups of the earlier runs",
            action=_advice(self._topology, stored, given),
        )

    def _read(self) -> tuple[str, IdentityDict, int] | None:
        identity, incarnation = self._zk.get(self._identity_path), self._zk.get(self._incarnation_path)
        if identity and not incarnation:
            # Both are made by one multi, and a first start may have come
            # between the two reads.
            incarnation = self._zk.get(self._incarnation_path)
        elif incarnation and not identity:
            identity = self._zk.get(self._identity_path)
        if identity is None and incarnation is None:
            return None
        stored = decode(self._identity_path, identity[0], Identity) if identity else None
        made = decode(self._incarnation_path, incarnation[0], Incarnation) if incarnation else None
        if identity is None or stored is None:
            raise CorruptZnode(self._identity_path, found="no such znode", expected="an Identity with the incarnation")
        if made is None:
            raise CorruptZnode(self._incarnation_path, found="no such znode", expected="an Incarnation")
        return made.incarnation, msgspec.to_builtins(stored), identity[1].znode_version


def _typed(identity: IdentityDict) -> Identity:
    return msgspec.convert(dict(identity), Identity, strict=True)


def _group_of(identity: IdentityDict) -> dict[str, str]:
    return {tx_id: group for group, tx_ids in identity["groups"].items() for tx_id in tx_ids}


def _only_columns_differ(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> bool:
    """Tells whether a state that may have nulls has columns behind its earlier ones, or lacks some of them."""
    how = before["aggregator"]
    # Of an Upsert with a sequence the name goes on with it.
    if key != "value_schema" or how != after["aggregator"] or how.partition(" ")[0] not in _EVOLVING:
        return False
    one, other = _columns(before[key]), _columns(after[key])
    if not one or not other:
        return False
    # The fields inside a column's type are that column's, and stay.
    left = iter(one)
    return other[: len(one)] == one or all(column in left for column in other)


def _columns(schema: str) -> list[str]:
    """The columns, with their types, of a schema as Spark writes it: struct<name:type,…>. None of another text."""
    if not (schema.startswith("struct<") and schema.endswith(">")):
        return []
    found, depth = [""], 0
    for letter in schema[len("struct<") : -1]:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, str) else str(list(value))
