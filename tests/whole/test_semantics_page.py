"""docs/semantics.md: every section that the source names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"docs/semantics\.md\s+((?:\d+(?:\.\d+)?(?:, | and )?)+)")


def sections() -> set[str]:
    text = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")
    found, chapter = set(), ""
    for line in text.splitlines():
        if heading := re.match(r"## (\d+) ", line):
            chapter = heading[1]
            found.add(chapter)
        elif (item := re.match(r"(?:- \*\*\d+\.)?(\d+)(?:\.| )", line)) and chapter in ("9", "7"):
            found.add(f"{chapter}.{item[1]}")
        found |= {f"{chapter}.{number}" for number in re.findall(r"(?<=[ :])(\d+) [A-Z]", line) if chapter == "7"}
        found |= set(re.findall(r"\*\*(\d+\.\d+) ", line))
    return found


def test_every_section_that_a_docstring_names_is_there():
    there, seen = sections(), 0
    for package in ("coordinators", "states", "trident", "tests", "examples", "benchmarks"):
        for path in (ROOT / package).rglob("*.py"):
            text = re.sub(r"\s+#?\s*", " ", path.read_text(encoding="utf-8"))
            for named in NAMED.findall(text):
                for number in re.findall(r"\d+(?:\.\d+)?", named):
                    assert number in there, f"{path.relative_to(ROOT)} names docs/semantics.md {number}"
                    seen += 1
    assert seen > 80


def test_nothing_names_a_document_that_is_not_in_the_repository():
    for package in ("coordinators", "states", "trident", "examples", "docs"):
        for path in [*(ROOT / package).rglob("*.py"), *(ROOT / package).rglob("*.md")]:
            old = re.search(r"\b(SEMANTICS|DESIGN)(\.md)? \d", path.read_text(encoding="utf-8"))
            assert old is None, f"{path.relative_to(ROOT)} names {old[0]!r}"
