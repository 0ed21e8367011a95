"""Columns that are added to a table of ours, by us or by others (docs/semantics.md 9, last paragraph).

Only nullable columns, and nothing else: earlier rows read as null there, and
files that were staged before fit still.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trident.coordinators.errors import SchemaMismatch
from trident.states.core.control import DOMAIN, decode_control
from trident.states.core.names import folded
from trident.states.core.tables import HIDDEN_COLUMNS, feed_properties, nullable_type
from trident.states.delta import history
from trident.states.delta.kernel import KernelEngine, TableSnapshot
from trident.states.delta.log_commit import until_committed

# Characters that Delta allows in a column's name only with column mapping, which older readers do not know.
_FORBIDDEN = frozenset(" ,;{}()\n\t=")
# Types that need a table feature, which a table gets only when it is made.
_WITH_FEATURES = ("timestamp_ntz", "variant")


def add_columns(
    engine: KernelEngine, path: str, wanted_schema_json: str, txid_column: str | None = None
) -> TableSnapshot:
    """Adds to a table of ours the columns that it lacks, as nullable ones, in one commit.

    The commit carries our engine info and the control record as it is, so a
    search for foreign changes takes it for our own; a crash before or after it
    leaves nothing to repair, and doing it again does nothing.

    The caller's duty: no batch of the group that is not decided yet was staged
    with these columns. Of a keyed state the plain table comes first, then the
    log, then the descriptor: a compactor merges the columns that both tables have.

    Args:
        wanted_schema_json: all columns that the table shall have, as
            ``TableSpec.schema_json``; further ones of the table are left alone.
        txid_column: of an append table that gets one: a column of this name is no sign of another layout.

    Raises:
        SchemaMismatch: a column of that name has another type, differs from one of
            the table only by case, or its name or type cannot be added.
        ForeignTable: the table has no control record.
        CommitConflict: other commits came first each time.
    """

    def commit() -> TableSnapshot:
        snapshot = engine.load(path)
        there = json.loads(snapshot.schema_json)["fields"]
        missing = _missing(path, there, json.loads(wanted_schema_json)["fields"], txid_column)
        if not missing:
            return snapshot
        control = decode_control(path, snapshot.control(DOMAIN))
        new_schema = json.dumps({"type": "struct", "fields": [*there, *missing]})
        return engine.add_columns(snapshot, new_schema, {DOMAIN: control.encode()}, f"trident/{control.incarnation}")

    return until_committed(path, commit)


def enable_change_feed(engine: KernelEngine, path: str, keys: Sequence[str]) -> TableSnapshot:
    """Gives a table of ours Delta's change data feed, unless it has it: in one commit, as :func:`add_columns`.

    Args:
        keys: of the state, which are written down for readers of the feed.

    Raises:
        ForeignTable: the table has no control record.
        CommitConflict: other commits came first each time.
    """
    wanted = feed_properties(keys)

    def commit() -> TableSnapshot:
        snapshot = engine.load(path)
        if wanted.items() <= snapshot.properties.items():
            return snapshot
        control = decode_control(path, snapshot.control(DOMAIN))
        return engine.set_properties(snapshot, wanted, {DOMAIN: control.encode()}, f"trident/{control.incarnation}")

    return until_committed(path, commit)


def _missing(
    path: str, there: list[dict[str, Any]], wanted: list[dict[str, Any]], txid_column: str | None
) -> list[dict[str, Any]]:
    known = {field["name"]: field for field in there}
    taken = {folded(name) for name in known}
    missing = []
    for field in wanted:
        name, kind = field["name"], nullable_type(field["type"])
        if name in known:
            if nullable_type(known[name]["type"]) != kind:
                raise _refused(path, f"column {name} is {known[name]['type']}", f"{field['type']}, as before")
            continue
        if name in HIDDEN_COLUMNS and name != txid_column:
            # The table is of another layout: rows that were written without it mean something else.
            raise _refused(path, f"no column {name}", "a table made with it")
        if folded(name) in taken:
            raise _refused(path, f"column {name} and another one that differs by case only", "another name")
        if any(_FORBIDDEN & set(each) for each in _names(field)):
            raise _refused(path, f"column {name!r}", f"names without any of {' '.join(map(repr, sorted(_FORBIDDEN)))}")
        if set(_types_in(kind)) & set(_WITH_FEATURES):
            raise _refused(path, f"column {name}: {json.dumps(kind)}", f"no {' or '.join(_WITH_FEATURES)}")
        taken.add(folded(name))
        missing.append({"name": name, "type": kind, "nullable": True, "metadata": {}})
    return missing


def _refused(path: str, found: str, expected: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"the columns of table {path} cannot be added to as wanted",
        found=found,
        expected=expected,
        action="choose another name for the new field, or another state name",
    )


def _names(field: Mapping[str, Any]) -> list[str]:
    return [field["name"], *_names_in(field["type"])]


def _names_in(kind: Any) -> list[str]:
    if not isinstance(kind, dict):
        return []
    if kind["type"] == "struct":
        return [name for field in kind["fields"] for name in _names(field)]
    return [name for part in ("elementType", "keyType", "valueType") for name in _names_in(kind.get(part))]


def _types_in(kind: Any) -> list[str]:
    """The names of the plain types in a type."""
    if not isinstance(kind, dict):
        return [kind]
    if kind["type"] == "struct":
        return [name for field in kind["fields"] for name in _types_in(field["type"])]
    return [name for part in ("elementType", "keyType", "valueType") if part in kind for name in _types_in(kind[part])]


def columns_only_added(path: str, table_version: int, schema_hash: str) -> bool:
    """Tells whether a table has got, by that version, nothing but nullable columns since files were staged.

    Files that were staged before then can be published still: their rows are
    null in the new columns (docs/semantics.md 9, last paragraph).

    Args:
        schema_hash: of the schema when the files were staged, as the manifest has it.

    Raises:
        TableError: the log cannot be read.
    """

    def was(schema_json: str) -> bool:
        return hashlib.sha256(schema_json.encode()).hexdigest() == schema_hash

    return history.columns_only_added_since(path, table_version, was)
