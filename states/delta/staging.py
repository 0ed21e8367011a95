"""Stages the rows of one attempt: durable files that no reader sees yet (docs/semantics.md 9.2)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.util import PythonEvalType

from trident.coordinators import faults
from trident.coordinators.errors import StagedFileMissing, TableError
from trident.coordinators.identities import TransactionAttempt
from trident.states.core import storage
from trident.states.core.names import backquoted, check_inside
from trident.states.core.place import Place
from trident.states.core.tables import StagedFile
from trident.states.delta.parquet_files import (
    ATTEMPT,
    REPORT_SCHEMA,
    FileTarget,
    writer_of,
)

STAGE = faults.register("stage.write", "the Spark job that stages an attempt's rows, and the flush of its folders")
VERIFY = faults.register("stage.verify", "looking at the staged files of a decided batch")


@dataclass(frozen=True)
class StagingTarget:
    """A table that an attempt's rows are staged for.

    Attributes:
        root: the table's folder.
        txid_column: a hidden bigint column that holds the txid, or None.
        sorted_by: the columns by which the rows of each file are in order.
        durable: whether its files outlive a power cut; not so those that only this attempt reads, in its turn.
    """

    name: str
    root: Place
    partition_columns: Sequence[str] = ()
    txid_column: str | None = None
    sorted_by: Sequence[str] = ()
    durable: bool = True


def attempt_folder(incarnation: str, attempt: TransactionAttempt) -> str:
    """A folder that no other attempt, and no other try at this one, has had."""
    return f"data/{incarnation}/{attempt.txid}-{attempt.attempt_id}-{uuid.uuid4().hex[:8]}"


def stage(
    frames: Mapping[str, "DataFrame"],
    targets: Sequence[StagingTarget],
    incarnation: str,
    attempt: TransactionAttempt,
    codec: str = "snappy",
    point: str = STAGE,
) -> dict[str, list[StagedFile]]:
    """Writes each target's rows with one Spark job and returns the files of committed tasks.

    Every file of a durable target and every folder above it is on disk (fsync) when this returns.
    Nothing of it is visible: no Delta log names it.

    Args:
        frames: the rows by target name; a target without rows gets no file.
        targets: where they go.
        point: the fault point; a standby, which rehearses this, has its own.

    Returns:
        target name → its files, every target present.
    """

    def run(attempt_property: str) -> list[dict[str, Any]]:
        return collected(reports_of(frames, targets, codec), {ATTEMPT: attempt_property})

    return stage_by(run, targets, incarnation, attempt, point)


def collected(reports: "DataFrame", properties: Mapping[str, str]) -> list[dict[str, Any]]:
    """The reports of one job with these local properties."""
    context: Any = reports.sparkSession.sparkContext
    try:
        for name, value in properties.items():
            context.setLocalProperty(name, value)
        return [row.asDict() for row in reports.collect()]
    finally:
        for name in properties:
            context.setLocalProperty(name, None)


def file_target(target: StagingTarget, codec: str) -> FileTarget:
    """The target as a writer takes it, for whichever attempt."""
    return FileTarget(
        target.name,
        target.root,
        partition_columns=tuple(target.partition_columns),
        codec=codec,
        sorted_by=tuple(target.sorted_by),
        durable=target.durable,
    )


def stage_by(
    run: Callable[[str], Iterable[Mapping[str, Any]]],
    targets: Sequence[StagingTarget],
    incarnation: str,
    attempt: TransactionAttempt,
    point: str = STAGE,
) -> dict[str, list[StagedFile]]:
    """As :func:`stage`, with the Spark job run by the caller.

    Args:
        run: (value of the local property ATTEMPT) → the reports of one job over :func:`reports_of` the targets.
    """
    if not targets:
        return {}
    with faults.fault_point(point):
        folder = attempt_folder(incarnation, attempt)
        try:
            reports = list(run(json.dumps({"folder": folder, "txid": attempt.txid})))
        except BaseException:
            # No manifest will ever name these files, and on a full disk the next attempt needs their room.
            for target in targets:
                storage.try_delete(target.root / folder)
            raise
        staged: dict[str, list[StagedFile]] = {target.name: [] for target in targets}
        for report in reports:
            staged[report["target"]].append(staged_file(report))
        for target in targets:
            files = staged[target.name]
            files.sort(key=lambda file: file.path)
            if files and target.durable:
                fsync_folders(target.root, folder)
        return staged


def reports_of(frames: Mapping[str, "DataFrame"], targets: Sequence[StagingTarget], codec: str) -> "DataFrame":
    """The reports on files that are written as they are collected, for the attempt of the job that does so."""
    return reduce(
        lambda left, right: left.union(right),
        [_written(frames[target.name], target, codec) for target in targets],
    )


def _written(frame: Any, target: StagingTarget, codec: str) -> "DataFrame":
    """``frame.mapInArrow(…)``, which looks its columns up by name and finds none with a dot in it."""
    columns, order = tuple(target.partition_columns), tuple(target.sorted_by)
    table = _Table(target.name, target.root, columns, order, target.txid_column, codec, target.durable)
    return _mapped(frame, _writer(frame.sparkSession.sparkContext, table, tuple(frame.columns)))


def reports_by(frame: Any, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> "DataFrame":
    """The reports that a function gives for each Spark partition of a frame."""
    return _mapped(frame, _udf(function, tuple(frame.columns)))


def _mapped(frame: Any, udf: Any) -> "DataFrame":
    return ClassicDataFrame(frame._jdf.mapInArrow(udf._jc, False, None), frame.sparkSession)


def _udf(function: Callable[..., Any], columns: Sequence[str]) -> Any:
    make: Any = pandas_udf
    udf = make(function, returnType=REPORT_SCHEMA, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    return udf(*(F.col(backquoted(name)) for name in columns))


@dataclass(frozen=True)
class _Table:
    """All that a writer depends on but the attempt; two of them may be compared."""

    name: str
    root: Place
    partition_columns: tuple[str, ...]
    sorted_by: tuple[str, ...]
    txid_column: str | None
    codec: str
    durable: bool


# Pickled once for each table, and not with every batch.
@lru_cache(maxsize=256)
def _writer(context: Any, table: _Table, columns: tuple[str, ...]) -> Any:
    target = FileTarget(
        table.name,
        table.root,
        partition_columns=table.partition_columns,
        codec=table.codec,
        sorted_by=table.sorted_by,
        durable=table.durable,
    )
    return _udf(writer_of(target, table.txid_column), columns)


def staged_file(report: Mapping[str, Any]) -> StagedFile:
    """The file that a task's report row is about."""
    values = {name: report[name] for name in ("path", "size", "mtime_ms", "num_records", "stats")}
    check_inside("the path that a task reports", values["path"])
    return StagedFile(**values, partition_values=json.loads(report["partition_values"]))


def fsync_folders(root: Place, folder: str) -> None:
    """Makes the names in every folder from root/folder up to root outlive a power cut."""
    path = root / folder
    storage.flush(path)
    while path != root:
        path = path.parent
        storage.flush_names(path)


def drop_attempts_up_to(folder: Place, txid: int) -> None:
    """Deletes what attempts up to a txid have staged in a folder, of one incarnation; a file that stays costs space."""
    for name in storage.list_names(folder):
        number = name.partition("-")[0]
        if number.isdigit() and int(number) <= txid:
            storage.try_delete(folder / name)


def verify_staged(root: Place, files: Sequence[StagedFile], answered: bool = False) -> None:
    """Checks that every staged file is there with its size.

    Args:
        answered: a store has answered each of their writes just now, with this size: it is not asked again.

    Raises:
        TableError: one is not (the caller decides whether that halts).
    """
    for file in files:
        path = root / file.path
        try:
            with faults.fault_point(VERIFY):
                if answered:
                    continue
                found = storage.stat_file(path)
        except OSError as error:
            raise TableError(f"the staged file {path} cannot be read: {error}") from error
        if found is None or not found.is_file or found.size != file.size:
            said = "gone" if found is None else "not the one that was staged"
            raise StagedFileMissing(
                f"the staged file {path} is {said}",
                found="no such file" if found is None else found.described,
                expected=f"{file.size} bytes",
                action="bring it back from a back-up; nothing else can complete a decided batch",
            )
