"""Who led a topology before: the epochs of its kept transactions, from their table and manifests, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from trident.states.core.place import Place
from trident.states.history.recorded import TableFiles, rows_behind
from trident.states.history.transaction_rows import SCHEMA

LEADERSHIPS = 50
# Transactions that their table does not have yet: it gets those of a minute, or a hundred, at once.
_BEHIND_MAX = 200
_TOLD_BY = pa.schema([SCHEMA.field(name) for name in ("incarnation", "epoch", "decided_at", "published_at")])
_Led = dict[str, Any]


class LedBefore:
    """The leaderships of which a transaction is kept. Keep one: of a table of transactions it reads each file once.

    For one thread at a time.
    """

    def __init__(self, warehouse: Place, topology: str) -> None:
        self._warehouse, self._topology = warehouse, topology
        self._tables: dict[str, TableFiles[dict[tuple[str, int], _Led]]] = {}

    def __call__(self, groups: Sequence[str]) -> list[_Led]:
        """Gives them, the newest first, at most ``LEADERSHIPS``.

        Returns:
            of each ``epoch``, ``first_at`` and ``last_at`` (of its transactions, seconds since the epoch; None: not
            known), ``transactions``, how many are kept; of those that the table does not have yet at most
            ``_BEHIND_MAX`` of a group count. A leadership that has committed nothing is not among them.

        Raises:
            OSError: the warehouse cannot be read.
        """
        return leaderships(one for group in groups for one in self._of_group(group))

    def _of_group(self, group: str) -> list[_Led]:
        table = self._tables.get(group)
        if table is None:
            table = self._tables[group] = TableFiles(self._warehouse, self._topology, group, _TOLD_BY, _of_file)
        mark, files, _ = table.look()
        incarnation, behind = rows_behind(self._warehouse, self._topology, group, mark, _BEHIND_MAX)
        recorded = [one for file in files for (of, _), one in file.items() if of == incarnation]
        return [*recorded, *(part_of(row) for row in behind if row["epoch"] is not None)]


def _of_file(batches: Iterable[pa.RecordBatch]) -> dict[tuple[str, int], _Led]:
    """(incarnation, epoch) → the leadership, of the rows of a file of the table of transactions."""
    found: dict[tuple[str, int], _Led] = {}
    for batch in batches:
        for row in batch.to_pylist():
            if row["epoch"] is not None:
                _add(found, (row["incarnation"], row["epoch"]), part_of(row))
    return found


def part_of(row: Mapping[str, Any]) -> _Led:
    """The part of a leadership that a row of the table of transactions is."""
    at = row["decided_at"] or row["published_at"]
    moment = None if at is None else at.timestamp()
    return {"epoch": row["epoch"], "first_at": moment, "last_at": moment, "transactions": 1}


def leaderships(parts: Iterable[Mapping[str, Any]]) -> list[_Led]:
    """The newest leaderships, put together of their parts. Pure."""
    found: dict[int, _Led] = {}
    for part in parts:
        _add(found, part["epoch"], part)
    return [found[epoch] for epoch in sorted(found, reverse=True)][:LEADERSHIPS]


def _add(found: dict[Any, _Led], key: Any, more: Mapping[str, Any]) -> None:
    one = found.get(key)
    if one is None:
        found[key] = dict(more)
        return
    one["transactions"] += more["transactions"]
    moments = [part[name] for part in (one, more) for name in ("first_at", "last_at") if part[name] is not None]
    one["first_at"], one["last_at"] = min(moments, default=None), max(moments, default=None)
