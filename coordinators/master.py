"""The MasterBatchCoordinator: decides each next step of a batch group's transactions, without I/O.

This file is the only place that decides what happens next. It does no I/O,
reads no clock and starts no thread: ``step(state, event) -> (state,
commands)``. The driver (``coordinators/driver.py``) carries out the commands
and reports back with events. The tests explore this function exhaustively.

The rules (docs/semantics.md 1 and 9):

1.  Transactions begin in txid order, one at a time; the next to begin is
    always ``current + len(live)``. An order that depends on readiness cannot
    be expressed (docs/semantics.md 7.2).
2.  ``live`` is contiguous: current, current + 1, …; only its first attempt can
    be committing, only its last can be beginning.
3.  An attempt moves through its stages in one direction, one event a stage::

        BEGINNING ─Began→ PROCESSING ─Processed→ PROCESSED ─(is current)→
        PREPARING ─Prepared→ DECIDING ─Decided→ PUBLISHING ─Committed→
        ADVANCING ─Advanced→ gone, and only then Success

    An empty batch goes from PREPARING to ADVANCING. The phases of Trident are
    PROCESSING (the first two), PROCESSED, and COMMITTING (the last four).
4.  A failure before DECIDING drops the attempt and all later ones; they begin
    again with new attempt ids. From DECIDING on no failure and no timeout is
    heard: the decision may be durable, so the batch only rolls forward.
5.  A report on an attempt that is not the live one changes nothing.
6.  An attempt id is one more than the greatest ever known for its txid, also
    by those that a rollback took back.
7.  Once the first attempt can only roll forward, a full window counts as
    having a place: the next new transaction is asked for and begins *ahead*,
    to be stored in the multi of that attempt's advance, or behind it. Its
    Began comes after that Advanced. A spout that says no is asked again then.
8.  After ``max_attempts`` failures of a txid, or ``max_same_failures`` in a row
    with one fingerprint, everything before it is finished, then the
    coordinator gives up.

How a restart fits in: the driver reads ZooKeeper and sends :class:`Recovered`.
A pending decision comes back as a live attempt in PUBLISHING, and nothing
begins before it is advanced. Otherwise the transactions that had begun are
*replays*: they do not wait for readiness, for the interval, nor for a pause.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.retries import backoff_secs


class Phase(enum.Enum):
    """The state of an attempt as Trident names it."""

    PROCESSING = "PROCESSING"
    PROCESSED = "PROCESSED"
    COMMITTING = "COMMITTING"


class Stage(enum.IntEnum):
    """Where an attempt stands; the order is the order of time."""

    BEGINNING = 1
    PROCESSING = 2
    PROCESSED = 3
    PREPARING = 4
    DECIDING = 5
    PUBLISHING = 6
    ADVANCING = 7

    @property
    def phase(self) -> Phase:
        if self <= Stage.PROCESSING:
            return Phase.PROCESSING
        return Phase.PROCESSED if self is Stage.PROCESSED else Phase.COMMITTING


class Mode(enum.Enum):
    """The coordinator's own state, beside those of its attempts."""

    NEW = "new"  # nothing is known before Recovered
    RUNNING = "running"
    STOPPING = "stopping"  # finishing what is decided
    STOPPED = "stopped"
    GAVE_UP = "gave up"  # attempt cap
    DEPOSED = "deposed"
    HALTED = "halted"

    @property
    def ended(self) -> bool:
        return self in (Mode.STOPPED, Mode.GAVE_UP, Mode.DEPOSED, Mode.HALTED)


@dataclass(frozen=True)
class Limits:
    """Settings of a coordinator; times in seconds (docs/semantics.md 1 has the defaults)."""

    max_spout_pending: int = 3
    max_attempts: int = 8
    max_same_failures: int = 3
    batch_emit_interval_secs: float = 0.0
    readiness_poll_secs: float = 0.1
    backoff_first_secs: float = 0.2
    backoff_max_secs: float = 30.0

    def backoff_secs(self, failures: int) -> float:
        return backoff_secs(failures, self.backoff_first_secs, self.backoff_max_secs)


class Live(NamedTuple):
    """An active attempt and its stage."""

    attempt: TransactionAttempt
    stage: Stage


class FailureCount(NamedTuple):
    """Counts the failures of one txid since this coordinator started."""

    failures: int = 0
    timeouts: int = 0
    shrink: bool = False  # the last failure was a timeout: pin a smaller batch
    fingerprint: str | None = None  # of the last failure
    same: int = 0  # failures in a row, the last one included, with that fingerprint; 0 without one


@dataclass(frozen=True)
class CoordinatorState:
    """Everything the coordinator knows. Made by :func:`initial`, changed only by :func:`step`."""

    limits: Limits = field(default_factory=Limits)
    mode: Mode = Mode.NEW
    current: int = 0
    live: tuple[Live, ...] = ()
    last: TransactionAttempt | None = None  # the last that was advanced
    begun_to: int = 0  # the greatest txid ever begun: up to it, begins are replays
    greatest: tuple[tuple[int, int], ...] = ()  # txid -> greatest attempt id known
    used: TransactionAttempt | None = None  # up to this txid, ids up to this one had begun before a rollback
    failures: tuple[tuple[int, FailureCount], ...] = ()  # txid -> its failures
    capped: int | None = None  # the txid that has reached max_attempts
    finishing: bool = False  # a decision found at the restart is not advanced yet
    backoff: tuple[int, int] | None = None  # (txid, failures) a replay waits for
    asked: int | None = None  # readiness of this txid is being asked
    asked_ahead: int | None = None  # the txid asked for last, where the window had no place for it then
    polling: bool = False  # the readiness timer runs
    interval_over: bool = True
    paused: bool = False
    suspended: bool = False

    @property
    def is_drained(self) -> bool:
        """Tells whether no transaction is in flight, and none begins."""
        return self.paused and not self.live

    @property
    def next_txid(self) -> int:
        return self.current + len(self.live)

    @property
    def is_full(self) -> bool:
        """Tells whether the window has no place."""
        return len(self.live) >= self.limits.max_spout_pending

    def live_attempt(self, attempt: TransactionAttempt) -> Live | None:
        """The live entry of exactly this attempt, else None (rule 5)."""
        index = attempt.txid - self.current
        if 0 <= index < len(self.live) and self.live[index].attempt == attempt:
            return self.live[index]
        return None

    def greatest_of(self, txid: int) -> int:
        """The greatest attempt id ever begun for a transaction (rule 6); −1: none."""
        before = self.used.attempt_id if self.used and txid <= self.used.txid else -1
        return dict(self.greatest).get(txid, before)

    def failures_of(self, txid: int) -> FailureCount:
        return dict(self.failures).get(txid, FailureCount())


# --- events: what the driver reports -------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Told by the driver."""


@dataclass(frozen=True)
class AttemptEvent(Event):
    """Of one attempt; it changes nothing when that is not the live one (rule 5)."""

    attempt: TransactionAttempt


@dataclass(frozen=True)
class Recovered(Event):
    """ZooKeeper's record at the start, read under the new fence.

    ``used``: of transactions up to its txid, attempt ids up to its attempt id had begun before a rollback.
    """

    current: int
    greatest: Mapping[int, int] = field(default_factory=dict)
    last: TransactionAttempt | None = None
    decided: TransactionAttempt | None = None
    used: TransactionAttempt | None = None


@dataclass(frozen=True)
class Ready(Event):
    """The spouts' answer to AskReady."""

    txid: int
    ready: bool


class Began(AttemptEvent):
    """The attempt is stored and its metadata pinned."""


class Processed(AttemptEvent):
    """All of the batch is staged (Trident's first ack)."""


@dataclass(frozen=True)
class Prepared(AttemptEvent):
    """The manifest is durable; ``empty``: there is nothing to decide or publish."""

    empty: bool = False


class Decided(AttemptEvent):
    """The decision is durable."""


class Committed(AttemptEvent):
    """Every table, state and committer spout has the batch (Trident's second ack)."""


class Advanced(AttemptEvent):
    """The new current txid is durable."""


@dataclass(frozen=True)
class Failed(AttemptEvent):
    """The attempt failed before its decision was issued.

    ``fingerprint``: tells a failure that comes again and again from others; None where it may pass next time.
    """

    timed_out: bool = False
    fingerprint: str | None = None


class TimerKind(enum.Enum):
    READINESS = "readiness"
    INTERVAL = "interval"
    BACKOFF = "backoff"


class Timer(NamedTuple):
    """Identity of a timer; ``key`` tells a live one from one that no longer counts."""

    kind: TimerKind
    key: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class TimerFired(Event):
    timer: Timer


class Paused(Event):
    """No new transactions from now on; replays and commits go on."""


class Resumed(Event):
    """New transactions may begin again."""


class Suspended(Event):
    """The connection to ZooKeeper is in doubt: start nothing."""


class Reconnected(Event):
    """The connection is back, in the same ZooKeeper session."""


class StopRequested(Event):
    """Finish what is decided, then stop."""


class LostLeadership(Event):
    """Another coordinator leads, or may: abandon everything in flight."""


class HaltRequested(Event):
    """Going on could lose or double data."""


# --- commands: what the driver carries out --------------------------------------------


@dataclass(frozen=True)
class Command:
    """For the driver to carry out."""


@dataclass(frozen=True)
class AttemptCommand(Command):
    """About one attempt."""

    attempt: TransactionAttempt


@dataclass(frozen=True)
class AskReady(Command):
    """Ask the spouts whether txid may start; answer with Ready."""

    txid: int


@dataclass(frozen=True)
class Begin(AttemptCommand):
    """Store the attempt, pin its metadata; answer with Began or Failed.

    ``shrink``: the last try timed out, pin a smaller batch if that is possible.
    ``timeout_factor``: multiplies message_timeout_secs.
    """

    parent: TransactionAttempt | None
    shrink: bool = False
    timeout_factor: int = 1


class EmitBatch(AttemptCommand):
    """Run the batch and stage its results; answer with Processed or Failed."""


class Cancel(AttemptCommand):
    """The coordinator no longer waits for this attempt."""


class Prepare(AttemptCommand):
    """Resolve, check, write the manifest; answer with Prepared or Failed."""


class Decide(AttemptCommand):
    """Create the decision; answer with Decided, however long it takes."""


class Commit(AttemptCommand):
    """Publish from the manifest; answer with Committed, however long it takes."""


@dataclass(frozen=True)
class Advance(AttemptCommand):
    """Store current = txid + 1; answer with Advanced, however long it takes."""

    published: bool


class Success(AttemptCommand):
    """Tell the spouts, then clean up what is older."""


@dataclass(frozen=True)
class StartTimer(Command):
    timer: Timer
    delay_secs: float


@dataclass(frozen=True)
class End(Command):
    """The coordinator has ended; ``mode`` says how. ``txid``: the one at its cap."""

    mode: Mode
    txid: int | None = None


_Value = TypeVar("_Value")
Result = tuple[CoordinatorState, tuple[Command, ...]]


class IllegalTransition(AssertionError):
    """An event that the live attempt's stage does not allow: a bug in the driver."""


def initial(limits: Limits = Limits()) -> CoordinatorState:
    """The state before anything is known."""
    return CoordinatorState(limits=limits)


def step(state: CoordinatorState, event: Event) -> Result:
    """The one transition function: pure, total for late events, loud for illegal ones.

    Returns:
        the next state and the commands to carry out, in order.

    Raises:
        IllegalTransition: the event cannot come at the live attempt's stage.
    """
    if state.mode.ended:
        return state, ()
    if state.mode is Mode.NEW and not isinstance(event, (Recovered, StopRequested, LostLeadership, HaltRequested)):
        raise IllegalTransition(f"{event} came before Recovered")
    after, commands = _HANDLERS[type(event)](state, event)
    after, more = _next_steps(after)
    validate(after)
    return after, (*commands, *more)


# --- one handler an event ----------------------------------------------------------------


def _recovered(state: CoordinatorState, event: Recovered) -> Result:
    if state.mode is not Mode.NEW:
        raise IllegalTransition("Recovered came twice")
    live: tuple[Live, ...] = ()
    commands: list[Command] = []
    if event.last is not None:
        commands.append(Success(event.last))  # at least once: the crash may have come before it
    if event.decided is not None:
        live = (Live(event.decided, Stage.PUBLISHING),)
        commands.append(Commit(event.decided))
    greatest = {txid: n for txid, n in event.greatest.items() if txid >= event.current}
    after = replace(
        state,
        mode=Mode.RUNNING,
        current=event.current,
        live=live,
        last=event.last,
        begun_to=max(greatest, default=event.current - 1),
        greatest=tuple(sorted(greatest.items())),
        used=event.used,
        finishing=event.decided is not None,
    )
    return after, tuple(commands)


def _ready(state: CoordinatorState, event: Ready) -> Result:
    if state.asked != event.txid:
        return state, ()
    state = replace(state, asked=None)
    if not event.ready and state.asked_ahead == event.txid:
        return state, ()  # asked again as soon as the window has a place: its answer may be another then
    if not event.ready:
        timer = StartTimer(Timer(TimerKind.READINESS), state.limits.readiness_poll_secs)
        return replace(state, polling=True), (timer,)
    # The state may have changed since the question was asked.
    if event.txid != state.next_txid or not _may_start_new(state):
        return state, ()
    state = replace(state, interval_over=state.limits.batch_emit_interval_secs <= 0)
    state, begin = _begin(state)
    if state.interval_over:
        return state, begin
    return state, (*begin, StartTimer(Timer(TimerKind.INTERVAL), state.limits.batch_emit_interval_secs))


def _began(state: CoordinatorState, event: Began) -> Result:
    state, moved = _move(state, event.attempt, Stage.BEGINNING, Stage.PROCESSING)
    return state, (EmitBatch(event.attempt),) if moved else ()


def _processed(state: CoordinatorState, event: Processed) -> Result:
    state, _ = _move(state, event.attempt, Stage.PROCESSING, Stage.PROCESSED)
    return state, ()


def _prepared(state: CoordinatorState, event: Prepared) -> Result:
    to = Stage.ADVANCING if event.empty else Stage.DECIDING
    state, moved = _move(state, event.attempt, Stage.PREPARING, to)
    if not moved:
        return state, ()
    return state, (Advance(event.attempt, published=False) if event.empty else Decide(event.attempt),)


def _decided(state: CoordinatorState, event: Decided) -> Result:
    state, moved = _move(state, event.attempt, Stage.DECIDING, Stage.PUBLISHING)
    return state, (Commit(event.attempt),) if moved else ()


def _committed(state: CoordinatorState, event: Committed) -> Result:
    state, moved = _move(state, event.attempt, Stage.PUBLISHING, Stage.ADVANCING)
    return state, (Advance(event.attempt, published=True),) if moved else ()


def _advanced(state: CoordinatorState, event: Advanced) -> Result:
    state, moved = _move(state, event.attempt, Stage.ADVANCING, Stage.ADVANCING)
    if not moved:
        return state, ()
    current = state.current + 1
    state = replace(
        state,
        current=current,
        live=state.live[1:],
        last=event.attempt,
        begun_to=max(state.begun_to, event.attempt.txid),
        greatest=tuple(entry for entry in state.greatest if entry[0] >= current),
        failures=tuple(entry for entry in state.failures if entry[0] >= current),
        finishing=False,
    )
    return state, (Success(event.attempt),)


def _failed(state: CoordinatorState, event: Failed) -> Result:
    live = state.live_attempt(event.attempt)
    if live is None or live.stage >= Stage.DECIDING:
        return state, ()  # rules 4 and 5
    txid = event.attempt.txid
    before = state.failures_of(txid)
    same = 0 if event.fingerprint is None else before.same + 1 if event.fingerprint == before.fingerprint else 1
    timeouts = before.timeouts + event.timed_out
    count = FailureCount(before.failures + 1, timeouts, event.timed_out, event.fingerprint, same)
    state, commands = _drop_from(state, txid)
    state = replace(state, failures=_put(state.failures, txid, count))
    if count.failures >= state.limits.max_attempts or same >= state.limits.max_same_failures:
        return replace(state, capped=txid, backoff=None), commands
    key = (txid, count.failures)
    timer = StartTimer(Timer(TimerKind.BACKOFF, key), state.limits.backoff_secs(count.failures))
    return replace(state, backoff=key), (*commands, timer)


def _timer_fired(state: CoordinatorState, event: TimerFired) -> Result:
    kind, key = event.timer
    if kind is TimerKind.READINESS:
        return replace(state, polling=False), ()
    if kind is TimerKind.INTERVAL:
        return replace(state, interval_over=True), ()
    # An earlier txid that failed since has replaced this back-off.
    return (replace(state, backoff=None) if state.backoff == key else state), ()


def _stop_requested(state: CoordinatorState, event: StopRequested) -> Result:
    keep = [live for live in state.live if live.stage >= Stage.DECIDING]
    state, commands = _drop_from(state, state.current + len(keep))
    return replace(state, mode=Mode.STOPPING), commands


_HANDLERS: Mapping[type, Callable[[CoordinatorState, Any], Result]] = {
    Recovered: _recovered,
    Ready: _ready,
    Began: _began,
    Processed: _processed,
    Prepared: _prepared,
    Decided: _decided,
    Committed: _committed,
    Advanced: _advanced,
    Failed: _failed,
    TimerFired: _timer_fired,
    Paused: lambda state, _: (replace(state, paused=True), ()),
    Resumed: lambda state, _: (replace(state, paused=False), ()),
    Suspended: lambda state, _: (replace(state, suspended=True), ()),
    Reconnected: lambda state, _: (replace(state, suspended=False), ()),
    StopRequested: _stop_requested,
    LostLeadership: lambda state, _: _end(state, Mode.DEPOSED),
    HaltRequested: lambda state, _: _end(state, Mode.HALTED),
}


# --- what follows from a state, whatever led to it -------------------------------------


def _next_steps(state: CoordinatorState) -> Result:
    """Starts whatever the state allows: a commit, a replay, a question, an end."""
    commands: list[Command] = []
    for rule in (_start_commit, _start_replay, _ask_readiness, _finish):
        state, more = rule(state)
        commands.extend(more)
    return state, tuple(commands)


def _start_commit(state: CoordinatorState) -> Result:
    if state.mode is not Mode.RUNNING or state.suspended or not state.live:
        return state, ()
    first = state.live[0]
    if first.stage is not Stage.PROCESSED:
        return state, ()
    state, _ = _move(state, first.attempt, Stage.PROCESSED, Stage.PREPARING)
    return state, (Prepare(first.attempt),)


def _may_begin(state: CoordinatorState) -> bool:
    return (
        state.mode is Mode.RUNNING
        and not state.suspended
        and not state.finishing
        and (state.capped is None or state.next_txid < state.capped)
        and not (state.live and state.live[-1].stage is Stage.BEGINNING)
        and not (state.backoff is not None and state.backoff[0] == state.next_txid)
    )


def _start_replay(state: CoordinatorState) -> Result:
    if _may_begin(state) and not state.is_full and state.next_txid <= state.begun_to:
        return _begin(state)
    return state, ()


def _may_start_new(state: CoordinatorState) -> bool:
    has_place = not state.is_full or _may_go_ahead(state)
    is_new = state.next_txid > state.begun_to
    return _may_begin(state) and has_place and is_new and state.interval_over and not state.paused


def _may_go_ahead(state: CoordinatorState) -> bool:
    """Tells whether one more may begin for the place that the first attempt's advance will free (rule 7)."""
    return len(state.live) == state.limits.max_spout_pending and state.live[0].stage >= Stage.DECIDING


def _ask_readiness(state: CoordinatorState) -> Result:
    if state.asked is not None or state.polling or not _may_start_new(state):
        return state, ()
    txid, ahead = state.next_txid, state.is_full
    if ahead and state.asked_ahead == txid:
        return state, ()
    return replace(state, asked=txid, asked_ahead=txid if ahead else None), (AskReady(txid),)


def _finish(state: CoordinatorState) -> Result:
    if state.live or state.mode.ended:
        return state, ()
    if state.mode is Mode.STOPPING:
        return _end(state, Mode.STOPPED)
    if state.capped == state.current and state.mode is Mode.RUNNING:
        return _end(state, Mode.GAVE_UP)
    return state, ()


# --- small moves --------------------------------------------------------------------------


def _begin(state: CoordinatorState) -> Result:
    txid = state.next_txid
    attempt = TransactionAttempt(txid, state.greatest_of(txid) + 1)
    parent = state.live[-1].attempt if state.live else state.last
    count = state.failures_of(txid)
    after = replace(
        state,
        live=(*state.live, Live(attempt, Stage.BEGINNING)),
        begun_to=max(state.begun_to, txid),
        greatest=_put(state.greatest, txid, attempt.attempt_id),
    )
    return after, (Begin(attempt, parent, count.shrink, 2**count.timeouts),)


def _move(
    state: CoordinatorState, attempt: TransactionAttempt, source: Stage, target: Stage
) -> tuple[CoordinatorState, bool]:
    """Moves a live attempt on; False for a late report, an error for an impossible one."""
    live = state.live_attempt(attempt)
    if live is None:
        return state, False
    if live.stage is not source:
        raise IllegalTransition(
            f"{attempt} is at {live.stage.name}, so it cannot go from {source.name} to {target.name}; "
            f"live: {_story(state.live)}"
        )
    index = attempt.txid - state.current
    entries = (*state.live[:index], Live(attempt, target), *state.live[index + 1 :])
    return replace(state, live=entries), True


def _drop_from(state: CoordinatorState, txid: int) -> Result:
    kept = tuple(live for live in state.live if live.attempt.txid < txid)
    dropped = state.live[len(kept) :]
    return replace(state, live=kept), tuple(Cancel(live.attempt) for live in dropped)


def _end(state: CoordinatorState, mode: Mode) -> Result:
    state, commands = _drop_from(state, state.current)
    return replace(state, mode=mode), (*commands, End(mode, state.capped))


def _put(entries: tuple[tuple[int, _Value], ...], key: int, value: _Value) -> tuple[tuple[int, _Value], ...]:
    after = {**dict(entries), key: value}
    return tuple((number, after[number]) for number in sorted(after))


def _story(live: Iterable[Live]) -> str:
    return ", ".join(f"{entry.attempt} {entry.stage.name}" for entry in live) or "none"


def validate(state: CoordinatorState) -> None:
    """Asserts what must hold in every state; stays on in production (it is cheap)."""
    for index, (attempt, stage) in enumerate(state.live):
        assert attempt.txid == state.current + index, f"live is not contiguous: {_story(state.live)}"
        assert index == 0 or stage <= Stage.PROCESSED, f"two commits at once: {_story(state.live)}"
        assert stage is not Stage.BEGINNING or index == len(state.live) - 1, _story(state.live)
        known = dict(state.greatest).get(attempt.txid, -1)
        assert attempt.attempt_id <= known or state.finishing, f"{attempt} above the greatest known {known}"
    first, last = (state.live[0].stage, state.live[-1].stage) if state.live else (None, None)
    ahead = first is not None and first >= Stage.DECIDING and last is Stage.BEGINNING
    assert len(state.live) <= max(1, state.limits.max_spout_pending) + ahead, _story(state.live)
    assert not (state.mode.ended and state.live), "an ended coordinator has live attempts"
