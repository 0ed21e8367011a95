"""A spout is refused when it is built, by name, whatever is given for an argument."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource

from trident import (
    DataSourceSpout,
    DeltaSpout,
    DirectoryQueueSpout,
    FileSpout,
    FixedBatchSpout,
    QueueSpout,
    RedisListSpout,
    SqliteQueue,
)
from trident.coordinators.errors import ConfigError, TopologyError


class Source(DataSource):
    def schema(self) -> str:
        return "n long"

    def simpleStreamReader(self, schema: Any) -> Any: ...


SECONDS = ["1", None, -1, math.inf, -math.inf, math.nan, 10**400, True, [1]]
COUNTS = ["1", None, 0, -1, 1.5, math.nan, math.inf, True, [1]]
PATHS = [None, 7, "", b"in", "a\0b", object(), ["\0"]]
OPTIONS = ["header", [("header", True)], 7, {1: True}]
REDIS = {"url": "redis://localhost", "key": "k"}
CASES: list[tuple[Any, str, list[Any], dict[str, Any]]] = [
    (FileSpout, "poll_interval_secs", SECONDS, {"path": "in"}),
    (FileSpout, "max_bytes", COUNTS, {"path": "in"}),
    (FileSpout, "min_rows", [count for count in COUNTS if count is not None], {"path": "in"}),
    (FileSpout, "options", OPTIONS, {"path": "in"}),
    (FileSpout, "path", PATHS, {}),
    (FileSpout, "moved_from", [7, "", "a\0b"], {"path": "in"}),
    (DirectoryQueueSpout, "folder", PATHS, {}),
    (DirectoryQueueSpout, "min_age_secs", SECONDS, {"folder": "in"}),
    (DirectoryQueueSpout, "max_files", COUNTS, {"folder": "in"}),
    (DirectoryQueueSpout, "max_bytes", COUNTS, {"folder": "in"}),
    (DirectoryQueueSpout, "options", OPTIONS, {"folder": "in"}),
    (DirectoryQueueSpout, "shared", ["false", None, 1], {"folder": "in"}),
    (DeltaSpout, "table", PATHS, {}),
    (DeltaSpout, "poll_interval_secs", SECONDS, {"table": "t"}),
    (DeltaSpout, "max_files", COUNTS, {"table": "t"}),
    (DeltaSpout, "max_bytes", COUNTS, {"table": "t"}),
    (DataSourceSpout, "poll_interval_secs", SECONDS, {"source": Source}),
    (DataSourceSpout, "options", OPTIONS, {"source": Source}),
    (FixedBatchSpout, "batches", [None, 7, "ab", [None], [7], ["ab"], [[7]]], {"schema": "n long"}),
    (SqliteQueue, "path", [None, 7, "", b"q", "a\0b", ":memory:"], {}),
    (SqliteQueue, "lease_secs", [*SECONDS, 0], {"path": "q"}),
    (SqliteQueue, "clock", [None, 7], {"path": "q"}),
    (RedisListSpout, "redeliver_after_secs", [*SECONDS, 0], REDIS),
    (RedisListSpout, "retry_after_secs", SECONDS, REDIS),
    (RedisListSpout, "prefetch", COUNTS, REDIS),
    (RedisListSpout, "durable", ["false", None], REDIS),
    (RedisListSpout, "consumer", ["", 5], REDIS),
    (QueueSpout, "queue", [None, 7, "q"], {}),
    (QueueSpout, "table", [7, "", object()], {"queue": SqliteQueue("q")}),
    (QueueSpout, "consumer", [7, ""], {"queue": SqliteQueue("q")}),
    (QueueSpout, "max_messages", COUNTS, {"queue": SqliteQueue("q")}),
]


@pytest.mark.parametrize(("make", "name", "values", "more"), CASES, ids=[f"{c[0].__name__}.{c[1]}" for c in CASES])
def test_an_argument_that_cannot_be_used_is_refused_when_the_spout_is_built(make, name, values, more):
    for value in values:
        with pytest.raises((TopologyError, ConfigError), match="; found: .*; expected: ") as caught:
            make(**more, **{name: value})
        assert type(caught.value) in (TopologyError, ConfigError), value


def test_what_can_be_used_is_taken():
    assert FileSpout("in", poll_interval_secs=0, options=None).options == {}
    DirectoryQueueSpout("in", min_age_secs=2, shared=True)
    DeltaSpout("t", poll_interval_secs=1)
    FixedBatchSpout("n long", iter([[(1,)], ([2],)]))
    SqliteQueue("q", lease_secs=1)
    RedisListSpout(**REDIS, retry_after_secs=0)
