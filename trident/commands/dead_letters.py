"""The commands for dead letters: shows them, and has them tried again (docs/semantics.md 6)."""

from __future__ import annotations

from collections.abc import Collection

from trident.config import TridentConfig, as_config
from trident.maintenance.inventory import warehouse_of
from trident.messages.dead_letters import DeadLetter, DeadLetterReader
from trident.running.zookeeper import own_zookeeper
from trident.states.outside.outbox import RefusedRequest, refused_requests


def dead_letters(name: str, config: TridentConfig | None = None) -> list[DeadLetter]:
    """The dead letters of a topology, the oldest first. It may be running.

    Raises:
        TopologyError: the warehouse knows no such topology.
        TableError: a table of dead letters or messages cannot be read.
    """
    return DeadLetterReader(warehouse_of(as_config(config), name), name).letters()


def refused_by_servers(name: str, config: TridentConfig | None = None) -> list[RefusedRequest]:
    """The dead letters of a topology's HttpStates, by state, the oldest first. It may be running.

    Those are decided rows, which no replay sends again.

    Raises:
        TopologyError: the warehouse knows no such topology.
        OutboxDamaged, TableError: what is kept of them is not as it was written.
    """
    return refused_requests(warehouse_of(as_config(config), name), name)


def replay(
    name: str,
    config: TridentConfig | None = None,
    stream: str | None = None,
    messages: Collection[str] = (),
    again: bool = False,
    force: bool = False,
) -> str:
    """Has dead letters tried again by the topology that runs, or by its next start.

    Each request counts each message once. A message that fails again, as often
    as ``max_replays`` says, is a dead letter again.

    Args:
        stream: only of this stream.
        messages: only these, by their ids as ``dead-letters list`` shows them; all when empty.
        again: also those of which a replay was asked for already.
        force: do not ask whether this is the topology's ZooKeeper; none is needed then.

    Returns:
        what was done, a line a stream.

    Raises:
        TopologyError: there is no such dead letter.
        CoordinationError: the topology is another ZooKeeper's.
    """
    config = as_config(config)
    warehouse = warehouse_of(config, name)
    if not force:
        with own_zookeeper(config, warehouse, name, "dead-letters replay"):
            pass
    lines = DeadLetterReader(warehouse, name).replay(stream, messages, again)
    return "\n".join(lines) or f"{name}: no dead letter is to be replayed"
