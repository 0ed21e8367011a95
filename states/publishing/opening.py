"""Opens the tables of a batch group when a coordinator takes over: makes those that are missing, checks the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trident.coordinators.errors import SchemaMismatch
from trident.coordinators.records import GroupRecord, is_outside_id
from trident.states.core import storage
from trident.states.core.binding import StateBinding
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor, descriptors_of_group, load_descriptor
from trident.states.core.names import other_owner
from trident.states.core.place import Place
from trident.states.core.tables import CHANGE_FEED, TableSpec
from trident.states.delta import halts, history
from trident.states.delta.delta_log import has_log
from trident.states.delta.evolution import add_columns, enable_change_feed
from trident.states.delta.kernel import TableMissing, TableSnapshot
from trident.states.keyed.adoption import adopt
from trident.states.keyed.tables import ADOPTED, adopted_version
from trident.states.publishing.dead_letters import same_name, side_table_kind, side_tables
from trident.states.publishing.group_tables import GroupTables, columns_text


class TableOpener:
    """Opens the tables of a group's states."""

    def __init__(self, tables: GroupTables, bindings: Mapping[str, StateBinding]) -> None:
        self._tables, self._bindings = tables, bindings

    def open(self, record: GroupRecord) -> None:
        """Creates the tables that are missing and checks the others (docs/semantics.md 9, recovery).

        Call it with no decision pending.

        Raises:
            Halted: a table is not as this group left it: which side is older is said.
            ForeignTable, SchemaMismatch: a table cannot be this state's.
        """
        loaded = self._check_all_there(record)
        for binding in self._bindings.values():
            spec = binding.published_table
            if spec is not None:
                self._open_table(binding, spec, record, loaded.get(self._tables.warehouse / spec.path))

    def _check_all_there(self, record: GroupRecord) -> dict[Place, TableSnapshot]:
        """Every table that ZooKeeper has a mark of must be there, before any is made anew in its place."""
        own = [spec.path for binding in self._bindings.values() for spec in binding.tables]
        missing: list[Place] = []
        loaded: dict[Place, TableSnapshot] = {}
        for path in [*(self._tables.warehouse / each for each in own), *self._detached_paths(record)]:
            if not has_log(path):
                missing.append(path)
                continue
            loaded[path] = self._tables.engine.load(str(path))
        marks = {name for name in record.tables if not is_outside_id(name)}
        gone = marks - {snapshot.table_id for snapshot in loaded.values()}
        if gone:
            strange = {path: found for path, found in loaded.items() if found.table_id not in record.tables}
            for path, snapshot in strange.items():
                text = snapshot.control(DOMAIN)
                if text is not None and self._is_other_incarnation(control := decode_control(path, text)):
                    raise halts.other_incarnation(self._tables.topology, path, control, self._tables.incarnation)
            raise halts.tables_missing(self._tables.topology, self._tables.group, record, missing, strange, gone)
        return loaded

    def _is_other_incarnation(self, control: ControlRecord) -> bool:
        return control.topology == self._tables.topology and control.incarnation != self._tables.incarnation

    def _detached_paths(self, record: GroupRecord) -> list[Place]:
        """Tables of states that the topology no longer has: kept, detached."""
        paths = []
        for descriptor in descriptors_of_group(self._tables.warehouse, self._tables.topology, self._tables.group):
            path = self._tables.warehouse / descriptor.published_path
            if descriptor.name in self._bindings or not storage.exists(path):
                continue
            paths.append(path)
            if descriptor.state_kind.has_log and storage.exists(self._tables.warehouse / descriptor.plain_path):
                paths.append(self._tables.warehouse / descriptor.plain_path)
            if descriptor.ends_at is None:
                self._tables.check_fence()  # of a successor that has the state its readers would not wait any more
                # From now on readers of the group must not wait for this table.
                replace(descriptor, ends_at=record.current_txid - 1).save(self._tables.warehouse)
        auxiliary = side_tables(self._tables.warehouse, self._tables.topology)
        return [
            *paths,
            *(path for path, group in auxiliary if group == self._tables.group and path.name not in self._bindings),
        ]

    def _open_table(
        self, binding: StateBinding, spec: TableSpec, record: GroupRecord, loaded: TableSnapshot | None
    ) -> None:
        path = self._tables.warehouse / spec.path
        first = ControlRecord(
            self._tables.topology,
            self._tables.group,
            self._tables.incarnation,
            record.current_txid - 1,
            -1,
            "",
            self._tables.epoch,
            starts_at=record.current_txid,
            floor=record.current_txid - 1,
        )
        try:
            snapshot = loaded or self._tables.engine.load(str(path))
        except TableMissing:
            self._tables.check_fence()  # of an incarnation that was reset meanwhile: its tables would stop the next one
            adopted = self._adopt_plain(binding, first)
            snapshot = self._tables.engine.create_table(
                str(path),
                spec.schema_json,
                spec.partition_columns,
                {**spec.properties, **({ADOPTED: "true"} if adopted else {})},
                {DOMAIN: first.encode()},
                self._tables.engine_info,
            )
        else:
            adopts = binding.state_kind.appends and getattr(binding.state, "adopt", False)
            if adopts and self._may_adopt(path, snapshot):
                self._tables.check_fence()
                snapshot = self._adopt(snapshot, first)
        self._tables.engine.mark_for_cleanup(str(path))
        self._tables.remember(snapshot)
        control = decode_control(path, snapshot.control(DOMAIN))
        self._check_owner(path, control)
        mark = record.tables.get(snapshot.table_id)
        if control.attempt_id != -1 if mark is None else not control.same_batch(mark):
            self._tables.check_fence()  # a successor may have published since the record was read
            raise halts.transactions_differ(self._tables.topology, path, control, mark)
        # Without a mark the control record was the last thing written: rows before it were adopted with the table.
        version = mark.version if mark else history.find_version_by_control(str(path), DOMAIN, control.txid)
        self._tables.check_foreign(binding.name, path, snapshot.version if version is None else version, snapshot)
        if binding.state_kind.may_grow(binding) and spec.lacks_columns(snapshot.schema_json):
            snapshot = self._add_columns(binding, spec, path)
        self._check_schema(path, snapshot, spec)
        self._tables.check_writable(path, snapshot)
        if binding.state_kind.is_described:
            tables = self._tables
            state = StateDescriptor.of(binding, tables.topology, tables.group, tables.incarnation, control.starts_at)
            state = state.going_on(tables.warehouse, record.current_txid)
            tables.check_fence()  # a successor's code may say another thing of the state
            state.save(tables.warehouse)
        plain = binding.state_kind.plain_table(binding)
        if plain is not None:
            descriptor = load_descriptor(self._tables.warehouse, binding.name)
            found = self._tables.plains.open(descriptor, record.tables, path, control.starts_at)
            self._check_schema(self._tables.warehouse / plain.path, found, plain)
            self._tables.check_writable(self._tables.warehouse / plain.path, found)
            if CHANGE_FEED in plain.properties:
                enable_change_feed(self._tables.engine, str(self._tables.warehouse / plain.path), binding.keys)

    def _add_columns(self, binding: StateBinding, spec: TableSpec, path: Place) -> TableSnapshot:
        """The topology has been given further fields for this state: old rows have nulls there.

        The plain table first: a compactor merges the columns that both tables have.
        """
        plain = binding.state_kind.plain_table(binding)
        if plain is not None and has_log(self._tables.warehouse / plain.path):
            add_columns(self._tables.engine, str(self._tables.warehouse / plain.path), plain.schema_json)
        # Of a log, which must have it from its beginning on, it is refused.
        txid_column = None if spec.is_log else spec.txid_column
        snapshot = add_columns(self._tables.engine, str(path), spec.schema_json, txid_column)
        self._tables.remember(snapshot)
        return snapshot

    def _may_adopt(self, path: Place, snapshot: TableSnapshot) -> bool:
        """A table that no topology has, or that an earlier incarnation of this one had."""
        text = snapshot.control(DOMAIN)
        if text is None:
            return True
        return self._is_other_incarnation(decode_control(path, text))

    def _adopt(self, snapshot: TableSnapshot, control: ControlRecord) -> TableSnapshot:
        self._tables.engine.enable_control(snapshot)
        snapshot = self._tables.engine.load(snapshot.path)
        return self._tables.engine.commit_files(
            snapshot, [], None, {DOMAIN: control.encode()}, self._tables.engine_info
        )

    def _adopt_plain(self, binding: StateBinding, control: ControlRecord) -> bool:
        """Tells whether the plain table of a keyed state whose log is about to be made has rows from before the state.

        It takes the table over where it is to. A start that was killed behind that has done so, whatever the state says
        now.

        Raises:
            ForeignTable: it is a table of others, which the state does not take over; no log is made.
        """
        plain = binding.state_kind.plain_table(binding)
        if plain is None:
            return False
        tables = self._tables
        path = tables.warehouse / plain.path
        if getattr(binding.state, "adopt", False):
            state = StateDescriptor.of(binding, tables.topology, tables.group, tables.incarnation, control.starts_at)
            found = adopt(tables.engine, path, binding, plain, control, state.merge_app, tables.engine_info)
            has_rows = True
        else:
            if not has_log(path):
                return False
            there = tables.engine.load(str(path))
            # Refused before the log is made: with a log a start with adopt=True would not take the table over.
            found = decode_control(path, there.control(DOMAIN))
            has_rows = adopted_version(there.schema_json) is not None
        self._check_owner(path, found)
        return has_rows

    def _check_owner(self, path: Place, control: ControlRecord) -> None:
        owner, own = (control.topology, control.group), (self._tables.topology, self._tables.group)
        if owner[0] != own[0] and side_table_kind(path):
            raise same_name(path, self._tables.topology, control.topology)
        if owner != own:
            raise other_owner(path, owner, own, control.txid)
        if control.incarnation != self._tables.incarnation:
            raise halts.other_incarnation(self._tables.topology, path, control, self._tables.incarnation)

    def _check_schema(self, path: Place, snapshot: TableSnapshot, spec: TableSpec) -> None:
        if not spec.fits(snapshot.schema_json) or tuple(snapshot.partition_columns) != tuple(spec.partition_columns):
            raise SchemaMismatch(
                f"the table {path} does not have the schema of its state",
                found=f"{columns_text(snapshot.schema_json)} partitioned by {list(snapshot.partition_columns)}",
                expected=f"{columns_text(spec.schema_json)} partitioned by {list(spec.partition_columns)}",
                action="choose another state name, or make the topology deliver those columns",
            )
