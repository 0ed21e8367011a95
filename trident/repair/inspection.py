"""Finds what contradicts: in ZooKeeper, every table with its log, manifests, staged folders, a FileSpout's ledger."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import functions as F

from trident.coordinators import faults
from trident.coordinators.errors import (
    OutboxDamaged,
    SourceError,
    StagedFileMissing,
    TableError,
    TopologyError,
    TridentError,
)
from trident.coordinators.group_store import GroupStore
from trident.coordinators.identities import first_id, rollbacks_of, same_start
from trident.coordinators.records import Decision, GroupRecord, TableMark, is_outside_id, outside_name
from trident.coordinators.registration import Registration
from trident.coordinators.repairing import greatest_epoch
from trident.coordinators.stored_json import Unreadable
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.facts import (
    APPEND,
    LOG,
    PLAIN,
    ForeignChange,
    GroupFacts,
    LedgerDamage,
    ManifestFacts,
    OutsideFacts,
    TableFacts,
    TopologyFacts,
)
from trident.maintenance.inventory import StoredTable, table_now, tables_of
from trident.running.status import read_status
from trident.spouts.files.ledger import SCHEMA, FileLedger, LedgerBook, line_of, read_position
from trident.spouts.files.listing import FileListing
from trident.spouts.files.parquet import count_rows
from trident.states.core import storage
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.group_context import GroupContext
from trident.states.core.names import backquoted
from trident.states.core.place import Place
from trident.states.core.tables import UPTO_COLUMN, StagedFile
from trident.states.delta import history
from trident.states.delta.delta_log import DeltaLog, TableCommit, TableMissing
from trident.states.delta.history import writer_requirements
from trident.states.delta.kernel import KernelEngine
from trident.states.delta.manifest import Manifest, ManifestStore, groups_with_manifests
from trident.states.delta.staging import verify_staged
from trident.states.delta.torn_entries import read_whole
from trident.states.keyed.fitting import Fitting
from trident.states.keyed.table_watch import (
    changes_by_others,
    is_our_merge,
    is_our_publish,
    merged_log_version,
    only_properties,
    repaired_to,
    start_of,
)
from trident.states.keyed.tables import adopted_version
from trident.states.outside.outbox import OutboxLog, outbox_folder, outboxes_of

# Finds a FileSpout's ledger that is lost or damaged, and writes it again where that can be proved.
#
# The proof is the digest that the last batch has of its last file: it is over
# every line of the ledger up to there. So what is still readable, and then the
# files that are there now in the order in which they would have been found, is
# the ledger that was lost if, and only if, it comes to that digest.


_PINNED = {"path", "size", "mtime_ns", "digest"}
WRITE = faults.register("repair.ledger", "writing a ledger of files again")


def inspect_ledger(folder: Place, incarnation: str, pins: Mapping[int, Any], spout: str) -> LedgerDamage | None:
    """Returns what is wrong with the ledger of a stream; None for other streams than a FileSpout's.

    Args:
        folder: the stream's.
        pins: txid → what is pinned.
        spout: the class of its spout, as the topology's identity has it.
    """
    metadata = pins[max(pins)] if pins else None
    path = folder / f"files-{incarnation}.jsonl"
    if not isinstance(metadata, dict) or not {"from", "to"} <= metadata.keys():
        return None
    # A spout of the user's may have keys of these names for something else; a class made from FileSpout has its ledger.
    file = metadata.get("file")
    pinned = file if isinstance(file, dict) and file.keys() == _PINNED else None
    if pinned is None and spout != "FileSpout":
        return None
    unit = "rows" if "rows" in metadata else "bytes"
    try:
        position = read_position(metadata, "to")
    except SourceError:  # a class of the user's has that name
        return None
    number = position.number if position.offset else position.number - 1
    try:
        FileLedger(path, unit).check(number, pinned)
    except SourceError as error:
        try:
            data = _as_it_was(path, unit, number, pinned) if pinned is not None else None
        except (SourceError, OSError, Unreadable):  # the files are gone as well, or the disk refuses
            data = None
        return LedgerDamage(str(path), str(error), data)
    return None


def write_ledger(damage: LedgerDamage) -> str:
    """Writes the ledger again; the file that is there is kept beside it.

    Raises:
        SourceError: a folder, or another thing that is no file, is in its place.
    """
    assert damage.data is not None
    aside = f"{damage.path}.damaged"
    with faults.fault_point(WRITE):
        if storage.local_path(damage.path) is None:
            raise SourceError(
                f"the ledger of files {damage.path} is written again on a disk alone",
                found="a store, where it is a folder of parts",
                action="bring the parts back from the store's own versions, then run this again",
            )
        there = storage.stat(damage.path)
        if there is not None and not there.is_file:
            raise SourceError(
                f"the ledger of files {damage.path} cannot be written again",
                found=there.described,
                expected="the ledger, or nothing",
                action="move it away, then run this again",
            )
        if there is not None:
            storage.write(aside, storage.read(damage.path))
        storage.write(damage.path, damage.data)
    return f"{damage.path} is as it was again; the file that was there instead is {aside}"


def _as_it_was(path: Place, unit: str, number: int, pinned: Mapping[str, Any]) -> bytes | None:
    book, lines = LedgerBook(unit), list[bytes]()
    there = storage.stat(path)
    for line in storage.read(path).splitlines(keepends=True) if there is not None and there.is_file else ():
        try:
            book.apply(line)
        except ValueError:
            book, lines = _readable(unit, lines)
            break
        lines.append(line)
    if len(book) >= number:
        return None  # more is there than the batches have seen, and it is another ledger
    if not book.header_seen:
        source = [os.path.dirname(pinned["path"])]
        lines.append(_line(book, {"ledger": "trident-files", "schema": SCHEMA, "unit": unit, "source": source}))
    found = FileListing(book.source or (os.path.dirname(pinned["path"]),)).new_files(book.numbers)
    for file in found[: number - len(book)]:
        rows = None
        if unit == "rows":
            rows = count_rows(file.path)
        lines.append(_line(book, {"n": len(book) + 1, **file._replace(rows=rows).stored()}))
    proved = len(book) == number and book.digest_at(number) == pinned["digest"]
    return b"".join(lines) if proved else None


def _readable(unit: str, lines: list[bytes]) -> tuple[LedgerBook, list[bytes]]:
    book = LedgerBook(unit)  # anew: a line that is refused may have been taken in half
    for line in lines:
        book.apply(line)
    return book, lines


def _line(book: LedgerBook, value: dict[str, Any]) -> bytes:
    line, _ = line_of(book.digest, value)
    book.apply(line)
    return line


# Looks for what contradicts: in ZooKeeper, every table with its log, manifests, the names of staged folders.
#
# Reads only. On a table that ZooKeeper says nothing of, changes by others are
# looked for in all that its log still has.


def inspect_topology(zk: ZooKeeper, engine: KernelEngine, warehouse: Place, name: str) -> TopologyFacts:
    """Collects the facts of a topology.

    Raises:
        TopologyError: nothing is.
        CorruptZnode: a znode cannot be read.
        TableError: a table cannot be read.
    """
    descriptors = list_descriptors(warehouse, name)
    registered = Registration(zk, name).read()
    incarnation, identity = registered if registered else (None, None)
    stored = identity["groups"] if identity else {}
    known: dict[str, tuple[str, ...]] = {group: tuple(tx_ids) for group, tx_ids in stored.items()}
    streams = identity["streams"] if identity else {}
    names = sorted({*known, *(one.group for one in descriptors), *groups_with_manifests(warehouse, name)})
    if not names:
        raise TopologyError(
            f"nothing is known of a topology {name!r}", action="check the name, warehouse and zookeeper"
        )
    groups = []
    for group in names:
        own = [one for one in descriptors if one.group == group]
        groups.append(
            _GroupInspection(zk, engine, warehouse, name, group, own, incarnation, streams).facts(known.get(group))
        )
    states_here = {one.name for one in descriptors}
    wanted = [state for state in (identity or {}).get("states", {}) if state not in states_here]
    others = tuple(_of_others(warehouse, name, wanted))
    groups[0] = replace(groups[0], tables=(*groups[0].tables, *others))
    outside = (*groups[0].outside, *_unmarked(warehouse, name, groups))
    groups[0] = replace(groups[0], outside=outside)
    ours = [table for group in groups for table in group.tables if table not in others]
    controls = [table.control for table in ours if table.control]
    epoch = max([greatest_epoch(zk, name), _status_epoch(warehouse, name), *(control.epoch for control in controls)])
    states = {one.name: one.identity() for one in descriptors if one.ends_at is None}
    return TopologyFacts(name, incarnation, identity, tuple(groups), states, epoch)


def _of_others(warehouse: Place, name: str, states: list[str]) -> Iterator[TableFacts]:
    """Tables that have the names of this topology's states and belong to another topology."""
    for state in states:
        for role, relative in ((APPEND, state), (LOG, f"{state}__log")):
            try:
                snapshot = DeltaLog(warehouse / relative).at()
            except TableMissing:
                continue
            found = replace(table_now(StoredTable("", role, relative), snapshot, None), state=state)
            if found.control is not None and found.control.topology != name:
                yield found


def outside_facts(
    warehouse: Place, topology: str, state: str, mark: TableMark | None, record: GroupRecord | None
) -> OutsideFacts:
    """An outside state, with its outbox if it has one."""
    folder = outbox_folder(warehouse, topology, state)
    if not storage.exists(folder):
        return OutsideFacts(state, mark)
    try:
        found = OutboxLog(folder).read()
    except OutboxDamaged as problem:
        return OutsideFacts(state, mark, damage=problem.message)
    life = record.incarnation if record else ""
    return OutsideFacts(state, mark, found.last_of(life), found.begun_of(life))


def _unmarked(warehouse: Place, topology: str, groups: list[GroupFacts]) -> Iterator[OutsideFacts]:
    """Outboxes of which no group has a mark, as of a first transaction."""
    marked = {one.state for group in groups for one in group.outside}
    for state in outboxes_of(topology, storage.list_names(warehouse)):
        if state not in marked:
            yield outside_facts(warehouse, topology, state, None, groups[0].record if len(groups) == 1 else None)


def _status_epoch(warehouse: Place, name: str) -> int:
    try:
        return read_status(warehouse, name).epoch
    except TridentError:
        return 0


def _unfinished_since(tables: tuple[TableFacts, ...], record: GroupRecord | None, decision: Decision | None) -> int:
    """The first transaction that may have to be published, or told, once more."""
    held = [table.control.txid for table in tables if table.control is not None and table.has_transaction]
    known = [max(held)] if held else []
    known += [record.last_published.txid] if record is not None and record.last_published is not None else []
    known += [decision.txid] if decision is not None else []
    return min(known, default=0)


def own_manifests(found: list[tuple[Decision, Manifest]], incarnation: str) -> list[tuple[Decision, Manifest]]:
    """A topology's own manifests, the newest last; all where none is its own.

    A coordinator of the incarnation before a reset may have left its own, with greater numbers. Those from before a
    rollback are this one's: one of them has the positions of the last transaction that stayed.
    """
    own = [one for one in found if same_start(one[1].incarnation, incarnation)]
    return sorted(own, key=lambda one: (rollbacks_of(one[1].incarnation), one[0].txid, one[0].attempt_id)) or found


@dataclass
class _GroupInspection:
    """Inspects one batch group."""

    zk: ZooKeeper
    engine: KernelEngine
    warehouse: Place
    topology: str
    group: str
    descriptors: list[StateDescriptor]
    incarnation: str | None
    streams: Mapping[str, str]

    def facts(self, tx_ids: tuple[str, ...] | None) -> GroupFacts:
        found = ManifestStore(self.warehouse, self.topology, self.group).found()
        if tx_ids is None:
            tx_ids = tuple(sorted(found[-1][1].spouts)) if found else ()
        store = GroupStore(self.zk, self.topology, self.group, tx_ids)
        record, decision, pins = store.load()
        if record is not None:
            found = own_manifests(found, record.incarnation)
        tables = tuple(self._tables(record))
        since = _unfinished_since(tables, record, decision)
        manifests = tuple(
            # Files of transactions long done may be gone rightly: only of the last ones they are looked for.
            ManifestFacts(decided, manifest, self._missing(manifest) if decided.txid >= since else {})
            for decided, manifest in found
        )
        leftovers: dict[int, int] = {}
        for txid, attempt_id in [*((one.txid, one.attempt_id) for one, _ in found), *self._folders(tables)]:
            leftovers[txid] = max(leftovers.get(txid, 0), attempt_id)
        return GroupFacts(
            self.group,
            record,
            decision,
            tables,
            tx_ids,
            manifests,
            leftovers,
            pins,
            tuple(store.position_mismatches),
            tuple(self._ledgers(pins)),
            tuple(self._outside(record)),
        )

    def _ledgers(self, pins: Mapping[str, Mapping[int, Any]]) -> Iterator[LedgerDamage]:
        for tx_id, of_stream in pins.items() if self.incarnation else ():
            folder = self.warehouse / "_trident" / self.topology / "streams" / tx_id
            begun = first_id(self.incarnation or "")
            damage = inspect_ledger(folder, begun, of_stream, self.streams.get(tx_id, ""))
            if damage is not None:
                yield damage

    def _outside(self, record: GroupRecord | None) -> Iterator[OutsideFacts]:
        """States outside of the warehouse; their stores are not asked, an outbox has its marks here."""
        for name, mark in sorted(record.tables.items()) if record else ():
            if is_outside_id(name):
                yield outside_facts(self.warehouse, self.topology, outside_name(name), mark, record)

    def _missing(self, manifest: Manifest) -> dict[str, tuple[str, ...]]:
        missing = {}
        for part in manifest.tables:
            root = self.warehouse / part.path
            gone = [str(root / file.path) for file in part.files if not _is_there(root, file)]
            if gone:
                missing[part.state] = tuple(gone)
        return missing

    def _folders(self, tables: tuple[TableFacts, ...]) -> Iterator[tuple[int, int]]:
        own = self.warehouse / "_trident" / self.topology / self.group
        roots = [self.warehouse / table.path for table in tables]
        roots += [own / kind / name for kind in ("states", "boundaries") for name in storage.list_names(own / kind)]
        for root in roots:
            for incarnation in storage.list_names(root / "data"):
                for name in storage.list_names(root / "data" / incarnation):
                    parts = name.split("-")
                    if len(parts) >= 3 and parts[0].isdigit() and parts[1].isdigit():
                        yield int(parts[0]), int(parts[1])

    def _tables(self, record: GroupRecord | None) -> Iterator[TableFacts]:
        logs: dict[str, TableFacts] = {}
        for table in tables_of(self.descriptors, self.warehouse, self.topology, None):
            if table.group != self.group:
                continue
            found = self._table(table, record)
            if table.role == LOG:
                logs[found.state] = found
            if table.role == PLAIN and table.state is not None:
                log = logs[found.state]
                floor = log.control.floor if log.control else 0
                starts_at = (log.control or table.state).starts_at
                stuck = self._stuck_keys(table.state, log, found)
                found = replace(found, floor=floor, starts_at=starts_at, stuck_keys=stuck)
            yield found

    def _stuck_keys(self, state: StateDescriptor, log: TableFacts, plain: TableFacts) -> tuple[tuple[str, str], ...]:
        """Keys that no read and no MERGE can give; not looked for where something else is wrong with the tables."""
        whole = log.exists and plain.exists and not (log.foreign or plain.foreign)
        if not whole or log.control is None or log.control.incarnation != state.incarnation:
            return ()
        of = GroupContext(self.warehouse, self.topology, self.group, state.incarnation)
        fitting = Fitting(self.engine, of)
        try:
            return tuple(fitting.stuck_keys(state, log.control.txid))
        except TableError:  # what is wrong with the tables themselves is found by the other looks
            return ()

    def _table(self, table: StoredTable, record: GroupRecord | None) -> TableFacts:
        path = self.warehouse / table.path
        try:
            found = table_now(table, read_whole(str(path), DeltaLog(path).at), record)
        except TableMissing:
            return TableFacts(table.name, table.role, table.path)
        control, state = found.control, table.state
        found = replace(found, before=self._before(str(path), found.version, control))
        if control is not None and state is not None and table.role == PLAIN:
            as_published = replace(state, incarnation=control.incarnation)
            found = replace(found, merged_log=merged_log_version(str(path), as_published))
        if control is None or (control.topology, control.group) != (self.topology, self.group):
            return found
        found = self._with_changes(found, path, control, state)
        return replace(found, not_written=self._not_written(path, found.version)) if found.foreign else found

    def _before(self, path: str, version: int, control: ControlRecord | None) -> ControlRecord | None:
        """The control record before the present transaction's."""
        if control is None:
            return None
        now = control.txid, control.attempt_id
        with suppress(TableError):  # cleaned up
            for commit in DeltaLog(path).commits_backwards(version):
                value = commit.control.get(DOMAIN)
                if isinstance(value, dict) and (value.get("txid"), value.get("attempt_id")) != now:
                    return decode_control(path, commit.domains[DOMAIN])
        return None

    def _with_changes(
        self, table: TableFacts, path: Place, control: ControlRecord, descriptor: StateDescriptor | None
    ) -> TableFacts:
        def ours(commit: TableCommit) -> bool:
            if table.role == PLAIN and descriptor is not None:
                return is_our_merge(commit, replace(descriptor, incarnation=control.incarnation))
            return is_our_publish(commit, control.incarnation)

        since, unseen_before = self._since(table, str(path), ours)
        table = replace(table, unseen_before=unseen_before)
        if since >= table.version:
            return table
        try:
            commits = history.commits_since(path, since)
        except history.LogCleaned:
            return replace(table, unverified=True)
        foreign = changes_by_others(commits, self.topology, ours)
        table = replace(table, healed=any(repaired_to(commit, self.topology) is not None for commit in commits))
        if not foreign:
            return table
        first = foreign[0][0].version
        later = [commit for commit in commits if commit.version > first and ours(commit)]
        return replace(
            table,
            foreign=tuple(_change(commit, reason) for commit, reason in foreign),
            # A log drop moves the floor only, and a RESTORE keeps that.
            ours_after=any(commit.txns or commit.metadata is not None for commit in later),
            odd_rows=self._odd_rows(path, table, descriptor) if table.role == PLAIN else "",
        )

    def _not_written(self, path: Place, version: int) -> str:
        described = DeltaLog(path).described(version)
        requirements = [] if described is None else writer_requirements(described.metadata)
        reason = self.engine.why_not_written(self.engine.load_version(str(path), version))
        columns = [] if described is None else json.loads(described.metadata["schemaString"])["fields"]
        requirements += [f"the column {one['name']}, which is NOT NULL" for one in columns if not one["nullable"]]
        return "; ".join(requirements) or reason or ""

    def _since(self, table: TableFacts, path: str, ours: history.IsOurs) -> tuple[int, int]:
        """The version behind which changes by others are looked for, and the one before which entries for it are gone.

        A mark vouches for what is before it. Without one, or of a table that
        was put back to before it, everything is looked at that is there.
        """
        mark, control = table.mark, table.control
        assert control is not None
        if mark is not None and table.version >= mark.version:
            now = (table.merged, 0) if table.role == PLAIN else (control.txid, control.attempt_id)
            if now >= (mark.txid, mark.attempt_id):
                return mark.version, 0
        log = DeltaLog(path)
        if not any(ours(log.commit(version)) for version in log.contiguous_versions(table.version)):
            return 0, 0  # our last commit is cleaned up: those after it cannot be known
        since, from_the_start = start_of(path, table.version, control.incarnation)
        return since, 0 if from_the_start else since + 1

    def _odd_rows(self, path: Place, table: TableFacts, descriptor: StateDescriptor | None) -> str:
        """Why a MERGE could not go on with the rows of a plain table."""
        if descriptor is None:
            return ""

        frame = self.engine.spark.read.format("delta").option("versionAsOf", table.version).load(str(path))
        if UPTO_COLUMN not in frame.columns or not set(descriptor.keys) <= set(frame.columns):
            return "columns of the state are gone"
        upto = F.col(UPTO_COLUMN)
        strange = upto > table.merged
        if adopted_version(frame.schema.json()) is None:
            strange = upto.isNull() | strange
        odd = frame.filter(strange).count()
        if odd:
            return f"{odd} rows were not written by a MERGE (no {UPTO_COLUMN} up to {table.merged})"
        keys = [F.col(backquoted(key)) for key in descriptor.keys]
        doubled = frame.groupBy(*keys).count().filter("count > 1").count()
        return f"{doubled} keys have several rows" if doubled else ""


def _is_there(root: Place, file: StagedFile) -> bool:
    try:
        verify_staged(root, [file])
    except StagedFileMissing:
        return False
    return True


def _change(commit: TableCommit, reason: str) -> ForeignChange:
    info = commit.info
    known = [file.num_records for file in commit.added]
    rows = f"{sum(count or 0 for count in known)} rows in {len(known)} files added, {len(commit.removes)} files removed"
    user = info.get("userName") or info.get("userId")
    moment = info.get("timestamp")
    when = ""
    if isinstance(moment, (int, float)):
        when = datetime.datetime.fromtimestamp(moment / 1000, datetime.timezone.utc).isoformat(" ", "seconds")
    said = [reason, f"user {user}" if user else "", when, rows]
    text = ", ".join(part for part in said if part)
    return ForeignChange(commit.version, commit.operation, text, only_properties(commit))
