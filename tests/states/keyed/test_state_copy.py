"""A state's local copy is the state as of the transaction that is asked for, whatever its tables and files do."""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.states.keyed_helpers import (
    Group,
    Native,
    all_words,
    as_map,
    compactor_of,
    keyed,
    publish_words,
    values_in,
)
from trident.coordinators import faults
from trident.coordinators.errors import TableError
from trident.states.core.copy_rows import RowCodec
from trident.states.core.local_copy import Placed, StaleCopy, in_order, look_up, wait_for
from trident.states.core.shards import WHOLE
from trident.states.keyed import state_copy
from trident.states.keyed.copies import StateCopies, forget_copies, last_repair
from trident.states.keyed.reading import read_state
from trident.states.keyed.state_copy import StateCopy

BOOT = "a boot"
INLINE = 1 << 24


@pytest.fixture
def group(spark, engine, tmp_path):
    """A state that is combined, and one that keeps the last value of a key."""
    return Group(spark, engine, tmp_path, keyed(), keyed("last", "word string, v double", merging="last"))


def copy_of(group, name, base, inline=INLINE, boot=BOOT, bytes_max=1 << 28, shard=WHOLE):
    return StateCopy(group.warehouse, group.descriptor(name), base / "copies" / name, bytes_max, inline, boot, shard)


def held(group, name, copy, txid):
    """Key → values that the copy has, of all keys that there ever were."""
    return values_in(copy.as_of(txid), all_words(group, name))


@pytest.mark.parametrize("name", ["counts", "last"])
def test_it_follows_the_transactions_over_merges_and_restarts(group, tmp_path, name):
    copy = copy_of(group, name, tmp_path)
    publish_words(group, 1)
    assert held(group, name, copy, 1) == group.expected(name, 1)  # before the plain table is made
    folder = copy.as_of(1).folder
    for txids in ([2], [3, 4]):
        publish_words(group, *txids)
        assert held(group, name, copy, txids[-1]) == group.expected(name, txids[-1]), txids
    compactor_of(group, name).merge_once(3, force=True)
    publish_words(group, 5)
    assert held(group, name, copy, 5) == group.expected(name, 5)
    copy.close()
    publish_words(group, 6)
    copy = copy_of(group, name, tmp_path)
    assert held(group, name, copy, 6) == group.expected(name, 6)
    assert copy.as_of(6).folder == folder, "it was built again"
    compactor_of(group, name).merge_once(6, force=True)
    copy.close()
    shutil.rmtree(folder)
    built = copy_of(group, name, tmp_path)
    assert held(group, name, built, 6) == group.expected(name, 6)
    table = as_map(group.bindings[name], read_state(group.spark, group.warehouse, name, 6))
    assert held(group, name, built, 6) == table
    with pytest.raises(StaleCopy):
        built.as_of(2)  # the plain table is past it
    built.close()


def test_transactions_without_a_commit_leave_it_as_it_is(group, tmp_path):
    publish_words(group, 1, 2)
    copy = copy_of(group, "last", tmp_path)
    folder = copy.as_of(2).folder
    for txid in (2, 3, 3, 7, 5, 2, 7):  # a reader may be behind the batches
        assert held(group, "last", copy, txid) == group.expected("last", 2)
    assert copy.as_of(7).folder == folder and copy.health().builds == 1
    copy.close()


def test_a_log_that_is_past_the_transaction_costs_no_copy(group, tmp_path):
    """This process was replaced, or a transaction is published and has not advanced while a reader asks."""
    publish_words(group, 1, 2)
    copy = copy_of(group, "last", tmp_path)
    folder = copy.as_of(2).folder
    publish_words(group, 3)
    assert held(group, "last", copy, 2) == group.expected("last", 2)
    publish_words(group, 4)
    for txid in (1, 3):
        with pytest.raises(StaleCopy, match=f"past transaction {txid}"):
            copy.as_of(txid)
    assert held(group, "last", copy, 2) == group.expected("last", 2)
    assert held(group, "last", copy, 4) == group.expected("last", 4)
    with pytest.raises(StaleCopy, match="past transaction 2"):
        copy.as_of(2)
    assert copy.as_of(4).folder == folder and copy.health().builds == 1
    copy.close()


def test_a_copy_that_follows_is_at_the_last_transaction_of_the_log(group, tmp_path):
    copy = copy_of(group, "counts", tmp_path)
    for txids in ([1], [2, 3], []):
        publish_words(group, *txids)
        mark = copy.as_of(None).mark
        assert mark == copy.as_of(mark.txid).mark and mark.txid == max(txids, default=3)
        assert held(group, "counts", copy, mark.txid) == group.expected("counts", mark.txid)
    copy.close()


@pytest.mark.parametrize("then", ["same process", "restarted", "promised before"])
def test_after_the_tables_went_back_another_history_is_followed(group, tmp_path, then):
    """A back-up of the log was brought back, and transaction 3 became another one."""
    publish_words(group, 1, 2)
    log = Path(group.snapshots["last"].path)
    saved = shutil.copytree(log, tmp_path / "saved")
    publish_words(group, 3)
    copy = copy_of(group, "last", tmp_path)
    assert held(group, "last", copy, 3) == group.expected("last", 3)
    if then == "restarted":
        copy.close()
        copy = copy_of(group, "last", tmp_path)
    shutil.rmtree(log)
    shutil.copytree(saved, log)
    group.rows["last"] = [row for row in group.rows["last"] if row[0] < 3]
    group.attempt_id = 1
    group.publish(3, {"last": [("the", 33.0, False), ("new", 1.0, False)]}, only=["last"])
    group.publish(4, {"last": [("other", 4.0, False)]}, only=["last"])
    assert then != "promised before" or copy.promised(4) is None
    assert held(group, "last", copy, 4) == group.expected("last", 4)
    copy.close()


def test_a_promise_is_the_mark_that_the_copy_is_brought_to_and_none_reads_before(group, tmp_path):
    copy = copy_of(group, "last", tmp_path)
    publish_words(group, 1)
    assert copy.promised(1) is None, "there is no copy yet"
    folder = copy.as_of(1).folder
    assert copy.promised(1) == copy.as_of(1)
    publish_words(group, 2)
    promised = copy.promised(2)
    with pytest.raises(StaleCopy, match="holds something else"):
        look_up(promised, pa.array([b""], pa.large_binary()))
    with pytest.raises(StaleCopy, match="holds something else"):
        wait_for(promised.folder, promised.mark, 0.01)
    copy.catch_up(2)
    wait_for(promised.folder, promised.mark, 0)
    assert promised == copy.promised(2) == copy.as_of(2)
    for txid in (4, 3, 2):  # without a commit of the state; and asked again
        promised = copy.promised(txid)
        copy.catch_up(txid)
        assert promised == copy.as_of(txid) and promised.mark.txid == 4
    assert held(group, "last", copy, 4) == group.expected("last", 4)
    old = copy.as_of(4)
    publish_words(group, 5)
    assert copy.promised(4) is None, "the log is past it"
    assert copy.promised(5).mark != old.mark and copy.as_of(4) == old
    copy.catch_up(5)
    with pytest.raises(StaleCopy, match="holds something else"):  # at once: it is past, and not on its way
        wait_for(folder, old.mark, 60)
    assert held(group, "last", copy, 5) == group.expected("last", 5)
    assert copy.as_of(5).folder == folder and copy.health().builds == 1
    copy.close()
    assert copy.promised(5) is None


@pytest.mark.parametrize("limit", ["_WAITED_ROWS", "_WAITED_BYTES"])
def test_many_rows_are_not_promised_and_a_failure_in_them_makes_the_copy_anew(group, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(state_copy, "_OFF_SECS_MAX", 0.0)
    monkeypatch.setattr(state_copy, limit, 1)
    copy = copy_of(group, "last", tmp_path)
    publish_words(group, 1)
    copy.as_of(1)
    publish_words(group, 2)
    assert copy.promised(2) is None and copy.as_of(1).mark.txid == 1
    faults.arm("copy.publish:fail_before")
    with pytest.raises(faults.InjectedFault):
        copy.as_of(2)
    assert not faults.unfired() and copy.promised(2) is None
    assert held(group, "last", copy, 2) == group.expected("last", 2) and copy.health().builds == 2
    copy.close()


@pytest.mark.parametrize("harm", ["deleted", "cut", "foreign", "another boot", "another form"])
def test_a_copy_in_doubt_is_built_again(group, tmp_path, harm):
    publish_words(group, 1, 2)
    copy = copy_of(group, "counts", tmp_path)
    folder = copy.as_of(2).folder
    copy.close()
    (folder.parent / "a file of another program").mkdir()
    if harm == "deleted":
        shutil.rmtree(folder)
    elif harm == "cut":
        (data,) = folder.glob("*.rows")
        os.truncate(data, data.stat().st_size // 2)
    elif harm == "foreign":
        (data,) = folder.glob("*.list")
        data.write_bytes(b"nothing of ours")
    again = copy_of(group, "counts", tmp_path, boot="another" if harm == "another boot" else BOOT)
    if harm == "another form":
        again._digest = "another"
    publish_words(group, 3)
    assert held(group, "counts", again, 3) == group.expected("counts", 3)
    assert again.as_of(3).folder != folder
    assert sorted(os.listdir(folder.parent)) == sorted([again.as_of(3).folder.name, "a file of another program"])
    again.close()


def test_of_two_processes_each_has_its_own(group, tmp_path):
    publish_words(group, 1)
    one, other = copy_of(group, "counts", tmp_path), copy_of(group, "counts", tmp_path)
    assert one.as_of(1).folder != other.as_of(1).folder
    publish_words(group, 2)
    assert held(group, "counts", other, 2) == group.expected("counts", 2)
    assert one.as_of(2).folder != other.as_of(2).folder
    one.close(), other.close()


def test_copies_of_shards_cut_by_groups_each_have_the_rows_of_no_group(spark, engine, tmp_path, rng):
    """The first key column is a pane, or a part of the state; where the others are null stand the watermarks."""
    binding = keyed("open", "pane int, word string, n bigint", ["pane", "word"], None, "last", ordered_by="n")
    group = Group(spark, engine, tmp_path, binding)
    shards = list(WHOLE.parts(rng.randint(2, 7)))
    copies = [copy_of(group, "open", tmp_path / str(shard), shard=shard) for shard in shards]
    words = [None, *"abcdefgh"]
    for txid in range(1, 9):
        some = {(rng.randrange(3), rng.choice(words)) for _ in range(9)}
        group.publish(txid, {"open": [(*key, txid, rng.random() < 0.3) for key in some]})
        if txid == 4:
            compactor_of(group, "open").merge_once(txid, force=True)
        whole = group.expected("open", txid)
        for shard, copy in zip(shards, copies):
            if rng.random() < 0.3:
                copy.drop()
            found = copy.as_of(txid)
            assert found.shard == shard
            codec = RowCodec(found.schema, found.keys)
            steps = Placed.together(list(in_order(found)), found.values)
            in_it = set(codec.plain_keys(steps.keys.to_pylist()))
            groups = pa.table({"word": pa.array([word for _, word in whole], pa.string())})
            mine = shard.of_rows(groups, groups.schema, ["word"]).to_pylist()
            assert in_it == {key for key, is_mine in zip(whole, mine) if is_mine or key[1] is None}
            steps = Placed.together(list(in_order(found, shard=shard)), found.values)
            assert set(codec.plain_keys(steps.keys.to_pylist())) == {k for k, is_mine in zip(whole, mine) if is_mine}
    for copy in copies:
        copy.close()


def test_the_copy_of_a_large_table_is_built_beside_the_transactions(group, tmp_path):
    publish_words(group, 1)
    copy = copy_of(group, "counts", tmp_path, inline=0)
    with pytest.raises(StaleCopy, match="being built"):
        copy.as_of(1)
    publish_words(group, 2)
    end = time.monotonic() + 60
    while True:
        try:
            assert held(group, "counts", copy, 2) == group.expected("counts", 2)
            break
        except StaleCopy:
            assert time.monotonic() < end
            time.sleep(0.01)
    copy.close()


def test_a_copy_that_does_not_fit_is_off_for_a_while_and_says_why(group, tmp_path):
    publish_words(group, 1)
    copy = copy_of(group, "counts", tmp_path, bytes_max=100)
    assert copy.health().condition == "waiting"
    with pytest.raises(StaleCopy, match="is full"):
        copy.as_of(1)
    copy._off_until += 60
    for _ in range(2):
        with pytest.raises(StaleCopy, match="not tried for a while"):
            copy.as_of(1)
    health = copy.health()
    assert (health.condition, health.txid, health.bytes) == ("off", None, 0)
    assert "is full" in health.reason
    assert not list((tmp_path / "copies").glob("*/*.copy"))
    copy._off_until, copy._bytes_max = 0, 1 << 28
    assert held(group, "counts", copy, 1) == group.expected("counts", 1)
    health = copy.health()
    assert (health.condition, health.txid, health.builds, health.reason) == ("following", 1, 1, None)
    copy.close()


def test_a_log_file_that_lost_its_bytes_is_an_error_and_no_copy(group, tmp_path):
    publish_words(group, 1)
    copy = copy_of(group, "counts", tmp_path)
    copy.as_of(1)
    publish_words(group, 2)
    (lost,) = (Path(group.snapshots["counts"].path) / "data" / group.incarnation).glob("2-0-x/*.parquet")
    os.truncate(lost, 10)
    with pytest.raises(TableError, match="not what was written"):
        copy.as_of(2)
    copy.close()


def test_there_is_no_copy_with_a_sum_that_does_not_fit(spark, engine, tmp_path):
    group = Group(spark, engine, tmp_path, keyed("sums", "word string, n bigint", aggregator=Native("sum")))
    copy = copy_of(group, "sums", tmp_path)
    group.publish(1, {"sums": [("a", 2**62)]})
    copy.as_of(1)
    group.publish(2, {"sums": [("a", 2**62)]})
    with pytest.raises(StaleCopy, match="does not fit"):
        copy.as_of(2)
    copy.close()


@pytest.mark.parametrize("merging", ["last", "combine"])
def test_what_is_due_is_a_range_of_it_over_merges_and_restarts(spark, engine, tmp_path, merging):
    binding = keyed("open", "word string, n bigint", aggregator=Native("sum"), merging=merging, ordered_by="n")
    group = Group(spark, engine, tmp_path, binding)
    copy, gone = copy_of(group, "open", tmp_path), merging == "last"

    def due(txid, below):
        found = copy.as_of(txid)
        assert found.ordered_by == "n"
        codec = RowCodec(found.schema, found.keys)
        rows = Placed.together(list(in_order(found, None, below)), found.values)
        keys = codec.plain_keys(rows.keys.to_pylist())
        values = [tuple(row.values()) for row in rows.values.to_pylist()]
        return [(at, *key, *value) for at, key, value in zip(rows.positions.tolist(), keys, values)]

    def expected(txid, below):
        rows = sorted((n, word, n) for (word,), (n,) in group.expected("open", txid).items() if n is not None)
        return [row for row in rows if row[0] < below]

    for txid, rows in enumerate(
        ([("a", 5), ("b", 3), (None, 4)], [("a", 1), ("c", 3), ("none", None)], [("b", 2), ("c", -9)]), start=1
    ):
        group.publish(txid, {"open": [(*row, False) if gone else row for row in rows]})
        for below in (-5, 4, 5, 100):
            assert due(txid, below) == expected(txid, below), (txid, below)
    compactor_of(group, "open").merge_once(2, force=True)
    if gone:
        group.publish(4, {"open": [("a", None, True), (None, None, True)]})
        assert due(4, 100) == expected(4, 100) == [(-9, "c", -9), (2, "b", 2)]
    txid = 4 if gone else 3
    copy.close()
    copy = copy_of(group, "open", tmp_path)
    assert due(txid, 5) == expected(txid, 5)
    copy.drop()
    copy.close()
    copy = copy_of(group, "open", tmp_path)
    assert due(txid, 5) == expected(txid, 5) != []
    copy.close()


def test_a_copy_without_an_order_is_not_gone_on_with_where_there_is_one(spark, engine, tmp_path):
    group = Group(spark, engine, tmp_path, keyed("seen", "word string, n bigint", merging="last"))
    group.publish(1, {"seen": [("a", 1, False)]})
    copy = copy_of(group, "seen", tmp_path)
    folder = copy.as_of(1).folder
    copy.close()
    ordered = replace(group.descriptor("seen"), ordered_by="n")
    again = StateCopy(group.warehouse, ordered, folder.parent, 1 << 28, INLINE, BOOT)
    assert again.as_of(1).folder != folder and not folder.exists()
    again.close()


def copies_of(group):
    return StateCopies(group.warehouse, 1 << 28, "host", "boot", list(group.bindings))


def test_only_failures_without_a_success_between_them_turn_a_copy_off(group, tmp_path):
    publish_words(group, 1)
    copies = copies_of(group)
    for served in (True, True, False):
        for _ in range(3):
            copies.failed("last", "a worker could not use it")
        assert copies.as_of(["last"], 1) is not None
        if served:
            copies.served(["last"])
    copies.failed("last", "a worker could not use it")
    assert copies.as_of(["last"], 1) is None
    assert [one.condition for one in copies.health()] == ["waiting", "off"]
    copies.close()


def test_no_copy_is_opened_behind_a_close_until_this_process_follows_or_leads_again(group, tmp_path):
    """A thread that brings it on may come late, and would keep the next process on this host from writing it."""
    publish_words(group, 1)
    copies = copies_of(group)
    assert copies.as_of(["last"], 1) is not None
    late = copies._copies["last"]  # as a thread holds it that goes on behind the close
    publish_words(group, 2)
    copies.close()
    copies.catch_up(["last"], 2)
    copies.follow()
    assert copies.as_of(["last"], 2) is None and not copies._copies
    with pytest.raises(StaleCopy, match="left to the next process"):
        late.as_of(2)
    successor = copies_of(group)
    assert successor.as_of(["last"], 2) is not None
    successor.close()
    copies.leads()
    assert copies.as_of(["last"], 2) is not None
    copies.close()


def test_a_leader_has_looked_for_repairs_after_the_follower_that_it_was(tmp_path, monkeypatch):
    """Its thread may read the file of repairs before the leader writes it, and go on behind that."""
    (tmp_path / "_trident").mkdir()
    copies = StateCopies(tmp_path, 1 << 28, "host", "boot")
    forget_copies(tmp_path)
    has_read, may_go_on = threading.Event(), threading.Event()

    def slow(warehouse):
        found = last_repair(warehouse)
        if threading.current_thread() is follower:
            has_read.set()
            assert may_go_on.wait(60)
        return found

    monkeypatch.setattr("trident.states.keyed.copies.last_repair", slow)
    follower, leader = threading.Thread(target=copies.follow), threading.Thread(target=copies.leads)
    follower.start()
    assert has_read.wait(60)
    leader.start()
    leader.join(0.2)  # until it leads, or waits for the follower
    may_go_on.set()
    follower.join(60)
    leader.join(60)
    assert copies._repair == last_repair(tmp_path) and not copies._repair.startswith("repairing")


@pytest.mark.parametrize("first", ["leads", "waits"])
def test_copies_that_were_built_in_the_middle_of_a_repair_are_not_used(group, tmp_path, first):
    """A repair changes tables without a transaction: the mark of a copy does not tell."""
    publish_words(group, 1, 2)
    standbys = [copies_of(group) for _ in range(2)]

    def folders(copies):
        return {state: found.folder for state, found in copies.as_of(list(group.bindings), 2).items()}

    def follow():
        for one in standbys:
            one.follow()
        return [folders(one) for one in standbys]

    before = follow()
    assert follow() == before
    forget_copies(group.warehouse)  # the repair's first act; its changes come later than what is built now
    meanwhile = follow()
    (leader, waiting) = standbys if first == "leads" else reversed(standbys)
    leader.leads()
    waiting.follow()
    afterwards = [folders(one) for one in standbys]
    for states in zip(before, meanwhile, afterwards):
        assert len({found["counts"] for found in states}) == len({found["last"] for found in states}) == 3
    waiting.leads()
    assert [folders(one) for one in standbys] == afterwards, "no other repair has begun"
    assert len(list((group.warehouse / "_trident" / ".copies").glob("*/*/*.copy"))) == 4
    for one in standbys:
        one.close()
