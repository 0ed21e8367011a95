"""``trident diff``: where a topology and its fork, or any two that were given the same batches, first part."""

from __future__ import annotations

from dataclasses import dataclass

from trident.config import TridentConfig, as_config
from trident.coordinators.errors import ConfigError, TopologyError, TridentError
from trident.coordinators.incarnation_ids import same_start
from trident.maintenance.inventory import incarnation_of
from trident.running.status import read_status
from trident.states.core.descriptor import list_descriptors
from trident.states.core.group_context import GroupContext
from trident.states.core.names import check_name
from trident.states.core.place import Place, warehouse_place
from trident.states.delta.manifest import groups_with_manifests
from trident.time_travel.comparing import Parting, Side, first_parting
from trident.time_travel.fork_record import ForkRecord, load_fork


@dataclass(frozen=True)
class Diff:
    """Two topologies, compared.

    Attributes:
        name, other: of them.
        group: the batch group.
        first, last: the transactions that were compared; last is 0 where there was none.
        behind: how many transactions of the first one, of which the batches were given, the other has still to process.
        only_one, only_other: states that one of them has and the other has not; they are not compared.
        parting: the first transaction in which they differ, and in what; None: no difference.
    """

    name: str
    other: str
    group: str
    first: int
    last: int
    behind: int
    only_one: tuple[str, ...]
    only_other: tuple[str, ...]
    parting: Parting | None


def diff(
    name: str,
    other: str,
    other_warehouse: str,
    config: TridentConfig | None = None,
    span: tuple[int, int] | None = None,
    group: str | None = None,
) -> Diff:
    """Compares two topologies transaction by transaction, up to the first difference.

    Reads files alone: both may run. Of a fork the transactions are compared whose batches it was given.

    Args:
        name: a topology.
        other: its fork; or another topology that was given the same batches.
        other_warehouse: where that is.
        config: ``warehouse`` is that of ``name``; of a fork's original its record says it. An original that was rolled
            back meanwhile is compared by what it has done since.
        span: the first and the last transaction; None: all that both have.
        group: the batch group, where there are several.

    Raises:
        ConfigError: the other one is a fork of another topology, or is not whole.
        TopologyError: a name, or a group, is not there.
        TransactionNotKept: a transaction is not kept on one side; the message says which are.
        TableError: rows of a transaction are not there any more.
    """
    check_name("topology", name)
    check_name("topology", other)
    config = as_config(config)
    warehouse = warehouse_place(other_warehouse)
    record = load_fork(warehouse, other)
    if record is not None:
        _check_fork(record, name)
        source = Place(record.warehouse)
        incarnation = _incarnation_now(source, record)
    else:
        source = config.warehouse_place()
        incarnation = incarnation_of(source, name)
    chosen = _group(source, name, warehouse, other, group)
    one = _side(source, name, chosen, incarnation)
    two = _side(warehouse, other, chosen, incarnation_of(warehouse, other))
    first, last, behind = _bounds(one, two, record, chosen, span)
    parting = first_parting(one, two, range(first, last + 1))
    mine, theirs = ({state.name for state in list_descriptors(*side)} for side in ((source, name), (warehouse, other)))
    return Diff(
        name,
        other,
        chosen,
        first,
        parting.txid if parting else max(last, 0),
        behind,
        tuple(sorted(mine - theirs)),
        tuple(sorted(theirs - mine)),
        parting,
    )


def _side(warehouse: Place, topology: str, group: str, incarnation: str) -> Side:
    """With the transactions that its status knows of: the last ones may have changed nothing, and have no manifest."""
    processed = 0
    try:
        status = read_status(warehouse, topology)
    except TridentError:
        pass  # there is none, or it cannot be read: it is a help only
    else:
        if status.id == incarnation:
            processed = max((each.current_txid - 1 for each in status.groups if each.name == group), default=0)
    return Side(GroupContext(warehouse, topology, group, incarnation), processed)


def _check_fork(record: ForkRecord, name: str) -> None:
    if record.topology != name:
        raise ConfigError(
            f"{record.name} is not a fork of {name}",
            found=f"a fork of {record.topology} in {record.warehouse}",
            expected=f"a fork of {name}",
            action=f"`trident diff {record.topology} {record.name}` compares those two",
        )
    if not record.whole:
        raise ConfigError(
            f"the fork {record.name} is not whole",
            found="a record of a fork that was begun",
            expected="a whole fork",
            action="run the same `trident fork` again: it goes on",
        )


def _incarnation_now(source: Place, record: ForkRecord) -> str:
    """The original's; behind a rollback of it what it has done since is compared, not what was taken back."""
    try:
        now = incarnation_of(source, record.topology)
    except TridentError:
        return record.source_incarnation  # which of its transactions are not kept is told by the comparison
    return now if same_start(now, record.source_incarnation) else record.source_incarnation


def _group(source: Place, name: str, warehouse: Place, other: str, group: str | None) -> str:
    ours, theirs = groups_with_manifests(source, name), groups_with_manifests(warehouse, other)
    both = [each for each in ours if each in theirs]
    if group is None and len(both) == 1:
        return both[0]
    if group in both:
        return group
    raise TopologyError(
        f"{name} and {other} have {'several batch groups' if both and group is None else 'no such batch group'} "
        "with kept transactions",
        found=f"of {name}: {', '.join(ours) or 'none'}; of {other}: {', '.join(theirs) or 'none'}",
        expected="one that both have",
        action="name it with --group",
    )


def _bounds(
    one: Side, two: Side, record: ForkRecord | None, group: str, span: tuple[int, int] | None
) -> tuple[int, int, int]:
    """(first, last, how many the other has still to process) of the transactions that are compared."""
    if span is not None:
        return *span, 0
    if record is not None and group in record.groups:
        part = record.groups[group]
        # An original that was rolled back may not have come to all of them again.
        first, until = part.at + 1, min(part.until, one.upto)
    else:
        first = max(side.txids[0] if side.txids else 1 for side in (one, two))
        until = min(side.upto for side in (one, two))
    last = min(until, two.upto)
    return first, last, max(until - max(last, first - 1), 0)
