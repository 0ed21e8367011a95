"""Storm Trident's exactly-once micro-batches in Python, on Spark, Delta Lake and ZooKeeper.

Everything that users need is imported from here::

    from trident import Count, DeltaMapState, FileSpout, TridentTopology

Names are loaded when they are first used: ``import trident`` starts no JVM and
imports no PySpark.
"""

from __future__ import annotations

import importlib
from typing import Any

# Module -> the public names that it defines: the one table of them. Type checkers read __init__.pyi, which is made
# from this table by `python -m tests.pages.facade_stub`; a test compares the two.
_NAMES = {
    "config": "TridentConfig",
    "coordinators.identities": "TransactionAttempt",
    "errors": "FailedException TridentError",
    "operations.aggregators": "Aggregator Combiner Count Max Min Reducer Sum",
    "udf.builtins": "Debug Equals FilterNull Negate Split TrueFilter",
    "operations.guarantees": "NotExactlyOnceWarning SameBatchOnlyWarning",
    "operations.joins": "JoinOutFieldsMode JoinType",
    "operations.multi_reduce": "MultiReducer",
    "operations.top_rows": "FirstN",
    "operations.persisting": "Upsert",
    "running.query": "TopologyQuery",
    "running.reading": "get read",
    "running.view": "View view",
    "spark.session": "configure_spark",
    "spouts.contracts": (
        "Backlog BatchCoordinator BatchSpout Commits CommitterTridentSpout Emitted Emitter OpaquePartitionEmitter "
        "OpaquePartitionedTridentSpout OwnsTable PartitionBatch PartitionEmitter PartitionedCoordinator "
        "PartitionedTridentSpout SpoutContext SpoutKind TridentSpout"
    ),
    "spouts.data_source": "DataSourceSpout",
    "spouts.delta.spout": "DeltaSpout",
    "spouts.files.spout": "FileSpout",
    "spouts.kafka.spout": "KafkaSpout OpaqueKafkaSpout",
    "spouts.fed": "FixedBatchSpout",
    "spouts.live_attempts": "LiveAttempts TakingCoordinator",
    "spouts.queues.directory_queue": "DirectoryQueueSpout",
    "spouts.queues.in_process": "InProcessQueue InProcessQueueSpout",
    "spouts.queues.receipts": "QueueSpout",
    "spouts.queues.redis_queue": "RedisListQueue RedisListSpout",
    "spouts.queues.sqlite": "SqliteQueue",
    "spouts.rate": "GeneratorSpout RateSpout",
    "spouts.rich": "RichSpout SpoutCollector",
    "spouts.structured_stream": "StructuredStreamSpout",
    "states.core.values": "MapGet OpaqueValue SnapshotGet TransactionalValue TupleCollectionGet",
    "states.delta.append": "DeltaAppend",
    "states.keyed.delta_map": "DeltaMapState",
    "states.maps.backed_map": "non_transactional opaque transactional",
    "states.maps.backing_maps": "StaticMap",
    "states.maps.map_states": (
        "BackingMap FencedBackingMap MapState QueryFunction RemovableMapState Snapshottable SnapshottableMap State "
        "StateFactory StateUpdater"
    ),
    "states.maps.memory_map": "LRUMemoryMapState MemoryMapState",
    "states.maps.postgres_store": "PostgresMap",
    "states.maps.redis_store": "RedisMap",
    "states.maps.sqlite_store": "SqliteMap",
    "states.outside.http_state": "HttpState",
    "states.outside.kafka_state": "KafkaState",
    "states.outside.postgres_state": "PostgresState",
    "states.outside.port": "OutsideMark OutsidePart OutsideRows OutsideState",
    "streams.stream": "ChainedAggregation GroupedStream Stream TridentState WindowedStream",
    "time_travel.differences": "Difference",
    "time_travel.explain_row": "RowExplanation explain_row",
    "time_travel.replay": "Replay replay",
    "topology": "TridentTopology",
    "tuples.bolts": "BasicBolt BasicOutputCollector BoltContext OutputCollector RichBolt Tuple",
    "tuples.query": "TupleQuery",
    "tuples.spouts": "TupleFailure",
    "tuples.topology": "TupleTopology",
    "udf.deferred": "expr",
    "udf.signatures": "arrow_function pandas_function",
    "watching.json_logs": "JsonFormatter",
    "watching.listeners": "TopologyListener",
    "workers.calls": "OperationContext",
    "workers.timers": "TimerContext",
}
_HOME = {name: f"trident.{module}" for module, names in _NAMES.items() for name in names.split()}
# Public modules.
_MODULES = ("errors", "events", "functions")

__all__ = sorted((*_HOME, *_MODULES))


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
