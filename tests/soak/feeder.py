"""Feeds the soak and knows what must come out: a plain fold of everything that was fed."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import deltalake

from trident import SqliteMap, SqliteQueue

_EVERY_SECS = 0.7


class Feeder:
    """A thread that writes files and queue messages until it is stopped."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._random = folder, random.Random(seed)
        self._queue = SqliteQueue(folder / "queue.db", lease_secs=3)
        self._stop = threading.Event()
        self.lines: Counter[str] = Counter()
        self.words: Counter[str] = Counter()
        self.orders: Counter[str] = Counter()
        self.files = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._random.uniform(0.3, 1.7) * _EVERY_SECS):
                self._write_file()
                orders = [f"order {self._random.randrange(200)}" for _ in range(self._random.randrange(20))]
                self._queue.put(orders)
                self.orders.update(orders)
        except BaseException as error:
            self.error = error

    def _write_file(self) -> None:
        # Each line has a name of its own, so that a lost one and a doubled one are told apart.
        lines = [
            " ".join([f"{self.files}-{number}", *(f"w{self._random.randrange(2000)}" for _ in range(6))])
            for number in range(self._random.randrange(1, 60))
        ]
        draft = self._folder / "drafts" / "next.txt"
        draft.write_text("".join(f"{line}\n" for line in lines))
        draft.rename(self._folder / "in" / f"{self.files:06d}.txt")
        self.files += 1
        self.lines.update(lines)
        for line in lines:
            self.words.update(line.split()[1:])

    def compare(self) -> list[str]:
        """What is in the stores against what was fed; empty when all of it is there, once."""
        store = self._folder / "w"
        lines = Counter(deltalake.DeltaTable(str(store / "lines")).to_pyarrow_table().column("value").to_pylist())
        table = deltalake.DeltaTable(str(store / "counts")).to_pyarrow_table()
        words = dict(zip(table.column("word").to_pylist(), table.column("count").to_pylist()))
        orders = {key[0]: value.current for key, value in SqliteMap(str(self._folder / "map.db"), "orders").items()}
        return [
            *_difference("lines", lines, self.lines),
            *_difference("words", words, self.words),
            *_difference("orders", orders, self.orders),
            *([f"{len(self._queue)} messages are left in the queue"] if len(self._queue) else []),
        ]


def _difference(name: str, found: dict[str, int], expected: Counter[str]) -> list[str]:
    wrong = {
        key: (found.get(key, 0), expected.get(key, 0))
        for key in {*found, *expected}
        if found.get(key, 0) != expected.get(key, 0)
    }
    lost = sum(max(0, wanted - got) for got, wanted in wrong.values())
    doubled = sum(max(0, got - wanted) for got, wanted in wrong.values())
    return [f"{name}: {lost} lost, {doubled} doubled, such as {list(wrong.items())[:5]}"] if wrong else []
