"""Reads the checkpoints of a Delta table: what its log says up to a version, without the entries up to there.

Every kind of checkpoint is read: whole, in parts, V2 with sidecars.

Delta's protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trident.coordinators.errors import TableError
from trident.states.core import storage
from trident.states.delta.log_entries import checkpoints_of, json_lines

_KINDS = ("metaData", "protocol", "txn", "domainMetadata", "sidecar", "add")
_COLUMNS = [
    *_KINDS[:-1],
    *(f"add.{name}" for name in ("path", "size", "partitionValues", "modificationTime", "stats", "deletionVector")),
]
_ROWS_AT_ONCE = 4096
_PART = re.compile(r"\d{20}\.checkpoint\.\d{10}\.(\d{10})\.parquet")

Action = tuple[str, Mapping[str, Any]]


def newest_checkpoint(path: str, version: int) -> tuple[int, Iterator[Action]]:
    """The newest checkpoint up to a version: its own version, and its actions but for removed files.

    Returns:
        (-1, none) where there is no checkpoint.

    Raises:
        TableError: it cannot be read; when the actions are looked at.
    """
    root = storage.join(_local(path), "_delta_log")
    for at, names in sorted(checkpoints_of(path).items(), reverse=True):
        files = _complete(root, names) if at <= version else None
        if files:
            return at, _actions(path, root, files)
    return -1, iter(())


def _complete(root: str, names: Sequence[str]) -> list[str] | None:
    """The files of one checkpoint of a version, None where none is whole; Delta too passes over empty files."""
    filled = [name for name in names if (found := storage.stat(storage.join(root, name))) is not None and found.size]
    single = [name for name in filled if not _PART.fullmatch(name)]
    if single:
        return single[:1]
    parts: dict[str, list[str]] = {}
    for name in filled:
        if match := _PART.fullmatch(name):
            parts.setdefault(match[1], []).append(name)
    return next((part for count, part in parts.items() if len(part) == int(count)), None)


def _actions(path: str, root: str, names: Iterable[str]) -> Iterator[Action]:
    for name in names:
        try:
            yield from _of_file(path, root, name)
        except (OSError, pa.ArrowException, KeyError, ValueError, RecursionError) as error:
            raise TableError(f"checkpoint {name} of table {path} cannot be read", found=error) from error


def _of_file(path: str, root: str, name: str) -> Iterator[Action]:
    for kind, body in _json_actions(root, name) if name.endswith(".json") else _parquet_actions(root, name):
        if kind == "sidecar":
            yield from _of_file(path, root, f"_sidecars/{body['path']}")
        elif kind == "add":
            yield kind, {**body, "partitionValues": dict(body.get("partitionValues") or ())}
        elif kind == "metaData":
            yield kind, {**body, "configuration": dict(body.get("configuration") or ())}
        elif kind in _KINDS:
            yield kind, body


def _json_actions(root: str, name: str) -> Iterator[Action]:
    for line in json_lines(storage.join(root, name)):
        yield from line.items()


def _parquet_actions(root: str, name: str) -> Iterator[Action]:
    file = pq.ParquetFile(io.BytesIO(storage.read(storage.join(root, name))))
    # Some at a time: of a table of many files all of them as Python values would be half a gigabyte.
    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=_COLUMNS):
        for kind in batch.schema.names:
            yield from ((kind, body) for body in batch.column(kind).drop_null().to_pylist())


def _local(path: str) -> str:
    root = storage.reached_path(path)
    if root is None:
        raise TableError(f"the framework cannot read the log of table {path}", expected="a path, s3a: or hdfs:")
    return root
