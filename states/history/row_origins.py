"""Finds the transactions that wrote some rows of an append table, or a key of a keyed state: from tables and logs.

A row of an append table says it itself where the table has a column of txids. Else its file says it, as long as that
is the one that was staged: its folder is named by transaction and attempt. Rows that OPTIMIZE has put into another
file are looked for in the files that it took them from, which stay on the disk until a VACUUM.

The rows of a key are in the log of its state, with their txids, until they are dropped from it; a MERGE copies them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from trident.coordinators.errors import TableError
from trident.coordinators.identities import same_start
from trident.states.core import storage
from trident.states.core.copy_rows import RowCodec
from trident.states.core.copyable import arrow_schema
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place
from trident.states.core.tables import TXID_COLUMN
from trident.states.delta.data_files import rows_of, wanted_rows
from trident.states.delta.delta_log import DeltaLog, LogSnapshot, TableCommit
from trident.states.delta.file_layout import partition_texts
from trident.states.delta.kernel_files import LiveFile
from trident.states.history.kept import plain_as_of
from trident.states.keyed.compaction import SnapshotUnavailable
from trident.states.keyed.key_reads import RequestedKeys, requested_keys
from trident.states.keyed.tables import own_control

_STAGED = re.compile(r"(?:[^/]+=[^/]*/)*data/(?P<incarnation>[^/]+)/(?P<txid>\d+)-(?P<attempt>\d+)-[^/]+/.*")


@dataclass(frozen=True)
class Writer:
    """A transaction that wrote rows.

    Attributes:
        incarnation: of the topology then, where a file says it; None: the one that has this transaction now.
    """

    incarnation: str | None
    txid: int


@dataclass
class Origins:
    """The transactions that wrote some rows.

    Attributes:
        found: how many rows there are now; of a key how many the log has.
        rows: how many rows each has written.
        not_known: the reasons for which other transactions may have written some, too; none: these are all.
    """

    found: int = 0
    rows: Counter[Writer] = field(default_factory=Counter)
    not_known: list[str] = field(default_factory=list)


# --- append tables ---------------------------------------------------------------------------------------


def origins_of_rows(warehouse: Place, state: StateDescriptor, row: Mapping[str, Any]) -> Origins:
    """The transactions that wrote the rows of an append table that have these values.

    Args:
        row: a value for some of its columns, or for all.

    Raises:
        FieldError: a value does not fit its column.
        TableError: there is no such column; or only Spark can read the table.
    """
    path = warehouse / state.published_path
    snapshot = DeltaLog(path).at()
    # Of a partitioned table the values in question are in its log.
    problem = replace(snapshot, metadata={**snapshot.metadata, "partitionColumns": []}).why_not_rows
    if problem is not None:
        raise TableError(
            f"the rows of table {path} cannot be distinguished without Spark",
            found=problem,
            expected="a table of whole Parquet files, as its topology makes it",
            action=f"read it with Spark, and ask for the transaction by its column {TXID_COLUMN!r} where it has one",
        )
    return _AppendedRows(path, state, snapshot, row).origins()


class _AppendedRows:
    def __init__(self, path: Place, state: StateDescriptor, snapshot: LogSnapshot, row: Mapping[str, Any]) -> None:
        self._path, self._state, self._snapshot = path, state, snapshot
        schema = arrow_schema(state.schema)
        unknown = sorted(set(row) - set(schema.names))
        if unknown or not row:
            raise TableError(
                f"rows of table {path.name} cannot be looked for by these columns",
                found=", ".join(unknown) or "none",
                expected=f"a value for some of {', '.join(schema.names)}",
            )
        self._column = _txid_column(state)
        partitioned = list(snapshot.metadata.get("partitionColumns") or ())
        inside = [name for name in row if name not in partitioned]
        requested = requested_keys(state.name, schema, list(row), [dict(row)], RowCodec(schema, list(row)))
        self._parts = {
            name: partition_texts(name, requested.rows.column(name))[0] for name in row if name in partitioned
        }
        # One column at least, by which rows are counted.
        names = {*inside, self._column or next(name for name in schema.names if name not in partitioned)}
        narrow = pa.schema([one for one in schema if one.name in names])
        values = [{name: row[name] for name in inside}]
        self._wanted = requested_keys(state.name, narrow, inside, values if inside else [()], RowCodec(narrow, inside))
        self._narrow = narrow

    def origins(self) -> Origins:
        found = Origins()
        moved: list[LiveFile] = []
        for file in self._snapshot.files.values():
            rows = self._rows_in(file)
            found.found += len(rows)
            if rows and not self._counted(found, file, rows):
                moved.append(file)
        if moved:
            self._trace(found, moved)
        return found

    def _rows_in(self, file: LiveFile) -> list[int | None]:
        """The txids of the rows of a file that are wanted, by their column; None where they have none."""
        if any(file.partition_values.get(name) != text for name, text in self._parts.items()):
            return []
        if self._wanted.columns and not self._wanted.may_be_in(file):
            return []
        txids: list[int | None] = []
        for rows in _matching(str(self._path), [file], self._narrow, self._wanted):
            txids += rows.column(self._column).to_pylist() if self._column else [None] * rows.num_rows
        return txids

    def _counted(self, found: Origins, file: LiveFile, rows: list[int | None]) -> bool:
        """Counts rows whose transaction is known by themselves or by their file; False where some are not."""
        staged = _STAGED.fullmatch(file.path)
        if staged is not None:
            found.rows[Writer(staged["incarnation"], int(staged["txid"]))] += len(rows)
            return True
        if None in rows or self._had_other_incarnations:
            return False
        for txid in rows:
            assert txid is not None
            found.rows[Writer(None, txid)] += 1
        return True

    # --- rows that were put into other files -----------------------------------------------------------

    def _trace(self, found: Origins, moved: list[LiveFile]) -> None:
        """Looks for rows in the files that others have taken them from, down to those that were staged."""
        lacking, seen = sum(len(self._rows_in(file)) for file in moved), set()
        left = [file.path for file in moved]
        while left:
            path = left.pop()
            if path in seen:
                continue
            seen.add(path)
            file = self._file(path)
            if _STAGED.fullmatch(path) and file is not None:
                if rows := self._rows_in(file):
                    self._counted(found, file, rows)
                    lacking -= len(rows)
            elif path in self._added_with:
                left += self._added_with[path].removes
        if lacking > 0:
            found.not_known.append(
                f"{lacking} of the rows are in files that another program has written, as OPTIMIZE does, and the files "
                "that it took them from are gone (VACUUM), or they are from before the topology's first transaction; "
                "DeltaAppend(name, txid_column=…) makes each row tell"
            )

    def _file(self, path: str) -> LiveFile | None:
        """A file that the table has or had; None where it is gone."""
        there = storage.stat_file(self._path / path)
        if there is None or not there.is_file:
            return None
        commit = self._added_with.get(path)
        known = [file for file in (commit.added if commit else ()) if file.path == path]
        return known[0] if known else LiveFile(path, there.size, {}, None, None, 0)

    @cached_property
    def _commits(self) -> list[TableCommit]:
        log = DeltaLog(self._path)
        versions = log.contiguous_versions()
        return list(log.commits(versions[0], versions[-1])) if versions else []

    @cached_property
    def _added_with(self) -> dict[str, TableCommit]:
        return {file: commit for commit in self._commits for file in commit.adds}

    @cached_property
    def _had_other_incarnations(self) -> bool:
        """Tells whether the table has rows from a time before a reset: their txids are other transactions."""
        said = (control["incarnation"] for control in map(_control_of, self._commits) if control is not None)
        return any(not same_start(one, self._state.incarnation) for one in said)


def _matching(root: str, files: Sequence[LiveFile], schema: pa.Schema, wanted: RequestedKeys) -> Iterator[pa.Table]:
    """The rows that are wanted; all where no column tells."""
    if wanted.columns:
        yield from wanted_rows(root, files, schema, wanted)
        return
    # Of no columns Arrow knows no number of rows: one of the file's own goes with them.
    for batch in rows_of(root, files, schema):
        yield pa.Table.from_batches([batch])


def _control_of(commit: TableCommit) -> Mapping[str, Any] | None:
    said = commit.control.get("trident")
    return said if isinstance(said, Mapping) else None


def _txid_column(state: StateDescriptor) -> str | None:
    """The column of an append table that has the txids: its last one that is no field of the rows."""
    fields = set(state.value_fields)
    return next((name for name in state.schema.names if name not in fields), None)


# --- keyed states ----------------------------------------------------------------------------------------


def origins_of_key(warehouse: Place, state: StateDescriptor, key: RequestedKeys) -> Origins:
    """The transactions that wrote a key of a keyed state: rows of its log, those that are merged too.

    Raises:
        TableError: only Spark can read the log.
    """
    log = DeltaLog(warehouse / state.published_path).at()
    control = own_control(state, log)
    if log.why_not_rows is not None:
        raise TableError(f"table {log.path} cannot be read without Spark", found=log.why_not_rows)
    found = Origins()
    for txid in _txids_in(log, log.files.values(), state, key):
        found.found += 1
        found.rows[Writer(None, txid)] += 1
    if control.floor >= control.starts_at and _was_there(warehouse, state, key, control.floor) is not False:
        found.not_known.append(
            f"the log no longer has the rows of transactions up to {control.floor}, some of which may have written the "
            "key; snapshot_retention_txids of the state sets how many are kept"
        )
    return found


def _txids_in(
    table: LogSnapshot, files: Collection[LiveFile], state: StateDescriptor, key: RequestedKeys
) -> Iterator[int]:
    keys = [one for one in arrow_schema(state.schema) if one.name in state.keys]
    schema = pa.schema([*keys, pa.field(TXID_COLUMN, pa.int64())])
    may_have = [file for file in files if not key.columns or key.may_be_in(file)]
    for rows in _matching(table.path, may_have, schema, key):
        yield from rows.column(TXID_COLUMN).to_pylist()


def _was_there(warehouse: Place, state: StateDescriptor, key: RequestedKeys, txid: int) -> bool | None:
    """Tells whether the plain table had the key as of a transaction; None where that is not known.

    A key that was deleted by then is not there either: no transaction up to it shows in its value.
    """
    try:
        plain = plain_as_of(warehouse, state, txid)
    except SnapshotUnavailable:
        return None
    if plain is None or plain.merged != txid:
        return None
    table = DeltaLog(plain.path).at(plain.version)
    if table.why_not_rows is not None:
        return None
    if not state.keys:
        return bool(table.files)
    schema = pa.schema([one for one in arrow_schema(state.schema) if one.name in state.keys])
    return any(rows.num_rows for rows in wanted_rows(table.path, list(table.files.values()), schema, key))
