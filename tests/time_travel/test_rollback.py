"""A rollback of a whole topology: it fails at every step and is run again, and all tables are as they were.

Real Spark, Delta and ZooKeeper. What stands behind a rollback is compared with a copy of the warehouse that was taken
at that transaction, file by file; then the topology runs on, with MERGEs, and must hold what a plain fold of the source
gives. ``TRIDENT_ROLLBACK=all`` has a second keyed state, more steps, and kills a process of its own at each of them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.repair.repair_helpers import World, split
from tests.servers.zk_fixtures import connected
from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, Reducer, TridentTopology, cli, read
from trident.commands import exit_codes
from trident.commands.history import history
from trident.coordinators import faults
from trident.coordinators.errors import CoordinationError, TopologyError, TridentError
from trident.coordinators.group_store import GroupStore
from trident.coordinators.identities import rollbacks_of
from trident.coordinators.leadership import Lease
from trident.coordinators.zookeeper import ZooKeeper
from trident.running.zookeeper import leading
from trident.states.core.control import ControlRecord
from trident.states.core.descriptor import load_descriptor
from trident.states.core.place import Place
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.history import control_at
from trident.states.delta.kernel import KernelEngine
from trident.states.keyed.compactor import Compactor
from trident.time_travel.rollback import RolledBack, roll_back

ALL = os.environ.get("TRIDENT_ROLLBACK") == "all"
LINES = ["a b a", "c a", "b b", "d bb", "a dd", "e aaa", "ff e", "a", "gg a"]
TABLES = ("words", "counts", "counts__log", *(("longest", "longest__log") if ALL else ()))
TO = 4


class Longest(Reducer):
    """The longest word, the greatest of these."""

    def init(self) -> str:
        return ""

    def reduce(self, longest: str, word: str) -> str:
        return max(longest, word, key=lambda one: (len(one), one))


def made(batches: int, beside: Any = None) -> TridentTopology:
    """Words of the first so many lines: kept in a table, counted, and, with ALL, the longest by their first letters."""
    top = TridentTopology("top")
    lines = FixedBatchSpout("line string", [[(line,)] for line in LINES[:batches]])
    words = top.new_stream("lines", lines).each("line", split, "word")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts", merge_interval_secs=3600), Count(), "count")
    if ALL:
        words.each("word", lambda word: word[0], "letter string").group_by("letter").persistent_aggregate(
            DeltaMapState("longest", merge_interval_secs=3600), "word", Longest(), "longest string"
        )
    words.partition_persist(DeltaAppend("words"), "word")
    if beside is not None:
        words.group_by("word").persistent_aggregate(beside, Count(), "count")
    return top


Held = tuple[dict[str, int], dict[str, str], Counter[str]]


def fold(batches: int) -> Held:
    """The rows of all states after so many lines, by no code but this."""
    words = Counter(word for line in LINES[:batches] for word in line.split())
    longest: dict[str, str] = {}
    for word in words if ALL else ():
        longest[word[0]] = max(longest.get(word[0], ""), word, key=lambda one: (len(one), one))
    return dict(words), longest, words


def held(world: World, txid: int | None = None) -> Held:
    """As any reader sees the states, without the topology."""
    warehouse = str(world.warehouse)
    counts, words = (read(world.spark, warehouse, name, txid) for name in ("counts", "words"))
    longest = read(world.spark, warehouse, "longest", txid).collect() if ALL else []
    return (
        {row.word: row["count"] for row in counts.collect()},
        {row.letter: row.longest for row in longest},
        Counter(row.word for row in words.collect()),
    )


def files(world: World) -> dict[str, set[str]]:
    """The live files of every table."""
    return {name: set(DeltaLog(world.warehouse / name).at().files) for name in TABLES}


def attempts(world: World) -> dict[int, list[int]]:
    """txid → the attempts that were published to the append table, in the order of its versions."""
    path, found = str(world.warehouse / "words"), dict[int, list[int]]()
    for version in DeltaLog(path).versions():
        control: Any = DeltaLog(path).commit(version).control.get("trident")
        if control and control["attempt_id"] >= 0:
            of_txid = found.setdefault(control["txid"], [])
            if control["attempt_id"] not in of_txid[-1:]:
                of_txid.append(control["attempt_id"])
    return found


@pytest.fixture(scope="module")
def base(spark: SparkSession, zk_server: str, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Seven transactions, merged up to the second and the last; ``then``: a copy that was taken at the fourth."""
    world = World(spark, tmp_path_factory.mktemp("base") / "warehouse", zk_server, f"/base-{uuid.uuid4().hex}")
    world.run(2, compact=True, made=made(2))
    world.run(TO, made=made(TO))
    world.then = world.copy(world.warehouse.parent / "then", f"{world.root}-then")  # type: ignore[attr-defined]
    world.run(7, compact=True, made=made(7))
    assert held(world) == fold(7)
    return world


@pytest.fixture
def world(base: World, tmp_path: Path, zk_root: str) -> Iterator[World]:
    """A world of this test's own, with the seven transactions."""
    own = base.copy(tmp_path / "warehouse", zk_root)
    yield own
    own.close()


def back(world: World, txid: int = TO, **options: Any) -> RolledBack:
    return roll_back("top", txid, config=world.config, spark=world.spark, **options)


def command(world: World, *words: str) -> tuple[int, str]:
    """The exit code and the output of ``trident rollback top``."""
    where = ["--warehouse", str(world.warehouse), "--zookeeper", world.hosts, "--set", f"zookeeper_root={world.root}"]
    result = CliRunner().invoke(cli.main, ["rollback", "top", *words, *where])
    return result.exit_code, result.output


def is_of_then(world: World, then: World) -> None:
    """Tables, positions and the current transaction are as in the copy that was taken then."""
    assert files(world) == files(then)
    assert held(world) == held(then) == fold(TO)
    stored = []
    for each in (world, then):
        with connected(each.hosts, each.root) as zk:
            store = GroupStore(zk, "top", "lines", ["lines"])
            record, decision, _ = store.load()
            assert record is not None and decision is None and not store.position_mismatches
            stored.append((record.current_txid, record.last, record.last_published, store.pins, store.partition_values))
    assert stored[0] == stored[1]


def goes_on(world: World) -> None:
    """The topology runs on, merges, and ends like one that never failed; no attempt id came twice."""
    world.run(8, compact=True, made=made(8))
    assert held(world) == fold(8)
    if ALL:
        world.run(9, made=made(9))
        assert held(world) == fold(9)
    plain = world.spark.read.format("delta").load(str(world.warehouse / "counts"))
    assert {row.word: row["count"] for row in plain.collect()} == fold(8)[0], "it is merged up to the eighth"
    assert world.repair().findings == []
    for txid, ids in attempts(world).items():
        assert ids == sorted(set(ids)), f"attempts of transaction {txid}: {ids}"
        assert len(ids) == (2 if TO < txid <= 7 else 1), f"attempts of transaction {txid}: {ids}"


STEPS = [
    *(["zk.rollback:fail_before"] if ALL else ()),
    "zk.rollback:do_then_fail",
    *(["rollback.table:fail_before"] if ALL else ()),
    *["rollback.table:do_then_fail"] * (len(TABLES) if ALL else 1),
    *(["descriptor.write:fail_before"] if ALL else ()),
    f"descriptor.write:do_then_fail:{2 if ALL else 1}",
    *(["zk.rollback:fail_before"] if ALL else ()),
    "zk.rollback:do_then_fail",
]


def test_a_rollback_that_fails_at_every_step_is_finished_by_the_same_command(world: World, base: World) -> None:
    before = held(world)
    pinned = world.spark.read.format("delta").option("versionAsOf", 7).load(str(world.warehouse / "words"))
    rows = sorted(row.word for row in pinned.collect())
    for number, step in enumerate(STEPS):
        faults.arm(step)
        with pytest.raises(TridentError):
            back(world, apply=True)
        assert not faults.unfired(), step
        if number == 0:
            assert held(world) == before, "nothing was done yet"
        if number == (4 if ALL else 1):
            assert "`trident rollback top --to 4 --apply` again: it continues" in str(half_done(world))
    assert back(world, apply=True).plan.is_there  # type: ignore[union-attr]  # the last step was done, and not heard of
    is_of_then(world, base.then)  # type: ignore[attr-defined]
    assert sorted(row.word for row in pinned.collect()) == rows, "a reader that has pinned a version reads on"
    for txid in (3,):
        assert held(world, txid) == fold(txid), "earlier transactions are read as before"
    goes_on(world)
    for txid in (3, 6):
        assert held(world, txid) == fold(txid), "of what came again the later one counts"


@pytest.mark.parametrize("other", ["ended", "died"])
def test_of_two_that_are_run_at_once_the_later_one_finishes_the_rollback_and_begins_none(
    world: World, base: World, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """It has looked before the other one led, and leads after that one."""

    @contextmanager
    def after_the_other(zk: ZooKeeper, name: str, groups: list[str]) -> Iterator[Lease]:
        monkeypatch.undo()
        if other == "died":
            faults.arm("rollback.table:do_then_fail")
            with pytest.raises(faults.InjectedFault):
                back(world, apply=True)
            faults.disarm()
        else:
            assert back(world, apply=True).done
        with leading(zk, name, groups) as lease:
            yield lease

    monkeypatch.setattr("trident.time_travel.rollback.leading", after_the_other)
    found = back(world, apply=True)
    assert bool(found.done) == (other == "died")
    is_of_then(world, base.then)  # type: ignore[attr-defined]
    control = control_at(Place(world.warehouse) / "words")
    assert control is not None and rollbacks_of(control.incarnation) == 1


def half_done(world: World) -> BaseException:
    """Why the topology does not start; and no other command changes anything, nor another rollback."""
    with pytest.raises(CoordinationError, match="to transaction 4 of batch group 'lines'"):
        back(world, 3, apply=True)
    with pytest.raises(CoordinationError, match="trident rollback top --to 4 --apply"):
        world.repair()
    code, said = command(world, "--to", "4")
    assert code == 0 and "was begun and has not ended" in said and "dry run" in said
    with pytest.raises(CoordinationError) as caught:
        world.start(7, made(7))
    return caught.value


def test_a_dry_run_says_what_goes_and_comes_and_changes_nothing(world: World) -> None:
    seen = world.seen()
    code, said = command(world, "--to", "4")
    assert code == 0, said
    assert world.seen() == seen
    for text in (
        "transaction 7 is the last that has advanced",
        "words: 6 rows go, 0 rows come back",
        "counts (keyed state): 9 rows go, 3 rows come back",
        "stream lines (FixedBatchSpout): continues after transaction 4",
        "a reader that has pinned a table version reads on",
        "Nothing was changed: this was a dry run.",
    ):
        assert text in said, said


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["--to", "7"], ["there is nothing to take back"]),
        (["--to", "8"], ["transaction 8 of batch group 'lines' has not advanced: the last that has advanced is 7"]),
        (["--to", "0"], ["transaction 0 never was", "trident reset top --drop-tables"]),
        (["--to", "4", "--group", "others"], ["has no batch group 'others'", "expected: one of lines"]),
        (["--to", "4", "--leave", "words"], ["no state 'words' outside of Delta tables"]),
    ],
    ids=["there", "newer", "none", "group", "leave"],
)
def test_a_rollback_that_cannot_be_meant_says_why_and_changes_nothing(base, words, texts):
    seen = base.seen()
    for apply in ([], ["--apply"]):
        code, said = command(base, *words, *apply)
        assert code == (0 if words == ["--to", "7"] else exit_codes.EXIT_BAD_INPUT), said
        assert all(text in said for text in texts), said
    assert base.seen() == seen


def test_a_wrong_name_or_warehouse_is_told_and_makes_nothing(tmp_path: Path) -> None:
    where = tmp_path / "warehouse"
    asked = ["rollback", "nope", "--to", "2", "--warehouse", str(where)]
    result = CliRunner().invoke(cli.main, asked)
    assert result.exit_code == exit_codes.EXIT_BAD_INPUT and "of a topology 'nope'; found: none" in result.output
    assert not where.exists()
    (where / "_trident" / "orders").mkdir(parents=True)
    result = CliRunner().invoke(cli.main, asked)
    assert "found: those of orders" in result.output and sorted(path.name for path in where.iterdir()) == ["_trident"]


def test_what_is_gone_or_runs_is_refused(world: World) -> None:
    query = world.start(7, made(7))
    query.process_all_available(300)
    with pytest.raises(CoordinationError, match="top is running"):
        back(world, apply=True)
    query.stop(60, compact=False)
    manifests = list((world.warehouse / "_trident" / "top" / "lines" / "manifests").glob("*/4-*.json"))
    (manifest,) = manifests
    kept = manifest.read_bytes()
    manifest.unlink()
    with pytest.raises(TopologyError, match=r"the manifest of transaction 4, attempt \d+, is not kept"):
        back(world, apply=True)
    manifest.write_bytes(kept)
    then = DeltaLog(world.warehouse / "counts").at(1).files
    next(world.warehouse / "counts" / path for path in then).unlink()
    with pytest.raises(TopologyError, match="gone for table counts: of the files that it had then 1 are deleted"):
        back(world, apply=True)


def test_the_next_incarnation_is_in_every_table_and_no_local_copy_outlives_it(world: World) -> None:
    before = control_at(Place(world.warehouse) / "words")
    copies = world.warehouse / "_trident" / ".copies"
    (copies / "host-boot" / "counts").mkdir(parents=True)
    back(world, apply=True)
    assert not copies.exists()
    found = {control_at(Place(world.warehouse) / name).incarnation for name in TABLES}  # type: ignore[union-attr]
    assert before is not None and found == {f"{before.incarnation}-r1"}


@pytest.mark.long
def test_a_rollback_behind_a_rollback_goes_back_to_before_it(world: World) -> None:
    back(world, 6, apply=True)
    assert held(world) == fold(6)
    world.run(8, compact=True, made=made(8))
    back(world, 3, apply=True)
    assert held(world) == fold(3)
    # The history tells what was taken back, and before which rollback it was made.
    said = [line.split("; from before ") for line in history("top", config=world.config)[1:]]
    assert [(int(line.split()[0]), word) for line, word in said] == [
        *((txid, "rollback 1") for txid in (1, 2, 3)),
        *((txid, "rollback 1; TAKEN BACK") for txid in (4, 5, 6, 7)),
        *((txid, "rollback 2; TAKEN BACK") for txid in (7, 8)),
    ]
    if ALL:
        world.run(9, compact=True, made=made(9))
        assert held(world) == fold(9) and held(world, 3) == fold(3) and held(world, 7) == fold(7)
    assert world.repair().findings == []
    assert all(ids == sorted(set(ids)) for ids in attempts(world).values()), attempts(world)


@pytest.mark.long
def test_transactions_that_no_leader_has_recorded_before_a_rollback_are_told_behind_it(world: World) -> None:
    """As where the leader is killed before it brings the table of transactions up to date."""
    for table in world.warehouse.glob("*__transactions"):  # written on a slow machine alone
        shutil.rmtree(table)
    back(world, 3, apply=True)
    world.run(5, made=made(5))
    told = [json.loads(line) for line in history("top", as_json=True, config=world.config)]
    assert [(row["txid"], row["taken_back"]) for row in told] == [
        *((txid, False) for txid in (1, 2, 3)),
        *((txid, True) for txid in (4, 5, 6, 7)),
        *((txid, False) for txid in (4, 5)),
    ]
    assert all(row["published_at"] and all(table["version"] is not None for table in row["tables"]) for row in told)


# --- a process of its own, killed ---------------------------------------------------------------------------


KILLS = ["rollback.table:do_then_die:3"]
if ALL:
    KILLS += [
        *["zk.acquire:do_then_die", "zk.rollback:do_then_die", "zk.rollback:do_then_die:2", "zk.release:do_then_die"],
        "zk.record:do_then_die",
        *[f"descriptor.write:do_then_die:{n}" for n in (1, 2, 3)],
        *[f"rollback.table:do_then_die:{n}" for n in (1, 2, 4, 5)],
    ]


@pytest.mark.long
@pytest.mark.parametrize("kill", KILLS)
def test_a_rollback_that_is_killed_is_finished_by_the_same_command(world: World, base: World, kill: str) -> None:
    where = ["--warehouse", str(world.warehouse), "--zookeeper", world.hosts, "--set", f"zookeeper_root={world.root}"]
    line = [sys.executable, "-m", "trident.cli", "rollback", "top", "--to", str(TO), "--apply", *where]
    done = subprocess.run(line, env={**os.environ, faults.ENVIRONMENT_VARIABLE: kill}, capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    back(world, apply=True)
    is_of_then(world, base.then)  # type: ignore[attr-defined]
    if ALL:
        goes_on(world)


@pytest.mark.skipif(not ALL, reason="make rollback")
def test_zookeeper_that_is_lost_amid_a_rollback_needs_a_copy_of_it_or_of_the_warehouse(world, base):
    """What docs/operations.md says."""
    faults.arm("rollback.table:do_then_fail:2")
    with pytest.raises(TridentError):
        back(world, apply=True)
    faults.disarm()
    world.forget()
    with pytest.raises(TridentError):
        world.start(7, made(7)).await_termination(300)
    assert world.repair(apply=True).left != []
    shutil.rmtree(world.warehouse)
    shutil.copytree(base.warehouse, world.warehouse)
    world.repair(apply=True)
    assert world.repair().findings == [] and held(world) == fold(7)
    back(world, apply=True)
    assert held(world) == fold(TO)
    world.run(8, compact=True, made=made(8))
    assert held(world) == fold(8)


@pytest.mark.long
def test_rows_that_the_log_dropped_since_the_rollback_began_come_back(world: World) -> None:
    faults.arm("rollback.table:fail_before")
    with pytest.raises(TridentError):
        back(world, apply=True)
    faults.disarm()
    # A leader that was stopped amid its last merge wakes up, and drops what the plain table of now has.
    state = load_descriptor(world.warehouse, "counts")
    settings = DeltaMapState("counts", snapshot_retention_txids=0)
    dropped = Compactor(world.spark, KernelEngine(world.spark), world.warehouse, state, settings).drop_once(7)
    assert dropped is not None and control_now(world, "counts__log").floor == 7
    back(world, apply=True)
    assert control_now(world, "counts__log").floor <= 2
    assert held(world) == fold(TO)
    goes_on(world)


def control_now(world: World, table: str) -> ControlRecord:
    control = control_at(world.warehouse / table)
    assert control is not None
    return control
