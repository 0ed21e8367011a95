"""An outside state as another package would write it, over an SQLite file: what the port asks for, and no more."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from trident import OutsideMark, OutsidePart, OutsideRows, OutsideState
from trident.coordinators.errors import SchemaMismatch, StateAway

_TABLES = """
CREATE TABLE IF NOT EXISTS rows (state TEXT, word TEXT, pid INTEGER);
CREATE TABLE IF NOT EXISTS marks (topology TEXT, state TEXT, part INTEGER, incarnation TEXT, epoch INTEGER,
    txid INTEGER, attempt_id INTEGER, PRIMARY KEY (topology, state, part));
"""

_FENCE = -1  # in the place of a part's number


@dataclass(frozen=True)
class LedgerState(OutsideState):
    """Appends the field ``word``. A file ``<path>.away`` is a store that does not answer."""

    path: str
    name: str = "ledger"
    partitions: int = 1
    adopt: bool = False

    def _connect(self) -> sqlite3.Connection:
        if os.path.exists(f"{self.path}.away"):
            raise StateAway("the ledger does not answer")
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        connection.executescript(_TABLES)
        return connection

    def check_store(self, rows: OutsideRows) -> None:
        self._connect().close()
        if "word" not in rows.schema.names:
            raise SchemaMismatch("the ledger has words only", found=rows.schema.names, expected="word")

    def take_over(self, topology: str, incarnation: str, epoch: int) -> Mapping[int, OutsideMark]:
        with closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            query = "SELECT part, incarnation, epoch, txid, attempt_id FROM marks WHERE (topology, state) = (?, ?)"
            stored = connection.execute(query, (topology, self.name)).fetchall()
            marks = {part: OutsideMark(*mark).taken_over(incarnation, epoch, self.adopt) for part, *mark in stored}
            marks.setdefault(_FENCE, OutsideMark(incarnation, epoch, 0, 0))
            for part, mark in marks.items():
                self._put(connection, (topology, self.name, part), mark)
            connection.execute("COMMIT")
            return marks

    def publish(self, part: OutsidePart, batches: Iterator[pa.RecordBatch]) -> None:
        of = (part.topology, part.state, part.number)
        with closing(self._connect()) as connection:
            connection.execute("BEGIN IMMEDIATE")
            query = "SELECT part, incarnation, epoch, txid, attempt_id FROM marks WHERE (topology, state) = (?, ?)"
            stored = {number: OutsideMark(*mark) for number, *mark in connection.execute(query, of[:2])}
            if _FENCE in stored:
                part.mark.check_fence(stored[_FENCE], "the ledger")
            part.check_known(stored.values(), "the ledger")
            if part.mark.is_new(stored.get(part.number), "the ledger"):
                words = [word for batch in batches for word in batch.column("word").to_pylist()]
                lines = [(part.state, word, os.getpid()) for word in words]
                connection.executemany("INSERT INTO rows VALUES (?, ?, ?)", lines)
            self._put(connection, of, part.mark)
            connection.execute("COMMIT")

    @staticmethod
    def _put(connection: sqlite3.Connection, of: tuple[str, str, int], mark: OutsideMark) -> None:
        values = (*of, mark.incarnation, mark.epoch, mark.txid, mark.attempt_id)
        connection.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    # --- for tests

    def words(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            return sorted(word for (word,) in connection.execute("SELECT word FROM rows WHERE state = ?", (self.name,)))

    def processes(self) -> set[int]:
        with closing(sqlite3.connect(self.path)) as connection:
            return {pid for (pid,) in connection.execute("SELECT pid FROM rows")}
