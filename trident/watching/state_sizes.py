"""The states of a topology for a page: size, rows and lag of their tables, by the tables' logs alone, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trident.coordinators.errors import ForeignTable, TableError
from trident.states.core.control import DOMAIN, decode_control
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.place import Place
from trident.states.delta.kernel_errors import TableMissing
from trident.states.delta.log_tables import LogSnapshot, LogTables
from trident.states.keyed.tables import check_own, greatest_txid, merged_upto


class StateSizes:
    """Looks at the tables of one topology. Keep one: of a log that was read only the newest entries are read again."""

    def __init__(self, warehouse: Place, topology: str, tables: LogTables | None = None) -> None:
        self._warehouse, self._topology = warehouse, topology
        self._tables = tables or LogTables()

    def look(self, advanced: Mapping[str, int] | None = None) -> list[dict[str, Any]]:
        """A record for each state that has a descriptor, by name.

        Args:
            advanced: batch group → its last advanced transaction, where it is known; else the tables are asked.

        Returns:
            of each ``name``, ``kind``, ``group``, ``keys`` (``name`` and ``type``), ``has_keys`` (it can be looked up),
            ``txid`` (the last transaction that it has), ``tables`` (``path``, ``version``, ``rows``, None where the log
            does not say, ``files``, ``bytes``), of a keyed state ``merged`` (the last transaction that the plain table
            has), ``lag`` (transactions that it is behind) and ``waiting_files`` (of the log, not merged yet);
            ``trouble`` where its tables cannot be read.
        """
        try:
            states = list_descriptors(self._warehouse, self._topology)
        except TableError as error:
            return [{"name": "(unreadable)", "trouble": str(error), "tables": [], "keys": [], "has_keys": False}]
        found = [self._look(state) for state in states if state.ends_at is None]
        newest = _newest(found) | dict(advanced or {})
        for one in found:
            if one.get("merged") is not None:
                one["lag"] = max(newest.get(one["group"], 0) - one["merged"], 0)
        return found

    def _look(self, state: StateDescriptor) -> dict[str, Any]:
        types = {field.name: field.dataType.simpleString() for field in state.schema.fields}
        found: dict[str, Any] = {
            "name": state.name,
            "kind": state.kind,
            "group": state.group,
            "keys": [{"name": key, "type": types[key]} for key in state.keys],
            "has_keys": state.state_kind.has_log and not state.history_by,
            "txid": None,
            "tables": [],
            "trouble": "",
        }
        try:
            self._add_tables(state, found)
        except (TableError, ForeignTable) as error:
            found["trouble"] = str(error)
        return found

    def _add_tables(self, state: StateDescriptor, found: dict[str, Any]) -> None:
        published = self._table(state.published_path, found)
        if published is None:
            return
        control = decode_control(published.path, published.control(DOMAIN))
        check_own(state, published.path, control)
        found["txid"] = control.txid
        if not state.state_kind.has_log:
            return
        plain = self._table(state.plain_path, found)
        found["merged"] = control.starts_at - 1 if plain is None else merged_upto(state, plain, control.starts_at)
        found["waiting_files"] = sum(greatest_txid(file) > found["merged"] for file in published.files.values())

    def _table(self, path: str, found: dict[str, Any]) -> LogSnapshot | None:
        try:
            snapshot = self._tables.load(str(self._warehouse / path))
        except TableMissing:
            return None
        files = snapshot.files.values()
        rows = [file.num_records for file in files]
        found["tables"].append(
            {
                "path": path,
                "version": snapshot.version,
                "rows": None if snapshot.vectors or None in rows else sum(one or 0 for one in rows),
                "files": len(files),
                "bytes": sum(file.size for file in files),
            }
        )
        return snapshot


def _newest(found: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Batch group → the last transaction that any of its tables has."""
    newest: dict[str, int] = {}
    for one in found:
        if one["txid"] is not None:
            newest[one["group"]] = max(newest.get(one["group"], 0), one["txid"])
    return newest
