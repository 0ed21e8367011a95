"""Every reachable state of the production coordinator, for small bounds (docs/semantics.md 9 and 10).

Claims, checked in each state and at each effect: no transaction lost, none
published twice, order, attempt ids never used again, success only after the
advance is durable, no emission of a decided transaction, late reports change
nothing, progress once faults stop, and what stop and the attempt cap leave.

``TRIDENT_EXPLORE=deep`` widens the bounds (some minutes).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.explorer.durable import Rules
from tests.explorer.environment import Budget, Environment, Scenario
from tests.explorer.search import DEEP, Action, Violation, explore
from trident.coordinators import handing_over
from trident.coordinators.handing_over import Step, give_way
from trident.coordinators.master import CoordinatorState, Limits

THREE = Limits(max_spout_pending=3)

# Small enough to be run against every planted bug (tests/whole/test_planted_bugs.py).
TINY = {
    "failure": Scenario(2, Budget(failures=1)),
    "one-at-a-time": Scenario(2, Budget(failures=1, crashes=1, not_ready=1), Limits(max_spout_pending=1)),
    "readiness-flips": Scenario(2, Budget(failures=1, not_ready=1)),
    "crash": Scenario(2, Budget(failures=1, crashes=1)),
    "takeover": Scenario(2, Budget(takeovers=1)),
    "stop": Scenario(2, Budget(failures=1, stops=1)),
    "cap": Scenario(2, Budget(failures=2), Limits(max_spout_pending=2, max_attempts=2)),
    "same-failure": Scenario(2, Budget(failures=2), Limits(max_spout_pending=2, max_same_failures=2), alike=True),
    "timeouts": Scenario(2, Budget(failures=2), timeouts=True),
    "rollback": Scenario(2, Budget(crashes=1, rollbacks=1)),
    "handover": Scenario(2, Budget(failures=1, handovers=1)),
}

SMALL = {
    "two-failures-and-a-crash": Scenario(2, Budget(failures=2, crashes=1), timeouts=True),
    "three-in-flight": Scenario(3, Budget(failures=1, crashes=1), THREE),
    "three-in-flight-readiness": Scenario(3, Budget(failures=1, not_ready=2), THREE),
    "two-crashes": Scenario(2, Budget(failures=1, crashes=2)),
    "zombie-and-failure": Scenario(2, Budget(failures=1, takeovers=1)),
    "zombie-and-crash": Scenario(2, Budget(crashes=1, takeovers=1)),
    "zombie-and-empty-batch": Scenario(3, Budget(takeovers=1), empty=frozenset({2})),
    "empty-batches": Scenario(3, Budget(failures=1, crashes=1), empty=frozenset({1, 3})),
    "stop-in-a-crash": Scenario(2, Budget(failures=1, crashes=1, stops=1)),
    "pause-and-suspension": Scenario(2, Budget(failures=1, suspensions=1, pauses=1, not_ready=1)),
    "cap-three-in-flight": Scenario(3, Budget(failures=2), Limits(max_spout_pending=3, max_attempts=2)),
    "rollback-behind-a-failure": Scenario(2, Budget(failures=1, crashes=1, rollbacks=1)),
    "rollback-behind-a-rollback": Scenario(3, Budget(crashes=2, rollbacks=2), Limits(max_spout_pending=1)),
    "rollback-beside-a-zombie": Scenario(2, Budget(crashes=1, takeovers=1, rollbacks=1)),
    "rollback-of-a-stopped-one": Scenario(3, Budget(stops=1, rollbacks=1)),
    "handover-and-crash": Scenario(2, Budget(failures=1, crashes=1, handovers=1)),
    "handover-behind-a-handover": Scenario(3, Budget(handovers=2)),
    "handover-of-a-paused-one": Scenario(2, Budget(pauses=1, suspensions=1, handovers=1)),
    "handover-beside-a-zombie": Scenario(2, Budget(takeovers=1, handovers=1)),
    "handover-and-stop": Scenario(2, Budget(failures=1, stops=1, handovers=1)),
    "handover-behind-a-rollback": Scenario(2, Budget(crashes=1, rollbacks=1, handovers=1)),
    "emit-interval": Scenario(
        2, Budget(failures=1, crashes=1, pauses=1), Limits(max_spout_pending=2, batch_emit_interval_secs=1.0)
    ),
}

WIDE = {
    "three-transactions-two-failures-and-a-crash": Scenario(3, Budget(failures=2, crashes=1), timeouts=True),
    "cap-three-in-flight-three-failures": Scenario(3, Budget(failures=3), Limits(max_spout_pending=3, max_attempts=2)),
    "all-faults": Scenario(2, Budget(failures=1, crashes=1, takeovers=1, not_ready=1)),
    "all-controls": Scenario(2, Budget(failures=1, crashes=1, stops=1, suspensions=1, pauses=1, not_ready=1)),
    "three-in-flight-two-failures": Scenario(3, Budget(failures=2, crashes=1), THREE),
    "three-in-flight-zombie": Scenario(3, Budget(failures=1, takeovers=1), THREE),
    "four-transactions": Scenario(4, Budget(failures=1, crashes=1), THREE),
    "two-crashes-and-a-zombie": Scenario(2, Budget(failures=0, crashes=2, takeovers=1)),
    "cap-crash-stop": Scenario(2, Budget(failures=3, crashes=1, stops=1), Limits(max_spout_pending=2, max_attempts=2)),
}


@pytest.mark.parametrize("name", TINY)
def test_every_claim_holds_in_every_reachable_state_of_a_tiny_world(name):
    explore(Environment(TINY[name]))


@pytest.mark.parametrize("name", {**SMALL, **(WIDE if DEEP else {})})
def test_every_claim_holds_in_every_reachable_state(name, record_property):
    environment = Environment({**SMALL, **WIDE}[name])
    seen = explore(environment)
    record_property("states", seen.states)
    print(f"{name}: {seen.states:,} states, {seen.edges:,} steps, {environment.coordinator_states:,} of step()")


# --- the checker can fail: a protocol without its parts is found out -----------------------------


@pytest.mark.parametrize(
    ("rules", "budget", "found"),
    [
        (Rules(fence=False), Budget(takeovers=1), "attempt id used again: 1:0"),
        (Rules(control_record=False), Budget(crashes=1), "gets the rows of 1:0 but holds"),
        (Rules(control_record=False), Budget(takeovers=1), "gets the rows of 1:0 but holds"),
    ],
    ids=["no fence", "no control record, a crash", "no control record, a zombie"],
)
def test_the_search_finds_what_is_missing_around_the_coordinator(rules, budget, found):
    with pytest.raises(Violation, match=found):
        explore(Environment(replace(Scenario(2, budget), rules=rules)))


def _never_resumes(giving, asked, drained, now):
    after, step = give_way(giving, asked, drained, now)
    return after, None if step is Step.RESUME else step


@pytest.mark.parametrize(
    ("target", "name", "defect", "found"),
    [
        (handing_over, "is_for", lambda request, epochs, incarnation: True, "the leader of epoch 2 gives way to"),
        (CoordinatorState, "is_drained", property(lambda state: state.paused), "is to be given back, and in flight"),
        (handing_over, "give_way", _never_resumes, "nothing more can happen"),
    ],
    ids=["to a later leader", "not drained", "taken back, and not resumed"],
)
def test_the_search_finds_a_defect_in_hand_overs(target, name, defect, found, monkeypatch):
    monkeypatch.setattr(target, name, defect)
    with pytest.raises(Violation, match=found):
        explore(Environment(Scenario(2, Budget(crashes=1, handovers=1))))


class _Graph:
    """A model given as its edges; negative targets are faults."""

    initial = 1

    def __init__(self, edges: dict[int, list[int]]) -> None:
        self.edges = edges

    def actions(self, state):
        for target in self.edges.get(state, []):
            yield Action(f"{state}→{target}", lambda target=target: abs(target), fault=target < 0)

    def finished(self, state):
        return state == 9


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({1: [2, 9]}, "nothing more can happen"),
        ({1: [2, 9], 2: [3], 3: [2, 9]}, "round for ever"),
        ({1: [9], 9: [-4]}, "nothing more can happen"),
    ],
    ids=["dead end", "cycle", "dead end after a fault"],
)
def test_the_search_finds_a_lack_of_progress(edges, found):
    with pytest.raises(Violation, match=found):
        explore(_Graph(edges))


def test_the_search_tells_the_shortest_way_to_a_violation():
    with pytest.raises(Violation, match=r"(?s)1\. 1→2\n +2\. 2→4$"):
        explore(_Graph({1: [2, 9], 2: [4]}))


def test_a_cycle_of_faults_alone_is_no_lack_of_progress():
    assert explore(_Graph({1: [-1, 2], 2: [-1, 9]})).states == 3
