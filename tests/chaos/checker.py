"""The books of one batch group: what was given to it, and whether all that is stored is that, once.

Tables, logs, maps, topics and znodes are read without the framework's code (``oracle``); what must be in them is a
plain fold of the words that were given.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import deltalake

import trident
from tests.chaos.oracle import Stored, fold
from tests.chaos.outside_stores import APPENDED, MARKED, OutsideStores
from tests.chaos.sources import Words
from tests.chaos.store_mirror import Mirror
from tests.chaos.workload import COPIES, IN_ONE_ROW, KEYED, MAPS, OUTSIDE, PER_BATCH_COUNTS, SPOUTS, Group
from tests.servers.zk_fixtures import eventually
from trident.coordinators.errors import TridentError

# Of states/publishing/committer.py: all is looked through behind each transaction, in a store and in a history of
# manifests too. Else what a zombie has written last goes with one of the next twenty, which no case waits for.
CLEANED_EACH_TIME = {"CLEAN_EVERY": 1, "HISTORY_PER_READ": 2**62}


class Committed:
    """What an append table's log says, read from where the last look ended."""

    def __init__(self, table: Path) -> None:
        self._log, self._lock = table / "_delta_log", threading.Lock()
        self.version, self.txid, self.rows = -1, 0, 0

    def look(self) -> Committed:
        with self._lock:
            while (entry := self._log / f"{self.version + 1:020}.json").exists():
                for line in entry.read_text().splitlines():
                    action = json.loads(line)
                    if "txn" in action:
                        self.txid = max(self.txid, action["txn"]["version"])
                    if "add" in action:
                        self.rows += json.loads(action["add"]["stats"])["numRecords"]
                self.version += 1
        return self


class Books:
    """Of one group.

    Args:
        topology: its name.
        group: of it; what its source needs is made.
        warehouse: a path or URL.
        znodes: () → every path under its root in ZooKeeper; None where leftovers are not looked for.
        outside: the stores outside of the warehouse, of a kind that has some.
    """

    def __init__(
        self,
        topology: str,
        group: Group,
        warehouse: str,
        znodes: Callable[[], list[str]] | None = None,
        outside: OutsideStores | None = None,
    ) -> None:
        self.group, self._znodes, self._outside = group, znodes, outside
        self._folder = Path(group.folder)
        for name in ("source", "in", "drafts"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        if outside is not None:
            self.group = replace(group, outside=str(self._folder / "outside"))
            outside.addresses.keep(Path(self.group.outside))
        self._mirror = Mirror(warehouse, self._folder / "mirror")
        self.stored = Stored(self._mirror.path, group.maps_file, topology, group.prefix)
        self.committed = Committed(self._mirror.path / group.named("audit"))
        self.txids = 0  # that were given, as batches of all their rows

    # --- the source ---------------------------------------------------------------------------------

    @property
    def words(self) -> list[str]:
        """All that was given."""
        return Words(self.group.keys)[: self.txids * self.group.per_batch]

    def feed(self, txids: int) -> None:
        """More rows, as many as so many transactions have."""
        before = self.txids * self.group.per_batch
        more = Words(self.group.keys)[before : before + txids * self.group.per_batch]
        if self.group.spout in OUTSIDE:
            self._outside.put(more)  # type: ignore[union-attr]
        elif self.group.spout == "files":
            draft = self._folder / "drafts" / "next.txt"
            draft.write_text("".join(f"{word}\n" for word in more))
            draft.rename(self._folder / "in" / f"{before:012}.txt")
        elif self.group.spout == "queue":
            self.group.queue.put(more)
        else:
            self.group.source.write("ready_to", self.txids + txids)
        self.txids += txids

    def end(self) -> None:
        """Gives a source that the test writes, and that had no end, one: some transactions behind what is committed."""
        self._mirror.bring()
        self.txids = self.committed.look().txid + 30  # more than can be in flight
        self.group.source.write("ready_to", self.txids)

    @property
    def is_exhausted(self) -> bool:
        """Whether all that was given is in the append table, and its last transaction in every state."""
        self._mirror.bring()
        if self._is_numbered:
            is_there = self.committed.look().txid >= self.txids
        else:
            is_there = self.committed.look().rows >= self.txids * self.group.per_batch
        return is_there and not self._decisions()

    @property
    def _is_numbered(self) -> bool:
        """Whether its batches are as full as they can be, so that their number is known."""
        return self._is_written or (self.group.spout in OUTSIDE and self.group.addresses.full)

    @property
    def _is_written(self) -> bool:
        """Whether this object writes the source that its spout reads."""
        return self.group.spout in SPOUTS

    # --- what must be stored ------------------------------------------------------------------------

    def check(self, counted: bool = True) -> None:
        """0 lost, 0 doubled, no gap, in order, and every state at the same transaction, once all is committed.

        Args:
            counted: False where other code has made some of the counts by key: then only their sums are compared.
        """
        self._mirror.bring()
        audit, txids = self.stored.audit(), self.stored.txids()
        if self._is_numbered:
            assert txids == list(range(1, self.txids + 1)), f"transactions {txids}, expected 1 to {self.txids}"
        assert txids == sorted(set(txids)), f"transactions {txids}: out of order, or doubled"
        assert sorted(audit) == txids
        if self._is_written:
            # The source is told behind the commit, and again where it has failed.
            source = self.group.source
            assert eventually(lambda: source.read("succeeded") == self.txids), source.read("succeeded")
        self._check_words(audit)
        self._check_epochs()
        words = [word for words in audit.values() for word in words]
        for name in self.group.states:
            if name in PER_BATCH_COUNTS:
                assert self.stored.per_batch(name) == {txid: fold(words) for txid, words in audit.items()}, name
                continue
            wanted = self.wanted(name, words)
            if self._outside is not None:  # an outbox is sent once its transaction has advanced
                eventually(lambda name=name, wanted=wanted: self.found(name) == wanted)
            found = self.found(name)
            same = found == wanted if counted or name not in KEYED else found.total() == wanted.total()
            assert same, f"{name}: {found}, not {wanted}"
        if self.group.spout in OUTSIDE:
            self._check_outside(txids[-1])
        if self.group.spout == "queue":
            assert eventually(lambda: len(self.group.queue) == 0), "messages are left in the queue"

    def found(self, state: str) -> Counter:
        """What a state has: words, or counts by key; of a state in one row under the key ""."""
        if state in KEYED:
            return self.stored.keyed(state)
        if state in COPIES:
            return Counter(self.stored.words(state))
        if state in MAPS or state == IN_ONE_ROW:
            return self.stored.map(state)
        assert self._outside is not None, f"{state} is outside of the warehouse"
        return self._outside.found(state)

    @staticmethod
    def wanted(state: str, words: Sequence[str]) -> Counter:
        """What a state must have where these words have been committed."""
        if state in (*COPIES, *APPENDED):
            return Counter(words)
        return Counter({"": len(words)}) if state == IN_ONE_ROW else fold(words)

    def _check_words(self, audit: dict[int, list[str]]) -> None:
        attempts = self.stored.attempts()
        real = [word for txid in sorted(audit) for word in sorted(audit[txid], key=number_of) if not is_ghost(word)]
        ghosts = {txid for txid, words in audit.items() if f"ghost-{txid}" in words}
        assert ghosts <= {txid for txid, attempt in attempts.items() if attempt == 0}
        given = self.words
        if self._is_numbered:
            given = given[: sum(self.group.per_batch - (txid in ghosts) for txid in audit)]
        compare(given, real, self._is_numbered or self.group.spout == "files")
        if self._is_written and self.group.source.changes:
            assert ghosts == {txid for txid, attempt in attempts.items() if attempt == 0}

    def _check_epochs(self) -> None:
        """No table has a commit of an old coordinator behind one of a newer; all are at the same transaction."""
        last = {}
        for name in ("audit", *self._logs):
            table = self.stored.table(name)
            epochs = [control["epoch"] for control in table.history if "epoch" in control]
            assert epochs == sorted(epochs), f"{name}: a commit of an old coordinator behind one of a newer: {epochs}"
            last[name] = max(version for app, version in table.order if app.startswith("trident/"))
        assert len(set(last.values())) == 1, f"not all tables are at the same transaction: {last}"

    def _check_outside(self, txid: int) -> None:
        assert self._outside is not None
        in_order(self._outside.copied())
        found = self._outside.txids()
        assert set(found.values()) == {txid} and len(found) == MARKED, found

    # --- what may be left ---------------------------------------------------------------------------

    def leftovers(self) -> list[str]:
        """Files that nobody needs any more, once all is committed."""
        self._mirror.bring()
        return self.stored.leftovers(self._logs)

    @property
    def _logs(self) -> list[str]:
        return [f"{name}__log" for name in self.group.states if name in KEYED]

    def cleaned(self, within_secs: float, files: bool = True) -> bool:
        """Whether nothing is left, in ZooKeeper and of files, or soon will be.

        Args:
            within_secs: how long it may still take.
            files: whether files count: a zombie may have staged rows after all was cleaned.
        """
        return eventually(lambda: not self._left_in_zookeeper() and not (files and self.leftovers()), within_secs)

    def check_cleaned(self, files: bool = True) -> None:
        assert self.cleaned(10.0, files), f"left over: {self.leftovers()}, {self._left_in_zookeeper()}"

    def _left_in_zookeeper(self) -> list[str]:
        """Decisions, and pins if there are more than those of the last transaction and of the one before it."""
        assert self._znodes is not None
        pins = [path for path in self._znodes() if path.rpartition("/")[2].isdecimal()]
        return self._decisions() + (pins if len(pins) > 2 else [])

    def _decisions(self) -> list[str]:
        """The decision of a transaction that not all of its states have."""
        return [path for path in self._znodes() if path.endswith("/decided")] if self._znodes else []


class Reader:
    """Reads a group's tables as of one transaction, by a program that knows no Trident; never an older one.

    Attributes:
        seen: the transactions, in the order in which they were seen; 0 is none.
        looks: how many views there were.
    """

    def __init__(self, warehouse: Path, topology: str, group: str) -> None:
        self._warehouse, self._topology, self._group = warehouse, topology, group
        self.seen, self.looks = [0], 0

    def look(self) -> dict[str, int]:
        """How many rows each table stands for in the view of now; nothing while there is no view yet."""
        try:
            view = trident.view(self._warehouse, self._topology, self._group)
        except TridentError as error:
            assert self.seen == [0], error  # once there is a view there always is one
            return {}
        if view.txid == 0:  # amid the first start, which has not made all of the tables yet
            return {}
        self.looks += 1
        found = {}
        for name, (path, version) in view.tables.items():
            table = deltalake.DeltaTable(path, version=version).to_pyarrow_table()
            found[name] = sum(table["n"].to_pylist()) if "n" in table.schema.names else table.num_rows
        assert len(set(found.values())) == 1, f"a view mixes transactions: {found} in {view}"
        assert view.txid >= self.seen[-1], f"a view of {view.txid} behind one of {self.seen[-1]}"
        if view.txid > self.seen[-1]:
            self.seen.append(view.txid)
        return found


def compare(given: Sequence[str], found: Sequence[str], ordered: bool) -> None:
    """Each word that was given must be found once, and no other one; perhaps in the order in which they were given."""
    lost, more = Counter(given) - Counter(found), Counter(found) - Counter(given)
    doubled = more.keys() & set(given)
    assert not lost and not more, (
        f"{lost.total()} lost, {sum(more[word] for word in doubled)} doubled, "
        f"{sum(more[word] for word in more.keys() - doubled)} that never were, such as {sorted([*lost, *more])[:5]}"
    )
    assert not ordered or list(found) == list(given), "rows are out of order"


def in_order(words: Iterable[tuple[str | None, str]]) -> None:
    """The numbers of each key must grow; words are with their keys."""
    last: dict[str | None, int] = {}
    for key, word in words:
        assert last.get(key, -1) < number_of(word), f"{word} comes behind {last[key]} of its key"
        last[key] = number_of(word)


def is_ghost(word: str) -> bool:
    """Whether it was in the first attempt of a transaction alone; see ``sources.Source``."""
    return word.startswith("ghost")


def number_of(word: str) -> int:
    return 10**9 if is_ghost(word) else int(word.split("-")[1])
