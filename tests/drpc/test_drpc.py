"""Requests to DRPC streams: what may be built, what they see while batches commit, and how they fail."""

from __future__ import annotations

import datetime
import json
import socket
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import DateType

from tests.servers.zk_fixtures import connected, eventually
from tests.streams.stream_helpers import RowsSpout
from tests.topology_helpers import WAIT_SECS, Starter, starter
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FilterNull,
    FixedBatchSpout,
    MapGet,
    MemoryMapState,
    SnapshotGet,
    Split,
    SqliteMap,
    StaticMap,
    Sum,
    TridentTopology,
    Upsert,
    expr,
    opaque,
    transactional,
)
from trident.config import TridentConfig
from trident.coordinators.errors import (
    ConfigError,
    DrpcTimeout,
    NotLeading,
    OutputTypeError,
    TopologyError,
    UnknownFunction,
    UserFunctionError,
    WrongArguments,
)
from trident.coordinators.zookeeper import ZooKeeper
from trident.drpc.http import HttpServer
from trident.drpc.requests import Answer
from trident.drpc.values import as_json, converted
from trident.planning.groups import plan
from trident.planning.requests import drpc_plans
from trident.running.query import TopologyQuery
from trident.states.maps.map_states import OpaqueMap, TransactionalMap
from trident.states.maps.memory_map import MemoryMap
from trident.udf.types import parse_type
from trident.workers.states import MapAsOf, NewerThanRequested

TOKEN = "a-token-of-the-tests"


def sleep(secs: str) -> str:
    """Sleeps so many seconds, or until the file of that path is there."""
    if secs.startswith("/"):
        assert eventually(Path(secs).exists, WAIT_SECS)
    else:
        time.sleep(float(secs))
    return secs


def reciprocal(number: int) -> float:
    return 1 / number


# --- what may be built -----------------------------------------------------------------------


def asking() -> tuple[TridentTopology, Any, Any, Any]:
    """A topology with two batch groups, and a DRPC stream that asks both."""
    topology = TridentTopology("asking")
    words = topology.new_stream("words", RowsSpout("word string"))
    counts = words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    others = topology.new_stream("others", RowsSpout("word string"))
    rows = others.persistent_aggregate(DeltaMapState("rows"), Count(), "rows")
    asked = topology.new_drpc_stream("ask", "word string").state_query(counts, "word", MapGet(), "n")
    return topology, words, asked, asked.state_query(rows, SnapshotGet(), "rows")


def test_a_drpc_stream_is_in_no_batch_group_and_joins_none_that_it_asks() -> None:
    topology, *_ = asking()
    assert [group.name for group in plan(topology.graph)] == ["others", "words"]
    assert topology.identity()["groups"] == {"others": ["others"], "words": ["words"]}
    assert sorted(topology.identity()["streams"]) == ["others", "words"]
    (function,) = drpc_plans(topology.graph).values()
    assert function.groups == ["others", "words"] and sorted(function.states) == ["counts", "rows"]
    assert function.result.names == ["word", "n", "rows"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda words, asked: asked.partition_persist(DeltaAppend("out")),
        lambda words, asked: asked.group_by("word").persistent_aggregate(DeltaMapState("out"), Count(), "all"),
        lambda words, asked: asked.partition_persist(DeltaMapState("out"), None, Upsert("word")),
        lambda words, asked: asked.tumbling_window(3, "out"),
    ],
    ids=["append", "aggregate", "upsert", "window"],
)
def test_nothing_below_a_drpc_stream_commits(wrong: Callable[[Any, Any], Any]) -> None:
    topology, words, asked, _ = asking()
    with pytest.raises(TopologyError, match="no committer below it.*state_query") as refusal:
        wrong(words, asked)
    assert (
        "'ask'" in str(refusal.value) and len(plan(topology.graph)) == 2 and "out" not in topology.identity()["states"]
    )


def test_rows_of_requests_meet_no_others() -> None:
    topology, words, asked, _ = asking()
    other = topology.new_drpc_stream("other", "word string, n long")
    with pytest.raises(TopologyError, match="a stream of batches and DRPC stream 'ask'"):
        words.each(expr("1"), "n long").merge(asked.project("word", "n"))
    with pytest.raises(TopologyError, match="DRPC stream 'ask' and DRPC stream 'other'"):
        asked.join(other.rename({"n": "m"}), "word")


def test_a_function_has_one_name_typed_arguments_and_one_end() -> None:
    topology, _, asked, _ = asking()
    with pytest.raises(TopologyError, match="'ask' already"):
        topology.new_drpc_stream("ask")
    with pytest.raises(TopologyError, match="name cannot be used"):
        topology.new_drpc_stream("a/b")
    with pytest.raises(OutputTypeError, match="'word string', say"):
        topology.new_drpc_stream("untyped", "word")
    asked.project("word")
    with pytest.raises(TopologyError, match=r"several places.*state_query\(rows.*project"):
        drpc_plans(topology.graph)


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        ("string", "5", "5"),
        ("int", " 5 ", 5),
        ("double", 3, 3.0),
        ("boolean", "true", True),
        ("decimal(5,2)", 12.5, Decimal("12.50")),
        ("date", "2024-02-29", datetime.date(2024, 2, 29)),
        ("timestamp", "2024-01-01T00:00:00Z", datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)),
        ("binary", "AAE=", b"\0\1"),
        ("array<int>", ["1", 2, None], [1, 2, None]),
        ("map<string,long>", {"a": 1}, {"a": 1}),
        ("struct<a: int, b: string>", {"b": "x"}, (None, "x")),
        ("string", None, None),
        ("float", 3.4e38, 3.4e38),
        ("float", "Infinity", float("inf")),
        ("double", "-inf", float("-inf")),
        ("date", "0001-01-01", datetime.date(1, 1, 1)),
        ("timestamp", "0001-01-03T00:00:00Z", datetime.datetime(1, 1, 3, tzinfo=datetime.timezone.utc)),
        ("timestamp_ntz", "0001-01-01T00:00:00", datetime.datetime(1, 1, 1)),
        ("timestamp", "2024-01-01T00:00:00+02:00", datetime.datetime(2023, 12, 31, 22, tzinfo=datetime.timezone.utc)),
        ("timestamp", datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1)),  # from Python, as PySpark has it
        ("map<int,int>", {"1": 1, "2": 2}, {1: 1, 2: 2}),
    ],
)
def test_arguments_become_what_their_types_say(kind: str, given: Any, wanted: Any) -> None:
    found = converted(given, parse_type(kind))
    assert found == wanted and type(found) is type(wanted)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("string", 5),
        ("int", True),
        ("byte", 128),
        ("int", 1.0),
        ("double", "x"),
        ("boolean", 1),
        ("decimal(3,2)", "10"),
        ("decimal(3,2)", "1.234"),
        ("date", "2024-02-30"),
        ("binary", "?"),
        ("struct<a: int>", {"b": 1}),
        ("date", "x"),
        ("array<int>", "12"),
        ("timestamp_ntz", "2024-01-01T00:00:00Z"),
    ],
)
def test_arguments_of_other_types_are_refused(kind: str, given: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, ArithmeticError)):
        converted(given, parse_type(kind))


def test_what_json_lacks_is_text() -> None:
    kind = parse_type("struct<d: decimal(5,2), b: binary, n: timestamp_ntz, x: array<double>, m: map<int,date>>")
    row = (Decimal("1.50"), bytearray(b"\0\1"), datetime.datetime(2024, 1, 1), [float("inf"), 1.5])
    told = json.loads(json.dumps(as_json((*row, {1: datetime.date(2024, 1, 2)}), kind), allow_nan=False))
    written = {"d": "1.50", "b": "AAE=", "n": "2024-01-01T00:00:00", "x": ["Infinity", 1.5]}
    assert told == {**written, "m": {"1": "2024-01-02"}}
    local = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.timezone.utc).astimezone().replace(tzinfo=None)
    assert as_json(local, parse_type("timestamp")) == "2024-01-01T12:00:00+00:00"


@pytest.mark.parametrize("address", ["0.0.0.0:3774", "[::]:3774", "example.com:80", "192.168.0.1:0"])
def test_other_machines_need_a_token(address: str) -> None:
    with pytest.raises(ConfigError, match="http_token"):
        TridentConfig(http=address)
    assert TOKEN not in repr(TridentConfig(http=address, http_token=TOKEN))


@pytest.mark.parametrize("address", ["", "3774", 3774, "127.0.0.1:0", "localhost:1", "[::1]:3774"])
def test_this_machine_needs_none(address: Any) -> None:
    assert TridentConfig(http=address).http == str(address)
    with pytest.raises(ConfigError):
        TridentConfig(http="127.0.0.1:65536")


# --- states as of a transaction ---------------------------------------------------------------


class Rows(dict):
    """A backing map in memory."""

    def multi_get(self, keys: Any) -> list[Any]:
        return [self.get(key) for key in keys]

    def multi_put(self, keys: Any, values: Any, epoch: int | None = None) -> None:
        self.update(zip(keys, values))


def written(made: Any, txid: int, **values: int) -> None:
    made.begin_commit(txid)
    made.multi_put([(key,) for key in values], list(values.values()))
    made.commit(txid)


def seen(kind: Any, rows: Rows, txid: int) -> list[Any]:
    return MapAsOf(kind(rows), txid).multi_get([("a",), ("b",)])


def test_an_opaque_map_shows_the_value_before_a_transaction_that_is_being_published() -> None:
    rows = Rows()
    written(OpaqueMap(rows), 1, a=1, b=1)
    written(OpaqueMap(rows), 2, a=2)
    assert seen(OpaqueMap, rows, 2) == [2, 1] and seen(OpaqueMap, rows, 1) == [1, 1]
    with pytest.raises(NewerThanRequested):
        seen(OpaqueMap, rows, 0)


def test_a_transactional_map_shows_its_one_value_or_none_at_all() -> None:
    rows = Rows()
    assert seen(TransactionalMap, rows, 0) == [None, None]
    written(TransactionalMap(rows), 1, a=1, b=1)
    with pytest.raises(NewerThanRequested):
        seen(TransactionalMap, rows, 0)
    written(TransactionalMap(rows), 2, b=2)
    assert seen(TransactionalMap, rows, 2) == [1, 2] and seen(TransactionalMap, rows, 7) == [1, 2]
    with pytest.raises(NewerThanRequested):
        seen(TransactionalMap, rows, 1)


def test_a_memory_map_keeps_two_transactions() -> None:
    map_ = MemoryMap()
    for txid in (2, 5, 6):
        map_.put(txid, [(("a",), (txid,))], "one")
    assert [map_.as_of(txid, "one") for txid in (7, 6, 5)] == [{("a",): (6, (6,))}] * 2 + [{("a",): (5, (5,))}]
    assert map_.as_of(4, "one") is None and map_.as_of(6, "two") == {}


# --- a topology that runs ---------------------------------------------------------------------

BATCHES = 2
BATCH = [("a",), ("a",), ("b",)]


def served_topology(folder: Path) -> TridentTopology:
    """Every transaction adds the same rows, so a state says by itself as of which transaction it is."""
    topology = TridentTopology("served")
    memory = f"memory_{abs(hash(str(folder)))}"
    words = topology.new_stream("words", FixedBatchSpout("word string", [BATCH] * BATCHES))
    by_word = words.group_by("word")
    counts = by_word.persistent_aggregate(DeltaMapState("counts", merge_every_txids=2), Count(), "n")
    in_memory = words.persistent_aggregate(MemoryMapState(memory), Count(), "n")
    store = str(folder / "maps.db")
    in_map = by_word.persistent_aggregate(opaque("in_map", SqliteMap(store, "a"), cache_size=10), Count(), "n")
    once = by_word.persistent_aggregate(transactional("once", SqliteMap(store, "b")), Count(), "n")
    others = topology.new_stream("others", FixedBatchSpout("word string", [[("x",)]] * BATCHES))
    other = others.persistent_aggregate(DeltaMapState("other"), Count(), "n")

    # A map of one's own is asked first: the sooner, the less can have changed.
    everything = topology.new_drpc_stream("everything", "word string").state_query(in_map, "word", MapGet(), "in_map")
    everything = everything.state_query(counts, "word", MapGet(), "in_table")
    everything.state_query(in_memory, SnapshotGet(), "in_memory").state_query(other, SnapshotGet(), "other")
    topology.new_drpc_stream("once", "word string").state_query(once, "word", MapGet(), "n")
    # The word query of Trident's tutorial: one number for the request, whatever it was grouped by.
    asked = topology.new_drpc_stream("words").each("args", Split(), "word").group_by("word")
    asked.state_query(counts, "word", MapGet(), "n").each("n", FilterNull()).aggregate("n", Sum(), "sum")
    sizes = topology.new_static_state(StaticMap({("small",): [1, 2, 3]}))
    topology.new_drpc_stream("sizes", "of string").state_query(sizes, "of", MapGet(), "size array<long>")
    topology.new_drpc_stream("slow", "secs string").map(sleep, "secs")
    topology.new_drpc_stream("reciprocal", "number long").map(reciprocal, "result")
    topology.new_drpc_stream("same", "a long, at timestamp")
    return topology


@pytest.fixture(scope="module")
def served(spark: Any, zk_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Starter, Path, str]]:
    folder = tmp_path_factory.mktemp("served")
    with starter(spark, zk_server, f"/{folder.name}", folder) as start:
        yield start, folder, f"/{folder.name}"


@pytest.fixture(scope="module")
def query(served: Any) -> Iterator[TopologyQuery]:
    start, folder, _ = served
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        topology = served_topology(folder)
    yield start(topology, http="127.0.0.1:0", http_token=TOKEN, batch_emit_interval_secs=0.3)


def consistent(query: TopologyQuery) -> dict[str, int]:
    """Asks every state; each must be as of the transaction that the answer names."""
    answer = query.execute("everything", "a", timeout_secs=WAIT_SECS)
    txid, other = answer.as_of["words"], answer.as_of["others"]
    (row,) = answer
    found = (row.in_map or 0, row.in_table or 0, row.in_memory or 0, row.other or 0)
    assert found == (2 * txid, 2 * txid, 3 * txid, other), answer.as_of
    return answer.as_of


def tree(zk: ZooKeeper, path: str) -> dict[str, Any]:
    found = {path: zk.get(path)}
    for name in zk.children(path):
        found |= tree(zk, f"{path}/{name}")
    return found


def test_a_request_writes_nothing_to_zookeeper(query: TopologyQuery, served: Any, zk_server: str) -> None:
    query.process_all_available(WAIT_SECS)
    with connected(zk_server, served[2]) as zk:
        time.sleep(0.3)  # telling the last success writes too
        before = tree(zk, served[2])
        consistent(query)
        assert query.execute("same", 1, None) and len(before) > 5
        assert tree(zk, served[2]) == before


def test_functions_over_keys_static_states_and_nothing(query: TopologyQuery) -> None:
    query.process_all_available(WAIT_SECS)
    answer = query.execute("words", "a b nothing")
    assert [row["sum"] for row in answer] == [3 * BATCHES] and answer.as_of == {"words": BATCHES}
    assert [row["sum"] for row in query.execute("words", "")] == [0], "an aggregate of no row is one row"
    assert sorted((row.of, row.size) for row in query.execute("sizes", of="small")) == [("small", [1, 2, 3])]
    assert [row.size for row in query.execute("sizes", "huge")] == [None]
    (same,) = query.execute("same", "7", at="2024-01-01T00:00:00Z")
    assert (same.a, same.at.astimezone(datetime.timezone.utc).hour) == (7, 0)
    assert query.drpc_functions["same"] == "a bigint, at timestamp"


def test_a_request_that_takes_too_long_is_cancelled(query: TopologyQuery) -> None:
    assert query.execute("slow", "0")  # it leads, and workers run
    started = time.monotonic()
    with pytest.raises(DrpcTimeout, match="'slow' was not answered in time.*1 s") as error:
        query.execute("slow", "60", timeout_secs=1)
    assert time.monotonic() - started < 40 and isinstance(error.value, TimeoutError)
    tracker = query.spark.sparkContext.statusTracker()
    request = str(error.value).split()[1]
    jobs = tracker.getJobIdsForGroup(f"trident-drpc-{request}")
    assert eventually(lambda: not set(jobs) & set(tracker.getActiveJobsIds()), 20)
    assert query.is_active and query.exception() is None


def test_a_function_that_raises_is_named_with_the_request(query: TopologyQuery) -> None:
    told = r"request [0-9a-f]{32} of function 'reciprocal'.*ZeroDivisionError"
    with pytest.raises(UserFunctionError, match=told) as error:
        query.execute("reciprocal", 0)
    assert error.value.location.startswith(__file__) and "attempt" not in str(error.value)
    assert query.execute("reciprocal", 2)[0].result == 0.5, "the next request is another one"


@pytest.mark.parametrize(
    ("args", "named", "text"),
    [
        ((1, 2), {}, "2 arguments"),
        ((), {}, "no argument 'number'"),
        ((1,), {"number": 1}, "two values for 'number'"),
        ((1,), {"other": 1}, "an argument 'other'"),
        (("x",), {}, "str 'x'.*bigint"),
    ],
)
def test_wrong_arguments_are_told(query: TopologyQuery, args: Any, named: Any, text: str) -> None:
    with pytest.raises(WrongArguments, match=text):
        query.execute("reciprocal", *args, **named)


def test_an_unknown_function_names_those_there_are(query: TopologyQuery) -> None:
    with pytest.raises(UnknownFunction, match="'reach'.*everything, once, reciprocal"):
        query.execute("reach", "a.com")


# --- over HTTP -------------------------------------------------------------------------------


def http(
    address: str | None, path: str, body: Any = None, token: str | None = TOKEN, **headers: str
) -> tuple[int, Any]:
    """(status, the JSON of the answer); ``_`` in a header's name is ``-``."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    if data is not None and not isinstance(body, bytes):
        headers["Content-Type"] = "application/json"
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        request = urllib.request.Request(f"http://{address}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=WAIT_SECS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def test_http_answers(query: TopologyQuery) -> None:
    query.process_all_available(WAIT_SECS)
    at = query.http_address
    status, answer = http(at, "/drpc/words", b"a b", Content_Type="text/plain")
    assert status == 200 and len(answer.pop("request_id")) == 32
    assert answer == {"function": "words", "as_of": {"words": BATCHES}, "rows": [{"sum": 3 * BATCHES}]}
    assert http(at, "/drpc/words", ["a"])[1]["rows"] == [{"sum": 2 * BATCHES}]
    same = [{"a": 7, "at": "2024-01-01T12:00:00+00:00"}]
    assert http(at, "/drpc/same", {"a": 7, "at": "2024-01-01T13:00:00+01:00"})[1]["rows"] == same
    assert http(at, "/drpc/reciprocal/4")[1]["rows"] == [{"result": 0.25}]
    assert http(at, "/drpc/sizes/a//b%20c")[1]["rows"] == [{"of": "a//b c", "size": None}]
    functions = http(at, "/drpc")[1]
    assert functions["words"] == {"arguments": {"args": "string"}, "result": {"sum": "bigint"}}
    assert http(at, "/health", token=None) == (200, {"topology": "served", "role": "leader"})


@pytest.mark.parametrize(
    ("path", "body", "token", "status", "text"),
    [
        ("/drpc/words/a", None, None, 401, "expected: Authorization"),
        ("/drpc/words/a", None, TOKEN + "x", 401, "expected: Authorization"),
        ("/drpc", None, None, 401, "expected: Authorization"),
        ("/nowhere", None, None, 401, "expected: Authorization"),
        ("/nowhere", None, TOKEN, 404, ""),
        ("/drpc/reach/a", None, TOKEN, 404, "there is no DRPC function 'reach'"),
        ("/drpc/words", None, TOKEN, 405, ""),
        ("/drpc/words", [1, 2], TOKEN, 400, "2 arguments"),
        ("/drpc/words?timeout_secs=-1", ["a"], TOKEN, 400, "timeout_secs"),
        ("/drpc/words", b"\xff", TOKEN, 400, "the body cannot be read"),
        ("/drpc/reciprocal/0", None, TOKEN, 500, "ZeroDivisionError"),
        ("/drpc/slow/60?timeout_secs=0.5", None, TOKEN, 504, "not answered in time"),
    ],
)
def test_http_refuses(query: TopologyQuery, path: str, body: Any, token: str, status: int, text: str) -> None:
    found, answer = http(query.http_address, path, body, token)
    assert found == status and list(answer) == ["error"] and text in answer["error"]
    assert "Traceback" not in answer["error"] and TOKEN not in answer["error"]


def test_a_standby_says_so_and_another_host_name_or_a_page_that_is_off_is_not_answered(
    query: TopologyQuery, served: Any
) -> None:
    start, folder, _ = served
    standby = start(served_topology(folder), http="0", page=False)
    with pytest.raises(NotLeading, match="does not lead topology 'served'"):
        standby.execute("words", "a")
    assert http(standby.http_address, "/drpc/words/a")[0] == 503
    assert http(standby.http_address, "/health") == (503, {"topology": "served", "role": "standby"})
    assert http(standby.http_address, "/health", Host="rebound.example.com")[0] == 400
    for path in ("/", "/page/page.js", "/events", "/state.json", "/dead-letters.json"):
        assert http(standby.http_address, path)[0] == 404, "page=false: there is no live page"
    standby.stop(WAIT_SECS)
    with pytest.raises(urllib.error.URLError):
        http(standby.http_address, "/health")
    with pytest.raises(NotLeading):
        standby.execute("words", "a")


def test_a_topology_may_have_no_batches_at_all(served: Any) -> None:
    start, _, _ = served
    topology = TridentTopology("static")
    sizes = topology.new_static_state(StaticMap({("small",): 1}))
    topology.new_drpc_stream("size", "of string").state_query(sizes, "of", MapGet(), "size long")
    alone = start(topology)
    assert [tuple(row) for row in alone.execute("size", "small")] == [("small", 1)]
    alone.process_all_available(WAIT_SECS)
    alone.stop(WAIT_SECS)
    assert alone.exception() is None


# --- over HTTP, with a stub that answers: no Spark -----------------------------------------------

SECRET = "/home/somebody/q3.py:6 {a: 'x'}"


class StubFront:
    """Answers what its functions say at once, but for "slow": that takes until it is released.

    Attributes:
        running: how many requests of "slow" run.
    """

    name, role, is_leader = "stub", "leader", True

    def __init__(self) -> None:
        kinds = {"one": "long", "slow": "long", "boom": "long", "broken": "long", "late": "timestamp", "beyond": "date"}
        self.plans: Any = {
            name: SimpleNamespace(arguments=parse_type("struct<a: string>"), result=parse_type(f"struct<b: {kind}>"))
            for name, kind in kinds.items()
        }
        self.running, self._changed, self._released = 0, threading.Condition(), threading.Event()

    def answer(self, function: str, args: Sequence[Any], named: Mapping[str, Any], timeout_secs: float) -> Answer:
        rows: Any = [(1,)]
        if function == "slow":
            with self._changed:
                self.running += 1
                self._changed.notify_all()
            assert self._released.wait(WAIT_SECS)
        elif function == "boom":
            raise UserFunctionError(f"map(boom) failed at {SECRET}", operation="map(boom)", location=SECRET)
        elif function == "broken":
            raise RuntimeError(SECRET)
        elif function == "late":
            west = datetime.timezone(datetime.timedelta(hours=-12))
            rows = [(datetime.datetime.max.replace(tzinfo=west),)]
        elif function == "beyond":
            rows = [(DateType().fromInternal(6_585_442),)]  # as collect() does
        return Answer(rows, function, "an-id", {})

    def wait_for_running(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.running >= count, 5)

    def release(self) -> None:
        self._released.set()


@pytest.fixture(scope="module")
def stub() -> StubFront:
    return StubFront()


@pytest.fixture(scope="module")
def at(stub: StubFront) -> Iterator[str]:
    """The address of a server without a token."""
    server = HttpServer("127.0.0.1:0", None, stub)
    yield server.address
    stub.release()
    server.stop()


def test_slow_requests_leave_threads_for_health_and_one_too_many_is_told_to_come_again(
    stub: StubFront, at: str
) -> None:
    with ThreadPoolExecutor(16) as pool:
        slow = [pool.submit(http, at, "/drpc/slow/x") for _ in range(16)]
        try:
            assert stub.wait_for_running(16), f"{stub.running} run at once"
            for _ in range(8):  # none of these keeps a thread
                with pytest.raises(urllib.error.HTTPError, match="503") as refusal:
                    urllib.request.urlopen(f"http://{at}/drpc/one/x", timeout=5)
                assert int(refusal.value.headers["Retry-After"]) > 0
                assert "16 that run" in json.load(refusal.value)["error"]
            with urllib.request.urlopen(f"http://{at}/health", timeout=5) as health:
                assert health.status == 200
            assert http(at, "/drpc")[0] == 200 and not any(one.done() for one in slow)
        finally:
            stub.release()
        assert [one.result()[0] for one in slow] == [200] * 16
    for _ in range(20):  # whoever has the answer, or an error, finds the slot free
        assert (http(at, "/drpc/boom/x")[0], http(at, "/drpc/one/x")[0]) == (500, 200)


def test_health_is_answered_beside_many_connections_that_stay_open(at: str) -> None:
    host, _, port = at.rpartition(":")
    with ExitStack() as open_ones:
        for _ in range(150):
            one = open_ones.enter_context(socket.create_connection((host, int(port)), 5))
            one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with urllib.request.urlopen(f"http://{at}/health", timeout=5) as health:
            assert health.status == 200


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "127.0.0.1:x", "evil.example@127.0.0.1", "127.0.0.1/x"])
@pytest.mark.parametrize("path", ["/drpc/one/x", "/nowhere", "/health"])
def test_a_malformed_host_is_the_callers_mistake(
    at: str, path: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    status, answer = http(at, path, Host=host)
    assert status == 400 and "Host cannot be read" in answer["error"]
    assert not caplog.records, "nobody fills the log with requests"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1.evil.example:80"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_without_a_token_no_page_of_another_site_is_answered(at: str, headers: dict[str, str]) -> None:
    status, answer = http(at, "/drpc/one", b"x", None, Content_Type="text/plain", **headers)
    assert status == 403 and "no page of another site" in answer["error"]
    assert http(at, "/drpc/one/x", token=None, **headers)[0] == 403
    assert http(at, "/nowhere", token=None, **headers)[0] == 403
    own_page = {"Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-site"}
    for allowed in (own_page, {"Origin": "http://[::1]:8080"}, {"Sec-Fetch-Site": "none"}):
        assert http(at, "/drpc/one/x", token=None, **allowed)[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("", b"[" * 100_000, "nested more than 100 deep"),
        ("", b'{"a": ' + b"[" * 150 + b"]" * 150 + b"}", "nested more than 100 deep"),
        ("", rb'["\ud800"]', r"half of a surrogate pair, '\ud800'"),
        ("", rb'{"\udfff": 1}', "half of a surrogate pair"),
        ("/%ff", None, "the path cannot be read"),
        *((f"/x?timeout_secs={given}", None, f"found: {given!r}") for given in "abc nan inf 0 -1 300.1 100000".split()),
        ("/x?timeout_secs=", None, "at most 300"),
    ],
)
def test_what_cannot_be_read_is_the_callers_mistake(at: str, path: str, body: bytes | None, text: str) -> None:
    status, answer = http(at, f"/drpc/one{path}", body, Content_Type="application/json")
    assert status == 400 and text in answer["error"]


def test_any_text_and_five_minutes_are_taken(at: str) -> None:
    assert http(at, "/drpc/one/%C3%A9")[0] == http(at, "/drpc/one/x?timeout_secs=300")[0] == 200


@pytest.mark.parametrize(("function", "told"), [("late", "in field 'b' (timestamp)"), ("beyond", "has a value")])
def test_a_value_that_cannot_be_written_is_told_so(at: str, function: str, told: str) -> None:
    status, answer = http(at, f"/drpc/{function}/x")
    assert status == 500 and f"the answer of function {function!r}" in answer["error"]
    assert told in answer["error"] and "years 1 to 9999" in answer["error"]


@pytest.mark.parametrize(("function", "kind"), [("boom", "UserFunctionError"), ("broken", "RuntimeError")])
def test_only_who_has_the_token_is_told_what_a_function_raised(
    stub: StubFront, at: str, function: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    status, answer = http(at, f"/drpc/{function}/x")
    error_id = answer["error"].split()[-1]
    assert status == 500 and len(error_id) == 8 and f"function {function!r} failed with {kind}" in answer["error"]
    assert SECRET not in answer["error"]
    assert f"error {error_id}" in caplog.text and SECRET in caplog.text
    server = HttpServer("127.0.0.1:0", TOKEN, stub)
    assert SECRET in http(server.address, f"/drpc/{function}/x")[1]["error"]
    server.stop()
