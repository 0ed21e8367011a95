"""The one place that talks to Delta's Kernel API, in Java, through py4j.

Commits whole files to Delta tables with a compare-and-set on the table version:
a commit made on a snapshot happens at the next version or not at all (docs/semantics.md 9
step 5, and 4); on a local disk by a hard link (``log_commit``). A call on a Java object that is held costs a tenth of a
millisecond, looking a class up by its name more than a millisecond: so each
class is looked up once, by :class:`KernelEngine`, and a commit goes on from the
snapshot that the commit before it gave back. A commit that only adds files to a plain table on a local disk makes no
call at all: Python writes its entry (``kernel_files.append_entry``), and Kernel reads the table again when it is asked.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, SchemaMismatch, TableError
from trident.states.core import storage
from trident.states.core.storage import Signature
from trident.states.core.tables import StagedFile
from trident.states.delta.data_files import require_whole_log
from trident.states.delta.delta_log import RETENTION_PROPERTY, DeltaLog, check_keeps_ids
from trident.states.delta.kernel_files import (
    LiveFile,
    add_action,
    append_entry,
    is_plain,
    live_file,
    remove_action,
    replace_entry,
    take_back_entry,
)
from trident.states.delta.log_commit import (
    CheckpointExists,
    CommitOutcomeUnknown,
    DraftCommitter,
    TableMissing,
    TxnAlreadyApplied,
    draft_of,
    guard,
    guard_commit,
    hold_log_folder,
    publish_draft,
    remove_draft,
    remove_drafts,
    signature_in,
    write_draft,
)
from trident.states.delta.torn_entries import fsync_log_entries, set_torn_entries_aside

__all__ = [
    "CommitOutcomeUnknown",
    "KernelEngine",
    "TableMissing",
    "TableSnapshot",
    "TxnAlreadyApplied",
]

log = logging.getLogger(__name__)
LOAD = faults.register("delta.load", "reading the log of a Delta table")
FILES = faults.register("delta.files", "reading which files a Delta table has")
CHECKPOINT = faults.register("delta.checkpoint", "writing a checkpoint or a checksum of a Delta table")

_LOG_STORES = {
    "io.delta.kernel.logStore.file.impl": "io.delta.storage.LocalLogStore",
    "io.delta.kernel.logStore.s3a.impl": "trident.stores.ConditionalLogStore",  # for checkpoints and checksums
}
# A snapshot that a commit gave back remembers every log entry since it was
# loaded: it grows, and the entries may be cleaned up one day. So it is loaded
# again after this many commits or seconds.
_CHAIN_LIMIT = 500
_CHAIN_SECS = 600
# A load reads each entry behind the last checkpoint, one request behind the other's answer: at a store that takes long.
CHECKPOINT_EVERY, CHECKPOINT_EVERY_IN_A_STORE = 50, 10
# This many of the newest entries of other writers may not be on disk yet; older ones the system has written back.
_UNSETTLED = 100
_LOAD_TRIES = 3


class _Chain:
    """The common part of a loaded snapshot and of all those that commits made of it.

    Attributes:
        plain: whether Python may write the entries that add files (``kernel_files.is_plain``); None: not known yet.
    """

    def __init__(self, java: Any) -> None:
        self.plain: bool | None = None
        self.loaded_at = time.monotonic()
        found = java.getLogSegment().getCheckpointVersionOpt().orElse(None)
        self.checkpoint = 0 if found is None else int(found)


class TableSnapshot:
    """A Delta table as of one table version. Immutable; may be used from any thread.

    Attributes:
        table_id: Delta's id of the table; another one means another table.
        schema_json: the schema, in the JSON that Spark and Delta share.
        entry: the signature of the version's log entry, None when there is none to be seen.
    """

    def __init__(
        self,
        engine: KernelEngine,
        java: Any | None,
        path: str,
        version: int,
        entry: Signature | None,
        base: TableSnapshot | None = None,
        control: Mapping[str, str | None] | None = None,
        txns: Mapping[str, int | None] | None = None,
    ) -> None:
        """Made by :class:`KernelEngine` only; without a Java object when Python wrote the entry."""
        self._engine, self._loaded = engine, java
        self.path, self.version, self.entry = path, version, entry
        # The rest, which a commit cannot have changed, comes from the snapshot that it was made on.
        self._control: dict[str, str | None] = {**(base._control if base else {}), **(control or {})}
        self._txns: dict[str, int | None] = {**(base._txns if base else {}), **(txns or {})}
        self._commits_since_load: int = base._commits_since_load + 1 if base and java is not None else 0
        self._chain: _Chain = base._chain if base else _Chain(java)
        self._sum_known: bool | None = base._sum_known if base and java is not None else None
        if base is not None:
            self.table_id: str = base.table_id
            self.schema_json: str = base.schema_json
            self.partition_columns: tuple[str, ...] = base.partition_columns
            self.properties: Mapping[str, str] = base.properties
        else:
            metadata = self._java.getMetadata()
            self.table_id, self.schema_json = metadata.getId(), metadata.getSchemaString()
            self.partition_columns = tuple(engine.python_value(self._java.getPartitionColumnNames()))
            self.properties = engine.python_value(self._java.getTableProperties())

    @property
    def _java(self) -> Any:
        """Kernel's snapshot of this version, loaded now where Python wrote the version's entry."""
        if self._loaded is None:
            found = self._engine.load_version(self.path, self.version)
            if found.table_id != self.table_id:
                raise TableError(
                    f"table {self.path} was made anew",
                    found=f"table id {found.table_id}",
                    expected=f"table id {self.table_id}",
                    action="read the table again",
                )
            self._loaded = found._java
        return self._loaded

    @property
    def _summed(self) -> bool:
        """Tells whether Kernel has the version's checksum in memory."""
        if self._sum_known is None:
            self._sum_known = bool(self._java.getCurrentCrcInfo().isPresent())
        return self._sum_known

    @property
    def takes_python_entries(self) -> bool:
        """Tells whether Python may write the entry of a commit that adds or removes files."""
        if self._chain.plain is None:
            protocol = guard(self.path, lambda: self._engine.row_text(self._java.getProtocol().toRow()))
            reached = storage.reached_path(self.path) is not None
            self._chain.plain = reached and is_plain(json.loads(protocol), self.schema_json)
        return self._chain.plain

    def control(self, domain: str) -> str | None:
        """The configuration of a domain (our control record), as the JSON that was stored."""
        if domain not in self._control:
            said = self._said_by_the_newest_entry()
            if domain in said:
                self._control |= said
            else:
                self._control[domain] = guard(self.path, lambda: self._java.getDomainMetadata(domain).orElse(None))
        return self._control[domain]

    def _said_by_the_newest_entry(self) -> Mapping[str, str | None]:
        """Domains of which the newest entry speaks, in a store: one request, where Kernel reads the log once more."""
        if storage.local_path(self.path) is not None or storage.reached_path(self.path) is None:
            return {}
        try:
            return DeltaLog(self.path).commit(self.version).domains
        except TableError:  # Kernel says what is wrong with it
            return {}

    def txn_version(self, app: str) -> int | None:
        """The ``txn_version`` stored for ``app``, None when there is none."""
        if app not in self._txns:
            found = guard(
                self.path, lambda: self._java.getLatestTransactionVersion(self._engine.java, app).orElse(None)
            )
            self._txns[app] = None if found is None else int(found)
        return self._txns[app]

    def __repr__(self) -> str:
        return f"TableSnapshot({self.path!r}, version={self.version})"


class KernelEngine:
    """Delta's Kernel on the JVM of one Spark session.

    Holds every Java class and helper that a commit needs. Make one per Spark
    session and share it: all methods may be called from any thread, also for
    the same table (commits to one table then happen one after the other, and
    those on a snapshot that is no longer the newest raise).

    Args:
        spark: a session that has Delta's jars and a JVM (not Spark Connect).

    Raises:
        TableError: the jars of Delta's Kernel are not on the session's class path.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        jvm: Any = spark._jvm
        kernel = jvm.io.delta.kernel
        conf = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
        # Kernel's default log store asks Hadoop for a second local file system,
        # one that runs a `chmod` process for every file: 25 ms a commit. This
        # one uses the session's. It writes drafts, checkpoints and checksums
        # here; Spark's own commits keep the default.
        for setting, log_store in _LOG_STORES.items():
            if not conf.get(setting):
                conf.set(setting, log_store)
        try:
            self.java = kernel.defaults.engine.DefaultEngine.create(conf)
        except (TypeError, Py4JError) as error:
            raise TableError(
                "Delta's Kernel is not on the class path of this Spark session",
                expected="the jars of delta-spark",
                action="make the session with trident.configure_spark(builder)",
            ) from error
        self._tables = kernel.TableManager
        self._write = kernel.Operation.WRITE
        self._manual = kernel.Operation.MANUAL_UPDATE
        self._partitioned = kernel.transaction.DataLayoutSpec.partitioned
        self._column = kernel.expressions.Column
        self._iterable = kernel.utils.CloseableIterable
        self._no_rows = kernel.utils.CloseableIterable.emptyIterable
        self._types = kernel.internal.types.DataTypeJsonSerDe
        self._iterator = kernel.internal.util.Utils.toCloseableIterator
        self._rows = kernel.internal.util.Utils.intoRows
        self._row = kernel.defaults.internal.json.JsonUtils.rowFromJson
        self.row_text: Callable[[Any], str] = kernel.defaults.internal.json.JsonUtils.rowToJson
        self._action = kernel.internal.actions.SingleAction.FULL_SCHEMA
        self._checksum_modes = getattr(kernel, "Snapshot$ChecksumWriteMode")
        self._whole: dict[str, tuple[int, Signature]] = {}  # path → the newest entry seen whole
        self._needs_cleanup: set[str] = set()  # tables in which a commit of ours came to nothing
        self._durable: dict[str, tuple[int, Signature]] = {}  # path → the newest entry known to outlive a power cut
        self._list = jvm.java.util.ArrayList
        self._map = jvm.java.util.HashMap
        self._json = jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString
        self._drafts = DraftCommitter(self.java, kernel, jvm.java.lang.Thread.currentThread)
        # One Java object for all calls: each time a Python object is handed over, py4j makes another.
        held = self._list()
        held.add(self._drafts)
        self._committer = held.get(0)

    def python_value(self, java: Any) -> Any:
        """A Java list or map of text in one call; iterating takes dozens, since py4j ends that by an exception."""
        return json.loads(self._json(java))

    def mark_for_cleanup(self, path: str) -> None:
        """Writers before us may have left drafts in the table's log: the next commit removes them."""
        self._needs_cleanup.add(path)

    def remove_drafts(self, path: str, version: int) -> None:
        """Remove drafts of log entries that writers which were killed, or met a full disk, have left.

        Behind it no writer that renames can replace an entry up to that version any more: its draft is gone.

        Args:
            version: a table version that exists.
        """
        try:
            remove_drafts(path, version)
        except OSError as error:
            log.warning("drafts of log entries stay in %s: %s", path, error)
        else:
            self._needs_cleanup.discard(path)

    def load(self, path: str) -> TableSnapshot:
        """The newest table version. A log entry that a power cut has torn is set aside first.

        Raises:
            TableMissing: there is no table.
            TableError: it cannot be read, or has a property that would lose
                transaction ids.
        """
        self._set_torn_aside(path)
        return self._load(path, None)

    def _set_torn_aside(self, path: str) -> None:
        version, signature = self._whole.get(path, (-1, None))
        log_of = DeltaLog(path)
        if signature and log_of.signature(version) == signature and not log_of.signature(version + 1):
            return
        try:
            newest = set_torn_entries_aside(path)
            if newest is not None and (signature := log_of.signature(newest)) is not None:
                self._whole[path] = newest, signature
        except (OSError, TableError) as error:  # a read-only disk: then the table is read as it is
            log.warning("the log of table %s cannot be read: %s", path, error)

    def load_version(self, path: str, version: int) -> TableSnapshot:
        """The table as of one table version.

        Raises:
            TableMissing: there is no table.
            TableError: the version does not exist (any more).
        """
        return self._load(path, version)

    def _load(self, path: str, version: int | None) -> TableSnapshot:
        def build() -> Any:
            builder = self._tables.loadSnapshot(path)
            if storage.reached_path(path) is not None:
                builder = builder.withCommitter(self._committer)
            return (builder if version is None else builder.atVersion(version)).build(self.java)

        for _ in range(_LOAD_TRIES):
            # Opened before, looked into behind: a table that is made anew meanwhile is seen to be another.
            with hold_log_folder(path) as folder:
                with faults.fault_point(LOAD):
                    require_whole_log(path, version)
                    java = guard(path, build)
                found = java.getVersion()
                entry = None if folder is None else signature_in(folder, found)
            if entry is not None or folder is None or version is not None:
                break
        snapshot = TableSnapshot(self, java, path, found, entry)
        check_keeps_ids(path, snapshot.properties)
        return snapshot

    def create_table(
        self,
        path: str,
        schema_json: str,
        partition_columns: Sequence[str],
        properties: Mapping[str, str],
        control: Mapping[str, str],
        engine_info: str,
    ) -> TableSnapshot:
        """Make a table, empty, with its control records: table version 0.

        Args:
            path: the table's root; may exist, without a Delta log.
            schema_json: as ``StructType.json()`` gives it.
            properties: table properties; the domain metadata feature is added.
            control: domain -> JSON text, stored with the creation.
            engine_info: who commits; kept in the table's history.

        Raises:
            CommitConflict: there is a table already; nothing was changed.
            TableError: schema or property that Delta refuses.
            CommitOutcomeUnknown: load the table again to know.
        """
        if RETENTION_PROPERTY in properties:
            raise TableError(f"a table with {RETENTION_PROPERTY} would forget transaction ids", action="leave it out")

        def build() -> Any:
            builder = self._tables.buildCreateTableTransaction(
                path, self._types.deserializeStructType(schema_json), engine_info
            ).withMaxRetries(0)
            builder.withTableProperties(self._java_map({**properties, "delta.feature.domainMetadata": "supported"}))
            if storage.reached_path(path) is not None:
                builder.withCommitter(self._committer)
            if partition_columns:
                columns = self._java_list([self._column(name) for name in partition_columns])
                builder.withDataLayoutSpec(self._partitioned(columns))
            txn = builder.build(self.java)
            for domain, text in control.items():
                txn.addDomainMetadata(domain, text)
            return txn

        result, entry = self._publish(path, 0, None, lambda: guard(path, build).commit(self.java, self._no_rows()))
        return TableSnapshot(self, result.getPostCommitSnapshot().get(), path, 0, entry, control=control)

    def commit_files(
        self,
        snapshot: TableSnapshot,
        files: Sequence[StagedFile],
        txn: tuple[str, int] | None,
        control: Mapping[str, str],
        engine_info: str,
    ) -> TableSnapshot:
        """Commits files, a ``txn_version`` and control records at ``snapshot.version + 1``.

        The commit happens as a whole at exactly that table version, or not at
        all. The caller must have verified that every file is there, durable and
        of its size: nothing here opens one.

        Args:
            snapshot: what the caller has checked; normally what the last commit gave.
            files: may be empty (the control record is committed all the same).
            txn: (``txn_app_id``, ``txn_version``) or None.
            control: domain -> JSON text.

        Returns:
            The table after the commit; no reload is needed.

        Raises:
            CommitConflict: another commit took the version; nothing happened.
            TxnAlreadyApplied: the table has this transaction or a later one.
            CommitOutcomeUnknown: load the table again to know.
            TableError: Delta refused; nothing happened.
        """
        if snapshot.takes_python_entries:
            return self._append(snapshot, files, txn, control, engine_info)
        return self._commit(snapshot, [add_action(file) for file in files], txn, control, engine_info, self._write)

    def _append(
        self,
        snapshot: TableSnapshot,
        files: Sequence[StagedFile],
        txn: tuple[str, int] | None,
        control: Mapping[str, str],
        engine_info: str,
    ) -> TableSnapshot:
        """As :meth:`commit_files`, to a plain table on a local disk, without Kernel."""
        return self._written(snapshot, append_entry(files, txn, control, engine_info), txn, control)

    def replace_files(
        self,
        snapshot: TableSnapshot,
        removed: Sequence[LiveFile],
        files: Sequence[StagedFile],
        changes: Sequence[StagedFile],
        txn: tuple[str, int],
        engine_info: str,
        user_metadata: str,
        metrics: Mapping[str, int],
    ) -> TableSnapshot:
        """Puts files in the place of others, at ``snapshot.version + 1``: a MERGE whose files are written.

        Args:
            snapshot: one that ``takes_python_entries``.
            removed: files of that version.
            files: as for :meth:`commit_files`.
            changes: files with the changed rows: at least one where the table has a change data feed, else none.
            txn: (``txn_app_id``, ``txn_version``).
            user_metadata, metrics: kept in the table's history.

        Returns and Raises: as :meth:`commit_files`.
        """
        entry = replace_entry(removed, files, changes, txn, engine_info, user_metadata, metrics)
        return self._written(snapshot, entry, txn, {})

    def take_back(
        self,
        snapshot: TableSnapshot,
        removed: Sequence[LiveFile],
        added: Sequence[Mapping[str, Any]],
        txns: Mapping[str, int],
        control: Mapping[str, str],
        engine_info: str,
        user_metadata: str,
    ) -> TableSnapshot:
        """Puts files of an earlier version in the place of a table's, at ``snapshot.version + 1``: a rollback.

        Args:
            snapshot: one that ``takes_python_entries``.
            removed, added, txns, control, user_metadata: as for :func:`take_back_entry`. A ``txn_version`` may be
                what the table has already.

        Returns and Raises: as :meth:`commit_files`.
        """
        entry = take_back_entry(removed, added, txns, control, engine_info, user_metadata)
        return self._written(snapshot, entry, None, control)

    def _written(
        self, snapshot: TableSnapshot, entry: bytes, txn: tuple[str, int] | None, control: Mapping[str, str]
    ) -> TableSnapshot:
        """Commits an entry of Python's at the version behind a snapshot's."""
        path, version = snapshot.path, snapshot.version + 1
        if txn is not None and (known := snapshot.txn_version(txn[0])) is not None and known >= txn[1]:
            raise TxnAlreadyApplied(f"table {path} has this transaction already", found=f"{txn[0]} at {known}")
        draft = draft_of(path, version)
        with self._cleaning_up(snapshot):
            _, signature = self._claim(path, version, snapshot, draft, lambda: write_draft(path, version, draft, entry))
        txns = dict([txn]) if txn else None
        return TableSnapshot(self, None, path, version, signature, base=snapshot, control=control, txns=txns)

    def drop_files(
        self,
        snapshot: TableSnapshot,
        predicate: Callable[[LiveFile], bool],
        control: Mapping[str, str],
        engine_info: str,
    ) -> TableSnapshot | None:
        """Remove whole files from the table, in one commit that writes metadata only.

        The rows of the files are gone from the next table version on; the files
        themselves stay on disk until a VACUUM.

        Args:
            predicate: called once per live file; True removes it.
            control: domain -> JSON text, in the same commit.

        Returns:
            The table after the commit, or None when no file was to be removed
            (then nothing is committed, the control records neither).

        Raises:
            CommitConflict, CommitOutcomeUnknown, TableError: as for :meth:`commit_files`.
        """
        doomed = [file for file in self.live_files(snapshot) if predicate(file)]
        if not doomed:
            return None
        actions = [remove_action(file) for file in doomed]
        return self._commit(snapshot, actions, None, control, engine_info, self._manual)

    def _commit(
        self,
        snapshot: TableSnapshot,
        actions: Sequence[str],
        txn: tuple[str, int] | None,
        control: Mapping[str, str],
        engine_info: str,
        operation: Any,
    ) -> TableSnapshot:
        base = self._ready(snapshot)

        def build() -> Any:
            builder = base._java.buildUpdateTableTransaction(engine_info, operation).withMaxRetries(0)
            if txn is not None:
                builder = builder.withTransactionId(*txn)
            made = builder.build(self.java)
            for domain, text in control.items():
                made.addDomainMetadata(domain, text)
            return made

        def rows() -> Any:
            made = self._java_list([self._row(action, self._action) for action in actions])
            return self._iterable.inMemoryIterable(self._iterator(made.iterator()))

        java_txn, iterable = guard(snapshot.path, build), guard(snapshot.path, rows)
        version = snapshot.version + 1
        with self._cleaning_up(snapshot):
            commit = lambda: java_txn.commit(self.java, iterable)  # noqa: E731
            result, entry = self._publish(snapshot.path, version, snapshot, commit)
        return TableSnapshot(
            self,
            result.getPostCommitSnapshot().get(),
            snapshot.path,
            version,
            entry,
            base=base,
            control=control,
            txns=dict([txn]) if txn else None,
        )

    @contextmanager
    def _cleaning_up(self, base: TableSnapshot) -> Iterator[None]:
        """Runs a commit on a table version; removes drafts behind it, or remembers that some may be left."""
        try:
            yield
            if base.path in self._needs_cleanup:
                self.remove_drafts(base.path, base.version + 1)
        except CommitConflict:
            raise
        except TableError as error:
            # A full disk leaves a part of the draft.
            self._needs_cleanup.add(base.path)
            if isinstance(error, CommitOutcomeUnknown):
                self._set_torn_aside(base.path)
            raise

    def _publish(
        self, path: str, version: int, base: TableSnapshot | None, call: Callable[[], Any]
    ) -> tuple[Any, Signature | None]:
        """Kernel's commit; on a local disk Kernel writes a draft, and its link is the commit."""
        if storage.reached_path(path) is None:
            return guard_commit(path, version, call, None)
        expected = guard(path, lambda: self._drafts.expect(path, version))
        return self._claim(path, version, base, expected.draft, lambda: self._drafts.written(expected, call))

    def _claim(
        self, path: str, version: int, base: TableSnapshot | None, draft: str, write: Callable[[], Any]
    ) -> tuple[Any, Signature]:
        """Has the draft written and makes it the log entry of the version."""
        if base is not None:
            self._fsync_base(base)
        try:
            result, entry = guard_commit(
                path, version, write, lambda: publish_draft(path, version, draft, base.entry if base else None)
            )
        finally:
            remove_draft(draft)
        self._durable[path] = version, entry
        return result, entry

    def _fsync_base(self, base: TableSnapshot) -> None:
        """An entry that is on disk above one that is not would leave a hole in the log: other writers flush nothing."""
        version, entry = self._durable.get(base.path, (-1, None))
        if (version, entry) == (base.version, base.entry) or base.entry is None:
            return
        known = version if version < base.version and DeltaLog(base.path).signature(version) == entry else -1
        fsync_log_entries(base.path, max(known + 1, base.version - _UNSETTLED), base.version)
        self._durable[base.path] = base.version, base.entry

    def _ready(self, snapshot: TableSnapshot) -> TableSnapshot:
        """The same table version, in a form that is cheap to commit on.

        Kernel looks up the clustering domain at each commit: from the checksum
        that it keeps in memory when it has one, else by reading the whole log
        since the last checkpoint. And a chain of commits grows for ever.
        """
        short_of_checksum = snapshot._commits_since_load > 0 and not snapshot._summed
        old = snapshot._commits_since_load >= _CHAIN_LIMIT or time.monotonic() - snapshot._chain.loaded_at > _CHAIN_SECS
        if not short_of_checksum and not old:
            return snapshot
        self._write_checksum(snapshot)
        return self.load_version(snapshot.path, snapshot.version)

    def _write_checksum(self, snapshot: TableSnapshot) -> None:
        mode = self._checksum_modes.SIMPLE if snapshot._summed else self._checksum_modes.FULL
        try:
            with faults.fault_point(CHECKPOINT):
                guard(snapshot.path, lambda: snapshot._java.writeChecksum(self.java, mode))
        except (TableError, faults.InjectedFault) as error:
            # Only speed is lost: another writer has written it, or the disk is full.
            log.debug("no checksum for %s: %s", snapshot, error)

    def run_maintenance(self, snapshot: TableSnapshot, every: int | None = None) -> bool:
        """Write a checkpoint and a checksum when the last is ``every`` table versions old.

        For a background thread: it commits nothing, takes no lock, conflicts
        with no commit, and may run in several processes at once. Without it
        readers, and a take-over, read ever more of the log. Also removes log
        entries older than ``delta.logRetentionDuration``.

        Args:
            every: table versions between checkpoints; None: 50 on a local disk, 10 in a store.

        Returns:
            True if a checkpoint was written.

        Raises:
            TableError: it could not be written; the table is as good as before.
        """
        if every is None:
            is_local = storage.local_path(snapshot.path) is not None
            every = CHECKPOINT_EVERY if is_local else CHECKPOINT_EVERY_IN_A_STORE
        if snapshot.version - snapshot._chain.checkpoint < every:
            return False
        self._write_checksum(snapshot)

        def write() -> bool:
            # Loaded anew it starts at the last checkpoint; the caller's may
            # have come a long way without one.
            java = self.load_version(snapshot.path, snapshot.version)._java
            java.writeCheckpoint(self.java)
            return True

        try:
            with faults.fault_point(CHECKPOINT):
                return guard(snapshot.path, write)
        except CheckpointExists:
            return False
        finally:
            snapshot._chain.checkpoint = snapshot.version

    def add_columns(
        self, snapshot: TableSnapshot, schema_json: str, control: Mapping[str, str], engine_info: str
    ) -> TableSnapshot:
        """Add nullable columns at the end of the table's schema; changes no file.

        Args:
            schema_json: the whole new schema: the present fields, unchanged and
                in order, then the new ones.
            control: domain -> JSON text, in the same commit.

        Returns:
            The table after the commit (or ``snapshot`` when nothing is new).

        Raises:
            SchemaMismatch: the new schema is not the old one plus nullable columns.
            CommitConflict, CommitOutcomeUnknown, TableError: as for :meth:`commit_files`.
        """
        old, new = json.loads(snapshot.schema_json)["fields"], json.loads(schema_json)["fields"]
        added = new[len(old) :]
        if new[: len(old)] != old or not all(field["nullable"] for field in added):
            raise SchemaMismatch(
                f"the schema of table {snapshot.path} cannot be changed to this",
                found=schema_json,
                expected=f"{snapshot.schema_json} with nullable columns added at its end",
            )
        if not added:
            return snapshot
        # Kernel's own schema update wants column mapping, which other readers
        # may lack; a table without it takes new columns as plain metadata.
        row = json.loads(guard(snapshot.path, lambda: self.row_text(snapshot._java.getMetadata().toRow())))
        action = json.dumps({"metaData": {**row, "schemaString": schema_json}})
        after = self._commit(snapshot, [action], None, control, engine_info, self._manual)
        # Kernel does not see the metadata among the actions: its snapshot in memory is old.
        return self.load_version(snapshot.path, after.version)

    def take_over(
        self,
        snapshot: TableSnapshot,
        schema_json: str,
        properties: Mapping[str, str],
        control: Mapping[str, str],
        engine_info: str,
    ) -> TableSnapshot:
        """Gives a table a schema, properties and control records, in one commit at ``snapshot.version + 1``.

        Args:
            schema_json: the present fields and nullable ones behind them, as for :meth:`add_columns`.
            properties: set beside those that the table has.

        Raises:
            CommitConflict, CommitOutcomeUnknown, TableError: as for :meth:`commit_files`.
        """
        row = json.loads(guard(snapshot.path, lambda: self.row_text(snapshot._java.getMetadata().toRow())))
        configuration = {**(row.get("configuration") or {}), **properties}
        action = json.dumps({"metaData": {**row, "schemaString": schema_json, "configuration": configuration}})
        after = self._commit(snapshot, [action], None, control, engine_info, self._manual)
        return self.load_version(snapshot.path, after.version)

    def set_properties(
        self, snapshot: TableSnapshot, properties: Mapping[str, str], control: Mapping[str, str], engine_info: str
    ) -> TableSnapshot:
        """Sets table properties, with the features that they need, and control records in one commit.

        Raises:
            CommitConflict, CommitOutcomeUnknown, TableError: as for :meth:`commit_files`.
        """

        def build() -> Any:
            builder = snapshot._java.buildUpdateTableTransaction(engine_info, self._manual)
            txn = builder.withTablePropertiesAdded(self._java_map(properties)).withMaxRetries(0).build(self.java)
            for domain, text in control.items():
                txn.addDomainMetadata(domain, text)
            return txn

        txn, version = guard(snapshot.path, build), snapshot.version + 1
        self._publish(snapshot.path, version, snapshot, lambda: txn.commit(self.java, self._no_rows()))
        return self.load_version(snapshot.path, version)

    def enable_control(self, snapshot: TableSnapshot) -> TableSnapshot:
        """Give a table the feature that control records need; commits, unless it has it.

        Raises:
            CommitConflict, CommitOutcomeUnknown, TableError: as for :meth:`commit_files`.
        """
        if guard(snapshot.path, lambda: snapshot._java.getProtocol().getWriterFeatures().contains("domainMetadata")):
            return snapshot
        return self.set_properties(snapshot, {"delta.feature.domainMetadata": "supported"}, {}, "trident")

    def why_not_written(self, snapshot: TableSnapshot) -> str | None:
        """Tells why Kernel cannot commit to a table as it is, such as a table feature; None: it can."""

        def build() -> Any:
            return snapshot._java.buildUpdateTableTransaction("trident", self._manual).build(self.java)

        try:
            guard(snapshot.path, build)
        except TableError as error:
            return error.message
        return None

    def live_files(self, snapshot: TableSnapshot) -> list[LiveFile]:
        """The data files of this table version, with their statistics.

        Costs a fraction of a millisecond per file: not for the hot path.
        """

        def read() -> list[LiveFile]:
            found = []
            rows = self._rows(snapshot._java.getScanBuilder().build().getScanFiles(self.java, True))
            try:
                while rows.hasNext():
                    found.append(live_file(json.loads(self.row_text(rows.next()))["add"]))
            finally:
                rows.close()
            return found

        with faults.fault_point(FILES):
            return guard(snapshot.path, read)

    def _java_list(self, values: Sequence[Any]) -> Any:
        java = self._list()
        for value in values:
            java.add(value)
        return java

    def _java_map(self, values: Mapping[str, str]) -> Any:
        java = self._map()
        for key, value in values.items():
            java.put(key, value)
        return java
