"""Finds what is stored of a topology: its name, incarnation, batch groups, its tables as they are now. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trident.config import TridentConfig
from trident.coordinators.errors import TableError, TopologyError
from trident.coordinators.identities import first_id, rollbacks_of, same_start
from trident.coordinators.records import GroupRecord
from trident.coordinators.registration import IdentityDict, Registration
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.facts import APPEND, AUXILIARY, LOG, PLAIN, TableFacts
from trident.states.core import storage
from trident.states.core.control import DOMAIN, decode_control
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.names import check_name
from trident.states.core.place import Place
from trident.states.delta.delta_log import LogSnapshot
from trident.states.delta.history import control_at
from trident.states.keyed.tables import merged_upto
from trident.states.publishing.dead_letters import side_tables
from trident.states.publishing.incarnations import incarnations_in

_NOT_TOPOLOGIES = frozenset({"states", "zookeeper"})


@dataclass(frozen=True)
class StoredTable:
    """A Delta table that a topology writes, or has written.

    Attributes:
        path: relative to the warehouse.
        state: None of an auxiliary table.
    """

    group: str
    role: str
    path: str
    state: StateDescriptor | None = None

    @property
    def name(self) -> str:
        return self.path if self.state is None else self.state.name


def tables_of(states: Iterable[StateDescriptor], warehouse: Place, topology: str, of: str | None) -> list[StoredTable]:
    """All Delta tables of a topology, logs before plain tables.

    Args:
        states: its states, or those of a batch group.
        of: an incarnation: auxiliary tables from before a reset, which has kept them, are left out.
    """
    states = list(states)
    keyed = [state for state in states if state.state_kind.has_log]
    return [
        *(StoredTable(one.group, LOG if one in keyed else APPEND, one.published_path, one) for one in states),
        *(
            StoredTable(group, AUXILIARY, path.name)
            for path, group in side_tables(warehouse, topology)
            if of is None or _is_of(path, of)
        ),
        *(StoredTable(one.group, PLAIN, one.plain_path, one) for one in keyed),
    ]


def _is_of(path: Place, incarnation: str) -> bool:
    control = control_at(path)
    return control is not None and same_start(control.incarnation, incarnation)


def table_now(table: StoredTable, snapshot: LogSnapshot, record: GroupRecord | None) -> TableFacts:
    """A table as one of its versions says.

    Args:
        record: ZooKeeper's, with its mark.
    """
    text, table_id = snapshot.control(DOMAIN), str(snapshot.metadata["id"])
    control = decode_control(snapshot.path, text) if text is not None else None
    merged = 0
    if table.role == PLAIN and table.state is not None:
        merged = merged_upto(table.state, snapshot, (control or table.state).starts_at)
    mark = record.tables.get(table_id) if record else None
    return TableFacts(
        table.name, table.role, table.path, table_id, snapshot.version, control, merged, snapshot.files, mark
    )


# --- what a command names ---------------------------------------------------------------------------------


def registered(zk: ZooKeeper, name: str) -> tuple[str, IdentityDict]:
    """A topology's incarnation and identity, as ZooKeeper has them.

    Raises:
        TopologyError: it knows no such topology.
    """
    found = Registration(zk, name).read()
    if found is None:
        raise TopologyError(
            f"ZooKeeper knows no topology {name!r}",
            action=f"check the name, warehouse and zookeeper; `trident repair {name}` rebuilds what it has forgotten",
        )
    return found


def choose_group(topology: str, groups: Sequence[str], group: str | None) -> str:
    """The batch group of that name; without a name the only one.

    Raises:
        TopologyError: there is none of that name, or there are several.
    """
    names = sorted(groups)
    if group is None and len(names) == 1:
        return names[0]
    if group is None or group not in names:
        raise TopologyError(
            f"{topology} has several batch groups, each with its own transactions"
            if group is None
            else f"{topology} has no batch group {group!r}",
            found=", ".join(names) if group is None else repr(group),
            expected=f"one of {', '.join(names)}" if names else "a topology with a stream of batches",
            action="name one: group=… in Python, --group on the command line",
        )
    return group


def incarnation_of(warehouse: Place, topology: str) -> str:
    """The topology's incarnation, as its tables and manifests say: the one after its last rollback.

    Raises:
        TopologyError: the warehouse has nothing of the topology.
        TableError: its tables are of several incarnations.
    """
    signs = incarnations_in(warehouse, topology)
    found = sorted({sign.incarnation for sign in signs}, key=rollbacks_of)
    if len({first_id(each) for each in found}) == 1:
        return found[-1]  # a table that has left the topology has no part in its rollbacks
    if found:
        raise TableError(
            f"the tables of {topology} are of several incarnations",
            found="; ".join(sign.text for sign in signs),
            expected="one",
            action="start the topology once: it settles with which of them it continues",
        )
    raise unknown_topology(warehouse, topology)


def warehouse_of(config: TridentConfig, name: str) -> Place:
    """The warehouse of the settings, in which there is such a topology.

    Raises:
        TopologyError: there is none.
    """
    check_name("topology", name)
    warehouse = config.warehouse_place()
    if not storage.is_folder(warehouse / "_trident" / name):
        raise unknown_topology(warehouse, name)
    return warehouse


def unknown_topology(warehouse: Place, name: str) -> TopologyError:
    """The error for a name of which the warehouse has nothing; it says which names it has."""
    own = warehouse / "_trident"
    others = [
        each
        for each in sorted(storage.list_names(own))
        if each not in _NOT_TOPOLOGIES and each[:1].isalpha() and storage.is_folder(own / each) and each != name
    ]
    return TopologyError(
        f"the warehouse {warehouse} has nothing of a topology {name!r}",
        found=f"those of {', '.join(others)}" if others else "none of any topology",
        action="check the name, and the warehouse in which it runs (--warehouse)",
    )
