"""The table of a batch group's transactions, which any Delta reader can query: opened, added to, tidied.

It holds nothing that is nowhere else: each row is made of a manifest, which is
kept until the table has it. So a table that is damaged is made again. A mark in
its log says up to which transaction it has all rows; a commit that adds rows
moves it, and happens at exactly the version behind the one that was looked at,
so that no row is added twice, also where another process writes.
"""

from __future__ import annotations

import errno
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from trident.coordinators import faults
from trident.coordinators.errors import ForeignTable, TableError
from trident.coordinators.incarnation_ids import up_to
from trident.states.core import storage
from trident.states.core.group_context import GroupContext
from trident.states.core.staged import StagedFile
from trident.states.core.tables import PROPERTIES, table_schema
from trident.states.delta.file_rows import rows_of
from trident.states.delta.kernel import KernelEngine, TableMissing, TableSnapshot
from trident.states.delta.log_tables import LogTables
from trident.states.delta.manifest import Retention
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.delta.staging import fsync_folders, staged_file
from trident.states.delta.whole_files import require_whole
from trident.states.history.recorded_mark import DOMAIN, RecordedUpTo, owner_by_log, table_name
from trident.states.history.transaction_rows import SCHEMA, Row, instant

log = logging.getLogger("trident.history")
WRITE = faults.register("history.write", "adding rows to the table of transactions")
TIDY = faults.register("history.tidy", "rewriting the table of transactions without its oldest rows")
_FOLDER = "data"
# Behind so many files the table is written anew as one, without rows that are past their retention.
FILES_MAX = 32
# A reader of an older table version has so long; then files that the table no longer has are deleted.
_GRACE_SECS = 24 * 3600.0


@dataclass(frozen=True)
class OpenTransactions:
    """The table as it was looked at.

    Attributes:
        before: its mark, where an incarnation from before a rollback wrote it: of that one some may be lacking.
    """

    snapshot: TableSnapshot
    mark: RecordedUpTo
    files: int
    before: RecordedUpTo | None = None


class TransactionsTable:
    """The table of one batch group's transactions, for the process that leads; for one thread."""

    def __init__(self, engine: KernelEngine, of: GroupContext) -> None:
        self._engine, self._warehouse = engine, of.warehouse
        self.path = of.warehouse / table_name(of.topology, of.group)
        self._new = RecordedUpTo(of.topology, of.group, of.incarnation, 0)

    def open(self) -> OpenTransactions | None:
        """Looks at the table; None where there is none.

        Raises:
            ForeignTable: it is not this batch group's.
            TableError: it is damaged: its log cannot be read, or a data file is not what was written.
        """
        try:
            snapshot = self._engine.load(str(self.path))
        except TableMissing:
            return None
        stored = RecordedUpTo.decode(self.path, snapshot.control(DOMAIN))
        mark = self._own(stored)
        files = self._engine.live_files(snapshot)
        require_whole(f"table {self.path.name}", str(self.path), files)
        before = stored if stored.incarnation in up_to(mark.incarnation)[1:] else None
        return OpenTransactions(snapshot, mark, len(files), before)

    def _own(self, mark: RecordedUpTo) -> RecordedUpTo:
        owner, own = (mark.topology, mark.group), (self._new.topology, self._new.group)
        if owner != own:
            raise ForeignTable(
                f"the table {self.path} is of another topology or batch group",
                found="/".join(owner),
                expected="/".join(own),
                action="give one of them another name: without '__' in them two never mean one table",
            )
        # Another incarnation's transactions have the same numbers; its rows stay.
        return mark if mark.incarnation == self._new.incarnation else replace(self._new, generation=mark.generation)

    def make(self) -> OpenTransactions:
        """Makes the table, empty."""
        schema = table_schema(from_arrow_schema(SCHEMA))
        storage.make_folder(self.path, self._warehouse)
        with faults.fault_point(WRITE):
            snapshot = self._engine.create_table(
                str(self.path), schema, (), PROPERTIES, {DOMAIN: self._new.encode()}, self._info
            )
        return OpenTransactions(snapshot, self._new, 0)

    def is_ours_by_its_log(self) -> bool:
        """Tells whether some entry that can still be read says that the table is this group's."""
        return owner_by_log(self.path) == (self._new.topology, self._new.group)

    def damage(self) -> TableError | None:
        """Looks without Kernel whether the log, or a file that it names, is not as it was written; None: all is well.

        A storage that does not answer is no damage.
        """
        tables = LogTables()
        try:
            snapshot = tables.load(str(self.path))
            require_whole(f"table {self.path.name}", str(self.path), tables.live_files(snapshot))
        except TableMissing:
            return None
        except TableError as error:
            return error if is_damage(error) else None
        return None

    def remove(self) -> None:
        """Deletes a table that is damaged, to be made again."""
        with faults.fault_point(WRITE):
            storage.delete(self.path)

    def add(self, table: OpenTransactions, rows: Sequence[Row], upto: int) -> OpenTransactions:
        """Adds rows, in one commit that says that the table has all transactions up to one.

        Raises:
            CommitConflict, CommitOutcomeUnknown, TxnAlreadyApplied: open the table again: it may have them.
        """
        mark = replace(table.mark, upto=upto)
        with faults.fault_point(WRITE):
            files = self._write(pa.Table.from_pylist(list(rows), SCHEMA)) if rows else []
            snapshot = self._engine.commit_files(
                table.snapshot, files, (mark.app_id, upto), {DOMAIN: mark.encode()}, self._info
            )
        return OpenTransactions(snapshot, mark, table.files + len(files))

    def tidy(self, table: OpenTransactions, retention: Retention) -> OpenTransactions:
        """Writes the table anew as one file, without rows past their retention, and deletes files long replaced.

        Raises:
            CommitConflict, CommitOutcomeUnknown: as for ``add``; TableError: a file cannot be read.
        """
        if not table.snapshot.takes_python_entries:
            return table  # another program has given it features that Python does not know: it grows
        with faults.fault_point(TIDY):
            tidied, live = self._rewritten(table, lambda rows: within(rows, table.mark, retention, time.time()))
        self._delete_replaced(live)
        return tidied

    def cut(self, table: OpenTransactions, txid: int) -> OpenTransactions:
        """Takes out the transactions after one: the group has gone back to it, and others will have their numbers.

        Raises: as ``tidy``. Killed in between, it is to be done again: until its end the table says that it has them.
        """
        if not table.snapshot.takes_python_entries:
            raise TableError(
                f"rows cannot be taken out of table {self.path}: another program has given it features",
                action="move the table away: it is made again from the manifests that are kept",
            )
        own = table.mark.incarnation

        def before(rows: pa.Table) -> pa.Table:
            told = zip(rows.column("incarnation").to_pylist(), rows.column("txid").to_pylist())
            return rows.filter(pa.array([whose != own or each <= txid for whose, each in told], pa.bool_()))

        with faults.fault_point(TIDY):
            rewritten, _ = self._rewritten(table, before)
        mark = replace(table.mark, generation=table.mark.generation + 1)
        return self.add(replace(rewritten, mark=mark), [], txid)

    def _rewritten(
        self, table: OpenTransactions, kept: Callable[[pa.Table], pa.Table]
    ) -> tuple[OpenTransactions, set[str]]:
        """The table with those of its rows that are kept, in one file; and the file's path."""
        snapshot = table.snapshot
        files = self._engine.live_files(snapshot)
        rows = pa.Table.from_batches(list(rows_of(str(self.path), files, SCHEMA)), SCHEMA)
        left = kept(rows)
        written = self._write(left) if left.num_rows else []
        snapshot = self._engine.replace_files(
            snapshot,
            files,
            written,
            (),
            (f"{table.mark.app_id}/tidy", snapshot.version + 1),
            self._info,
            json.dumps({"trident": {"kept": left.num_rows, "dropped": rows.num_rows - left.num_rows}}),
            {"numOutputRows": left.num_rows},
        )
        return OpenTransactions(snapshot, table.mark, len(written)), {file.path for file in written}

    def maintain(self, table: OpenTransactions) -> None:
        """Writes a checkpoint when one is due."""
        self._engine.run_maintenance(table.snapshot)

    @property
    def _info(self) -> str:
        return f"trident/{self._new.incarnation}"

    def _write(self, rows: pa.Table) -> list[StagedFile]:
        batches = rows.combine_chunks().to_batches()
        reports = list(write_partition(FileTarget("transactions", str(self.path), _FOLDER), batches))
        fsync_folders(self.path, _FOLDER)
        return [staged_file(report) for report in reports]

    def _delete_replaced(self, live: set[str]) -> None:
        """Also files of commits that came to nothing."""
        with faults.fault_point(TIDY):
            for name in storage.list_names(self.path / _FOLDER):
                path = self.path / _FOLDER / name
                found = storage.stat_file(path) if f"{_FOLDER}/{name}" not in live else None
                if found is not None and time.time() - found.mtime_ns / 1e9 > _GRACE_SECS:
                    storage.try_delete(path)


def is_damage(error: TableError) -> bool:
    """Tells contents that are not as they were written from a storage that did not give them."""
    cause = error.__cause__
    return not isinstance(cause, OSError) or cause.errno in (None, errno.ENOENT)


def within(rows: pa.Table, mark: RecordedUpTo, retention: Retention, now: float) -> pa.Table:
    """The rows that are within the retention; of earlier incarnations those that fit beside the present one's."""
    told = rows.select(["txid", "incarnation", "decided_at"]).to_pylist()
    oldest = instant(now - retention.secs) if retention.secs is not None else None
    own = [row["incarnation"] == mark.incarnation for row in told]
    kept = [is_own and row["txid"] > mark.upto - retention.txids for row, is_own in zip(told, own)]
    room = retention.txids - sum(kept)
    for at in range(len(told) - 1, -1, -1):
        if not own[at] and room > 0:
            kept[at], room = True, room - 1
    young = [oldest is None or row["decided_at"] is None or row["decided_at"] >= oldest for row in told]
    return rows.filter(pa.array([keep and fresh for keep, fresh in zip(kept, young)], pa.bool_()))
