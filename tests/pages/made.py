"""The pages of docs/ that are made from code, or from other pages: ``python -m tests.pages`` writes them.

A test compares each with what is made (``tests/whole/test_pages.py``). The remedies in docs/errors.md are written by
hand, in the page itself: they are kept, and a new error gets an empty one, which the test refuses.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from tests.pages.reference_page import reference_page
from trident.cli import main
from trident.commands.exit_codes import exit_code
from trident.coordinators import errors
from trident.operations.guarantees import table
from trident.watching.metric_table import ALERTS, SECTIONS, monitoring_file

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- made by python -m tests.pages: begin -->", "<!-- made by python -m tests.pages: end -->"


# --- docs/cli.md -----------------------------------------------------------------------------


def commands(group: click.Group = main, path: str = "trident") -> Iterator[tuple[str, click.Command]]:
    """Each command with its full name, a group before its own commands."""
    for name, command in sorted(group.commands.items()):
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def command_page(_: str) -> str:
    """docs/cli.md: the commands, as ``--help`` has them."""
    everywhere = _options_of_all()
    lines = [
        "# Commands",
        "",
        "Made from the command line by `python -m tests.pages`; a test compares them.",
        "`trident COMMAND --help` says the same, line by line. NAME is the name of a topology,",
        "FILE a Python file that defines one, TXID the number of a transaction",
        "([glossary](glossary.md)).",
        "",
        "| command | |",
        "|---|---|",
    ]
    for name, command in commands():
        anchor = name.replace(" ", "-")
        lines.append(f"| [`{name}`](#{anchor}) | {command.get_short_help_str(200)} |")
    lines += ["", "Options of every command:", "", *_option_table(everywhere)]
    lines += ["", "Exit codes: [operations](operations.md#a-service). Settings: [configuration](configuration.md)."]
    for name, command in commands():
        lines += ["", f"## {name}", "", *_about(name, command)]
        options = [one for one in _options(command) if one.name not in {each.name for each in everywhere}]
        if options:
            lines += ["", *_option_table(options)]
    return "\n".join(lines) + "\n"


def _about(name: str, command: click.Command) -> list[str]:
    usage = command.get_usage(click.Context(command, info_name=name, max_content_width=200))
    text = inspect.cleandoc(command.help or "")
    return [f"    {' '.join(usage.removeprefix('Usage: ').split())}", "", *text.splitlines()]


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def _options_of_all() -> list[click.Option]:
    """The options that every command has."""
    plain = [command for _, command in commands() if not isinstance(command, click.Group)]
    names = set.intersection(*({one.name for one in _options(command)} for command in plain))
    return [one for one in _options(plain[0]) if one.name in names]


def _option_table(options: list[click.Option]) -> list[str]:
    lines = ["| option | |", "|---|---|"]
    for one in options:  # word for word as --help has them
        written, said = (text.replace("|", "\\|") for text in one.get_help_record(click.Context(main)) or ("", ""))
        lines.append(f"| `{written}` | {said} |")
    return lines


# --- docs/glossary.md ------------------------------------------------------------------------


def words() -> list[tuple[str, str]]:
    """The table of words in CONTRIBUTING.md: each word and its meaning."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## Words\n", 1)[1]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(row[0].strip(), row[1].strip()) for row in rows[1:]]


def anchor(heading: str) -> str:
    """The anchor that a heading has, on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def glossary(_: str) -> str:
    """docs/glossary.md: the words, in the order of the alphabet."""
    lines = [
        "# Glossary",
        "",
        "One name for each thing. Made from the table in [CONTRIBUTING.md](../CONTRIBUTING.md#words) by",
        "`python -m tests.pages`; a test compares them.",
    ]
    for word, meaning in sorted(words(), key=lambda row: row[0].lower().removeprefix("to ").strip("`")):
        lines += ["", f"## {word}", "", f"{meaning}."]
    return "\n".join(lines) + "\n"


# --- docs/errors.md --------------------------------------------------------------------------


def error_tree(root: type = errors.TridentError, depth: int = 0) -> Iterator[tuple[int, type]]:
    """The errors that users meet, each below its first parent, with how deep it is."""
    yield depth, root
    for child in sorted(root.__subclasses__(), key=lambda one: one.__name__):
        if child.__module__ == errors.__name__ and child.__bases__[0] is root:
            yield from error_tree(child, depth + 1)


def remedies(page: str) -> dict[str, str]:
    """The remedies that docs/errors.md has, by the error's name."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if line.startswith("| `")]
    return {row[0].strip().strip("`"): row[3].strip() for row in rows}


def error_page(page: str) -> str:
    """docs/errors.md: each error with its cause and its exit code, by families, and the remedies of the page."""
    kept = remedies(page)
    lines = [
        "# Errors",
        "",
        "Every error says what was found, what was expected and what to do next. A program finds the same in its",
        "attributes `found`, `expected` and `action`. All are subclasses of",
        "`trident.errors.TridentError`. A command that fails with one has the exit code in the table;",
        "[operations](operations.md#a-service) says what a service then does.",
        "",
        "Made from the tree in `coordinators/errors.py` by `python -m tests.pages`, which keeps the last column.",
    ]
    for depth, error in error_tree():
        if depth == 0:
            continue
        if depth == 1:
            lines += ["", f"## {error.__name__}", "", "| error | cause | exit code | remedy |", "|---|---|---|---|"]
        cause = " ".join((inspect.getdoc(error) or "").split("\n\n")[0].split()).replace("``", "`")
        name = error.__name__
        lines.append(f"| `{name}` | {cause} | {_code(error)} | {kept.get(name, '')} |")
    return "\n".join(lines) + "\n"


def _code(error: type) -> int:
    return exit_code(error.__new__(error))


# --- docs/guarantees.md ----------------------------------------------------------------------


# In the table: a call, or the name of a class.
CODE = re.compile(r"\b\w+\([^)]*\)|\b[A-Z]\w+(?:State|Append|Factory)\b")


def guarantees(page: str) -> str:
    """docs/guarantees.md with the table of guarantees as the state kinds have it."""
    header, *rows = table()
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join([CODE.sub(_as_code, state), *cells])} |" for state, *cells in rows]
    return _between(page, "\n".join(lines))


def _as_code(found: re.Match[str]) -> str:
    return f"`{found[0]}`"


def _between(page: str, made: str) -> str:
    before, rest = page.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.split(END, 1)[1]}"


# --- docs/metrics.md -------------------------------------------------------------------------


def metrics(page: str) -> str:
    """docs/metrics.md with all metrics as the table in the code has them, and the alerts of the file."""
    lines: list[str] = []
    for section, found in SECTIONS.items():
        lines += ["", f"### {section}", "", "| metric | kind | labels | |", "|---|---|---|---|"]
        for one in found:
            labels = ", ".join(f"`{label}`" for label in one.labels)
            lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.about} |")
    lines += ["", "### Alerts", "", "| alert | severity | when it fires |", "|---|---|---|"]
    for rule in alert_rules():
        expr = " ".join(rule["expr"].split()).replace("|", "\\|")
        lasts = f", for {rule['for']}" if "for" in rule else ""
        lines.append(f"| {rule['alert']} | {rule['labels']['severity']} | `{expr}`{lasts} |")
    return _between(page, "\n".join(lines[1:]))


def alert_rules() -> list[dict[str, Any]]:
    """The rules of the file of alerts."""
    (group,) = yaml.safe_load(monitoring_file(ALERTS))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


# ---------------------------------------------------------------------------------------------

PAGES: dict[str, Callable[[str], str]] = {
    "docs/cli.md": command_page,
    "docs/errors.md": error_page,
    "docs/glossary.md": glossary,
    "docs/guarantees.md": guarantees,
    "docs/metrics.md": metrics,
    "docs/reference.md": reference_page,
}


def made(name: str) -> tuple[str, str]:
    """A page as it is ("" where it is not), and as it would be made."""
    path = ROOT / name
    there = path.read_text(encoding="utf-8") if path.exists() else ""
    return there, PAGES[name](there)


def write(_: Any = None) -> None:
    for name in PAGES:
        (ROOT / name).write_text(made(name)[1], encoding="utf-8")
