"""Links between the pages of the documentation lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")


def headings(page: Path) -> set[str]:
    """The anchors that a page's headings have, as GitHub makes them."""
    found = set()
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            text = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add(text.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, which does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in headings(target), (
                f"{page.name} links to {link}: no heading of {target.name} has that anchor"
            )


NAMED = re.compile(r"`((?:trident|states|coordinators|tests|docs|benchmarks|examples)/[\w/.]+\.(?:py|md|patch))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = {
        path for path in NAMED.findall(page.read_text(encoding="utf-8")) if "NAME" not in path and "NN" not in path
    }
    missing = sorted(path for path in named if not (ROOT / path).exists() and path != "states/maps/postgres_table.py")
    assert missing == [], f"{page.name} names files that do not exist"
