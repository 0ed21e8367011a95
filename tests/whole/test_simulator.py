"""Supervisor, coordinator, driver, store, leadership and publishing in a simulated world, by seed (tests/simulator).

``TRIDENT_SIM_SEEDS=N`` runs N seeds and searches each planted defect with as
many; ``TRIDENT_SIM_SEED=N`` runs that one alone and prints all of its trace.
``python -m tests.simulator --seeds 10000`` does without pytest.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.programs import python
from tests.simulator.checker import Violation
from tests.simulator.planted import OF_ROLLBACKS, PLANTED, RECOVERY, SUPERVISOR, planted
from tests.simulator.running import VARIABLE, run_seed
from tests.simulator.simulation import Simulation

ROOT = Path(__file__).resolve().parents[2]
# The rare states that the seeds of the default run must reach, and where an operator rolls back.
RARE_STATES, ROLLBACK_STATES = (
    [line for line in part.splitlines() if line and line[0] != "#"]
    for part in (ROOT / "tests/simulator/rare.txt").read_text(encoding="utf-8").split("== rollbacks\n")
)
ONE = os.environ.get(VARIABLE)
MANY = int(os.environ.get("TRIDENT_SIM_SEEDS", "0"))
# So few reach every rare state, the last of them at the 447th; `make simulate` runs 20,000.
SEEDS = MANY or 500

ROLLBACK_SEEDS = 60

# Most defects are found by one of the first fifty; those that take some hundred are left to TRIDENT_SIM_SEEDS.
SEARCHED = 1_000
RAREST = {
    "a copy of another history is gone on with",
    "the control record is not checked",
    "a group is not told that the connection is back",
    "a recovery goes on although its lease was lost",
    "a lost answer is looked up at a server that lags",
    "success of the transaction before is not told at a recovery",
    "what a deposed coordinator reads in two pieces counts as corrupt",
    "a deposed coordinator without its manifest halts",
    "a deposed coordinator that sees its successor's tables halts",
}
# Of the others those that are searched for in `make test`: the quickest of each part of the code.
IN_MAKE_TEST = {
    "no fence in multis",
    "advance before publish",
    "attempt ids begin again after a restart",
    "a failure is heard after the decision",
    "a write is repeated after a lost connection",
    "opaque metadata of an attempt that failed is the base",
    "the lease is given back while its threads work",
    "requests are answered before the groups are open",
    "a table is left out of a rollback",
}


def marked(defect: str) -> Any:
    return defect if defect in IN_MAKE_TEST else pytest.param(defect, marks=pytest.mark.long)


@pytest.fixture(autouse=True)
def alone(request):
    if (ONE is None) == (request.function is test_one_seed_with_its_trace):
        pytest.skip(f"{VARIABLE} names no seed" if ONE is None else "one seed runs alone")


def test_one_seed_with_its_trace():
    result = run_seed(int(ONE))
    print(result.story(None))
    assert result.violation is None


def test_every_claim_holds_in_every_seed_and_the_rare_states_were_reached(record_property):
    counters: Counter[str] = Counter()
    for seed in range(SEEDS):
        result = run_seed(seed)
        counters.update(result.counters)
        if result.violation is not None:
            pytest.fail(result.story(), pytrace=False)
    record_property("seeds", SEEDS)
    never = [state for state in RARE_STATES if not counters[state]]
    assert not never, f"{SEEDS} seeds proved nothing about: {never}"


def test_every_claim_holds_where_an_operator_rolls_back():
    """Amid all other faults: the command is killed and run again, and processes are started beside it."""
    counters: Counter[str] = Counter()
    for seed in range(MANY or ROLLBACK_SEEDS):
        result = run_seed(seed, rollbacks=1 + seed % 2)
        counters.update(result.counters)
        if result.violation is not None:
            pytest.fail(f"with {1 + seed % 2} rollbacks: {result.story()}", pytrace=False)
    never = [state for state in ROLLBACK_STATES if not counters[state]]
    assert not never, f"nothing was proved about: {never}"


def test_a_seed_is_the_same_in_two_runs():
    for seed in range(5):
        first, second = run_seed(seed), run_seed(seed)
        assert first.trace == second.trace
        assert run_seed(seed, rollbacks=1).trace == run_seed(seed, rollbacks=1).trace
        assert first.trace_hash == second.trace_hash and len(first.trace) > 10


def test_a_seed_is_the_same_in_two_processes_and_in_this_one():
    here = run_seed(11).trace_hash
    ended = python("-m", "tests.simulator", "--seed", "11", PYTHONHASHSEED="1")
    assert f"trace {here}" in ended.stdout, ended.stdout + ended.stderr


def test_two_seeds_differ():
    assert len({run_seed(seed).trace_hash for seed in range(20)}) == 20


@pytest.mark.parametrize("name", [marked(name) for name in (*PLANTED, *OF_ROLLBACKS)])
def test_a_planted_defect_is_found(name):
    if name in RAREST and not MANY:
        pytest.skip("takes longer: TRIDENT_SIM_SEEDS")
    with planted(name):
        for seed in range(max(MANY, SEARCHED)):
            result = run_seed(seed, rollbacks=1 + seed % 2 if name in OF_ROLLBACKS else 0)
            if result.violation is not None:
                assert isinstance(result.violation, Violation), result.story()
                print(f"{name}: seed {seed}: {result.violation}")
                return
    pytest.fail(f"{max(MANY, SEARCHED)} seeds did not find: {name}")


def test_the_page_on_faults_lists_the_defects_in_the_order_of_calls():
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    planted_there = [name for name, edits in PLANTED.items() if edits[0].where.startswith((SUPERVISOR, RECOVERY))]
    assert len(planted_there) >= 4 and all(f"| `{name}` |" in page for name in planted_there)


def test_a_defect_that_cannot_be_planted_is_told(monkeypatch):
    edit = PLANTED["no fence in multis"][0]
    monkeypatch.setitem(PLANTED, "old", (edit._replace(old="no such text"),))
    with pytest.raises(AssertionError, match="cannot be planted"), planted("old"):
        pass


def test_a_run_in_which_not_everything_commits_is_a_failure_with_its_trace(monkeypatch):
    """Liveness: the spouts are never ready, so nothing is lost or doubled, and nothing comes."""
    monkeypatch.setattr("tests.simulator.sources.SimExecutor.is_ready", lambda self, txid: False)
    result = run_seed(1)
    assert isinstance(result.violation, Violation)
    story = result.story()
    assert "not everything has committed" in story and "zk acquire" in story and f"{VARIABLE}=1" in story


def test_after_a_seed_nothing_of_it_runs_on():
    simulation = Simulation(3)
    simulation.run()
    assert all(not process.tasks for process in simulation.world.processes)
