"""``trident migrate``: a topology's first transaction begins where a query of Structured Streaming has got to."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import ConfigError, CoordinationError, SourceError, TopologyError
from trident.coordinators.group_store import IMPORTED, GroupStore
from trident.coordinators.leadership import Lease
from trident.coordinators.records import GroupRecord
from trident.coordinators.registration import Registration
from trident.coordinators.zookeeper import ZooKeeper
from trident.running.zookeeper import leading, own_zookeeper
from trident.spouts.checkpoint import Imports, SourceOffset, StreamCheckpoint
from trident.spouts.contracts import Json, SpoutContext
from trident.states.core import storage
from trident.states.core.place import Place, named_place
from trident.states.delta.delta_log import DeltaLog
from trident.topology import TridentTopology


@dataclass(frozen=True)
class InDoubt:
    """The user's word about a batch that Spark has planned and not committed.

    Attributes:
        again: it is read again.
        skip: the target has it.
        targets: Delta tables, each of which knows the last batch that it has under ``app_id``.

    Raises:
        ConfigError: these contradict each other.
    """

    again: bool = False
    skip: bool = False
    targets: Sequence[str] = ()
    app_id: str | None = None

    def __post_init__(self) -> None:
        if self.again and self.skip:
            raise ConfigError("a batch is read again, or it is not", found="--again and --skip", expected="one of them")
        if bool(self.targets) != (self.app_id is not None):
            raise ConfigError(
                "a target says which batch it has under the id that its MERGEs were written with",
                found="--target without --app-id, or --app-id without --target",
                expected="both",
            )


def migrate(
    checkpoint: str,
    topology: TridentTopology,
    config: TridentConfig | None = None,
    doubt: InDoubt | None = None,
    *,
    without_state: bool = False,
    force: bool = False,
) -> str:
    """Pins the first transaction of a topology behind the last batch of a query of Structured Streaming.

    The query must have been stopped, and the topology must not have begun. Run again it does nothing more.

    Args:
        checkpoint: the query's checkpointLocation.
        doubt: about a batch that is planned and not committed.
        without_state: leave out the state that Spark keeps for the query.
        force: do not ask whether this is the topology's ZooKeeper.

    Returns:
        what was pinned, a line a stream.

    Raises:
        ConfigError: the warehouse is in a store.
        TopologyError: there is no checkpoint, or none of the topology's streams reads one of its sources.
        SourceError: the checkpoint is torn, or a batch of it is in doubt, or a stream cannot go on from there.
        CoordinationError: the topology has begun, runs, or is another ZooKeeper's.
    """
    config = as_config(config)
    warehouse = config.warehouse_place()
    if not warehouse.is_local:
        raise ConfigError(
            "a topology whose warehouse is in a store cannot take over a query yet",
            found=str(warehouse),
            expected="a warehouse on a disk that this host reaches by a path",
        )
    storage.make_warehouse(warehouse)
    found = StreamCheckpoint(named_place(checkpoint))
    if found.has_state and not without_state:
        raise SourceError(
            f"the query of the checkpoint {checkpoint} keeps state of Spark's own, which cannot be imported",
            found="a folder state: an aggregation, a join of streams, dropDuplicates or the like",
            expected="a query without, such as a foreachBatch with a MERGE",
            action="--without-state leaves it out: what the query knew of earlier rows is not known here",
        )
    done, addition = _last_done(found, doubt or InDoubt())
    sources = found.ends(done) if done >= 0 else found.begins()
    streams = _streams_of(topology, sources, done)
    with own_zookeeper(config, warehouse, topology.name, "migrate", force) as zk:
        identity = topology.identity()
        registration = Registration(zk, topology.name)
        registration.check(identity)
        with leading(zk, topology.name, list(identity["groups"])) as lease:
            incarnation = _incarnation(zk, topology.name, identity["groups"])
            positions = {
                tx_id: _position(topology, tx_id, source, warehouse, incarnation) for tx_id, source in streams.items()
            }
            _check_unchanged(found)
            for group, tx_ids in identity["groups"].items():
                own = {tx_id: positions[tx_id] for tx_id in tx_ids if tx_id in positions}
                _pin(zk, lease, topology.name, group, tx_ids, incarnation, own)
            # Last: a start that comes before it meets groups of another incarnation, and begins nowhere.
            registration.ensure(identity, fences=lease.fences.values(), incarnation=incarnation)
    begins = f"after batch {done}" if done >= 0 else "at the start of batch 0"
    lines = [f"{topology.name}: transaction 1 begins {begins} of {checkpoint}{addition}"]
    lines += [f"  stream {tx_id}: {_shown(source)}" for tx_id, source in streams.items()]
    others = [tx_id for tx_id in identity["streams"] if tx_id not in streams]
    lines += [f"  stream {tx_id} is not in the checkpoint: it begins as its spout says" for tx_id in others]
    return "\n".join(lines)


# --- which batch is the last one ------------------------------------------------------------------------


def _last_done(found: StreamCheckpoint, doubt: InDoubt) -> tuple[int, str]:
    """The last batch that the target has, and how that is known; -1: none.

    Raises:
        SourceError: it is not known.
    """
    batch = found.in_doubt
    if batch is None:
        return found.last, ""
    if doubt.skip:
        return batch, f"; batch {batch}, which Spark has not committed, is taken for done"
    if doubt.again:
        return batch - 1, f"; batch {batch}, which Spark has not committed, is read again"
    if not doubt.targets:
        raise SourceError(
            f"batch {batch} of the checkpoint {found.path} is in doubt",
            found=f"offsets/{batch}, and no commits/{batch}: Spark has planned it, and its rows may be in the target",
            expected="a word on whether the target has them",
            action="if the MERGEs were written with txnAppId and txnVersion=batch_id: --target TABLE --app-id ID "
            "checks that. If reading the batch again changes nothing (the last value of each key counts): --again. "
            "Else check the target: --again if it does not have the batch, --skip if it does. Or run the old job once "
            "more, until it has committed the batch",
        )
    has = {target: _has_batch(target, doubt.app_id or "", batch) for target in doubt.targets}
    if len(set(has.values())) > 1:
        raise SourceError(
            f"batch {batch} of the checkpoint {found.path} is in some targets, and not in others",
            found=", ".join(f"{target} {'has it' if yes else 'does not have it'}" for target, yes in has.items()),
            expected="targets that agree",
            action="run the old job once more, until it has committed the batch",
        )
    if all(has.values()):
        return batch, f"; batch {batch}, which Spark has not committed, is in the target"
    return batch - 1, f"; batch {batch}, which Spark has not committed, is not in the target, and is read again"


def _has_batch(target: str, app_id: str, batch: int) -> bool:
    table = DeltaLog(named_place(target)).at()
    version = table.txn_version(app_id)
    if version not in (batch - 1, batch):
        known = ", ".join(f"{app} at {txn}" for app, txn in sorted(table.txns.items())[:10]) or "none"
        raise SourceError(
            f"the target {target} does not say whether it has batch {batch}",
            found=f"transaction ids {known}",
            expected=f"{app_id} at {batch - 1} or {batch}",
            action="check --app-id; or inspect the target, and say --again or --skip",
        )
    return version == batch


def _check_unchanged(found: StreamCheckpoint) -> None:
    now = StreamCheckpoint(found.path)
    if (now.last, now.in_doubt) != (found.last, found.in_doubt):
        raise SourceError(
            f"the query of the checkpoint {found.path} is running",
            found=f"batch {now.last}",
            expected=f"batch {found.last}, as a moment ago",
            action="stop it first",
        )


# --- which stream goes on with which source -------------------------------------------------------------


def _streams_of(topology: TridentTopology, sources: Sequence[SourceOffset], done: int) -> dict[str, SourceOffset]:
    if not sources:
        raise SourceError(
            f"the checkpoint does not say where batch {done + 1} began",
            found="batch 0, of sources that are not Kafka's",
            expected="a batch after it",
            action="nothing of the sources was committed: start the topology without `trident migrate`, with a target "
            "that does not have the batch; or run the old job once more, until it has committed the batch",
        )
    found: dict[str, SourceOffset] = {}
    for source in sources:
        readers = [
            tx_id
            for tx_id, node in sorted(topology.graph.sources.items())
            if isinstance(node.spout, Imports) and node.spout.reads_source(source)
        ]
        if len(readers) != 1 or readers[0] in found:
            raise TopologyError(
                f"source {source.name} of the checkpoint ({source.kind}) has not one stream of {topology.name} "
                "that continues it",
                found=", ".join(readers) or "no stream that reads it",
                expected="one stream for each source: its topics, its folder or its table",
                action=f"the source is {_shown(source)}",
            )
        found[readers[0]] = source
    return found


def _position(topology: TridentTopology, tx_id: str, source: SourceOffset, warehouse: Place, incarnation: str) -> Json:
    folder = warehouse / "_trident" / topology.name / "streams" / tx_id
    storage.make_folder(folder, warehouse)
    own: Path | Place = Path(folder) if folder.is_local else folder
    context = SpoutContext(None, topology.name, tx_id, own, incarnation)
    position: Json = topology.graph.sources[tx_id].spout.position_after(source, context)
    return position


def _shown(source: SourceOffset) -> str:
    return ", ".join(f"{key} {value}" for key, value in source.value.items())


# --- ZooKeeper ------------------------------------------------------------------------------------------


def _incarnation(zk: ZooKeeper, name: str, groups: Mapping[str, Sequence[str]]) -> str:
    """The topology's, where a run of this command that was killed has left one; else a new one.

    Raises:
        CoordinationError: the topology has begun.
    """
    registered = Registration(zk, name).read()
    found = {registered[0]} if registered else set()
    for group, tx_ids in groups.items():
        record = GroupStore(zk, name, group, tx_ids).load()[0]
        if record is not None and (record.current_txid > 1 or record.attempts):
            raise CoordinationError(
                f"{name} has begun: its first transaction cannot be pinned any more",
                found=f"transaction {record.current_txid} of batch group {group!r}",
                expected="a topology that was not started yet",
                action=f"`trident reset {name}` forgets its transactions, if that is meant",
            )
        if record is not None and registered is None:
            found.add(record.incarnation)
    return found.pop() if found else uuid.uuid4().hex


def _pin(
    zk: ZooKeeper,
    lease: Lease,
    name: str,
    group: str,
    tx_ids: Sequence[str],
    incarnation: str,
    positions: Mapping[str, Any],
) -> None:
    """Creates a group's record with its positions; where an earlier run of this command has, compares."""
    store = GroupStore(zk, name, group, tx_ids, lease.fences[group])
    record, _, pins = store.load()
    if record is None:
        store.create(GroupRecord(incarnation=incarnation, current_txid=1), positions)
        return
    there = {tx_id: of_stream[IMPORTED] for tx_id, of_stream in pins.items() if IMPORTED in of_stream}
    if there != dict(positions) or record.incarnation != incarnation:
        raise CoordinationError(
            f"{name} was imported, or started, already, with other positions",
            found=str(there)[:300],
            expected=str(dict(positions))[:300],
            action=f"`trident reset {name}`, and import it again",
        )
