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
    from trident.aggregators import Aggregator, Combiner, Count, Max, Min, Reducer, Sum
    from trident.builtin_operations import Debug, Equals, FilterNull, Negate, Split, TrueFilter
    from trident.chained import ChainedAggregation
    from trident.config import TridentConfig
    from trident.coordinators.transactions import TransactionAttempt
    from trident.data_source_spout import DataSourceSpout
    from trident.deferred import expr
    from trident.delta_spout import DeltaSpout
    from trident.directory_spout import DirectoryQueueSpout
    from trident.errors import FailedException, TridentError
    from trident.extremes import FirstN
    from trident.file_spout import FileSpout
    from trident.fixed_batch_spout import FixedBatchSpout
    from trident.grouped_stream import GroupedStream
    from trident.guarantees import NotExactlyOnceWarning
    from trident.lifecycle import OperationContext
    from trident.live_attempts import LiveAttempts, TakingCoordinator
    from trident.meetings import JoinOutFieldsMode, JoinType, MultiReducer
    from trident.message_queue import InProcessQueue, InProcessQueueSpout
    from trident.persisting import TridentState
    from trident.query import TopologyQuery
    from trident.queue_spout import QueueSpout
    from trident.rate_spout import GeneratorSpout, RateSpout
    from trident.reading import read
    from trident.redis_list_queue import RedisListQueue
    from trident.redis_list_spout import RedisListSpout
    from trident.rich_spouts import RichSpout, SpoutCollector
    from trident.same_batch import SameBatchOnlyWarning
    from trident.session import configure_spark
    from trident.spouts import (
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
    from trident.sqlite_queue import SqliteQueue
    from trident.state_queries import MapGet, SnapshotGet, TupleCollectionGet
    from trident.states.backed_map import non_transactional, opaque, transactional
    from trident.states.backing_maps import StaticMap
    from trident.states.delta_append import DeltaAppend
    from trident.states.delta_map import DeltaMapState
    from trident.states.map_states import SnapshottableMap
    from trident.states.memory_map import LRUMemoryMapState, MemoryMapState
    from trident.states.redis_map import RedisMap
    from trident.states.sqlite_map import SqliteMap
    from trident.states.stored_values import OpaqueValue, TransactionalValue
    from trident.states.user_states import (
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
    from trident.stream import Stream
    from trident.stream_spout import StructuredStreamSpout
    from trident.topology import TridentTopology
    from trident.tuple_bolts import BasicBolt, BasicOutputCollector, BoltContext, OutputCollector, RichBolt, Tuple
    from trident.tuple_query import TupleQuery
    from trident.tuple_spouts import TupleFailure
    from trident.tuple_topology import TupleTopology
    from trident.upsert import Upsert
    from trident.vectors import arrow_function, pandas_function
    from trident.windows import WindowedStream

# Public name -> the module that defines it. A test compares it with __all__.
_HOME = {
    "Aggregator": "trident.aggregators",
    "BackingMap": "trident.states.user_states",
    "Backlog": "trident.spouts",
    "BasicBolt": "trident.tuple_bolts",
    "BasicOutputCollector": "trident.tuple_bolts",
    "BatchCoordinator": "trident.spouts",
    "BatchSpout": "trident.spouts",
    "BoltContext": "trident.tuple_bolts",
    "ChainedAggregation": "trident.chained",
    "Combiner": "trident.aggregators",
    "Commits": "trident.spouts",
    "CommitterTridentSpout": "trident.spouts",
    "Count": "trident.aggregators",
    "DataSourceSpout": "trident.data_source_spout",
    "Debug": "trident.builtin_operations",
    "DeltaAppend": "trident.states.delta_append",
    "DeltaMapState": "trident.states.delta_map",
    "DeltaSpout": "trident.delta_spout",
    "DirectoryQueueSpout": "trident.directory_spout",
    "Emitted": "trident.spouts",
    "Emitter": "trident.spouts",
    "Equals": "trident.builtin_operations",
    "FailedException": "trident.coordinators.errors",
    "FencedBackingMap": "trident.states.user_states",
    "FileSpout": "trident.file_spout",
    "FilterNull": "trident.builtin_operations",
    "FirstN": "trident.extremes",
    "FixedBatchSpout": "trident.fixed_batch_spout",
    "GeneratorSpout": "trident.rate_spout",
    "GroupedStream": "trident.grouped_stream",
    "InProcessQueue": "trident.message_queue",
    "InProcessQueueSpout": "trident.message_queue",
    "JoinOutFieldsMode": "trident.meetings",
    "JoinType": "trident.meetings",
    "LRUMemoryMapState": "trident.states.memory_map",
    "LiveAttempts": "trident.live_attempts",
    "MapGet": "trident.state_queries",
    "MapState": "trident.states.user_states",
    "Max": "trident.aggregators",
    "MemoryMapState": "trident.states.memory_map",
    "Min": "trident.aggregators",
    "MultiReducer": "trident.meetings",
    "Negate": "trident.builtin_operations",
    "NotExactlyOnceWarning": "trident.guarantees",
    "OpaquePartitionEmitter": "trident.spouts",
    "OpaquePartitionedTridentSpout": "trident.spouts",
    "OpaqueValue": "trident.states.stored_values",
    "OperationContext": "trident.lifecycle",
    "OutputCollector": "trident.tuple_bolts",
    "OwnsTable": "trident.spouts",
    "PartitionBatch": "trident.spouts",
    "PartitionEmitter": "trident.spouts",
    "PartitionedCoordinator": "trident.spouts",
    "PartitionedTridentSpout": "trident.spouts",
    "QueryFunction": "trident.states.user_states",
    "QueueSpout": "trident.queue_spout",
    "RateSpout": "trident.rate_spout",
    "RedisListQueue": "trident.redis_list_queue",
    "RedisListSpout": "trident.redis_list_spout",
    "RedisMap": "trident.states.redis_map",
    "Reducer": "trident.aggregators",
    "RemovableMapState": "trident.states.user_states",
    "RichBolt": "trident.tuple_bolts",
    "RichSpout": "trident.rich_spouts",
    "SameBatchOnlyWarning": "trident.same_batch",
    "SnapshotGet": "trident.state_queries",
    "Snapshottable": "trident.states.user_states",
    "SnapshottableMap": "trident.states.map_states",
    "Split": "trident.builtin_operations",
    "SpoutCollector": "trident.rich_spouts",
    "SpoutContext": "trident.spouts",
    "SpoutKind": "trident.spouts",
    "SqliteMap": "trident.states.sqlite_map",
    "SqliteQueue": "trident.sqlite_queue",
    "State": "trident.states.user_states",
    "StateFactory": "trident.states.user_states",
    "StateUpdater": "trident.states.user_states",
    "StaticMap": "trident.states.backing_maps",
    "Stream": "trident.stream",
    "StructuredStreamSpout": "trident.stream_spout",
    "Sum": "trident.aggregators",
    "TakingCoordinator": "trident.live_attempts",
    "TopologyQuery": "trident.query",
    "TransactionAttempt": "trident.coordinators.transactions",
    "TransactionalValue": "trident.states.stored_values",
    "TridentConfig": "trident.config",
    "TridentError": "trident.coordinators.errors",
    "TridentSpout": "trident.spouts",
    "TridentState": "trident.persisting",
    "TridentTopology": "trident.topology",
    "TrueFilter": "trident.builtin_operations",
    "Tuple": "trident.tuple_bolts",
    "TupleCollectionGet": "trident.state_queries",
    "TupleFailure": "trident.tuple_spouts",
    "TupleQuery": "trident.tuple_query",
    "TupleTopology": "trident.tuple_topology",
    "Upsert": "trident.upsert",
    "WindowedStream": "trident.windows",
    "arrow_function": "trident.vectors",
    "configure_spark": "trident.session",
    "expr": "trident.deferred",
    "non_transactional": "trident.states.backed_map",
    "opaque": "trident.states.backed_map",
    "pandas_function": "trident.vectors",
    "read": "trident.reading",
    "transactional": "trident.states.backed_map",
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
