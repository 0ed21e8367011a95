"""Tables of cases of which `make test` runs a few, and `make long` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sample(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """The cases as parametrize takes them: all that are not kept are long. A tuple has a value for each argument."""
    table = list(cases)
    assert set(kept) <= set(table), set(kept) - set(table)
    return [case if case in kept else _long(case) for case in table]


def in_two(table: Iterable[Any], *kept: Any) -> list[Any]:
    """For tests that run several cases at once: those that are kept, and as a long test all others."""
    cases = list(table)
    assert set(kept) <= set(cases), set(kept) - set(cases)
    others = [case for case in cases if case not in kept]
    return [pytest.param(list(kept), id="few"), pytest.param(others, id="others", marks=pytest.mark.long)]


def _long(case: Any) -> Any:
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.long)
