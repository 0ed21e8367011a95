"""ZooKeeper and the tables contradict each other: each case halts with a diagnosis, and the repair is exact.

Real Spark, Delta and ZooKeeper. After each repair the topology starts again and
must hold what a plain fold of the source gives, changed only as the repair
said. ``TRIDENT_REPAIR=all`` runs the whole list.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.repair.repair_helpers import BATCHES, BREAKS, LIMIT, WAIT_SECS, World, fold, topology
from tests.repair.repair_sources import Sources
from tests.servers.zk_fixtures import connected, eventually
from trident import DeltaMapState, FixedBatchSpout, Sum, TridentTopology, cli, read
from trident.commands import admin, exit_codes
from trident.coordinators import faults
from trident.coordinators.embedded import EmbeddedZooKeeper
from trident.coordinators.errors import CoordinationError, ForeignTable, Halted
from trident.coordinators.leadership import Fence, Lease
from trident.coordinators.records import encode
from trident.coordinators.registration import UnfinishedReset
from trident.coordinators.znodes import Create, Delete, SetData
from trident.coordinators.zookeeper import ZooKeeper
from trident.repair.apply import repair
from trident.running.status import format_status, read_status
from trident.running.zookeeper import leading
from trident.states.delta.delta_log import DeltaLog
from trident.states.keyed import fitting

ALL = os.environ.get("TRIDENT_REPAIR") == "all"
full = pytest.mark.skipif(not ALL, reason="part of the whole list: TRIDENT_REPAIR=all")


@pytest.fixture(scope="module")
def base(spark: SparkSession, zk_server: str, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three batches, committed; the plain table is merged up to the second."""
    world = World(spark, tmp_path_factory.mktemp("base") / "warehouse", zk_server, f"/base-{uuid.uuid4().hex}")
    world.run(2, compact=True)
    world.older = world.copy(world.warehouse.parent / "older", f"{world.root}-older")  # type: ignore[attr-defined]
    world.run(3)
    assert world.holds() == (fold(3), fold(3))
    return world


@pytest.fixture
def world(base: World, tmp_path: Path, zk_root: str) -> Iterator[World]:
    """A world of this test's own, with the three batches."""
    made = base.copy(tmp_path / "warehouse", zk_root)
    yield made
    made.close()


@pytest.fixture
def older(base: World) -> World:
    """How the world was after two batches."""
    return base.older  # type: ignore[attr-defined]


def check_said(error: BaseException, *words: str) -> None:
    assert isinstance(error, Halted), repr(error)
    assert exit_codes.exit_code(error) == exit_codes.EXIT_HALT
    for word in ("trident repair top", "; found: ", "; expected: ", *words):
        assert word in str(error), str(error)


def goes_on(world: World, batches: int = 5) -> None:
    """The topology starts again and holds exactly what the source gave."""
    world.run(batches)
    assert world.holds() == (fold(batches), fold(batches))
    assert world.repair().findings == []


# --- positions of streams --------------------------------------------------------------------------------


def without(world: World, path: str) -> None:
    """A znode is gone, or somebody has deleted it."""
    with connected(world.hosts, world.root) as zk:
        zk.multi([Delete(zk.path("top", *path.split("/")))])


@pytest.mark.parametrize("pending", [False, pytest.param(True, marks=full)])
def test_a_missing_pin_halts_and_is_rebuilt_from_the_manifest(world: World, pending: bool) -> None:
    if pending:  # the fourth transaction is decided, and its coordinator gone
        stuck(world, 0)
    without(world, f"lines/coordinator/{3 + pending}")
    check_said(world.fails(), "pin of transaction", "'lines' is missing")
    copies = world.warehouse / "_trident" / ".copies"
    (copies / "host-boot" / "counts").mkdir(parents=True)
    found = world.dry_run().findings
    assert [finding.kind for finding in found] == ["positions lost"] and found[0].chosen
    assert copies.exists()
    assert world.repair(apply=True).left == []
    assert not copies.exists(), "a repair may change tables without a transaction: no local copy would see it"
    goes_on(world)


@full
def test_a_missing_pin_in_a_record_of_the_version_before_is_told_by_the_manifest(world: World) -> None:
    with connected(world.hosts, world.root) as zk:
        path = zk.path("top", "lines", "coordinator")
        data, found = zk.get(path)
        fields = {key: value for key, value in json.loads(data).items() if key not in ("pins", "partitions")}
        zk.multi([SetData(path, json.dumps(fields).encode(), found.znode_version)])
    without(world, "lines/coordinator/3")
    check_said(world.fails(), "pin of transaction 3", "'lines' is missing")
    assert world.repair(apply=True).left == []
    goes_on(world)


@full
def test_a_position_that_no_manifest_has_is_not_guessed(world: World) -> None:
    without(world, "lines/coordinator/3")
    for manifest in (world.warehouse / "_trident" / "top" / "lines" / "manifests").glob("*/*.json"):
        manifest.unlink()
    (finding,) = world.repair(apply=True).left
    assert finding.kind == "positions lost" and "nothing is guessed" in finding.refusal
    check_said(world.fails(), "is missing")


def the_repair(world: World, kind: str, **choices: object) -> None:
    """The dry run finds it and changes nothing, the repair leaves nothing, and doing it again does nothing."""
    assert [finding.kind for finding in world.dry_run(**choices).findings] == [kind]
    assert world.repair(apply=True, **choices).left == []
    assert world.repair(apply=True, **choices).done == []


# --- ZooKeeper wiped, or restored from an older copy ------------------------------------------------------------


@full
def test_zookeeper_wiped_is_rebuilt_from_the_tables(world: World) -> None:
    world.forget()
    check_said(world.fails(), "ZooKeeper is the older side", "transaction 3, attempt 0", "trident repair top`")
    the_repair(world, "ZooKeeper wiped")
    goes_on(world)


def test_a_state_with_adopt_is_not_counted_twice_when_zookeeper_is_wiped(world: World) -> None:
    world.forget()
    query = world.start(5, topology(5, adopt=True))
    check_said(world.ends(query), "ZooKeeper is the older side")


@full
def test_zookeeper_put_back_from_an_older_copy_of_its_data(spark, tmp_path: Path) -> None:
    """The real thing: the server is stopped, and an older copy of its data folder is put back; then all of it goes."""
    folder = tmp_path / "zookeeper"
    world = World(spark, tmp_path / "warehouse", EmbeddedZooKeeper.ensure(folder), "/trident")
    try:
        world.run(2)
        EmbeddedZooKeeper.stop(folder)
        shutil.copytree(folder / "data", tmp_path / "copy")
        world.hosts = EmbeddedZooKeeper.ensure(folder)
        world.run(4)
        EmbeddedZooKeeper.stop(folder)
        shutil.rmtree(folder / "data")
        shutil.copytree(tmp_path / "copy", folder / "data")
        world.hosts = EmbeddedZooKeeper.ensure(folder)
        error = world.fails()
        check_said(error, "ZooKeeper is the older side", "has transaction 4, attempt 0", "transaction 2, attempt 0")
        status = format_status(read_status(world.warehouse, "top"))
        assert "HALTED" in status and "trident repair top" in status
        the_repair(world, "ZooKeeper restored from an older copy")
        EmbeddedZooKeeper.stop(folder)
        shutil.rmtree(folder / "data")  # before the repaired one was ever used
        world.hosts = EmbeddedZooKeeper.ensure(folder)
        check_said(world.fails(), "ZooKeeper is the older side")
        the_repair(world, "ZooKeeper wiped")
        goes_on(world)
    finally:
        world.close()
        EmbeddedZooKeeper.stop(folder)


def stuck(world: World, published: int) -> None:
    """Transaction 4 is decided and published to so many of its two tables; there the topology gives up.

    With one it is the first: the tables are published side by side, and begun in the manifest's order.
    """
    both_tries = range(published + 1, 5)
    faults.arm(",".join(f"publish.table:fail_before:{entry}" for entry in both_tries))
    assert "could not be finished" in str(world.fails(4))
    assert faults.unfired() == []
    faults.disarm()


def staged_files(world: World, table: str) -> list[Path]:
    """The files of transaction 4."""
    found = [path for path in (world.warehouse / table).rglob("4-0-*/**/*.parquet")]
    assert found
    return found


def test_zookeeper_wiped_while_a_transaction_is_half_published(world: World) -> None:
    stuck(world, published=1)
    world.forget()
    check_said(world.fails(), "ZooKeeper is the older side")
    the_repair(world, "ZooKeeper wiped")
    goes_on(world)


@full
def test_a_half_published_transaction_whose_files_are_gone_is_not_rebuilt(world: World) -> None:
    stuck(world, published=1)
    world.forget()
    for path in staged_files(world, "words"):
        path.unlink()
    (finding,) = world.dry_run().findings
    assert "of its files are gone" in finding.refusal and finding.offers == ()
    assert world.repair(apply=True).done == []


@full
def test_without_the_manifest_nothing_is_rebuilt(world: World) -> None:
    world.forget()
    shutil.rmtree(world.warehouse / "_trident" / "top" / "lines" / "manifests")
    (finding,) = world.dry_run().findings
    assert "the manifest of transaction 3 attempt 0 is not in" in finding.refusal
    assert world.repair(apply=True).done == []


@full
def test_zookeeper_wiped_under_a_running_topology(spark, tmp_path: Path) -> None:
    folder = tmp_path / "zookeeper"
    world = World(spark, tmp_path / "warehouse", EmbeddedZooKeeper.ensure(folder), "/trident")
    try:
        LIMIT["txid"] = 2
        query = world.start(5)
        query.process_all_available(WAIT_SECS)
        EmbeddedZooKeeper.stop(folder)
        shutil.rmtree(folder / "data")
        world.hosts = EmbeddedZooKeeper.ensure(folder)
        LIMIT["txid"] = 1000
        check_said(world.ends(query), "ZooKeeper is the older side", "transaction 2, attempt 0")
        assert world.repair(apply=True).left == []
        goes_on(world)
    finally:
        LIMIT["txid"] = 1000
        world.close()
        EmbeddedZooKeeper.stop(folder)


@full
@pytest.mark.parametrize("killed", [None, "publish.user", "spout.commit", "publish.table"])
def test_every_kind_of_source_and_state_goes_on_from_a_rebuilt_zookeeper(
    spark: SparkSession, zk_server: str, zk_root: str, tmp_path: Path, killed: str | None
) -> None:
    """Files, a queue with a fenced map, opaque partitions; ZooKeeper goes, also right behind a decision."""
    from trident import read

    sources = Sources(tmp_path / "sources")
    world = World(spark, tmp_path / "warehouse", zk_server, zk_root)
    try:
        sources.add()
        world.run(0, made=sources.topology())
        sources.add()
        if killed is None:
            world.run(0, made=sources.topology())
        else:
            # Of four failures in three groups one group has two, which are as many as it may have.
            faults.arm(",".join(f"{killed}:fail_before:{nth}" for nth in range(1, 5)))
            assert "could not be finished" in str(world.ends(world.start(0, sources.topology())))
            faults.disarm()
        world.forget()
        check_said(world.ends(world.start(0, sources.topology())), "ZooKeeper is the older side")
        found = world.dry_run().findings
        assert {finding.kind for finding in found} == {"ZooKeeper wiped"} and len(found) == 3
        assert world.repair(apply=True).left == []
        sources.add()
        world.run(0, made=sources.topology())

        def rows(state: str) -> list:
            return [tuple(row) for row in read(spark, str(world.warehouse), state).collect()]

        orders = Counter(f"order {number % 3}" for number in range(sources.orders))
        assert dict(rows("counts")) == {"a": sources.files, "b": 2 * sources.files, "c": sources.files}
        assert Counter(payload for (payload,) in rows("orders")) == orders
        assert {key: value.current for (key,), value in sources.map.items()} == orders
        assert sorted(n for (n,) in rows("numbers")) == list(range(sources.below))
    finally:
        world.close()


@full
def test_a_client_of_a_server_that_has_forgotten_goes_on_once_its_session_is_lost(tmp_path: Path) -> None:
    """The server refuses who has seen more than it has; a topology would wait for ever, without a word."""
    hosts = EmbeddedZooKeeper.ensure(tmp_path)
    try:
        with connected(hosts, session_secs=1.0) as zk:
            for number in range(3):
                zk.ensure_path(f"/trident/{number}")
            session = zk.session_number
            EmbeddedZooKeeper.stop(tmp_path)
            shutil.rmtree(tmp_path / "data")
            assert EmbeddedZooKeeper.ensure(tmp_path) == hosts
            assert zk.wait_connected(timeout_secs=WAIT_SECS) and zk.session_number > session
            assert zk.children("/trident") == []
    finally:
        EmbeddedZooKeeper.stop(tmp_path)


# --- tables restored from an older copy -------------------------------------------------------------------------


@pytest.mark.long
def test_the_whole_warehouse_put_back_from_an_older_copy(world: World, older: World) -> None:
    shutil.rmtree(world.warehouse)
    shutil.copytree(older.warehouse, world.warehouse)
    check_said(world.fails(), "the table is the older side", "transaction 2, attempt 0", "transaction 3, attempt 0")
    (finding,) = world.dry_run().findings
    assert finding.kind == "tables restored from an older copy" and finding.chosen is None
    assert "processed again from the source, and counted once" in finding.offers[0].text
    assert world.repair(apply=True).done == []  # it must be asked for by name
    the_repair(world, "tables restored from an older copy", adopt_tables=True)
    goes_on(world)


@full
def test_one_table_of_two_put_back_from_an_older_copy_is_refused(world: World, older: World) -> None:
    shutil.rmtree(world.warehouse / "words")
    shutil.copytree(older.warehouse / "words", world.warehouse / "words")
    check_said(world.fails(), "the table is the older side")
    (finding,) = world.dry_run(adopt_tables=True).findings
    assert finding.kind == "one table restored from an older copy" and "not offered" in finding.refusal
    assert world.repair(apply=True, adopt_tables=True).done == []
    shutil.rmtree(world.warehouse)  # as the text says: all of it
    shutil.copytree(older.warehouse, world.warehouse)
    assert world.repair(apply=True, adopt_tables=True).left == []
    goes_on(world)


@full
def test_a_plain_table_put_back_from_an_older_copy_is_merged_again(world: World, older: World) -> None:
    world.run(3, compact=True)
    world.run(4)  # ZooKeeper hears of the merged table with the next transaction
    shutil.rmtree(world.warehouse / "counts")
    shutil.copytree(older.warehouse / "counts", world.warehouse / "counts")
    check_said(world.fails(), "older than ZooKeeper")
    the_repair(world, "table restored from an older copy")
    goes_on(world)


# --- changes by others --------------------------------------------------------------------------------------------

COPIED = "INSERT INTO {counts__log} SELECT * FROM {counts__log}"


def kind_of(name: str) -> str:
    return "table RESTOREd" if "RESTOREd" in name else "table written by someone else"


@full
@pytest.mark.parametrize("name", ["log copied", "log RESTOREd"])
def test_a_log_that_others_changed_is_not_merged_and_can_still_be_undone(world: World, name: str) -> None:
    """`trident compact` asks no ZooKeeper; merged, the change would be in the plain table for good."""
    statements = {**{key: sql for key, (_, sql) in BREAKS.items()}, "log copied": COPIED}
    world.sql(statements[name])
    with pytest.raises(Halted, match="another writer changed the table"):
        admin.compact("top", world.config)
    the_repair(world, kind_of(name), undo_foreign=["counts"])
    assert "merged transactions 3 to 3" in admin.compact("top", world.config)
    goes_on(world)


@full
def test_a_merge_between_the_look_and_the_restore_is_not_taken_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.sql(BREAKS["plain table written"][1])
    load = Fence.verify

    def merged_first(fence: Fence, zk: ZooKeeper) -> None:
        """The repair has looked under its lease, and is about to do its first step."""
        monkeypatch.setattr(Fence, "verify", load)
        assert "merged transactions 3 to 3" in admin.compact("top", world.config)
        load(fence, zk)

    monkeypatch.setattr(Fence, "verify", merged_first)
    with pytest.raises(Halted, match="was changed while it was repaired; nothing was done to it"):
        world.repair(apply=True, undo_foreign=["counts"])
    (finding,) = world.repair(apply=True, undo_foreign=["counts"]).left
    assert "transactions of this topology came after it" in finding.refusal


@full
def test_a_table_that_is_gone_with_zookeeper_is_not_left_out(world: World) -> None:
    world.forget()
    shutil.rmtree(world.warehouse / "words")
    (finding,) = world.dry_run(adopt_tables=True, accept_loss=True).findings
    assert "words is gone: the manifest of transaction 3 names" in finding.refusal
    assert world.repair(apply=True).done == []


@full
@pytest.mark.parametrize("name", BREAKS)
def test_what_others_did_is_found_at_a_restart_and_undone(world: World, name: str) -> None:
    state, statement = BREAKS[name]
    world.sql(statement)
    older = "the table is the older side" if "RESTOREd" in name else "the table is the newer side"
    check_said(world.fails(), "another writer changed the table", older, f"--undo-foreign {state}")
    the_repair(world, kind_of(name), undo_foreign=[state])
    goes_on(world)


@full
@pytest.mark.parametrize("name", BREAKS)
def test_what_others_did_between_two_transactions_is_found_before_the_next_decision(world: World, name: str) -> None:
    state, statement = BREAKS[name]
    LIMIT["txid"] = 4
    try:
        query = world.start(5)
        query.process_all_available(WAIT_SECS)
        world.sql(statement)
        LIMIT["txid"] = 1000
        check_said(world.ends(query), "another writer changed the table")
        found = world.repair()
        assert found.facts.groups[0].decision is None and found.facts.groups[0].record.current_txid == 5
        with_four = [table for table in found.facts.groups[0].tables if table.has_transaction]
        assert {table.control.txid for table in with_four} == {4}
    finally:
        LIMIT["txid"] = 1000
    assert "trident repair top" in format_status(read_status(world.warehouse, "top"))
    assert world.repair(apply=True, undo_foreign=[state]).left == []
    goes_on(world)


@full
def test_a_foreign_commit_that_came_after_the_check_is_not_committed_over(world: World) -> None:
    """Between the last look at the table and the publish, with the decision made."""
    faults.arm("publish.table:hang:1,publish.table:hang:2")  # both tables: they are published side by side
    query = world.start(4)
    assert eventually(lambda: not (faults.unfired() and query.is_active), WAIT_SECS) and query.is_active
    world.sql("INSERT INTO {words} VALUES ('foreign')")
    faults.disarm()
    check_said(world.ends(query), "another writer changed the table")
    check_said(world.fails(4), "another writer changed the table")  # the decision is pending: it is not finished either
    the_repair(world, "table written by someone else", undo_foreign=["words"])
    goes_on(world)


@full
@pytest.mark.parametrize("name", ["written by someone else", "truncated", "plain table written"])
def test_what_others_did_can_be_kept_where_that_is_exact(world: World, name: str) -> None:
    state, statement = BREAKS[name]
    world.sql(statement)
    the_repair(world, kind_of(name), accept_foreign=[state])
    world.run(5)
    counts, words = fold(5), fold(5)
    if name == "written by someone else":
        words["foreign"] += 1
    elif name == "truncated":
        words -= fold(3)
    else:
        counts["a"] = 100 + fold(5)["a"] - fold(2)["a"]  # the plain table had two batches
    assert world.holds() == (counts, words)


@full
@pytest.mark.parametrize("name", ["log written", "log RESTOREd", "plain table RESTOREd"])
def test_what_cannot_be_kept_exactly_is_refused(world: World, name: str) -> None:
    state, statement = BREAKS[name]
    world.sql(statement)
    (finding,) = world.dry_run(accept_foreign=[state]).findings
    assert finding.chosen is None and "cannot be accepted" in finding.refusal
    assert world.repair(apply=True, accept_foreign=[state]).done == []


@full
def test_rows_that_no_merge_wrote_are_not_accepted_into_a_plain_table(world: World) -> None:
    world.sql("INSERT INTO {counts} (word, count) VALUES ('foreign', 1)")
    (finding,) = world.dry_run(accept_foreign=["counts"]).findings
    assert "1 rows were not written by a MERGE" in finding.refusal and finding.chosen is None


# --- a table that is gone, or another's ------------------------------------------------------------------------


@full
@pytest.mark.parametrize("table", ["words", "counts__log"])
def test_a_dropped_table_is_not_made_anew(world: World, spark: SparkSession, table: str, tmp_path: Path) -> None:
    shutil.move(world.warehouse / table, tmp_path / "dropped")
    check_said(world.fails(), "is gone, or was dropped and made again", "ZooKeeper is the newer side", table)
    assert not (world.warehouse / table).exists()
    spark.createDataFrame([("x",)], "word string").write.format("delta").save(str(world.warehouse / table))
    check_said(world.fails(), "another table at", table)
    (finding,) = world.dry_run().findings
    assert finding.kind == "table dropped and recreated" and finding.offers == () and "back-up" in finding.refusal
    assert world.repair(apply=True).done == []
    shutil.rmtree(world.warehouse / table)
    shutil.move(tmp_path / "dropped", world.warehouse / table)
    goes_on(world)


@full
def test_a_table_dropped_under_a_running_topology(world: World, tmp_path: Path) -> None:
    LIMIT["txid"] = 4
    try:
        query = world.start(5)
        query.process_all_available(WAIT_SECS)
        shutil.move(world.warehouse / "words" / "_delta_log", tmp_path / "dropped")
        LIMIT["txid"] = 1000
        check_said(world.ends(query), "is gone", "ZooKeeper is the newer side")
    finally:
        LIMIT["txid"] = 1000
    shutil.move(tmp_path / "dropped", world.warehouse / "words" / "_delta_log")
    goes_on(world)


@full
def test_a_plain_table_that_was_dropped_is_made_again_from_its_log(world: World) -> None:
    shutil.rmtree(world.warehouse / "counts")
    check_said(world.fails(), "is gone, or was dropped and made again")
    the_repair(world, "table dropped and recreated")
    goes_on(world)


@full
def test_two_topologies_on_one_table(world: World) -> None:
    other = topology(5)
    other.name = "other"
    error = world.ends(world.start(5, other))
    assert isinstance(error, ForeignTable) and "found: top/lines, with transactions up to 3" in str(error)
    findings = repair("other", config=world.config, spark=world.spark).findings
    assert {finding.kind for finding in findings} == {"two topologies on one table"}
    assert all("belongs to topology 'top'" in finding.text and finding.offers == () for finding in findings)
    goes_on(world)


# --- the log, and staged files ---------------------------------------------------------------------------------------


@full
def test_a_delta_log_that_was_cleaned_too_far(world: World) -> None:
    world.sql("INSERT INTO {words} VALUES ('unseen')")
    world.sql("INSERT INTO {words} VALUES ('unseen')")
    cleaned(world, "words")
    check_said(world.fails(), "was cleaned too far", "--accept-unverified words")
    (finding,) = world.dry_run().findings
    assert finding.kind == "Delta log cleaned too far" and finding.chosen is None
    the_repair(world, "Delta log cleaned too far", accept_unverified=["words"])
    world.run(5)
    assert world.holds() == (fold(5), fold(5) + Counter(["unseen", "unseen"]))


def cleaned(world: World, table: str) -> None:
    """Writes a checkpoint and removes the entries before its version, as Delta does after its retention."""
    from trident.states.delta.kernel import KernelEngine

    engine = KernelEngine(world.spark)
    path = world.warehouse / table
    snapshot = engine.load(str(path))
    snapshot._java.writeCheckpoint(engine.java)
    for entry in (path / "_delta_log").glob("*.json"):
        if int(entry.stem) < snapshot.version:
            entry.unlink()


@full
def test_staged_files_gone_after_the_decision(world: World) -> None:
    stuck(world, published=0)
    for path in staged_files(world, "words"):
        path.unlink()
    check_said(world.fails(), "is decided and cannot be published", "is gone", "--abandon-decision")
    (finding,) = world.dry_run().findings
    assert finding.chosen is None
    the_repair(world, "staged files gone after the decision", abandon_decision=True)
    goes_on(world)


@full
def test_a_decision_that_is_published_in_part_is_never_given_up(world: World, tmp_path: Path) -> None:
    stuck(world, published=1)
    (file,) = staged_files(world, "words")
    shutil.move(file, tmp_path / "kept")
    check_said(world.fails(), "is decided and cannot be published")
    (finding,) = world.dry_run(abandon_decision=True).findings
    assert finding.chosen is None and "counts__log has the transaction already" in finding.refusal
    assert world.repair(apply=True, abandon_decision=True).done == []
    shutil.move(tmp_path / "kept", file)  # as the text says
    goes_on(world)


# --- the command -----------------------------------------------------------------------------------------------


@full
def test_a_repair_is_refused_while_the_topology_runs(world: World) -> None:
    world.sql("INSERT INTO {words} VALUES ('foreign')")
    other = world.copy(world.warehouse.parent / "other", f"{world.root}-other")
    query = world.start(3, topology(3))
    with pytest.raises(Halted):
        query.await_termination(WAIT_SECS)
    from tests.repair.repair_helpers import connected
    from trident.running.zookeeper import leading

    with connected(world.hosts, world.root) as zk, leading(zk, "top", ["lines"]):
        with pytest.raises(CoordinationError, match="top is running"):
            world.repair(apply=True, undo_foreign=["words"])
    assert other.holds()[1] == fold(3) + Counter(["foreign"])


def command(world: World, *arguments: str) -> tuple[int, str]:
    settings = [f"warehouse={world.warehouse}", f"zookeeper={world.hosts}", f"zookeeper_root={world.root}"]
    words = [word for setting in settings for word in ("--set", setting)]
    result = CliRunner().invoke(cli.main, ["repair", "top", *arguments, *words], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.mark.long
def test_the_command_line_says_what_it_would_do_and_does_it_with_apply(world: World) -> None:
    world.sql("INSERT INTO {words} VALUES ('foreign')")
    before = world.seen()
    code, text = command(world)
    assert code == exit_codes.EXIT_HALT and "TABLE WRITTEN BY SOMEONE ELSE" in text and "dry run" in text
    assert "--undo-foreign words" in text and "1 rows in 1 files added" in text and world.seen() == before
    code, text = command(world, "--undo-foreign", "nobody's")
    assert code == exit_codes.EXIT_BAD_INPUT and "has no state" in text
    code, text = command(world, "--undo-foreign", "words", "--apply")
    assert code == 0 and "agree now: start the topology" in text
    assert command(world)[0] == 0


@pytest.mark.long
def test_a_sum_that_an_older_version_let_overflow_is_clamped_and_the_topology_goes_on(
    spark: SparkSession, zk_server: str, zk_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 2**63 - 1
    batches = [[("a", most), ("b", 1)], [("a", 1), ("b", 2)], [("b", 4), ("a", -1)]]
    world = World(spark, tmp_path / "warehouse", zk_server, zk_root)

    def sums(count: int) -> TridentTopology:
        made = TridentTopology("top")
        rows = made.new_stream("lines", FixedBatchSpout("word string, n long", batches[:count])).group_by("word")
        rows.persistent_aggregate(DeltaMapState("totals", merge_interval_secs=3600), "n", Sum(), "total")
        return made

    with monkeypatch.context() as older:
        older.setattr(fitting.Fitting, "check", lambda *_: None)
        world.run(2, made=sums(2))
    before = world.seen()
    for arguments in ((), ("--clamp", "totals")):
        code, text = command(world, *arguments)
        assert code == exit_codes.EXIT_HALT and "A VALUE THAT DOES NOT FIT" in text and "dry run" in text
        assert '{"word":"a"}' in text and str(most + 1) in text and "--clamp totals" in text
        assert world.seen() == before, "a dry run changed something"
    code, text = command(world, "--clamp", "nobody's", "--apply")
    assert code == exit_codes.EXIT_BAD_INPUT and "has no state" in text and world.seen() == before
    code, text = command(world, "--clamp", "totals", "--apply")
    assert code == 0 and "what did not fit is clamped" in text and "agree now: start the topology" in text
    assert command(world)[0] == 0
    totals = read(spark, world.warehouse, "totals").collect()
    assert {row.word: row.total for row in totals} == {"a": most, "b": 3}
    world.run(3, compact=True, made=sums(3))
    totals = spark.read.format("delta").load(str(world.warehouse / "totals")).collect()
    assert {row.word: row.total for row in totals} == {"a": most - 1, "b": 7}


KILLS = ["fail_before", "do_then_fail"]


@full
@pytest.mark.parametrize("outcome", KILLS)
@pytest.mark.parametrize("broken", ["undo", "wiped", "abandon"])
def test_a_repair_that_dies_at_a_step_is_run_again_and_goes_on(world: World, broken: str, outcome: str) -> None:
    choices: dict[str, Callable[[], object] | object] = {}
    if broken == "undo":
        world.sql("INSERT INTO {words} VALUES ('foreign')")
        choices = {"undo_foreign": ["words"]}
    elif broken == "wiped":
        world.forget()
    else:
        stuck(world, published=0)
        for path in staged_files(world, "words"):
            path.unlink()
        choices = {"abandon_decision": True}
    faults.arm(f"apply.step:{outcome}")
    with pytest.raises(faults.InjectedFault):
        world.repair(apply=True, **choices)
    faults.disarm()
    assert world.repair(apply=True, **choices).left == []
    goes_on(world)


def test_a_repair_looks_again_for_what_has_not_ended_once_it_leads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.sql("INSERT INTO {words} VALUES ('foreign')")

    @contextmanager
    def after_a_reset_that_died(zk: ZooKeeper, name: str, groups: list[str]) -> Iterator[Lease]:
        zk.multi([Create(zk.path(name, "reset.unfinished"), encode(UnfinishedReset(("one",))))])
        with leading(zk, name, groups) as lease:
            yield lease

    monkeypatch.setattr("trident.repair.apply.leading", after_a_reset_that_died)
    version = DeltaLog(world.warehouse / "words").newest()
    with pytest.raises(CoordinationError, match="a reset of topology 'top' was begun and has not ended"):
        world.repair(apply=True, undo_foreign=["words"])
    assert DeltaLog(world.warehouse / "words").newest() == version


def test_an_entry_that_a_power_cut_has_torn_is_no_contradiction(world: World) -> None:
    for table in ("words", "counts__log"):
        log = DeltaLog(world.warehouse / table)
        Path(log.entry(log.newest() + 1)).write_bytes(b'{"commitInfo":{"timest')
    assert world.repair().findings == []
    goes_on(world)


@full
def test_a_repair_that_dies_before_zookeeper_knows_of_the_restore_is_finished_by_the_next(world: World) -> None:
    world.sql("INSERT INTO {words} VALUES ('foreign')")
    faults.arm("repair.restore:do_then_fail")
    with pytest.raises(faults.InjectedFault):
        world.repair(apply=True, undo_foreign=["words"])
    faults.disarm()
    check_said(world.fails(), "another writer changed the table")
    the_repair(world, "repair not finished")
    goes_on(world)


def test_the_batches_of_this_test_tell_every_transaction_from_every_other() -> None:
    assert len({tuple(sorted(fold(batches).items())) for batches in range(len(BATCHES) + 1)}) == len(BATCHES) + 1
