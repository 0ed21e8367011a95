"""Waits until all that a topology's sources have now is committed: behind ``TopologyQuery.process_all_available``."""

from __future__ import annotations

import time

from trident.coordinators.errors import CoordinationError, SourceError, TridentError
from trident.coordinators.ports import Site
from trident.coordinators.supervisor import Supervisor

# How long a standby waits beyond the session timeout, and how long a source may fail to say whether it has data.
_TAKE_OVER_SECS, _UNREADY_SECS = 10.0, 30.0


def process_all_available(
    name: str, supervisor: Supervisor, site: Site, session_timeout_secs: float, timeout_secs: float | None
) -> None:
    """See ``TopologyQuery.process_all_available``.

    Args:
        session_timeout_secs: how long a leader that has died may still count as alive.
    """
    began = time.monotonic()
    deadline = None if timeout_secs is None else began + timeout_secs

    def check() -> None:
        _check_can_process(name, supervisor, site)

    while True:
        _wait_for_turn(name, supervisor, began, session_timeout_secs, timeout_secs)
        check()
        with supervisor.changed:
            groups = list(supervisor.groups)
        for group in groups:
            group.parts.spouts.refresh()
        # A spout that has handed out as much as it may, or waits before a replay, says no although there is more:
        # then messages are open, or others come meanwhile.
        before = [group.parts.spouts.messages() for group in groups]
        idle = (group.driver.wait_idle(deadline, check) for group in groups)
        if (groups or not supervisor.topology.groups) and all(idle):
            messages = [group.parts.spouts.messages() for group in groups]
            if before == messages and not any(unsettled for _, unsettled in before):
                return
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{name} did not process all available data within {timeout_secs} s")
        supervisor.ended.wait(0.01)


def _wait_for_turn(
    name: str, supervisor: Supervisor, began: float, session_timeout_secs: float, timeout_secs: float | None
) -> None:
    """Until this process leads."""
    patience = session_timeout_secs + _TAKE_OVER_SECS if timeout_secs is None else timeout_secs
    with supervisor.changed:
        while not supervisor.leading.is_set() and not supervisor.ended.is_set():
            who = supervisor.standby_of
            left = began + patience - time.monotonic()
            if left > 0 or (timeout_secs is None and not who):  # a recovery takes as long as it takes
                supervisor.changed.wait(min(max(left, 0.05), 0.5))
                continue
            if timeout_secs is not None:
                reason = f": {who}" if who else ""
                raise TimeoutError(f"{name} did not lead within {timeout_secs} s{reason}")
            raise CoordinationError(
                f"{name} is a standby here and processes nothing",
                found=who,
                expected="this process to lead",
                action="ask the process that leads, or stop it; with timeout_secs this waits for longer",
            )


def _check_can_process(name: str, supervisor: Supervisor, site: Site) -> None:
    """Raises where waiting would never end."""
    if supervisor.ended.is_set():
        if supervisor.error is not None:
            raise supervisor.error
        raise TridentError(f"{name} was stopped before all available data was processed")
    if supervisor.paused:
        raise TridentError(f"{name} is paused, and begins no transactions", action="call resume() first")
    for group in list(supervisor.groups):
        unready = group.driver.unready
        if unready is not None and time.monotonic() - unready[0] > _UNREADY_SECS:
            raise SourceError(
                f"whether the sources of {group.name} have data cannot be asked",
                found=site.explain(unready[1]),
                expected="an answer within half a minute",
                action="mend the source and try again; the topology goes on asking",
            ) from unready[1]
