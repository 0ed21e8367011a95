"""The kept manifests of a batch group: sources' positions, files and changes of past transactions.

A kept manifest says of its transaction: which attempt it was and on which it
built, the metadata from which each stream's batch came (of an opaque source
where it stood afterwards), and the files that each state was given. The files
themselves are there as long as their table needs them:

- of an append table until another program's VACUUM, after an OPTIMIZE or a
  DELETE, removes them;
- of a keyed state's log until it has dropped them, which it does behind
  ``snapshot_retention_txids``, and an hour has passed;
- of states without a table (maps, users' own, outside of the warehouse) until
  the transaction has advanced: of these the manifest has the counts alone.

Rows that only waited for their transaction's turn (boundaries) go with it.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import groupby

from trident.coordinators.errors import TableError, TransactionNotKept
from trident.coordinators.records import Decision
from trident.coordinators.stored_json import Unreadable
from trident.coordinators.transactions import TransactionAttempt
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.delta.delta_log import has_log
from trident.states.delta.history import control_at
from trident.states.delta.manifest import Manifest, ManifestStore, attempt_of
from trident.states.history.publications import Publications
from trident.states.history.versions import published_as


class KeptManifests:
    """The manifests of one batch group, by txid: of each transaction that of the attempt that was decided.

    Reads files alone, without ZooKeeper: a manifest that is newer than what the tables have is not given, since it
    may not be decided. A transaction that changed nothing has no manifest; one whose manifest is lost is told from it
    by the tables, of which one has it. For one thread.

    Args:
        upto: the last transaction that is published, where the caller knows it (from ZooKeeper); None: the tables are
            asked. Of a group without Delta tables they cannot tell of the newest manifest, which is then not given.
    """

    def __init__(self, of: GroupContext, upto: int | None = None) -> None:
        self.of, self._upto = of, upto
        self._store = ManifestStore(of.warehouse, of.topology, of.group, of.incarnation)
        self._publications = Publications(of)
        self._changed_nothing: set[tuple[int, int]] = set()  # (first, last) of which the tables say so
        self._files: dict[int, tuple[Place, ...]] = {}  # of each txid, the latest attempt first
        self._kept: list[int] = []  # as they were last looked for
        self._read: dict[Place, tuple[Decision, Manifest] | None] = {}  # the last few; None: it cannot be read

    def txids(self) -> list[int]:
        """Returns the transactions whose manifests are kept, the oldest first.

        Raises:
            OSError: the folder cannot be listed.
        """
        files = self._store.names()
        dated = sorted((attempt_of(name) or TransactionAttempt(0, 0), name) for name in files)
        self._files = {
            txid: tuple(files[name] for _, name in reversed(list(group)))
            for txid, group in groupby(dated, key=lambda each: each[0].txid)
        }
        txids = sorted(self._files)
        if self._upto is not None:
            txids = [txid for txid in txids if txid <= self._upto]
        elif txids and not self._is_published(txids[-1]):
            txids.pop()  # one transaction is decided at a time: of the greatest alone it is not known
        self._kept = txids
        return list(txids)

    def unreadable_last(self) -> tuple[int, str] | None:
        """The transaction behind those of the last :meth:`txids` whose manifest is there and cannot be read, and why.

        It may have been decided or not; None where there is no such one.
        """
        txid = max(self._files, default=0)
        if not txid or txid in self._kept or any(self._manifest(path) is not None for path in self._files[txid]):
            return None
        return txid, f"the manifest {self._files[txid][0]}, which may have been decided or not"

    def read(self, txid: int) -> Manifest:
        """Returns the manifest of the attempt that was decided.

        Raises:
            TransactionNotKept: there is none, or no longer: the message says which are kept.
            TableError: it is there, and cannot be read.
        """
        return self.decided(txid)[1]

    def decided(self, txid: int) -> tuple[Decision, Manifest]:
        """As :meth:`read`, with the decision that named the manifest: its path, size and digest."""
        found = self._decided(txid) if txid in self._kept or txid in self.txids() else None
        if found is None:
            raise self._not_kept(txid)
        return found

    def read_if_any(self, txid: int, upto: int = 0) -> Manifest | None:
        """As :meth:`read`; None of a transaction that changed nothing, where the tables do not contradict.

        Args:
            upto: a transaction that has advanced: of those behind the newest kept manifest up to it nothing is missing.

        Raises:
            TransactionNotKept: the transaction is not among those kept; or its manifest is lost, since a table has it.
            TableError: its manifest, or a table, cannot be read.
        """
        kept = self._kept or self.txids()
        found = self._decided(txid) if txid in kept else None
        if found is not None:
            return found[1]
        if not self._kept or not self._kept[0] <= txid <= max(upto, self._kept[-1]):
            raise self._not_kept(txid)
        self._check_changed_nothing(txid)
        return None

    def _decided(self, txid: int) -> tuple[Decision, Manifest] | None:
        """None where none of the manifests that are there is that of the decision."""
        parent, control = self._parent_of_next(txid), None
        if parent is None:
            # The next transaction has no manifest, or it is not readable: the tables tell.
            published = self._publications.last_of(txid, txid)
            control = published.control
            if published.known and control is None:
                return None
            if control is not None:
                parent = TransactionAttempt(control.txid, control.attempt_id)
        files = [path for path in self._files[txid] if parent is None or attempt_of(path.name) == parent]
        for path in files:
            found = self._manifest(path)
            if found is not None and (control is None or control.is_of(found[0])):
                return found
        if not files or txid not in self.txids():  # another attempt, which had nothing to publish; or cleaned up since
            return None
        raise TableError(
            f"the manifest {files[0]} of transaction {txid} cannot be read, or is not that of its name",
            expected=f"transaction {txid} of {self.of.topology}/{self.of.group}, incarnation {self.of.incarnation}",
            action="bring it back from a back-up of the warehouse",
        )

    def _check_changed_nothing(self, txid: int) -> None:
        """Asks the tables of all transactions without a manifest around this one at once."""
        first = last = txid
        if txid not in self._kept:
            at = bisect_left(self._kept, txid)
            first = self._kept[at - 1] + 1
            last = self._kept[at] - 1 if at < len(self._kept) else txid
        if (first, last) not in self._changed_nothing:
            self._publications.check_changed_nothing(first, last, (self._kept[0], self._kept[-1]))
            self._changed_nothing.add((first, last))

    def _parent_of_next(self, txid: int) -> TransactionAttempt | None:
        """The attempt on which the next transaction builds, where its manifest is kept too."""
        for path in self._files.get(txid + 1, ()):
            found = self._manifest(path)
            if found is not None:
                return found[1].parent
        return None

    def _manifest(self, path: Place) -> tuple[Decision, Manifest] | None:
        if path not in self._read:
            while len(self._read) >= 4:
                del self._read[next(iter(self._read))]
            self._read[path] = self._read_whole(path)
        return self._read[path]

    def _read_whole(self, path: Place) -> tuple[Decision, Manifest] | None:
        """None for one that a process has left half written, or that is another's."""
        try:
            decision, manifest = self._store.read_found(path)
        except (TableError, Unreadable, FileNotFoundError):
            return None
        said = (manifest.topology, manifest.group, manifest.incarnation, manifest.attempt)
        ours = (self.of.topology, self.of.group, self.of.incarnation, attempt_of(path.name))
        return (decision, manifest) if said == ours else None

    def _is_published(self, txid: int) -> bool:
        """Tells whether a table has a transaction, or a later one: then it was decided."""
        for path in self._files[txid]:
            found = self._manifest(path)
            if found is None:
                continue
            decision, manifest = found
            for folder in {table.path for table in manifest.tables if table.state_kind.has_table}:
                table = self.of.warehouse / folder
                control = control_at(table) if has_log(table) else None
                # Also of the incarnation behind a rollback to this very transaction.
                if control is not None and control.is_of(decision):
                    return True
                if control is not None and control.incarnation == self.of.incarnation and control.txid > txid:
                    return True
            # Another incarnation has published behind it: the tables' logs tell.
            if published_as(self.of.warehouse, [found])[txid].versions:
                return True
        return False

    def _not_kept(self, txid: int) -> TransactionNotKept:
        """The error to raise; raises one itself where the manifest is lost."""
        kept = [other for other in self._kept if other != txid]
        where = f"transaction {txid} of {self.of.topology}/{self.of.group}"
        if not kept:
            return TransactionNotKept(
                f"no manifest of {where} is kept, nor of another transaction",
                txid=txid,
                expected=f"some in {self.of.folder / 'manifests'}",
                action="let the topology run with history_retention_txids above 0",
            )
        inside = kept[0] < txid < kept[-1]
        if inside:
            self._check_changed_nothing(txid)
        return TransactionNotKept(
            f"{where} has no manifest: it changed nothing" if inside else f"no manifest of {where} is kept",
            txid=txid,
            oldest=kept[0],
            newest=kept[-1],
            found=f"{len(kept)} are kept, of transactions {kept[0]} to {kept[-1]}",
            action=f"take one of {_near(kept, txid)}; "
            "history_retention_txids and history_retention_secs say how many are kept",
        )


def _near(kept: list[int], txid: int) -> str:
    """The nearest transactions that are kept."""
    nearest = sorted(sorted(kept, key=lambda other: abs(other - txid))[:3])
    return ", ".join(map(str, nearest))
