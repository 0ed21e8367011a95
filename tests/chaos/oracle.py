"""What is really stored, read without any code of the framework: Delta's log as JSON, Parquet files, SQLite, znodes.

And what should be: a plain fold of the source's rows.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


@lru_cache(100_000)
def _entry(path: str, size: int, mtime_ns: int) -> list[dict[str, Any]]:
    """The actions of a log entry; after each of hundreds of cases nearly all entries are those of before."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@lru_cache(100_000)
def _data(path: str, size: int, mtime_ns: int) -> list[dict[str, Any]]:
    return pq.ParquetFile(path).read().to_pylist()


def _unchanged(read: Any, path: Path) -> list[dict[str, Any]]:
    found = path.stat()
    return read(str(path), found.st_size, found.st_mtime_ns)


def data_files(folder: Path) -> list[str]:
    """Parquet files, relative; by os.walk, for folders go while they are listed: a clean-up is in the background."""
    return [
        os.path.relpath(f"{inner}/{name}", folder)
        for inner, _, names in os.walk(folder)
        for name in names
        if name.endswith(".parquet")
    ]


@dataclass
class Table:
    """A Delta table as of its newest version.

    Attributes:
        files: live data files, relative to the folder, each with the txid of the control record it came with.
        removed: files that were live once; VACUUM removes them, after Delta's retention.
        history: the control record of every commit that had one, in order.
        txns: app → the greatest version that was stored.
        order: (app, version) of every commit that had one, in order.
    """

    folder: Path
    files: dict[str, int]
    removed: set[str]
    history: list[dict[str, Any]]
    txns: dict[str, int]
    order: list[tuple[str, int]]

    @classmethod
    def read(cls, folder: Path) -> Table:
        table = cls(folder, {}, set(), [], {}, [])
        for path in sorted((folder / "_delta_log").glob("????????????????????.json")):
            actions = _unchanged(_entry, path)
            before = len(table.history)
            for action in actions:
                table._apply(action)
            txid = table.history[-1]["txid"] if len(table.history) > before else 0
            table.files.update({action["add"]["path"]: txid for action in actions if "add" in action})
        return table

    def _apply(self, action: dict[str, Any]) -> None:
        if "remove" in action:
            self.files.pop(action["remove"]["path"], None)
            self.removed.add(action["remove"]["path"])
        elif "txn" in action:
            app, version = action["txn"]["appId"], action["txn"]["version"]
            self.txns[app] = max(version, self.txns.get(app, version))
            self.order.append((app, version))
        elif action.get("domainMetadata", {}).get("domain") == "trident":
            self.history.append(json.loads(action["domainMetadata"]["configuration"]))

    def rows(self) -> list[dict[str, Any]]:
        """Every row, with the transaction that brought its file as "txid"."""
        return [
            {**row, "txid": txid}
            for file, txid in sorted(self.files.items())
            for row in _unchanged(_data, self.folder / file)
        ]

    def unused(self) -> list[str]:
        """Data files on disk that the log has never named."""
        found = {file for file in data_files(self.folder) if not file.startswith("_delta_log/")}
        return sorted(found - self.files.keys() - self.removed)


class Stored:
    """Everything that one batch group has stored.

    Args:
        warehouse: of the topology.
        maps: the SQLite file of its maps.
        topology: its name.
        prefix: of the group's names.
    """

    def __init__(self, warehouse: Path, maps: Path, topology: str, prefix: str = "") -> None:
        self._warehouse, self._maps, self._topology, self._prefix = warehouse, maps, topology, prefix

    def table(self, name: str) -> Table:
        return Table.read(self._warehouse / named(self._prefix, name))

    def words(self, name: str) -> list[str]:
        """Of a further append table."""
        return [row["word"] for row in self.table(name).rows()]

    def audit(self) -> dict[int, list[str]]:
        """txid → the rows of the append table that every group has."""
        found: dict[int, list[str]] = {}
        for row in self.table("audit").rows():
            found.setdefault(row["txid"], []).append(row["word"])
        return found

    def attempts(self) -> dict[int, int]:
        """txid → the attempt that the append table has, in the order of its log."""
        found: dict[int, int] = {}
        for control in self.table("audit").history:
            if control["attempt_id"] >= 0:
                assert found.get(control["txid"], control["attempt_id"]) == control["attempt_id"], (control, found)
                found[control["txid"]] = control["attempt_id"]
        return found

    def txids(self) -> list[int]:
        """The transactions of the append table, in the order of its log."""
        return [version for app, version in self.table("audit").order if app.startswith("trident/")]

    def keyed(self, name: str) -> Counter:
        """A keyed state: its table up to P, and the log's rows behind P."""
        plain, log = self.table(name), self.table(f"{name}__log")
        merged = max(plain.txns.values(), default=0)
        counts: Counter = Counter()
        for row in plain.rows():
            counts[row["key"]] += row["n"]
        for row in log.rows():
            if row["_txid"] > merged:
                counts[row["key"]] += row["n"]
        return counts

    def per_batch(self, name: str) -> dict[int, Counter]:
        """An append table of counts by key: txid → its rows added up."""
        found: dict[int, Counter] = {}
        for row in self.table(name).rows():
            found.setdefault(row["txid"], Counter())[row["key"]] += row["n"]
        return found

    def map(self, name: str) -> Counter:
        """A map of the user's: the current value of each key, or of "" where there is no key."""
        with sqlite3.connect(self._maps) as connection:
            rows = connection.execute(f'SELECT key, value FROM "{named(self._prefix, name)}"').fetchall()
        values = {json.dumps(json.loads(key)["tuple"]): json.loads(value) for key, value in rows}
        # An opaque or a transactional value is with its transaction.
        plain = {key: next(iter(one.values()))[1] if isinstance(one, dict) else one for key, one in values.items()}
        return Counter({(json.loads(key) or [""])[0]: value for key, value in plain.items()})

    def leftovers(self, states: list[str]) -> list[str]:
        """Files that nobody needs any more, once everything up to the last transaction has succeeded."""
        found = []
        for name in ["audit", *states]:
            found += [f"{name}/{file}" for file in self.table(name).unused()]
        group = self._warehouse / "_trident" / self._topology / f"{self._prefix}words"
        manifests = sorted(path.name for path in (group / "manifests").glob("*/*.json"))
        # The history: of a transaction the attempt that was decided, and no other one.
        of_each = Counter(int(name.split("-")[0]) for name in manifests)
        found += [f"manifests/{name}" for name in manifests if of_each[int(name.split("-")[0])] > 1]
        for kind in ("states", "boundaries"):
            found += data_files(group / kind)
        return found + data_files(group.parent / "streams")


def named(prefix: str, name: str) -> str:
    """As a state of a group is called."""
    return f"{prefix}{name.replace(' ', '_').replace('-', '_')}"


def fold(rows: Sequence[str]) -> Counter:
    """Rows by key: a row is "<key>-<number>"."""
    return Counter(row.split("-")[0] for row in rows)
