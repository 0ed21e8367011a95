"""What every store of ours keeps to: rows survive, and an older coordinator cannot write after a newer one."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace

import pytest

from tests.servers.redis_fixtures import PASSWORD
from trident.coordinators.errors import (
    ConfigError,
    EnvironmentProblem,
    ForeignTable,
    OutcomeUnknown,
    StaleEpoch,
    TopologyError,
    TridentError,
)
from trident.states.core.values import OpaqueValue, Semantics
from trident.states.maps.backed_map import BackedMapState, non_transactional, opaque, transactional
from trident.states.maps.backing_maps import MemoryBackingMap
from trident.states.maps.map_states import CachedMap, NonTransactionalMap, OpaqueMap, TransactionalMap
from trident.states.maps.redis_store import RedisMap
from trident.states.maps.sqlite_store import SqliteMap

STORES = ["memory", "sqlite", "redis"]
BETWEEN_PROCESSES = ["sqlite", "redis"]
_numbers = itertools.count()


@pytest.fixture
def store(request, tmp_path):
    """A new map of the kind that the test is parametrized with."""
    name = f"backing{next(_numbers)}"
    kind = request.param
    if kind == "memory":
        return MemoryBackingMap(name)
    if kind == "sqlite":
        return SqliteMap(tmp_path / "maps.db", name)
    return RedisMap(request.getfixturevalue("redis_server").url, name)


every_store = pytest.mark.parametrize("store", STORES, indirect=True)
shared_stores = pytest.mark.parametrize("store", BETWEEN_PROCESSES, indirect=True)


@every_store
def test_rows_are_kept_as_they_were_put(store):
    keys = [("a", 1), ("a", 1.0), (), ("ä\ud800\0'\"",), (None, (b"x",))]
    values = [1, [1, {"x": (2,)}], OpaqueValue(5, 1, None, "i"), "'; DROP TABLE", -0.0]
    store.multi_put(keys, values)
    assert store.multi_get([*keys, ("none",)]) == [*values, None]
    assert store.multi_get([keys[1], keys[0], keys[1]]) == [values[1], values[0], values[1]]
    store.multi_put([keys[0], ("none",), keys[1], keys[1]], [None, None, 5, 6])
    assert dict(store.items()) == dict(zip(keys[1:], [6, *values[2:]]))
    assert store.multi_get([]) == []
    for bad in ([["a"]], [(object(),)]):
        with pytest.raises(ConfigError):
            store.multi_put(bad, [1])
    with pytest.raises(ConfigError):
        store.multi_put([keys[2], ("new",)], [1, object()])
    assert store.multi_get([keys[2], ("new",)]) == [values[2], None]
    again = pickle.loads(pickle.dumps(store))
    assert again == store and again.multi_get(keys) == store.multi_get(keys)


@every_store
def test_more_keys_than_one_call_takes(store):
    keys = [(n,) for n in range(12_345)]
    store.multi_put(keys, keys, epoch=1)
    assert store.multi_get(keys[::-1]) == keys[::-1]
    assert len(list(store.items())) == len(keys)


@every_store
def test_an_older_epoch_is_refused_and_changes_nothing(store):
    store.multi_put([("k",)], ["first"], epoch=3)
    store.multi_put([("k",)], ["same epoch"], epoch=3)
    store.multi_put([("k",)], ["none given"])
    for keys in ([("k",), ("new",)], []):
        with pytest.raises(StaleEpoch, match="epoch 2.*epoch 3.*must stop"):
            store.multi_put(keys, ["zombie"] * len(keys), epoch=2)
    # A put without rows shuts the door too.
    store.multi_put([], [], epoch=10)
    with pytest.raises(StaleEpoch, match="epoch 9.*epoch 10"):
        store.multi_put([("k",)], ["zombie"], epoch=9)
    assert dict(store.items()) == {("k",): "none given"}
    store.clear()
    store.multi_put([("k",)], ["after a reset"], epoch=1)
    assert dict(store.items()) == {("k",): "after a reset"}


@every_store
def test_two_maps_of_one_store_do_not_know_each_other(store):
    where = "table" if isinstance(store, SqliteMap) else "name"
    other = replace(store, **{where: f"{getattr(store, where)}x"})
    store.multi_put([("k",)], [1], epoch=9)
    other.multi_put([("k",)], [2], epoch=1)
    assert store.multi_get([("k",)]) == [1] and other.multi_get([("k",)]) == [2]
    other.clear()
    with pytest.raises(StaleEpoch):
        store.multi_put([], [], epoch=8)


@every_store
def test_a_thread_of_an_old_epoch_never_writes_after_the_new_one(store):
    """Races: the old one puts without pause until it is refused."""
    for epoch in range(2, 8, 2):
        acknowledged, refused = [], threading.Event()

        def old(epoch=epoch, acknowledged=acknowledged, refused=refused):
            for n in itertools.count():
                try:
                    store.multi_put([("a",), ("b",)], [n, n], epoch=epoch - 1)
                except StaleEpoch:
                    refused.set()
                    return
                acknowledged.append(n)

        thread = threading.Thread(target=old)
        thread.start()
        while not acknowledged:
            time.sleep(0.001)
        seen = store.multi_get([("a",)])[0]
        store.multi_put([("b",)], ["new"], epoch=epoch)
        after = store.multi_get([("a",), ("b",)])
        assert refused.wait(20)
        thread.join()
        # What it wrote before is whole and was acknowledged, afterwards it wrote nothing.
        assert store.multi_get([("a",), ("b",)]) == after == [acknowledged[-1], "new"] and seen <= after[0]


ZOMBIE = """
import pickle, sys
from trident.states.maps.map_states import OpaqueMap
from trident.coordinators.errors import StaleEpoch
store = pickle.loads(bytes.fromhex(sys.argv[1]))
state = OpaqueMap(store, epoch=1, incarnation="i")
state.begin_commit(2)
state.multi_update([("k",)], [lambda old: old + 10])
print("has read", flush=True)
sys.stdin.readline()
try:
    state.commit(2)
    print("WROTE", flush=True)
except StaleEpoch as refused:
    print(f"refused: {refused}", flush=True)
"""


def process(script, store):
    arguments, pipe = [sys.executable, "-c", script, pickle.dumps(store).hex()], subprocess.PIPE
    return subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True, bufsize=1)


@shared_stores
def test_a_coordinator_that_sleeps_between_its_read_and_its_write_is_refused(store):
    """The suspended process of docs/semantics.md 7.5, in a process of its own, stopped by a signal."""
    first = OpaqueMap(store, epoch=1, incarnation="i")
    first.begin_commit(1)
    first.multi_put([("k",)], [1])
    first.commit(1)
    with process(ZOMBIE, store) as zombie:
        assert zombie.stdout.readline() == "has read\n"
        zombie.send_signal(signal.SIGSTOP)
        successor = OpaqueMap(store, epoch=2, incarnation="i")
        for txid in (2, 3):
            successor.begin_commit(txid)
            successor.multi_update([("k",)], [lambda old: old + 10])
            successor.commit(txid)
        zombie.send_signal(signal.SIGCONT)
        answer, _ = zombie.communicate("wake up\n", timeout=20)
    assert answer.startswith("refused: ") and "epoch 1" in answer
    assert store.multi_get([("k",)]) == [OpaqueValue(3, 21, 11, "i")]


WRITER = """
import pickle, sys
store = pickle.loads(bytes.fromhex(sys.argv[1]))
keys = [(n,) for n in range(50)]
for n in range(10**9):
    store.multi_put(keys, [n] * 50, epoch=1)
    print(n, flush=True)
"""


@shared_stores
def test_a_put_of_a_killed_process_is_whole_or_absent_and_none_acknowledged_is_lost(store, rng):
    for _ in range(3):
        with process(WRITER, store) as writer:
            acknowledged = -1
            for _ in range(rng.randrange(5, 40)):
                acknowledged = int(writer.stdout.readline())
            time.sleep(rng.random() / 500)
            writer.kill()
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        found = set(store.multi_get([(n,) for n in range(50)]))
        assert len(found) == 1 and found.pop() in (acknowledged, acknowledged + 1)


# -- SQLite -------------------------------------------------------------------------------------


def test_sqlite_travels_by_its_path_and_survives_a_fork(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = SqliteMap("maps.db", "counts")
    store.multi_put([("parent",)], [1], epoch=1)
    monkeypatch.chdir("/")
    inherited = store._connection()
    child = os.fork()
    if child == 0:
        try:
            assert store._connection() is not inherited
            store.multi_put([("child",)], [store.multi_get([("parent",)])[0] + 1], epoch=2)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(StaleEpoch):
        store.multi_put([("parent",)], [5], epoch=1)
    assert dict(SqliteMap(tmp_path / "maps.db", "counts").items()) == {("parent",): 1, ("child",): 2}


def test_sqlite_notices_that_its_file_was_replaced(tmp_path):
    store = SqliteMap(tmp_path / "maps.db", "counts")
    store.multi_put([("k",)], [1], epoch=5)
    for file in tmp_path.iterdir():
        file.unlink()
    store.multi_put([("new",)], [2], epoch=1)
    keys = sqlite3.connect(tmp_path / "maps.db").execute("SELECT key FROM counts").fetchall()
    assert keys == [('{"tuple":["new"]}',)]


def test_sqlite_is_durable_and_waits_for_locks(tmp_path):
    store = SqliteMap(tmp_path / "maps.db", "counts")
    other = sqlite3.connect(tmp_path / "maps.db", isolation_level=None, check_same_thread=False)
    # At first a file that another process is just making: SQLite itself does not wait there.
    for number in (1, 2):
        other.execute("BEGIN IMMEDIATE")
        other.execute(f"CREATE TABLE other{number} (x)")
        timer = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        timer.start()
        store.multi_put([("k",)], [number])
        timer.join()
        assert store.multi_get([("k",)]) == [number]
    connection = store._connection()
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_sqlite_says_what_is_wrong(tmp_path):
    for table in ("a b", 'x"; DROP TABLE y', "trident_epochs", "Trident_Epochs", "sqlite_x", "", None):
        with pytest.raises(TopologyError):
            SqliteMap(tmp_path / "maps.db", table)
    for path in (":memory:", "file:x?mode=ro", "", b"x"):
        with pytest.raises(ConfigError):
            SqliteMap(path, "counts")
    # SQLite does not tell upper from lower case in names: one table, one fence.
    SqliteMap(tmp_path / "maps.db", "Counts").multi_put([("k",)], [1], epoch=2)
    with pytest.raises(StaleEpoch):
        SqliteMap(tmp_path / "maps.db", "counts").multi_put([("k",)], [1], epoch=1)
    with pytest.raises(TridentError, match="cannot be read.*folder that exists"):
        SqliteMap(tmp_path / "nowhere" / "maps.db", "counts").multi_get([("k",)])
    (tmp_path / "text").write_text("not a database, for certain, " * 99)
    with pytest.raises(TridentError, match="cannot be written.*not a database"):
        SqliteMap(tmp_path / "text", "counts").multi_put([("k",)], [1])
    sqlite3.connect(tmp_path / "maps.db").execute("CREATE TABLE foreign_one (key TEXT, value INTEGER)")
    with pytest.raises(ForeignTable, match="value INTEGER"):
        SqliteMap(tmp_path / "maps.db", "foreign_one").multi_get([("k",)])
    with sqlite3.connect(tmp_path / "maps.db") as connection:
        connection.execute("UPDATE counts SET value = 'x'")
    with pytest.raises(TridentError, match="stored value cannot be read"):
        SqliteMap(tmp_path / "maps.db", "counts").multi_get([("k",)])


def test_sqlite_rolls_back_a_put_that_fails_in_the_middle(tmp_path):
    store = SqliteMap(tmp_path / "maps.db", "counts")
    store.multi_put([("a",)], [1], epoch=1)
    with sqlite3.connect(tmp_path / "maps.db") as connection:
        connection.execute(
            "CREATE TRIGGER no BEFORE INSERT ON counts WHEN new.value = '13' BEGIN SELECT RAISE(ABORT, 'unlucky'); END"
        )
    with pytest.raises(TridentError, match="unlucky"):
        store.multi_put([("a",), ("b",)], [2, 13], epoch=9)
    # Neither the row nor the epoch; and the connection goes on.
    store.multi_put([("c",)], [3], epoch=2)
    assert dict(store.items()) == {("a",): 1, ("c",): 3}


# -- Redis --------------------------------------------------------------------------------------


def test_redis_keeps_what_it_acknowledged_and_its_epoch_when_it_is_killed(own_redis):
    store = RedisMap(own_redis.url, "counts")
    store.multi_put([("k",)], [1], epoch=5)
    own_redis.kill()
    with pytest.raises(OutcomeUnknown, match="cannot be written.*127.0.0.1"):
        store.multi_put([("k",)], [2], epoch=5)
    with pytest.raises(TridentError, match="cannot be read"):
        store.multi_get([("k",)])
    own_redis.start()
    assert store.multi_get([("k",)]) == [1]
    with pytest.raises(StaleEpoch):
        store.multi_put([("k",)], [3], epoch=4)


def test_redis_that_could_forget_is_refused(own_redis):
    import redis

    client = redis.Redis.from_url(own_redis.url)
    for setting, bad, good in [
        ("appendonly", "no", "yes"),
        ("appendfsync", "everysec", "always"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ]:
        client.config_set(setting, bad)
        with pytest.raises(EnvironmentProblem, match=f"found: {setting} {bad}; expected: appendonly yes"):
            RedisMap(own_redis.url, "counts").multi_put([("k",)], [1])
        RedisMap(own_redis.url, "counts", durable=False).multi_put([("k",)], [bad])
        client.config_set(setting, good)
    assert RedisMap(own_redis.url, "counts").multi_get([("k",)]) == ["allkeys-lru"]
    RedisMap(own_redis.url, "counts").multi_put([("k",)], [2])


def test_no_credential_of_redis_is_shown(redis_server, monkeypatch):
    assert RedisMap(redis_server.url, "a").multi_get([("k",)]) == [None]
    port = redis_server.port
    urls = [
        f"redis://someone:wr0ng@127.0.0.1:{port}/0",
        f"redis://127.0.0.1:{port}/0?username=someone&password=wr0ng",
        "redis://someone:wr0ng@127.0.0.1:1/0",
        "redis://someone:wr0ng@127.0.0.1:wr0ng/0",
        "http://someone:wr0ng@host",
        "redis://someone:wr0ng@127.0.0.1/0?socket_timeout=wr0ng",
        "redis://someone:wr0ng@[127.0.0.1/0",
        None,
        f"redis://127.0.0.1:{port}/0?wr0ng=someone",
    ]
    for url in urls:
        with pytest.raises(TridentError) as caught:
            found = RedisMap(url, "counts")
            assert "wr0ng" not in repr(found) + str(found) and "someone" not in repr(found)
            found.multi_put([("k",)], [1])
        # With its causes: a traceback in a log shows them too.
        told = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
        assert "wr0ng" not in told and "someone" not in told, url
    assert repr(RedisMap(redis_server.url, "a")) == f"RedisMap('redis://127.0.0.1:{port}/0', 'a')"
    assert PASSWORD not in repr(transactional("s", RedisMap(redis_server.url, "a")))
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(EnvironmentProblem, match="pip install redis"):
        RedisMap(redis_server.url, "a").multi_get([("k",)])


# -- the setting objects ------------------------------------------------------------------------


def make_memory(config, partition_index, num_partitions):
    return MemoryBackingMap(f"{config['prefix']}{partition_index}of{num_partitions}")


class Unfenced:
    def multi_get(self, keys):
        return [None] * len(keys)

    def multi_put(self, keys, values, *, epoch=None):
        pass


LOCK = threading.Lock()


class OldShape(Unfenced):
    def multi_put(self, keys, values):
        pass


def test_the_setting_objects_make_maps():
    store = MemoryBackingMap("setting")
    for made, semantics, kind in [
        (non_transactional("s", store, skip_replays=True), Semantics.NON_TRANSACTIONAL, NonTransactionalMap),
        (transactional("s", store), Semantics.TRANSACTIONAL, TransactionalMap),
        (opaque("s", store, cache_size=3, partitions=4), Semantics.OPAQUE, OpaqueMap),
    ]:
        assert (made.semantics, made.name, made.fenced) == (semantics, "s", True)
        backing = made.make_backing({}, 0, 1)
        assert isinstance(made.map_over(backing, epoch=1), kind)
        assert isinstance(backing, CachedMap) if made.cache_size else backing is store
        assert pickle.loads(pickle.dumps(made)) == made
    assert not opaque("s", Unfenced()).fenced
    made = opaque("s", make_memory)
    assert not made.fenced and made.make_backing({"prefix": "p"}, 2, 3) == MemoryBackingMap("p2of3")
    assert transactional("s", lambda config, index, count: Unfenced()).make_backing({}, 0, 1).multi_get([()]) == [None]


def saying_fenced(config, partition_index, num_partitions):
    return Unfenced() if config["wrong"] else MemoryBackingMap("x")


saying_fenced.fenced = True


def test_a_function_may_say_that_its_maps_are_fenced_and_is_checked():
    made = opaque("s", saying_fenced)
    assert made.fenced and made.make_backing({"wrong": False}, 0, 1).fenced
    with pytest.raises(TopologyError, match="Unfenced"):
        made.make_backing({"wrong": True}, 0, 1)
    with pytest.raises(TopologyError, match="what its function returned"):
        opaque("s", lambda config, index, count: MemoryBackingMap).make_backing({}, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a__b"}, "state name"),
        ({"backing": Unfenced}, "is a class"),
        ({"backing": {}}, "no backing map"),
        ({"backing": lambda: None}, "cannot be called.*partition_index"),
        ({"backing": OldShape()}, r"cannot be called.*multi_put\(keys, values, epoch=None\)"),
        ({"backing": lambda config, index, count: LOCK}, "cannot be sent"),
        ({"partitions": 0}, "partitions.*from 1"),
        ({"partitions": True}, "partitions"),
        ({"cache_size": -1}, "cache_size"),
        ({"skip_replays": True}, "skip_replays"),
        ({"semantics": "opaque"}, "semantics"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_impossible_setting_is_named_when_it_is_made(arguments, message):
    with pytest.raises(TridentError, match=message):
        BackedMapState(**{"name": "s", "semantics": Semantics.OPAQUE, "backing": Unfenced(), **arguments})
