"""The coordinator of the kills, with executors that are processes of their own: ``python -m tests.kills.coordinator``.

    python -m tests.kills.coordinator FOLDER BROKERS DATABASE HTTP ZOOKEEPER MAX_ROWS DRIVER_ROWS_MAX

Runs until it is killed, or until FOLDER has a file ``drain``: then it commits all there is, and stops.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kills.topology import topology
from trident import HttpState, KafkaSpout, KafkaState, PostgresMap, PostgresState
from trident.spark.session import make_session
from trident.spouts.kafka import emitter
from trident.states.publishing import outside_publish

DRAIN_SECS, SESSION_SECS = 900.0, 4.0
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(
    folder: Path, brokers: str, database: str, http: str, zookeeper: str, max_rows: int, driver_rows_max: int
) -> None:
    for kind in (KafkaSpout, KafkaState, PostgresMap, PostgresState, HttpState):
        kind.bound_to_one_host = False  # type: ignore[method-assign, assignment]  # local-cluster: all are on this host
    # So that both the coordinator's process and tasks read and publish: more rows than this are the tasks'.
    emitter._HERE_ROWS = outside_publish._DRIVER_ROWS_MAX = driver_rows_max
    spark = make_session(
        "kills",
        {
            "spark.master": "local-cluster[2,1,640]",
            "spark.executor.memory": "640m",
            "spark.driver.memory": "700m",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.driver.extraJavaOptions": _JVM,
            "spark.executor.extraJavaOptions": _JVM,
            # An executor that is killed is no fault of the application's, nor of a task's.
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.task.maxFailures": "8",
        },
    )
    query = topology(brokers, database, http, max_rows).start(
        spark,
        warehouse=str(folder / "w"),
        zookeeper=zookeeper,
        zookeeper_session_timeout_secs=SESSION_SECS,
        max_spout_pending=3,
        # Each process that is killed may cost attempts; one that ends by itself is a failure of the run.
        max_attempts=10_000,
        progress="none",
        status_interval_secs=0.5,
    )
    print("started", flush=True)
    while not (folder / "drain").exists():
        if query.await_termination(0.2):
            raise SystemExit("it ended by itself")
    query.process_all_available(DRAIN_SECS)
    query.stop(DRAIN_SECS)
    print("drained", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:6], *map(int, sys.argv[6:8]))  # type: ignore[arg-type]
