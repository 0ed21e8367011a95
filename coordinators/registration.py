"""Registers a topology in ZooKeeper, and refuses another one under its name (docs/semantics.md 10).

``/<topology>/incarnation`` is a random id made at the first start; it is also
in every table's control record. ``/<topology>/identity`` holds the streams,
states and batch groups. Functions and operations may change between runs;
what may not change is in :func:`identity_conflicts`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from trident.coordinators import faults
from trident.coordinators.errors import CorruptZnode, IdentityMismatch, OutcomeUnknown, StaleState
from trident.coordinators.leadership import Fence
from trident.coordinators.records import Identity, Incarnation, decode, encode
from trident.coordinators.unfinished import refuse_unfinished_reset, refuse_unfinished_rollback
from trident.coordinators.znodes import Create, MultiRefused, Op, SetData
from trident.coordinators.zookeeper import ZooKeeper

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
            raise CorruptZnode(
                self._identity_path, found="no such znode", expected="an Identity beside the incarnation"
            )
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
