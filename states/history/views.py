"""The view of a batch group: one transaction, and the version that each of its tables has of it; a small JSON file.

``<warehouse>/_trident/<topology>/<group>/view.json`` is replaced as a whole after each MERGE that has brought all plain
tables of the group to one transaction. A table version never changes: so a reader that has the file has one moment of
all tables, however long it reads (until a VACUUM removes the version's files: a week, unless told otherwise).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from trident.coordinators import faults
from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored, plain
from trident.states.core import storage
from trident.states.core.descriptor import load_descriptor
from trident.states.core.names import check_inside
from trident.states.core.place import Place

VIEW = faults.register("compact.view", "the record of the versions that a group's tables have of one transaction")
_SCHEMA = 1


@dataclass(frozen=True)
class ViewedTable:
    """A table of a view.

    Attributes:
        path: the folder, relative to the warehouse.
        version: the table version that has all transactions up to the view's, and none after it.
    """

    path: str
    version: int


@dataclass(frozen=True)
class GroupView:
    """The versions of a group's tables as of one transaction.

    Attributes:
        epoch: of the coordinator that wrote it.
        txid: P: all plain tables have exactly the transactions up to this one.
        written_at: seconds since the epoch of Unix.
        tables: by the names of their states; of a keyed state the plain table.
    """

    topology: str
    group: str
    incarnation: str
    epoch: int
    txid: int
    written_at: float
    tables: Mapping[str, ViewedTable]

    @property
    def age(self) -> tuple[int, int]:
        """Orders the views of an incarnation: a later leader may begin at a lower transaction, after a rollback."""
        return self.epoch, self.txid

    def encode(self) -> bytes:
        said = {"schema": _SCHEMA, **plain(self)}
        return json.dumps({**said, "sha256": _digest(said)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> GroupView:
        """Reads what encode() gave; Unreadable where one bit of it is another."""
        said = parse_stored(data)
        digest = said.pop("sha256", None) if isinstance(said, dict) else None
        found = as_record(said, cls, _SCHEMA)
        if digest != _digest(said):
            raise Unreadable("it is not as it was written", f"sha256 {digest}")
        for table in found.tables.values():
            check_inside("the folder of a table", table.path)
        return found


def _digest(said: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def view_path(warehouse: Place, topology: str, group: str) -> Place:
    return Place(warehouse) / "_trident" / topology / group / "view.json"


def read_view(warehouse: Place, topology: str, group: str) -> GroupView | None:
    """The newest view of a batch group; None where there is none, or none since the topology began again.

    Raises:
        TableError: it cannot be read, or has another group's view.
    """
    path = view_path(warehouse, topology, group)
    try:
        view = GroupView.decode(storage.read(path))
        if (view.topology, view.group) != (topology, group):
            raise Unreadable("it is of another batch group", f"{view.topology}/{view.group}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (Unreadable, TableError) as error:
        raise TableError(
            f"the view {path} cannot be read: {error}",
            found=getattr(error, "found", None),
            expected=f"a view of schema {_SCHEMA}, as a running topology writes it",
            action="delete the file: the next MERGE of the topology, or `trident compact`, writes it again",
        ) from None
    return view if _is_of_this_life(warehouse, view) else None


def _is_of_this_life(warehouse: Place, view: GroupView) -> bool:
    """False of a view that a coordinator from before a reset has written: its tables may have been made anew."""
    for name in view.tables:
        if "__" in name:
            continue  # beside the states: it has no descriptor
        try:
            if load_descriptor(warehouse, name).incarnation != view.incarnation:
                return False
        except FileNotFoundError:
            return False
    return True


def write_view(warehouse: Place, view: GroupView) -> bool:
    """Puts a view in the place of an older one; False where the one that is there is as new, or newer.

    Raises:
        OSError: the storage refused; the older one is there.
    """
    try:
        there = read_view(warehouse, view.topology, view.group)
    except TableError:
        there = None  # damaged: replaced
    if there is not None and there.incarnation == view.incarnation and there.age >= view.age:
        return False
    path = view_path(warehouse, view.topology, view.group)
    with faults.fault_point(VIEW):
        storage.make_folder(path.parent, warehouse)
        storage.write(path, view.encode())
    return True
