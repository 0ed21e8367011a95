"""``import trident``: the public names, nothing heavy, and nothing that a file of the user could hide."""

from __future__ import annotations

from pathlib import Path

import pytest

import trident
import trident.coordinators.errors
import trident.errors
from tests.pages import facade_stub
from tests.programs import python

ROOT = Path(__file__).resolve().parents[2]

PUBLIC = """
Aggregator BackingMap Backlog BasicBolt BasicOutputCollector BatchCoordinator BatchSpout BoltContext ChainedAggregation
Combiner Commits CommitterTridentSpout Count DataSourceSpout Debug DeltaAppend DeltaMapState DeltaSpout Difference
DirectoryQueueSpout Emitted Emitter Equals FailedException FencedBackingMap FileSpout FilterNull FirstN FixedBatchSpout
GeneratorSpout GroupedStream HttpState InProcessQueue InProcessQueueSpout JoinOutFieldsMode JoinType JsonFormatter
KafkaSpout KafkaState LRUMemoryMapState LiveAttempts MapGet MapState Max MemoryMapState Min MultiReducer Negate
NotExactlyOnceWarning OpaqueKafkaSpout OpaquePartitionEmitter OpaquePartitionedTridentSpout OpaqueValue OperationContext
OutputCollector OutsideMark OutsidePart OutsideRows OutsideState OwnsTable PartitionBatch PartitionEmitter
PartitionedCoordinator PartitionedTridentSpout PostgresMap PostgresState QueryFunction QueueSpout RateSpout
RedisListQueue RedisListSpout RedisMap Reducer RemovableMapState Replay RichBolt RichSpout RowExplanation
SameBatchOnlyWarning SnapshotGet Snapshottable SnapshottableMap Split SpoutCollector SpoutContext SpoutKind SqliteMap
SqliteQueue State StateFactory StateUpdater StaticMap Stream StructuredStreamSpout Sum TakingCoordinator TimerContext
TopologyListener TopologyQuery TransactionAttempt TransactionalValue TridentConfig TridentError TridentSpout
TridentState TridentTopology TrueFilter Tuple TupleCollectionGet TupleFailure TupleQuery TupleTopology Upsert View
WindowedStream arrow_function configure_spark errors events explain_row expr functions get non_transactional opaque
pandas_function read replay transactional view
""".split()


def test_the_public_names_are_these():
    assert sorted(trident.__all__) == sorted(PUBLIC)
    assert set(trident._HOME) | set(trident._MODULES) == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported(name):
    assert getattr(trident, name) is not None
    assert name in dir(trident)


def test_type_checkers_see_the_same_names():
    made_anew = "made anew by `python -m tests.pages.facade_stub`"
    assert facade_stub.PATH.read_text(encoding="utf-8") == facade_stub.text(), made_anew


def test_an_unknown_name_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="'trident' has no attribute 'Topology'"):
        _ = trident.Topology
    with pytest.raises(ImportError):
        exec("from trident import Topology")


def test_importing_it_loads_neither_pyspark_nor_kazoo_nor_a_jvm(tmp_path):
    heavy = ("pyspark", "py4j", "kazoo", "pyarrow", "pandas", "numpy", "delta", "rich")
    script = f"import trident, sys; print(sorted(set(sys.modules) & set({heavy!r})))"
    done = python("-c", script, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stderr


def test_the_error_module_has_the_whole_tree():
    tree = {
        name
        for name, value in vars(trident.coordinators.errors).items()
        if isinstance(value, type) and issubclass(value, trident.coordinators.errors.TridentError)
    }
    assert set(trident.errors.__all__) == tree
    assert all(getattr(trident.errors, name) is getattr(trident.coordinators.errors, name) for name in tree)


@pytest.mark.parametrize(
    "files", [("states.py", "coordinators/__init__.py"), ("states/data.csv", "coordinators/data.csv")]
)
def test_nothing_of_a_users_can_hide_a_package_of_the_framework(tmp_path, files):
    script = "import trident\n"
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("MINE = 1\n" if file.endswith(".py") else "")
        name = file.removesuffix(".py").partition("/")[0]
        script += f"import {name}\nassert {name}.MINE == 1\n" if file.endswith(".py") else ""
    script += "for one in trident.__all__: getattr(trident, one)\n"
    script += "from trident import coordinators, states\nprint(states.__name__, coordinators.__name__)"
    done = python("-c", script, cwd=tmp_path)
    assert done.stdout == "trident.states trident.coordinators\n", done.stderr
