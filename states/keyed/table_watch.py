"""Finds commits of other writers to the two tables of a keyed state."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from trident.coordinators.errors import TableError
from trident.coordinators.identities import rollbacks_of
from trident.coordinators.records import TableMark
from trident.states.core.control import DOMAIN
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place
from trident.states.core.storage import Signature
from trident.states.delta import halts, history
from trident.states.delta.delta_log import DeltaLog, TableCommit, Watched, has_log
from trident.states.delta.kernel import KernelEngine, TableSnapshot
from trident.states.keyed.tables import adopted_version, merged_upto, open_plain

# Finds commits to the plain table of a keyed state that are no MERGE of this topology.
#
# A plain table is written by compactors, in any process, so that ZooKeeper
# cannot know its version as it knows a log's. It knows the last version that was
# looked at; from there on every commit must say that it is a MERGE of
# this topology, in the user metadata that a RESTORE does not copy. Without this,
# a RESTORE would put old rows under a newer P, and the transactions between
# would be missing from then on, without a word (P is kept by a RESTORE).


# A mark of a plain table holds P as its txid; there is no attempt in it.
_NO_ATTEMPT = 0
# In place of a digest: the table has rows of others, adopted or accepted, so that its log alone does not give it again.
ACCEPTED = "accepted"


@dataclass
class _Seen:
    """A plain table as it was last looked at."""

    table_id: str
    mark: TableMark
    signature: Signature | None
    starts_at: int


def is_our_publish(commit: TableCommit, incarnation: str) -> bool:
    """Tells whether a commit to a table with control records is one of our transactions, or a log drop."""
    value = commit.control.get(DOMAIN)
    engine = (commit.engine_info or "").split(" ")[-1]
    own = isinstance(value, Mapping) and value.get("incarnation") == incarnation
    return own and engine.endswith(f"trident/{incarnation}")


def is_our_merge(commit: TableCommit, state: StateDescriptor) -> bool:
    """Tells whether a commit is a compactor's MERGE of this state, or what made the table and its columns."""
    if isinstance(commit.control.get(DOMAIN), Mapping):
        return is_our_publish(commit, state.incarnation)
    marker = commit.noted("trident")
    wanted = {"topology": state.topology, "group": state.group, "incarnation": state.incarnation}
    return (
        {key: marker.get(key) for key in wanted} == wanted
        and dict(commit.txns) == {state.merge_app: marker.get("upto")}
        and commit.metadata is None
        and not commit.domains
    )


class PlainWatch:
    """The plain tables of one batch group under one lease."""

    def __init__(self, engine: KernelEngine, warehouse: Place) -> None:
        self._engine, self._warehouse = engine, warehouse
        self._seen: dict[str, tuple[StateDescriptor, _Seen]] = {}

    def open(
        self, state: StateDescriptor, marks: Mapping[str, TableMark], log_path: Place, starts_at: int
    ) -> TableSnapshot:
        """Opens a state's plain table, made when it is not there and never was, and checks what was done to it.

        Raises:
            Halted: another writer changed it, it was restored from a copy, or its log was cleaned too far.
            ForeignTable, TableError: it is not this state's, or cannot be made.
        """
        path = self._warehouse / state.plain_path
        snapshot = open_plain(self._engine, state, str(path), str(log_path))
        mark = marks.get(snapshot.table_id)
        if mark is None:
            # Never looked at: all that can still be seen of it must be ours, from the version on that made it so.
            lowest = min(DeltaLog(path).versions(), default=snapshot.version + 1)
            adopted = adopted_version(snapshot.schema_json)
            mark = TableMark(max(lowest - 1, adopted or 0), 0, _NO_ATTEMPT, "" if adopted is None else ACCEPTED)
        self._inspect(state, path, snapshot, mark, starts_at)
        return snapshot

    def watched(self, names: Iterable[str]) -> list[Watched]:
        """The tables of these states as they were last looked at, for ``unchanged``; of those opened here."""
        known = [self._seen[name] for name in names if name in self._seen]
        return [
            Watched(str(self._warehouse / state.plain_path), seen.mark.version, seen.signature) for state, seen in known
        ]

    def check(self, names: Iterable[str], unchanged: Collection[str]) -> None:
        """Checks what has happened to the tables since.

        Args:
            names: the states to look at; those not opened here are left out.
            unchanged: tables of which a look just now has found that nothing has.

        Raises: as :meth:`open`.
        """
        for name in names:
            if name not in self._seen:
                continue
            state, seen = self._seen[name]
            path = self._warehouse / state.plain_path
            version = seen.mark.version
            if str(path) in unchanged:
                continue
            try:
                snapshot = self._engine.load(str(path))
            except TableError:
                if has_log(path):
                    raise
                raise halts.table_missing(state.topology, path, version) from None
            if snapshot.table_id != seen.table_id:
                raise halts.recreated(state.topology, path, snapshot.table_id, seen.table_id)
            self._inspect(state, path, snapshot, seen.mark, seen.starts_at)

    def marks(self) -> dict[str, TableMark]:
        """Returns what ZooKeeper is told of them: table id → the version that was looked at, with P as txid."""
        return {seen.table_id: seen.mark for _, seen in self._seen.values()}

    def _inspect(
        self, state: StateDescriptor, path: Place, snapshot: TableSnapshot, mark: TableMark, starts_at: int
    ) -> None:
        check_commits(
            state.topology,
            state.name,
            path,
            mark.version,
            snapshot.version,
            lambda commit: is_our_merge(commit, state),
        )
        merged = merged_upto(state, snapshot, starts_at)
        if merged < mark.txid:
            raise halts.version_regressed(state.topology, path, snapshot.version, mark.version)
        now = TableMark(snapshot.version, merged, _NO_ATTEMPT, mark.digest)
        self._seen[state.name] = (
            state,
            _Seen(snapshot.table_id, now, DeltaLog(path).signature(snapshot.version), starts_at),
        )


def check_commits(topology: str, state: str, path: Place, version: int, newest: int, is_ours: "history.IsOurs") -> None:
    """Every commit after a table version must be ours, or leave all rows as they are.

    Raises:
        Halted: one is not; or it cannot be known, since the log was cleaned; or the table has gone back.
    """
    if newest < version:
        raise halts.version_regressed(topology, path, newest, version)
    if newest == version:
        return
    try:
        commits = history.commits_since(path, version)
    except history.LogCleaned as error:
        raise halts.log_cleaned(topology, state, path, version, newest) from error
    for commit in commits:
        reason = history.foreign(commit, is_ours)
        if reason:
            raise halts.foreign_commit(topology, state, path, commit, reason, version)


# Checks before a MERGE that only this topology has written the commits of a keyed state's log.
#
# ZooKeeper's mark stops the next decision when another writer changed the log. A
# MERGE in between (by a running compactor, or `trident compact`, which need no
# fence and ask no ZooKeeper) would carry such a change into the plain table,
# from where no RESTORE of the log takes it back: rows doubled or lost without a
# word. So every MERGE says in its user metadata which version of the log it has
# read, and the next one looks at all commits behind that.


# Where a MERGE says which version of the log it has read.
LOG_VERSION = "log"


def begins_here(commit: TableCommit, incarnation: str) -> bool:
    """Tells whether a commit made the table ours, or is its creation: rows before it were taken over as they were."""
    value = commit.control.get(DOMAIN)
    return is_our_publish(commit, incarnation) and isinstance(value, Mapping) and value.get("attempt_id") == -1


def only_properties(commit: TableCommit) -> bool:
    """Tells whether a commit set table properties and nothing else."""
    untouched = not (commit.data_change or commit.added or commit.removes or commit.domains or commit.txns)
    return untouched and commit.operation in ("SET TBLPROPERTIES", "UNSET TBLPROPERTIES")


def repair_marker(topology: str, version: int, seen: int) -> str:
    """The user metadata of a repair's RESTORE to ``version``, that was decided when the table was at ``seen``."""
    return json.dumps({"trident-repair": {"topology": topology, "version": version, "seen": seen}})


def repaired_to(commit: TableCommit, topology: str) -> range | None:
    """The versions that a commit has taken back, when a repair of the topology made it."""
    marker = commit.noted("trident-repair")
    if commit.operation != "RESTORE" or marker.get("topology") != topology:
        return None
    version, seen = marker.get("version"), marker.get("seen")
    if not isinstance(version, int):
        return None
    return range(version + 1, (seen if isinstance(seen, int) else commit.version - 1) + 1)


def merged_log_version(path: str, state: StateDescriptor) -> int | None:
    """The version of the log that the last MERGE into a plain table has read.

    Returns:
        −1 when there was no MERGE; None when that is not known: it does not say, or its entry was cleaned up.
    """
    begun = False
    for commit in DeltaLog(path).commits_backwards():
        if state.merge_app in commit.txns and not commit.domains and is_our_merge(commit, state):
            found = commit.noted("trident").get(LOG_VERSION)
            return found if isinstance(found, int) else None
        begun = begun or begins_here(commit, state.incarnation)
    return -1 if begun else None


def start_of(path: str, version: int, incarnation: str) -> tuple[int, bool]:
    """The version behind which all commits must be ours, where nothing else is known.

    Returns:
        the version that made the table ours, and True; or the one before the oldest entry that is left, and False.
    """
    log = DeltaLog(path)
    versions = log.contiguous_versions(version)
    # The oldest: a plain table's control record never changes, and added columns repeat it.
    for commit in map(log.commit, versions):
        # A rollback begins its incarnation with the rows that it has put back.
        rolled_back = rollbacks_of(incarnation) > 0 and is_our_publish(commit, incarnation)
        if rolled_back or begins_here(commit, incarnation):
            return commit.version, True
    return min(versions, default=version + 1) - 1, False


def check_log(state: StateDescriptor, plain: str, log: str, pinned: int, seen: int | None = None) -> None:
    """Every commit to a log up to the pinned version must be ours, before it is merged.

    Args:
        seen: the version that was looked at before; None asks the last MERGE.

    Raises:
        Halted: another writer changed the log.
    """
    if seen is None:
        seen = merged_log_version(plain, state)
    if seen is None or seen < 0 or seen > pinned:
        seen, _ = start_of(log, pinned, state.incarnation)
    # The mark judges of versions that were cleaned up, at the next decision.
    seen = max(seen, min(DeltaLog(log).contiguous_versions(pinned), default=pinned + 1) - 1)
    commits = history.commits_since(log, seen) if seen < pinned else ()
    of_log = (commit for commit in commits if commit.version <= pinned)
    found = changes_by_others(of_log, state.topology, lambda one: is_our_publish(one, state.incarnation))
    for commit, reason in found:
        # Properties alone change no row; they are accepted, or not, before the next decision.
        if not only_properties(commit):
            raise halts.foreign_commit(state.topology, state.name, Place(log), commit, reason, seen)


def changes_by_others(
    commits: Iterable[TableCommit], topology: str, is_ours: history.IsOurs
) -> list[tuple[TableCommit, str]]:
    """The commits of others that may not stay, each with the reason, but for what a repair has taken back."""
    found: list[tuple[TableCommit, str]] = []
    for commit in commits:
        taken_back = repaired_to(commit, topology)
        if taken_back is not None:
            found = [pair for pair in found if pair[0].version not in taken_back]
        elif reason := history.foreign(commit, is_ours):
            found.append((commit, reason))
    return found
