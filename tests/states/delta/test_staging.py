"""What counts as staged: the files that tasks report whose results reached the driver (docs/semantics.md 9.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq

from trident.coordinators.identities import TransactionAttempt
from trident.states.delta import staging
from trident.states.delta.staging import StagingTarget, stage


def test_the_files_of_a_try_that_spark_gave_up_do_not_count(spark, tmp_path, monkeypatch):
    """A task that is run again, or speculatively beside itself, leaves files of both tries in the attempt's folder."""

    def tried_twice(*arguments: Any) -> Any:
        write = writer_of(*arguments)

        def both(batches: Iterator[Any]) -> Iterator[Any]:
            rows = list(batches)
            list(write(iter(rows)))  # wrote its files, and its result never reached the driver
            yield from write(iter(rows))

        return both

    writer_of = staging.writer_of
    monkeypatch.setattr(staging, "writer_of", tried_twice)
    target = StagingTarget("rows", tmp_path / "rows")
    frame = spark.range(0, 100, 1, 3)
    staged = stage({"rows": frame}, [target], "inc", TransactionAttempt(1, 0))["rows"]
    written = [path for path in target.root.rglob("*.parquet")]
    assert len(written) == 6, "the fault that this is about was not made"
    assert len(staged) == 3
    found = [row["id"] for file in staged for row in pq.read_table(target.root / file.path).to_pylist()]
    assert sorted(found) == list(range(100))
