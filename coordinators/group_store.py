"""A batch group's coordination state in ZooKeeper, and every write to it (docs/semantics.md 9).

::

    /<topology>/<group>/coordinator          GroupRecord
    /<topology>/<group>/decided              Decision, while there is one
    /<topology>/<tx_id>/coordinator/<txid>   pinned spout metadata
    /<topology>/<tx_id>/partitions/<page>    metadata of opaque partitions (transactional_state.py)

Every write is one multi: the check of the fence, the coordinator znode *set*
with its expected znode version, and the rest. That each of them sets the
coordinator znode, a decision too, puts all writes of a group in one order:

- a begin and a decision of one transaction that cross each other cannot both
  happen, since the second one's znode version is old;
- after a lost answer one look says what became of a write. The coordinator
  znode is read, *then* the leader znode. Leader changed: deposed, whatever
  happened. Leader unchanged: only this store has written, so that
  version v means "did not happen" and v + 1 with our bytes "did happen".

The record has a digest of each stream's pins and partitions (positions.py):
loading compares, and a leader's load halts where one is missing or older.

The state in memory follows a write only once it is known to have happened.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from trident.coordinators import faults, positions
from trident.coordinators.errors import (
    BatchError,
    ConfigError,
    CoordinationError,
    CorruptZnode,
    Deposed,
    OutcomeUnknown,
    StaleState,
    ValueTooLarge,
    ZooKeeperUnreachable,
)
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.leadership import Fence
from trident.coordinators.positions import PositionMismatch, digest_of
from trident.coordinators.records import RESERVED_NAMES, Decision, GroupRecord, Marker, TableMark, decode, encode
from trident.coordinators.threads import THREADS, Threads
from trident.coordinators.transactional_state import (
    GONE,
    Changes,
    OpaqueMetadata,
    PageChanges,
    RotatingTransactionalState,
)
from trident.coordinators.znodes import Create, Delete, MultiRefused, Op, SetData, check_multi, check_name
from trident.coordinators.zookeeper import ZooKeeper

BEGIN = faults.register("zk.begin", "the multi that stores an attempt and pins its metadata")
DECIDE = faults.register("zk.decide", "the multi that creates the decision: the commit point")
ADVANCE = faults.register("zk.advance", "the multi that moves the current txid on")
RECORD = faults.register("zk.record", "the multis that create the group's record or change its tables")

# The txid of the metadata behind which a stream begins that goes on where another program has got to.
IMPORTED = 0
_BEFORE_ALL = -1
DECISION_BYTES_MAX = 64 * 1024
_RETRY_SECS = 0.05
# In the multi of an advance, for what is known only when the tables are published: their new marks.
_ADVANCE_RESERVE_BYTES = 50_000
# How often what is read without a fence is read again because a leader wrote meanwhile.
_LOAD_TRIES = 5


class Begin(NamedTuple):
    """An attempt to be stored; the fields are :meth:`GroupStore.begin`'s arguments."""

    attempt: TransactionAttempt
    parent: TransactionAttempt | None
    pins: Mapping[str, Any]
    repin: bool = False


class SupersededAttempt(BatchError):
    """An attempt cannot begin because a later one has: a late begin, which changes nothing."""


class GroupStore:
    """The state of one batch group, written by its leader; for use by several threads.

    Call :meth:`load` first. Writes return when they are durable and raise:

    - :class:`Deposed`: another coordinator leads; nothing was written.
    - :class:`StaleState`: the write does not fit what is stored: a defect, or
      a znode edited by hand.
    - :class:`ValueTooLarge`: nothing was written.
    - :class:`OutcomeUnknown`: the ZooKeeper session was lost meanwhile.
      Abandon what is in flight, lead again, and load a new store.

    After Deposed, OutcomeUnknown or a foreign write the store writes nothing more.
    """

    # A leader's load halts where positions are not those of the record. A repair's goes on; nor does it vouch, with a
    # record of a version before this one, for positions that it has not put there: the next start asks.
    _halts_on_mismatch = True

    def __init__(
        self,
        zk: ZooKeeper,
        topology: str,
        group: str,
        tx_ids: Iterable[str],
        fence: Fence | None = None,
        threads: Threads = THREADS,
    ) -> None:
        """Args:
        zk: a connected ZooKeeper.
        topology: the topology's name.
        group: the group's name.
        tx_ids: the streams of the group.
        fence: of the lease; None reads only.
        threads: where its lock and its clock come from.
        """
        self.topology, self.group, self.tx_ids = topology, group, tuple(sorted(tx_ids))
        for name in (group, *self.tx_ids):
            check_stream_name(name)
        self._zk, self._fence, self._threads = zk, fence, threads
        self._record_path = zk.path(topology, group, "coordinator")
        self._decided_path = zk.path(topology, group, "decided")
        self._lock = threads.lock()
        self._record: GroupRecord | None = None
        self._znode_version = -1
        self._decision: Decision | None = None
        self._pins: dict[str, RotatingTransactionalState] = {}
        self._partitions: dict[str, OpaqueMetadata] = {}
        self._digests: dict[str, dict[int, str]] = {}
        self._partition_digests: dict[str, str] = {}
        self.position_mismatches: list[PositionMismatch] = []  # as found by load()
        self._ensured: set[str] = set()
        self._session_number = zk.session_number
        self._broken: str | None = "load() was not called"

    # -- reading ------------------------------------------------------------

    @property
    def record(self) -> GroupRecord:
        """The coordinator record, as last written."""
        if self._record is None:
            raise StaleState(f"batch group {self.group!r} has no record", expected="create() before its first use")
        return self._record

    @property
    def decision(self) -> Decision | None:
        """The decision that has not advanced yet."""
        return self._decision

    @property
    def pins(self) -> dict[str, dict[int, Any]]:
        """Pinned metadata: tx_id -> txid -> metadata, txids ascending; a copy: a spout may change what it gets."""
        with self._lock:
            return {tx_id: copy.deepcopy(pins.list_states()) for tx_id, pins in self._pins.items()}

    @property
    def opaque_metadata(self) -> dict[str, dict[str, tuple[int, Any]]]:
        """Of opaque partitions: tx_id -> partition -> (txid that stored it, metadata)."""
        with self._lock:
            return {
                tx_id: {name: (entry.txid, entry.metadata) for name, entry in found.values().items()}
                for tx_id, found in self._partitions.items()
            }

    @property
    def partition_values(self) -> dict[str, dict[str, Any]]:
        """Of opaque partitions: tx_id -> partition -> metadata."""
        return {
            tx_id: {partition: metadata for partition, (_, metadata) in found.items()}
            for tx_id, found in self.opaque_metadata.items()
        }

    def load(self) -> tuple[GroupRecord | None, Decision | None, dict[str, dict[int, Any]]]:
        """Read everything: (record, decision, pins), None where there is none.

        Under a lease what is read is what the last leader left: the leader
        znode was bumped before.

        Raises:
            CorruptZnode: a znode cannot be read or contradicts another.
            Deposed: they contradict each other because another coordinator leads now.
            Halted: under a lease only: a stream's position is missing, or not the one that the record was
                written with. Without one :attr:`misplaced` says so.
            ZooKeeperUnreachable: it could not be read.
        """
        with self._lock:
            self._broken = "load() did not finish"
            self._session_number = self._zk.session_number
            for _ in range(_LOAD_TRIES):
                self._read_everything()
                if not self.position_mismatches or not self._written_meanwhile():
                    break
            if self.position_mismatches and self._fence is not None and self._halts_on_mismatch:
                raise positions.contradiction(self.topology, self.group, self.position_mismatches)
            self._broken = None
            return self._record, self._decision, {tx_id: pins.list_states() for tx_id, pins in self._pins.items()}

    def _read_everything(self) -> None:
        self._zk.sync(self._record_path)
        found = self._zk.get(self._record_path)
        decided = self._zk.get(self._decided_path)
        self._record = decode(self._record_path, found[0], GroupRecord) if found else None
        self._znode_version = found[1].znode_version if found else -1
        self._decision = decode(self._decided_path, decided[0], Decision) if decided else None
        self._check_decision()
        for tx_id in self.tx_ids:
            self._pins[tx_id] = pins = RotatingTransactionalState(
                self._zk, self._pins_path(tx_id), owner=f"spout {tx_id}"
            )
            pins.load()
            self._partitions[tx_id] = partitions = OpaqueMetadata(
                self._zk, self._zk.path(self.topology, tx_id), owner=f"spout {tx_id}"
            )
            partitions.load()
            self._digests[tx_id] = {txid: digest_of(value) for txid, value in pins.list_states().items()}
            self._partition_digests[tx_id] = _digest_of_partitions(partitions)
        record = self._record
        self.position_mismatches = (
            list(positions.compare(record, self._digests, self._partition_digests)) if record else []
        )
        # A missing position stays missed: another write must not make it right.
        if record is not None:
            for tx_id in self.tx_ids:
                self._digests[tx_id] = dict((record.pins or {}).get(tx_id, self._digests[tx_id]))
                self._partition_digests[tx_id] = (record.partitions or {}).get(tx_id, self._partition_digests[tx_id])

    def _written_meanwhile(self) -> bool:
        """Tells whether the record was written while the rest was read: then the two do not belong together."""
        if self._fence is not None:
            self._fence.verify(self._zk)  # a process that writes beside this leader has deposed it
        now = self._zk.exists(self._record_path)
        return (now.znode_version if now else -1) != self._znode_version

    def _check_decision(self) -> None:
        decision, record = self._decision, self._record
        if decision is None:
            return
        current = record.current_txid if record else None
        if record is None or decision.txid != current or decision.attempt_id > record.attempts.get(current, -1):
            if self._fence is not None:
                # The two were read one after the other: a successor may have written in between.
                self._fence.verify(self._zk)
            raise CorruptZnode(
                self._decided_path,
                found=f"a decision of attempt {decision.attempt}",
                expected=f"a begun attempt at the current transaction, {current}",
            )

    def _pins_path(self, tx_id: str) -> str:
        return self._zk.path(self.topology, tx_id, "coordinator")

    # -- writing ------------------------------------------------------------

    def create(self, record: GroupRecord, imported: Mapping[str, Any] | None = None) -> None:
        """Create the group's record at the first start.

        Args:
            imported: tx_id -> metadata of the batch before the first: it is pinned at txid 0, in the same multi.

        Metadata that an interrupted `trident reset` has left are deleted with it:
        a new incarnation must not go on from the old one's metadata.
        """
        with self._lock:
            self._writable()
            if self._record is not None:
                raise StaleState(f"batch group {self.group!r} has a record", expected="none, before create()")
            for tx_id in self.tx_ids:
                # The group's own coordinator znode is the record itself.
                path = self._zk.path(self.topology, tx_id) if tx_id == self.group else self._pins_path(tx_id)
                self._ensure(path)
            self._ensure(self._zk.path(self.topology, self.group))
            cleared: list[Changes | PageChanges] = [found.replace({}) for found in self._partitions.values()]
            for tx_id, states in self._pins.items():
                changes = states.changes()
                states.remove_after_in(changes, _BEFORE_ALL)
                if tx_id in (imported or {}):
                    states.put_in(changes, IMPORTED, (imported or {})[tx_id])
                cleared.append(changes)
            self._digests = {tx_id: {} for tx_id in self.tx_ids}
            self._write(RECORD, record, [], cleared)

    def begin(
        self,
        attempt: TransactionAttempt,
        parent: TransactionAttempt | None,
        pins: Mapping[str, Any],
        repin: bool = False,
    ) -> dict[str, Any]:
        """Store an attempt and pin its metadata: get or create (docs/semantics.md 9.1).

        Args:
            attempt: its attempt id must be greater than any begun for its txid.
            parent: the attempt of the transaction before on which it builds.
            pins: tx_id -> metadata; as JSON gives it back, so that a first
                try sees exactly what a replay will see.
            repin: replace pins of this txid, and delete the later pins of
                the streams whose pin is replaced, in the same multi.

        Returns:
            tx_id -> the metadata that is pinned now. Where another pin
            existed (and not ``repin``) it is kept and returned: emit from it.

        Raises:
            SupersededAttempt: a later attempt, or the decision, was first.
            ConfigError: metadata is not JSON.
        """
        with self._lock:
            self._writable()
            edits = {tx_id: self._of_stream(tx_id).changes() for tx_id in pins}
            after, pinned = self._begun(self.record, Begin(TransactionAttempt(*attempt), parent, pins, repin), edits)
            self._write(BEGIN, after, [], [changes for changes in edits.values() if changes.ops])
            return copy.deepcopy(pinned)

    def _begun(
        self, record: GroupRecord, begin: Begin, edits: Mapping[str, Changes]
    ) -> tuple[GroupRecord, dict[str, Any]]:
        """The record with an attempt that begins, and what is pinned then; its pins are put into ``edits``."""
        attempt, parent = begin.attempt, begin.parent
        self._check_begin(record, attempt, parent)
        after = replace(
            record,
            attempts={**record.attempts, attempt.txid: attempt.attempt_id},
            parents={**record.parents, attempt.txid: parent[1] if parent else None},
        )
        pinned: dict[str, Any] = {}
        for tx_id, metadata in begin.pins.items():
            states, changes = self._of_stream(tx_id), edits[tx_id]
            if states.has(attempt.txid) and not begin.repin:
                pinned[tx_id] = states.value(attempt.txid)
                continue
            pinned[tx_id] = states.put_in(changes, attempt.txid, metadata)
            if begin.repin:
                states.remove_after_in(changes, attempt.txid)
        for tx_id in begin.pins:
            if tx_id != self.group:
                self._ensure(self._pins_path(tx_id))
        return after, pinned

    def _check_begin(self, record: GroupRecord, attempt: TransactionAttempt, parent: TransactionAttempt | None) -> None:
        txid = attempt.txid
        if txid == record.current_txid:
            expected = record.last.attempt if record.last else None
        elif txid - 1 in record.attempts:
            expected = TransactionAttempt(txid - 1, record.attempts[txid - 1])
        else:
            raise SupersededAttempt(
                f"attempt {attempt} cannot begin",
                found=f"current txid {record.current_txid}, begun {sorted(record.attempts)}",
                expected="the current txid, or one that follows a begun one",
            )
        greatest = record.greatest_attempt(txid)
        if attempt.attempt_id <= greatest:
            raise SupersededAttempt(
                f"attempt {attempt} cannot begin", found=f"attempt {txid}:{greatest}", expected="a greater attempt id"
            )
        if (parent and tuple(parent)) != (expected and tuple(expected)):
            raise SupersededAttempt(
                f"attempt {attempt} cannot begin", found=f"parent {parent}", expected=f"parent {expected}"
            )
        if self._decision and self._decision.txid == txid:
            raise SupersededAttempt(
                f"attempt {attempt} cannot begin", found=f"a decision for {self._decision.attempt}", expected="none"
            )

    def decide(self, decision: Decision, parent: TransactionAttempt | None) -> None:
        """Create the decision: the commit point of the group (docs/semantics.md 9.4).

        The decision must be of the current transaction and of the attempt
        begun last, and ``parent`` the attempt that advanced before it.
        Deciding the same again changes nothing.
        """
        with self._lock:
            self._writable()
            record = self.record
            if self._decision == decision:
                return
            expected = record.last.attempt if record.last else None
            wrong = self._decision is not None or decision.txid != record.current_txid
            wrong = wrong or record.attempts.get(decision.txid) != decision.attempt_id
            wrong = wrong or (parent and tuple(parent)) != (expected and tuple(expected))
            if wrong:
                raise StaleState(
                    f"attempt {decision.attempt} cannot be decided with parent {parent}",
                    found=f"current txid {record.current_txid}, begun {dict(record.attempts)}, last {expected},"
                    f" decision {self._decision}",
                    expected="the last begun attempt at the current txid, built on the last one, and no decision",
                )
            data = encode(decision)
            if len(data) > DECISION_BYTES_MAX:
                raise ValueTooLarge(
                    f"the decision of {decision.attempt} is too large",
                    found=f"{len(data):,} bytes",
                    expected=f"at most {DECISION_BYTES_MAX:,} bytes",
                )
            self._write(DECIDE, record, [Create(self._decided_path, data)], [])
            self._decision = decision

    def advance(
        self,
        marker: Marker,
        published: bool,
        tables: Mapping[str, TableMark],
        opaque_metadata: Mapping[str, Mapping[str, Any]] | None = None,
        begin: Begin | None = None,
    ) -> dict[str, Any] | None:
        """Move the current txid on (docs/semantics.md 9.6).

        Deletes the decision and the pins before ``marker.txid``; that
        transaction's own pin stays, as the previous metadata of the next.
        Advancing the same again changes nothing.

        Args:
            published: whether it was decided and published; False for an
                empty batch, which skips both.
            tables: the marks of the tables that changed; others are kept.
            opaque_metadata: tx_id -> partition -> metadata to keep.
            begin: of a later transaction, in the same multi where it fits.

        Returns:
            what ``begin`` has pinned, as :meth:`begin` returns it. None where it is not stored: there was none, or it
            is not allowed or too large. Then :meth:`begin` stores it, or says why not.
        """
        with self._lock:
            self._writable()
            record = self.record
            if record.last == marker:
                return None
            self._check_advance(record, marker, published)
            txid = marker.txid
            after = replace(
                record,
                current_txid=txid + 1,
                attempts={key: value for key, value in record.attempts.items() if key > txid},
                parents={key: value for key, value in record.parents.items() if key > txid},
                last=marker,
                last_published=marker if published else record.last_published,
                tables={**record.tables, **tables},
            )
            ops: list[Op] = [Delete(self._decided_path)] if self._decision else []
            moved = self._changed_partitions(txid, opaque_metadata or {})
            for pages in moved:
                self._ensure(pages.root)
            pinned = None if begin is None else self._advance_with(begin, txid, after, ops, moved)
            if pinned is None:
                edits = self._cleaned_pins(txid)
                self._write(ADVANCE, after, ops, [*edits.values(), *moved])
            self._decision = None
            return copy.deepcopy(pinned)

    def _advance_with(
        self, begin: Begin, txid: int, advanced: GroupRecord, ops: list[Op], moved: list[PageChanges]
    ) -> dict[str, Any] | None:
        """Writes an advance and a begin as one; None where nothing was written, since the begin does not fit."""
        edits = self._cleaned_pins(txid)
        try:
            after, pinned = self._begun(advanced, begin, edits)
            self._write(ADVANCE, after, ops, [*edits.values(), *moved], BEGIN)
        except (BatchError, ConfigError, ValueTooLarge):
            return None
        return pinned

    def _cleaned_pins(self, txid: int) -> dict[str, Changes]:
        """Changes that forget every stream's pins before a txid."""
        edits = {tx_id: states.changes() for tx_id, states in self._pins.items()}
        for tx_id, changes in edits.items():
            self._pins[tx_id].cleanup_before_in(changes, txid)
        return edits

    def check_advance(self, txid: int, opaque_metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Checks, before the decision, that the advance of a transaction will fit into one write.

        Once it is decided and published there would be nothing left to do about it.

        Raises:
            ValueTooLarge: it will not; with the streams whose metadata it is.
        """
        with self._lock:
            moved = self._changed_partitions(txid, opaque_metadata)
            if moved:
                ops: list[Op] = [SetData(self._record_path, encode(self.record), self._znode_version)]
                ops += [op for changes in moved for op in changes.ops]
                check_multi(ops, f" to advance transaction {txid}", _ADVANCE_RESERVE_BYTES)

    def _check_advance(self, record: GroupRecord, marker: Marker, published: bool) -> None:
        decided = self._decision.attempt if self._decision else None
        fits = (decided == marker.attempt) if published else decided is None
        if marker.txid != record.current_txid or not fits:
            raise StaleState(
                f"attempt {marker.attempt} cannot advance as {'published' if published else 'empty'}",
                found=f"current txid {record.current_txid}, decision {decided}",
                expected="the current txid, decided if and only if published",
            )
        if record.attempts.get(marker.txid, -1) < marker.attempt_id:
            raise StaleState(f"attempt {marker.attempt} cannot advance", found=dict(record.attempts), expected="begun")

    def _changed_partitions(self, txid: int, given: Mapping[str, Mapping[str, Any]]) -> list[PageChanges]:
        for tx_id in given:
            self._of_stream(tx_id)
        return [self._partitions[tx_id].change(txid, of_partition) for tx_id, of_partition in given.items()]

    def put_tables(self, tables: Mapping[str, TableMark], removed: Iterable[str] = ()) -> None:
        """Change table marks outside of a transaction: adopting a new table, detaching one."""
        with self._lock:
            self._writable()
            gone = set(removed)
            marks = {key: mark for key, mark in {**self.record.tables, **tables}.items() if key not in gone}
            if marks != dict(self.record.tables):
                self._write(RECORD, replace(self.record, tables=marks), [], [])

    # -- the one way to write -----------------------------------------------

    def _writable(self) -> None:
        if self._fence is None:
            raise CoordinationError(f"the state of batch group {self.group!r} was opened without a fence, to be read")
        if self._session_number != self._zk.session_number:
            self._broken = "the ZooKeeper session was lost"
        if self._broken:
            raise OutcomeUnknown(
                f"the state of batch group {self.group!r} is not known any more",
                found=self._broken,
                action="abandon what is in flight, lead again, and load it",
            )

    def _of_stream(self, tx_id: str) -> RotatingTransactionalState:
        try:
            return self._pins[tx_id]
        except KeyError:
            raise CoordinationError(
                f"stream {tx_id!r} is not of batch group {self.group!r}", expected=", ".join(self.tx_ids)
            ) from None

    @property
    def is_broken(self) -> bool:
        """Tells whether a write ended in a way after which this store writes nothing more."""
        return self._broken is not None

    def _ensure(self, path: str) -> None:
        if path in self._ensured:
            return
        try:
            self._zk.ensure_path(path)
        except ZooKeeperUnreachable as problem:
            # Reads wait for as long as the ZooKeeper session can last.
            self._broken = str(problem)
            raise OutcomeUnknown(f"it is not known whether {path} exists") from problem
        self._ensured.add(path)

    def _write(
        self,
        point: str,
        after: GroupRecord,
        ops: list[Op],
        edits: Sequence[Changes | PageChanges],
        aux_point: str | None = None,
    ) -> None:
        assert self._fence is not None
        digests, partition_digests = self._digests_after(edits)
        if after.pins is not None or edits or self._halts_on_mismatch:
            after = replace(
                after,
                pins={**(after.pins or {}), **digests},
                partitions={**(after.partitions or {}), **partition_digests},
            )
        data = encode(after)
        request: list[Op] = []
        self._fence.check_op(request)
        # The record comes first when it is created: pins of the stream that
        # names the group are its children.
        if self._znode_version < 0:
            request.append(Create(self._record_path, data))
        else:
            request.append(SetData(self._record_path, data, self._znode_version))
        request += [*ops, *(op for changes in edits for op in changes.ops)]
        try:
            self._until_done(lambda: self._zk.multi(request, point, aux_point), data)
        except ValueTooLarge:
            raise
        except BaseException as problem:
            self._broken = f"{type(problem).__name__}: {problem}"
            raise
        self._record, self._znode_version = after, self._znode_version + 1
        self._digests, self._partition_digests = digests, partition_digests
        for changes in edits:
            changes.applied()

    def _digests_after(
        self, edits: Iterable[Changes | PageChanges]
    ) -> tuple[dict[str, dict[int, str]], dict[str, str]]:
        """Of what is stored once these writes have happened."""
        pins = {tx_id: dict(digests) for tx_id, digests in self._digests.items()}
        partitions = dict(self._partition_digests)
        for changes in edits:
            for tx_id in self.tx_ids:
                if isinstance(changes, PageChanges):
                    if changes.of(self._partitions[tx_id]):
                        partitions[tx_id] = _digest_of_partitions(changes)
                elif self._pins[tx_id].is_changed_by(changes):
                    for txid, value in self._pins[tx_id].outcome(changes).items():
                        if value is GONE:
                            pins[tx_id].pop(txid, None)
                        else:
                            pins[tx_id][txid] = digest_of(value)
        return pins, partitions

    def _until_done(self, send: Callable[[], None], data: bytes) -> None:
        while True:
            try:
                send()
                return
            except OutcomeUnknown:
                if self._has_happened(data):
                    return
                self._threads.sleep(_RETRY_SECS)
            except MultiRefused as refusal:
                raise StaleState(
                    f"another writer wrote {refusal.op.path} while this coordinator leads",
                    found=refusal.reason,
                    expected="one writer",
                    action="find who edited it; `trident status` shows what is stored",
                ) from refusal

    def _has_happened(self, data: bytes) -> bool:
        """Tells after a lost answer whether that write is there (see the top of this file)."""
        assert self._fence is not None
        try:
            self._zk.recover(self._session_number, self._record_path)
            found = self._zk.get(self._record_path)
            leader = self._zk.exists(self._fence.path)
        except ZooKeeperUnreachable as problem:
            raise OutcomeUnknown(f"it is not known whether {self._record_path} was written") from problem
        if leader is None or leader.znode_version != self._fence.znode_version:
            raise Deposed(
                "another coordinator leads now",
                found=f"znode version {leader.znode_version if leader else 'none'} of {self._fence.path}",
                expected=f"znode version {self._fence.znode_version}",
            )
        znode_version = found[1].znode_version if found else -1
        if znode_version == self._znode_version:
            return False
        if found and znode_version == self._znode_version + 1 and found[0] == data:
            return True
        raise StaleState(
            f"another writer wrote {self._record_path} while this coordinator leads",
            found=f"znode version {znode_version}",
            expected=f"znode version {self._znode_version}, or {self._znode_version + 1} with what was written",
        )


def _digest_of_partitions(of: OpaqueMetadata | PageChanges) -> str:
    values = {partition: entry.metadata for partition, entry in of.values().items()}
    return digest_of(values) if values else ""


def check_stream_name(name: str) -> str:
    check_name(name, "a stream's name")
    if name in RESERVED_NAMES:
        raise ConfigError(
            "a stream's name is taken by the framework", found=repr(name), expected=f"not {sorted(RESERVED_NAMES)}"
        )
    return name
