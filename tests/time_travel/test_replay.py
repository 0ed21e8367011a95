"""Kept transactions run again, over real tables: the same rows as were committed, and nothing is written."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.chaos.sources import CommittedSpout, OpaqueSpout, PartitionedSpout, RangeSpout, Source
from tests.repair.repair_helpers import znodes_below
from tests.running.test_query import WAIT_SECS
from tests.servers.zk_fixtures import connected
from tests.streams.stream_helpers import Longest, split
from tests.topology_helpers import starter
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FileSpout,
    FixedBatchSpout,
    MapGet,
    MemoryMapState,
    TridentTopology,
    Upsert,
    replay,
)
from trident.cli import main
from trident.coordinators.errors import (
    ConfigError,
    SourceError,
    TableError,
    TopologyError,
    TransactionNotKept,
    UserFunctionError,
)
from trident.planning.groups import plan
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.history.kept import KeptManifests
from trident.states.keyed.reading import read_state
from trident.streams.stream import Stream
from trident.testing import load_capture, run_batch
from trident.time_travel.captures import capture, write_capture
from trident.time_travel.replay import require_readable
from trident.time_travel.replay_inputs import incarnation_of
from trident.time_travel.rollback import roll_back

START = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)


def clicks(*rows: tuple[int, str, float]) -> list[tuple[datetime, str, float]]:
    return [(START + timedelta(minutes=minute), line, cost) for minute, line, cost in rows]


BATCHES = [
    clicks((1, "a b a", 1.5), (4, "c", 2.0)),
    clicks((9, "a longword", 0.25)),
    [],
    clicks((18, "b", 4.0), (2, "late", 1.0), (19, "c c", 8.0)),
]


def split_upper(line: str) -> Iterator[str]:
    """As the code after a change: of the words one is written otherwise."""
    yield from (word.upper() if word == "b" else word for word in line.split())


class Greatest:
    """A combiner in Python."""

    def init(self, word: str) -> str:
        return word

    def combine(self, one: str, other: str) -> str:
        return max(one, other)

    def zero(self) -> str:
        return ""


LONG_SECS = 300.0  # so many states
# `make replays` has each kind of state and of window.
ALL = os.environ.get("TRIDENT_REPLAYS") == "all"
ZK_ROOT = f"/test-{uuid.uuid4().hex}"


def topology_of(function: Any = split, name: str = "told") -> TridentTopology:
    """Late parts: queries, new values; and, with ALL, reducers, combiners in Python, windows, keys that are known."""
    topology = TridentTopology(name)
    words = lines_of(topology).each("line", function, "word").project("at, word, cost")
    words.partition_persist(DeltaAppend("words", ["word"]))
    counts = counted_words(words)
    known = words.state_query(counts, "word", MapGet(), "before").project("word, before")
    known.partition_persist(DeltaAppend("known"))
    if ALL:
        words.persistent_aggregate(DeltaMapState("longest"), "word", Longest(), "longest")
        words.partition_persist(DeltaMapState("newest"), None, Upsert("word", order_by="at"))
        timed = words.with_watermark("at", "2 minutes")
        tens = timed.tumbling_window("10 minutes", name="tens").group_by("word")
        tens.aggregate(Count(), "n").partition_persist(DeltaAppend("per_ten"))
        words.group_by("word").persistent_aggregate(DeltaMapState("texts"), "word", Greatest(), "text")
        timed.drop_duplicates("word", within="15 minutes", name="seen").partition_persist(DeltaAppend("once"))
    return topology


def lines_of(topology: TridentTopology) -> Stream:
    return topology.new_stream("lines", FixedBatchSpout("at timestamp, line string, cost double", BATCHES))


def counted_words(words: Stream) -> Any:
    counts = words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    counts.new_values_stream().partition_persist(DeltaAppend("news"))
    return counts


STATES = {
    *("words", "counts", "news", "known"),
    *(("longest", "newest", "tens", "per_ten", "texts", "seen", "once") if ALL else ()),
}
# Of these the state before and after is read by another way too.
CHECKED = STATES - {"tens", "per_ten", "seen", "once", "known"} if ALL else {"counts"}


def znodes_of(zk_server: str) -> dict[str, tuple[bytes, int]]:
    """Of the topology that has run."""
    with connected(zk_server, ZK_ROOT) as zk:
        return dict(znodes_below(zk, ZK_ROOT))


def digest_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rows_of(frame: Any) -> list[tuple]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.fixture(scope="module")
def ran(spark: SparkSession, zk_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of a topology that has run and was stopped."""
    folder = tmp_path_factory.mktemp("told")
    with starter(spark, zk_server, ZK_ROOT, folder) as start_:
        start_(topology_of()).process_all_available(LONG_SECS)
    return folder / "warehouse"


def test_every_transaction_gives_what_was_committed_and_nothing_is_written(ran, spark, zk_server):
    files, znodes = digest_of(ran), znodes_of(zk_server)
    assert any(path.endswith("/coordinator") for path in znodes), sorted(znodes)
    topology = topology_of()
    for txid in (1, 2, 3, 4) if ALL else (4,):  # that meets what others have stored
        with replay(topology, ran, txid, spark=spark) as replayed:
            assert [str(one) for one in replayed.differences()] == []
            assert set(replayed.states) == STATES and replayed.inputs["lines"].count() == len(BATCHES[txid - 1])
            for name in CHECKED if ALL or txid == 4 else ():
                state, aggregator = replayed.states[name], {"texts": Greatest()}.get(name)
                for frame, as_of in ((state.before, txid - 1), (state.after, txid)):
                    told = read_state(spark, str(ran), name, as_of, aggregator, advanced_txid=as_of)
                    assert rows_of(frame) == rows_of(told), f"{name} as of {as_of}"
            if txid == 4:
                streams_have_the_rows_of_the_transaction_late_ones_too(replayed)
    assert (digest_of(ran), znodes_of(zk_server)) == (files, znodes)


def streams_have_the_rows_of_the_transaction_late_ones_too(replayed: Any) -> None:
    assert list(replayed.streams)[:2] == ["lines", "each(split)"]
    for name, frame in replayed.streams.items():
        assert frame.columns, name
        if ALL:
            frame.collect()
    assert [row.word for row in replayed.streams["each(split)"].collect()] == ["b", "late", "c", "c"]
    known = {row.word: row.before for row in replayed.states["known"].rows.collect()}
    assert known == {"b": 1, "late": None, "c": 1}
    html = replayed._repr_html_()
    assert html.count("<table>") == len(replayed.streams) + len(STATES) and "<td style='text-align:left'>late" in html
    with pytest.raises(TopologyError, match="no rows of this stream"):
        replayed.rows_of(topology_of().new_stream("more", FixedBatchSpout("n long", [])))


@pytest.mark.long
def test_code_that_has_changed_is_told_by_the_keys_that_differ(ran: Path, spark: SparkSession) -> None:
    with replay(topology_of(split_upper), ran, 4, spark=spark) as replayed:
        found = replayed.states["counts"].differences()
        assert {str(one) for one in found} == {
            "counts {'word': 'B'}: committed no row, replayed {'word': 'B', 'n': 1}",
            "counts {'word': 'b'}: committed {'word': 'b', 'n': 1}, replayed no row",
        }
        (b,) = (row for row in replayed.states["counts"].after.collect() if row.word == "b")
        assert b.n == 1, "the one from transaction 1"
        assert {one.state for one in replayed.differences()} >= {"words", "counts", "news", *STATES & {"newest"}}


def failing(line: str) -> Iterator[str]:
    yield str(1 // 0)


def test_bad_input_says_what_is_kept_and_what_to_do(ran: Path, spark: SparkSession, tmp_path: Path) -> None:
    for txid in (0, -1, True, "4", None):
        with pytest.raises(ConfigError, match="no transaction"):
            replay(topology_of(), ran, txid, spark=spark)  # type: ignore[arg-type]
    with pytest.raises(TransactionNotKept, match="of transactions 1 to 4"):
        replay(topology_of(), ran, 5, spark=spark)
    refused: list[tuple[Any, Path, dict[str, str], str]] = [
        (topology_of(name="other"), ran, {}, "nothing of a topology 'other'; found: those of told"),
        (topology_of(), tmp_path / "elsewhere", {}, "none of any topology"),
        (topology_of(), ran, {"group": "x"}, "no batch group 'x'"),
        ("told", ran, {}, "this is no topology"),
    ]
    for topology, warehouse, more, said in refused:
        with pytest.raises(TopologyError, match=said):
            replay(topology, warehouse, 1, spark=spark, **more)
    others = TridentTopology("told")
    others.new_stream("lines", RangeSpout(Source(str(tmp_path)))).partition_persist(DeltaAppend("words"))
    with pytest.raises(TopologyError, match="other spouts") as caught:
        replay(others, ran, 1, spark=spark)
    assert (caught.value.found, caught.value.expected) == ("lines (RangeSpout)", "lines (FixedBatchSpout)")
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        replay(topology_of(failing), ran, 1, spark=spark)


def test_rows_that_are_gone_are_told_with_their_file(ran: Path, spark: SparkSession, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(ran, tmp_path / "copied"))
    of = GroupContext(Place(copied), "told", "lines", incarnation_of(Place(copied), "told"))
    table = KeptManifests(of).read(1).tables[0]
    with replay(topology_of(), copied, 1, spark=spark) as replayed:
        (copied / table.path / table.files[0].path).unlink()
        with pytest.raises(TableError, match="not what was written") as caught:
            replayed.differences()
        assert "newer transaction" in str(caught.value.action)


# --- captured --------------------------------------------------------------------------------------


def test_a_capture_is_replayed_without_warehouse_and_source(ran: Path, spark: SparkSession, tmp_path: Path) -> None:
    topology, folder = topology_of(), tmp_path / "told-4"
    write_capture(capture(topology, ran, 4, spark=spark), Place(folder))
    found = load_capture(folder)
    assert (found.topology, found.group, found.txid) == ("told", "lines", 4)
    assert found.facts["spouts"]["lines"]["metadata"] == {"batch": 3, "rows": 3} and found.inputs["lines"].num_rows == 3
    assert set(found.states) == {"counts", *STATES & {"longest", "tens", "seen"}} == set(found.facts["whole"])
    (told, *_) = [one for one in found.differences(topology_of(split_upper), spark) if one.state == "counts"]
    assert str(told) == "counts {'word': 'B'}: committed no row, replayed {'word': 'B', 'n': 1}"
    if ALL:
        assert [str(one) for one in found.differences(topology_of(), spark)] == []
    with found.replay(topology_of(), spark) as replayed:
        counts = {row.word: row.n for row in replayed.states["counts"].before.collect()}
        assert counts == {"a": 3, "b": 1, "c": 1, "longword": 1}
        with pytest.raises(TableError, match="after the transaction"):
            _ = replayed.states["counts"].after
    news = next(node for node in topology.graph.nodes if node.operation.startswith("new_values"))
    rows = run_batch(Stream(topology.graph, news), found.inputs, spark=spark, states=found.states)
    assert sorted(rows) == [("b", 2), ("c", 3), ("late", 1)]
    with pytest.raises(TopologyError, match="no batch group 'lines'"):
        other = TridentTopology("told")
        other.new_stream("others", FixedBatchSpout("n long", [])).partition_persist(DeltaAppend("others_too"))
        found.differences(other, spark)


@pytest.mark.long
def test_of_a_large_state_a_capture_has_the_keys_that_were_asked(ran: Path, spark: SparkSession) -> None:
    def counting() -> TridentTopology:
        """A part of the topology: the transaction is the same, and fewer states are read."""
        topology = TridentTopology("told")
        counted_words(lines_of(topology).each("line", split, "word"))
        return topology

    found = capture(counting(), ran, 4, spark=spark, state_rows=3)
    assert found.facts["whole"] == [] and sorted(found.states["counts"].column("word").to_pylist()) == ["b", "c"]
    told = found.differences(counting(), spark)
    states = {one.state for one in told}
    assert states >= STATES & {"words", "longest", "newest", "tens"}, "states that this code has not"
    assert not {"counts", "news"} & states
    if ALL:
        with pytest.raises(TopologyError, match="all of state 'longest', which is too large"):
            capture(topology_of(), ran, 4, spark=spark, state_rows=0)


def test_half_a_capture_and_one_that_has_changed_are_none(ran: Path, spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "told-1"
    found = capture(topology_of(), ran, 1, spark=spark)
    write_capture(found, Place(folder))
    with pytest.raises(TopologyError, match="is not empty"):
        write_capture(found, Place(folder))
    (folder / "inputs" / "lines.parquet").rename(tmp_path / "lines.parquet")
    with pytest.raises(TableError, match="no whole capture"):
        load_capture(folder)
    shutil.copy(folder / "states" / "counts.parquet", folder / "inputs" / "lines.parquet")
    with pytest.raises(TableError, match="cannot be read"):
        load_capture(folder)
    (folder / "capture.json").write_text('{"schema": 2}')
    with pytest.raises(TableError, match="cannot be read: another schema"):
        load_capture(folder)
    with pytest.raises(TableError, match="no whole capture"):
        load_capture(tmp_path / "nothing")


WRITES = """
import sys
from trident.states.core.place import Place
from trident.testing import load_capture
from trident.time_travel.captures import write_capture

write_capture(load_capture(sys.argv[1]), Place(sys.argv[2]))
"""


@pytest.mark.long
def test_a_capture_that_was_killed_anywhere_is_written_anew(ran: Path, spark: SparkSession, tmp_path: Path) -> None:
    """At each of its files, in a process of its own; one in `make test`."""
    whole = tmp_path / "whole"
    write_capture(capture(topology_of(), ran, 4, spark=spark), Place(whole))
    files = {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()}
    assert "capture.begun" not in files and len(files) > 5
    for nth in range(1, len(files) + 2) if ALL else (3,):
        folder = tmp_path / f"killed-{nth}"
        writes = [sys.executable, "-c", WRITES, str(whole), str(folder)]
        environment = {**os.environ, "TRIDENT_FAULTS": f"capture.write:do_then_die:{nth}"}
        assert subprocess.run(writes, env=environment, timeout=300).returncode == -signal.SIGKILL
        if nth <= len(files):  # its facts come last
            with pytest.raises(TableError, match="no whole capture"):
                load_capture(folder)
            assert subprocess.run(writes, timeout=300).returncode == 0
        found, wanted = load_capture(folder), load_capture(whole)
        for name in ("facts", "inputs", "states", "expected"):
            assert getattr(found, name) == getattr(wanted, name)


CODE = """
from trident import Count, DeltaMapState, FixedBatchSpout, TridentTopology

topology = TridentTopology("told")
lines = topology.new_stream("lines", FixedBatchSpout("line string", []))
lines.group_by("line").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
"""


def test_the_command_says_what_it_cannot_capture(ran: Path, tmp_path: Path) -> None:
    code, base = tmp_path / "captured_code.py", ["--warehouse", str(ran), "--to", str(tmp_path / "out")]
    code.write_text(CODE)

    def said(name: str, txid: int, *more: str) -> str:
        result = CliRunner().invoke(main, ["capture", name, "--txid", str(txid), "--code", str(code), *base, *more])
        assert result.exit_code == 2, result.output
        return result.output

    assert "of transactions 1 to 4" in said("told", 99)
    assert "has no topology 'other'; found: topology (told)" in said("other", 1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("")
    assert "is not empty" in said("told", 1)
    code.write_text("1 // 0")
    assert "ZeroDivisionError" in said("told", 1)


# --- sources ---------------------------------------------------------------------------------------


def source_of(folder: Path, *rows: str) -> Source:
    folder.mkdir()
    source = Source(str(folder))
    source.write("rows-p0", list(rows))
    source.write("rows-p1", [f"{row}!" for row in rows])
    source.write("partitions", ["p0", "p1"])
    source.write("ready_to", 2)
    return source


def counted(topology: TridentTopology, tx_id: str, spout: Any, appended: bool) -> None:
    stream = topology.new_stream(tx_id, spout)
    stream.group_by("word").persistent_aggregate(DeltaMapState(f"counts_{tx_id}"), Count(), "n")
    if appended:
        stream.partition_persist(DeltaAppend(f"raw_{tx_id}"))


@pytest.mark.long
def test_each_kind_of_source_gives_its_rows_or_says_why_not(start, spark: SparkSession, tmp_path: Path) -> None:
    source = source_of(tmp_path / "source", "a", "b", "a", "c", "d", "a")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("x\ny\n")

    def topology() -> TridentTopology:
        made = TridentTopology("sources")
        counted(made, "parted", PartitionedSpout(source), False)
        counted(made, "opaque", OpaqueSpout(source), True)
        counted(made, "lost", CommittedSpout(source), False)
        files = made.new_stream("files", FileSpout(tmp_path / "in", on_changed="skip"))
        files.partition_persist(DeltaAppend("lines_of_files"))
        return made

    query = start.run(topology())
    query.stop(WAIT_SECS, compact=False)
    ran = tmp_path / "warehouse"
    for group, words in (("parted", ["a", "b", "a", "a!", "b!", "a!"]), ("opaque", None)):
        with replay(topology(), ran, 1, group=group, spark=spark) as replayed:
            assert replayed.differences() == []
            found = [row.word for row in replayed.inputs[group].collect()]
            assert sorted(found) == sorted(words or found) and len(found) == 6
    with pytest.raises(SourceError, match="a CommittedSpout is opaque: it does not give a batch again") as caught:
        replay(topology(), ran, 1, group="lost", spark=spark)
    assert "append the rows of stream 'lost'" in str(caught.value.action)
    with replay(topology(), ran, 1, group="files", spark=spark) as replayed:
        assert replayed.differences() == [] and replayed.inputs["files"].count() == 2
    (tmp_path / "in" / "1.txt").write_text("x\nyy\n")
    files = digest_of(ran)
    with pytest.raises(SourceError, match="changed after it was discovered"):  # "skip" would write to the ledger
        replay(topology(), ran, 1, group="files", spark=spark)
    assert digest_of(ran) == files
    with pytest.raises(TopologyError, match="several batch groups"):
        replay(topology(), ran, 1, spark=spark)


@pytest.mark.skipif(not ALL, reason="with TRIDENT_REPLAYS=all (make replays)")
def test_behind_a_rollback_what_stays_is_replayed_and_what_was_taken_back_is_not(start, spark, tmp_path) -> None:
    def topology(third: str) -> TridentTopology:
        made = TridentTopology("back")
        spout = FixedBatchSpout("word string", [[("a",), ("b",)], [("a",)], [(third,)]])
        stream = made.new_stream("w", spout)
        counts = stream.group_by("word").persistent_aggregate(DeltaMapState("counts_back"), Count(), "n")
        counts.new_values_stream().partition_persist(DeltaAppend("news_back"))
        return made

    def run(third: str) -> None:
        query = start.run(topology(third))
        query.stop(WAIT_SECS, compact=False)

    def news(third: str, txid: int) -> list[tuple]:
        with replay(topology(third), ran, txid, spark=spark) as replayed:
            assert [str(one) for one in replayed.differences()] == []
            return rows_of(replayed.states["news_back"].rows)

    ran = tmp_path / "warehouse"
    run("bad")
    roll_back("back", 2, apply=True, config=start.config, spark=spark)
    assert [news("bad", txid) for txid in (1, 2)] == [[("a", 1), ("b", 1)], [("a", 2)]]
    with pytest.raises(TransactionNotKept):
        replay(topology("bad"), ran, 3, spark=spark)
    run("a")
    assert [news("a", txid) for txid in (1, 2, 3)] == [[("a", 1), ("b", 1)], [("a", 2)], [("a", 3)]]


def test_a_state_of_which_earlier_transactions_are_not_kept_is_named(spark: SparkSession, tmp_path: Path) -> None:
    topology = TridentTopology("memory")
    words = topology.new_stream("w", FixedBatchSpout("word string", [[("a",)]]))
    counts = words.group_by("word").persistent_aggregate(MemoryMapState("counts_of_w"), Count(), "n")
    counts.new_values_stream().partition_persist(DeltaAppend("news_of_w"))
    with pytest.raises(TopologyError, match="reads state 'counts_of_w' cannot be replayed") as caught:
        require_readable(plan(topology.graph)[0])
    assert "run_batch" in str(caught.value.action)
