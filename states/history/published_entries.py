"""The log entries by which transactions were published: their table versions and times, of transactions long past."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from trident.coordinators.errors import TableError
from trident.coordinators.records import Decision
from trident.states.core.control import DOMAIN, ControlRecord, decode_control
from trident.states.core.place import Place
from trident.states.core.side_by_side import AT_ONCE, side_by_side
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.manifest import Manifest
from trident.states.history.transaction_rows import PublishedAs

_Entry = tuple[int, ControlRecord, float | None]  # version, control record, seconds since the epoch


def published_as(warehouse: Place, found: Sequence[tuple[Decision, Manifest]]) -> dict[int, PublishedAs]:
    """Looks the table versions of transactions up in the logs of their tables; by txid.

    A version that the log has no entry of any more is left out.

    Raises:
        OSError: a log cannot be listed.
    """
    decided = {decision.txid: decision for decision, _ in found}
    wanted: dict[tuple[str, str, str], set[int]] = {}
    for decision, manifest in found:
        for table in manifest.tables:
            if table.state_kind.has_table:
                wanted.setdefault((table.path, table.table_id, manifest.incarnation), set()).add(decision.txid)
    # txid → table id → version and time; the lowest version counts: a log drop behind it carries the record on.
    entries: dict[int, dict[str, tuple[int, float | None]]] = {txid: {} for txid in decided}
    for (path, table_id, incarnation), txids in wanted.items():
        for version, control, at in _entries_down(warehouse / path, incarnation, min(txids)):
            if control.txid in txids and control.is_of(decided[control.txid]):
                entries[control.txid][table_id] = version, at
    return {txid: _as(of_txid) for txid, of_txid in entries.items()}


def _as(entries: Mapping[str, tuple[int, float | None]]) -> PublishedAs:
    versions = {table_id: version for table_id, (version, _) in entries.items()}
    return PublishedAs(versions, max((at for _, at in entries.values() if at is not None), default=None))


def _entries_down(path: Place, incarnation: str, txid: int) -> Iterator[_Entry]:
    """The entries with a control record, the newest first, down to those of an incarnation's transactions before one.

    Those of later incarnations are passed: behind a rollback their transactions have smaller numbers again.
    """
    log = DeltaLog(path)
    versions = log.versions()
    step = 1 if path.is_local else AT_ONCE
    for end in range(len(versions), 0, -step):
        some = versions[max(end - step, 0) : end][::-1]
        for entry in side_by_side([partial(_entry, log, version) for version in some]):
            if entry is None:
                continue
            if entry[1].incarnation == incarnation and entry[1].txid < txid:
                return
            yield entry


def _entry(log: DeltaLog, version: int) -> _Entry | None:
    """None for one without a control record, as of an OPTIMIZE, and for one that cannot be read."""
    try:
        commit = log.commit(version)
        control = commit.domains.get(DOMAIN)
        if control is None:
            return None
        at = commit.info.get("timestamp")
        return version, decode_control(log.path, control), at / 1000.0 if isinstance(at, (int, float)) else None
    except TableError:
        return None
