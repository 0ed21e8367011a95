"""Spouts, bolts and an acker of the tests of tuple topologies: they record what they are told and given."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from trident.spouts.rich import RichSpout
from trident.tuples.bolts import BasicBolt, RichBolt
from trident.workers.anchors import Ledger

# They travel whole, as those of a script do: a worker need not import the tests for them.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Listed(RichSpout):
    """Hands out what it is given; what fails comes again, as often as ``replays``. Records what it is told."""

    fields: Any = "value"

    def __init__(self, messages: list[tuple[Any, list[Any]]], fields: Any = "value", replays: int = 10**9) -> None:
        self.waiting, self.fields, self.replays = deque(messages), fields, replays
        self.rows: dict[Any, list[Any]] = dict(messages)
        self.told: list[tuple[str, Any]] = []
        self.threads: set[int] = set()
        self.closed = 0

    def next_tuple(self) -> None:
        self.threads.add(threading.get_ident())
        if self.waiting:
            message_id, rows = self.waiting.popleft()
            self.collector.emit_many(rows, message_id)

    def ack(self, message_id: Any) -> None:
        self.threads.add(threading.get_ident())
        self.told.append(("ack", message_id))

    def fail(self, message_id: Any) -> None:
        self.threads.add(threading.get_ident())
        self.told.append(("fail", message_id))
        if self.told.count(("fail", message_id)) <= self.replays:
            self.waiting.append((message_id, self.rows[message_id]))

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed += 1

    def acked(self) -> list[Any]:
        return sorted(message_id for kind, message_id in self.told if kind == "ack")


class Write(RichBolt):
    """Appends its task and every tuple to a file; acknowledges."""

    def __init__(self, path: Path, fields: Any = "") -> None:
        self.path, self.fields = str(path), fields

    def prepare(self, context) -> None:
        self.seen: list[Any] = []
        self.file = open(self.path, "a", encoding="utf-8")

    def execute(self, tuple) -> None:
        self.seen.append([tuple.source, *tuple.values])
        self.collector.ack(tuple)

    def cleanup(self) -> None:
        with self.file:
            self.file.write(json.dumps([self.context.task, self.seen], ensure_ascii=False) + "\n")


def written(path: Path) -> list[tuple[int, list[list[Any]]]]:
    """(task, tuples) of every instance that ended; a tuple begins with its source."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [tuple(json.loads(line)) for line in lines]


def values_written(path: Path) -> list[Any]:
    return sorted(row[1] for _, rows in written(path) for row in rows)


class Split(BasicBolt):
    fields = "name"

    def execute(self, tuple, collector) -> None:
        for name in tuple["value"].split():
            collector.emit(name)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is added to the ackers of the rounds from now on: (root, value)."""
    added: list[tuple[int, int]] = []

    class Recorded(Ledger):
        def add(self, roots: Any, values: Any) -> None:
            added.extend(zip(roots, values))
            super().add(roots, values)

    monkeypatch.setattr("trident.tuples.spouts.Ledger", Recorded)
    return added
