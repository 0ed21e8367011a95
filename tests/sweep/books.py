"""The source of one topology of the sweep, and the comparison of everything that is stored with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Union

from tests.matrix.sources import PER_BATCH, Source
from tests.outside_stores import APPENDED, CHANGED, COUNTED, MARKED, Addresses, OutsideStores
from tests.store_mirror import Mirror
from tests.sweep.cases import OUTSIDE
from tests.sweep.oracle import Stored, fold
from tests.sweep.topologies import MAPS, PER_BATCH_COUNTS, delta_states, topology_of
from tests.zk_fixtures import eventually
from trident import TridentTopology

# Of states/publishing/cleaning.py: all is looked through behind each transaction, in a store and in a history of
# manifests too. Else what a zombie has written last goes with one of the next twenty, which no case waits for.
CLEANED_EACH_TIME = {"CLEAN_EVERY": 1, "HISTORY_PER_LOOK": 2**62}


class Books:
    """What was given to a topology, and what must be stored of it.

    Args:
        kind: of the topology.
        folder: of this topology alone: its source, its maps, and the copy of a warehouse in a store.
        warehouse: a path or URL.
        znodes: () → every path under its root in ZooKeeper.
        merging: whether a table is merged all the time, where the kind has one that is merged.
        outside: the stores outside of the warehouse, of a kind that has some.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        warehouse: str,
        znodes: Callable[[], list[str]],
        merging: bool = True,
        outside: OutsideStores | None = None,
    ) -> None:
        self.kind, self._znodes, self.merging, self._outside = kind, znodes, merging, outside
        self._maps = folder / "maps.db"
        (folder / "source").mkdir(parents=True)
        if outside is not None:
            outside.addresses.keep(folder / "source" / "outside")
        self.source = source_of(kind, folder)
        self._rows: list[str] = []
        self._mirror = Mirror(warehouse, folder / "mirror")
        self.stored = Stored(self._mirror.path, self._maps)
        self._txids = 0

    def topology(self) -> TridentTopology:
        """The topology, made anew as another process would."""
        return topology_of(self.kind, self.source, self._maps, self.merging)

    def feed(self, txids: int) -> None:
        """More rows, and as many transactions for them."""
        more = range(len(self._rows), len(self._rows) + txids * PER_BATCH)
        self._rows += [f"k{number % 5}-{number}" for number in more]
        self._txids += txids
        if self._outside is not None:
            self._outside.put(self._rows[more.start :])
        else:
            self.source.write("rows-p0", self._rows)
            self.source.write("ready_to", self._txids)

    def check(self) -> None:
        """0 lost, 0 doubled, no gap."""
        self._mirror.bring()
        audit, attempts = self.stored.audit(), self.stored.attempts()
        expected = list(range(1, self._txids + 1))
        assert self.stored.txids() == expected, f"transactions {self.stored.txids()}, expected 1 to {self._txids}"
        assert sorted(audit) == expected
        if self._outside is None:
            # The source is told behind the commit, and again where it has failed.
            assert eventually(lambda: self.source.read("succeeded") == self._txids), self.source.read("succeeded")
        real = [word for txid in expected for word in sorted(audit[txid], key=_number) if not word.startswith("ghost")]
        assert real == self._rows[: len(real)], "rows are lost, doubled or out of order"
        ghosts = {txid for txid, words in audit.items() if f"ghost-{txid}" in words}
        assert ghosts <= {txid for txid, attempt in attempts.items() if attempt == 0}
        wanted = sum(PER_BATCH - (txid in ghosts) for txid in expected)
        assert len(real) == wanted, f"{len(real)} rows, expected {wanted}"
        if isinstance(self.source, Source) and self.source.changes:
            assert ghosts == {txid for txid, attempt in attempts.items() if attempt == 0}
        counts = fold([word for words in audit.values() for word in words])
        for name in delta_states(self.kind):
            assert self.stored.keyed(name) == counts, name
        for name in PER_BATCH_COUNTS.get(self.kind, ()):
            assert self.stored.per_batch(name) == {txid: fold(words) for txid, words in audit.items()}, name
        for name in MAPS.get(self.kind, ()):
            assert self.stored.map(name) == counts, name
        if self._outside is not None:
            for name in APPENDED:
                assert self._outside.found(name) == Counter(real), name
            for name in (*COUNTED, *CHANGED):
                assert self._outside.found(name) == counts, name
            found = self._outside.txids()
            assert set(found.values()) == {self._txids} and len(found) == MARKED, found

    def leftovers(self) -> list[str]:
        """Files that nobody needs any more, once all is committed."""
        self._mirror.bring()
        return self.stored.leftovers([f"{name}__log" for name in delta_states(self.kind)])

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
        paths = self._znodes()
        pins = [path for path in paths if path.rpartition("/")[2].isdecimal()]
        return [path for path in paths if path.endswith("/decided")] + (pins if len(pins) > 2 else [])


def source_of(kind: str, folder: Path) -> Union[Source, Addresses]:
    """The source; of a kind whose replays may hold other rows, one whose replays do."""
    if kind in OUTSIDE:
        return Addresses.read(folder / "source" / "outside")
    return Source(str(folder / "source"), changes=kind in ("opaque", "committer"))


def _number(word: str) -> int:
    return 10**9 if word.startswith("ghost") else int(word.split("-")[1])
