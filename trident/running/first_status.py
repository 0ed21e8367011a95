"""The status of a process that starts: written before ZooKeeper and Spark are there, unless another process runs."""

from __future__ import annotations

import threading
from dataclasses import replace

from trident.coordinators.errors import TridentError
from trident.running.status import StatusWriter, TopologyStatus, condition, read_status, status_path
from trident.states.core.place import Place

_WRITE_SECS = 1.0


class FirstStatus:
    """Writes ``starting``, and how a start has ended that came to nothing.

    A status of a process that runs, or that cannot be seen from here, is left as it is: this process may become that
    one's standby. The groups of a topology that ran before stay in it, as they were. It has a writer of its own: the
    query's writes its first status at once.
    """

    def __init__(self, warehouse: Place, name: str, run_id: str) -> None:
        self._writer = StatusWriter(status_path(warehouse, name), 0.0)
        self._status = _starting(warehouse, name, run_id)
        if self._status is not None:
            self._write(self._status)

    def failed(self, error: BaseException) -> None:
        """The start has ended with this error, or was interrupted."""
        if self._status is not None:
            said = str(error) or type(error).__name__ if isinstance(error, Exception) else None
            self._write(replace(self._status, role="stopped" if said is None else "failed", error=said))

    def _write(self, status: TopologyStatus) -> None:
        """In a thread: a start does not wait for a disk that does not answer, only to show that it starts."""
        writing = threading.Thread(target=self._writer.update, args=(status,), name="trident-status", daemon=True)
        writing.start()
        writing.join(_WRITE_SECS)


def _starting(warehouse: Place, name: str, run_id: str) -> TopologyStatus | None:
    try:
        before = read_status(warehouse, name)
    except TridentError:  # none, or one that cannot be read
        return TopologyStatus(name, "", run_id, 0, "starting")
    if condition(before) in ("running", "starting"):
        return None
    groups = tuple(
        replace(group, attempts=(), rows_per_second=None, txids_per_second=None, backlog={}) for group in before.groups
    )
    return TopologyStatus(name, before.id, run_id, before.epoch, "starting", groups=groups)
