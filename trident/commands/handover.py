"""``trident handover``: has a standby with new code rehearse the leader's last transactions, and lead if it may.

The command coordinates nothing itself: it writes a request, which goes with it, and reads the answer
(``coordinators/handing_over.py``). Killed at any moment it leaves a topology that is led as before, or by the standby.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from trident.commands.exit_codes import EXIT_ATTEMPT_CAP, EXIT_BAD_INPUT, EXIT_DIFFERENT, EXIT_NOT_COMPARED
from trident.config import TridentConfig
from trident.coordinators.errors import ConfigError, CoordinationError, TopologyError
from trident.coordinators.handing_over import (
    DIFFERENT,
    EQUAL,
    FAILED,
    LEAD,
    NOT_COMPARED,
    REHEARSE,
    SERVES,
    Contender,
    HandoverAnswer,
    HandoverRequest,
    Handovers,
    best_effort,
)
from trident.coordinators.leadership import current_holder, holder_has_ended, holder_is_this_process
from trident.coordinators.records import Holder, LeaderRecord, decode
from trident.coordinators.zookeeper import ZooKeeper
from trident.maintenance.inventory import registered
from trident.running.zookeeper import own_zookeeper

LAST = 5
TIMEOUT_SECS = 600.0
_POLL_SECS = 0.1
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class HandoverOptions:
    """The command's options.

    Attributes:
        to: "HOST:PID" or "PID" of the standby; None: the one whose code is not the leader's.
        last: how many transactions of each batch group are rehearsed.
        accept_changes: it takes over although the rehearsal gives other rows, where all could be compared.
        without_rehearsal: nothing is rehearsed.
        only_rehearse: it does not take over.
        stop_old: the process that leads now ends; else it waits as a standby.
        timeout_secs: for the rehearsal, or the look whether the code fits; and again for the take-over.
    """

    to: str | None = None
    last: int = LAST
    accept_changes: bool = False
    without_rehearsal: bool = False
    only_rehearse: bool = False
    stop_old: bool = False
    timeout_secs: float = TIMEOUT_SECS


def hand_over(name: str, options: HandoverOptions, config: TridentConfig, say: Callable[[str], None]) -> int:
    """Hands a topology over to a standby.

    Args:
        say: told what a person is to read, line by line.

    Returns:
        the exit code: 0 handed over (or only rehearsed, and equal), 1 other rows or a failure, 2 the standby's code
        does not fit the topology, 6 not everything could be compared. Unless it is 0 the leader leads on.

    Raises:
        TopologyError: ZooKeeper knows no such topology; it has no such standby, or several; no process leads it.
        CoordinationError: another hand-over is under way; the leader or the standby has died; there was no answer.
    """
    _check(options)
    with own_zookeeper(config, config.warehouse_place(), name, "handover") as zk:
        handover = _Handover(zk, name, options, say)
        try:
            return handover.run()
        finally:
            best_effort(handover.withdraw)  # where it cannot be told the request goes with the session, now


def _check(options: HandoverOptions) -> None:
    if options.without_rehearsal and (options.only_rehearse or options.accept_changes):
        other = "--only-rehearse" if options.only_rehearse else "--accept-changes"
        raise ConfigError(
            "without a rehearsal there is nothing to compare",
            found=f"--without-rehearsal and {other}",
            expected="one of them",
        )


class _Handover:
    def __init__(self, zk: ZooKeeper, name: str, options: HandoverOptions, say: Callable[[str], None]) -> None:
        self._zk, self._name, self._options, self._say = zk, name, options, say
        self._handovers = Handovers(zk, name)
        self._me = current_holder()
        self._request: HandoverRequest | None = None

    def run(self) -> int:
        incarnation, _ = registered(self._zk, self._name)
        live = self._live()
        if live is None:
            raise TopologyError(
                f"no process leads {self._name}: there is nothing to hand over",
                action="start it with the new code: it continues where the last one stopped",
            )
        self._leader = live
        there = [one for one in self._handovers.contenders() if not holder_has_ended(one.holder, self._me)]
        chosen = choose(self._name, live, there, self._options.to)
        self._chosen = chosen
        if not self._epochs():
            raise TopologyError(
                f"{self._name} has no batch group: there is nothing to rehearse, and nothing that commits",
                action="stop the process that leads: the standby leads then",
            )
        # Without a rehearsal, too: code that does not fit the topology would take the lease, and end.
        self._ask(incarnation)
        what = "the look whether its code fits" if self._options.without_rehearsal else "the rehearsal"
        code = self._exit_code_of(self._wait_answer(what, lambda one: one.outcome != SERVES))
        if code or self._options.only_rehearse:
            return code
        self._lead()
        said = self._wait_answer("the take-over", lambda one: one.outcome == SERVES)
        self._say("; ".join(said.lines))
        old = "ends" if self._options.stop_old else "waits as a standby"
        self._say(f"{self._leader.host} pid {self._leader.pid}, which has led, {old}")
        return 0

    def withdraw(self) -> None:
        """Whatever has happened: no request outlives its command."""
        if self._request is not None and self._zk.connected:
            self._handovers.withdraw(self._request.id)

    # --- the steps ------------------------------------------------------------------------------------

    def _live(self) -> Holder | None:
        path = self._zk.path(self._name, "live")
        self._zk.sync(path)
        found = self._zk.get(path)
        holder = decode(path, found[0], Holder) if found else None
        return None if holder is None or holder_has_ended(holder, self._me) else holder

    def _epochs(self) -> dict[str, int]:
        found = {}
        for group in self._zk.children(self._zk.path(self._name)):
            path = f"{self._zk.path(self._name)}/{group}/leader"
            stored = self._zk.get(path)
            if stored is not None:
                found[group] = decode(path, stored[0], LeaderRecord).epoch
        return found

    def _ask(self, incarnation: str) -> None:
        options = self._options
        request = HandoverRequest(
            secrets.token_hex(8),
            self._chosen.id,
            incarnation,
            self._epochs(),
            REHEARSE,
            0 if options.without_rehearsal else options.last,
            options.stop_old,
            self._me,
        )
        if not self._handovers.ask(request):
            other = self._handovers.request()
            if other is not None and not holder_has_ended(other.by, self._me):
                raise CoordinationError(
                    f"another hand-over of {self._name} is under way",
                    found=f"a command on {other.by.host}, pid {other.by.pid}",
                    expected="one at a time",
                    action="wait for it; when its process has died its request goes after the session timeout",
                )
            if other is not None:
                self._handovers.withdraw(other.id)
            if not self._handovers.ask(request):
                raise CoordinationError(f"another hand-over of {self._name} has begun just now", action="wait for it")
        self._request = request
        rehearses = f"rehearses the last {options.last} transactions of {self._name}"
        self._say(f"{self._chosen.text} {'looks whether its code fits' if options.without_rehearsal else rehearses}")

    def _lead(self) -> None:
        assert self._request is not None
        self._request = replace(self._request, phase=LEAD)
        if not self._handovers.change(self._request):
            raise self._lost("the request is gone: the ZooKeeper session was lost, or another command took it back")

    def _exit_code_of(self, answer: HandoverAnswer) -> int:
        """The exit code; 0: it may take over."""
        for line in answer.lines:
            self._say(line)
        accepts, leads = self._options.accept_changes, f"{self._leader.host} pid {self._leader.pid} stays leader"
        if answer.outcome == EQUAL:
            if not self._options.without_rehearsal:
                self._say("equal: the same rows as were committed")
            return 0
        if answer.outcome == DIFFERENT and accepts and answer.all_compared:
            self._say("the rows differ, which was accepted")
            return 0
        if answer.outcome == DIFFERENT and not accepts:
            self._say(f"not handed over: the rows differ; {leads}. --accept-changes hands over anyway")
            return EXIT_DIFFERENT
        if answer.outcome in (DIFFERENT, NOT_COMPARED):
            self._say(
                f"not handed over: not everything could be compared; {leads}. --without-rehearsal hands over at once"
            )
            return EXIT_NOT_COMPARED
        if answer.outcome == FAILED:
            what = (
                "it is not known whether the code fits" if self._options.without_rehearsal else "the rehearsal failed"
            )
            self._say(f"not handed over: {what}; {leads}")
            return EXIT_ATTEMPT_CAP
        self._say(f"not handed over: the code does not fit the topology; {leads}")
        return EXIT_BAD_INPUT

    # --- waiting --------------------------------------------------------------------------------------

    def _wait_answer(self, what: str, wanted: Callable[[HandoverAnswer], bool]) -> HandoverAnswer:
        """Until the standby answers.

        Raises:
            CoordinationError: it cannot any more, or the time is over.
        """
        assert self._request is not None
        deadline = time.monotonic() + self._options.timeout_secs
        while True:
            answer = self._handovers.answered(self._request.id)
            if answer is not None and wanted(answer):
                return answer
            # Looked at last: what has happened before an answer is no reason to give up.
            obstacle = self._obstacle()
            answer = self._handovers.answered(self._request.id)
            if answer is not None and wanted(answer):
                return answer
            if obstacle:
                raise self._lost(obstacle)
            if time.monotonic() > deadline:
                raise self._lost(
                    f"{self._chosen.text} has not answered within {self._options.timeout_secs:g} s ({what})"
                )
            time.sleep(_POLL_SECS)

    def _obstacle(self) -> str:
        """Why no answer can come; "" where it can."""
        assert self._request is not None
        chosen = self._handovers.contender(self._chosen.id)
        if chosen is None or holder_has_ended(chosen.holder, self._me):
            return f"the standby {self._chosen.text} has died"
        found = self._handovers.request()
        if found is None or found.id != self._request.id:
            return "the request is gone: the ZooKeeper session was lost, or another command took it back"
        changed = self._epochs() != self._request.epochs
        live = self._live()  # behind the epochs: they change as the live znode does
        if live is not None and _same(live, self._chosen.holder):
            # One that has led since before it was asked has nothing to rehearse, nor to take over.
            if self._request.phase == LEAD and self._epochs() != self._request.epochs:
                return ""
        elif not changed:
            return ""
        if live is None:
            return "the leadership has changed, and no process leads now"
        return f"the leadership has changed: {live.host} pid {live.pid} leads now"

    def _lost(self, why: str) -> CoordinationError:
        live = self._live()
        return CoordinationError(
            f"{self._name} was not handed over to {self._chosen.text}: {why}",
            found=f"{live.host} pid {live.pid} leads" if live else "no process leads at this moment",
            action=f"`trident status {self._name}` shows who leads; nothing is lost, and the command may be run again",
        )


def _same(one: Holder, other: Holder) -> bool:
    return holder_is_this_process(one, other) and one.started == other.started


def choose(name: str, leader: Holder, contenders: Sequence[Contender], to: str | None) -> Contender:
    """The standby that is to lead.

    Args:
        to: "HOST:PID" or "PID"; None: the only one whose code is not the leader's.

    Raises:
        TopologyError: there is none, or there are several.
    """
    leading = next((one for one in contenders if _same(one.holder, leader)), None)
    standbys = [one for one in contenders if not _same(one.holder, leader)]
    if not standbys:
        raise TopologyError(
            f"{name} has no standby",
            found=f"only its leader, {leader.host} pid {leader.pid}",
            action="start the topology with the new code as another process: it waits as a standby",
        )
    if leading is None:
        raise TopologyError(
            f"{name}'s leader takes no part in hand-overs: it has just begun to lead, or is of a version without them",
            found=f"{leader.host} pid {leader.pid}; standbys {_listed(standbys, None)}",
            action="run the command again; of an older version stop the leader: a standby leads then",
        )
    if to is not None:
        named = [one for one in standbys if to in (f"{one.holder.host}:{one.holder.pid}", str(one.holder.pid))]
        if len(named) == 1:
            return named[0]
        raise TopologyError(
            f"{name} has no standby {to}" if not named else f"{name} has several standbys {to}",
            found=_listed(standbys, leading),
            expected="HOST:PID of one of them",
        )
    changed = [one for one in standbys if one.code_ids != leading.code_ids]
    if len(changed) == 1:
        return changed[0]
    if changed:
        raise TopologyError(
            f"{name} has several standbys with other code than its leader",
            found=_listed(changed, leading),
            action="name one: --to HOST:PID",
        )
    raise TopologyError(
        f"every standby of {name} has the code of its leader",
        found=_listed(standbys, leading),
        action="start one with the new code; or name one, to hand over to the same code: --to HOST:PID",
    )


def _listed(standbys: Sequence[Contender], leading: Contender | None) -> str:
    known = leading.code_ids if leading is not None else None
    return ", ".join(
        f"{one.holder.host}:{one.holder.pid}" + (" (the leader's code)" if one.code_ids == known else " (other code)")
        for one in sorted(standbys, key=lambda one: (one.holder.host, one.holder.pid))
    )
