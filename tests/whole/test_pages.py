"""Pages that are made from code are up to date, pages with programs print what they say, and the README is a page."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

import trident
from tests.pages import made as pages
from tests.pages import reference_page
from tests.pages.page_runner import PageRun, blocks
from trident import errors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = pages.ROOT


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_that_is_made_is_up_to_date(name: str) -> None:
    there, made = pages.made(name)
    assert there == made, "write it anew: python -m tests.pages"


# --- what is made --------------------------------------------------------------------------------


def test_every_command_says_whole_sentences() -> None:
    commands = dict(pages.commands())
    assert "trident run" in commands and "trident dead-letters list" in commands
    for name, command in commands.items():
        for text in (command.short_help or "", (command.help or "").strip()):
            assert re.match(r"[A-Z]", text) and text.endswith("."), f"{name}: {text!r}"


def test_every_error_has_a_cause_and_a_remedy() -> None:
    remedies = pages.remedies((ROOT / "docs" / "errors.md").read_text(encoding="utf-8"))
    assert set(remedies) == set(errors.__all__) - {"TridentError"}
    assert [name for name, remedy in remedies.items() if len(remedy.split()) < 3] == []


def test_a_new_error_gets_an_empty_remedy_and_the_others_keep_theirs() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    less = "\n".join(line for line in page.splitlines() if not line.startswith("| `HalfRead`"))
    assert pages.error_page(less) == pages.error_page(page)
    emptied = re.sub(r"^(\| `ConfigError` .*\| )[^|]+\|$", r"\1 |", page, flags=re.MULTILINE)
    assert pages.remedies(pages.error_page(emptied))["ConfigError"] == ""


def test_every_word_of_the_glossary_has_a_meaning() -> None:
    words = pages.words()
    assert len(words) > 30 and ("txid") in dict(words)
    assert [word for word, meaning in words if not meaning] == []


def test_every_public_spout_and_state_is_on_the_page_of_parameters_with_each_of_them() -> None:
    there = {name for _, name, _, _ in reference_page.entries()}
    homes = ("trident.spouts", "trident.states")
    assert {name for name, home in trident._HOME.items() if home.startswith(homes)} <= there
    for _, name, one, _ in reference_page.entries():
        meanings = reference_page.meanings(name, one)
        assert [at for at in reference_page.signature(one) if not meanings.get(at)] == [], f"the docstring of {name}"


# --- the README ----------------------------------------------------------------------------------

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_has_at_most_900_words() -> None:
    assert len(README.split()) <= 900


def sentences(page: str) -> list[str]:
    """The sentences of a page's prose: without code, tables and headings."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^(\||#|    ).*$", "", prose, flags=re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    parts = [part for paragraph in re.split(r"\n\s*\n|^- ", prose, flags=re.MULTILINE) for part in [paragraph]]
    return [one for part in parts for one in re.split(r"(?<=[.!?:])\s+", part.strip()) if one]


def test_the_readme_has_short_sentences() -> None:
    lengths = [len(one.split()) for one in sentences(README)]
    assert len(lengths) > 30 and sum(lengths) / len(lengths) <= 18
    assert max(lengths) <= 40


def test_the_readme_has_what_a_stranger_looks_for() -> None:
    for word in ("pip install", "Kafka", "kill -9", "make demo", "make test", "docs/glossary.md", "LICENSE"):
        assert word in README, word


# Figures of the README's table, in its order: the row of docs/benchmarks.md that each is from.
FIGURES = [
    "foreachBatch + MERGE",
    "ours, 1 in flight",
    "ours, 4 in flight",
    "Structured Streaming, RocksDB, 20,000 keys: sums, merged into a table",
    "reducer, 20,000 keys",
    "reducer, 8,000,000 keys",
]


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    measured = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = [line for line in README.split("## Why not foreachBatch")[1].splitlines() if re.search(r"^\|.*\d ms", line)]
    named = re.compile(r"\b[\d,.]*\d\b (?:words|rows|keys)")
    figures = [one for row in rows for one in re.findall(r"\d[\d,.]*\d", named.sub("", row))]
    assert len(figures) == len(FIGURES), figures
    for figure, row in zip(figures, FIGURES):
        (found,) = re.findall(rf"^\| {re.escape(row)} \| ([\d,.]+) ms", measured, re.MULTILINE)
        assert float(figure.replace(",", "")) == float(found.replace(",", "")), row
    (small,) = re.findall(r"1,000 rows takes (\S+) ms", README)
    assert f"| transaction: 1,000 rows, append, kept | {small} ms" in measured


# --- programs ------------------------------------------------------------------------------------

EVERY_PAGE = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PROGRAMS = [name for name in EVERY_PAGE if any(block.runs for block in blocks(ROOT / name))]
# In `make test` run the README and the pages that take a second or two.
LONG_PAGES = {
    *("docs/tutorial.md", "docs/time-travel.md", "docs/getting-started.md", "docs/spouts.md", "docs/states.md"),
    *("docs/recipes/dedup.md", "docs/recipes/cdc.md", "docs/recipes/sessions.md", "docs/recipes/foreach-batch.md"),
}
DOCTESTS = {"docs/reliability.md", "docs/stream-api.md"}  # tests of their own run these


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG_PAGES else name for name in PROGRAMS]
)
@pytest.mark.filterwarnings("ignore::trident.NotExactlyOnceWarning")
def test_the_programs_of_a_page_print_what_it_says(
    name: str,
    spark: SparkSession,
    zk_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = list(blocks(ROOT / name))
    if any("duckdb" in block.text for block in there) and importlib.util.find_spec("duckdb") is None:
        pytest.skip("NOT TESTED: pages with DuckDB. It is missing: pip install duckdb")
    before = {path.name for path in ROOT.iterdir()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # planning puts a program's folder into it
    monkeypatch.setenv("TRIDENT_ZOOKEEPER", zk_server)
    monkeypatch.setenv("TRIDENT_ZOOKEEPER_ROOT", f"/pages-{uuid.uuid4().hex}")
    run = PageRun(ROOT / name, lambda: capsys.readouterr().out)
    run.run()

    assert run.compared or not any(block.language in ("text", "console") for block in there)
    left = {path.name for path in ROOT.iterdir()} - before
    assert not [one for one in left if one[0] not in "._"], "Spark's workers run in the folder that the tests began in"


PARSERS: dict[str, Callable[[str], object]] = {
    "toml": tomllib.loads,
    "json": lambda text: [json.loads(line) for line in text.splitlines()],
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "ini": configparser.RawConfigParser(strict=False).read_string,
}


def test_every_block_of_python_runs_or_says_why_not() -> None:
    """A page with a new block runs by itself (PROGRAMS); here is what would be left out without a word."""
    hidden = re.compile(r"^[ \t]+(?:```|~~~)[ ]*(python|console)|^(?:~~~|````+)[ ]*(python|console)", re.MULTILINE)
    languages = "python console text sh toml ini yaml sql json dockerfile properties also".split()
    for name in EVERY_PAGE:
        assert not hidden.search((ROOT / name).read_text(encoding="utf-8")), f"{name}: a block that no test finds"
        for block in blocks(ROOT / name):
            where = f"{name}, line {block.line}"
            assert block.language in languages, f"{where}: {block.language}"
            assert not (block.text.startswith(">>>") and name not in DOCTESTS), f"{where}: a doctest that no test runs"
            assert block.not_run is None or len(block.not_run.split()) > 2, f"{where}: {block.not_run}"
            if block.language in PARSERS:
                PARSERS[block.language](block.text)
