"""The words that CONTRIBUTING.md forbids ("Words") are in no comment, docstring, error or page.

The rule behind them: a sentence names its actor. Texts are looked at as they are
written, code included: no name needs these words either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = re.compile(r"\b(nobody|somebody|whoever|of before)\b", re.IGNORECASE)
# Of the second names in the table of words, those that mean nothing else here.
OTHER_NAMES = re.compile(r"\b(transaction id|vote|poison|journal|sink type)\b", re.IGNORECASE)
# With a capital it begins a sentence; a question may.
BEGINS = re.compile(r"\b(?:What|Whether)\b(?![^.?!|]*\?)")
# Headings of pages name their subject ("What a batch is"); the rule itself names the words.
ALLOWED = {"CONTRIBUTING.md": set("What Whether nobody somebody whoever vote poison journal".split())}
ALLOWED["CONTRIBUTING.md"] |= {"of before", "transaction id", "sink type"}


def texts() -> Iterator[tuple[str, str]]:
    """Each file of the product, of its pages and examples, by its path."""
    for top in ("coordinators", "states", "trident", "examples", "docs"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".py", ".pyi", ".md") and path.resolve() == path:
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md"):
        yield name, (ROOT / name).read_text(encoding="utf-8")


def forbidden(text: str, page: bool) -> Iterator[tuple[int, str]]:
    """The forbidden words of a text, each with its line."""
    for found in (one for rule in (FORBIDDEN, OTHER_NAMES, BEGINS) for one in rule.finditer(text)):
        start = text.rfind("\n", 0, found.start()) + 1
        if not (page and re.match(r"#+ ", text[start:])):
            yield text.count("\n", 0, start) + 1, found.group()


def test_no_text_has_a_forbidden_word() -> None:
    files = dict(texts())
    assert len(files) > 300, "the files are found"
    found = [
        f"{name}:{line}: {word}"
        for name, text in files.items()
        for line, word in forbidden(text, name.endswith(".md"))
        if word not in ALLOWED.get(name, ())
    ]
    assert not found, "name the actor (CONTRIBUTING.md, Words):\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text, page, words",
    [
        ("# Nobody waits.", False, ["Nobody"]),
        ("# What is kept is small.\n", False, ["What"]),
        ('"""Whether it is."""', False, ["Whether"]),
        ("# What is kept?\n", False, []),
        ("## What is kept\n", True, []),
        ("It is what is kept.", False, []),
        ("the layout of before: one", False, ["of before"]),
        ("its transaction id", False, ["transaction id"]),
    ],
)
def test_the_look_finds_them(text: str, page: bool, words: list[str]) -> None:
    assert [word for _, word in forbidden(text, page)] == words
