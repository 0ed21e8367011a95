"""The record of a fork, in its own warehouse: of what it was made, at which versions, and whether it is whole.

It is written before anything else of the fork, so that the same command, run again after a crash, goes on with the
same versions, ids and incarnation; and so that a folder with other content is told from a fork that was begun.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from trident.coordinators import faults
from trident.coordinators.errors import TableError
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.store_problems import stores_told

WRITE = faults.register("fork.record", "the record of a fork: when it is begun, and when it is whole")
_SCHEMA = 1
_FILE = "fork.json"


@dataclass(frozen=True)
class ForkedState:
    """The versions of a state's tables that a fork takes.

    Attributes:
        published: of the log of a keyed state, or of the append table.
        plain: of the plain table; None: there is none, or it was not made yet.
        merged: P of the plain table: the log's rows up to it are left out. −1 of an append.
    """

    published: int
    plain: int | None
    merged: int


@dataclass(frozen=True)
class ForkedGroup:
    """One batch group of a fork.

    Attributes:
        at: N, the last transaction that the fork has of its original.
        until: M, the last transaction whose batch the fork is given.
        states: by name.
    """

    at: int
    until: int
    states: Mapping[str, ForkedState]


@dataclass(frozen=True)
class ForkRecord:
    """A fork.

    Attributes:
        warehouse, topology, source_incarnation: of the original.
        name, incarnation: of the fork.
        until_kept: whether it stops behind the last batch that it is given.
        whole: whether everything of it is there.
    """

    warehouse: str
    topology: str
    source_incarnation: str
    name: str
    incarnation: str
    until_kept: bool
    groups: Mapping[str, ForkedGroup]
    whole: bool = False

    def table_id(self, path: str) -> str:
        """Delta's id of one of its tables, the same at each try."""
        return str(uuid.uuid5(uuid.UUID(self.incarnation), path))

    def asked(self) -> tuple[object, ...]:
        """Returns what the command says: two with the same are one fork."""
        points = tuple(sorted((group, part.at) for group, part in self.groups.items()))
        return self.warehouse, self.topology, self.name, points, self.until_kept

    def put_into(self, warehouse: Place) -> int:
        """Writes the record, whole and durable; returns its size in bytes."""
        path, data = _path(warehouse, self.name), self._data()
        with faults.fault_point(WRITE):
            storage.make_folder(path.parent, warehouse)
            storage.write(path, data)
        return len(data)

    def begin_in(self, warehouse: Place) -> ForkRecord:
        """Writes the first record; returns the one that is there: another call may have begun a fork of this name."""
        path = _path(warehouse, self.name)
        with faults.fault_point(WRITE):
            storage.make_folder(path.parent, warehouse)
            try:
                storage.create(path, self._data())
            except FileExistsError:
                return load_fork(warehouse, self.name) or self
        return self

    def _data(self) -> bytes:
        return json.dumps({"schema": _SCHEMA, **asdict(self)}, indent=1, sort_keys=True).encode()


def load_fork(warehouse: Place, name: str) -> ForkRecord | None:
    """The record of a fork; None of a topology that is none.

    Raises:
        TableError: it cannot be read.
        StoreProblem: the store refuses, or does not answer.
    """
    path = _path(warehouse, name)
    try:
        with stores_told():
            return as_record(parse_stored(storage.read(path)), ForkRecord, _SCHEMA)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TableError(f"the record of the fork {name} cannot be read: {path}: {error}") from error
    except Unreadable as error:
        raise TableError(
            f"the record of the fork {name} cannot be read: {path}: {error}",
            found=getattr(error, "found", None),
            expected=f"a JSON object of schema {_SCHEMA}",
            action="bring the file back; or delete the fork's folder, and make it again",
        ) from error


def forks_in(warehouse: Place) -> list[str]:
    """The names of the forks in a warehouse, begun or whole."""
    own = warehouse / "_trident"
    return [name for name in sorted(storage.list_names(own)) if storage.exists(own / name / _FILE)]


def _path(warehouse: Place, name: str) -> Place:
    return warehouse / "_trident" / name / _FILE
