"""What lives on one host is refused on a Spark cluster, by name, before anything runs; a local master takes it all."""

from __future__ import annotations

import pytest

from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    DirectoryQueueSpout,
    FixedBatchSpout,
    MapGet,
    QueueSpout,
    RedisListSpout,
    RedisMap,
    RichBolt,
    SqliteMap,
    SqliteQueue,
    TridentConfig,
    TridentTopology,
    TupleTopology,
    non_transactional,
    opaque,
    transactional,
)
from trident.coordinators.errors import TopologyError
from trident.running.cluster_checks import check_topology
from trident.states.core.addresses import is_local_master, is_this_host
from trident.states.maps.backing_maps import MemoryBackingMap
from trident.states.maps.map_states import CachedMap

pytestmark = pytest.mark.filterwarnings("ignore::trident.NotExactlyOnceWarning")
CLUSTER = "spark://a:7077"
ENSEMBLE = TridentConfig(zookeeper="a:2181,b:2181")


class Own:
    """A user's map, which says where it lives."""

    def __init__(self, bound: "bool | str") -> None:
        self.bound_to_one_host = bound

    def multi_get(self, keys):
        return [None for _ in keys]

    def multi_put(self, keys, values, epoch=None):
        """Nothing is kept."""


def written_to(state, spout=None):
    topology = TridentTopology("bound")
    words = topology.new_stream("words", spout or FixedBatchSpout("word string", [[("a",)]]))
    words.group_by(words.fields[0]).persistent_aggregate(state, Count(), "n")
    return topology


def refusal(topology, config=ENSEMBLE, master=CLUSTER):
    with pytest.raises(TopologyError) as raised:
        check_topology(topology.graph, config, master)
    check_topology(topology.graph, config, "local[2]")  # here all that lives on one host is at home
    return str(raised.value)


@pytest.mark.parametrize("kind", [non_transactional, transactional, opaque])
def test_an_sqlite_map_is_refused_by_name(tmp_path, kind):
    said = refusal(written_to(kind("counts", SqliteMap(str(tmp_path / "map.db"), "counts"))))
    assert "state 'counts'" in said and "SqliteMap with the Spark master spark://a:7077" in said
    assert "test_one_host.py:" in said and "RedisMap" in said and "network folder is not safe" in said


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "yarn", "k8s://https://a:443", "spark://a:1,b:2"])
def test_every_master_but_a_local_one_is_a_cluster(master):
    assert "'counts'" in refusal(written_to(transactional("counts", MemoryBackingMap("m"))), master=master)


def test_local_masters():
    assert all(map(is_local_master, ["local", "local[*]", "local[4]", "local[4, 2]"]))


def test_users_maps_may_say_the_same():
    assert "state 'counts'" in refusal(written_to(opaque("counts", Own(True))))
    assert "Ask Ms Meier" in refusal(written_to(opaque("counts", Own("ask Ms Meier"))))
    check_topology(written_to(opaque("counts", Own(False))).graph, ENSEMBLE, CLUSTER)
    assert CachedMap(Own("x"), 3).bound_to_one_host == "x"


def test_what_a_function_makes_is_refused_where_it_is_made(tmp_path):
    path = str(tmp_path / "map.db")
    state = opaque("counts", lambda config, index, count: SqliteMap(path, "counts"))
    check_topology(written_to(state).graph, ENSEMBLE, CLUSTER)  # nobody can know yet
    assert state.make_backing({"spark_master": "local[2]"}, 0, 1) == SqliteMap(path, "counts")
    with pytest.raises(TopologyError, match="the function of state 'counts' made lives on one host"):
        state.make_backing({"spark_master": CLUSTER}, 0, 1)

    def makes(config, index, count):
        return SqliteMap(path, "counts")

    makes.bound_to_one_host = True
    assert "state 'counts'" in refusal(written_to(opaque("counts", makes)))


def test_sources_of_one_host(tmp_path):
    queue = QueueSpout(SqliteQueue(tmp_path / "q.db"))
    said = refusal(written_to(DeltaMapState("x"), queue))
    assert "the queue of stream 'words' lives on one host" in said and "found: SqliteQueue" in said
    folder = DirectoryQueueSpout(tmp_path)
    assert "DirectoryQueueSpout" in (said := refusal(written_to(DeltaMapState("x"), folder))) and "shared=True" in said
    check_topology(written_to(DeltaMapState("x"), DirectoryQueueSpout(tmp_path, shared=True)).graph, ENSEMBLE, CLUSTER)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("redis://localhost:6379/0", True),
        ("redis://127.0.0.1", True),
        ("rediss://u:p@[::1]:6379/0", True),
        ("unix:///run/redis.sock", True),
        ("redis://", True),
        ("redis://redis.example:6379/0", False),
        ("redis://10.0.0.7:6379/0", False),
    ],
)
def test_a_redis_url_that_each_host_takes_for_its_own_server(url, here):
    assert is_this_host(url) is here
    topology = written_to(transactional("counts", RedisMap(url, "m")))
    if here:
        assert "RedisMap" in refusal(topology) and "every host knows" in refusal(topology)
    else:
        check_topology(topology.graph, ENSEMBLE, CLUSTER)
    assert bool(RedisListSpout(url, "k").bound_to_one_host) is here


def test_a_static_state_of_one_host():
    topology = TridentTopology("asks")
    words = topology.new_stream("words", FixedBatchSpout("word string", [[("a",)]]))
    factory = Own(True)
    state = topology.new_static_state(factory)
    words.state_query(state, "word", MapGet(), "n long").partition_persist(DeltaAppend("found"))
    assert "the static state of the query at" in refusal(topology)


def test_the_embedded_zookeeper_is_refused_with_where_it_was_set():
    topology = written_to(DeltaMapState("x"))
    said = refusal(topology, TridentConfig(zookeeper="embedded"))
    assert "zookeeper=embedded (TridentConfig)" in said and "TRIDENT_ZOOKEEPER" in said


def test_spouts_and_bolts_of_a_tuple_topology():
    class Bolt(RichBolt):
        bound_to_one_host = True

        def execute(self, message):
            self.collector.ack(message)

    topology = TupleTopology("tuples")
    topology.set_spout("texts", RedisListSpout("redis://localhost", "k"))
    topology.set_bolt("end", Bolt()).shuffle_grouping("texts")
    with pytest.raises(TopologyError, match="spout 'texts' lives on one host"):
        topology.check_master(CLUSTER)
    topology._spouts["texts"].user.queue = RedisListSpout("redis://there", "k").queue
    with pytest.raises(TopologyError, match="bolt 'end' lives on one host"):
        topology.check_master(CLUSTER)
    topology.check_master("local[*]")


def test_a_start_is_refused_before_a_session_or_a_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("trident.running.cluster_checks.current_session", lambda: None)
    monkeypatch.setattr("trident.running.starting.make_session", lambda *_: pytest.fail("a session was made"))
    topology = written_to(transactional("counts", SqliteMap(str(tmp_path / "map.db"), "counts")))
    with pytest.raises(TopologyError, match="SqliteMap with the Spark master spark://a:7077"):
        topology.start(spark_master=CLUSTER, zookeeper="a:2181", warehouse=str(tmp_path / "w"))
    assert not (tmp_path / "w").exists()
