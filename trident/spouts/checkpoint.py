"""Reads checkpoints of Spark's Structured Streaming: where batches end in each source, and which are committed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from trident.coordinators import faults
from trident.coordinators.errors import SourceError, TopologyError
from trident.spouts.contracts import Json, SpoutContext
from trident.states.core import storage
from trident.states.core.place import Place

READ = faults.register("checkpoint.read", "reading the checkpoint of a query of Structured Streaming")

KAFKA, FILES, DELTA = "Kafka", "files", "Delta"
_NONE = "-"
_VERSIONS = ("v1", "v2")


@dataclass(frozen=True)
class SourceOffset:
    """Where a batch of a query ends in one of its sources.

    Attributes:
        name: "0", "1", …, in the order of the query; or the name that the query gives the source.
        folder: of the source in the checkpoint; not every source has one.
        value: as the source has written it.
    """

    name: str
    folder: Place
    value: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind of the source: KAFKA, FILES or DELTA.

        Raises:
            SourceError: it is none of these.
        """
        if set(self.value) == {"logOffset"}:
            return FILES
        if "reservoirId" in self.value:
            return DELTA
        if self.value and all(isinstance(one, Mapping) for one in self.value.values()):
            return KAFKA
        raise SourceError(
            f"source {self.name} of the checkpoint is of a kind that cannot be imported",
            found=json.dumps(self.value)[:200],
            expected="offsets of Kafka, of a folder of files, or of a Delta table",
            action="read it by StructuredStreamSpout(df, checkpoint), which continues with the checkpoint as it is",
        )


@runtime_checkable
class Imports(Protocol):
    """A spout that can go on where a source of a query of Structured Streaming has got to."""

    def reads_source(self, source: SourceOffset) -> bool:
        """Tells whether the source is the spout's."""

    def position_after(self, source: SourceOffset, context: SpoutContext) -> Json:
        """The metadata of an empty batch after an offset of the source; the spout's next batch begins there.

        Raises:
            SourceError: the spout cannot go on from there.
        """


class StreamCheckpoint:
    """A checkpoint as it is when it is read.

    Attributes:
        last: the newest batch that Spark has planned.
        in_doubt: that batch, if Spark has not committed it: its rows may be in the target, or not; else None.
        has_state: whether the query keeps state of Spark's own.

    Raises:
        TopologyError: there is no checkpoint, or one without a batch.
        SourceError: it is torn, or of a version that is not known.
    """

    def __init__(self, path: Place) -> None:
        self.path = Place(path)
        with faults.fault_point(READ):
            offsets, commits = (_batches(self.path / part) for part in ("offsets", "commits"))
            self.has_state = bool(storage.list_names(self.path / "state"))
        if not offsets:
            raise TopologyError(
                f"{self.path} is no checkpoint of a query that has begun",
                found="no batch in its folder offsets",
                expected="the checkpointLocation of a query of Structured Streaming",
            )
        self.last = max(offsets)
        done = max(commits, default=-1)
        if not self.last - 1 <= done <= self.last:
            raise SourceError(
                f"the checkpoint {self.path} is not whole",
                found=f"offsets up to batch {self.last}, commits up to batch {done}",
                expected="the commit of the last batch, or of the one before it",
                action="bring it back from a copy; run a query with asyncProgressTrackingEnabled once without it",
            )
        self.in_doubt = self.last if done < self.last else None

    def ends(self, batch: int) -> list[SourceOffset]:
        """Where a batch ends in each source that had given something by then.

        Raises:
            SourceError: the batch's file is gone or torn, or of a version that is not known.
        """
        path = self.path / "offsets" / str(batch)
        version, *lines = _lines(path)
        if version not in _VERSIONS:
            raise _torn(path, version, f"the version {' or '.join(_VERSIONS)} of Spark 4.2 and before")
        # The first is about the query, not about a source.
        if not lines or not _is_object(lines[0]):
            raise _torn(path, lines[0] if lines else "nothing after the version", "a line about the query")
        named = enumerate(lines[1:]) if version == "v1" else (_named(path, line) for line in lines[1:])
        return [self._source(path, str(name), text) for name, text in named if text != _NONE]

    def begins(self) -> list[SourceOffset]:
        """Where the first batch began; only sources of Kafka say it: empty where there is another one."""
        sources = self.ends(0)
        if any(one.kind != KAFKA for one in sources):
            return []
        return [self._source(one.folder / "0", one.name, _lines(one.folder / "0")[-1]) for one in sources]

    def _source(self, path: Place, name: str, text: str) -> SourceOffset:
        if not _is_object(text):
            raise _torn(path, text, "an offset as JSON")
        return SourceOffset(name, self.path / "sources" / name, json.loads(text))


def seen_files(source: SourceOffset) -> dict[str, int]:
    """The files that a source of files had given: path → modification time in milliseconds.

    Raises:
        SourceError: the source's log is torn, or of a version that is not known.
    """
    upto = source.value["logOffset"]
    if not isinstance(upto, int):
        raise _torn(source.folder, repr(upto), "a number of batches")
    with faults.fault_point(READ):
        names = storage.list_names(source.folder)
    compact = sorted(int(name.partition(".")[0]) for name in names if name.endswith(".compact") and name[:1].isdigit())
    # One that goes beyond says of each file of which batch it is.
    whole = next((one for one in compact if one >= upto), max(compact, default=-1))
    parts = [f"{whole}.compact"] if whole >= 0 else []
    parts += [str(batch) for batch in range(whole + 1, upto + 1)]
    found: dict[str, int] = {}
    for part in parts:
        path = source.folder / part
        version, *lines = _lines(path)
        if version != "v1":
            raise _torn(path, version, "the version v1")
        for line in lines:
            entry = json.loads(line) if _is_object(line) else {}
            name, batch, moment = entry.get("path"), entry.get("batchId"), entry.get("timestamp")
            if not (isinstance(name, str) and isinstance(batch, int) and isinstance(moment, int)):
                raise _torn(path, line, "a file with path, timestamp and batchId")
            if batch <= upto:
                found[name] = moment
    return found


def _batches(folder: Place) -> list[int]:
    return [int(name) for name in storage.list_names(folder) if name.isdigit()]


def _lines(path: Place) -> list[str]:
    try:
        with faults.fault_point(READ):
            data = storage.read(path)
    except FileNotFoundError as error:
        raise SourceError(
            f"a file of the checkpoint is gone: {path}",
            expected="a whole checkpoint",
            action="bring it back from a copy",
        ) from error
    # Kafka's first offsets begin with a zero byte, for versions before 2.1.
    text = data.decode(errors="replace").removeprefix("\0")
    return [line for line in text.split("\n") if line] or [""]


def _named(path: Place, line: str) -> tuple[str, str]:
    name, colon, text = line.partition(":")
    if not colon or "/" in name or name in ("", ".", ".."):
        raise _torn(path, line, "the name of a source and its offset")
    return name, text


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _torn(path: Place, found: str, expected: str) -> SourceError:
    return SourceError(
        f"a file of the checkpoint cannot be read: {path}",
        found=repr(found[:200]),
        expected=expected,
        action="the file is torn, or another version of Spark has written it: bring it back from a copy, or run the "
        "query once more by Spark 4.2",
    )
