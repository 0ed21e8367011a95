"""Writes a repair to ZooKeeper: each step one multi, under the fence like every write of a leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from trident.coordinators.errors import StaleState
from trident.coordinators.group_store import RECORD, GroupStore
from trident.coordinators.leadership import Lease
from trident.coordinators.records import (
    Decision,
    GroupRecord,
    Identity,
    Incarnation,
    LeaderRecord,
    TableMark,
    decode,
    encode,
)
from trident.coordinators.transactional_state import Changes, PageChanges, RotatingTransactionalState
from trident.coordinators.znodes import Create, Delete, Op, SetData
from trident.coordinators.zookeeper import ZooKeeper


def raise_epochs(zk: ZooKeeper, lease: Lease, epoch: int) -> None:
    """Raises the epochs of a lease to at least ``epoch``; a later leader has a greater one.

    A rebuilt ZooKeeper counts leaders from 1 again, and fenced maps and queues
    would refuse them as older than earlier ones.

    Raises:
        Deposed: another coordinator leads; nothing was written.
        OutcomeUnknown: the answer was lost; acquire again and do it again.
    """
    ops: list[Op] = []
    after = {}
    for group, fence in lease.fences.items():
        if fence.epoch >= epoch:
            continue
        fence.check_op(ops)
        ops.append(SetData(fence.path, encode(LeaderRecord(epoch, fence.nonce)), fence.znode_version))
        after[group] = replace(fence, epoch=epoch, znode_version=fence.znode_version + 1)
    if ops:
        zk.multi(ops)
        lease.fences.update(after)


def greatest_epoch(zk: ZooKeeper, topology: str) -> int:
    """Of all leader znodes of a topology; 0 without any. Writes nothing."""
    root, epochs = zk.path(topology), [0]
    for name in zk.children(root):
        path = f"{root}/{name}/leader"
        found = zk.get(path)
        if found:
            epochs.append(decode(path, found[0], LeaderRecord).epoch)
    return max(epochs)


class RepairStore(GroupStore):
    """A group's state, with what only a repair may do to it. Call load() first."""

    _halts_on_mismatch = False

    def rebuild(
        self,
        record: GroupRecord,
        decision: Decision | None,
        pins: Mapping[str, Mapping[int, Any]],
        opaque: Mapping[str, Mapping[str, Any]],
        opaque_txid: int,
        registered: tuple[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Replaces all that is stored of the group in one multi: its record, its decision, its streams' positions.

        Doing the same again changes nothing but znode versions.

        Args:
            pins: tx_id → txid → metadata; of a stream that is left out none is kept.
            opaque: tx_id → partition → metadata, stored under ``opaque_txid``.
            registered: the topology's incarnation, and its identity should ZooKeeper have none; None leaves them.

        Raises: as every write of :class:`GroupStore`.
        """
        with self._lock:
            self._writable()
            for tx_id in self.tx_ids:
                self._ensure(self._zk.path(self.topology, tx_id))
            self._ensure(self._zk.path(self.topology, self.group))
            edits: list[Changes | PageChanges] = []
            for tx_id, states in self._pins.items():
                if tx_id != self.group:
                    self._ensure(self._pins_path(tx_id))
                edits.append(_replaced(states, pins.get(tx_id, {})))
            self._digests = {tx_id: {} for tx_id in self.tx_ids}
            for tx_id in self.tx_ids:
                wanted = opaque.get(tx_id, {})
                if wanted:
                    self._ensure(self._partitions[tx_id].root)
                edits.append(self._partitions[tx_id].replace(wanted, opaque_txid))
            ops = self._registration(*registered) if registered else []
            self._write(RECORD, record, [*ops, *self._decided(decision)], edits)
            self._decision = decision

    def carry(self, incarnation: str, tables: Mapping[str, TableMark]) -> None:
        """Takes a group whose transactions stay into the next incarnation.

        Raises: as every write of :class:`GroupStore`.
        """
        with self._lock:
            self._writable()
            self._write(RECORD, replace(self.record, incarnation=incarnation, tables=tables), [], [])

    def put_positions(
        self, pins: Mapping[str, Mapping[int, Any]], opaque: Mapping[str, Mapping[str, Any]], opaque_txid: int = 1
    ) -> None:
        """Replaces the pins, or the partitions' metadata, of some streams, and the digests in the record, together.

        Args:
            pins: tx_id → all of its pins by txid.
            opaque: tx_id → partition → metadata, stored under ``opaque_txid``.

        Raises: as every write of :class:`GroupStore`.
        """
        with self._lock:
            self._writable()
            edits: list[Changes | PageChanges] = []
            for tx_id, of_stream in pins.items():
                if tx_id != self.group:
                    self._ensure(self._pins_path(tx_id))
                edits.append(_replaced(self._of_stream(tx_id), of_stream))
                self._digests[tx_id] = {}
            for tx_id, of_partition in opaque.items():
                self._ensure(self._partitions[tx_id].root)
                edits.append(self._partitions[tx_id].replace(of_partition, opaque_txid))
            self._write(RECORD, self.record, [], edits)

    def abandon(self, decision: Decision) -> None:
        """Deletes a decision of which nothing is published; its attempt id is not used again."""
        with self._lock:
            self._writable()
            if self._decision != decision:
                raise StaleState("the decision is not there", found=str(self._decision), expected=str(decision))
            self._write(RECORD, self.record, [Delete(self._decided_path)], [])
            self._decision = None

    def _registration(self, incarnation: str, identity: Mapping[str, Any]) -> list[Op]:
        values = {
            "identity": encode(msgspec.convert(dict(identity), Identity, strict=True)),
            "incarnation": encode(Incarnation(incarnation)),
        }
        ops: list[Op] = []
        for name, data in values.items():
            path = self._zk.path(self.topology, name)
            found = self._zk.get(path)
            if found is None:
                ops.append(Create(path, data))
            elif found[0] != data and name == "incarnation":
                ops.append(SetData(path, data, found[1].znode_version))
        return ops

    def _decided(self, decision: Decision | None) -> list[Op]:
        ops: list[Op] = [Delete(self._decided_path)] if self._decision else []
        return [*ops, Create(self._decided_path, encode(decision))] if decision else ops


def _replaced(states: RotatingTransactionalState, values: Mapping[int, Any]) -> Changes:
    changes = states.changes()
    states.remove_after_in(changes, 0)
    for txid, value in sorted(values.items()):
        states.put_in(changes, txid, value)
    return changes
