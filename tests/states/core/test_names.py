"""Names that become folders, znodes or SQL identifiers: refused early, or used exactly as they are.

What a name is made into is under the warehouse, under the root znode, or a quoted
identifier; whatever a name is, nothing beside them is touched.
"""

from __future__ import annotations

import json
import os
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from tests.messages.message_helpers import Messages
from tests.states.group_helpers import map_binding
from tests.topology_helpers import starter
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FixedBatchSpout,
    MemoryMapState,
    TridentTopology,
    TupleTopology,
    cli,
)
from trident.commands import admin
from trident.commands.dead_letters import dead_letters, replay
from trident.config import TridentConfig
from trident.coordinators.embedded_server import read_endpoint
from trident.coordinators.errors import (
    ConfigError,
    CorruptZnode,
    FieldError,
    ForeignTable,
    Halted,
    SourceError,
    TableError,
    TopologyError,
)
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.records import RESERVED_NAMES, Decision, decode, encode
from trident.coordinators.transactional_state import partition_znode
from trident.coordinators.znodes import Create, Delete
from trident.coordinators.znodes import check_name as check_znode_name
from trident.coordinators.zookeeper import ZooKeeper
from trident.planning.groups import plan
from trident.spouts.partitions import OpaquePartitionedTridentSpoutExecutor, _usable
from trident.states.core.control import ControlRecord
from trident.states.core.descriptor import StateDescriptor, load_descriptor
from trident.states.core.names import check_inside, check_name
from trident.states.core.tables import StagedFile
from trident.states.delta.manifest import Manifest, ManifestStore, ManifestTable, groups_with_manifests
from trident.states.delta.staging import staged_file
from trident.states.maps.backed_map import opaque
from trident.states.maps.redis_store import RedisMap
from trident.states.maps.sqlite_store import SqliteMap
from trident.states.publishing.dead_letters import check_names_apart, side_tables

NASTY = [
    *["", " ", ".", "..", "...", "../x", "../../x", "x/..", "a/b", "/etc", "/", "//", "a/", "a\\b", "..\\x"],
    *["a\0b", "a\nb", "a\n", "a\tb", "a b", " a", "a ", "`a`", "a`b", "'a'", 'a"b', "a;b", "a;DROP TABLE x", "a--b'"],
    *["a%2e", "%2e%2e", "%2e%2e%2fx", "~", "~root", "$HOME", "${x}", "$(id)", "*", "?", "[a]", "{a}", "a|b", "a&b"],
    *["a<b", "a>b", "-a", "--yes", "_a", ".a", "_delta_log", "_trident", "1a", "a.b", "a,b", "a=b", "a+b", "a@b"],
    *["a#b", "a!b", "é", "ａ", "а", "a\u0301", "\u202eabc", "a\u200bb", "\ufeffa", "a\u2028b", "\ue000", "\ud800"],
    *["C:\\x", "a:b", "a\u0000", "😀", "a" * 101, "a" * 10_000],
]
# A state's name is a table's too: no "-", and "__" is the framework's. Two folders are.
TAKEN = ["states", "zookeeper", "live", "identity", "incarnation"]
NASTY_FOR = {
    "topology": [*NASTY, *TAKEN[:2]],
    "stream": [*NASTY, *TAKEN[2:]],
    "state": [*NASTY, "a-b", "a__b"],
    "function": NASTY,
}


# -- refused when the topology is built --------------------------------------


@pytest.mark.parametrize("kind", sorted(NASTY_FOR))
def test_every_nasty_name_is_refused(kind: str) -> None:
    for name in NASTY_FOR[kind]:
        with pytest.raises(TopologyError) as caught:
            check_name(kind, name)
        assert repr(name) in str(caught.value) and caught.value.expected or name in TAKEN


@pytest.mark.parametrize("kind", sorted(NASTY_FOR))
@settings(max_examples=50)
@given(name=st.text(max_size=120) | st.text(string.ascii_letters + string.digits + "_-./`", min_size=1, max_size=12))
@example("a\n")
def test_a_name_that_is_taken_is_a_plain_one(kind: str, name: str) -> None:
    try:
        check_name(kind, name)
    except TopologyError:
        return
    assert set(name) <= set(string.ascii_letters + string.digits + "_-") and name[0] in string.ascii_letters
    assert len(name.encode()) <= 100
    assert os.path.normpath(os.path.join("/root", name)) == f"/root/{name}"
    assert check_znode_name(name, "a name") == name


def spout() -> Any:
    return FixedBatchSpout("n long", [[(1,)]])


BUILDERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "topology": ("topology", TridentTopology),
    "tuple topology": ("topology", TupleTopology),
    "stream": ("stream", lambda name: TridentTopology("t").new_stream(name, spout())),
    "function": ("function", lambda name: TridentTopology("t").new_drpc_stream(name, "x string")),
    "DeltaMapState": ("state", DeltaMapState),
    "DeltaAppend": ("state", DeltaAppend),
    "MemoryMapState": ("state", MemoryMapState),
    "opaque(SqliteMap)": ("state", lambda name: opaque(name, SqliteMap("x.db", "t"))),
    "table of SqliteMap": ("state", lambda name: SqliteMap("x.db", name)),
    "name of RedisMap": ("state", lambda name: RedisMap("redis://localhost", name)),
    "spout of a tuple topology": ("stream", lambda name: TupleTopology("t").set_spout(name, object())),
    "bolt of a tuple topology": ("stream", lambda name: TupleTopology("t").set_bolt(name, object())),
}


@pytest.mark.parametrize("what", sorted(BUILDERS))
def test_a_topology_with_a_nasty_name_cannot_be_built(what: str) -> None:
    kind, build = BUILDERS[what]
    for name in NASTY_FOR[kind]:
        with pytest.raises(TopologyError):
            build(name)


def test_no_stream_has_the_name_of_a_znode_of_the_frameworks() -> None:
    for name in RESERVED_NAMES:
        with pytest.raises(TopologyError, match=f"stream name '{name}' is taken by the framework.*identity, inc"):
            TridentTopology("t").new_stream(name, spout())


@pytest.mark.parametrize("inside", ["manifests", "states", "boundaries", "ledgers"])
def test_two_streams_whose_folders_would_be_one_are_refused(inside: str) -> None:
    for one, other in (("streams", inside), (inside, "streams")):
        made = TridentTopology("t")
        made.new_stream(one, spout())
        with pytest.raises(TopologyError, match=f"'streams' and '{inside}' cannot be in one topology"):
            made.new_stream(other, spout())
    made = TridentTopology("t")
    for name in ("manifests", "states", "boundaries"):
        made.new_stream(name, spout())


def test_a_stream_named_manifests_is_not_taken_for_a_batch_group(tmp_path: Path) -> None:
    (tmp_path / "_trident/top/streams/manifests/replays").mkdir(parents=True)
    assert groups_with_manifests(tmp_path, "top") == []
    ManifestStore(tmp_path, "top", "streams", "inc").write(
        Manifest("top", "streams", "inc", TransactionAttempt(1, 0), None, (), {})
    )
    assert groups_with_manifests(tmp_path, "top") == ["streams"]


@pytest.mark.parametrize("kind", ["messages", "dead_letters"])
def test_two_topologies_never_meet_in_one_table_beside_their_states(kind: str, tmp_path: Path) -> None:
    """a and x__y, a__x and y: both are named before anything runs, without Spark and without ZooKeeper."""
    folder = tmp_path / f"a__x__y__{kind}" / "_delta_log"
    folder.mkdir(parents=True)
    control = ControlRecord("a__x", "y", "inc", 3, 0, "d", 1, 1).encode()
    action = {"domainMetadata": {"domain": "trident", "configuration": control, "removed": False}}
    (folder / f"{0:020d}.json").write_text(json.dumps(action))

    def made(topology: str, stream: str) -> TridentTopology:
        one = TridentTopology(topology)
        one.new_stream(stream, Messages("line string", {1: "a"}.items())).partition_persist(DeltaAppend("lines"))
        return one

    with pytest.raises(ForeignTable) as caught:
        made("a", "x__y").start(config=TridentConfig(warehouse=tmp_path, zookeeper="nobody:1"))
    for word in ("'a'", "'x__y'", "'a__x'", "'y'", f"a__x__y__{kind}", "without '__' they never do"):
        assert word in str(caught.value)
    check_names_apart(tmp_path, "a__x", plan(made("a__x", "y").graph, tracking=True)[0].bindings)
    assert side_tables(tmp_path, "a") == [] and len(side_tables(tmp_path, "a__x")) == 1


# -- the command line and what looks after a topology ------------------------


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Path]:
    """A warehouse in a folder of its own; afterwards nothing has changed beside it, nor in it."""
    for folder in ("w/_trident/states", "w/table/_delta_log", "x", "states"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "keep").write_text("keep")
    before = listed(tmp_path)
    yield tmp_path / "w"
    assert listed(tmp_path) == before


def listed(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


COMMANDS = {
    "status": ["status"],
    "compact": ["compact"],
    "skip": ["skip", "--txid", "1"],
    "reset": ["reset", "--yes", "--drop-tables"],
    "dead-letters list": ["dead-letters", "list"],
    "dead-letters replay": ["dead-letters", "replay"],
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_refuses_a_nasty_name_and_touches_nothing(command: str, beside: Path) -> None:
    for name in NASTY_FOR["topology"]:
        done = CliRunner().invoke(cli.main, [*COMMANDS[command], "--set", f"warehouse={beside}", "--", name])
        assert done.exit_code == 2, (name, done.output)


@pytest.mark.parametrize(
    "call",
    [
        lambda name, config: admin.compact(name, config),
        lambda name, config: admin.skip(name, 1, config),
        lambda name, config: admin.reset(name, True, config),
        lambda name, config: dead_letters(name, config),
        lambda name, config: replay(name, config),
    ],
    ids=["compact", "skip", "reset", "dead_letters", "replay"],
)
def test_a_function_refuses_a_nasty_name_and_touches_nothing(call: Callable[..., Any], beside: Path) -> None:
    config = TridentConfig(warehouse=beside)
    for name in NASTY_FOR["topology"]:
        with pytest.raises(TopologyError):
            call(name, config)


def test_a_state_is_read_by_its_own_name_alone(beside: Path) -> None:
    for name in NASTY_FOR["state"]:
        with pytest.raises(TopologyError):
            load_descriptor(beside, name)


def test_reset_deletes_nothing_behind_a_symbolic_link(tmp_path: Path, zk_server: str, zk_root: str) -> None:
    outside, warehouse = tmp_path / "outside", tmp_path / "w"
    for folder in ("counts", "log", "top"):
        (outside / folder).mkdir(parents=True)
        (outside / folder / "keep").write_text("keep")
    warehouse.mkdir()
    StateDescriptor.of(map_binding(), "top", "g", "i", 1).save(warehouse)
    links = {"counts": "counts", "counts__log": "log", "_trident/top": "top"}
    for link, target in links.items():
        (warehouse / link).symlink_to(outside / target)
    config = TridentConfig(warehouse=warehouse, zookeeper=zk_server, zookeeper_root=zk_root)
    assert "dropped" in admin.reset("top", True, config)
    assert [(outside / target / "keep").read_text() for target in links.values()] == ["keep"] * 3
    assert not any((warehouse / link).is_symlink() for link in links)


# -- znodes ------------------------------------------------------------------


ANY_NAME = st.text(min_size=1, max_size=20) | st.sampled_from(NASTY)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=ANY_NAME)
@example("\U0001f600")
@example("\ue000")
@example("a\u0085b")
def test_a_name_is_refused_or_is_exactly_one_znode(zk: ZooKeeper, name: str) -> None:
    try:
        path = zk.path("names", name)
    except ConfigError as refused:
        assert "znode" in str(refused)
        return
    exactly_one(zk, "names", path, name)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=ANY_NAME)
@example("a/b")
@example("../x")
@example("😀")
def test_a_partitions_name_is_refused_or_is_exactly_one_znode(zk: ZooKeeper, name: str) -> None:
    """Names of partitions come from a source: they may be anything that can be written, and lead nowhere else."""
    if not _usable(name):
        assert not name.strip(".") or len(name) > 300 or any("\ud800" <= c <= "\udfff" for c in name)
        return
    child = partition_znode(name)
    assert unquote(child) == name
    exactly_one(zk, "partitions", f"{zk.config.root}/partitions/{child}", child)


def exactly_one(zk: ZooKeeper, parent: str, path: str, child: str) -> None:
    root = zk.config.root
    zk.ensure_path(f"{root}/{parent}")
    zk.multi([Create(path, b"x")])
    assert zk.children(f"{root}/{parent}") == [child] and zk.get(path)[0] == b"x"
    assert zk.children(root) == [parent]
    zk.multi([Delete(path)])


@pytest.mark.parametrize("partition", ["", ".", "..", "...", "\ud800", "x" * 1025, 7, None])
def test_a_source_with_an_impossible_partition_is_an_error_before_anything_is_emitted(partition: Any) -> None:
    executor = OpaquePartitionedTridentSpoutExecutor.__new__(OpaquePartitionedTridentSpoutExecutor)
    executor._tx_id, executor._partitions = "lines", None
    executor._coordinator = SimpleNamespace(get_partitions_for_batch=lambda: ["fine", partition])
    with pytest.raises(SourceError, match="'lines'"):
        executor._ordered_partitions()


def test_names_that_lead_elsewhere_are_refused_for_znodes() -> None:
    for name in ("", ".", "..", "../x", "a/b", "/etc", "a\0b", "a\nb", "\u202eabc", "a\u200bb", "\ud800", "a" * 1025):
        with pytest.raises(ConfigError):
            check_znode_name(name, "a name")
    for name in ("topic-0", "file with blanks.txt", "a`b;DROP", "日本語", "é", "%2e%2e"):
        assert check_znode_name(name, "a name") == name


@pytest.mark.parametrize("root", ["/", "trident", "/a/../b", "/a//b", "/a/.", "/a\0b", "/a b", "/trident/", "/%2e`"])
def test_a_root_that_leads_elsewhere_is_refused(root: str) -> None:
    with pytest.raises(ConfigError):
        TridentConfig(zookeeper_root=root)


# -- paths that are read from ZooKeeper, manifests and tasks ------------------

PATHS = [
    *["", ".", "..", "../x", "a/../../x", "a/..", "/etc/passwd", "//x", "a//b", "a/./b", "./a", "a/", "a\0b"],
    *[None, 7, ["a"]],
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_leads_out_of_its_folder_is_refused(path: Any) -> None:
    with pytest.raises(TableError):
        check_inside("a path", path)
    file = {"path": path, "size": 1, "mtime_ms": 1, "num_records": 1, "stats": "{}", "partition_values": {}}
    with pytest.raises(TableError):
        StagedFile.from_json(file)
    with pytest.raises(TableError):
        staged_file({**file, "partition_values": "{}"})
    table = {
        "state": "s",
        "kind": "append",
        "path": path,
        "table_id": "",
        "schema_hash": "",
        "files": [],
        "details": {},
    }
    with pytest.raises(TableError):
        ManifestTable.from_json(table)


PARTS = st.lists(st.sampled_from(["..", ".", "", "a", "b c", "/", "\\"]), max_size=6)


@settings(max_examples=100)
@given(path=st.text(max_size=30) | PARTS.map("/".join))
def test_a_path_that_is_taken_stays_below_its_folder(path: str) -> None:
    try:
        check_inside("a path", path)
    except TableError:
        return
    assert os.path.normpath(os.path.join("/root/of/it", path)) == f"/root/of/it/{path}"


def decision(**change: Any) -> Decision:
    return Decision(**{"txid": 1, "attempt_id": 0, "manifest": "m", "size": 1, "sha256": "s", **change})


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "_trident/../../x", "a/.."])
def test_a_decision_cannot_name_a_file_outside_of_the_warehouse(path: str) -> None:
    data = encode(decision(manifest="fine")).replace(b"fine", path.encode())
    with pytest.raises(CorruptZnode, match="/t/g/decided"):
        decode("/t/g/decided", data, Decision)


def test_a_decision_cannot_name_another_file_of_the_warehouse(tmp_path: Path) -> None:
    """Such as a table's data, which whoever feeds the source may have chosen."""
    own = ManifestStore(tmp_path, "top", "g", "inc")
    manifest = Manifest("top", "g", "inc", TransactionAttempt(1, 0), None, (), {})
    decided = own.write(manifest)
    assert own.read(decided) == manifest
    data = (tmp_path / decided.manifest).read_bytes()
    (tmp_path / "table").mkdir()
    for elsewhere in ("table/1-0.json", "_trident/top/g/1-0.json", "_trident/top/g/manifests/deeper/1-0.json"):
        (tmp_path / elsewhere).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / elsewhere).write_bytes(data)
        with pytest.raises(Halted, match="not among those of its batch group"):
            own.read(Decision(1, 0, elsewhere, decided.size, decided.sha256))
    other = ManifestStore(tmp_path, "other", "g", "inc")
    (tmp_path / "_trident/other/g/manifests").mkdir(parents=True)
    (tmp_path / "_trident/other/g/manifests/1-0.json").write_bytes(data)
    with pytest.raises(Halted, match="of another batch"):
        other.read(Decision(1, 0, "_trident/other/g/manifests/1-0.json", decided.size, decided.sha256))
    with pytest.raises(Halted, match="of another batch"):
        own.read(Decision(1, 1, decided.manifest, decided.size, decided.sha256))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("port", value) for value in ("1;x", 70000, True)),
        *(("server_pid", value) for value in (1, -1)),
        *(("supervisor_pid", "x"), ("server_started", None)),
    ],
)
def test_an_endpoint_that_was_tampered_with_is_not_believed(tmp_path: Path, field: str, value: Any) -> None:
    good = {"port": 2181, "supervisor_pid": 10, "supervisor_started": "1", "server_pid": 11, "server_started": "1"}
    (tmp_path / "endpoint.json").write_text(json.dumps(good))
    assert read_endpoint(tmp_path) is not None
    (tmp_path / "endpoint.json").write_text(json.dumps({**good, field: value}))
    assert read_endpoint(tmp_path) is None


# -- columns, with real tables ------------------------------------------------

COLUMNS = [
    *[
        *["a`b", "a.b", "a'b", 'a"b', "a-b", "select", "日本", "é", "../x", "a/b", "--", "%2e%2e", "\u202eabc", "$id"],
        "_a",
    ]
]
REFUSED_COLUMNS = ["$(id)", "a b", "a;b", "a,b", "a=b", "a{b", "a(b", "a\nb", "a\tb"]


def with_columns(names: list[str]) -> TridentTopology:
    schema = StructType([StructField(name, LongType()) for name in names])
    made = TridentTopology("columns")
    stream = made.new_stream("rows", FixedBatchSpout(schema, [[tuple(range(len(names)))]]))
    stream.partition_persist(DeltaAppend("rows_of_it"))
    stream.group_by(*names).persistent_aggregate(DeltaMapState("counts", merge_every_txids=1), Count(), "n")
    return made


@pytest.mark.parametrize("name", REFUSED_COLUMNS)
def test_a_column_that_delta_refuses_is_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(FieldError, match="cannot be a column"):
        plan(with_columns([name]).graph)


@pytest.mark.long
def test_columns_with_any_other_name_are_quoted(spark: Any, zk_server: str, zk_root: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with starter(spark, zk_server, zk_root, tmp_path / "inner") as start:
        query = start.run(with_columns(COLUMNS))
        expected = dict(zip(COLUMNS, range(len(COLUMNS))))
        assert [row.asDict() for row in query.snapshot("rows_of_it").collect()] == [expected]
        query.stop()  # which also merges into the plain table
        plain = spark.read.format("delta").load(str(tmp_path / "inner/warehouse/counts"))
        (row,) = plain.collect()
        assert {name: row[name] for name in COLUMNS} == expected and row["n"] == 1
    assert sorted(os.listdir(tmp_path)) == ["inner"] and sorted(os.listdir(tmp_path / "inner")) == ["warehouse"]
