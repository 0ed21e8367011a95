"""The claims of docs/semantics.md 1 on the pure coordinator, one at a time.

The interplay of all of them is simulated (tests/simulator).
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trident.coordinators.identities import TransactionAttempt as At
from trident.coordinators.master import (
    Advance,
    Advanced,
    AskReady,
    Began,
    Begin,
    Cancel,
    Commit,
    Committed,
    CoordinatorState,
    Decide,
    Decided,
    EmitBatch,
    End,
    Event,
    Failed,
    HaltRequested,
    IllegalTransition,
    Limits,
    LostLeadership,
    Mode,
    Paused,
    Phase,
    Prepare,
    Prepared,
    Processed,
    Ready,
    Reconnected,
    Recovered,
    Resumed,
    Stage,
    StartTimer,
    StopRequested,
    Success,
    Suspended,
    Timer,
    TimerFired,
    TimerKind,
    initial,
    step,
)


class Coordinator:
    """Feeds events to ``step`` and keeps the commands that came of them."""

    def __init__(self, *, recovered: Recovered | None = None, **limits: object) -> None:
        self.state: CoordinatorState = initial(Limits(**limits))
        self.commands: list = []
        self.post(recovered or Recovered(1))

    def post(self, *events: Event) -> list:
        new: list = []
        for event in events:
            self.state, commands = step(self.state, event)
            new += commands
        self.commands += new
        return new

    def begin(self, txid: int) -> list:
        """A new transaction becomes ready, begins and is emitted."""
        commands = self.post(Ready(txid, True))
        attempt = next(command.attempt for command in commands if isinstance(command, Begin))
        return commands + self.post(Began(attempt))

    def process(self, *attempts: At) -> list:
        return self.post(*(Processed(attempt) for attempt in attempts))

    def commit(self, attempt: At) -> list:
        return self.post(Prepared(attempt), Decided(attempt), Committed(attempt), Advanced(attempt))

    def fire_backoff(self) -> list:
        timers = [c.timer for c in self.commands if isinstance(c, StartTimer) and c.timer.kind is TimerKind.BACKOFF]
        return self.post(TimerFired(timers[-1]))

    @property
    def stages(self) -> dict[At, Stage]:
        return {entry.attempt: entry.stage for entry in self.state.live}


def of(kind: type, commands: list) -> list:
    return [command for command in commands if isinstance(command, kind)]


def begins(commands: list) -> list[At]:
    return [command.attempt for command in of(Begin, commands)]


# --- the way of a batch -----------------------------------------------------------------------


def test_an_attempt_goes_processing_processed_committing_success():
    run = Coordinator(max_spout_pending=1)
    one = At(1, 0)
    assert run.commands == [AskReady(1)]
    assert run.post(Ready(1, True)) == [Begin(one, parent=None)]
    assert run.post(Began(one)) == [EmitBatch(one)]
    assert run.stages[one].phase is Phase.PROCESSING
    assert run.post(Processed(one)) == [Prepare(one)]
    assert run.stages[one].phase is Phase.COMMITTING
    assert run.post(Prepared(one)) == [Decide(one), AskReady(2)]
    assert run.post(Ready(2, False)) == []
    assert run.post(Decided(one)) == [Commit(one)]
    assert run.post(Committed(one)) == [Advance(one, published=True)]
    assert run.post(Advanced(one)) == [Success(one), AskReady(2)]
    assert run.state.current == 2


def test_an_empty_batch_advances_without_a_decision():
    run = Coordinator(max_spout_pending=1)
    run.begin(1)
    run.process(At(1, 0))
    assert run.post(Prepared(At(1, 0), empty=True)) == [Advance(At(1, 0), published=False), AskReady(2)]


@pytest.mark.parametrize("pending", [1, 2])
def test_a_full_window_begins_one_more_once_its_first_attempt_only_rolls_forward(pending):
    run = Coordinator(max_spout_pending=pending)
    for txid in range(1, pending + 1):
        run.begin(txid)
    run.process(At(1, 0))
    following = pending + 1
    assert run.post(Ready(following, True)) == []  # it was not asked
    assert run.post(Prepared(At(1, 0))) == [Decide(At(1, 0)), AskReady(following)]
    assert run.post(Ready(following, True)) == [Begin(At(following, 0), parent=At(pending, 0))]
    assert run.post(Decided(At(1, 0)), Committed(At(1, 0))) == [Commit(At(1, 0)), Advance(At(1, 0), published=True)]
    assert run.post(Advanced(At(1, 0))) == [Success(At(1, 0))]
    assert run.post(Began(At(following, 0))) == [EmitBatch(At(following, 0))]


def test_a_no_that_was_asked_ahead_is_asked_again_at_once_when_there_is_a_place():
    run = Coordinator(max_spout_pending=1)
    run.begin(1)
    run.process(At(1, 0))
    assert of(AskReady, run.post(Prepared(At(1, 0)))) == [AskReady(2)]
    run.post(Decided(At(1, 0)), Committed(At(1, 0)))
    assert run.post(Advanced(At(1, 0))) == [Success(At(1, 0))]  # the answer is on its way
    assert run.post(Ready(2, False)) == [AskReady(2)]
    assert of(StartTimer, run.post(Ready(2, False)))


def test_what_begins_ahead_fails_alone():
    run = Coordinator(max_spout_pending=1)
    run.begin(1)
    run.process(At(1, 0))
    run.post(Prepared(At(1, 0)), Ready(2, True))
    assert of(Cancel, run.post(Failed(At(2, 0)))) == [Cancel(At(2, 0))]
    run.post(Decided(At(1, 0)), Committed(At(1, 0)))
    assert begins(run.post(Advanced(At(1, 0)))) == []
    assert begins(run.fire_backoff()) == [At(2, 1)]


@pytest.mark.parametrize("pending", [1, 2, 3])
def test_at_most_max_spout_pending_transactions_are_active(pending):
    run = Coordinator(max_spout_pending=pending)
    for txid in range(1, pending + 1):
        run.begin(txid)
    assert len(run.state.live) == pending
    assert not any(isinstance(c, AskReady) and c.txid > pending for c in run.commands)
    run.process(At(1, 0))
    assert AskReady(pending + 1) in run.commit(At(1, 0))


def test_the_active_window_begins_at_the_current_txid():
    run = Coordinator(max_spout_pending=2)
    run.begin(1), run.begin(2)
    run.process(At(1, 0), At(2, 0))
    run.commit(At(1, 0))
    assert [entry.attempt.txid for entry in run.state.live] == [2]
    assert begins(run.begin(3)) == [At(3, 0)]


def test_commits_happen_in_txid_order():
    run = Coordinator()
    run.begin(1), run.begin(2)
    assert run.process(At(2, 0)) == []
    assert run.stages[At(2, 0)].phase is Phase.PROCESSED
    assert run.process(At(1, 0)) == [Prepare(At(1, 0))]


def test_one_commit_at_a_time():
    run = Coordinator()
    run.begin(1), run.begin(2)
    run.process(At(1, 0), At(2, 0))
    for event in (Prepared(At(1, 0)), Decided(At(1, 0)), Committed(At(1, 0))):
        assert Prepare(At(2, 0)) not in run.post(event)
    assert Prepare(At(2, 0)) in run.post(Advanced(At(1, 0)))


def test_the_next_transaction_begins_only_when_the_one_before_has_its_metadata():
    run = Coordinator()
    run.post(Ready(1, True))
    assert AskReady(2) not in run.commands
    assert AskReady(2) in run.post(Began(At(1, 0)))


def test_success_is_told_only_after_the_advance_is_durable():
    run = Coordinator()
    run.begin(1)
    run.process(At(1, 0))
    before = run.post(Prepared(At(1, 0)), Decided(At(1, 0)), Committed(At(1, 0)))
    assert of(Success, before) == []
    assert of(Success, run.post(Advanced(At(1, 0)))) == [Success(At(1, 0))]


def test_the_parent_is_the_attempt_that_a_batch_builds_on():
    run = Coordinator()
    assert of(Begin, run.begin(1))[0].parent is None
    assert of(Begin, run.begin(2))[0].parent == At(1, 0)
    run.post(Failed(At(1, 0)))
    assert of(Begin, run.fire_backoff())[0].parent is None
    assert of(Begin, run.post(Began(At(1, 1))))[0] == Begin(At(2, 1), parent=At(1, 1))


# --- failure ------------------------------------------------------------------------------------


def test_a_failure_replays_the_batch_and_every_later_active_one_with_new_attempt_ids():
    run = Coordinator()
    run.begin(1), run.begin(2), run.begin(3)
    run.process(At(3, 0))
    assert of(Cancel, run.post(Failed(At(2, 0)))) == [Cancel(At(2, 0)), Cancel(At(3, 0))]
    assert list(run.stages) == [At(1, 0)]
    assert begins(run.fire_backoff() + run.post(Began(At(2, 1)))) == [At(2, 1), At(3, 1)]


@pytest.mark.parametrize("stage", [Stage.BEGINNING, Stage.PROCESSING, Stage.PROCESSED, Stage.PREPARING])
def test_a_failure_before_the_decision_is_heard(stage):
    run = Coordinator()
    one = At(1, 0)
    run.post(Ready(1, True))
    if stage is Stage.PROCESSED:  # only what waits for an earlier one stays PROCESSED
        run.post(Began(one), Ready(2, True), Began(At(2, 0)), Processed(At(2, 0)))
        one = At(2, 0)
    else:
        run.post(*[Began(one), Processed(one)][: {Stage.PROCESSING: 1, Stage.PREPARING: 2}.get(stage, 0)])
    assert run.stages[one] is stage
    run.post(Failed(one))
    assert one not in run.stages


@pytest.mark.parametrize("stage", [Stage.DECIDING, Stage.PUBLISHING, Stage.ADVANCING])
@pytest.mark.parametrize("timed_out", [False, True])
def test_a_failure_after_the_decision_was_issued_is_not_heard(stage, timed_out):
    run = Coordinator()
    one = At(1, 0)
    run.begin(1)
    run.process(one)
    run.post(*[Prepared(one), Decided(one), Committed(one)][: stage - Stage.PREPARING])
    assert run.stages[one] is stage
    before = run.state
    assert run.post(Failed(one, timed_out)) == []
    assert run.state == before


def test_a_stale_fail_does_not_clear_the_live_attempt():
    run = Coordinator()
    run.begin(1)
    run.post(Failed(At(1, 0)))
    run.fire_backoff()
    before = run.state
    assert run.post(Failed(At(1, 0)), Failed(At(1, 0), timed_out=True)) == []
    assert run.state == before
    assert list(run.stages) == [At(1, 1)]


def test_attempt_ids_grow_for_ever_and_over_a_restart():
    run = Coordinator(recovered=Recovered(4, greatest={4: 7, 5: 2}))
    assert begins(run.commands) == [At(4, 8)]
    assert begins(run.post(Began(At(4, 8)))) == [At(5, 3)]
    run.post(Failed(At(4, 8)))
    assert begins(run.fire_backoff()) == [At(4, 9)]


def test_attempt_ids_of_transactions_that_were_taken_back_are_not_used_again():
    run = Coordinator(recovered=Recovered(4, greatest={4: 11}, last=At(3, 0), used=At(5, 9)))
    assert begins(run.commands) == [At(4, 12)]
    run.post(Began(At(4, 12)))
    assert begins(run.begin(5)) == [At(5, 10)]
    assert begins(run.begin(6)) == [At(6, 0)]


def test_replays_back_off_from_200_ms_doubling_up_to_30_s():
    run = Coordinator(max_attempts=20)
    run.begin(1)
    delays = []
    for attempt_id in range(10):
        delays += [c.delay_secs for c in of(StartTimer, run.post(Failed(At(1, attempt_id))))]
        assert run.stages == {}
        run.fire_backoff()
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


@pytest.mark.parametrize("failures, secs", [(1, 0.2), (2, 0.4), (4, 1.6), (8, 25.6), (9, 30), (100_000, 30)])
def test_the_backoff_doubles_up_to_a_limit_and_has_one_after_any_number_of_failures(failures, secs):
    assert Limits().backoff_secs(failures) == pytest.approx(secs)


def test_a_backoff_that_an_earlier_failure_replaced_starts_nothing():
    run = Coordinator()
    run.begin(1), run.begin(2)
    run.post(Failed(At(2, 0)), Failed(At(1, 0)))
    assert run.post(TimerFired(Timer(TimerKind.BACKOFF, (2, 1)))) == []
    assert begins(run.post(TimerFired(Timer(TimerKind.BACKOFF, (1, 1))))) == [At(1, 1)]


def test_each_timeout_doubles_the_message_timeout_and_asks_for_a_smaller_batch():
    run = Coordinator()
    run.begin(1)
    run.post(Failed(At(1, 0), timed_out=True))
    assert of(Begin, run.fire_backoff()) == [Begin(At(1, 1), None, shrink=True, timeout_factor=2)]
    run.post(Failed(At(1, 1), timed_out=True))
    assert of(Begin, run.fire_backoff()) == [Begin(At(1, 2), None, shrink=True, timeout_factor=4)]
    run.post(Failed(At(1, 2)))
    assert of(Begin, run.fire_backoff()) == [Begin(At(1, 3), None, shrink=False, timeout_factor=4)]


def test_at_the_attempt_cap_the_earlier_ones_are_finished_first():
    run = Coordinator(max_attempts=2)
    run.begin(1), run.begin(2)
    run.post(Failed(At(2, 0)))
    run.fire_backoff()
    run.process(At(1, 0))
    run.post(Failed(At(2, 1)))
    assert run.state.mode is Mode.RUNNING
    assert begins(run.commands) == [At(1, 0), At(2, 0), At(2, 1)]
    assert run.commit(At(1, 0))[-2:] == [Success(At(1, 0)), End(Mode.GAVE_UP, txid=2)]


def test_a_failure_that_is_the_same_three_times_in_a_row_is_tried_no_more():
    run = Coordinator(max_attempts=8)
    run.begin(1), run.begin(2)
    for attempt_id in range(2):
        run.post(Failed(At(2, attempt_id), fingerprint="row 7"))
        run.fire_backoff()
    assert run.state.failures_of(2).same == 2
    run.post(Failed(At(2, 2), fingerprint="row 7"))
    assert run.state.mode is Mode.RUNNING  # what is before it is finished first
    run.process(At(1, 0))
    assert run.commit(At(1, 0))[-2:] == [Success(At(1, 0)), End(Mode.GAVE_UP, txid=2)]


@pytest.mark.parametrize(
    "fingerprints",
    [[None] * 8, ["a", "a", None, "a", "a", "b", "a", "a"], ["a", "b"] * 4, ["a", "a", "b", "b", "a", "a", "b", "b"]],
)
def test_a_failure_that_may_pass_keeps_all_its_attempts(fingerprints):
    run = Coordinator(max_attempts=8)
    run.begin(1)
    for attempt_id, fingerprint in enumerate(fingerprints):
        assert run.state.mode is Mode.RUNNING
        run.post(Failed(At(1, attempt_id), fingerprint=fingerprint))
        if attempt_id < 7:
            run.fire_backoff()
    assert run.state.mode is Mode.GAVE_UP


def test_failures_of_one_kind_are_counted_per_txid():
    run = Coordinator(max_attempts=8)
    run.begin(1), run.begin(2)
    run.post(Failed(At(2, 0), fingerprint="a"))
    for attempt_id in range(2):
        run.post(Failed(At(1, attempt_id), fingerprint="a"))
        run.fire_backoff()
    assert run.state.mode is Mode.RUNNING


def test_failures_are_counted_per_txid():
    run = Coordinator(max_attempts=2)
    run.begin(1), run.begin(2)
    run.post(Failed(At(2, 0)))
    run.post(Failed(At(1, 0)))
    assert run.state.mode is Mode.RUNNING
    assert run.fire_backoff() != []


# --- readiness, order, interval ---------------------------------------------------------------------


def test_a_spout_that_is_not_ready_gets_no_new_transaction_and_is_asked_again():
    run = Coordinator(readiness_poll_secs=0.1)
    timer = Timer(TimerKind.READINESS)
    assert run.post(Ready(1, False)) == [StartTimer(timer, 0.1)]
    assert run.post(TimerFired(timer)) == [AskReady(1)]


def test_replays_do_not_wait_for_readiness():
    run = Coordinator()
    run.begin(1), run.begin(2)
    run.post(Ready(3, False))
    run.post(Failed(At(1, 0)))
    assert begins(run.fire_backoff() + run.post(Began(At(1, 1)))) == [At(1, 1), At(2, 1)]
    assert AskReady(1) not in run.commands[1:] and run.commands.count(AskReady(2)) == 1


def test_transactions_start_in_txid_order_when_readiness_flips():
    run = Coordinator()
    run.begin(1)
    assert AskReady(2) in run.commands
    run.post(Failed(At(1, 0)))
    assert begins(run.post(Ready(2, True))) == []  # asked before the failure; 1 comes first
    assert begins(run.fire_backoff()) == [At(1, 1)]


def test_an_answer_to_another_question_is_not_taken():
    run = Coordinator()
    assert run.post(Ready(5, True)) == []
    assert begins(run.post(Ready(1, True))) == [At(1, 0)]


def test_the_interval_separates_new_transactions_and_never_holds_a_replay():
    run = Coordinator(batch_emit_interval_secs=0.5)
    timer = Timer(TimerKind.INTERVAL)
    assert StartTimer(timer, 0.5) in run.post(Ready(1, True))
    assert AskReady(2) not in run.post(Began(At(1, 0)))
    run.post(Failed(At(1, 0)))
    assert begins(run.fire_backoff()) == [At(1, 1)]
    run.post(Began(At(1, 1)))
    assert run.post(TimerFired(timer)) == [AskReady(2)]


# --- pause, suspension, stop ---------------------------------------------------------------------------


def test_a_pause_stops_new_transactions_and_neither_commits_nor_replays():
    run = Coordinator()
    run.begin(1), run.begin(2)
    run.post(Paused())
    assert begins(run.post(Ready(3, True))) == []
    run.post(Failed(At(2, 0)))
    assert begins(run.fire_backoff()) == [At(2, 1)]
    run.process(At(1, 0))
    assert Success(At(1, 0)) in run.commit(At(1, 0))
    run.post(Began(At(2, 1)))
    assert not run.state.is_drained
    run.process(At(2, 1)), run.commit(At(2, 1))
    assert run.state.is_drained
    assert run.post(Resumed()) == [AskReady(3)]


def test_while_zookeeper_is_suspended_nothing_is_started():
    run = Coordinator()
    run.begin(1), run.begin(2)
    run.post(Suspended())
    assert run.process(At(1, 0)) == []
    run.post(Failed(At(2, 0)))
    assert run.fire_backoff() == []
    assert run.post(Reconnected()) == [Prepare(At(1, 0)), Begin(At(2, 1), parent=At(1, 0))]


def test_stop_finishes_what_is_decided_and_drops_the_rest():
    run = Coordinator()
    run.begin(1), run.begin(2)
    run.process(At(1, 0))
    run.post(Prepared(At(1, 0)))
    assert run.post(StopRequested()) == [Cancel(At(2, 0))]
    assert run.post(Decided(At(1, 0))) == [Commit(At(1, 0))]
    assert run.post(Committed(At(1, 0)), Advanced(At(1, 0)))[1:] == [Success(At(1, 0)), End(Mode.STOPPED)]


def test_stop_ends_at_once_when_nothing_is_decided():
    run = Coordinator()
    run.begin(1)
    run.process(At(1, 0))
    assert run.post(StopRequested()) == [Cancel(At(1, 0)), End(Mode.STOPPED)]


@pytest.mark.parametrize(("event", "mode"), [(LostLeadership(), Mode.DEPOSED), (HaltRequested(), Mode.HALTED)])
def test_a_deposed_or_halted_coordinator_abandons_everything_and_hears_nothing_more(event, mode):
    run = Coordinator()
    run.begin(1)
    run.process(At(1, 0))
    run.post(Prepared(At(1, 0)))
    assert run.post(event) == [Cancel(At(1, 0)), End(mode)]
    assert run.post(Decided(At(1, 0)), Ready(2, True), Recovered(1)) == []


# --- restart ----------------------------------------------------------------------------------------------


def test_a_restart_finishes_the_pending_decision_before_anything_begins():
    run = Coordinator(recovered=Recovered(3, {3: 1, 4: 0}, last=At(2, 0), decided=At(3, 1)))
    assert run.commands == [Success(At(2, 0)), Commit(At(3, 1))]
    assert run.post(Committed(At(3, 1))) == [Advance(At(3, 1), published=True)]
    assert run.post(Advanced(At(3, 1))) == [Success(At(3, 1)), Begin(At(4, 1), parent=At(3, 1))]


def test_a_restart_replays_what_had_begun_without_asking_readiness():
    run = Coordinator(recovered=Recovered(3, {3: 0, 4: 0}, last=At(2, 5)))
    assert run.commands == [Success(At(2, 5)), Begin(At(3, 1), parent=At(2, 5))]
    assert run.post(Began(At(3, 1))) == [EmitBatch(At(3, 1)), Begin(At(4, 1), parent=At(3, 1))]
    assert run.post(Began(At(4, 1))) == [EmitBatch(At(4, 1)), AskReady(5)]


def test_success_is_told_again_after_a_restart():
    assert Success(At(6, 2)) in Coordinator(recovered=Recovered(7, last=At(6, 2))).commands


# --- any order of events -----------------------------------------------------------------------------------

REPORTS = {
    Stage.BEGINNING: Began,
    Stage.PROCESSING: Processed,
    Stage.PREPARING: Prepared,
    Stage.DECIDING: Decided,
    Stage.PUBLISHING: Committed,
    Stage.ADVANCING: Advanced,
}
CONTROLS = [Paused(), Resumed(), Suspended(), Reconnected()]


def outside_events(state: CoordinatorState) -> list[Event]:
    """What may happen next without a defect in the driver."""
    possible: list[Event] = [TimerFired(Timer(TimerKind.READINESS)), TimerFired(Timer(TimerKind.INTERVAL)), *CONTROLS]
    if state.asked is not None:
        possible += [Ready(state.asked, True), Ready(state.asked, True), Ready(state.asked, False)]
    if state.backoff is not None:
        possible.append(TimerFired(Timer(TimerKind.BACKOFF, state.backoff)))
    ahead = len(state.live) > state.limits.max_spout_pending  # the last one's Began comes after an Advanced (rule 7)
    for attempt, stage in state.live:
        if stage in REPORTS and not (ahead and stage is Stage.BEGINNING):
            possible += [REPORTS[stage](attempt)] * 3
        possible += [Failed(attempt), Failed(attempt, timed_out=True), Failed(attempt, fingerprint="the same")]
    return possible


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Event], list[CoordinatorState], list]:
    """A random run: its events, the state before each and at the end, all commands."""
    limits = Limits(
        max_spout_pending=draw(st.integers(1, 4)),
        max_attempts=draw(st.integers(1, 8)),
        batch_emit_interval_secs=draw(st.sampled_from([0.0, 1.0])),
    )
    state, commands = step(initial(limits), Recovered(draw(st.integers(1, 3))))
    events, states, told = [], [state], list(commands)
    for _ in range(draw(st.integers(0, 60))):
        event = draw(st.sampled_from(outside_events(state)))
        state, commands = step(state, event)
        events.append(event)
        states.append(state)
        told += commands
    return events, states, told


@settings(max_examples=100, deadline=None)
@given(runs())
def test_in_any_run_each_attempt_is_begun_once_and_successes_come_in_order(run):
    _, states, commands = run
    first = states[0].current
    attempts = begins(commands)
    assert max(Counter(attempts).values(), default=1) == 1
    for txid in {attempt.txid for attempt in attempts}:
        ids = [attempt.attempt_id for attempt in attempts if attempt.txid == txid]
        assert ids == list(range(len(ids)))
    succeeded = [command.attempt.txid for command in of(Success, commands)]
    assert succeeded == list(range(first, first + len(succeeded)))
    first_tries = [attempt.txid for attempt in attempts if attempt.attempt_id == 0]
    assert first_tries == sorted(first_tries)


@settings(max_examples=60, deadline=None)
@given(runs(), st.data())
def test_in_any_run_a_late_or_repeated_report_changes_nothing(run, data):
    events, states, _ = run
    reports = [event for event in events if hasattr(event, "attempt")]
    final = states[-1]
    live = {entry.attempt for entry in final.live}
    for event in reports:
        if event.attempt not in live:
            assert step(final, event) == (final, ())
    for _ in range(3):
        attempt = At(data.draw(st.integers(1, 12)), data.draw(st.integers(0, 9)))
        if attempt not in live:
            for report in (*REPORTS.values(), Failed):
                assert step(final, report(attempt)) == (final, ())


@settings(max_examples=60, deadline=None)
@given(runs())
def test_in_any_run_an_illegal_transition_raises_and_changes_nothing(run):
    _, states, _ = run
    final = states[-1]
    before = repr(final)
    for attempt, stage in final.live:
        for allowed, report in REPORTS.items():
            if allowed is not stage:
                with pytest.raises(IllegalTransition):
                    step(final, report(attempt))
    if not final.mode.ended:
        with pytest.raises(IllegalTransition):
            step(final, Recovered(1))
    assert repr(final) == before


def test_nothing_is_heard_before_recovered():
    fresh = initial()
    for event in (Ready(1, True), Began(At(1, 0)), Failed(At(1, 0)), Paused()):
        with pytest.raises(IllegalTransition):
            step(fresh, event)
    assert fresh == initial()


def test_an_illegal_transition_tells_its_story():
    run = Coordinator()
    run.begin(1), run.begin(2)
    with pytest.raises(IllegalTransition, match="1:0 is at PROCESSING.*1:0 PROCESSING, 2:0 PROCESSING"):
        run.post(Decided(At(1, 0)))
