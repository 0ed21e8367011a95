"""Which form a late part takes, and when those that fail are left alone: from plain data."""

from __future__ import annotations

import itertools

import pytest

from tests.messages.message_helpers import Messages
from trident import Count, DeltaAppend, DeltaMapState, TridentTopology
from trident.planning.groups import is_one_job, plan
from trident.running.late_part import SHARDS_BYTES, SMALL_BYTES, Able, Breaker, Form, Rows, choose

ALL = Able(one_job=True, tasks=True, shards=True)
FEW = Rows(idle=False, size=1_000)
LARGE = Rows(idle=False, size=SMALL_BYTES + 1)


@pytest.mark.parametrize(("is_next", "is_open"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("one_job", [False, True])
def test_before_the_early_part_only_the_next_transaction_is_one_job(one_job, is_next, is_open) -> None:
    able = Able(one_job=one_job, tasks=True, shards=False)
    assert choose(able, None, is_next, is_open) is (Form.ONE_JOB if one_job and is_next and not is_open else None)


@pytest.mark.parametrize(
    ("able", "staged", "is_open", "form"),
    [
        (ALL, Rows(idle=True, size=0), True, Form.NOTHING),
        (ALL, FEW, False, Form.PASS),
        (ALL, FEW, True, Form.TABLES),
        (ALL, LARGE, False, Form.PASS),
        (ALL, LARGE, True, Form.TABLES),
        (ALL, Rows(False, SHARDS_BYTES + 1), False, Form.TABLES),
        (Able(True, True, shards=False), LARGE, False, Form.TABLES),
        (Able(False, True, False), FEW, False, Form.PASS),
        (Able(False, False, False), FEW, False, Form.TABLES),
    ],
)
def test_the_form_of_what_is_staged(able: Able, staged: Rows, is_open: bool, form: Form) -> None:
    assert choose(able, staged, True, is_open) is form


def test_batches_that_fail_again_and_again_read_the_tables_without_a_try() -> None:
    """Each of them would else read what it then throws away; the early functions of one job would run in vain."""
    breaker, fits, tried = Breaker(), {49, 50}, []

    def form_of(txid: int) -> Form | None:
        form = choose(ALL, FEW, True, breaker.is_open(txid))
        if form is Form.TABLES:
            return form
        tried.append(txid)
        if txid in fits:
            breaker.worked()
            return form
        breaker.failed(txid)
        return Form.TABLES

    for txid in range(1, 42):
        assert form_of(txid) is form_of(txid) is Form.TABLES, "another attempt does not try again"
    assert tried == [1, 2, 4, 8, 16, 27, 38]
    # One that fits ends that: the next one that does not is the first again.
    tried.clear()
    assert [form_of(txid) for txid in range(49, 55)] == [Form.PASS] * 2 + [Form.TABLES] * 4
    assert tried == [49, 50, 51, 52, 54]


@pytest.mark.parametrize("tracking", [True, False])
def test_tracked_messages_have_no_job_of_both_parts(tracking: bool) -> None:
    """A job that gave up has told its ledger; the next one would tell the same ids again, and they would cancel out."""
    made = TridentTopology("messages")
    lines = made.new_stream("lines", Messages("line string"))
    counts = lines.group_by("line").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    counts.new_values_stream().partition_persist(DeltaAppend("news"))
    (group,) = plan(made.graph, tracking)
    assert group.late_on_arrow is not None and is_one_job(group) != tracking
