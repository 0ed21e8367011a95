"""Example 10 and docs/reliability.md: what they show is so."""

from __future__ import annotations

import doctest
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from trident.workers.anchors import Ledger

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"


@pytest.fixture
def own_zookeeper(
    zk_server: str, zk_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIDENT_ZOOKEEPER", zk_server)
    monkeypatch.setenv("TRIDENT_ZOOKEEPER_ROOT", zk_root)
    monkeypatch.setenv("TRIDENT_MERGE_AT_STOP_SECS", "0")  # the page does not look at the plain tables


@pytest.mark.long
def test_10_names(own_zookeeper: None, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "10_names.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "the spout heard: fail(other), ack(msg1), fail(other), other is given up" in out
    assert "刘备 was written 3 times, 曹操 1 time" in out
    assert len(re.findall(r"^\|[^n|]+\|    1\|$", out, re.M)) == 6
    assert 'dead letter: "other", 2 tries, each(check): ValueError: this name cannot be read' in out
    assert "the spout heard: ack(msg1), ack(other), fail(other)" in out


@pytest.mark.long
def test_the_page_is_true(own_zookeeper: None) -> None:
    failed, ran = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
    assert ran > 40


# --- the numbers of the drawings ---------------------------------------------------------------

TEXT = PAGE.read_text(encoding="utf-8")
IDS = {name: int(number, 16) for name, number in re.findall(r"\b(T\d) = ([0-9A-F]{2})\b", TEXT)}


def steps() -> Iterator[tuple[str, list[str], int, int]]:
    """Of the table of 6.2: init or ack, the tuples, what is told, and the acker's number after it."""
    row = r"^\| \d \| [^|]+ \| (init|ack) (T[^|]+) \| ([0-9A-F]{2}) \| ([0-9A-F]{2}) \|$"
    for kind, tuples, told, after in re.findall(row, TEXT, re.M):
        yield kind, tuples.split(" ⊕ "), int(told, 16), int(after, 16)


def test_the_acker_says_what_the_table_of_6_2_says() -> None:
    acker, count = Ledger(), 0
    for count, (_, tuples, told, after) in enumerate(steps(), 1):
        value = 0
        for name in tuples:
            value ^= IDS[name]
        assert value == told, f"step {count}"
        acker.add([1], [told])
        assert acker.incomplete()[1].tolist() == ([after] if after else []), f"step {count}"
    assert count == 4


def test_the_sums_in_the_drawings_are_right() -> None:
    sums = re.findall(r"\b((?:[0-9A-F]{2} ⊕ )+[0-9A-F]{2}) = ([0-9A-F]{2})\b", TEXT)
    assert len(sums) == 2
    for terms, total in sums:
        found = 0
        for term in terms.split(" ⊕ "):
            found ^= int(term, 16)
        assert found == int(total, 16), terms


def test_the_columns_on_the_page_are_those_of_the_tables() -> None:
    from trident.states.publishing.dead_letters import dead_letter_binding, message_binding

    ends, letters = (TEXT.split(f"`<topology>__<{one}>__", 1)[1].split("\n## ", 1)[0] for one in ("stream", "group"))
    ends = ends.split("`<topology>__<group>", 1)[0]
    for text, binding in ((ends, message_binding("t", "s")), (letters, dead_letter_binding("t", "g"))):
        cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
        named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
        assert sorted(named) == sorted(binding.schema.names)
