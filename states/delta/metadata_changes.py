"""Tells what another writer changed in the metadata of a table of ours, and which of it may stay.

Harmless is what neither we nor a reader of the table's rows could notice: comments, a table's name, properties that are
not Delta's, and those of Delta in ``HARMLESS_PROPERTIES``; and further, plainly nullable columns. Everything else is
named: a constraint, a default or a feature asks more of a writer than ours does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

# Properties of Delta that change how long something is kept, or how files are laid out, and no rows: docs/operations.md
# lists them. Not delta.setTransactionRetentionDuration: it would let go of the txn_version of the MERGEs.
HARMLESS_PROPERTIES: Final = frozenset(
    {
        "delta.autoOptimize",
        "delta.autoOptimize.autoCompact",
        "delta.autoOptimize.optimizeWrite",
        "delta.checkpoint.writeStatsAsJson",
        "delta.checkpoint.writeStatsAsStruct",
        "delta.checkpointInterval",
        "delta.dataSkippingNumIndexedCols",
        "delta.dataSkippingStatsColumns",
        "delta.deletedFileRetentionDuration",
        "delta.enableExpiredLogCleanup",
        "delta.logRetentionDuration",
        "delta.targetFileSize",
        "delta.tuneFileSizesForRewrites",
    }
)
# Ours begin so: docs/semantics.md 10.
_OURS = "trident."


def harmful_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Names the first difference of two metadata of a table that may not stay, as errors say it; "": all of it may.

    Rows from before read as null in a further column, and a writer that does not know it need not write it: no
    default, no generated value, no constraint.
    """
    if before.get("id") != after.get("id"):
        return "made another table of it"
    if (before.get("partitionColumns") or []) != (after.get("partitionColumns") or []):
        return f"changed the partition columns to {after.get('partitionColumns')}"
    return _in_properties(before, after) or _in_columns(before, after)


def _in_properties(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old, new = (dict(one.get("configuration") or ()) for one in (before, after))
    for name in sorted(old.keys() | new.keys()):
        other = not name.startswith(("delta.", _OURS))
        if old.get(name) == new.get(name) or other or name in HARMLESS_PROPERTIES:
            continue
        constraint = name.removeprefix("delta.constraints.")
        if constraint != name:
            return f"took away the constraint {constraint}" if name in old else f"added the constraint {constraint}"
        return f"took away the property {name}" if name not in new else f"set the property {name} to {new[name]!r}"
    return ""


def _in_columns(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old, new = ([_plain(field) for field in json.loads(one["schemaString"])["fields"]] for one in (before, after))
    known = {field["name"] for field in old}
    for field in new:
        if field["name"] in known:
            continue
        if not field["nullable"] or field["metadata"]:
            return f"added the column {field['name']} with a constraint, a default or a generated value"
    kept = [field for field in new if field["name"] in known]
    if kept == old:
        return ""
    if [field["name"] for field in kept] != [field["name"] for field in old]:
        return "took away, renamed or moved a column"
    changed = next(field for field, was in zip(kept, old, strict=True) if field != was)
    was = next(field for field in old if field["name"] == changed["name"])
    if was["nullable"] and not changed["nullable"]:
        return f"made the column {changed['name']} NOT NULL"
    return f"changed the column {changed['name']}: its type, or what a writer must know of it"


def _plain(field: Mapping[str, Any]) -> dict[str, Any]:
    """A column without its comment."""
    known = {name: value for name, value in (field.get("metadata") or {}).items() if name != "comment"}
    return {**field, "metadata": known}


def asks_of_writers(metadata: Mapping[str, Any]) -> list[str]:
    """The constraints and the like that a table asks each of its writers to keep, by name."""
    found = []
    for name, value in sorted(dict(metadata.get("configuration") or ()).items()):
        constraint = name.removeprefix("delta.constraints.")
        if constraint != name:
            found.append(f"the constraint {constraint} ({value})")
    for field in json.loads(metadata["schemaString"])["fields"]:
        known, column = field.get("metadata") or {}, field["name"]
        for key, what in (
            ("delta.generationExpression", "is generated"),
            ("delta.identity.start", "is an identity"),
            ("delta.invariants", "has an invariant"),
            ("CURRENT_DEFAULT", "has a default"),
        ):
            if key in known:
                found.append(f"the column {column}, which {what}")
    return found
