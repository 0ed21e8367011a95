"""The checks find defects: each patch plants one, and the tests named for it must fail.

A patch that no longer applies is an error too: plant the bug again in the new
code. To add one: ``tests/planted/NN-name.patch`` (a unified diff from the
root of the project, as of ``git diff``) and an entry in PLANTED.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests" / "planted"
COPIED = ("coordinators", "states", "trident", "tests", "pyproject.toml")


class Caught(NamedTuple):
    """``tests``: all of them must fail. ``says``: what the failure must be about (a regex)."""

    says: str
    tests: tuple[str, ...]


def coordinator(says: str, world: str, *units: str) -> Caught:
    explorer = f"tests/test_explorer.py::test_every_claim_holds_in_every_reachable_state_of_a_tiny_world[{world}]"
    return Caught(says, (explorer, *(f"tests/test_master_coordinator.py::{unit}" for unit in units)))


def compaction(says: str, world: str) -> Caught:
    name = f"test_compaction_is_exact_in_every_interleaving_of_a_tiny_world[{world}]"
    return Caught(says, (f"tests/test_compaction_explorer.py::{name}",))


PLANTED: dict[str, Caught] = {
    # --- coordinators/master.py
    "01-attempt-ids-used-again-after-a-restart": coordinator(
        "attempt id used again: 1:0", "crash", "test_attempt_ids_grow_for_ever_and_over_a_restart"
    ),
    "02-advance-before-publish": coordinator(
        "1:0 advances before it is published", "failure", "test_an_attempt_goes_processing_processed_committing_success"
    ),
    "03-success-before-advance": coordinator(
        "success of 1:0 is told, but 1 is current", "failure",
        "test_success_is_told_only_after_the_advance_is_durable",
    ),
    "04-stale-fail-clears-the-live-attempt": coordinator(
        "a late Failed", "failure", "test_a_stale_fail_does_not_clear_the_live_attempt"
    ),
    "05-order-broken-when-readiness-flips": coordinator(
        "live is not contiguous: 2:0 BEGINNING", "readiness-flips",
        "test_in_any_run_each_attempt_is_begun_once_and_successes_come_in_order",
    ),
    "06-failure-heard-after-the-decision": coordinator(
        "was heard after the decision", "failure",
        "test_a_failure_after_the_decision_was_issued_is_not_heard[False-5]",
    ),
    "07-replay-waits-for-readiness": coordinator(
        "a replay of 1 waits for readiness", "failure", "test_replays_do_not_wait_for_readiness"
    ),
    "08-later-attempts-kept-when-an-earlier-one-fails": coordinator(
        "2:0 is decided, built on 1:0, but 1:1 was committed", "failure",
        "test_a_failure_replays_the_batch_and_every_later_active_one_with_new_attempt_ids",
    ),
    "09-two-commits-at-once": coordinator("two commits at once", "failure", "test_one_commit_at_a_time"),
    "10-decision-forgotten-at-the-restart": coordinator(
        "before 1 is finished", "crash", "test_a_restart_finishes_the_pending_decision_before_anything_begins"
    ),
    "11-begins-before-the-decision-is-finished": coordinator("before 1 is finished", "crash"),
    "12-stop-leaves-a-decision-behind": coordinator(
        "stopped with 1:0 decided and not published", "stop",
        "test_stop_finishes_what_is_decided_and_drops_the_rest",
    ),
    "13-gives-up-before-the-earlier-ones-are-finished": coordinator(
        "gave up before 1 was finished", "cap", "test_at_the_attempt_cap_the_earlier_ones_are_finished_first"
    ),
    "14-success-not-told-again-after-a-restart": coordinator(
        "nothing more can happen, and it is not finished", "crash", "test_success_is_told_again_after_a_restart"
    ),
    "15-replaced-backoff-never-ends": coordinator(
        "nothing more can happen, and it is not finished", "timeouts", "test_failures_are_counted_per_txid"
    ),
    "16-one-active-too-many": Caught(
        "assert", ("tests/test_master_coordinator.py::test_at_most_max_spout_pending_transactions_are_active[2]",)
    ),
    # --- coordinators/group_store.py, with a real ZooKeeper
    "20-no-fence": Caught(
        "DID NOT RAISE.*Deposed", ("tests/test_group_store.py::test_a_paused_leader_that_wakes_up_writes_nothing",)
    ),
    # --- states/compaction.py
    "30-log-dropped-beyond-what-is-merged": compaction("the log was dropped up to 2, the table is", "two-compactors"),
    "31-log-dropped-into-the-retention": compaction("1 before 1 must be kept", "retention"),
    "32-live-read-of-a-log-that-was-dropped-since": compaction("a live read as of 1 gives {}", "reader"),
    "33-live-read-of-a-table-that-is-ahead": compaction("a live read as of 0 gives {'a'", "reader"),
    "34-live-read-of-a-half-published-transaction": compaction("which is half published", "reader"),
    "35-no-upto-guard": compaction(r"'a', \(1, 1, 2\)", "two-compactors"),
    "36-merges-what-has-not-advanced": compaction("1 is merged, but 0 is the last", "reader"),
    "37-live-read-that-waits-for-a-publish": compaction("round for ever", "half-published-above-an-empty-one"),
}  # fmt: skip

# Plugins and fixtures that a run of pure tests does not need; they take most of its time.
PURE = ("--noconftest", "-p", "no:hypothesispytest", "-p", "no:anyio")


def test_every_patch_is_named_with_what_catches_it():
    assert sorted(PLANTED) == sorted(path.stem for path in PATCHES.glob("*.patch"))


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_bug_is_caught(name, tmp_path):
    caught = PLANTED[name]
    plant(PATCHES / f"{name}.patch", tmp_path)
    outcome, output = run(caught.tests, tmp_path)
    assert outcome == 1, f"expected failing tests, pytest ended with {outcome}:\n{output}"
    failed = set(re.findall(r"^FAILED (\S+::.*?)(?: - .*)?$", output, re.MULTILINE))
    assert failed == set(caught.tests), f"not caught by {set(caught.tests) - failed}:\n{output}"
    assert re.search(caught.says, output), f"caught, but not for {caught.says!r}:\n{output}"


def test_a_patch_that_does_not_apply_is_told(tmp_path):
    patch = tmp_path / "old.patch"
    text = (PATCHES / "06-failure-heard-after-the-decision.patch").read_text()
    patch.write_text(text.replace("-    if live is None", "-    if nobody is None"))
    with pytest.raises(AssertionError, match="does not apply"):
        plant(patch, tmp_path / "copy")


def plant(patch: Path, folder: Path) -> None:
    """Copies the project into the folder and applies the patch there."""
    folder.mkdir(exist_ok=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.patch"))
        else:
            shutil.copy(source, folder / name)
    changed = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE)
    before = {name: (folder / name).read_text() for name in changed}
    # Inside a repository `git apply` passes over files outside of it without a word.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    applied = subprocess.run(
        ["git", "apply", str(patch)], cwd=folder, env=environment, capture_output=True, text=True, timeout=30
    )
    assert applied.returncode == 0, f"{patch.name} does not apply, plant it again: {applied.stderr}"
    for name in changed:
        assert (folder / name).read_text() != before[name], f"{patch.name} changed nothing in {name}"


def run(tests: tuple[str, ...], folder: Path) -> tuple[int, str]:
    """pytest's exit code and output, in a process that sees the copy only."""
    pure = PURE if not any("test_group_store" in test or "in_any_run" in test for test in tests) else ()
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("TRIDENT_EXPLORE", None)
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=short", "-p", "no:cacheprovider", *pure, *tests]
    ended = subprocess.run(
        command, cwd=folder, env={**environment, "COLUMNS": "500"}, capture_output=True, text=True, timeout=120
    )
    return ended.returncode, ended.stdout + ended.stderr
