"""Sorts tables by a column of bytes, in bounded memory: sorted runs in files, merged range by range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

# Of so many bytes a run is sorted and written.
RUN_BYTES = 64 << 20
_SAMPLES = 64


def sort_by(batches: Iterable[pa.Table], column: str, folder: Path, run_bytes: int = RUN_BYTES) -> Iterator[pa.Table]:
    """The rows of some tables in the order of a column, in tables of about ``run_bytes`` each.

    Takes two to three times ``run_bytes`` of memory, and where that does not hold all rows, the disk space of them.

    Args:
        batches: all of one schema.
        column: of type ``large_binary``, without nulls.
        folder: for the runs; on a local disk. The caller deletes it with all that is left in it.

    Raises:
        OSError: the disk refused.
    """
    waiting: list[pa.Table] = []
    paths: list[Path] = []
    for batch in batches:
        waiting.append(batch)
        if sum(one.nbytes for one in waiting) >= run_bytes:
            paths.append(_written(_sorted(waiting, column), folder / f"run-{len(paths)}.arrow"))
            waiting = []
    if not paths:
        if waiting:
            yield _sorted(waiting, column)
        return
    if waiting:
        paths.append(_written(_sorted(waiting, column), folder / f"run-{len(paths)}.arrow"))
    waiting = []
    yield from _merged([pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in paths], column)
    for path in paths:
        path.unlink()


def _sorted(tables: list[pa.Table], column: str) -> pa.Table:
    whole = pa.concat_tables(tables).combine_chunks()
    return whole.take(pc.sort_indices(whole.column(column)))


def _written(table: pa.Table, path: Path) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return path


def _merged(runs: list[pa.Table], column: str) -> Iterator[pa.Table]:
    """Ranges of which each has about as many rows as a run."""
    columns = [run.column(column).combine_chunks() for run in runs]
    steps = [max(1, len(one) // _SAMPLES) for one in columns]
    samples = sorted(one[n].as_py() for one, step in zip(columns, steps) for n in range(0, len(one), step))
    limits = samples[_SAMPLES::_SAMPLES]
    ends = [[0, *(_below(one, limit) for limit in limits), len(one)] for one in columns]
    for part in range(len(limits) + 1):
        pieces = [run.slice(end[part], end[part + 1] - end[part]) for run, end in zip(runs, ends, strict=True)]
        yield _sorted(pieces, column)


def _below(ordered: pa.Array, limit: bytes) -> int:
    """How many of the ordered values are below one."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle].as_py() < limit:
            low = middle + 1
        else:
            high = middle
    return low
