"""How far a stream has come is compared with the group's record: what is missing or older in ZooKeeper halts.

Also how the metadata of many opaque partitions is stored, on a real ZooKeeper.
"""

from __future__ import annotations

import json

import pytest

from trident.coordinators.errors import Halted, ValueTooLarge
from trident.coordinators.group_store import GroupStore
from trident.coordinators.identities import TransactionAttempt as Attempt
from trident.coordinators.leadership import Leadership
from trident.coordinators.records import Decision, GroupRecord, Marker, TableMark, encode_value
from trident.coordinators.registration import delete_topology
from trident.coordinators.repairing import RepairStore
from trident.coordinators.transactional_state import PAGE_BYTES_MAX, OpaqueMetadata, partition_znode
from trident.coordinators.znodes import VALUE_BYTES_MAX, Create, Delete, SetData

GROUP, TX_IDS = "lines", ["lines", "words"]


@pytest.fixture
def lease(zk):
    lease = Leadership(zk, "wc", [GROUP]).acquire()
    yield lease
    lease.release()


@pytest.fixture
def store(zk, lease):
    store = opened(zk, lease)
    store.create(GroupRecord("inc", 1))
    return store


def opened(zk, lease, kind=GroupStore):
    store = kind(zk, "wc", GROUP, TX_IDS, lease.fences[GROUP])
    store.load()
    return store


def begin(store, pins):
    record = store.record
    txid = max([record.current_txid - 1, *record.attempts]) + 1
    before = record.last.attempt if record.last and txid == record.current_txid else None
    parent = before or (Attempt(txid - 1, record.attempts[txid - 1]) if txid > record.current_txid else None)
    store.begin(Attempt(txid, 0), parent, pins)


def finish(store, opaque=None, published=True):
    """Decides and advances the current transaction."""
    txid, record = store.record.current_txid, store.record
    if published:
        store.decide(Decision(txid, 0, f"m/{txid}-0.json", 1, "d"), record.last.attempt if record.last else None)
    store.advance(Marker(txid, 0, "d" if published else ""), published, {}, opaque)


def run_one(store, pins=None, opaque=None, published=True):
    begin(store, {"lines": {"at": store.record.current_txid}} if pins is None else pins)
    finish(store, opaque, published)


def pin_path(zk, tx_id, txid):
    return zk.path("wc", tx_id, "coordinator") + f"/{txid}"


def pages(zk, tx_id="words"):
    return zk.children(zk.path("wc", tx_id) + "/partitions")


# --- what is missing, older or another one -----------------------------------------------------------------


def test_a_pin_that_is_missing_halts_also_behind_an_empty_batch_and_with_a_decision_pending(zk, lease, store):
    run_one(store)
    run_one(store, published=False)
    begin(store, {"lines": {"at": 3}, "words": {"at": 9}})
    store.decide(Decision(3, 0, "m/3-0.json", 1, "d"), store.record.last.attempt)
    opened(zk, lease)
    for path in (pin_path(zk, "lines", 2), pin_path(zk, "lines", 3), pin_path(zk, "words", 3)):
        data, _ = zk.get(path)
        zk.multi([Delete(path)])
        with pytest.raises(Halted, match=f"transaction {path[-1]} of stream .* is missing.*trident repair wc"):
            opened(zk, lease)
        zk.multi([Create(path, data)])
        opened(zk, lease)


def test_an_older_pin_one_that_was_edited_and_one_too_many_halt(zk, lease, store):
    run_one(store)
    older = zk.get(pin_path(zk, "lines", 1))
    run_one(store)
    zk.multi([Create(pin_path(zk, "lines", 1), older[0])])
    with pytest.raises(Halted, match="transaction 1 of stream 'lines' is there, and must not be"):
        opened(zk, lease)
    zk.multi([Delete(pin_path(zk, "lines", 2))])
    with pytest.raises(Halted, match="is there, and must not be; the pin of transaction 2 .* is missing"):
        opened(zk, lease)
    zk.multi([Delete(pin_path(zk, "lines", 1)), Create(pin_path(zk, "lines", 2), older[0])])
    with pytest.raises(Halted, match="transaction 2 of stream 'lines' is another one"):
        opened(zk, lease)


def test_metadata_of_partitions_that_are_missing_or_older_halt(zk, lease, store):
    run_one(store, {}, {"words": {"p": 1, "q": 1}})
    (first,) = pages(zk)
    older = zk.get(zk.path("wc", "words") + f"/partitions/{first}")[0]
    run_one(store, {}, {"words": {"p": 2}})
    (second,) = pages(zk)
    path = zk.path("wc", "words") + f"/partitions/{second}"
    zk.multi([Delete(path)])
    with pytest.raises(Halted, match="the metadata of partitions of stream 'words' is missing"):
        opened(zk, lease)
    zk.multi([Create(path, older)])
    with pytest.raises(Halted, match="the metadata of partitions of stream 'words' is another one"):
        opened(zk, lease)


def test_streams_that_are_new_or_away_for_a_while_are_no_contradiction(zk, lease):
    alone = GroupStore(zk, "wc", GROUP, ["lines"], lease.fences[GROUP])
    alone.load()
    alone.create(GroupRecord("inc", 1))
    run_one(alone)
    both = opened(zk, lease)  # a stream is added,
    run_one(both, {"lines": {"at": 2}, "words": {"at": 2}})
    alone.load()  # taken out,
    run_one(alone)
    both = opened(zk, lease)  # and comes back to where it was.
    assert both.pins == {"lines": {3: {"at": 3}}, "words": {2: {"at": 2}}}
    run_one(both, {"lines": None, "words": None})  # a spout without metadata
    assert opened(zk, lease).pins == {"lines": {4: None}, "words": {4: None}}


def test_a_record_of_the_version_before_is_read_and_has_digests_from_its_next_write_on(zk, lease, store):
    run_one(store)
    path = zk.path("wc", GROUP, "coordinator")
    fields = json.loads(zk.get(path)[0])
    assert fields.pop("pins") and fields.pop("partitions")
    zk.multi([SetData(path, json.dumps(fields).encode(), zk.exists(path).znode_version)])
    old = opened(zk, lease)
    assert old.record.pins is None
    run_one(old)
    assert opened(zk, lease).record.pins.keys() == {"lines", "words"}


def test_who_only_reads_is_told_and_a_repair_may_go_on(zk, lease, store):
    run_one(store)
    zk.multi([Delete(pin_path(zk, "lines", 1))])
    reader = GroupStore(zk, "wc", GROUP, TX_IDS)
    reader.load()
    assert [(one.tx_id, one.txid, one.found) for one in reader.position_mismatches] == [("lines", 1, "")]
    repair = opened(zk, lease, RepairStore)
    repair.put_positions({"lines": {1: {"at": 1}}}, {})
    assert opened(zk, lease).pins["lines"] == {1: {"at": 1}}


# --- many partitions ---------------------------------------------------------------------------------------


def many(count, at):
    return {f"topic-with-a-long-name/{number}": {"offset": at, "epoch": 7} for number in range(count)}


def test_five_thousand_partitions_advance_and_cost_one_write_each_time(zk, lease, store):
    for at in (1, 2):
        store.check_advance(store.record.current_txid, {"words": many(5_000, at)})
        run_one(store, {}, {"words": many(5_000, at)})
    few = {"topic-with-a-long-name/17": {"offset": 99, "epoch": 7}}
    run_one(store, {}, {"words": few})
    again = opened(zk, lease)
    found = again.opaque_metadata["words"]
    assert {partition: metadata for partition, (_, metadata) in found.items()} == {**many(5_000, 2), **few}
    assert found["topic-with-a-long-name/17"][0] == 3 and found["topic-with-a-long-name/18"][0] == 2
    assert len(pages(zk)) <= 4


def test_two_streams_that_fit_alone_and_not_together_are_refused_before_the_decision_by_name(zk, store):
    for tx_id in TX_IDS:
        store.check_advance(1, {tx_id: {str(number): "x" * 500 for number in range(1_000)}})
    both = {tx_id: {str(number): "x" * 500 for number in range(1_000)} for tx_id in TX_IDS}
    with pytest.raises(ValueTooLarge, match="advance transaction 1.*spout lines 5.*spout words 5") as caught:
        store.check_advance(1, both)
    assert "950,000" in str(caught.value)
    run_one(store, {})  # nothing is broken by it


def test_a_window_of_changes_leaves_few_pages_whatever_moves_and_whatever_stays_away(zk, store):
    expected = {}
    for txid in range(1, 41):
        moved = {f"day-{txid}": txid, "always": txid, f"some-{txid % 7}": {"n": "x" * 2_000}}
        expected.update(moved)
        run_one(store, {}, {"words": moved})
        assert len(pages(zk)) <= 5
    found = {partition: metadata for partition, (_, metadata) in store.opaque_metadata["words"].items()}
    assert found == expected


def test_partitions_as_the_version_before_stored_them_are_read_and_taken_over(zk, lease, store):
    run_one(store, {})
    root, old = zk.path("wc", "words") + "/user", {f"t/{number}": {"at": number} for number in range(300)}
    zk.ensure_path(root)
    for partition, metadata in old.items():
        path = f"{root}/{partition_znode(partition)}"
        zk.multi([Create(path), Create(f"{path}/1", encode_value(metadata, ""))])
    path = zk.path("wc", GROUP, "coordinator")
    fields = {key: value for key, value in json.loads(zk.get(path)[0]).items() if key not in ("pins", "partitions")}
    zk.multi([SetData(path, json.dumps(fields).encode(), zk.exists(path).znode_version)])
    store = opened(zk, lease)
    assert {name: metadata for name, (_, metadata) in store.opaque_metadata["words"].items()} == old
    moved = {f"t/{number}": {"at": number + 1} for number in range(250)}
    run_one(store, {}, {"words": moved})
    store = opened(zk, lease)
    assert {name: metadata for name, (_, metadata) in store.opaque_metadata["words"].items()} == {**old, **moved}
    for _ in range(3):
        run_one(store, {}, {"words": {"t/0": {"at": store.record.current_txid}}})
    assert len(zk.children(root)) == 50  # those that stayed away
    assert store.opaque_metadata == opened(zk, lease).opaque_metadata


def test_a_reset_forgets_more_than_fits_into_one_write(zk, lease, store):
    root = zk.path("wc", "words") + "/user"
    zk.ensure_path(root)
    for number in range(400):
        name = partition_znode(f"{number}-" + "日" * 300)
        zk.multi([Create(f"{root}/{name}")])
    zk.multi([Delete(zk.path("wc", "live"))])
    assert delete_topology(zk, "wc") is True
    assert zk.children(zk.path("wc")) == [GROUP]


def test_a_page_is_never_larger_than_it_may_be(zk):
    metadata = OpaqueMetadata(zk, zk.path("wc", "words"), "spout words")
    changes = metadata.change(1, {str(number): "x" * 3_000 for number in range(300)})
    assert len(changes.ops) == 4 and all(len(op.value) <= PAGE_BYTES_MAX + 1_000 for op in changes.ops)
    assert len(changes.values()) == 300


def test_a_value_that_does_not_fit_into_a_page_is_refused_before_the_decision(zk, store):
    store.check_advance(1, {"words": {"p": "x" * (VALUE_BYTES_MAX - 100)}})
    with pytest.raises(ValueTooLarge, match="spout words"):
        store.check_advance(1, {"words": {"p": "x" * (VALUE_BYTES_MAX - 10)}})


# --- what a spout does with what it is given ---------------------------------------------------------------


def test_a_spout_that_changes_the_metadata_that_it_was_given_changes_nothing_of_what_is_stored(zk, lease, store):
    begin(store, {"lines": {"at": 1}})
    given = store.begin(Attempt(1, 1), None, {"lines": {"at": 7}})["lines"]
    assert given == {"at": 1}
    given["at"] = 8  # by an emitter
    store.pins["lines"][1]["at"] = 9  # by a coordinator: prev_metadata["at"] += …
    assert store.begin(Attempt(1, 2), None, {"lines": {"at": 9}})["lines"] == {"at": 1}
    assert store.pins == opened(zk, lease).pins


# --- a record of the version before ---------------------------------------------------------------------------


def without_digests(zk):
    path = zk.path("wc", GROUP, "coordinator")
    fields = {key: value for key, value in json.loads(zk.get(path)[0]).items() if key not in ("pins", "partitions")}
    zk.multi([SetData(path, json.dumps(fields).encode(), zk.exists(path).znode_version)])


def test_a_repair_of_something_else_does_not_vouch_for_positions(zk, lease, store):
    run_one(store)
    begin(store, {"lines": {"at": 2}})
    store.decide(Decision(2, 0, "m/2-0.json", 1, "d"), store.record.last.attempt)
    without_digests(zk)
    repair = opened(zk, lease, RepairStore)
    repair.put_tables({"id": TableMark(0, 0, 0, "")})
    repair.abandon(repair.decision)
    assert opened(zk, lease).record.pins is None
    repair.put_positions({"lines": {1: {"at": 1}}}, {})
    assert opened(zk, lease).record.pins["lines"].keys() == {1}
