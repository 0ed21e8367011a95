"""The words that CONTRIBUTING.md forbids ("Words") are in no comment, docstring, error or page.

The rule behind them: a sentence names its actor. Texts are looked at as they are
written, code included: no name needs these words either.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = re.compile(r"\b(nobody|somebody|whoever|of before)\b", re.IGNORECASE)
# Of the second names in the table of words, those that mean nothing else here.
OTHER_NAMES = re.compile(r"\b(transaction id|vote|poison|journal|sink type)\b", re.IGNORECASE)
# In the pages for users: words bent to another meaning, each with what a reader of the field expects.
BENT = {
    "behind": "after; lags",
    "told": "notified, called, reported",
    "asked": "requested, queried, called",
    "beside": "next to, with, in the background",
    "mend(?:s|ed)?": "fix, repair",
    "lately": "recently",
    "(?:go|goes|going|gone|went) on": "continue, resume",
    "(?:bring|brings|brought) on": "catch up",
    "hand(?:s|ed)? out": "deliver",
    "look(?:s|ed)? at": "check, inspect, read",
    "comes? to the same": "give the same",
    "is said": "the actor says it",
}
# Tables of figures, pages made from docstrings, lists of what tests do; and pages with texts made from the code.
NOT_FOR_USERS = re.compile("benchmarks|decisions/|faults|modules|proof|reference")
CODE = r"^```.*?^```$|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)"
MEANT = r"\bbehind\s+(?:a|the)\s+(?:firewall|proxy|load\s+balancer)"  # a place in a network
# Values in tables, which stay as they were written.
STORED = {"asked for"}
NO_PROSE = re.compile(f"{CODE}|{MEANT}", re.MULTILINE | re.DOTALL | re.IGNORECASE)
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


def bent(page: str) -> Iterator[tuple[int, str]]:
    """The words of a page's prose that have another meaning than elsewhere, each with its line."""
    prose = NO_PROSE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), page)
    for found in re.finditer(rf"\b(?:{'|'.join(BENT)})\b".replace(" ", r"\s+"), prose, re.IGNORECASE):
        yield prose.count("\n", 0, found.start()) + 1, " ".join(found.group().split())


def test_no_page_for_users_bends_a_word() -> None:
    pages = {name: text for name, text in texts() if name.endswith(".md") and name != "CONTRIBUTING.md"}
    pages = {name: text for name, text in pages.items() if not NOT_FOR_USERS.search(name)}
    assert len(pages) > 45 and "README.md" in pages
    found = [f"{name}:{line}: {word}" for name, text in pages.items() for line, word in bent(text)]
    assert not found, f"say it in words of the field ({BENT}):\n" + "\n".join(found)


def messages(code: str) -> Iterator[tuple[int, str]]:
    """Each string of a module that may be a sentence for users, its docstrings left out, with its line."""
    tree = ast.parse(code)
    statements = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in statements:
            if " " in one.value.strip() or one.value.startswith(" "):
                yield one.lineno, one.value


def test_no_error_bends_a_word() -> None:
    found = [
        f"{name}:{line}: {word}"
        for name, text in texts()
        if name.endswith(".py")
        for line, message in messages(text)
        for _, word in bent(message)
        if message not in STORED
    ]
    assert not found, f"say it in words of the field ({BENT}):\n" + "\n".join(found)


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


def test_the_look_finds_messages_and_no_docstring() -> None:
    code = 'def f():\n    """It goes on."""\n    raise E(f"{a} is told", "told")\n'
    assert list(messages(code)) == [(3, " is told")]


@pytest.mark.parametrize(
    "page, words",
    [
        ("It runs behind the decision.", ["behind"]),
        ("one\nIt goes\non.", ["goes on"]),
        ("The spout is told,\nand goes on.", ["told", "goes on"]),
        ("```text\nbehind it\n```\n`behind` [x](behind.md)", []),
        ("Behind a firewall fix the ports.", []),
    ],
)
def test_the_look_finds_bent_words(page: str, words: list[str]) -> None:
    assert [word for _, word in bent(page)] == words
