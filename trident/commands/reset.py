"""``trident reset``: forgets a topology, first in ZooKeeper, then in the warehouse.

Killed anywhere, or kept from deleting something, it is run again and goes on;
until it has ended ZooKeeper has a mark of it, and no process starts the topology.
"""

from __future__ import annotations

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import TableError, TopologyError
from trident.coordinators.unfinished import delete_topology, finish_reset
from trident.running.own_zookeeper import own_zookeeper
from trident.states.core import storage
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.names import check_name
from trident.states.core.place import Place
from trident.states.delta.beside import MESSAGES, SIDE_TABLES, VIEWS
from trident.states.delta.incarnations import incarnations_in
from trident.states.history.recorded import tables_of
from trident.states.publishing.dead_letters import tables_beside


def reset(name: str, drop_tables: bool = False, config: TridentConfig | None = None, force: bool = False) -> str:
    """Forgets a topology's transactions: its next start begins at transaction 1 of a new incarnation.

    Without drop_tables its tables stay; the next start refuses them unless the
    states say ``adopt=True`` or have other names. States outside of the
    warehouse are not touched: their rows stay, and the next start refuses them
    in the same way. A reset that was interrupted is to be run again; until then
    the topology does not start.

    Args:
        force: do not ask whether this is the topology's ZooKeeper.

    Raises:
        CoordinationError: the topology runs, or is another ZooKeeper's.
        TopologyError: nothing is known of it.
        TableError: something could not be deleted: the message says what was, and what was not.
    """
    check_name("topology", name)  # it becomes a folder that is deleted
    config = as_config(config)
    warehouse = config.warehouse_place()
    descriptors = list_descriptors(warehouse, name)
    folder = warehouse / "_trident" / name
    with own_zookeeper(config, warehouse, name, "reset", force) as zk:
        # Messages settled before say nothing of those that come now, nor views; dead letters are kept like any table.
        kinds = (*SIDE_TABLES, VIEWS) if drop_tables else (MESSAGES, VIEWS)
        beside = [path for path, _ in tables_beside(warehouse, name, kinds)]
        beside += tables_of(warehouse, name) if drop_tables else []  # else the past is kept: it names the incarnation
        is_here = bool(descriptors or beside) or storage.exists(folder)
        published = {one.incarnation for one in incarnations_in(warehouse, name)} if is_here else None
        known = delete_topology(zk, name, published)
        if not known and not is_here:
            finish_reset(zk, name)
            raise TopologyError(
                f"nothing is known of a topology {name!r}", action="check the name, warehouse and zookeeper"
            )
        removed = _Removed()
        for descriptor in descriptors:
            _forget_state(removed, warehouse, descriptor, drop_tables)
        for path in beside:
            removed.folder(path)
        # Last: by the tables' descriptors a reset that is run again finds what is left.
        removed.folder(folder)
        if removed.failed:
            raise TableError(
                f"{name}: its transactions are forgotten, but not everything could be deleted",
                found="; ".join(removed.failed),
                expected=f"all of it deleted; this is: {', '.join(removed.gone) or 'nothing'}",
                action=f"mend that and run `trident reset {name}` again, with the same options: it goes on; until it "
                "has ended the topology does not start",
            )
        finish_reset(zk, name)
    tables = ", ".join(descriptor.name for descriptor in descriptors) or "none"
    what = "dropped" if drop_tables else "kept; the next start refuses them unless their states have adopt=True"
    return (
        f"{name}: its transactions are forgotten; tables ({tables}): {what}; rows that were published to states "
        "outside of the warehouse are kept there; the next start refuses those states, too, unless they have adopt=True"
    )


def _forget_state(removed: _Removed, warehouse: Place, descriptor: StateDescriptor, drop_tables: bool) -> None:
    """The descriptor goes last, and only when the tables that it names have gone."""
    paths = sorted({warehouse / descriptor.published_path, warehouse / descriptor.plain_path}) if drop_tables else []
    if all([removed.folder(path) for path in paths]):
        try:
            descriptor.remove(warehouse)
        except OSError as error:
            removed.failed.append(f"the descriptor of state {descriptor.name}: {error}")


class _Removed:
    """Collects what was deleted, and what could not be, as text."""

    def __init__(self) -> None:
        self.gone: list[str] = []
        self.failed: list[str] = []

    def folder(self, path: Place) -> bool:
        """Deletes a folder with all that is in it; True when it is not there afterwards."""
        try:
            if storage.delete(path):
                self.gone.append(path.name)
            return True
        except OSError as error:
            others = len(getattr(error, "problems", ())) - 1
            more = f" and {others} more" if others > 0 else ""
            self.failed.append(f"{path} is left ({error}{more})")
            return False
