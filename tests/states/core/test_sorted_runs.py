"""Rows come in the order of their bytes, equal ones as they came, whatever the bytes and however many runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from trident.states.core.sorted_runs import sort_by


@pytest.mark.parametrize("run_bytes", [1, 2000, 1 << 20])
@pytest.mark.parametrize("kind", ["short", "one prefix", "long ties", "equal", "none"])
def test_rows_come_in_the_order_of_their_bytes(tmp_path: Path, rng, kind: str, run_bytes: int) -> None:
    if kind == "short":  # with zeros at the end, which the padding of a part must not hide
        names = [bytes(rng.choices([0, 0, 1, 127, 255], k=rng.randrange(4))) for _ in range(500)]
    elif kind == "one prefix":
        names = [b"prefix" + rng.randbytes(rng.randrange(12)) for _ in range(500)]
    elif kind == "long ties":
        names = [rng.choice([b"a" * 20, b"b"]) + rng.randbytes(2) for _ in range(500)]
    else:
        names = [b"same"] * (500 if kind == "equal" else 0)
    rows = list(enumerate(names))
    tables = [
        pa.table(
            {
                "n": [n for n, _ in rows[at : at + 70]],
                "name": pa.array([name for _, name in rows[at : at + 70]], pa.large_binary()),
            }
        )
        for at in range(0, len(rows), 70)
    ]
    found = [row for table in sort_by(tables, "name", tmp_path, run_bytes) for row in table.to_pylist()]
    assert [(row["n"], row["name"]) for row in found] == sorted(rows, key=lambda row: row[1])
    assert not list(tmp_path.iterdir())


def test_memory_is_that_of_a_run_however_many_there_are(tmp_path: Path, rng) -> None:
    run_bytes, runs = 1 << 16, 256
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)

    def tables() -> Iterator[pa.Table]:
        for _ in range(runs * 4):
            yield pa.table(
                {"name": pa.array([rng.randbytes(16) for _ in range(run_bytes // 4 // 24)], pa.large_binary())}
            )

    pa.set_memory_pool(pool)
    try:
        count = sum(table.num_rows for table in sort_by(tables(), "name", tmp_path, run_bytes))
    finally:
        pa.set_memory_pool(before)
    assert count > runs * run_bytes // 24 * 0.9
    assert pool.max_memory() < 8 * run_bytes, f"{pool.max_memory() / run_bytes:.1f} runs"
