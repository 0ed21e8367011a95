"""Every example runs and prints what it promises: the shortest in `make test`, all in `make long`.

In this process, with the session that the tests share: starting Spark takes
longer than what they do. test_run_command runs topologies as a user does. The last MERGE is left out.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import sys
import uuid
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.servers.kafka_fixtures import KafkaBroker
from trident.cli import main
from trident.running.query import TopologyQuery

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One folder, with one warehouse, for all of them, as for somebody who tries one after the other."""
    return tmp_path_factory.mktemp("tried"), f"/examples-{uuid.uuid4().hex}"


@pytest.fixture
def run(
    spark: SparkSession,
    folder: tuple[Path, str],
    zk_server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs an example, and gives what it prints."""
    monkeypatch.chdir(folder[0])
    monkeypatch.setenv("TRIDENT_ZOOKEEPER", zk_server)
    monkeypatch.setenv("TRIDENT_ZOOKEEPER_ROOT", folder[1])

    def go(example: str) -> str:
        monkeypatch.setattr(TopologyQuery, "stop", partialmethod(TopologyQuery.stop, compact=False))
        monkeypatch.setattr(sys, "argv", [example])
        runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")
        return capsys.readouterr().out

    return go


def test_no_two_examples_share_a_topology_or_a_state() -> None:
    """So they run in one folder, in any order: a warehouse has one topology, and one state, of a name."""
    blocks = re.findall(r"```python[^\n]*\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))}
    users: dict[tuple[str, str], set[str]] = {}
    for name, source in {**sources, "README.md": "\n".join(blocks)}.items():
        for node in ast.walk(ast.parse(source)):
            made = getattr(getattr(node, "func", None), "id", "")
            kind = "topology" if made.endswith("Topology") else "state" if made.startswith(("Delta", "Memory")) else ""
            if kind and node.args and isinstance(node.args[0], ast.Constant):
                users.setdefault((kind, node.args[0].value), set()).add(name)
    assert len(users) > 25 and ("topology", "word-count") in users
    assert {what: files for what, files in users.items() if len(files) > 1} == {}


def test_the_readmes_example_is_planned_without_being_started(run: Run, folder: tuple[Path, str]) -> None:
    code = re.split(r"```python[^\n]*\n", (ROOT / "README.md").read_text(encoding="utf-8"))[1].split("```", 1)[0]
    (folder[0] / "wordcount.py").write_text(code)
    started = list(folder[0].rglob("status.json"))
    planned = CliRunner().invoke(main, ["plan", "wordcount.py"])
    assert planned.exit_code == 0 and "group" in planned.output and list(folder[0].rglob("status.json")) == started


# Example → what it prints.
PRINTED: dict[str, tuple[str, ...]] = {
    "01_word_count.py": ("|   the|    4|",),
    "03_committer_spout.py": (
        "before: 6 messages in the queue",
        "after: 0 messages in the queue",
        "|        de|     3|",
    ),
    "13_cdc.py": ("1: anna, as of 40\n3: cid, as of 60\n2 is deleted: True\n",),
    "02_two_tables.py": (
        "transaction 1: 2 orders worth 30.0, revenue 30.0",
        "transaction 3: 6 orders worth 46.0, revenue 46.0",
    ),
    "04_opaque_source.py": ("|    ann|     15|", "|    bob|      7|", "consumed: 1.txt, 2.txt", "waiting: nothing"),
    "05_own_backing_map.py": ("put twice: 30 bolts are gone", "refuses it; found: epoch"),
    "07_reach.py": (
        "while it counts, as of transaction",
        "over HTTP, as of transaction 3: 5 times",
        "a.example/news reaches 4\n",
        "b.example/song reaches 5\n",
        "c.example/unknown reaches 0\n",
    ),
    "08_windows.py": ("12:00 to 12:10  home  3", "late: ['12:02 home']", "clicks 3 to 5: home"),
    "09_split_and_merge.py": (
        "from 4 and 8 to 11, which several branches use (computed once):",
        "|  /a|  3|",
        "|       3|  404|",
        "rejected: a line of no known form",
    ),
    "11_event_time.py": (
        "ann was here from 12:01 to 12:18: 2 views\nbob was here from 12:02 to 12:12: 1 views\n",
        "ann viewed the boots: bought with b1\n",
        "bob viewed the hat: not bought\n",
        "ann did nothing until 13:10, after 3 views\n",
    ),
    "12_kafka.py": ("coat: 5 pieces\nhat: 5 pieces\nmessages in the log: 5\n", "not parsed: {not json, "),
    "14_outbox.py": (
        "orders in the table: 5\nrequests: 8, mails: 4\n  ann: order 1\n  ann: order 4\n  cid: order 3\n",
        'refused with status 422: {"id":2,"customer":"bob","amount":-5.0}\n',
    ),
    "15_kafka_to_kafka.py": (
        "in the table: coat: 5 pieces\nin the table: hat: 5 pieces\nin the table: scarf: 1 pieces\n",
        "orders in the log: 5\n",
    ),
}
IN_MAKE_TEST = ["13_cdc.py"]  # the word count is that of README.md, which test_pages.py runs
NOT_PRINTED = {"08_windows.py": "clicks 6", "11_event_time.py": "zoe did nothing"}
ONCE = {"11_event_time.py": "bob viewed", "12_kafka.py": "not parsed"}
NEEDS = {"14_outbox.py": "httpx"}


def test_every_example_has_a_test_of_what_it_prints() -> None:
    own = {"06_joins.py", "10_names.py", "16_time_travel.py", "demo.py"}  # test_reliability_docs.py, `make demo`
    assert {path.name for path in (ROOT / "examples").glob("*.py")} - {"__init__.py"} == PRINTED.keys() | own


@pytest.mark.parametrize(
    "example", [one if one in IN_MAKE_TEST else pytest.param(one, marks=pytest.mark.long) for one in PRINTED]
)
def test_an_example_prints_what_it_promises(
    example: str, run: Run, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if (library := NEEDS.get(example)) and importlib.util.find_spec(library) is None:
        pytest.skip(f"NOT TESTED: {example}. A library is missing: pip install {library}")
    if "kafka" in example:
        kafka: KafkaBroker = request.getfixturevalue("kafka")
        monkeypatch.setenv("KAFKA_BROKERS", kafka.address)
    out = run(example)
    assert [text for text in PRINTED[example] if text not in out] == [], out
    assert NOT_PRINTED.get(example, "never") not in out
    assert out.count(ONCE.get(example, out)) == 1, "what is reported twice"
    last = dict(re.findall(r"in the topic: (\w+): (\d+) pieces", out))
    assert last == ({"coat": "5", "hat": "5", "scarf": "1"} if example == "15_kafka_to_kafka.py" else {})


@pytest.mark.long
def test_06_joins(run: Run) -> None:
    out = run("06_joins.py")
    assert "|      o3|ann|   5.0|  card| p-103|" in out and "|      o4|eve|   7.5|  NULL|  NULL|" in out
    assert "open in their batch: o2, o4, o5, o9" in out
    within, ever = out.split("paid, whenever:")
    assert "o2" not in within.split("every order")[0] and "|      o2|bob|  cash|" in ever, "paid a batch later"
    assert "|      o9|eve|  card|" in ever and "o4" not in ever.split("open")[0], "paid a batch before"
    assert ever.count("|      o1|") == 1, "a pair meets once"


@pytest.mark.long
def test_16_time_travel(run: Run) -> None:
    out = run("16_time_travel.py")
    told = [line for line in out.splitlines() if line.startswith(("till", "[", "first difference", "batch group"))]
    assert told == [
        "till: delft 525, gouda 1200, leiden 320",
        "till: delft 2523, gouda 2150, leiden 545",
        "[1, 2, 4]",
        "till_mended: delft 2524, gouda 2150, leiden 545",
        "first difference: transaction 4",
        "batch group sales continues with transaction 3",
        "till: delft 2524, gouda 2150, leiden 545",
    ]
    assert "|delft|   1998|" in out, "what transaction 4 changes, by a replay"
