"""Keeps the local copy of one keyed state as of a transaction: built from its tables, brought on by its log's files.

Only what a table's log names is read, so nothing of an attempt that was not published can come in; and only rows of
transactions up to the one that is asked for, whatever the log has beyond it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trident.coordinators import faults
from trident.states.core import storage
from trident.states.core.binding import LAST
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.copy_rows import RowCodec, Rows, positions_of
from trident.states.core.copyable import arrow_schema
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.folds import DoesNotFit, onto
from trident.states.core.local_copy import (
    CopyAsOf,
    CopyMark,
    LocalCopy,
    StaleCopy,
    copies_in,
    new_folder,
)
from trident.states.core.place import Place
from trident.states.core.shards import WHOLE, Shard
from trident.states.core.tables import DELETED_COLUMN, TXID_COLUMN
from trident.states.delta import history
from trident.states.delta.data_files import rows_of
from trident.states.delta.delta_log import DeltaLog, TableMissing
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.table_files import NotFollowed, TableFiles
from trident.states.keyed.tables import check_own, greatest_txid

log = logging.getLogger(__name__)
OPEN = faults.register("copy.open", "looking for the local copy of a state that an earlier process has left")
BUILD = faults.register("copy.build", "filling a local copy from the state's tables")
PIECE = faults.register("copy.piece", "taking one piece of a table's rows into a local copy, which has those before it")
APPLY = faults.register("copy.apply", "bringing a local copy on by the files of the log")

_FORM = 3
# A batch that has these changes to wait for reads the tables.
_WAITED_ROWS, _WAITED_BYTES = 500_000, 32 << 20
_TRIES = 5
_OFF_SECS_MAX = 60.0


class NotCurrent(StaleCopy):
    """The copy is not as of the requested transaction; a later request may find one."""


class LogIsAhead(NotCurrent):
    """The log has a later transaction than the requested one: it is decided, and about to advance."""


@dataclass(frozen=True)
class CopyHealth:
    """How the local copy of one state does.

    Attributes:
        state: its name.
        condition: "following"; "building", in a thread; "waiting" until a batch asks for it; "off".
        txid: as of which it is; None where there is none.
        bytes, bytes_max: its size on the disk, and the greatest that it may have.
        builds: how often this process has built it.
        reason: of the last failure; None after a success.
        on_executors: whether it is on the hosts of the executors, each of which has its own.
    """

    state: str
    condition: str
    txid: int | None = None
    bytes: int = 0
    bytes_max: int = 0
    builds: int = 0
    reason: str | None = None
    on_executors: bool = False


class StateCopy:
    """The local copy of one keyed state, written by this process.

    Keep one per state for as long as a coordinator leads. May be used by several threads.

    Args:
        warehouse: of the topology, on a local disk.
        state: one of which ``copyable.why_no_copy`` says None.
        base: the folder that copies of this state are in.
        bytes_max: the greatest size of a copy's file.
        inline_bytes: of larger tables a copy is built in a thread, and there is none meanwhile.
        boot: of the machine, and the last repair: a copy is not flushed and knows of no repair, so that of another one
            is thrown away.
        shard: the copy has the keys of this shard alone: of a state with an order those whose groups, the keys without
            the first column, are in it; a row that has no group is in each shard, as the watermarks' are.
    """

    def __init__(
        self,
        warehouse: Place,
        state: StateDescriptor,
        base: Path,
        bytes_max: int,
        inline_bytes: int,
        boot: str,
        shard: Shard = WHOLE,
    ) -> None:
        self._warehouse, self._state = warehouse, state
        self._base, self._bytes_max, self._inline_bytes = base, bytes_max, inline_bytes
        self._schema = arrow_schema(state.schema)
        self._codec = RowCodec(self._schema, state.keys)
        self._combining = None if state.merging == LAST else self._combined
        self._values = pa.schema([self._schema.field(name) for name in self._codec.values])
        self._shard, self._cut_by = shard, self._codec.keys[1:] if state.ordered_by else state.keys
        self._digest = digest_of(state, boot, shard)
        self._lock = threading.RLock()
        self._copy: LocalCopy | None = None
        self._log: TableFiles | None = None
        self._builder: threading.Thread | None = None
        self._closed = False
        self._txid: int | None = None
        self._builds = self._failures = 0
        self._reason: str | None = None
        self._off_until = 0.0

    @property
    def state(self) -> StateDescriptor:
        """Whose copy it is."""
        return self._state

    def as_of(self, txid: int | None, commit: str | None = None) -> CopyAsOf:
        """The copy as of a transaction that has advanced, or is known to have committed nothing.

        Args:
            txid: None: the last one that the state's log has. It is decided, and can only be followed by others.
            commit: the last one of the state's log up to it, where another host knows: this one may see the log as it
                was a while ago, and must not take that for the whole.

        Raises:
            StaleCopy: there is none, for whatever reason; nothing is wrong with the state.
            TableError: a file of the state's tables is gone or not whole.
            ForeignTable: a table is not the state's.
        """
        with self._lock:
            if self._closed:
                raise NotCurrent(f"the copy of state {self._state.name} was left to the next process")
            try:
                if self._copy is None:
                    with faults.fault_point(OPEN):
                        self._copy = self._found()
                mark = self._catch_up_to(txid, commit)
            except NotCurrent:
                raise
            except (NotFollowed, TableMissing, DoesNotFit) as error:
                self._drop(error)
                raise StaleCopy(f"there is no copy of state {self._state.name}", found=error) from error
            except BaseException as error:
                self._drop(error)
                raise
            assert self._copy is not None
            self._txid, self._reason = mark.txid, None
            return self._of(self._copy, mark)

    def held(self, txid: int) -> CopyAsOf | None:
        """The copy as of that transaction, which has advanced, or as of a later one that has; None: none is kept.

        None is built for it, and one that a batch needs is never taken back behind it.
        """
        with self._lock:
            copy = self._copy
            mark = None if copy is None else copy.mark
            if copy is None or mark is None:
                return None
            if mark.txid >= txid:
                return self._of(copy, mark)
            try:
                return self.as_of(txid)
            except StaleCopy:
                return None

    def promised(self, txid: int) -> CopyAsOf | None:
        """The copy as it will be once it is brought to a transaction that has advanced; None: ask :meth:`as_of`.

        Nothing is written here. A reader finds another mark until then, and reads nothing.
        """
        with self._lock:
            if self._closed or self._copy is None or self._log is None:
                return None
            try:
                held = self._copy.mark
                if held is None or not self._is_followed(held):
                    # Now, since as_of has the log's facts then, and would find nothing new in them.
                    self._drop("its history is not that of the log")
                    return None
                mark = self._mark(txid, self._log, None)
            except NotCurrent:
                return None
            except Exception as error:
                log.debug("the local copy of %s is not promised: %s", self._state.name, error)
                self._drop(error)
                return None
            if held.commit == mark.commit and held.txid >= mark.txid:
                mark = held  # the transactions in between have changed nothing
            elif held.txid >= mark.txid or self._log.control.floor > held.txid:
                return None
            elif _is_many(self._newer_files(held, self._log)):
                return None  # a reader would wait for long
            return self._of(self._copy, mark)

    def catch_up(self, txid: int) -> None:
        """Catches up to a transaction that has advanced; raises as :meth:`as_of`."""
        with self._lock:
            if self._copy is None or self._txid is None or self._txid < txid:
                self.as_of(txid)

    def _of(self, copy: LocalCopy, mark: CopyMark) -> CopyAsOf:
        return CopyAsOf(copy.folder, mark, self._schema, self._codec.keys, self._state.ordered_by, self._shard)

    def is_still(self, copy: CopyAsOf) -> bool:
        """Tells whether that is what is kept now: it has not gone on, nor been built anew. Damaged ones count too."""
        with self._lock:
            if self._copy is None or self._copy.folder != copy.folder:
                return False
            try:
                return self._copy.mark == copy.mark
            except StaleCopy:
                return True

    def health(self) -> CopyHealth:
        """How it does; waits for no build."""
        copy, builder = self._copy, self._builder
        condition = "following" if copy is not None else "building" if builder is not None else "waiting"
        if copy is None and builder is None and time.monotonic() < self._off_until:
            condition = "off"
        size = 0 if copy is None else copy.disk_bytes
        txid = self._txid if copy is not None else None
        return CopyHealth(self._state.name, condition, txid, size, self._bytes_max, self._builds, self._reason)

    def drop(self) -> None:
        """Throws the copy away: the next call builds it again."""
        with self._lock:
            self._drop()

    def leave(self) -> None:
        """Leaves the copy to the other processes of this host, once its files are merged; until the next call."""
        with self._lock:
            if self._copy is not None:
                self._copy.wait_for_merge()
                self._copy.close()
            self._copy = self._log = None

    def close(self) -> None:
        """Leaves the copy where it is, for good: the next process on this host brings it on."""
        with self._lock:
            self._closed = True
            if self._copy is not None:
                self._copy.close()
                self._copy = None

    # --- from the tables to the copy -----------------------------------------------------------------

    def _found(self) -> LocalCopy | None:
        """A copy that an earlier process has left; those of other lives and forms go."""
        found = None
        for folder in copies_in(self._base, storage.list_names(self._base)):
            try:
                copy = LocalCopy(folder, self._bytes_max, self._values)
            except StaleCopy:
                continue  # another process writes it
            mark = copy.mark
            fits = mark is not None and (mark.incarnation, mark.digest) == (self._state.incarnation, self._digest)
            if fits and found is None:
                found = copy
            else:
                copy.delete()
        return found

    def _catch_up_to(self, txid: int | None, commit: str | None) -> CopyMark:
        held = None if self._copy is None else self._copy.mark
        if held is not None and self._is_followed(held) and self._log is not None:
            if held.txid == txid and commit in (None, held.commit):
                return held  # also where the log has the next transaction already
            mark = self._mark(txid, self._log, commit)
            if held.commit == mark.commit and held.txid >= mark.txid:
                if commit is None:
                    return held  # the transactions in between have changed nothing
                raise NotCurrent(f"the copy of state {self._state.name} is as of transaction {held.txid} already")
            if held.txid < mark.txid and self._follow(held, mark, self._log):
                return mark
        self._drop()
        plain, logged, merged = self._tables(txid)
        mark = self._mark(txid, logged, commit)
        size = sum(file.size for table in (plain, logged) if table is not None for file in table.files.values())
        if self._builder is None and time.monotonic() < self._off_until:
            raise NotCurrent(f"the copy of state {self._state.name} is not tried for a while", found=self._reason)
        if size <= self._inline_bytes:
            with self._counted():
                self._copy, self._log = self._build(mark, plain, logged, merged)
            return mark
        if self._builder is None:
            self._builder = threading.Thread(
                target=self._build_in_thread,
                args=(mark, plain, logged, merged),
                name=f"copy-{self._state.name}",
                daemon=True,
            )
            self._builder.start()
        raise NotCurrent(f"the copy of state {self._state.name} is being built")

    def _mark(self, txid: int | None, logged: TableFiles, commit: str | None) -> CopyMark:
        """The mark of the state as of a transaction.

        Raises:
            LogIsAhead: it has a later transaction.
            NotCurrent: the log does not end with the commit that it should.
        """
        check_own(self._state, logged.path, logged.control)
        txid = logged.control.txid if txid is None else txid
        if logged.control.txid > txid:
            raise LogIsAhead(f"the log of state {self._state.name} is past transaction {txid}")
        mark = CopyMark(self._state.incarnation, txid, self._digest, commit_of(logged.control))
        if commit not in (None, mark.commit):
            raise NotCurrent(
                f"the log of state {self._state.name} ends otherwise here", found=mark.commit, expected=commit
            )
        return mark

    def _is_followed(self, held: CopyMark) -> bool:
        """Brings the log's facts up to date, and tells whether its history goes through what is held."""
        path = str(self._warehouse / self._state.published_path)
        before = self._log
        version = None if before is None else before.version
        if before is not None and before.refresh():
            # One commit more, or none: it comes behind the one that was last seen.
            if version is not None and before.version <= version + 1:
                return True
        else:
            self._log = TableFiles(path)
        at = history.find_version_by_control(path, DOMAIN, held.txid)
        control = None if at is None else DeltaLog(path).commit(at).domains.get(DOMAIN)
        if control is None:
            return False
        return commit_of(decode_control(path, control)) == held.commit

    def _build_in_thread(self, mark: CopyMark, plain: TableFiles | None, logged: TableFiles, merged: int) -> None:
        """Builds the copy of a large table in a thread of its own; later transactions follow when it is there."""
        try:
            with self._counted():
                made, followed = self._build(mark, plain, logged, merged)
        except Exception as error:
            log.warning("the local copy of state %s could not be built: %s", self._state.name, error)
            self._builder = None
            return
        with self._lock:
            self._builder = None
            if self._closed or self._copy is not None:
                made.delete()
            else:
                self._copy, self._log = made, followed

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts failures that are costly: after each of them a while goes by, the longer the more there were."""
        try:
            yield
        except Exception as error:
            self._failures += 1
            self._off_until = time.monotonic() + min(_OFF_SECS_MAX, 2.0 ** (self._failures - 1))
            self._reason = str(error)
            raise

    def _follow(self, held: CopyMark, mark: CopyMark, logged: TableFiles) -> bool:
        """Applies the log's rows behind what is held; False where the log no longer has them all."""
        if logged.control.floor > held.txid:
            return False
        assert self._copy is not None
        rows = self._logged_rows(logged.path, self._newer_files(held, logged), held.txid, mark.txid)
        with self._counted(), faults.fault_point(APPLY):
            self._copy.apply(rows, held, mark, self._combining)
        self._failures = 0
        logged.files = {}  # they are applied, and not looked at again
        return True

    def _newer_files(self, held: CopyMark, logged: TableFiles) -> list[LiveFile]:
        """The files of the log with rows after those of the copy."""
        return [file for file in logged.files.values() if greatest_txid(file) > held.txid]

    def _tables(self, txid: int | None) -> tuple[TableFiles | None, TableFiles, int]:
        """The plain table if it was made, the log with all that is not merged, and the transaction merged last."""
        state, root = self._state, self._warehouse
        for _ in range(_TRIES):
            try:
                plain = TableFiles(str(root / state.plain_path), state.merge_app)
            except TableMissing:
                plain = None  # the first MERGE makes it; without it the log must have all, or there is no copy
            merged = (plain.merged or 0) if plain is not None else 0
            logged = TableFiles(str(root / state.published_path))
            for table in (logged,) if plain is None else (plain, logged):
                check_own(state, table.path, table.control)
            merged = max(merged, logged.control.starts_at - 1)
            if txid is not None and merged > txid:
                raise NotFollowed(f"state {state.name} is merged up to {merged}, past transaction {txid}")
            if logged.control.floor <= merged:
                logged.files = {path: file for path, file in logged.files.items() if greatest_txid(file) > merged}
                return plain, logged, merged
        raise NotFollowed(f"the tables of state {state.name} change all the time")

    def _build(
        self, mark: CopyMark, plain: TableFiles | None, logged: TableFiles, merged: int
    ) -> tuple[LocalCopy, TableFiles]:
        """Builds a copy: the plain table, and on top the log."""
        copy = LocalCopy(new_folder(self._base), self._bytes_max, self._values)
        try:
            waiting = list(logged.files.values())
            rows = chain(self._merged_rows(plain), self._logged_rows(logged.path, waiting, merged, mark.txid))
            with faults.fault_point(BUILD):
                copy.apply(rows, None, mark, self._combining)
        except BaseException:
            copy.delete()
            raise
        logged.files = {}
        self._builds += 1
        return copy, logged

    def _merged_rows(self, plain: TableFiles | None) -> Iterator[Rows]:
        if plain is None:
            return
        files = list(plain.files.values())
        for batch in rows_of(plain.path, files, self._schema):
            yield self._encoded(batch)

    def _logged_rows(self, path: str, files: Sequence[LiveFile], above: int, upto: int) -> Iterator[Rows]:
        """The log's rows of some transactions, in the order of these."""
        hidden = [pa.field(TXID_COLUMN, pa.int64())]
        if self._state.merging == LAST:
            hidden.append(pa.field(DELETED_COLUMN, pa.bool_()))
        schema = pa.schema([*self._schema, *hidden])
        reached = above
        for file in sorted(files, key=greatest_txid):  # stable: of one transaction as the log has them
            for batch in rows_of(path, [file], schema):
                txids = batch.column(TXID_COLUMN)
                requested = pc.and_(pc.greater(txids, above), pc.less_equal(txids, upto))
                batch = batch.filter(requested)
                if not batch.num_rows:
                    continue
                first, last = pc.min_max(batch.column(TXID_COLUMN)).as_py().values()
                if first < reached:
                    raise NotFollowed(f"file {file.path} of {path} has rows of transactions before the file before it")
                reached = last
                if first != last:
                    batch = batch.take(pc.sort_indices(batch.column(TXID_COLUMN)))
                yield self._encoded(batch)

    def _mine(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the shard."""
        if self._shard.count == 1:
            return batch
        kept = self._shard.of_rows(batch, self._schema, self._cut_by)
        if self._state.ordered_by:
            no_group = [batch.column(name).is_null() for name in self._cut_by]
            kept = pc.or_(kept, reduce(pc.and_, no_group))
        return batch.filter(kept)

    def _encoded(self, batch: pa.RecordBatch) -> Rows:
        with faults.fault_point(PIECE):
            batch, gone = self._mine(batch), None
            if DELETED_COLUMN in batch.schema.names:
                gone = pc.fill_null(batch.column(DELETED_COLUMN), False)
            return self._codec.rows(batch, self._state.ordered_by, gone)

    def _combined(self, stored: pa.Table, parts: pa.Table, places: np.ndarray) -> tuple[pa.Table, pa.Array | None]:
        assert self._state.aggregator is not None
        made = onto(self._state.aggregator, stored.column(0), parts.column(0), places)
        kind = self._values.types[0]
        positions = positions_of(made, kind) if self._state.ordered_by in self._codec.values else None
        return pa.table([made], schema=self._values), positions

    def _drop(self, reason: object = None) -> None:
        if reason is not None:
            self._reason = str(reason)
        if self._copy is not None:
            self._copy.delete()
        self._copy = self._log = None


def commit_of(control: ControlRecord) -> str:
    """Names a commit of a log: of two histories a transaction has another attempt, or another batch."""
    return f"{control.txid}-{control.attempt_id}-{control.digest}"


def digest_of(state: StateDescriptor, boot: str, shard: Shard = WHOLE) -> str:
    """Tells two forms of a state apart, two boots of the machine, and two shards."""
    facts = [_FORM, state.name, state.keys, state.schema_json, state.aggregator, state.merging, boot, str(shard)]
    if state.ordered_by:
        facts.append(state.ordered_by)
    return sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _is_many(files: Sequence[LiveFile]) -> bool:
    """Tells whether the rows of some files are so many that a reader should not wait for them."""
    if sum(file.size for file in files) > _WAITED_BYTES:
        return True
    return sum(file.size if file.num_records is None else file.num_records for file in files) > _WAITED_ROWS
