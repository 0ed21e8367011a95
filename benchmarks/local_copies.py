"""What local copies cost: built from a plain table, looked up in, brought on; beside the least that each needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench
from benchmarks.report import Goal, Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from trident.states.core.local_copy import CopyMark

TITLE = "local copies of a state of 1 M and of 8 M keys: a build, 1,000 keys looked up, 1,000 keys changed"
_ROWS, _SHARDS = 1000, 8


def run(bench: Bench, report: Report) -> None:
    """Both sizes, one after the other; the figures are CPU time of this process, since no other part takes any."""
    found = [
        _Sized(bench, keys).measure(report) for keys in (bench.size(1_000_000, 5_000), bench.size(8_000_000, 9_000))
    ]
    for name in ("a look-up", "a change"):
        report.ratio(f"{name}: large / small", found[1][name], found[0][name])
    _tasks(bench, report)


def _tasks(bench: Bench, report: Report) -> None:
    """What the driver takes for each further shard: tasks that do nothing, by a plan that is kept."""
    from trident.spark.jars import kept_plan_class
    from trident.spark.kept_plan import KeptPlan
    from trident.spark.rows import ShardsSlot

    def made(count: int, kept: Any) -> AbstractContextManager["DataFrame"]:
        return nullcontext(ShardsSlot(bench.spark, count).over(kept, "").selectExpr("cast(shard as bigint) shard"))

    ms: dict[int, list[float]] = {}
    for count in (1, 8, 64):
        plan = KeptPlan(bench.spark, kept_plan_class(bench.spark.sparkContext), "tasks that do nothing")
        took = [_wall_ms(partial(plan.rows, {}, partial(made, count))) for _ in range(bench.size(40, 3))]
        ms[count] = took[len(took) // 2 :]
        report.figure(f"a job of {count} tasks that do nothing", "ms", ms[count])
    report.figure("each further task of a job", "ms", [(min(ms[64]) - min(ms[1])) / 63])


class _Sized:
    """A plain table of as many keys in one Parquet file, in no order, and its copy."""

    def __init__(self, bench: Bench, keys: int) -> None:
        import pyarrow as pa

        self._bench, self._keys, self.what = bench, keys, f"{keys:,} keys"
        self._schema = pa.schema([("key", pa.string()), ("n", pa.int64())])
        self._folder = bench.fresh("local-copies")
        self._folder.mkdir()

    def measure(self, report: Report) -> dict[str, float]:
        """Builds, looks up, changes; returns the median of each, in ms."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        from trident.states.core.copy_rows import RowCodec
        from trident.states.core.local_copy import CopyAsOf, CopyMark, LocalCopy, look_up
        from trident.states.core.shards import WHOLE, Shard

        rng, codec = np.random.default_rng(1), RowCodec(self._schema, ["key"])
        path = self._folder / "plain.parquet"
        names = pa.array([f"k{n:08d}" for n in rng.permutation(self._keys).tolist()])
        pq.write_table(pa.table([names, pa.array(rng.integers(0, 1 << 40, self._keys))], schema=self._schema), path)

        def rows(shard: Shard = WHOLE) -> Any:
            for batch in pq.ParquetFile(path).iter_batches(100_000):
                mine = batch if shard.count == 1 else batch.filter(shard.of_rows(batch, self._schema, ["key"]))
                yield codec.rows(mine)

        def table(number: int) -> pa.Table:
            asked = [f"k{n:08d}" for n in rng.integers(0, self._keys, _ROWS).tolist()]
            return pa.table([pa.array(asked), pa.array([number] * _ROWS, pa.int64())], schema=self._schema)

        held = CopyMark("bench", 0, "", "")
        read = [_cpu_ms(lambda: [None for _ in pq.ParquetFile(path).iter_batches(100_000)]) for _ in range(3)]
        copies = []

        def build(shard: Shard = WHOLE) -> None:
            copies.append(LocalCopy(Path(self._folder / f"{len(copies)}.copy"), 8 << 30, self._schema.remove(0)))
            copies[-1].apply(rows(shard), None, held)
            copies[-1].wait_for_merge()

        part = [_cpu_ms(partial(build, Shard(number, _SHARDS))) for number in range(self._bench.size(2, 1))]
        built = [_cpu_ms(build) for _ in range(self._bench.size(3, 1))]
        millions = self._keys / 1e6
        report.figure(f"{self.what}: the table is read by Arrow", "ms a million", [ms / millions for ms in read])
        goal = None if self._bench.quick else Goal(at_most=1000)
        report.figure(f"{self.what}: a build", "ms a million", [ms / millions for ms in built], goal)
        report.ratio(f"{self.what}: a build / reading its table", min(built), min(read))
        # Rows of other shards are read, hashed and left out: 1 of n shards takes others + (whole - others) / n.
        of_others = (min(part) - min(built) / _SHARDS) / (1 - 1 / _SHARDS)
        report.figure(f"{self.what}: a build of 1 of {_SHARDS} shards", "ms a million", [ms / millions for ms in part])
        report.figure(f"{self.what}: of that rows of other shards", "ms a million", [of_others / millions])
        for one in copies[:-1]:
            one.delete()
        copy = copies[-1]
        report.figure(f"{self.what}: the file", "MB", [copy.disk_bytes / 1e6])

        def read(asked: pa.Table, held: CopyMark) -> None:
            look_up(CopyAsOf(copy.folder, held, self._schema, ("key",)), codec.key_array(asked))

        def change(given: pa.Table, held: CopyMark, after: CopyMark) -> None:
            copy.apply([codec.rows(given)], held, after)
            copy.wait_for_merge()

        looked, changed = [], []
        for number in range(1, self._bench.size(40, 3)):
            asked = table(number)
            looked.append(_cpu_ms(partial(read, asked, held)))
            after = _next(held)
            changed.append(_cpu_ms(partial(change, table(number), held, after)))
            held = after
        copy.delete()
        goal = None if self._bench.quick else Goal(at_most=4)
        return {
            "a look-up": report.figure(f"{self.what}: {_ROWS:,} looked up", "ms", looked, goal),
            "a change": report.figure(f"{self.what}: {_ROWS:,} changed", "ms", changed, goal),
        }


def _next(mark: CopyMark) -> CopyMark:
    import msgspec

    return msgspec.structs.replace(mark, txid=mark.txid + 1)


def _wall_ms(run: Callable[[], object]) -> float:
    started = time.monotonic()
    run()
    return (time.monotonic() - started) * 1000


def _cpu_ms(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return (time.process_time() - started) * 1000
