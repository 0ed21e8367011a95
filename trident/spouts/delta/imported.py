"""Offsets of Delta's own streaming source, from a checkpoint of Structured Streaming, as a position of a DeltaSpout."""

from __future__ import annotations

from trident.coordinators.errors import SourceError
from trident.spouts.checkpoint import SourceOffset
from trident.spouts.delta.coordinator import Place, Range
from trident.spouts.delta.log import DeltaChanges
from trident.spouts.metadata import is_whole

_KEYS = {"sourceVersion", "reservoirId", "reservoirVersion", "index", "isStartingVersion"}
_SOURCE_VERSIONS = (1, 3)
# Before the first file of a version, as the source's first version of offsets and its third write it.
_BEFORE_ALL = (-1, -100)
_BEHIND_ALL = (1 << 63) - 1 - 100


def range_behind(source: SourceOffset, table: str, ignore_changes: bool, what: str) -> Range:
    """The empty range at the source's offset.

    Both number the files of the first version, which is read as a whole, by their times of modification and names, and
    those of a later one as its log entry has them. So a version that was read to its middle goes on there.

    Raises:
        SourceError: the offset is in the middle of something else, such as a change of the schema.
    """
    offset = source.value
    version, index, starting = (offset.get(key) for key in ("reservoirVersion", "index", "isStartingVersion"))
    is_known = set(offset) == _KEYS and offset["sourceVersion"] in _SOURCE_VERSIONS and isinstance(starting, bool)
    if not (is_known and is_whole(version, 0) and (index in _BEFORE_ALL or is_whole(index, 0))):
        raise SourceError(
            f"{what} cannot go on at this offset of the Delta table {table}",
            found=str(dict(offset)),
            expected="a version, and how many of its files are read",
            action="run the query once more, until it is behind that version (a change of the table's schema, or "
            "withEventTimeOrder)",
        )
    version, index = int(offset["reservoirVersion"]), int(offset["index"])
    place = Place(version, 0 if index in _BEFORE_ALL else index + 1)
    if index >= _BEHIND_ALL:
        place = Place(version + 1, 0)
    snapshot = version if starting else -1
    # Of the offset, not of the table as it is now: asked again, behind further commits, it is the same position. The
    # coordinator reads by the version that it finds, if that is a later one; the offset's may not be there yet.
    read_at = max(0, version - 1)
    return Range(DeltaChanges(table).info().table_id, snapshot, place, place, read_at, ignore_changes, rows=0)
