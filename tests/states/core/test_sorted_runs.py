"""Rows come in the order of their bytes, equal ones as they came, whatever the bytes and however many runs."""

from __future__ import annotations

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
