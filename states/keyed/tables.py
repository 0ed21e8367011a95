"""The two tables of a keyed state: how they are found, made, and known for the state's own."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from pyspark.sql.types import LongType, StructField, StructType

from trident.coordinators.errors import CommitConflict, ForeignTable, TableError
from trident.coordinators.identities import up_to
from trident.states.core.binding import kept_schema
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.tables import HIDDEN_COLUMNS, TXID_COLUMN, UPTO_COLUMN, plain_properties
from trident.states.delta import history
from trident.states.delta.delta_log import DeltaLog, LogSnapshot, Snapshot, TableAsOf
from trident.states.delta.kernel import CommitOutcomeUnknown, KernelEngine, TableMissing, TableSnapshot
from trident.states.delta.kernel_files import LiveFile

# In the metadata of an adopted table's column ``_upto``: the version with which it became the state's. And a property
# of its log.
ADOPTED = "trident.adopted"


def adopted_version(schema_json: str) -> int | None:
    """The version with which a plain table was adopted; None of a table that was made for its state."""
    for field in json.loads(schema_json)["fields"]:
        if field["name"] == UPTO_COLUMN:
            found = field["metadata"].get(ADOPTED)
            return found if isinstance(found, int) else None
    return None


def merged_upto(state: StateDescriptor, plain: TableAsOf, starts_at: int) -> int:
    """P of a version of the plain table; before its first MERGE all that was before the state."""
    for incarnation in up_to(state.incarnation):  # a version from before a rollback: P of the app of then
        merged = plain.txn_version(replace(state, incarnation=incarnation).merge_app)
        if merged is not None:
            return max(merged, starts_at - 1)
    return starts_at - 1


def plain_as_of(state: StateDescriptor, plain: Snapshot, txid: int) -> Snapshot | LogSnapshot | None:
    """The newest version of the plain table with P <= txid; None when it was cleaned up."""
    version = history.find_version_by_txn(plain.path, state.merge_app_at_first, txid)
    if version is None or version >= plain.version:
        return None if version is None else plain
    return DeltaLog(plain.path).kept(version)


def own_control(state: StateDescriptor, snapshot: TableAsOf) -> ControlRecord:
    """The control record of one of the state's tables.

    Raises:
        ForeignTable: there is none, or it is of another topology, group or incarnation.
    """
    control = decode_control(snapshot.path, snapshot.control(DOMAIN))
    check_own(state, snapshot.path, control)
    return control


def check_own(state: StateDescriptor, path: str, control: ControlRecord) -> None:
    """Refuses a table by its control record."""
    found = (control.topology, control.group, control.incarnation)
    if found != (state.topology, state.group, state.incarnation):
        raise ForeignTable(
            f"the table {path} is not of the state that its descriptor names",
            found="/".join(found),
            expected=f"{state.topology}/{state.group}/{state.incarnation}",
            action="start the topology that owns it (it writes the descriptor again), or choose another warehouse",
        )


def open_plain(engine: KernelEngine, state: StateDescriptor, plain: str, log_path: str) -> TableSnapshot:
    """The plain table of a keyed state, made when it is not there yet.

    Raises:
        ForeignTable: the table is not this state's.
        TableError: it cannot be made or read.
    """
    try:
        snapshot = engine.load(plain)
    except TableMissing:
        log = engine.load(log_path)
        control = own_control(state, log)
        if ADOPTED in log.properties:
            raise TableError(
                f"the table {plain} is gone, and its log does not have the rows with which it was adopted",
                found="no table",
                expected="the table that the state has taken over",
                action="bring the table back from a back-up, or begin again with `trident reset`",
            ) from None
        if control.floor >= control.starts_at:
            raise TableError(
                f"the table {plain} is gone, and its log no longer has all transactions",
                found=f"a log kept above transaction {control.floor}",
                expected=f"the table, or a log from transaction {control.starts_at} on",
                action="bring the table back from a back-up, or begin again with `trident reset`",
            ) from None
        first = replace(control, txid=control.starts_at - 1, attempt_id=-1, digest="", floor=0)
        try:
            engine.create_table(
                plain,
                plain_schema_json(state),
                (),
                plain_properties(state.change_feed, state.keys),
                {DOMAIN: first.encode()},
                f"trident/{state.incarnation}",
            )
        except (CommitConflict, CommitOutcomeUnknown):
            pass  # another compactor makes it, or has made it: loading it tells
        snapshot = engine.load(plain)
    own_control(state, snapshot)
    return snapshot


def greatest_txid(file: LiveFile) -> float:
    """The greatest txid of a log file's rows; infinite when its statistics do not say."""
    bounds = (file.stats or {}).get("maxValues")
    value = bounds.get(TXID_COLUMN) if isinstance(bounds, dict) else None
    return value if isinstance(value, int) else math.inf


def least_txid(file: LiveFile) -> float:
    """The least txid of a log file's rows; less than any when its statistics do not say."""
    bounds = (file.stats or {}).get("minValues")
    value = bounds.get(TXID_COLUMN) if isinstance(bounds, dict) else None
    return value if isinstance(value, int) else -math.inf


def column_names(snapshot: TableSnapshot) -> list[str]:
    """The columns of a table version."""
    return [column["name"] for column in json.loads(snapshot.schema_json)["fields"]]


def as_stored(state: StateDescriptor, plain: TableSnapshot, log: TableSnapshot) -> StateDescriptor:
    """The state with the value columns that were added to its tables since its descriptor was read.

    A column that only one of the two tables has is not the state's: our own
    columns are added to the plain table before the log.
    """
    known = json.loads(state.schema_json)
    names = {field["name"] for field in known["fields"]} | set(HIDDEN_COLUMNS)
    both = set(column_names(plain))
    added = [
        field for field in json.loads(log.schema_json)["fields"] if field["name"] not in names and field["name"] in both
    ]
    if not added:
        return state
    schema = json.dumps({**known, "fields": [*known["fields"], *added]})
    return replace(state, schema_json=schema, value_fields=(*state.value_fields, *[field["name"] for field in added]))


def plain_schema_json(state: StateDescriptor) -> str:
    """The plain table's schema: keys, values and the hidden ``_upto``, all nullable."""
    kept = kept_schema(state.schema, state.merging)
    fields = [StructField(field.name, field.dataType, True) for field in kept.fields]
    return StructType([*fields, StructField(UPTO_COLUMN, LongType(), True)]).json()
