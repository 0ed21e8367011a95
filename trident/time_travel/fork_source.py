"""Reads the original of a fork: its kept manifests from transaction N on, and its tables' versions as of N."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trident.coordinators.errors import TopologyError, TransactionNotKept
from trident.coordinators.incarnation_ids import rollbacks_of, same_start
from trident.states.core.descriptor import descriptors_of_group
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.delta.manifest import ManifestStore, groups_with_manifests
from trident.states.history.kept import KeptManifests
from trident.states.history.versions import StateVersions, group_as_of
from trident.states.keyed.compaction import SnapshotUnavailable
from trident.time_travel import fork_plan
from trident.time_travel.fork_plan import Past
from trident.time_travel.fork_record import ForkedGroup, ForkedState, ForkRecord

At = Mapping[str, int] | int


def pasts_of(warehouse: Place, topology: str, incarnation: str, at: At, record: ForkRecord | None = None) -> list[Past]:
    """The batch groups of the original from N on.

    Args:
        record: of a fork that was begun: it is given the batches that it was to be given.

    Raises:
        TransactionNotKept: N is not kept, or one behind it no longer is; or its manifest is lost.
        SourceError, TopologyError: streams or states that cannot be forked; or a group that is not there.
        TableError: a manifest cannot be read, or is not of the attempt that was decided.
    """
    groups = {
        group: kept
        for group in groups_with_manifests(warehouse, topology)
        if (kept := KeptManifests(GroupContext(warehouse, topology, group, incarnation))).txids()
    }
    if record is None:
        _refuse_left_out(warehouse, topology, incarnation, groups.keys())
    points = _points(topology, sorted(groups), at)
    found = []
    for group, txid in sorted(points.items()):
        kept = groups[group]
        decision, manifest = kept.decided(txid)
        until = record.groups[group].until if record is not None else max(kept.txids())
        found_later = ((each, kept.read_if_any(each)) for each in range(txid + 1, until + 1))
        later = {each: manifest for each, manifest in found_later if manifest is not None}
        past = Past(group, decision, manifest, later)
        if record is not None and past.until < until:
            kept.read(until)  # says that it is not kept, and what is
        fork_plan.check_attempts(past)
        fork_plan.check_sources(past)
        fork_plan.check_states(past)
        found.append(past)
    return found


def _refuse_left_out(warehouse: Place, topology: str, incarnation: str, groups: Collection[str]) -> None:
    """Refuses a topology of which a batch group has had no transaction since a rollback: the fork would be without it.

    Raises:
        TransactionNotKept: there is one.
    """
    for group in groups_with_manifests(warehouse, topology):
        states = descriptors_of_group(warehouse, topology, group)
        if group in groups or (states and all(state.ends_at is not None for state in states)):
            continue  # or it has left the topology
        earlier = (manifest for _, manifest in ManifestStore(warehouse, topology, group).newest_first())
        before = next((one for one in earlier if same_start(one.incarnation, incarnation)), None)
        if before is not None and rollbacks_of(before.incarnation) < rollbacks_of(incarnation):
            raise TransactionNotKept(
                f"batch group {group} of {topology} has no kept transaction since the last rollback",
                txid=before.attempt.txid,
                found=f"manifests of the incarnation before, up to transaction {before.attempt.txid}",
                expected=f"one of incarnation {incarnation} of each batch group",
                action=f"let {topology} run until each of its batch groups has had a transaction",
            )


def _points(topology: str, groups: list[str], at: At) -> dict[str, int]:
    """Group → N."""
    if isinstance(at, Mapping):
        points = dict(at)
    else:
        points = dict.fromkeys(groups, at) if len(groups) == 1 else {}
    if not groups:
        raise TopologyError(
            f"no manifest of {topology} is kept",
            expected="some: they have the batches that a fork is given",
            action="let the topology run with history_retention_txids above 0",
        )
    if set(points) != set(groups):
        raise TopologyError(
            f"{topology} has {'several batch groups' if len(groups) > 1 else 'one batch group'}, each with its own "
            "transactions",
            found=f"--at for {', '.join(sorted(points))}" if points else "one txid for all",
            expected=" ".join(f"--at {group}=N" for group in groups),
            action="name a txid for each group",
        )
    return points


def begin_record(
    warehouse: Place, topology: str, source_incarnation: str, name: str, incarnation: str, stop: bool, pasts: list[Past]
) -> ForkRecord:
    """The record of a fork that is about to be made: the versions of all tables as of N.

    Raises:
        TransactionNotKept: a table no longer has N; the message says from where on it has.
        TableError, ForeignTable: a table is missing, or another's.
    """
    groups = {}
    for past in pasts:
        found = _as_of(warehouse, topology, past, source_incarnation)
        states = {one: _forked(each) for one, each in found.items() if _takes_part(each, past.at)}
        fork_plan.check_published(past, {one: found[one].published.control for one in states})
        groups[past.group] = ForkedGroup(past.at, past.until, states)
    return ForkRecord(str(warehouse), topology, source_incarnation, name, incarnation, stop, groups)


def _as_of(warehouse: Place, topology: str, past: Past, incarnation: str) -> Mapping[str, StateVersions]:
    try:
        return group_as_of(warehouse, topology, past.group, past.at, incarnation)
    except SnapshotUnavailable as error:  # under a log's floor, or behind entries of a log that were cleaned up
        raise TransactionNotKept(
            error.message,
            txid=past.at,
            oldest=error.available,
            found=error.found,
            expected=error.expected,
            action=error.action,
        ) from error


def _takes_part(state: StateVersions, txid: int) -> bool:
    """Tells whether a state was the topology's in a transaction, or has left it before."""
    ends = state.state.ends_at
    return ends is None or ends >= txid


def _forked(state: StateVersions) -> ForkedState:
    published, plain = state.published, state.plain
    if not state.state.state_kind.has_log:
        return ForkedState(published.version, None, -1)
    merged = published.control.starts_at - 1 if plain is None else plain.merged
    return ForkedState(published.version, None if plain is None else plain.version, merged)
