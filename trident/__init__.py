"""Storm Trident's exactly-once micro-batches in Python, on Spark, Delta Lake and ZooKeeper.

Everything that users need is imported from here::

    from trident import Count, DeltaMapState, FileSpout, TridentTopology

Names are loaded when they are first used: ``import trident`` starts no JVM and
imports no PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trident import errors, functions
    from trident.config import TridentConfig
    from trident.coordinators.transactions import TransactionAttempt
    from trident.errors import FailedException, TridentError
    from trident.operations.aggregators import Aggregator, Combiner, Count, Max, Min, Reducer, Sum
    from trident.operations.builtins import Debug, Equals, FilterNull, Negate, Split, TrueFilter
    from trident.operations.chained import ChainedAggregation
    from trident.operations.guarantees import NotExactlyOnceWarning
    from trident.operations.joins import JoinOutFieldsMode, JoinType, MultiReducer
    from trident.operations.persisting import TridentState
    from trident.operations.query_kinds import MapGet, SnapshotGet, TupleCollectionGet
    from trident.operations.same_batch import SameBatchOnlyWarning
    from trident.operations.top_rows import FirstN
    from trident.operations.upsert import Upsert
    from trident.operations.windows import WindowedStream
    from trident.running.query import TopologyQuery
    from trident.running.reading import read
    from trident.spark.session import configure_spark
    from trident.spouts.contracts import (
        Backlog,
        BatchCoordinator,
        BatchSpout,
        Commits,
        CommitterTridentSpout,
        Emitted,
        Emitter,
        OpaquePartitionedTridentSpout,
        OpaquePartitionEmitter,
        OwnsTable,
        PartitionBatch,
        PartitionedCoordinator,
        PartitionedTridentSpout,
        PartitionEmitter,
        SpoutContext,
        SpoutKind,
        TridentSpout,
    )
    from trident.spouts.data_source import DataSourceSpout
    from trident.spouts.delta.spout import DeltaSpout
    from trident.spouts.files.spout import FileSpout
    from trident.spouts.fixed import FixedBatchSpout
    from trident.spouts.live_attempts import LiveAttempts, TakingCoordinator
    from trident.spouts.queues.directory_spout import DirectoryQueueSpout
    from trident.spouts.queues.in_process import InProcessQueue, InProcessQueueSpout
    from trident.spouts.queues.receipts import QueueSpout
    from trident.spouts.queues.redis import RedisListQueue
    from trident.spouts.queues.redis_spout import RedisListSpout
    from trident.spouts.queues.sqlite import SqliteQueue
    from trident.spouts.rate import GeneratorSpout, RateSpout
    from trident.spouts.rich import RichSpout, SpoutCollector
    from trident.spouts.structured_stream import StructuredStreamSpout
    from trident.states.core.stored_values import OpaqueValue, TransactionalValue
    from trident.states.delta.append import DeltaAppend
    from trident.states.keyed.delta_map import DeltaMapState
    from trident.states.maps.backed_map import non_transactional, opaque, transactional
    from trident.states.maps.backing_maps import StaticMap
    from trident.states.maps.map_states import SnapshottableMap
    from trident.states.maps.memory_map import LRUMemoryMapState, MemoryMapState
    from trident.states.maps.redis_map import RedisMap
    from trident.states.maps.sqlite_map import SqliteMap
    from trident.states.maps.user_states import (
        BackingMap,
        FencedBackingMap,
        MapState,
        QueryFunction,
        RemovableMapState,
        Snapshottable,
        State,
        StateFactory,
        StateUpdater,
    )
    from trident.streams.grouped import GroupedStream
    from trident.streams.stream import Stream
    from trident.streams.topology import TridentTopology
    from trident.tuples.bolts import BasicBolt, BasicOutputCollector, BoltContext, OutputCollector, RichBolt, Tuple
    from trident.tuples.query import TupleQuery
    from trident.tuples.spouts import TupleFailure
    from trident.tuples.topology import TupleTopology
    from trident.udf.deferred import expr
    from trident.udf.vectorised import arrow_function, pandas_function
    from trident.workers.lifecycle import OperationContext

# Public name -> the module that defines it. A test compares it with __all__.
_HOME = {
    "Aggregator": "trident.operations.aggregators",
    "BackingMap": "trident.states.maps.user_states",
    "Backlog": "trident.spouts.contracts",
    "BasicBolt": "trident.tuples.bolts",
    "BasicOutputCollector": "trident.tuples.bolts",
    "BatchCoordinator": "trident.spouts.contracts",
    "BatchSpout": "trident.spouts.contracts",
    "BoltContext": "trident.tuples.bolts",
    "ChainedAggregation": "trident.operations.chained",
    "Combiner": "trident.operations.aggregators",
    "Commits": "trident.spouts.contracts",
    "CommitterTridentSpout": "trident.spouts.contracts",
    "Count": "trident.operations.aggregators",
    "DataSourceSpout": "trident.spouts.data_source",
    "Debug": "trident.operations.builtins",
    "DeltaAppend": "trident.states.delta.append",
    "DeltaMapState": "trident.states.keyed.delta_map",
    "DeltaSpout": "trident.spouts.delta.spout",
    "DirectoryQueueSpout": "trident.spouts.queues.directory_spout",
    "Emitted": "trident.spouts.contracts",
    "Emitter": "trident.spouts.contracts",
    "Equals": "trident.operations.builtins",
    "FailedException": "trident.coordinators.errors",
    "FencedBackingMap": "trident.states.maps.user_states",
    "FileSpout": "trident.spouts.files.spout",
    "FilterNull": "trident.operations.builtins",
    "FirstN": "trident.operations.top_rows",
    "FixedBatchSpout": "trident.spouts.fixed",
    "GeneratorSpout": "trident.spouts.rate",
    "GroupedStream": "trident.streams.grouped",
    "InProcessQueue": "trident.spouts.queues.in_process",
    "InProcessQueueSpout": "trident.spouts.queues.in_process",
    "JoinOutFieldsMode": "trident.operations.joins",
    "JoinType": "trident.operations.joins",
    "LRUMemoryMapState": "trident.states.maps.memory_map",
    "LiveAttempts": "trident.spouts.live_attempts",
    "MapGet": "trident.operations.query_kinds",
    "MapState": "trident.states.maps.user_states",
    "Max": "trident.operations.aggregators",
    "MemoryMapState": "trident.states.maps.memory_map",
    "Min": "trident.operations.aggregators",
    "MultiReducer": "trident.operations.joins",
    "Negate": "trident.operations.builtins",
    "NotExactlyOnceWarning": "trident.operations.guarantees",
    "OpaquePartitionEmitter": "trident.spouts.contracts",
    "OpaquePartitionedTridentSpout": "trident.spouts.contracts",
    "OpaqueValue": "trident.states.core.stored_values",
    "OperationContext": "trident.workers.lifecycle",
    "OutputCollector": "trident.tuples.bolts",
    "OwnsTable": "trident.spouts.contracts",
    "PartitionBatch": "trident.spouts.contracts",
    "PartitionEmitter": "trident.spouts.contracts",
    "PartitionedCoordinator": "trident.spouts.contracts",
    "PartitionedTridentSpout": "trident.spouts.contracts",
    "QueryFunction": "trident.states.maps.user_states",
    "QueueSpout": "trident.spouts.queues.receipts",
    "RateSpout": "trident.spouts.rate",
    "RedisListQueue": "trident.spouts.queues.redis",
    "RedisListSpout": "trident.spouts.queues.redis_spout",
    "RedisMap": "trident.states.maps.redis_map",
    "Reducer": "trident.operations.aggregators",
    "RemovableMapState": "trident.states.maps.user_states",
    "RichBolt": "trident.tuples.bolts",
    "RichSpout": "trident.spouts.rich",
    "SameBatchOnlyWarning": "trident.operations.same_batch",
    "SnapshotGet": "trident.operations.query_kinds",
    "Snapshottable": "trident.states.maps.user_states",
    "SnapshottableMap": "trident.states.maps.map_states",
    "Split": "trident.operations.builtins",
    "SpoutCollector": "trident.spouts.rich",
    "SpoutContext": "trident.spouts.contracts",
    "SpoutKind": "trident.spouts.contracts",
    "SqliteMap": "trident.states.maps.sqlite_map",
    "SqliteQueue": "trident.spouts.queues.sqlite",
    "State": "trident.states.maps.user_states",
    "StateFactory": "trident.states.maps.user_states",
    "StateUpdater": "trident.states.maps.user_states",
    "StaticMap": "trident.states.maps.backing_maps",
    "Stream": "trident.streams.stream",
    "StructuredStreamSpout": "trident.spouts.structured_stream",
    "Sum": "trident.operations.aggregators",
    "TakingCoordinator": "trident.spouts.live_attempts",
    "TopologyQuery": "trident.running.query",
    "TransactionAttempt": "trident.coordinators.transactions",
    "TransactionalValue": "trident.states.core.stored_values",
    "TridentConfig": "trident.config",
    "TridentError": "trident.coordinators.errors",
    "TridentSpout": "trident.spouts.contracts",
    "TridentState": "trident.operations.persisting",
    "TridentTopology": "trident.streams.topology",
    "TrueFilter": "trident.operations.builtins",
    "Tuple": "trident.tuples.bolts",
    "TupleCollectionGet": "trident.operations.query_kinds",
    "TupleFailure": "trident.tuples.spouts",
    "TupleQuery": "trident.tuples.query",
    "TupleTopology": "trident.tuples.topology",
    "Upsert": "trident.operations.upsert",
    "WindowedStream": "trident.operations.windows",
    "arrow_function": "trident.udf.vectorised",
    "configure_spark": "trident.spark.session",
    "expr": "trident.udf.deferred",
    "non_transactional": "trident.states.maps.backed_map",
    "opaque": "trident.states.maps.backed_map",
    "pandas_function": "trident.udf.vectorised",
    "read": "trident.running.reading",
    "transactional": "trident.states.maps.backed_map",
}

# Public modules.
_MODULES = ("errors", "functions")

__all__ = [
    "Aggregator",
    "BackingMap",
    "Backlog",
    "BasicBolt",
    "BasicOutputCollector",
    "BatchCoordinator",
    "BatchSpout",
    "BoltContext",
    "ChainedAggregation",
    "Combiner",
    "Commits",
    "CommitterTridentSpout",
    "Count",
    "DataSourceSpout",
    "Debug",
    "DeltaAppend",
    "DeltaMapState",
    "DeltaSpout",
    "DirectoryQueueSpout",
    "Emitted",
    "Emitter",
    "Equals",
    "FailedException",
    "FencedBackingMap",
    "FileSpout",
    "FilterNull",
    "FirstN",
    "FixedBatchSpout",
    "GeneratorSpout",
    "GroupedStream",
    "InProcessQueue",
    "InProcessQueueSpout",
    "JoinOutFieldsMode",
    "JoinType",
    "LRUMemoryMapState",
    "LiveAttempts",
    "MapGet",
    "MapState",
    "Max",
    "MemoryMapState",
    "Min",
    "MultiReducer",
    "Negate",
    "NotExactlyOnceWarning",
    "OpaquePartitionEmitter",
    "OpaquePartitionedTridentSpout",
    "OpaqueValue",
    "OperationContext",
    "OutputCollector",
    "OwnsTable",
    "PartitionBatch",
    "PartitionEmitter",
    "PartitionedCoordinator",
    "PartitionedTridentSpout",
    "QueryFunction",
    "QueueSpout",
    "RateSpout",
    "RedisListQueue",
    "RedisListSpout",
    "RedisMap",
    "Reducer",
    "RemovableMapState",
    "RichBolt",
    "RichSpout",
    "SameBatchOnlyWarning",
    "SnapshotGet",
    "Snapshottable",
    "SnapshottableMap",
    "Split",
    "SpoutCollector",
    "SpoutContext",
    "SpoutKind",
    "SqliteMap",
    "SqliteQueue",
    "State",
    "StateFactory",
    "StateUpdater",
    "StaticMap",
    "Stream",
    "StructuredStreamSpout",
    "Sum",
    "TakingCoordinator",
    "TopologyQuery",
    "TransactionAttempt",
    "TransactionalValue",
    "TridentConfig",
    "TridentError",
    "TridentSpout",
    "TridentState",
    "TridentTopology",
    "TrueFilter",
    "Tuple",
    "TupleCollectionGet",
    "TupleFailure",
    "TupleQuery",
    "TupleTopology",
    "Upsert",
    "WindowedStream",
    "arrow_function",
    "configure_spark",
    "errors",
    "expr",
    "functions",
    "non_transactional",
    "opaque",
    "pandas_function",
    "read",
    "transactional",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"trident.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'trident' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value  # from now on without this function
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
