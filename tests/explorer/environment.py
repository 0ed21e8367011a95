"""What surrounds the coordinator, as a model: driver, Spark, spouts, crashes, a second one.

A process runs the production ``step``. Its commands are carried out in small
pieces: an effect on what is durable, and the delivery of the event about it.
A crash, or a second coordinator that takes over, can come between any two, so
each effect happens with and without its event being heard. The first
coordinator then lives on as a *zombie* with a stale fence, and goes on in
every interleaving until something stops it.

As in the driver there is one thread that begins attempts in order (one that was
cancelled may be carried out all the same), one that commits, and one per batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tests.explorer import durable as store
from tests.explorer import handover, rollback
from tests.explorer.durable import TABLES, Durable, Record, Rules, Writer
from tests.explorer.search import Action, Violation
from trident.coordinators import master
from trident.coordinators.handing_over import GivingWay, Step
from trident.coordinators.master import CoordinatorState, Limits, Mode
from trident.coordinators.transactions import TransactionAttempt

REPORTS = (
    master.Began,
    master.Processed,
    master.Prepared,
    master.Decided,
    master.Committed,
    master.Advanced,
    master.Failed,
)


class Budget(NamedTuple):
    """How many of each fault may still happen."""

    failures: int = 0
    crashes: int = 0
    takeovers: int = 0
    not_ready: int = 0
    stops: int = 0
    suspensions: int = 0
    pauses: int = 0
    rollbacks: int = 0
    handovers: int = 0


@dataclass(frozen=True)
class Scenario:
    """One bounded world.

    Attributes:
        transactions: the spouts have this many batches.
        empty: the txids whose batches are empty.
        timeouts: the failures are timeouts.
        alike: the failures are all the same one, so the coordinator tries no more after ``max_same_failures``.
    """

    transactions: int
    budget: Budget
    limits: Limits = Limits(max_spout_pending=2)
    empty: frozenset[int] = frozenset()
    timeouts: bool = False
    alike: bool = False
    rules: Rules = Rules()

    @property
    def cap(self) -> int:
        """The failures of a transaction after which it is given up."""
        limits = self.limits
        return min(limits.max_attempts, limits.max_same_failures) if self.alike else limits.max_attempts


class Brain:
    """A coordinator's state, known by identity; its steps are remembered."""

    __slots__ = ("state", "steps")

    def __init__(self, state: CoordinatorState) -> None:
        self.state = state
        self.steps: dict[object, tuple[Brain, tuple[master.Command, ...]]] = {}


class Beginning(NamedTuple):
    attempt: TransactionAttempt
    parent: TransactionAttempt | None
    live: bool = True
    stored: bool = False


class Process(NamedTuple):
    """One coordinator process.

    Attributes:
        pending: the txid of the decision that it found when it started.
        begun_to: the greatest txid that this process knows to have begun.
        emits, staged: the attempts that Spark runs, and those that it has finished.
        told: the greatest txid whose success it has told.
        heard: (txid, failures) that it was told of.
        commit: (command, pieces done) on the commit thread.
        giving: how far it is with giving way to a hand-over.
    """

    writer: Writer
    brain: Brain
    begun_to: int
    pending: int = 0
    asked: int | None = None
    begins: tuple[Beginning, ...] = ()
    emits: frozenset[TransactionAttempt] = frozenset()
    staged: frozenset[TransactionAttempt] = frozenset()
    commit: tuple[master.Command, int] | None = None
    timers: frozenset[master.Timer] = frozenset()
    told: int = 0
    heard: tuple[tuple[int, int], ...] = ()
    suspended: bool = False
    paused: bool = False
    giving: GivingWay | None = None
    ended: Mode | None = None

    @property
    def holds_back(self) -> bool:
        """Tells whether it may begin no new transaction."""
        return self.paused or self.giving is not None


class World(NamedTuple):
    durable: Durable
    budget: Budget
    leader: Process | None = None
    zombie: Process | None = None
    request: handover.Request | None = None


class Environment:
    """The model for :func:`tests.explorer.search.explore`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rules = scenario.rules
        self.initial = World(Durable(), scenario.budget)
        self._brains: dict[CoordinatorState, Brain] = {}

    @property
    def coordinator_states(self) -> int:
        """How many states of the production coordinator were met."""
        return len(self._brains)

    def finished(self, world: World) -> bool:
        """Everything is committed once and told, or the leader ended as it should."""
        leader = world.leader
        if leader is None or handover.gave_way(leader):
            return False
        if leader.ended is not None:
            return leader.ended in (Mode.STOPPED, Mode.GAVE_UP)
        wanted = [txid for txid in range(1, self.scenario.transactions + 1) if txid not in self.scenario.empty]
        return (
            world.durable.record.current == self.scenario.transactions + 1
            and leader.told == self.scenario.transactions
            and all([row.txid for row in rows] == wanted for rows in world.durable.tables)
        )

    # --- what can happen ----------------------------------------------------------------

    def actions(self, world: World) -> Iterator[Action]:
        if world.budget.rollbacks and (world.leader is None or world.leader.ended is not None):
            yield from self._rollbacks(world)
        if world.durable.rollback is not None:
            yield self._rollback_step(world)
        elif world.leader is None or handover.gave_way(world.leader):
            yield Action("a coordinator starts", partial(self._start, world))
        else:
            yield from self._process_actions(world, "leader")
            yield from self._faults(world)
            yield from self._handovers(world)
        if world.zombie is not None:
            yield from self._process_actions(world, "zombie")

    def _rollbacks(self, world: World) -> Iterator[Action]:
        """No process leads: each transaction that can be gone back to."""
        if world.durable.rollback is not None:
            return
        spent = world._replace(leader=None, budget=world.budget._replace(rollbacks=world.budget.rollbacks - 1))
        for last in rollback.points(world.durable):
            begun = spent._replace(durable=rollback.begin(world.durable, last))
            yield Action(f"a rollback to {last} begins", lambda begun=begun: begun, fault=True)

    def _rollback_step(self, world: World) -> Action:
        """The next piece of one that has begun: by the command itself, or run again."""
        durable = world.durable
        left = [number for number, life in enumerate(durable.lives) if life == durable.record.life]
        if left:
            after = rollback.take_back(durable, left[0])
            return Action(f"the rollback takes table {left[0]} back", lambda: world._replace(durable=after))
        return Action("the rollback ends", lambda: world._replace(durable=rollback.end(durable)))

    def _handovers(self, world: World) -> Iterator[Action]:
        """A command asks or takes that back; the leader does what comes next, early or late."""
        budget, leader = world.budget, world.leader
        if leader.ended is not None:
            return
        if world.request is None and budget.handovers:
            asked = handover.ask(budget.handovers, world.durable)
            spent = world._replace(request=asked, budget=budget._replace(handovers=budget.handovers - 1))
            yield Action("a hand-over is asked for", lambda: spent, fault=True)
        if world.request is not None:
            withdrawn = world._replace(request=None)
            yield Action("the command ends", lambda: withdrawn, fault=True)
        if world.request is not None or leader.giving is not None:
            yield from self._next_for_handover(world, late=False)
            if leader.giving is not None:
                yield from self._next_for_handover(world, late=True)

    def _next_for_handover(self, world: World, late: bool) -> Iterator[Action]:
        leader = world.leader
        giving, step = handover.next_step(leader, world.request, world.durable.record.life, late)
        if (giving, step) == (leader.giving, None):
            return
        label = f"leader: {step.value if step else 'no more'}, for a hand-over{', late' if late else ''}"
        if step is None or (step is Step.RESUME and leader.paused):
            yield Action(label, lambda: _put(world, "leader", leader._replace(giving=giving)))
            return
        event = {Step.PAUSE: master.Paused, Step.RESUME: master.Resumed, Step.STOP: master.StopRequested}[step]()
        yield Action(label, partial(self._tell_after, world, "leader", event, giving=giving), fault=late)

    def _faults(self, world: World) -> Iterator[Action]:
        budget, leader = world.budget, world.leader
        if leader.ended is not None:
            return
        if budget.crashes:
            dead = world._replace(leader=None, budget=budget._replace(crashes=budget.crashes - 1))
            yield Action("the coordinator is killed", lambda: dead, fault=True)
        if budget.takeovers and world.zombie is None:
            left = world._replace(zombie=leader, leader=None, budget=budget._replace(takeovers=budget.takeovers - 1))
            yield Action("another coordinator takes over, the old one lives on", partial(self._start, left), fault=True)
        if budget.stops:
            spent = world._replace(budget=budget._replace(stops=0))
            yield Action("stop is requested", partial(self._tell, spent, "leader", master.StopRequested()), fault=True)
        if budget.suspensions and not leader.suspended:
            spent = world._replace(
                leader=leader._replace(suspended=True), budget=budget._replace(suspensions=budget.suspensions - 1)
            )
            yield Action("ZooKeeper suspended", partial(self._tell, spent, "leader", master.Suspended()), fault=True)
        if budget.pauses and not leader.paused:
            spent = world._replace(
                leader=leader._replace(paused=True), budget=budget._replace(pauses=budget.pauses - 1)
            )
            yield Action("pause", partial(self._tell, spent, "leader", master.Paused()), fault=True)

    def _process_actions(self, world: World, who: str) -> Iterator[Action]:
        process: Process = getattr(world, who)
        if process.ended is not None:
            return
        tell = partial(self._tell_after, world, who)
        if process.suspended:
            yield Action(f"{who}: reconnected", partial(tell, master.Reconnected(), suspended=False))
        if process.paused and process.giving is None:
            yield Action(f"{who}: resume", partial(tell, master.Resumed(), paused=False))
        elif process.paused:
            yield Action(f"{who}: resume", lambda: _put(world, who, process._replace(paused=False)))
        if process.asked is not None and process.asked <= self.scenario.transactions:
            txid = process.asked
            yield Action(f"{who}: ready for {txid}", partial(tell, master.Ready(txid, True), asked=None))
            if world.budget.not_ready and who == "leader":
                spent = world._replace(budget=world.budget._replace(not_ready=world.budget.not_ready - 1))
                answer = partial(self._tell_after, spent, who, master.Ready(txid, False), asked=None)
                yield Action(f"{who}: not ready for {txid}", answer, fault=True)
        for timer in process.timers:
            rest = process.timers - {timer}
            yield Action(f"{who}: {timer.kind.value} timer fires", partial(tell, master.TimerFired(timer), timers=rest))
        if process.begins:
            yield from self._begin_actions(world, who, process)
        for attempt in process.emits:
            rest = process.emits - {attempt}
            staged = process.staged | {attempt}
            run = partial(tell, master.Processed(attempt), emits=rest, staged=staged)
            yield Action(f"{who}: {attempt} processed", run)
            yield from self._failure(world, who, attempt, f"{attempt} fails in Spark", emits=rest)
        for attempt in process.staged:
            rest = process.staged - {attempt}
            yield from self._failure(world, who, attempt, f"what {attempt} staged is lost", staged=rest)
        if process.commit is not None:
            yield from self._commit_actions(world, who, process)

    def _failure(
        self, world: World, who: str, attempt: TransactionAttempt, label: str, **changes: object
    ) -> Iterator[Action]:
        if who != "leader" or not world.budget.failures:
            return
        heard = dict(world.leader.heard)
        heard[attempt.txid] = heard.get(attempt.txid, 0) + 1
        spent = world._replace(budget=world.budget._replace(failures=world.budget.failures - 1))
        event = master.Failed(attempt, self.scenario.timeouts, "the same" if self.scenario.alike else None)
        run = partial(self._tell_after, spent, who, event, heard=tuple(sorted(heard.items())), **changes)
        yield Action(f"{who}: {label}", run, fault=True)

    def _begin_actions(self, world: World, who: str, process: Process) -> Iterator[Action]:
        head, rest = process.begins[0], process.begins[1:]
        has_place = head.attempt.txid < process.brain.state.current + self.scenario.limits.max_spout_pending
        if head.stored:
            if not has_place:
                return  # the driver reports the advance that it went with first
            run = partial(self._tell_after, world, who, master.Began(head.attempt), begins=rest)
            yield Action(f"{who}: hears that {head.attempt} began", run)
            return
        if has_place:
            yield Action(f"{who}: begin {head.attempt} is stored", partial(self._begin, world, who, head, rest))
        if head.live:
            yield from self._failure(world, who, head.attempt, f"{head.attempt} cannot be pinned", begins=rest)
        else:
            skipped = _put(world, who, process._replace(begins=rest))
            yield Action(f"{who}: begin {head.attempt} is skipped", lambda: skipped)

    def _commit_actions(self, world: World, who: str, process: Process) -> Iterator[Action]:
        command, done = process.commit
        attempt = command.attempt
        tell = partial(self._tell_after, world, who)
        if isinstance(command, master.Prepare):
            event = master.Prepared(attempt, attempt.txid in self.scenario.empty)
            yield Action(f"{who}: {attempt} prepared", partial(tell, event, commit=None))
            yield from self._failure(world, who, attempt, f"{attempt} cannot be prepared", commit=None)
            return
        pieces = TABLES if isinstance(command, master.Commit) else 1
        name = type(command).__name__
        if done < pieces:
            part = f" table {done}" if isinstance(command, master.Commit) else ""
            yield Action(f"{who}: {name} {attempt}{part}", partial(self._effect, world, who, command, done))
            head = process.begins[0] if process.begins else None
            if isinstance(command, master.Advance) and head is not None and head.live and not head.stored:
                run = partial(self._effect, world, who, command, done, head)
                yield Action(f"{who}: {name} {attempt}, and begin {head.attempt} with it", run)
            return
        event = {master.Decide: master.Decided, master.Commit: master.Committed, master.Advance: master.Advanced}[
            type(command)
        ](attempt)
        yield Action(f"{who}: hears of {name} {attempt}", partial(tell, event, commit=None))

    # --- effects ---------------------------------------------------------------------------

    def _start(self, world: World) -> World:
        """The fence is bumped, then everything is read."""
        durable = world.durable._replace(epoch=world.durable.epoch + 1)
        store.check_recovery(durable)
        record = durable.record
        leader = Process(
            Writer(durable.epoch, record),
            self._brain(master.initial(self.scenario.limits)),
            begun_to=max([record.current - 1, *record.attempts]),
            pending=record.decided.txid if record.decided else 0,
        )
        world = world._replace(durable=durable, leader=leader)
        event = master.Recovered(record.current, record.attempts, record.last, record.decided, record.used)
        return self._tell(world, "leader", event)

    def _begin(self, world: World, who: str, head: Beginning, rest: tuple[Beginning, ...]) -> World:
        process: Process = getattr(world, who)
        self._check_attempt_id(world, who, head)
        try:
            durable = store.begin(world.durable, process.writer, self.rules, head.attempt, head.parent)
        except store.Rejected as rejected:
            if head.live:
                raise Violation(f"{who}: {rejected}") from rejected
            return _put(world, who, process._replace(begins=rest))
        except store.Deposed:
            return self._tell(world, who, master.LostLeadership())
        begins = (head._replace(stored=True), *rest) if head.live else rest
        return self._wrote(world, who, durable, begins=begins)

    def _check_attempt_id(self, world: World, who: str, head: Beginning) -> None:
        if who == "leader" and head.attempt.attempt_id <= world.durable.greatest(head.attempt.txid):
            durable = world.durable
            raise Violation(f"attempt id used again: {head.attempt} after {durable.record.attempts} {durable.ever}")

    def _effect(
        self, world: World, who: str, command: master.Command, done: int, begin: Beginning | None = None
    ) -> World:
        """``begin``: stored in the same multi."""
        writer: Writer = getattr(world, who).writer
        durable, attempt = world.durable, command.attempt
        try:
            if isinstance(command, master.Decide):
                after = store.decide(durable, writer, self.rules, attempt)
            elif isinstance(command, master.Commit):
                after = store.publish(durable, writer, self.rules, done, attempt)
                return _put(
                    world._replace(durable=after), who, getattr(world, who)._replace(commit=(command, done + 1))
                )
            else:
                empty = attempt.txid in self.scenario.empty
                after = store.advance(durable, writer, self.rules, attempt, command.published, empty)
                if begin is not None:
                    self._check_attempt_id(world, who, begin)
                    advanced = writer._replace(view=after.record)
                    after = store.begin(after, advanced, self.rules, begin.attempt, begin.parent)
        except store.Deposed:
            return self._tell(world, who, master.LostLeadership())
        except store.Rejected as rejected:
            raise Violation(f"{who}: {rejected}") from rejected
        if begin is not None:
            begins = (begin._replace(stored=True), *getattr(world, who).begins[1:])
            return self._wrote(world, who, after, commit=(command, 1), begins=begins)
        return self._wrote(world, who, after, commit=(command, 1))

    def _wrote(self, world: World, who: str, durable: Durable, **changes: object) -> World:
        process: Process = getattr(world, who)
        if self.scenario.budget.rollbacks:
            durable = rollback.remembered(durable)
        process = process._replace(writer=process.writer._replace(view=durable.record), **changes)
        return _put(world._replace(durable=durable), who, process)

    # --- the coordinator --------------------------------------------------------------------

    def _tell_after(self, world: World, who: str, event: master.Event, **changes: object) -> World:
        return self._tell(_put(world, who, getattr(world, who)._replace(**changes)), who, event)

    def _tell(self, world: World, who: str, event: master.Event) -> World:
        process: Process = getattr(world, who)
        key = event if not isinstance(event, master.Recovered) else repr(event)  # it holds a dict
        known = process.brain.steps.get(key)
        if known is None:
            state, commands = master.step(process.brain.state, event)
            known = process.brain.steps[key] = (self._brain(state), commands)
        brain, commands = known
        process = process._replace(brain=brain)
        for command in commands:
            process = self._carry_out(world, who, process, command)
        return _put(world, who, process)

    def _carry_out(self, world: World, who: str, process: Process, command: master.Command) -> Process:
        """Hands one command over; checks the claims that hold when it is issued."""
        record: Record = world.durable.record
        leads = who == "leader"
        if isinstance(command, master.AskReady):
            _claim(process.asked is None, f"{command.txid} is asked while {process.asked} is")
            _claim(command.txid > process.begun_to, f"a replay of {command.txid} waits for readiness")
            _claim(not process.suspended and not process.holds_back, f"{command} while suspended or paused")
            return process._replace(asked=command.txid)
        if isinstance(command, master.Begin):
            return self._hand_over_begin(record, process, command)
        if isinstance(command, master.EmitBatch):
            decided = record.decided
            if leads and decided is not None and decided.txid == command.attempt.txid:
                raise Violation(f"{command.attempt} is emitted though {decided} is decided")
            _claim(
                not leads or record.greatest(command.attempt.txid) == command.attempt.attempt_id,
                f"{command.attempt} is emitted before it began: {record.attempts}",
            )
            return process._replace(emits=process.emits | {command.attempt})
        if isinstance(command, master.Cancel):
            return _cancel(process, command.attempt)
        if isinstance(command, (master.Prepare, master.Decide, master.Commit, master.Advance)):
            _claim(process.commit is None, f"two commits at once: {command} beside {process.commit}")
            if isinstance(command, master.Prepare):
                _claim(not process.suspended, f"{command} while suspended")
                _claim(command.attempt in process.staged, f"{command} before it is staged")
                process = process._replace(staged=process.staged - {command.attempt})
            return process._replace(commit=(command, 0))
        if isinstance(command, master.Success):
            attempt = command.attempt
            if not leads and (world.durable.rollback or process.writer.view.life != record.life):
                return process._replace(told=attempt.txid)  # it did advance; a rollback has taken it back since
            _claim(attempt.txid < record.current, f"success of {attempt} is told, but {record.current} is current")
            held = all(attempt in rows for rows in world.durable.tables) or attempt.txid in self.scenario.empty
            _claim(held, f"success of {attempt} is told, but the tables hold {world.durable.tables}")
            return process._replace(told=attempt.txid)
        if isinstance(command, master.StartTimer):
            _claim(command.timer not in process.timers, f"{command.timer} is started twice")
            return process._replace(timers=process.timers | {command.timer})
        return self._end(world, leads, process, command)

    def _hand_over_begin(self, record: Record, process: Process, command: master.Begin) -> Process:
        txid = command.attempt.txid
        _claim(not process.suspended, f"{command} while suspended")
        _claim(not process.holds_back or txid <= process.begun_to, f"{command}, a new one, while paused")
        _claim(process.writer.view.current > process.pending, f"{command} before {process.pending} is finished")
        _claim(txid <= process.begun_to + 1, f"{command} leaves one out: begun to {process.begun_to}")
        end = process.writer.view.current + self.scenario.limits.max_spout_pending
        ahead = txid == end and process.commit is not None and _only_rolls_forward(process.commit[0])
        _claim(txid < end or ahead, f"{command} is beyond the window of {process.writer.view.current}")
        if process.heard:
            failures = dict(process.heard).get(txid, 0)
            _claim(failures < self.scenario.cap, f"{command} after {failures} failures")
            timeouts = failures if self.scenario.timeouts else 0
            _claim(command.timeout_factor == 2**timeouts, f"{command} after {timeouts} timeouts")
        begins = (*process.begins, Beginning(command.attempt, command.parent))
        return process._replace(begins=begins, begun_to=max(process.begun_to, txid))

    def _end(self, world: World, leads: bool, process: Process, command: master.End) -> Process:
        record = world.durable.record
        if command.mode is Mode.STOPPED:
            _claim(not leads or record.decided is None, f"stopped with {record.decided} decided and not published")
        elif command.mode is Mode.GAVE_UP:
            failures = dict(process.heard).get(command.txid, 0)
            _claim(failures >= self.scenario.cap, f"gave {command.txid} up after {failures} failures")
            _claim(not leads or record.current == command.txid, f"gave up before {record.current} was finished")
            _claim(not leads or record.decided is None, f"gave up with {record.decided} decided")
        elif command.mode is Mode.DEPOSED:
            _claim(process.writer.epoch != world.durable.epoch, "the leader was deposed")
        else:
            raise Violation(f"{command}")
        return Process(process.writer, process.brain, 0, giving=process.giving, ended=command.mode)

    # --- every state of the coordinator, once ---------------------------------------------------

    def _brain(self, state: CoordinatorState) -> Brain:
        brain = self._brains.get(state)
        if brain is None:
            brain = self._brains[state] = Brain(state)
            check_late_reports(state)
        return brain


def check_late_reports(state: CoordinatorState) -> None:
    """Late and repeated reports change nothing, in this state (docs/semantics.md 1).

    A report on an attempt that was dropped can therefore come at any moment,
    and any number of times, without the search having to deliver it.
    """
    if state.mode is Mode.NEW:
        return
    live = {entry.attempt for entry in state.live}
    known = {attempt_txid: greatest for attempt_txid, greatest in state.greatest}
    for txid in range(max(1, state.current - 1), state.current + len(state.live) + 2):
        for attempt_id in range(known.get(txid, 0) + 1):
            attempt = TransactionAttempt(txid, attempt_id)
            if attempt in live:
                continue
            for report in REPORTS:
                _claim(master.step(state, report(attempt)) == (state, ()), f"a late {report(attempt)} changed {state}")
    for entry in state.live:
        if entry.stage >= master.Stage.DECIDING:
            failed = master.Failed(entry.attempt, timed_out=True)
            _claim(master.step(state, failed) == (state, ()), f"{failed} was heard after the decision: {state}")


def _cancel(process: Process, attempt: TransactionAttempt) -> Process:
    begins = tuple(
        entry._replace(live=False) if entry.attempt == attempt else entry
        for entry in process.begins
        if not (entry.attempt == attempt and entry.stored)
    )
    commit = process.commit
    if commit is not None and commit[0].attempt == attempt and isinstance(commit[0], master.Prepare):
        commit = None
    return process._replace(
        begins=begins, emits=process.emits - {attempt}, staged=process.staged - {attempt}, commit=commit
    )


def _put(world: World, who: str, process: Process) -> World:
    return world._replace(**{who: process})


def _only_rolls_forward(command: master.Command) -> bool:
    """Tells whether an attempt that the commit thread is at with this command cannot fail any more."""
    return not isinstance(command, master.Prepare)


def _claim(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


__all__ = ["Budget", "Environment", "Scenario", "check_late_reports"]
