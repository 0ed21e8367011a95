"""The tables of dead letters and settled messages: names, owners, staging of their rows (docs/semantics.md 1 and 6).

Both are participants of the transaction that they tell of: a message is in the
results, or in the dead letters, or still to come, never two of these. They take
part only in transactions that have rows for them.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from trident.coordinators.errors import ForeignTable, TableError
from trident.coordinators.identities import TransactionAttempt
from trident.states.core import storage
from trident.states.core.binding import StateBinding
from trident.states.core.control import DOMAIN
from trident.states.core.place import Place
from trident.states.core.tables import StagedFile
from trident.states.delta.append import DEAD_LETTERS, MESSAGES, SIDE_TABLES, SideTableKind
from trident.states.delta.delta_log import DeltaLog, has_log
from trident.states.delta.parquet_files import FileTarget, write_partition
from trident.states.delta.staging import attempt_folder, fsync_folders, staged_file

_INSTANT = pa.timestamp("us", tz="UTC")
LETTERS = pa.schema(
    [
        ("txid", pa.int64()),
        ("attempt_id", pa.int64()),
        ("stream", pa.string()),
        ("metadata", pa.string()),
        ("message", pa.string()),
        ("tuples", pa.string()),
        ("attempts", pa.int32()),
        ("operation", pa.string()),
        ("location", pa.string()),
        ("error", pa.string()),
        ("traceback", pa.string()),
        ("given_up_at", _INSTANT),
    ]
)
ENDS = pa.schema(
    [
        ("message", pa.string()),
        ("outcome", pa.string()),
        ("attempts", pa.int32()),
        ("txid", pa.int64()),
        ("settled_at", _INSTANT),
    ]
)


def dead_letter_binding(topology: str, group: str) -> StateBinding:
    """The dead-letter table of one batch group, as a state of it.

    A row is a skipped transaction (``metadata``: JSON by stream), or a message
    that was given up: ``message`` is its id as JSON, ``tuples`` what it was
    emitted as, ``attempts`` how often it was tried.
    """
    return _binding(DEAD_LETTERS, topology, group, LETTERS)


def message_binding(topology: str, stream: str) -> StateBinding:
    """The table of a stream's messages: which id ended how ("acked", "failed", "dead") in which transaction."""
    return _binding(MESSAGES, topology, stream, ENDS)


def _binding(kind: SideTableKind, topology: str, part: str, schema: pa.Schema) -> StateBinding:
    # A topology that begins again goes on with its own dead letters.
    state = SimpleNamespace(name=kind.table_name(topology, part), partition_columns=(), adopt=True)
    return StateBinding(state, kind, (), _spark_schema(schema), tuple(schema.names))


def _spark_schema(schema: pa.Schema) -> "StructType":
    kinds: dict[Any, Any] = {
        pa.int64(): LongType(),
        pa.int32(): IntegerType(),
        pa.string(): StringType(),
        _INSTANT: TimestampType(),
    }
    return StructType([StructField(field.name, kinds[field.type], True) for field in schema])


def check_names_apart(warehouse: Place, topology: str, bindings: Iterable[StateBinding]) -> None:
    """Tables beside the states have a name of two parts, and the parts may have "__" in them too.

    Topology ``a`` with stream ``x__y`` and topology ``a__x`` with stream ``y`` both mean ``a__x__y__messages``.

    Raises:
        ForeignTable: a topology of this warehouse has a table under that name, naming both.
    """
    for binding in bindings:
        owner = _owner(warehouse / binding.name) if binding.state_kind in SIDE_TABLES else None
        if owner is not None and owner[0] != topology:
            raise same_name(warehouse / binding.name, topology, owner[0])


def same_name(path: Place, topology: str, owner: str) -> ForeignTable:
    """Two topologies mean one table by what are different names for them."""
    kind = side_table_kind(path) or DEAD_LETTERS
    mine, theirs = (repr(path.name[len(one) + 2 : -len(kind.name) - 2]) for one in (topology, owner))
    of = kind.named_after
    return ForeignTable(
        f"topology {topology!r} with {of} {mine} and topology {owner!r} with {of} {theirs} mean the same table "
        f"{path.name}: a table of {kind.name.replace('_', ' ')} is named after both",
        found=f"a table of {owner!r} at {path}",
        expected="names that do not meet: without '__' they never do",
        action=f"give this topology or its {'stream' if kind is MESSAGES else 'streams'} another name, or another "
        "warehouse",
    )


def side_table_kind(path: Place) -> SideTableKind | None:
    """The kind of a table beside the states, by its name; None for another table."""
    return next((kind for kind in SIDE_TABLES if path.name.endswith(f"__{kind.name}")), None)


def side_tables(
    warehouse: Place, topology: str, kinds: Collection[SideTableKind] = SIDE_TABLES
) -> list[tuple[Place, str]]:
    """The folders of a topology's tables of these kinds, each with the batch group that writes it.

    Their names alone do not say whose they are: a topology's name may begin with another's.
    """
    found = []
    names = storage.list_names(warehouse)
    for kind in kinds:
        for path in sorted(warehouse / name for name in names if fnmatchcase(name, kind.table_name(topology, "*"))):
            owner = _owner(path)
            if owner is not None and owner[0] == topology:
                found.append((path, owner[1]))
    return found


def _owner(path: Place) -> tuple[str, str] | None:
    """Topology and batch group of a table, by the newest commit that says so."""
    if not has_log(path):
        return None
    with suppress(TableError):  # cleaned up that far: no topology has written to it for long
        for commit in DeltaLog(path).commits_backwards():
            control = commit.control.get(DOMAIN)
            if isinstance(control, Mapping):
                return str(control.get("topology")), str(control.get("group"))
    return None


def stage_letters(
    root: Place, incarnation: str, attempt: TransactionAttempt, letters: Sequence[Mapping[str, Any]]
) -> list[StagedFile]:
    """Stages dead letters; durable when this returns.

    Args:
        letters: the columns of the table that are known; those of the attempt are added.
    """
    own = {"txid": attempt.txid, "attempt_id": attempt.attempt_id, "given_up_at": _now()}
    rows = pa.Table.from_pylist([{**letter, **own} for letter in letters], LETTERS)
    return _stage(root, incarnation, attempt, DEAD_LETTERS.name, rows)


@dataclass(frozen=True)
class Ends:
    """How messages ended: one value of each for a message.

    Attributes:
        messages: their keys.
        outcomes: "acked", "failed" or "dead".
        attempts: how often each has failed so far.
    """

    messages: Sequence[str]
    outcomes: Sequence[str] | pa.Array
    attempts: Sequence[int] | pa.Array


def stage_ends(root: Place, incarnation: str, attempt: TransactionAttempt, ends: Ends) -> list[StagedFile]:
    """Stages how messages ended; durable when this returns."""
    count = len(ends.messages)
    columns = [
        pa.array(ends.messages, pa.string()),
        pa.array(ends.outcomes, pa.string()),
        pa.array(ends.attempts, pa.int32()),
        pa.repeat(pa.scalar(attempt.txid, pa.int64()), count),
        pa.repeat(pa.scalar(_now(), _INSTANT), count),
    ]
    return _stage(root, incarnation, attempt, MESSAGES.name, pa.table(columns, schema=ENDS))


def _stage(root: Place, incarnation: str, attempt: TransactionAttempt, name: str, table: pa.Table) -> list[StagedFile]:
    if not table.num_rows:
        return []
    folder = attempt_folder(incarnation, attempt)
    target = FileTarget(name, str(root), folder, distinct=("message",))
    reports = list(write_partition(target, table.combine_chunks().to_batches()))
    fsync_folders(root, folder)
    return [staged_file(report) for report in reports]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
