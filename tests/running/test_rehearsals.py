"""A standby's answer to a command stays until the command has read it, whatever becomes of the ZooKeeper session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.servers.zk_fixtures import eventually
from trident.coordinators.handing_over import (
    DIFFERENT,
    EQUAL,
    REFUSED,
    REHEARSE,
    HandoverAnswer,
    HandoverRequest,
    Handovers,
)
from trident.coordinators.leadership import current_holder
from trident.coordinators.registration import Registration
from trident.coordinators.znodes import Delete
from trident.running.standby import Rehearsals, Rehearsed, shortened

IDENTITY: dict[str, Any] = {"streams": {}, "states": {}, "groups": {}}


@pytest.fixture
def asked(zk: Any) -> HandoverRequest:
    incarnation = Registration(zk, "wc").ensure(IDENTITY)
    return HandoverRequest("r", "me", incarnation, {}, REHEARSE, 5, False, current_holder())


def test_an_answer_that_went_with_its_session_is_given_again(zk: Any, asked: HandoverRequest) -> None:
    ran = []

    def rehearse(*given: Any) -> Rehearsed:
        ran.append(given)
        return Rehearsed(DIFFERENT, ("a row",), all_compared=False)

    rehearsals, known = Rehearsals(zk, "wc", IDENTITY, rehearse, lambda text: None), Handovers(zk, "wc")
    rehearsals.handover_requested(asked)
    assert eventually(lambda: known.answered("r") is not None)
    rehearsals.handover_requested(asked)
    zk.multi([Delete(zk.path("wc", "handover.answer"))])
    rehearsals.handover_requested(asked)
    found = known.answered("r")
    assert found is not None and (found.outcome, found.lines, found.all_compared) == (DIFFERENT, ("a row",), False)
    assert len(ran) == 1


def test_without_a_rehearsal_the_code_must_fit_the_topology_too(zk: Any, asked: HandoverRequest) -> None:
    """Else it would take the lease from a leader that does well, and end."""

    def rehearse(*_: Any) -> Rehearsed:
        raise AssertionError("nothing is to be rehearsed")

    known, asked = Handovers(zk, "wc"), replace(asked, last=0)
    Rehearsals(zk, "wc", IDENTITY, rehearse, lambda text: None, lambda secs: False).handover_requested(asked)
    assert eventually(lambda: known.answered("r") == HandoverAnswer("r", EQUAL))
    counts = {"keys": ["word"], "value_schema": "count long", "aggregator": "Count"}
    Registration(zk, "wc").ensure({**IDENTITY, "states": {"counts": counts}})
    changed = {**IDENTITY, "states": {"counts": {**counts, "keys": ["line"]}}}
    Rehearsals(zk, "wc", changed, rehearse, lambda text: None).handover_requested(replace(asked, id="s"))
    assert eventually(lambda: known.answered("s") is not None)
    found = known.answered("s")
    assert found is not None and found.outcome == REFUSED and "counts" in found.lines[0]


def test_an_answer_of_any_length_is_told(zk: Any, asked: HandoverRequest) -> None:
    lines = tuple(f"{number} " + 9_000 * "語" for number in range(400))
    rehearsals = Rehearsals(zk, "wc", IDENTITY, lambda *_: Rehearsed(DIFFERENT, lines), lambda text: None)
    rehearsals.handover_requested(asked)
    known = Handovers(zk, "wc")
    assert eventually(lambda: known.answered("r") is not None)
    found = known.answered("r")
    assert found is not None and found.lines[0].startswith("0 ") and "more lines" in found.lines[-1]


def test_lines_are_shortened_only_where_they_must_be() -> None:
    assert shortened(["a", "b"]) == ("a", "b")
    (cut,) = shortened([5_000 * "a"])
    assert len(cut) == 4_001
    many = shortened(1_000 * ["\U0001f600" * 300])
    assert many[-1] == f"and {1_000 - len(many) + 1} more lines, which do not fit into an answer"
