"""Checks before a MERGE that only this topology has written the commits of a keyed state's log.

ZooKeeper's mark stops the next decision when another writer changed the log. A
MERGE in between (by a running compactor, or `trident compact`, which need no
fence and ask no ZooKeeper) would carry such a change into the plain table,
from where no RESTORE of the log takes it back: rows doubled or lost without a
word. So every MERGE says in its user metadata which version of the log it has
read, and the next one looks at all commits behind that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from trident.coordinators.incarnation_ids import rollbacks_of
from trident.states.core.control import DOMAIN
from trident.states.core.descriptor import StateDescriptor
from trident.states.core.place import Place
from trident.states.delta import halts, history
from trident.states.delta.delta_log import DeltaLog, TableCommit
from trident.states.keyed.plain_watch import is_our_merge, is_our_publish

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
    for commit in DeltaLog(path).commits_down():
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
    versions = log.unbroken(version)
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
    seen = max(seen, min(DeltaLog(log).unbroken(pinned), default=pinned + 1) - 1)
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
