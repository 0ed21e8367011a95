"""Adopts the target of another program's MERGEs as the plain table of a keyed state, without writing a row.

Two commits that change metadata alone make a Delta table a state's: the feature for control records, where the table
lacks it, and then all the rest at once: the hidden column ``_upto``, our table properties, the control record. The
rows that are there have a null in ``_upto``, which in an adopted table says that they are the state's values before its
first transaction. The column's own metadata in the schema says that the table was adopted, and with which version.

The first process that runs it may be killed at any moment: before the second commit the table is as its owner left it,
behind it the table is the state's, and running it again does nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import functions as F

from trident.coordinators import faults
from trident.coordinators.errors import CommitConflict, SchemaMismatch, TableError
from trident.states.core import storage
from trident.states.core.binding import SEQUENCED, StateBinding
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.names import backquoted
from trident.states.core.place import Place
from trident.states.core.tables import PROPERTIES, UPTO_COLUMN, TableSpec, nullable_type
from trident.states.delta.delta_log import DeltaLog, LogSnapshot
from trident.states.delta.kernel import KernelEngine, TableMissing, TableSnapshot
from trident.states.keyed.tables import ADOPTED

LOOK = faults.register("adopt.look", "reading the keys of a table that a keyed state takes over")

# Features that a table may have: those without a rule for its rows, and those whose rules are looked for below.
_KNOWN_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "vacuumProtocolCheck",
    }
)
_LEGACY_WRITER_MAX, _LEGACY_READER_MAX = 6, 2
# A table property, and the values with which it asks nothing of a writer.
_HARMLESS_VALUES = {
    "delta.appendOnly": ("false",),
    "delta.enableChangeDataFeed": ("false",),
    "delta.columnMapping.mode": ("none",),
    "delta.enableRowTracking": ("false",),
    "delta.enableTypeWidening": ("false",),
}


def adopt(
    engine: KernelEngine,
    path: Place,
    binding: StateBinding,
    spec: TableSpec,
    control: ControlRecord,
    merge_app: str,
    engine_info: str,
) -> ControlRecord:
    """Makes the Delta table at ``path`` the plain table of a state; nothing where it is that already.

    The caller's duty: no other program writes to the table any more. One that does makes this fail, or is found by the
    topology, which halts.

    Args:
        binding, spec: the state, and the columns that its plain table has.
        control: the record that the table is given.
        merge_app: the ``txn_app_id`` of the state's MERGEs.

    Returns:
        the record that the table has: the given one, or an earlier one, which may be another topology's.

    Raises:
        TableError: there is no table, or one of which not all is understood; the table is as it was.
        SchemaMismatch: its columns are not the state's.
        ForeignTable: it has a record that cannot be read.
        CommitConflict: another program wrote to it meanwhile; the table has its rows.
    """
    if storage.local_path(str(path)) is None:
        raise TableError(
            f"the table {path} cannot be adopted",
            found="a table in a store",
            expected="a table on a disk that this host reaches by a path",
            action="make the state without adopt=True, which begins empty",
        )
    try:
        snapshot = engine.load(str(path))
    except TableMissing:
        raise TableError(
            f"state {binding.name} has no table to adopt",
            found=f"no Delta table at {path}",
            expected="the target of the MERGEs so far",
            action="name the table's parent folder as the warehouse and its own folder as the state; or leave out "
            "adopt=True, to begin with an empty state",
        ) from None
    known = snapshot.control(DOMAIN)
    if known is not None:
        return decode_control(path, known)  # the state's own, after a start that was killed; or another's
    logged = DeltaLog(path).at()
    if logged.version != snapshot.version:
        raise _written_meanwhile(path, logged.version, snapshot.version)
    _check_table(path, logged, merge_app)
    columns = _columns(path, binding, spec, logged)
    _check_rows(engine, path, binding, snapshot)
    enabled = engine.enable_control(snapshot)
    columns[-1]["metadata"] = {ADOPTED: enabled.version + 1}
    schema_json = json.dumps({"type": "struct", "fields": columns})
    engine.take_over(enabled, schema_json, PROPERTIES, {DOMAIN: control.encode()}, engine_info)
    return control


def _check_table(path: Place, table: LogSnapshot, merge_app: str) -> None:
    """Refuses a table of which something is not understood, by its name."""
    found = [*_features(table.protocol), *_properties(table.metadata.get("configuration") or {})]
    if table.metadata.get("partitionColumns"):
        found.append(f"partition columns {table.metadata['partitionColumns']}")
    vectors = sum(file.has_vector for file in table.files.values())
    if vectors:
        found.append(
            f"deletion vectors in {vectors} files (REORG TABLE … APPLY (PURGE) writes them without, once "
            "delta.enableDeletionVectors is false)"
        )
    strange = next((name for name in table.files if name.startswith("/") or "://" in name or name[:5] == "file:"), None)
    if strange is not None:
        found.append(f"data files outside of its folder, such as {strange} (a shallow clone)")
    if merge_app in table.txns:
        found.append(f"MERGEs of this topology up to transaction {table.txns[merge_app]} of an earlier life")
    if found:
        raise TableError(
            f"the table {path} cannot be adopted",
            found="; ".join(found),
            expected="a Delta table of whole Parquet files, which any writer may change",
            action="copy its rows into a new table (CREATE TABLE … AS SELECT), and adopt that",
        )


def _features(protocol: Mapping[str, Any]) -> list[str]:
    writer, reader = protocol.get("minWriterVersion", 1), protocol.get("minReaderVersion", 1)
    named = {*(protocol.get("writerFeatures") or ()), *(protocol.get("readerFeatures") or ())}
    found = [f"the table feature {name}" for name in sorted(named - _KNOWN_FEATURES)]
    if writer not in (*range(1, _LEGACY_WRITER_MAX + 1), 7) or reader not in (*range(1, _LEGACY_READER_MAX + 1), 3):
        found.append(f"the protocol {reader}, {writer}")
    return found


def _properties(configuration: Mapping[str, str]) -> list[str]:
    return [
        f"the table property {name} = {value}"
        for name, value in sorted(configuration.items())
        if name.startswith(("delta.constraints.", "delta.universalFormat.", "delta.enableIcebergCompat"))
        or str(value).lower() not in _HARMLESS_VALUES.get(name, (str(value).lower(),))
    ]


def _columns(path: Place, binding: StateBinding, spec: TableSpec, table: LogSnapshot) -> list[dict[str, Any]]:
    """The table's columns with the hidden one behind them."""
    there = json.loads(table.schema_json)["fields"]
    wanted = {field["name"]: field for field in json.loads(spec.schema_json)["fields"]}
    hidden = wanted.pop(UPTO_COLUMN)
    wrong = [_wrong(field, wanted.get(field["name"])) for field in there]
    names = {field["name"] for field in there}
    wrong += [f"no column {name} {_shown(field['type'])}" for name, field in wanted.items() if name not in names]
    if binding.merging == SEQUENCED:
        wrong.append("an Upsert with sequence_by, which keeps the transaction of each row with it")
    found = [text for text in wrong if text]
    if found:
        raise SchemaMismatch(
            f"the table {path} cannot be adopted: its columns are not those of state {binding.name}",
            found="; ".join(found),
            expected=", ".join(f"{name} {_shown(field['type'])}" for name, field in wanted.items()),
            action="make the topology deliver the columns of the table, or change the table (ALTER TABLE)",
        )
    return [*there, dict(hidden)]


def _wrong(field: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> str:
    name = field["name"]
    if wanted is None:
        return f"a column {name}, which the state does not write"
    if nullable_type(field["type"]) != wanted["type"]:
        return f"a column {name} {_shown(field['type'])}"
    if not field["nullable"] or field["type"] != nullable_type(field["type"]):
        return f"a column {name} that must not be null (ALTER TABLE … ALTER COLUMN {name} DROP NOT NULL)"
    rules = sorted(set(field["metadata"]) - {"comment"})
    return f"a column {name} with {', '.join(rules)}" if rules else ""


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


def _check_rows(engine: KernelEngine, path: Place, binding: StateBinding, table: TableSnapshot) -> None:
    """Refuses a table with several rows of a key: which of them is the value is not known."""
    frame = engine.spark.read.format("delta").option("versionAsOf", table.version).load(str(path))
    keys = [F.col(backquoted(key)) for key in binding.keys]
    doubled = frame.groupBy(*keys).agg(F.count(F.lit(1)).alias(UPTO_COLUMN)).where(f"{UPTO_COLUMN} > 1")
    with faults.fault_point(LOOK):
        first = doubled.limit(1).collect()
    if first:
        values = {key: first[0][key] for key in binding.keys}
        raise TableError(
            f"the table {path} cannot be adopted: a key has several rows",
            found=f"{first[0][UPTO_COLUMN]} rows of {values}" if values else f"{first[0][UPTO_COLUMN]} rows",
            expected=f"one row for each {', '.join(binding.keys)}" if values else "one row",
            action="leave one row of each key",
        )


def _written_meanwhile(path: Place, found: int, expected: int) -> CommitConflict:
    return CommitConflict(
        f"the table {path} was written while it was being adopted",
        found=f"version {found}",
        expected=f"version {expected}",
        action="stop the program that still writes to it; adopting it is tried again",
    )
