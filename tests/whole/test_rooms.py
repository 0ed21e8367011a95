"""No files import each other in a circle, and each file says what it holds."""

from __future__ import annotations

import pytest

from tests.pages.rooms import FACADE, MAP, Rooms, late_imports, module_map, product_files, strongly_connected


@pytest.fixture(scope="module")
def rooms() -> Rooms:
    return Rooms()


def test_only_the_facade_imports_the_facade(rooms):
    assert [str(arrow) for arrow in rooms.arrows if arrow.imported == FACADE] == []


def test_no_files_import_each_other_in_a_circle(rooms):
    assert rooms.circles() == []


def test_a_circle_is_found():
    assert strongly_connected({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"], "e": []}) == [["a", "b", "c"]]


def test_every_module_says_in_one_line_what_it_holds(rooms):
    lines = {module: rooms.first_line(module) for module in rooms.modules}
    assert {module: line for module, line in lines.items() if not line.endswith(".") or len(line) > 120} == {}


def test_every_import_within_a_function_has_its_reason_beside():
    assert [f"{item.file}:{item.line} {item.text}" for item in late_imports(product_files()) if not item.reason] == []


def test_the_map_of_modules_is_up_to_date(rooms):
    assert MAP.read_text(encoding="utf-8") == module_map(rooms), "write it anew: python -m tests.pages.rooms --map"
