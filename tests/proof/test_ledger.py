"""The record of the long suites: its page, and what counts as proved."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.proof import ledger
from tests.proof.__main__ import _rotated
from tests.proof.suites import SUITES

SUITE = next(suite for suite in SUITES if suite.parts == 2)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "LEDGER", tmp_path / "ledger.json")
    monkeypatch.setattr(ledger, "PAGE", tmp_path / "proof.md")


def run_of(part: int) -> ledger.Run:
    content = ledger.content_of(SUITE)
    return ledger.Run(SUITE.name, part, content, "0123456789", "2026-01-02", 7, "2 cores", 3.5, 10, 0, 1, "passed")


def test_the_page_is_made_from_the_record() -> None:
    assert ledger.PAGE.read_text() == ledger.page(), "python -m tests.proof writes docs/proof.md"


@pytest.mark.usefixtures("record")
def test_a_suite_is_proved_by_a_pass_of_each_part_on_what_is_committed() -> None:
    ledger.write(run_of(1))
    assert SUITE.name in ledger.stale()
    ledger.write(run_of(2))
    assert SUITE.name not in ledger.stale()
    for other in (replace(run_of(2), content="of before"), replace(run_of(2), result="cut")):
        ledger.write(other)
        assert SUITE.name in ledger.stale()
    assert f"| {SUITE.name} | 2 of 2 | cut | 10 passed, 0 failed, 1 skipped | 7 | 3.5 |" in ledger.PAGE.read_text()


def test_landings_three_hours_apart_begin_four_parts_further_on(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [(SUITE, part) for part in range(10)]
    begins = []
    for hours in (0, 3, 6, 9, 12):
        monkeypatch.setattr(ledger, "committed_at", lambda hours=hours: hours * 3600 + 17)
        begins.append(_rotated(parts)[0][1])
    assert begins == [0, 4, 8, 2, 6] and sorted(_rotated(parts)) == parts and _rotated([]) == []


def test_each_target_of_the_makefile_that_a_suite_names_is_there() -> None:
    makefile = (ledger.ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert {suite.make[0] for suite in SUITES} <= targets
    assert all((ledger.ROOT / path).exists() for suite in SUITES for path in suite.covers)
