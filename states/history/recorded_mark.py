"""The name of the table of transactions, and the mark in its log that says what it has."""

from __future__ import annotations

import json
from dataclasses import dataclass

from trident.coordinators.errors import ForeignTable, TableError
from trident.coordinators.stored_json import Unreadable, as_record, parse_stored, shown
from trident.states.core.place import Place
from trident.states.delta.delta_log import DeltaLog

DOMAIN = "trident.transactions"
_SCHEMA = 1


def table_name(topology: str, group: str) -> str:
    """The folder of a batch group's table of transactions, in the warehouse."""
    return f"{topology}__{group}__transactions"


@dataclass(frozen=True)
class RecordedUpTo:
    """The table's own statement of what it has, in its log.

    Attributes:
        topology, group: whose table it is.
        incarnation: of the topology, that wrote last.
        upto: of that incarnation it has every transaction up to this one.
        generation: grows when rows are taken back: the commits behind that have an app id of their own.
    """

    topology: str
    group: str
    incarnation: str
    upto: int
    generation: int = 0

    def encode(self) -> str:
        return json.dumps({"schema": _SCHEMA, **vars(self)}, sort_keys=True)

    @classmethod
    def decode(cls, path: object, text: str | None) -> RecordedUpTo:
        """Reads what encode() gave.

        Raises:
            ForeignTable: there is none, or it cannot be read.
        """
        try:
            return as_record(parse_stored(text or "null"), cls, _SCHEMA)
        except Unreadable as problem:
            raise ForeignTable(
                f"the Delta table {path} is no table of transactions, or another program has changed its mark",
                found="no mark" if text is None else shown(text),
                expected=f"the domain {DOMAIN} of schema {_SCHEMA} ({problem})",
                action="move the table away: it is made again from the manifests that are kept",
            ) from None

    @property
    def app_id(self) -> str:
        """Of the commits that add rows."""
        return f"trident/{self.topology}/{self.group}/{self.incarnation}/transactions/{self.generation}"


def owner_by_log(path: Place) -> tuple[str, str] | None:
    """Topology and batch group of a table of transactions, by the newest log entry that says so and can be read."""
    log = DeltaLog(path)
    try:
        versions = log.versions()
    except TableError:
        return None
    for version in reversed(versions):
        try:
            text = log.commit(version).domains.get(DOMAIN)
            if text is not None:
                mark = RecordedUpTo.decode(path, text)
                return mark.topology, mark.group
        except TableError:
            continue
    return None
