"""Makes a fork: a topology of its own as of a transaction of another one, which is only read.

The original's ZooKeeper is not asked and its warehouse is not written to: its tables' logs, its descriptors and its
kept manifests say everything. So it may run meanwhile; or be a copy of a warehouse without a ZooKeeper.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from trident.config import TridentConfig, as_config
from trident.coordinators import faults
from trident.coordinators.errors import ConfigError, CoordinationError, TopologyError, TransactionNotKept
from trident.coordinators.group_store import GroupStore
from trident.coordinators.identities import first_id, rollbacks_of, same_start
from trident.coordinators.records import Decision, TableMark
from trident.coordinators.registration import Registration, refuse_unfinished_reset
from trident.coordinators.repairing import RepairStore
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.facts import positions
from trident.maintenance.inventory import incarnation_of
from trident.running.zookeeper import leading, open_zookeeper, server_folder
from trident.spouts.host import load_given
from trident.states.core import storage
from trident.states.core.control import DOMAIN, ControlRecord
from trident.states.core.descriptor import StateDescriptor, descriptors_of_group, load_descriptor
from trident.states.core.group_context import GroupContext
from trident.states.core.names import check_name
from trident.states.core.place import Place, warehouse_place
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.manifest import ManifestStore, groups_with_manifests
from trident.states.history.cloning import Clone, Cloned, live_table, make
from trident.states.history.kept import KeptManifests, StateVersions, group_as_of, published_as_of
from trident.states.keyed.compaction import SnapshotUnavailable
from trident.states.keyed.table_watch import ACCEPTED
from trident.states.keyed.tables import greatest_txid
from trident.time_travel import fork_plan
from trident.time_travel.fork_plan import ForkedGroup, ForkedState, ForkRecord, Past, forks_in, load_fork

# Reads the original of a fork: its kept manifests from transaction N on, and its tables' versions as of N.


At = Mapping[str, int] | int


def pasts_of(warehouse: Place, topology: str, incarnation: str, at: At, record: ForkRecord | None = None) -> list[Past]:
    """The batch groups of the original from N on.

    Args:
        record: of a fork that was begun: it is given the batches that it was to be given.

    Raises:
        TransactionNotKept: N is not kept, or one behind it no longer is; or its manifest is lost.
        SourceError, TopologyError: streams or states that cannot be forked; or a group that is not there.
        TableError: a manifest cannot be read, or is not of the attempt that was decided.
    """
    groups = {
        group: kept
        for group in groups_with_manifests(warehouse, topology)
        if (kept := KeptManifests(GroupContext(warehouse, topology, group, incarnation))).txids()
    }
    if record is None:
        _refuse_left_out(warehouse, topology, incarnation, groups.keys())
    points = _points(topology, sorted(groups), at)
    found = []
    for group, txid in sorted(points.items()):
        kept = groups[group]
        decision, manifest = kept.decided(txid)
        until = record.groups[group].until if record is not None else max(kept.txids())
        found_later = ((each, kept.read_if_any(each)) for each in range(txid + 1, until + 1))
        later = {each: manifest for each, manifest in found_later if manifest is not None}
        past = Past(group, decision, manifest, later)
        if record is not None and past.until < until:
            kept.read(until)  # says that it is not kept, and what is
        fork_plan.check_attempts(past)
        fork_plan.check_sources(past)
        fork_plan.check_states(past)
        found.append(past)
    return found


def _refuse_left_out(warehouse: Place, topology: str, incarnation: str, groups: Collection[str]) -> None:
    """Refuses a topology of which a batch group has had no transaction since a rollback: the fork would be without it.

    Raises:
        TransactionNotKept: there is one.
    """
    for group in groups_with_manifests(warehouse, topology):
        states = descriptors_of_group(warehouse, topology, group)
        if group in groups or (states and all(state.ends_at is not None for state in states)):
            continue  # or it has left the topology
        earlier = (manifest for _, manifest in ManifestStore(warehouse, topology, group).newest_first())
        before = next((one for one in earlier if same_start(one.incarnation, incarnation)), None)
        if before is not None and rollbacks_of(before.incarnation) < rollbacks_of(incarnation):
            raise TransactionNotKept(
                f"batch group {group} of {topology} has no kept transaction since the last rollback",
                txid=before.attempt.txid,
                found=f"manifests of the incarnation before, up to transaction {before.attempt.txid}",
                expected=f"one of incarnation {incarnation} of each batch group",
                action=f"let {topology} run until each of its batch groups has had a transaction",
            )


def _points(topology: str, groups: list[str], at: At) -> dict[str, int]:
    """Group → N."""
    if isinstance(at, Mapping):
        points = dict(at)
    else:
        points = dict.fromkeys(groups, at) if len(groups) == 1 else {}
    if not groups:
        raise TopologyError(
            f"no manifest of {topology} is kept",
            expected="some: they have the batches that a fork is given",
            action="let the topology run with history_retention_txids above 0",
        )
    if set(points) != set(groups):
        raise TopologyError(
            f"{topology} has {'several batch groups' if len(groups) > 1 else 'one batch group'}, each with its own "
            "transactions",
            found=f"--at for {', '.join(sorted(points))}" if points else "one txid for all",
            expected=" ".join(f"--at {group}=N" for group in groups),
            action="name a txid for each group",
        )
    return points


def begin_record(
    warehouse: Place, topology: str, source_incarnation: str, name: str, incarnation: str, stop: bool, pasts: list[Past]
) -> ForkRecord:
    """The record of a fork that is about to be made: the versions of all tables as of N.

    Raises:
        TransactionNotKept: a table no longer has N; the message says from where on it has.
        TableError, ForeignTable: a table is missing, or another's.
    """
    groups = {}
    for past in pasts:
        found = _as_of(warehouse, topology, past, source_incarnation)
        states = {one: _forked(each) for one, each in found.items() if _takes_part(each, past.at)}
        fork_plan.check_published(past, {one: found[one].published.control for one in states})
        groups[past.group] = ForkedGroup(past.at, past.until, states)
    return ForkRecord(str(warehouse), topology, source_incarnation, name, incarnation, stop, groups)


def _as_of(warehouse: Place, topology: str, past: Past, incarnation: str) -> Mapping[str, StateVersions]:
    try:
        return group_as_of(warehouse, topology, past.group, past.at, incarnation)
    except SnapshotUnavailable as error:  # under a log's floor, or behind entries of a log that were cleaned up
        raise TransactionNotKept(
            error.message,
            txid=past.at,
            oldest=error.available,
            found=error.found,
            expected=error.expected,
            action=error.action,
        ) from error


def _takes_part(state: StateVersions, txid: int) -> bool:
    """Tells whether a state was the topology's in a transaction, or has left it before."""
    ends = state.state.ends_at
    return ends is None or ends >= txid


def _forked(state: StateVersions) -> ForkedState:
    published, plain = state.published, state.plain
    if not state.state.state_kind.has_log:
        return ForkedState(published.version, None, -1)
    merged = published.control.starts_at - 1 if plain is None else plain.merged
    return ForkedState(published.version, None if plain is None else plain.version, merged)


# Makes the parts of a fork's warehouse: its tables by clones, its states' descriptors, its streams' own files.


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
        make(replace(published, keeps=_unmerged(versions)), may_copy, cost)
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


def _unmerged(versions: ForkedState) -> Callable[[LiveFile], bool]:
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


MANIFEST = faults.register(
    "fork.manifest", "the manifest of a fork's first transaction, which its original has decided"
)
ZOOKEEPER = faults.register("fork.zookeeper", "the multi that registers a fork, or one of its batch groups")


@dataclass(frozen=True)
class Forked:
    """A fork that is whole.

    Attributes:
        record: what it was made of.
        warehouse: its own.
        cost: what making it has written, as far as this call did.
        empty: group → transactions of which no manifest is kept, since they changed nothing.
        opaque: streams that cut their own batches.
        was_whole: whether it was there already.
    """

    record: ForkRecord
    warehouse: Place
    cost: Cloned = field(default_factory=Cloned)
    empty: Mapping[str, list[int]] = field(default_factory=dict)
    opaque: tuple[str, ...] = ()
    was_whole: bool = False

    def lines(self) -> list[str]:
        """Returns what was done, for people."""
        record = self.record
        if self.was_whole:
            return [f"{record.name} is a fork of {record.topology} already, in {self.warehouse}: nothing was done"]
        lines = []
        for group, part in record.groups.items():
            lines.append(
                f"{record.name} is {record.topology} as of transaction {part.at} of {group}, in {self.warehouse}"
            )
            if part.until > part.at:
                after_batches = "and then stops" if record.until_kept else "and cuts its own after it"
                lines.append(
                    f"  it is given the batches of transactions {part.at + 1} to {part.until}, {after_batches}"
                )
            else:
                lines.append("  no later transaction is kept: it cuts its own batches")
            if self.empty.get(group):
                shown = ", ".join(map(str, self.empty[group][:10])) + (" …" if len(self.empty[group]) > 10 else "")
                lines.append(f"  transactions that changed nothing, {shown}, are empty here too, whatever the code")
        if self.opaque:
            lines.append(f"  streams with opaque partitions cut their own batches: {', '.join(self.opaque)}")
        cost = self.cost
        copied = f"{cost.copied} copied ({cost.copied_bytes:,} bytes)" if cost.copied else "none copied"
        lines.append(
            f"  data files: {cost.linked} by a second name, {copied}; written besides: {cost.entry_bytes:,} bytes"
        )
        lines.append(f"start it by code that names its topology {record.name!r}, with the warehouse {self.warehouse}")
        return lines


def fork(
    name: str,
    at: Mapping[str, int] | int,
    as_name: str,
    target: str,
    config: TridentConfig | None = None,
    *,
    until_kept: bool = False,
    may_copy: bool = False,
    accept_acknowledging: bool = False,
) -> Forked:
    """Makes a topology of its own as of a transaction of another one; its original is only read.

    Killed anywhere, the same call goes on. A fork that is whole is left as it is.

    Args:
        name: the original.
        at: N, the last transaction that the fork has; of a topology with several batch groups, group → N.
        as_name: the fork's name.
        target: the fork's warehouse: a folder that is not there, or empty.
        config: the settings: ``warehouse`` is the original's; ZooKeeper is the fork's. ``embedded`` means a server of
            the fork's own warehouse.
        until_kept: no transaction begins behind the last batch that the fork is given.
        may_copy: data files are copied where they cannot have a second name.
        accept_acknowledging: the fork starts also with spouts that can change their sources, or do not say
            (``trident.spouts.contracts.Acknowledges``); of a fork that is whole, from its next start on.

    Raises:
        ConfigError: the folder, or a name, cannot be used.
        TransactionNotKept: N is not kept; the message says what is.
        SourceError, TopologyError: the original has streams or states that cannot be forked.
        CoordinationError: the fork's name is taken.
        TableError: something stored cannot be read.
    """
    check_name("topology", name)
    check_name("topology", as_name)
    config = as_config(config)
    source, warehouse = config.warehouse_place(), warehouse_place(target)
    own = config.with_overrides([f"warehouse={warehouse}"])
    _check_apart(source, warehouse)
    record, pasts = _found(warehouse, as_name), list[Past]()
    if record is None:
        _check_free(own, warehouse, as_name, None)
        incarnation = incarnation_of(source, name)
        pasts = pasts_of(source, name, incarnation, at)
        begun = begin_record(source, name, incarnation, as_name, uuid.uuid4().hex, until_kept, pasts)
        storage.make_warehouse(warehouse)
        record = begun.begin_in(warehouse)
        if record != begun:  # another call was faster: this one goes on with that one's ids
            pasts = []
    _check_same(record, source, name, at, until_kept, warehouse)
    if not pasts and not record.whole:
        _check_free(own, warehouse, as_name, record.incarnation)
        if _is_registered(own, warehouse, record):
            # Only the last word was missing; it may have begun since, and nothing of it is touched.
            record = replace(record, whole=True)
            record.put_into(warehouse)
        else:
            at_all = {group: part.at for group, part in record.groups.items()}
            pasts = pasts_of(source, name, record.source_incarnation, at_all, record)
    if not pasts:
        _accept(record, warehouse, accept_acknowledging)
        return Forked(record, warehouse, was_whole=True)
    made = _Fork(source, warehouse, record, may_copy, accept_acknowledging)
    identity = made.make(pasts)
    with closing(open_zookeeper(own, warehouse)) as zk:
        made.register(zk, identity, pasts)
    record = replace(record, whole=True)
    record.put_into(warehouse)
    opaque = tuple(sorted(tx_id for past in pasts for tx_id in past.opaque))
    return Forked(record, warehouse, made.cost, {past.group: past.empty for past in pasts}, opaque)


def _accept(record: ForkRecord, warehouse: Place, accept: bool) -> None:
    """Lets a fork that is whole start with spouts that can change their sources."""
    for group in record.groups if accept else ():
        of = GroupContext(warehouse, record.name, group, record.incarnation)
        given = load_given(of)
        if given is not None and not given.may_acknowledge:
            replace(given, may_acknowledge=True).put_into(of)


class _Fork:
    """Carries a fork out."""

    def __init__(self, source: Place, warehouse: Place, record: ForkRecord, may_copy: bool, accept: bool) -> None:
        self._source, self._warehouse, self._record, self._may_copy = source, warehouse, record, may_copy
        self._accept = accept
        self._decisions: dict[str, Decision] = {}
        self._marks: dict[str, dict[str, TableMark]] = {}
        self.cost = Cloned()

    def make(self, pasts: list[Past]) -> dict[str, object]:
        """All that is in the fork's warehouse; returns its identity."""
        record, states = self._record, list[StateDescriptor]()
        for past in pasts:
            # First: the original cleans its manifests up as it goes on.
            given = fork_plan.given_batches(past, record.incarnation, record.until_kept, self._accept)
            self.cost.entry_bytes += given.put_into(
                GroupContext(self._warehouse, record.name, past.group, record.incarnation)
            )
        for past in pasts:
            part = record.groups[past.group]
            of_group = [load_descriptor(self._source, name) for name in sorted(part.states)]
            paths = [path for state in of_group for path in (state.published_path, state.plain_path)]
            decision, data = fork_plan.forked_manifest(past, record, {path: record.table_id(path) for path in paths})
            self._decisions[past.group] = decision
            self._marks[past.group] = make_tables(
                self._source, self._warehouse, record, past, of_group, decision, self._may_copy, self.cost
            )
            self._write_manifest(decision, data)
            states += forked_states(of_group, record)
        for state in states:
            state.save(self._warehouse)
        streams = sorted({tx_id for past in pasts for tx_id in past.spouts})
        self.cost.entry_bytes += copy_streams(self._source, self._warehouse, record, streams)
        return fork_plan.identity(pasts, states)

    def _write_manifest(self, decision: Decision, data: bytes) -> None:
        path = self._warehouse / decision.manifest
        with faults.fault_point(MANIFEST):
            storage.make_folder(path.parent, self._warehouse)
            storage.write(path, data)
        self.cost.entry_bytes += len(data)

    def register(self, zk: ZooKeeper, identity: Mapping[str, object], pasts: list[Past]) -> None:
        """The fork in its ZooKeeper; groups that an earlier try has written are left as they are.

        Raises:
            CoordinationError: another topology has its name, and is left as it is.
        """
        record = self._record
        with leading(zk, record.name, [past.group for past in pasts]) as lease:
            # Again, under the lease: making the tables takes its time, and by now the name may be another topology's.
            _refuse_taken(zk, record.name, record.incarnation)
            for past in pasts:
                store = RepairStore(zk, record.name, past.group, sorted(past.spouts), lease.fences[past.group])
                there = store.load()[0]
                if there is not None and there.incarnation == record.incarnation:
                    continue
                decision = self._decisions[past.group]
                first = fork_plan.first_record(record, decision, self._marks[past.group])
                pins, opaque = positions(past.manifest.spouts, decision.txid)
                with faults.fault_point(ZOOKEEPER):
                    store.rebuild(first, None, pins, opaque, decision.txid, (record.incarnation, identity))


# --- where it may be made ---------------------------------------------------------------------------------


def _check_apart(source: Place, warehouse: Place) -> None:
    if warehouse == source or source in warehouse.parents or warehouse in source.parents:
        raise ConfigError(
            "a fork needs a warehouse of its own",
            found=str(warehouse),
            expected=f"a folder that is neither in the original's, {source}, nor around it",
            action="name another folder with --warehouse; on the same file system nothing is copied",
        )


def _found(warehouse: Place, name: str) -> ForkRecord | None:
    """The fork that was made, or begun, there."""
    record = load_fork(warehouse, name)
    if record is not None:
        return record
    others = forks_in(warehouse)
    names = [one for one in storage.list_names(warehouse)]
    own = [one for one in storage.list_names(warehouse / "_trident") if not one.startswith(".")]
    if others or [one for one in names if one != "_trident"] or own:
        raise ConfigError(
            f"{warehouse} has other content",
            found=f"the fork {others[0]}" if others else ", ".join(sorted(own or names)[:5]),
            expected="a folder that is not there, or is empty: a fork has a warehouse of its own",
            action="name another folder with --warehouse, or empty this one if it is wanted no more",
        )
    return None


def _check_same(
    record: ForkRecord, source: Place, name: str, at: Mapping[str, int] | int, until_kept: bool, warehouse: Place
) -> None:
    wanted = at if isinstance(at, Mapping) else dict.fromkeys(record.groups, at)
    points = tuple(sorted(wanted.items()))
    if record.requested() != (str(source), name, record.name, points, until_kept):
        was = ", ".join(f"transaction {part.at} of {group}" for group, part in record.groups.items())
        raise ConfigError(
            f"the name {record.name} is taken in {warehouse}: it is another fork",
            found=f"a fork of {record.topology} in {record.warehouse}, as of {was}"
            f"{', with --until-kept' if record.until_kept else ''}{'' if record.whole else ', which is not whole'}",
            expected=f"a fork of {name} in {source}, as of {', '.join(f'{txid} of {one}' for one, txid in points)}"
            f"{', with --until-kept' if until_kept else ''}",
            action="name another folder and another name; or delete that one if it is wanted no more",
        )


def _check_free(config: TridentConfig, warehouse: Place, name: str, incarnation: str | None) -> None:
    """The fork's name is free in the ZooKeeper that it will have.

    Raises:
        CoordinationError: it is not.
    """
    if config.zookeeper == "embedded" and not storage.is_folder(server_folder(warehouse)):
        return  # its own, which knows nothing yet
    with closing(open_zookeeper(config, warehouse)) as zk:
        _refuse_taken(zk, name, incarnation)


def _refuse_taken(zk: ZooKeeper, name: str, incarnation: str | None) -> None:
    found = Registration(zk, name).read()
    refuse_unfinished_reset(zk, name)
    if found is not None and found[0] != incarnation:
        raise CoordinationError(
            f"the name {name} is taken: ZooKeeper has a topology of it",
            found=f"incarnation {found[0]}, with the streams {', '.join(sorted(found[1]['streams']))}",
            expected=f"no topology {name!r} at {zk.path(name)}",
            action="choose another name with --as, or another zookeeper_root with --set",
        )


def _is_registered(config: TridentConfig, warehouse: Place, record: ForkRecord) -> bool:
    """Tells whether ZooKeeper has all of the fork's batch groups."""
    if config.zookeeper == "embedded" and not storage.is_folder(server_folder(warehouse)):
        return False
    with closing(open_zookeeper(config, warehouse)) as zk:
        registered = Registration(zk, record.name).read()
        if registered is None:
            return False
        stores = [GroupStore(zk, record.name, group, registered[1]["groups"].get(group, ())) for group in record.groups]
        return all(store.load()[0] is not None for store in stores)
