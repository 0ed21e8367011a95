"""Links between the pages of the documentation lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from trident.cli import main

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


# `trident …` in a block, in an indented line, or between backticks; behind "#" or two blanks is a remark.
COMMAND = re.compile(r"(?:^|^ {4}|^\$ |`)trident ((?!-spark)[a-z-]+(?: [^`\n#]*)?)", re.MULTILINE)


def test_every_command_that_a_page_names_exists_with_its_options() -> None:
    found = 0
    for page in PAGES:
        for written in COMMAND.findall(page.read_text(encoding="utf-8")):
            check_command(re.sub(r"  .*", "", written).split(), f"{page.name}: trident {written}")
            found += 1
    assert found > 150


def check_command(words: list[str], where: str) -> None:
    command: click.Command = main
    while isinstance(command, click.Group):
        known = command.get_command(click.Context(command), words[0]) if words else None
        if known is None and command is not main:
            break  # the group as a whole
        assert known, f"{where}: there is no such command"
        command, words = known, words[1:]
    options = {option for one in command.params for option in one.opts} | {"--help", "-h"}
    named = {word.split("=")[0].rstrip(",.;:)…") for word in words if word.startswith("--") and word != "--"}
    assert named <= options, f"{where}: {sorted(named - options)}"
