"""Random runs of listings and ledger on a store in virtual time: each object is read once, whoever lists and forgets.

Leaders that are replaced wake up and go on, what they have listed comes late to the ledger, requests fail before or
after they are done, deletions end half-way, uploads keep the time of their begin, clocks differ.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from trident.coordinators.errors import PositionLost, SourceError
from trident.spouts.files import ledger as ledgers
from trident.spouts.files import objects
from trident.states.core import storage
from trident.states.core.place import Place
from trident.states.core.remote_files import AppendedParts, read_parts

SEED = int(os.environ.get("TRIDENT_SEED") or random.randrange(10**6))
ROOT, PAGE, NS = "s3a://lake/in", 2, 10**9
PATHS = [[ROOT], [f"{ROOT}/**"], [f"{ROOT}/**", f"{ROOT}/q/**"], [ROOT, f"{ROOT}/q"], [f"{ROOT}/*", f"{ROOT}/q/*"]]


class Store:
    """Its clock goes on with each page."""

    lists_after = True

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.now, self.fails = chance, 1e6, 0.0
        self.files: dict[str, tuple[bytes, int, str]] = {}

    def may_fail(self) -> None:
        if self.chance.random() < self.fails:
            raise OSError(5, "injected", ROOT)

    def put(self, path: str, tag: str, age: float = 0.0) -> None:
        self.files[path] = (b"x", int((self.now - age) * NS), tag)

    def read(self, path: Any, start: int = 0) -> bytes:
        if str(path) not in self.files:
            raise FileNotFoundError(path)
        return self.files[str(path)][0][start:]

    def create(self, path: Any, data: bytes, durable: bool = True) -> None:
        self.may_fail()
        if str(path) in self.files:
            raise FileExistsError(path)
        self.files[str(path)] = (data, int(self.now * NS), "")
        self.may_fail()

    def below(self, folder: Any) -> list[str]:
        return sorted(path[len(f"{folder}/") :] for path in self.files if path.startswith(f"{folder}/"))

    def list(self, folder: Any) -> list[str]:
        return list({name.partition("/")[0] for name in self.below(folder)})

    def stat_file(self, path: Any) -> storage.Stat | None:
        if str(path) not in self.files:
            return None
        data, mtime_ns, tag = self.files[str(path)]
        return storage.Stat(len(data), mtime_ns, True, False, (tag, len(data)))

    def delete(self, path: Any) -> bool:
        for name in self.below(path):
            del self.files[f"{path}/{name}"]
            self.may_fail()
        return True

    @contextmanager
    def append(self, path: Any, known: int = 0) -> Iterator[AppendedParts]:
        yield AppendedParts(self, path, known)

    def read_appended(self, path: Any, start: int = 0) -> bytes | None:
        return read_parts(self, path, start)

    def pages(self, folder: Any, after: str = "", deep: bool = False) -> Iterator[Any]:
        while names := [name for name in self.below(folder) if name > after and (deep or "/" not in name)][:PAGE]:
            self.may_fail()
            after = names[-1]
            yield [(name, self.stat_file(f"{folder}/{name}")) for name in names]
            self.now += self.chance.choice([0, 0.1, 1, 3])


class AtOnce:
    """A pool whose calls are over when they are submitted."""

    def __init__(self, *_: Any) -> None: ...

    def submit(self, call: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True) -> None: ...


class Leader:
    def __init__(self, store: Store, paths: list[str], full_secs: float, remember_secs: float) -> None:
        chance = store.chance
        self.store, self.skew_secs = store, chance.choice([-3, 0, 3])
        self.ledger = ledgers.FileLedger(Place("s3a://lake/t/files-x.jsonl"), "bytes", paths, 3)
        step = chance.choice([1, 3, 50])
        self.listing = objects.ObjectListing(
            [objects.ObjectPath(path, full_secs, remember_secs, lambda _: False, changed, step) for path in paths]
        )

    def look(self, position: int, oldest: int, append: bool = True) -> list[ledgers.FoundFile]:
        """What FileCoordinator does; without ``append`` it is interrupted before."""
        found: list[ledgers.FoundFile] = []
        try:
            found = self.listing.new_files(self.ledger.book, position)
            if append:
                self.add(found)
                if (forgotten := self.listing.forgettable(self.ledger.book, oldest)) is not None:
                    self.ledger.forget(*forgotten)
        except PositionLost:
            raise
        except (SourceError, OSError) as error:
            assert "older than those" not in str(error), "a false error"
            self.listing.give_up()
        return found

    def add(self, found: list[ledgers.FoundFile]) -> None:
        if found:
            self.ledger.append(found)


def changed(entry: Any, found: Any) -> None:
    raise AssertionError(f"no object has changed: {entry}, {found}")


@pytest.mark.parametrize("number", range(15))
def test_each_object_is_read_once(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = SEED + number
    print("TRIDENT_SEED =", seed)
    chance = random.Random(seed)
    store = Store(chance)
    for name in ("stat_file", "pages", "append", "read_appended", "delete"):
        monkeypatch.setattr(storage, name, getattr(store, name))
    monkeypatch.setattr(storage, "list_names", store.list)
    monkeypatch.setattr(storage, "storage_for", lambda _: store)
    monkeypatch.setattr(objects, "DaemonPool", AtOnce)
    remember_secs, full_secs, paths = chance.choice([20.0, 60.0]), chance.choice([0.0, 5.0, 30.0]), chance.choice(PATHS)
    uploaded: list[str] = []
    reads: list[str] = []
    pins: list[tuple[int, Any]] = [(0, None)]  # as batches: they end with this file
    late: list[tuple[Leader, list[ledgers.FoundFile]]] = []
    acts = Leader(store, paths, full_secs, remember_secs)
    leaders = [acts]
    clock = SimpleNamespace(monotonic=lambda: store.now, time_ns=lambda: int((store.now + acts.skew_secs) * NS))
    monkeypatch.setattr(objects, "time", SimpleNamespace(**vars(time) | vars(clock)))

    def plan() -> None:
        number, pin = pins[-1]
        leaders[-1].ledger.check(number, pin)
        book = leaders[-1].ledger.book
        end = min(len(book), number + chance.choice([1, 2, 5]))
        reads.extend(book.entry(each).path for each in range(number + 1, end + 1))
        if end > number:
            pins.append((end, leaders[-1].ledger.pin(end)))

    def step(kind: str) -> None:
        nonlocal acts
        acts, position, oldest = leaders[-1], pins[-1][0] + 1, pins[max(0, len(pins) - 3)][0] - 1
        if kind == "upload":
            name = chance.choice(["", "q/"] if paths != [ROOT] else [""]) + chance.choice("abcü#") + str(len(uploaded))
            uploaded.append(f"{ROOT}/{name}")
            store.put(uploaded[-1], name, chance.choice([0, 1, 10]))
        elif kind == "again" and reads:  # as it was, while it is remembered
            path = chance.choice(reads)
            if path in acts.ledger.book.numbers and path in store.files:
                if store.files[path][1] > (store.now - remember_secs + 8) * NS:
                    store.put(path, store.files[path][2])
        elif kind == "delete" and reads:
            store.files.pop(chance.choice(reads), None)
        elif kind == "look":
            acts.look(position, oldest)
        elif kind == "plan":
            plan()
        elif kind == "refresh":
            acts.listing.refresh()
        elif kind == "replace":
            store.fails = 0.0
            leaders.append(Leader(store, paths, full_secs, remember_secs))
        elif kind == "wake" and len(leaders) > 1:
            acts = chance.choice(leaders[-4:-1])
            if all(acts is not one for one, _ in late):
                try:
                    ends = chance.random() < 0.7
                    found = acts.look(position, oldest, ends)
                    late.extend([] if ends else [(acts, found)])
                except PositionLost:  # it has written to a segment that was deleted
                    leaders.remove(acts)
        elif kind == "late" and late:
            acts, found = late.pop()
            try:
                acts.add(found)
            except (SourceError, OSError):
                acts.listing.give_up()
        elif kind == "wait":
            store.now += chance.choice([1, 10, remember_secs, 3 * remember_secs])

    kinds = "upload upload again delete look look look plan plan refresh replace wake late wait".split()
    for _ in range(400):
        store.fails = chance.choice([0, 0, 0, 0.05])
        try:
            step(chance.choice(kinds))
        except PositionLost:
            raise
        except SourceError:
            assert store.fails
        assert len(reads) == len(set(reads)), "read twice"
    store.fails = 0.0
    step("replace")
    for number in range(len(uploaded) + 20):
        if not number % 20:
            store.now += 1000
            step("refresh")
        step("look")
        step("plan")
    assert sorted(reads) == sorted(uploaded)
