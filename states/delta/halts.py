"""The texts for a halt: ZooKeeper and the tables contradict each other.

Each names the contradiction, which side is older, what was found and expected,
and the command that repairs it. ``trident repair NAME`` alone changes nothing:
it shows what is there and what could be done (trident/repair/diagnose.py decides).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trident.coordinators.errors import ForeignMarks, Halted, StaleEpoch
from trident.coordinators.records import Decision, GroupRecord, TableMark
from trident.states.core.control import ControlRecord
from trident.states.core.place import Place
from trident.states.delta.delta_log import TableCommit

WIPED_CAUSES = (
    "ZooKeeper was wiped, or restored from an older backup, or the topology was started with another ZooKeeper"
)


def repair_command(topology: str, *options: str) -> str:
    return "`" + " ".join(["trident", "repair", topology, *options]) + "`"


def _first(topology: str) -> str:
    return f"{repair_command(topology)} shows what can be done and changes nothing"


def attempt_text(txid: int, attempt_id: int) -> str:
    """A transaction as these texts name it; attempt −1 stands for "none yet"."""
    if attempt_id < 0:
        return f"no transaction yet (begins after {txid})"
    return f"transaction {txid}, attempt {attempt_id}"


def transactions_differ(topology: str, path: Place, control: ControlRecord, mark: TableMark | None) -> Halted:
    """The table and ZooKeeper have each another last transaction."""
    known = attempt_text(mark.txid, mark.attempt_id) if mark else "no transaction of this table"
    theirs = (mark.txid, mark.attempt_id) if mark else (0, -1)
    ours = (control.txid, control.attempt_id)
    if ours == theirs:
        older = "they are of different incarnations: both have the same numbers and other contents"
    elif ours < theirs:
        older = f"the table is the older side: it lacks what came after transaction {control.txid}"
    else:
        older = f"ZooKeeper is the older side, wiped, or restored from an older backup than transaction {control.txid}"
    return Halted(
        f"the table {path} and ZooKeeper do not agree on the last transaction; {older}",
        found=f"the table has {attempt_text(*ours)}",
        expected=f"{known}, as in ZooKeeper",
        action=_first(topology),
    )


def group_unknown_to_zookeeper(topology: str, group: str, decision: Decision) -> Halted:
    """ZooKeeper has nothing of a batch group that has manifests."""
    return Halted(
        f"ZooKeeper is the older side: it has forgotten batch group {group!r} of {topology!r} ({WIPED_CAUSES})",
        found=f"a manifest of {attempt_text(decision.txid, decision.attempt_id)}, and no record in ZooKeeper",
        expected="a record, or a group that has never run: begun at transaction 1 it would count everything again",
        action=_first(topology),
    )


def other_incarnation(topology: str, path: Place, control: ControlRecord, incarnation: str) -> Halted:
    """The table is of another incarnation of the topology than ZooKeeper."""
    return Halted(
        f"the table {path} is of another incarnation of topology {topology!r} than ZooKeeper: {WIPED_CAUSES}, "
        "or the table was brought from elsewhere",
        found=f"the table: incarnation {control.incarnation}, {attempt_text(control.txid, control.attempt_id)}",
        expected=f"incarnation {incarnation}, as in ZooKeeper",
        action=f"{_first(topology)}; to begin again: `trident reset {topology} --drop-tables --force`",
    )


def topology_unknown_to_zookeeper(topology: str, warehouse: Place, tables: Sequence[str]) -> Halted:
    """ZooKeeper knows nothing of a topology whose tables hold transactions."""
    return Halted(
        f"ZooKeeper knows no transaction of topology {topology!r}, but its tables have some; ZooKeeper is the older "
        f"side: {WIPED_CAUSES}",
        found=f"in {warehouse}: {'; '.join(tables)}",
        expected="the record of these transactions in ZooKeeper, or no tables",
        action=f"{_first(topology)}, and `--apply` rebuilds ZooKeeper's record from the tables; if the settings name "
        f"the wrong ZooKeeper, correct them; to count everything again: "
        f"`trident reset {topology} --drop-tables --force`",
    )


def tables_missing(
    topology: str,
    group: str,
    record: GroupRecord,
    missing: Iterable[Place],
    strange: Iterable[Place],
    ids: Iterable[str],
) -> Halted:
    """Tables of which ZooKeeper has a mark are missing, or others are in their place."""
    unknown = sorted(ids)
    marks = ", ".join(
        f"{one} ({attempt_text(record.tables[one].txid, record.tables[one].attempt_id)})" for one in unknown
    )
    found = [f"no table at {path}" for path in missing]
    found += [f"another table at {path}, dropped and made again" for path in strange]
    last = record.last_published.txid if record.last_published else 0
    return Halted(
        f"a table that batch group {group!r} has written is gone, or was dropped and made again; ZooKeeper is the "
        f"newer side: it says that the group has published up to transaction {last}",
        found="; ".join(found) or f"no table with the id {', '.join(unknown)}",
        expected=f"the tables with the ids {marks}",
        action=f"bring the table back from a back-up; {_first(topology)}; to begin again: "
        f"`trident reset {topology} --drop-tables`",
    )


def table_missing(topology: str, path: Place, version: int, decided: Decision | None = None) -> Halted:
    """A table is gone under the running topology, or before a decided transaction could be published to it."""
    before = "a decided transaction cannot be published: " if decided else ""
    return Halted(
        f"{before}the table {path} is gone; ZooKeeper is the newer side",
        found="no Delta table",
        expected=f"the table at version {version} or later" if version >= 0 else "the table as it was",
        action=f"bring it back from a back-up; {_first(topology)}; to begin again: "
        f"`trident reset {topology} --drop-tables`",
    )


def recreated(topology: str, path: Place, found_id: str, expected_id: str) -> Halted:
    """A table has another id than before."""
    return Halted(
        f"the table {path} was dropped and made again; ZooKeeper is the newer side: the transactions that it knows "
        "are not in this table",
        found=f"table id {found_id}",
        expected=f"table id {expected_id}",
        action=f"bring the old table back from a back-up; {_first(topology)}; to begin again: "
        f"`trident reset {topology} --drop-tables`",
    )


def foreign_commit(topology: str, state: str, path: Place, commit: TableCommit, reason: str, version: int) -> Halted:
    """Another writer committed to a table of ours."""
    restored = commit.operation == "RESTORE"
    older = (
        "the table is the older side: its rows are those of an earlier version"
        if restored
        else ("the table is the newer side: it has what no transaction of this topology wrote")
    )
    return Halted(
        f"another writer changed the table {path} after version {version}, the last that this topology left; {older}",
        found=f"table version {commit.version}: {reason}",
        expected="commits of this topology, OPTIMIZE, VACUUM, statistics, added columns, comments, harmless properties",
        action=f"{_first(topology)}; {repair_command(topology, '--undo-foreign', state)} takes the change back, "
        f"{repair_command(topology, '--accept-foreign', state)} keeps it where that is exact (add --apply to do it)",
    )


def not_written(topology: str, path: Place, version: int, requirements: Sequence[str], reason: str) -> Halted:
    """A table asks of its writers what this framework does not do: known before anything is decided."""
    return Halted(
        f"the table {path} can no longer be written by this topology: it asks more of its writers than they do",
        found=f"at version {version}: {'; '.join(requirements) or reason}",
        expected="a table without constraints, defaults, generated columns and features that a writer must know",
        action="take that away from the table (ALTER TABLE … DROP CONSTRAINT, DROP DEFAULT, DROP FEATURE) and start "
        f"again: nothing is decided, and no row is lost; {_first(topology)}",
    )


def log_cleaned(topology: str, state: str, path: Place, version: int, newest: int) -> Halted:
    """Halts where the log entries that say what happened to a table are gone."""
    return Halted(
        f"the Delta log of the table {path} was cleaned too far: its changes since version {version}, the last one "
        "that ZooKeeper knows, cannot be checked; which side is older is not known",
        found=f"a table at version {newest}, without all of its log entries from {version + 1} on",
        expected=f"every log entry from {version + 1} to {newest}",
        action=f"raise delta.logRetentionDuration of the table; {_first(topology)}; "
        f"{repair_command(topology, '--accept-unverified', state)} takes the table as it is (add --apply to do it)",
    )


def version_regressed(topology: str, path: Place, found: int, expected: int) -> Halted:
    """A table's version is lower than it was: it was restored from a copy."""
    return Halted(
        f"the table {path} is older than ZooKeeper: it was restored from a copy",
        found=f"table version {found}",
        expected=f"version {expected} or later, as in ZooKeeper",
        action=_first(topology),
    )


def outside_is_ahead(topology: str, state: str, found: str, last_txid: int) -> Halted:
    """An outside state has transactions that ZooKeeper does not know."""
    return Halted(
        f"ZooKeeper is the older side: state {state}, which is outside of the warehouse, has a later transaction",
        found=found,
        expected=f"transaction {last_txid} or an earlier one, the last that ZooKeeper knows",
        action=f"bring ZooKeeper, the warehouse and the store of {state} back from one moment; {_first(topology)}",
    )


def outside_state_lags(topology: str, state: str, found: str, known: TableMark) -> Halted:
    """An outside state lacks transactions that were published to it."""
    return Halted(
        f"state {state}, which is outside of the warehouse, is the older side: its store has lost transactions, or was "
        "put back to an earlier moment",
        found=found,
        expected=attempt_text(known.txid, known.attempt_id),
        action=f"bring the store back from a newer copy; to continue without the rows that it lacks: "
        f"{repair_command(topology, '--accept-outside', state, '--apply')}; to begin again: `trident reset {topology}`",
    )


def outside_is_later(topology: str, state: str, found: str, epoch: int) -> Halted:
    """An outside state has been written by a coordinator that is later than the leader."""
    return Halted(
        f"state {state} has been written by a later coordinator, and there is none",
        found=found,
        expected=f"nothing later than coordinator {epoch}",
        action="ZooKeeper is the older side, wiped or restored from an older copy, or another installation writes to "
        f"the same store: bring both from the same moment, or clear the state's marks; {_first(topology)}",
    )


def outside_is_foreign(topology: str, state: str, error: ForeignMarks) -> Halted:
    """An outside state has been written by another life of the topology."""
    return Halted(
        f"state {state}, which is outside of the warehouse, has been written by another life of the topology: before a "
        "reset, with another ZooKeeper, or by another installation of the same name",
        found=error.message,
        expected="marks of this life, or none",
        action=f"if no other installation writes there, and rows that are in the store may come again: adopt=True of "
        f"state {state}, for one start; else give the topology another name, or the state another store",
    )


def outside_refuses(topology: str, txid: int, epoch: int, error: StaleEpoch) -> Halted:
    """An outside state has refused the leader as an older coordinator."""
    return Halted(
        "a decided transaction cannot be published: a later coordinator or transaction has written, and there is none",
        found=error.message,
        expected=f"nothing later than transaction {txid} of coordinator {epoch}",
        action="ZooKeeper is the older side, wiped or restored from an older copy, or another installation writes to "
        f"the same store: bring both from the same moment, or clear the state's marks; {_first(topology)}",
    )


def files_missing(topology: str, decision: Decision, problems: Sequence[str]) -> Halted:
    """Staged files are not there, or not the same, though their transaction is decided."""
    return Halted(
        f"transaction {decision.txid}, attempt {decision.attempt_id} is decided and cannot be published; ZooKeeper, "
        "which has the decision, is the newer side: " + "; ".join(problems),
        expected="every file that the manifest lists, as it was staged",
        action="bring the files back from a back-up and start again: nothing else can complete a decided batch; "
        f"{_first(topology)}; {repair_command(topology, '--abandon-decision')} gives the decision up if nothing of it "
        "is published yet (add --apply to do it)",
    )
