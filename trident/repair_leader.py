"""Whether somebody leads the topology in another ZooKeeper than the one that was named.

The lease that a repair takes keeps out only those who use the same ZooKeeper.
Named the wrong one, a repair would take a running topology for one whose
ZooKeeper was wiped, and write a second record. The status file is all there is
to see it by: a help, never a proof.
"""

from __future__ import annotations

from trident.coordinators import processes
from trident.status import TopologyStatus

_FRESH_SECS = 10.0


def leads_elsewhere(status: TopologyStatus, epoch: int, now: float) -> str:
    """Who leads elsewhere, as text; "" when nobody is seen to.

    Args:
        epoch: the greatest that the named ZooKeeper knows: of that it has heard, and the lease decides.
        now: seconds since the epoch.
    """
    if status.role != "leader" or status.epoch <= epoch:
        return ""
    who = f"{status.host} pid {status.pid}, epoch {status.epoch}"
    if (status.host, status.boot_id) == (processes.host_name(), processes.boot_id()):
        return "" if processes.is_gone(status.pid, status.process_started) else who
    age = now - status.written_at
    return f"{who}, {age:.0f} s ago" if age < _FRESH_SECS else ""
