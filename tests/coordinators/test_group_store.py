"""A group's writes to a real ZooKeeper: fenced, in one multi, and done exactly once whatever is lost."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.long_cases import sample
from trident.coordinators.errors import (
    ConfigError,
    CoordinationError,
    CorruptZnode,
    Deposed,
    OutcomeUnknown,
    StaleState,
    ValueTooLarge,
)
from trident.coordinators.group_store import Begin, GroupStore, SupersededAttempt
from trident.coordinators.identities import TransactionAttempt as Attempt
from trident.coordinators.leadership import Leadership
from trident.coordinators.records import Decision, GroupRecord, Marker, TableMark, UsedAttempts
from trident.coordinators.registration import Registration, delete_topology
from trident.coordinators.znodes import Create, Delete, SetData

GROUP, TX_IDS = "lines", ["lines", "words"]
IDENTITY = {"streams": {"lines": "A", "words": "B"}, "states": {}, "groups": {"lines": ["lines", "words"]}}


def lead(zk, topology="wc"):
    lease = Leadership(zk, topology, [GROUP]).acquire()
    return lease, opened(zk, lease, topology)


def opened(zk, lease, topology="wc"):
    store = GroupStore(zk, topology, GROUP, TX_IDS, lease.fences[GROUP])
    store.load()
    return store


@pytest.fixture
def store(zk):
    lease, store = lead(zk)
    store.create(GroupRecord("inc", 1))
    yield store
    lease.release()


def decision(txid, attempt_id=0):
    return Decision(txid, attempt_id, f"manifests/{txid}-{attempt_id}.json", 10, "ab")


def parent_of(store):
    return store.record.last.attempt if store.record.last else None


def run_one(store, attempt_id=0):
    """One transaction, from begin to advance."""
    txid, parent = store.record.current_txid, parent_of(store)
    store.begin(Attempt(txid, attempt_id), parent, {"lines": {"n": txid}})
    store.decide(decision(txid, attempt_id), parent)
    store.advance(Marker(txid, attempt_id, f"d{txid}"), True, {"t": TableMark(txid, txid, attempt_id, f"d{txid}")})


def reread(store):
    """What another process would read."""
    other = GroupStore(store._zk, store.topology, store.group, store.tx_ids)
    return other.load(), other


def coordinator_znode_version(store):
    return store._zk.exists(store._zk.path("wc", GROUP, "coordinator")).znode_version


# -- one transaction --------------------------------------------------------


def test_no_attempt_begins_with_an_id_that_a_rollback_took_back(zk):
    lease, store = lead(zk)
    store.create(GroupRecord("inc-r1", 1, used=UsedAttempts(2, 7)))
    with pytest.raises(SupersededAttempt):
        store.begin(Attempt(1, 7), None, {})
    run_one(store, 8)
    assert reread(store)[0][0].used == UsedAttempts(2, 7)
    with pytest.raises(SupersededAttempt):
        store.begin(Attempt(2, 0), parent_of(store), {})
    run_one(store, 8)
    run_one(store, 0)
    lease.release()


def test_an_imported_position_is_the_metadata_before_the_first_transaction(zk):
    """Written with the record, by one multi; gone once the first transaction has advanced."""
    lease, store = lead(zk)
    store.create(GroupRecord("inc", 1), {"lines": {"n": 41}})
    (record, _, pins), other = reread(store)
    assert record.current_txid == 1 and pins == {"lines": {0: {"n": 41}}, "words": {}} and not other.position_mismatches
    lease.release()
    lease = Leadership(zk, "wc", [GROUP]).acquire()
    successor = opened(zk, lease)
    run_one(successor)
    assert reread(successor)[0][2]["lines"] == {1: {"n": 1}}
    lease.release()


def test_a_transaction_step_by_step_as_another_process_reads_it(store):
    assert reread(store)[0] == (GroupRecord("inc", 1), None, {"lines": {}, "words": {}})
    pinned = store.begin(Attempt(1, 0), None, {"lines": {"from": 0}, "words": [1, 2]})
    assert pinned == {"lines": {"from": 0}, "words": [1, 2]}
    store.begin(Attempt(2, 0), Attempt(1, 0), {"lines": {"from": 7}})
    begun = GroupRecord("inc", 1, {1: 0, 2: 0}, {1: None, 2: 0})
    pins = {"lines": {1: {"from": 0}, 2: {"from": 7}}, "words": {1: [1, 2]}}
    assert reread(store)[0] == (begun, None, pins)
    store.decide(decision(1), None)
    assert reread(store)[0] == (begun, decision(1), pins)
    mark = TableMark(4, 1, 0, "d")
    store.advance(Marker(1, 0, "d"), True, {"t": mark})
    after = GroupRecord("inc", 2, {2: 0}, {2: 0}, Marker(1, 0, "d"), Marker(1, 0, "d"), {"t": mark})
    assert reread(store)[0] == (after, None, pins)
    # An empty batch: not decided, not published; the pin of 1 is not needed any more.
    store.advance(Marker(2, 0, ""), False, {})
    after = replace(after, current_txid=3, attempts={}, parents={}, last=Marker(2, 0, ""))
    assert reread(store)[0] == (after, None, {"lines": {2: {"from": 7}}, "words": {}})


def test_three_multis_a_transaction_and_none_when_idle(store):
    run_one(store)
    before = replace(store._zk.counters)
    for _ in range(5):
        run_one(store)
    assert store._zk.counters.multis - before.multis == 15
    assert store._zk.counters.writes - before.writes == 15
    assert store._zk.counters.reads == before.reads


def test_an_advance_and_the_next_begin_are_one_multi(store):
    store.begin(Attempt(1, 0), None, {"lines": 1, "words": 1})
    store.decide(decision(1), None)
    before = store._zk.counters.multis
    pinned = store.advance(Marker(1, 0, "d"), True, {}, {}, Begin(Attempt(2, 0), Attempt(1, 0), {"lines": (2, 3)}))
    assert pinned == {"lines": [2, 3]} and store._zk.counters.multis == before + 1
    record, decided, pins = reread(store)[0]
    assert (record.current_txid, record.attempts, record.parents, decided) == (2, {2: 0}, {2: 0}, None)
    assert pins == {"lines": {1: 1, 2: [2, 3]}, "words": {1: 1}}
    store.advance(Marker(2, 0, "d"), False, {}, {}, Begin(Attempt(3, 0), Attempt(2, 0), {"lines": 3}))
    assert reread(store)[0] == (store.record, None, {"lines": {2: [2, 3], 3: 3}, "words": {}})


@pytest.mark.parametrize(
    ("begin", "error"),
    [
        (Begin(Attempt(2, 0), Attempt(1, 7), {}), SupersededAttempt),
        (Begin(Attempt(3, 0), Attempt(2, 0), {}), SupersededAttempt),
        (Begin(Attempt(2, 0), Attempt(1, 0), {"words": "x" * 600_000}), ValueTooLarge),
        (Begin(Attempt(2, 0), Attempt(1, 0), {"lines": object()}), ConfigError),
    ],
    ids=["another parent", "out of order", "too large", "no JSON"],
)
def test_a_begin_that_cannot_be_does_not_hold_back_the_advance(store, begin, error):
    store.begin(Attempt(1, 0), None, {"lines": 1})
    assert store.advance(Marker(1, 0, ""), False, {}, {}, begin) is None
    assert reread(store)[0] == (GroupRecord("inc", 2, {}, {}, Marker(1, 0, "")), None, {"lines": {1: 1}, "words": {}})
    with pytest.raises(error):
        store.begin(*begin)
    store.begin(Attempt(2, 0), Attempt(1, 0), {"lines": 2})


def test_a_pin_is_got_or_created_and_given_back_as_json_will_give_it(store):
    assert store.begin(Attempt(1, 0), None, {"lines": {"range": (0, 5), 1: "x"}}) == {
        "lines": {"range": [0, 5], "1": "x"}
    }
    assert store.begin(Attempt(1, 1), None, {"lines": {"range": (0, 9)}, "words": None}) == {
        "lines": {"range": [0, 5], "1": "x"},
        "words": None,
    }
    assert reread(store)[0][2] == {"lines": {1: {"range": [0, 5], "1": "x"}}, "words": {1: None}}


def test_a_smaller_pin_replaces_and_deletes_the_later_ones_of_its_stream(store):
    for txid in (1, 2, 3):
        parent = Attempt(txid - 1, 0) if txid > 1 else None
        store.begin(Attempt(txid, 0), parent, {"lines": txid, "words": txid})
    assert store.begin(Attempt(1, 1), None, {"lines": 0.5}, repin=True) == {"lines": 0.5}
    assert reread(store)[0][2] == {"lines": {1: 0.5}, "words": {1: 1, 2: 2, 3: 3}}


def test_an_attempt_id_is_never_used_again(store, zk):
    store.begin(Attempt(1, 0), None, {})
    store.begin(Attempt(1, 3), None, {})
    for late in (0, 2, 3):
        with pytest.raises(SupersededAttempt, match="1:3"):
            store.begin(Attempt(1, late), None, {})
    assert reread(store)[0][0].attempts == {1: 3}


@pytest.mark.parametrize(
    ("attempt", "parent"),
    [
        (Attempt(3, 0), Attempt(2, 0)),
        (Attempt(2, 0), Attempt(1, 0)),
        (Attempt(2, 0), None),
        (Attempt(1, 2), Attempt(1, 0)),
        (Attempt(0, 0), None),
    ],
)
def test_a_begin_out_of_order_or_on_another_parent_changes_nothing(store, attempt, parent):
    store.begin(Attempt(1, 1), None, {})
    before = reread(store)[0]
    with pytest.raises(SupersededAttempt):
        store.begin(attempt, parent, {"lines": 1})
    assert reread(store)[0] == before
    store.begin(Attempt(2, 0), Attempt(1, 1), {"lines": 1})


def test_what_is_decided_is_not_begun_again(store):
    store.begin(Attempt(1, 0), None, {})
    store.decide(decision(1), None)
    with pytest.raises(SupersededAttempt, match="decision"):
        store.begin(Attempt(1, 1), None, {})
    assert reread(store)[0][0].attempts == {1: 0}


def test_only_the_last_begun_attempt_at_the_current_txid_is_decided_once(store):
    run_one(store)
    store.begin(Attempt(2, 0), Attempt(1, 0), {})
    store.begin(Attempt(2, 1), Attempt(1, 0), {})
    store.begin(Attempt(3, 0), Attempt(2, 1), {})
    for wrong, parent in [
        (decision(2, 0), Attempt(1, 0)),
        (decision(3, 0), Attempt(2, 1)),
        (decision(2, 1), Attempt(1, 1)),
        (decision(2, 1), None),
        (decision(1, 0), None),
    ]:
        with pytest.raises(StaleState):
            store.decide(wrong, parent)
    store.decide(decision(2, 1), Attempt(1, 0))
    store.decide(decision(2, 1), Attempt(1, 0))
    with pytest.raises(StaleState):
        store.decide(replace(decision(2, 1), sha256="cd"), Attempt(1, 0))
    assert reread(store)[0][1] == decision(2, 1)


def test_nothing_advances_that_was_not_decided_nor_another_attempt(store):
    store.begin(Attempt(1, 0), None, {})
    with pytest.raises(StaleState):
        store.advance(Marker(1, 0, "d"), True, {})
    with pytest.raises(StaleState):
        store.advance(Marker(1, 1, ""), False, {})
    store.decide(decision(1), None)
    for marker, published in [(Marker(1, 0, "d"), False), (Marker(1, 1, "d"), True), (Marker(2, 0, "d"), True)]:
        with pytest.raises(StaleState):
            store.advance(marker, published, {})
    store.advance(Marker(1, 0, "d"), True, {})
    store.advance(Marker(1, 0, "d"), True, {})
    assert store.record.current_txid == 2


def test_opaque_metadata_is_kept_per_partition_until_it_returns(store):
    topics = [{"a/0": {"at": 5}, "日志": 1}, {"a/0": {"at": 9}}, {"日志": 2}]
    for metadata in topics:
        txid = store.record.current_txid
        store.begin(Attempt(txid, 0), parent_of(store), {})
        store.decide(decision(txid), parent_of(store))
        store.advance(Marker(txid, 0, "d"), True, {}, {"words": metadata})
    expected = {"lines": {}, "words": {"a/0": (2, {"at": 9}), "日志": (3, 2)}}
    assert store.opaque_metadata == expected
    assert reread(store)[1].opaque_metadata == expected


def test_table_marks_change_outside_of_a_transaction(store):
    store.put_tables({"a": TableMark(1, 0, 0, ""), "b": TableMark(1, 0, 0, "")})
    store.put_tables({"a": TableMark(2, 0, 0, "")}, removed=["b"])
    assert dict(reread(store)[0][0].tables) == {"a": TableMark(2, 0, 0, "")}


def test_values_that_are_too_large_name_the_spout_and_break_nothing(store):
    with pytest.raises(ValueTooLarge, match="spout words"):
        store.begin(Attempt(1, 0), None, {"words": "x" * 600_000})
    store.begin(Attempt(1, 0), None, {"words": "x"})
    with pytest.raises(ValueTooLarge, match="decision"):
        store.decide(replace(decision(1), manifest="m" * 70_000), None)
    with pytest.raises(ConfigError, match="spout lines"):
        store.begin(Attempt(1, 1), None, {"lines": object()})
    store.decide(decision(1), None)


def test_names_and_streams_that_cannot_be(zk, store):
    for name in ("live", "identity", "incarnation", "a/b", ""):
        with pytest.raises(ConfigError):
            GroupStore(zk, "wc", name, [name])
    with pytest.raises(CoordinationError, match="stranger"):
        store.begin(Attempt(1, 0), None, {"stranger": 1})
    with pytest.raises(CoordinationError, match="to be read"):
        reread(store)[1].begin(Attempt(1, 0), None, {})


def test_threads_may_begin_while_another_commits(store):
    errors: list[BaseException] = []
    run_one(store)
    store.begin(Attempt(2, 0), Attempt(1, 0), {"lines": 2})

    def replay():
        try:
            for attempt_id in range(1, 40):
                store.begin(Attempt(2, attempt_id), Attempt(1, 0), {"words": attempt_id})
        except SupersededAttempt:
            pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=replay)
    thread.start()
    decided = None
    while decided is None:
        try:
            wanted = decision(2, store.record.attempts[2])
            store.decide(wanted, Attempt(1, 0))
            decided = wanted
        except StaleState:
            pass
    thread.join()
    assert errors == []
    record, stored, _ = reread(store)[0]
    assert stored == decided and record.attempts[2] == decided.attempt_id


# -- the fence --------------------------------------------------------------


def test_a_paused_leader_that_wakes_up_writes_nothing(zk, zk_connect):
    lease, stale = lead(zk)
    stale.create(GroupRecord("inc", 1))
    stale.begin(Attempt(1, 0), None, {"lines": 1})
    # It is paused; its live znode goes with the session, and another leads.
    zk.multi([Delete(zk.path("wc", "live"))])
    successor_lease, successor = lead(zk_connect())
    assert successor.record.attempts == {1: 0}
    with pytest.raises(Deposed):
        lease.fences[GROUP].verify(zk)
    successor_lease.fences[GROUP].verify(zk)
    before = reread(successor)[0]
    for write in (
        lambda writer: writer.begin(Attempt(1, 1), None, {"words": 1}),
        lambda writer: writer.decide(decision(1), None),
        lambda writer: writer.advance(Marker(1, 0, ""), False, {}),
    ):
        fresh = opened(zk, lease)
        for writer in (stale, fresh):
            with pytest.raises((Deposed, OutcomeUnknown)):
                write(writer)
        stale = fresh
    assert reread(successor)[0] == before
    successor.begin(Attempt(1, 1), None, {})
    successor.decide(decision(1, 1), None)


def test_a_store_that_is_read_while_a_successor_writes_is_deposed_and_not_corrupt(zk, zk_connect, monkeypatch):
    """The record is read before the successor decides, the decision after it."""
    lease, store = lead(zk)
    store.create(GroupRecord("inc", 1))
    zk.multi([Delete(zk.path("wc", "live"))])
    _, successor = lead(zk_connect())
    get = zk.get

    def meanwhile(path, *watch):
        if path.endswith("/decided"):
            run_one(successor)
            successor.begin(Attempt(2, 0), parent_of(successor), {})
            successor.decide(decision(2), parent_of(successor))
        return get(path, *watch)

    monkeypatch.setattr(zk, "get", meanwhile)
    with pytest.raises(Deposed):
        opened(zk, lease)


def test_a_store_that_was_deposed_stays_closed(zk, zk_connect):
    lease, stale = lead(zk)
    stale.create(GroupRecord("inc", 1))
    zk.multi([Delete(zk.path("wc", "live"))])
    lead(zk_connect())
    with pytest.raises(Deposed):
        stale.begin(Attempt(1, 0), None, {})
    with pytest.raises(OutcomeUnknown, match="Deposed"):
        stale.begin(Attempt(1, 0), None, {})


def test_an_edit_by_hand_is_noticed_while_the_fence_is_intact(store, zk):
    path = zk.path("wc", GROUP, "coordinator")
    zk.multi([SetData(path, zk.get(path)[0], -1)])
    with pytest.raises(StaleState, match="another writer"):
        store.begin(Attempt(1, 0), None, {})


# -- unknown outcomes -------------------------------------------------------

WRITES = {
    "begin": lambda store: store.begin(Attempt(3, 0), Attempt(2, 0), {"words": "new"}),
    "repin": lambda store: store.begin(Attempt(2, 1), Attempt(1, 0), {"lines": "smaller"}, repin=True),
    "decide": lambda store: store.decide(decision(2), Attempt(1, 0)),
    "advance": lambda store: store.advance(Marker(2, 0, ""), False, {"t": TableMark(9, 2, 0, "")}, {"words": {"p": 1}}),
    "advance, with a begin": lambda store: store.advance(
        Marker(2, 0, ""), False, {}, {"words": {"p": 1}}, Begin(Attempt(3, 0), Attempt(2, 0), {"words": "new"})
    ),
    "put_tables": lambda store: store.put_tables({"n": TableMark(1, 0, 0, "")}),
}


def prepared(zk, topology="wc"):
    lease, store = lead(zk, topology)
    store.create(GroupRecord("inc", 1))
    run_one(store)
    store.begin(Attempt(2, 0), Attempt(1, 0), {"lines": 2, "words": 2})
    return lease, store


LOST = [(name, lose) for name in WRITES for lose in ("request", "answer", "request answer")]
# The answer is the more dangerous: what was asked for has happened.
LOST_QUICKLY = [*((name, "answer") for name in WRITES), ("decide", "request"), ("advance", "request answer")]


@pytest.mark.parametrize(("name", "lose"), sample(LOST, *LOST_QUICKLY))
def test_a_lost_connection_resolves_to_exactly_one_effect(cutting_proxy, zk_connect, zk, name, lose):
    _, reference = prepared(zk, "reference")
    WRITES[name](reference)
    store = prepared(zk_connect(cutting_proxy.hosts))[1]
    before = coordinator_znode_version(store)
    cutting_proxy.cut_next_multi(*lose.split())
    WRITES[name](store)
    assert cutting_proxy.cuts == len(lose.split())
    assert coordinator_znode_version(store) == before + 1
    stored, reader = reread(store)
    assert stored == reread(reference)[0] == (store.record, store.decision, store.pins)
    assert reader.opaque_metadata == store.opaque_metadata
    store.put_tables({"later": TableMark(1, 0, 0, "")})


@pytest.mark.parametrize("lose", ["request", "answer"])
def test_a_lost_connection_while_the_record_is_created(cutting_proxy, zk_connect, lose):
    store = lead(zk_connect(cutting_proxy.hosts))[1]
    cutting_proxy.cut_next_multi(lose)
    store.create(GroupRecord("inc", 1))
    assert cutting_proxy.cuts == 1 and reread(store)[0][0] == GroupRecord("inc", 1)
    run_one(store)


WRITTEN_AT = [(f"zk.{name}", name) for name in ("begin", "decide", "advance")]
WRITTEN_AT += [(f"zk.{name}", "advance, with a begin") for name in ("begin", "advance")]


@pytest.mark.parametrize("outcome", ["fail_before", "do_then_fail"])
@pytest.mark.parametrize(("point", "name"), WRITTEN_AT)
def test_an_injected_fault_resolves_to_exactly_one_effect(zk, armed, point, name, outcome):
    store = prepared(zk)[1]
    before = coordinator_znode_version(store)
    armed(f"{point}:{outcome}")
    WRITES[name](store)
    assert coordinator_znode_version(store) == before + 1
    assert reread(store)[0] == (store.record, store.decision, store.pins)


DEPOSED = [(name, lose) for name in WRITES for lose in ("request", "answer")]


@pytest.mark.parametrize(
    ("name", "lose"),
    sample(DEPOSED, ("begin", "answer"), ("decide", "request"), ("decide", "answer"), ("advance", "request")),
)
def test_deposed_while_the_answer_was_lost(cutting_proxy, zk_connect, zk, name, lose):
    """The successor writes the same bytes: the loser must not take them for its own."""
    store = prepared(zk_connect(cutting_proxy.hosts))[1]

    def another_leads():
        zk.multi([Delete(zk.path("wc", "live"))])
        successor = lead(zk)[1]
        if lose == "request":
            WRITES[name](successor)

    cutting_proxy.before_cut = another_leads
    cutting_proxy.cut_next_multi(lose)
    with pytest.raises(Deposed):
        WRITES[name](store)
    assert cutting_proxy.cuts == 1


def test_a_lost_session_is_told_to_the_caller_and_closes_the_store(cutting_proxy, zk_connect, zk):
    lease, store = prepared(zk_connect(cutting_proxy.hosts, session_secs=1.5))
    cutting_proxy.before_cut = cutting_proxy.go_down
    cutting_proxy.cut_next_multi("answer")
    with pytest.raises(OutcomeUnknown):
        WRITES["decide"](store)
    assert lease.lost.wait(5)
    cutting_proxy.down = False
    with pytest.raises(OutcomeUnknown):
        WRITES["begin"](store)
    # The next leader finds what became of it, and finishes it. It need not wait for the session's end: the client
    # may have connected again just before, so that the server never ended it (the lease is lost all the same).
    lease.release()
    successor = lead(zk)[1]
    assert successor.decision == decision(2)
    successor.advance(Marker(2, 0, "d"), True, {})


def test_a_write_is_not_repeated_in_the_next_session(cutting_proxy, zk_connect):
    """The connection comes back by itself, with a new session: by then another may lead."""
    lease, store = prepared(zk_connect(cutting_proxy.hosts, session_secs=1.5))
    before = coordinator_znode_version(store)

    def come_back():
        lease.lost.wait(10)
        cutting_proxy.down = False

    cutting_proxy.before_cut = cutting_proxy.go_down
    cutting_proxy.cut_next_multi("request")
    thread = threading.Thread(target=come_back)
    thread.start()
    with pytest.raises(OutcomeUnknown):
        WRITES["decide"](store)
    thread.join()
    assert lease.lost.is_set()
    assert store._zk.wait_connected(timeout_secs=10)
    assert coordinator_znode_version(store) == before
    lease.release()


# -- damage -----------------------------------------------------------------


@pytest.mark.parametrize("names", [(GROUP, "coordinator"), (GROUP, "decided"), ("words", "coordinator", "1")])
def test_a_znode_that_holds_garbage_is_named(store, zk, names):
    store.begin(Attempt(1, 0), None, {"words": 1})
    store.decide(decision(1), None)
    path = zk.path("wc", *names)
    zk.multi([SetData(path, b"garbage", -1)])
    with pytest.raises(CorruptZnode) as raised:
        reread(store)
    assert raised.value.path == path


@pytest.mark.parametrize("wrong", [decision(2, 0), decision(1, 1)])
def test_a_decision_that_does_not_fit_the_record_is_corrupt(store, zk, wrong):
    from trident.coordinators.records import encode

    store.begin(Attempt(1, 0), None, {})
    zk.multi([Create(zk.path("wc", GROUP, "decided"), encode(wrong))])
    with pytest.raises(CorruptZnode, match="decided"):
        reread(store)


# -- reset ------------------------------------------------------------------


def test_reset_forgets_all_but_the_fence(zk, zk_connect):
    lease, store = prepared(zk)
    Registration(zk, "wc").ensure(IDENTITY, fences=lease.fences.values())
    other = zk_connect()
    with pytest.raises(Deposed, match="running"):
        delete_topology(other, "wc")
    store.begin(Attempt(2, 1), Attempt(1, 0), {})
    # Its process sleeps; the ephemeral znode is gone, then the topology is reset.
    zk.multi([Delete(zk.path("wc", "live"))])
    assert delete_topology(other, "wc") is True
    assert zk.children(zk.path("wc")) == [GROUP] and zk.children(zk.path("wc", GROUP)) == ["leader"]
    assert delete_topology(other, "wc") is False and delete_topology(other, "never") is False
    with pytest.raises(Deposed):
        store.begin(Attempt(2, 2), Attempt(1, 0), {})
    new_lease, new = lead(other)
    assert new.load() == (None, None, {"lines": {}, "words": {}})
    assert new_lease.fences[GROUP].epoch > lease.fences[GROUP].epoch
    assert Registration(other, "wc").read() is None


def test_a_new_record_does_not_inherit_the_metadata_of_an_interrupted_reset(zk):
    lease, store = prepared(zk)
    store.advance(Marker(2, 0, ""), False, {}, {"words": {"p": 1}})
    store.begin(Attempt(3, 0), Attempt(2, 0), {"words": 3})
    for tx_path in (zk.path("wc", GROUP, "coordinator"),):
        for txid in zk.children(tx_path):
            zk.multi([Delete(f"{tx_path}/{txid}")])
        zk.multi([Delete(tx_path)])
    fresh = opened(zk, lease)
    assert fresh.pins["words"] and fresh.opaque_metadata["words"]
    fresh.create(GroupRecord("inc2", 1))
    assert reread(fresh)[0][2] == {"lines": {}, "words": {}}
    assert reread(fresh)[1].opaque_metadata == {"lines": {}, "words": {}}
    run_one(fresh)
