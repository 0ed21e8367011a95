"""Makes a fork: a topology of its own as of a transaction of another one, which is only read.

The original's ZooKeeper is not asked and its warehouse is not written to: its tables' logs, its descriptors and its
kept manifests say everything. So it may run meanwhile; or be a copy of a warehouse without a ZooKeeper.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from trident.config import TridentConfig, as_config
from trident.coordinators import faults
from trident.coordinators.errors import ConfigError, CoordinationError
from trident.coordinators.group_store import GroupStore
from trident.coordinators.records import Decision, TableMark
from trident.coordinators.registration import Registration
from trident.coordinators.repairing import RepairStore
from trident.coordinators.unfinished import refuse_unfinished_reset
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.facts import positions
from trident.maintenance.inventory import incarnation_of
from trident.running.connecting import open_zookeeper, server_folder
from trident.running.own_zookeeper import leading
from trident.spouts.given_batches import load_given
from trident.states.core import storage
from trident.states.core.descriptor import StateDescriptor, load_descriptor
from trident.states.core.group_context import GroupContext
from trident.states.core.names import check_name
from trident.states.core.place import Place, warehouse_place
from trident.states.history.cloning import Cloned
from trident.time_travel import fork_plan
from trident.time_travel.fork_plan import Past
from trident.time_travel.fork_record import ForkRecord, forks_in, load_fork
from trident.time_travel.fork_source import begin_record, pasts_of
from trident.time_travel.fork_tables import copy_streams, forked_states, make_tables

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
                behind = "and then stops" if record.until_kept else "and cuts its own behind it"
                lines.append(f"  it is given the batches of transactions {part.at + 1} to {part.until}, {behind}")
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
    if record.asked() != (str(source), name, record.name, points, until_kept):
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
