"""The findings of a rollback as values: tables as they are and as they were, positions, states out of its reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trident.coordinators.records import GroupRecord, Marker
from trident.states.core.control import ControlRecord
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.manifest import Manifest

# The roles of a group's tables; "beside": dead letters, and messages that are settled.
APPEND, LOG, PLAIN, BESIDE = "append", "log", "plain", "beside"


@dataclass(frozen=True)
class TableAt:
    """A table at one table version.

    Attributes:
        control: its control record; of a table that began later the one that it began with.
        merged: P, of a plain table; else 0.
        files: path → live file.
    """

    version: int
    control: ControlRecord
    merged: int = 0
    files: Mapping[str, LiveFile] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFacts:
    """One table of a batch group.

    Attributes:
        state: the state's name; a keyed state's two tables have the same.
        path: relative to the warehouse.
        then: its newest version without a later transaction; None where it is not known.
        unknown: why not, as text.
        gone: files that it would get again, and that are not there, or not whole.
        unwritable: why this framework does not write its log entries itself; "" where it does.
    """

    state: str
    role: str
    path: str
    now: TableAt
    then: TableAt | None = None
    unknown: str = ""
    gone: tuple[str, ...] = ()
    unwritable: str = ""


@dataclass(frozen=True)
class GroupFacts:
    """One batch group.

    Attributes:
        tables: all that it writes, or has written.
        pending: the attempt that is decided and has not advanced, as text; "" for none.
        manifest: of the last transaction that stays; None where it is not kept.
        begun: txid → the greatest attempt id that a table's log has of it.
        since: the streams of each later attempt whose manifest is kept, as ``manifest.spouts``.
    """

    name: str
    record: GroupRecord
    tables: tuple[TableFacts, ...]
    pending: str = ""
    manifest: Manifest | None = None
    begun: Mapping[int, int] = field(default_factory=dict)
    since: tuple[Mapping[str, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True)
class TopologyFacts:
    """A topology, looked at for a rollback.

    Attributes:
        incarnation: the present one.
        group: the one whose transactions are taken back.
        others: groups that stay where they are.
        outside: name → kind of the states whose rows are not in Delta tables.
        outside_of: name → batch group of such a state, as far as manifests say.
    """

    name: str
    incarnation: str
    group: GroupFacts
    others: tuple[GroupFacts, ...] = ()
    outside: Mapping[str, str] = field(default_factory=dict)
    outside_of: Mapping[str, str] = field(default_factory=dict)


def last_that_stays(tables: tuple[TableFacts, ...]) -> Marker | None:
    """The last transaction that changed anything, of those that stay: each of these is in every published table."""
    controls = [table.then.control for table in tables if table.role in (APPEND, LOG) and table.then is not None]
    published = [control for control in controls if control.attempt_id >= 0]
    if not published:
        return None
    last = max(published, key=lambda control: control.txid)
    return Marker(last.txid, last.attempt_id, last.digest)
