"""``trident.view``: one moment of all tables of a batch group, for any reader of plain Delta tables."""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from trident.config import TridentConfig
from trident.coordinators.errors import ConfigError, TableError, TopologyError
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.group_context import GroupContext
from trident.states.core.names import check_name
from trident.states.core.place import Place
from trident.states.core.storage import explained_storage_errors
from trident.states.delta.kernel import KernelEngine
from trident.states.history.kept import published_as_of
from trident.states.history.views import ViewRecorder, read_view
from trident.states.keyed.compactor import Compactor
from trident.states.publishing.dead_letters import side_tables


class TableAt(NamedTuple):
    """A table at a fixed version.

    Attributes:
        path: its folder or URL.
        version: the table version.
    """

    path: str
    version: int


@dataclass(frozen=True)
class View:
    """One moment of a batch group: what :func:`view` gives.

    Attributes:
        topology, group: whose tables these are.
        txid: the transaction: each table has all transactions up to it, and none after it.
        tables: by the names of the states: path and table version; of a keyed state the plain table. Tables of dead
            letters and of messages are there under their own names, once they have rows.
    """

    topology: str
    group: str
    txid: int
    tables: Mapping[str, TableAt]

    def lines(self, reader: str) -> str:
        """Lines of Python that read all tables at their versions, each into a variable of its name.

        They run as they are: for a warehouse in a store, give delta-rs its ``storage_options``.

        Args:
            reader: "delta-rs", "duckdb" or "spark"; the last one's lines take a session ``spark`` with Delta.

        Raises:
            ConfigError: no such reader.
        """
        if reader not in _READERS:
            raise ConfigError("no lines for this reader", found=repr(reader), expected=f"one of {', '.join(_READERS)}")
        head, line = _READERS[reader]
        names = {name: _variable(name) for name in self.tables}
        tables = [line.format(name=names[name], path=at.path, version=at.version) for name, at in self.tables.items()]
        return "\n".join([*head, *tables])

    def __str__(self) -> str:
        """Names the transaction, and has the lines for each reader."""
        return "\n\n".join([self._caption(), *(f"# {reader}\n{self.lines(reader)}" for reader in _READERS)])

    def _repr_html_(self) -> str:
        """In a notebook: the versions, and lines that can be copied."""
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(name)}</td><td>{at.version}</td>"
            f"<td style='text-align:left'>{escape(at.path)}</td></tr>"
            for name, at in self.tables.items()
        )
        readers = "".join(
            f"<details{' open' if reader == next(iter(_READERS)) else ''}><summary>{reader}</summary>"
            f"<pre>{escape(self.lines(reader))}</pre></details>"
            for reader in _READERS
        )
        head = "<tr><th>table</th><th>version</th><th>folder</th></tr>"
        return f"<b>{escape(self._caption())}</b><table>{head}{rows}</table>{readers}"

    def _caption(self) -> str:
        return f"{self.topology}, batch group {self.group}: all tables as of transaction {self.txid}"


# reader -> its first lines, and the line for a table.
_READERS = {
    "delta-rs": (["from deltalake import DeltaTable"], "{name} = DeltaTable({path!r}, {version}).to_pyarrow_table()"),
    "duckdb": (
        ["import duckdb", "from deltalake import DeltaTable"],
        "{name} = duckdb.from_arrow(DeltaTable({path!r}, {version}).to_pyarrow_dataset())",
    ),
    "spark": ([], '{name} = spark.read.format("delta").option("versionAsOf", {version}).load({path!r})'),
}


def _variable(name: str) -> str:
    """A state's name as one of Python's: states may be called ``class``, or as what the lines use."""
    name = re.sub(r"\W", "_", name)
    return f"{name}_" if keyword.iskeyword(name) or name in ("spark", "duckdb", "DeltaTable") else name


def view(warehouse: "str | os.PathLike[str]", topology: str, group: str | None = None) -> View:
    """The newest transaction of which all tables of a batch group have a version, and these versions.

    For readers that know nothing of Trident: all that they read at these versions is as of one transaction, however
    many tables they read and however long it takes. It lags behind the topology by the MERGEs that are still to come
    (``trident status`` shows by how much); :func:`trident.read` has no lag. ::

        v = trident.view("warehouse", "wordcount")
        DeltaTable(*v.tables["counts"]).to_pyarrow_table()  # delta-rs

        path, version = v.tables["counts"]  # Spark
        spark.read.format("delta").option("versionAsOf", version).load(path)

        counts = DeltaTable(*v.tables["counts"]).to_pyarrow_dataset()  # DuckDB, by delta-rs
        duckdb.sql("SELECT word, count FROM counts ORDER BY count DESC LIMIT 10")

        print(v)  # such lines for all tables and each reader; a notebook shows them by itself

    Needs no Spark, no JVM, no ZooKeeper and no running topology: it reads one small file, in milliseconds. Of a group
    without keyed states, whose tables nothing is merged into, it asks the tables' logs, and there is no lag.

    Args:
        warehouse: the topology's warehouse folder or URL.
        topology: its name.
        group: the batch group, where the topology has several.

    Raises:
        TopologyError: there is no such topology or group here, or the topology has several.
        TableError: there is no view yet, or it cannot be read: the message says what to do.
        StoreProblem: the warehouse's store refuses, or cannot be reached.
    """
    check_name("topology", topology)
    place = TridentConfig(warehouse=os.fspath(warehouse)).warehouse_place()
    with explained_storage_errors():
        found = read_view(place, topology, group) if group is not None else None
        if found is None:
            states = _states(place, topology, group)
            group = states[0].group
            if not any(state.state_kind.has_log for state in states):
                return _of_appends(place, states)
            found = read_view(place, topology, group)
        if found is None:
            raise TableError(
                f"there is no view of batch group {group!r} of topology {topology!r} yet",
                expected="a MERGE of all its keyed states, up to one transaction",
                action="the running topology makes it (merge_every_txids and merge_interval_secs of each DeltaMapState "
                f"say when); `trident compact {topology}` makes one now",
            )
        tables = {name: TableAt(str(place / table.path), table.version) for name, table in found.tables.items()}
        return View(topology, found.group, found.txid, tables)


def _states(warehouse: Place, topology: str, group: str | None) -> list[StateDescriptor]:
    """The states that one batch group of a topology has now."""
    found = [state for state in list_descriptors(warehouse, topology) if state.ends_at is None]
    groups = sorted({state.group for state in found})
    if not groups:
        raise TopologyError(
            f"the warehouse {warehouse} has no state of a topology {topology!r}",
            action="check the name and the warehouse; a state exists from its topology's first start on",
        )
    if group is None and len(groups) > 1:
        raise TopologyError(
            f"topology {topology!r} has several batch groups, and each its own transactions",
            found=", ".join(groups),
            expected="group=, one of them",
        )
    if group is not None and group not in groups:
        raise TopologyError(f"topology {topology!r} has no batch group {group!r}", expected=f"one of {groups}")
    return [state for state in found if state.group == (group or groups[0])]


def _of_appends(warehouse: Place, states: Sequence[StateDescriptor]) -> View:
    """Append tables as of the last transaction that all of them have: it is decided, and all of it is there."""
    topology, group = states[0].topology, states[0].group

    def at(state: StateDescriptor, txid: int) -> tuple[int, int]:
        path = warehouse / state.published_path
        found = published_as_of(path, topology, group, state.incarnation, txid)
        return found.control.txid, found.version

    txid = min(at(state, 1 << 62)[0] for state in states)
    tables = {
        state.name: TableAt(str(warehouse / state.published_path), at(state, txid)[1])
        for state in states
        if state.starts_at - 1 <= txid
    }
    return View(topology, group, txid, tables)


def recorder(
    engine: KernelEngine, of: GroupContext, compactors: Sequence[Compactor], epoch: int | None = None
) -> ViewRecorder:
    """The recorder of a batch group's views, with the compactors of its keyed states."""

    def settle() -> None:
        for compactor in compactors:
            compactor.settle()

    def own_side_tables() -> list[Place]:
        return [path for path, owner in side_tables(of.warehouse, of.topology) if owner == of.group]

    return ViewRecorder(engine, of, epoch, settle, own_side_tables)
