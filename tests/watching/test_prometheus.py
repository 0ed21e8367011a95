"""A real Prometheus server scrapes a running topology that fails and recovers, and answers questions about it."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.topology_helpers import starter
from tests.watching.metric_helpers import Prometheus, require_prometheus
from trident import Count, DeltaMapState, FixedBatchSpout, TridentTopology
from trident.watching.metric_table import ALERTS, monitoring_file

TOKEN = "a-token-of-the-tests"


def topology(folder: Path) -> TridentTopology:
    """A word count; one word fails while there is a file of this name."""
    bad = str(folder / "fails")

    def check(word: str) -> str:
        import os
        import time

        if word == "bad" and os.path.exists(bad):
            raise ValueError(f"a bad word, at {time.time_ns()}")  # the same three times over would end the topology
        return word

    made = TridentTopology("watched")
    spout = FixedBatchSpout("word string", [[("a",), ("b",)], [("bad",), ("c",)], [("a",), ("b",)]])
    (
        made.new_stream("lines", spout)
        .each("word", check, "checked")
        .group_by("checked")
        .persistent_aggregate(DeltaMapState("counts", merge_every_txids=1), Count(), "count")
    )
    return made


def quick(rules: str) -> str:
    """The rules as they are, but for the time that a condition must last."""
    return re.sub(r"^ +for: .*\n", "", rules, flags=re.MULTILINE)


def status_of(address: str, token: str | None) -> int:
    request = urllib.request.Request(f"http://{address}/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.long
def test_prometheus_sees_a_batch_fail_and_recover(
    spark: SparkSession, zk_server: str, zk_root: str, tmp_path: Path
) -> None:
    require_prometheus()
    (tmp_path / "fails").touch()
    settings = {"http": "127.0.0.1:0", "http_token": TOKEN, "metrics_interval_secs": 0.5, "max_attempts": 1000}
    with starter(spark, zk_server, zk_root, tmp_path, **settings) as start:
        query = start(topology(tmp_path))
        address = query.http_address
        assert address is not None
        assert status_of(address, None) == 401 and status_of(address, "another-token-of-tests") == 401
        server = Prometheus(tmp_path, address, quick(monitoring_file(ALERTS)), TOKEN)
        try:
            server.until('ALERTS{alertname="TridentTransactionFails",alertstate="firing",topology="watched"}')
            server.until('trident_failures_total{group="lines",part="processing"} > 2')
            (leads,) = server.until('trident_role{topology="watched",role="leader"} == 1')
            assert leads["metric"]["job"] == "trident" and leads["metric"]["instance"] == address
            server.until("trident_replays_total > 1")
            (tmp_path / "fails").unlink()
            query.process_all_available(90)
            server.until('trident_transactions_total{outcome="published"} >= 3')
            server.until('trident_state_rows_total{topology="watched",state="counts"} == 6')
            server.until('sum(trident_state_written_bytes_total{state="counts"}) > 100')
            buckets = 'sum by (le) (trident_phase_duration_seconds_bucket{phase="total"})'
            server.until(f"histogram_quantile(0.5, {buckets}) > 0")
            server.until("max(trident_transaction_failures) == 0")
            server.until('trident_table_bytes{state="counts",table="plain"} > 0')
            server.until('trident_table_files{state="counts",table="log"} > 0')
            server.until('trident_merges_total{state="counts"} > 0')
            server.until('trident_merge_lag_transactions{state="counts"} < 3')
            server.until('trident_dead_letters{group="lines"} == 0')
            server.until('trident_zookeeper_request_duration_seconds_count{operation="write"} > 3')
            server.until('trident_process_memory_bytes{process="jvm"} > 1e7')
            server.until("trident_jvm_heap_used_bytes > 1e6")
            server.until("trident_warehouse_free_bytes > 0")
            (epoch,) = server.until("trident_epoch")
            assert int(epoch["value"][1]) == query.status["epoch"]
            query.stop()
            server.until('ALERTS{alertname="TridentProcessDown",alertstate="firing"}')
        finally:
            server.end()
