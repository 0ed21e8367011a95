"""Rows into a table of PostgreSQL by PostgresState, beside foreachBatch with psycopg's COPY."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import outside
from benchmarks.bench import Bench
from benchmarks.report import Report

if TYPE_CHECKING:
    from tests.servers.postgres_fixtures import PostgresServer

TITLE = (
    "rows into a table of PostgreSQL, exactly once, beside foreachBatch with COPY, exactly once by the batch's number"
)

_OURS, _THEIRS = "PostgresState", "foreachBatch with COPY"


def run(bench: Bench, report: Report) -> None:
    """Both in turn, each round into a table of its own of one server."""
    from tests.servers.postgres_fixtures import PostgresServer, server_programs

    programs = server_programs()
    if programs is None:
        raise RuntimeError("there is no PostgreSQL server here: apt-get install postgresql")
    server = PostgresServer(programs)
    try:
        server.start()
        measures: dict[str, outside.Measure] = {
            _OURS: lambda folder, rows, in_flight: _ours(bench, server, folder, rows, in_flight),
            _THEIRS: lambda folder, rows, in_flight: _theirs(bench, server, folder, rows),
        }
        outside.compare(bench, report, _OURS, _THEIRS, measures)
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)
    report.note(
        "the peer brings a batch to the driver, and puts it by one COPY with the batch's number, in one transaction"
    )


def _table(server: "PostgresServer") -> str:
    name = f"out_{uuid.uuid4().hex[:8]}"
    server.execute(f"CREATE TABLE {name} (key text, value text)")
    return name


def _ours(bench: Bench, server: "PostgresServer", folder: Path, rows: int, in_flight: int) -> float:
    from trident import PostgresState

    table = _table(server)
    ms = outside.ours_ms(bench, PostgresState(server.url, table), folder, rows, in_flight)
    _check(server, table, folder, rows)
    return ms


def _theirs(bench: Bench, server: "PostgresServer", folder: Path, rows: int) -> float:
    import psycopg

    table = _table(server)
    server.execute(f"CREATE TABLE {table}_last (batch bigint)")
    server.execute(f"INSERT INTO {table}_last VALUES (-1)")

    with psycopg.connect(server.url, autocommit=True) as connection:

        def put(frame: Any, batch: int) -> None:
            found = frame.collect()
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(f"UPDATE {table}_last SET batch = %s WHERE batch < %s", (batch, batch))  # type: ignore[arg-type]
                if cursor.rowcount == 0:
                    return
                with cursor.copy(f"COPY {table} (key, value) FROM STDIN") as copy:  # type: ignore[arg-type]
                    for row in found:
                        copy.write_row(row)

        def start(frame: Any) -> Any:
            writer = frame.writeStream.foreachBatch(put).option("checkpointLocation", str(bench.fresh("checkpoint")))
            return writer.trigger(availableNow=True).start()

        ms = outside.theirs_ms(bench, folder, start)
    _check(server, table, folder, rows)
    return ms


def _check(server: "PostgresServer", table: str, folder: Path, rows: int) -> None:
    """Looks that the table has each row once."""
    ((found, different),) = server.execute(f"SELECT count(*), count(DISTINCT value) FROM {table}")
    wanted = len(list(folder.glob("*.txt"))) * rows
    if (found, different) != (wanted, wanted):
        raise AssertionError(f"{found} rows arrived, {different} of them different, there were {wanted}")
