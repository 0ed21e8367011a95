"""Makes the parts of a fork's warehouse: its tables by clones, its states' descriptors, its streams' own files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from trident.coordinators import faults
from trident.coordinators.incarnation_ids import first_id
from trident.coordinators.records import Decision, TableMark
from trident.states.core import storage
from trident.states.core.control import DOMAIN, ControlRecord
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place
from trident.states.delta.kernel_files import LiveFile
from trident.states.history.cloning import Clone, Cloned, live_table, make
from trident.states.history.versions import published_as_of
from trident.states.keyed.plain_watch import ACCEPTED
from trident.states.keyed.tables import greatest_txid
from trident.time_travel import fork_plan
from trident.time_travel.fork_plan import Past
from trident.time_travel.fork_record import ForkedState, ForkRecord

STREAM = faults.register("fork.stream", "a file that a stream of the original keeps, copied for the fork")
_APPENDED = ".jsonl"


def forked_states(states: Iterable[StateDescriptor], record: ForkRecord) -> list[StateDescriptor]:
    return [fork_plan.forked_state(state, record) for state in states]


def make_tables(
    source: Place,
    warehouse: Place,
    record: ForkRecord,
    past: Past,
    states: Sequence[StateDescriptor],
    decision: Decision,
    may_copy: bool,
    cost: Cloned,
) -> dict[str, TableMark]:
    """Makes the tables of a group's states; returns table id → what ZooKeeper is told of each.

    Args:
        decision: of transaction N, as the fork's own.

    Raises:
        TableError: a table cannot be read or cloned.
        ConfigError: a file cannot have a second name, and copying was not allowed.
    """
    marks: dict[str, TableMark] = {}
    for state in states:
        versions = record.groups[past.group].states[state.name]
        own = fork_plan.forked_state(state, record)
        floor = versions.merged if state.state_kind.has_log else None
        path = source / state.published_path
        was = published_as_of(path, record.topology, past.group, record.source_incarnation, past.at).control
        control = fork_plan.forked_control(was, record, past.decision, decision, floor)
        published = _clone(source, warehouse, record, state.published_path, versions.published, control)
        make(replace(published, keeps=_behind(versions)), may_copy, cost)
        if control.attempt_id >= 0:
            marks[published.table_id] = control.mark(0)
        if versions.plain is None:
            continue
        first = replace(control, txid=control.starts_at - 1, attempt_id=-1, digest="", floor=0)
        plain = _clone(source, warehouse, record, state.plain_path, versions.plain, first)
        txn = (own.merge_app, versions.merged) if versions.merged >= control.starts_at else None
        make(replace(plain, txn=txn), may_copy, cost)
        marks[plain.table_id] = TableMark(0, versions.merged, 0, ACCEPTED)
    return marks


def _clone(
    source: Place, warehouse: Place, record: ForkRecord, path: str, version: int, control: ControlRecord
) -> Clone:
    return Clone(
        live_table(source / path, version),
        warehouse / path,
        warehouse,
        record.table_id(path),
        {DOMAIN: control.encode()},
        None,
        f"trident/{record.incarnation}",
    )


def _behind(versions: ForkedState) -> Callable[[LiveFile], bool]:
    """Tells of a log's files whether they have rows that the plain table has not; of an append table all count."""

    def keeps(file: LiveFile) -> bool:
        return versions.merged < 0 or greatest_txid(file) > versions.merged

    return keeps


def copy_streams(source: Place, warehouse: Place, record: ForkRecord, streams: Iterable[str]) -> int:
    """Copies what the original's streams keep beside their metadata, such as the ledger of a FileSpout.

    Such a file only grows: the fork's copy has at least what its batches refer to.

    Returns:
        bytes.
    """
    size = 0
    for tx_id in streams:
        folder = source / "_trident" / record.topology / "streams" / tx_id
        target = warehouse / "_trident" / record.name / "streams" / tx_id
        # A rollback is no new beginning for a source: its files have the first id in their names.
        size += _copy_folder(folder, target, warehouse, (first_id(record.source_incarnation), record.incarnation))
    return size


def _copy_folder(folder: Place, target: Place, warehouse: Place, named: tuple[str, str]) -> int:
    """Copies what is in a folder, and in those within; drafts, whose names begin with a dot, are left out.

    Args:
        named: the incarnation in the names, and that which they get.

    Returns:
        bytes.
    """
    size = 0
    for name in sorted(storage.list_names(folder)):
        if name.startswith("."):
            continue
        own = target / name.replace(*named)
        # Of a file that is appended to a store has one for each write, in a folder.
        if not name.endswith(_APPENDED) and storage.is_folder(folder / name):
            size += _copy_folder(folder / name, own, warehouse, named)
            continue
        with faults.fault_point(STREAM):
            storage.make_folder(target, warehouse)
            size += _copy(folder / name, own)
    return size


def _copy(source: Place, target: Place) -> int:
    if not source.name.endswith(_APPENDED):
        data = storage.read(source)
        storage.write(target, data)
        return len(data)
    data = storage.read_appended(source) or b""
    data = data[: data.rfind(b"\n") + 1]  # a line without its end is being written: no batch refers to it
    if storage.read_appended(target) != data:
        with storage.append(target) as file:
            file.cut(0)  # what an earlier try has left
            file.write(data)
    return len(data)
