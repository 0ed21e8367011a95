"""Forks of a real topology: the same batches, the same rows, an original that is left as it was, kills anywhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.chaos.sources import OpaqueSpout, PartitionedSpout, Source
from tests.repair.repair_helpers import znodes_below
from tests.servers.zk_fixtures import connected
from tests.spouts.test_data_source_spout import Journal, Letters
from tests.streams.stream_helpers import split
from tests.time_travel.test_replay import digest_of
from tests.topology_helpers import starter
from trident import Count, DataSourceSpout, DeltaAppend, DeltaMapState, FileSpout, TridentTopology, Upsert, view
from trident.cli import main
from trident.config import TridentConfig
from trident.coordinators import faults
from trident.coordinators.errors import (
    ConfigError,
    CoordinationError,
    SourceError,
    TableError,
    TopologyError,
    TransactionNotKept,
    TridentError,
)
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.leadership import Leadership
from trident.coordinators.records import Decision, GroupRecord, Marker
from trident.coordinators.repairing import RepairStore
from trident.coordinators.zookeeper import ZooKeeper
from trident.running.status import read_status
from trident.spouts.host import load_given
from trident.states.core.control import ControlRecord
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.core.tables import TXID_COLUMN
from trident.states.delta.kernel_files import LiveFile
from trident.states.delta.manifest import Manifest, ManifestStore
from trident.states.history.cloning import live_table
from trident.time_travel import fork_plan
from trident.time_travel.diff import Part, diff
from trident.time_travel.fork_plan import ForkedState, ForkRecord, Past, load_fork
from trident.time_travel.forking import Forked, _Fork, _unmerged, copy_streams, fork, pasts_of

TXIDS = int(os.environ.get("TRIDENT_FORK", "6"))
AT, NEW = 2, 3
# It takes some seconds; a machine on which others work takes much longer.
WAIT_SECS = 400.0
LETTERS = "abcdefgh"


def split_wrongly(line: str) -> Iterator[str]:
    """The bug: of a line with a g, which only some have, the words g count twice."""
    yield from (word for each in line.split() for word in ([each, each] if each == "g" else [each]))


def line_of(number: int) -> str:
    """A line of some letters; g is in line 9, and then in each 20th."""
    words = [LETTERS[(number * step) % 6] for step in (1, 2, 5)] + (["g"] if number % 20 == 9 else [])
    return " ".join(words)


def words(name: str, folder: Path, function: Any = split, rows: int = 1_000_000) -> TridentTopology:
    topology = TridentTopology(name)
    spout = FileSpout(folder, min_rows=min(rows, 1_000), max_rows=rows, poll_interval_secs=0.05)
    found = topology.new_stream("lines", spout).flat_map(function, "word string")
    found.partition_persist(DeltaAppend("said"))
    counts = DeltaMapState("counts", merge_every_txids=4, merge_interval_secs=600.0)
    counted = found.group_by("word").persistent_aggregate(counts, Count(), "count")
    counted.new_values_stream().partition_persist(DeltaMapState("seen"), "word, count", Upsert("word"))
    return topology


@dataclass
class Original:
    """A topology that has run and was stopped, with batches that no other run would cut alike."""

    spark: SparkSession
    folder: Path
    zookeeper: str
    root: str

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def input(self) -> Path:
        return self.folder / "in"

    @property
    def config(self) -> TridentConfig:
        return TridentConfig(
            warehouse=str(self.warehouse),
            zookeeper=self.zookeeper,
            zookeeper_root=self.root,
            zookeeper_session_timeout_secs=4,
        )

    def feed(self, first: int, count: int) -> None:
        self.input.mkdir(exist_ok=True)
        for number in range(first, first + count):
            draft = self.folder / "draft"
            draft.write_text(line_of(number) + "\n")
            os.utime(draft, (1_700_000_000 + number, 1_700_000_000 + number))
            draft.rename(self.input / f"{number:05d}.txt")

    def run(self, warehouse: Path, topology: TridentTopology, **settings: Any) -> dict[str, dict[str, Any]]:
        """Runs all that is there; returns what the keyed states hold then, and how often each word was said."""
        settings = {"max_spout_pending": 1, **settings}
        with starter(self.spark, self.zookeeper, self.root, self.folder, **settings) as start:
            query = start(topology, warehouse=str(warehouse))
            query.process_all_available(WAIT_SECS + 5.0 * TXIDS)
            rows = {name: query.snapshot(name).collect() for name in ("counts", "seen", "said")}
            held = {name: {row["word"]: row["count"] for row in rows[name]} for name in ("counts", "seen")}
            held["said"] = dict(Counter(row["word"] for row in rows["said"]))
            query.stop(compact=False)
        return held

    def digests(self) -> tuple[dict[str, str], dict[str, tuple[bytes, int]]]:
        with connected(self.zookeeper, self.root) as zk:
            return digest_of(self.warehouse), dict(znodes_below(zk, zk.path("words")))

    def fork(self, name: str, at: int = AT, **options: Any) -> Forked:
        return fork("words", at, name, str(self.folder / name), self.config, **options)


@pytest.fixture(scope="module")
def original(spark: SparkSession, zk_server: str, tmp_path_factory: pytest.TempPathFactory) -> Original:
    """Of TXIDS transactions, of one to three files each; some files more are there, which it has not read."""
    made = Original(spark, tmp_path_factory.mktemp("original"), zk_server, "/test-fork")
    number = 0
    with starter(spark, zk_server, made.root, made.folder, max_spout_pending=1) as start:
        made.input.mkdir()
        query = start(words("words", made.input))
        for txid in range(1, TXIDS + 1):
            count = 1 + txid % 3
            made.feed(number, count)
            number += count
            query.process_all_available(WAIT_SECS)
        query.stop(compact=False)
    made.feed(number, NEW)
    return made


def counted(lines: range) -> dict[str, int]:
    return dict(Counter(word for number in lines for word in line_of(number).split()))


def lines_up_to(txid: int) -> range:
    return range(sum(1 + each % 3 for each in range(1, txid + 1)))


# --- the same batches -------------------------------------------------------------------------------------


def test_a_fork_with_the_same_code_does_the_same_and_leaves_its_original_as_it_was(original: Original) -> None:
    before = original.digests()
    made = original.fork("again")
    assert original.digests() == before
    assert made.cost.linked > 0 and made.cost.copied == 0
    target = Path(str(made.warehouse))
    early = CliRunner().invoke(main, ["diff", "words", "again", "--warehouse", str(target)])
    assert early.exit_code == 6 and "nothing was compared" in early.output and "no difference" not in early.output
    assert f"again has not processed any of the {TXIDS - AT} transactions from {AT + 1} on" in early.output
    held = original.run(target, words("again", original.input))
    every = range(len(lines_up_to(TXIDS)) + NEW)
    assert held["counts"] == held["said"] == held["seen"] == counted(every), "behind its batches it reads on"
    found = diff("words", "again", str(target), original.config)
    assert (found.first, found.last, found.behind, found.parting) == (AT + 1, TXIDS, 0, None)
    assert original.digests() == before, "nor by the fork's running"
    again = original.fork("again")
    assert again.was_whole and "nothing was done" in again.lines()[0]
    own, lost = without_a_manifest(original)
    replace(made.record, warehouse=str(own.warehouse)).put_into(made.warehouse)
    with pytest.raises(TransactionNotKept, match=lost):
        diff("words", "again", str(target), own.config)


def without_a_manifest(original: Original) -> tuple[Original, str]:
    """A copy of the original that has lost one, and what is said of it."""
    copy = original.folder.with_name("hole")
    if not copy.exists():
        shutil.copytree(original.folder, copy)
        (folder,) = (copy / "warehouse" / "_trident" / "words" / "lines" / "manifests").iterdir()
        decided_of(folder, AT + 2).unlink()
    return replace(original, folder=copy), f"the manifest of transaction {AT + 2} of words/lines is lost"


@pytest.mark.long
def test_a_bug_in_new_code_is_named_with_its_transaction_and_its_key(original: Original) -> None:
    made = original.fork("mended", until_kept=True)
    target = str(made.warehouse)
    held = original.run(Path(target), words("mended", original.input, split_wrongly))
    right = counted(lines_up_to(TXIDS))
    assert held["said"] == held["counts"] == {**right, "g": 2 * right["g"]}, "it stops behind the kept batches"
    asked = ["diff", "words", "mended", "--warehouse", target]
    said = CliRunner().invoke(main, asked)
    first = next(txid for txid in range(AT + 1, TXIDS + 1) if "g" in counted(lines_of(txid)))
    assert said.exit_code == 1, said.output
    assert f"first difference: transaction {first}\n" in said.output
    assert "table counts: 1 keys differ" in said.output and "key {'word': 'g'}" in said.output
    assert "words: {'count': 1}, and holds {'count': 1} then" in said.output
    assert "mended: {'count': 2}, and holds {'count': 2} then" in said.output
    before = CliRunner().invoke(main, [*asked, "--txid", f"{AT + 1}..{first - 1}"])
    assert (before.exit_code, before.output.splitlines()[-1]) == (0, "no difference")
    as_json = json.loads(CliRunner().invoke(main, [*asked, "--json"]).output)["parting"]
    assert (as_json["txid"], as_json["table"], as_json["parts"][0]["key"]) == (first, "counts", {"word": "g"})
    assert as_json["tables"] == ["counts", "said", "seen"]


def lines_of(txid: int) -> range:
    return range(len(lines_up_to(txid - 1)), len(lines_up_to(txid)))


@pytest.mark.long
def test_a_fork_is_made_while_its_original_runs(original: Original, spark: SparkSession) -> None:
    shutil.copytree(original.folder, copy := original.folder.with_name("running"))
    own = replace(original, folder=copy, root="/test-fork-running")
    for name in ("warehouse", "in"):
        shutil.rmtree(copy / name)
    own.input.mkdir()
    with starter(spark, own.zookeeper, own.root, copy, max_spout_pending=1) as start:
        query = start(words("words", own.input))
        for txid in range(1, 5):
            own.feed(txid, 1)
            query.process_all_available(WAIT_SECS)
        made = own.fork("beside", at=2)
        own.feed(5, 1)
        query.process_all_available(WAIT_SECS)
        query.stop(compact=False)
    until = made.record.groups["lines"].until
    assert until == 4
    held = own.run(Path(str(made.warehouse)), words("beside", own.input))
    assert held["counts"] == counted(range(1, 6))
    assert diff("words", "beside", str(made.warehouse), own.config).parting is None


def test_a_fork_between_two_merges_has_no_view_until_its_own_merge_and_that_is_no_failure(original, spark, caplog):
    """O6: its tables have no version as of the MERGE before, which the original has."""
    made = original.fork("between", at=AT + 3)  # a MERGE is due each four transactions
    target = Path(str(made.warehouse))
    with starter(spark, original.zookeeper, original.root, original.folder, max_spout_pending=1) as start:
        query = start(words("between", original.input), warehouse=str(target))
        query.process_all_available(WAIT_SECS)
        last = query.last_progress
        query.stop()  # with a MERGE
    assert not [record.getMessage() for record in caplog.records if "in the background failed" in record.getMessage()]
    assert last is not None and view(target, "between").txid == last["batch_id"]
    assert read_status(Place(target), "between").error is None


def decided_of(folder: Path, txid: int) -> Path:
    """The manifest that is kept of a transaction; on a slow machine it is not always that of the first attempt."""
    (found,) = folder.glob(f"{txid}-*.json")
    return found


def test_the_pins_are_those_of_the_attempts_that_were_decided(original: Original) -> None:
    """An attempt that had its manifest and was not decided leaves it, with the batch that it would have had."""
    shutil.copytree(original.folder, copy := original.folder.with_name("attempts"))
    own = replace(original, folder=copy)
    (folder,) = (copy / "warehouse" / "_trident" / "words" / "lines" / "manifests").iterdir()
    was_decided = {txid: decided_of(folder, txid).read_bytes() for txid in range(AT, TXIDS + 1)}
    for txid in (AT, AT + 2):
        decided = Manifest.decode(was_decided[txid])
        spouts = {"lines": {**decided.spouts["lines"], "metadata": {"other": "batch"}}}
        later = decided.attempt.attempt_id + 3
        other = replace(decided, attempt=decided.attempt._replace(attempt_id=later), spouts=spouts)
        (folder / f"{txid}-{later}.json").write_bytes(other.encode())
    made = own.fork("decided")
    given = load_given(GroupContext(made.warehouse, "decided", "lines", made.record.incarnation))
    assert given is not None and given.batches.keys() == set(range(AT + 1, TXIDS + 1))
    for txid, streams in given.batches.items():
        decided = Manifest.decode(was_decided[txid])
        assert streams == {"lines": decided.spouts["lines"]["metadata"]}


# --- killed anywhere --------------------------------------------------------------------------------------

# point:entries: of the first and of the last entry.
POINTS = [
    *("fork.record:2", "given.write:1", "clone.file:6", "clone.entry:5", "fork.manifest:1", "descriptor.write:3"),
    *("fork.stream:1", "fork.zookeeper:1", "zk.record:1"),
]


@pytest.mark.parametrize("outcome", ["fail_before", "do_then_fail"])
def test_a_fork_that_failed_anywhere_goes_on_when_it_is_made_again(original: Original, outcome: str) -> None:
    before = original.digests()
    whole = tables_of(original.fork(f"whole_{outcome}"))
    for point, _, entries in (each.partition(":") for each in POINTS):
        for nth in {1, int(entries)}:
            name = f"f_{outcome}_{point.replace('.', '_')}_{nth}"
            faults.arm(f"{point}:{outcome}:{nth}")
            try:
                with suppress(TridentError):  # a lost answer of ZooKeeper is asked for again
                    original.fork(name)
                assert not faults.unfired(), point
            finally:
                faults.disarm()
            made = original.fork(name)
            assert tables_of(made) == whole
            assert original.fork(name).was_whole
    assert original.digests() == before


def tables_of(made: Forked) -> dict[str, list[str]]:
    """The tables of a fork: the names of their files, and their first entries without what is its own."""
    root, found = Path(str(made.warehouse)), {}
    for entry in sorted(root.glob("*/_delta_log/*.json")):
        text = entry.read_text()
        for own in (made.record.incarnation, made.record.name, *map(made.record.table_id, (entry.parts[-3],))):
            text = text.replace(own, "OWN")
        actions = [json.loads(line) for line in text.splitlines()]
        kept = [action for action in actions if "commitInfo" not in action and "txn" not in action]
        for action in kept:
            if "domainMetadata" in action:
                control = json.loads(action["domainMetadata"].pop("configuration"))
                action["control"] = {key: value for key, value in control.items() if key != "digest"}
        files = [action["add"]["path"] for action in kept if "add" in action]
        assert all((root / entry.parts[-3] / path).stat().st_nlink > 1 for path in files)
        found[entry.parts[-3]] = [json.dumps(action, sort_keys=True) for action in kept]
    return found


KILLS = POINTS if "TRIDENT_FORK" in os.environ else ["clone.entry:3"]


@pytest.mark.parametrize("point", KILLS)
def test_a_fork_that_was_killed_goes_on_when_it_is_made_again(original: Original, point: str) -> None:
    """With SIGKILL; in the long form behind each piece of I/O, and the fork runs like one that was never killed."""
    point, _, nth = point.partition(":")
    name = f"killed_{point.replace('.', '_')}"
    target = original.folder / name
    asked = [sys.executable, "-m", "trident.cli", "fork", "words", "--at", str(AT), "--as", name]
    settings = {"zookeeper_root": original.root, "zookeeper_session_timeout_secs": 4}
    asked += ["--warehouse", str(target), "--source", str(original.warehouse), "--zookeeper", original.zookeeper]
    asked += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    env = {**os.environ, "TRIDENT_FAULTS": f"{point}:do_then_die:{nth}"}
    assert subprocess.run(asked, env=env, capture_output=True).returncode == -signal.SIGKILL
    done = subprocess.run(asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = load_fork(Place(target), name)
    assert record is not None and record.whole
    assert tables_of(Forked(record, Place(target))) == tables_of(original.fork(f"beside_{name}"))
    if "TRIDENT_FORK" not in os.environ:
        return
    held = original.run(target, words(name, original.input))
    assert held["counts"] == held["said"] == counted(range(len(lines_up_to(TXIDS)) + NEW))
    assert diff("words", name, str(target), original.config).parting is None


# --- refused ----------------------------------------------------------------------------------------------


def test_what_cannot_be_forked_is_refused_with_what_is_kept(original: Original, tmp_path: Path) -> None:
    before = original.digests()
    with pytest.raises(TransactionNotKept, match=rf"{TXIDS} are kept, of transactions 1 to {TXIDS}"):
        original.fork("newer", at=TXIDS + 1)
    for never in (0, -1):
        with pytest.raises(
            TransactionNotKept, match=rf"transaction {never} of .*{TXIDS} are kept, of transactions 1 to"
        ):
            original.fork("never", at=never)
    with pytest.raises(ConfigError, match="a warehouse of its own"):
        fork("words", AT, "inside", str(original.warehouse / "inside"), original.config)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(ConfigError, match="has other content; found: file"):
        fork("words", AT, "other", str(tmp_path / "other"), original.config)
    with pytest.raises(CoordinationError, match="the name words is taken"):
        fork("words", AT, "words", str(tmp_path / "same"), original.config)
    made = original.fork("first")
    with pytest.raises(ConfigError, match=rf"taken in .*as of transaction {AT} of lines"):
        fork("words", AT + 1, "first", str(made.warehouse), original.config)
    with pytest.raises(ConfigError, match="has other content; found: the fork first"):
        fork("words", AT, "second", str(made.warehouse), original.config)
    with pytest.raises(ConfigError, match="first is not a fork of others; found: a fork of words"):
        diff("others", "first", str(made.warehouse), original.config)
    for span in ((TXIDS + 1, TXIDS + 1), (0, 0)):
        with pytest.raises(TransactionNotKept, match=rf"transaction {span[0]} of .* are kept, of transactions"):
            diff("words", "first", str(made.warehouse), original.config, span)
    with pytest.raises(TopologyError, match="--at lines=N"):
        fork("words", {"other": 1}, "groups", str(tmp_path / "groups"), original.config)
    assert not [path for path in tmp_path.iterdir() if path.name != "other"]
    assert original.digests() == before


def test_a_lost_manifest_is_no_transaction_that_changed_nothing(original: Original) -> None:
    own, lost = without_a_manifest(original)
    with pytest.raises(TransactionNotKept, match=lost):
        own.fork("holed")
    assert not (own.folder / "holed").exists()
    assert own.fork("behind", at=AT + 3).record.groups["lines"].until == TXIDS


def test_a_transaction_under_the_floor_of_a_log_is_refused_with_the_first_that_is_kept(original: Original) -> None:
    shutil.copytree(original.folder, copy := original.folder.with_name("floor"))
    entry = max((copy / "warehouse" / "counts__log" / "_delta_log").glob("*.json"))
    text = entry.read_text()
    assert text.count('\\"floor\\": 0') == 1
    entry.write_text(text.replace('\\"floor\\": 0', '\\"floor\\": 4'))
    own = replace(original, folder=copy)
    said = "no longer kept for state counts.*a log that begins after 4"
    with pytest.raises(TransactionNotKept, match=said) as raised:
        own.fork("under")
    assert raised.value.oldest == 4
    assert not (copy / "under").exists()
    assert own.fork("above", at=TXIDS).record.groups["lines"].states["counts"].merged >= 4


def test_a_fork_on_another_file_system_is_copied_when_that_is_allowed(original, monkeypatch):
    import errno

    def link(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link", source)

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", link)
        with pytest.raises(ConfigError, match="--copy"):
            original.fork("apart")
        made = original.fork("apart", may_copy=True)
    assert made.cost.linked == 0 and made.cost.copied > 0
    copied, linked = (data_of(one) for one in (made, original.fork("linked")))
    assert copied and made.cost.copied_bytes >= max(map(len, copied.values()))
    assert copied == linked


def data_of(made: Forked) -> dict[Path, bytes]:
    root = Path(str(made.warehouse))
    return {path.relative_to(root): path.read_bytes() for path in root.glob("*/data/**/*.parquet")}


def past_of(original: Original) -> fork_plan.Past:
    (folder,) = (original.warehouse / "_trident" / "words" / "lines" / "manifests").iterdir()
    manifest = Manifest.decode(decided_of(folder, AT).read_bytes())
    decision = fork_plan.Decision(AT, 0, "m", 1, "d")
    return fork_plan.Past("lines", decision, manifest, {})


@pytest.mark.parametrize(
    ("spout", "said"),
    [
        ({"spout": "QueueSpout", "kind": "opaque"}, "lines: QueueSpout acknowledges"),
        ({"spout": "Mine", "kind": "transactional", "commit_data": 1}, "lines: Mine acknowledges"),
        ({"spout": "Batches", "kind": "non-transactional"}, "lines: Batches is non-transactional"),
        ({"spout": "StructuredStreamSpout", "kind": "transactional"}, "Spark's checkpoint"),
    ],
)
def test_sources_that_cannot_be_read_again_are_refused_by_name(original, spout, said):
    past = past_of(original)
    spouts = {"lines": {"metadata": None, "commit_data": None, **spout}}
    with pytest.raises(SourceError, match=said):
        fork_plan.check_sources(replace(past, manifest=replace(past.manifest, spouts=spouts)))
    opaque = {"lines": {"spout": "K", "kind": "opaque", "metadata": {}, "commit_data": None, "opaque": {"0": 1}}}
    fork_plan.check_sources(replace(past, manifest=replace(past.manifest, spouts=opaque)))
    fork_plan.check_sources(past)


def test_a_transaction_that_is_only_half_published_is_not_forked(original: Original) -> None:
    past = past_of(original)
    made = [part.state for part in past.manifest.tables]
    has = ControlRecord("words", "lines", "life", AT, past.decision.attempt_id, past.decision.sha256, 1, 1)
    fork_plan.check_published(past, dict.fromkeys(made, has))
    with pytest.raises(TableError, match="is not in all of its tables; found: table of said without it"):
        fork_plan.check_published(past, {**dict.fromkeys(made, has), "said": replace(has, txid=AT - 1, digest="x")})


def test_states_outside_of_delta_are_refused_by_name(original: Original) -> None:
    past = past_of(original)
    fork_plan.check_states(past)
    first = past.manifest.tables[0]
    tables = (replace(first, state="outbox", kind="outside"), replace(first, state="mine", kind="map"))
    with pytest.raises(TopologyError, match=r"mine \(of kind map\), outbox \(of kind outside\)"):
        fork_plan.check_states(replace(past, manifest=replace(past.manifest, tables=tables)))


# --- sources in partitions, several groups, transactions without any effect -----------------------------------


def keeps(word: str) -> bool:
    return not word.startswith("none")


def keeps_fewer(word: str) -> bool:
    return keeps(word) and word != "end"


def upper(word: str) -> Iterator[str]:
    yield word.upper()


def two_groups(name: str, first: Source, second: Source, kept: Any = keeps) -> TridentTopology:
    topology = TridentTopology(name)
    opaque = topology.new_stream("opaque", OpaqueSpout(first))
    opaque.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "count")
    parts = topology.new_stream("parts", PartitionedSpout(second)).filter("word", kept)
    parts = parts.each("word", upper, "upper string")
    parts.partition_persist(DeltaAppend("words", partition_columns="word"))
    return topology


@pytest.mark.long
def test_streams_in_partitions_and_transactions_without_effect(spark, zk_server, tmp_path):
    """An opaque stream goes on behind N by itself; of an empty transaction the fork, too, makes nothing of its rows."""
    own = Original(spark, tmp_path, zk_server, "/test-fork-groups")
    first, second = Source(str(tmp_path / "first")), Source(str(tmp_path / "second"))
    for source in (first, second):
        Path(source.path).mkdir()
        source.write("ready_to", 5)
    first.write("rows-p0", [f"w{number % 4}" for number in range(21)])
    # Transaction 4 of the second changes nothing; all of its last one is left out by other code.
    second.write("rows-p0", [*"abcabcabc", "none1", "none2", "none3", "end", "end", "end", *"xyz"])
    with starter(spark, zk_server, own.root, tmp_path) as start:
        start.run(two_groups("pairs", first, second)).stop(compact=False)
        with pytest.raises(TopologyError, match="--at opaque=N --at parts=N"):
            fork("pairs", 2, "fork", str(tmp_path / "fork"), own.config)
        for name, kept in (("fork", keeps), ("fewer", keeps_fewer)):
            made = fork("pairs", {"opaque": 2, "parts": 3}, name, str(tmp_path / name), own.config, until_kept=True)
            assert made.empty == {"opaque": [], "parts": [4]} and made.opaque == ("opaque",)
            assert any("transactions that changed nothing, 4, are empty" in line for line in made.lines())
            topology = two_groups(name, first, second, kept)
            again = start(topology, warehouse=str(made.warehouse))
            again.stop(compact=False)  # amid its batches, or before them: the next start goes on
            query = start.run(two_groups(name, first, second, kept), warehouse=str(made.warehouse))
            counts = {row["word"]: row["count"] for row in query.snapshot("counts").collect()}
            assert counts == dict(Counter(f"w{number % 4}" for number in range(15)))
            query.stop(compact=False)
    words = [diff("pairs", name, str(tmp_path / name), own.config, None, "parts") for name in ("fork", "fewer")]
    assert [(one.first, one.last, one.behind) for one in words] == [(4, 5, 0), (4, 5, 0)]
    assert words[0].parting is None and words[1].parting is not None
    assert (words[1].parting.table, words[1].parting.count) == ("words", 3)
    assert words[1].parting.parts[0] == Part({}, {"upper": "END", "word": "end"}, None)
    assert diff("pairs", "fork", str(tmp_path / "fork"), own.config, None, "opaque").parting is None


# --- a source that acknowledges ---------------------------------------------------------------------------


def letters(name: str, folder: Path) -> TridentTopology:
    topology = TridentTopology(name)
    source = DataSourceSpout(Letters, {"folder": str(folder)}, poll_interval_secs=0.05)
    topology.new_stream("lines", source).partition_persist(DeltaAppend("letters"))
    return topology


@pytest.mark.long
def test_a_fork_does_not_tell_a_source_what_only_it_has_read(original: Original, tmp_path: Path) -> None:
    own = replace(original, folder=tmp_path, root="/test-fork-commit")
    (folder := tmp_path / "source").mkdir()
    with starter(own.spark, own.zookeeper, own.root, tmp_path, max_spout_pending=1) as start:
        (folder / "available").write_text("2")
        query = start(letters("words", folder))
        query.process_all_available(WAIT_SECS)
        (folder / "available").write_text("4")
        query.process_all_available(WAIT_SECS)
        query.stop(compact=False)
    (folder / "available").write_text("50")  # production has not read these rows yet
    warehouse = str(own.fork("copy", at=1).warehouse)
    journal = (folder / "journal").read_text()
    with starter(own.spark, own.zookeeper, own.root, tmp_path, max_spout_pending=1) as start:
        with pytest.raises(TridentError, match="lines: DataSourceSpout acknowledges"):
            start.run(letters("copy", folder), warehouse=warehouse)
        assert Journal(str(folder)).of("commit")[-1] == [4], "nothing was acknowledged"
        assert len(journal.splitlines()) == len(Journal(str(folder)).path.read_text().splitlines()), "nor was it read"
        assert own.fork("copy", at=1, accept_acknowledging=True).was_whole
        start.run(letters("copy", folder), warehouse=warehouse).stop(compact=False)
    assert Journal(str(folder)).of("commit")[-1] == [50]


# --- the parts of a fork alone ---------------------------------------------------------------------------
# The parts of a fork alone: files that its streams keep, its record, the files of its tables, its znodes.


def record_of(warehouse: Path, incarnation: str, source: str = "9f3c-r1") -> ForkRecord:
    return ForkRecord(str(warehouse), "words", source, "copy", incarnation, False, {})


def test_what_streams_keep_is_copied_with_its_folders_and_under_the_forks_own_id(tmp_path: Path) -> None:
    """Behind a rollback, too: the files of a stream have the id of the first start in their names."""
    (folder := tmp_path / "from" / "_trident" / "words" / "streams" / "lines" / "mine" / "deep").mkdir(parents=True)
    (folder / "x").write_text("1")
    (folder / ".x.17.draft").write_text("half")
    (folder.parents[1] / "files-9f3c.jsonl").write_text("whole\nhal")
    (tmp_path / "to").mkdir()
    for _ in range(2):  # the second goes on with what the first has left
        given = Place(str(tmp_path / "from")), Place(str(tmp_path / "to")), record_of(tmp_path, "ab12")
        assert copy_streams(*given, ["lines", "none"]) == len("whole\n1")
    own = tmp_path / "to" / "_trident" / "copy" / "streams" / "lines"
    found = {str(path.relative_to(own)): path.read_text() for path in own.rglob("*") if path.is_file()}
    assert found == {"files-ab12.jsonl": "whole\n", "mine/deep/x": "1"}


def test_of_two_calls_at_once_one_begins_the_fork(tmp_path: Path) -> None:
    warehouse = Place(str(tmp_path))
    begun = [record_of(tmp_path, incarnation).begin_in(warehouse) for incarnation in ("ab12", "cd34")]
    found = load_fork(warehouse, "copy")
    assert found is not None and found.incarnation == "ab12" and begun == [found, found]


def test_of_an_append_table_every_file_is_taken_whatever_a_column_of_the_users_has() -> None:
    file = LiveFile("a", 1, {}, {"maxValues": {TXID_COLUMN: -5}}, 1, 0)
    assert _unmerged(ForkedState(3, None, -1))(file)
    assert not _unmerged(ForkedState(3, None, 0))(file)


@pytest.mark.parametrize("removed", ["city=%C3%A9/a%20b", "city=é/a%20b"])
def test_a_removed_file_does_not_come_again_whichever_letters_of_its_path_are_encoded(tmp_path, removed):
    """Spark leaves é as it is, and this framework does not."""
    (log := tmp_path / "_delta_log").mkdir()
    metadata = {"id": "t", "schemaString": "{}", "partitionColumns": ["city"]}
    add = {"path": "city=é/a%20b", "size": 1, "partitionValues": {"city": "é"}, "modificationTime": 0}
    made = [{"protocol": {"minWriterVersion": 7}}, {"metaData": metadata}, {"add": add}]
    for version, actions in enumerate((made, [{"remove": {"path": removed}}])):
        (log / f"{version:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))
    assert list(live_table(Place(str(tmp_path)), 0).adds) == ["city=é/a b"]
    assert not live_table(Place(str(tmp_path)), 1).adds


def test_a_name_that_another_topology_took_meanwhile_stays_its(zk: ZooKeeper, tmp_path: Path) -> None:
    """While the tables of the fork were copied, which may take hours, one of its name was started and stopped."""

    def made(incarnation: str) -> tuple[_Fork, list[Past]]:
        spouts = {"s": {"spout": "A", "metadata": {"n": 5}}}
        manifest = Manifest("words", "g", "9f3c", TransactionAttempt(5, 0), None, (), spouts)
        decision = Decision(5, 0, "m", 1, "d" * 64)
        place = Place(str(tmp_path))
        fork = _Fork(place, place, record_of(tmp_path, incarnation), False, False)
        fork._decisions, fork._marks = {"g": decision}, {"g": {}}
        return fork, [Past("g", decision, manifest, {})]

    identity = {"streams": {"s": "A"}, "states": {}, "groups": {"g": ["s"]}}
    lease = Leadership(zk, "copy", ["g"]).acquire()
    assert lease is not None
    store = RepairStore(zk, "copy", "g", ["s"], lease.fences["g"])
    store.load()
    other = GroupRecord("other", 9, last=Marker(8, 0, "d"), last_published=Marker(8, 0, "d"))
    store.rebuild(other, None, {"s": {8: {"n": 8}}}, {}, 8, ("other", identity))
    lease.release()
    fork, pasts = made("ab12")
    with pytest.raises(CoordinationError, match="the name copy is taken.*incarnation other"):
        fork.register(zk, identity, pasts)
    record = RepairStore(zk, "copy", "g", ["s"]).load()[0]
    assert record is not None and (record.incarnation, record.current_txid) == ("other", 9)
    again, pasts = made("other")  # its own, which an earlier try has written
    again.register(zk, identity, pasts)


def test_a_batch_group_without_a_transaction_since_a_rollback_is_not_left_out(tmp_path: Path) -> None:
    """The fork would begin that group at its first transaction, with empty tables."""
    spouts = {"s": {"spout": "A", "kind": "transactional", "metadata": {"n": 1}}}
    place = Place(str(tmp_path))
    for group, incarnation in (("a", "9f3c-r1"), ("b", "9f3c")):
        for txid in (1, 2):  # the newest may not be decided
            attempt = TransactionAttempt(txid, 0)
            parent = TransactionAttempt(1, 0) if txid == 2 else None
            ManifestStore(place, "words", group, incarnation).write(
                Manifest("words", group, incarnation, attempt, parent, (), spouts)
            )
    with pytest.raises(TransactionNotKept, match="batch group b of words has no kept transaction since the last"):
        pasts_of(place, "words", "9f3c-r1", {"a": 1})
    (past,) = pasts_of(place, "words", "9f3c", {"b": 1})
    assert past.at == 1
