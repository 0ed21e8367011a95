"""Finds a kept transaction, and checks that a topology's code is that of the transaction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trident.coordinators.errors import TableError, TopologyError, TransactionNotKept, described
from trident.coordinators.incarnation_ids import up_to
from trident.coordinators.records import Decision
from trident.maintenance.inventory import choose_group, incarnation_of
from trident.operations.windows import windows_with_rows
from trident.planning.graph import Built, TopologyGraph
from trident.planning.groups import GroupPlan, plan
from trident.states.core.group_context import GroupContext
from trident.states.core.names import checked_txid
from trident.states.core.place import Place
from trident.states.delta.manifest import Manifest
from trident.states.history.kept import KeptManifests
from trident.states.history.versions import published_as_of


@dataclass(frozen=True)
class KeptBatch:
    """A transaction whose manifest is kept, and the plan of its batch group by the code that is at hand.

    Attributes:
        manifest: of the attempt that was decided.
    """

    warehouse: Place
    plan: GroupPlan
    manifest: Manifest

    @property
    def txid(self) -> int:
        return self.manifest.attempt.txid


def find_kept(topology: Built, warehouse: Place, txid: int, group: str | None = None) -> KeptBatch:
    """The kept transaction of a topology.

    Args:
        group: the batch group, where the topology has several.

    Raises:
        TopologyError: it is no topology, has no such group, or the warehouse has nothing of it.
        ConfigError: that cannot be a txid.
        TransactionNotKept: the transaction never was, or is no longer kept; the message says which are.
        TableError: its manifest cannot be read.
    """
    if not isinstance(getattr(topology, "graph", None), TopologyGraph):
        raise TopologyError("this is no topology", found=described(topology), expected="a TridentTopology")
    txid = checked_txid(txid)
    # As a start does: windows whose stored rows an older version has made go on as they are.
    topology.graph.kept_rows |= windows_with_rows(warehouse, topology.graph.sinks)
    chosen = group_of(plan(topology.graph, tracking=False), topology.name, group)
    incarnation = incarnation_of(warehouse, topology.name)
    manifest = read_kept(GroupContext(warehouse, topology.name, chosen.name, incarnation), txid)
    check_streams(manifest, chosen)
    return KeptBatch(warehouse, chosen, manifest)


def read_kept(of: GroupContext, txid: int) -> Manifest:
    """The manifest of a transaction: also of one from before a rollback, which has left it there.

    Args:
        of: with the incarnation that the topology has now.

    Raises:
        TransactionNotKept: there is none, or no longer; or a rollback has taken the transaction back.
        TableError: it cannot be read.
    """
    try:
        return KeptManifests(of).read(txid)
    except TransactionNotKept:
        for earlier in up_to(of.incarnation)[1:]:
            kept = KeptManifests(replace(of, incarnation=earlier), upto=txid)
            if txid in kept.txids():
                decision, manifest = kept.decided(txid)
                if _stays(of, manifest, decision):
                    return manifest
        raise


def _stays(of: GroupContext, manifest: Manifest, decision: Decision) -> bool:
    """Tells whether the tables, as they are now, have the transaction of a manifest from before a rollback."""
    for path in sorted({table.path for table in manifest.tables if table.state_kind.has_table}):
        try:
            found = published_as_of(of.warehouse / path, of.topology, of.group, of.incarnation, manifest.attempt.txid)
        except TableError:  # its log does not reach back so far, or it is there no more
            continue
        if found.control.is_of(decision):
            return True
    return False


def group_of(plans: list[GroupPlan], topology: str, group: str | None) -> GroupPlan:
    """The batch group of that name; without a name the only one.

    Raises:
        TopologyError: there is none of that name, or there are several.
    """
    named = {one.name: one for one in plans}
    return named[choose_group(topology, list(named), group)]


def check_streams(manifest: Manifest, chosen: GroupPlan) -> None:
    """Raises TopologyError where the code has other streams, or other spouts, than the transaction had."""
    ran = {tx_id: str(spout.get("spout")) for tx_id, spout in manifest.spouts.items()}
    code = {tx_id: type(spout).__qualname__ for tx_id, spout in chosen.spouts.items()}
    if ran != code:
        raise TopologyError(
            f"transaction {manifest.attempt.txid} of {manifest.topology}/{manifest.group} was made by other spouts "
            "than the code has",
            found=_named(code),
            expected=_named(ran),
            action="take the code that ran then, or one that has changed behind the spouts only",
        )
    skipped = [tx_id for tx_id, spout in manifest.spouts.items() if not spout.get("kind")]
    if skipped:
        raise TopologyError(
            f"transaction {manifest.attempt.txid} of {manifest.topology}/{manifest.group} was skipped: it was "
            "committed as empty, and no code of the topology made it",
            found="`trident skip`",
            action="`trident dead-letters list` shows its metadata; replay the transaction before or behind it",
        )


def _named(spouts: dict[str, str]) -> str:
    return ", ".join(f"{tx_id} ({spout})" for tx_id, spout in sorted(spouts.items()))
