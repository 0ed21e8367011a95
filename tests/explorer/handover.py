"""A hand-over in the model: a command asks the leader to give way, may take that back, and then another one leads.

What the leader does next is asked of production code: whom a request is for, when a leader is drained, and whether it
pauses, goes on or stops (``handing_over``). The model compares that with what it knows itself: which leader was asked,
and what is in flight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.explorer.durable import Durable
from tests.explorer.search import Violation
from trident.coordinators import handing_over
from trident.coordinators.handing_over import LEAD, GivingWay, HandoverRequest, Step
from trident.coordinators.master import Mode
from trident.coordinators.records import Holder

_BY = Holder("host", "boot", 1, "1", "token")
_LATE = 1e6  # later than a leader waits for what it has begun


class Request(NamedTuple):
    """What the znode ``handover.request`` says: to the leader of an epoch, in an incarnation."""

    id: str
    epoch: int
    life: int


def ask(number: int, durable: Durable) -> Request:
    """A command asks the process that leads now."""
    return Request(f"{number}", durable.epoch, durable.record.life)


def next_step(process: Any, request: Request | None, life: int, late: bool) -> tuple[GivingWay | None, Step | None]:
    """What the leader does next for a hand-over, and how far it is with it then.

    Args:
        process: the leader, as ``environment.Process``.
        life: the topology's incarnation.
        late: it has waited for long enough for what it has begun.
    """
    giving: GivingWay | None = process.giving
    if giving is None and (request is None or process.brain.state.mode is not Mode.RUNNING):
        return None, None
    asked = request.id if request is not None and _is_for(request, process.writer.epoch, life) else None
    drained = process.brain.state.is_drained
    after, step = handing_over.give_way(giving, asked, drained, _LATE if late else 0.0)
    if step is Step.PAUSE and (request.epoch, request.life) != (process.writer.epoch, life):
        raise Violation(f"the leader of epoch {process.writer.epoch} gives way to {request}")
    begins = [one for one in process.begins if one.live]  # one that was cancelled may still wait to be left out
    in_flight = (begins, process.emits, process.staged, process.commit)
    if step is Step.STOP and not late and any(in_flight):
        raise Violation(f"the lease is to be given back, and in flight is {in_flight}")
    return after, step


def gave_way(process: Any) -> bool:
    """Tells whether a process has ended so that another one may lead."""
    return process.ended is Mode.STOPPED and process.giving is not None and process.giving.stops


def _is_for(request: Request, epoch: int, life: int) -> bool:
    stored = HandoverRequest(request.id, "chosen", f"i{request.life}", {"g": request.epoch}, LEAD, 5, False, _BY)
    return handing_over.is_for(stored, {"g": epoch}, f"i{life}")
