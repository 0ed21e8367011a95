"""The states of a topology for a page: size, rows and lag of their tables, by the tables' logs alone, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from trident.coordinators.errors import ForeignTable, TableError
from trident.states.core.control import DOMAIN, decode_control
from trident.states.core.descriptor import StateDescriptor, list_descriptors
from trident.states.core.place import Place
from trident.states.delta.delta_log import TableMissing
from trident.states.delta.log_tables import LogTables, SizedTables, TableTotals, totals_of
from trident.states.keyed.tables import check_own, greatest_txid, merged_upto


class StateSizes:
    """Looks at the tables of one topology. Keep one: of a log that was read only the newest entries are read again.

    The files of logs are remembered, which a MERGE shortens; of all other tables, which may grow for ever, sums alone.
    """

    def __init__(self, warehouse: Place, topology: str) -> None:
        self._warehouse, self._topology = warehouse, topology
        self._logs, self._sized = LogTables(), SizedTables()

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
        keyed = state.state_kind.has_log
        path = str(self._warehouse / state.published_path)
        try:
            log = self._logs.load(path) if keyed else None
            published = self._sized.load(path) if log is None else totals_of(log)
        except TableMissing:
            return
        found["tables"].append(_record(state.published_path, published))
        control = decode_control(path, published.control(DOMAIN))
        check_own(state, path, control)
        found["txid"] = control.txid
        if log is None:
            return
        found["merged"] = control.starts_at - 1
        with suppress(TableMissing):
            plain = self._sized.load(str(self._warehouse / state.plain_path))
            found["tables"].append(_record(state.plain_path, plain))
            found["merged"] = merged_upto(state, plain, control.starts_at)
        found["waiting_files"] = sum(greatest_txid(file) > found["merged"] for file in log.files.values())


def _record(path: str, table: TableTotals) -> dict[str, Any]:
    return {
        "path": path,
        "version": table.version,
        "rows": table.rows,
        "files": table.files,
        "bytes": table.bytes,
    }


def _newest(found: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Batch group → the last transaction that any of its tables has."""
    newest: dict[str, int] = {}
    for one in found:
        if one["txid"] is not None:
            newest[one["group"]] = max(newest.get(one["group"], 0), one["txid"])
    return newest
