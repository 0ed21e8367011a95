"""What ``make test`` leaves to ``make long`` is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.long_tests import LONG, is_long

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("file", LONG)
def test_each_test_that_is_left_to_make_long_is_there(file: str) -> None:
    tree = ast.parse((TESTS / file).read_text())
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert {name.partition("[")[0] for name in LONG[file]} <= there


def test_a_name_stands_for_all_parameters_and_one_with_brackets_for_these() -> None:
    assert is_long("time_travel/test_views_under_kills.py", "test_anything[x]")
    assert is_long("commands/test_new.py", "test_its_test_passes[x]")
    assert is_long("operations/test_window_parts.py", "test_exactly_once_over_crashes[tables]")
    assert not is_long("operations/test_window_parts.py", "test_exactly_once_over_crashes[pass]")
    assert not is_long("operations/test_windows.py", "test_exactly_once_over_crashes[tables]")
